//! The rows that change cluster: what they take from one sum and add to another.
//!
//! ```text
//! for 16 rows at a time, for 8 features at a time:
//!   limbs of 16 values of each feature                 vectors along the column
//!   for each row: its limbs, added to one cluster's and taken from another's
//! ```
//! Points to note: (1) Rows of a tile lie feature by feature, so the limbs of a column's values are computed in vectors. (2) The sums of a cluster lie
//! side by side, so eight features of a row touch one cache line.

use std::sync::{Mutex, PoisonError};

use super::{Partial, Quantiser, UNASSIGNED};
use crate::error::Result;
use crate::fixed::{round_to_integer, split};
use crate::float::Float;
use crate::memory;
use crate::tile::{Columns, WeightScale};

/// Rows that are moved together.
const TOGETHER: usize = 16;
/// Features whose limbs are computed before they are added.
const FEATURES: usize = 8;

/// A row that moves from one cluster to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Its number among the rows at hand.
    pub row: u32,
    /// The cluster before. May be [`UNASSIGNED`].
    pub from: u32,
    pub to: u32,
}

/// Some of the values of 16 rows, and what they are multiplied by.
struct Batch<'b, C> {
    values: C,
    rows: [usize; TOGETHER],
    /// Whether the rows are in order, without gaps.
    in_order: bool,
    weights: Option<[f64; TOGETHER]>,
    moved: &'b [Moved],
}

/// One worker's changes to a [`Partial`], in int64 limbs.
#[derive(Debug)]
pub struct Deltas {
    d: usize,
    /// `(k, d)` each. `lo` is empty where every column has one limb.
    hi: Vec<i64>,
    lo: Vec<i64>,
    /// Empty without weights.
    mass: Vec<i128>,
    counts: Vec<Count>,
}

/// The rows of a cluster since its last flush.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    /// Rows that it got, less those that it lost.
    rows: i32,
    /// Values in its limbs.
    pending: u32,
}

impl Deltas {
    pub fn new(k: usize, quantiser: &Quantiser, weighted: bool) -> Result<Self> {
        const WHAT: &str = "a thread's sums of the clusters";
        let d = quantiser.scales.len();
        let low = if quantiser.two_limbs { d } else { 0 };
        Ok(Self {
            d,
            hi: memory::zeroed(k.saturating_mul(d), WHAT)?,
            lo: memory::zeroed(k.saturating_mul(low), WHAT)?,
            mass: memory::zeroed(if weighted { k } else { 0 }, WHAT)?,
            counts: memory::filled(k, Count::default(), WHAT)?,
        })
    }

    /// Moves rows of positive weight, in ascending order. `weights`: the `w^` of all rows at hand, if there are weights.
    #[inline(always)]
    pub fn move_rows<T: Float, C: Columns<T>>(
        &mut self,
        quantiser: &Quantiser,
        values: C,
        weights: Option<(&[f64], WeightScale)>,
        moved: &[Moved],
        target: &Mutex<&mut Partial>,
    ) {
        for moved in moved.chunks(TOGETHER) {
            let mut rows = [moved[0].row as usize; TOGETHER];
            for (row, moved) in rows.iter_mut().zip(moved) {
                *row = moved.row as usize;
            }
            let in_order = rows[TOGETHER - 1] == rows[0] + TOGETHER - 1;
            let mut batch = Batch { values, rows, in_order, weights: None, moved };
            if let Some((weights, _)) = weights {
                let mut of_rows = [0.0; TOGETHER];
                for i in 0..TOGETHER {
                    of_rows[i] = weights[rows[i]];
                }
                batch.weights = Some(of_rows);
            }
            for first in (0..self.d).step_by(FEATURES) {
                match (self.d - first).min(FEATURES) {
                    1 => self.shift::<T, C, 1>(quantiser, &batch, first),
                    2 => self.shift::<T, C, 2>(quantiser, &batch, first),
                    3 => self.shift::<T, C, 3>(quantiser, &batch, first),
                    4 => self.shift::<T, C, 4>(quantiser, &batch, first),
                    5 => self.shift::<T, C, 5>(quantiser, &batch, first),
                    6 => self.shift::<T, C, 6>(quantiser, &batch, first),
                    7 => self.shift::<T, C, 7>(quantiser, &batch, first),
                    _ => self.shift::<T, C, FEATURES>(quantiser, &batch, first),
                }
            }
            if let Some((weights, scale)) = weights {
                for (i, moved) in moved.iter().enumerate() {
                    let mass = scale.integer(weights[rows[i]]);
                    self.mass[moved.to as usize] += mass;
                    if moved.from != UNASSIGNED {
                        self.mass[moved.from as usize] -= mass;
                    }
                }
            }
            // The limbs of a batch are far fewer than those that still fit.
            for moved in moved {
                self.count(quantiser, moved.to, 1, target);
                if moved.from != UNASSIGNED {
                    self.count(quantiser, moved.from, -1, target);
                }
            }
        }
    }

    /// Moves F features of a batch of rows, from feature `first` on.
    #[inline(always)]
    fn shift<T: Float, C: Columns<T>, const F: usize>(&mut self, quantiser: &Quantiser, batch: &Batch<'_, C>, first: usize) {
        let (mut hi, mut lo) = ([[0i64; TOGETHER]; F], [[0i64; TOGETHER]; F]);
        for f in 0..F {
            let column = batch.values.column(first + f);
            let mut x = [0.0f64; TOGETHER];
            if batch.in_order {
                let values = &column[batch.rows[0]..][..TOGETHER];
                for i in 0..TOGETHER {
                    x[i] = values[i].to_f64();
                }
            } else {
                for i in 0..TOGETHER {
                    x[i] = column[batch.rows[i]].to_f64();
                }
            }
            if let Some(weights) = &batch.weights {
                for i in 0..TOGETHER {
                    x[i] *= weights[i];
                }
            }
            let (one, two, low) = (quantiser.first[first + f], quantiser.second[first + f], quantiser.low[first + f]);
            if quantiser.two_limbs {
                for i in 0..TOGETHER {
                    (hi[f][i], lo[f][i]) = split(x[i] * one * two, low);
                }
            } else {
                for i in 0..TOGETHER {
                    hi[f][i] = round_to_integer(x[i] * one * two);
                }
            }
        }
        add(&mut self.hi, self.d, first, &hi, batch.moved);
        if quantiser.two_limbs {
            add(&mut self.lo, self.d, first, &lo, batch.moved);
        }
    }

    #[inline(always)]
    fn count(&mut self, quantiser: &Quantiser, j: u32, rows: i32, target: &Mutex<&mut Partial>) {
        let count = &mut self.counts[j as usize];
        count.rows += rows;
        count.pending += 1;
        if count.pending >= quantiser.capacity {
            let mut partial = target.lock().unwrap_or_else(PoisonError::into_inner);
            self.flush_cluster(quantiser, j as usize, &mut partial);
        }
    }

    #[cold]
    fn flush_cluster(&mut self, quantiser: &Quantiser, j: usize, partial: &mut Partial) {
        let d = self.d;
        for (f, scale) in quantiser.scales.iter().enumerate() {
            let hi = std::mem::take(&mut self.hi[j * d + f]);
            let lo = self.lo.get_mut(j * d + f).map_or(0, std::mem::take);
            partial.sums[j * d + f] += scale.join(hi, lo);
        }
        let Count { rows, .. } = std::mem::take(&mut self.counts[j]);
        partial.mass[j] += self.mass.get_mut(j).map_or(i128::from(rows), std::mem::take);
        partial.rows[j] += i64::from(rows);
        partial.dirty[j] = true;
    }

    /// Adds all pending values to `partial`.
    pub fn flush(&mut self, quantiser: &Quantiser, partial: &mut Partial) {
        for j in 0..self.counts.len() {
            if self.counts[j].pending > 0 {
                self.flush_cluster(quantiser, j, partial);
            }
        }
    }
}

/// Adds the limbs of some rows to those of their clusters, and takes them from those of the clusters before.
#[inline(always)]
fn add<const F: usize>(sums: &mut [i64], d: usize, first: usize, limbs: &[[i64; TOGETHER]; F], moved: &[Moved]) {
    for (i, moved) in moved.iter().enumerate().take(TOGETHER) {
        let to = &mut sums[moved.to as usize * d + first..][..F];
        for f in 0..F {
            to[f] += limbs[f][i];
        }
        if moved.from != UNASSIGNED {
            let from = &mut sums[moved.from as usize * d + first..][..F];
            for f in 0..F {
                from[f] -= limbs[f][i];
            }
        }
    }
}
