//! Labels by bounds that are carried from iteration to iteration on a GPU: the reference's labels on all rows, and the bits of the CPU, over many iterations. Smaller shapes are in
//! `strategies.rs`.

use polars_kmeans::exact::reference;
use polars_kmeans::{
    Column, Device, Engine, Features, Float, Half, History, Init, KMeans, KMeansError, Metric, Restarts, Strategy,
};
use rayon::prelude::*;

use crate::data::{KINDS, Random, clusters_of, columns, gpu, hash, on_gpu, rounds, rows, rows_between, some_rows};
use crate::half::Halves;

/// All labels are those of the reference, and all bits those of the CPU. Returns the share of the scores that were left out.
fn check_weighted<T: Engine>(estimator: &KMeans, x: &[T], d: usize, weights: Option<&[f64]>, what: &str) -> f64 {
    let columns = columns(x, d);
    let features = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
    let weights = weights.map(Column::from_slice);
    let Some(on_gpu) = on_gpu(estimator) else { return 0.0 };
    let expected = estimator.clone().device(Device::Cpu).fit_features(&features, weights.as_ref()).unwrap();
    let fit = on_gpu.strategy(Strategy::Yinyang).fit_features(&features, weights.as_ref()).unwrap();
    let centroids = fit.model.centroids();
    x.par_chunks_exact(d).zip(&fit.labels).enumerate().for_each(|(i, (x, label))| {
        assert_eq!(*label, reference::nearest(x, centroids).label, "{what}: row {i}");
    });
    assert_eq!(hash(&fit), hash(&expected), "{what}");
    let history = fit.model.history();
    history.iter().filter_map(|row| row.skipped).sum::<f64>() / history.len().max(1) as f64
}

fn check<T: Engine>(estimator: &KMeans, x: &[T], d: usize, what: &str) -> f64 {
    check_weighted(estimator, x, d, None, what)
}

/// A fit from some rows, a few of them twice.
fn estimator<T: Float>(x: &[T], d: usize, k: usize, iterations: u32, random: &mut Random) -> KMeans {
    KMeans::new(k).init(Init::Given(some_rows(x, d, k, 50, random))).max_iter(iterations).tol(0.0)
}

fn check_kinds<T: Engine>(seed: u64) {
    // One and several tiles, groups and partial sums of features.
    let shapes = [[9_000, 5, 40], [6_000, 20, 300], [5_000, 70, 90], [3_000, 150, 270], [20_000, 2, 500]];
    for (i, kind) in KINDS.iter().enumerate().take(rounds(KINDS.len())) {
        let random = &mut Random(seed + i as u64);
        let [n, d, k] = shapes[i % shapes.len()];
        let x: Vec<T> = rows(kind, n, d, random);
        let k = clusters_of(kind, d, k);
        let distinct = !["one value", "duplicates"].contains(kind);
        let start = if distinct { estimator(&x, d, k, 12, random) } else { KMeans::new(k).seed(seed).max_iter(12) };
        check(&start, &x, d, &format!("{kind}, {n} x {d} {}, k = {k}", T::NAME));
    }
}

#[test]
fn every_kind_of_data_float32() {
    check_kinds::<f32>(100_000);
}

#[test]
fn every_kind_of_data_float64() {
    check_kinds::<f64>(101_000);
}

/// One row to many tiles, one cluster to more than there are bits for groups.
#[test]
fn every_size() {
    let sizes = [
        [1, 3, 1],
        [2, 1, 2],
        [127, 5, 33],
        [129, 17, 65],
        [1_025, 33, 129],
        [5_000, 9, 257],
        [20_000, 4, 2_049],
        [9_000, 3, 8_900],
    ];
    for (seed, [n, d, k]) in (0u64..).zip(sizes).take(rounds(sizes.len())) {
        let random = &mut Random(102_000 + seed);
        let x: Vec<f32> = rows(["blobs", "uniform"][seed as usize % 2], n, d, random);
        check(&estimator(&x, d, k, 7, random), &x, d, &format!("{n} x {d}, k = {k}"));
    }
}

/// A fit until nothing changes. Most scores are left out.
#[test]
fn fits_to_the_end() {
    let cases = [
        ("blobs", [60_000, 2, 40]),
        ("uniform", [30_000, 3, 300]),
        ("blobs", [20_000, 24, 300]),
        ("tight blobs far apart", [30_000, 8, 70]),
    ];
    for (seed, (kind, [n, d, k])) in (0u64..).zip(cases).take(rounds(4)) {
        let random = &mut Random(103_000 + seed);
        let x: Vec<f32> = rows(kind, n, d, random);
        let skipped = check(&estimator(&x, d, k, 300, random), &x, d, &format!("to the end, {kind}"));
        assert!(gpu().is_none() || kind.starts_with("tight") || skipped > 0.3, "{kind}: {skipped:?}");
        let wide: Vec<f64> = x.iter().map(|&v| f64::from(v) + 1e-9 * random.normal()).collect();
        check(&estimator(&wide, d, k, 60, random), &wide, d, &format!("to the end, {kind}, Float64"));
    }
}

/// Weights, some of them 0, clusters that start empty, so that rows are relocated between iterations, and several fits in one session.
#[test]
fn weights_and_empty_clusters() {
    for seed in 0..rounds(4) as u64 {
        let random = &mut Random(104_000 + seed);
        let [n, d, k] = [[8_000, 2, 90], [6_000, 20, 60], [5_000, 3, 200], [4_000, 33, 300]][seed as usize];
        let x: Vec<f32> = rows("blobs", n, d, random);
        let weights: Vec<f64> = (0..n).map(|_| if random.below(5) == 0 { 0.0 } else { 9.0 * random.unit() }).collect();
        let start = KMeans::new(k).init(Init::Given(some_rows(&x, d, k, 4, random))).max_iter(15).tol(0.0);
        check_weighted(&start, &x, d, Some(&weights), "weights");
        check(&start, &x, d, "empty clusters");
        let several = KMeans::new(k).init(Init::Random).n_init(Restarts::Count(3)).seed(seed).max_iter(9);
        check(&several.history(History::Full), &x, d, "restarts");
    }
}

/// Fits of one and two iterations: the rows are put in order in the launch after the first, whether the fit goes on or not.
#[test]
fn short_fits() {
    let random = &mut Random(108_000);
    let [n, d, k] = [4_000, 6, 70];
    let x: Vec<f32> = rows("blobs", n, d, random);
    for iterations in [1, 2, 3] {
        let several = KMeans::new(k).init(Init::Random).n_init(Restarts::Count(4)).seed(9).max_iter(iterations);
        check(&several, &x, d, &format!("{iterations} iterations, restarts"));
        check(&several.history(History::Full), &x, d, &format!("{iterations} iterations, restarts, full history"));
    }
    // It stops after its first iteration, when further ones are queued already.
    let apart: Vec<f32> = rows("tight blobs far apart", n, d, random);
    check(&estimator(&apart, d, 10, 50, random).tol_labels(1.0), &apart, d, "stops at once");
    check(&estimator(&apart, d, 10, 50, random).tol(1e9), &apart, d, "stops at once by shift");
}

/// Rows amid two centroids, or one float next to that, at every scale and far from the origin. Centroids move little, so bounds decide as much as they can.
#[test]
fn rows_between_two_centroids() {
    for (seed, exponent) in (0u64..).zip([0, -120, 60, -20, 12]).take(rounds(5)) {
        for (d, offset) in [(1, 0.0), (2, 1e3), (17, 0.0), (40, 1e6)] {
            let random = &mut Random(105_000 + seed);
            let k = 60;
            let (x, start) = rows_between([3_000, d, k], offset, 2f64.powi(exponent), random);
            let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(10).tol(0.0);
            check(&estimator, &x, d, &format!("between two, 2^{exponent}, d = {d}, offset {offset}"));
            let wide: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            check(&estimator, &wide, d, &format!("between two, 2^{exponent}, d = {d}, offset {offset}, Float64"));
        }
    }
}

/// A weightless row and a starting centroid are farther out than all rows that count, and distances may be too large or too small for float32.
#[test]
fn values_far_out_and_tiny() {
    let mut x: Vec<f64> = (0..600).map(|i| f64::from(i % 37)).collect();
    x[17] = 1e130;
    let mut weights = vec![1.0; 300];
    weights[8] = 0.0;
    let (features, weights) = (Features::from_rows(&x, 2).unwrap(), Column::from_slice(&weights));
    let start = KMeans::new(4).init(Init::Given(vec![0.0, 1.0, 5.0, 5.0, 30.0, 1.0, 1e60, 3.0])).tol(0.0);
    let Some(on_gpu) = on_gpu(&start) else { return };
    let expected = start.device(Device::Cpu).fit_features(&features, Some(&weights)).unwrap();
    let fit = on_gpu.strategy(Strategy::Yinyang).fit_features(&features, Some(&weights)).unwrap();
    assert_eq!(hash(&fit), hash(&expected), "far out");
    let random = &mut Random(107_000);
    let tiny: Vec<f64> = (0..12_000).map(|_| (random.normal() * 2f64.powi(60)).round() * 2f64.powi(-500)).collect();
    check(&estimator(&tiny, 3, 40, 15, random), &tiny, 3, "tiny");
}

/// Directions, and values of 16 bits.
#[test]
fn directions_and_half_precision() {
    let random = &mut Random(106_000);
    let x: Vec<f32> = (0..90_000).map(|_| random.normal() as f32).collect();
    check(&estimator(&x, 9, 200, 20, random).metric(Metric::Cosine), &x, 9, "directions");
    for (half, kind) in [(Half::Float16, "blobs"), (Half::BFloat16, "uniform"), (Half::Float16, "lattice")] {
        let (n, d) = (10_000, 12);
        let data = Halves::new(half, kind, n, d, random);
        let columns = columns(&data.bits, d);
        let features = Features::<f32>::from_half_columns(half, columns.iter().map(|c| &c[..])).unwrap();
        let start = estimator(&data.wide, d, 100, 12, random);
        let Some(on_gpu) = on_gpu(&start) else { return };
        let expected = start.device(Device::Cpu).fit_features(&features, None).unwrap();
        let fit = on_gpu.strategy(Strategy::Yinyang).fit_features(&features, None).unwrap();
        assert_eq!(hash(&fit), hash(&expected), "{half:?}, {kind}");
    }
}

/// Rows that stream.
#[test]
fn limits_are_errors() {
    if gpu().is_none() {
        return;
    }
    let x: Vec<f32> = rows("blobs", 200_000, 5, &mut Random(107_000));
    let columns = columns(&x, 5);
    let features = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
    let estimator = KMeans::new(3).device(Device::Cuda(None)).strategy(Strategy::Yinyang).device_memory_limit(Some(8 << 20));
    match estimator.max_iter(2).fit_features(&features, None).unwrap_err() {
        KMeansError::InvalidOption { option: "strategy", expected, .. } => {
            assert!(expected.contains("rows that fit on the GPU"), "{expected}");
        }
        error => panic!("{error}"),
    }
}
