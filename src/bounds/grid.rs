//! What lets a whole box of rows leave out a centroid: another centroid is nearer to every row of the box.
//!
//! The label of a row is decided by *rounded* reference distances S. So centroid j may be left out for a box if one centroid i
//! has `S_i(x) < S_j(x)`, as rounded numbers, for every x of the box. Then ties and the order of the centroids cannot matter. If
//! each centroid that is left out has such a rival, one of the others is the label: the relation is a strict order, so it has no
//! cycles.
//!
//! # The corner
//!
//! `D_j(x) - D_i(x)`, of true squared distances, is linear in x: `|c_j|^2 - |c_i|^2 - 2 x.(c_j - c_i)`. So over a box it is least
//! in the corner v that is farthest in the direction of `c_j - c_i`: the upper end of a feature if `c_j > c_i` there, else the
//! lower end. Let
//!
//! ```text
//! g = gamma_(d+2)(v)    S = (1 +- g) D +- eta,  eta <= d 2^-1074     a reference distance (v: 2^-53)
//! U >= S_i(x)           for all x of the box: the chain over max(fl(c - low), fl(high - c)); rounding is monotone (`skip.rs`)
//! ```
//! Then for every x of the box
//!
//! ```text
//! D_j(x) - D_i(x)  >=  D_j(v) - D_i(v)  >=  S_j(v) - S_i(v) - 1.01 g (S_j(v) + S_i(v)) - 2.1 eta  =: delta
//! S_j(x) - S_i(x)  >=  D_j(x) (1 - g) - D_i(x) (1 + g) - 2 eta  >=  delta (1 - g) - 2 g D_i(x) - 2 eta
//! D_i(x)           <=  (U + eta) (1 + 1.01 g)
//! ```
//! So `S_j(v) - S_i(v) > 4 g (S_j(v) + S_i(v) + U) + (d + 4) 2^-1070` is enough. The factor 4 also covers the rounding of both
//! sides in float64: each is a few v of its terms, and `g >= 3 v`. What underflows in the product is less than 2^-1074. Where a
//! number is infinite or NaN, the comparison is false. Corners and centroids are values of the rows' type, so they are exact.
//! `Seen::is_farther` in `kernels/step/grid_lists.cu` computes the same.

use super::{V, gamma};
use crate::exact::fixed::power_of_two;

/// The constants of the test.
#[derive(Debug, Clone, Copy)]
pub struct Farther {
    /// 4 g.
    pub relative: f64,
    pub underflow: f64,
}

impl Farther {
    pub fn new(d: usize) -> Self {
        Self { relative: 4.0 * gamma(d + 2, V), underflow: (d + 4) as f64 * power_of_two(-1070) }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::float::Float;
    use crate::base::random::Random;
    use crate::exact::reference;

    /// U: at least the reference distance of every row of the box.
    fn far<T: Float>(low: &[T], high: &[T], c: &[T]) -> f64 {
        let features = low.iter().zip(high).zip(c).map(|((low, high), c)| [low, high, c].map(|v| v.to_f64()));
        features.map(|[low, high, c]| (c - low).max(high - c)).fold(0.0, |s, t: f64| t.mul_add(t, s))
    }

    /// Whether centroid `j` is left out because of `i`.
    fn is_farther<T: Float>(low: &[T], high: &[T], j: &[T], i: &[T]) -> bool {
        let Farther { relative, underflow } = Farther::new(low.len());
        let corner: Vec<T> = (0..low.len()).map(|f| if j[f] > i[f] { high[f] } else { low[f] }).collect();
        let [own, other] = [j, i].map(|c| reference::distance(&corner, c));
        own - other > relative.mul_add(own + other + far(low, high, i), underflow)
    }

    /// Boxes and pairs of centroids, many of them with a corner between the two: no row of a box is nearer to a centroid that is
    /// left out, or as near.
    fn attack<T: Float>(seed: u64) {
        let random = &mut Random(seed);
        let (mut left_out, mut close) = (0, 0);
        for case in 0..60_000 {
            let d = 1 + case % 6;
            let sort = random.below(7);
            let vector = |random: &mut Random, mixed: bool| -> Vec<T> {
                (0..d)
                    .map(|_| {
                        let other = random.below(7);
                        random.value(if mixed { other } else { sort })
                    })
                    .collect()
            };
            let members: Vec<Vec<T>> = (0..1 + random.below(4)).map(|_| vector(random, case % 5 == 0)).collect();
            let edge = |f: usize, larger: bool| {
                members.iter().map(|x| x[f]).reduce(|a, b| if (b > a) == larger { b } else { a }).unwrap()
            };
            let low: Vec<T> = (0..d).map(|f| edge(f, false)).collect();
            let high: Vec<T> = (0..d).map(|f| edge(f, true)).collect();
            let [mut j, i] = [vector(random, case % 3 == 0), vector(random, false)];
            if case % 2 == 0 {
                // The mirror image of i at a corner, or one float next to it: a tie there.
                let upper: Vec<bool> = (0..d).map(|_| random.below(2) == 0).collect();
                for f in 0..d {
                    let corner = if upper[f] { high[f] } else { low[f] };
                    j[f] = T::from_f64(2.0 * corner.to_f64() - i[f].to_f64());
                }
                let (f, away) = (random.below(d as u64) as usize, random.below(3));
                let moved = j[f].to_f64() * (1.0 + away as f64 * T::UNIT * 2.0);
                j[f] = T::from_f64(moved);
            }
            if j.iter().chain(&i).any(|v| !v.to_f64().is_finite()) {
                continue;
            }
            for (j, i) in [(&j, &i), (&i, &j)] {
                let out = is_farther(&low, &high, j, i);
                let corners = (0..1u32 << d)
                    .map(|bits| (0..d).map(|f| if bits >> f & 1 == 1 { high[f] } else { low[f] }).collect::<Vec<_>>());
                for x in members.iter().cloned().chain(corners) {
                    let [own, other] = [j, i].map(|c| reference::distance(&x, c));
                    assert!(!out || own > other, "d {d}, sort {sort}: {own:e} beside {other:e}");
                    close += u32::from(own == other);
                }
                left_out += u32::from(out);
            }
        }
        // The cases are of all kinds.
        assert!(left_out > 10_000 && close > 1_000, "{left_out} left out, {close} ties");
    }

    unit_test!(no_row_of_a_box_is_as_near_to_a_centroid_that_is_left_out);
    fn no_row_of_a_box_is_as_near_to_a_centroid_that_is_left_out() {
        attack::<f32>(17);
        attack::<f64>(18);
    }

    unit_test!(counterexamples_to_careless_tests);
    fn counterexamples_to_careless_tests() {
        // A tie by underflow: both distances are 0 though one is smaller.
        assert!(!is_farther(&[0.0f64], &[0.0], &[2f64.powi(-540)], &[0.0]));
        // A tie by rounding.
        assert!(!is_farther(&[-1e17f64], &[-1e17], &[-0.1], &[0.1]));
        // A tie in a corner, and none elsewhere.
        assert!(!is_farther(&[0.0f32, 0.0], &[1.0, 1.0], &[2.0, 1.0], &[0.0, 1.0]));
        assert!(is_farther(&[0.0f32, 0.0], &[1.0, 1.0], &[2.5, 1.0], &[0.0, 1.0]));
        // Infinite distances.
        assert!(!is_farther(&[-1e200f64], &[1e200], &[2e200], &[-1e200]));
        // The same centroid twice.
        assert!(!is_farther(&[0.0f32], &[1.0], &[5.0], &[5.0]));
    }
}
