//! What seeding calls. A backend keeps a table of draws, which is state and nothing else: the weight of each row, its distance to
//! the nearest centroid taken so far, the scale of the integer distances, and totals of the draw weights of ranges of rows.
//!
//! ```text
//! weigh     the draw weight of every row is its weight
//! lower     the draw weight of every row is its distance to the nearest centroid taken so far
//! gains     what candidates would lower
//! pick      rows, by totals of the draw weights or each by its own chance, with their values
//! masses    the weight of the rows that are nearest to each candidate
//! ```
//! Integers come out, so the results of threads, chunks, devices and parts add up in any order to the same bits.

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

/// The rows of a fit as seeding sees them: a table of draws with four verbs, and the masses of candidates.
///
/// Rows are counted from the session's first row. Centroids and candidates are `(m, d)`, row-major.
pub trait Seeder<T: Float>: Send {
    /// Number of kept rows of positive weight.
    fn positive_rows(&self) -> u64;
    /// Begins a table of draws: the draw weight of each row is the integer of its `w^`. Returns the total.
    fn weigh(&mut self) -> Result<u128>;
    /// Takes centroids: draw weights become integer distances to the nearest centroid taken so far, in this scale. Returns the
    /// total. Without centroids, only the scale changes.
    fn lower(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128>;
    /// For each candidate, the amount by which it alone would lower the total, in the scale of the last [`Seeder::lower`].
    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>>;
    /// The rows that a draw names.
    fn pick(&mut self, draw: &Draw) -> Result<Picked<T>>;
    /// For each candidate, the total of the integers of `w^` of the rows that are nearest to it. The smaller candidate wins
    /// ties. No table is needed.
    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>>;
    /// Frees the table of draws.
    fn end_draws(&mut self);
    /// Does steps of k-means++, as many as the session can do without the caller. Each step appends a centroid, and lowers the
    /// potential, which is the total of the last [`Seeder::lower`] or of the last such step. The last centroid need not be
    /// taken. A session that can do none leaves both as they are.
    fn plus_plus_steps(&mut self, _asked: &PlusPlus, _potential: &mut DistanceSum, _centroids: &mut Vec<T>) -> Result<()> {
        Ok(())
    }
    /// The device of the rows, for work on a few other rows.
    fn device(&self) -> Option<&dyn SeedingDevice<T>> {
        None
    }
}

/// What a device does for seeding beside the rows of the fit. Each answer is None if a CPU is as fast, or if there is no room.
pub trait SeedingDevice<T: Float> {
    /// For each of some rows, the nearest centroid (both row-major). The smaller number wins ties.
    fn nearest(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>>;
    /// A session over other rows for k centroids.
    fn session<'t>(&self, part: &RowBlock<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Seeder<T> + 't>>;
}

/// Which rows a pick names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum Draw {
    /// For each target, the first row whose running total of these weights, in row order, exceeds it. Targets may be many.
    Totals(DrawBy, Vec<u128>),
    /// The rows of a sample for which every row decides alone, in ascending order. At least one centroid must be taken.
    Each(Sample),
    /// All rows, in order. Their numbers are not listed. For few features.
    All,
}

/// What rows weigh in a draw by totals.
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

/// The rows of a draw, in the order of the targets or of the rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Picked<T> {
    pub rows: Vec<u64>,
    /// Their values: `(rows, d)`.
    pub values: Vec<T>,
    /// Their `w^`.
    pub weights: Vec<f64>,
}

impl<T: Float> Picked<T> {
    /// The entries of these indices, in this order.
    pub fn in_order(&self, indices: &[usize]) -> Result<Self> {
        let d = self.values.len() / self.rows.len().max(1);
        let mut values = memory::with_room(indices.len().saturating_mul(d), DRAWN)?;
        indices.iter().for_each(|index| values.extend_from_slice(&self.values[index * d..][..d]));
        let rows = memory::collected(indices.iter().map(|&index| self.rows[index]), DRAWN)?;
        let weights = memory::collected(indices.iter().map(|&index| self.weights[index]), DRAWN)?;
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
