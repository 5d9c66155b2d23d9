//! Clusters of bounded size: assignments and fits against an oracle, proofs of larger ones, and the same bits everywhere.

#[cfg(feature = "tests")]
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use polars_kmeans::{
    Column, Device, Engine, Features, Fitted, History, Init, InstructionSet, KMeans, KMeansError, Metric, Restarts, SizeLimit,
    SortBy, TooFew, Wanted,
};

#[cfg(feature = "tests")]
use polars_kmeans::trial;

use crate::data::{self, Random, hash, here_and_on_gpu, on_gpu, parts_of, rounds};
use crate::half::{BOTH, Halves};
use crate::oracle::{self, Start, Task, sizes};

const KINDS: [&str; 9] = [
    "lattice",
    "duplicates",
    "uniform",
    "blobs",
    "sentinel",
    "one value",
    "denormals",
    "tight blobs far apart",
    "a row far out",
];

/// Held by tests that change samples and starting prices, and by those that count passes.
static TRIALS: Mutex<()> = Mutex::new(());

fn bounded(k: usize, [least, most]: [usize; 2]) -> KMeans {
    KMeans::new(k).min_size(SizeLimit::Rows(least as u64)).max_size(SizeLimit::Rows(most as u64))
}

/// The labels of rows by fixed centroids.
fn assigned<T: Engine>(estimator: &KMeans, centroids: &[Vec<T>], x: &[T], d: usize, weights: Option<&[f64]>) -> Fitted<T> {
    assigned_by(InstructionSet::detect(), estimator, centroids, x, d, weights)
}

/// The labels of rows by fixed centroids. A GPU gives the same.
fn assigned_by<T: Engine>(
    set: InstructionSet,
    estimator: &KMeans,
    centroids: &[Vec<T>],
    x: &[T],
    d: usize,
    weights: Option<&[f64]>,
) -> Fitted<T> {
    let fixed: Vec<f64> = centroids.iter().flatten().map(|c| c.to_f64()).collect();
    let features = Features::from_rows(x, d).unwrap();
    let assign = |estimator: KMeans| {
        let parts = parts_of(&features, weights, &[0, x.len() / d]);
        estimator.assign_parts(&fixed, parts, set, Wanted::Labels).unwrap()
    };
    let here = assign(estimator.clone());
    if let Some(there) = on_gpu(estimator).map(assign) {
        assert!(there.labels == here.labels && hash(&there) == hash(&here), "{} x {d} on {}", x.len() / d, there.choice.place);
    }
    here
}

/// Some rows as centroids, all of them distinct where that is so.
fn some_centroids<T: Engine>(x: &[T], d: usize, k: usize, random: &mut Random) -> Vec<Vec<T>> {
    let n = x.len() / d;
    (0..k).map(|_| x[random.below(n) * d..][..d].to_vec()).collect()
}

fn small_cases<T: Engine>(seed: u64) {
    for round in 0..rounds(1_500) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (d, k) = (1 + random.below(4), 1 + random.below(5));
        let n = k + random.below(24);
        let x: Vec<T> = data::rows(kind, n, d, random);
        let weights: Vec<f64> = (0..n).map(|i| if i < k { 1.0 } else { random.below(4) as f64 }).collect();
        let weights = (round % 3 == 0).then_some(weights);
        let positive = weights.as_ref().map_or(n, |weights| weights.iter().filter(|w| **w > 0.0).count());
        let least = 1 + random.below(positive / k);
        let most = positive.div_ceil(k) + if random.below(2) == 0 { 0 } else { random.below(4) };
        let centroids = some_centroids(&x, d, k, random);
        let table: Vec<Vec<T>> = x.chunks_exact(d).map(<[T]>::to_vec).collect();
        let task = Task { weights: weights.clone(), ..Task::new(table, k, Start::Random) };
        let expected = sizes::bounded(&task, &centroids, [least, most]);
        let fit = assigned(&bounded(k, [least, most]), &centroids, &x, d, weights.as_deref());
        assert_eq!(fit.labels, expected, "{round}: {kind} {n} x {d}, {k} clusters of {least} to {most}");
        sizes::proved(&task, &centroids, &fit.labels, [least, most]).unwrap();
    }
}
in_both_types!(assignments_are_those_of_the_oracle, T, seed in [1, 5_001] => small_cases::<T>(seed));

/// Assignments of up to 3,000 rows to two centroids. The oracle for more clusters takes few rows.
fn cuts<T: Engine>(seed: u64) {
    for round in 0..rounds(270) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (d, n) = (1 + random.below(6), 2 + random.below(3_000));
        let x: Vec<T> = data::rows(kind, n, d, random);
        let weights = (round % 3 == 0).then(|| (0..n).map(|i| if i < 2 { 1.0 } else { random.below(3) as f64 }).collect());
        let weights: Option<Vec<f64>> = weights;
        let positive = weights.as_ref().map_or(n, |weights| weights.iter().filter(|w| **w > 0.0).count());
        let least = 1 + random.below(positive / 2);
        let bounds = [least, positive.div_ceil(2).max(positive - least - random.below(positive / 2 - least + 1))];
        let centroids: [Vec<T>; 2] = some_centroids(&x, d, 2, random).try_into().unwrap();
        let table: Vec<Vec<T>> = x.chunks_exact(d).map(<[T]>::to_vec).collect();
        let task = Task { weights: weights.clone(), ..Task::new(table, 2, Start::Random) };
        let fit = assigned(&bounded(2, bounds), &centroids, &x, d, weights.as_deref());
        assert!(fit.labels == sizes::cut(&task, &centroids, bounds), "{round}: {kind} {n} x {d}, {bounds:?}");
    }
}
in_both_types!(two_clusters_are_a_cut, T, seed in [21, 9_001] => cuts::<T>(seed));

/// The part of a fit that bounds change: everything but seeding.
fn fits_of_the_oracle<T: Engine>(seed: u64) {
    for round in 0..rounds(120) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (d, k) = (1 + random.below(3), 2 + random.below(4));
        let n = 2 * k + random.below(30);
        let x: Vec<T> = data::rows(kind, n, d, random);
        let (least, most) = (1 + random.below(n / k), n.div_ceil(k) + random.below(3));
        let table: Vec<Vec<T>> = x.chunks_exact(d).map(<[T]>::to_vec).collect();
        let start = some_centroids(&x, d, k, random);
        let given: Vec<f64> = start.iter().flatten().map(|c| c.to_f64()).collect();
        let task = Task { max_iter: 30, sizes: Some([least, most]), ..Task::new(table, k, Start::Given(start)) };
        let expected = oracle::fit(&task).unwrap();
        let estimator = bounded(k, [least, most]).init(Init::Given(given)).tol(0.0).max_iter(30).history(History::Full);
        let features = Features::from_rows(&x, d).unwrap();
        for estimator in here_and_on_gpu(&estimator) {
            let fit = estimator.fit_features(&features, None).unwrap();
            let what = format!("{round}: {kind} {n} x {d}, {k} clusters of {least} to {most}");
            assert_eq!(fit.labels, expected.labels, "{what}");
            assert_eq!((fit.model.sizes(), fit.model.inertia()), (&expected.sizes[..], expected.inertia), "{what}");
            assert_eq!(fit.model.centroids(), expected.centroids.concat(), "{what}");
            let history: Vec<_> =
                fit.model.history().iter().map(|row| (row.changed, row.shift, row.inertia.unwrap())).collect();
            assert_eq!(history, expected.history, "{what}");
        }
    }
}
in_both_types!(fits_are_those_of_the_oracle, T, seed in [11, 7_001] => fits_of_the_oracle::<T>(seed));

#[test]
fn the_third_rule_decides() {
    let x = [0.0f64, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 2.0];
    let centroids = [vec![0.0, 0.0], vec![2.0, 0.0], vec![0.0, 2.0]];
    assert_eq!(assigned(&bounded(3, [1, 2]), &centroids, &x, 2, None).labels, [0, 0, 1, 2, 2]);
}

#[test]
fn equal_rows_fill_clusters_in_order() {
    let _alone = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
    let n = 100_000;
    let x = vec![1.0f32; n * 2];
    for k in [1, 3, 7] {
        let centroids: Vec<Vec<f32>> = (0..k).map(|j| vec![j as f32, 0.5]).collect();
        fill_clusters(&x, &centroids, |labels| labels.is_sorted());
    }
    // Blocks of equal rows that no price divides.
    let x: Vec<f32> = (0..2 * n).map(|i| (i / 2 % 5 * (1 + i % 2)) as f32).collect();
    for k in [4, 30] {
        let centroids: Vec<Vec<f32>> = (0..k).map(|j| vec![j as f32 / 7.0, (j % 3) as f32]).collect();
        fill_clusters(&x, &centroids, |_| true);
    }
}

/// Assigns rows to clusters of one size in a few passes, whatever vectors the CPU has.
fn fill_clusters(x: &[f32], centroids: &[Vec<f32>], is_right: impl Fn(&[u32]) -> bool) {
    let (n, k) = (x.len() / 2, centroids.len());
    for set in InstructionSet::ALL {
        for threads in [1, 2, 16] {
            let fit = assigned_by(set, &KMeans::new(k).balanced(true).threads(threads), centroids, x, 2, None);
            let what = format!("{k} clusters, {set}, {threads} threads");
            assert!(is_right(&fit.labels), "{what}");
            assert!(fit.model.sizes().iter().all(|size| (n / k..=n.div_ceil(k)).contains(&(*size as usize))), "{what}");
            assert!(passes(&fit) <= 8.0, "{what}: {} passes", passes(&fit));
        }
    }
}

/// The passes of the last assignment.
fn passes<T: Engine>(fit: &Fitted<T>) -> f64 {
    fit.model.history().last().and_then(|row| row.passes).unwrap_or(f64::INFINITY)
}

#[test]
fn bounds_that_do_not_bind_change_nothing() {
    let random = &mut Random(4);
    let x: Vec<f32> = data::rows("blobs", 3_000, 5, random);
    let features = Features::from_rows(&x, 5).unwrap();
    let plain = KMeans::new(9).fit_features(&features, None).unwrap();
    let same = bounded(9, [1, 3_000]).fit_features(&features, None).unwrap();
    assert_eq!(hash(&plain), hash(&same));
    assert!(same.model.history().iter().all(|row| row.passes == Some(1.0)));
    let (least, most) =
        (*plain.model.sizes().iter().min().unwrap() as usize, *plain.model.sizes().iter().max().unwrap() as usize);
    let fixed: Vec<Vec<f32>> = plain.model.centroids().chunks(5).map(<[f32]>::to_vec).collect();
    assert_eq!(assigned(&bounded(9, [least, most]), &fixed, &x, 5, None).labels, plain.labels);
    assert_ne!(assigned(&bounded(9, [least, most - 1]), &fixed, &x, 5, None).labels, plain.labels);
}

#[test]
fn larger_assignments_are_proved() {
    let (kinds, random) = (["lattice", "duplicates", "uniform", "blobs", "offset 1e6", "mixed scales"], &mut Random(8));
    for (round, kind) in kinds.into_iter().cycle().take(24).enumerate() {
        let (n, d, k) = (3_000 + random.below(20_000), 1 + random.below(20), 2 + random.below(60));
        let x: Vec<f32> = data::rows(kind, n, d, random);
        let table: Vec<Vec<f32>> = x.chunks_exact(d).map(<[f32]>::to_vec).collect();
        let centroids = some_centroids(&x, d, k, random);
        let weights: Option<Vec<f64>> = (round % 4 == 3).then(|| (0..n).map(|_| 1.0 + random.below(5) as f64).collect());
        let bounds = [[n / k, n.div_ceil(k)], [n / k / 2, 5 * n / k / 4 + 1]][round % 2];
        let bounds = [bounds[0].max(1), bounds[1]];
        let fit = assigned(&bounded(k, bounds), &centroids, &x, d, weights.as_deref());
        let task = Task { weights, ..Task::new(table, k, Start::Random) };
        let proof = sizes::proved(&task, &centroids, &fit.labels, bounds);
        assert_eq!(proof, Ok(()), "{round}: {kind} {n} x {d}, {k} clusters {bounds:?}");
    }
}

#[test]
fn every_division_of_the_work_gives_the_same_bits() {
    let random = &mut Random(21);
    for (round, kind) in KINDS.into_iter().enumerate() {
        let (n, d, k) = (2_000 + random.below(9_000), 1 + random.below(12), 2 + random.below(30));
        let x: Vec<f64> = data::rows(kind, n, d, random);
        let estimator = bounded(k, [n / k / 2 + 1, n / k + n / k / 4 + 2]).max_iter(4).tol(0.0).too_few(TooFew::Fewer);
        let features = Features::from_rows(&x, d).unwrap();
        let columns = data::columns(&x, d);
        let chunks = columns.iter().map(|column| data::in_chunks(column, random)).collect();
        let chunked = estimator.fit_features(&Features::new(chunks).unwrap(), None);
        let mut first = Some(chunked.as_ref().map(hash).map_err(ToString::to_string));
        for set in InstructionSet::ALL {
            for threads in [1, 3] {
                let whole = parts_of(&features, None, &[0, n]);
                let fit = estimator.clone().threads(threads).fit_parts(whole, set, Wanted::Labels);
                let bits = fit.as_ref().map(hash).map_err(ToString::to_string);
                assert_eq!(first.get_or_insert(bits.clone()), &bits, "{round}: {kind} {set}, {threads} threads");
            }
        }
        if let Some(estimator) = on_gpu(&estimator) {
            let bits = estimator.fit_features(&features, None).as_ref().map(hash).map_err(ToString::to_string);
            assert_eq!(first, Some(bits), "{round}: {kind} on a GPU");
        }
    }
}

#[cfg(feature = "tests")]
#[test]
fn samples_and_starting_prices_change_no_label() {
    let _alone = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
    let random = &mut Random(77);
    for round in 0..rounds(60) {
        let kind = ["lattice", "uniform", "blobs", "tight blobs far apart", "mixed scales", "a row far out"][round % 6];
        let (n, d, k) = (600 + random.below(3_000), 1 + random.below(9), 2 + random.below(30));
        let x: Vec<f32> = data::rows(kind, n, d, random);
        let weights: Option<Vec<f64>> = (round % 3 == 2).then(|| (0..n).map(|_| 0.5 + random.below(5) as f64).collect());
        let bounds = [[n / k, n.div_ceil(k)], [1, n / k + n / k / 4 + 1]][round / 6 % 2];
        let estimator = bounded(k, bounds).max_iter(2).tol(0.0).too_few(TooFew::Fewer);
        let features = Features::from_rows(&x, d).unwrap();
        let fit = |estimator: &KMeans| {
            let parts = parts_of(&features, weights.as_deref(), &[0, n]);
            let fit = estimator.fit_parts(parts, InstructionSet::detect(), Wanted::Labels);
            fit.as_ref().map(hash).map_err(ToString::to_string)
        };
        let expected = fit(&estimator);
        assert!(expected.is_ok() || kind == "lattice", "{round}: {expected:?}");
        // These numbers hold for all tests of the process. They change no label, so tests that do not count passes go on.
        for (each, seed) in [(1, 0), (4, 0), (40, 1 + round as u64)] {
            trial::COSTS.store(each * k * k, Relaxed);
            trial::PRICES.store(seed, Relaxed);
            let bits: Vec<_> = here_and_on_gpu(&estimator).map(|estimator| fit(&estimator)).collect();
            trial::COSTS.store(0, Relaxed);
            trial::PRICES.store(0, Relaxed);
            assert!(
                bits.iter().all(|bits| *bits == expected),
                "{round}: {kind} {n} x {d}, {k} clusters {bounds:?}, {each} rows a cluster, seed {seed}: {bits:?} {expected:?}"
            );
        }
    }
}

#[test]
fn values_of_16_bits_have_the_labels_of_float32() {
    let random = &mut Random(13);
    for half in BOTH {
        let data = Halves::new(half, "blobs", 900, 7, random);
        let estimator = KMeans::new(11).balanced(true).max_iter(3);
        let [narrow, wide] = data.by_rows();
        let expected = hash(&estimator.fit_features(&wide, None).unwrap());
        for estimator in here_and_on_gpu(&estimator) {
            assert_eq!(hash(&estimator.fit_features(&narrow, None).unwrap()), expected, "{half:?}");
        }
    }
}

/// More rows than a piece has, and lists that are longer than the room for them. Rows of weight 0 take no prices.
#[test]
fn a_gpu_takes_many_rows_and_long_lists_piece_by_piece() {
    let Some(_) = on_gpu(&KMeans::new(1)) else { return };
    let (n, d, k) = (if rounds(0) > 0 { 20_000 } else { 1_200_000 }, 2, 6);
    let x: Vec<f32> = (0..n * d).map(|i| (i / 2 % 5 * (1 + i % 2)) as f32).collect();
    let centroids: Vec<Vec<f32>> = (0..k).map(|j| vec![j as f32 / 7.0, (j % 3) as f32]).collect();
    let weights: Vec<f64> = (0..n).map(|i| (i % 8) as f64).collect();
    for weights in [None, Some(&weights[..])] {
        let fit = assigned(&KMeans::new(k).balanced(true), &centroids, &x, d, weights);
        let sizes = fit.model.sizes();
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
    }
}

#[test]
fn impossible_sizes_are_errors() {
    let x: Vec<f64> = (0..40).map(f64::from).collect();
    let features = Features::from_rows(&x, 1).unwrap();
    let message = |estimator: KMeans| estimator.fit_features(&features, None).unwrap_err().to_string();
    assert_eq!(
        message(bounded(4, [11, 40])),
        "sizes: expected min_size k <= n <= max_size k, got min_size = 11, max_size = 40, k = 4 and n = 40 rows of positive weight"
    );
    assert!(message(bounded(4, [1, 9])).contains("max_size = 9"));
    let share = KMeans::new(4).max_size(SizeLimit::Share(1.25));
    assert_eq!(message(share), "max_size: expected rows, not a share: 1.25 n / k is 12.5, got 1.25");
    assert_eq!(message(bounded(4, [1, 20]).balanced(true)), "balanced: expected no min_size or max_size beside it, got both");
    assert!(matches!(
        bounded(4, [0, 0]).fit_features(&features, None),
        Err(KMeansError::InvalidOption { option: "max_size", .. })
    ));
    // Rows in several parts are refused.
    for ends in [&[0, 25, 40][..], &[0, 1, 2, 40]] {
        let parts = parts_of(&features, None, ends);
        let error = KMeans::new(4).balanced(true).fit_parts(parts, InstructionSet::detect(), Wanted::Labels).unwrap_err();
        assert!(error.to_string().contains("rows in one place"), "{error}");
    }
    let error = KMeans::new(4).balanced(true).device(Device::AllCuda).fit_features(&features, None).unwrap_err();
    assert!(error.to_string().starts_with("device: expected one device, since clusters have bounds on their sizes"), "{error}");
    // With fewer clusters the same bound may be kept.
    let few: Vec<f64> = (0..10).map(|i| f64::from(i % 3)).collect();
    let few = Features::from_rows(&few, 1).unwrap();
    let fewer = KMeans::new(5).min_size(SizeLimit::Rows(3)).too_few(TooFew::Fewer);
    assert_eq!(fewer.fit_features(&few, None).unwrap().model.sizes(), [4, 3, 3]);
    assert!(KMeans::new(5).min_size(SizeLimit::Rows(3)).fit_features(&few, None).unwrap_err().is_too_few());
}

#[test]
fn sorted_clusters_keep_their_rows() {
    let random = &mut Random(3);
    let x: Vec<f32> = data::rows("blobs", 500, 3, random);
    let features = Features::from_rows(&x, 3).unwrap();
    let plain = bounded(6, [70, 90]).seed(2).fit_features(&features, None).unwrap();
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let estimator = bounded(6, [70, 90]).seed(2).metric(metric);
        let (given, sorted) = (estimator.clone(), estimator.sort_by(SortBy::Feature("column_0".into())));
        let on_gpu = on_gpu(&sorted).map(|estimator| estimator.fit_features(&features, None).unwrap());
        let (given, sorted) = (given.fit_features(&features, None).unwrap(), sorted.fit_features(&features, None).unwrap());
        assert!(on_gpu.is_none_or(|fit| fit.labels == sorted.labels && hash(&fit) == hash(&sorted)));
        let place = |j: u32| {
            let own = &given.model.centroids()[j as usize * 3..][..3];
            sorted.model.centroids().chunks(3).position(|other| other == own).unwrap()
        };
        assert!(given.labels.iter().zip(&sorted.labels).all(|(old, new)| place(*old) == *new as usize));
        assert_eq!(given.model.inertia(), sorted.model.inertia());
    }
    // The weights of the model are those of the best restart, whichever that is.
    let weights: Vec<f64> = (0..500).map(|i| f64::from(1 + i % 3)).collect();
    for seed in 0..6 {
        let estimator = bounded(6, [80, 90]).init(Init::Random).n_init(Restarts::Count(4)).seed(seed).sort_by(SortBy::Size);
        let fit = |wanted| estimator.fit_with(&features, Some(&Column::from_slice(&weights)), wanted).unwrap();
        let (labelled, plain) = (fit(Wanted::Labels), fit(Wanted::Nothing));
        let of = |j: u32| labelled.labels.iter().zip(&weights).filter(|(label, _)| **label == j).map(|(_, w)| w).sum::<f64>();
        assert_eq!(plain.model.weights().unwrap(), (0..6).map(of).collect::<Vec<f64>>());
    }
    // Restarts: the least total counts. Distances are those to the centroid of the label.
    let estimator = bounded(6, [80, 90]).init(Init::Random).n_init(Restarts::Count(3));
    let fits: Vec<_> =
        here_and_on_gpu(&estimator).map(|estimator| estimator.fit_with(&features, None, Wanted::Distances).unwrap()).collect();
    for fit in &fits {
        let total: f64 = fit.distances.as_ref().unwrap().nearest.iter().map(|distance| distance * distance).sum();
        assert!((total / fit.model.inertia() - 1.0).abs() < 1e-9);
        assert!(fit.distances == fits[0].distances && hash(fit) == hash(&fits[0]));
    }
    assert!(plain.model.history().iter().any(|row| row.passes.unwrap() > 1.0));
    let weights: Vec<f64> = (0..500).map(|i| f64::from(i % 5)).collect();
    let fit = bounded(6, [60, 70]).fit_features(&features, Some(&Column::from_slice(&weights))).unwrap();
    assert!(fit.model.sizes().iter().all(|size| (60..=70).contains(size)));
}
