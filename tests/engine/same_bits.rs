//! One hash of a fit for all numbers of threads, chunks, layouts, instruction sets and parts.

use std::fmt::Write;

use polars_kmeans::InstructionSet;
use polars_kmeans::{
    Chunk, Column, Engine, Features, History, Init, KMeans, Metric, NullPolicy, Restarts, RowOrder, Scale, SortBy, TooFew,
    Validity, Wanted,
};

use crate::data::{Random, bitmap, columns, from_columns, hash, here_and_on_gpu, in_chunks, on_gpu, parts_of, rows, some_cuts};

/// A golden case: name, data, estimator. A changed hash needs a new major version.
pub struct Case {
    pub name: &'static str,
    kind: &'static str,
    pub shape: (usize, usize),
    weighted: bool,
    pub estimator: KMeans,
}

/// Name, kind of rows, shape, and whether rows have weights.
type Rows = (&'static str, &'static str, (usize, usize), bool);

fn case((name, kind, shape, weighted): Rows, estimator: KMeans) -> Case {
    Case { name, kind, shape, weighted, estimator }
}

fn kmeans(k: usize, seed: u64) -> KMeans {
    KMeans::new(k).seed(seed)
}

pub fn cases() -> Vec<Case> {
    let mut all = plain_cases();
    all.extend(cases_of_seedings());
    all
}

fn plain_cases() -> Vec<Case> {
    vec![
        case(("blobs-2d", "blobs", (20_000, 2), false), kmeans(10, 1)),
        case(("blobs-weighted", "blobs", (20_000, 3), true), kmeans(7, 2)),
        case(("uniform-34d", "uniform", (5_000, 34), false), kmeans(32, 3).max_iter(20)),
        case(("uniform-weighted-20d", "uniform", (5_000, 20), true), kmeans(16, 4).max_iter(20)),
        case(("lattice", "lattice", (6_000, 3), false), kmeans(20, 5).history(History::Full)),
        case(
            ("random-restarts", "blobs", (3_000, 5), false),
            kmeans(6, u64::MAX).init(Init::Random).n_init(Restarts::Count(4)),
        ),
        case(("sorted-by-size", "lattice", (6_000, 3), true), kmeans(20, 5).sort_by(SortBy::Size)),
        case(
            ("sorted-by-feature", "lattice", (3_000, 2), false),
            kmeans(6, 21).init(Init::Random).sort_by(SortBy::Feature("column_1".into())),
        ),
        case(("fewer", "duplicates", (500, 3), true), kmeans(20, 22).too_few(TooFew::Fewer)),
        case(("offset", "offset 1e7", (4_000, 12), false), kmeans(9, 6)),
        case(("mixed-scales", "mixed scales", (4_000, 6), false), kmeans(5, 7)),
        case(("denormals", "denormals", (2_000, 4), false), kmeans(5, 8)),
        case(("sentinel-weighted", "sentinel", (3_000, 9), true), kmeans(4, 9)),
        case(("many-clusters", "tight blobs far apart", (9_000, 2), false), kmeans(300, 10).max_iter(30)),
        case(("cosine", "uniform", (4_000, 24), false), kmeans(20, 12).metric(Metric::Cosine).max_iter(20)),
        case(("cosine-weighted", "blobs", (5_000, 5), true), kmeans(9, 13).metric(Metric::Cosine)),
        case(("standard", "offset 1e6", (4_000, 6), false), kmeans(8, 14).scale(Scale::Standard)),
        case(("robust-weighted", "sentinel", (3_000, 10), true), kmeans(8, 15).scale(Scale::Robust)),
        case(
            ("factors-cosine", "blobs", (3_000, 3), false),
            kmeans(12, 16).metric(Metric::Cosine).scale(factors()).history(History::Full),
        ),
        case(("relocations", "duplicates", (400, 2), false), kmeans(6, 11).init(Init::Given(vec![0.25; 12]))),
    ]
}

/// Other seedings, also of rows that arrive scaled and normalised.
fn cases_of_seedings() -> Vec<Case> {
    vec![
        case(("kmeans-parallel", "blobs", (8_000, 4), true), kmeans(25, 12).init(Init::KMeansParallel)),
        case(
            ("kmeans-parallel-few", "lattice", (3_000, 9), false),
            kmeans(30, 13).init(Init::KMeansParallel).oversampling(0.2).rounds(2).max_iter(9),
        ),
        case(("afk-mc2", "uniform", (6_000, 12), false), kmeans(40, 14).init(Init::AfkMc2).max_iter(20)),
        case(("afk-mc2-weighted", "blobs", (5_000, 2), true), kmeans(20, 15).init(Init::AfkMc2).chain_length(30)),
        case(("optimal", "blobs", (9_000, 1), true), KMeans::new(8).init(Init::Optimal)),
        case(("values", "blobs", (9_000, 3), false), kmeans(12, 22).row_order(RowOrder::Values)),
        case(
            ("values-weighted", "lattice", (5_000, 5), true),
            kmeans(15, 23).init(Init::Random).n_init(Restarts::Count(2)).row_order(RowOrder::Values),
        ),
        case(
            ("values-kmeans-parallel", "blobs", (6_000, 4), true),
            kmeans(20, 24).init(Init::KMeansParallel).row_order(RowOrder::Values),
        ),
        case(
            ("values-cosine", "lattice", (4_000, 9), false),
            kmeans(10, 25).init(Init::AfkMc2).scale(factors()).metric(Metric::Cosine).row_order(RowOrder::Values),
        ),
        case(
            ("values-relocations", "duplicates", (400, 2), true),
            kmeans(6, 26).init(Init::Given(vec![0.25; 12])).row_order(RowOrder::Values),
        ),
        case(("init-sample", "blobs", (12_000, 3), false), kmeans(30, 16).init_sample(Some(900))),
        case(
            ("kmeans-parallel-cosine", "uniform", (5_000, 14), false),
            kmeans(30, 17).init(Init::KMeansParallel).metric(Metric::Cosine).max_iter(15),
        ),
        case(
            ("kmeans-parallel-standard", "mixed scales", (5_000, 5), true),
            kmeans(12, 18).init(Init::KMeansParallel).scale(Scale::Standard).max_iter(15),
        ),
        case(
            ("afk-mc2-cosine-weighted", "blobs", (5_000, 6), true),
            kmeans(25, 19).init(Init::AfkMc2).metric(Metric::Cosine).scale(factors()).max_iter(15),
        ),
        case(
            ("afk-mc2-robust", "sentinel", (4_000, 3), false),
            kmeans(9, 20).init(Init::AfkMc2).chain_length(50).scale(Scale::Robust),
        ),
        case(("optimal-standard", "offset 1e6", (5_000, 1), true), KMeans::new(6).init(Init::Optimal).scale(Scale::Standard)),
        case(
            ("init-sample-cosine", "uniform", (6_000, 11), false),
            kmeans(20, 21).init_sample(Some(500)).metric(Metric::Cosine).max_iter(15),
        ),
    ]
}

fn factors() -> Scale {
    Scale::Factors([("column_0".to_owned(), 0.3), ("column_2".to_owned(), 1e3)].into())
}

pub struct Data<T> {
    pub rows: Vec<T>,
    pub weights: Option<Vec<f64>>,
}

pub fn generate<T: Engine>(case: &Case) -> Data<T> {
    let random = &mut Random(case.name.len() as u64 + case.shape.0 as u64);
    let (n, d) = case.shape;
    let rows = rows(case.kind, n, d, random);
    Data {
        rows,
        weights: case.weighted.then(|| (0..n).map(|_| if random.below(10) == 0 { 0.0 } else { 5.0 * random.unit() }).collect()),
    }
}

pub fn fit<T: Engine>(case: &Case, data: &Data<T>) -> u64 {
    let weights = data.weights.as_ref().map(|w| Column::from_slice(w));
    hash(&case.estimator.fit_features(&Features::from_rows(&data.rows, case.shape.1).unwrap(), weights.as_ref()).unwrap())
}

#[test]
fn hashes_on_the_gpu_are_the_golden_ones() {
    for mut case in cases() {
        let Some(estimator) = on_gpu(&case.estimator) else { return };
        let expected = (fit(&case, &generate::<f32>(&case)), fit(&case, &generate::<f64>(&case)));
        case.estimator = estimator;
        let found = (fit(&case, &generate::<f32>(&case)), fit(&case, &generate::<f64>(&case)));
        assert_eq!(found, expected, "{}", case.name);
    }
}

#[test]
fn hashes_are_the_golden_ones() {
    let mut found = String::new();
    for case in cases() {
        let hashes = (fit(&case, &generate::<f32>(&case)), fit(&case, &generate::<f64>(&case)));
        writeln!(found, "{} {:016x} {:016x}", case.name, hashes.0, hashes.1).unwrap();
    }
    // If the test binary was moved to another machine, this variable says where its files are.
    let tests = std::env::var("POLARS_KMEANS_TESTS").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests").into());
    let path = format!("{tests}/golden/fits.txt");
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(path).unwrap(), "case, hash of float32, hash of float64");
}

fn every_way<T: Engine>(case: &Case) {
    let data = generate::<T>(case);
    let (n, d) = case.shape;
    let expected = fit(case, &data);
    let columns = columns(&data.rows, d);
    let features = from_columns(&columns);
    let weights = data.weights.as_ref().map(|w| Column::from_slice(w));
    for threads in [1, 2, 3] {
        let fit = case.estimator.clone().threads(threads).fit_features(&features, weights.as_ref()).unwrap();
        assert_eq!(hash(&fit), expected, "{}: {threads} threads", case.name);
    }
    for set in [InstructionSet::Avx512, InstructionSet::Avx2, InstructionSet::Portable] {
        let fit = case.estimator.fit_parts(parts_of(&features, data.weights.as_deref(), &[0, n]), set, Wanted::Labels).unwrap();
        assert_eq!(hash(&fit), expected, "{}: {set:?}", case.name);
    }
    let random = &mut Random(99);
    for round in 0..20 {
        let features = Features::new(columns.iter().map(|c| in_chunks(c, random)).collect()).unwrap();
        let weights = data.weights.as_ref().map(|w| in_chunks(w, random));
        for estimator in here_and_on_gpu(&case.estimator) {
            let fit = estimator.fit_features(&features, weights.as_ref()).unwrap();
            assert_eq!(hash(&fit), expected, "{}: chunking {round} on {}", case.name, fit.choice.place);
        }
    }
    for parts in [2, 3, 7] {
        let parts = parts_of(&features, data.weights.as_deref(), &some_cuts(n, parts, random));
        let fit = case.estimator.fit_parts(parts, InstructionSet::detect(), Wanted::Labels).unwrap();
        assert_eq!(hash(&fit), expected, "{}: merged partials", case.name);
    }
}

in_both_types!(every_way_in_gives_the_same_bits, T => cases().iter().for_each(every_way::<T>));

#[test]
fn weights_of_one_are_no_weights() {
    for case in cases().iter().filter(|case| !case.weighted) {
        let data = generate::<f32>(case);
        let ones = vec![1.0; case.shape.0];
        let features = Features::from_rows(&data.rows, case.shape.1).unwrap();
        for estimator in here_and_on_gpu(&case.estimator) {
            let weighted = estimator.fit_features(&features, Some(&Column::from_slice(&ones))).unwrap();
            assert_eq!(hash(&weighted), fit(case, &data), "{} on {}", case.name, weighted.choice.place);
        }
    }
}

/// Rows that are left out (for a null, a NaN, an infinity or a bad weight) do not change the result. Rows of weight 0 only get
/// labels.
#[test]
fn skipped_rows_leave_no_trace() {
    for case in cases().iter() {
        let data = generate::<f32>(case);
        let (n, d) = case.shape;
        let random = &mut Random(5);
        let mut dirty: Vec<Vec<f32>> = vec![Vec::new(); d];
        let (mut valid, mut weights, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..n {
            while random.below(20) == 0 {
                let bad = random.below(4);
                for (f, column) in dirty.iter_mut().enumerate() {
                    column.push(match (bad, f) {
                        (0, 0) => f32::NAN,
                        (1, 0) => f32::NEG_INFINITY,
                        _ => 1e30,
                    });
                }
                valid.push(bad != 2);
                weights.push(if bad == 3 { f64::NAN } else { 1e60 });
                kept.push(false);
            }
            dirty.iter_mut().enumerate().for_each(|(f, column)| column.push(data.rows[i * d + f]));
            valid.push(true);
            weights.push(data.weights.as_ref().map_or(1.0, |w| w[i]));
            kept.push(true);
        }
        let bits = bitmap(&valid);
        let columns = dirty.iter().map(|c| Column::new([Chunk::new(c, Some(Validity::new(&bits, 0))).unwrap()]));
        let features = Features::new(columns.collect()).unwrap();
        let weights = Column::from_slice(&weights);
        let expected = fit(case, &data);
        let one_thread = case.estimator.clone().threads(1);
        for estimator in here_and_on_gpu(&case.estimator.clone().threads(2)).chain([one_thread]) {
            let fit = estimator.null_policy(NullPolicy::Skip).fit_features(&features, Some(&weights)).unwrap();
            assert_eq!(hash(&fit), expected, "{} on {}", case.name, fit.choice.place);
            let labels = fit.expand().unwrap();
            assert!(labels.iter().zip(&kept).all(|(label, kept)| label.is_some() == *kept));
        }
        assert!(case.estimator.fit_features(&features, Some(&weights)).is_err());
    }
}

#[test]
fn rows_of_weight_zero_only_get_labels() {
    let random = &mut Random(3);
    let x: Vec<f64> = rows("blobs", 1_000, 3, random);
    let mut weights: Vec<f64> = (0..1_000).map(|_| random.unit() + 0.1).collect();
    let estimator = KMeans::new(5).seed(2);
    let alone = estimator.fit_features(&Features::from_rows(&x, 3).unwrap(), Some(&Column::from_slice(&weights))).unwrap();
    let mut more = x.clone();
    more.extend(rows::<f64>("tight blobs far apart", 500, 3, random));
    weights.resize(1_500, 0.0);
    let both = estimator.fit_features(&Features::from_rows(&more, 3).unwrap(), Some(&Column::from_slice(&weights))).unwrap();
    assert_eq!(alone.model.centroids(), both.model.centroids());
    assert_eq!(alone.model.inertia(), both.model.inertia());
    assert_eq!(alone.model.sizes(), both.model.sizes());
    assert_eq!(alone.labels, both.labels[..1_000]);
}
