//! Fits of rows in parts: the bits of whole fits, whichever part is lost at whichever time.

use std::ops::ControlFlow;
use std::sync::Arc;

use polars_kmeans::InstructionSet;
use polars_kmeans::distributed::{Executor, OwnedRows, Worker, fit};
use polars_kmeans::model::AnyFitted;
use polars_kmeans::{
    Column, Engine, Features, Fitted, History, Init, KMeans, KMeansError, Metric, NullPolicy, Restarts, Result, RowOrder,
    Scale, TooFew, Wanted,
};

use crate::data::{Random, hash, on_gpu};
use crate::same_bits::{Case, cases, generate};

/// How a part gets lost.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    /// Before it does what it is asked for.
    Before,
    /// After that, before its answer arrives.
    After,
    /// It is not lost, but gets the request twice.
    Twice,
    /// All parts are lost before.
    All,
}

type Make = dyn Fn(usize) -> Worker + Send;

/// Parts in this process, one of which may get lost at some message.
pub struct Here {
    parts: Vec<Worker>,
    make: Box<Make>,
    /// The messages so far.
    messages: usize,
    loss: Option<(usize, usize, Loss)>,
}

impl Here {
    fn new(count: usize, make: impl Fn(usize) -> Worker + Send + 'static) -> Self {
        Self { parts: (0..count).map(&make).collect(), make: Box::new(make), messages: 0, loss: None }
    }
}

impl Executor for Here {
    fn parts(&self) -> usize {
        self.parts.len()
    }

    fn ask(&mut self, requests: &[(usize, Arc<[u8]>)]) -> Result<Vec<Vec<u8>>> {
        let message = self.messages;
        self.messages += 1;
        let loss = self.loss.filter(|loss| loss.0 == message);
        if loss.is_some_and(|loss| loss.2 == Loss::All) {
            self.parts = (0..self.parts.len()).map(&self.make).collect();
        }
        let answers = requests.iter().map(|(part, request)| {
            let loss = loss.filter(|loss| loss.1 == *part).map(|loss| loss.2);
            match loss {
                Some(Loss::Before) => self.parts[*part] = (self.make)(*part),
                Some(Loss::After) => {
                    self.parts[*part].answer(request);
                    self.parts[*part] = (self.make)(*part);
                }
                Some(Loss::Twice) => {
                    let first = self.parts[*part].answer(request);
                    let second = self.parts[*part].answer(request);
                    assert_eq!(first, second, "a repeated request has another answer");
                    return second;
                }
                _ => {}
            }
            self.parts[*part].answer(request)
        });
        Ok(answers.collect())
    }
}

/// The rows between these cuts as parts. Every other one works with another instruction set.
pub fn parts<T: Engine>(x: &[T], weights: Option<&[f64]>, d: usize, cuts: &[usize]) -> Here {
    let (x, weights, cuts) = (x.to_vec(), weights.map(<[f64]>::to_vec), cuts.to_vec());
    Here::new(cuts.len() - 1, move |part| {
        let range = cuts[part]..cuts[part + 1];
        let mut rows = OwnedRows::new(x[range.start * d..range.end * d].to_vec(), d);
        if let Some(weights) = &weights {
            rows = rows.weighted(weights[range].to_vec());
        }
        let sets = [InstructionSet::detect(), InstructionSet::Portable, InstructionSet::Avx2];
        Worker::with_instructions(rows, sets[part % 3]).unwrap()
    })
}

fn hash_of(fitted: &AnyFitted) -> u64 {
    match fitted {
        AnyFitted::F32(fitted) => hash(fitted),
        AnyFitted::F64(fitted) => hash(fitted),
    }
}

fn golden_case<T: Engine>(case: &Case) {
    let data = generate::<T>(case);
    let (n, d) = case.shape;
    let expected = crate::same_bits::fit(case, &data);
    let random = &mut Random(7);
    for count in [1, 2, 3, 7] {
        let mut cuts: Vec<usize> = (0..count - 1).map(|_| random.below(n)).chain([0, n]).collect();
        // One part has no rows.
        if count == 3 {
            cuts[1] = cuts[0];
        }
        cuts.sort_unstable();
        let mut executor = parts(&data.rows, data.weights.as_deref(), d, &cuts);
        let fitted = fit(&case.estimator, &mut executor, Wanted::Labels);
        if case.name.starts_with("values") && case.name != "values-kmeans-parallel" {
            let error = fitted.expect_err(case.name).to_string();
            assert!(error.starts_with("row_order: expected \"given\" for rows in parts"), "{error}");
            continue;
        }
        assert_eq!(hash_of(&fitted.unwrap()), expected, "{} of {}, {count} parts", case.name, T::NAME);
    }
}

in_both_types!(golden_fits_in_parts, T => cases().iter().for_each(golden_case::<T>));

#[test]
fn golden_fits_in_parts_on_the_gpu() {
    for case in cases().iter().filter(|case| !case.name.starts_with("values")) {
        let Some(estimator) = on_gpu(&case.estimator) else { return };
        let data = generate::<f32>(case);
        let (n, d) = case.shape;
        let expected = crate::same_bits::fit(case, &data);
        for cuts in [vec![0, n], vec![0, n / 3, n], vec![0, n / 7, n / 7, n / 2, n]] {
            let mut executor = parts(&data.rows, data.weights.as_deref(), d, &cuts);
            let fitted = fit(&estimator, &mut executor, Wanted::Labels).unwrap();
            assert_eq!(hash_of(&fitted), expected, "{}, {cuts:?}", case.name);
        }
    }
}

/// Small fits that make every kind of call.
fn small_fits() -> Vec<(&'static str, KMeans)> {
    let start = |k: usize| Init::Given((0..3 * k).map(|i| if i < 3 * k - 3 { 0.5 } else { 400.0 }).collect());
    let few = KMeans::new(6).seed(3).max_iter(6).null_policy(NullPolicy::Skip).threads(1);
    vec![
        ("k-means++", few.clone()),
        ("k-means||", few.clone().init(Init::KMeansParallel).rounds(2).n_init(Restarts::Count(2))),
        ("random", few.clone().init(Init::Random).n_init(Restarts::Count(2)).history(History::Full)),
        ("given, with empty clusters", few.clone().init(start(6))),
        ("cosine, afk-mc2", few.clone().init(Init::AfkMc2).chain_length(5).metric(Metric::Cosine)),
        ("standard", few.clone().scale(Scale::Standard).max_iter(2)),
        ("robust", few.scale(Scale::Robust).max_iter(2)),
    ]
}

#[test]
fn no_lost_part_changes_a_bit() {
    let random = &mut Random(5);
    let mut x: Vec<f64> =
        (0..3 * 240).map(|_| (random.unit() * 30.0).floor() + if random.below(4) == 0 { 300.0 } else { 0.0 }).collect();
    (0..5).for_each(|i| x[100 * i + 7] = f64::NAN);
    let weights: Vec<f64> = (0..240).map(|_| random.below(4) as f64 * 0.7).collect();
    let cuts = [0, 31, 150, 240];
    let mut lost = 0;
    for (name, estimator) in small_fits() {
        let whole = Features::from_rows(&x, 3).unwrap();
        let whole = estimator.fit_features(&whole, Some(&Column::from_slice(&weights))).unwrap();
        let expected = hash(&whole);
        let mut executor = parts(&x, Some(&weights), 3, &cuts);
        let fitted = fit(&estimator, &mut executor, Wanted::Labels).unwrap();
        assert_eq!(hash_of(&fitted), expected, "{name}");
        let AnyFitted::F64(fitted) = fitted else { panic!("the rows are float64") };
        assert_eq!((&fitted.relocated, name.contains("empty")), (&whole.relocated, !whole.relocated.is_empty()), "{name}");
        let messages = executor.messages;
        for message in 0..messages {
            let of_parts =
                [Loss::Before, Loss::After, Loss::Twice].into_iter().flat_map(|loss| (0..3).map(move |part| (part, loss)));
            for (part, loss) in of_parts.chain([(0, Loss::All)]) {
                let mut executor = parts(&x, Some(&weights), 3, &cuts);
                executor.loss = Some((message, part, loss));
                let found = hash_of(&fit(&estimator, &mut executor, Wanted::Labels).unwrap());
                assert_eq!(found, expected, "{name}: part {part} at message {message} of {messages}: {loss:?}");
                lost += 1;
            }
        }
    }
    assert!(lost > 1_000, "{lost}");
}

#[test]
fn a_stopped_fit_of_parts_is_that_of_the_whole() {
    let random = &mut Random(9);
    let x: Vec<f64> = (0..3 * 240).map(|_| (random.unit() * 30.0).floor()).collect();
    for (name, estimator) in small_fits() {
        let estimator = estimator.on_progress(|progress| match progress.iteration {
            2 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        let whole = estimator.fit_features(&Features::from_rows(&x, 3).unwrap(), None).unwrap();
        assert!(whole.model.stopped() && whole.model.n_iter() == 2, "{name}");
        let mut executor = parts(&x, None, 3, &[0, 31, 150, 240]);
        fit(&estimator, &mut executor, Wanted::Labels).unwrap();
        // Also if a part is lost in the last iteration, or after the stop.
        for message in executor.messages - 8..=executor.messages {
            let mut executor = parts(&x, None, 3, &[0, 31, 150, 240]);
            executor.loss = Some((message, message % 3, Loss::Before));
            let AnyFitted::F64(parted) = fit(&estimator, &mut executor, Wanted::Labels).unwrap() else { panic!("float32") };
            assert!(parted.model.stopped() && hash(&parted) == hash(&whole), "{name}, message {message}");
        }
    }
}

#[test]
fn steps_of_seeding_take_few_messages() {
    let random = &mut Random(6);
    let x: Vec<f32> = (0..4_000).map(|_| random.normal() as f32).collect();
    let messages = |estimator: KMeans| {
        let mut executor = parts(&x, None, 2, &[0, 700, 2_000]);
        fit(&estimator, &mut executor, Wanted::Nothing).unwrap();
        executor.messages
    };
    let of = |k: usize, init: Init| messages(KMeans::new(k).init(init).max_iter(1));
    assert_eq!(of(60, Init::KMeansPlusPlus) - of(40, Init::KMeansPlusPlus), 2 * 20);
    let rounds = |rounds: u32| messages(KMeans::new(20).init(Init::KMeansParallel).rounds(rounds).max_iter(1));
    assert_eq!(rounds(9) - rounds(5), 2 * 4);
    let iterations = |most: u32| messages(KMeans::new(20).max_iter(most).tol(0.0));
    assert_eq!(iterations(9) - iterations(5), 4);
}

#[test]
fn fewer_clusters_and_distances() {
    let x: Vec<f64> = (0..200).map(|i| f64::from(i % 5)).collect();
    let estimator = KMeans::new(9).too_few(TooFew::Fewer);
    let whole = estimator.fit_with(&Features::from_rows(&x, 1).unwrap(), None, Wanted::Distances).unwrap();
    let AnyFitted::F64(parted) = fit(&estimator, &mut parts(&x, None, 1, &[0, 3, 90, 200]), Wanted::Distances).unwrap() else {
        panic!("float32")
    };
    assert_eq!(hash(&parted), hash(&whole));
    assert_eq!(parted.distances, whole.distances);
    let error = fit(&KMeans::new(9), &mut parts(&x, None, 1, &[0, 3, 90, 200]), Wanted::Labels).unwrap_err();
    assert_eq!(error, KMeansError::TooFewDistinct { k: 9, rows: 200 });
}

/// The error of a fit in parts, which is that of the whole fit.
fn same_error(x: &[f64], weights: Option<&[f64]>, d: usize, estimator: KMeans) -> KMeansError {
    let whole: Result<Fitted<f64>> =
        estimator.fit_features(&Features::from_rows(x, d).unwrap(), weights.map(Column::from_slice).as_ref());
    let n = x.len() / d;
    let error = fit(&estimator, &mut parts(x, weights, d, &[0, n / 3, n / 3, n]), Wanted::Labels).unwrap_err();
    assert_eq!(error, whole.unwrap_err());
    error
}

#[test]
fn errors_are_those_of_whole_fits() {
    let mut x: Vec<f64> = (0..60).map(f64::from).collect();
    let mut weights = vec![1.0; 30];
    weights[25] = -2.0;
    let error = same_error(&x, Some(&weights), 2, KMeans::new(2));
    assert_eq!(error, KMeansError::NegativeWeight { row: 25, got: -2.0 });
    (x[7], x[51]) = (f64::NAN, f64::INFINITY);
    let error = same_error(&x, None, 2, KMeans::new(2));
    assert_eq!(error, KMeansError::NotFinite { column: "column_1".into(), nulls: 0, nans: 1, infinities: 1 });
    same_error(&[1.0; 40], None, 2, KMeans::new(2));
    same_error(&[0.0; 40], None, 2, KMeans::new(2).metric(Metric::Cosine));
    let factors = |factor| KMeans::new(2).scale(Scale::Factors([("column_0".to_owned(), factor)].into()));
    same_error(&[1e200; 40], None, 2, factors(1e200));
    same_error(&[1e-200; 40], None, 2, factors(1e-300));
    same_error(&[1e-200; 40], None, 2, KMeans::new(3));
    same_error(&[1.0; 40], Some(&[0.0; 20]), 2, KMeans::new(3));
    same_error(&[1.0; 40], Some(&[1e30; 20]), 2, KMeans::new(3));
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let error =
        |make: fn(usize) -> Worker| fit(&KMeans::new(1), &mut Here::new(2, make), Wanted::Nothing).unwrap_err().to_string();
    let widths = error(|part| Worker::new(OwnedRows::new(vec![1.0f64; 12], part + 1)).unwrap());
    assert!(widths.starts_with("parts: expected the columns of part 0"), "{widths}");
    let types = error(|part| match part {
        0 => Worker::new(OwnedRows::new(vec![1.0f64; 12], 1)).unwrap(),
        _ => Worker::new(OwnedRows::new(vec![1.0f32; 12], 1)).unwrap(),
    });
    assert!(types.contains("float64 with no weights, got") && types.contains("float32"), "{types}");
    let none = fit(&KMeans::new(1), &mut Here::new(0, |_| unreachable!()), Wanted::Nothing).unwrap_err().to_string();
    assert_eq!(none, "parts: expected at least one part, got none");
    let ragged = error(|_| Worker::new(OwnedRows::new(vec![1.0f64; 12], 5)).unwrap());
    assert!(ragged.contains("expected"), "{ragged}");
}

#[test]
fn a_part_that_comes_back_with_other_rows_is_noticed() {
    let made = std::sync::atomic::AtomicUsize::new(0);
    let mut executor = Here::new(2, move |_| {
        let extra = usize::from(made.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 2);
        Worker::new(OwnedRows::new((0..50 + extra).map(|i| (i * i % 31) as f64).collect(), 1)).unwrap()
    });
    executor.loss = Some((6, 1, Loss::Before));
    let error = fit(&KMeans::new(5), &mut executor, Wanted::Nothing).unwrap_err().to_string();
    assert!(error.contains("expected the same rows whenever a part is made again"), "{error}");
}

#[test]
fn given_centroids_need_no_order_unless_rows_tie() {
    let x: Vec<f64> = (0..300).map(|i| f64::from(i * i % 101)).collect();
    let estimator = KMeans::new(3).init(Init::Given(vec![1.0, 40.0, 90.0])).row_order(RowOrder::Values);
    let whole = estimator.fit_features(&Features::from_rows(&x, 1).unwrap(), None).unwrap();
    let parted = fit(&estimator, &mut parts(&x, None, 1, &[0, 100, 300]), Wanted::Labels).unwrap();
    assert_eq!(hash_of(&parted), hash(&whole));
}

#[test]
fn rows_without_an_order_give_the_same_centroids() {
    let random = &mut Random(8);
    let estimator = |d: usize| KMeans::new(9).seed(d as u64).init(Init::KMeansParallel).row_order(RowOrder::Values);
    for (n, d, different) in [(9_000, 2, 1 << 40), (9_000, 1, 30), (6_000, 3, 4), (700, 2, 1 << 20)] {
        let x: Vec<f32> = (0..n * d).map(|_| (random.below(different) as f64 * 0.37 - 3.0) as f32).collect();
        let weights: Vec<f64> = (0..n).map(|_| random.below(3) as f64).collect();
        let whole =
            estimator(d).fit_features(&Features::from_rows(&x, d).unwrap(), Some(&Column::from_slice(&weights))).unwrap();
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|i| order.swap(i, random.below(i + 1)));
        let shuffled: Vec<f32> = order.iter().flat_map(|i| x[i * d..][..d].to_vec()).collect();
        let weights: Vec<f64> = order.iter().map(|i| weights[*i]).collect();
        let mut executor = parts(&shuffled, Some(&weights), d, &[0, n / 5, n]);
        let fitted = match fit(&estimator(d), &mut executor, Wanted::Nothing) {
            Ok(AnyFitted::F32(fitted)) => fitted,
            Ok(AnyFitted::F64(_)) => panic!("float64"),
            // Few distinct rows: candidates run out, or rows tie.
            Err(error) if different < 100 => {
                assert!(error.to_string().starts_with("row_order: expected \"given\" for rows in parts"), "{error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(fitted.model.centroids(), whole.model.centroids());
        assert_eq!(fitted.model.inertia().to_bits(), whole.model.inertia().to_bits());
    }
}

#[test]
fn bytes_that_are_no_request_are_answered_with_an_error() {
    let part = Worker::new(OwnedRows::new(vec![1.0f64; 12], 2)).unwrap();
    let answer = part.answer(b"no request");
    assert!(String::from_utf8_lossy(&answer).contains("10 other bytes"));
}
