//! Labels by tensor cores, on shapes with several groups of rows, several tiles and lists that leave centroids out: the reference's labels on
//! all rows, and the bits of the CPU. Smaller shapes are in `strategies.rs`.

use polars_kmeans::exact::reference;
use polars_kmeans::{Device, Engine, Features, Fitted, Float, Init, KMeans, KMeansError, Metric, Strategy};
use rayon::prelude::*;

use crate::data::{KINDS, Random, clusters_of, columns, gpu, hash, rounds, rows, some_rows};

/// The kernels: one for generation 9.0, and one for all.
pub const KERNELS: [Strategy; 2] = [Strategy::TensorWgmma, Strategy::TensorMma];

/// The fit by tensor cores. None if there is no GPU, or if it has no such kernel.
pub fn by_tensor_cores<T: Engine>(kernel: Strategy, estimator: &KMeans, features: &Features<'_, T>) -> Option<Fitted<T>> {
    match estimator.clone().device(gpu()?).strategy(kernel).fit_features(features, None) {
        Err(KMeansError::InvalidOption { option: "strategy", expected, .. })
            if kernel == Strategy::TensorWgmma && expected.contains("compute capability") =>
        {
            None
        }
        fit => Some(fit.unwrap()),
    }
}

/// All labels are those of the reference, and all bits those of the CPU.
pub fn check<T: Engine>(estimator: &KMeans, x: &[T], d: usize, what: &str) {
    let columns = columns(x, d);
    let features = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
    let mut expected = None;
    for kernel in KERNELS {
        let Some(fit) = by_tensor_cores(kernel, estimator, &features) else { continue };
        let centroids = fit.model.centroids();
        x.par_chunks_exact(d).zip(&fit.labels).enumerate().for_each(|(i, (x, label))| {
            assert_eq!(*label, reference::nearest(x, centroids).label, "{kernel}, {what}: row {i}");
        });
        let of_cpu = || hash(&estimator.clone().device(Device::Cpu).fit_features(&features, None).unwrap());
        assert_eq!(hash(&fit), *expected.get_or_insert_with(of_cpu), "{kernel}, {what}");
    }
}

/// A fit from some rows, a few of them twice.
fn estimator<T: Float>(x: &[T], d: usize, k: usize, iterations: u32, random: &mut Random) -> KMeans {
    KMeans::new(k).init(Init::Given(some_rows(x, d, k, 50, random))).max_iter(iterations).tol(0.0)
}

/// Each instruction adds up in a way that is known. Another one would be used too, with a wider bound: then this test should know of it.
#[test]
fn how_tensor_cores_add() {
    let Some(Device::Cuda(ordinal)) = gpu() else { return };
    let found = polars_kmeans::backend::cuda::how_tensor_cores_add(ordinal.unwrap_or(0)).unwrap();
    println!("{found:?}");
    assert!(found.iter().all(|(_, added)| added.contains("Blocks")), "{found:?}");
}

fn check_kinds<T: Engine>(seed: u64) {
    let shapes = [[20_000, 40, 300], [9_000, 65, 700], [40_000, 3, 500], [5_000, 300, 80]];
    for (i, kind) in KINDS.iter().enumerate().take(rounds(KINDS.len())) {
        let random = &mut Random(seed + i as u64);
        let [n, d, k] = shapes[i % shapes.len()];
        let x: Vec<T> = rows(kind, n, d, random);
        let k = clusters_of(kind, d, k);
        let distinct = !["one value", "duplicates"].contains(kind);
        let start = if distinct { estimator(&x, d, k, 4, random) } else { KMeans::new(k).seed(seed).max_iter(4) };
        check(&start, &x, d, &format!("{kind}, {n} x {d} {}, k = {k}", T::NAME));
    }
}

#[test]
fn every_kind_of_data_float32() {
    check_kinds::<f32>(70_000);
}

#[test]
fn every_kind_of_data_float64() {
    check_kinds::<f64>(71_000);
}

/// One feature to 4,096, one cluster to thousands, one row to several tiles, and all borders between.
#[test]
fn every_size() {
    let shapes = [
        [1, 1, 1],
        [127, 5, 3],
        [2_049, 1, 33],
        [3_000, 16, 256],
        [3_000, 48, 257],
        [4_000, 64, 512],
        [3_000, 128, 513],
        [2_500, 256, 100],
        [1_500, 1_000, 300],
        [600, 4_096, 90],
        [30_000, 20, 3_000],
    ];
    for (seed, [n, d, k]) in (0u64..).zip(shapes).take(rounds(shapes.len())) {
        let random = &mut Random(72_000 + seed);
        let x: Vec<f32> = rows(["blobs", "uniform"][seed as usize % 2], n, d, random);
        check(&estimator(&x, d, k, 3, random), &x, d, &format!("{n} x {d}, k = {k}"));
    }
}

/// Rows amid two centroids, or one float next to that, at every scale and far from the origin.
#[test]
fn rows_between_two_centroids() {
    for (seed, exponent) in (0u64..).zip([0, -120, 60, -20, 12]).take(rounds(5)) {
        for (d, offset) in [(24, 0.0), (70, 1e3), (130, 0.0)] {
            let random = &mut Random(73_000 + seed);
            let k = 200;
            let scale = 2f64.powi(exponent);
            let centroids: Vec<f32> = (0..k * d).map(|_| ((offset + random.normal()) * scale) as f32).collect();
            let mut x = Vec::new();
            for _ in 0..6_000 {
                let [a, b] = [random.below(k), random.below(k)];
                let moved = random.below(d);
                for f in 0..d {
                    let middle = ((f64::from(centroids[a * d + f]) + f64::from(centroids[b * d + f])) / 2.0) as f32;
                    x.push(if f != moved {
                        middle
                    } else if random.below(2) == 0 {
                        middle.next_up()
                    } else {
                        middle.next_down()
                    });
                }
            }
            let start = centroids.iter().map(|&v| f64::from(v)).collect();
            let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(1).tol(0.0);
            check(&estimator, &x, d, &format!("between two, 2^{exponent}, d = {d}, offset {offset}"));
        }
    }
}

/// Lengths of a wide range in one group: rows near the centre beside long ones, one centroid far out, and directions without lengths.
#[test]
fn lengths_of_a_wide_range() {
    for (seed, metric) in (0u64..).zip([Metric::Euclidean, Metric::Cosine]).take(rounds(2)) {
        let random = &mut Random(74_000 + seed);
        let (n, d, k) = (10_000, 33, 150);
        let mut x = Vec::new();
        for i in 0..n {
            let length = if i == 77 { 1e12 } else { (4.0 * random.normal()).exp() };
            x.extend((0..d).map(|_| (length * random.normal()) as f32));
        }
        check(&estimator(&x, d, k, 5, random).metric(metric), &x, d, "lengths of a wide range");
    }
}

/// Squares of these distances underflow, so reference distances tie where true distances do not: the smallest index wins, though its centroid
/// is farther than the radius of the group allows.
#[test]
fn distances_that_underflow() {
    let (tiny, d) = (2f64.powi(-540), 1_026);
    let point = |y: f64, p: f64| [1.0, y * tiny].into_iter().chain(std::iter::repeat_n(p * tiny, d - 2));
    let rows = (0..4_096).flat_map(|i| {
        let place = 20.0 * f64::from(i / 2 % 4);
        if i % 2 == 0 { point(place, 2.0) } else { point(place + 5.0, -3.0) }
    });
    let x: Vec<f64> = rows.collect();
    let first = (0..4).flat_map(|i| point(20.0 * f64::from(i) - 1.0, 2.0));
    let second = (0..4).flat_map(|i| point(20.0 * f64::from(i) + 6.0, -3.0));
    let estimator = KMeans::new(8).init(Init::Given(first.chain(second).collect())).max_iter(1).tol(0.0);
    check(&estimator, &x, d, "distances that underflow");
}

/// Chunks of rows that pass through the GPU: each gets its copies when it comes.
#[test]
fn rows_that_stream() {
    let random = &mut Random(75_000);
    let (n, d, k) = (60_000, 50, 100);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let columns = columns(&x, d);
    let features = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
    let whole = estimator(&x, d, k, 4, random);
    for kernel in KERNELS {
        let Some(fit) = by_tensor_cores(kernel, &whole, &features) else { continue };
        let limited = whole.clone().device_memory_limit(Some(16 << 20));
        assert_eq!(hash(&by_tensor_cores(kernel, &limited, &features).unwrap()), hash(&fit), "{kernel}");
    }
}
