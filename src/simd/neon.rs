//! NEON: two registers of four lanes, as wide as AVX2.
//!
//! No machine with NEON was at hand. Its kernels were never timed. The tests of this module run on every machine, with the
//! instructions in plain Rust.

#[cfg(not(target_arch = "aarch64"))]
mod emulated;

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;

#[cfg(not(target_arch = "aarch64"))]
use self::emulated::*;
use super::{SQUARE, Task, Vector, doubles};

/// Lanes of a register.
const HALF: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct Neon([float32x4_t; 2]);

/// Applies an instruction to both registers.
macro_rules! both {
    ($i:ident => $value:expr) => {{
        let low = {
            const $i: usize = 0;
            $value
        };
        let high = {
            const $i: usize = 1;
            $value
        };
        [low, high]
    }};
}

// SAFETY: all processors of aarch64 have these instructions. Elsewhere they are plain Rust. The caller promises valid pointers, as
// the trait requires. Loads and stores need no alignment.
unsafe impl Vector for Neon {
    const LANES: usize = 2 * HALF;
    const ROW_VECTORS: usize = 2;
    const MANY_REGISTERS: bool = true;
    type Mask = [uint32x4_t; 2];
    type Doubles = doubles::PortableDoubles;

    #[inline(never)]
    fn call<T: Task>(task: T) -> T::Output {
        task.run::<Self>()
    }
    operations! {
        fn splat(x: f32) -> Self = Self([vdupq_n_f32(x); 2]);
        unsafe fn load(p: *const f32) -> Self = Self(both!(I => vld1q_f32(p.add(I * HALF))));
        unsafe fn store(self, p: *mut f32) = {
            both!(I => vst1q_f32(p.add(I * HALF), self.0[I]));
        };
        fn sub(self, other: Self) -> Self = Self(both!(I => vsubq_f32(self.0[I], other.0[I])));
        fn add(self, other: Self) -> Self = Self(both!(I => vaddq_f32(self.0[I], other.0[I])));
        fn mul_add(self, b: Self, c: Self) -> Self = Self(both!(I => vfmaq_f32(c.0[I], self.0[I], b.0[I])));
        fn integers_as_floats(self) -> Self = Self(both!(I => vcvtq_f32_s32(vreinterpretq_s32_f32(self.0[I]))));
        fn add_integers(self, other: Self) -> Self = Self(both!(I => {
            let sum = vaddq_s32(vreinterpretq_s32_f32(self.0[I]), vreinterpretq_s32_f32(other.0[I]));
            vreinterpretq_f32_s32(sum)
        }));
        fn min_or(self, best: Self) -> Self =
            Self(both!(I => vbslq_f32(vcltq_f32(self.0[I], best.0[I]), self.0[I], best.0[I])));
        fn max_or_nan(self, other: Self) -> Self =
            Self(both!(I => vbslq_f32(vcgtq_f32(self.0[I], other.0[I]), self.0[I], other.0[I])));
        fn not_above(self, limit: Self) -> Self::Mask = both!(I => vmvnq_u32(vcgtq_f32(self.0[I], limit.0[I])));
        fn select(mask: Self::Mask, a: Self, b: Self) -> Self = Self(both!(I => vbslq_f32(mask[I], a.0[I], b.0[I])));
        fn bits(mask: Self::Mask) -> u32 = {
            const PLACES: [u32; HALF] = [1, 2, 4, 8];
            let [low, high] = both!(I => vaddvq_u32(vandq_u32(mask[I], vld1q_u32(PLACES.as_ptr()))));
            low | high << HALF
        };
    }
    #[inline(always)]
    unsafe fn transpose(rows: [*const f32; SQUARE], to: *mut f32, stride: usize) {
        // Squares of four rows and four values.
        for i in (0..SQUARE).step_by(HALF) {
            for f in (0..SQUARE).step_by(HALF) {
                unsafe {
                    let row = |r: usize| vld1q_f32(rows[i + r].add(f));
                    // Values 0 and 2 of two rows, and values 1 and 3.
                    let (even, odd) = (vtrn1q_f32(row(0), row(1)), vtrn2q_f32(row(0), row(1)));
                    let (even_below, odd_below) = (vtrn1q_f32(row(2), row(3)), vtrn2q_f32(row(2), row(3)));
                    let pairs = |x| vreinterpretq_f64_f32(x);
                    let column = |f: usize, x| vst1q_f32(to.add(f * stride + i), vreinterpretq_f32_f64(x));
                    column(f, vtrn1q_f64(pairs(even), pairs(even_below)));
                    column(f + 1, vtrn1q_f64(pairs(odd), pairs(odd_below)));
                    column(f + 2, vtrn2q_f64(pairs(even), pairs(even_below)));
                    column(f + 3, vtrn2q_f64(pairs(odd), pairs(odd_below)));
                }
            }
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::Portable;
    use super::*;

    /// Lanes of all kinds, in all pairs of places.
    const VALUES: [f32; 11] = [0.0, -0.0, 1.0, -1.5, 3.0e38, -3.0e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 7.25];

    /// What every operation makes of two vectors, as bits. Products are of small integers, which are exact with one rounding and
    /// with two.
    unsafe fn all<V: Vector>(a: &[f32; 8], b: &[f32; 8]) -> Vec<u32> {
        // SAFETY: the pointers are those of eight values. The set is one of every machine.
        unsafe {
            let (x, y) = (V::load(a.as_ptr()), V::load(b.as_ptr()));
            let small = |v: &[f32; 8], most: f32| V::load(v.map(|v| (v.abs() % most).floor().min(most)).as_ptr());
            let mask = x.not_above(y);
            let vectors = [
                x.sub(y),
                x.add(y),
                small(a, 9.0).mul_add(small(b, 7.0), V::splat(2.5)),
                x.integers_as_floats(),
                x.add_integers(y),
                x.min_or(y),
                x.max_or_nan(y),
                V::select(mask, x, y),
            ];
            let mut bits = vec![V::bits(mask), V::bits(y.not_above(x))];
            for vector in vectors {
                let mut out = [0.0f32; 8];
                vector.store(out.as_mut_ptr());
                // A NaN may have any bits.
                bits.extend(out.map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }));
            }
            bits
        }
    }

    unit_test!(every_operation_is_that_of_plain_rust);
    fn every_operation_is_that_of_plain_rust() {
        for shift in 0..VALUES.len() {
            for start in 0..VALUES.len() {
                let a = std::array::from_fn(|i| VALUES[(start + i) % VALUES.len()]);
                let b = std::array::from_fn(|i| VALUES[(start + 3 * i + shift) % VALUES.len()]);
                // SAFETY: see `all`.
                assert_eq!(unsafe { all::<Neon>(&a, &b) }, unsafe { all::<Portable>(&a, &b) }, "{a:?} {b:?}");
            }
        }
    }

    unit_test!(squares_are_turned);
    fn squares_are_turned() {
        let rows: [[f32; SQUARE]; SQUARE] = std::array::from_fn(|i| std::array::from_fn(|f| (100 * i + f) as f32));
        let mut to = [0.0f32; 20 * SQUARE];
        // SAFETY: each row has sixteen values, and there are twenty places from one column to the next.
        unsafe { Neon::transpose(rows.each_ref().map(|row| row.as_ptr()), to.as_mut_ptr(), 20) };
        for (i, row) in rows.iter().enumerate() {
            for (f, value) in row.iter().enumerate() {
                assert_eq!(to[f * 20 + i], *value);
            }
        }
    }
}
