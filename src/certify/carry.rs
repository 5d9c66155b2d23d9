//! What lets an iteration leave out a row: bounds on its distances, carried from the iteration before with the drifts of the centroids.
//!
//! G. Hamerly, "Making k-means even faster", SDM 2010, doi:10.1137/1.9781611972801.12. Y. Ding et al., "Yinyang K-means: a drop-in
//! replacement of the classic K-means with consistent speedup", ICML 2015.
//!
//! A row x has a label a. U is at or above its true distance to `c_a`. l is at or below its true distances to some other centroids:
//! all others, or those of one group. If l is enough above U, then none of these can be the label. The label is decided by *rounded*
//! reference distances S, and bounds are rounded too. So "enough" has to be derived.
//!
//! # Between reference distances and true distances
//!
//! Let `D_j = |x - c_j|`, `v = 2^-53`. A chain of d fmas over rounded differences gives
//!
//! ```text
//! S = (1 +- g) D^2 +- eta,   g = gamma_(d+2)(v),   eta <= 1.01 d 2^-1075  (0 for float32 features: nothing underflows)
//! G = (d + 3) v,             tau = sqrt(d) 2^-537 >= 1.4 sqrt(eta)
//! D <= (sqrt(S) + sqrt(eta)) / sqrt(1 - g) <= sqrt(S) (1 + G) + tau        because 1 / sqrt(1 - g) <= 1 + G
//! D >= (sqrt(S) - sqrt(eta)) / sqrt(1 + g) >= sqrt(S) (1 - G) - tau
//! ```
//! [`Carry::upper`] and [`Carry::lower`] take 2 G for G, which covers the three roundings of their evaluation, and then round to
//! float32 outwards. All bounds are in units of `2^-exponent`. A lower bound is at least 0, which holds for every distance. So 0 means
//! that nothing is known, and so does an infinite U.
//!
//! # Drift
//!
//! A centroid moves from c to c'. By the triangle inequality `|x - c'| <= |x - c| + delta` and `|x - c'| >= |x - c| - delta`, for
//! `delta >= |c - c'|`. Both are the *rounded* centroids, whose reference distances labels are decided by, and [`Carry::drift`] bounds their
//! true distance. With `u = 2^-24` a float32 sum has one rounding, and none where it is subnormal. So
//!
//! ```text
//! fl(fl(U + delta) (1 + 4 u)) >= (U + delta) (1 - u) (1 + 4 u) (1 - u) >= U + delta
//! fl(fl(l - delta) (1 - 4 u)) <= (l - delta) (1 + u) (1 - 4 u) (1 + u) <= l - delta       where l > delta
//! ```
//! Where a product is subnormal, its factor still moves it in the right direction or leaves it, as rounding is monotone.
//!
//! # When a row keeps its label
//!
//! ```text
//! sqrt(S_j) >= sqrt(1 - g) D_j - sqrt(eta) >= (1 - G) l - tau / 1.4
//! sqrt(S_a) <= sqrt(1 + g) D_a + sqrt(eta) <= (1 + G) U + tau / 1.4
//! ```
//! So `l (1 - G) > U (1 + G) + 1.5 tau` gives `S_j > S_a`, as rounded numbers: ties and the order of the centroids cannot matter.
//! [`Carry::keeps`] computes `fl(l (1 - 8 u)) > fl(U + B)` in float32, with `B >= 2 tau + 2^-147`. Then
//!
//! ```text
//! l (1 - 8 u) (1 + u) + 2^-150 > (U + B) (1 - u)   =>   l (1 - 5.9 u) > U + 2 tau   =>   the condition, as 2 G < 5.9 u
//! ```
//! A NaN or an infinite U keeps nothing.
//!
//! # Lower bounds from copies
//!
//! [`Copies`] gives l from the float32 sum `s~ = sum fl(x^ - c^)^2` of copies `x^ = fl32(s fl_T(x - m))`, as [`super::Expanded`] makes them. In
//! scaled units, with `q = 1.001 u`, `w = sqrt(d) 2^-149`, `y = x - m`, and `|c - m| <= |y| + D`:
//!
//! ```text
//! |x^ - c^| <= D + q (|y| + |c - m|) + 2 w <= D (1 + q) + 2 q |y| + 2 w
//! sqrt(s~)  <= |x^ - c^| (1 + gamma_(d+3)(u) / 2) + sqrt(d) 2^-74.5          one term has up to three roundings, the sum d
//! D         >= sqrt(s~) A - B,   A = 1 / ((1 + gamma_(d+3)(u) / 2) (1 + q)),   B = 2 q |y| + 2 w + sqrt(d) 2^-74.5
//! |y|       <= (|x^| + w) (1 + 1.01 q),   |x^| <= sqrt(square) (1 + gamma_(d+2)(u)) + sqrt(d) 2^-74.5
//! ```
//! `square` is the float32 sum of squares of the copy. A is lowered by three more roundings, those of the root, the product and the
//! difference. If `s~` overflows, it counts as the largest float32: the true sum is at or above it, but for the same roundings. In the other
//! direction, with three more roundings too, and for sums in any order:
//!
//! ```text
//! D (1 - q) <= |x^ - c^| + 2 q |y| + 2 w,   |x^ - c^| <= sqrt(s~ / (1 - gamma_(d+3)(u))) + sqrt(d) 2^-74.5
//! D         <= sqrt(s~) A' + 1.01 B,        A' = 1 / (sqrt(1 - gamma_(d+3)(u)) (1 - q))
//! ```

use super::own::down;
use super::{U, V, gamma, up};
use crate::fixed::power_of_two;

/// Bounds on distances, in float32, in units of `2^-exponent`.
#[derive(Debug, Clone, Copy)]
pub struct Carry {
    /// 2 G.
    roundings: f64,
    tau: f64,
    /// `2^exponent`.
    scale: f64,
    /// B of [`Carry::keeps`].
    offset: f32,
}

impl Carry {
    /// `float32`: whether features are. The exponent is between -460 and 460.
    pub fn new(d: usize, float32: bool, exponent: i32) -> Self {
        let tau = if float32 { 0.0 } else { (d as f64).sqrt() * 2f64.powi(-537) };
        let scale = power_of_two(exponent);
        Self { roundings: 2.0 * (d + 3) as f64 * V, tau, scale, offset: up(2.01 * tau * scale + 2f64.powi(-147)) }
    }

    /// A number at or above the true distance, from the reference distance.
    #[inline(always)]
    pub fn upper(&self, s: f64) -> f32 {
        up((s.sqrt() * (1.0 + self.roundings) + self.tau) * self.scale)
    }

    /// A number at or below the true distance, from the reference distance.
    #[inline(always)]
    pub fn lower(&self, s: f64) -> f32 {
        // A reference distance that overflows says nothing here.
        let bound = (s.sqrt() * (1.0 - self.roundings) - self.tau) * self.scale;
        if bound > 0.0 && bound.is_finite() { down(bound) } else { 0.0 }
    }

    /// A number at or above how far a centroid moved, from the reference distance between its old and its new place.
    pub fn drift(&self, s: f64) -> f32 {
        let drift = self.upper(s);
        // A NaN would lose against other drifts.
        if drift.is_nan() { f32::INFINITY } else { drift }
    }

    /// Whether S of the label is below S of every centroid that `lower` covers. `upper` is that of the label.
    #[inline(always)]
    pub fn keeps(&self, lower: f32, upper: f32) -> bool {
        let [slope, limit] = self.as_limit(upper);
        lower * slope > limit
    }

    /// [`Carry::keeps`] as `lower * slope > limit`.
    #[inline(always)]
    pub fn as_limit(&self, upper: f32) -> [f32; 2] {
        [1.0 - 8.0 * U as f32, upper + self.offset]
    }

    /// The factor that undoes the roundings of a lower bound.
    pub const DOWN: f32 = 1.0 - 4.0 * U as f32;

    /// The upper bound after the label's centroid moved.
    #[inline(always)]
    pub fn farther(upper: f32, drift: f32) -> f32 {
        (upper + drift) * (1.0 + 4.0 * U as f32)
    }

    /// The lower bound after centroids moved by at most this.
    #[inline(always)]
    pub fn nearer(lower: f32, drift: f32) -> f32 {
        // `max` takes 0 where the difference is NaN.
        ((lower - drift) * Self::DOWN).max(0.0)
    }
}

/// Bounds from sums of squared differences of copies, in the units of the copies. See the derivation above.
#[derive(Debug, Clone, Copy)]
pub struct Copies {
    /// A, with the roundings of its evaluation.
    slope: f32,
    /// A', with the roundings of its evaluation.
    rise: f32,
    /// The factor of the root of the row's square.
    of_row: f32,
    offset: f32,
}

impl Copies {
    pub fn new(d: usize) -> Self {
        let slope = (1.0 - 3.1 * U) / ((1.0 + 0.5 * gamma(d + 3, U)) * (1.0 + 1.01 * U));
        let g = gamma(d + 3, U);
        let rise = if g < 0.9 { (1.0 + 3.2 * U) / ((1.0 - g).sqrt() * (1.0 - 1.01 * U)) } else { f64::INFINITY };
        // The factors 1.03 and 2 cover the evaluation of B in float32, and 1.01 B.
        let of_row = 2.0 * 1.001 * 1.03 * U * (1.0 + gamma(d + 4, U));
        Self { slope: down(slope), rise: up(rise), of_row: up(of_row), offset: up(2.0 * (d as f64).sqrt() * 2f64.powf(-74.5)) }
    }

    /// B of a row whose copy has this sum of squares. Infinite or NaN if the copy may not be finite: then nothing is known.
    #[inline(always)]
    pub fn of_row(&self, square: f32) -> f32 {
        if square < 1e30 { square.sqrt() * self.of_row + self.offset } else { f32::INFINITY }
    }

    /// A number at or below the true distance.
    #[inline(always)]
    pub fn lower(&self, sum: f32, of_row: f32) -> f32 {
        (sum.min(f32::MAX).sqrt() * self.slope - of_row).max(0.0)
    }

    /// A number at or above the true distance.
    #[inline(always)]
    pub fn upper(&self, sum: f32, of_row: f32) -> f32 {
        sum.sqrt() * self.rise + of_row
    }

    /// A centroid with a sum above this has S above that of every centroid with this upper bound.
    #[inline(always)]
    pub fn threshold(&self, carry: &Carry, upper: f32, of_row: f32) -> f32 {
        let least = f64::from(upper + carry.offset) * (1.0 + 10.0 * U) + f64::from(of_row);
        let root = least / f64::from(self.slope);
        up(root * root * (1.0 + 16.0 * V))
    }
}

#[cfg(test)]
mod attacks;
