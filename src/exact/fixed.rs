//! Fixed-point numbers. They make a sum independent of the order of its terms.
//!
//! Every value is rounded once to a multiple of its column's quantum (ties to even). After that there are only integer additions.
//! Integer addition is associative, so a sum does not depend on chunking, threads, devices or order.
//!
//! ```text
//! p        = the integer with 2^(p-1) < extent <= 2^p
//! one limb : hi = rint(x * 2^(50-p))                                     quantum 2^(p-50), |hi| <= 2^50
//! two limbs: v  = x * 2^(45-p); hi = rint(v); lo = rint((v - hi) * 2^45)  quantum 2^(p-90), |hi| <= 2^45, |lo| <= 2^44
//! total    = hi                  (one limb)
//!          = hi * 2^45 + lo      (two limbs)
//! mean     = total * quantum / count, rounded once
//! ```
//!
//! An int64 has room for the sum of 4,096 one-limb values, or of 131,072 limbs of a two-limb column. Then it must be flushed into
//! the canonical 128-bit integer.

use crate::base::float::Float;

/// Bits that one limb keeps below the power of two at or above the extent.
pub const ONE_LIMB_BITS: i32 = 50;
/// Bits of each limb of a pair.
pub const LIMB_BITS: i32 = 45;
/// Bits that a pair of limbs keeps.
pub const TWO_LIMB_BITS: i32 = 2 * LIMB_BITS;
/// A model's quanta take later values of up to `2^this` times the power of two above the extent of its fit.
pub const BEYOND: i32 = 4;
/// The largest magnitude that [`round_to_integer`] takes.
const LARGEST_ROUNDED: f64 = (1u64 << 51) as f64;
/// The number of one-limb values whose sum always fits in an int64.
pub const ONE_LIMB_CAPACITY: u32 = 4_096;
/// The number of limbs of a pair whose sum always fits in an int64.
pub const TWO_LIMB_CAPACITY: u32 = 131_072;

/// 1.5 * 2^52. Adding it to a value of magnitude at most 2^51 rounds the value to an integer (ties to even). The integer is then
/// in the low bits of the sum's representation.
const ROUND: f64 = 6_755_399_441_055_744.0;
const TWO_45: f64 = (1u64 << LIMB_BITS) as f64;

/// `rint(v)` as an integer, for `|v| <= 2^51`. Ties go to even. The result is the same for every vector width.
#[inline(always)]
pub fn round_to_integer(v: f64) -> i64 {
    ((v + ROUND).to_bits() as i64).wrapping_sub(ROUND.to_bits() as i64)
}

/// The smallest integer `p` with `m <= 2^p`, for finite `m > 0`.
pub fn exponent_at_or_above(m: f64) -> i32 {
    debug_assert!(m > 0.0 && m.is_finite());
    let (fraction, exponent) = frexp(m);
    if fraction == 0.5 { exponent - 1 } else { exponent }
}

/// `m = fraction * 2^exponent` with `0.5 <= fraction < 1`, for finite `m > 0`.
pub fn frexp(m: f64) -> (f64, i32) {
    let (bits, offset) = if m < f64::MIN_POSITIVE { ((m * 2f64.powi(64)).to_bits(), -64) } else { (m.to_bits(), 0) };
    let exponent = ((bits >> 52) & 0x7ff) as i32 - 1022 + offset;
    (f64::from_bits((bits & !(0x7ff << 52)) | (1022 << 52)), exponent)
}

/// The power of two `2^e` as a float64, for `-1074 <= e <= 1023`.
pub fn power_of_two(e: i32) -> f64 {
    debug_assert!((-1074..=1023).contains(&e));
    if e >= -1022 { f64::from_bits(((e + 1023) as u64) << 52) } else { f64::from_bits(1 << (e + 1074)) }
}

/// Multiplication by a power of two in two steps, so that neither factor leaves the float64 range.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct PowerOfTwo {
    first: f64,
    second: f64,
}

impl PowerOfTwo {
    /// Scaling by `2^exponent`, for `|exponent| <= 2044`.
    pub fn new(exponent: i32) -> Self {
        let half = exponent / 2;
        Self { first: power_of_two(half), second: power_of_two(exponent - half) }
    }

    /// `x * 2^exponent`. Exact unless the result is subnormal or overflows.
    #[inline(always)]
    pub fn apply(self, x: f64) -> f64 {
        x * self.first * self.second
    }
}

/// The limbs of a scaled value: the nearest integer, and the rest times `low`, rounded. `|v| <= 2^50`, so the integer and the
/// rest are both exact.
#[inline(always)]
pub fn split(v: f64, low: f64) -> (i64, i64) {
    let rounded = (v + ROUND) - ROUND;
    (round_to_integer(v), round_to_integer((v - rounded) * low))
}

/// How many int64 limbs a column's quantised value has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum Limbs {
    One,
    Two,
}

/// A column's quantum: it turns values into `hi` (and `lo`) limbs.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct ColumnScale {
    /// `p`: the extent is at most `2^p`.
    pub exponent: i32,
    pub limbs: Limbs,
    hi: PowerOfTwo,
    /// 2^45 for two limbs, 0 for one: the low limb of a one-limb column is always 0.
    lo: f64,
}

impl ColumnScale {
    pub fn new(exponent: i32, limbs: Limbs) -> Self {
        let (bits, lo) = match limbs {
            Limbs::One => (ONE_LIMB_BITS, 0.0),
            Limbs::Two => (LIMB_BITS, TWO_45),
        };
        Self { exponent, limbs, hi: PowerOfTwo::new(bits - exponent), lo }
    }

    /// The scale of a column whose largest magnitude is `extent`, of feature type `T`.
    pub fn for_extent<T: Float>(extent: f64, limbs: Limbs) -> Self {
        let exponent = if extent > 0.0 { exponent_at_or_above(extent) } else { T::SMALLEST_EXPONENT };
        Self::new(exponent, limbs)
    }

    /// The limbs of `x`, where `|x| <= 2^exponent`.
    #[inline(always)]
    pub fn limbs_of(&self, x: f64) -> (i64, i64) {
        split(self.hi.apply(x), self.lo)
    }

    /// The arguments of [`split`], for loops over columns: `split(x * first * second, low)` gives the limbs of `x`.
    pub fn factors(&self) -> (f64, f64, f64) {
        (self.hi.first, self.hi.second, self.lo)
    }

    /// The canonical integer of a sum of limbs.
    #[inline(always)]
    pub fn join(&self, hi: i64, lo: i64) -> i128 {
        match self.limbs {
            Limbs::One => i128::from(hi),
            Limbs::Two => (i128::from(hi) << LIMB_BITS) + i128::from(lo),
        }
    }

    /// The canonical integer of one value.
    #[inline(always)]
    pub fn quantise(&self, x: f64) -> i128 {
        let (hi, lo) = self.limbs_of(x);
        self.join(hi, lo)
    }

    /// As [`ColumnScale::quantise`], for values that may be up to 16 times larger.
    ///
    /// One limb then has up to 2^54 quanta, which [`round_to_integer`] does not take. The limbs of a pair are still within its
    /// range.
    #[inline(always)]
    pub fn quantise_beyond(&self, x: f64) -> i128 {
        let v = self.hi.apply(x);
        if v.abs() <= LARGEST_ROUNDED || self.limbs == Limbs::Two { self.quantise(x) } else { v.round_ties_even() as i128 }
    }

    /// The largest magnitude that [`ColumnScale::quantise_beyond`] takes: 16 times the power of two above the extent.
    pub fn limit(&self) -> f64 {
        PowerOfTwo::new(self.exponent + BEYOND).apply(1.0)
    }

    /// Bits below the power of two above the extent.
    pub fn bits(&self) -> u32 {
        match self.limbs {
            Limbs::One => ONE_LIMB_BITS as u32,
            Limbs::Two => TWO_LIMB_BITS as u32,
        }
    }

    /// The quantum is `2^this`.
    pub fn quantum_exponent(&self) -> i32 {
        match self.limbs {
            Limbs::One => self.exponent - ONE_LIMB_BITS,
            Limbs::Two => self.exponent - TWO_LIMB_BITS,
        }
    }
}

/// `rint(v * factor)`, ties to even, for `0 <= factor <= 1` and `|v| < 2^127`. The product is exact: it has up to 180 bits.
pub fn times(v: i128, factor: f64) -> i128 {
    debug_assert!((0.0..=1.0).contains(&factor));
    let (fraction, exponent) = frexp(factor);
    // factor = mantissa / 2^shift, and shift is at least 52.
    let (mantissa, shift) = ((fraction * power_of_two(53)) as u128, 53 - exponent);
    let (magnitude, word) = (v.unsigned_abs(), u128::from(u64::MAX));
    let low = (magnitude & word) * mantissa;
    let high = (magnitude >> 64) * mantissa + (low >> 64);
    let low = low & word;
    let rounded = match shift {
        // The product is below half of 2^shift.
        182.. => 0,
        64.. => {
            let shift = shift - 64;
            let (kept, rest) = (high >> shift, (high & ((1 << shift) - 1), low));
            let half = if shift > 0 { (1 << (shift - 1), 0) } else { (0, 1 << 63) };
            kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
        }
        _ => round_shifted((high << (64 - shift)) | (low >> shift), low & ((1 << shift) - 1), shift),
    } as i128;
    if v < 0 { rounded.wrapping_neg() } else { rounded }
}

/// `kept + rest / 2^shift`, rounded to an integer, ties to even.
fn round_shifted(kept: u128, rest: u128, shift: i32) -> u128 {
    let half = 1u128 << shift >> 1;
    kept + u128::from(rest > half || (rest == half && half > 0 && kept & 1 == 1))
}

/// `rint(v / 2^shift)`, ties to even. Exact for negative shifts, for which the result must fit.
pub fn coarser(v: i128, shift: i32) -> i128 {
    if shift <= 0 {
        return v << -shift;
    }
    if shift > 127 {
        return 0;
    }
    let magnitude = v.unsigned_abs();
    let rounded = round_shifted(magnitude >> shift, magnitude & ((1 << shift) - 1), shift) as i128;
    if v < 0 { rounded.wrapping_neg() } else { rounded }
}

/// `numerator * 2^exponent / denominator`, rounded once to `T` (to nearest, ties to even).
///
/// Divides in base 2^37 until the quotient has more bits than any float. The remainder then becomes a sticky bit.
/// `denominator < 2^90`.
pub fn round_quotient<T: Float>(numerator: i128, denominator: u128, exponent: i32) -> T {
    debug_assert!(denominator > 0 && denominator < 1 << 90);
    if numerator == 0 {
        return T::default();
    }
    if T::IS_F32
        && let Some(value) = quick_float32(numerator, denominator, exponent)
    {
        return T::from_f64(f64::from(value));
    }
    long_division(numerator, denominator, exponent)
}

fn long_division<T: Float>(numerator: i128, denominator: u128, exponent: i32) -> T {
    const DIGIT: u32 = 37;
    let magnitude = numerator.unsigned_abs();
    let (mut quotient, mut remainder, mut exponent) = (magnitude, 0, exponent);
    if denominator > 1 {
        (quotient, remainder) = (magnitude / denominator, magnitude % denominator);
        // A quotient of 2^56 or more has the 53 bits of a float64 and the two more that rounding needs. A smaller one gets more
        // digits.
        while remainder != 0 && quotient < 1 << 56 {
            let shifted = remainder << DIGIT;
            quotient = (quotient << DIGIT) + shifted / denominator;
            remainder = shifted % denominator;
            exponent -= DIGIT as i32;
        }
    }
    round_scaled(numerator < 0, quotient, remainder != 0, exponent)
}

/// As [`round_quotient`] for a float32 result. Uses one float64 division where that decides the result, else returns `None`.
///
/// The float64 quotient `q` has three roundings (both conversions and the division), so it is within 4 units in the last place of
/// the exact quotient. If no boundary between float32 values lies that close, both round to the same float32.
#[inline]
fn quick_float32(numerator: i128, denominator: u128, exponent: i32) -> Option<f32> {
    let (n, d) = (i64::try_from(numerator).ok()?, u64::try_from(denominator).ok()?);
    let q = n as f64 / d as f64;
    // A float64 has 29 bits below the last bit of a float32. At a boundary these bits are exactly one half.
    const HALF: u64 = 1 << 28;
    let below = q.to_bits() & (2 * HALF - 1);
    let binade = ((q.to_bits() >> 52) & 0x7ff) as i32 - 1023 + exponent;
    let normal = (-126..127).contains(&binade) && (-1022..1023).contains(&exponent);
    (below.abs_diff(HALF) > 8 && normal).then(|| (q * power_of_two(exponent)) as f32)
}

/// `+-(magnitude + sticky) * 2^exponent`, rounded once to `T`. `sticky` is in `[0, 1)` and positive if `inexact`. Then
/// `magnitude` must have at least two bits more than `T`.
pub(crate) fn round_scaled<T: Float>(negative: bool, magnitude: u128, inexact: bool, exponent: i32) -> T {
    let bits = 128 - magnitude.leading_zeros() as i32;
    // The result is an integer multiple of 2^unit.
    let unit = (bits + exponent - T::PRECISION as i32).max(T::SMALLEST_EXPONENT);
    let shift = unit - exponent;
    let rounded = if shift <= 0 {
        debug_assert!(!inexact);
        return signed(negative, PowerOfTwo::new(exponent).apply(magnitude as f64));
    } else if shift > 127 {
        0
    } else {
        let (kept, rest, half) = (magnitude >> shift, magnitude & ((1 << shift) - 1), 1u128 << (shift - 1));
        let up = rest > half || (rest == half && (inexact || kept & 1 == 1));
        kept + u128::from(up)
    };
    // `rounded` has at most 53 bits, so it is exact as a float64. After scaling it is exact in T.
    signed(negative, PowerOfTwo::new(unit).apply(rounded as f64))
}

fn signed<T: Float>(negative: bool, value: f64) -> T {
    T::from_f64(if negative { -value } else { value })
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::random::Random;

    unit_test!(exponents_are_at_or_above);
    fn exponents_are_at_or_above() {
        for (m, p) in [(1.0, 0), (1.5, 1), (2.0, 1), (0.75, 0), (0.5, -1), (5e-324, -1074), (f64::MAX, 1024), (3e-310, -1028)] {
            assert_eq!(exponent_at_or_above(m), p, "{m:e}");
        }
    }

    unit_test!(rounding_is_to_even);
    fn rounding_is_to_even() {
        for (v, r) in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (1e15, 1_000_000_000_000_000), (-0.49, 0)] {
            assert_eq!(round_to_integer(v), r, "{v}");
        }
    }

    unit_test!(values_beyond_the_extent_become_integers);
    fn values_beyond_the_extent_become_integers() {
        for scale in [Limbs::One, Limbs::Two].map(|limbs| ColumnScale::new(3, limbs)) {
            for x in [scale.limit(), -128.0, 8.0 + 2f64.powi(-46), 8.0 + 3.0 * 2f64.powi(-48), 1.5] {
                let back: f64 = round_quotient(scale.quantise_beyond(x), 1, scale.quantum_exponent());
                assert!((back - x).abs() <= 2f64.powi(scale.quantum_exponent() - 1), "{x}");
            }
        }
        // 2^51 quanta and a half: to even.
        assert_eq!(ColumnScale::new(0, Limbs::One).quantise_beyond(2.0 + 2f64.powi(-51)), 1 << 51);
    }

    unit_test!(products_with_factors_are_rounded_once);
    fn products_with_factors_are_rounded_once() {
        for v in [0, 1, -1, 5, i128::MAX, i128::MIN + 1, 1 << 126, (1 << 64) - 1] {
            assert_eq!((times(v, 1.0), times(v, 0.0), times(v, 5e-324)), (v, 0, 0));
        }
        for (v, expected) in [(1, 0), (2, 1), (3, 2), (5, 2), (6, 3), (7, 4), (-3, -2), (-5, -2)] {
            assert_eq!((times(v, 0.5), coarser(v, 1)), (expected, expected), "half of {v}");
        }
        assert_eq!(times(i128::MAX, 0.75), (i128::MAX / 4) * 3 + 2);
        assert_eq!(times(10 << 90, 3_865_470_566.0 / 4_294_967_296.0), (10i128 << 58) * 3_865_470_566);
        // The mantissa has 53 bits, so 2^-12 shifts by 64 bits, and what is below by more than a word.
        for (v, exponent, expected) in
            [(1 << 126, -12, 1 << 114), (1 << 126, -70, 1 << 56), (3 << 100, -101, 2), (-(1 << 100), -101, 0)]
        {
            assert_eq!((times(v, power_of_two(exponent)), coarser(v, -exponent)), (expected, expected), "{v} 2^{exponent}");
        }
        let (above, below) = ((1i128 << 100) + 1, (1i128 << 100) - 1);
        assert_eq!((times(above, power_of_two(-101)), times(below, power_of_two(-101)), times(above, 0.5)), (1, 0, 1 << 99));
        assert_eq!(times((1 << 126) - 1, 1.5 * power_of_two(-126)), 1, "one half and a little less than one");
        assert_eq!((coarser(3, -5), coarser(i128::MAX, 127), coarser(i128::MAX, 128), coarser(-(3 << 70), 71)), (96, 1, 0, -2));
    }

    unit_test!(two_limbs_hold_ninety_bits);
    fn two_limbs_hold_ninety_bits() {
        let scale = ColumnScale::new(3, Limbs::Two);
        let x = 7.000_000_000_000_001;
        assert_eq!(round_quotient::<f64>(scale.quantise(x), 1, scale.quantum_exponent()), x);
        assert_eq!(scale.quantise(-x), -scale.quantise(x));
    }

    unit_test!(the_quick_quotient_is_the_long_one);
    fn the_quick_quotient_is_the_long_one() {
        let random = &mut Random(1);
        let mut next = || random.bits(56);
        let mut quick = 0;
        for case in 0..200_000u32 {
            let denominator = u128::from(next() % 50_000 + 1);
            // Half of the cases are next to a boundary between float32 values.
            let boundary = i128::from(next() % (1 << 23) * 2 + (1 << 24) + 1) * denominator as i128 * (1 << 14)
                + i128::from(next() % 5)
                - 2;
            let numerator = if case % 2 == 0 { i128::from(next()) - (1 << 55) } else { boundary };
            let exponent = (next() % 300) as i32 - 200;
            quick += u32::from(quick_float32(numerator, denominator, exponent).is_some());
            let (a, b): (f32, f32) =
                (round_quotient(numerator, denominator, exponent), long_division(numerator, denominator, exponent));
            assert_eq!(a.to_bits(), b.to_bits(), "{numerator} / {denominator} * 2^{exponent}");
        }
        assert!(quick > 50_000 && quick < 150_000, "{quick}");
    }

    unit_test!(quotients_are_rounded_once);
    fn quotients_are_rounded_once() {
        assert_eq!(round_quotient::<f64>(1, 3, 0), 1.0 / 3.0);
        assert_eq!(round_quotient::<f32>(-2, 3, 0), -2.0f32 / 3.0);
        assert_eq!(round_quotient::<f32>(1, 1, -149), f32::from_bits(1));
        assert_eq!(round_quotient::<f32>(1, 2, -149), 0.0, "a tie in the subnormals goes to even");
        assert_eq!(round_quotient::<f32>(3, 2, -149), f32::from_bits(2));
        assert_eq!(round_quotient::<f64>((1 << 54) + 2, 1, 0), ((1u64 << 54) as f64));
        assert_eq!(round_quotient::<f64>((1 << 54) + 3, 1, 0), ((1u64 << 54) as f64) + 4.0);
        assert_eq!(round_quotient::<f64>(i128::MAX, 1, 0), 2f64.powi(127));
        assert_eq!(round_quotient::<f32>((1 << 24) + 1, 1, 0), 16_777_216.0);
        assert_eq!(round_quotient::<f32>(((1 << 24) + 1) * 1000 + 1, 1000, 0), 16_777_218.0, "the sticky bit breaks the tie");
    }
}
