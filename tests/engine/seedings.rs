//! Every seeding: against the oracle, and the same in every way that a fit can hold its rows.

use polars_kmeans::InstructionSet;
use polars_kmeans::backend::Seeder;
use polars_kmeans::seeding::seed;
use polars_kmeans::{Engine, Features, Init, KMeans, KMeansError, Restarts};

use crate::data::{KINDS, Random, gpu, on_gpu, rows};
use crate::exactness::{check_all, check_task, size};
use crate::far;
use crate::oracle::{Start, Task};
use crate::sessions::{Data, every_way, on_cpu};

/// A seeding of any kind, for d features.
fn any_start<T: Clone>(d: usize, case: u64, random: &mut Random) -> Start<T> {
    match case % if d == 1 { 4 } else { 3 } {
        0 => Start::Parallel {
            oversampling: [0.1, 0.5, 1.0, 2.0, 7.3][random.below(5)],
            rounds: [1, 2, 5, 255][random.below(4)],
            by_values: false,
        },
        1 => Start::AfkMc2 { chain: [1, 2, 7, 40][random.below(4)] },
        2 => [Start::PlusPlus, Start::Random][random.below(2)].clone(),
        _ => Start::Optimal,
    }
}

/// Returns whether there was an answer to compare.
fn check_seeding<T: Engine>(kind: &str, case: u64) -> bool {
    let random = &mut Random(case);
    let (n, d) = (size(random, 1, 120), [1, 1, 2, 3, 9][random.below(5)]);
    let k = size(random, 1, 14).min(n);
    let x: Vec<T> = rows(kind, n, d, random);
    let weights: Option<Vec<f64>> = match random.below(4) {
        0 => Some((0..n).map(|_| random.unit() * 3.0).collect()),
        1 => Some((0..n).map(|_| random.below(3) as f64).collect()),
        _ => None,
    };
    if weights.as_ref().is_some_and(|w| w.iter().all(|w| *w == 0.0)) {
        return false;
    }
    let start = any_start(d, random.next(), random);
    // A sample that is needed: `check_all` counts only cases with an answer.
    let sample = match random.below(3) {
        _ if matches!(start, Start::PlusPlus | Start::Random) => Some(1 + random.below(n)),
        0 => Some(1 + random.below(n)),
        _ => None,
    };
    let task = Task {
        weights,
        restarts: if matches!(start, Start::Optimal) { 1 } else { 1 + random.below(3) as u32 },
        sample,
        max_iter: 1 + random.below(4),
        seed: random.next(),
        ..Task::new(x.chunks_exact(d).map(<[T]>::to_vec).collect(), k, start)
    };
    check_task(&task, &format!("{kind}, case {case}: n {n}, d {d}, k {k}"))
}

in_both_types!(seedings_are_the_oracles, T, seed in [400_000, 500_000] => check_all(seed, 40, 13, check_seeding::<T>));

#[test]
fn far_seedings_are_the_oracles() {
    let (mut answered, mut case) = (0, 0);
    while answered < 300 {
        let (mut task, what) = far::task(case);
        if !matches!(task.start, Start::Given(_)) {
            let random = &mut Random(case);
            task.start = any_start(task.rows[0].len(), case, random);
            task.restarts = if matches!(task.start, Start::Optimal) { 1 } else { task.restarts };
            answered += u32::from(check_task(&task, &what));
        }
        case += 1;
    }
}

/// The seeds of all sessions over these rows.
fn check_every_way<T: Engine>(kind: &str, [n, d]: [usize; 2], weighted: bool, estimator: &KMeans) {
    let random = &mut Random((n + d) as u64);
    let x: Vec<T> = rows(kind, n, d, random);
    // The largest weight comes often, so that every part has it.
    let mut weights: Vec<f64> = (0..n).map(|_| [0.0, 9.0, 9.0, 1e-3 + 8.0 * random.unit()][random.below(4)]).collect();
    weights[0] = 9.0;
    weights[n - 1] = 9.0;
    let data = Data { x, weights: weighted.then_some(weights), d };
    let statistics = data.statistics(estimator);
    let params = estimator.validate(d).unwrap();
    let bits = |session: &mut dyn Seeder<T>| -> Vec<Vec<u64>> {
        let seeds =
            |restart| seed(session, &params, &statistics, restart).unwrap().iter().map(|x| x.to_f64().to_bits()).collect();
        [0, 1].map(seeds).into()
    };
    let expected = bits(on_cpu(&data, &statistics, &params, &[0, n], InstructionSet::detect()).as_mut());
    every_way(&data, &statistics, estimator, |what, session| {
        assert!(bits(session) == expected, "{kind}, {n} x {d}, {}, weights: {weighted}, {what}, {estimator:?}", T::NAME);
    });
}

/// The seedings by their words. A new seeding joins these tests by its word.
fn methods() -> impl Iterator<Item = Init> {
    Init::METHODS.iter().map(|word| word.parse().unwrap())
}

/// Every seeding on every backend: threads, parts and instruction sets of a CPU, rows on a GPU and rows that stream through it. Few
/// rows are read where they are. Many rows are copied in an order of neighbours. A sample is a session of its own.
#[test]
fn seeds_are_the_same_in_every_way() {
    for init in methods() {
        let few_features = init == Init::Optimal;
        for weighted in [false, true] {
            let kmeans = |k: usize| KMeans::new(k).init(init.clone()).seed(7 + u64::from(weighted));
            let shape = |n: usize, d: usize| [n, if few_features { 1 } else { d }];
            check_every_way::<f32>("blobs", shape(6_000, 3), weighted, &kmeans(40));
            check_every_way::<f64>("uniform", shape(900, 12), weighted, &kmeans(20));
            check_every_way::<f32>("lattice", shape(5_000, 9), weighted, &kmeans(4));
            check_every_way::<f32>("blobs", shape(6_000, 4), weighted, &kmeans(25).init_sample(Some(700)));
        }
    }
    // With other options than the defaults.
    for weighted in [false, true] {
        let kmeans = |k: usize, init: Init| KMeans::new(k).init(init).seed(7 + u64::from(weighted));
        check_every_way::<f64>("uniform", [5_000, 12], weighted, &kmeans(20, Init::KMeansParallel).oversampling(0.5).rounds(3));
        check_every_way::<f32>("lattice", [5_000, 9], weighted, &kmeans(30, Init::KMeansParallel).rounds(1));
        check_every_way::<f64>("uniform", [5_000, 20], weighted, &kmeans(40, Init::AfkMc2).chain_length(30));
        check_every_way::<f32>("duplicates", [4_000, 2], weighted, &kmeans(6, Init::AfkMc2).chain_length(2));
        check_every_way::<f64>("lattice", [5_000, 3], weighted, &kmeans(50, Init::KMeansPlusPlus).init_sample(Some(30)));
    }
}

/// Every seeding of rows in other processes: values and integers travel as bytes.
#[cfg(feature = "parts")]
#[test]
fn seeds_are_the_same_in_parts() {
    use polars_kmeans::Wanted;
    use polars_kmeans::distributed::fit;
    use polars_kmeans::model::AnyFitted;

    use crate::data::hash;
    use crate::parts::parts;

    for init in methods() {
        for (weighted, sample) in [(false, None), (true, None), (false, Some(300)), (true, Some(300))] {
            let (n, d, random) = (2_000, if init == Init::Optimal { 1 } else { 5 }, &mut Random(u64::from(weighted)));
            let x: Vec<f32> = rows("blobs", n, d, random);
            let weights = weighted.then(|| (0..n).map(|i| [0.0, 1.5, 9.0][i % 3]).collect::<Vec<f64>>());
            let estimator = KMeans::new(13).init(init.clone()).init_sample(sample).max_iter(1).seed(5);
            let column = weights.as_ref().map(|weights| polars_kmeans::Column::from_slice(weights));
            let whole = estimator.fit_features(&Features::from_rows(&x, d).unwrap(), column.as_ref()).unwrap();
            let mut executor = parts(&x, weights.as_deref(), d, &[0, 1, n / 3, n / 3 + 64, n]);
            let AnyFitted::F32(fitted) = fit(&estimator, &mut executor, Wanted::Labels).unwrap() else {
                panic!("another type")
            };
            assert_eq!(hash(&fitted), hash(&whole), "{init:?}, weights: {weighted}, a sample of {sample:?}");
        }
    }
}

/// So many candidates, and so large a sample, that a GPU has a session of its own for them.
#[test]
fn seeds_among_many_rows_are_the_same_in_every_way() {
    for weighted in [false, true] {
        let kmeans = |k: usize| KMeans::new(k).seed(3);
        check_every_way::<f32>("blobs", [9_000, 16], weighted, &kmeans(200).init(Init::KMeansParallel));
        check_every_way::<f64>("uniform", [9_000, 16], weighted, &kmeans(70).init_sample(Some(4_000)));
        check_every_way::<f32>("uniform", [9_000, 16], weighted, &kmeans(70).init(Init::AfkMc2).init_sample(Some(4_000)));
        // Drawn rows and centroids that a GPU compares, and more rows than it compares with candidates at a time.
        check_every_way::<f32>("blobs", [5_000, 16], weighted, &kmeans(200).init(Init::AfkMc2).chain_length(800));
        check_every_way::<f64>("uniform", [1_100_000, 1], weighted, &kmeans(5).init(Init::KMeansParallel));
    }
}

/// The centroids of fits of some numbers with every seeding, or their error.
fn of_all_seedings(x: &[f64], weights: Option<&[f64]>, k: usize) -> Vec<polars_kmeans::Result<Vec<f64>>> {
    let features = Features::from_rows(x, 1).unwrap();
    let weights = weights.map(polars_kmeans::Column::from_slice);
    let mut all = Vec::new();
    for init in methods() {
        for sample in [None, Some(1), Some(2), Some(1_000)] {
            for restarts in [1, 3] {
                let estimator =
                    KMeans::new(k).init(init.clone()).init_sample(sample).n_init(Restarts::Count(restarts)).chain_length(5);
                let fit = |estimator: &KMeans| {
                    estimator.fit_features(&features, weights.as_ref()).map(|fitted| {
                        let mut centroids = fitted.model.centroids().to_vec();
                        centroids.sort_by(f64::total_cmp);
                        centroids
                    })
                };
                all.push(fit(&estimator));
                if let Some(estimator) = on_gpu(&estimator) {
                    all.push(fit(&estimator));
                }
            }
        }
    }
    all
}

#[test]
fn as_many_clusters_as_different_rows() {
    let x = [3.0, 1.0, 1.0, 2.0, 3.0, 3.0];
    assert!(of_all_seedings(&x, None, 3).iter().all(|found| *found == Ok(vec![1.0, 2.0, 3.0])));
    for found in of_all_seedings(&x, None, 4) {
        assert!(matches!(found, Err(KMeansError::TooFewDistinct { k: 4, rows: 6 })), "{found:?}");
    }
    // Rows of weight 0 do not count.
    let weights = [0.0, 1.0, 2.0, 0.5, 0.0, 0.0];
    assert!(of_all_seedings(&x, Some(&weights), 2).iter().all(|found| *found == Ok(vec![1.0, 2.0])));
    for found in of_all_seedings(&x, Some(&weights), 3) {
        assert!(matches!(found, Err(KMeansError::TooFewDistinct { k: 3, rows: 3 })), "{found:?}");
    }
}

#[test]
fn one_cluster_and_one_row() {
    assert!(of_all_seedings(&[4.0, 5.0, 9.0], None, 1).iter().all(|found| *found == Ok(vec![6.0])));
    assert!(of_all_seedings(&[4.0], None, 1).iter().all(|found| *found == Ok(vec![4.0])));
    assert!(of_all_seedings(&[-0.0, 0.0], None, 1).iter().all(|found| *found == Ok(vec![0.0])));
    let many: Vec<f64> = (0..40).map(f64::from).collect();
    assert!(of_all_seedings(&many, None, 40).iter().all(|found| *found == Ok(many.clone())));
}

#[test]
fn optimal_clusters_are_the_best_of_many_starts() {
    let random = &mut Random(3);
    for weighted in [false, true] {
        for k in [2, 4, 9] {
            let x: Vec<f32> = (0..3_000).map(|_| (random.normal() * 1.2).exp() as f32).collect();
            let weights: Vec<f64> = (0..x.len()).map(|_| random.below(4) as f64).collect();
            let weights = weighted.then(|| polars_kmeans::Column::from_slice(&weights));
            let features = Features::from_rows(&x, 1).unwrap();
            let fit = |estimator: KMeans| estimator.tol(0.0).fit_features(&features, weights.as_ref()).unwrap();
            let optimal = fit(KMeans::new(k).init(Init::Optimal));
            let others = fit(KMeans::new(k).n_init(Restarts::Count(30)));
            assert!(optimal.model.inertia() <= others.model.inertia() * (1.0 + 1e-9), "k {k}");
            // Lloyd's loop finds nothing to improve. Centroids are rounded to float32, so a few rows may change.
            let changed: u64 = optimal.model.history()[1..].iter().map(|row| row.changed).sum();
            assert!(changed <= 3, "{changed} rows changed");
            assert!(optimal.model.centroids().windows(2).all(|two| two[0] < two[1]));
        }
    }
}

#[test]
fn optimal_is_for_one_feature() {
    let features = Features::from_rows(&[1.0, 2.0, 3.0, 4.0], 2).unwrap();
    let error = KMeans::new(1).init(Init::Optimal).fit_features(&features, None).err().unwrap();
    assert_eq!(error.to_string(), "init: expected one feature for \"optimal\", got 2");
    let error = KMeans::new(1 << 20).init(Init::KMeansParallel).oversampling(1e5).fit_features(&features, None).err().unwrap();
    assert!(matches!(&error, KMeansError::InvalidOption { option: "oversampling", .. }), "{error}");
}

#[test]
fn every_kind_of_data_has_seeds() {
    let mut found = 0;
    for (i, kind) in KINDS.into_iter().enumerate() {
        for init in [Init::KMeansParallel, Init::AfkMc2] {
            let estimator = KMeans::new(12).init(init).seed(i as u64).max_iter(3);
            let x: Vec<f32> = rows(kind, 9_000, 3, &mut Random(i as u64));
            let features = Features::from_rows(&x, 3).unwrap();
            match estimator.fit_features(&features, None) {
                Ok(fit) => {
                    found += 1;
                    if let Some(device) = gpu() {
                        let on_gpu = estimator.device(device).fit_features(&features, None).unwrap();
                        assert_eq!(on_gpu.model.centroids(), fit.model.centroids(), "{kind}");
                    }
                }
                Err(error) => {
                    assert!(error.is_too_few() || matches!(error, KMeansError::RangeTooWide { .. }), "{kind}: {error}")
                }
            }
        }
    }
    assert!(found >= 2 * KINDS.len() - 6, "{found}");
}
