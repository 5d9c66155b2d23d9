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

/// How a kernel adds up the d products of a score, and `|c|^2 / 2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chains {
    /// One chain that starts at the half square: every product may go through d roundings, and the half square through d.
    FromHalf,
    /// One chain of products, then the half square.
    One,
    /// A chain for every so many features (a multiple of 16), whose sums are added up one after another; then the half square.
    Panels(usize),
}

impl Chains {
    /// As `weight_of` of `kernels/common.cuh` wants it.
    pub fn panel(self) -> usize {
        match self {
            Self::FromHalf => 0,
            Self::One => i32::MAX as usize,
            Self::Panels(panel) => panel,
        }
    }

    /// What feature `f` weighs in the squares of norms: at least the roundings of its product, and five; see [`ExpandedTerms`]. As
    /// `weight_of` of `kernels/common.cuh`: one weight for 16 features.
    pub fn weight(self, f: usize, d: usize) -> usize {
        let (group, panel) = (f & !15, self.panel());
        match self {
            Self::FromHalf => 1,
            _ => (d - group).min(panel - group % panel) + d.div_ceil(panel) - group / panel + 6,
        }
    }
}

/// [`Expanded`] for kernels that know of a row only a sum of squares, and find the largest of the centroids' themselves.
///
/// A product that goes through few roundings adds little to the error, and the first of a chain go through most: with `m_f` roundings
/// of product f, `W_f >= m_f + 5` and `unit = u / (1 - max W u)`
///
/// ```text
/// |fl(sum) - x^.c^| + conversions      <= sum (gamma_(m_f)(u) + 2.01 q) |x_f| |c_f|
/// of both scores that are compared     <= unit sum W'_f |x_f| (|c_1f| + |c_jf|)          W'_f = m_f + 2.02
///                                      <= unit sum W'_f x_f^2 + unit max_j sum W'_f c_jf^2
/// |fl(|c|^2/2) - ..|, of both          <= (b + 2) u |c|^2    b: roundings of the half square after its own
/// R / 2 = r (|x| + |c|)^2              <= 2 r |x|^2 + 2 r |c|^2
/// ```
/// which is tight where the row is as long as the longest centroid. The roundings of the comparison, at most `4 u |best + width|`,
/// are in it too: `|best| <= |x| C + C^2 / 2 + E <= |x|^2 / 2 + C^2 + E` for the largest norm C, so `2.02 u |x|^2`, which makes
/// `W'_f` into `m_f + 4.04 < W_f`, and `4.04 u C^2`. A kernel gives `S = sum W_f x_f^2`; where a chain starts at the half square all
/// weights are 1, and the roundings are in the unit. A row so long that its scores overflow has a square that overflows first, and a
/// limit that nothing is above.
///
/// Panels of p features: product f goes through what is left of its panel, at most `ceil(d / p) - f / p` additions of sums, and that
/// of the half square.
#[derive(Debug, Clone, Copy)]
pub struct ExpandedTerms {
    pub unit: f64,
    /// `(b + 2) u`.
    pub half: f64,
    /// r, of `R / 2 = r (|x| + c)^2`.
    pub reference: f64,
    /// Of the reference distance, in scaled units.
    pub underflow: f64,
    /// `S <= norm_factor * square + norm_offset` for a float32 sum of weighted squares of the copy.
    pub norm_factor: f64,
    pub norm_offset: f64,
    pub chains: Chains,
}

impl ExpandedTerms {
    /// `scale_exponent`: copies are scaled by `2^scale_exponent`.
    pub fn new(d: usize, chains: Chains, scale_exponent: i32) -> Self {
        let largest = (0..d).step_by(16).map(|f| chains.weight(f, d)).max().unwrap_or(1);
        let (unit, half) = match chains {
            Chains::FromHalf => (gamma(d + 7, U), gamma(d + 3, U)),
            _ => (gamma(largest, U) / largest as f64, gamma(3, U)),
        };
        Self {
            unit,
            half,
            reference: 0.5 * (d + 2) as f64 * 2f64.powi(-51) * 1.001,
            underflow: d as f64 * 2f64.powf(2.0 * f64::from(scale_exponent) - 1074.0),
            norm_factor: 1.0 + gamma(d + 8, U),
            norm_offset: (d + 2) as f64 * largest as f64 * 2f64.powi(-149),
            chains,
        }
    }

    /// What is not above `best + slope * square + offset` is in reach; `largest_half_square` and `largest_weighted`: of the
    /// centroids, half the sum of squares and the weighted sum. As `make_bound` of `kernels/update.cu`; an offset of infinity rules
    /// nothing out.
    pub fn bound(&self, largest_half_square: f64, largest_weighted: f64) -> (f32, f32) {
        const SLACK: f64 = 1.001;
        let (square, weighted) = (2.0 * largest_half_square * SLACK, largest_weighted * SLACK);
        let slope = self.unit + 2.0 * self.reference;
        let offset =
            self.unit * weighted + (self.half + 4.04 * U + 2.0 * self.reference) * square + self.underflow + 2f64.powi(-118);
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

    /// The difference of two scores is off by no more than the bound, and that is not much more than what roundings can add up to.
    #[test]
    fn the_bound_of_chains_is_a_bound() {
        for d in [1, 4, 16, 17, 100, 256, 300, 1_000] {
            for chains in [Chains::FromHalf, Chains::One, Chains::Panels(64), Chains::Panels(128)] {
                for seed in 0..40u64 {
                    // Values just below powers of two and all of one sign make the roundings of a long sum add up.
                    let value = |i: u64| {
                        let bits = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ seed.wrapping_mul(0xBF58_476D_1CE4_E5B9)) >> 40;
                        let sign = if seed % 2 == 0 || bits & 1 == 0 { 1.0 } else { -1.0 };
                        sign * (1.0 - bits as f32 * 2f32.powi(-26)) * if seed % 4 < 2 { 1.0 } else { (i % 7) as f32 }
                    };
                    let vector = |which: u64| (0..d as u64).map(|f| value(f + 10_000 * which)).collect::<Vec<f32>>();
                    let (x, centroids) = (vector(0), [vector(1), vector(2)]);
                    let sum = |v: &[f32], weigh: bool| -> f64 {
                        let weight = |f| if weigh { chains.weight(f, d) as f64 } else { 1.0 };
                        v.iter().enumerate().map(|(f, &v)| f64::from(v).powi(2) * weight(f)).sum()
                    };
                    let score = |c: &[f32]| {
                        let half = (0.5 * sum(c, false)) as f32;
                        let chain = |from: f32, part: std::ops::Range<usize>| part.fold(from, |s, f| (-x[f]).mul_add(c[f], s));
                        let exact =
                            0.5 * sum(c, false) - x.iter().zip(c).map(|(&x, &c)| f64::from(x) * f64::from(c)).sum::<f64>();
                        let found = match chains {
                            Chains::FromHalf => chain(half, 0..d),
                            Chains::One => chain(0.0, 0..d) + half,
                            Chains::Panels(panel) => {
                                let part = |p: usize| chain(0.0, p..(p + panel).min(d));
                                (0..d).step_by(panel).map(part).reduce(|a, b| a + b).unwrap_or(0.0) + half
                            }
                        };
                        (f64::from(found), exact)
                    };
                    let largest = |weigh: bool| centroids.iter().map(|c| sum(c, weigh)).fold(0.0, f64::max);
                    let (slope, offset) = ExpandedTerms::new(d, chains, 0).bound(0.5 * largest(false), largest(true));
                    let width = f64::from((sum(&x, true) as f32).mul_add(slope, offset));
                    let [(a, exact_a), (b, exact_b)] = [score(&centroids[0]), score(&centroids[1])];
                    let error = (a - exact_a - (b - exact_b)).abs();
                    let roundings = (d + 40) as f64 * U * (sum(&x, false) + largest(false)) * 2.0;
                    assert!(error < width && width < roundings, "{d} {chains:?} {seed}: {error} {width} {roundings}");
                }
                let (slope, offset) = ExpandedTerms::new(d, chains, 0).bound(0.5, 1.0);
                assert!(f32::INFINITY.mul_add(slope, offset) == f32::INFINITY);
            }
        }
    }

    #[test]
    fn weights_count_roundings() {
        assert_eq!([0, 15, 16, 99].map(|f| Chains::One.weight(f, 100)), [107, 107, 91, 11]);
        assert_eq!([0, 63, 64, 128, 199].map(|f| Chains::Panels(64).weight(f, 200)), [74, 26, 73, 72, 15]);
    }

    #[test]
    fn a_width_too_large_for_its_bound_is_infinite() {
        assert!(gamma(1 << 24, U).is_infinite());
    }
}
