//! Backends: where a fit's rows live and its passes run.
//!
//! A [`Session`] holds one fit's rows, labels and running sums. The trait is coarse: each call is one pass over the data (or
//! one row), and only scalars, centroids and integer partials come out.

pub mod cpu;
mod parts;

pub use parts::Parts;

use crate::float::Float;
use crate::partial::Partial;

/// What an assign pass found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// Rows of positive weight whose label changed.
    pub changed: u64,
    /// If it was asked for: the integer inertia of each cluster.
    pub inertia: Option<Vec<u128>>,
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

/// One fit's rows on one backend.
pub trait Session<T: Float>: Send {
    /// Kept rows.
    fn rows(&self) -> u64;
    /// Kept rows of positive weight.
    fn positive_rows(&self) -> u64;
    /// The values of a row, counted from this session's first.
    fn row(&self, row: u64) -> Vec<T>;

    // ---- seeding: rows have a draw weight, an integer ------------------------------------------------------
    /// Makes every row's draw weight its `w^`; returns the total.
    fn start_draws(&mut self) -> u128;
    /// The `rank`th row of positive weight.
    fn positive_row(&self, rank: u64) -> u64;
    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    fn draw(&self, target: u128) -> u64;
    /// For each candidate (`(m, d)`, row-major), by how much it would lower the total.
    fn gains(&mut self, candidates: &[T]) -> Vec<u128>;
    /// Takes a centroid: draw weights become integer distances to the nearest one taken. Returns the total.
    fn take_seed(&mut self, centroid: &[T]) -> u128;
    /// Frees what seeding needed.
    fn end_draws(&mut self);

    // ---- the loop -------------------------------------------------------------------------------------------
    /// Forgets all labels and sums.
    fn reset(&mut self);
    /// Labels every row by these centroids (`(k, d)`, row-major) and moves the contributions of rows that changed.
    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Assigned;
    /// The sums of all rows under their labels.
    fn partial(&self) -> &Partial;
    /// Says that the sums were read.
    fn clear_dirty(&mut self);
    /// The `count` rows of positive weight farthest from the centroids they were assigned by, among clusters that `donors`
    /// allows; in [`Far::order`].
    fn farthest(&mut self, count: usize, donors: &[bool]) -> Vec<Far>;
    /// Moves a row and its contribution to another cluster.
    fn relocate(&mut self, row: u64, to: u32);
    /// The integer inertia of each cluster under the current labels and the last centroids.
    fn inertia(&mut self) -> Vec<u128>;
    /// The labels, in row order.
    fn labels(&self) -> Vec<u32>;
    /// The labels of a session that is done.
    fn into_labels(self: Box<Self>) -> Vec<u32>;
}
