//! The error bounds that let a filter decide a label, one type each, with their derivation.
//!
//! A filter computes an approximate score for every centroid. `reach` is the set of centroids that the bound cannot rule
//! out: it always holds the one that the reference distance picks (and every tie with it). One centroid in reach is the
//! label; several are settled by reference distances.
//!
//! Notation: `u = 2^-24`, `v = 2^-53` (unit roundoffs), `gamma_m(u) = m u / (1 - m u)`.

/// Unit roundoff of float32.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Unit roundoff of float64.
const V: f64 = 1.0 / (1u64 << 53) as f64;

fn gamma(m: usize, u: f64) -> f64 {
    let mu = m as f64 * u;
    if mu < 0.5 { mu / (1.0 - mu) } else { f64::INFINITY }
}

/// The least float32 at or above `x >= 0`.
fn up(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) < x { y.next_up() } else { y }
}

/// Difference form: `s~ = sum fl(x - c)^2` in float32, x and c scaled by one power of two.
///
/// Each term has a relative error: `fl(x - c) = (x - c)(1 + e)`, `|e| <= u`, enters squared; one rounding of the product
/// (none with fma) and at most d of the sum. So `|s~ - s| <= gamma_(d+3)(u) s + d 2^-149`, the last term for products that
/// underflow (and for coordinates that scaling makes subnormal: such a coordinate has a square far below 2^-149 wherever its
/// error exceeds u). The reference distance is within `gamma_(d+2)(v)` of s. With g the sum of both, j can only be the label if
///
/// ```text
/// s~_j (1 - g) - d 2^-149  <=  s~_1 (1 + g) + d 2^-149
/// ```
/// for every 1, so the least s~ decides. [`Difference::threshold`] is that, solved for s~_j and rounded up.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The threshold is `best * slope + offset`.
    pub slope: f32,
    pub offset: f32,
}

impl Difference {
    pub fn new(d: usize) -> Self {
        let g = gamma(d + 3, U) + gamma(d + 2, V);
        // Four roundoffs more for evaluating the threshold in float32; twice the offset for the same reason.
        Self { slope: up((1.0 + g) / (1.0 - g) * (1.0 + 4.0 * U)), offset: up((d + 2) as f64 * 2f64.powi(-147)) }
    }

    /// Centroids whose score does not exceed this are in reach.
    pub fn threshold(&self, best: f32) -> f32 {
        best.mul_add(self.slope, self.offset)
    }
}

/// Features of one partial sum of the expanded form: sums are accumulated in panels, so an error bound grows with
/// `PANEL + d / PANEL` instead of d.
pub const PANEL: usize = 64;

/// Expanded form: `h~_j = |c_j|^2 / 2 - x.c_j` in float32 on centred, scaled copies.
///
/// With m exact and s a power of two, the row and centroid that the scores stand for are `x = s (x' - m)`, `c = s (c' - m)`;
/// `H_j = |c_j|^2 / 2 - x.c_j` orders centroids as `|x - c_j|^2` does. The copies are `x^ = fl32(s fl_T(x' - m))`, so
///
/// ```text
/// |x^ - x| <= q |x^|,  |c^ - c| <= q |c^|,   q = 1.001 u   (one rounding for float32, two for float64 features)
/// |x^.c^ - x.c|        <= |x^ - x| |c| + |x^| |c^ - c|      <= 2.01 q |x^| |c^|
/// |fl(sum) - x^.c^|    <= gamma_m(u) (|x^| |c^| + |c|^2/2)    m = PANEL + ceil(d / PANEL) + 3 roundings
/// |fl(|c|^2/2) - ..|   <= 2 u |c|^2 / 2
/// ```
/// Their sum E, with the largest `|c^|`, bounds `|h~_j - H_j|` for all j. The label is decided by *rounded* reference
/// distances, off by at most `R = (d + 2) 2^-51 (|x| + max |c|)^2 + d 2^-1074 s^2` between two of them. So j can only be the
/// label if `h~_j <= h~_1 + 2 E + R / 2`. Underflow of products and copies is far below the 2^-118 added at the end; what is not
/// finite is never below a threshold and is therefore in reach.
#[derive(Debug, Clone, Copy)]
pub struct Expanded {
    constant: f32,
    linear: f32,
    quadratic: f32,
    /// `|x|^2` in float32 is off by a relative `gamma_(d+2)(u)` and `d 2^-149`.
    norm_factor: f32,
    norm_offset: f32,
}

impl Expanded {
    /// `largest_norm`: of the copies `c^`, rounded up; `scale_exponent`: s is `2^scale_exponent`.
    pub fn new(d: usize, largest_norm: f64, scale_exponent: i32) -> Self {
        const SLACK: f64 = 1.001;
        let c = largest_norm * SLACK;
        let q = 1.001 * U;
        let g = gamma(PANEL + d.div_ceil(PANEL) + 3, U);
        // R / 2 = r (|x| + c)^2 + underflow
        let r = 0.5 * (d + 2) as f64 * 2f64.powi(-51) * SLACK;
        let underflow = d as f64 * 2f64.powf(2.0 * f64::from(scale_exponent) - 1074.0);
        let linear = 2.0 * (2.01 * q + g) * c + 2.0 * r * c;
        let constant = (g + 2.0 * U) * c * c + r * c * c + underflow + 2f64.powi(-118);
        Self {
            constant: up(constant * SLACK),
            linear: up(linear * SLACK),
            quadratic: up(r * SLACK),
            norm_factor: up(1.0 + gamma(d + 8, U)),
            norm_offset: up((d + 2) as f64 * 2f64.powi(-149)),
        }
    }

    /// How far above the best score a centroid may be and still be in reach; `square` is the float32 sum of the squares of
    /// the row's copy. Infinite or NaN where the row is out of the filter's range.
    #[inline(always)]
    pub fn width(&self, square: f32) -> f32 {
        let norm = (square * self.norm_factor + self.norm_offset).sqrt();
        let width = (self.quadratic * norm + self.linear) * norm + self.constant;
        // A norm this large may overflow in the products: let nothing be ruled out.
        if norm < 1e15 { width * 1.000_01 } else { f32::INFINITY }
    }

    /// The threshold for a best score; four roundoffs cover the addition.
    #[inline(always)]
    pub fn threshold(best: f32, width: f32) -> f32 {
        let sum = best + width;
        sum + sum.abs() * (4.0 * U as f32)
    }
}

/// [`Expanded`] for kernels that know of a row only the square of its norm, and find the largest `|c^|` themselves.
///
/// A chain without panels has d roundings, one with panels fewer: `g = gamma_(roundings + 3)(u)`. With `S >= |x|^2` and C the largest `|c|`, `|x| <= S / 2C + C / 2` makes the
/// width linear in S: with K, L and Q the constant, linear and quadratic terms of [`Expanded`]
///
/// ```text
/// Q |x|^2 + L |x| + K <= (Q + L / 2C) S + (K + L C / 2)
/// ```
/// which is tight where the row is as long as the longest centroid. The roundings of the comparison, at most `4 u |best + width|`,
/// are in it too: `|best| <= |x| C + C^2 / 2 + E <= S / 2 + C^2 + E`. A row so long that its scores overflow has a square that
/// overflows first, and a limit that nothing is above.
#[derive(Debug, Clone, Copy)]
pub struct ExpandedTerms {
    /// g.
    pub rounding: f64,
    /// r, of `R / 2 = r (|x| + c)^2`.
    pub reference: f64,
    /// Of the reference distance, in scaled units.
    pub underflow: f64,
    /// `S = norm_factor * square + norm_offset` for a float32 sum of squares of the copy.
    pub norm_factor: f64,
    pub norm_offset: f64,
}

impl ExpandedTerms {
    /// `roundings`: of a score's sum, one after another; `scale_exponent`: copies are scaled by `2^scale_exponent`.
    pub fn new(d: usize, roundings: usize, scale_exponent: i32) -> Self {
        Self {
            rounding: gamma(roundings + 3, U),
            reference: 0.5 * (d + 2) as f64 * 2f64.powi(-51) * 1.001,
            underflow: d as f64 * 2f64.powf(2.0 * f64::from(scale_exponent) - 1074.0),
            norm_factor: 1.0 + gamma(d + 8, U),
            norm_offset: (d + 2) as f64 * 2f64.powi(-149),
        }
    }

    /// What is not above `best + slope * square + offset` is in reach; `largest_half_square`: of the centroids. As `make_bound` of
    /// `kernels/update.cu`; an offset of infinity rules nothing out.
    pub fn bound(&self, largest_half_square: f64) -> (f32, f32) {
        const SLACK: f64 = 1.001;
        let c = (2.0 * largest_half_square).sqrt() * (1.0 + 1e-6) * SLACK;
        let (q, g, r) = (1.001 * U, self.rounding, self.reference);
        let constant = (g + 2.0 * U) * c * c + r * c * c + self.underflow + 2f64.powi(-118);
        let linear = 2.0 * (2.01 * q + g) * c + 2.0 * r * c;
        let slope = r + if c > 0.0 { linear / (2.0 * c) } else { 0.0 } + 2.02 * U;
        let offset = constant + 0.5 * linear * c + 4.04 * U * c * c;
        (up(slope * self.norm_factor * SLACK), up((offset + slope * self.norm_offset) * SLACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_above_the_best() {
        for d in [1, 4, 8, 300, 5_000] {
            let bound = Difference::new(d);
            for best in [0.0f32, 1e-45, 1e-30, 1.0, 1e30] {
                assert!(bound.threshold(best) > best, "{d} {best}");
            }
            let bound = Expanded::new(d, 1.0, 0);
            assert!(bound.width(0.0) > 0.0 && bound.width(1.0) < 0.01 && bound.width(f32::INFINITY) == f32::INFINITY);
            assert!(bound.width(f32::NAN).is_infinite());
        }
    }

    /// The linear bound is never below the quadratic one that it comes from.
    #[test]
    fn the_linear_bound_is_a_bound() {
        for d in [1, 4, 16, 100, 1_000] {
            for c in [1e-6, 0.1, 1.0, 3.0] {
                let terms = ExpandedTerms::new(d, d, 0);
                let (slope, offset) = terms.bound(0.5 * c * c);
                let (g, r, q) = (terms.rounding, terms.reference, 1.001 * U);
                for square in [0.0f32, 1e-12, 1e-3, 1.0, 9.0, 1e12] {
                    let norm = f64::from(square).sqrt();
                    let constant = (g + 2.0 * U + r) * c * c + terms.underflow;
                    let width = (r * norm + 2.0 * (2.01 * q + g + r) * c) * norm + constant;
                    let linear = f64::from(square.mul_add(slope, offset));
                    assert!(linear >= width && linear <= 1e-3 * (norm + c) * (norm + c), "{d} {c} {square}: {linear} {width}");
                }
                assert!(f32::INFINITY.mul_add(slope, offset) == f32::INFINITY);
            }
        }
    }

    #[test]
    fn a_width_too_large_for_its_bound_is_infinite() {
        assert!(gamma(1 << 24, U).is_infinite());
    }
}
