//! Products of quads of bytes, added to 32-bit integers: four times the products of a float32 instruction, or with tiles 32 times.
//!
//! A lane of 32 bits holds four numbers, the lowest byte first. Those of rows are from 0 to 255, those of centroids from -127 to 127, because such are
//! the instructions. Sums wrap around. So they are exact wherever the result fits.

use std::sync::OnceLock;

use super::probe;
use super::tiles::{self, SIDE};
use super::{InstructionSet, Portable, Vector, lanes};

/// A vector that multiplies quads.
pub trait Dot: Vector {
    /// In each lane, the integer `self + x_0 c_0 + x_1 c_1 + x_2 c_2 + x_3 c_3`. The lanes of `x` and `c` are quads of a row and of a centroid.
    ///
    /// # Safety
    /// As [`Vector`] says.
    unsafe fn dot(self, x: Self, c: Self) -> Self;
}

/// What multiplies quads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuadUnit {
    /// AMX: tiles of rows by tiles of centroids.
    Amx,
    /// `vpdpbusd` of AVX512-VNNI.
    Avx512,
    /// `vpdpbusd` of AVX-VNNI.
    Avx2,
    /// Both kinds in plain Rust, for tests on machines without such instructions.
    EmulatedTiles,
    Emulated,
}

/// Code to compile for each unit. `run` and everything that its hot loops call are `#[inline(always)]`.
pub trait QuadTask {
    type Output;
    fn run<V: Dot>(self) -> Self::Output;
}

impl QuadUnit {
    /// The units that are hardware, the fastest first.
    pub const HARDWARE: [Self; 3] = [Self::Amx, Self::Avx512, Self::Avx2];

    /// The fastest unit of this machine, if there is one. Tried once.
    pub fn detect() -> Option<Self> {
        static DETECTED: OnceLock<Option<QuadUnit>> = OnceLock::new();
        *DETECTED.get_or_init(|| Self::HARDWARE.into_iter().find(|unit| unit.is_available() && unit.adds_exactly()))
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
        let lanes = d.div_ceil(4);
        if self.is_tiled() { lanes.next_multiple_of(SIDE) } else { lanes }
    }

    /// Number of centroids in a table of so many, with those that fill up the last tile.
    pub fn centroids(self, count: usize) -> usize {
        if self.is_tiled() { count.next_multiple_of(SIDE) } else { count }
    }

    /// Whether this machine has the unit.
    fn is_available(self) -> bool {
        match self {
            Self::Emulated | Self::EmulatedTiles => true,
            Self::Amx => tiles::is_amx_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => InstructionSet::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => InstructionSet::Avx2.is_available() && std::arch::is_x86_feature_detected!("avxvnni"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
        }
    }

    /// Runs a task compiled for this unit, or the emulation on a machine without it. Tiles are not for tasks: see [`super::Tiles`].
    #[inline]
    pub fn run<T: QuadTask>(self, task: T) -> T::Output {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: `is_available` found the features that the two functions enable. std caches the answer.
            unsafe {
                match self {
                    Self::Avx512 if self.is_available() => return x86::run_avx512(task),
                    Self::Avx2 if self.is_available() => return x86::run_avx2(task),
                    _ => {}
                }
            }
        }
        task.run::<Portable>()
    }

    /// Tries some thousand sums.
    fn adds_exactly(self) -> bool {
        if self.is_tiled() { probe::tiles(self) } else { probe::quads(self) }
    }
}

/// A lane as it lies in a vector.
#[inline(always)]
pub fn packed(bytes: [u8; 4]) -> f32 {
    f32::from_bits(u32::from_le_bytes(bytes))
}

/// The sum of a lane of a row and a lane of a centroid, and of another sum.
#[inline(always)]
pub fn added(sum: f32, x: f32, c: f32) -> f32 {
    let (x, c) = (x.to_bits(), c.to_bits());
    let product = |i: u32| (x >> i & 0xff) as i32 * i32::from((c >> i) as u8 as i8);
    let products = product(0) + product(8) + product(16) + product(24);
    f32::from_bits((sum.to_bits() as i32).wrapping_add(products) as u32)
}

impl Dot for Portable {
    #[inline(always)]
    unsafe fn dot(self, x: Self, c: Self) -> Self {
        Self(lanes!(i in [0.0; 8], added(self.0[i], x.0[i], c.0[i])))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::x86::{Avx2, Avx512};
    use super::{Dot, QuadTask};

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,avx2")]
    pub unsafe fn run_avx512<T: QuadTask>(task: T) -> T::Output {
        task.run::<Avx512>()
    }

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avxvnni,avx2,fma")]
    pub unsafe fn run_avx2<T: QuadTask>(task: T) -> T::Output {
        task.run::<Avx2>()
    }

    impl Dot for Avx512 {
        #[inline(always)]
        unsafe fn dot(self, x: Self, c: Self) -> Self {
            // SAFETY: reached only through `run_avx512`, which enables the features.
            unsafe {
                let (sum, x, c) = (_mm512_castps_si512(self.0), _mm512_castps_si512(x.0), _mm512_castps_si512(c.0));
                Self(_mm512_castsi512_ps(_mm512_dpbusd_epi32(sum, x, c)))
            }
        }
    }

    impl Dot for Avx2 {
        #[inline(always)]
        unsafe fn dot(self, x: Self, c: Self) -> Self {
            // SAFETY: reached only through `run_avx2`, which enables the features.
            unsafe {
                let (sum, x, c) = (_mm256_castps_si256(self.0), _mm256_castps_si256(x.0), _mm256_castps_si256(c.0));
                Self(_mm256_castsi256_ps(_mm256_dpbusd_avx_epi32(sum, x, c)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_exactly() {
        for unit in QuadUnit::HARDWARE.into_iter().chain([QuadUnit::EmulatedTiles, QuadUnit::Emulated]) {
            assert!(!unit.is_available() || unit.adds_exactly(), "{unit:?}");
        }
        let fastest = QuadUnit::HARDWARE.into_iter().find(|unit| unit.is_available());
        assert_eq!(QuadUnit::detect(), fastest);
    }

    #[test]
    fn quads_are_added_with_their_signs() {
        let x = packed([255, 0, 1, 200]);
        for (c, expected) in
            [([127i8, 5, 0, 0], 32_385), ([-127, 5, 3, -1], -32_385 + 3 - 200), ([0, -127, -127, -127], -25_527)]
        {
            let c = packed(c.map(|c| c as u8));
            assert_eq!(added(f32::from_bits(7), x, c).to_bits() as i32, 7 + expected);
            assert_eq!(added(f32::from_bits(-9i32 as u32), x, c).to_bits() as i32, -9 + expected);
        }
    }
}
