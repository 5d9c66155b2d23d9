//! Rows that arrive scaled or normalised: whole fits against the big-integer oracle, models that take raw rows, and bad input.

use polars_kmeans::exact::reference;
use polars_kmeans::{
    Chunk, Column, Device, Engine, ErrorKind, Features, Fitted, Init, KMeans, KMeansError, Metric, NullPolicy, Scale, Validity,
    Wanted,
};

use crate::data::{KINDS, Random, gpu, hash, here_and_on_gpu, on_gpu, rows};
use crate::exactness::check_transformed;
use crate::oracle::{self, Scaling, Start, Task};

/// Combinations of a metric, a scaling and a seeding.
const COMBINATIONS: usize = 2 * 4 * 6;

/// A case for the oracle: combination `case % COMBINATIONS`. Returns whether there was an answer to compare.
fn check<T: Engine>(kind: &str, case: usize) -> bool {
    let random = &mut Random(600_000 + case as u64);
    let (cosine, scaling, seeding) = (case % 2 == 1, case / 2 % 4, case / 8 % 6);
    let d = if seeding == 5 { 1 } else { 1 + random.below(12) };
    // One feature has two directions.
    let (n, k) = (1 + random.below(150), 1 + random.below(if cosine && d == 1 { 2 } else { 9 }));
    let x: Vec<T> = rows(kind, n, d, random);
    let table: Vec<Vec<T>> = x.chunks_exact(d).map(<[T]>::to_vec).collect();
    let weights = match random.below(3) {
        0 => Some((0..n).map(|_| [0.0, 1.0, 2.5][random.below(3)]).collect::<Vec<f64>>()),
        _ => None,
    };
    if weights.as_ref().is_some_and(|w| w.iter().all(|w| *w == 0.0)) {
        return false;
    }
    let scaling = match scaling {
        0 => Scaling::None,
        1 => Scaling::Standard,
        2 => Scaling::Robust,
        _ => Scaling::Factors((0..d).map(|f| [0.5, 3.7, 1e-3, 1.0][f % 4]).collect()),
    };
    let start = match seeding {
        // One of them twice: this makes an empty cluster.
        0 => Start::Given((0..k).map(|j| table[if j == 0 { 0 } else { random.below(n) }].clone()).collect()),
        1 => Start::PlusPlus,
        2 => Start::Random,
        3 => Start::Parallel {
            oversampling: [0.1, 0.5, 2.0][random.below(3)],
            rounds: [1, 2, 5][random.below(3)],
            by_values: false,
        },
        4 => Start::AfkMc2 { chain: [1, 2, 7, 40][random.below(4)] },
        _ => Start::Optimal,
    };
    let restarts = if matches!(start, Start::Given(_) | Start::Optimal) { 1 } else { 1 + random.below(2) as u32 };
    let sample = (seeding != 0 && random.below(3) == 0).then(|| 1 + random.below(n));
    let (max_iter, tol, seed) = (1 + random.below(12), [0.0, 1e-4][random.below(2)], random.next());
    let what = format!("{kind}, case {case}: n {n}, d {d}, k {k}, cosine: {cosine}, {scaling:?}, sample of {sample:?}");
    let plain = Task { weights, sample, restarts, max_iter, tol, seed, ..Task::new(table, k, start) };
    // Rows that are zero, also only after their scaling, have no direction.
    let scaled = oracle::transform(&plain, &scaling).0.rows;
    if cosine && scaled.iter().any(|row| row.iter().all(|x| x.to_f64() == 0.0)) {
        return false;
    }
    check_transformed(&Task { cosine, ..plain }, &scaling, &what)
}

/// Checks each combination with several kinds of data. Each must have an answer.
fn check_combinations<T: Engine>(kinds: &[&str], first: usize) {
    let mut answered = [0; COMBINATIONS];
    for case in 0..9 * COMBINATIONS {
        let kind = kinds[(case + case / COMBINATIONS) % kinds.len()];
        answered[case % COMBINATIONS] += u32::from(check::<T>(kind, first + case));
    }
    println!("{} fits compared", answered.iter().sum::<u32>());
    assert!(answered.iter().all(|count| *count > 0), "{answered:?}");
}

// In float64 the squares of the smallest of the denormal columns vanish.
in_both_types!(fits_are_the_oracles, T, first in [0, 1_000 * COMBINATIONS] => {
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| first == 0 || *kind != "denormals").collect();
    check_combinations::<T>(&kinds, first);
});

/// The options that a row can arrive by.
fn ways() -> [KMeans; 5] {
    let some = |factor: f64| Scale::Factors([("column_1".to_owned(), factor), ("column_3".to_owned(), 0.25)].into());
    let base = KMeans::new(7).seed(3).tol(0.0).device(Device::Cpu);
    [
        base.clone().metric(Metric::Cosine),
        base.clone().scale(Scale::Standard),
        base.clone().scale(Scale::Robust),
        base.clone().scale(some(1e3)),
        base.metric(Metric::Cosine).scale(some(0.1)),
    ]
}

/// The rows as they arrive, by the oracle and the factors of a fit.
fn arrived<T: Engine>(x: &[T], d: usize, estimator: &KMeans, fit: &Fitted<T>) -> Vec<T> {
    let factors = fit.model.scaling().map_or(Scaling::None, |scaling| Scaling::Factors(scaling.factors().to_vec()));
    let cosine = *estimator == estimator.clone().metric(Metric::Cosine);
    let table = x.chunks_exact(d).map(<[T]>::to_vec).collect();
    oracle::transform(&Task { cosine, ..Task::new(table, 7, Start::PlusPlus) }, &factors).0.rows.concat()
}

fn models_take_raw_rows_of<T: Engine>() {
    let d = 5;
    let random = &mut Random(8);
    let x: Vec<T> = rows("blobs", 3_000, d, random);
    let new: Vec<T> = rows("uniform", 700, d, random);
    let (features, new_features) = (Features::from_rows(&x, d).unwrap(), Features::from_rows(&new, d).unwrap());
    for estimator in ways() {
        let fit = estimator.fit_with(&features, None, Wanted::Distances).unwrap();
        let model = &fit.model;
        // Predictions of the raw rows are those of the rows that were scaled by hand, whole and in morsels.
        assert_eq!(model.predict(&features).unwrap().values(), fit.labels);
        assert_eq!(model.predict_distances(&features).unwrap(), fit.clone().into_predictions().unwrap().unwrap());
        let by_hand = arrived(&new, d, &estimator, &fit);
        let labels: Vec<u32> = by_hand.chunks_exact(d).map(|x| reference::nearest(x, model.centroids()).label).collect();
        assert_eq!(model.predict(&new_features).unwrap().values(), labels);
        assert_eq!(model.predict(&new_features.slice(100..300).unwrap()).unwrap().values(), &labels[100..300]);
        let distances = model.transform(&new_features, false).unwrap();
        for (x, found) in by_hand.chunks_exact(d).zip(distances.chunks_exact(7)) {
            for (c, found) in model.centroids().chunks_exact(d).zip(found) {
                assert_eq!(*found, reference::distance(x, c).sqrt());
            }
        }
        assert_eq!(-model.score(&features, None).unwrap(), model.inertia(), "{estimator:?}");
        if let Some(device) = gpu() {
            assert_eq!(model.on(device).predict(&new_features).unwrap().values(), labels);
            assert_eq!(model.on(device).transform(&new_features, false).unwrap(), distances);
            assert_eq!(model.on(device).predict_distances(&new_features), model.predict_distances(&new_features));
            assert_eq!(model.on(device).score(&new_features, None), model.score(&new_features, None));
        }
    }
}

#[test]
fn models_take_raw_rows() {
    models_take_raw_rows_of::<f32>();
    models_take_raw_rows_of::<f64>();
}

#[test]
fn scaled_fits_are_fits_of_scaled_rows() {
    let d = 5;
    let x: Vec<f32> = rows("blobs", 3_000, d, &mut Random(9));
    let features = Features::from_rows(&x, d).unwrap();
    for estimator in &ways()[1..4] {
        let fit = estimator.fit_features(&features, None).unwrap();
        let by_hand = arrived(&x, d, estimator, &fit);
        let plain = estimator.clone().scale(Scale::None);
        let expected = plain.fit_features(&Features::from_rows(&by_hand, d).unwrap(), None).unwrap();
        assert_eq!(hash(&fit), hash(&expected));
        // Centroids in the units of the columns are near the means of the raw rows.
        let centroids = fit.model.centroids_in_units().unwrap();
        for (j, c) in centroids.chunks_exact(d).enumerate() {
            let own: Vec<&[f32]> =
                x.chunks_exact(d).zip(&fit.labels).filter(|(_, l)| **l == j as u32).map(|(x, _)| x).collect();
            for f in 0..d {
                let mean = own.iter().map(|x| f64::from(x[f])).sum::<f64>() / own.len() as f64;
                assert!((mean - f64::from(c[f])).abs() < 1e-4 * mean.abs().max(1.0), "{mean} {}", c[f]);
            }
        }
        // They start the same fit again: they are given in these units.
        let again = estimator.clone().init(Init::Given(centroids.iter().map(|c| f64::from(*c)).collect()));
        let again = again.fit_features(&features, None).unwrap();
        assert!((again.model.inertia() / fit.model.inertia() - 1.0).abs() < 1e-3);
    }
}

#[test]
fn columns_of_one_value_keep_it() {
    let x = [1.0, 7.0, 2.0, 7.0, 9.0, 7.0, 10.0, 7.0];
    for scale in [Scale::Standard, Scale::Robust] {
        let fit = KMeans::new(2).scale(scale).fit_features(&Features::from_rows(&x, 2).unwrap(), None).unwrap();
        assert_eq!(fit.model.scaling().unwrap().factors()[1], 1.0);
        assert_eq!(fit.model.centroids()[1], 7.0);
    }
}

/// Rows of zeros, of which one is null too.
#[test]
fn rows_without_a_direction_count_as_null() {
    let x = [1.0, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0, -0.0, 0.0, 5.0, f64::NAN, 1.0, 3.0, 3.0];
    let valid = [0b1111_0111u8];
    let whole = Features::from_rows(&x, 2).unwrap();
    let columns: Vec<Vec<f64>> = (0..2).map(|f| x.iter().skip(f).step_by(2).copied().collect()).collect();
    let column = |values| Column::new([Chunk::new(values, Some(Validity::new(&valid, 0))).unwrap()]);
    let nulls = Features::new(columns.iter().map(|values| column(&values[..])).collect()).unwrap();
    let cosine = KMeans::new(2).metric(Metric::Cosine);
    for estimator in [Some(cosine.clone().device(Device::Cpu)), on_gpu(&cosine)].into_iter().flatten() {
        // Nulls and values that are not finite come first.
        let error = estimator.fit_features(&whole, None).unwrap_err();
        assert!(matches!(&error, KMeansError::NotFinite { nans: 1, .. }), "{error}");
        let error = estimator.fit_features(&whole.slice(0..5).unwrap(), None).unwrap_err();
        assert_eq!(error, KMeansError::ZeroRows { count: 2 });
        assert_eq!((error.kind(), error.to_string().contains("2 rows of zeros")), (ErrorKind::InvalidData, true));
        let skip = estimator.clone().null_policy(NullPolicy::Skip);
        for features in [&whole, &nulls] {
            let fit = skip.fit_features(features, None).unwrap();
            let labels: Vec<_> = fit.expand().unwrap().iter().collect();
            assert_eq!(labels.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, false, true, false, true]);
            assert_eq!(labels[2], labels[6]);
            let predicted = fit.model.predict(features).unwrap();
            assert!(predicted.iter().eq(labels));
            assert!(fit.model.transform(features, false).unwrap()[2].is_nan());
        }
        // All rows are zero.
        let zeros = [0.0; 6];
        let error = skip.fit_features(&Features::from_rows(&zeros, 2).unwrap(), None).unwrap_err();
        assert_eq!(error, KMeansError::NoRows { skipped: Some(3) });
    }
}

#[test]
fn equal_directions_are_too_few() {
    // Ten multiples of two directions: lone rows and their centroids differ by rounding.
    let x: Vec<f64> = (1..21)
        .flat_map(|i| if i % 2 == 0 { [0.3, 0.7, 0.1] } else { [0.2, -0.9, 0.4] }.map(|v| v * f64::from(1 << (i % 7))))
        .collect();
    let features = Features::from_rows(&x, 3).unwrap();
    let cosine = KMeans::new(3).metric(Metric::Cosine);
    for estimator in here_and_on_gpu(&cosine) {
        assert!(matches!(estimator.fit_features(&features, None), Err(KMeansError::TooFewDistinct { k: 3, rows: 20 })));
        let given = estimator.clone().init(Init::Given(vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]));
        assert!(matches!(given.fit_features(&features, None), Err(KMeansError::TooFewDistinct { k: 3, rows: 20 })));
    }
}

fn refused<T: Engine>(estimator: &KMeans, x: &[T]) -> String {
    let features = Features::from_rows(x, 2).unwrap().with_names(vec!["a".to_owned(), "b".to_owned()]).unwrap();
    let error = estimator.fit_features(&features, None).unwrap_err().to_string();
    if let Some(estimator) = on_gpu(estimator) {
        assert_eq!(estimator.fit_features(&features, None).unwrap_err().to_string(), error);
    }
    error
}

#[test]
fn scales_that_cannot_be_are_refused() {
    let by = |name: &str, factor: f64| Scale::Factors([(name.to_owned(), factor)].into());
    let x = [1.0f32, 2.0, 3.0, 1e30, 5.0, -6.0];
    let two = KMeans::new(2);
    let overflows =
        "scale: expected a factor that keeps the values of column \"b\" in range, got 1e10, with which they overflow";
    assert_eq!(refused(&two.clone().scale(by("b", 1e10)), &x), overflows);
    assert_eq!(refused(&two.clone().scale(by("b", 1e10)).null_policy(NullPolicy::Skip), &x), overflows);
    let vanishes = "scale: expected a factor that keeps the values of column \"a\" in range, got 1e-60, with which they vanish";
    assert_eq!(refused(&two.clone().scale(by("a", 1e-60)), &x), vanishes);
    assert_eq!(refused(&two.clone().scale(by("a", 1e-60)).metric(Metric::Cosine), &x), vanishes);
    let unknown = "scale: expected factors of the columns \"a\", \"b\", got one of \"c\"";
    assert_eq!(refused(&two.clone().scale(by("c", 2.0)), &x), unknown);
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = refused(&two.clone().scale(by("a", factor)), &x);
        assert!(
            error.starts_with("scale: expected \"standard\", \"robust\" or a positive finite factor by column, got"),
            "{error}"
        );
    }
    // What the factors are computed from is checked as any values are.
    let wide = [1.0, 1e200, 2.0, -1e200, 3.0, 0.0];
    assert!(refused(&two.clone().scale(Scale::Standard), &wide).starts_with("column \"b\": expected a largest magnitude"));
    assert!(refused(&two.clone().scale(Scale::Robust), &[1.0, f64::NAN]).contains("NaNs: 1"));
    let far = [f64::MAX, 0.0, -f64::MAX, 1.0, f64::MAX, 2.0, -f64::MAX, 3.0];
    assert!(refused(&two.clone().scale(Scale::Robust), &far).starts_with("the distance between the quartiles of column \"a\""));
    // Starting centroids arrive too.
    let given = |values: [f64; 4]| two.clone().init(Init::Given(values.to_vec()));
    let zero = refused(&given([1.0, 1.0, 0.0, 0.0]).metric(Metric::Cosine), &x);
    assert_eq!(zero, "init: expected starting centroids with a direction (metric=\"cosine\"), got zeros in centroid 1");
    let large = refused(&given([1.0, 1.0, 0.0, 1e38]).scale(by("b", 100.0)), &[1.0f32, 2.0, 3.0, 4.0]);
    assert_eq!(
        large,
        "init: expected starting centroids that are finite as Float32 after their scaling, got 1e38 in column \"b\""
    );
}

#[test]
fn a_row_that_overflows_later_has_no_answer() {
    let x = [1.0f32, 2.0, 30.0, 40.0];
    let fit = KMeans::new(2).scale(Scale::Factors([("column_0".to_owned(), 1e10)].into()));
    let model = fit.fit_features(&Features::from_rows(&x, 1).unwrap(), None).unwrap().model;
    let later = [1.0f32, 1e35, 40.0];
    let labels: Vec<bool> =
        model.predict(&Features::from_rows(&later, 1).unwrap()).unwrap().iter().map(|l| l.is_some()).collect();
    assert_eq!(labels, [true, false, true]);
}
