//! The running state of the update step: exact sums, weights and row counts of every cluster.
//!
//! All of it is integers. So the partial sums of chunks, devices and machines can be merged by addition, in any order
//! ([`Partial::merge`]). A row that changes cluster is subtracted from one sum and added to the other, without drift.

use std::sync::Mutex;

use crate::error::Result;
use crate::fixed::{ColumnScale, Limbs, ONE_LIMB_CAPACITY, TWO_LIMB_CAPACITY, round_to_integer, split};
use crate::float::Float;
use crate::memory;

/// No cluster: the label of a row before its first assignment.
pub const UNASSIGNED: u32 = u32::MAX;

/// Exact sums over the rows of each cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    pub d: usize,
    /// `(k, d)`: sums of contributions, in quanta of their column.
    pub sums: Vec<i128>,
    /// `(k)`: sums of weights, in quanta of the weights.
    pub mass: Vec<i128>,
    /// `(k)`: numbers of rows of positive weight.
    pub rows: Vec<i64>,
    /// `(k)`: whether a value above has changed since [`Partial::clear_dirty`].
    pub dirty: Vec<bool>,
}

impl Partial {
    pub fn new(k: usize, d: usize) -> Result<Self> {
        const WHAT: &str = "the sums of the clusters";
        Ok(Self {
            d,
            sums: memory::zeroed(k.saturating_mul(d), WHAT)?,
            mass: memory::zeroed(k, WHAT)?,
            rows: memory::zeroed(k, WHAT)?,
            dirty: memory::zeroed(k, WHAT)?,
        })
    }

    /// The sums of cluster `j`, one per feature.
    pub fn sums_of(&self, j: usize) -> &[i128] {
        &self.sums[j * self.d..][..self.d]
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

/// The quanta of all columns, in a layout for vector loops.
#[derive(Debug, Clone)]
pub struct Quantiser {
    pub scales: Vec<ColumnScale>,
    /// The factors of the columns (see [`ColumnScale::factors`]), one vector per factor.
    first: Vec<f64>,
    second: Vec<f64>,
    low: Vec<f64>,
    /// Whether any column has two limbs.
    pub two_limbs: bool,
    /// The number of rows whose limbs fit in an int64, for every column.
    capacity: u32,
}

impl Quantiser {
    pub fn new(scales: &[ColumnScale]) -> Result<Self> {
        const WHAT: &str = "the quanta of the columns";
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

/// The contribution `fl(w^ * x)` of one row of a tile.
#[derive(Debug, Clone, Copy)]
pub struct Contribution<'a, T> {
    /// `(d, stride)`.
    pub x: &'a [T],
    pub stride: usize,
    pub row: usize,
    /// `w^`, or `None` where there are no weights.
    pub weight: Option<f64>,
}

impl<T: Float> Contribution<'_, T> {
    #[inline(always)]
    fn value(&self, f: usize) -> f64 {
        let x = self.x[f * self.stride + self.row].to_f64();
        self.weight.map_or(x, |weight| weight * x)
    }
}

#[inline(always)]
fn add<const NEGATIVE: bool>(sums: &mut [i64], row: &[i64]) {
    for (sum, x) in sums.iter_mut().zip(row) {
        *sum = if NEGATIVE { *sum - x } else { *sum + x };
    }
}

/// One worker's changes to a [`Partial`], in int64 limbs.
#[derive(Debug)]
pub struct Deltas {
    d: usize,
    /// `(k, d)` each. `lo` is empty where every column has one limb.
    hi: Vec<i64>,
    lo: Vec<i64>,
    mass: Vec<i128>,
    rows: Vec<i64>,
    /// Number of values in each cluster's limbs since its last flush.
    pending: Vec<u32>,
    /// Clusters with pending values, each listed once. There is room for all clusters.
    touched: Vec<u32>,
    /// One row's contributions and limbs.
    row: Vec<f64>,
    row_hi: Vec<i64>,
    row_lo: Vec<i64>,
}

impl Deltas {
    pub fn new(k: usize, quantiser: &Quantiser) -> Result<Self> {
        const WHAT: &str = "a thread's sums of the clusters";
        let d = quantiser.scales.len();
        let low = if quantiser.two_limbs { d } else { 0 };
        Ok(Self {
            d,
            hi: memory::zeroed(k.saturating_mul(d), WHAT)?,
            lo: memory::zeroed(k.saturating_mul(low), WHAT)?,
            mass: memory::zeroed(k, WHAT)?,
            rows: memory::zeroed(k, WHAT)?,
            pending: memory::zeroed(k, WHAT)?,
            touched: memory::with_room(k, WHAT)?,
            row: memory::zeroed(d, WHAT)?,
            row_hi: memory::zeroed(d, WHAT)?,
            row_lo: memory::zeroed(low, WHAT)?,
        })
    }

    /// Moves a row of weight `mass` (an integer) from one cluster to another. The first may be [`UNASSIGNED`].
    #[inline(always)]
    pub fn move_row<T: Float>(
        &mut self,
        quantiser: &Quantiser,
        row: Contribution<'_, T>,
        mass: i128,
        [from, to]: [u32; 2],
        target: &Mutex<&mut Partial>,
    ) {
        match self.d {
            1 => self.shift_short::<T, 1>(quantiser, row, from, to),
            2 => self.shift_short::<T, 2>(quantiser, row, from, to),
            3 => self.shift_short::<T, 3>(quantiser, row, from, to),
            4 => self.shift_short::<T, 4>(quantiser, row, from, to),
            5 => self.shift_short::<T, 5>(quantiser, row, from, to),
            6 => self.shift_short::<T, 6>(quantiser, row, from, to),
            7 => self.shift_short::<T, 7>(quantiser, row, from, to),
            8 => self.shift_short::<T, 8>(quantiser, row, from, to),
            _ => self.shift_long(quantiser, row, from, to),
        }
        self.count::<false>(to as usize, mass);
        self.flush_if_full(quantiser, to, target);
        if from != UNASSIGNED {
            self.count::<true>(from as usize, mass);
            self.flush_if_full(quantiser, from, target);
        }
    }

    /// For few features: the limbs stay in registers. Through a buffer, one vector load would read what several scalar stores
    /// wrote. The processor cannot forward such stores.
    #[inline(always)]
    fn shift_short<T: Float, const D: usize>(&mut self, quantiser: &Quantiser, row: Contribution<'_, T>, from: u32, to: u32) {
        let (first, second, low) = (&quantiser.first[..D], &quantiser.second[..D], &quantiser.low[..D]);
        let mut hi = [0i64; D];
        let mut lo = [0i64; D];
        for f in 0..D {
            let v = row.value(f) * first[f] * second[f];
            if quantiser.two_limbs {
                (hi[f], lo[f]) = split(v, low[f]);
            } else {
                hi[f] = round_to_integer(v);
            }
        }
        for (sums, limbs, used) in [(&mut self.hi, &hi, true), (&mut self.lo, &lo, quantiser.two_limbs)] {
            if used {
                add::<false>(&mut sums[to as usize * D..][..D], limbs);
                if from != UNASSIGNED {
                    add::<true>(&mut sums[from as usize * D..][..D], limbs);
                }
            }
        }
    }

    /// For any number of features.
    #[inline(always)]
    fn shift_long<T: Float>(&mut self, quantiser: &Quantiser, row: Contribution<'_, T>, from: u32, to: u32) {
        let d = self.d;
        let (first, second, low) = (&quantiser.first[..d], &quantiser.second[..d], &quantiser.low[..d]);
        let (x, hi) = (&mut self.row[..d], &mut self.row_hi[..d]);
        for f in 0..d {
            x[f] = row.value(f);
        }
        if quantiser.two_limbs {
            let lo = &mut self.row_lo[..d];
            for f in 0..d {
                (hi[f], lo[f]) = split(x[f] * first[f] * second[f], low[f]);
            }
        } else {
            for f in 0..d {
                hi[f] = round_to_integer(x[f] * first[f] * second[f]);
            }
        }
        for (sums, limbs) in [(&mut self.hi, &self.row_hi), (&mut self.lo, &self.row_lo)] {
            if !limbs.is_empty() {
                add::<false>(&mut sums[to as usize * d..][..d], limbs);
                if from != UNASSIGNED {
                    add::<true>(&mut sums[from as usize * d..][..d], limbs);
                }
            }
        }
    }

    #[inline(always)]
    fn count<const NEGATIVE: bool>(&mut self, j: usize, mass: i128) {
        self.mass[j] += if NEGATIVE { -mass } else { mass };
        self.rows[j] += if NEGATIVE { -1 } else { 1 };
        if self.pending[j] == 0 {
            self.touched.push(j as u32);
        }
        self.pending[j] += 1;
    }

    #[inline(always)]
    fn flush_if_full(&mut self, quantiser: &Quantiser, j: u32, target: &Mutex<&mut Partial>) {
        if self.pending[j as usize] == quantiser.capacity {
            let mut partial = target.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            self.flush_cluster(quantiser, j as usize, &mut partial);

            self.touched.retain(|&t| t != j);
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
        partial.mass[j] += std::mem::take(&mut self.mass[j]);
        partial.rows[j] += std::mem::take(&mut self.rows[j]);
        partial.dirty[j] = true;
        self.pending[j] = 0;
    }

    /// Adds all pending values to `partial`.
    pub fn flush(&mut self, quantiser: &Quantiser, partial: &mut Partial) {
        while let Some(j) = self.touched.pop() {
            self.flush_cluster(quantiser, j as usize, partial);
        }
    }
}
