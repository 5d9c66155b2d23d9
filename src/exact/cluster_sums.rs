//! The running state of the update step: exact sums, weights and row counts of every cluster.
//!
//! All of it is integers. So the partial sums of chunks, devices and machines can be merged by addition, in any order
//! ([`ClusterSums::merge`]). A row that changes cluster is subtracted from one sum and added to the other, without drift.

use crate::base::error::Result;
use crate::base::memory;
use crate::exact::fixed::{ColumnScale, Limbs, ONE_LIMB_CAPACITY, TWO_LIMB_CAPACITY};

/// No cluster: the label of a row before its first assignment.
pub const UNASSIGNED: u32 = u32::MAX;

/// The name of the sums in errors.
const WHAT: &str = "the sums of the clusters";

/// Exact sums over the rows of each cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct ClusterSums {
    pub d: usize,
    /// `(k, d)`: sums of contributions, in quanta of their column.
    pub sums: Vec<i128>,
    /// `(k)`: sums of weights, in quanta of the weights.
    pub mass: Vec<i128>,
    /// `(k)`: numbers of rows of positive weight.
    pub rows: Vec<i64>,
    /// `(k)`: whether a value above has changed since [`ClusterSums::clear_dirty`].
    pub dirty: Vec<bool>,
}

impl ClusterSums {
    pub fn new(k: usize, d: usize) -> Result<Self> {
        Ok(Self {
            d,
            sums: memory::zeroed(k.saturating_mul(d), WHAT)?,
            mass: memory::zeroed(k, WHAT)?,
            rows: memory::zeroed(k, WHAT)?,
            dirty: memory::zeroed(k, WHAT)?,
        })
    }

    /// A copy.
    pub fn copied(&self) -> Result<Self> {
        Ok(Self {
            d: self.d,
            sums: memory::copied(&self.sums, WHAT)?,
            mass: memory::copied(&self.mass, WHAT)?,
            rows: memory::copied(&self.rows, WHAT)?,
            dirty: memory::copied(&self.dirty, WHAT)?,
        })
    }

    /// The sums of cluster `j`, one per feature.
    pub fn sums_of(&self, j: usize) -> &[i128] {
        &self.sums[j * self.d..][..self.d]
    }

    /// The clusters, so many at a time.
    pub fn ranges(&mut self, clusters: usize) -> impl Iterator<Item = SumsOfRange<'_>> {
        let Self { d, sums, mass, rows, dirty } = self;
        let counts = rows.chunks_mut(clusters).zip(dirty.chunks_mut(clusters));
        let ranges = sums.chunks_mut(clusters * *d).zip(mass.chunks_mut(clusters)).zip(counts);
        ranges.map(|((sums, mass), (rows, dirty))| SumsOfRange { sums, mass, rows, dirty })
    }

    pub fn clear_dirty(&mut self) {
        self.dirty.fill(false);
    }

    /// Clears everything.
    pub fn reset(&mut self) {
        self.clear_sums();
        self.dirty.fill(true);
    }

    /// Sets all sums to 0. Does not change which clusters are dirty.
    pub fn clear_sums(&mut self) {
        self.sums.fill(0);
        self.mass.fill(0);
        self.rows.fill(0);
    }

    /// Adds the sums of other rows.
    pub fn merge(&mut self, other: &Self) {
        for j in 0..self.mass.len() {
            self.mass[j] += other.mass[j];
            self.rows[j] += other.rows[j];
            self.dirty[j] |= other.dirty[j];
        }
        self.sums.iter_mut().zip(&other.sums).for_each(|(a, b)| *a += b);
    }
}

/// The sums of some clusters, as in [`ClusterSums`].
#[derive(Debug)]
pub struct SumsOfRange<'s> {
    pub sums: &'s mut [i128],
    pub mass: &'s mut [i128],
    pub rows: &'s mut [i64],
    pub dirty: &'s mut [bool],
}

/// The quanta of all columns, in a layout for vector loops.
#[derive(Debug, Clone)]
pub struct Quantiser {
    pub scales: Vec<ColumnScale>,
    /// The factors of the columns (see [`ColumnScale::factors`]), one vector per factor.
    pub(crate) first: Vec<f64>,
    pub(crate) second: Vec<f64>,
    pub(crate) low: Vec<f64>,
    /// Whether any column has two limbs.
    pub two_limbs: bool,
    /// The number of rows whose limbs fill half of an int64, at most, for every column.
    pub(crate) capacity: u32,
}

impl Quantiser {
    pub fn new(scales: &[ColumnScale]) -> Result<Self> {
        const WHAT: &str = "the ranges of the columns";
        let one = scales.iter().any(|scale| scale.limbs == Limbs::One);
        Ok(Self {
            scales: memory::copied(scales, WHAT)?,
            first: memory::collected(scales.iter().map(|scale| scale.factors().0), WHAT)?,
            second: memory::collected(scales.iter().map(|scale| scale.factors().1), WHAT)?,
            low: memory::collected(scales.iter().map(|scale| scale.factors().2), WHAT)?,
            two_limbs: scales.iter().any(|scale| scale.limbs == Limbs::Two),
            capacity: if one { ONE_LIMB_CAPACITY } else { TWO_LIMB_CAPACITY },
        })
    }
}
