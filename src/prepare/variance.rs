//! Pass 4: the mean variance of the features, which `tol` is relative to.

use super::tiles::{for_each_positive_tile, merge_columns};
use crate::fixed::{ColumnScale, Limbs, round_quotient};
use crate::float::Float;
use crate::tile::{Part, WeightScale};

/// Pass 4: the mean over the features of `max(0, m2 - m1 * m1)`, m1 and m2 the means of t and t^2, `t = x - midrange`.
pub fn variance<T: Float>(
    parts: &[Part<'_, T>],
    lows: &[f64],
    highs: &[f64],
    n: u64,
    weights: Option<WeightScale>,
    threads: usize,
) -> f64 {
    let d = lows.len();
    let middle: Vec<f64> = lows.iter().zip(highs).map(|(low, high)| 0.5 * (low + high)).collect();
    let scales: Vec<[ColumnScale; 2]> = (0..d)
        .map(|f| {
            let t = (lows[f] - middle[f]).abs().max((highs[f] - middle[f]).abs());
            [t, t * t].map(|extent| ColumnScale::for_extent::<f64>(extent, Limbs::Two))
        })
        .collect();
    let workers = for_each_positive_tile(
        parts,
        weights,
        threads,
        || vec![[0i128; 2]; d],
        |sums: &mut Vec<[i128; 2]>, tile| {
            for f in 0..d {
                let ([first, second], middle) = (scales[f], middle[f]);
                // A tile has far fewer rows than an int64 has room for.
                let mut limbs = [0i64; 4];
                for x in tile.column(f) {
                    let t = x.to_f64() - middle;
                    let ((a, b), (c, e)) = (first.limbs_of(t), second.limbs_of(t * t));
                    limbs[0] += a;
                    limbs[1] += b;
                    limbs[2] += c;
                    limbs[3] += e;
                }
                sums[f][0] += first.join(limbs[0], limbs[1]);
                sums[f][1] += second.join(limbs[2], limbs[3]);
            }
        },
    );
    let sums = merge_columns(workers, |a, b| {
        a[0] += b[0];
        a[1] += b[1];
    });
    let mut total = 0.0;
    for (sums, scales) in sums.iter().zip(&scales) {
        let [m1, m2]: [f64; 2] = [0, 1].map(|i| round_quotient(sums[i], u128::from(n), scales[i].quantum_exponent()));
        total += (m2 - m1 * m1).max(0.0);
    }
    total / d as f64
}
