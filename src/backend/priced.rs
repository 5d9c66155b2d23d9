//! Passes with a price on each centroid: what fits with bounds on the sizes of clusters (`fit/sizes/`) ask a session for.

use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// What errors call the memory of these lists.
pub const LISTS: &str = "lists of the clusters near each row";

/// The kept rows that get lists.
#[derive(Debug, Clone, Copy)]
pub enum ListedRows<'r> {
    /// Every so many, from row 0 on.
    Every(usize),
    /// These, ascending.
    These(&'r [u64]),
}

impl ListedRows<'_> {
    /// How many of `n` rows they are.
    pub fn count(self, n: usize) -> usize {
        match self {
            Self::Every(step) => n.div_ceil(step),
            Self::These(rows) => rows.len(),
        }
    }

    /// The number of the kept row at this place.
    #[inline(always)]
    pub fn row(self, place: usize) -> u64 {
        match self {
            Self::Every(step) => (place * step) as u64,
            Self::These(rows) => rows[place],
        }
    }
}

/// For each of some rows, `m` centroids of least squared distance + price over weight, in no order.
#[derive(Debug, Default)]
pub struct NearLists {
    pub m: usize,
    /// `(rows, m)`.
    pub clusters: Vec<u32>,
    /// `(rows, m)`: reference distances.
    pub squares: Vec<f64>,
    /// For each row, a lower bound on the reference distance + price over weight of every centroid that is not in its list.
    /// Infinite if all are.
    pub rest: Vec<f64>,
    /// For each row, its `w^`. Empty without weights.
    pub weights: Vec<f64>,
}

impl NearLists {
    /// Lists of `m` centroids for so many rows.
    pub fn zeroed(rows: usize, m: usize, weighted: bool) -> Result<Self> {
        let entries = rows.saturating_mul(m);
        Ok(Self {
            m,
            clusters: memory::zeroed(entries, LISTS)?,
            squares: memory::zeroed(entries, LISTS)?,
            rest: memory::zeroed(rows, LISTS)?,
            weights: memory::zeroed(if weighted { rows } else { 0 }, LISTS)?,
        })
    }

    /// The bytes of such lists.
    pub fn bytes(rows: usize, m: usize) -> usize {
        rows.saturating_mul(m * (size_of::<u32>() + size_of::<f64>()) + 2 * size_of::<f64>())
    }
}

/// A session whose passes take a price on each centroid.
pub trait PricedPasses<T: Float> {
    /// The numbers of the kept rows of positive weight, ascending. None if all are.
    fn heavy_rows(&mut self) -> Result<Option<Vec<u64>>>;
    /// Fills lists for these rows by these centroids (`(k, d)`, row-major). `prices`: k finite numbers, in units of a weighted
    /// squared distance. A row of weight 0 takes no prices. At most k centroids are listed.
    fn near(&mut self, centroids: &[T], rows: ListedRows<'_>, prices: &[f64], lists: &mut NearLists) -> Result<()>;
    /// Gives every kept row this label, and moves the sums of those whose label changes. Every row has been assigned.
    fn relabel(&mut self, labels: &[u32]) -> Result<()>;
}
