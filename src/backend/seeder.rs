//! What seeding calls: draws of rows, and distances to the centroids taken so far.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::exact::rng::{DrawPurpose, below, draw_u64};
use crate::input::tile::RowBlock;
use crate::statistics::Statistics;

/// What errors call rows that are drawn.
pub(crate) const DRAWN: &str = "the rows drawn";

/// The rows of a fit as seeding sees them. Every row has a draw weight, an integer.
///
/// Rows are counted from the session's first row.
pub trait Seeder<T: Float>: Send {
    /// Number of kept rows of positive weight.
    fn positive_rows(&self) -> u64;
    /// The values of a row.
    fn row(&mut self, row: u64) -> Result<Vec<T>>;
    /// Sets every row's draw weight to its `w^`. Returns the total.
    fn start_draws(&mut self) -> Result<u128>;
    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    fn draw(&mut self, target: u128) -> Result<u64>;
    /// Takes centroids (`(m, d)`, row-major). Draw weights become integer distances to the nearest centroid taken so far, in this
    /// scale. Returns the total. Without centroids, only the scale changes.
    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128>;
    /// For each candidate (`(m, d)`, row-major), the amount by which it would lower the total. It is measured in the scale of the
    /// last [`Seeder::take_seeds`].
    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>>;
    /// For each target, the row that it draws (see [`Seeder::draw`]) as a candidate, and the candidate's gain.
    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let mut rows = Vec::new();
        for &target in targets {
            let row = self.draw(target)?;
            memory::extend(&mut rows, &self.row(row)?, DRAWN)?;
        }
        let gains = self.gains(&rows)?;
        Ok((rows, gains))
    }
    /// Does steps of k-means++, as many as the session can do without the caller. Each step appends a centroid, and lowers the
    /// potential, which is the total of the last [`Seeder::take_seeds`] or of the last such step. The last centroid need not be
    /// taken. A session that can do none leaves both as they are.
    fn plus_plus_steps(&mut self, _asked: &PlusPlus, _potential: &mut DistanceSum, _centroids: &mut Vec<T>) -> Result<()> {
        Ok(())
    }
    /// For each target, the first row whose running total of weights, in row order, exceeds it. Targets may be many.
    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>>;
    /// The values of all rows, row-major, and their `w^`. For few features.
    fn all_rows(&mut self) -> Result<(Vec<T>, Vec<f64>)>;
    /// The rows of a sample for which every row decides alone. At least one centroid must be taken.
    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>>;
    /// For each candidate (`(m, d)`, row-major), the total of the integers of `w^` of the rows that are nearest to it. The
    /// smaller candidate wins ties.
    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>>;
    /// For each of some rows, the nearest centroid (both row-major). The smaller number wins ties. None if a CPU is as fast.
    fn nearest_of(&self, _rows: &[T], _centroids: &[T]) -> Option<Vec<u32>> {
        None
    }
    /// A session over other rows for k centroids, on the same device, if there is room and it pays.
    fn other_rows<'t>(
        &self,
        _part: &RowBlock<'t, T>,
        _statistics: &Arc<Statistics>,
        _k: usize,
    ) -> Option<Box<dyn Seeder<T> + 't>> {
        None
    }
    /// Frees the memory that only seeding needs.
    fn end_draws(&mut self);
}

/// What rows weigh in a draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum DrawBy {
    /// The integer of `w^`.
    Weight,
    /// The integer distance to the nearest centroid taken so far. There must be one.
    Distance,
    /// 1 for each row of positive weight.
    Positive,
}

/// The rows that targets draw, in the order of the targets.
#[derive(Debug, Clone, PartialEq)]
pub struct Picked<T> {
    pub rows: Vec<u64>,
    /// Their values: `(rows, d)`.
    pub values: Vec<T>,
    /// Their `w^`.
    pub weights: Vec<f64>,
}

impl<T: Float> Picked<T> {
    /// The rows at these places, in this order.
    pub fn in_order(&self, places: &[usize]) -> Result<Self> {
        let d = self.values.len() / self.rows.len().max(1);
        let mut values = memory::with_room(places.len().saturating_mul(d), DRAWN)?;
        places.iter().for_each(|place| values.extend_from_slice(&self.values[place * d..][..d]));
        let rows = memory::collected(places.iter().map(|&place| self.rows[place]), DRAWN)?;
        let weights = memory::collected(places.iter().map(|&place| self.weights[place]), DRAWN)?;
        Ok(Self { rows, values, weights })
    }
}

/// The number of candidates of a step of k-means++ for k clusters.
pub fn trials(k: usize) -> u32 {
    2 + (k as f64).ln().floor() as u32
}

/// The steps of k-means++ that a session is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlusPlus {
    pub seed: u64,
    /// The stream of the draws.
    pub stream: DrawPurpose,
    pub restart: u32,
    /// The number of centroids after the last step.
    pub k: usize,
    /// Candidates of a step.
    pub trials: u32,
}

/// A sample for which every row decides alone, as k-means|| asks for it (Bahmani et al. 2012).
///
/// The row with number i in the whole fit and with draw weight D is in the sample if `floor(u * total / 2^64) < expected * D`.
/// The 64-bit number u has the counter `(2 + 256 round, restart, i mod 2^32, i div 2^32)`. With `row_order="values"`, i is the
/// hash of the values of the row (`src/exact/rng.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Sample {
    pub seed: u64,
    pub restart: u32,
    /// At most 255.
    pub round: u32,
    /// The total draw weight of all rows of the fit.
    pub total: u128,
    /// At most 2^33. No more rows than this are drawn on average.
    pub expected: u64,
    /// The number of the session's first row in the whole fit.
    pub first: u64,
    /// Whether rows have the hash of their values as their number.
    pub by_values: bool,
}

impl Sample {
    /// Whether the row of this number is in the sample. `weight` is its draw weight.
    #[inline(always)]
    pub fn has(&self, number: u64, weight: u128) -> bool {
        let stream = DrawPurpose::Parallel { round: self.round };
        let u = draw_u64(self.seed, stream, self.restart, number as u32, (number >> 32) as u32);
        // A draw weight is at most 2^90, so the product is at most 2^123.
        below(u, self.total) < u128::from(self.expected) * weight
    }
}

/// The rows of a sample, in ascending order.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled<T> {
    pub rows: Vec<u64>,
    /// Their values: `(rows, d)`.
    pub values: Vec<T>,
}
