//! Backends: a backend holds the rows of a fit and runs the passes over them.
//!
//! A [`Session`] holds the rows, labels and running sums of one fit. The trait is coarse: each call is one pass over the data (or
//! concerns one row). It returns only scalars, centroids and integer partial sums.

pub mod chunking;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod parts;
pub mod select;

pub use parts::Parts;

use self::select::Devices;
use crate::answers::Distances;
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::Partial;

/// The GPUs of this machine, or the reason why there is none. Every call asks the driver again.
///
/// `CUDA_VISIBLE_DEVICES` hides and renumbers GPUs, as for every program.
pub fn devices() -> Devices {
    #[cfg(feature = "cuda")]
    return cuda::devices();
    #[cfg(not(feature = "cuda"))]
    Err("this build has no CUDA backend (the feature \"cuda\" of the Rust crate is off)".into())
}

/// What an assign pass found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// Rows of positive weight whose label changed.
    pub changed: u64,
    /// The integer inertia of each cluster in the base scale, if the caller asked for it.
    pub inertia: Option<Vec<u128>>,
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
pub struct Far {
    /// Reference distance to the centroid that gave the row its label.
    pub distance: f64,
    /// Number of the kept row, counted over the whole fit.
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

/// When to stop before the limit of iterations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    /// Stop if at most this many rows changed.
    pub changed: f64,
    /// Stop if the shift is at most this.
    pub shift: f64,
}

impl Stop {
    /// Whether an iteration was the last.
    pub fn after(&self, changed: u64, shift: f64) -> bool {
        changed as f64 <= self.changed || shift <= self.shift
    }
}

/// A whole iteration that a session did by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Iteration {
    pub changed: u64,
    pub shift: f64,
    /// Whether a centroid moved.
    pub moved: bool,
    pub seconds: f64,
}

/// What a session did in [`Session::advance`].
#[derive(Debug, Default)]
pub struct Progress {
    /// Whole iterations that it did.
    pub done: Vec<Iteration>,
    /// The assign of one more iteration. The caller must do its update.
    pub assigned: Option<Assigned>,
}

/// The rows of one fit on one backend.
pub trait Session<T: Float>: Send {
    /// Number of kept rows.
    fn rows(&self) -> u64;
    /// Number of kept rows of positive weight.
    fn positive_rows(&self) -> u64;
    /// The values of a row. Rows are counted from this session's first row.
    fn row(&self, row: u64) -> Result<Vec<T>>;

    // ---- seeding: every row has a draw weight, an integer --------------------------------------------------
    /// Sets every row's draw weight to its `w^`. Returns the total.
    fn start_draws(&mut self) -> Result<u128>;
    /// The row of positive weight with this rank.
    fn positive_row(&self, rank: u64) -> Result<u64>;
    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    fn draw(&self, target: u128) -> Result<u64>;
    /// For each candidate (`(m, d)`, row-major), the amount by which it would lower the total. It is measured in the scale of the
    /// last [`Session::take_seed`].
    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>>;
    /// For each target, the row that it draws (see [`Session::draw`]) as a candidate, and the candidate's gain.
    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let mut rows = Vec::new();
        for &target in targets {
            memory::extend(&mut rows, &self.row(self.draw(target)?)?, "the rows drawn")?;
        }
        let gains = self.gains(&rows)?;
        Ok((rows, gains))
    }
    /// Takes a centroid. Draw weights become integer distances to the nearest centroid taken so far, in this scale. Returns the
    /// total. The last centroid may be taken again with another scale.
    fn take_seed(&mut self, centroid: &[T], scale: DistanceScale) -> Result<u128>;
    /// Frees the memory that only seeding needs.
    fn end_draws(&mut self);

    // ---- the loop -------------------------------------------------------------------------------------------
    /// Forgets all labels and sums.
    fn reset(&mut self) -> Result<()>;
    /// Labels every row by these centroids (`(k, d)`, row-major). Moves the contributions of rows whose label changed.
    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned>;
    /// Continues the loop for at most `limit` iterations, and stops where `stop` says so. The session does as many whole
    /// iterations as it can by itself; `centroids` are then those after the last one. If it cannot continue, it does one more
    /// assign.
    fn advance(&mut self, centroids: &mut [T], _stop: Stop, _limit: u32) -> Result<Progress> {
        Ok(Progress { done: Vec::new(), assigned: Some(self.assign(centroids, false)?) })
    }
    /// The sums of all rows under their labels.
    fn partial(&mut self) -> Result<&Partial>;
    /// Rows of positive weight in each cluster.
    fn sizes(&mut self) -> Result<Vec<u64>> {
        memory::collected(self.partial()?.rows.iter().map(|&rows| rows as u64), "the sizes of the clusters")
    }
    /// Marks the sums as read.
    fn clear_dirty(&mut self);
    /// The `count` rows of positive weight that are farthest from the centroids that gave them their labels, in [`Far::order`].
    /// Only clusters that `donors` allows count.
    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>>;
    /// Moves a row and its contribution to another cluster.
    fn relocate(&mut self, row: u64, to: u32) -> Result<()>;
    /// The integer inertia of each cluster under the current labels and the last centroids.
    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>>;
    /// The labels in row order.
    fn labels(&self) -> Result<Vec<u32>>;
    /// The labels of a session that is finished.
    fn into_labels(self: Box<Self>) -> Result<Vec<u32>>;
    /// For every row in order: its nearest of these centroids (`(k, d)`, row-major), and the distances to this one and to the
    /// second nearest. The session's own labels do not matter and do not change.
    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)>;
}
