//! Pass 4: the mean variance of the features. `tol` is relative to it.

use std::ops::Range;

use super::passes::Passes;
use super::tiles::{Visit, load_positive};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::fixed::{ColumnScale, Limbs, round_quotient};
use crate::input::tile::{RowBlock, Tile, WeightScale};

/// The name for the sums of this pass in errors.
const VARIANCE: &str = "the variances of the columns";

/// The scales that turn a column's `t = x - middle` and its square into integers of two limbs.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Moments {
    /// The middle of the column's extent, rounded once.
    pub middle: f64,
    pub first: ColumnScale,
    pub second: ColumnScale,
}

impl Moments {
    pub(super) fn new(low: f64, high: f64) -> Self {
        let middle = 0.5 * (low + high);
        let t = (low - middle).abs().max((high - middle).abs());
        let [first, second] = [t, t * t].map(|extent| ColumnScale::for_extent::<f64>(extent, Limbs::Two));
        Self { middle, first, second }
    }
}

/// Pass 4: the mean of the variances of the features.
pub fn variance<T: Float>(passes: &mut dyn Passes<T>, lows: &[f64], highs: &[f64], n: u64) -> Result<f64> {
    Ok(variances(passes, lows, highs, n)?.into_iter().fold(0.0, |total, variance| total + variance) / lows.len() as f64)
}

/// For each feature `max(0, m2 - m1 * m1)`. m1 and m2 are the means of t and t^2, with `t = x - midrange`.
pub fn variances<T: Float>(passes: &mut dyn Passes<T>, lows: &[f64], highs: &[f64], n: u64) -> Result<Vec<f64>> {
    let moments = lows.iter().zip(highs).map(|(&low, &high)| Moments::new(low, high));
    let moments: Vec<Moments> = memory::collected(moments, VARIANCE)?;
    let sums = passes.variance_sums(&moments)?;
    let variance = |([first, second], moments): ([i128; 2], &Moments)| {
        let [m1, m2]: [f64; 2] = [(first, moments.first), (second, moments.second)]
            .map(|(sum, scale)| round_quotient(sum, u128::from(n), scale.quantum_exponent()));
        (m2 - m1 * m1).max(0.0)
    };
    memory::collected(sums.into_iter().zip(&moments).map(variance), VARIANCE)
}

/// Pass 4.
pub(super) struct SumMoments<'p> {
    pub moments: &'p [Moments],
    pub weights: Option<WeightScale>,
}

impl<T: Float> Visit<T> for SumMoments<'_> {
    type Learnt = Vec<[i128; 2]>;

    fn nothing(&self) -> Result<Vec<[i128; 2]>> {
        memory::zeroed(self.moments.len(), VARIANCE)
    }

    #[inline(always)]
    fn visit(&self, sums: &mut Vec<[i128; 2]>, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
        load_positive(tile, part, self.weights, range);
        for (f, (sums, moments)) in sums.iter_mut().zip(self.moments).enumerate() {
            let Moments { middle, first, second } = *moments;
            // A tile has far fewer rows than an int64 can hold limbs.
            let mut limbs = [0i64; 4];
            for x in tile.column(f) {
                let t = x.to_f64() - middle;
                let ((a, b), (c, e)) = (first.limbs_of(t), second.limbs_of(t * t));
                limbs[0] += a;
                limbs[1] += b;
                limbs[2] += c;
                limbs[3] += e;
            }
            sums[0] += first.join(limbs[0], limbs[1]);
            sums[1] += second.join(limbs[2], limbs[3]);
        }
    }
}
