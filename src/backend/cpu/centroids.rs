//! The centroids of one assign, in the layouts that the kernels read.

use super::filter::{Filter, TABLE};
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::reference::{self, Nearest};

/// Number of centroids whose reference distances are computed at a time.
const BLOCK: usize = 32;

/// With fewer centroids, all distances of a row are faster one by one. Measured: lanes are slower at 4 centroids of 4 features, and
/// twice as fast at 16 of 20.
const LANES_PAY: usize = 16;

/// The centroids, and the filter's copy of them.
#[derive(Debug)]
pub struct CentroidTable<T> {
    pub k: usize,
    pub d: usize,
    /// `(k, d)`: the centroids themselves.
    pub rows: Vec<T>,
    /// `(d, k)`: the same values in float64, for scans over all centroids.
    columns: Vec<f64>,
    pub filter: Filter,
}

impl<T: Float> CentroidTable<T> {
    /// See [`Filter::new`].
    pub fn new(rows: &[T], d: usize, centre: &[f64], extent: f64) -> Result<Self> {
        let k = rows.len() / d;
        let mut columns = memory::zeroed(k * d, TABLE)?;
        for (j, row) in rows.chunks_exact(d).enumerate() {
            row.iter().enumerate().for_each(|(f, c)| columns[f * k + j] = c.to_f64());
        }
        let filter = Filter::new(rows, d, centre, extent)?;
        Ok(Self { k, d, rows: memory::copied(rows, TABLE)?, columns, filter })
    }

    /// Centroid `j`.
    #[inline(always)]
    pub fn row(&self, j: usize) -> &[T] {
        &self.rows[j * self.d..][..self.d]
    }

    /// The reference distances of a row to centroid `start` and those after it, at most [`BLOCK`]. Vector lanes compute them at a
    /// time.
    #[inline(always)]
    fn block(&self, x: &[f64], start: usize) -> ([f64; BLOCK], usize) {
        let len = BLOCK.min(self.k - start);
        let mut s = [0.0f64; BLOCK];
        for (f, x) in x.iter().enumerate() {
            let column = &self.columns[f * self.k + start..][..len];
            if len == BLOCK {
                for i in 0..BLOCK {
                    let t = x - column[i];
                    s[i] = t.mul_add(t, s[i]);
                }
            } else {
                for (s, c) in s.iter_mut().zip(column) {
                    let t = x - c;
                    *s = t.mul_add(t, *s);
                }
            }
        }
        (s, len)
    }

    /// The nearest of all centroids by reference distances.
    #[inline(always)]
    pub fn nearest(&self, x: &[f64]) -> Nearest {
        let mut best = Nearest { label: 0, distance: f64::INFINITY, second: f64::INFINITY };
        for start in (0..self.k).step_by(BLOCK) {
            let (s, len) = self.block(x, start);
            for (i, &s) in s[..len].iter().enumerate() {
                best.take((start + i) as u32, s);
            }
        }
        best
    }

    /// All reference distances of a row, `k` values.
    #[inline(always)]
    pub fn distances(&self, x: &[f64], out: &mut [f64]) {
        if self.k < LANES_PAY {
            for (j, out) in out.iter_mut().enumerate() {
                *out = reference::distance(x, self.row(j));
            }
            return;
        }
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            out.copy_from_slice(&self.block(x, block * BLOCK).0[..out.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scanning_in_lanes_is_the_oracle() {
        for (k, d) in [(1, 1), (15, 4), (16, 4), (31, 3), (32, 2), (33, 5), (100, 1)] {
            let rows: Vec<f32> = (0..k * d).map(|i| ((i * 7919) % 13) as f32).collect();
            let table = CentroidTable::new(&rows, d, &vec![0.0; d], 13.0).unwrap();
            for x in 0..20 {
                let x: Vec<f64> = (0..d).map(|f| f64::from((x * 31 + f) as u32 % 17)).collect();
                assert_eq!(table.nearest(&x), reference::nearest(&x, &rows));
                let (mut found, all) = (vec![0.0; k], rows.chunks_exact(d).map(|c| reference::distance(&x, c)));
                table.distances(&x, &mut found);
                assert!(all.eq(found));
            }
        }
    }
}
