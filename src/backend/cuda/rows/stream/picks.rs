//! Many drawn rows at once, from the host memory that streamed rows come from.

use std::ops::Range;

use super::RowStream;
use crate::backend::cuda::device::Plain;
use crate::backend::sweep::Sweep;
use crate::backend::{DrawBy, Picked};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::WeightScale;

/// The name for the rows in errors.
const ROWS: &str = "the rows drawn";
/// Rows whose weights are copied together.
const TOGETHER: usize = 1 << 16;

impl<T: Float + Plain> RowStream<'_, T> {
    /// The rows that targets draw by their weights.
    pub fn pick(&self, by: DrawBy, weights: Option<WeightScale>, targets: &[u128]) -> Result<Picked<T>> {
        let Some(scale) = weights else {
            return self.picked(memory::collected(targets.iter().map(|&target| target as u64), ROWS)?, None);
        };
        let mut sweep = Sweep::new(targets)?;
        for first in (0..self.sources.n).step_by(TOGETHER) {
            if sweep.is_done() {
                break;
            }
            let rows = first..self.sources.n.min(first + TOGETHER);
            for (row, weight) in rows.clone().zip(self.weights_of(rows, weights)?) {
                let integer = scale.integer(weight) as u128;
                sweep.visit(row, if by == DrawBy::Positive { u128::from(integer > 0) } else { integer });
            }
        }
        self.picked(sweep.rows(), weights)
    }

    /// The values of these rows, and their `w^`.
    pub fn picked(&self, rows: Vec<u64>, weights: Option<WeightScale>) -> Result<Picked<T>> {
        let mut values = memory::with_room(rows.len().saturating_mul(self.sources.d), ROWS)?;
        let mut all = memory::with_room(rows.len(), ROWS)?;
        for &row in &rows {
            let row = row as usize..row as usize + 1;
            values.extend(self.values_of(row.clone())?);
            all.extend(self.weights_of(row, weights)?);
        }
        Ok(Picked { rows, values, weights: all })
    }

    /// The `w^` of these rows, in this scale.
    pub fn weights_of(&self, rows: Range<usize>, scale: Option<WeightScale>) -> Result<Vec<f64>> {
        let mut weights = memory::filled(rows.len(), 1.0, ROWS)?;
        let Some(scale) = scale else { return Ok(weights) };
        for (source, own, at) in self.sources.of(rows) {
            source.fill_weights(&own, &mut weights[at..][..own.len()]);
        }
        weights.iter_mut().for_each(|w| *w = scale.round(*w));
        Ok(weights)
    }
}
