//! The two float types of 16 bits that columns may have. Their values are float32 values, and are widened as they are read. So a
//! fit has the bits of a fit of the same values in float32. A GPU keeps them in 16 bits: half the upload, half the memory.

use std::marker::PhantomData;

use crate::base::float::Float;
use crate::simd::{InstructionSet, Task, Vector};

/// A float type of 16 bits. Values come as their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// IEEE 754 binary16: 5 bits of exponent, 11 of significand.
    Float16,
    /// The upper half of a float32: 8 bits of exponent, 8 of significand.
    BFloat16,
}

impl Half {
    /// The value that has these bits. It is exact.
    #[inline]
    pub fn to_f32(self, bits: u16) -> f32 {
        match self {
            Self::Float16 => FromFloat16::widen(bits),
            Self::BFloat16 => FromBFloat16::widen(bits),
        }
    }

    /// Widens values to `out`, which has as many.
    pub(crate) fn widen<T: Float>(self, bits: &[u16], out: &mut [T]) {
        assert_eq!(bits.len(), out.len());
        let set = InstructionSet::detect();
        match self {
            Self::Float16 => set.run(Widen { bits, out, conversion: PhantomData::<FromFloat16> }),
            Self::BFloat16 => set.run(Widen { bits, out, conversion: PhantomData::<FromBFloat16> }),
        }
    }
}

/// How a stored value becomes a value of a feature.
pub(crate) trait Conversion<S, T>: Copy {
    /// Whether both types are the same. Unsafe code that moves values relies on it.
    const MOVES_BITS: bool = false;
    fn convert(stored: S) -> T;
}

/// Stored values of the feature type.
#[derive(Clone, Copy)]
pub(crate) struct Same;

impl<T> Conversion<T, T> for Same {
    const MOVES_BITS: bool = true;

    #[inline(always)]
    fn convert(stored: T) -> T {
        stored
    }
}

#[derive(Clone, Copy)]
pub(crate) struct FromFloat16;

impl FromFloat16 {
    /// Without branches, so that vectors do it too. No subnormal number is computed with.
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        /// Exponents as float32 has them, at their place: what float16 lacks, and that of 2^-14.
        const LACKS: u32 = 112 << 23;
        const LEAST_NORMAL: u32 = 113 << 23;
        let sign = u32::from(bits & 0x8000) << 16;
        let rest = u32::from(bits & 0x7fff) << 13;
        let normal = rest + LACKS;
        // The significand of 2^-14 holds a subnormal number's digits.
        let subnormal = (f32::from_bits(rest + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL)).to_bits();
        let not_finite = rest | 255 << 23;
        let magnitude = if rest < 1 << 23 { subnormal } else { normal };
        f32::from_bits(sign | if rest >= 31 << 23 { not_finite } else { magnitude })
    }
}

impl<T: Float> Conversion<u16, T> for FromFloat16 {
    #[inline(always)]
    fn convert(stored: u16) -> T {
        T::from_f32(Self::widen(stored))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct FromBFloat16;

impl FromBFloat16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
}

impl<T: Float> Conversion<u16, T> for FromBFloat16 {
    #[inline(always)]
    fn convert(stored: u16) -> T {
        T::from_f32(Self::widen(stored))
    }
}

struct Widen<'a, T, C> {
    bits: &'a [u16],
    out: &'a mut [T],
    conversion: PhantomData<C>,
}

impl<T: Float, C: Conversion<u16, T>> Task for Widen<'_, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { bits, out, conversion: _ } = self;
        for (out, bits) in out.iter_mut().zip(bits) {
            *out = C::convert(*bits);
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    /// The value by its definition.
    fn defined(bits: u16, exponent_bits: u32) -> f64 {
        let digits = 15 - exponent_bits;
        let (sign, exponent, fraction) =
            (bits >> 15, i32::from(bits >> digits & ((1 << exponent_bits) - 1)), f64::from(bits & ((1 << digits) - 1)));
        let (bias, unit) = ((1 << (exponent_bits - 1)) - 1, 2f64.powi(-(digits as i32)));
        let magnitude = match exponent {
            0 => fraction * unit * 2f64.powi(1 - bias),
            _ if exponent == 2 * bias + 1 && fraction > 0.0 => f64::NAN,
            _ if exponent == 2 * bias + 1 => f64::INFINITY,
            _ => (1.0 + fraction * unit) * 2f64.powi(exponent - bias),
        };
        if sign == 1 { -magnitude } else { magnitude }
    }

    unit_test!(all_values_are_those_of_their_definition);
    fn all_values_are_those_of_their_definition() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        for (half, exponent_bits) in [(Half::Float16, 5), (Half::BFloat16, 8)] {
            let (mut narrow, mut wide) = (vec![0.0f32; bits.len()], vec![0.0f64; bits.len()]);
            half.widen(&bits, &mut narrow);
            half.widen(&bits, &mut wide);
            for &bits in &bits {
                let (expected, i) = (defined(bits, exponent_bits), usize::from(bits));
                for got in [f64::from(narrow[i]), wide[i], f64::from(half.to_f32(bits))] {
                    assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{half:?} {bits:x}");
                }
            }
        }
    }
}
