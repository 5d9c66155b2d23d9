//! Counterexamples that broke earlier drafts of the contract. Each is kept as a test.

use polars_kmeans::exact::reference;
use polars_kmeans::{Column, Engine, Features, Fitted, Init, KMeans, KMeansError};

use crate::data::{Random, assert_nearest, hash, on_gpu};

/// A fit from the given centroids. Its labels are checked against the reference distance, and its bits against the GPU's.
fn checked<T: Engine>(rows: &[T], d: usize, centroids: &[f64], iterations: u32) -> Fitted<T> {
    let estimator = KMeans::new(centroids.len() / d).init(Init::Given(centroids.to_vec())).max_iter(iterations).tol(0.0);
    let features = Features::from_rows(rows, d).unwrap();
    let fitted = estimator.fit_features(&features, None).unwrap();
    assert_nearest(rows, &fitted, "on the CPU");
    let predicted: Vec<u32> = fitted.model.predict(&features).unwrap().iter().flatten().collect();
    assert_eq!(predicted, fitted.labels);
    if let Some(estimator) = on_gpu(&estimator) {
        assert_eq!(hash(&estimator.fit_features(&features, None).unwrap()), hash(&fitted), "on the GPU");
    }
    fitted
}

/// The labels that a model with exactly these centroids gives. Each centroid is fitted to one copy of itself, so it does not
/// change.
fn predicted<T: Engine>(rows: &[T], d: usize, centroids: &[T]) -> Vec<u32> {
    let k = centroids.len() / d;
    let given = centroids.iter().map(|c| c.to_f64()).collect();
    let features = Features::from_rows(centroids, d).unwrap();
    let fitted = KMeans::new(k).init(Init::Given(given)).max_iter(1).fit_features(&features, None).unwrap();
    assert_eq!(fitted.model.centroids(), centroids, "the centroids are their own means");
    let labels: Vec<u32> = fitted.model.predict(&Features::from_rows(rows, d).unwrap()).unwrap().iter().flatten().collect();
    for (x, label) in rows.chunks_exact(d).zip(&labels) {
        assert_eq!(*label, reference::nearest(x, centroids).label, "{x:?}");
    }
    labels
}

#[test]
fn a_third_centroid_of_large_norm() {
    let d = 64;
    let x = 1.0f32 + 2f32.powi(-11) - 2f32.powi(-20);
    let near = 0.045f32;
    let mut centroids = vec![0.0f32; d];
    centroids.extend(vec![near; d]);
    centroids.extend(vec![-near; d]);
    centroids.extend(vec![2.0 * x * (1.0 - 2f32.powi(-13)); d]);
    predicted(&vec![x; d], d, &centroids);
    // On the CPU the same can happen at the precision of float32: at the midpoint between 0 and a large centroid.
    for step in 0..200 {
        let far = 2.0 * x * (1.0 - step as f32 * 2f32.powi(-23));
        let mut centroids = vec![0.0f32; d];
        centroids.extend(vec![near * 1e-3; d]);
        centroids.extend(vec![far; d]);
        predicted(&vec![x; d], d, &centroids);
    }
}

#[test]
fn a_tie_made_by_rounding_goes_to_the_smaller_index() {
    assert_eq!(predicted(&[-1e17f64], 1, &[0.1, -0.1]), [0]);
    assert_eq!(predicted(&[-1e17f64], 1, &[-0.1, 0.1]), [0]);
    for d in [1, 9] {
        let centroids: Vec<f64> = [0.1, -0.1].iter().flat_map(|c| vec![*c; d]).collect();
        assert_eq!(predicted(&vec![-1e17f64; d], d, &centroids), [0]);
    }
}

#[test]
fn centroids_whose_squares_underflow_in_float32() {
    let d = 16;
    let mut centroids = vec![2f32.powf(-75.5); d];
    centroids.extend((0..d).map(|f| if f == 3 { 2f32.powf(-74.45) } else { 0.0 }));
    let rows: Vec<f32> = [0.0, 2f32.powi(-75), 2f32.powi(-76), 1.0, -1.0].iter().flat_map(|x| vec![*x; d]).collect();
    predicted(&rows, d, &centroids);
    for d in [1, 2, 8] {
        let mut centroids = vec![2f32.powf(-75.5); d];
        centroids.extend((0..d).map(|f| if f == 0 { 2f32.powf(-74.45) } else { 0.0 }));
        predicted(&[vec![0.0f32; d], vec![1.0; d]].concat(), d, &centroids);
    }
}

#[test]
fn squares_that_overflow_in_float32() {
    for d in [1, 4, 8, 9, 40] {
        let rows: Vec<f32> = [3e38f32, -1e38, 2e38, 1e38, 0.0, 1.0].iter().flat_map(|x| vec![*x; d]).collect();
        let centroids: Vec<f64> = [3e38, -1e38].iter().flat_map(|x| vec![*x; d]).collect();
        assert_eq!(checked(&rows, d, &centroids, 1).labels, [0, 1, 0, 1, 1, 1]);
    }
}

#[test]
fn offsets_of_ten_million() {
    let random = &mut Random(1);
    for d in [2, 8, 50] {
        let x: Vec<f32> = (0..600 * d).map(|_| (1e7 + random.normal() * 3.0) as f32).collect();
        let start: Vec<f64> = x[..7 * d].iter().map(|v| f64::from(*v)).collect();
        checked(&x, d, &start, 5);
        let y: Vec<f64> = x.iter().map(|v| f64::from(*v) + random.unit()).collect();
        checked(&y, d, &start, 5);
    }
}

#[test]
fn magnitudes_out_of_range_are_refused() {
    let tiny: Vec<f64> = (1..50).map(|i| f64::from(i) * 2f64.powi(-535)).collect();
    let huge: Vec<f64> = (1..50).map(|i| f64::from(i) * 2f64.powi(460)).collect();
    for x in [tiny, huge] {
        let error = KMeans::new(2).fit_features(&Features::from_columns([&x[..]]).unwrap(), None).unwrap_err();
        assert!(matches!(error, KMeansError::MagnitudeOutOfRange { .. }), "{error}");
    }
    let x = [1.0f64, 2.0, 3.0];
    let start = Init::Given(vec![1.0, 1e200]);
    let error = KMeans::new(2).init(start).fit_features(&Features::from_columns([&x[..]]).unwrap(), None).unwrap_err();
    assert!(matches!(error, KMeansError::MagnitudeOutOfRange { .. }), "{error}");
    // `predict` takes any finite value.
    let fitted = KMeans::new(2).fit_features(&Features::from_columns([&x[..]]).unwrap(), None).unwrap();
    for x in [1e-320, 1e300, -1e300, f64::MAX] {
        let label = fitted.model.predict(&Features::from_columns([&[x][..]]).unwrap()).unwrap();
        assert_eq!(label.get(0), Some(reference::nearest(&[x], fitted.model.centroids()).label));
    }
}

#[test]
fn small_values_beside_a_huge_one() {
    let x: Vec<f64> = (0..100).map(|i| if i % 2 == 0 { 1e9 } else { 1e-7 }).collect();
    let fitted = checked(&x, 1, &[1e9, 0.0], 10);
    // The small value is about 2^-53 of the largest. Float64 sums would lose it, but here the mean is within half a quantum
    // (2^-61).
    assert_eq!(fitted.model.centroids()[0], 1e9);
    assert!((fitted.model.centroids()[1] - 1e-7).abs() <= 2f64.powi(-61));
    let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    let fitted = checked(&x, 1, &[1e9, 0.0], 10);
    assert_eq!(fitted.model.centroids(), [1e9, 1e-7], "float32 in two limbs goes down to 2^-66");
}

#[test]
fn a_cluster_of_tiny_weight_keeps_its_mean() {
    for value in [7.0, 0.7] {
        // One such weight among 1,000 is accepted.
        let mut x = vec![1.0f64, 1.5, value, 1.25];
        x.extend(vec![1.1; 996]);
        let mut weights = vec![1.0; 1_000];
        weights[2] = 1e-30;
        let estimator = KMeans::new(2).init(Init::Given(vec![1.2, value])).max_iter(3);
        let fitted =
            estimator.fit_features(&Features::from_columns([&x[..]]).unwrap(), Some(&Column::from_slice(&weights))).unwrap();
        let mean = fitted.model.centroids()[1];
        assert!((mean - value).abs() <= value * 2f64.powi(-36), "{mean} for a cluster {{{value}}}");
        assert_eq!(fitted.model.sizes(), [999, 1]);
    }
}

#[test]
fn a_sentinel_is_named() {
    let mut x: Vec<f32> = (0..1_000).map(|i| i as f32 / 100.0 + 0.5).collect();
    x[500] = 9.97e36;
    let features = Features::from_columns([&x[..]]).unwrap().with_names(vec!["depth".into()]).unwrap();
    match KMeans::new(3).fit_features(&features, None).unwrap_err() {
        KMeansError::RangeTooWide { column, largest } => {
            assert_eq!((column.as_str(), largest), ("depth", f64::from(9.97e36f32)))
        }
        other => panic!("{other}"),
    }
}

/// The host program may have set its thread to flush subnormals and to round towards zero.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_callers_rounding_mode_does_not_matter() {
    let random = &mut Random(4);
    let x: Vec<f32> = crate::data::rows("denormals", 3_000, 3, random);
    let fit = || KMeans::new(5).seed(3).fit_features(&Features::from_rows(&x, 3).unwrap(), None).unwrap();
    let expected = fit();
    let mut saved = 0u32;
    let odd = 0xFFC0u32; // flush to zero, denormals are zero, round towards zero
    // SAFETY: stores and loads MXCSR through the 4 bytes of a variable. Every exception stays masked.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut saved, options(nostack));
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const odd, options(nostack));
    }
    let found = fit();
    let mut after = 0u32;
    // SAFETY: as above. The setting that it loads is the one that was there before.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut after, options(nostack));
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const saved, options(nostack));
    }
    assert_eq!(after & 0xFFC0, odd & 0xFFC0, "the caller gets its setting back");
    assert_eq!(found.labels, expected.labels);
    assert_eq!(found.model.centroids(), expected.model.centroids());
    assert_eq!(found.model.inertia(), expected.model.inertia());
}

/// In float32, the difference of a centroid and the centre overflows. Next to copies of such a centroid, the score would be
/// plus infinity.
#[test]
fn a_centroid_that_overflows_when_centred() {
    let d = 9;
    let wide = |first: f32, rest: f32| [vec![first], vec![rest; d - 1]].concat();
    let mut rows = vec![wide(1e38, 3e38), wide(-3e38, 3e38)];
    rows.extend(vec![wide(-3e38, 0.0); 999]);
    let rows = rows.concat();
    let start: Vec<f64> = [wide(1e38, 3e38), wide(-3e38, 0.0)].concat().iter().map(|v| f64::from(*v)).collect();
    for iterations in [1, 2] {
        assert_eq!(checked(&rows, d, &start, iterations).labels[1], 0);
    }
}

/// Checks rows that lie within rounding of the bisector of two centroids, and others. Here a bound that is slightly too small
/// gives wrong labels.
fn bisectors<T: Engine>(d: usize, spread: f64, random: &mut Random) {
    let k = 12;
    let centre: Vec<f64> = (0..d).map(|_| spread * random.normal()).collect();
    let centroids: Vec<T> =
        (0..k * d).map(|i| T::from_f64(centre[i % d] + random.normal() * if i < d { spread } else { 1.0 })).collect();
    let at = |j: usize, f: usize| centroids[j * d + f].to_f64();
    let mut rows = Vec::new();
    for case in 0..400 {
        let (a, b) = (1 + case % (k - 1), 1 + random.below(k - 1));
        let off = random.normal() * 2f64.powi(-(random.below(45) as i32));
        // Further out along the bisector, the distances to both centroids grow, and so do the errors of the scores.
        let along: Vec<f64> = (0..d).map(|_| random.normal() * spread * random.unit()).collect();
        let between: Vec<f64> = (0..d).map(|f| at(b, f) - at(a, f)).collect();
        let square: f64 = between.iter().map(|v| v * v).sum::<f64>().max(1e-300);
        let slip = along.iter().zip(&between).map(|(v, w)| v * w).sum::<f64>() / square;
        rows.extend((0..d).map(|f| T::from_f64(0.5 * (at(a, f) + at(b, f)) + along[f] + (off - slip) * between[f])));
    }
    predicted(&rows, d, &centroids);
}

#[test]
fn rows_on_bisectors() {
    let random = &mut Random(17);
    for d in [1, 2, 4, 8, 9, 16, 63, 65, 130, 300] {
        for spread in [1.0, 30.0, 1e3, 1e5] {
            bisectors::<f64>(d, spread, random);
            bisectors::<f32>(d, spread, random);
        }
    }
}

/// Rows far from centroids that are close together. The rounding of the reference distance itself decides, and the bound must
/// include it.
#[test]
fn rows_whose_reference_distances_are_rounding() {
    let random = &mut Random(23);
    for d in [9, 12, 40] {
        for _ in 0..60 {
            let scale = 10f64.powf(random.unit() * 3.0 - 1.0);
            let centroids: Vec<f64> = (0..6 * d).map(|_| scale * random.normal()).collect();
            let far = 10f64.powf(7.0 + 7.0 * random.unit());
            let near = far * 10f64.powf(-8.0 * random.unit());
            let rows: Vec<f64> = (0..50 * d).map(|i| if i % d == 0 { far } else { near * random.normal() }).collect();
            let centroids: Vec<f64> = centroids.iter().enumerate().map(|(i, c)| if i % d == 0 { 0.5 } else { *c }).collect();
            predicted(&rows, d, &centroids);
        }
    }
}
