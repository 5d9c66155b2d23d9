//! How long seeding and an iteration are expected to take on the CPU.
//!
//! ```text
//! an iteration   rows x (a row + d values + the scores that remain) over the workers
//!                or, with a tree of the centroids, rows x the boxes near a row
//! k-means++      k steps over rows that are copied, of which each visits fewer, or over all rows
//! ```
//! The constants are nanoseconds of one worker. They were measured on a Zen 4 with AVX-512 (`tests/python/test_plan.py`, with
//! `POLARS_KMEANS_PLAN_FACTOR=3`). How many scores a fit leaves out depends on the rows. So a fit may take a third, or three times
//! as long.

use super::CostModel;
use crate::backend::cpu::filter::ScoreForm;
use crate::backend::cpu::groups::PossibleMethods;
use crate::backend::cpu::layout::MemoryOrder;
use crate::backend::cpu::seeds;
use crate::backend::trials;
use crate::base::float::Float;
use crate::base::params::Init;
use crate::simd::InstructionSet;

/// Seconds of a step of a seeding without any work, and of an iteration: of one worker, and where several share it.
const STEP: f64 = 3e-6;
const SHARED: f64 = 30e-6;

impl CostModel<'_, '_> {
    /// The starting centroids of all restarts.
    pub fn seconds_of_seeding<T: Float>(&self) -> f64 {
        let ([n, d, k], seeding) = (self.shape(), self.params.seeding);
        let Some(rows) = self.rows_of_seeding() else { return STEP };
        // A row is copied, then compared with fewer and fewer candidates. Without a copy, it is compared with all of them.
        let grouped = seeds::pays::<T>(rows as usize, self.layout.d, self.layout.k, self.weighted);
        let copy = if grouped { rows * (30.0 + 6.0 * d) } else { 0.0 };
        let value = self.size / 18.0;
        let work = match seeding.init {
            Init::KMeansParallel => rows * (150.0 + seeding.oversampling * k * f64::from(seeding.rounds) * (0.5 + 0.05 * d)),
            Init::AfkMc2 => {
                let draws = k * f64::from(seeding.chain_length);
                copy + 2.0 * value * rows * d + draws * (150.0 + 3.0 * d + 0.0125 * k * d)
            }
            // One worker has all of it.
            Init::Optimal => return rows * k * (rows + 2.0).log2() * 18e-9,
            _ if grouped => copy + rows * k.powf(0.95) * (0.6 + 0.65 * d) * (self.size / 4.0).sqrt(),
            _ => rows * k * (8.0 + d * (value * f64::from(1 + trials(self.layout.k))).max(1.3)),
        };
        let sample = if rows < n { n * (40.0 + 3.0 * d) } else { 0.0 };
        f64::from(self.params.restarts) * (STEP * k + self.seconds(sample + work))
    }

    /// An iteration, on the average of those of a fit.
    pub fn seconds_of_iteration(&self) -> f64 {
        let ([n, d, k], PossibleMethods { form, groups, copies, tree }) = (self.shape(), self.tries);
        // For each row, each of its values, and each score.
        let (row, value, score) = match form {
            ScoreForm::Difference => (2.0, 0.5, 0.09 + 0.042 * d),
            ScoreForm::Product if copies => (8.0, 1.2, 0.1 + 0.0085 * d),
            ScoreForm::Product => (8.0, 0.9, 0.15 + 0.025 * d),
        };
        let value =
            value * (self.size / 4.0).sqrt() * if self.layout.memory_order == MemoryOrder::Columns { 1.0 } else { 1.35 };
        // The time to put a row in the order of its group, and the share of the scores that remains.
        let (order, share) = match (groups, d <= 3.0) {
            (false, _) => (0.0, 1.0),
            (true, true) => (10.0, (3.0 / k.sqrt()).min(1.0)),
            (true, false) => (10.0, 0.5),
        };
        let alone = if self.layout.workers > 1 { SHARED } else { STEP };
        let scores = n * k * score * share * slower();
        // Few boxes are near a row with few features. The tree itself is made by one worker.
        let searches =
            n * (k.log(16.0) + 1.5f64.powf(d)) * (20.0 + 2.0 * d) * slower() + k * self.layout.workers as f64 * 100.0;
        let found = match tree {
            None => scores,
            Some(false) => scores.min(searches),
            Some(true) => searches,
        };
        alone + self.seconds(n * (row + order + value * d) + found)
    }

    /// Seconds of work that takes one worker so many nanoseconds.
    fn seconds(&self, nanoseconds: f64) -> f64 {
        nanoseconds * 1e-9 / self.layout.workers as f64
    }
}

/// How many times as long a score takes as with AVX-512. Estimated from the width of the vectors.
fn slower() -> f64 {
    match InstructionSet::detect() {
        InstructionSet::Avx512 => 1.0,
        InstructionSet::Avx2 => 1.7,
        InstructionSet::Neon => 3.0,
        InstructionSet::Portable => 6.0,
    }
}
