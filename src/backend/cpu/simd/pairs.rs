//! Products of pairs of bfloat16, added to sums in float32: twice the products of a float32 instruction.
//!
//! A lane of 32 bits holds two numbers: the lower half is the first one. `src/certify/halves.rs` says what is assumed of the sums.

use std::sync::OnceLock;

use super::{Portable, Vector};

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
    /// `vdpbf16ps` of AVX512-BF16.
    Avx512,
    /// Plain Rust, for tests on machines without such an instruction.
    Emulated,
}

/// Code to compile for each unit. `run` and everything that its hot loops call are `#[inline(always)]`.
pub trait PairTask {
    type Output;
    fn run<V: Dot>(self) -> Self::Output;
}

impl PairUnit {
    /// The unit of this machine, if it has one that adds as assumed. Tried once.
    pub fn detect() -> Option<Self> {
        static DETECTED: OnceLock<Option<PairUnit>> = OnceLock::new();
        *DETECTED.get_or_init(|| Some(Self::Avx512).filter(|unit| unit.is_available() && unit.adds_as_assumed()))
    }

    /// Whether this machine has the unit.
    fn is_available(self) -> bool {
        match self {
            Self::Emulated => true,
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

    /// Tries some thousand sums. Each may differ from the exact sum by two roundings to nearest, and by twice the least normal number.
    fn adds_as_assumed(self) -> bool {
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        // Eight bits of significand, and a few binades. In every third case all numbers are tiny.
        let mut number = |tiny: bool| {
            let exponent = if tiny { 127 - 66 } else { 127 - 2 } + next() % 4;
            ((exponent << 7 | next() & 0x7f) | (next() & 1) << 15) as u16
        };
        (0..256).all(|case| {
            let [x, c]: [[Pair; PROBED]; 2] = std::array::from_fn(|_| {
                std::array::from_fn(|_| [number(case % 3 == 1), number(case % 3 == 1 || case % 5 == 2)])
            });
            // Sums of the same size as the products, and with bits far below those of the products.
            let start: [f32; PROBED] = std::array::from_fn(|lane| {
                let size = if case % 3 == 1 { 0.0 } else { f32::from_bits(u32::from(number(false)) << 16 | 0x5555) };
                if lane % 2 == 0 { size } else { size.abs() * 8.0 }
            });
            let found = self.run(Probe { x: &x, c: &c, start: &start });
            (0..PROBED).all(|lane| {
                let products = [0, 1].map(|i| f64::from(from_bfloat16(x[lane][i])) * f64::from(from_bfloat16(c[lane][i])));
                let sum = f64::from(start[lane]);
                let exact = sum + products[0] + products[1];
                let between = (sum + products[0]).abs().max((sum + products[1]).abs());
                let rounding = 2f64.powi(-24) * 1.000_001 * (exact.abs() + between * 1.000_001);
                (f64::from(found[lane]) - exact).abs() <= rounding + 2.0 * f64::from(f32::MIN_POSITIVE)
            })
        })
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

/// Number of lanes that are tried together: a multiple of every vector's.
const PROBED: usize = 16;

struct Probe<'p> {
    x: &'p [Pair; PROBED],
    c: &'p [Pair; PROBED],
    start: &'p [f32; PROBED],
}

impl PairTask for Probe<'_> {
    type Output = [f32; PROBED];

    #[inline(always)]
    fn run<V: Dot>(self) -> [f32; PROBED] {
        let mut found = [0.0; PROBED];
        let (x, c) = (self.x.map(packed), self.c.map(packed));
        for at in (0..PROBED).step_by(V::LANES) {
            // SAFETY: LANES divides PROBED. `PairUnit::run` enables the features.
            unsafe {
                let sum = V::load(self.start.as_ptr().add(at));
                sum.dot(V::load(x.as_ptr().add(at)), V::load(c.as_ptr().add(at))).store(found.as_mut_ptr().add(at));
            }
        }
        found
    }
}

/// Numbers below the least normal one count as 0, as in the hardware.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0 } else { x }
}

impl Dot for Portable {
    #[inline(always)]
    unsafe fn dot(self, x: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| {
            let half = |pair: f32, shift: u32| flushed(f32::from_bits(pair.to_bits() >> (16 - shift) << 16));
            let second = flushed(half(x.0[i], 0) * half(c.0[i], 0) + self.0[i]);
            flushed(half(x.0[i], 16) * half(c.0[i], 16) + second)
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
        assert!(PairUnit::Emulated.adds_as_assumed());
        if PairUnit::Avx512.is_available() {
            assert_eq!(PairUnit::detect(), Some(PairUnit::Avx512));
        }
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
