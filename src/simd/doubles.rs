//! Vectors of float64 lanes, for reference distances. Every operation rounds as the scalar one does, so lanes are rows that are
//! computed at a time, and nothing else changes.

use super::portable::lanes;
use crate::base::float::Float;

/// Lanes of every vector together must divide this.
pub const MOST_LANES: usize = 8;

/// A vector of float64 lanes.
///
/// # Safety
/// As for [`Vector`](super::Vector).
pub unsafe trait Doubles: Copy {
    const LANES: usize;
    type Mask: Copy;
    fn splat(x: f64) -> Self;
    /// Loads values of either feature type. Widening is exact.
    unsafe fn load<T: Float>(p: *const T) -> Self;
    unsafe fn store(self, p: *mut f64);
    fn sub(self, other: Self) -> Self;
    /// `self * self + c`, rounded once.
    fn square_add(self, c: Self) -> Self;
    fn sqrt(self) -> Self;
    /// The smaller value, or `best` where `self` is NaN.
    fn min_or(self, best: Self) -> Self;
    /// The larger value. No lane of either is NaN.
    fn larger(self, other: Self) -> Self;
    /// Lanes where `self` is below `other`. NaN is not below.
    fn below(self, other: Self) -> Self::Mask;
    /// `a` where the mask is set, else `b`. Moves bits and computes nothing.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// One bit per lane.
    fn bits(mask: Self::Mask) -> u32;
}

/// Four lanes of plain Rust.
#[derive(Clone, Copy)]
pub struct PortableDoubles([f64; 4]);

// SAFETY: plain Rust, which every machine has.
unsafe impl Doubles for PortableDoubles {
    const LANES: usize = 4;
    type Mask = [bool; 4];

    operations! {
        fn splat(x: f64) -> Self = Self([x; 4]);
        unsafe fn load<T: Float>(p: *const T) -> Self = {
            let values = p.cast::<[T; 4]>().read_unaligned();
            Self(lanes!(i in [0.0; 4], values[i].to_f64()))
        };
        unsafe fn store(self, p: *mut f64) = p.cast::<[f64; 4]>().write_unaligned(self.0);
        fn sub(self, other: Self) -> Self = Self(lanes!(i in [0.0; 4], self.0[i] - other.0[i]));
        fn square_add(self, c: Self) -> Self = Self(lanes!(i in [0.0; 4], self.0[i].mul_add(self.0[i], c.0[i])));
        fn sqrt(self) -> Self = Self(lanes!(i in [0.0; 4], self.0[i].sqrt()));
        fn min_or(self, best: Self) -> Self =
            Self(lanes!(i in [0.0; 4], if self.0[i] < best.0[i] { self.0[i] } else { best.0[i] }));
        fn larger(self, other: Self) -> Self =
            Self(lanes!(i in [0.0; 4], if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }));
        fn below(self, other: Self) -> [bool; 4] = lanes!(i in [false; 4], self.0[i] < other.0[i]);
        fn select(mask: [bool; 4], a: Self, b: Self) -> Self =
            Self(lanes!(i in [0.0; 4], if mask[i] { a.0[i] } else { b.0[i] }));
        fn bits(mask: [bool; 4]) -> u32 = (0..4).fold(0, |bits, i| bits | u32::from(mask[i]) << i);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    use super::{Doubles, Float};

    #[derive(Clone, Copy)]
    pub(in crate::simd) struct Avx512Doubles(__m512d);
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct Avx2Doubles(__m256d);

    // SAFETY: the type is visible in `simd` alone, as its vector is. A pointer to `T` is one to the type that `IS_F32` names.
    unsafe impl Doubles for Avx512Doubles {
        const LANES: usize = 8;
        type Mask = __mmask8;

        operations! {
            fn splat(x: f64) -> Self = Self(_mm512_set1_pd(x));
            unsafe fn load<T: Float>(p: *const T) -> Self =
                Self(if T::IS_F32 { _mm512_cvtps_pd(_mm256_loadu_ps(p.cast())) } else { _mm512_loadu_pd(p.cast()) });
            unsafe fn store(self, p: *mut f64) = _mm512_storeu_pd(p, self.0);
            fn sub(self, other: Self) -> Self = Self(_mm512_sub_pd(self.0, other.0));
            fn square_add(self, c: Self) -> Self = Self(_mm512_fmadd_pd(self.0, self.0, c.0));
            fn sqrt(self) -> Self = Self(_mm512_sqrt_pd(self.0));
            fn min_or(self, best: Self) -> Self = Self(_mm512_min_pd(self.0, best.0));
            fn larger(self, other: Self) -> Self = Self(_mm512_max_pd(self.0, other.0));
            fn below(self, other: Self) -> __mmask8 = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(self.0, other.0);
            fn select(mask: __mmask8, a: Self, b: Self) -> Self = Self(_mm512_mask_blend_pd(mask, b.0, a.0));
            fn bits(mask: __mmask8) -> u32 = u32::from(mask);
        }
    }

    // SAFETY: as above.
    unsafe impl Doubles for Avx2Doubles {
        const LANES: usize = 4;
        type Mask = __m256d;

        operations! {
            fn splat(x: f64) -> Self = Self(_mm256_set1_pd(x));
            unsafe fn load<T: Float>(p: *const T) -> Self =
                Self(if T::IS_F32 { _mm256_cvtps_pd(_mm_loadu_ps(p.cast())) } else { _mm256_loadu_pd(p.cast()) });
            unsafe fn store(self, p: *mut f64) = _mm256_storeu_pd(p, self.0);
            fn sub(self, other: Self) -> Self = Self(_mm256_sub_pd(self.0, other.0));
            fn square_add(self, c: Self) -> Self = Self(_mm256_fmadd_pd(self.0, self.0, c.0));
            fn sqrt(self) -> Self = Self(_mm256_sqrt_pd(self.0));
            fn min_or(self, best: Self) -> Self = Self(_mm256_min_pd(self.0, best.0));
            fn larger(self, other: Self) -> Self = Self(_mm256_max_pd(self.0, other.0));
            fn below(self, other: Self) -> __m256d = _mm256_cmp_pd::<_CMP_LT_OQ>(self.0, other.0);
            fn select(mask: __m256d, a: Self, b: Self) -> Self = Self(_mm256_blendv_pd(b.0, a.0, mask));
            fn bits(mask: __m256d) -> u32 = _mm256_movemask_pd(mask) as u32;
        }
    }
}
