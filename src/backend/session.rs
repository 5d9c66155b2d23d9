//! A session: what the loop calls (assign, sums, empty clusters, inertia, labels), beside what seeding calls (`seeder.rs`).

use super::Seeder;
use super::cpu::MethodExplanation;
use crate::backend::answers::{Distances, LABELS};
use crate::backend::priced::PricedPasses;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::progress::Watch;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceScale;

/// How much an assign pass computed. It is outside the bits: it depends on the device, the strategy and the chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct WorkCounts {
    /// Rows whose label the filter left to reference distances. None: not counted.
    pub settled: Option<u64>,
    /// Scores of a row and a centroid that the filter computed. None: not counted.
    pub scores: Option<u64>,
    /// Rows whose label the first filter left to a second one, before reference distances. None: there is one filter.
    pub rescored: Option<u64>,
    /// Groups of rows, each of which has its own list of centroids. None: there are no groups.
    pub groups: Option<u32>,
}

impl WorkCounts {
    /// The effort of two sessions together.
    pub fn and(self, other: Self) -> Self {
        let both = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Self {
            settled: both(self.settled, other.settled),
            scores: both(self.scores, other.scores),
            rescored: both(self.rescored, other.rescored),
            groups: self.groups.max(other.groups),
        }
    }

    /// The share of `rows` that were rescored.
    pub fn share_rescored(&self, rows: u64) -> Option<f64> {
        Some(self.rescored? as f64 / rows.max(1) as f64)
    }

    /// The share of `rows` that were settled.
    pub fn share_settled(&self, rows: u64) -> Option<f64> {
        Some(self.settled? as f64 / rows.max(1) as f64)
    }

    /// The share of the scores of `rows` and `k` centroids that were not computed.
    pub fn share_skipped(&self, rows: u64, k: u64) -> Option<f64> {
        Some((1.0 - self.scores? as f64 / (rows as f64 * k as f64).max(1.0)).max(0.0))
    }
}

/// What an assign pass found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Assigned {
    /// Rows of positive weight whose label changed.
    pub changed: u64,
    /// The integer inertia of each cluster in the base scale, if the caller asked for it.
    pub inertia: Option<Vec<u128>>,
    pub work_counts: WorkCounts,
}

impl Assigned {
    /// What was found in all rows, from what was found here and in other rows.
    pub fn and(mut self, other: Self) -> Self {
        if let (Some(all), Some(more)) = (&mut self.inertia, other.inertia) {
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
        let work_counts = self.work_counts.and(other.work_counts);
        Self { changed: self.changed + other.changed, inertia: self.inertia, work_counts }
    }
}

/// The scales that turn the distances of each cluster into integers.
#[derive(Debug, Clone, Copy)]
pub enum Scales<'s> {
    Same(DistanceScale),
    /// One scale per cluster.
    Each(&'s [DistanceScale]),
}

/// A row far from its centroid.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Far {
    /// Reference distance to the centroid that gave the row its label.
    pub distance: f64,
    /// Number of the kept row, counted from the session's first row.
    pub row: u64,
    /// Its label.
    pub cluster: u32,
}

impl Far {
    /// The farther row comes first. Of rows equally far, the one with the smaller number comes first.
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        other.distance.total_cmp(&self.distance).then(self.row.cmp(&other.row))
    }
}

/// A row that moves to another cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Move {
    /// Number of the kept row, counted from the session's first row.
    pub row: u64,
    pub to: u32,
}

/// When to stop before the limit of iterations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    /// Stop if at most this many rows changed.
    pub changed: f64,
    /// Stop if the shift is at most this.
    pub shift: f64,
}

impl Stop {
    /// Goes on whatever happens.
    pub const NEVER: Self = Self { changed: -1.0, shift: -1.0 };

    /// Whether an iteration was the last.
    pub fn after(&self, changed: u64, shift: f64) -> bool {
        changed as f64 <= self.changed || shift <= self.shift
    }
}

/// Rows of positive weight in each cluster.
pub fn sizes_of(cluster_sums: &ClusterSums) -> Result<Vec<u64>> {
    memory::collected(cluster_sums.rows.iter().map(|&rows| rows as u64), "the sizes of the clusters")
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Updated {
    /// Fixed-point sum of the reference distances between the old and the new centroids.
    pub shift: f64,
    /// Whether a centroid or a row moved. The labels may then differ from those of the new centroids.
    pub moved: bool,
}

/// A whole iteration: an assign and an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Iteration {
    pub changed: u64,
    pub shift: f64,
    /// Whether a centroid moved.
    pub moved: bool,
    pub seconds: f64,
    pub work_counts: WorkCounts,
}

/// What a session did in [`Session::advance`].
#[derive(Debug, Default)]
pub struct Advanced {
    /// Whole iterations that it did.
    pub done: Vec<Iteration>,
    /// The assign of one more iteration. The caller must do its update.
    pub assigned: Option<Assigned>,
    /// The clusters that were empty in any of these iterations.
    pub emptied: Vec<u32>,
}

/// The rows of one fit on one backend: as seeding sees them, and as the loop does, with labels and with the sums of each cluster.
pub trait Session<T: Float>: Seeder<T> {
    /// Number of kept rows.
    fn rows(&self) -> u64;
    /// Whether the passes run on a device, so that the calling thread mostly waits. Then several sessions work at the same time,
    /// each with a thread of its own.
    fn on_device(&self) -> bool {
        false
    }
    /// Forgets all labels and sums.
    fn reset(&mut self) -> Result<()>;
    /// Labels every row by these centroids (`(k, d)`, row-major). Moves the contributions of rows whose label changed.
    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned>;
    /// Continues the loop for at most `limit` iterations, and stops where `stop` or `watch` says so. The session does as many
    /// whole iterations as it can by itself, and shows each of them to `watch`; `centroids` are then those after the last one.
    /// If it cannot continue, it does one more assign. If it can compute [`Session::means`] then, `centroids` may be any.
    fn advance(&mut self, centroids: &mut [T], _stop: Stop, _limit: u32, _watch: &mut Watch<'_>) -> Result<Advanced> {
        Ok(Advanced { assigned: Some(self.assign(centroids, false)?), ..Advanced::default() })
    }
    /// The sums of all rows under their labels.
    fn cluster_sums(&mut self) -> Result<&ClusterSums>;
    /// Rows of positive weight in each cluster.
    fn sizes(&mut self) -> Result<Vec<u64>> {
        sizes_of(self.cluster_sums()?)
    }
    /// Replaces the centroids by the exact means of the sums, if the session can do so where its sums are. No cluster is empty.
    /// `None`: the caller must compute them.
    fn means(&mut self, _centroids: &mut [T]) -> Result<Option<Updated>> {
        Ok(None)
    }
    /// Marks the sums as read.
    fn clear_dirty(&mut self);
    /// The `count` rows of positive weight that are farthest from the centroids that gave them their labels, in [`Far::order`].
    /// Only clusters that `donors` allows count.
    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>>;
    /// Moves rows and their contributions to other clusters. There may be none, and no row moves twice.
    fn relocate(&mut self, moves: &[Move]) -> Result<()>;
    /// The integer inertia of each cluster under the current labels and the last centroids.
    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>>;
    /// How labels are found, and why. None if the session does not say.
    fn method(&self) -> Option<MethodExplanation> {
        None
    }
    /// Passes with a price on each centroid, if the session has them.
    fn priced(&mut self) -> Option<&mut dyn PricedPasses<T>> {
        None
    }
    /// The labels in row order.
    fn labels(&mut self) -> Result<Vec<u32>> {
        let mut labels = memory::zeroed(self.rows() as usize, LABELS)?;
        self.copy_labels(&mut labels)?;
        Ok(labels)
    }
    /// Writes the labels in row order: one for each row.
    fn copy_labels(&mut self, out: &mut [u32]) -> Result<()>;
    /// The labels of a session that is finished.
    fn into_labels(mut self: Box<Self>) -> Result<Vec<u32>> {
        self.labels()
    }
    /// For every row in order: its nearest of these centroids (`(k, d)`, row-major), and the distances to this one and to the
    /// second nearest. The session's own labels do not matter and do not change.
    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)>;
}
