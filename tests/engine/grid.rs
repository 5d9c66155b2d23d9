//! Labels by cells of rows, on shapes with many cells, several tiles a cell and lists that leave centroids out: the reference's labels on all
//! rows, and the bits of the CPU. Smaller shapes are in `strategies.rs`.

use polars_kmeans::exact::reference;
use polars_kmeans::{
    Column, Device, Engine, Features, Float, Half, History, Init, KMeans, KMeansError, Metric, Restarts, Strategy,
};
use rayon::prelude::*;

use crate::data::{KINDS, Random, columns, gpu, hash, on_gpu, rounds, rows, rows_between, some_rows};
use crate::half::Halves;

/// The estimator with cells on the GPU, if there is one.
fn on_grid(estimator: &KMeans) -> Option<KMeans> {
    on_gpu(estimator).map(|estimator| estimator.strategy(Strategy::Cells))
}

/// All labels are those of the reference, and all bits those of the CPU.
fn check_weighted<T: Engine>(estimator: &KMeans, x: &[T], d: usize, weights: Option<&[f64]>, what: &str) {
    let columns = columns(x, d);
    let features = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
    let weights = weights.map(Column::from_slice);
    let Some(on_gpu) = on_grid(estimator) else { return };
    let fit = on_gpu.fit_features(&features, weights.as_ref()).unwrap();
    let centroids = fit.model.centroids();
    x.par_chunks_exact(d).zip(&fit.labels).enumerate().for_each(|(i, (x, label))| {
        assert_eq!(*label, reference::nearest(x, centroids).label, "{what}: row {i}");
    });
    let expected = estimator.clone().device(Device::Cpu).fit_features(&features, weights.as_ref()).unwrap();
    assert_eq!(hash(&fit), hash(&expected), "{what}");
}

fn check<T: Engine>(estimator: &KMeans, x: &[T], d: usize, what: &str) {
    check_weighted(estimator, x, d, None, what);
}

/// A fit from some rows, a few of them twice.
fn estimator<T: Float>(x: &[T], d: usize, k: usize, iterations: u32, random: &mut Random) -> KMeans {
    KMeans::new(k).init(Init::Given(some_rows(x, d, k, 50, random))).max_iter(iterations).tol(0.0)
}

/// Rows whose columns have different scales and long tails.
fn lognormal<T: Float>(n: usize, d: usize, random: &mut Random) -> Vec<T> {
    (0..n * d).map(|i| T::from_f64(10f64.powi((i % d) as i32 * 2) * (1.5 * random.normal()).exp())).collect()
}

fn kind_of<T: Float>(kind: &str, n: usize, d: usize, random: &mut Random) -> Vec<T> {
    if kind == "lognormal" { lognormal(n, d, random) } else { rows(kind, n, d, random) }
}

fn check_kinds<T: Engine>(seed: u64) {
    let shapes = [[60_000, 2, 500], [20_000, 1, 40], [50_000, 4, 64], [40_000, 3, 300]];
    let kinds: Vec<&str> = KINDS.iter().copied().chain(["lognormal", "uniform", "lognormal"]).collect();
    for (i, kind) in kinds.iter().enumerate().take(rounds(kinds.len())) {
        let random = &mut Random(seed + i as u64);
        let [n, d, k] = shapes[i % shapes.len()];
        let x: Vec<T> = kind_of(kind, n, d, random);
        // Some kinds have few distinct rows.
        let k = match *kind {
            "one value" => 1,
            "duplicates" => 5,
            "lattice" => 4usize.pow(d as u32) / 2,
            _ => k,
        };
        let distinct = !["one value", "duplicates"].contains(kind);
        let start = if distinct { estimator(&x, d, k, 6, random) } else { KMeans::new(k).seed(seed).max_iter(6) };
        check(&start, &x, d, &format!("{kind}, {n} x {d} {}, k = {k}", T::NAME));
    }
}

#[test]
fn every_kind_of_data_float32() {
    check_kinds::<f32>(80_000);
}

#[test]
fn every_kind_of_data_float64() {
    check_kinds::<f64>(81_000);
}

/// One row to many cells, one cluster to thousands, and the borders of tiles and cells.
#[test]
fn every_size() {
    let sizes = [1, 3, 4, 5, 127, 129, 1_023, 1_024, 1_025, 2_047, 5_000, 70_001, 300_000];
    for (seed, n) in (0u64..).zip(sizes).take(rounds(sizes.len())) {
        for d in 1..=4 {
            let random = &mut Random(82_000 + 10 * seed + d as u64);
            let k = [1, 2, 33, 300, 2_500][(seed as usize + d) % 5].min(n);
            let x: Vec<f32> = rows(["blobs", "uniform"][d % 2], n, d, random);
            check(&estimator(&x, d, k, 3, random), &x, d, &format!("{n} x {d}, k = {k}"));
        }
    }
}

/// So many clusters that some lists are those of parents.
#[test]
fn lists_that_overflow() {
    for (seed, [n, d, k]) in (0u64..).zip([[3_000, 4, 900], [2_000, 2, 1_500], [4_000, 3, 3_900]]).take(rounds(3)) {
        let random = &mut Random(83_000 + seed);
        let x: Vec<f32> = rows("uniform", n, d, random);
        check(&estimator(&x, d, k, 4, random), &x, d, &format!("overflow, {n} x {d}, k = {k}"));
        let x: Vec<f64> = rows("blobs", n, d, random);
        check(&estimator(&x, d, k, 4, random), &x, d, &format!("overflow, {n} x {d} Float64, k = {k}"));
    }
}

/// Weights, some of them 0, and clusters that start empty, so that rows are relocated between iterations.
#[test]
fn weights_and_empty_clusters() {
    for seed in 0..rounds(4) as u64 {
        let random = &mut Random(84_000 + seed);
        let [n, d, k] = [[30_000, 2, 90], [20_000, 4, 60], [9_000, 3, 200], [15_000, 1, 30]][seed as usize];
        let x: Vec<f32> = rows("blobs", n, d, random);
        let weights: Vec<f64> = (0..n).map(|_| if random.below(5) == 0 { 0.0 } else { 9.0 * random.unit() }).collect();
        let start = KMeans::new(k).init(Init::Given(some_rows(&x, d, k, 4, random))).max_iter(9).tol(0.0);
        check_weighted(&start, &x, d, Some(&weights), "weights");
        check(&start, &x, d, "empty clusters");
        let several = KMeans::new(k).init(Init::Random).n_init(Restarts::Count(3)).seed(seed).max_iter(5);
        check(&several.history(History::Full), &x, d, "restarts");
    }
}

/// Rows amid two centroids, or one float next to that, at every scale and far from the origin.
#[test]
fn rows_between_two_centroids() {
    for (seed, exponent) in (0u64..).zip([0, -120, 60, -20, 12]).take(rounds(5)) {
        for (d, offset) in [(1, 0.0), (2, 1e3), (3, 0.0), (4, 1e6)] {
            let random = &mut Random(85_000 + seed);
            let k = 60;
            let (x, start) = rows_between([8_000, d, k], offset, 2f64.powi(exponent), random);
            let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(2).tol(0.0);
            check(&estimator, &x, d, &format!("between two, 2^{exponent}, d = {d}, offset {offset}"));
            let wide: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            check(&estimator, &wide, d, &format!("between two, 2^{exponent}, d = {d}, offset {offset}, Float64"));
        }
    }
}

/// Directions, and values of 16 bits.
#[test]
fn directions_and_half_precision() {
    let random = &mut Random(86_000);
    let x: Vec<f32> = (0..90_000).map(|_| random.normal() as f32).collect();
    check(&estimator(&x, 3, 200, 6, random).metric(Metric::Cosine), &x, 3, "directions");
    for (half, kind) in [(Half::Float16, "blobs"), (Half::BFloat16, "uniform"), (Half::Float16, "lattice")] {
        let (n, d) = (40_000, 4);
        let data = Halves::new(half, kind, n, d, random);
        let columns = columns(&data.bits, d);
        let features = Features::<f32>::from_half_columns(half, columns.iter().map(|c| &c[..])).unwrap();
        let start = estimator(&data.wide, d, 100, 5, random);
        let Some(on_gpu) = on_grid(&start) else { return };
        let expected = start.device(Device::Cpu).fit_features(&features, None).unwrap();
        assert_eq!(hash(&on_gpu.fit_features(&features, None).unwrap()), hash(&expected), "{half:?}, {kind}");
    }
}

/// So many rows that they are sorted twice, with weights, in both types and with values of 16 bits. And labels of four bytes.
#[test]
fn rows_that_are_sorted_twice() {
    let random = &mut Random(89_000);
    let (n, d, k) = (300_001, 3, 50);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let weights: Vec<f64> = (0..n).map(|_| if random.below(5) == 0 { 0.0 } else { 9.0 * random.unit() }).collect();
    check_weighted(&estimator(&x, d, k, 4, random), &x, d, Some(&weights), "sorted twice, weights");
    let wide: Vec<f64> = x.iter().map(|&v| f64::from(v) + 1e-9 * random.normal()).collect();
    check(&estimator(&wide, d, k, 4, random), &wide, d, "sorted twice, Float64");
    check_weighted(&estimator(&wide, d, k, 3, random), &wide, d, Some(&weights), "sorted twice, Float64, weights");
    let data = Halves::new(Half::Float16, "blobs", n, d, random);
    let columns = columns(&data.bits, d);
    let features = Features::<f32>::from_half_columns(Half::Float16, columns.iter().map(|c| &c[..])).unwrap();
    let start = estimator(&data.wide, d, k, 4, random);
    if let Some(on_gpu) = on_grid(&start) {
        let expected = start.device(Device::Cpu).fit_features(&features, None).unwrap();
        assert_eq!(hash(&on_gpu.fit_features(&features, None).unwrap()), hash(&expected), "sorted twice, Float16");
    }
    let many: Vec<f32> = rows("uniform", 66_000, 2, random);
    if gpu().is_some() {
        check(&estimator(&many, 2, 65_536, 1, random), &many, 2, "65,536 clusters");
    }
}

/// A fit until nothing changes: most cells are settled, and some come back.
#[test]
fn fits_to_the_end() {
    for (seed, kind) in (0u64..).zip(["blobs", "uniform", "lognormal", "tight blobs far apart"]).take(rounds(4)) {
        let random = &mut Random(87_000 + seed);
        let (n, d, k) = (200_000, 2, 40);
        let x: Vec<f32> = kind_of(kind, n, d, random);
        check(&estimator(&x, d, k, 300, random), &x, d, &format!("to the end, {kind}"));
    }
}

/// More features than the kernels have, and rows that stream.
#[test]
fn limits_are_errors() {
    if gpu().is_none() {
        return;
    }
    let x: Vec<f32> = rows("blobs", 200_000, 5, &mut Random(88_000));
    let refused = |d: usize, limit: Option<u64>| {
        let columns = columns(&x, 5);
        let features = Features::from_columns(columns.iter().take(d).map(|c| &c[..])).unwrap();
        let fit = KMeans::new(3).strategy(Strategy::Cells).device_memory_limit(limit).max_iter(2).fit_features(&features, None);
        match fit.unwrap_err() {
            KMeansError::InvalidOption { option: "strategy", expected, .. } => expected,
            error => panic!("{error}"),
        }
    };
    assert!(refused(5, None).contains("at most 4 features"));
    assert!(refused(4, Some(8 << 20)).contains("rows that fit on the GPU for \"cells\""));
}
