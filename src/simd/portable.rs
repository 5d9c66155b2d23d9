//! The instruction set of every machine: plain Rust over arrays.

use super::{Task, Vector, doubles};

/// Eight lanes of plain Rust. The compiler maps them to the baseline instructions.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub struct Portable(pub(super) [f32; 8]);

/// An array of one value for each lane. A closure for each of them is not always inlined, and a call takes twenty times as long
/// as the operation.
macro_rules! lanes {
    ($i:ident in $zero:expr, $value:expr) => {{
        let mut lanes = $zero;
        for $i in 0..lanes.len() {
            lanes[$i] = $value;
        }
        lanes
    }};
}
pub(super) use lanes;

// SAFETY: plain Rust, which every machine has.
unsafe impl Vector for Portable {
    const LANES: usize = 8;
    const ROW_VECTORS: usize = 1;
    const MANY_REGISTERS: bool = cfg!(target_arch = "aarch64");
    type Mask = [bool; 8];
    type Doubles = doubles::PortableDoubles;

    #[inline(never)]
    fn call<T: Task>(task: T) -> T::Output {
        task.run::<Self>()
    }
    operations! {
        fn splat(x: f32) -> Self = Self([x; 8]);
        unsafe fn load(p: *const f32) -> Self = Self(p.cast::<[f32; 8]>().read_unaligned());
        unsafe fn store(self, p: *mut f32) = p.cast::<[f32; 8]>().write_unaligned(self.0);
        fn sub(self, other: Self) -> Self = Self(lanes!(i in [0.0; 8], self.0[i] - other.0[i]));
        fn add(self, other: Self) -> Self = Self(lanes!(i in [0.0; 8], self.0[i] + other.0[i]));
        // A fused operation in software would be slow. The error bounds cover the second rounding.
        fn mul_add(self, b: Self, c: Self) -> Self = match cfg!(target_arch = "aarch64") {
            true => Self(lanes!(i in [0.0; 8], self.0[i].mul_add(b.0[i], c.0[i]))),
            false => Self(lanes!(i in [0.0; 8], self.0[i] * b.0[i] + c.0[i])),
        };
        fn integers_as_floats(self) -> Self = Self(lanes!(i in [0.0; 8], self.0[i].to_bits() as i32 as f32));
        fn add_integers(self, other: Self) -> Self =
            Self(lanes!(i in [0.0; 8], f32::from_bits(self.0[i].to_bits().wrapping_add(other.0[i].to_bits()))));
        fn min_or(self, best: Self) -> Self =
            Self(lanes!(i in [0.0; 8], if self.0[i] < best.0[i] { self.0[i] } else { best.0[i] }));
        fn max_or_nan(self, other: Self) -> Self =
            Self(lanes!(i in [0.0; 8], if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }));
        #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN must count as not above
        fn not_above(self, limit: Self) -> [bool; 8] = lanes!(i in [false; 8], !(self.0[i] > limit.0[i]));
        fn select(mask: [bool; 8], a: Self, b: Self) -> Self =
            Self(lanes!(i in [0.0; 8], if mask[i] { a.0[i] } else { b.0[i] }));
        fn bits(mask: [bool; 8]) -> u32 = {
            let mut bits = 0;
            for (i, set) in mask.into_iter().enumerate() {
                bits |= u32::from(set) << i;
            }
            bits
        };
    }
}
