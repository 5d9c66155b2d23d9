//! The bound for copies of two float16 numbers each.
//!
//! ```text
//! x = h + l + r,   c = h' + l' + r'       h = fl16(x), l = fl16(x - h): what remains is about 2^-22 |x|, or 2^-24 in absolute terms
//! P = l.h' + h.l' + h.h'                  as tensor cores add them, in this order
//! ```
//! So `x.c - (l.h' + h.l' + h.h') = l.l' + r.c + (h + l).r'`. The norms of l, l', r and r' are measured, so with the splits of the
//! [first bound](super):
//!
//! ```text
//! |l.l'|       <= t |l|^2 / 2 + |l'|^2 / (2 t)
//! |r.c|        <= t |r|^2 / (2 q) + q |c|^2 / (2 t)
//! |(h + l).r'| <= t q X^2 / 2 + |r'|^2 / (2 q t)
//! ```
//! # The sums
//!
//! Let `M = sum max(|h|, 2^-14) max(|h'|, 2^-14)`, and let N be the same for the products of l and h', and of h and l'. A block of
//! [`adding`](super::adding) loses its part of A, in units of the largest power of two among its products and the sum before it.
//! The blocks of the first two products have at most N there, and those of the last one at most N + M, both beside what was lost
//! before. Each of the three products has as many blocks, those of d features filled up with zeros to whole chunks. So
//!
//! ```text
//! |P - (l.h' + h.l' + h.h')| <= A / (1 - A) (2 N + N + M)
//! M <= (|h| + w) (|h'| + w),   N <= (|l| + w) (|h'| + w) + (|h| + w) (|l'| + w)
//! M + 3 N <= X C      with   X = |h| + 3 |l| + 4 w,   C = |h'| + 3 |l'| + 4 w
//! ```
//! where A stands for three times as many features in `1 / (1 - A)`. The order matters: with the largest product first, all
//! blocks would have M. And sums begin with 0: p is added at the end, where g_h of [`own`](super::super::own) covers that.
//!
//! What remains of the bound is A: 2^-16 for 408 features on an H200, where one product has 2^-11.

use super::Fp16Bound;
use super::adding::Added;

/// Features of a chunk, which zeros fill up: a multiple of the length of every block.
const CHUNK: usize = 64;

impl Fp16Bound {
    /// The constants for two copies.
    pub fn rescoring(d: usize, added: Added, scale_exponent: i32) -> Self {
        let filled = d.next_multiple_of(CHUNK);
        let (a, all) = (added.error(filled), added.error(3 * filled));
        let first = Self::new(d, added, scale_exponent);
        Self {
            // Near what two copies leave: then both parts of each split are alike.
            share: 2f64.powi(-23),
            sum: if all < 0.5 { a / (1.0 - all) + 1.01 * super::U } else { f64::INFINITY },
            begin: 0.0,
            subnormal: 4.0 * first.subnormal,
            ..first
        }
    }
}
