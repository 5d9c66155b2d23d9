//! Copies in bytes or in words of 16 bits on CPUs, with every centroid's own error and a centre for each group of rows.
//!
//! A group of rows shares a centre m, whose values have the feature type. So rows and centroids subtract the same bits. All of a
//! session share a power of two s. Let `x = s (x' - m)` and `c_j = s (c'_j - m)`, exact. Each row and each centroid has a float32
//! step of its own, and its copy is
//!
//! ```text
//! x^ = a X,  c^_j = b_j Y_j       bytes: integers X and Y from -127 to 127,  a = max |x| / 127,  b_j = max |c_j| / 127
//!                                 words: integers with |X|, |Y| < 46,300,    a = |x| / 45,000,   b_j = |c_j| / 45,000,
//!                                        or max / 32,767 if that is more
//! |x - x^| <= dx,  |c_j - c^_j| <= dc_j
//! ```
//! dx and dc are measured, not estimated: they are norms of the residuals that the rounding leaves, with the roundings of the
//! subtraction.
//!
//! `P_j = X.Y_j` is an exact 32-bit integer for up to 2^16 features: bytes have `127^2 2^16 < 2^31`, and words `|X| |Y| < 2^31`,
//! because rounding adds at most `sqrt(2^16) / 2` to 45,000, and float32 norms are wrong by at most half a percent. The sums on
//! the way may wrap around, because units add modulo 2^32. Where a unit takes bytes of rows without signs, they are multiplied as
//! `X + 128`, and sums start at `-128 sum_f Y_jf`. The score is
//!
//! ```text
//! y_j = fl(fl(fl(P_j) a) b_j + p_j)        |y_j - (p_j - x^.c^_j)| <= 5.01 u |x^| |c^_j| + 1.001 u |p_j|
//! ```
//! where signs are those of negated centroids, and the last operation is fused or not. What underflows is below 2^-125: a and b
//! are 0 or at least 2^-66, so `fl(P_j) a` is 0 or normal. Then
//!
//! ```text
//! |x^.c^_j - x.c_j| <= dx |c_j| + |x^| dc_j
//! |y_j - (p_j - x.c_j)| <= E_x + e_j + 1.001 u |p_j|      with B = 5.01 u and, for every positive q and t,
//!
//! E_x = t / 2 (dx^2 / q + (q + B) X^2)                    X = |x^| + dx
//! e_j = (q |c_j|^2 + dc_j^2 / q + B |c^_j|^2) / (2 t)
//! ```
//! by `2 a b <= t a^2 + b^2 / t` for each of the products of a norm of the row and one of the centroid. So [`own`](super::own)
//! holds. q and t are shared by a group in one assign. t makes both halves alike, and q both parts of each half: it is near the
//! relative residual of a copy. A row keeps `X^2` and `dx^2`, and its error is made of them in each assign.
//!
//! The row's part of the error of a reference distance is `r (1 + t) |x|^2` with `r = 1.01 (d + 2) 2^-53`. For up to 2^16
//! features, t from 2^-4 on and q from 2^-14 on, it is below `2^-18` of `2 E_x >= t q X^2`: less than half of the factor 1.00001
//! that the norms have. The centroid's is `r (1 + 1 / t) |c_j|^2`.
//!
//! For bytes, q is 2^-8 to 2^-6, depending on the data. For words it is near `sqrt(d / 12) / 45,000`, less than 2^-12 for a
//! thousand features, unless a few numbers make up the whole norm. So bytes leave more rows in doubt, and have twice the products
//! in an instruction.

use super::own::{CentroidBound, Reference};
use super::{U, V};

/// The most features: sums are exact, and the row's part of a reference distance is far below its part of the bound.
pub const MOST_FEATURES: usize = 1 << 16;
/// The least largest number of a row or centroid whose copy is not 0. Squares of numbers far below underflow.
pub const LEAST_NUMBER: f64 = 1.0 / (1u64 << 50) as f64;
/// The least q.
pub const LEAST_SHARE: f64 = 1.0 / (1u64 << 14) as f64;
/// The binary logarithms of t.
pub const BALANCES: [f64; 2] = [-4.0, 6.0];

/// B. If U were 0.97 U in this bound, no answer would change. With the thousandth of `slopes`, `E_x + e_j` is above the products
/// of norms by at least `0.000999 q X |c_j|`: `1.001 a^2 + b^2 - 2 a b` is at least `0.001 a^2`, which we take for
/// `a^2 = t q X^2 / 2`, and at least `0.000999 b^2`, which we take for `b^2 = q |c_j|^2 / (2 t)`. As q is at least 2^-14, this is
/// more than `U X |c_j|`. Three percent of the terms with U are less: `0.4 U X |c_j|`, and a quarter of the thousandth for the sums
/// of 2^16 squares.
const SUM: f64 = 5.01 * U;
/// Covers what is far below a bound, and the roundings of its own computation.
const AROUND: f64 = 1.000_01;

/// The bound for the rows and centroids of a group in one assign.
#[derive(Debug, Clone, Copy)]
pub struct DotBound {
    d: usize,
    /// q.
    share: f64,
    /// t.
    balance: f64,
    reference: Reference,
}

impl DotBound {
    /// `scale_exponent`: of s. `share`, `balance`: q and t, which any values may be, but suitable ones leave less doubt.
    pub fn new(d: usize, scale_exponent: i32, share: f64, balance: f64) -> Self {
        let [least, most] = BALANCES.map(f64::exp2);
        Self {
            d,
            share: share.clamp(LEAST_SHARE, 1.0),
            balance: balance.clamp(least, most),
            reference: Reference::new(d, scale_exponent),
        }
    }

    /// What a row keeps, `X^2` and `dx^2`, rounded up. `copy` and `rest` are sums of the squares of its copy and of what rounding
    /// left, of d features, in float32.
    #[inline(always)]
    pub fn of_row(d: usize, copy: f32, rest: f32) -> [f32; 2] {
        // Each square has a rounding, and the sum d. Squares of residuals may underflow.
        let (around, least) = (1.0 + (d + 8) as f64 * 2.0 * U, d as f64 * 2f64.powi(-140));
        let copy = (f64::from(copy) * around).sqrt();
        let rest = (f64::from(rest) * around + least).sqrt();
        // A value's difference from m, the product of the step and a number, and the residual have a rounding each.
        let rest = rest + 3.03 * U * (copy + rest);
        let norm = copy + rest;
        [norm * norm, rest * rest].map(|square| super::up(square * AROUND))
    }

    /// What `X^2` and `dx^2` are multiplied by for `2 E_x`. The factor covers two roundings of a threshold: see
    /// `Expanded::threshold`.
    pub fn slopes(&self) -> [f32; 2] {
        [self.share + SUM, 1.0 / self.share].map(|slope| super::up(1.001 * self.balance * slope))
    }

    /// What belongs to a centroid: sums of squares in float64 of its values, of its copy and of what rounding left.
    pub fn own(&self, [square, copy, rest]: [f64; 3]) -> CentroidBound {
        let Self { d, share, balance, reference } = *self;
        let around = (d + 16) as f64 * V;
        // Differences, and products of a step and an integer, have a rounding each.
        let rest = rest.sqrt() + 4.0 * V * (square.sqrt() + copy.sqrt());
        let own = share * square + rest * rest / share + SUM * copy;
        let error = AROUND * (own / (2.0 * balance) + (d + 2) as f64 * 2f64.powi(-125));
        let of_reference = reference.relative * (1.0 + 1.0 / balance) * square + reference.underflow;
        CentroidBound::of_copies(0.5 * square, around, error, of_reference)
    }
}
