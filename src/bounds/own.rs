//! The bound that belongs to one centroid: its error lowers the start or the end of its score.
//!
//! This holds for any kernel whose scores are described by
//!
//! ```text
//! |y_j - (p_j - x.c_j)| <= E_x + e_j + g_h |p_j|
//! ```
//! x is a row and c_j a centroid, both exact, centred and scaled: `x = s (x' - m)`. y_j is the score that the kernel computes.
//! p_j is a float32 that the kernel starts from or adds at the end. E_x is an error that belongs to the row, and e_j one that
//! belongs to the centroid. g_h counts the roundings that p_j goes through.
//!
//! Let `hs = |c_j|^2 / 2`, and let hs- and hs+ enclose it. `H_j = hs - x.c_j` orders the centroids as `|x - c_j|^2` does. We
//! choose
//!
//! ```text
//! z_j = RD(hs- - e_j),   p_j = RD32(z_j - 1.01 g_h |z_j|)       so that  p_j + e_j + g_h |p_j| <= hs-,  and  y_j <= H_j + E_x
//! ```
//! `|p_j| <= 1.01 |z_j|` while g_h is below 1/200, and a subnormal p_j only gets smaller: the absolute term of e_j is larger than
//! `g_h 2^-149`. In the other direction `H_b <= y_b + E_x + (hs+ - p_b + g_h |p_b| + e_b)`.
//!
//! The label is decided by *rounded* reference distances `S_j = (1 +- g) D_j +- n`, with `D_j = |x - c_j|^2`, `g =
//! gamma_(d+2)(v)` and `n = d 2^-1074 s^2`. So `S_a <= S_b` implies `H_a - H_b <= r D_b + 1.01 n` with `r = 1.01 (d + 2) v`, and
//! `D_b <= (1 + t) |x|^2 + (1 + 1 / t) |c_b|^2` for every positive t. Together: if a is the label, then for *any* b
//!
//! ```text
//! y_a <= y_b + F_b + (2 E_x + r (1 + t) |x|^2),   F_b = hs+ - p_b + 1.01 g_h |p_b| + e_b + r (1 + 1 / t) |c_b|^2 + 1.01 n
//! ```
//! F is made from the p that is used, so it absorbs the rounding of p. Only F_b is looked up: the errors of the other
//! centroids are in their scores. The least `y + F` gives the strictest threshold. With the second least `y + F`, the second
//! nearest centroid is in reach too: of two different b, one is not nearer than the second nearest.
//!
//! All scores that are compared with one threshold share s, m and t.

use super::V;

/// What belongs to one centroid.
#[derive(Debug, Clone, Copy)]
pub struct CentroidBound {
    /// p: the half square with the centroid's error taken off.
    pub lowered: f32,
    /// F: what a threshold that stands on this centroid adds to its score. Infinite if no threshold may stand on it.
    pub slack: f32,
}

impl CentroidBound {
    /// `half_square` is half the sum of the squares of the d differences `c' - m`, scaled, in float64. `error` is e, with its
    /// absolute term. `roundings` is g_h. `reference` is [`Reference::of_centroid`]. Scores stand for `H_j - lower`, where all
    /// centroids have the same `lower`.
    pub fn new(half_square: f64, lower: f64, d: usize, error: f64, roundings: f64, reference: f64) -> Self {
        // A difference has one roundoff and its square two. The sum has d more, and two cover these products.
        let around = (d + 8) as f64 * V;
        let low = (half_square * (1.0 - around) - lower).next_down();
        let high = (half_square * (1.0 + around) - lower).next_up();
        let z = (low - error).next_down();
        let lowered = down((z - 1.01 * roundings * z.abs()).next_down());
        let p = f64::from(lowered);
        let slack = high - p + 1.01 * roundings * p.abs() + error + reference;
        // The roundings of this sum are far below e and below the roundings of p: e is at least 2^-29 of the half square.
        let slack = super::up(slack * 1.000_01);
        let known = roundings < 0.005 && half_square < 1e37 && lowered.is_finite();
        if known { Self { lowered, slack } } else { Self::UNKNOWN }
    }

    /// The same for products of rounded copies, in fewer operations: `around` is the relative error of the half square, and its
    /// allowances cover `g_h = u`. Kernels compute the same.
    pub(super) fn of_copies(half_square: f64, around: f64, error: f64, reference: f64) -> Self {
        const ROUNDINGS: f64 = 6.0e-8;
        let z = half_square * (1.0 - around) - error;
        let lowered = down(z - 1.01 * ROUNDINGS * z.abs());
        let p = f64::from(lowered);
        let slack = half_square * (1.0 + around) - p + 1.01 * ROUNDINGS * p.abs() + error + reference;
        // Products of longer rows and centroids could overflow. A NaN is no less than anything.
        let known = half_square < 1e37 && lowered.is_finite();
        if known { Self { lowered, slack: super::up(slack * 1.000_01) } } else { Self::UNKNOWN }
    }

    /// A centroid that is always in reach, and that nothing is compared with.
    pub const UNKNOWN: Self = Self { lowered: f32::NEG_INFINITY, slack: f32::INFINITY };
}

/// The rounding errors of reference distances, in scaled units.
#[derive(Debug, Clone, Copy)]
pub struct Reference {
    /// r.
    pub relative: f64,
    /// 1.01 n.
    pub underflow: f64,
}

impl Reference {
    /// Rows and centroids are scaled by `2^scale_exponent`.
    pub fn new(d: usize, scale_exponent: i32) -> Self {
        Self {
            relative: 1.01 * (d + 2) as f64 * V,
            underflow: 1.01 * d as f64 * 2f64.powf(2.0 * f64::from(scale_exponent) - 1074.0),
        }
    }

    /// The factor of `|x|^2`.
    pub fn of_row(&self, weight: f64) -> f64 {
        self.relative * (1.0 + weight)
    }

    /// The terms of a centroid.
    pub fn of_centroid(&self, half_square: f64, weight: f64) -> f64 {
        self.relative * (1.0 + 1.0 / weight) * 2.0 * half_square + self.underflow
    }
}

/// The largest float32 that is at or below x.
pub(super) fn down(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) > x { y.next_down() } else { y }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::{Expanded, U, up};
    use super::*;
    use crate::base::random::Random;

    unit_test!(the_fold_is_below_the_half_square_by_the_error);
    fn the_fold_is_below_the_half_square_by_the_error() {
        let random = &mut Random(5);
        let mut unit = || random.unit();
        for case in 0..20_000 {
            // Half squares from far below the smallest float32 to a million, and next to numbers that float32 has.
            let half = match case % 3 {
                0 => unit() * 2f64.powi(case % 300 - 280),
                1 => f64::from(unit() as f32).next_up(),
                _ => f64::from(unit() as f32).next_down() * 2f64.powi(case % 20),
            };
            let (d, g) = (1 + case as usize % 2_000, [1.001 * U, 40.0 * U][case as usize % 2]);
            let error = half * 2f64.powi(-(case % 30)) * unit() + (d + 4) as f64 * 2f64.powi(-147);
            let CentroidBound { lowered, slack } = CentroidBound::new(half, 0.0, d, error, g, 0.0);
            let (p, around) = (f64::from(lowered), half * (d + 5) as f64 * V);
            // The differences of such numbers have roundings far below the allowances, which are compared.
            assert!(half - around - p >= (error + g * p.abs()) * (1.0 - 1e-12), "{half} {error}");
            assert!(f64::from(slack) >= (half + around - p) + g * p.abs() + error, "{half} {error}");
            // The allowances are no more than they must be: two roundings of float32 and a few of float64.
            assert!(half - p <= error + around + (g * 1.02 + 2.1 * U) * (half + error) + 2f64.powi(-148), "{half} {error}");
        }
    }

    unit_test!(a_threshold_needs_what_its_centroid_lacks);
    /// d = 1, x = 1, c = (0, 2): a tie, and the label is 0. The second centroid has the larger error, so it ranks first.
    fn a_threshold_needs_what_its_centroid_lacks() {
        let (x, centroids) = (1.0f32, [0.0f64, 2.0]);
        for weight in Expanded::WEIGHTS {
            let bound = Expanded::new(1, 0, weight);
            let own = centroids.map(|c| bound.own(0.5 * c * c, 1));
            let scores: Vec<f32> = own.iter().zip(centroids).map(|(own, c)| own.lowered - x * c as f32).collect();
            let width = bound.width(x * x);
            assert!(scores[1] < scores[0]);
            if weight <= 0 {
                assert!(scores[0] > Expanded::threshold(scores[1], width), "without it, the label would be lost");
            }
            assert!(scores[0] <= Expanded::threshold(scores[1] + own[1].slack, width), "weight {weight}");
        }
    }

    unit_test!(weights_move_the_error_between_row_and_centroid);
    /// The error of a centroid does not depend on the other centroids, and a suitable weight makes both halves small.
    fn weights_move_the_error_between_row_and_centroid() {
        let of = |weight| (Expanded::new(16, 0, weight).width(1.0), Expanded::new(16, 0, weight).own(1.0, 16).slack);
        let (rows, centroids) = (of(-4), of(6));
        assert!(rows.0 < of(0).0 / 15.0 && centroids.1 < of(0).1 / 5.0, "{rows:?} {centroids:?}");
        assert!(of(0).0 < 30.0 * up(U) && of(0).1 < 60.0 * up(U), "{:?}", of(0));
    }

    unit_test!(what_is_not_known_is_in_reach);
    fn what_is_not_known_is_in_reach() {
        for (half, error) in [(f64::NAN, 0.0), (f64::INFINITY, 0.0), (1.0, f64::INFINITY), (1.0, f64::NAN)] {
            let own = CentroidBound::new(half, 0.0, 3, error, U, 0.0);
            assert!(own.lowered == f32::NEG_INFINITY && own.slack == f32::INFINITY, "{half} {error}");
        }
        // No distance can be compared with one that underflows this far.
        assert_eq!(Expanded::new(4, 600, 0).own(1.0, 4).slack, f32::INFINITY);
    }
}
