//! A job, and what its cost depends on.

use std::fmt;
use std::ops::Range;

use crate::base::figures::GroupedDigits;
use crate::base::params::DrawnCandidates;

/// Bytes on a GPU for one batch of rows of a prediction, including the results. Two batches are there at a time.
const BATCH_BYTES: u64 = 128 << 20;

/// Kernels read whole tiles of so many rows.
const BATCH_START: u64 = 1_024;

/// What to do with the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    Fit,
    /// Labels under a model.
    Labels,
    /// Labels, and the distances to the nearest and to the second nearest centroid.
    Nearest,
    /// The distances to all centroids.
    Distances,
    /// The m nearest centroids. A GPU finds them among all distances.
    NearestClusters,
    Score,
}

/// What the cost depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub job: Job,
    pub rows: u64,
    pub features: usize,
    pub clusters: usize,
    /// Whether features are float64.
    pub float64: bool,
    /// Whether a GPU keeps the rows in 16 bits a value. Features are float32 then.
    pub half: bool,
    pub weighted: bool,
    pub candidates: DrawnCandidates,
    /// Whether passes take a price on each centroid. All rows of such a fit are in one place.
    pub priced: bool,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, features, clusters) =
            (GroupedDigits(self.rows), GroupedDigits(self.features as u64), GroupedDigits(self.clusters as u64));
        write!(f, "{rows} rows x {features} features x {clusters} clusters")
    }
}

impl Shape {
    /// Whether rows come in batches: each batch is sent, answered and then forgotten.
    pub(crate) fn in_batches(&self) -> bool {
        !matches!(self.job, Job::Fit | Job::Score)
    }

    /// Bytes of results for one row.
    pub(crate) fn answer(&self) -> u64 {
        match self.job {
            Job::Fit | Job::Score => 0,
            Job::Labels => 4,
            Job::Nearest => 4 + 8 + 8,
            Job::Distances => (self.clusters as u64).saturating_mul(8),
            // There are at most as many as centroids.
            Job::NearestClusters => (self.clusters as u64).saturating_mul(8 + 4 + 8),
        }
    }

    /// Bytes of one row on a GPU.
    pub(crate) fn row(&self) -> u64 {
        let size = if self.float64 { 8 } else { 4 };
        // A label of 4 bytes, and 8 bytes for an entry of a list.
        (self.features as u64).saturating_mul(size).saturating_add(self.answer()).saturating_add(12)
    }

    /// The rows of the batches of a prediction on a GPU, in order. If they are `sent`, the first batch is a quarter of a later
    /// one, because the GPU has nothing to do meanwhile. Batches begin at multiples of [`BATCH_START`] unless they are short: then
    /// kernels can read columns that are on the GPU where they are.
    pub fn batches(&self, sent: bool) -> impl Iterator<Item = Range<u64>> + use<> {
        let whole = |rows: u64| if rows < BATCH_START { rows.max(1) } else { rows / BATCH_START * BATCH_START };
        let (rows, most) = (self.rows, whole(BATCH_BYTES / self.row()));
        let first = if sent { whole(most / 4).max(most.min(BATCH_START)) } else { most }.min(rows);
        let others = (first..rows).step_by(most as usize).map(move |start| start..(start + most).min(rows));
        (first > 0).then_some(0..first).into_iter().chain(others)
    }
}
