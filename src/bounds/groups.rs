//! What lets a block of rows leave out centroids that are far from it, by the triangle inequality.
//!
//! A block of rows has a point m beside it, and a few centroids have one of them, q, beside them. All are values of the rows'
//! type. Let
//!
//! ```text
//! R >= |x - m|            for every row x of the block
//! U >= |x - c_a|          for every row x and some centroid c_a of its own
//! L <= |c_j - m|          for each of the few centroids: |q - m| - max_j |q - c_j|
//! ```
//! Then `|x - c_j| >= L - R`. If `L > R + U`, all rows are nearer to their own centroid. A centroid b near m does for all rows
//! where nothing better is known: `U = R + |c_b - m|`.
//!
//! # Rounding
//!
//! A sum of d squared differences in float64, added in any order, is `s = (1 +- g) D +- eta` with `g = gamma_(d+2)(v)` and `eta
//! <= d 2^-1074`. So `sqrt(s)` is within a relative g and an absolute `sqrt(d) 2^-537` of the distance. Let `e = (d + 16) 2^-52`
//! and `t = sqrt(d) 2^-535`. Then
//!
//! ```text
//! at most   sqrt(s) (1 + e) + t        at least   sqrt(s) (1 - e) - t
//! ```
//! bound the distance, with room for the roundings of these expressions and of sums of two. A block leaves j out if
//!
//! ```text
//! L (1 - e) > (R + U) (1 + e) + t
//! ```
//! with L, R and U bounds of this kind. Then `|x - c_j| > U (1 + e) + t`, because `L >= U`. So `D_j > D_a (1 + 2 e)` and `D_j >
//! D_a + d 2^-1070`: more than reference distances may be wrong by, and `S_j > S_a` as rounded numbers. Ties and the order of the
//! centroids cannot matter. Where L is not finite, nothing is left out: a sum that overflows says nothing of its size.

/// The constants of the bounds.
#[derive(Debug, Clone, Copy)]
pub struct GroupBound {
    /// e.
    relative: f64,
    /// t.
    least: f64,
}

impl GroupBound {
    pub fn new(d: usize) -> Self {
        Self { relative: (d + 16) as f64 * 2f64.powi(-52), least: (d as f64).sqrt() * 2f64.powi(-535) }
    }

    /// A distance at or above that of this sum of squares.
    #[inline(always)]
    pub fn upper(&self, sum: f64) -> f64 {
        sum.sqrt() * (1.0 + self.relative) + self.least
    }

    /// What the limits of blocks are compared with: `L (1 - e)`, from the sum of squares between q and m and the radius around q.
    /// Minus infinity if nothing is known.
    #[inline(always)]
    pub fn key(&self, sum: f64, radius: f64) -> f64 {
        let lower = sum.sqrt() * (1.0 - self.relative) - self.least - radius;
        let key = lower * (1.0 - 2.0 * self.relative);
        if lower > 0.0 && key.is_finite() { key } else { f64::NEG_INFINITY }
    }

    /// The limit of a block: centroids whose key is larger are left out.
    #[inline(always)]
    pub fn limit(&self, rows: f64, own: f64) -> f64 {
        (rows + own) * (1.0 + 2.0 * self.relative) + 2.0 * self.least
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::float::Float;
    use crate::base::random::Random;
    use crate::exact::reference;

    /// Rows, their own centroid, and another one: where it is left out, it is farther for every row, as rounded numbers.
    fn attack<T: Float>() {
        let random = &mut Random(23);
        let (mut left_out, mut close) = (0, 0);
        for case in 0..120_000 {
            let d = [1, 2, 3, 8, 40, 300][case % 6];
            let sort = random.below(8);
            let bound = GroupBound::new(d);
            let vector = |random: &mut Random| -> Vec<T> { (0..d).map(|_| random.value(sort)).collect() };
            let point = vector(random);
            // Near m, by some factor of the distance between m and another vector.
            let at = |random: &mut Random, share: f64| -> Vec<T> {
                let other = vector(random);
                let values = point.iter().zip(&other).map(|(m, o)| T::from_f64(m.to_f64() + share * (o.to_f64() - m.to_f64())));
                values.collect()
            };
            let rows: Vec<Vec<T>> = (0..3).map(|_| at(random, [0.0, 0.2, 0.5, 1.0][case / 6 % 4])).collect();
            let own = at(random, [0.0, 0.1, 0.9][case / 24 % 3]);
            let q = match case % 5 {
                // On the other side of a row, as far from it as its own centroid, or a little farther.
                0 => {
                    let factor = 1.0 + (random.below(5) as f64) * T::UNIT;
                    let mirrored = rows[0].iter().zip(&own).map(|(x, c)| x.to_f64() + factor * (x.to_f64() - c.to_f64()));
                    mirrored.map(T::from_f64).collect()
                }
                _ => at(random, 3.0),
            };
            let other = if case % 3 == 0 { q.clone() } else { at(random, 3.0) };
            let radius = bound.upper(reference::distance(&q, &other));
            let key = bound.key(reference::distance(&q, &point), radius);
            let most = |to: &[T]| rows.iter().map(|x| bound.upper(reference::distance(x, to))).fold(0.0, f64::max);
            let limit = bound.limit(most(&point), most(&own));
            if key <= limit || !(key - limit).is_finite() {
                continue;
            }
            left_out += 1;
            for x in &rows {
                let [near, far] = [reference::distance(x, &own), reference::distance(x, &other)];
                assert!(near < far, "case {case}, {d} features, sort {sort}: {near:e} and {far:e}");
                close += u32::from(far < near * 1.5);
            }
        }
        assert!(left_out > 10_000 && close > 100, "{left_out} {close}");
    }

    unit_test!(centroids_that_are_left_out_are_farther);
    fn centroids_that_are_left_out_are_farther() {
        attack::<f32>();
        attack::<f64>();
    }

    unit_test!(the_margin_is_needed);
    /// In one dimension nothing is lost: the own centroid and another one are on both sides of the row, and m is the row.
    fn the_margin_is_needed() {
        let bound = GroupBound::new(1);
        let key = |c: f64| bound.key(c * c, 0.0);
        let limit = bound.limit(0.0, bound.upper(1.0));
        assert!(key(1.0) <= limit && key(-1.0 - 1e-12) > limit);
        // Distances of 2^-540 have squares of 0.
        assert!(key(2f64.powi(-540)) <= bound.limit(0.0, bound.upper(0.0)));
        // A sum that overflows says nothing.
        assert_eq!(bound.key(f64::INFINITY, 1.0), f64::NEG_INFINITY);
        assert_eq!(bound.key(f64::NAN, 1.0), f64::NEG_INFINITY);
        assert_eq!(bound.key(4.0, 3.0), f64::NEG_INFINITY);
    }
}
