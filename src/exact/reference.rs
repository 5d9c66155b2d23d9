//! The reference distance, and a naive search with it. It is the oracle: never optimised, and every fast path must agree with it.
//!
//! ```text
//! s = 0; for f in 0..d { t = x[f] - c[f]; s = fma(t, t, s) }      in float64, in feature order
//! label = the smallest j whose s is smallest
//! ```

use crate::base::float::Float;

/// Takes the place of MinGW's `fma`, which rounds twice. The compiler calls it where the processor's instruction is not enabled.
// SAFETY: it is the function of C with this name, and computes what that is specified to compute.
#[cfg(all(windows, target_env = "gnu"))]
#[unsafe(no_mangle)]
extern "C" fn fma(x: f64, y: f64, z: f64) -> f64 {
    libm::fma(x, y, z)
}

/// The squared distance that decides labels: float64, feature order, fused multiply-add.
///
/// ```
/// assert_eq!(polars_kmeans::exact::reference::distance(&[0.0f32, 3.0], &[4.0f32, 0.0]), 25.0);
/// ```
pub fn distance<X: Float, C: Float>(x: &[X], c: &[C]) -> f64 {
    let mut s = 0.0f64;
    for (x, c) in x.iter().zip(c) {
        let t = x.to_f64() - c.to_f64();
        s = t.mul_add(t, s);
    }
    s
}

/// The result of a naive search over all centroids for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nearest {
    /// The smallest index of the least distance.
    pub label: u32,
    /// Its squared distance.
    pub distance: f64,
    /// The least squared distance to any other centroid. Infinite if there is no other.
    pub second: f64,
}

impl Nearest {
    /// Takes a further centroid into account, whose number is larger than the numbers before.
    #[inline(always)]
    pub fn take(&mut self, j: u32, s: f64) {
        if s < self.distance {
            *self = Self { label: j, distance: s, second: self.distance };
        } else if s < self.second {
            self.second = s;
        }
    }
}

/// Finds the nearest of the centroids (row-major, `k` rows of `x.len()` values) to `x`.
///
/// A distance that overflows is infinite. If all distances are infinite, the label is 0.
pub fn nearest<X: Float, C: Float>(x: &[X], centroids: &[C]) -> Nearest {
    let mut best = Nearest { label: 0, distance: f64::INFINITY, second: f64::INFINITY };
    for (j, c) in centroids.chunks_exact(x.len()).enumerate() {
        best.take(j as u32, distance(x, c));
    }
    best
}
