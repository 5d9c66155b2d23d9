//! The weighted squared deviation of consecutive values from their mean, from exact sums over all values before each one.
//!
//! ```text
//! u         = the value less the least value, in quanta of two limbs                                  at most 2^91
//! W, X, XX  = sums of w, w u, w u^2 over the values                               at most 2^89, 2^180, 2^271
//! deviation = (W XX - X^2) / W: both rounded to float64, and then their quotient
//! ```
//! The numerator is an exact integer, so nothing cancels out. Deviations count in quanta.

use std::ops::Range;

use super::wide::{add, mul, sub, to_f64, words};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::fixed::{ColumnScale, Limbs, exponent_at_or_above, power_of_two};
use crate::exact::reference;
use crate::statistics::Statistics;

/// The name for the sums in errors.
const SUMS: &str = "the sorted values and their sums";

/// Sums over the first values.
#[derive(Clone, Copy)]
struct Sums {
    w: u128,
    x: [u64; 3],
    xx: [u64; 5],
}

impl Sums {
    const NONE: Self = Self { w: 0, x: [0; 3], xx: [0; 5] };

    fn and(self, u: u128, w: u128) -> Self {
        let x = mul::<2, 2, 3>(words(u), words(w));
        Self { w: self.w + w, x: add(self.x, x), xx: add(self.xx, mul::<2, 3, 5>(words(u), x)) }
    }

    #[inline(always)]
    fn less(self, other: Self) -> Self {
        Self { w: self.w - other.w, x: sub(self.x, other.x), xx: sub(self.xx, other.xx) }
    }
}

/// The different values, ascending, with their sums.
pub struct Deviations {
    values: Vec<f64>,
    /// One more than values: the sums over all values before.
    sums: Vec<Sums>,
    scale: ColumnScale,
}

impl Deviations {
    /// `weights`: the `w^` of the values. Values of weight 0 do not count.
    pub fn new<T: Float>(values: &[T], weights: &[f64], statistics: &Statistics) -> Result<Self> {
        let numbers = values.iter().map(|x| x.to_f64() + 0.0);
        // The integer of a weight has 53 bits.
        let integer = |w: f64| statistics.weights.map_or(u64::from(w > 0.0), |scale| scale.integer(w) as u64);
        let mut sorted: Vec<(f64, u64)> = memory::with_room(values.len(), SUMS)?;
        sorted.extend(numbers.zip(weights).map(|(x, w)| (x, integer(*w))).filter(|(_, w)| *w > 0));
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        // Values without a distance count as one value.
        let same = |a: f64, b: f64| reference::distance(&[a], &[b]) == 0.0;
        let different = 1 + sorted.windows(2).filter(|two| two[0].0 != two[1].0).count();
        let (mut different, mut sums): (Vec<f64>, Vec<Sums>) =
            (memory::with_room(different, SUMS)?, memory::with_room(different + 1, SUMS)?);
        let extent = statistics.extent();
        let scale = ColumnScale::new(if extent > 0.0 { exponent_at_or_above(extent) } else { 0 }, Limbs::Two);
        let least = sorted.first().map_or(0, |(x, _)| scale.quantise(*x));
        sums.push(Sums::NONE);
        let mut at = 0;
        while at < sorted.len() {
            let x = sorted[at].0;
            let end = at + sorted[at..].iter().take_while(|(other, _)| same(x, *other)).count();
            let w = sorted[at..end].iter().map(|(_, w)| u128::from(*w)).sum();
            let before = sums[sums.len() - 1];
            // Quantised values are in the same order.
            sums.push(before.and((scale.quantise(x) - least) as u128, w));
            different.push(x);
            at = end;
        }
        Ok(Self { values: different, sums, scale })
    }

    /// The number of different values.
    pub fn values(&self) -> usize {
        self.values.len()
    }

    /// The deviation of some values, at least one.
    #[inline(always)]
    pub fn of(&self, range: Range<usize>) -> f64 {
        let Sums { w, x, xx } = self.sums[range.end].less(self.sums[range.start]);
        let numerator = sub(mul::<2, 5, 7>(words(w), xx), mul::<3, 3, 7>(x, x));
        to_f64(numerator) / to_f64(words(w))
    }

    /// The mean of some values, at least one.
    pub fn mean<T: Float>(&self, range: Range<usize>) -> T {
        let (first, last) = (self.values[range.start], self.values[range.end - 1]);
        let Sums { w, x, .. } = self.sums[range.end].less(self.sums[range.start]);
        let u = (self.scale.quantise(first) - self.scale.quantise(self.values[0])) as u128;
        let above_first = sub(x, mul::<2, 2, 3>(words(u), words(w)));
        let mean = first + to_f64(above_first) / to_f64(words(w)) * power_of_two(self.scale.quantum_exponent());
        T::from_f64(mean.clamp(first, last))
    }
}
