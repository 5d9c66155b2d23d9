//! Products of pairs of bfloat16, added to sums in float32: twice the products of a float32 instruction, or with tiles 16 times.
//!
//! A lane of 32 bits holds two numbers: the lower half is the first one. `src/certify/halves.rs` says what is assumed of the sums.

use std::sync::OnceLock;

use super::probe;
use super::tiles::{self, SIDE};
use super::{Portable, Vector, lanes};

/// A vector that multiplies pairs.
pub trait Dot: Vector {
    /// `self + x_1 c_1 + x_0 c_0` in each lane. The lanes of `x` and `c` are pairs.
    ///
    /// # Safety
    /// As [`Vector`] says.
    unsafe fn dot(self, x: Self, c: Self) -> Self;
}

/// What multiplies pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairUnit {
    /// AMX: tiles of rows by tiles of centroids.
    Amx,
    /// `vdpbf16ps` of AVX512-BF16.
    Avx512,
    /// Both in plain Rust, for tests on machines without such instructions.
    EmulatedTiles,
    Emulated,
}

/// Code to compile for each unit. `run` and everything that its hot loops call are `#[inline(always)]`.
pub trait PairTask {
    type Output;
    fn run<V: Dot>(self) -> Self::Output;
}

impl PairUnit {
    /// The fastest unit of this machine that adds as assumed, if there is one. Tried once.
    pub fn detect() -> Option<Self> {
        static DETECTED: OnceLock<Option<PairUnit>> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let units = [Self::Amx, Self::Avx512].into_iter();
            units.filter(|unit| unit.is_available() && unit.is_fast()).find(|unit| unit.adds_as_assumed())
        })
    }

    /// Whether rows and centroids are multiplied in tiles.
    pub fn is_tiled(self) -> bool {
        matches!(self, Self::Amx | Self::EmulatedTiles)
    }

    /// This unit, or its emulation on a machine without it.
    pub fn or_emulated(self) -> Self {
        match self {
            unit if unit.is_available() => unit,
            Self::Amx => Self::EmulatedTiles,
            _ => Self::Emulated,
        }
    }

    /// Number of lanes of a copy of `d` features.
    pub fn lanes(self, d: usize) -> usize {
        let lanes = d.div_ceil(2);
        if self.is_tiled() { lanes.next_multiple_of(SIDE) } else { lanes }
    }

    /// Number of centroids in a table of so many, with those that fill up the last tile.
    pub fn centroids(self, count: usize) -> usize {
        if self.is_tiled() { count.next_multiple_of(SIDE) } else { count }
    }

    /// Whether the unit is faster than float32 products. `vdpbf16ps` is on AMD's processors; on Intel's it takes 1.7 times as long.
    fn is_fast(self) -> bool {
        self != Self::Avx512 || super::is_made_by_amd()
    }

    /// Whether this machine has the unit.
    fn is_available(self) -> bool {
        match self {
            Self::Emulated | Self::EmulatedTiles => true,
            Self::Amx => tiles::is_amx_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => super::InstructionSet::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512bf16"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 => false,
        }
    }

    /// Runs a task compiled for this unit, or the emulation on a machine without it.
    #[inline]
    pub fn run<T: PairTask>(self, task: T) -> T::Output {
        #[cfg(target_arch = "x86_64")]
        if self == Self::Avx512 && self.is_available() {
            // SAFETY: `is_available` found the features. std caches the answer.
            return unsafe { x86::run_avx512(task) };
        }
        task.run::<Portable>()
    }

    /// Tries some thousand sums.
    fn adds_as_assumed(self) -> bool {
        if self.is_tiled() { probe::tiles(self) } else { probe::pairs(self) }
    }
}

/// A first and a second number, as bits of bfloat16.
pub type Pair = [u16; 2];

/// A pair as it lies in a vector.
#[inline(always)]
pub fn packed([first, second]: Pair) -> f32 {
    f32::from_bits(u32::from(second) << 16 | u32::from(first))
}

/// The nearest bfloat16, or 0 for what is below the least normal number, not finite or too large.
#[inline(always)]
pub fn to_bfloat16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let exponent = rounded & 0x7f80;
    // A NaN may wrap around.
    if exponent == 0 || exponent == 0x7f80 || bits & 0x7f80_0000 == 0x7f80_0000 { 0 } else { rounded as u16 }
}

/// A bfloat16 as float32.
#[inline(always)]
pub fn from_bfloat16(number: u16) -> f32 {
    f32::from_bits(u32::from(number) << 16)
}

/// Numbers below the least normal one count as 0, as in the hardware.
#[inline(always)]
pub fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0 } else { x }
}

/// The first number of a pair and the second.
#[inline(always)]
pub fn unpacked(pair: f32) -> [f32; 2] {
    let bits = pair.to_bits();
    [bits << 16, bits & 0xffff_0000].map(|bits| flushed(f32::from_bits(bits)))
}

impl Dot for Portable {
    #[inline(always)]
    unsafe fn dot(self, x: Self, c: Self) -> Self {
        Self(lanes!(i in [0.0; 8], {
            let ([x, y], [c, d]) = (unpacked(x.0[i]), unpacked(c.0[i]));
            flushed(x * c + flushed(y * d + self.0[i]))
        }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps};

    use super::super::x86::Avx512;
    use super::{Dot, PairTask};

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,avx2")]
    pub unsafe fn run_avx512<T: PairTask>(task: T) -> T::Output {
        task.run::<Avx512>()
    }

    impl Dot for Avx512 {
        #[inline(always)]
        unsafe fn dot(self, x: Self, c: Self) -> Self {
            // SAFETY: reached only through `run_avx512`, which enables the features. Both types are 64 bytes of any bits.
            unsafe {
                let x = std::mem::transmute::<__m512, __m512bh>(x.0);
                Self(_mm512_dpbf16_ps(self.0, x, std::mem::transmute::<__m512, __m512bh>(c.0)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_as_assumed() {
        for unit in [PairUnit::Amx, PairUnit::Avx512, PairUnit::EmulatedTiles, PairUnit::Emulated] {
            assert!(!unit.is_available() || unit.adds_as_assumed(), "{unit:?}");
        }
        let fastest = [PairUnit::Amx, PairUnit::Avx512].into_iter().find(|unit| unit.is_available() && unit.is_fast());
        assert_eq!(PairUnit::detect(), fastest);
    }

    #[test]
    fn bfloat16_is_the_nearest() {
        for (x, expected) in [
            (1.0f32, 1.0f32),
            (1.0 + 2f32.powi(-8), 1.0),
            (1.0 + 3.0 * 2f32.powi(-8), 1.0 + 2f32.powi(-6)),
            (-3.3, -3.296_875),
            (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
            (f32::MIN_POSITIVE / 2.0, 0.0),
            (f32::MAX, 0.0),
            (f32::INFINITY, 0.0),
            (f32::NAN, 0.0),
        ] {
            assert_eq!(from_bfloat16(to_bfloat16(x)), expected, "{x}");
        }
    }
}
