//! Labels by cells of rows, where `conformance.rs` does not go: sizes around those of cells, lists that overflow, and rows that are sorted
//! twice.

use polars_kmeans::{Column, Engine, Features, Half, Init, KMeans, KMeansError, Strategy};

use crate::conformance::Case;
use crate::conformance::gpu::{Cells, same_bits};
use crate::conformance::{Way, gpu::Family};
use crate::data::{Random, columns, from_columns, from_some, gpu, rounds, rows, some_rows, some_weights};
use crate::half::Halves;
use crate::sessions::Data;

fn check<T: Engine>(x: Vec<T>, d: usize, k: usize, iterations: u32, weights: Option<&[f64]>, random: &mut Random) {
    let (start, what) = (some_rows(&x, d, k, 50, random), format!("{} x {d} {}, k = {k}", x.len() / d, T::NAME));
    let data = Data { x, weights: weights.map(<[f64]>::to_vec), d };
    Cells::check(&Case { data, start, iterations, what });
}

/// One row to many cells, one cluster to thousands, and the borders of tiles and cells.
#[test]
fn borders_of_cells() {
    let sizes = [1, 3, 4, 5, 127, 129, 1_023, 1_024, 1_025, 2_047, 5_000, 70_001, 300_000];
    for (seed, n) in (0u64..).zip(sizes).take(rounds(sizes.len())) {
        for d in 1..=4 {
            let random = &mut Random(82_000 + 10 * seed + d as u64);
            let k = [1, 2, 33, 300, 2_500][(seed as usize + d) % 5].min(n);
            let x: Vec<f32> = rows(["blobs", "uniform"][d % 2], n, d, random);
            check(x, d, k, 3, None, random);
        }
    }
}

/// So many clusters that some lists are long, or those of parents, and many rivals are looked for.
#[test]
fn lists_that_overflow() {
    for (seed, [n, d, k]) in
        (0u64..).zip([[3_000, 4, 900], [60_000, 4, 3_000], [2_000, 2, 1_500], [4_000, 3, 3_900]]).take(rounds(4))
    {
        let random = &mut Random(83_000 + seed);
        check::<f32>(rows("uniform", n, d, random), d, k, 4, None, random);
        check::<f64>(rows("blobs", n, d, random), d, k, 4, None, random);
    }
}

/// So many rows that they are sorted twice, with weights, in both types and with values of 16 bits. And labels of four bytes.
#[test]
fn rows_that_are_sorted_twice() {
    if gpu().is_none() {
        return;
    }
    let random = &mut Random(89_000);
    let (n, d, k) = (300_001, 3, 50);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let weights = some_weights(n, random);
    let wide: Vec<f64> = x.iter().map(|&v| f64::from(v) + 1e-9 * random.normal()).collect();
    check(x, d, k, 4, Some(&weights), random);
    check(wide.clone(), d, k, 4, None, random);
    check(wide, d, k, 3, Some(&weights), random);
    let data = Halves::new(Half::Float16, "blobs", n, d, random);
    let estimator = from_some(&data.wide, d, k, 50, random).max_iter(4);
    same_bits(Cells::STRATEGIES, &estimator, &data.by_rows()[0], None, "sorted twice, Float16");
    check::<f32>(rows("uniform", 66_000, 2, random), 2, 65_536, 1, None, random);
}

/// Centroids that are read through caches, as vectors: they do not fit into shared memory.
#[test]
fn more_centroids_than_shared_memory_holds() {
    for (seed, [d, k]) in (0u64..).zip([[1, 9_000], [2, 5_000], [3, 2_100], [4, 2_500]]).take(rounds(4)) {
        let random = &mut Random(85_000 + seed);
        check::<f32>(rows("blobs", 20_000, d, random), d, k, 3, None, random);
    }
}

/// So many rows and clusters that there are 65,536 cells, more than a block has nodes of the tree in shared memory. Lists are long where blobs are
/// dense on one side of a cell.
#[test]
fn the_most_cells() {
    if gpu().is_none() {
        return;
    }
    let random = &mut Random(84_000);
    let (n, d, k) = (6_500_000, 3, 20_000);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let estimator = from_some(&x, d, k, 50, random).max_iter(2);
    same_bits(Cells::STRATEGIES, &estimator, &Features::from_rows(&x, d).unwrap(), None, "the most cells");
}

/// One feature and more clusters than lists have numbers for: these are sorted. Both types, weights, a row far out, and ties.
#[test]
fn more_clusters_of_one_feature_than_lists_have() {
    if gpu().is_none() {
        return;
    }
    let random = &mut Random(86_000);
    let weights = some_weights(200_000, random);
    let started = |start: Vec<f64>| KMeans::new(start.len()).init(Init::Given(start)).tol(0.0).max_iter(3);
    for (kind, n, k) in [("uniform", 200_000, 65_537), ("blobs", 200_000, 131_072), ("a row far out", 140_000, 70_001)] {
        let x: Vec<f32> = rows(kind, n, 1, random);
        let wide: Vec<f64> = x.iter().map(|&v| f64::from(v) + 1e-9 * random.normal()).collect();
        let what = format!("{n} x 1, k = {k}, {kind}");
        // Rows in another order, each at most once.
        let places = (0..k).map(|j| j * 7_919 % n);
        let estimator = started(places.clone().map(|i| f64::from(x[i])).collect());
        same_bits(Cells::STRATEGIES, &estimator, &Features::from_rows(&x, 1).unwrap(), None, &what);
        let weights = (n == 200_000).then(|| Column::from_slice(&weights));
        let estimator = started(places.map(|i| wide[i]).collect());
        same_bits(Cells::STRATEGIES, &estimator, &Features::from_rows(&wide, 1).unwrap(), weights.as_ref(), &what);
    }
    // Every second row lies in the middle of two centroids.
    let x: Vec<f32> = (0..150_000u32).map(|i| i as f32).collect();
    let start = (0..70_000u32).map(|j| f64::from(2 * (j.wrapping_mul(48_271) % 70_000))).collect();
    same_bits(Cells::STRATEGIES, &started(start), &Features::from_rows(&x, 1).unwrap(), None, "ties on a line");
}

/// More features than the kernels have.
#[test]
fn five_features_are_refused() {
    if gpu().is_none() {
        return;
    }
    let x: Vec<f32> = rows("blobs", 20_000, 5, &mut Random(88_000));
    let columns = columns(&x, 5);
    let error = KMeans::new(3).strategy(Strategy::Grid).fit_features(&from_columns(&columns), None).unwrap_err();
    assert!(matches!(&error, KMeansError::InvalidOption { option: "strategy", .. }), "{error}");
    assert!(error.to_string().contains("at most 4 features"), "{error}");
}
