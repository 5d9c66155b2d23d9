//! Half-precision products on tensor cores, with every centroid's own error and a centre for each group of rows.
//!
//! A group of rows shares a centre m and two powers of two, `s_x` for rows and `s_c <= s_x` for centroids. m holds values of the feature
//! type, so rows and centroids subtract the same bits. Let `x = s_x (x' - m)` and `c_j = s_c (c'_j - m)`, exact, and let the copies be
//!
//! ```text
//! x^ = fl16(s_x fl_T(x' - m)),  c^_j = fl16(s_c (c'_j - m) in float64),  |x - x^| <= dx,  |c_j - c^_j| <= dc_j
//! ```
//! dx and dc are measured, not estimated: they are norms of the residuals that the rounding leaves, with the roundings of the
//! subtraction. A copy that is not finite counts as 0 with an infinite residual.
//!
//! In units of `s_x s_c`, what orders the centroids is `H_j = (s_x / s_c) |c_j|^2 / 2 - x.c_j`. The kernel computes `y_j = fl(p_j - P_j)`,
//! where P_j is the sum of products of copies as tensor cores add them, with `|P_j - x^.c^_j| <= A / (1 - A) |x^| |c^_j|`. Then
//!
//! ```text
//! |x^.c^_j - x.c_j| <= dx |c_j| + |x^| dc_j
//! |y_j - (p_j - x.c_j)| <= E_x + e_j + 1.001 u |p_j|      with B = A / (1 - A) + 1.01 u and, for every positive q and t,
//!
//! E_x = t / 2 (dx^2 / q + (q + B) X^2)                    X   = |x^| + dx + w
//! e_j = (q |c_j|^2 + dc_j^2 / q + B C^2) / (2 t)          C   = |c^_j| + w
//! ```
//! by `2 a b <= t a^2 + b^2 / t` for each of the four products of a norm of the row and one of the centroid: `dx |c|` splits into
//! `t dx^2 / q` and `q |c|^2 / t`, `|x^| dc` into `t q X^2` and `dc^2 / (q t)`. So [`own`](super::own) holds, with the half square
//! `(s_x / s_c) |c_j|^2 / 2`. q is near the relative rounding of a copy: then both parts of each are alike. `w = sqrt(d) 2^-14` covers
//! what tensor cores do to subnormal copies: they align them as if they were larger.
//!
//! The reference distance in these units is `s_x s_c D = (s_c / s_x) |x|^2 ...`, at most `2 |x|^2 s_c / s_x + 2 (s_x / s_c) |c_b|^2`. So the
//! row's part of it, `2 r |x|^2`, is below 2^-20 of E_x for up to 2^16 features, and the centroid's is `4 r` half squares.
//!
//! # How tensor cores add
//!
//! On an H200, `wgmma` and cuBLAS add 16 products and the accumulator at a time: all are aligned to the largest exponent and cut towards
//! zero at 2^(largest - 25), and the result is cut to 24 bits. So each run of 16 features loses at most `21 2^-25` of the sum of all
//! magnitudes: `A = ceil(d / 16) 21 2^-25`. Other tensor cores were not measured. For them `A = (d + 2 ceil(d / 4)) 2^-23`.
//!
//! # Keys
//!
//! A key is a score whose lowest five bits hold a number. It differs from the score by less than `2^-18` of either. Let `f = 2^-17`, L the
//! threshold of [`own`](super::own) with `y_b` replaced by `key_b + f |key_b|`, and `L' = L + f |L|`. If `y_j <= L`, then `key_j <= L'`: for
//! `y_j >= 0` because `y_j (1 + 2^-18) <= L + f |L|`; for `y_j < 0` because `key_j <= y_j (1 - 2^-18)`, which is negative if L is not, and
//! else at most `L (1 - 2^-18)`.
//!
//! # Which centroids a group needs
//!
//! Let R be at least the distance of every row of the group from m, and b the centroid nearest to m. A row is at most `R + |c_b - m|` from
//! b, and at least `|c_j - m| - R` from j. If `|c_j - m| > 2 R + |c_b - m|`, by more than all roundings, then `S_j > S_b` as rounded
//! numbers: j is not the label of any row of the group. No tie is lost, because the inequality is strict.

use super::own::Reference;
use super::{U, V};

/// The most features for which the row's part of a reference distance is far below its part of the bound.
pub const MOST_FEATURES: usize = 1 << 16;

/// The constants of the bound.
#[derive(Debug, Clone, Copy)]
pub struct Halves {
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

impl Halves {
    /// `added`: how the tensor cores add. `scale_exponent`: of the power of two that all rows and centroids were scaled by before.
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
}

/// How tensor cores add up products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// As measured on an H200.
    Hopper,
    /// Not measured.
    Unknown,
}

impl Added {
    /// A: the error of a sum beside the norms of its factors.
    fn error(self, d: usize) -> f64 {
        match self {
            Self::Hopper => d.div_ceil(16) as f64 * 21.0 * 2f64.powi(-25),
            Self::Unknown => (d + 2 * d.div_ceil(4)) as f64 * 2f64.powi(-23),
        }
    }
}
