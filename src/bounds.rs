//! Error bounds for the filters: one type per filter, with its derivation.
//!
//! A filter computes an approximate score for every centroid. The centroids that the bound cannot rule out are *in reach*: the
//! candidates of the row. The centroid that the reference distance picks is always in reach, and so is every tie with it. If one
//! centroid is in reach, it is the label. If several are in reach, reference distances decide.
//!
//! A threshold may stand on the score of any centroid i. A centroid above it is farther than i by reference distances. With the
//! second best score, a centroid above the threshold is farther than both of the best two. So the two nearest centroids by
//! reference distances are in reach, ties included.
//!
//! Notation: `u = 2^-24`, `v = 2^-53` (unit roundoffs), `gamma_m(u) = m u / (1 - m u)`.

#[cfg(feature = "tests")]
mod bytes;
#[cfg(feature = "tests")]
mod copies;
pub mod differences;
mod expanded;
#[cfg(feature = "cuda")]
pub mod fp16;
pub mod grid;
pub mod groups;
pub mod int_dot;
pub mod own;
pub mod skip;
#[cfg(feature = "papers")]
pub mod yinyang;

pub use self::expanded::{Expanded, PANEL};

/// Unit roundoff of float32.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Unit roundoff of float64.
const V: f64 = 1.0 / (1u64 << 53) as f64;

fn gamma(m: usize, u: f64) -> f64 {
    let mu = m as f64 * u;
    if mu < 0.5 { mu / (1.0 - mu) } else { f64::INFINITY }
}

/// The smallest float32 that is at or above x.
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
        Self::of_sums(d, d)
    }

    /// The same where no term goes through more than so many roundings of sums: `|s~ - s| <= gamma_(sums+3)(u) s + d 2^-149`.
    pub fn of_sums(d: usize, sums: usize) -> Self {
        let g = gamma(sums + 3, U) + gamma(d + 2, V);
        // Four more roundoffs cover the evaluation of the threshold in float32. The offset is doubled for the same reason.
        Self { slope: up((1.0 + g) / (1.0 - g) * (1.0 + 4.0 * U)), offset: up((d + 2) as f64 * 2f64.powi(-147)) }
    }

    /// Centroids whose score is at most this threshold are in reach.
    pub fn threshold(&self, best: f32) -> f32 {
        best.mul_add(self.slope, self.offset)
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

    /// The weight of feature `f` in the weighted sums of squares. It is at least the number of roundings of its product plus
    /// 2.02: see [`ExpandedTerms`]. 16 features share one weight. `weight_of` in `kernels/common/filter.cuh` computes the same.
    pub fn weight(self, f: usize, d: usize) -> usize {
        let (group, panel) = (f & !15, self.panel());
        match self {
            Self::FromHalf => 1,
            _ => (d - group).min(panel - group % panel) + d.div_ceil(panel) - group / panel + 4,
        }
    }
}

/// Expanded form on the GPU, with every centroid's own error. See [`own`] for the statement about any such kernel. Here chains
/// may be longer, and a sum of squares of the row weighs each feature by the roundings of its products.
///
/// Let `m_f` be the number of roundings that product f goes through, `W_f >= m_f + 2.02`, and `unit = u / (1 - max W u)`. Then
///
/// ```text
/// |fl(sum) - x.c| <= sum (gamma_(m_f)(u) + 2.01 q) |x_f| |c_f| <= unit sum W_f |x_f| |c_f| <= E_x + e_j
/// E_x = unit t / 2 sum W_f x_f^2      e_j = unit / (2 t) sum W_f c_jf^2 + underflow of products and copies, below 2^-118
/// ```
/// With panels of p features, product f goes through the roundings in the rest of its panel, at most `ceil(d / p) - f / p`
/// additions of panel sums, and the addition of the lowered half square. A chain that starts at the lowered half square has up to d
/// roundings for each product and for the half square. Then all weights are 1, and the roundings are part of the unit.
///
/// A kernel gives the weighted sum of squares of the row's copy, and adds up the limit with roundings upwards. If a row is so
/// long that its scores overflow, its square overflows first. Its limit is then infinite, and no centroid is ruled out.
#[derive(Debug, Clone, Copy)]
pub struct ExpandedTerms {
    d: usize,
    pub unit: f64,
    /// g_h, the relative error of the lowered half square.
    pub start: f64,
    pub reference: own::Reference,
    /// t, a power of two.
    pub balance: f64,
    /// `sum W x^2 <= norm_factor * square + norm_offset`, where `square` is a float32 sum of weighted squares of the copy.
    norm_factor: f64,
    pub norm_offset: f64,
    pub chains: Chains,
}

impl ExpandedTerms {
    /// Copies are scaled by `2^scale_exponent`.
    pub fn new(d: usize, chains: Chains, scale_exponent: i32) -> Self {
        let largest = (0..d).step_by(16).map(|f| chains.weight(f, d)).max().unwrap_or(1);
        let (unit, start) = match chains {
            Chains::FromHalf => (gamma(d + 3, U), gamma(d, U)),
            _ => (gamma(largest, U) / largest as f64, 1.001 * U),
        };
        Self {
            d,
            unit,
            start,
            reference: own::Reference::new(d, scale_exponent),
            balance: 1.0,
            norm_factor: 1.0 + gamma(d + 8, U),
            norm_offset: (d + 2) as f64 * largest as f64 * 2f64.powi(-149),
            chains,
        }
    }

    /// The factor of the row's square in its limit.
    pub fn slope(&self) -> f32 {
        up((self.unit * self.balance + self.reference.of_row(self.balance)) * self.norm_factor * 1.001)
    }

    /// What takes the place of the slacks for a kernel that looks none up: see [`Ceiling`].
    pub fn ceiling(&self) -> Ceiling {
        let (t, g) = (self.balance, 2.03 * self.start + 2.02 * U);
        let relative =
            2.0 * self.half() + 1.001 * self.unit / t * (1.0 + 0.5 * g) + 0.5 * g + 1.001 * self.reference.of_centroid(0.5, t);
        let relative = 1.0001 * relative;
        // A score's rounding when it is multiplied by this is far below the factor 1.001 of the slope.
        let rise = up(6.0 * relative / (1.0 - 6.0 * relative).max(0.0));
        let rise = if relative < 0.01 { rise } else { f32::INFINITY };
        let (p, error) = (f64::from(rise) / 6.0, self.unit * t);
        let slope = error + self.reference.of_row(t) + p * (4.5 + 3.0 * error);
        let slope = up(slope * self.norm_factor * 1.001);
        let rest = 2f64.powi(-116) + 2.0 * self.reference.underflow;
        Ceiling {
            slope,
            rise,
            lower: 1.0001 * (6.0 * p * (1.0 + g) + g),
            offset: 1.0001 * ((1.0 + 6.0 * p) * rest + f64::from(slope) * self.norm_offset),
        }
    }

    /// The roundings of the half square in float64, relative to it.
    pub fn half(&self) -> f64 {
        (self.d + 16) as f64 * V
    }

    /// `half_square`: half the sum of squares of the centroid, in float64. `weighted`: its weighted sum of squares. `lower`:
    /// subtracted from the half squares of all centroids. `centroid_bound` in `kernels/passes/update.cu` computes the same.
    #[cfg(feature = "tests")]
    fn own(&self, half_square: f64, weighted: f64, lower: f64) -> own::CentroidBound {
        let error = 1.001 * self.unit * weighted / (2.0 * self.balance) + 2f64.powi(-118);
        let reference = 1.001 * self.reference.of_centroid(half_square, self.balance);
        let offset = f64::from(self.slope()) * self.norm_offset;
        own::CentroidBound::new(half_square, lower, self.d, error, self.start, reference + offset)
    }
}

/// A threshold that needs no slack: the score of the best centroid says how long that centroid can be. All weights W are 1.
///
/// [`own::CentroidBound`] makes slacks so that `F_b <= P |c_b|^2 + Q lower + N`, where `Q = 2.03 g_h + 2.02 u` counts the roundings of p.
/// For the distance `D_b` of the row from the centroid, `D_b^2 = 2 H_b + |x|^2`. So
///
/// ```text
/// |c_b|^2 <= (|x| + D_b)^2 <= 1.5 |x|^2 + 3 D_b^2 = 4.5 |x|^2 + 6 H_b
/// H_b     <= y_b + lower + E_x + F_b,   E_x = unit t / 2 |x|^2
/// |c_b|^2 (1 - 6 P) <= (4.5 + 3 unit t) |x|^2 + 6 (y_b + lower) + 6 Q lower + 6 N
/// ```
/// With `p = P / (1 - 6 P)`, or anything above it, the threshold `y_b + F_b + 2 E_x + r (1 + t) |x|^2` is at most
///
/// ```text
/// y_b + 6 p y_b + (unit t + r (1 + t) + p (4.5 + 3 unit t)) |x|^2 + (6 p (1 + Q) + Q) lower + (1 + 6 p) N
/// ```
/// Where the row is much nearer to its centroid than to the centre, this is about 1.5 times as wide as with slacks. But nothing
/// is looked up, and a long centroid makes only the threshold of its own rows wide.
#[derive(Debug, Clone, Copy)]
pub struct Ceiling {
    /// The factor of the row's square.
    pub slope: f32,
    /// The factor of the score, beside 1.
    pub rise: f32,
    /// The factor of what half squares are lowered by.
    pub lower: f64,
    pub offset: f64,
}

impl Ceiling {
    /// The threshold on a row's least score. `square`: the sum of squares of its copy. `lower`: as in [`ExpandedTerms`]. A kernel
    /// rounds each sum up: `ceiling` in `kernels/common/filter.cuh`.
    #[cfg(feature = "tests")]
    fn threshold(&self, square: f64, least: f64, lower: f64) -> f64 {
        let offset = f64::from(up(self.lower * lower + self.offset));
        least + (f64::from(self.rise) * least + (f64::from(self.slope) * square + offset))
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(thresholds_are_above_the_best);
    fn thresholds_are_above_the_best() {
        for d in [1, 4, 8, 300, 5_000] {
            let (bound, short) = (Difference::new(d), Difference::of_sums(d, d.div_ceil(8)));
            assert!(short.slope > 1.0 && short.slope <= bound.slope && short.offset == bound.offset);
            for best in [0.0f32, 1e-45, 1e-30, 1.0, 1e30] {
                assert!(bound.threshold(best) > best, "{d} {best}");
            }
            let bound = Expanded::new(d, 0, 0);
            assert!(bound.width(1.0) > 0.0 && bound.width(1.0) < 0.01 && bound.width(f32::INFINITY) == f32::INFINITY);
            assert!(bound.width(f32::NAN).is_infinite());
        }
        // A sum too long for its bound.
        assert!(gamma(1 << 24, U).is_infinite());
    }

    unit_test!(the_bound_of_chains_is_a_bound);
    /// The error of the difference of two scores is within the bound. The bound is not much larger than the roundings can add up
    /// to.
    fn the_bound_of_chains_is_a_bound() {
        for d in [1, 4, 16, 17, 100, 256, 300, 1_000] {
            for chains in [Chains::FromHalf, Chains::One, Chains::Panels(64), Chains::Panels(128)] {
                let terms = ExpandedTerms::new(d, chains, 0);
                for seed in 0..40u64 {
                    // Values just below powers of two, all of one sign, make the roundings of a long sum add up.
                    let value = |i: u64| {
                        let bits = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ seed.wrapping_mul(0xBF58_476D_1CE4_E5B9)) >> 40;
                        let sign = if seed % 2 == 0 || bits & 1 == 0 { 1.0 } else { -1.0 };
                        sign * (1.0 - bits as f32 * 2f32.powi(-26)) * if seed % 4 < 2 { 1.0 } else { (i % 7) as f32 }
                    };
                    // The second centroid may be much longer than the first.
                    let longer = [1.0, 1.0, 64.0, 2f32.powi(20)][seed as usize / 10];
                    let vector =
                        |which: u64, by: f32| (0..d as u64).map(|f| by * value(f + 10_000 * which)).collect::<Vec<f32>>();
                    let (x, centroids) = (vector(0, 1.0), [vector(1, 1.0), vector(2, longer)]);
                    let sum = |v: &[f32], weigh: bool| -> f64 {
                        let weight = |f| if weigh { chains.weight(f, d) as f64 } else { 1.0 };
                        v.iter().enumerate().map(|(f, &v)| f64::from(v).powi(2) * weight(f)).sum()
                    };
                    let lower = [0.0, 3.0 * sum(&x, false)][seed as usize % 2];
                    // The score, the exact score, the slack.
                    let score = |c: &[f32]| {
                        let own::CentroidBound { lowered: start, slack } = terms.own(0.5 * sum(c, false), sum(c, true), lower);
                        let chain = |from: f32, part: std::ops::Range<usize>| part.fold(from, |s, f| (-x[f]).mul_add(c[f], s));
                        let exact =
                            0.5 * sum(c, false) - x.iter().zip(c).map(|(&x, &c)| f64::from(x) * f64::from(c)).sum::<f64>();
                        let found = match chains {
                            Chains::FromHalf => chain(start, 0..d),
                            Chains::One => chain(0.0, 0..d) + start,
                            Chains::Panels(panel) => {
                                let part = |p: usize| chain(0.0, p..(p + panel).min(d));
                                (0..d).step_by(panel).map(part).reduce(|a, b| a + b).unwrap_or(0.0) + start
                            }
                        };
                        (f64::from(found), exact, f64::from(slack))
                    };
                    let square = sum(&x, true) as f32;
                    let scores = [score(&centroids[0]), score(&centroids[1])];
                    for ((y, exact, _), (best, exact_best, slack), b) in [(scores[0], scores[1], 1), (scores[1], scores[0], 0)]
                    {
                        let error = (y - exact) - (best - exact_best);
                        let width = slack + f64::from(square) * f64::from(terms.slope());
                        let roundings = (d + 40) as f64 * U * 2.0 * (sum(&x, false) + sum(&centroids[b], false) + lower);
                        assert!(error < width && width < roundings, "{d} {chains:?} {seed} {b}: {error} {width} {roundings}");
                        if chains == Chains::FromHalf {
                            // The same without the slack.
                            let ceiling = terms.ceiling();
                            let without = ceiling.threshold(f64::from(square), best, lower) - best;
                            let (rows, distance) = (sum(&x, false), 2.0 * exact_best + sum(&x, false));
                            let most = (d + 40) as f64 * U * 3.0 * (4.5 * rows + 3.0 * distance + 2.0 * lower);
                            assert!(width <= without && without < most, "{d} {seed} {b}: {width} {without} {most}");
                        }
                    }
                }
                assert_eq!(f32::INFINITY * terms.slope(), f32::INFINITY);
            }
        }
    }

    unit_test!(weights_count_roundings);
    fn weights_count_roundings() {
        assert_eq!([0, 15, 16, 99].map(|f| Chains::One.weight(f, 100)), [105, 105, 89, 9]);
        assert_eq!([0, 63, 64, 128, 199].map(|f| Chains::Panels(64).weight(f, 200)), [72, 24, 71, 70, 13]);
    }
}
