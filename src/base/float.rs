//! The two feature types, float32 and float64, behind one small sealed trait.

mod sealed {
    pub trait Sealed: crate::base::memory::Zero {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A feature type: `f32` or `f64`.
pub trait Float: sealed::Sealed + Copy + Default + Send + Sync + PartialOrd + std::fmt::Debug + 'static {
    /// Bits of the significand, including the hidden bit.
    const PRECISION: u32;
    /// Exponent of the smallest subnormal: 2^this is the least positive value.
    const SMALLEST_EXPONENT: i32;
    /// Unit roundoff, 2^-PRECISION.
    const UNIT: f64 = 1.0 / (1u64 << Self::PRECISION) as f64;
    /// The name that Polars gives the type.
    const NAME: &'static str;
    /// Whether this is `f32`.
    const IS_F32: bool = Self::PRECISION == 24;

    /// Exact widening.
    fn to_f64(self) -> f64;
    /// Rounding to nearest, ties to even.
    fn from_f64(value: f64) -> Self;
    /// Exact widening, or nothing.
    fn from_f32(value: f32) -> Self;
    /// The largest finite value.
    fn largest() -> Self;
    /// Whether the value is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// The value without its sign.
    fn magnitude(self) -> Self;
    /// The values as `f32` if `Self` is `f32`, else `None`.
    fn as_f32s(values: &[Self]) -> Option<&[f32]>;
    /// `(self - centre) * first * second` in this type, rounded to float32. This is a value of a filter's copy. The factors are
    /// powers of two.
    fn centred_copy(self, centre: Self, first: Self, second: Self) -> f32;
}

macro_rules! float {
    ($type:ident, $name:literal, $as_f32s:expr) => {
        impl Float for $type {
            const PRECISION: u32 = $type::MANTISSA_DIGITS;
            const SMALLEST_EXPONENT: i32 = $type::MIN_EXP - $type::MANTISSA_DIGITS as i32;
            const NAME: &'static str = $name;

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as Self
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                value as Self
            }
            fn largest() -> Self {
                Self::MAX
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                self.is_finite()
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn as_f32s(values: &[Self]) -> Option<&[f32]> {
                $as_f32s(values)
            }
            #[inline(always)]
            fn centred_copy(self, centre: Self, first: Self, second: Self) -> f32 {
                ((self - centre) * first * second) as f32
            }
        }
    };
}
float!(f32, "Float32", Some);
float!(f64, "Float64", |_| None);

/// An integer that grows with the value: 32 bits for float32, 64 for float64. Both zeros have the same.
#[inline(always)]
pub fn key<T: Float>(x: T) -> u64 {
    let x = x.to_f64() + 0.0;
    let (bits, sign) = if T::IS_F32 { (u64::from((x as f32).to_bits()), 1 << 31) } else { (x.to_bits(), 1 << 63) };
    if bits & sign == 0 { bits | sign } else { !bits & (sign | (sign - 1)) }
}

/// The value of a key.
pub fn of_key<T: Float>(key: u64) -> T {
    let sign = if T::IS_F32 { 1u64 << 31 } else { 1 << 63 };
    let bits = if key & sign == 0 { !key & (sign | (sign - 1)) } else { key ^ sign };
    if T::IS_F32 { T::from_f32(f32::from_bits(bits as u32)) } else { T::from_f64(f64::from_bits(bits)) }
}
