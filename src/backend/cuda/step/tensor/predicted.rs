//! The time that a step by tensor cores is expected to take.

use super::Tensor;
use super::sizes::{CHUNK, CHUNKS_THAT_STAY, TILE_CENTROIDS, TILE_ROWS};
use super::unit::TensorUnit;
use crate::backend::cuda::shape::{FitShape, GpuSize, padded};
use crate::backend::cuda::step::choice::PROCESSORS;

/// The constants of the predicted time, in microseconds, on an H100: of an iteration and of each feature in it, the same of one
/// pass alone, of a value, and of a value that is copied for one pass. See [`Tensor::predicted_mean`].
const FIXED: f64 = 85.0;
const FEATURE: f64 = 0.1;
const FIXED_ONCE: f64 = 40.0;
const FEATURE_ONCE: f64 = 0.2;
const VALUE: f64 = 1.5e-6;
const COPY_ONCE: f64 = 8e-6;
/// Fewer clusters have at most eight groups: `TensorSizes::new`. With more natural clusters than groups, most rows are in doubt.
/// This costs more than tensor cores gain, unless there are many features.
pub(super) const FEW_CLUSTERS: usize = 30;
const MANY_FEATURES: usize = 256;
/// Up to so many clusters, other programs are as fast as memory.
const FEWEST_CLUSTERS: usize = 4;
/// How much more time iterations take then: measured on an H100 with ten blobs in eight groups, 64 to 192 features.
const IN_DOUBT: f64 = 3.0;

impl Tensor {
    /// The mean of ten iterations of data whose centroids are all multiplied, copies included. Where groups of rows are far
    /// apart, the products take a tenth of that. Of forty times of uniform rows on an H100 (16 to 768 features, 32 to 16,384
    /// clusters), 23 are within a tenth of it, and all between three quarters of it and 1.4 times it.
    pub(super) fn predicted_mean(self, shape: &FitShape, gpu: GpuSize) -> f64 {
        let FitShape { d, k, .. } = *shape;
        let in_doubt = k < FEW_CLUSTERS && d < MANY_FEATURES || k <= FEWEST_CLUSTERS;
        let all = FIXED + FEATURE * d as f64 + self.rows(shape, gpu);
        all * if in_doubt { IN_DOUBT } else { 1.0 }
    }

    /// The time of one pass over rows without copies, such as that of a prediction, in microseconds: also for data whose
    /// centroids are all multiplied.
    pub fn predicted_once(self, shape: &FitShape, gpu: GpuSize) -> f64 {
        let FitShape { chunk, d, .. } = *shape;
        let once = FIXED_ONCE + FEATURE_ONCE * d as f64;
        once + self.rows(shape, gpu) + COPY_ONCE * (chunk * d) as f64
    }

    /// The time of products, minima, settling and sums.
    fn rows(self, shape: &FitShape, gpu: GpuSize) -> f64 {
        let processors = gpu.processors.max(1);
        let (n, k) = (padded(shape.chunk, TILE_ROWS * processors) as f64, self.multiplied(shape.k));
        let score = self.0.score(padded(shape.d, 16), gpu.generation) * 1e-6 * PROCESSORS as f64 / processors as f64;
        n * (k * score + self.0.row() + shape.d as f64 * VALUE)
    }

    /// The centroids of full tiles that take as long as those that are multiplied. A last tile of 128 or of 64 centroids is
    /// assumed to be slower for each of them: it waits as often as a full one.
    fn multiplied(self, k: usize) -> f64 {
        let (full, last) = (k / TILE_CENTROIDS * TILE_CENTROIDS, k % TILE_CENTROIDS);
        let last = match (self.0, last) {
            (_, 0) => 0,
            (TensorUnit::Wgmma, ..=64) => 96,
            (TensorUnit::Wgmma, ..=128) => 160,
            _ => TILE_CENTROIDS,
        };
        (full + last) as f64
    }
}

impl TensorUnit {
    /// Picoseconds for a score of `d` features with as many multiprocessors as an H200 has, where all centroids are multiplied.
    ///
    /// Both instructions were measured on an H200, half tiles on an H100. Other generations were not measured. Per multiprocessor
    /// and clock, data-centre GPUs (8.0, 10.x) should make about as many products by `mma.sync` as an H200, and the others two
    /// fifths of that. The factors here are larger, so tensor cores are chosen only where they win clearly.
    fn score(self, d: usize, generation: u32) -> f64 {
        let of_mma = (0.4 + 0.0055 * d as f64).max(0.75);
        match (self, generation) {
            // Half tiles.
            (Self::Wgmma, _) if d <= CHUNKS_THAT_STAY * CHUNK => 0.22 + 0.0027 * d as f64,
            (Self::Wgmma, _) => 0.14 + 0.00305 * d as f64,
            (Self::Mma, 90) => of_mma,
            (Self::Mma, 80 | 100..=109) => 2.0 * of_mma,
            (Self::Mma, _) => 4.0 * of_mma,
        }
    }

    /// Microseconds for a row, beside its values and scores.
    fn row(self) -> f64 {
        match self {
            Self::Wgmma => 4.0e-5,
            Self::Mma => 1.7e-4,
        }
    }
}
