//! The centroids of one assign, in the layouts that the kernels read.

use super::filter::{Filter, TABLE, TASK};
use super::tree::{self, CentroidTree};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::simd::InstructionSet;

/// Number of centroids whose reference distances are computed together.
pub const TOGETHER: usize = 4;

/// The centroids, and the filter's copy of them.
#[derive(Debug)]
pub struct CentroidTable<T> {
    pub k: usize,
    pub d: usize,
    /// What makes the copies, and what answers rows by a model.
    pub set: InstructionSet,
    /// `(k, d)`: the centroids themselves.
    pub rows: Vec<T>,
    /// `(ceil(k / TOGETHER), d, TOGETHER)`: the same values in float64. The padding is infinite, so it is never nearest.
    packed: Vec<[f64; TOGETHER]>,
    pub filter: Filter<T>,
}

impl<T: Float> CentroidTable<T> {
    /// The table for rows that have no groups. See [`Filter::new`].
    pub fn new(rows: &[T], d: usize, centre: &[f64], extent: f64, set: InstructionSet, threads: usize) -> Result<Self> {
        match tree::pays(rows.len() / d, d) {
            true => Self::by_tree(rows, d, set, threads),
            false => Self::in_order(rows, d, centre, extent, &[], set, threads),
        }
    }

    /// With a filter. See [`Filter::new`].
    pub fn in_order(
        rows: &[T],
        d: usize,
        centre: &[f64],
        extent: f64,
        order: &[u32],
        set: InstructionSet,
        threads: usize,
    ) -> Result<Self> {
        Self::with(rows, d, set, threads, Filter::new(rows, d, centre, extent, order, set, threads)?)
    }

    /// With a filter of products, whatever the features are.
    pub fn by_products(rows: &[T], d: usize, centre: &[f64], set: InstructionSet, threads: usize) -> Result<Self> {
        Self::with(rows, d, set, threads, Filter::product(rows, d, centre, &[], set, threads)?)
    }

    /// With a tree of the centroids.
    pub fn by_tree(rows: &[T], d: usize, set: InstructionSet, threads: usize) -> Result<Self> {
        Self::with(rows, d, set, threads, Filter::Tree(CentroidTree::new(rows, d)?))
    }

    fn with(rows: &[T], d: usize, set: InstructionSet, threads: usize, filter: Filter<T>) -> Result<Self> {
        let k = rows.len() / d;
        let packed = memory::zeroed(k.div_ceil(TOGETHER) * d, TABLE)?;
        let mut table = Self { k, d, set, rows: memory::zeroed(rows.len(), TABLE)?, packed, filter };
        table.take(rows, threads)?;
        Ok(table)
    }

    /// Copies these centroids to both layouts. The filter's copies stay as they are.
    fn take(&mut self, rows: &[T], threads: usize) -> Result<()> {
        let Self { k, d, rows: own, packed, .. } = self;
        let d = *d;
        let together = (TASK / d).next_multiple_of(TOGETHER).max(TOGETHER);
        let mut workers = memory::filled(threads.min(k.div_ceil(together)), (), TABLE)?;
        let tasks = rows.chunks(together * d).zip(own.chunks_mut(together * d)).zip(packed.chunks_mut(together / TOGETHER * d));
        for_each_task(&mut workers, tasks, |(), ((rows, own), packed)| {
            own.copy_from_slice(rows);
            pack(rows, d, packed);
        })
    }

    /// Replaces the centroids, in the same memory. Returns false if there are not as many centroids as before, or if
    /// [`Filter::replace`] does.
    pub fn replace(&mut self, rows: &[T], centre: &[f64], extent: f64, order: &[u32], threads: usize) -> Result<bool> {
        if rows.len() != self.rows.len() || !self.filter.replace(rows, centre, extent, order, self.set, threads)? {
            return Ok(false);
        }
        self.take(rows, threads)?;
        Ok(true)
    }

    /// Centroid `j`.
    #[inline(always)]
    pub fn row(&self, j: usize) -> &[T] {
        &self.rows[j * self.d..][..self.d]
    }

    /// The groups of [`TOGETHER`] centroids, in order. A group has one array for each feature.
    #[inline(always)]
    pub fn groups(&self) -> std::slice::ChunksExact<'_, [f64; TOGETHER]> {
        self.packed.chunks_exact(self.d)
    }
}

/// Writes centroids in groups, feature by feature. What fills up the last group is infinite.
fn pack<T: Float>(rows: &[T], d: usize, packed: &mut [[f64; TOGETHER]]) {
    let last = packed.len() - d;
    packed[last..].fill([f64::INFINITY; TOGETHER]);
    for (j, row) in rows.chunks_exact(d).enumerate() {
        let group = &mut packed[j / TOGETHER * d..][..d];
        group.iter_mut().zip(row).for_each(|(group, c)| group[j % TOGETHER] = c.to_f64());
    }
}
