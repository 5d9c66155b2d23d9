//! The bound of [`super::ExpandedTerms`] against the oracle: does what a GPU does, on the host.

use super::{Chains, ExpandedTerms, up};
use crate::base::float::Float;
use crate::base::random::Random;
use crate::exact::fixed::power_of_two;
use crate::statistics::unit_exponent;

/// The filter's centroids are padded to a multiple of this.
const PADDING: usize = 128;

/// What a GPU's filter reads, as `kernels/passes/update.cu` makes it. The bound is that of [`ExpandedTerms`].
struct FilterCopies<T> {
    /// `(d)`: the centre, negated and scaled.
    minus_centre: Vec<T>,
    scale: T,
    /// `(d, k padded)`: the centred and scaled centroids, negated.
    values: Vec<f32>,
    /// `(k padded)`: half of each copy's squared norm, lowered by the centroid's own error. The padding is infinite, so it is
    /// never nearest.
    half_squares: Vec<f32>,
    /// `(k padded)`.
    slacks: Vec<f32>,
    slope: f32,
}

impl<T: Float> FilterCopies<T> {
    /// Makes the copies. `centre`: a point near the data. `chains`: how the products of a score are added up. None if all
    /// centroids are equal, or if copies or their squares leave the range of float32.
    fn new(centroids: &[T], d: usize, centre: &[f64], chains: Chains) -> Option<Self> {
        let (k, k_padded) = (centroids.len() / d, (centroids.len() / d).next_multiple_of(PADDING));
        let rows = || centroids.chunks_exact(d).enumerate();
        let largest =
            rows().flat_map(|(_, row)| row.iter().zip(centre)).fold(0.0f64, |m, (c, m0)| m.max((c.to_f64() - m0).abs()));
        if largest == 0.0 || !largest.is_finite() {
            return None;
        }
        let most = if T::IS_F32 { 126 } else { 1_022 };
        let exponent = unit_exponent(largest).clamp(-most, most);
        let scale = power_of_two(exponent);
        let minus_centre: Vec<T> = centre.iter().map(|m| T::from_f64(-(m * scale))).collect();
        let mut values = vec![0f32; d * k_padded];
        let mut half_squares = vec![f32::INFINITY; k_padded];
        let mut slacks = vec![0f32; k_padded];
        let terms = ExpandedTerms::new(d, chains, exponent);
        for (j, row) in rows() {
            let (mut square, mut weighted) = (0.0f64, 0.0f64);
            for (f, (c, minus_centre)) in row.iter().zip(&minus_centre).enumerate() {
                let t = c.to_f64().mul_add(scale, minus_centre.to_f64());
                square += t * t;
                weighted += t * t * chains.weight(f, d) as f64;
                values[f * k_padded + j] = -(t as f32);
            }
            let own = terms.own(0.5 * square, weighted, 0.0);
            (half_squares[j], slacks[j]) = (own.lowered, own.slack);
        }
        let finite = |values: &[f32]| values.iter().all(|v| v.is_finite());
        let usable = finite(&values) && finite(&half_squares[..k]) && finite(&slacks);
        let (scale, slope) = (T::from_f64(scale), terms.slope());
        usable.then_some(Self { minus_centre, scale, values, half_squares, slacks, slope })
    }

    /// The copy of a row.
    fn of_row(&self, x: &[T]) -> Vec<f32> {
        let copy = |(x, m): (&T, &T)| x.to_f64().mul_add(self.scale.to_f64(), m.to_f64()) as f32;
        x.iter().zip(&self.minus_centre).map(copy).collect()
    }

    /// Whether the second filter keeps centroid `a` in reach of centroid `j`.
    fn keeps(&self, x: &[T], a: usize, j: usize) -> bool {
        let d = x.len();
        let (scale, k_padded) = (self.scale.to_f64(), self.half_squares.len());
        let copies = self.of_row(x);
        let square = copies.iter().fold(0.0f32, |s, x| x.mul_add(*x, s));
        let difference = |j: usize| {
            copies.iter().enumerate().fold(0.0f32, |s, (f, x)| {
                let t = x + self.values[f * k_padded + j];
                t.mul_add(t, s)
            })
        };
        let threshold = super::differences::CopyDifference { d, additions: d, scale }.threshold(difference(j), square);
        // What is not a number rules nothing out.
        difference(a) <= threshold || difference(a).is_nan() || threshold.is_nan()
    }
}

/// Does what `kernels/step/assign_tiled.cu` does with one row. Returns the label if the bound certifies it.
fn certified<T: Float>(copies: &FilterCopies<T>, x: &[T], k: usize, chains: Chains) -> Option<u32> {
    let k_padded = copies.half_squares.len();
    let (x, d) = (copies.of_row(x), x.len());
    let weighted = |s, (f, x): (usize, &f32)| (x * x).mul_add(chains.weight(f, d) as f32, s);
    let square = x.iter().enumerate().fold(0.0f32, weighted);
    let score = |j: usize| {
        let chain = |p: usize, x: &[f32]| {
            (x.iter().enumerate()).fold(0.0f32, |s, (f, x)| x.mul_add(copies.values[(p + f) * k_padded + j], s))
        };
        let panel = chains.panel();
        let sums = x.chunks(panel).enumerate().map(|(p, x)| chain(p * panel, x));
        sums.reduce(|a, b| a + b).unwrap_or(0.0) + copies.half_squares[j]
    };
    let (mut best, mut second, mut label) = (score(0), f32::INFINITY, 0);
    for j in 1..k {
        let s = score(j);
        second = second.min(best.max(s));
        (best, label) = if s < best { (s, j as u32) } else { (best.min(s), label) };
    }
    // Rounded upwards, as on a GPU.
    let width = up(f64::from(square).mul_add(f64::from(copies.slope), f64::from(copies.slacks[label as usize])));
    (second > up(f64::from(best) + f64::from(width))).then_some(label)
}

fn certificates<T: Float>() {
    let random = &mut Random(9);
    let mut unit = || random.unit() - 0.5;
    let (mut rows, mut decided) = (0, 0);
    for case in 0..600 {
        let (d, k) = (1 + case % 40, 1 + case * 7 % 50);
        let spread = [1.0, 1e-30, 1e30, 1e-3][case % 4];
        let offset = [0.0, 1e3, 1e7][case % 3] * spread;
        let mut centroids: Vec<T> = (0..k * d).map(|_| T::from_f64(offset + spread * unit())).collect();
        if case % 5 == 4 {
            // One centroid is 2^20 times farther out than the others.
            centroids[(k - 1) * d] = T::from_f64(offset + spread * 2f64.powi(20));
        }
        let centre: Vec<f64> = centroids[..d].iter().map(|c| c.to_f64()).collect();
        let chains = [Chains::One, Chains::Panels(16)][case % 2];
        let Some(copies) = FilterCopies::new(&centroids, d, &centre, chains) else { continue };
        for row in 0..40 {
            // Four kinds of rows: random like the centroids, equal to a centroid, half way between two centroids, or far
            // away in one feature.
            let (a, b) = (row * 13 % k * d, row * 5 % k * d);
            let mut x: Vec<T> = match row % 4 {
                0 => centroids[a..a + d].to_vec(),
                1 => (0..d).map(|f| T::from_f64(0.5 * (centroids[a + f].to_f64() + centroids[b + f].to_f64()))).collect(),
                _ => (0..d).map(|_| T::from_f64(offset + spread * unit())).collect(),
            };
            if row % 10 == 9 {
                let far = [1e5, -1e20, if T::IS_F32 { 3e38 } else { 1e300 }, 1e38][row / 10];
                x[row % d] = T::from_f64(far);
            }
            let nearest = crate::exact::reference::nearest(&x, &centroids).label;
            let exact = nearest as usize;
            for j in [exact, a / d, (k - 1) * (row % 2)] {
                assert!(copies.keeps(&x, exact, j), "case {case}, row {row}, centroid {j}");
            }
            rows += 1;
            if let Some(label) = certified(&copies, &x, k, chains) {
                decided += 1;
                assert_eq!(label, nearest, "case {case}, row {row}");
            }
        }
    }
    assert!(decided * 2 > rows && decided < rows, "{decided} of {rows}");
}

unit_test!(certified_labels_are_those_of_reference_distances);
fn certified_labels_are_those_of_reference_distances() {
    certificates::<f32>();
    certificates::<f64>();
}

unit_test!(copies_are_of_order_one_or_not_at_all);
fn copies_are_of_order_one_or_not_at_all() {
    let of = |centroids: &[f64], d: usize| {
        let centre: Vec<f64> = centroids[..d].to_vec();
        FilterCopies::new(centroids, d, &centre, Chains::One)
    };
    for scale in [1.0, 2f64.powi(-440), 2f64.powi(440), 1e7] {
        let copies = of(&[0.0, 0.0, 3.0 * scale, -5.0 * scale], 2).unwrap();
        let largest = copies.values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        assert!((0.5..1.0).contains(&largest), "{scale:e}");
        assert_eq!((copies.values.len(), copies.half_squares.len()), (2 * PADDING, PADDING));
        assert!(copies.half_squares[2..].iter().all(|half| *half == f32::INFINITY));
        assert!(copies.slacks[..2].iter().all(|slack| (0.0..1e-4).contains(slack)), "{scale:e} {:?}", copies.slacks);
    }
    assert!(of(&[2.0, 2.0, 2.0], 1).is_none());
    // These centroids differ only by subnormal values, next to values so large that no scale fits both.
    assert!(of(&[1.0, 0.0, 1.0, 5e-324], 2).is_none());
    assert!(of(&[2f64.powi(450), 0.0, 2f64.powi(450), 2f64.powi(-700)], 2).is_none());
    let subnormal = f32::from_bits(1);
    let copies = FilterCopies::new(&[0.0, 100.0 * subnormal], 1, &[0.0], Chains::One).unwrap();
    assert!(copies.values[1] < 0.0 && copies.scale == 2f32.powi(126));
    assert!(FilterCopies::new(&[f32::MAX, f32::MIN], 1, &[f64::from(f32::MAX)], Chains::One).is_some());
}
