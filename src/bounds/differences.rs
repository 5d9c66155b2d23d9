//! The second filter: differences of copies, where the first filter leaves several centroids in reach.

#[cfg(feature = "tests")]
use super::V;
use super::{U, up};

/// Differences of copies: `s~_j = sum fl(x^ - c^_j)^2` in float32, on the centred, scaled copies of [`super::Expanded`]. A second
/// filter, for rows that the first one leaves open. The products of a row far from the centre have large errors, but this form
/// only loses what the copies lose.
///
/// Let X be the length of the row's copy, D_j the true distance in scaled units, and w what underflows. One chain of d fmas gives
///
/// ```text
/// | |x^ - c^_j| - D_j |  <=  |x^ - x| + |c^_j - c_j|  <=  2.004 u X + 1.002 u D_j + w       because |c_j| <= |x| + D_j
/// s~_j = (1 +- gamma_d(u)) (1 +- u)^2 |x^ - c^_j|^2 +- d 2^-149
/// ```
/// Let a be the label and b any centroid. `S_a <= S_b` gives `D_a <= (1 + 1.01 gamma_(d+2)(v)) D_b + 1.5 sqrt(d) 2^-537 s`. So
///
/// ```text
/// sqrt(s~_a)  <=  (1 + (d + 6) 1.02 u) sqrt(s~_b) + 4.04 u X + w
/// ```
/// Where a kernel takes the differences of float32 values, scaled by a power of two, there are no copies, and the term in X falls
/// away. A centroid with a larger `s~` is out of reach of b, and the least `s~` gives the strictest threshold. 2e-18 covers all
/// that underflows in float32.
///
/// Lanes may each sum up some features, and then add up their sums. Then d in `gamma_d(u)` is the number of additions that a term
/// passes through at most, since no term is negative. `Differences` in `kernels/step/differences.cuh` computes the same, with all
/// roundings upwards.
#[derive(Debug, Clone, Copy)]
pub struct CopyDifference {
    pub d: usize,
    /// The most additions that a term of a sum passes through: d in one chain.
    pub additions: usize,
    /// The scale of the copies.
    pub scale: f64,
}

impl CopyDifference {
    /// The factor of the root of the least `s~`.
    pub fn slope(&self) -> f32 {
        up(1.0 + 1.05 * (self.additions + 8) as f64 * U)
    }

    /// The factor of the root of the row's square, which is the float32 sum of squares of its copy.
    pub fn of_row(&self) -> f32 {
        up(4.1 * U * (1.0 + (self.d + 9) as f64 * U))
    }

    /// What is added to the row's part.
    pub fn offset(&self) -> f32 {
        let scale = if self.d > 100_000 { f64::INFINITY } else { self.scale };
        up(2e-18 + 8.0 * (self.d as f64).sqrt() * 2f64.powi(-537) * scale)
    }

    /// The largest `s~` of a centroid that is not farther from a row than one with `least`. `square`: the sum of squares of the
    /// row's copy.
    #[cfg(feature = "tests")]
    pub(super) fn threshold(&self, least: f32, square: f32) -> f32 {
        let up = |x: f64| up(x * (1.0 + 4.0 * V));
        let far = up(f64::from(self.of_row()) * f64::from(up(f64::from(square).sqrt())) + f64::from(self.offset()));
        let root = f64::from(up(f64::from(up(f64::from(least).sqrt())) * f64::from(self.slope()) + f64::from(far)));
        up(root * root)
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use crate::exact::reference;

    /// The sum of squared differences as `kernels/step/settle_few_differences.cuh` adds it up: 16 lanes, then their sums in pairs.
    fn of_lanes(x: &[f32], c: &[f32]) -> f32 {
        let mut sums = [0.0f32; 16];
        for (f, (x, c)) in x.iter().zip(c).enumerate() {
            let t = x - c;
            sums[f % 16] = t.mul_add(t, sums[f % 16]);
        }
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
        }
        sums[0]
    }

    unit_test!(sums_of_lanes_keep_the_nearest_centroid_in_reach);
    /// Two centroids whose distances to the row differ by few roundings. Without the bound, labels would be lost.
    fn sums_of_lanes_keep_the_nearest_centroid_in_reach() {
        let random = &mut Random(17);
        let mut unit = || random.unit() as f32 - 0.5;
        let (mut decided, mut lost) = (0, 0);
        for case in 0..30_000usize {
            let d = 1 + case * 13 % 700;
            let spread = [1.0f32, 1e-12, 1e12][case % 3];
            let x: Vec<f32> = (0..d).map(|_| spread * unit()).collect();
            let first: Vec<f32> = (0..d).map(|_| spread * unit()).collect();
            // The same differences in another order of features, some of them one step longer.
            let turn = 1 + case % d.max(2);
            let turned = |f: usize| x[f] - (x[(f + turn) % d] - first[(f + turn) % d]) * (1.0 + (case % 8) as f32 * 1e-6);
            let second: Vec<f32> = (0..d).map(turned).collect();
            let sums = [of_lanes(&x, &first), of_lanes(&x, &second)];
            let exact = [reference::distance(&x, &first), reference::distance(&x, &second)];
            let (nearest, least) = (usize::from(exact[1] < exact[0]), sums[0].min(sums[1]));
            let bound = CopyDifference { d, additions: d.div_ceil(16) + 4, scale: 1.0 };
            let threshold = bound.threshold(least, 0.0);
            assert!(sums[nearest] <= threshold, "{case}: {sums:?} {exact:?}");
            decided += usize::from(sums[1 - nearest] > threshold);
            lost += usize::from(sums[nearest] > least);
        }
        assert!(decided > 500 && lost > 500, "{decided} {lost}");
    }
}
