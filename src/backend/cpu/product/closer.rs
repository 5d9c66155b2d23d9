//! A closer look at rows in doubt whose values lie side by side: sums of squared differences in float32.
//!
//! A reference distance is one chain of float64 operations, which a sum in float32 need not be. So this takes a small part of the
//! time, and it leaves few rows to reference distances. Values are not scaled. So sums of very large or very small values drop
//! nothing.

use super::lists::ALL;
use super::{MOST_LANES, ProductScratch, ROWS};
use crate::backend::cpu::centroids::CentroidTable;
use crate::base::float::Float;
use crate::bounds::Difference;
use crate::simd::{Prefetch, Vector};

/// Vectors of partial sums of one sum.
const SUMS: usize = 4;

/// The bound of [`squared_distance`] for `d` features.
fn bound<V: Vector>(d: usize) -> Difference {
    let lanes = SUMS * V::LANES;
    // The sums of two halves are added until one is left. Differences of float64 values are rounded once more.
    Difference::of_sums(d, d.div_ceil(lanes) + lanes.ilog2() as usize + 1)
}

/// The sum of the squared differences of two rows.
#[inline(always)]
fn squared_distance<V: Vector, T: Float>(x: &[T], c: &[T]) -> f32 {
    match (T::as_f32s(x), T::as_f32s(c)) {
        (Some(x), Some(c)) => squared_distance_of_singles::<V>(x, c),
        _ => {
            // As many sums as in the other case.
            let mut sums = [0.0f32; SUMS * MOST_LANES];
            let lanes = SUMS * V::LANES;
            for (x, c) in x.chunks(lanes).zip(c.chunks(lanes)) {
                for i in 0..x.len() {
                    let t = (x[i].to_f64() - c[i].to_f64()) as f32;
                    sums[i] += t * t;
                }
            }
            total(&mut sums[..lanes])
        }
    }
}

#[inline(always)]
fn squared_distance_of_singles<V: Vector>(x: &[f32], c: &[f32]) -> f32 {
    let d = x.len().min(c.len());
    let mut lanes = [0.0f32; MOST_LANES];
    let whole = d / V::LANES * V::LANES;
    // SAFETY: what is loaded ends at `whole` at most, and `lanes` has room for a vector.
    unsafe {
        let mut sums = [V::splat(0.0); SUMS];
        let mut f = 0;
        while f + SUMS * V::LANES <= d {
            for i in 0..SUMS {
                let at = f + i * V::LANES;
                let t = V::load(x.as_ptr().add(at)).sub(V::load(c.as_ptr().add(at)));
                sums[i] = t.mul_add(t, sums[i]);
            }
            f += SUMS * V::LANES;
        }
        // At most three vectors are left over, one for each sum.
        let mut i = 0;
        while f < whole {
            let t = V::load(x.as_ptr().add(f)).sub(V::load(c.as_ptr().add(f)));
            sums[i] = t.mul_add(t, sums[i]);
            (f, i) = (f + V::LANES, i + 1);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).store(lanes.as_mut_ptr());
    }
    for (lane, (x, c)) in lanes.iter_mut().zip(x[whole..d].iter().zip(&c[whole..d])) {
        let t = x - c;
        *lane += t * t;
    }
    total(&mut lanes[..V::LANES])
}

/// The sum of some sums. Their number is a power of two.
#[inline(always)]
fn total(sums: &mut [f32]) -> f32 {
    let mut half = sums.len() / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

impl ProductScratch {
    /// Drops centroids in reach of some rows that are farther than others in reach, by these sums. Rows with no list keep all
    /// centroids. `row`: the values of a row, if they lie side by side.
    #[inline(always)]
    pub fn look_closer<'v, V: Vector, T: Float>(
        &mut self,
        count: usize,
        table: &CentroidTable<T>,
        row: impl Fn(usize) -> Option<&'v [T]>,
    ) {
        let bound = bound::<V>(table.d);
        let (mut open, mut len) = ([0u8; ROWS], 0);
        for r in 0..count {
            open[len] = r as u8;
            len += usize::from(!matches!(self.lists.counts[r], 1 | ALL));
        }
        for i in 0..len {
            let r = usize::from(open[i]);
            let Some(x) = row(r) else { return };
            // Rows are far apart in memory. So the row after the next is prefetched meanwhile.
            if let Some(next) = open[..len].get(i + 2).and_then(|r| row(usize::from(*r))) {
                Prefetch::of(next).ask_all();
            }
            let listed = usize::from(self.lists.counts[r]);
            let mut least = f32::INFINITY;
            for (j, sum) in self.lists.candidates[r][..listed].iter().zip(&mut self.lists.scores[r]) {
                *sum = squared_distance::<V, T>(x, table.row(*j as usize));
                least = least.min(*sum);
            }
            self.lists.keep_within(r, bound.threshold(least));
        }
    }
}
