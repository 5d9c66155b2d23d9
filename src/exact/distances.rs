//! Squared distances as integers, and their sums: inertia, score, shift, and the potentials of k-means++.
//!
//! ```text
//! S        = reference distance between the vectors of column highs and lows
//! base     : 90 bits below the power of two at or above 4 * S * max(w^)
//! term     = rint(fl(s * w^) / quantum), at least 1 where s * w^ > 0
//! precise  : a sum T of m positive terms is kept if T = 0 or T >= m * 2^41
//! else     : sum again with 90 bits below 2^bits(T) old quanta, until it is precise
//! ```
//! A term has an error of less than one quantum, so a sum that is kept is within 2^-40 of the exact sum. If a sum is not kept,
//! every term is at most T + 1/2 old quanta, so it fits the smaller range. The quantum of a sum depends on integer sums only, and
//! integer sums do not depend on the order of their terms. Data of ordinary ranges never need a second pass.

use std::cmp::Ordering;

use crate::base::error::Result;
use crate::base::memory;
use crate::exact::fixed::{
    ColumnScale, Limbs, TWO_LIMB_BITS, exponent_at_or_above, frexp, round_quotient, round_scaled, split,
};

/// A sum of `m` terms is precise if it is at least `m * 2^this` quanta.
pub const PRECISE_BITS: u32 = 41;
/// The largest high limb. Larger values are clamped to it.
const MOST: f64 = (1u64 << 45) as f64;

/// The scale that turns squared distances into integers: two limbs, 90 bits below a power of two.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct DistanceScale {
    scale: Option<ColumnScale>,
}

impl DistanceScale {
    /// Every distance becomes 0: either `S` is 0, or the sum is not needed.
    pub const NONE: Self = Self { scale: None };

    /// The base scale: 90 bits below the power of two at or above `4 * s * largest_weight`.
    ///
    /// `s` is the squared diameter of the box. `largest_weight` is 1 without weights. Only the mantissas are multiplied, so the
    /// product neither overflows nor underflows.
    pub fn new(s: f64, largest_weight: f64) -> Self {
        if s <= 0.0 {
            return Self::NONE;
        }
        let (fs, es) = frexp(s);
        let (fw, ew) = frexp(largest_weight);
        Self::below(exponent_at_or_above(fs * fw) + es + ew + 2)
    }

    /// 90 bits below `2^exponent`.
    fn below(exponent: i32) -> Self {
        Self { scale: Some(ColumnScale::new(exponent, Limbs::Two)) }
    }

    /// The integer of a row's weighted distance. `weight` is w^, `s` is its reference distance. A positive distance becomes at
    /// least one quantum. A row of weight 0 becomes 0. A value beyond the range is clamped to the range.
    ///
    /// The power of two is applied to `s` alone, because `weight * s` could underflow.
    #[inline(always)]
    pub fn quantise(&self, weight: f64, s: f64) -> u128 {
        match self.scale {
            Some(scale) if s > 0.0 && weight > 0.0 => {
                let (first, second, low) = scale.factors();
                let v = s * first * second * weight;
                let (hi, lo) = split(if v < MOST { v } else { MOST }, low);
                scale.join(hi, lo).max(1) as u128
            }
            _ => 0,
        }
    }

    /// The limbs of [`DistanceScale::quantise`], without branches. [`ColumnScale::join`] of [`DistanceScale::column`] makes the
    /// integer of them, or of sums of them.
    #[inline(always)]
    pub fn limbs(&self, weight: f64, s: f64) -> (i64, i64) {
        // Without a scale, every limb is 0.
        limbs(if self.scale.is_some() { weight } else { 0.0 }, s, self.scale.map_or((0.0, 0.0, 0.0), |scale| scale.factors()))
    }

    /// The sum over some rows of the integer of the distance `before`, less the integer of the smaller of both distances. The
    /// same as with [`DistanceScale::quantise`], for vector units. There are at most 4,096 rows.
    #[inline(always)]
    pub fn lowered<const N: usize>(&self, weights: &[f64; N], before: &[f64; N], after: &[f64; N]) -> u128 {
        const { assert!(N <= 4_096) };
        let Some(scale) = self.scale else { return 0 };
        let factors = scale.factors();
        let (mut his, mut los) = (0i64, 0i64);
        for i in 0..N {
            let least = if after[i] < before[i] { after[i] } else { before[i] };
            let (hi, lo) = limbs(weights[i], before[i], factors);
            let (hi_least, lo_least) = limbs(weights[i], least, factors);
            his += hi - hi_least;
            los += lo - lo_least;
        }
        scale.join(his, los) as u128
    }

    /// The two-limb scale of a distance, or `None` where every distance is 0.
    pub fn column(&self) -> Option<ColumnScale> {
        self.scale
    }

    /// If a sum of `terms` positive distances is not precise, the finer scale for summing again.
    pub fn finer(&self, total: u128, terms: u64) -> Option<Self> {
        let scale = self.scale.filter(|_| total > 0 && total >> PRECISE_BITS < u128::from(terms))?;
        let bits = 128 - total.leading_zeros() as i32;
        Some(Self { scale: Some(scale) }.below_quanta(bits))
    }

    /// 90 bits below `2^bits` quanta of this scale.
    pub fn below_quanta(&self, bits: i32) -> Self {
        self.scale.map_or(Self::NONE, |scale| Self::below(scale.quantum_exponent() + bits))
    }

    /// The precise sum of unweighted distances.
    pub fn sum(self, distances: impl Iterator<Item = f64> + Clone) -> DistanceSum {
        let terms = distances.clone().filter(|&s| s > 0.0).count() as u64;
        let mut sum = DistanceSum { total: 0, scale: self };
        loop {
            sum.total = distances.clone().map(|s| sum.scale.quantise(1.0, s)).sum();
            match sum.scale.finer(sum.total, terms) {
                Some(finer) => sum.scale = finer,
                None => return sum,
            }
        }
    }
}

/// The limbs of [`DistanceScale::quantise`], without branches.
#[inline(always)]
fn limbs(weight: f64, s: f64, (first, second, low): (f64, f64, f64)) -> (i64, i64) {
    let positive = (s > 0.0) & (weight > 0.0);
    let v = s * first * second * weight;
    let v = if v < MOST { v } else { MOST };
    let (hi, lo) = split(if positive { v } else { 0.0 }, low);
    (hi, if positive & ((hi | lo) == 0) { 1 } else { lo })
}

/// An integer sum of distances, with its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistanceSum {
    pub total: u128,
    pub scale: DistanceScale,
}

impl DistanceSum {
    /// Makes the sum of `terms` positive distances precise. `again` sums them again with a finer scale.
    ///
    /// # Errors
    /// The errors of `again`.
    pub fn precise(self, terms: u64, mut again: impl FnMut(DistanceScale) -> Result<u128>) -> Result<Self> {
        let mut sum = self;
        while let Some(scale) = sum.scale.finer(sum.total, terms) {
            sum = Self { total: again(scale)?, scale };
        }
        Ok(sum)
    }

    /// As [`DistanceSum::precise`], for the sums of several clusters. Cluster j has `terms[j]` terms. `again` gets one scale per
    /// cluster: [`DistanceScale::NONE`] where the sum is already precise.
    ///
    /// # Errors
    /// The errors of `again`.
    pub fn precise_each(
        mut sums: Vec<Self>,
        terms: &[u64],
        mut again: impl FnMut(&[DistanceScale]) -> Result<Vec<u128>>,
    ) -> Result<Vec<Self>> {
        loop {
            let finer = sums.iter().zip(terms).map(|(sum, &terms)| sum.scale.finer(sum.total, terms));
            let scales =
                memory::collected(finer.map(|scale| scale.unwrap_or(DistanceScale::NONE)), "the scales of the clusters")?;
            if scales.iter().all(|scale| *scale == DistanceScale::NONE) {
                return Ok(sums);
            }
            for ((sum, scale), total) in sums.iter_mut().zip(&scales).zip(again(&scales)?) {
                if *scale != DistanceScale::NONE {
                    *sum = Self { total, scale: *scale };
                }
            }
        }
    }

    /// An exact form that can be compared with sums in other units.
    pub fn exact(&self) -> ExactSum {
        ExactSum::from_iter([self])
    }

    /// As a float64, rounded once.
    pub fn to_f64(&self) -> f64 {
        self.scale.column().map_or(0.0, |scale| round_quotient(self.total as i128, 1, scale.quantum_exponent()))
    }
}

/// An exact total of sums with different units.
///
/// Bit `b` of word `i` counts `2^(64 i + b + LOWEST)`. Quanta are above `2^-1300`: a sum with fewer than `2^41` quanta per term
/// is summed again, and no positive `s * w^` is below `2^-1191`. Sums are below `2^1100`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactSum([u64; WORDS]);

const WORDS: usize = 40;
const LOWEST: i32 = -1344;

impl ExactSum {
    fn add(&mut self, sum: &DistanceSum) {
        let Some(scale) = sum.scale.column() else { return };
        let place = (scale.quantum_exponent() - LOWEST) as usize;
        let (word, bit) = (place / 64, place % 64);
        // The total, shifted left by `bit`, in three words.
        let (low, high) = (sum.total << bit, if bit == 0 { 0 } else { sum.total >> (128 - bit) });
        let mut carry = false;
        for (i, addend) in [low as u64, (low >> 64) as u64, high as u64].into_iter().chain(std::iter::repeat(0)).enumerate() {
            if i >= 3 && !carry || word + i >= WORDS {
                break;
            }
            let (sum, over) = self.0[word + i].overflowing_add(addend);
            let (sum, again) = sum.overflowing_add(u64::from(carry));
            (self.0[word + i], carry) = (sum, over || again);
        }
    }

    /// As a float64, rounded once.
    pub fn to_f64(&self) -> f64 {
        let Some(top) = self.0.iter().rposition(|word| *word != 0) else { return 0.0 };
        // The two highest words, and one flag for everything below: at least 65 bits, more than a float64 has.
        let second = top.saturating_sub(1);
        let magnitude =
            if top == 0 { u128::from(self.0[0]) } else { u128::from(self.0[top]) << 64 | u128::from(self.0[second]) };
        let inexact = self.0[..second].iter().any(|word| *word != 0);
        round_scaled(false, magnitude, inexact, LOWEST + 64 * second as i32)
    }
}

impl Ord for ExactSum {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

impl PartialOrd for ExactSum {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'s> FromIterator<&'s DistanceSum> for ExactSum {
    fn from_iter<I: IntoIterator<Item = &'s DistanceSum>>(sums: I) -> Self {
        let mut all = Self([0; WORDS]);
        sums.into_iter().for_each(|sum| all.add(sum));
        all
    }
}

const _: () = assert!(TWO_LIMB_BITS == 90);

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::random::Random;

    /// The value of the sum of these distances.
    fn sum_of(values: &[f64], base: DistanceScale) -> f64 {
        base.sum(values.iter().copied()).to_f64()
    }

    unit_test!(small_sums_of_a_wide_scale_are_precise);
    fn small_sums_of_a_wide_scale_are_precise() {
        let base = DistanceScale::new(1e30, 1.0);
        for values in [[0.01, 0.01, 0.02], [1e-300, 3e-300, 0.0], [f64::MIN_POSITIVE, 5e-324, 5e-324], [1e29, 1.0, 1e-9]] {
            let exact: f64 = values.iter().sum();
            assert!((sum_of(&values, base) - exact).abs() <= exact * 2f64.powi(-40), "{values:?}");
        }
        assert_eq!(sum_of(&[0.0, 0.0], base), 0.0);
        assert_eq!(sum_of(&[1.0], DistanceScale::new(0.0, 1.0)), 0.0);
    }

    unit_test!(weights_and_tiny_distances_do_not_underflow);
    fn weights_and_tiny_distances_do_not_underflow() {
        let base = DistanceScale::new(2f64.powi(-900), 1.0);
        let (weight, s) = (2f64.powi(-117), f64::from_bits(1));
        let first = DistanceSum { total: base.quantise(weight, s), scale: base };
        assert_eq!(first.total, 1);
        let sum = first.precise(1, |scale| Ok(scale.quantise(weight, s))).unwrap();
        let expected = DistanceSum { total: 1 << 80, scale: DistanceScale::below(-1191 + 10) };
        assert_eq!(sum.exact(), expected.exact());
    }

    unit_test!(more_than_the_range_is_the_range);
    fn more_than_the_range_is_the_range() {
        let scale = DistanceScale::below(0);
        assert_eq!(scale.quantise(1.0, 1.0), 1 << 90);
        assert_eq!(scale.quantise(1.0, 1e300), 1 << 90);
        assert_eq!(scale.quantise(2f64.powi(-60), f64::MAX), 1 << 90);
    }

    unit_test!(sums_over_vectors_are_those_of_single_rows);
    fn sums_over_vectors_are_those_of_single_rows() {
        let values = [0.0, f64::INFINITY, 1.0, 1e-300, 5e-324, 0.3, 2f64.powi(-88), 2f64.powi(-90), 1e300, 7e-20, 0.999];
        let weights = [1.0, 0.0, 0.7, 1e-9, 2f64.powi(-60)];
        let random = &mut Random(3);
        let mut next = |n: u64| random.below(n) as usize;
        for exponent in [-900, -1, 0, 1, 90, 1_000] {
            let scale = DistanceScale::below(exponent);
            for _ in 0..500 {
                let weights: [f64; 32] = std::array::from_fn(|_| weights[next(5)]);
                let [before, after]: [[f64; 32]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| values[next(11)]));
                let each = (0..32)
                    .map(|i| scale.quantise(weights[i], before[i]) - scale.quantise(weights[i], before[i].min(after[i])));
                assert_eq!(scale.lowered(&weights, &before, &after), each.sum::<u128>());
            }
        }
        assert_eq!(DistanceScale::NONE.lowered(&[1.0], &[2.0], &[1.0]), 0);
    }

    unit_test!(exact_sums_round_once_and_compare_across_units);
    fn exact_sums_round_once_and_compare_across_units() {
        let sum = |total, exponent| DistanceSum { total, scale: DistanceScale::below(exponent) };
        let random = &mut Random(9);
        let mut next = || random.bits(53);
        for _ in 0..2_000 {
            let one = sum(u128::from(next()) * u128::from(next()), next() as i32 % 900);
            assert_eq!(one.exact().to_f64(), one.to_f64());
            let doubled =
                DistanceSum { total: one.total, scale: DistanceScale::below(one.scale.column().unwrap().exponent + 1) };
            assert_eq!(ExactSum::from_iter([&one, &one]), doubled.exact());
            assert!(one.exact() < doubled.exact() || one.total == 0);
        }
        // A tie between two float64 values, then the same tie with a tiny term that breaks it.
        let tie = [sum(1 << 53, 90), sum(1, 90)];
        assert_eq!(ExactSum::from_iter(&tie).to_f64(), (1u64 << 53) as f64);
        let broken = [sum(1 << 53, 90), sum(1, 90), sum(1, -800)];
        assert_eq!(ExactSum::from_iter(&broken).to_f64(), (1u64 << 53) as f64 + 2.0);
        // A carry through many words.
        let ones = [sum(u128::MAX >> 1, 90), sum(u128::MAX >> 1, 90), sum(2, 90)];
        assert_eq!(ExactSum::from_iter(&ones).to_f64(), 2f64.powi(128));
    }
}
