//! Labels of the rows that a filter leaves open: by reference distances, several rows at a time, in vector lanes.
//!
//! The chain of one reference distance cannot be shortened, and its latency limits it. So the lanes of a vector are rows, and the
//! chains of several centroids overlap.

use super::centroids::{CentroidTable, TOGETHER};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::reference::Nearest;
use crate::input::tile::ByFeature;
use crate::simd::{Doubles, MOST_LANES, Task, Vector};

/// Rows whose label the filter left open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InDoubt {
    /// Compared with a few centroids.
    pub few: u64,
    /// Compared with all centroids.
    pub all: u64,
}

/// The open rows of a tile, and what reference distances say of them.
#[derive(Debug)]
pub struct OpenRows {
    /// Rows with two centroids in reach, which are in ascending order.
    pairs: Vec<(u32, [u32; 2])>,
    /// Rows that are compared with all centroids.
    pub all: Vec<u32>,
    /// Rows with their two nearest centroids.
    pub settled: Vec<(u32, Nearest)>,
    /// `(d, MOST_LANES)`: the values of some rows.
    x: Vec<f64>,
    /// How many rows were left open so far.
    pub in_doubt: InDoubt,
}

impl OpenRows {
    /// Room for all rows of a tile.
    pub fn new(d: usize, tile_rows: usize) -> Result<Self> {
        const WHAT: &str = "the open rows of a tile";
        Ok(Self {
            pairs: memory::with_room(tile_rows, WHAT)?,
            all: memory::with_room(tile_rows, WHAT)?,
            settled: memory::with_room(tile_rows, WHAT)?,
            x: memory::zeroed(d.saturating_mul(MOST_LANES), WHAT)?,
            in_doubt: InDoubt::default(),
        })
    }

    pub fn clear(&mut self) {
        self.pairs.clear();
        self.all.clear();
        self.settled.clear();
    }

    /// Leaves row `r` open. `candidates` are the centroids in reach, in ascending order. `None`: all.
    #[inline(always)]
    pub fn push<T: Float>(
        &mut self,
        r: usize,
        candidates: Option<&[u32]>,
        values: impl ByFeature<T>,
        table: &CentroidTable<T>,
    ) {
        match candidates {
            Some(&[a, b]) => self.pairs.push((r as u32, [a, b])),
            Some(some) => self.settled.push((r as u32, nearest_of(r, some, values, table))),
            None => self.all.push(r as u32),
        }
    }

    /// Settles all rows that are still open.
    #[inline(always)]
    pub fn settle<V: Vector, T: Float>(&mut self, values: impl ByFeature<T>, table: &CentroidTable<T>) {
        if self.pairs.len() + self.settled.len() + self.all.len() > 0 {
            V::call(SettleRows { open: self, values, table })
        }
    }
}

/// One call of [`OpenRows::settle`].
struct SettleRows<'s, T, C> {
    open: &'s mut OpenRows,
    values: C,
    table: &'s CentroidTable<T>,
}

impl<T: Float, C: ByFeature<T>> Task for SettleRows<'_, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { open, values, table } = self;
        open.in_doubt.few += (open.pairs.len() + open.settled.len()) as u64;
        open.in_doubt.all += open.all.len() as u64;
        let OpenRows { pairs, all, settled, x, .. } = open;
        for pairs in pairs.chunks(MOST_LANES) {
            settle_pairs(pairs, settled, values, table);
        }
        for rows in all.chunks(MOST_LANES) {
            for (f, x) in x.chunks_exact_mut(MOST_LANES).enumerate() {
                let column = values.column(f);
                for (r, x) in rows.iter().zip(x) {
                    *x = column[*r as usize].to_f64();
                }
            }
            match V::Doubles::LANES {
                8 => settle_all::<V, T, 1>(rows, settled, x, table),
                _ => settle_all::<V, T, 2>(rows, settled, x, table),
            }
        }
    }
}

/// The two nearest of some centroids to row `r`. Two chains run at a time.
#[inline(always)]
fn nearest_of<T: Float>(r: usize, candidates: &[u32], values: impl ByFeature<T>, table: &CentroidTable<T>) -> Nearest {
    let mut best = Nearest { label: candidates[0], distance: f64::INFINITY, second: f64::INFINITY };
    for pair in candidates.chunks(2) {
        let (a, b) = (table.row(pair[0] as usize), table.row(pair[pair.len() - 1] as usize));
        let mut s = [0.0f64; 2];
        for (f, (a, b)) in a.iter().zip(b).enumerate() {
            let x = values.column(f)[r].to_f64();
            let (t, u) = (x - a.to_f64(), x - b.to_f64());
            s = [t.mul_add(t, s[0]), u.mul_add(u, s[1])];
        }
        for (j, s) in pair.iter().zip(s) {
            best.take(*j, s);
        }
    }
    best
}

/// Settles at most [`MOST_LANES`] rows that have two centroids in reach.
#[inline(always)]
fn settle_pairs<T: Float>(
    pairs: &[(u32, [u32; 2])],
    settled: &mut Vec<(u32, Nearest)>,
    values: impl ByFeature<T>,
    table: &CentroidTable<T>,
) {
    let mut rows = [0; MOST_LANES];
    let (mut a, mut b) = ([table.row(0); MOST_LANES], [table.row(0); MOST_LANES]);
    for i in 0..MOST_LANES {
        let (r, pair) = pairs[i.min(pairs.len() - 1)];
        (rows[i], a[i], b[i]) = (r as usize, table.row(pair[0] as usize), table.row(pair[1] as usize));
    }
    let (mut s, mut t) = ([0.0f64; MOST_LANES], [0.0f64; MOST_LANES]);
    for f in 0..table.d {
        let column = values.column(f);
        for i in 0..MOST_LANES {
            let x = column[rows[i]].to_f64();
            let (u, v) = (x - a[i][f].to_f64(), x - b[i][f].to_f64());
            s[i] = u.mul_add(u, s[i]);
            t[i] = v.mul_add(v, t[i]);
        }
    }
    for (i, (r, [a, b])) in pairs.iter().enumerate() {
        let mut best = Nearest { label: *a, distance: s[i], second: f64::INFINITY };
        best.take(*b, t[i]);
        settled.push((*r, best));
    }
}

/// Settles at most [`MOST_LANES`] rows by the distances to all centroids. `x` is `(d, MOST_LANES)`, and R vectors are as wide.
#[inline(always)]
fn settle_all<V: Vector, T: Float, const R: usize>(
    rows: &[u32],
    settled: &mut Vec<(u32, Nearest)>,
    x: &[f64],
    table: &CentroidTable<T>,
) {
    assert!(R * V::Doubles::LANES == MOST_LANES && rows.len() <= MOST_LANES && x.len() == table.d * MOST_LANES);
    let (mut labels, mut nearest, mut second) = ([0.0f64; MOST_LANES], [0.0f64; MOST_LANES], [0.0f64; MOST_LANES]);
    // SAFETY: `x` holds MOST_LANES = R * LANES values for each feature, and so do the arrays.
    unsafe {
        let infinite = V::Doubles::splat(f64::INFINITY);
        let (mut label, mut best, mut other) = ([V::Doubles::splat(0.0); R], [infinite; R], [infinite; R]);
        for (group, centroids) in table.groups().enumerate() {
            let s = chains::<V, f64, R>(x.as_ptr(), MOST_LANES, centroids);
            for c in 0..TOGETHER {
                let name = V::Doubles::splat(f64::from_bits((group * TOGETHER + c) as u64));
                for v in 0..R {
                    let nearer = s[c][v].below(best[v]);
                    other[v] = V::Doubles::select(nearer, best[v], s[c][v].min_or(other[v]));
                    best[v] = V::Doubles::select(nearer, s[c][v], best[v]);
                    label[v] = V::Doubles::select(nearer, name, label[v]);
                }
            }
        }
        for v in 0..R {
            label[v].store(labels.as_mut_ptr().add(v * V::Doubles::LANES));
            best[v].store(nearest.as_mut_ptr().add(v * V::Doubles::LANES));
            other[v].store(second.as_mut_ptr().add(v * V::Doubles::LANES));
        }
    }
    for (i, r) in rows.iter().enumerate() {
        settled.push((*r, Nearest { label: labels[i].to_bits() as u32, distance: nearest[i], second: second[i] }));
    }
}

/// The reference distances of R vectors of rows to a group of centroids. Value f of a row is at `x + f * stride`.
///
/// # Safety
/// `x` must point to `R * LANES` values for each feature.
#[inline(always)]
pub unsafe fn chains<V: Vector, T: Float, const R: usize>(
    x: *const T,
    stride: usize,
    centroids: &[[f64; TOGETHER]],
) -> [[V::Doubles; R]; TOGETHER] {
    // SAFETY: the caller gives the same guarantees.
    unsafe {
        let mut s = [[V::Doubles::splat(0.0); R]; TOGETHER];
        for (f, centroids) in centroids.iter().enumerate() {
            let mut rows = [V::Doubles::splat(0.0); R];
            for v in 0..R {
                rows[v] = V::Doubles::load(x.add(f * stride + v * V::Doubles::LANES));
            }
            for c in 0..TOGETHER {
                let centroid = V::Doubles::splat(centroids[c]);
                for v in 0..R {
                    s[c][v] = rows[v].sub(centroid).square_add(s[c][v]);
                }
            }
        }
        s
    }
}
