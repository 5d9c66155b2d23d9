//! AVX-512 and AVX2.

use std::arch::x86_64::*;

use super::doubles::x86::{Avx2Doubles, Avx512Doubles};
use super::{SQUARE, Task, Vector};

/// # Safety
/// The machine must have the features named.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,avx2")]
pub(super) unsafe fn run_avx512<T: Task>(task: T) -> T::Output {
    task.run::<Avx512>()
}

/// # Safety
/// The machine must have the features named.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<T: Task>(task: T) -> T::Output {
    task.run::<Avx2>()
}

#[derive(Clone, Copy)]
pub(super) struct Avx512(pub(super) __m512);
#[derive(Clone, Copy)]
pub(super) struct Avx2(pub(super) __m256);

// SAFETY: the type is visible in `simd` alone. Tasks get it from `run_avx512`, here and in `int_dot.rs`, which is called where the
// machine has the features, and by code that has the type already. The unaligned loads and stores are used.
unsafe impl Vector for Avx512 {
    const LANES: usize = 16;
    const ROW_VECTORS: usize = 4;
    const MANY_REGISTERS: bool = true;
    type Mask = __mmask16;
    type Doubles = Avx512Doubles;

    #[inline(always)]
    fn call<T: Task>(task: T) -> T::Output {
        // SAFETY: the type is a token of the features.
        unsafe { run_avx512(task) }
    }
    operations! {
        fn splat(x: f32) -> Self = Self(_mm512_set1_ps(x));
        unsafe fn load(p: *const f32) -> Self = Self(_mm512_loadu_ps(p));
        unsafe fn store(self, p: *mut f32) = _mm512_storeu_ps(p, self.0);
        fn sub(self, other: Self) -> Self = Self(_mm512_sub_ps(self.0, other.0));
        fn add(self, other: Self) -> Self = Self(_mm512_add_ps(self.0, other.0));
        fn mul_add(self, b: Self, c: Self) -> Self = Self(_mm512_fmadd_ps(self.0, b.0, c.0));
        fn integers_as_floats(self) -> Self = Self(_mm512_cvtepi32_ps(_mm512_castps_si512(self.0)));
        fn add_integers(self, other: Self) -> Self =
            Self(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_castps_si512(other.0))));
        fn min_or(self, best: Self) -> Self = Self(_mm512_min_ps(self.0, best.0));
        fn max_or_nan(self, other: Self) -> Self = Self(_mm512_max_ps(self.0, other.0));
        fn not_above(self, limit: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_NGT_UQ>(self.0, limit.0);
        fn select(mask: __mmask16, a: Self, b: Self) -> Self = Self(_mm512_mask_blend_ps(mask, b.0, a.0));
        fn bits(mask: __mmask16) -> u32 = u32::from(mask);
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

// SAFETY: as above, with `run_avx2` and `run_pairs`.
unsafe impl Vector for Avx2 {
    const LANES: usize = 8;
    const ROW_VECTORS: usize = 2;
    const MANY_REGISTERS: bool = false;
    type Mask = __m256;
    type Doubles = Avx2Doubles;

    #[inline(always)]
    fn call<T: Task>(task: T) -> T::Output {
        // SAFETY: the type is a token of the features.
        unsafe { run_avx2(task) }
    }
    operations! {
        fn splat(x: f32) -> Self = Self(_mm256_set1_ps(x));
        unsafe fn load(p: *const f32) -> Self = Self(_mm256_loadu_ps(p));
        unsafe fn store(self, p: *mut f32) = _mm256_storeu_ps(p, self.0);
        fn sub(self, other: Self) -> Self = Self(_mm256_sub_ps(self.0, other.0));
        fn add(self, other: Self) -> Self = Self(_mm256_add_ps(self.0, other.0));
        fn mul_add(self, b: Self, c: Self) -> Self = Self(_mm256_fmadd_ps(self.0, b.0, c.0));
        fn integers_as_floats(self) -> Self = Self(_mm256_cvtepi32_ps(_mm256_castps_si256(self.0)));
        fn add_integers(self, other: Self) -> Self =
            Self(_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(other.0))));
        fn min_or(self, best: Self) -> Self = Self(_mm256_min_ps(self.0, best.0));
        fn max_or_nan(self, other: Self) -> Self = Self(_mm256_max_ps(self.0, other.0));
        fn not_above(self, limit: Self) -> __m256 = _mm256_cmp_ps::<_CMP_NGT_UQ>(self.0, limit.0);
        fn select(mask: __m256, a: Self, b: Self) -> Self = Self(_mm256_blendv_ps(b.0, a.0, mask));
        fn bits(mask: __m256) -> u32 = _mm256_movemask_ps(mask) as u32;
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
