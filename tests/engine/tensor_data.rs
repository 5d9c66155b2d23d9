//! Labels by tensor cores on the data of the claims: token vectors, unit vectors of low rank, one blob, heavy tails, offsets, ties, copies of rows, a
//! centroid far out. All labels are compared with the reference, and all bits with the CPU. `tensor.rs` has the other cases.

use std::path::PathBuf;

use polars_kmeans::{Engine, Features, Float, Half, Init, KMeans, Metric, Strategy};

use crate::data::{Random, columns, hash, on_gpu, rounds, rows, some_rows};
use crate::tensor::{KERNELS, by_tensor_cores, check};

pub const KINDS: [&str; 7] = ["token vectors", "one blob", "lognormal", "small integers", "offset", "unit vectors", "copies"];

/// Rows in a random subspace. `length` gives each its length.
fn low_rank(n: usize, d: usize, rank: usize, random: &mut Random, length: impl Fn(&mut Random) -> f64) -> Vec<f64> {
    let axes: Vec<f64> = (0..rank * d).map(|_| random.normal()).collect();
    let mut out = Vec::with_capacity(n * d);
    for _ in 0..n {
        let mut row = vec![0.0; d];
        for axis in axes.chunks_exact(d) {
            let z = random.normal();
            row.iter_mut().zip(axis).for_each(|(x, a)| *x += z * a);
        }
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = length(random) / norm;
        out.extend(row.iter().map(|x| x * scale));
    }
    out
}

pub fn table<T: Float>(kind: &str, n: usize, d: usize, random: &mut Random) -> Vec<T> {
    let unscaled = |f: usize| 10f64.powf(4.0 * f as f64 / (d - 1).max(1) as f64);
    let rank = (d / 8).max(2);
    let values: Vec<f64> = match kind {
        // Lengths from 0.4 to 38, as those of a language model.
        "token vectors" => low_rank(n, d, rank, random, |random| 0.4 * 95f64.powf(random.unit())),
        "unit vectors" => low_rank(n, d, rank, random, |_| 1.0),
        "one blob" => (0..n * d).map(|_| random.normal()).collect(),
        "lognormal" => (0..n * d).map(|i| unscaled(i % d) * (1.5 * random.normal()).exp()).collect(),
        "small integers" => (0..n * d).map(|_| 1.0 + random.below(3) as f64).collect(),
        "offset" => (0..n * d).map(|_| 1e6 + 0.3 * random.normal()).collect(),
        _ => {
            let few: Vec<f64> = (0..n.div_ceil(12) * d).map(|_| random.normal()).collect();
            (0..n).flat_map(|_| few[random.below(few.len() / d) * d..][..d].to_vec()).collect()
        }
    };
    values.into_iter().map(T::from_f64).collect()
}

/// A fit from random rows, some of them twice.
fn estimator<T: Float>(x: &[T], d: usize, k: usize, iterations: u32, random: &mut Random) -> KMeans {
    KMeans::new(k).init(Init::Given(some_rows(x, d, k, 50, random))).max_iter(iterations).tol(0.0)
}

fn check_kinds<T: Engine>(seed: u64) {
    for (i, kind) in KINDS.iter().enumerate().take(rounds(KINDS.len())) {
        let random = &mut Random(seed + i as u64);
        let [n, d, k] = [[12_000, 96, 400], [5_000, 260, 270]][i % 2];
        let x: Vec<T> = table(kind, n, d, random);
        check(&estimator(&x, d, k, 4, random), &x, d, &format!("{kind}, {n} x {d} {}, k = {k}", T::NAME));
    }
}

#[test]
fn the_data_of_the_claims_float32() {
    check_kinds::<f32>(80_000);
}

#[test]
fn the_data_of_the_claims_float64() {
    check_kinds::<f64>(81_000);
}

#[test]
fn directions_of_low_rank() {
    let random = &mut Random(82_000);
    for kind in ["token vectors", "unit vectors", "small integers"] {
        let (n, d, k) = (8_000, 128, 300);
        let x: Vec<f32> = table(kind, n, d, random);
        check(&estimator(&x, d, k, 4, random).metric(Metric::Cosine), &x, d, &format!("directions, {kind}"));
    }
}

/// The vectors of a language model, if `POLARS_KMEANS_EMBEDDINGS` names the file that `benches/embeddings.py` writes.
#[test]
fn real_token_vectors() {
    const D: usize = 256;
    let Some(path) = std::env::var_os("POLARS_KMEANS_EMBEDDINGS").map(PathBuf::from) else { return };
    let bytes = std::fs::read(path).unwrap();
    let values = bytes.chunks_exact(2).map(|two| Half::Float16.to_f32(u16::from_le_bytes([two[0], two[1]])));
    let x: Vec<f32> = values.collect();
    let random = &mut Random(83_000);
    check(&estimator(&x, D, 1_000, 5, random), &x, D, "real token vectors");
    check(&estimator(&x, D, 1_000, 3, random).metric(Metric::Cosine), &x, D, "directions of real token vectors");
    let doubles: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    check(&estimator(&doubles, D, 500, 3, random), &doubles, D, "real token vectors, float64");
}

/// One centroid starts far from all rows. It takes no row, so the row that is farthest from its centroid becomes its cluster.
#[test]
fn a_centroid_far_out() {
    for (round, far) in [1e4, 1e9, 1e15, 1e30].into_iter().enumerate().take(rounds(4)) {
        let random = &mut Random(84_000 + round as u64);
        let (n, d, k) = (9_000, 70, 280);
        let x: Vec<f32> = table("one blob", n, d, random);
        let mut start = some_rows(&x, d, k, usize::MAX, random);
        start[17 * d..18 * d].fill(far);
        let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(3).tol(0.0);
        check(&estimator, &x, d, &format!("a centroid at {far:e}"));
    }
}

/// One feature to 4,096 in float64. `tensor.rs` has float32.
#[test]
fn every_size_float64() {
    let shapes = [
        [1, 1, 1],
        [2_100, 1, 40],
        [3_000, 16, 256],
        [3_000, 63, 257],
        [2_000, 129, 300],
        [1_000, 1_000, 120],
        [500, 4_096, 60],
    ];
    for (seed, [n, d, k]) in (85_000..).zip(shapes).take(rounds(shapes.len())) {
        let random = &mut Random(seed);
        let x: Vec<f64> = rows(["uniform", "blobs"][seed as usize % 2], n, d, random);
        check(&estimator(&x, d, k, 3, random), &x, d, &format!("{n} x {d} float64, k = {k}"));
    }
}

#[test]
fn twenty_fits_have_one_hash() {
    let random = &mut Random(86_000);
    for kind in ["token vectors", "lognormal"] {
        let (n, d, k) = (60_000, 64, 500);
        let x: Vec<f32> = table(kind, n, d, random);
        let columns = columns(&x, d);
        let features = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
        let estimator = estimator(&x, d, k, 6, random);
        let Some(first) = by_tensor_cores(Strategy::Tensor, &estimator, &features) else { return };
        for _ in 1..rounds(20) {
            assert_eq!(hash(&by_tensor_cores(Strategy::Tensor, &estimator, &features).unwrap()), hash(&first), "{kind}");
        }
    }
}

/// The history says how many rows were settled and how many scores were left out.
#[test]
fn the_history_has_the_cost() {
    let random = &mut Random(87_000);
    let (n, d, k) = (60_000, 40, 300);
    let history_of = |kernel, kind: &str, streamed: bool, random: &mut Random| {
        let x: Vec<f32> = if kind == "one blob" { table(kind, n, d, random) } else { rows(kind, n, d, random) };
        let columns = columns(&x, d);
        let features = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
        let mut estimator = KMeans::new(k).init(Init::Given(some_rows(&x, d, k, usize::MAX, random))).max_iter(5).tol(0.0);
        if streamed {
            estimator = estimator.device_memory_limit(Some(16 << 20));
        }
        let fit = by_tensor_cores(kernel, &estimator, &features)?;
        let tiled = on_gpu(&estimator)?.strategy(Strategy::Tiled).fit_features(&features, None).unwrap();
        for row in tiled.model.history() {
            assert_eq!(row.skipped, Some(0.0), "{row:?}");
            assert!((0.0..=1.0).contains(&row.settled.unwrap()), "{row:?}");
        }
        Some(fit.model.history().to_vec())
    };
    for (kernel, streamed) in KERNELS.into_iter().flat_map(|kernel| [(kernel, false), (kernel, true)]) {
        let Some(apart) = history_of(kernel, "tight blobs far apart", streamed, random) else { continue };
        let one = history_of(kernel, "one blob", streamed, random).unwrap();
        assert_eq!((apart.len(), one.len()), (5, 5));
        for row in apart.iter().chain(&one) {
            assert!((0.0..=1.0).contains(&row.settled.unwrap()) && (0.0..=1.0).contains(&row.skipped.unwrap()), "{row:?}");
        }
        // Nine of ten blobs are too far from a row.
        assert!(apart.iter().all(|row| row.skipped.unwrap() > 0.5), "{apart:?}");
        assert!(one.iter().all(|row| row.skipped.unwrap() < 0.5 && row.settled.unwrap() < 0.5), "{one:?}");
    }
}

/// Labels of every iteration of a loop, which come from what the step carries from one iteration to the next. The reference labels are made on the GPU,
/// so the shapes are larger.
#[cfg(feature = "bench")]
#[test]
fn labels_of_every_iteration() {
    use polars_kmeans::backend::cuda::reference_labels;
    use polars_kmeans::fit::benchmark::wrong_rows;

    for (seed, kind) in (88_000..).zip(["blobs", "uniform", "lognormal", "token vectors"]) {
        let random = &mut Random(seed);
        let (n, d, k) = (150_000, 40, 1_000);
        let x: Vec<f32> = if KINDS.contains(&kind) { table(kind, n, d, random) } else { rows(kind, n, d, random) };
        let columns = columns(&x, d);
        let slices: Vec<&[f32]> = columns.iter().map(|c| &c[..]).collect();
        let features = Features::from_columns(slices.iter().copied()).unwrap();
        let estimator = estimator(&x, d, k, 8, random);
        if by_tensor_cores(Strategy::Tensor, &estimator, &features).is_none() {
            return;
        }
        let estimator = on_gpu(&estimator).unwrap().strategy(Strategy::Tensor);
        for iterations in [1, 2, 3, 5, 8, 12].into_iter().take(rounds(6)) {
            let looped = f32::labels_of_loop(&estimator, &features, iterations).unwrap();
            let right = reference_labels(0, &slices, &looped.centroids).unwrap();
            assert_eq!(wrong_rows(&looped.labels, &right).next(), None, "{kind}, iteration {iterations}");
        }
    }
}
