//! Labels against the reference distance, and whole fits against the big-integer oracle.

use polars_kmeans::InstructionSet;
use polars_kmeans::exact::reference;
use polars_kmeans::{
    Column, Engine, Features, Fitted, History, Init, KMeans, KMeansError, Metric, Prediction, Restarts, Scale, Wanted,
};

use crate::data::{KINDS, Random, brief, columns, from_columns, hash, on_gpu, parts_of, rows, some_rows};
use crate::oracle::{self, Answer, Failure, Scaling, Start, Task};
use crate::row_order;

const SETS: [InstructionSet; 3] = [InstructionSet::Avx512, InstructionSet::Avx2, InstructionSet::Portable];

/// A random size. Half of the time it is an edge case: just below, at or above the size of a tile or a vector.
pub fn size(random: &mut Random, low: usize, high: usize) -> usize {
    let edges = [1, 2, 3, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1024];
    let edge = edges[random.below(edges.len())];
    if random.below(2) == 0 && (low..=high).contains(&edge) { edge } else { low + random.below(high - low + 1) }
}

/// Returns whether there were labels to check.
fn check_labels<T: Engine>(kind: &str, case: u64) -> bool {
    let random = &mut Random(case);
    let d = size(random, 1, if case.is_multiple_of(4) { 300 } else { 20 });
    let k = size(random, 1, 200);
    let n = size(random, k, if d > 100 { 600.max(k) } else { 5_000 }).max(k);
    check_labels_of::<T>(kind, case, [n, d, k], random)
}

/// Checks labels for more centroids than the product filter scores at a time.
fn check_panels<T: Engine>(kind: &str, case: u64) -> bool {
    let random = &mut Random(case);
    let k = [1_019, 1_020, 1_021, 1_300, 2_039, 2_041, 3_100][random.below(7)];
    let d = [9, 16, 20, 65][random.below(4)];
    check_labels_of::<T>(kind, case, [k + random.below(700), d, k], random)
}

/// Checks labels where a tree finds the centroids near each row: for some clusters, and for one a row.
fn check_trees<T: Engine>(kind: &str, case: u64) -> bool {
    let random = &mut Random(case);
    let [d, k] =
        [[1, 520], [2, 513], [3, 1_025], [4, 2_000], [5, 2_100], [8, 4_096], [1, 17_000], [2, 16_400]][case as usize % 8];
    check_labels_of::<T>(kind, case, [k + if case.is_multiple_of(3) { 0 } else { random.below(700) }, d, k], random)
}

fn check_labels_of<T: Engine>(kind: &str, case: u64, [n, d, k]: [usize; 3], random: &mut Random) -> bool {
    let x: Vec<T> = rows(kind, n, d, random);
    let start = some_rows(&x, d, k, usize::MAX, random);
    let set = SETS[case as usize % 3];
    let columns = columns(&x, d);
    let features = from_columns(&columns);
    let parts = || parts_of(&features, None, &[0, n]);
    let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(1 + case as u32 % 3).tol(0.0);
    // With distances, and with labels alone, the filter has different limits.
    match estimator.fit_parts(parts(), set, Wanted::Distances) {
        Ok(fitted) => {
            let what = format!("{kind}, case {case}: n {n}, d {d}, k {k}, {set:?}");
            let alone = estimator.fit_parts(parts(), set, Wanted::Labels).unwrap();
            assert_eq!(alone.labels, fitted.labels, "{what}: labels alone");
            let predictions = fitted.clone().into_predictions().unwrap().unwrap();
            for (i, (x, prediction)) in x.chunks_exact(d).zip(predictions.iter()).enumerate() {
                let nearest = reference::nearest(x, fitted.model.centroids());
                let second_distance = (k > 1).then(|| nearest.second.sqrt());
                let expected = Prediction { label: nearest.label, distance: nearest.distance.sqrt(), second_distance };
                assert_eq!(prediction, Some(expected), "{what}, row {i} {x:?}");
            }
            assert_eq!(fitted.model.predict(&features).unwrap().values(), fitted.labels, "{what}: predict");
            assert_eq!(fitted.model.predict_distances(&features).unwrap(), predictions, "{what}: predict with distances");
            let m = k.min(1 + case as usize % 5);
            let several = fitted.model.nearest_clusters(&features, m, true).unwrap();
            for (i, x) in x.chunks_exact(d).enumerate().step_by(37) {
                let distances = fitted.model.centroids().chunks_exact(d).map(|c| reference::distance(x, c));
                let mut all: Vec<(f64, u32)> = distances.zip(0..).collect();
                all.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap());
                let found = several.distances[i * m..].iter().copied().zip(several.clusters[i * m..].iter().copied());
                assert!(found.take(m).eq(all[..m].iter().copied()), "{what}, row {i}: the {m} nearest");
            }
            if let Some(estimator) = on_gpu(&estimator) {
                let gpu = estimator.fit_with(&features, None, Wanted::Distances).unwrap();
                assert_eq!(gpu.distances, fitted.distances, "{what}: distances on the GPU");
                assert_eq!(gpu.labels, fitted.labels, "{kind}, case {case}: n {n}, d {d}, k {k}: labels on the GPU");
                assert_eq!(hash(&gpu), hash(&fitted), "{kind}, case {case}: n {n}, d {d}, k {k}: the fit on the GPU");
            }
            true
        }
        Err(KMeansError::TooFewDistinct { .. } | KMeansError::RangeTooWide { .. }) => false,
        Err(error) => panic!("{kind}, case {case}: {error}"),
    }
}

/// Checks `rounds` cases of each kind. Most must have an answer, or nothing was tested.
pub fn check_all(first: u64, rounds: u64, step: u64, check: fn(&str, u64) -> bool) {
    let cases = (0..rounds).flat_map(|round| KINDS.iter().zip(first + round * step..));
    let answered = cases.filter(|(kind, case)| check(kind, *case)).count();
    println!("{answered} of {} cases had labels to check", rounds as usize * KINDS.len());
    assert!(answered * 10 >= rounds as usize * KINDS.len() * 6, "only {answered} cases were answered");
}

in_both_types!(labels_are_the_oracles, T, seed in [0, 50_000] => check_all(seed, 30, 100, check_labels::<T>));

#[test]
fn labels_are_the_oracles_over_panels_of_centroids() {
    // Each kind with each instruction set once, in both types. If every label is the oracle's, the bits cannot differ.
    for kind in ["blobs", "uniform", "offset 1e6", "mixed scales", "tight blobs far apart", "lattice"] {
        for case in 0..3 {
            let answered = [check_panels::<f32>(kind, 300_000 + case), check_panels::<f64>(kind, 300_000 + case)];
            assert!(answered[1] || kind == "lattice" || kind == "mixed scales", "{kind}");
        }
    }
}

#[test]
fn labels_are_the_oracles_by_trees() {
    for (round, kind) in (0..).zip(["blobs", "uniform", "offset 1e6", "mixed scales", "tight blobs far apart", "lattice"]) {
        for case in 8 * round..8 * round + 6 {
            check_trees::<f32>(kind, case);
            check_trees::<f64>(kind, case + 1);
        }
    }
    assert!(check_trees::<f64>("blobs", 6) && check_trees::<f32>("uniform", 7));
}

/// Returns whether there was an answer to compare.
fn check_fit<T: Engine>(kind: &str, case: u64) -> bool {
    let random = &mut Random(case);
    let (n, d) = (size(random, 1, 150), size(random, 1, 10));
    let k = size(random, 1, 12);
    let x: Vec<T> = rows(kind, n, d, random);
    let table: Vec<Vec<T>> = x.chunks_exact(d).map(<[T]>::to_vec).collect();
    let weights: Option<Vec<f64>> = match case % 4 {
        0 => None,
        1 => Some((0..n).map(|_| random.unit() * 3.0).collect()),
        2 => Some((0..n).map(|_| random.below(3) as f64).collect()),
        _ => Some((0..n).map(|_| 2f64.powi(random.below(43) as i32 - 60)).collect()),
    };
    if weights.as_ref().is_some_and(|w| w.iter().all(|w| *w == 0.0)) {
        return false;
    }
    let start = match case % 3 {
        0 => Start::PlusPlus,
        1 => Start::Random,
        _ => Start::Given(
            (0..k).map(|_| table[random.below(n)].iter().map(|v| T::from_f64(v.to_f64() * 1.5)).collect()).collect(),
        ),
    };
    let restarts = if matches!(start, Start::Given(_)) { 1 } else { 1 + (case % 2) as u32 };
    let task = Task {
        weights,
        restarts,
        max_iter: 1 + random.below(15),
        tol: [0.0, 1e-4, 0.1][random.below(3)],
        tol_labels: [0.0, 0.05][random.below(2)],
        seed: random.next(),
        ..Task::new(table, k, start)
    };
    check_task(&task, &format!("{kind}, case {case}: n {n}, d {d}, k {k}"))
}

/// Compares a whole fit and its score with the oracle's, bit for bit. Also on the GPU, if there is one. Returns whether there
/// was an answer to compare.
pub fn check_task<T: Engine>(task: &Task<T>, what: &str) -> bool {
    check_transformed(task, &Scaling::None, what)
}

/// As [`check_task`], with rows that are scaled, and normalised if the task says so.
pub fn check_transformed<T: Engine>(task: &Task<T>, scaling: &Scaling, what: &str) -> bool {
    let estimator = KMeans::new(task.k)
        .init(match &task.start {
            Start::Given(centroids) => Init::Given(centroids.iter().flatten().map(|c| c.to_f64()).collect()),
            Start::Random => Init::Random,
            Start::PlusPlus => Init::KMeansPlusPlus,
            Start::Parallel { .. } => Init::KMeansParallel,
            Start::AfkMc2 { .. } => Init::AfkMc2,
            Start::Optimal => Init::Optimal,
        })
        .init_sample(task.sample.map(|rows| rows as u64))
        .n_init(Restarts::Count(task.restarts))
        .max_iter(task.max_iter as u32)
        .tol(task.tol)
        .tol_labels(task.tol_labels)
        .seed(task.seed)
        .history(History::Full)
        .metric(if task.cosine { Metric::Cosine } else { Metric::Euclidean })
        .scale(match scaling {
            Scaling::None => Scale::None,
            Scaling::Standard => Scale::Standard,
            Scaling::Robust => Scale::Robust,
            Scaling::Factors(factors) => {
                Scale::Factors(factors.iter().enumerate().map(|(f, factor)| (format!("column_{f}"), *factor)).collect())
            }
        });
    let estimator = match task.start {
        Start::Parallel { oversampling, rounds, .. } => estimator.oversampling(oversampling).rounds(rounds),
        Start::AfkMc2 { chain } => estimator.chain_length(chain),
        _ => estimator,
    };
    let (arrived, factors) = oracle::transform(task, scaling);
    let x = task.rows.concat();
    let features = Features::from_rows(&x, task.rows[0].len()).unwrap();
    let weights = task.weights.as_ref().map(|w| Column::from_slice(w));
    row_order::check_values(task, &arrived, &estimator, what);
    let fitted = estimator.fit_features(&features, weights.as_ref());
    if let Some(estimator) = on_gpu(&estimator) {
        let gpu = estimator.fit_features(&features, weights.as_ref());
        assert_eq!(brief(&gpu), brief(&fitted), "{what}: on the GPU, {estimator:?}");
    }
    let answer = oracle::fit(&arrived);
    let (Some(fitted), Ok(answer)) = (is_the_answer(fitted, &answer, what), answer) else { return false };
    let scaled = fitted.model.scaling().map_or(vec![1.0; factors.len()], |scaling| scaling.factors().to_vec());
    assert_eq!((fitted.labels, scaled), (answer.labels, factors), "{what}: labels and factors");
    if let Ok(score) = oracle::score(&arrived, &answer.centroids) {
        let ours = fitted.model.score(&features, weights.as_ref()).unwrap();
        assert_eq!(ours.to_bits(), score.to_bits(), "{what}: score");
    }
    true
}

/// Compares a fit with the oracle's answer, bit for bit, all but the labels. Gives the fit back, if there is one.
pub fn is_the_answer<T: Engine>(
    ours: polars_kmeans::Result<Fitted<T>>,
    theirs: &Result<Answer<T>, Failure>,
    what: &str,
) -> Option<Fitted<T>> {
    match (ours, theirs) {
        (Ok(fitted), Ok(answer)) => {
            let bits = |v: &[T]| v.iter().map(|v| v.to_f64().to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(fitted.model.centroids()), bits(&answer.centroids.concat()), "{what}: centroids");
            assert_eq!(fitted.model.sizes(), answer.sizes, "{what}: sizes");
            assert_eq!(fitted.model.inertia().to_bits(), answer.inertia.to_bits(), "{what}: inertia");
            assert!(answer.true_inertia.is_near(fitted.model.inertia()), "{what}: inertia within 2^-40");
            let bits = |inertias: &[f64]| inertias.iter().map(|i| i.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(fitted.model.inertias()), bits(&answer.inertias), "{what}: inertias");
            let history: Vec<_> =
                fitted.model.history().iter().map(|row| (row.changed, row.shift, row.inertia.unwrap())).collect();
            assert_eq!(history, answer.history, "{what}: history");
            assert_eq!(fitted.relocated, answer.relocated, "{what}: starting centroids that lost their rows");
            return Some(fitted);
        }
        (Err(KMeansError::TooFewDistinct { .. }), Err(Failure::TooFewDistinct)) => {}
        (Err(KMeansError::RangeTooWide { .. }), Err(Failure::RangeTooWide)) => {}
        (Err(KMeansError::WeightRangeTooWide { .. }), Err(Failure::WeightRangeTooWide)) => {}
        (ours, theirs) => {
            let theirs = theirs.as_ref().map(|fit| fit.inertia);
            panic!("{what}: {:?} against {theirs:?}", ours.map(|fit| fit.model.inertia()))
        }
    }
    None
}

in_both_types!(fits_are_the_oracles, T, seed in [100_000, 200_000] => check_all(seed, 25, 13, check_fit::<T>));

fn check_distances<T: Engine>(n: usize, d: usize, k: usize) {
    let random = &mut Random(7);
    let x: Vec<T> = rows("lattice", n, d, random);
    let features = Features::from_rows(&x, d).unwrap();
    let fitted = KMeans::new(k).fit_features(&features, None).unwrap();
    let distances = fitted.model.transform(&features, false).unwrap();
    let squared = fitted.model.transform(&features, true).unwrap();
    let predicted = fitted.model.predict_distances(&features).unwrap();
    let distances = distances.chunks_exact(k).zip(squared.chunks_exact(k));
    for ((x, (distances, squared)), predicted) in x.chunks_exact(d).zip(distances).zip(predicted.iter()) {
        let (nearest, predicted) = (reference::nearest(x, fitted.model.centroids()), predicted.unwrap());
        for ((c, distance), squared) in fitted.model.centroids().chunks_exact(d).zip(distances).zip(squared) {
            assert_eq!(*squared, reference::distance(x, c));
            assert_eq!(*distance, squared.sqrt());
        }
        assert_eq!(predicted.label, nearest.label);
        assert_eq!(predicted.distance, nearest.distance.sqrt());
        assert_eq!(predicted.second_distance, (k > 1).then(|| nearest.second.sqrt()));
    }
    let score = fitted.model.score(&features, None).unwrap();
    assert!((score + fitted.model.inertia()).abs() <= 1e-12 * score.abs());
}

#[test]
fn transform_and_distances_are_square_roots_of_reference_distances() {
    for (n, d, k) in [(500, 3, 5), (77, 1, 1), (100, 9, 4), (1_100, 20, 13)] {
        check_distances::<f32>(n, d, k);
        check_distances::<f64>(n, d, k);
    }
}
