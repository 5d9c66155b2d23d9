//! What lets seeding skip a row: a candidate lowers a row's distance only if the candidate is nearer than the row's nearest seed.
//!
//! Both distances are *rounded* reference distances, and the comparison is strict: `S(x, c) < D`, where D is the reference
//! distance to the nearest seed. So a test may skip a row only if it proves `S(x, c) >= D` for the rounded numbers.
//!
//! # A box of rows
//!
//! `S` is the chain `s = fma(t, t, s)`, `t = fl(x - c)`, over the features in order. Rounding to nearest is monotone: `a <= b`
//! implies `fl(a) <= fl(b)`. Let `low <= x <= high` in every feature, and let
//!
//! ```text
//! g = max(fl(low - c), fl(c - high), 0)
//! ```
//! If `c < low`, then `x - c >= low - c > 0`, so `|t| = fl(x - c) >= fl(low - c) = g`. If `c > high`, then `|t| = fl(c - x) >=
//! fl(c - high) = g`, because rounding is symmetric. Else `g = 0 <= |t|`. `fma(t, t, s)` is a rounded monotone function of `|t|`
//! and s. By induction over the features, the chain over g is at most the chain over t:
//!
//! ```text
//! B = chain over g  <=  S(x, c)      for every x of the box, as rounded numbers
//! ```
//! No error term is needed. This holds for products that underflow (both chains round them alike), and where a chain overflows:
//! if B is infinite, so is S. A box is skipped if `B >= max D`. The same argument shows that the chain over the first features
//! alone is at most the whole chain. So a chain may stop early once it has reached D.
//!
//! # Differences in float32
//!
//! `s~ = sum fl(x - c)^2` in float32, for float32 rows and candidates. See [`super::Difference`]: if nothing overflows, `|s~ - s|
//! <= gamma_(d+3)(u) s + d 2^-149`, and s is at most `S / (1 - gamma_(d+2)(v))`. (In float64 no difference or square of float32
//! values underflows.) So `S < D` implies
//!
//! ```text
//! s~ <= L = D (1 + gamma_(d+3)(u)) / (1 - gamma_(d+2)(v)) + d 2^-149
//! ```
//! and a row with `s~ > L` is skipped. Suppose that something overflows, with L finite in float32. Partial sums never fall. So
//! with an unlimited exponent the sum would be above the largest float32, hence above L: the row is skipped rightly. If L is not
//! finite, nothing is above it. No term is negative and no value is infinite at the start, so nothing is NaN.

use super::{U, V, gamma};

/// One feature's part of the distance between a candidate and the nearest point of a box: g above.
#[inline(always)]
pub fn gap(low: f64, high: f64, candidate: f64) -> f64 {
    (low - candidate).max(candidate - high).max(0.0)
}

/// The limits of the float32 differences: L above.
#[derive(Debug, Clone, Copy)]
pub struct NearLimit {
    slope: f64,
    offset: f64,
}

impl NearLimit {
    pub fn new(d: usize) -> Self {
        // Two more roundoffs cover the rounding of the limit to float32, and the evaluation in float64.
        let slope = (1.0 + gamma(d + 3, U)) / (1.0 - gamma(d + 2, V)) * (1.0 + 2.0 * U);
        Self { slope, offset: (d + 2) as f64 * 2f64.powi(-148) }
    }

    /// A candidate whose float32 sum is above this limit is not nearer than a seed at the reference distance `near`.
    #[inline(always)]
    pub fn of(&self, near: f64) -> f32 {
        // The offset is at least twice as large as its share of L. The rest covers the rounding of subnormal limits.
        near.mul_add(self.slope, self.offset) as f32
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::float::Float;
    use crate::base::random::Random;
    use crate::exact::reference;

    /// B: the chain over the gaps.
    fn least<T: Float>(lows: &[T], highs: &[T], candidate: &[T]) -> f64 {
        let boxes = lows.iter().zip(highs).zip(candidate);
        boxes.map(|((low, high), c)| gap(low.to_f64(), high.to_f64(), c.to_f64())).fold(0.0, |s, t: f64| t.mul_add(t, s))
    }

    fn boxes<T: Float>() {
        let random = &mut Random(7);
        let (mut skipped, mut rows) = (0, 0);
        for case in 0..20_000 {
            let d = [1, 2, 3, 16, 100, 300][case % 6];
            let sort = random.below(8);
            let mut vector = |mixed: bool| -> Vec<T> {
                let mut value = || {
                    let sort = if mixed { random.below(7) } else { sort };
                    random.value(sort)
                };
                (0..d).map(|_| value()).collect()
            };
            let members: Vec<Vec<T>> = (0..1 + case % 5).map(|_| vector(case % 3 == 0)).collect();
            let [candidate, seed] = [vector(case % 2 == 0), vector(false)];
            let edge = |f: usize, larger: bool| {
                members.iter().map(|x| x[f]).reduce(|a, b| if (b > a) == larger { b } else { a }).unwrap()
            };
            let lows: Vec<T> = (0..d).map(|f| edge(f, false)).collect();
            let highs: Vec<T> = (0..d).map(|f| edge(f, true)).collect();
            let least_distance = least(&lows, &highs, &candidate);
            for x in &members {
                let (s, near) = (reference::distance(x, &candidate), reference::distance(x, &seed));
                assert!(least_distance <= s, "{d}, sort {sort}: {least_distance:e} for {s:e}");
                assert_eq!(least(x, x, &candidate), s);
                skipped += u32::from(least_distance >= near);
                rows += 1;
            }
        }
        // The cases are of both kinds.
        assert!(skipped > rows / 10 && skipped < rows * 9 / 10, "{skipped} of {rows}");
    }

    unit_test!(a_box_is_never_nearer_than_its_rows);
    fn a_box_is_never_nearer_than_its_rows() {
        boxes::<f32>();
        boxes::<f64>();
    }

    unit_test!(counterexamples_to_careless_bounds);
    /// A row, its seed and a candidate that once misled a bound. The row is skipped only if the candidate is not nearer.
    fn counterexamples_to_careless_bounds() {
        let skips = |x: &[f64], seed: &[f64], candidate: &[f64]| {
            let (near, s) = (reference::distance(x, seed), reference::distance(x, candidate));
            let skipped = least(x, x, candidate) >= near;
            assert!(!(skipped && s < near));
            skipped
        };
        // Both distances underflow to 0: nothing is nearer.
        assert!(skips(&[0.0], &[2f64.powi(-540)], &[0.0]));
        assert!(skips(&[0.0], &[0.0], &[2f64.powi(-540)]));
        // The candidate is nearer as rounded numbers, though its true distance is the larger one.
        let mut seed = vec![0.0; 1_024];
        seed[0] = 1.0 + 2f64.powi(-45);
        let mut candidate = vec![2f64.powf(-26.5) * (1.0 - 2f64.powi(-20)); 1_024];
        candidate[0] = 1.0;
        assert!(!skips(&[0.0; 1_024], &seed, &candidate));
        // A difference that rounds: the box reaches from 2 to 4.
        let candidate = [-2f64.powi(53)];
        assert!(least(&[2.0], &[4.0], &candidate) <= reference::distance(&[3.0], &candidate));
        // A tie: the candidate is not nearer.
        assert!(skips(&[0.0], &[1.0], &[-1.0]));
        // Infinite distances.
        assert!(skips(&[1.4e154], &[-1.4e154], &[-1.3e154]));
        assert!(!skips(&[1.4e154], &[-1.4e154], &[1e154]));
        // Distances and not their squares.
        assert!(!skips(&[0.0], &[3.0], &[2.0]));
    }

    unit_test!(float32_differences_within_the_limit);
    /// A candidate that is nearer by the least amount is within the limit, with fused products and without.
    fn float32_differences_within_the_limit() {
        let random = &mut Random(11);
        let mut largest = 0.0f64;
        for case in 0..60_000 {
            let d = [1, 2, 9, 16, 100, 300][case % 6];
            let (limit, sort, other) = (NearLimit::new(d), random.below(8), random.below(7));
            let x: Vec<f32> = (0..d).map(|_| random.value(sort)).collect();
            let c: Vec<f32> = (0..d).map(|_| random.value(if case % 4 == 0 { other } else { sort })).collect();
            let s = reference::distance(&x, &c);
            let highest = limit.of(s.next_up());
            for fused in [false, true] {
                let sum = x.iter().zip(&c).fold(0.0f32, |s, (x, c)| {
                    let t = x - c;
                    if fused { t.mul_add(t, s) } else { s + t * t }
                });
                assert!(sum <= highest, "d {d}, sort {sort}: {sum:e} above {highest:e}");
                let allowed = f64::from(highest) - s;
                if s > 1e-30 && highest.is_finite() {
                    largest = largest.max((f64::from(sum) - s) / allowed);
                    assert!(allowed < s * 2.0 * (d + 6) as f64 * U);
                }
            }
        }
        // The bound is not much wider than it has to be.
        assert!(largest > 0.2, "{largest}");
    }
}
