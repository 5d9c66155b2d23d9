//! The first filter of the CPU: products of copies.

use super::{U, gamma, own, up};

/// Number of features in one partial sum of the expanded form. Sums are accumulated in panels. The error bound then grows with
/// `PANEL + d / PANEL` instead of d.
pub const PANEL: usize = 64;

/// Expanded form: `p_j - x.c_j` in float32 on centred, scaled copies, with every centroid's own error. See [`own`] for the
/// statement about any such kernel. This is what the CPU's kernel is:
///
/// ```text
/// y_j = fl(fl(s_1 + s_2 + ..) + p_j),   s_i = the chain of products of panel i;   p_j is the lowered half square
/// ```
/// The scores stand for the row `x = s (x' - m)` and the centroid `c = s (c' - m)`, where m is exact and s is a power of two. The
/// copies are `x^ = fl32(s fl_T(x' - m))`. So
///
/// ```text
/// |x^ - x| <= q |x| + w,  |c^ - c| <= q |c| + w,   q = 1.001 u,  w = sqrt(d) 2^-149  (one rounding for float32, two for float64)
/// |x^.c^ - x.c|          <= 2.01 q |x| |c| + 1.01 w (|x| + |c|) + w^2
/// |y_j - (p_j - x^.c^)|  <= gamma_m(u) |x^| |c^| + 1.001 u |p_j| + d 2^-148       m = min(d, PANEL) + ceil(d / PANEL)
/// ```
/// A product goes through at most `min(d, PANEL)` roundings in its panel, whether it is fused or not. It goes through
/// `ceil(d / PANEL) - 1` additions of panel sums and the addition of `p_j`. `p_j` goes through the last of them only. With
/// `a = 1.001 (2.01 q + gamma_m(u))` the terms in `|x| |c|` are at most `a t |x|^2 / 2 + a |c|^2 / (2 t)` for every t. So
///
/// ```text
/// E_x = a t |x|^2 / 2,   e_j = a |c_j|^2 / (2 t) + (d + 4) 2^-147,   g_h = 1.001 u
/// ```
/// The absolute term covers the underflow of products and copies: `w |x| <= (w + w |x|^2) / 2`, and the factor 1.001 of a is far
/// more than the square's share. It covers the same of the row that is compared with, because it is in both e.
///
/// The two halves are equal where `t |x| = |c_j|`. If t is wrong by a factor w, the bound is wider by `(w + 1 / w) / 2`.
#[derive(Debug, Clone, Copy)]
pub struct Expanded {
    /// a, the error of a product's terms beside `|x| |c|`.
    product: f64,
    /// t.
    weight: f64,
    /// The absolute term of `e_j`.
    underflow: f64,
    reference: own::Reference,
    /// The width is `slope * square`. The slope includes the errors of the float32 value of the square: a relative one of at most
    /// `gamma_(d+2)(u)`, and an absolute one that the underflow of e covers.
    slope: f32,
}

impl Expanded {
    /// The binary logarithms of the weights t that tiles may have. Between two of them the sum of both errors is at most 1.06
    /// times the least.
    pub const WEIGHTS: [i32; 6] = [-4, -2, 0, 2, 4, 6];

    /// The bound for tiles of weight `2^weight`. Copies are scaled by `2^scale_exponent`.
    pub fn new(d: usize, scale_exponent: i32, weight: i32) -> Self {
        let (q, m) = (1.001 * U, d.min(PANEL) + d.div_ceil(PANEL));
        let product = 1.001 * (2.01 * q + gamma(m, U));
        let (weight, reference) = (2f64.powi(weight), own::Reference::new(d, scale_exponent));
        let slope = product * weight + reference.of_row(weight);
        Self {
            product,
            weight,
            underflow: (d + 4) as f64 * 2f64.powi(-147),
            reference,
            slope: up(slope * (1.0 + gamma(d + 8, U)) * 1.001),
        }
    }

    /// What the kernel adds for a centroid, and the centroid's slack. `half_square` is `|c_j|^2 / 2`, summed in float64.
    pub fn own(&self, half_square: f64, d: usize) -> own::CentroidBound {
        let error = self.product * half_square / self.weight + self.underflow;
        let reference = self.reference.of_centroid(half_square, self.weight);
        own::CentroidBound::new(half_square, 0.0, d, error * 1.001, 1.001 * U, reference)
    }

    /// What a row's error adds to the threshold: `2 E_x + r (1 + t) |x|^2`. `square` is the float32 sum of the squares of the
    /// row's copy. The width is infinite where the row is out of the filter's range.
    #[inline(always)]
    pub fn width(&self, square: f32) -> f32 {
        // Products may overflow with a square this large. Then no centroid may be ruled out. A NaN is not below either.
        if square < 1e30 { self.slope * square } else { f32::INFINITY }
    }

    /// The threshold. `best` is the float32 sum of a centroid's score and its slack. Two roundings of sums are covered: where
    /// `|best| <= 64 width` by the factor 1.001 of the slope, elsewhere by four roundoffs of the result.
    #[inline(always)]
    pub fn threshold(best: f32, width: f32) -> f32 {
        let sum = best + width;
        sum + sum.abs() * (4.0 * U as f32)
    }
}
