//! Backends: where a fit's rows live and its passes run.
//!
//! A [`Session`] holds one fit's rows, labels and running sums. The trait is coarse: each call is one pass over the data (or
//! one row), and only scalars, centroids and integer partials come out.

pub mod chunking;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod parts;
pub mod select;

pub use parts::Parts;

use self::select::Devices;
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::Partial;

/// The GPUs of this machine, asked anew at every call; or why there is none.
///
/// `CUDA_VISIBLE_DEVICES` hides and renumbers them, as for every program.
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
    /// If it was asked for: the integer inertia of each cluster, in the base scale.
    pub inertia: Option<Vec<u128>>,
}

/// How the distances of each cluster become integers.
#[derive(Debug, Clone, Copy)]
pub enum Scales<'s> {
    Same(DistanceScale),
    /// One a cluster.
    Each(&'s [DistanceScale]),
}

impl Scales<'_> {
    /// The scale of cluster `j`.
    #[inline(always)]
    pub fn of(&self, j: usize) -> DistanceScale {
        match self {
            Self::Same(scale) => *scale,
            Self::Each(scales) => scales[j],
        }
    }
}

/// A row far from its centroid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Far {
    /// Reference distance to the centroid that the row was assigned by.
    pub distance: f64,
    /// Kept row, counted over the whole fit.
    pub row: u64,
    /// Its label.
    pub cluster: u32,
}

impl Far {
    /// Farther first; of rows equally far, the one with the smaller number.
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        other.distance.total_cmp(&self.distance).then(self.row.cmp(&other.row))
    }
}

/// When to stop, besides the limit of iterations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    /// Rows changed, at most.
    pub changed: f64,
    /// Shift, at most.
    pub shift: f64,
}

impl Stop {
    /// Whether an iteration was the last.
    pub fn after(&self, changed: u64, shift: f64) -> bool {
        changed as f64 <= self.changed || shift <= self.shift
    }
}

/// A whole iteration that a session carried out by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Iteration {
    pub changed: u64,
    pub shift: f64,
    /// Whether a centroid moved.
    pub moved: bool,
    pub seconds: f64,
}

/// What a session did when it was told to go on.
#[derive(Debug, Default)]
pub struct Progress {
    /// Iterations that it carried out whole.
    pub done: Vec<Iteration>,
    /// The assign of one more, whose update is the caller's.
    pub assigned: Option<Assigned>,
}

/// One fit's rows on one backend.
pub trait Session<T: Float>: Send {
    /// Kept rows.
    fn rows(&self) -> u64;
    /// Kept rows of positive weight.
    fn positive_rows(&self) -> u64;
    /// The values of a row, counted from this session's first.
    fn row(&self, row: u64) -> Result<Vec<T>>;

    // ---- seeding: rows have a draw weight, an integer ------------------------------------------------------
    /// Makes every row's draw weight its `w^`; returns the total.
    fn start_draws(&mut self) -> Result<u128>;
    /// The `rank`th row of positive weight.
    fn positive_row(&self, rank: u64) -> Result<u64>;
    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    fn draw(&self, target: u128) -> Result<u64>;
    /// For each candidate (`(m, d)`, row-major), by how much it would lower the total, in the scale that the last centroid was
    /// taken with.
    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>>;
    /// For each target, the row that is drawn (see [`Session::draw`]) as a candidate, and its gain.
    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let mut rows = Vec::new();
        for &target in targets {
            memory::extend(&mut rows, &self.row(self.draw(target)?)?, "the rows drawn")?;
        }
        let gains = self.gains(&rows)?;
        Ok((rows, gains))
    }
    /// Takes a centroid: draw weights become integer distances to the nearest one taken, in this scale. Returns the total. The
    /// centroid that was taken last may be taken again, with another scale.
    fn take_seed(&mut self, centroid: &[T], scale: DistanceScale) -> Result<u128>;
    /// Frees what seeding needed.
    fn end_draws(&mut self);

    // ---- the loop -------------------------------------------------------------------------------------------
    /// Forgets all labels and sums.
    fn reset(&mut self) -> Result<()>;
    /// Labels every row by these centroids (`(k, d)`, row-major) and moves the contributions of rows that changed.
    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned>;
    /// Goes on with the loop, for at most `limit` iterations and no further than `stop` says: as many whole iterations as the
    /// session can do by itself (`centroids` are then those after the last), and one assign more where it cannot go on.
    fn advance(&mut self, centroids: &mut [T], _stop: Stop, _limit: u32) -> Result<Progress> {
        Ok(Progress { done: Vec::new(), assigned: Some(self.assign(centroids, false)?) })
    }
    /// The sums of all rows under their labels.
    fn partial(&mut self) -> Result<&Partial>;
    /// Rows of positive weight in each cluster.
    fn sizes(&mut self) -> Result<Vec<u64>> {
        memory::collected(self.partial()?.rows.iter().map(|&rows| rows as u64), "the sizes of the clusters")
    }
    /// Says that the sums were read.
    fn clear_dirty(&mut self);
    /// The `count` rows of positive weight farthest from the centroids they were assigned by, among clusters that `donors`
    /// allows; in [`Far::order`].
    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>>;
    /// Moves a row and its contribution to another cluster.
    fn relocate(&mut self, row: u64, to: u32) -> Result<()>;
    /// The integer inertia of each cluster under the current labels and the last centroids.
    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>>;
    /// The labels, in row order.
    fn labels(&self) -> Result<Vec<u32>>;
    /// The labels of a session that is done.
    fn into_labels(self: Box<Self>) -> Result<Vec<u32>>;
}
