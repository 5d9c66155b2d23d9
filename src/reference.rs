//! The reference distance, and a naive search with it: the oracle. Never optimised; every fast path is held to it.
//!
//! ```text
//! s = 0; for f in 0..d { t = x[f] - c[f]; s = fma(t, t, s) }      in float64, in feature order
//! label = the smallest j of least s
//! ```

use crate::float::Float;

/// The squared distance that decides labels: float64, feature order, fused multiply-add.
///
/// ```
/// assert_eq!(polars_kmeans::reference::distance(&[0.0f32, 3.0], &[4.0f32, 0.0]), 25.0);
/// ```
pub fn distance<X: Float, C: Float>(x: &[X], c: &[C]) -> f64 {
    let mut s = 0.0f64;
    for (x, c) in x.iter().zip(c) {
        let t = x.to_f64() - c.to_f64();
        s = t.mul_add(t, s);
    }
    s
}

/// What a naive search over all centroids finds for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nearest {
    /// The smallest index of least distance.
    pub label: u32,
    /// Its squared distance.
    pub distance: f64,
    /// The least squared distance to any other centroid; infinite when there is none.
    pub second: f64,
}

/// The nearest of the centroids (row-major, `k` rows of `x.len()` values) to `x`.
///
/// A distance that overflows is infinite; where all are, the label is 0.
pub fn nearest<X: Float, C: Float>(x: &[X], centroids: &[C]) -> Nearest {
    let mut best = Nearest { label: 0, distance: f64::INFINITY, second: f64::INFINITY };
    for (j, c) in centroids.chunks_exact(x.len()).enumerate() {
        let s = distance(x, c);
        if s < best.distance {
            best = Nearest { label: j as u32, distance: s, second: best.distance };
        } else if s < best.second {
            best.second = s;
        }
    }
    best
}
