//! Half-precision products, with every centroid's own error and a centre for each group of rows, on tensor cores.
//!
//! A group of rows shares a centre m and two powers of two, `s_x` for rows and `s_c <= s_x` for centroids. m holds values of the
//! feature type, so rows and centroids subtract the same bits. Let `x = s_x (x' - m)` and `c_j = s_c (c'_j - m)`, exact, and let
//! the copies be
//!
//! ```text
//! x^ = fl16(s_x fl_T(x' - m)),  c^_j = fl16(s_c (c'_j - m) in float64),  |x - x^| <= dx,  |c_j - c^_j| <= dc_j
//! ```
//! dx and dc are measured, not estimated: they are norms of the residuals that the rounding leaves, with the roundings of the
//! subtraction. A copy that is not finite counts as 0 with an infinite residual.
//!
//! In units of `s_x s_c`, what orders the centroids is `H_j = (s_x / s_c) |c_j|^2 / 2 - x.c_j`. The kernel computes `y_j =
//! fl(p_j - P_j)`, where P_j is the sum of products of copies as tensor cores add them, with `|P_j - x^.c^_j| <= A / (1 -
//! A) |x^| |c^_j|`. Then
//!
//! ```text
//! |x^.c^_j - x.c_j| <= dx |c_j| + |x^| dc_j
//! |y_j - (p_j - x.c_j)| <= E_x + e_j + 1.001 u |p_j|      with B = A / (1 - A) + 1.01 u and, for every positive q and t,
//!
//! E_x = t / 2 (dx^2 / q + (q + B) X^2)                    X   = |x^| + dx + w
//! e_j = (q |c_j|^2 + dc_j^2 / q + B C^2) / (2 t)          C   = |c^_j| + w
//! ```
//! by `2 a b <= t a^2 + b^2 / t` for each of the four products of a norm of the row and one of the centroid: `dx |c|` splits into
//! `t dx^2 / q` and `q |c|^2 / t`, `|x^| dc` into `t q X^2` and `dc^2 / (q t)`. So [`own`](super::own) holds, with the half
//! square `(s_x / s_c) |c_j|^2 / 2`. q is near the relative rounding of a copy: then both parts of each are alike. `w = sqrt(d)
//! 2^-14` covers what tensor cores do to subnormal copies: they align them as if they were larger.
//!
//! The reference distance in these units is `s_x s_c D = (s_c / s_x) |x|^2 ...`, at most `2 |x|^2 s_c / s_x + 2 (s_x /
//! s_c) |c_b|^2`. So the row's part of it, `2 r |x|^2`, is below 2^-18 of E_x for up to 2^16 features and t from 2^-6 on: less
//! than half of the factor 1.00001 that the kernels put on E_x. The centroid's is `4 r` half squares.
//!
//! # How tensor cores add
//!
//! [`adding`] says what is assumed, and how each device and instruction is asked for it at first use. On an H200 A is `ceil(d
//! / 16) 21 2^-25`.
//!
//! # Limits
//!
//! The threshold of [`own`](super::own) is valid for every centroid b. So the kernel need not know the best one: it keeps a limit
//! for each row, and every tile of centroids may lower it to its least score, plus the largest F of the tile, plus the row's
//! part. A lower limit is still a threshold. What is above the limit of any moment is above the last one, so a tile without a
//! score up to the limit is done.
//!
//! # Which centroids a group needs
//!
//! Let R be at least the distance of every row with a copy from m, and b the centroid nearest to m. A row is at most `R + |c_b -
//! m|` from b, and at least `|c_j - m| - R` from j. If `|c_j - m| > 2 R + |c_b - m| + 2 sqrt(n)`, by more than all roundings,
//! then `S_j > S_b` as rounded numbers: j is not the label of any row of the group. No tie is lost, because the inequality is
//! strict. n is what a reference distance loses below the least float64 (`Reference::underflow`): two distances that differ by
//! more than `2 sqrt(n)` have squares that differ by more than `2 n`. Without it, distances near 2^-540 are all 0, and a tie
//! would lose its smallest index.

pub mod adding;

pub use self::adding::Added;
use super::own::{Own, Reference};
use super::{U, V};

/// The most features for which the row's part of a reference distance is far below its part of the bound.
pub const MOST_FEATURES: usize = 1 << 16;

/// The constants of the bound.
#[derive(Debug, Clone, Copy)]
pub struct Fp16Bound {
    /// q.
    pub share: f64,
    /// B.
    pub sum: f64,
    /// w.
    pub subnormal: f64,
    /// The relative error of a half square in float64.
    pub half: f64,
    /// The least error of a centroid.
    pub least: f64,
    /// The relative error of a float32 sum of squares of differences, as a distance.
    pub radius: f64,
    pub reference: Reference,
}

impl Fp16Bound {
    /// `added`: how the tensor cores add. `scale_exponent`: of the power of two that all rows and centroids were scaled by
    /// before.
    pub fn new(d: usize, added: Added, scale_exponent: i32) -> Self {
        let a = added.error(d);
        Self {
            share: 2f64.powi(-12),
            sum: if a < 0.5 { a / (1.0 - a) + 1.01 * U } else { f64::INFINITY },
            subnormal: (d as f64).sqrt() * 2f64.powi(-14) * 1.001,
            half: (d + 16) as f64 * V,
            least: (d + 2) as f64 * 2f64.powi(-125),
            radius: (d + 16) as f64 * 2.0 * U,
            reference: Reference::new(d, scale_exponent),
        }
    }

    /// The row's part of the bound for t = 1. `copy`: the norm of its copy. `rest`: that of what rounding left. `tensor_rows` in
    /// `kernels/step/tensor_rows.cu` computes the same.
    #[inline(always)]
    pub fn of_row(&self, copy: f64, rest: f64) -> f64 {
        let norm = copy + rest + self.subnormal;
        (rest * rest / self.share + (self.share + self.sum) * norm * norm) * 1.000_01
    }

    /// What belongs to a centroid. `square`: its squared norm. `copy`, `rest`: as above. `ratio`: the row's scale over the
    /// centroid's. `tensor_centroids` in `kernels/step/tensor_centroids.cu` computes the same.
    pub fn own(&self, [square, copy, rest]: [f64; 3], ratio: f64, balance: f64) -> Own {
        let (rest, copy) = (rest + 1.2e-16 * square.sqrt(), copy + self.subnormal);
        let own = self.share * square + rest * rest / self.share + self.sum * copy * copy;
        let error = 1.000_01 * (own / (2.0 * balance) + self.least);
        let half = 0.5 * ratio * square;
        let reference = 4.0 * self.reference.relative * half + self.reference.underflow;
        Own::of_copies(half, self.half, error, reference)
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::adding::Way;
    use super::*;
    use crate::base::random::Random;
    use crate::exact::reference;

    /// The sum of twelve numbers below 1, less its mean.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
    }

    /// The nearest float16, or 0 for what is too large.
    fn half(x: f64) -> f64 {
        let exponent = if x == 0.0 { -14 } else { (crate::exact::fixed::frexp(x).1 - 1).max(-14) };
        let quantum = 2f64.powi(exponent - 10);
        let rounded = (x / quantum).round_ties_even() * quantum;
        if rounded.abs() < 65_505.0 { rounded } else { 0.0 }
    }

    struct Copy {
        values: Vec<f64>,
        square: f64,
        copy: f64,
        rest: f64,
    }

    fn copy(exact: &[f64]) -> Copy {
        let values: Vec<f64> = exact.iter().map(|&v| half(v)).collect();
        let square = |all: &[f64]| all.iter().map(|v| v * v).sum::<f64>();
        let rest: Vec<f64> = exact.iter().zip(&values).map(|(a, b)| a - b).collect();
        Copy { square: square(exact), copy: square(&values).sqrt(), rest: square(&rest).sqrt(), values }
    }

    unit_test!(the_label_is_in_reach);
    /// The label is in reach of every threshold: rows and centroids of all kinds, near ties among them.
    fn the_label_is_in_reach() {
        let random = &mut Random(9);
        let (mut tightest, mut far) = (f64::INFINITY, 0);
        for case in 0..30_000 {
            let d = [1, 2, 15, 16, 17, 64, 130, 408][case % 8];
            let kind = case / 8 % 6;
            let centre: Vec<f32> = (0..d).map(|_| (normal(random) * if kind == 1 { 1e4 } else { 1.0 }) as f32).collect();
            let point = |random: &mut Random, spread: f64| -> Vec<f32> {
                centre.iter().map(|&m| m + (spread * normal(random)) as f32).collect()
            };
            let spread = [1.0, 0.01, 1.0, 1.0, 1e-20, 1e15][kind];
            let mut centroids: Vec<Vec<f32>> = (0..4).map(|_| point(random, spread)).collect();
            if kind == 2 {
                centroids[3] = point(random, 1e6);
            }
            let x: Vec<f32> = match kind {
                // Between two centroids, or next to that.
                3 => {
                    let moved = (random.unit() * d as f64) as usize;
                    let middle = |f: usize| ((f64::from(centroids[0][f]) + f64::from(centroids[1][f])) / 2.0) as f32;
                    (0..d).map(|f| if f == moved { middle(f).next_up() } else { middle(f) }).collect()
                }
                _ => point(random, spread),
            };
            // Both scales bring the largest norm to between 2^14 and 2^15.
            let exact = |v: &[f32], s: f64| -> Vec<f64> {
                v.iter().zip(&centre).map(|(&v, &m)| (f64::from(v) - f64::from(m)) * s).collect()
            };
            let rounded =
                |v: &[f32], s: f64| -> Vec<f64> { v.iter().zip(&centre).map(|(&v, &m)| f64::from(v - m) * s).collect() };
            let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
            let scale = |largest: f64| if largest > 0.0 { 2f64.powi(15 - crate::exact::fixed::frexp(largest).1) } else { 1.0 };
            let s_x = scale(norm(&exact(&x, 1.0)));
            let s_c = scale(centroids.iter().map(|c| norm(&exact(c, 1.0))).fold(0.0, f64::max)).min(s_x);
            // Every way of adding with its own bound, and each of them with the wide one.
            let ways: Vec<Way> = adding::ways().collect();
            let way = ways[case / 3 % ways.len()];
            let bound = Fp16Bound::new(d, if case / 5 % 2 == 0 { way.added() } else { Added::Otherwise }, 0);
            let row = copy(&rounded(&x, s_x));
            let rest = row.rest + 1.001 * 6e-8 * (row.copy + row.rest);
            let balance = [1.0, 0.25, 8.0][case % 3];
            let term = bound.of_row(row.copy, rest) * balance;
            let scored: Vec<_> = (centroids.iter())
                .map(|c| {
                    let c = copy(&exact(c, s_c));
                    let own = bound.own([c.square, c.copy, c.rest], s_x / s_c, balance);
                    ((f64::from(own.folded) - way.sum(&row.values, &c.values)) as f32, own.margin)
                })
                .collect();
            let flat: Vec<f32> = centroids.concat();
            let label = reference::nearest(&x, &flat).label as usize;
            for &(score, margin) in &scored {
                let limit = f64::from(score) + f64::from(margin) + term;
                let spare = limit - f64::from(scored[label].0);
                assert!(spare >= 0.0, "case {case}, d = {d}, kind {kind}: {spare}");
                tightest = tightest.min(spare / limit.abs().max(term));
            }
            let best = scored.iter().map(|s| s.0).fold(f32::INFINITY, f32::min);
            far += usize::from(scored.iter().filter(|s| f64::from(s.0) > f64::from(best) + 3.0 * term).count() >= 1);
        }
        // The bound is used, and it tells centroids apart.
        assert!(tightest < 0.05 && far > 20_000, "{tightest} {far}");
    }
}
