//! A small vector trait. This is also the only place that chooses an instruction set.
//!
//! Kernels are written once over [`Vector`]. [`InstructionSet::run`] compiles a [`Task`] for each instruction set: it inlines the
//! task into a function that enables the set's features. The set never changes a bit of a result: float32 kernels are filters,
//! and float64 arithmetic follows the contract, which rounds the same at any width.

mod doubles;
mod probe;
mod quads;
mod tiles;

use std::sync::OnceLock;

pub use doubles::{Doubles, MOST_LANES};
pub use quads::{Dot, QuadTask, QuadUnit, packed};
pub use tiles::{SIDE, Tiles};

/// The instruction sets that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionSet {
    /// 16 lanes; x86-64 with AVX-512 F, BW, DQ, VL.
    Avx512,
    /// 8 lanes; x86-64 with AVX2 and FMA.
    Avx2,
    /// 8 lanes in the target's baseline instructions.
    Portable,
}

impl InstructionSet {
    /// The widest set that this machine has. Detected once.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<InstructionSet> = OnceLock::new();
        *DETECTED
            .get_or_init(|| [Self::Avx512, Self::Avx2].into_iter().find(|set| set.is_available()).unwrap_or(Self::Portable))
    }

    /// Whether this machine has the set.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                use std::arch::is_x86_feature_detected as has;
                has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") && has!("fma") && has!("avx2")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Runs a task compiled for this set, or for the portable set if the machine does not have this one.
    #[inline]
    pub fn run<T: Task>(self, task: T) -> T::Output {
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
}

/// Code to compile for each instruction set. `run` and everything that its hot loops call are `#[inline(always)]`.
pub trait Task {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

/// A vector of float32 lanes. It has only the operations that the kernels need.
///
/// All methods but `splat` are unsafe to call where the instruction set is not available. `load` and `store` need `LANES` valid
/// values at the pointer, at any alignment.
pub trait Vector: Copy {
    const LANES: usize;
    /// Number of row vectors of scores that the product kernel keeps. It depends on the number of registers.
    const ROW_VECTORS: usize;
    /// Whether there are 32 vector registers.
    const MANY_REGISTERS: bool;
    type Mask: Copy;
    /// The vector of float64 lanes of the same instruction set.
    type Doubles: Doubles;
    /// # Safety
    /// As the trait says.
    unsafe fn splat(x: f32) -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn load(p: *const f32) -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn store(self, p: *mut f32);
    /// # Safety
    /// As the trait says.
    unsafe fn sub(self, other: Self) -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn add(self, other: Self) -> Self;
    /// `self * b + c`, fused where the hardware does.
    /// # Safety
    /// As the trait says.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// The lanes as the bits of integers of 32 bits, converted and rounded to nearest.
    /// # Safety
    /// As the trait says.
    unsafe fn integers_as_floats(self) -> Self;
    /// The sum of integers of 32 bits, which wraps around.
    /// # Safety
    /// As the trait says.
    unsafe fn add_integers(self, other: Self) -> Self;
    /// The smaller value, or `best` where `self` is NaN.
    /// # Safety
    /// As the trait says.
    unsafe fn min_or(self, best: Self) -> Self;
    /// The larger value, or NaN where `other` is NaN.
    /// # Safety
    /// As the trait says.
    unsafe fn max_or_nan(self, other: Self) -> Self;
    /// Lanes where `self` is not above `limit`. NaN counts as not above.
    /// # Safety
    /// As the trait says.
    unsafe fn not_above(self, limit: Self) -> Self::Mask;
    /// `a` where the mask is set, else `b`. Moves bits and computes nothing.
    /// # Safety
    /// As the trait says.
    unsafe fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// One bit per lane.
    /// # Safety
    /// As the trait says.
    unsafe fn bits(mask: Self::Mask) -> u32;
    /// Copies 32 bits at a time, of any meaning: value f of row i goes to `to[f * stride + i]`, for sixteen of each.
    /// # Safety
    /// As the trait says. Sixteen values can be read at each row, and written at `to + f * stride`.
    #[inline(always)]
    unsafe fn transpose(rows: [*const f32; SQUARE], to: *mut f32, stride: usize) {
        // SAFETY: the caller's.
        unsafe {
            for f in 0..SQUARE {
                for (i, row) in rows.iter().enumerate() {
                    to.add(f * stride + i).write_unaligned(row.add(f).read_unaligned());
                }
            }
        }
    }
}

/// What the processor says of itself.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // a safe function in later versions of Rust
fn cpuid(leaf: u32, subleaf: u32) -> std::arch::x86_64::CpuidResult {
    // SAFETY: every processor of x86-64 has the instruction.
    unsafe { std::arch::x86_64::__cpuid_count(leaf, subleaf) }
}

/// The side of a square of [`Vector::transpose`].
pub const SQUARE: usize = 16;

/// Eight lanes of plain Rust. The compiler maps them to the baseline instructions.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub struct Portable([f32; 8]);

/// An array of one value for each lane. A closure for each of them is not always inlined, and a call takes twenty times as long as the operation.
macro_rules! lanes {
    ($i:ident in $zero:expr, $value:expr) => {{
        let mut lanes = $zero;
        for $i in 0..lanes.len() {
            lanes[$i] = $value;
        }
        lanes
    }};
}
use lanes;

impl Vector for Portable {
    const LANES: usize = 8;
    const ROW_VECTORS: usize = 1;
    const MANY_REGISTERS: bool = cfg!(target_arch = "aarch64");
    type Mask = [bool; 8];
    type Doubles = doubles::PortableDoubles;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller passes 8 valid values. `read_unaligned` needs no alignment.
        Self(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as in `load`.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(lanes!(i in [0.0; 8], self.0[i] - other.0[i]))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(lanes!(i in [0.0; 8], self.0[i] + other.0[i]))
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // A fused operation in software would be slow. The error bounds cover the second rounding.
        match cfg!(target_arch = "aarch64") {
            true => Self(lanes!(i in [0.0; 8], self.0[i].mul_add(b.0[i], c.0[i]))),
            false => Self(lanes!(i in [0.0; 8], self.0[i] * b.0[i] + c.0[i])),
        }
    }
    #[inline(always)]
    unsafe fn integers_as_floats(self) -> Self {
        Self(lanes!(i in [0.0; 8], self.0[i].to_bits() as i32 as f32))
    }
    #[inline(always)]
    unsafe fn add_integers(self, other: Self) -> Self {
        Self(lanes!(i in [0.0; 8], f32::from_bits(self.0[i].to_bits().wrapping_add(other.0[i].to_bits()))))
    }
    #[inline(always)]
    unsafe fn min_or(self, best: Self) -> Self {
        Self(lanes!(i in [0.0; 8], if self.0[i] < best.0[i] { self.0[i] } else { best.0[i] }))
    }
    #[inline(always)]
    unsafe fn max_or_nan(self, other: Self) -> Self {
        Self(lanes!(i in [0.0; 8], if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN must count as not above
    unsafe fn not_above(self, limit: Self) -> [bool; 8] {
        lanes!(i in [false; 8], !(self.0[i] > limit.0[i]))
    }
    #[inline(always)]
    unsafe fn select(mask: [bool; 8], a: Self, b: Self) -> Self {
        Self(lanes!(i in [0.0; 8], if mask[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn bits(mask: [bool; 8]) -> u32 {
        let mut bits = 0;
        for (i, set) in mask.into_iter().enumerate() {
            bits |= u32::from(set) << i;
        }
        bits
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::doubles::x86::{Avx2Doubles, Avx512Doubles};
    use super::{SQUARE, Task, Vector};

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,avx2")]
    pub unsafe fn run_avx512<T: Task>(task: T) -> T::Output {
        task.run::<Avx512>()
    }

    /// # Safety
    /// The machine must have the features named.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn run_avx2<T: Task>(task: T) -> T::Output {
        task.run::<Avx2>()
    }

    #[derive(Clone, Copy)]
    pub struct Avx512(pub(super) __m512);
    #[derive(Clone, Copy)]
    pub struct Avx2(pub(super) __m256);

    // SAFETY of every call below: the methods are reached only through `run_avx512` and `run_avx2`, which inline them and enable
    // the features. The caller promises valid pointers, as the trait requires. The unaligned loads and stores are used.
    impl Vector for Avx512 {
        const LANES: usize = 16;
        const ROW_VECTORS: usize = 4;
        const MANY_REGISTERS: bool = true;
        type Mask = __mmask16;
        type Doubles = Avx512Doubles;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            Self(unsafe { _mm512_set1_ps(x) })
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            Self(unsafe { _mm512_loadu_ps(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { _mm512_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
        }
        #[inline(always)]
        unsafe fn integers_as_floats(self) -> Self {
            Self(unsafe { _mm512_cvtepi32_ps(_mm512_castps_si512(self.0)) })
        }
        #[inline(always)]
        unsafe fn add_integers(self, other: Self) -> Self {
            Self(unsafe { _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_castps_si512(other.0))) })
        }
        #[inline(always)]
        unsafe fn min_or(self, best: Self) -> Self {
            Self(unsafe { _mm512_min_ps(self.0, best.0) })
        }
        #[inline(always)]
        unsafe fn max_or_nan(self, other: Self) -> Self {
            Self(unsafe { _mm512_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn not_above(self, limit: Self) -> __mmask16 {
            unsafe { _mm512_cmp_ps_mask::<_CMP_NGT_UQ>(self.0, limit.0) }
        }
        #[inline(always)]
        unsafe fn select(mask: __mmask16, a: Self, b: Self) -> Self {
            Self(unsafe { _mm512_mask_blend_ps(mask, b.0, a.0) })
        }
        #[inline(always)]
        unsafe fn bits(mask: __mmask16) -> u32 {
            u32::from(mask)
        }
        #[inline(always)]
        unsafe fn transpose(rows: [*const f32; SQUARE], to: *mut f32, stride: usize) {
            unsafe {
                let (mut a, mut b) = ([_mm512_setzero_ps(); SQUARE], [_mm512_setzero_ps(); SQUARE]);
                for i in 0..SQUARE {
                    a[i] = _mm512_loadu_ps(rows[i]);
                }
                for i in (0..SQUARE).step_by(2) {
                    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
                    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
                }
                // a[i + c] becomes rows i to i + 3. Its 128-bit lane l has feature 4 l + c.
                for i in (0..SQUARE).step_by(4) {
                    for half in 0..2 {
                        let (x, y) = (_mm512_castps_pd(b[i + half]), _mm512_castps_pd(b[i + half + 2]));
                        a[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                        a[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
                    }
                }
                // Of 128-bit lanes: the even ones of two vectors, and the odd ones.
                const EVEN: i32 = 0b10_00_10_00;
                const ODD: i32 = 0b11_01_11_01;
                for c in 0..4 {
                    let x = _mm512_shuffle_f32x4::<EVEN>(a[c], a[c + 4]);
                    let y = _mm512_shuffle_f32x4::<EVEN>(a[c + 8], a[c + 12]);
                    let z = _mm512_shuffle_f32x4::<ODD>(a[c], a[c + 4]);
                    let w = _mm512_shuffle_f32x4::<ODD>(a[c + 8], a[c + 12]);
                    _mm512_storeu_ps(to.add(c * stride), _mm512_shuffle_f32x4::<EVEN>(x, y));
                    _mm512_storeu_ps(to.add((c + 4) * stride), _mm512_shuffle_f32x4::<EVEN>(z, w));
                    _mm512_storeu_ps(to.add((c + 8) * stride), _mm512_shuffle_f32x4::<ODD>(x, y));
                    _mm512_storeu_ps(to.add((c + 12) * stride), _mm512_shuffle_f32x4::<ODD>(z, w));
                }
            }
        }
    }

    impl Vector for Avx2 {
        const LANES: usize = 8;
        const ROW_VECTORS: usize = 2;
        const MANY_REGISTERS: bool = false;
        type Mask = __m256;
        type Doubles = Avx2Doubles;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            Self(unsafe { _mm256_set1_ps(x) })
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            Self(unsafe { _mm256_loadu_ps(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { _mm256_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            Self(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
        }
        #[inline(always)]
        unsafe fn integers_as_floats(self) -> Self {
            Self(unsafe { _mm256_cvtepi32_ps(_mm256_castps_si256(self.0)) })
        }
        #[inline(always)]
        unsafe fn add_integers(self, other: Self) -> Self {
            Self(unsafe { _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(other.0))) })
        }
        #[inline(always)]
        unsafe fn min_or(self, best: Self) -> Self {
            Self(unsafe { _mm256_min_ps(self.0, best.0) })
        }
        #[inline(always)]
        unsafe fn max_or_nan(self, other: Self) -> Self {
            Self(unsafe { _mm256_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn not_above(self, limit: Self) -> __m256 {
            unsafe { _mm256_cmp_ps::<_CMP_NGT_UQ>(self.0, limit.0) }
        }
        #[inline(always)]
        unsafe fn select(mask: __m256, a: Self, b: Self) -> Self {
            Self(unsafe { _mm256_blendv_ps(b.0, a.0, mask) })
        }
        #[inline(always)]
        unsafe fn bits(mask: __m256) -> u32 {
            unsafe { _mm256_movemask_ps(mask) as u32 }
        }
        #[inline(always)]
        unsafe fn transpose(rows: [*const f32; SQUARE], to: *mut f32, stride: usize) {
            unsafe {
                // Four squares of eight.
                for (i, f) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
                    let (mut a, mut b) = ([_mm256_setzero_ps(); 8], [_mm256_setzero_ps(); 8]);
                    for r in 0..8 {
                        a[r] = _mm256_loadu_ps(rows[i + r].add(f));
                    }
                    for r in (0..8).step_by(2) {
                        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
                        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
                    }
                    // a[r + c] becomes rows r to r + 3. Its 128-bit lane l has feature 4 l + c.
                    for r in [0, 4] {
                        for half in 0..2 {
                            let (x, y) = (_mm256_castps_pd(b[r + half]), _mm256_castps_pd(b[r + half + 2]));
                            a[r + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
                            a[r + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
                        }
                    }
                    for c in 0..4 {
                        let to = to.add((f + c) * stride + i);
                        _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(a[c], a[c + 4]));
                        _mm256_storeu_ps(to.add(4 * stride), _mm256_permute2f128_ps::<0x31>(a[c], a[c + 4]));
                    }
                }
            }
        }
    }
}
