//! Every named strategy gives the reference's labels and the bits of the CPU. A shape that it does not support gives an error.

use polars_kmeans::{Column, Device, Engine, Features, History, Init, KMeans, KMeansError, Restarts, Strategy};

use crate::data::{
    Random, assert_nearest, brief, columns, from_columns, from_some, gpu, hash, on_gpu, rounds, rows, shape, some_weights,
};
use crate::streaming::limits;

/// Kind of data, shape (n, d, k), weights.
type Case = (&'static str, [usize; 3], bool);

/// Under a checker, only the first few run. The cases have ties, empty clusters, tile and table edges, labels of one and two
/// bytes, portions of features, and weights of zero.
const CASES: [Case; 24] = [
    ("blobs", [700, 2, 5], false),
    ("uniform", [257, 17, 33], true),
    ("lattice", [600, 3, 20], false),
    ("blobs", [500, 1, 1], false),
    ("uniform", [513, 1, 7], true),
    ("blobs", [300, 70, 20], false),
    ("duplicates", [400, 2, 6], false),
    ("blobs", [1, 4, 1], false),
    ("blobs", [2_500, 5, 300], false),
    ("lattice", [900, 6, 260], false),
    ("blobs", [3_000, 3, 7], true),
    ("uniform", [2_000, 20, 16], true),
    ("offset 1e7", [3_000, 12, 9], false),
    ("mixed scales", [2_000, 6, 5], false),
    ("denormals", [1_500, 4, 5], false),
    ("sentinel", [2_000, 9, 4], true),
    ("tight blobs far apart", [4_000, 16, 40], false),
    ("constant columns", [1_000, 8, 3], false),
    ("uniform", [900, 300, 9], false),
    ("blobs", [700, 191, 70], true),
    ("one value", [300, 2, 1], false),
    ("blobs", [20_000, 4, 64], false),
    ("blobs", [4_000, 2, 3_000], true),
    ("uniform", [2_500, 12, 1_000], false),
];

fn cases() -> impl Iterator<Item = (u64, Case)> {
    (0u64..).zip(CASES).take(rounds(CASES.len()))
}

/// All strategies. Under a checker, only those from papers: other tests run our own under it.
fn strategies() -> impl Iterator<Item = Strategy> {
    let all = std::env::var_os("POLARS_KMEANS_GPU_ROUNDS").is_none();
    Strategy::ALL.iter().copied().filter(move |strategy| all || !strategy.source().starts_with("ours"))
}

/// Whether a strategy may refuse a shape.
fn limited(strategy: Strategy, [_, d, k]: [usize; 3]) -> bool {
    strategy.name().starts_with("registers") && d > 12
        || strategy == Strategy::Grid && d > 4
        || strategy == Strategy::Columns && !(9..=300).contains(&d)
        || strategy == Strategy::Columns && k > 32
        || strategy.name().starts_with("luigi") && d * k > 4_000
        || strategy == Strategy::LutzFused && d * k > 4_000
        || [Strategy::LutzMerge, Strategy::LutzFeatures].contains(&strategy) && k > 1_500
}

fn check<T: Engine>(seed: u64, (kind, [n, d, k], weighted): Case) {
    let random = &mut Random(40_000 + seed);
    let x: Vec<T> = rows(kind, n, d, random);
    let weights = weighted.then(|| some_weights(n, random));
    let weights = weights.as_ref().map(|w| Column::from_slice(w));
    let estimators = [
        // Some starting centroids are the same row. This makes empty clusters, which take the farthest rows.
        from_some(&x, d, k, 9, random).max_iter(6),
        KMeans::new(k).init(Init::Random).n_init(Restarts::Count(2)).seed(seed).max_iter(3).history(History::Full),
    ];
    let columns = columns(&x, d);
    let features = from_columns(&columns);
    for estimator in estimators {
        let Some(on_gpu) = on_gpu(&estimator) else { return };
        let fit = |estimator: &KMeans| estimator.fit_features(&features, weights.as_ref());
        let what = format!("{kind}, {n} x {d} {}, k = {k}, {weighted}", T::NAME);
        let expected = fit(&estimator.device(Device::Cpu));
        expected.iter().for_each(|fit| assert_nearest(&x, fit, &what));
        for strategy in strategies() {
            match fit(&on_gpu.clone().strategy(strategy)) {
                Err(KMeansError::InvalidOption { option: "strategy", .. }) if limited(strategy, [n, d, k]) => {}
                found => assert_eq!(brief(&found), brief(&expected), "{strategy}, {what}"),
            }
        }
    }
}

in_both_types!(every_strategy_gives_the_same_bits, T, first in [0, 100] => {
    cases().for_each(|(seed, case)| check::<T>(first + seed, case));
});

/// There are so many rows that the tables of a block fill up and are flushed before the end.
#[test]
fn every_strategy_flushes_full_tables() {
    if gpu().is_none() || std::env::var_os("POLARS_KMEANS_GPU_ROUNDS").is_some() {
        return;
    }
    let n = 6_000_000;
    let x: Vec<f32> = (0..n as u64).map(|i| (Random(i).unit() + f64::from(i.is_multiple_of(3) as u8)) as f32).collect();
    // One strategy needs more features.
    for (d, all) in [(1, strategies().filter(|s| *s != Strategy::Columns).collect()), (9, vec![Strategy::Columns])] {
        let features = Features::from_columns((0..d).map(|_| &x[..])).unwrap();
        let start = [vec![0.25; d], vec![1.0; d]].concat();
        let estimator = KMeans::new(2).init(Init::Given(start)).max_iter(2).tol(0.0);
        let expected = hash(&estimator.clone().device(Device::Cpu).fit_features(&features, None).unwrap());
        for strategy in all {
            let fit = estimator.clone().strategy(strategy).fit_features(&features, None).unwrap();
            assert_eq!(hash(&fit), expected, "{strategy}");
        }
    }
}

#[test]
fn named_strategies_are_for_a_gpu() {
    let x = [0.0f32, 1.0, 2.0, 3.0];
    let features = Features::from_columns([&x[..]]).unwrap();
    let on_cpu = KMeans::new(2).device(Device::Cpu).strategy(Strategy::Zechner).fit_features(&features, None).unwrap_err();
    assert_eq!(on_cpu.to_string(), "strategy: expected \"default\" on the CPU (device=\"cpu\"), got \"zechner\"");
    let anywhere = KMeans::new(2).strategy(Strategy::Zechner).fit_features(&features, None);
    match gpu() {
        Some(_) => assert!(anywhere.unwrap().choice.place != polars_kmeans::Place::Cpu),
        None => assert!(matches!(anywhere, Err(KMeansError::DeviceNotAvailable { .. }))),
    }
}

#[test]
fn shapes_beyond_a_strategy_are_errors_with_the_limit() {
    if gpu().is_none() {
        return;
    }
    let (d, k) = (70, 5_000);
    let x: Vec<f32> = rows("blobs", k, d, &mut Random(1));
    let features = Features::from_rows(&x, d).unwrap();
    let refused =
        [Strategy::Registers, Strategy::LuigiV1, Strategy::LuigiV2, Strategy::LuigiV3, Strategy::LuigiV4, Strategy::LutzFused];
    for strategy in refused {
        let error = KMeans::new(k).strategy(strategy).fit_features(&features, None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, KMeansError::InvalidOption { option: "strategy", .. }) && text.contains("at most"), "{text}");
        assert!(text.contains(strategy.name()), "{text}");
    }
}

/// Only our own stream, as `conformance.rs` checks.
#[test]
fn the_papers_strategies_need_all_rows_on_the_gpu() {
    let Some(device) = gpu() else { return };
    let x: Vec<f32> = rows("blobs", 9_000, 20, &mut Random(97));
    let room = limits(shape::<f32>([9_000, 20, 40], false))[0].room;
    for strategy in [Strategy::Zechner, Strategy::LutzFused] {
        let estimator = KMeans::new(40).device(device).strategy(strategy).device_memory_limit(Some(room));
        let error = estimator.fit_features(&Features::from_rows(&x, 20).unwrap(), None).unwrap_err();
        assert!(matches!(&error, KMeansError::InvalidOption { option: "strategy", .. }), "{strategy}: {error}");
    }
}

/// Two groups far apart, half of the rows on a lattice. Products cannot decide the rows of one group, so the lists of rows in doubt fill up. Ties
/// need reference distances.
fn check_in_doubt<T: Engine>(seed: u64, [n, d, k]: [usize; 3], weighted: bool) {
    let random = &mut Random(90_000 + seed);
    let x: Vec<T> = (0..n)
        .flat_map(|i| {
            let far = if random.below(2) == 0 { 1e5 } else { 0.0 };
            let value = |unit: f64| if i % 2 == 0 { (3.0 * unit).floor() } else { 3.0 * unit };
            (0..d).map(|_| T::from_f64(far + value(random.unit()))).collect::<Vec<_>>()
        })
        .collect();
    let weights: Option<Vec<f64>> = weighted.then(|| (0..n).map(|_| random.below(3) as f64).collect());
    let weights = weights.as_ref().map(|w| Column::from_slice(w));
    let start = (0..k).flat_map(|j| x[j * d..][..d].iter().map(|v| v.to_f64())).collect();
    let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(3).tol(0.0);
    let Some(on_gpu) = on_gpu(&estimator) else { return };
    let columns = columns(&x, d);
    let features = from_columns(&columns);
    let expected = hash(&estimator.device(Device::Cpu).fit_features(&features, weights.as_ref()).unwrap());
    for strategy in strategies().filter(|s| s.source().starts_with("ours") && !limited(*s, [n, d, k])) {
        let found = on_gpu.clone().strategy(strategy).fit_features(&features, weights.as_ref()).unwrap();
        assert_eq!(hash(&found), expected, "{strategy}, {n} x {d} {}, k = {k}", T::NAME);
    }
}

/// So many rows are in doubt that they are settled in whole batches.
#[test]
fn every_strategy_settles_many_rows_in_doubt() {
    let shapes =
        [[1, 40], [2, 5], [2, 700], [3, 8], [4, 2_100], [6, 33], [8, 300], [12, 70], [16, 3], [20, 40], [70, 64], [150, 130]];
    for (seed, [d, k]) in (0..).zip(shapes).take(rounds(shapes.len())) {
        let n = if d * k > 5_000 { 30_000 } else { 80_000 };
        check_in_doubt::<f32>(seed, [n, d, k], seed % 4 == 3);
        check_in_doubt::<f64>(100 + seed, [n / 2, d, k], seed % 4 == 1);
    }
}
