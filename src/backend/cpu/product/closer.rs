//! A closer look at rows in doubt whose values lie side by side: sums of squared differences in float32.
//!
//! A reference distance is one chain of float64 operations, which a sum in float32 need not be. So this takes a small part of the time, and it
//! leaves few rows to reference distances. Values are not scaled. So sums of very large or very small values drop nothing.

use super::{ALL, Lists, ProductScratch};
use crate::backend::cpu::centroids::CentroidTable;
use crate::certify::Difference;
use crate::float::Float;

/// Partial sums of one sum.
const SUMS: usize = 64;

/// The bound of [`squared_distance`] for `d` features.
fn bound(d: usize) -> Difference {
    // The sums of two halves are added until one is left. Differences of float64 values are rounded once more.
    Difference::of_sums(d, d.div_ceil(SUMS) + SUMS.ilog2() as usize + 1)
}

/// The sum of the squared differences of two rows.
#[inline(always)]
fn squared_distance<T: Float>(x: &[T], c: &[T]) -> f32 {
    let one = T::from_f64(1.0);
    let mut sums = [0.0f32; SUMS];
    let ((x, x_rest), (c, c_rest)) = (x.as_chunks::<SUMS>(), c.as_chunks::<SUMS>());
    for (x, c) in x.iter().zip(c) {
        for i in 0..SUMS {
            let t = x[i].centred_copy(c[i], one, one);
            sums[i] += t * t;
        }
    }
    for ((sum, x), c) in sums.iter_mut().zip(x_rest).zip(c_rest) {
        let t = x.centred_copy(*c, one, one);
        *sum += t * t;
    }
    let mut half = SUMS / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

impl ProductScratch {
    /// Drops centroids in reach of some rows that are farther than others in reach, by these sums. Rows with no list keep all centroids.
    /// `row`: the values of a row, if they lie side by side.
    #[inline(always)]
    pub fn look_closer<'v, T: Float>(
        &mut self,
        count: usize,
        table: &CentroidTable<T>,
        row: impl Fn(usize) -> Option<&'v [T]>,
    ) {
        let bound = bound(table.d);
        for r in 0..count {
            if matches!(self.counts[r], 1 | ALL) {
                continue;
            }
            let Some(x) = row(r) else { return };
            let listed = usize::from(self.counts[r]);
            let mut least = f32::INFINITY;
            for (j, sum) in self.reach[r][..listed].iter().zip(&mut self.reach_scores[r]) {
                *sum = squared_distance(x, table.row(*j as usize));
                least = least.min(*sum);
            }
            let mut lists = Lists { counts: &mut self.counts, reach: &mut self.reach, scores: &mut self.reach_scores };
            lists.keep_within(r, bound.threshold(least));
        }
    }
}
