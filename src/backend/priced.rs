//! Passes with a price on each centroid: what fits with bounds on the sizes of clusters (`fit/sizes/`) ask a session for.

use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// What errors call the memory of lists and samples.
pub const LISTS: &str = "lists of the clusters near each row";

/// The most clusters whose pairs have widths of their own.
pub const MOST_IN_PAIRS: usize = 2_048;

/// The kept rows that a pass looks at.
#[derive(Debug, Clone, Copy)]
pub enum PassRows<'r> {
    All,
    /// The kept rows with these numbers, ascending.
    These(&'r [u64]),
}

impl PassRows<'_> {
    /// How many of `n` rows they are.
    pub fn count(self, n: usize) -> usize {
        match self {
            Self::All => n,
            Self::These(rows) => rows.len(),
        }
    }

    /// The number of the kept row at this place.
    #[inline(always)]
    pub fn row(self, place: usize) -> u64 {
        match self {
            Self::All => place as u64,
            Self::These(rows) => rows[place],
        }
    }
}

/// Prices, and how far they may move: k clusters, in units of a weighted squared distance.
#[derive(Debug, Clone, Copy)]
pub struct PriceRange<'p> {
    pub prices: &'p [f64],
    pub widths: &'p Widths,
}

/// For rows that are nearest to cluster a (with prices), how much cheaper another cluster b may become beside a.
#[derive(Debug, Clone)]
pub struct Widths {
    /// The unit of the values below, in weighted squared distances.
    pub unit: f64,
    /// `(k, k)`: the width of the pair. Empty: the sum of the two below.
    pub pairs: Vec<f32>,
    /// `(k)`: the part of each cluster in the width of a pair. Read only if `pairs` is empty.
    pub own: Vec<f32>,
}

impl Widths {
    #[inline(always)]
    pub fn of(&self, a: usize, b: usize) -> f64 {
        let width = if self.pairs.is_empty() { self.own[a] + self.own[b] } else { self.pairs[a * self.own.len() + b] };
        self.unit * f64::from(width)
    }

    /// The largest of all widths.
    pub fn largest(&self) -> f64 {
        let most = |values: &[f32]| values.iter().fold(0.0f32, |most, width| width.max(most));
        self.unit * f64::from(if self.pairs.is_empty() { 2.0 * most(&self.own) } else { most(&self.pairs) })
    }
}

/// What a pass found. While prices move within the widths, only the listed centroids of a row can have the least weighted squared
/// distance + price. A row that has no list keeps the centroid that is nearest now.
#[derive(Debug, Default)]
pub struct Band {
    /// For each row, a centroid that is nearest with these prices, but for roundings.
    pub nearest: Vec<u32>,
    /// The places of the rows with lists, ascending.
    pub rows: Vec<u32>,
    /// Where the list of each of them ends.
    pub ends: Vec<usize>,
    /// The lists, ascending.
    pub clusters: Vec<u32>,
    /// The reference distances to these.
    pub squares: Vec<f64>,
    /// The `w^` of the rows with lists. Empty without weights.
    pub weights: Vec<f64>,
}

impl Band {
    /// Appends what was found in later rows, of which `first` is the first.
    pub fn append(&mut self, other: &Self, first: usize) -> Result<()> {
        let before = self.clusters.len();
        memory::reserve(&mut self.rows, other.rows.len(), LISTS)?;
        memory::reserve(&mut self.ends, other.ends.len(), LISTS)?;
        self.rows.extend(other.rows.iter().map(|row| row + first as u32));
        self.ends.extend(other.ends.iter().map(|end| end + before));
        memory::extend(&mut self.nearest, &other.nearest, LISTS)?;
        memory::extend(&mut self.clusters, &other.clusters, LISTS)?;
        memory::extend(&mut self.squares, &other.squares, LISTS)?;
        memory::extend(&mut self.weights, &other.weights, LISTS)
    }

    /// Where the list of the row number `row` among those with lists is.
    #[inline(always)]
    pub fn list(&self, row: usize) -> std::ops::Range<usize> {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        start..self.ends[row]
    }
}

/// Rows of a block of [`SampleCosts`].
pub const BLOCK: usize = 64;

/// About what each centroid costs some rows: the weighted squared distance, less a number of the row. Prices are guessed from
/// these values, which are not certified.
#[derive(Debug)]
pub struct SampleCosts {
    /// `(rows / BLOCK rounded up, k, BLOCK)`, all finite.
    pub values: Vec<f32>,
    pub rows: usize,
    /// The unit of the values, in weighted squared distances.
    pub unit: f64,
}

/// A session whose passes take a price on each centroid.
pub trait PricedPasses<T: Float> {
    /// The numbers of the kept rows of positive weight, ascending. None if all are.
    fn counted_rows(&mut self) -> Result<Option<Vec<u64>>>;
    /// About what each centroid (`(k, d)`, row-major) costs these rows. `values`: memory for that of the result.
    fn sample(&mut self, centroids: &[T], rows: PassRows<'_>, values: Vec<f32>) -> Result<SampleCosts>;
    /// For these rows and centroids (`(k, d)`, row-major), which centroids can have the least weighted squared distance + price.
    /// Rows of weight 0 take no prices. There are less than 2^32 rows.
    fn band(&mut self, centroids: &[T], rows: PassRows<'_>, prices: &PriceRange<'_>) -> Result<Band>;
    /// Gives every kept row this label, and moves the sums of those whose label changes. Every row has been assigned.
    fn relabel(&mut self, labels: &[u32]) -> Result<()>;
    /// For every kept row, the reference distance to the centroid of its label.
    fn own_squares(&mut self) -> Result<Vec<f64>>;
}
