//! The starting centroids of k-means++ are the same on the CPU and on a GPU: with copies of the rows in bytes, without, and where rows
//! stream. Tables are large enough, and have enough features and clusters, that a GPU uses the copies.

use polars_kmeans::InstructionSet;
use polars_kmeans::seeding::seed;
use polars_kmeans::{Engine, KMeans};

use crate::data::{KINDS, MORE_KINDS, Random, gpu, rounds, rows, some_weights};
use crate::sessions::{Data, on_cpu, on_gpu};

/// Returns whether there were starting centroids to compare.
fn check<T: Engine>(kind: &str, [n, d, k]: [usize; 3], weighted: bool, chunk: Option<u64>) -> bool {
    let random = &mut Random((n * 7 + d * 3 + k) as u64);
    let x: Vec<T> = rows(kind, n, d, random);
    let weights = weighted.then(|| some_weights(n, random));
    let data = Data { x, weights, d };
    let estimator = KMeans::new(k).seed(random.next());
    let statistics = data.statistics(&estimator);
    let params = estimator.validate(d).unwrap();
    let cuts = [0, n];
    let restart = random.below(3) as u32;
    let mut session = on_cpu(&data, &statistics, &params, &cuts, InstructionSet::detect());
    let on_host = seed(session.as_mut(), &params, &statistics, restart);
    let mut session = on_gpu(&data, &statistics, &params, &cuts, chunk);
    let on_device = seed(session.as_mut(), &params, &statistics, restart);
    let bits = |seeds: polars_kmeans::Result<Vec<T>>| {
        seeds.map(|seeds| seeds.iter().map(|v| v.to_f64().to_bits()).collect::<Vec<_>>()).map_err(|error| error.to_string())
    };
    let (on_host, on_device) = (bits(on_host), bits(on_device));
    let differs = |a: &Vec<u64>, b: &Vec<u64>| a.iter().zip(b).position(|(a, b)| a != b).map(|place| place / d);
    if let (Ok(a), Ok(b)) = (&on_host, &on_device) {
        let what = format!("{kind}, {n} x {d} into {k}, {}, weights: {weighted}, chunks of {chunk:?}", T::NAME);
        assert_eq!((a.len(), differs(a, b)), (b.len(), None), "{what}: the first seed that differs");
    } else {
        assert_eq!(on_host, on_device, "{kind}, {n} x {d} into {k}, {}, weights: {weighted}", T::NAME);
    }
    on_host.is_ok()
}

#[test]
fn a_gpu_draws_the_seeds_of_the_cpu() {
    if gpu().is_none() {
        return;
    }
    let kinds: Vec<&str> = KINDS.into_iter().chain(MORE_KINDS[5..].iter().copied()).collect();
    let shapes = [[9_000, 8, 60], [8_192, 16, 100], [12_345, 33, 180], [9_500, 130, 70], [20_000, 3, 90], [3_000, 20, 40]];
    let (mut compared, mut asked) = (0, 0);
    for (i, kind) in kinds.iter().enumerate().take(rounds(usize::MAX)) {
        for (j, &shape) in shapes.iter().enumerate() {
            let weighted = (i + j) % 3 == 0;
            compared += usize::from(check::<f32>(kind, shape, weighted, None));
            compared += usize::from(check::<f64>(kind, shape, (i + j) % 3 == 1, None));
            asked += 2;
        }
    }
    println!("{compared} of {asked} seedings compared");
    assert!(compared * 3 >= asked * 2, "only {compared} of {asked} seedings had an answer");
}

#[test]
fn many_seeds_and_many_rows() {
    if gpu().is_none() {
        return;
    }
    assert!(check::<f32>("blobs", [20_000, 24, 500], false, None));
    assert!(check::<f64>("uniform", [10_000, 9, 500], true, None));
    assert!(check::<f32>("uniform", [16_000, 2, 450], true, None));
    // The lists of the filter get longer than a warp, a block and all blocks.
    assert!(check::<f32>("blobs", [150_000, 12, 64], false, None));
}

#[test]
fn rows_that_stream_give_the_same_seeds() {
    if gpu().is_none() {
        return;
    }
    for (kind, chunk) in [("blobs", 1_024), ("heavy tails", 2_048), ("lattice", 4_096)] {
        assert!(check::<f32>(kind, [9_000, 16, 60], kind == "blobs", Some(chunk)));
    }
}
