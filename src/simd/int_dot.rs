//! Products of quads of bytes, added to 32-bit integers: four times the products of a float32 instruction, or with tiles 32
//! times. And of pairs of words, numbers of 16 bits: twice the products. AVX2 alone multiplies words in one instruction and adds
//! in a second one.
//!
//! A lane of 32 bits holds four numbers or two, the lowest bits first. Bytes of rows are from 0 to 255, those of centroids from
//! -127 to 127, because such are the instructions; in tiles both have signs. Words are from -32,767 to 32,767. Sums wrap around.
//! So they are exact wherever the result fits.

use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::InstructionSet;
use super::portable::lanes;
use super::probe;
use super::tiles::{self, SIDE};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};
use super::{Portable, Vector};

/// A way to multiply lanes: a unit for bytes or for words.
///
/// # Safety
/// As for [`Vector`]. [`DotUnit::run`] alone gives tasks a type by this trait, where the machine has the instructions.
pub unsafe trait Dot {
    type V: Vector;
    /// In each lane, the integer `sum` and the products of the numbers of `x` and `c`, which are lanes of a row and of a centroid:
    /// `sum + x_0 c_0 + x_1 c_1 ..`
    fn add(sum: Self::V, x: Self::V, c: Self::V) -> Self::V;
}

/// Quads of bytes in the lanes of a vector.
pub(super) struct Quads<V>(PhantomData<V>);
/// Pairs of words.
pub(super) struct Words<V>(PhantomData<V>);

/// What multiplies quads of bytes or pairs of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DotUnit {
    /// AMX: tiles of rows by tiles of centroids.
    Amx,
    /// `vpdpbusd` of AVX512-VNNI.
    Avx512,
    /// `vpdpbusd` of AVX-VNNI.
    Avx2,
    /// `vpdpwssd` of the same two, for words.
    Avx512Words,
    Avx2Words,
    /// `vpmaddwd` and `vpaddd` of AVX2, for words.
    Avx2Pairs,
    /// All kinds in plain Rust, for tests on machines without such instructions.
    EmulatedTiles,
    Emulated,
    EmulatedWords,
}

/// Code to compile for each unit. `run` and everything that its hot loops call are `#[inline(always)]`.
pub trait DotTask {
    type Output;
    fn run<D: Dot>(self) -> Self::Output;
}

impl fmt::Display for DotUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amx => "AMX",
            Self::Avx512 | Self::Avx512Words => "AVX512-VNNI",
            Self::Avx2 | Self::Avx2Words => "AVX-VNNI",
            Self::Avx2Pairs => "AVX2",
            Self::EmulatedTiles | Self::Emulated | Self::EmulatedWords => "emulated",
        })
    }
}

impl DotUnit {
    /// The units that are hardware: those for bytes, the fastest first, then those for words.
    pub const HARDWARE: [Self; 6] = [Self::Amx, Self::Avx512, Self::Avx2, Self::Avx512Words, Self::Avx2Words, Self::Avx2Pairs];

    /// The fastest units for bytes and for words that this machine has and that fits may use, if there are some. Tried once.
    pub fn detect() -> [Option<Self>; 2] {
        static DETECTED: OnceLock<[Option<DotUnit>; 2]> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let fastest = |words| {
                let mut units = Self::HARDWARE.into_iter().filter(|unit| unit.is_for_words() == words);
                units.find(|unit| unit.is_allowed() && unit.is_available() && unit.adds_exactly())
            };
            [fastest(false), fastest(true)]
        })
    }

    /// The unit that copies are planned for: that for bytes, if there is one.
    pub fn fastest() -> Option<Self> {
        let [bytes, words] = Self::detect();
        bytes.or(words)
    }

    /// Whether fits may use the unit. Float32 products by AVX-512 are faster than pairs. For the limit see
    /// [`InstructionSet::limit`].
    fn is_allowed(self) -> bool {
        match self {
            Self::Avx2Pairs => InstructionSet::detect() == InstructionSet::Avx2,
            _ => InstructionSet::limit().is_none(),
        }
    }

    /// Whether lanes are pairs of words.
    pub fn is_for_words(self) -> bool {
        matches!(self, Self::Avx512Words | Self::Avx2Words | Self::Avx2Pairs | Self::EmulatedWords)
    }

    /// Whether rows and centroids are multiplied in tiles.
    pub fn is_tiled(self) -> bool {
        matches!(self, Self::Amx | Self::EmulatedTiles)
    }

    /// What is added to the numbers of rows, because the instructions take them without signs.
    pub fn offset(self) -> u8 {
        if self.is_for_words() || self.is_tiled() { 0 } else { 128 }
    }

    /// This unit, or its emulation on a machine without it.
    pub fn or_emulated(self) -> Self {
        match self {
            unit if unit.is_available() => unit,
            Self::Amx => Self::EmulatedTiles,
            unit if unit.is_for_words() => Self::EmulatedWords,
            _ => Self::Emulated,
        }
    }

    /// Number of lanes of a copy of `d` features.
    pub fn lanes(self, d: usize) -> usize {
        let lanes = d.div_ceil(if self.is_for_words() { 2 } else { 4 });
        if self.is_tiled() { lanes.next_multiple_of(SIDE) } else { lanes }
    }

    /// Number of centroids in a table of so many, with those that fill up the last tile.
    pub fn centroids(self, count: usize) -> usize {
        if self.is_tiled() { count.next_multiple_of(SIDE) } else { count }
    }

    /// Whether this machine has the unit.
    fn is_available(self) -> bool {
        match self {
            Self::Emulated | Self::EmulatedTiles | Self::EmulatedWords => true,
            Self::Amx => tiles::is_amx_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Words => {
                InstructionSet::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx2Words => {
                InstructionSet::Avx2.is_available() && std::arch::is_x86_feature_detected!("avxvnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Pairs => InstructionSet::Avx2.is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Runs a task compiled for this unit, or the emulation on a machine without it. Tiles are not for tasks: see `TileRegisters`.
    #[inline]
    pub fn run<T: DotTask>(self, task: T) -> T::Output {
        match self.or_emulated() {
            // SAFETY: `or_emulated` found the features that the functions enable.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::run_avx512::<Quads<Avx512>, T>(task) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Words => unsafe { x86::run_avx512::<Words<Avx512>, T>(task) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::run_avx2::<Quads<Avx2>, T>(task) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Words => unsafe { x86::run_avx2::<Words<Avx2>, T>(task) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Pairs => unsafe { x86::run_pairs(task) },
            unit if unit.is_for_words() => task.run::<Words<Portable>>(),
            _ => task.run::<Quads<Portable>>(),
        }
    }

    /// Tries some thousand sums.
    fn adds_exactly(self) -> bool {
        if self.is_tiled() { probe::tiles(self) } else { probe::lanes(self) }
    }
}

/// A lane as it lies in a vector.
#[inline(always)]
pub fn packed(bytes: [u8; 4]) -> f32 {
    f32::from_bits(u32::from_le_bytes(bytes))
}

/// The sum of the products of two pairs of words, and of another sum.
#[inline(always)]
pub fn added_words(sum: f32, x: f32, c: f32) -> f32 {
    let (x, c) = (x.to_bits(), c.to_bits());
    let product = |i: u32| i32::from((x >> i) as u16 as i16) * i32::from((c >> i) as u16 as i16);
    f32::from_bits((sum.to_bits() as i32).wrapping_add(product(0)).wrapping_add(product(16)) as u32)
}

/// The sum of the products of two quads of bytes with signs, and of another sum.
#[inline(always)]
pub fn added_signed(sum: f32, x: f32, c: f32) -> f32 {
    let (x, c) = (x.to_bits().to_le_bytes(), c.to_bits().to_le_bytes());
    let mut sum = sum.to_bits() as i32;
    for i in 0..4 {
        sum = sum.wrapping_add(i32::from(x[i] as i8) * i32::from(c[i] as i8));
    }
    f32::from_bits(sum as u32)
}

/// The sum of the products of a quad of a row and a quad of a centroid, and of another sum.
#[inline(always)]
pub fn added(sum: f32, x: f32, c: f32) -> f32 {
    let (x, c) = (x.to_bits(), c.to_bits());
    let product = |i: u32| (x >> i & 0xff) as i32 * i32::from((c >> i) as u8 as i8);
    let products = product(0) + product(8) + product(16) + product(24);
    f32::from_bits((sum.to_bits() as i32).wrapping_add(products) as u32)
}

// SAFETY: plain Rust, which every machine has.
unsafe impl Dot for Quads<Portable> {
    type V = Portable;
    operations! {
        fn add(sum: Portable, x: Portable, c: Portable) -> Portable =
            Portable(lanes!(i in [0.0; 8], added(sum.0[i], x.0[i], c.0[i])));
    }
}

// SAFETY: as above.
unsafe impl Dot for Words<Portable> {
    type V = Portable;
    operations! {
        fn add(sum: Portable, x: Portable, c: Portable) -> Portable =
            Portable(lanes!(i in [0.0; 8], added_words(sum.0[i], x.0[i], c.0[i])));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::x86::{Avx2, Avx512};
    use super::{Dot, DotTask, Quads, Words};

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,avx2")]
    pub(super) unsafe fn run_avx512<D: Dot<V = Avx512>, T: DotTask>(task: T) -> T::Output {
        task.run::<D>()
    }

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avxvnni,avx2,fma")]
    pub(super) unsafe fn run_avx2<D: Dot<V = Avx2>, T: DotTask>(task: T) -> T::Output {
        task.run::<D>()
    }

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_pairs<T: DotTask>(task: T) -> T::Output {
        task.run::<Pairs>()
    }

    /// Words by two instructions.
    pub(super) struct Pairs;

    // SAFETY: see `Dot`.
    unsafe impl Dot for Pairs {
        type V = Avx2;
        operations! {
            /// The products of a pair, added, would not fit only with four numbers of -32,768, and no centroid has one.
            fn add(sum: Avx2, x: Avx2, c: Avx2) -> Avx2 = {
                let products = _mm256_madd_epi16(_mm256_castps_si256(x.0), _mm256_castps_si256(c.0));
                Avx2(_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum.0), products)))
            };
        }
    }

    // The lanes of a vector are cast to the integers that their bits are, and back.
    macro_rules! dot {
        ($way:ty, $vector:ident, $integers:ident, $floats:ident, $dot:ident) => {
            // SAFETY: see `Dot`.
            unsafe impl Dot for $way {
                type V = $vector;
                operations! {
                    fn add(sum: $vector, x: $vector, c: $vector) -> $vector =
                        $vector($floats($dot($integers(sum.0), $integers(x.0), $integers(c.0))));
                }
            }
        };
    }
    dot!(Quads<Avx512>, Avx512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_dpbusd_epi32);
    dot!(Words<Avx512>, Avx512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_dpwssd_epi32);
    dot!(Quads<Avx2>, Avx2, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_dpbusd_avx_epi32);
    dot!(Words<Avx2>, Avx2, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_dpwssd_avx_epi32);
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(units_add_exactly);
    fn units_add_exactly() {
        let emulated = [DotUnit::EmulatedTiles, DotUnit::Emulated, DotUnit::EmulatedWords];
        for unit in DotUnit::HARDWARE.into_iter().chain(emulated) {
            assert!(!unit.is_available() || unit.adds_exactly(), "{unit:?}");
        }
        let allowed = || DotUnit::HARDWARE.into_iter().filter(|unit| unit.is_available() && unit.is_allowed());
        let fastest = |words| allowed().find(|unit| unit.is_for_words() == words);
        assert_eq!(DotUnit::detect(), [fastest(false), fastest(true)]);
    }

    unit_test!(words_are_added_with_their_signs);
    fn words_are_added_with_their_signs() {
        let pair = |[a, b]: [i16; 2]| f32::from_bits(u32::from(b as u16) << 16 | u32::from(a as u16));
        for (x, c, expected) in [
            ([32_767, -3], [-32_767, 5], -1_073_676_289 - 15),
            ([-32_767; 2], [-32_767; 2], 2_147_352_578),
            ([0, 7], [9, -1], -7),
        ] {
            assert_eq!(added_words(f32::from_bits(4), pair(x), pair(c)).to_bits() as i32, 4 + expected);
        }
    }

    unit_test!(quads_are_added_with_their_signs);
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
