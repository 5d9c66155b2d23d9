//! Error bounds for the filters: one type per filter, with its derivation.
//!
//! A filter computes an approximate score for every centroid. The centroids that the bound cannot rule out are *in reach*. The
//! centroid that the reference distance picks is always in reach, and so is every tie with it. If one centroid is in reach, it is
//! the label. If several are in reach, reference distances decide.
//!
//! A threshold may stand on the score of any centroid i. A centroid above it is farther than i by reference distances. With the
//! second best score, a centroid above the threshold is farther than both of the best two. So the two nearest centroids by
//! reference distances are in reach, ties included.
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

/// The smallest float32 that is at or above `x >= 0`.
fn up(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) < x { y.next_up() } else { y }
}

/// Difference form: `s~ = sum fl(x - c)^2` in float32. x and c are scaled by the same power of two.
///
/// Each term has a relative error. `fl(x - c) = (x - c)(1 + e)` with `|e| <= u`, and it is squared. The product is rounded once
/// (not at all with fma). The sum is rounded at most d times. So `|s~ - s| <= gamma_(d+3)(u) s + d 2^-149`. The last term covers
/// products that underflow. It also covers coordinates that scaling makes subnormal: where the error of such a coordinate exceeds
/// u, its square is far below 2^-149. The reference distance is within `gamma_(d+2)(v)` of s. Let g be the sum of both gammas.
/// Then j can only be the label if
///
/// ```text
/// s~_j (1 - g) - d 2^-149  <=  s~_1 (1 + g) + d 2^-149
/// ```
/// holds, where 1 stands for any centroid. The smallest s~ gives the strictest condition. [`Difference::threshold`] is this
/// condition, solved for s~_j and rounded up.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The threshold is `best * slope + offset`.
    pub slope: f32,
    pub offset: f32,
}

impl Difference {
    pub fn new(d: usize) -> Self {
        let g = gamma(d + 3, U) + gamma(d + 2, V);
        // Four more roundoffs cover the evaluation of the threshold in float32. The offset is doubled for the same reason.
        Self { slope: up((1.0 + g) / (1.0 - g) * (1.0 + 4.0 * U)), offset: up((d + 2) as f64 * 2f64.powi(-147)) }
    }

    /// Centroids whose score is at most this threshold are in reach.
    pub fn threshold(&self, best: f32) -> f32 {
        best.mul_add(self.slope, self.offset)
    }
}

/// Number of features in one partial sum of the expanded form. Sums are accumulated in panels. The error bound then grows with
/// `PANEL + d / PANEL` instead of d.
pub const PANEL: usize = 64;

/// Expanded form: `h~_j = |c_j|^2 / 2 - x.c_j` in float32 on centred, scaled copies.
///
/// The scores stand for the row `x = s (x' - m)` and the centroid `c = s (c' - m)`, where m is exact and s is a power of two.
/// `H_j = |c_j|^2 / 2 - x.c_j` orders centroids as `|x - c_j|^2` does. The copies are `x^ = fl32(s fl_T(x' - m))`, so
///
/// ```text
/// |x^ - x| <= q |x^|,  |c^ - c| <= q |c^|,   q = 1.001 u   (one rounding for float32, two for float64 features)
/// |x^.c^ - x.c|        <= |x^ - x| |c| + |x^| |c^ - c|      <= 2.01 q |x^| |c^|
/// |fl(sum) - x^.c^|    <= gamma_m(u) (|x^| |c^| + |c|^2/2)    m = PANEL + ceil(d / PANEL) + 3 roundings
/// |fl(|c|^2/2) - ..|   <= 2 u |c|^2 / 2
/// ```
/// Let E be their sum, taken with the largest `|c^|`. E bounds `|h~_j - H_j|` for all j. *Rounded* reference distances decide the
/// label. The rounding error between two of them is at most `R = (d + 2) 2^-51 (|x| + max |c|)^2 + d 2^-1074 s^2`. So j can only
/// be the label if `h~_j <= h~_1 + 2 E + R / 2`. Underflow of products and copies is far below the 2^-118 that is added at the
/// end. A score that is not finite is never ruled out: it stays in reach.
#[derive(Debug, Clone, Copy)]
pub struct Expanded {
    constant: f32,
    linear: f32,
    quadratic: f32,
    /// The float32 value of `|x|^2` has a relative error of at most `gamma_(d+2)(u)` and an absolute error of at most `d 2^-149`.
    norm_factor: f32,
    norm_offset: f32,
}

impl Expanded {
    /// `largest_norm` is the largest norm of the copies `c^`, rounded up. s is `2^scale_exponent`.
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

    /// A centroid is in reach if its score exceeds the best score by at most this width. `square` is the float32 sum of the
    /// squares of the row's copy. The width is infinite or NaN where the row is out of the filter's range.
    #[inline(always)]
    pub fn width(&self, square: f32) -> f32 {
        let norm = (square * self.norm_factor + self.norm_offset).sqrt();
        let width = (self.quadratic * norm + self.linear) * norm + self.constant;
        // Products may overflow with a norm this large. Then no centroid may be ruled out.
        if norm < 1e15 { width * 1.000_01 } else { f32::INFINITY }
    }

    /// The threshold for a best score. Four roundoffs cover the addition.
    #[inline(always)]
    pub fn threshold(best: f32, width: f32) -> f32 {
        let sum = best + width;
        sum + sum.abs() * (4.0 * U as f32)
    }
}

/// The order in which a kernel adds up the d products of a score and `|c|^2 / 2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chains {
    /// One chain that starts at `|c|^2 / 2`. Every product goes through up to d roundings, and so does `|c|^2 / 2`.
    FromHalf,
    /// One chain of products. `|c|^2 / 2` is added last.
    One,
    /// One chain per panel of this many features (a multiple of 16). The panel sums are added one after another, and `|c|^2 / 2`
    /// last.
    Panels(usize),
}

impl Chains {
    /// The panel size in the form that `weight_of` in `kernels/common/filter.cuh` expects.
    pub fn panel(self) -> usize {
        match self {
            Self::FromHalf => 0,
            Self::One => i32::MAX as usize,
            Self::Panels(panel) => panel,
        }
    }

    /// The weight of feature `f` in the weighted sums of squares. It is at least the number of roundings of its product plus 5:
    /// see [`ExpandedTerms`]. 16 features share one weight. `weight_of` in `kernels/common/filter.cuh` computes the same.
    pub fn weight(self, f: usize, d: usize) -> usize {
        let (group, panel) = (f & !15, self.panel());
        match self {
            Self::FromHalf => 1,
            _ => (d - group).min(panel - group % panel) + d.div_ceil(panel) - group / panel + 6,
        }
    }
}

/// As [`Expanded`], for kernels that know only a sum of squares of each row. They find the largest centroid norm themselves.
///
/// A product that goes through few roundings adds little to the error. The first products of a chain go through the most
/// roundings. Let `m_f` be the number of roundings of product f, `W_f >= m_f + 5`, and `unit = u / (1 - max W u)`. Then
///
/// ```text
/// |fl(sum) - x^.c^| + conversions      <= sum (gamma_(m_f)(u) + 2.01 q) |x_f| |c_f|
/// of both scores that are compared     <= unit sum W'_f |x_f| (|c_1f| + |c_jf|)          W'_f = m_f + 2.02
///                                      <= unit sum W'_f x_f^2 + unit max_j sum W'_f c_jf^2
/// |fl(|c|^2/2) - ..|, of both          <= (b + 2) u |c|^2    b: roundings of the half square after its own
/// R / 2 = r (|x| + |c|)^2              <= 2 r |x|^2 + 2 r |c|^2
/// ```
/// The bound is tight where the row is as long as the longest centroid. It includes the roundings of the comparison, which are at
/// most `4 u |best + width|`. With the largest norm C, `|best| <= |x| C + C^2 / 2 + E <= |x|^2 / 2 + C^2 + E`. This adds
/// `2.02 u |x|^2`, which turns `W'_f` into `m_f + 4.04 < W_f`, and it adds `4.04 u C^2`. A kernel gives `S = sum W_f x_f^2`. If a
/// chain starts at the half square, all weights are 1 and the roundings are part of the unit. If a row is so long that its scores
/// overflow, its square overflows first. Its limit is then infinite, and no centroid is ruled out.
///
/// With panels of p features, product f goes through three kinds of roundings: those in the rest of its panel, at most
/// `ceil(d / p) - f / p` additions of panel sums, and the addition of the half square.
#[derive(Debug, Clone, Copy)]
pub struct ExpandedTerms {
    pub unit: f64,
    /// `(b + 2) u`.
    pub half: f64,
    /// r in `R / 2 = r (|x| + c)^2`.
    pub reference: f64,
    /// Underflow of the reference distance, in scaled units.
    pub underflow: f64,
    /// `S <= norm_factor * square + norm_offset`, where `square` is a float32 sum of weighted squares of the copy.
    pub norm_factor: f64,
    pub norm_offset: f64,
    pub chains: Chains,
}

impl ExpandedTerms {
    /// Copies are scaled by `2^scale_exponent`.
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

    /// Returns `(slope, offset)`. A score that is not above `best + slope * square + offset` is in reach. `largest_half_square`
    /// is half the largest sum of squares of a centroid. `largest_weighted` is the largest weighted sum of squares of a centroid.
    /// `make_bound` in `kernels/passes/update.cu` computes the same. An infinite offset rules nothing out.
    pub fn bound(&self, largest_half_square: f64, largest_weighted: f64) -> (f32, f32) {
        const SLACK: f64 = 1.001;
        let (square, weighted) = (2.0 * largest_half_square * SLACK, largest_weighted * SLACK);
        let slope = self.unit + 2.0 * self.reference;
        let offset =
            self.unit * weighted + (self.half + 4.04 * U + 2.0 * self.reference) * square + self.underflow + 2f64.powi(-118);
        (up(slope * self.norm_factor * SLACK), up((offset + slope * self.norm_offset) * SLACK))
    }
}

pub mod skip;

#[cfg(test)]
mod copies;

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

    /// The error of the difference of two scores is within the bound. The bound is not much larger than the roundings can add up
    /// to.
    #[test]
    fn the_bound_of_chains_is_a_bound() {
        for d in [1, 4, 16, 17, 100, 256, 300, 1_000] {
            for chains in [Chains::FromHalf, Chains::One, Chains::Panels(64), Chains::Panels(128)] {
                for seed in 0..40u64 {
                    // Values just below powers of two, all of one sign, make the roundings of a long sum add up.
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
