//! Bounds that a GPU carries from iteration to iteration: the constants of `kernels/papers/yinyang.cuh`.
//!
//! All lengths are in the filter's scaled units, `x = s (x' - m)` and `c = s (c' - m)`, with s a power of two. `v = 2^-53`. A row
//! belongs to centroid a. Let `U >= |x - c_a|` and `L <= |x - c_j|` be true in exact arithmetic.
//!
//! # A row keeps its label
//!
//! Reference distances are rounded: `s^2 S = (1 +- g) D^2 +- eta`, D the true distance, `g = gamma_(d+2)(v)`, `eta = d 2^-1074
//! s^2`. With float32 features no square underflows, and eta is 0. Let `G = (d + 4) v` and `tau = sqrt(eta)`. Then
//!
//! ```text
//! L (1 - G) > U (1 + G) + 1.5 tau    implies    S_j > S_a
//! ```
//! since then `(1 - g) L^2 >= (1 - G)^2 L^2 > (1 + G)^2 U^2 + 2.25 tau^2 >= (1 + g) U^2 + 2 eta`. The comparison of rounded
//! numbers is strict, so ties and the order of the centroids do not matter. The kernel rounds the left side down and the right
//! side up. If anything is NaN, the comparison is false.
//!
//! # Drifts
//!
//! `|x - c_j|` changes by at most the drift of c_j, which the kernel computes from the rounded centroids: `t = fl(fl(after -
//! before) s)`, the sum of t^2 in any order. So `drift <= sqrt(sum) (1 + G) + tiny` with `tiny = sqrt(d) 2^-536`, which covers
//! squares and products by s that underflow. C_j adds the drifts up, C_g the largest ones of a group. Sums are rounded up:
//! `C(later) - C(then)` is at least the sum of the drifts between. Let `down <= C <= up` be the float32 neighbours. A bound is
//! stored as `u = RU(U - down_a)` or `l = RD(L + down_g)`. Later
//!
//! ```text
//! RU(u + up_a(later)) >= U + C_a(later) - C_a(then) >= U + drifts of a
//! RD(l - up_g(later)) <= L - (C_g(later) - C_g(then)) <= L - drifts of any centroid of the group
//! ```
//! All C are set to 0 only where all bounds of all rows are stored anew.
//!
//! # Bounds from scores
//!
//! By `own.rs`, scores have `H_j >= y_j - E_x` and `H_b <= y_b + E_x + slack_b`, where `D^2 = |x|^2 + 2 H`. So with
//!
//! ```text
//! low = RD(|x|^2 - 2 E_x),  high = RU(|x|^2 + 2 E_x):     RD(2 y_j + low) <= D_j^2,     RU(2 (y_b + slack_b) + high) >= D_b^2
//! ```
//! `2 E_x = unit t sum W x_f^2`. Both sums of squares are float64 sums of `t = fl(s x' - s m)`, with at most d + 20 roundings.
//! Where the bound of the filter does not hold (copies that are not finite, rows of squared length 1e37), low is -infinity and
//! high is infinity. Then the bounds are 0 and infinity.
//!
//! A group's bound stands for its centroids without the row's own. The least score of a group is a bound for all of them, so it
//! holds whichever of them a settled row gets. The second score of the group is one for all but the best: it is stored only where
//! the best is certified. If a row changes to another centroid, groups that were not compared hold neither the old centroid (its
//! group is always compared) nor the new one.
//!
//! # Labels of rows that are compared with some groups
//!
//! For a group that is left out, `S_j > S_a` for all its centroids. a is among the centroids that are compared. So the label is
//! too, with all ties, and the filter's certificate for these centroids is one for all.

use super::own::down;
use super::{V, up};

/// The constants of a fit.
#[derive(Debug, Clone, Copy)]
pub struct Carry {
    /// 1 - G, 1 + G and 1.5 tau, rounded to the safe side.
    pub low: f32,
    pub high: f32,
    pub underflow: f32,
    /// A distance is at most `sqrt(sum) grown + tiny`.
    pub grown: f64,
    pub tiny: f64,
    /// The relative error of a sum of squares.
    pub squares: f64,
}

impl Carry {
    /// `scale`: s. `float32`: whether the features are.
    pub fn new(d: usize, scale: f64, float32: bool) -> Self {
        let relative = (d + 4) as f64 * V;
        let root = (d as f64).sqrt() * (1.0 + 1e-9);
        let underflow = if float32 { 0.0 } else { 1.5 * root * 2f64.powi(-537) * scale };
        Self {
            low: down(1.0 - relative),
            high: up(1.0 + relative),
            underflow: up(underflow),
            grown: 1.0 + relative,
            tiny: root * 2f64.powi(-536),
            squares: (d + 20) as f64 * 2.0 * V,
        }
    }

    /// The factor of the weighted sum of squares in 2 E_x. `unit` and `balance`: those of [`super::ExpandedTerms`].
    pub fn error(unit: f64, balance: f64) -> f64 {
        1.001 * unit * balance
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::float::Float;
    use crate::base::random::Random;
    use crate::exact::reference;

    /// The exact distance is at most this. For float64 chains whose values do not underflow.
    fn bounded(x: &[f64], c: &[f64], scale: f64, carry: &Carry) -> f64 {
        let sum = x.iter().zip(c).fold(0.0, |s, (x, c)| {
            let t = (x - c) * scale;
            t.mul_add(t, s)
        });
        (sum.sqrt().next_up() * carry.grown).next_up() + carry.tiny
    }

    fn holds(carry: &Carry, lower: f32, upper: f32) -> bool {
        // Float32 products and sums in float64 have at most one rounding, which is then made the safe one.
        let left = down(f64::from(lower) * f64::from(carry.low));
        let right = up(f64::from(up(f64::from(upper) * f64::from(carry.high))) + f64::from(carry.underflow));
        left > right
    }

    /// Rows that keep their centroid by true distances, as tight as float32 can say them, and by carried ones.
    fn attack<T: Float>(seed: u64) {
        let random = &mut Random(seed);
        let (mut kept, mut close) = (0, 0);
        for case in 0..40_000 {
            let d = [1, 2, 3, 8, 40, 300][case % 6];
            let sort = random.below(7);
            let vector = |random: &mut Random| -> Vec<f64> { (0..d).map(|_| random.value::<T>(sort).to_f64()).collect() };
            let (x, mut own, other) = (vector(random), vector(random), vector(random));
            if case % 2 == 0 {
                // The mirror image: a tie, or one float next to it.
                for f in 0..d {
                    own[f] = T::from_f64(2.0 * x[f] - other[f]).to_f64();
                }
                let f = random.below(d as u64) as usize;
                own[f] = T::from_f64(own[f] * (1.0 - T::UNIT * 2.0 * random.below(3) as f64)).to_f64();
            }
            if own.iter().any(|v| !v.is_finite()) {
                continue;
            }
            let largest = x.iter().chain(&own).chain(&other).fold(0.0f64, |m, v| m.max(v.abs()));
            let exponent = if largest > 0.0 { (-largest.log2().floor()) as i32 } else { 0 };
            let scale = 2f64.powi(exponent.clamp(-500, 500));
            let carry = Carry::new(d, scale, T::IS_F32);
            let typed = |v: &[f64]| v.iter().map(|&v| T::from_f64(v)).collect::<Vec<T>>();
            let distances = [&own, &other].map(|c| reference::distance(&typed(&x), &typed(c)));
            let (upper, lower) = (bounded(&x, &own, scale, &carry), bounded(&x, &other, scale, &carry));
            // Down by as much as it was up.
            let lower = (lower - 2.0 * carry.tiny) * (1.0 - 2.5 * (carry.grown - 1.0));
            // Moved there and back, far enough that sums round.
            let moved = [0.0, 0.1, 1e4, 3e-9][case % 4];
            let stored = (up((upper - f64::from(down(moved))).next_up()), down((lower + f64::from(down(moved))).next_down()));
            let now = (
                up((f64::from(stored.0) + f64::from(up(moved))).next_up()),
                down((f64::from(stored.1) - f64::from(up(moved))).next_down()),
            );
            assert!(f64::from(now.0) >= upper && f64::from(now.1) <= lower, "{moved}: {now:?} for {upper:e} {lower:e}");
            for (upper, lower) in [(up(upper), down(lower)), now] {
                if holds(&carry, lower, upper) {
                    assert!(distances[1] > distances[0], "d {d}, sort {sort}: {distances:?}");
                    kept += 1;
                }
            }
            close += u32::from(distances[0] == distances[1]);
        }
        assert!(kept > 5_000 && close > 500, "{kept} kept, {close} ties");
    }

    unit_test!(rows_that_keep_their_centroid_are_nearer_to_it);
    fn rows_that_keep_their_centroid_are_nearer_to_it() {
        attack::<f32>(21);
        attack::<f64>(22);
    }

    unit_test!(counterexamples_to_careless_tests);
    fn counterexamples_to_careless_tests() {
        // Ties, equal bounds, and what is not a number.
        let carry = Carry::new(1, 1.0, false);
        for (lower, upper) in [(1.0, 1.0), (0.0, 0.0), (f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, f32::INFINITY)] {
            assert!(!holds(&carry, lower, upper), "{lower} {upper}");
        }
        assert!(holds(&carry, f32::INFINITY, 1.0) && holds(&carry, 1.000001, 1.0));
        // Both squares underflow: x = 0, c = (2^-540, 0). The tie's label is 0, though 1 is nearer.
        assert!(!holds(&Carry::new(1, 2f64.powi(450), false), down(2f64.powi(-90)), 0.0));
        // So many features that rounded distances say the opposite of true ones.
        let wide = Carry::new(1 << 30, 1.0, true);
        assert!(!holds(&wide, 1.0 + 2f32.powi(-22), 1.0) && holds(&wide, 1.0 + 2f32.powi(-20), 1.0));
    }
}
