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
//! In units of `s_x s_c`, what orders the centroids is `H_j = (s_x / s_c) |c_j|^2 / 2 - x.c_j`. The kernel computes y_j: tensor
//! cores begin with p_j and add the products of copies, those of the centroid with the other sign, with `|y_j - (p_j - x^.c^_j)|
//! <= A / (1 - A) (|p_j| + |x^| |c^_j|)`. Other kernels begin with 0 and add p at the end, `y_j = fl(p_j + sum)`. Both ways
//!
//! ```text
//! |x^.c^_j - x.c_j| <= dx |c_j| + |x^| dc_j
//! |y_j - (p_j - x.c_j)| <= E_x + e_j + B |p_j|            with B = A / (1 - A) + 1.01 u and, for every positive q and t,
//!
//! E_x = t / 2 (dx^2 / q + (q + B) X^2)                    X   = |x^| + dx + w
//! e_j = (q |c_j|^2 + dc_j^2 / q + B C^2) / (2 t)          C   = |c^_j| + w
//! ```
//! by `2 a b <= t a^2 + b^2 / t` for each of the four products of a norm of the row and one of the centroid: `dx |c|` splits into
//! `t dx^2 / q` and `q |c|^2 / t`, `|x^| dc` into `t q X^2` and `dc^2 / (q t)`. `|p_j|` is at most the half square h or what is
//! taken off it, so `(e_j + B h) / (1 - B)` in place of e_j covers `B |p_j|`. So [`own`](super::own) holds, with the half
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
//!
//! The distances of centroids from m are those of float32 arithmetic. Differences are made in the feature type, scaled, and
//! rounded to float32. The sum of d squares has at most `d + 3` roundings, so a distance is within the factor `1 + radius` of the
//! true one, where `radius` is four times that. A square below 2^-126 may be lost: that moves a distance by less than `sqrt(d)
//! 2^-63`, far less than the 1e-12 that the limit has to spare. A square that is not finite is at least `1.8e19 ^ 2`, so its
//! centroid counts as 1.8e19 away.
//!
//! # A second product
//!
//! [`rescoring`](Fp16Bound::rescoring) is the bound for copies of two float16 numbers each. The rows that the first bound leaves
//! in doubt among many centroids are multiplied so again.

pub mod adding;
#[cfg(feature = "tests")]
mod attacks;
mod rescore;

pub use self::adding::Added;
use super::own::{CentroidBound, Reference};
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
    /// B, or 0 if sums surely begin with 0 and p is added at the end.
    pub begin: f64,
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
        let sum = if a < 0.25 { a / (1.0 - a) + 1.01 * U } else { f64::INFINITY };
        Self {
            share: 2f64.powi(-12),
            sum,
            begin: if sum < f64::INFINITY { sum } else { 0.0 },
            subnormal: (d as f64).sqrt() * 2f64.powi(-14) * 1.001,
            half: (d + 16) as f64 * V,
            least: (d + 2) as f64 * 2f64.powi(-125),
            radius: (d + 16) as f64 * 2.0 * U,
            reference: Reference::new(d, scale_exponent),
        }
    }

    /// The row's part of the bound for t = 1. `tensor_rows` in `kernels/step/tensor_rows.cu` computes the same.
    #[inline(always)]
    pub fn of_row(&self, norms: Norms) -> f64 {
        let Norms { high, low, rest } = norms;
        let norm = high + 3.0 * low + rest + self.subnormal;
        (rest * rest / self.share + (self.share + self.sum) * norm * norm + low * low) * 1.000_01
    }

    /// What belongs to a centroid. `square`: its squared norm. `ratio`: the row's scale over the centroid's. `copy_centroid` in
    /// `kernels/step/tensor_copies.cuh` computes the same.
    pub fn own(&self, square: f64, norms: Norms, ratio: f64, balance: f64) -> CentroidBound {
        let (rest, low) = (norms.rest + 1.2e-16 * square.sqrt(), norms.low);
        let copy = norms.high + 3.0 * low + self.subnormal;
        let own = self.share * square + rest * rest / self.share + self.sum * copy * copy + low * low;
        let half = 0.5 * ratio * square;
        let error = 1.000_01 * ((own / (2.0 * balance) + self.least + self.begin * half) / (1.0 - self.begin));
        let reference = 4.0 * self.reference.relative * half + self.reference.underflow;
        CentroidBound::of_copies(half, self.half, error, reference)
    }
}

/// The norms of a copy, of the copy of what it leaves (0 if there is none), and of what remains.
#[derive(Debug, Clone, Copy)]
pub struct Norms {
    pub high: f64,
    pub low: f64,
    pub rest: f64,
}
