//! `row_order="values"`: the same rows in any order give the same fit, and it is the oracle's fit of the sorted rows.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polars_kmeans::InstructionSet;
use polars_kmeans::base::float::{key, of_key};
use polars_kmeans::{
    Chunk, Column, Device, Engine, Features, Fitted, History, Init, KMeans, KMeansError, Metric, NullPolicy, Restarts,
    RowOrder, Scale, Validity, Wanted,
};

use crate::data::{KINDS, Random, bitmap, hash, here_and_on_gpu, on_gpu, parts_of, rounds, rows, some_rows};
use crate::exactness::is_the_answer;
use crate::oracle::{self, Start, Task};

/// An order of n rows.
fn shuffled(n: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    (1..n).for_each(|i| order.swap(i, random.below(i + 1)));
    order
}

/// The rows of a task in the order of their values.
fn sorted<T: Engine>(task: &Task<T>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..task.rows.len()).collect();
    let weight = |i: usize| task.weights.as_ref().map_or(1.0, |weights| weights[i]);
    order.sort_by(|&a, &b| {
        let values = task.rows[a].iter().zip(&task.rows[b]).map(|(a, b)| a.partial_cmp(b).unwrap());
        values.fold(std::cmp::Ordering::Equal, |all, one| all.then(one)).then(weight(a).partial_cmp(&weight(b)).unwrap())
    });
    order
}

/// Compares the fit of shuffled rows, numbered by their values, with the oracle's fit of the rows in this order. Here and on the GPU.
/// `arrived`: the task with rows that are scaled and normalised.
pub fn check_values<T: Engine>(task: &Task<T>, arrived: &Task<T>, estimator: &KMeans, what: &str) {
    // A part of all tasks is enough.
    if !task.seed.is_multiple_of(3) {
        return;
    }
    let random = &mut Random(task.seed);
    let (n, d, order) = (task.rows.len(), task.rows[0].len(), sorted(arrived));
    let by_values = Task {
        rows: order.iter().map(|&i| arrived.rows[i].iter().map(|x| T::from_f64(x.to_f64() + 0.0)).collect()).collect(),
        weights: task.weights.as_ref().map(|weights| order.iter().map(|&i| weights[i]).collect()),
        start: match arrived.start.clone() {
            Start::Parallel { oversampling, rounds, .. } => Start::Parallel { oversampling, rounds, by_values: true },
            other => other,
        },
        ..arrived.clone()
    };
    let shuffle = shuffled(n, random);
    let x: Vec<T> = shuffle.iter().flat_map(|&i| task.rows[i].iter().copied()).collect();
    let weights: Option<Vec<f64>> = task.weights.as_ref().map(|weights| shuffle.iter().map(|&i| weights[i]).collect());
    let (features, weights) = (Features::from_rows(&x, d).unwrap(), weights.as_ref().map(|w| Column::from_slice(w)));
    let answer = oracle::fit(&by_values);
    let estimator = estimator.clone().row_order(RowOrder::Values);
    for estimator in here_and_on_gpu(&estimator) {
        let fitted = estimator.fit_features(&features, weights.as_ref());
        if let (Some(fitted), Ok(answer)) = (is_the_answer(fitted, &answer, &format!("{what}, by values")), &answer) {
            let mut labels = vec![0; n];
            order.iter().zip(&answer.labels).for_each(|(&i, label)| labels[i] = *label);
            assert!(shuffle.iter().map(|&i| labels[i]).eq(fitted.labels), "{what}, by values: labels");
        }
    }
}

/// A table, some of whose rows may be left out.
#[derive(Clone)]
struct Table<T> {
    d: usize,
    x: Vec<T>,
    weights: Option<Vec<f64>>,
    /// Whether a row has no nulls.
    valid: Vec<bool>,
}

impl<T: Engine> Table<T> {
    fn in_order(&self, order: &[usize]) -> Self {
        Self {
            d: self.d,
            x: order.iter().flat_map(|&i| self.x[i * self.d..][..self.d].iter().copied()).collect(),
            weights: self.weights.as_ref().map(|weights| order.iter().map(|&i| weights[i]).collect()),
            valid: order.iter().map(|&i| self.valid[i]).collect(),
        }
    }

    /// The fit, and its labels one by one.
    fn fit(&self, estimator: &KMeans, wanted: Wanted) -> Result<(Fitted<T>, Vec<Option<u32>>), String> {
        let bits = bitmap(&self.valid);
        let validity = self.valid.contains(&false).then(|| Validity::new(&bits, 0));
        let weights = self.weights.as_ref().map(|weights| Column::new([Chunk::new(weights, validity).unwrap()]));
        let features = Features::from_blocks([(&self.x[..], validity, None)], self.d).unwrap();
        let fitted = estimator.fit_with(&features, weights.as_ref(), wanted).map_err(|error| error.to_string())?;
        let labels = fitted.expand().unwrap().iter().collect();
        Ok((fitted, labels))
    }
}

/// The hash of a fit but for its labels, whose order is that of the rows.
fn hash_of_model<T: Engine>(mut fitted: Fitted<T>) -> u64 {
    fitted.labels.clear();
    hash(&fitted)
}

fn any_table<T: Engine>(kind: &str, n: usize, d: usize, random: &mut Random) -> Table<T> {
    let mut x: Vec<T> = rows(kind, n, d, random);
    // Equal rows, of equal and of other weight, and both zeros.
    for i in 1..n {
        if random.below(6) == 0 {
            let j = random.below(i);
            (0..d).for_each(|f| x[i * d + f] = x[j * d + f]);
        }
    }
    if random.below(2) == 0 {
        for x in &mut x {
            *x = match random.below(18) {
                0 => T::from_f64(0.0),
                1 => T::from_f64(-0.0),
                _ => *x,
            };
        }
    }
    let weights = match random.below(3) {
        0 => Some((0..n).map(|_| [0.0, 1.0, 2.5, 0.3][random.below(4)]).collect()),
        1 => Some((0..n).map(|_| random.unit() + 0.01).collect()),
        _ => None,
    };
    let valid = (0..n).map(|_| random.below(25) > 0).collect();
    Table { d, x, weights, valid }
}

fn any_estimator<T: Engine>(table: &Table<T>, case: usize, random: &mut Random) -> KMeans {
    let d = table.d;
    let k = 1 + random.below(12);
    let estimator = KMeans::new(k).seed(random.next()).row_order(RowOrder::Values).null_policy(NullPolicy::Skip);
    let estimator = match case % 7 {
        0 => estimator.init(Init::Random).n_init(Restarts::Count(3)),
        1 => estimator.n_init(Restarts::Count(2)),
        2 => estimator.init(Init::KMeansParallel).oversampling([0.2, 2.0][random.below(2)]),
        3 => estimator.init(Init::AfkMc2).chain_length([3, 60][random.below(2)]),
        4 if d == 1 => estimator.init(Init::Optimal).init_sample([None, Some(30)][random.below(2)]),
        4 | 5 => estimator.init_sample(Some(40)),
        // Most clusters are empty at first, and take rows that are equally far.
        _ => estimator.init(Init::Given(some_rows(&table.x, d, k, 2, random))),
    };
    let estimator = if random.below(3) == 0 { estimator.history(History::Full) } else { estimator };
    match random.below(6) {
        0 if d > 1 => estimator.metric(Metric::Cosine),
        1 => estimator.scale(Scale::Standard),
        2 => estimator.scale(Scale::Factors([("column_0".to_owned(), 1e-3)].into())),
        _ => estimator,
    }
}

/// Returns whether there was a fit to compare.
fn check<T: Engine>(kind: &str, case: usize, n: usize) -> bool {
    let random = &mut Random(800_000 + case as u64);
    let d = [1, 2, 3, 7, 20][random.below(5)];
    let table: Table<T> = any_table(kind, n, d, random);
    let estimator = any_estimator(&table, case, random).max_iter(if n > 10_000 { 2 } else { 300 });
    let what = format!("{kind}, case {case}: {n} x {d}, {}, {estimator:?}", T::NAME);
    let wanted = [Wanted::Labels, Wanted::Distances][random.below(2)];
    let given = table.fit(&estimator, wanted);
    let reversed: Vec<usize> = (0..n).rev().collect();
    for order in [shuffled(n, random), reversed, shuffled(n, random)] {
        let other = table.in_order(&order);
        for estimator in [Some(estimator.clone().threads(1 + random.below(3))), on_gpu(&estimator)].into_iter().flatten() {
            match (&given, other.fit(&estimator, wanted)) {
                (Ok((fitted, labels)), Ok((again, others))) => {
                    assert!(order.iter().map(|&i| labels[i]).eq(others), "{what}: labels");
                    if wanted == Wanted::Distances {
                        let [before, after] =
                            [fitted.clone(), again.clone()].map(|fit| fit.into_predictions().unwrap().unwrap());
                        let [before, after] = [before.iter().collect::<Vec<_>>(), after.iter().collect()];
                        assert!(order.iter().map(|&i| before[i]).eq(after), "{what}: distances");
                    }
                    assert_eq!(hash_of_model(fitted.clone()), hash_of_model(again), "{what}");
                }
                (Err(before), Err(after)) => assert_eq!(*before, after, "{what}"),
                (before, after) => panic!("{what}: {:?} and {:?}", before.as_ref().err(), after.err()),
            }
        }
    }
    given.is_ok()
}

#[test]
fn the_order_of_the_rows_does_not_matter() {
    let (mut compared, cases) = (0, rounds(260));
    for case in 0..cases {
        let kind = KINDS[case % KINDS.len()];
        let n = [30, 200, 900][case % 3];
        compared += usize::from(check::<f32>(kind, case, n)) + usize::from(check::<f64>(kind, case + 1_000, n));
    }
    println!("{compared} tables compared in several orders");
    assert!(3 * compared > 4 * cases, "only {compared} of {} tables had a fit", 2 * cases);
}

#[test]
fn the_order_of_many_rows_does_not_matter() {
    // Enough rows for several pieces.
    for case in 0..2 {
        let answered = [check::<f32>("blobs", 2_000 + case, 140_000), check::<f64>("lattice", 2_003 + case, 135_000)];
        assert_eq!(answered, [true; 2]);
    }
}

/// Rows as given would show their order.
#[test]
fn the_order_matters_to_rows_as_given() {
    let table: Table<f64> = any_table("blobs", 500, 3, &mut Random(4));
    let estimator = KMeans::new(8).null_policy(NullPolicy::Skip).max_iter(1);
    let of_order =
        |estimator: &KMeans, order: &[usize]| hash_of_model(table.in_order(order).fit(estimator, Wanted::Labels).unwrap().0);
    let orders = [(0..500).collect::<Vec<_>>(), (0..500).rev().collect()];
    for init in [Init::Random, Init::KMeansPlusPlus, Init::KMeansParallel, Init::AfkMc2] {
        let estimator = estimator.clone().init(init);
        let [given, reversed] = [0, 1].map(|i| of_order(&estimator, &orders[i]));
        assert_ne!(given, reversed);
        let estimator = estimator.row_order(RowOrder::Values);
        let [given, reversed] = [0, 1].map(|i| of_order(&estimator, &orders[i]));
        assert_eq!(given, reversed);
    }
}

/// Without seeding, sorted rows are the rows as given.
#[test]
fn sorted_rows_are_fitted_as_given() {
    let mut x: Vec<f32> = rows("blobs", 3_000, 1, &mut Random(2));
    x.sort_by(f32::total_cmp);
    let features = Features::from_rows(&x, 1).unwrap();
    for init in [Init::Random, Init::KMeansPlusPlus, Init::AfkMc2, Init::Optimal] {
        let estimator = KMeans::new(5).init(init);
        let fit = |estimator: &KMeans| hash(&estimator.fit_features(&features, None).unwrap());
        assert_eq!(fit(&estimator), fit(&estimator.clone().row_order(RowOrder::Values)));
    }
}

/// `different`: how many values there are. Two of them are zeros.
fn check_many<T: Engine>(n: usize, d: usize, different: usize) {
    let random = &mut Random((n + d) as u64);
    let value = |value: usize| match value {
        0 => -0.0,
        1 => 0.0,
        value => (value as f64 - different as f64 / 2.0) * 0.37,
    };
    let x: Vec<T> = (0..n * d).map(|_| T::from_f64(value(random.below(different)))).collect();
    let weights: Vec<f64> = (0..n).map(|_| random.below(3) as f64).collect();
    check_order(x, d, weights, if different == 2 { 1 } else { 300 });
}

/// The fit is that of the sorted rows as given.
fn check_order<T: Engine>(x: Vec<T>, d: usize, weights: Vec<f64>, k: usize) {
    let n = weights.len();
    let rows = x.chunks_exact(d).map(<[T]>::to_vec).collect();
    let order = sorted(&Task { weights: Some(weights.clone()), ..Task::new(rows, k, Start::Random) });
    let table = Table { d, x, weights: Some(weights), valid: vec![true; n] };
    let estimator = KMeans::new(k).init(Init::Random).n_init(Restarts::Count(1)).max_iter(2);
    let (expected, labels) = table.in_order(&order).fit(&estimator, Wanted::Labels).unwrap();
    let (fitted, others) = table.fit(&estimator.row_order(RowOrder::Values), Wanted::Labels).unwrap();
    assert_eq!(fitted.model.centroids(), expected.model.centroids(), "{n} x {d}, {}", T::NAME);
    assert!(order.iter().map(|&row| others[row]).eq(labels), "{n} x {d}, {}", T::NAME);
}

/// Many rows are sorted in pieces, and rows that begin alike by the values after them.
#[test]
fn many_rows_are_fitted_in_the_order_of_their_values() {
    for (d, different) in [(2, 1 << 30), (3, 50), (20, 3), (1, 2)] {
        check_many::<f32>(200_000, d, different);
        check_many::<f64>(140_001, d, different);
    }
}

/// Each row leaves the others one value later.
#[test]
fn rows_that_begin_alike_for_long_are_sorted() {
    fn check<T: Engine>() {
        let (n, d) = (200, 150);
        let order = shuffled(n, &mut Random(9));
        let value = |i: usize, f: usize| if f < i { 0.0 } else { (1 + (i * f) % 3) as f64 };
        let x = order.iter().flat_map(|&i| (0..d).map(move |f| T::from_f64(value(i, f)))).collect();
        check_order::<T>(x, d, order.iter().map(|i| (i % 4) as f64).collect(), 40);
    }
    check::<f32>();
    check::<f64>();
}

/// Given centroids need no sorted rows, unless rows that may move to an empty cluster are equally far.
#[test]
fn rows_are_sorted_for_given_centroids_only_where_they_tie() {
    let starts = |x: &[f64], centroids: &[f64]| {
        let starts = Arc::new(AtomicU32::new(0));
        let counter = starts.clone();
        let estimator = KMeans::new(centroids.len()).init(Init::Given(centroids.to_vec())).row_order(RowOrder::Values);
        let estimator = estimator.on_progress(move |progress| {
            counter.fetch_add(u32::from(progress.iteration == 1), Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        for estimator in here_and_on_gpu(&estimator) {
            starts.store(0, Ordering::Relaxed);
            estimator.fit_features(&Features::from_columns([x]).unwrap(), None).unwrap();
        }
        starts.load(Ordering::Relaxed)
    };
    // No cluster is empty; one is empty and one row is the farthest; two rows are.
    assert_eq!(starts(&[1.0, 2.0, 8.0, 9.0], &[1.0, 9.0]), 1);
    assert_eq!(starts(&[1.0, 2.0, 8.0, 9.5], &[5.0, 5.0]), 1);
    assert_eq!(starts(&[1.0, 2.0, 8.0, 9.0], &[5.0, 5.0]), 2);
}

#[test]
fn errors_name_the_rows_as_given() {
    let x = [5.0, 1.0, f64::NAN, 4.0, 2.0];
    let weights = [1.0, 1.0, 1.0, -2.0, 1.0];
    let features = Features::from_columns([&x[..]]).unwrap();
    let estimator = KMeans::new(2).row_order(RowOrder::Values);
    let fit = |estimator: &KMeans, weights: Option<&[f64]>| {
        estimator.fit_features(&features, weights.map(Column::from_slice).as_ref()).unwrap_err()
    };
    let error = fit(&estimator, None);
    assert!(matches!(&error, KMeansError::NotFinite { nulls: 0, nans: 1, infinities: 0, .. }), "{error}");
    let skipping = estimator.clone().null_policy(NullPolicy::Skip);
    let error = fit(&skipping, Some(&weights));
    assert_eq!(error, KMeansError::NegativeWeight { row: 3, got: -2.0 });
    assert!(matches!(fit(&skipping, Some(&weights[..4])), KMeansError::LengthMismatch { expected: 5, got: 4, .. }));
    assert_eq!(
        fit(&KMeans::new(5).row_order(RowOrder::Values).null_policy(NullPolicy::Skip), None),
        KMeansError::TooFewDistinct { k: 5, rows: 4 }
    );
    let nothing = [f64::NAN; 3];
    let error = skipping.fit_features(&Features::from_columns([&nothing[..]]).unwrap(), None).unwrap_err();
    assert_eq!(error, KMeansError::NoRows { skipped: Some(3) });
    // A value that overflows when it is scaled is an error, not a row that is left out.
    let large = [1.0f32, 3e38, 2.0, 4.0];
    let scaled = skipping.scale(Scale::Factors([("column_0".to_owned(), 10.0)].into()));
    let error = scaled.fit_features(&Features::from_columns([&large[..]]).unwrap(), None).unwrap_err();
    assert!(matches!(error, KMeansError::ScaledOutOfRange { .. }), "{error}");
}

/// Parts of any lengths are numbered together. With a limit on its memory, a GPU gets the sorted rows in chunks.
#[test]
fn parts_and_streams_are_sorted_as_one_table() {
    let random = &mut Random(9);
    let (n, d) = (20_000, 3);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let features = Features::from_rows(&x, d).unwrap();
    for init in [Init::KMeansPlusPlus, Init::KMeansParallel, Init::AfkMc2, Init::Random] {
        let estimator = KMeans::new(9).init(init).row_order(RowOrder::Values).seed(3);
        let expected = hash(&estimator.fit_features(&features, None).unwrap());
        let parts = parts_of(&features, None, &[0, 7, 7, 9_000, n]);
        let merged = estimator.fit_parts(parts, InstructionSet::detect(), Wanted::Labels).unwrap();
        assert_eq!(hash(&merged), expected);
        if let Some(estimator) = on_gpu(&estimator) {
            let streamed = estimator.device_memory_limit(Some(12 << 20)).fit_features(&features, None);
            match streamed {
                Ok(streamed) => assert_eq!(hash(&streamed), expected),
                Err(error) => assert!(matches!(error, KMeansError::NoMemory { .. }), "{error}"),
            }
        }
    }
    assert_eq!(
        KMeans::new(2).device(Device::Cpu).row_order(RowOrder::Values),
        KMeans::new(2).device(Device::Cpu).row_order("values".parse().unwrap())
    );
}

#[test]
fn keys_grow_with_values_and_give_them_back() {
    let values = [-f64::MAX, -2.5, -f64::MIN_POSITIVE, 0.0, 5e-324, 1.0, 1.0 + f64::EPSILON, f64::MAX];
    assert!(values.windows(2).all(|two| key(two[0]) < key(two[1])));
    assert!(values.iter().all(|x| of_key::<f64>(key(*x)).to_bits() == x.to_bits()));
    assert_eq!(key(-0.0), key(0.0));
}
