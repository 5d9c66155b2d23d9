//! The distances that a fit gives of its rows are those that its model predicts.

use polars_kmeans::InstructionSet;
use polars_kmeans::{Column, Engine, Features, Init, KMeans, KMeansError, NullPolicy, Restarts, Wanted};

use crate::data::{Random, hash, on_gpu, parts_of, rows};

/// Rows, features, clusters: both filters, few and many clusters, one cluster, and more than one task.
const SHAPES: [[usize; 3]; 7] =
    [[40_000, 2, 30], [3_000, 3, 1], [2_000, 4, 5], [3_000, 20, 40], [900, 70, 3], [500, 9, 1], [60, 2, 60]];

/// Compares a fit with distances to the predictions of its model. Rows that the fit left out have neither.
fn check<T: Engine>(
    estimator: &KMeans,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
    kept: &[bool],
    what: &str,
) {
    let fitted = estimator.fit_with(features, weights, Wanted::Distances).unwrap();
    let alone = estimator.fit_features(features, weights).unwrap();
    assert_eq!((hash(&fitted), alone.distances.is_none()), (hash(&alone), true), "{what}");
    let only_model = estimator.fit_with(features, weights, Wanted::Nothing).unwrap();
    assert_eq!((only_model.model.centroids(), only_model.labels.len()), (fitted.model.centroids(), 0), "{what}");
    let predicted = fitted.model.predict_distances(features).unwrap();
    let model = fitted.model.clone();
    let found = fitted.into_predictions().unwrap().unwrap();
    assert_eq!(found.len(), kept.len());
    for (i, kept) in kept.iter().enumerate() {
        let expected = if *kept { predicted.get(i) } else { None };
        assert!(expected.is_some() == *kept && found.get(i) == expected, "{what}, row {i}: {:?}, {expected:?}", found.get(i));
    }
    if let Some(estimator) = on_gpu(estimator) {
        let on_gpu = estimator.fit_with(features, weights, Wanted::Distances).unwrap();
        assert_eq!(on_gpu.model.centroids(), model.centroids(), "{what}");
        assert_eq!(on_gpu.into_predictions().unwrap().unwrap(), found, "{what} on the GPU");
    }
}

fn fits<T: Engine>() {
    let random = &mut Random(41);
    for [n, d, k] in SHAPES {
        let mut x: Vec<T> = rows("blobs", n, d, random);
        let mut weights: Vec<f64> = (0..n).map(|i| (i % 4) as f64).collect();
        for init in [Init::KMeansPlusPlus, Init::Random] {
            let estimator = KMeans::new(k).init(init).n_init(Restarts::Count(3)).max_iter(3).seed(9);
            let what = format!("{n} x {d} into {k}, {}", T::NAME);
            check(&estimator, &Features::from_rows(&x, d).unwrap(), None, &vec![true; n], &what);
            if k == n {
                continue;
            }
            let column = Column::from_slice(&weights);
            check(
                &estimator,
                &Features::from_rows(&x, d).unwrap(),
                Some(&column),
                &vec![true; n],
                &format!("{what}, weighted"),
            );
        }
        if k == n {
            continue;
        }
        // Some rows have a value, others a weight that is not finite.
        let mut kept = vec![true; n];
        for i in (0..n).filter(|i| i % 11 == 3 || i % 500 < 70) {
            kept[i] = false;
            if i % 2 == 0 { x[i * d + i % d] = T::from_f64(f64::NAN) } else { weights[i] = f64::INFINITY }
        }
        let estimator = KMeans::new(k).max_iter(3).null_policy(NullPolicy::Skip).seed(4);
        let (features, column) = (Features::from_rows(&x, d).unwrap(), Column::from_slice(&weights));
        check(&estimator, &features, Some(&column), &kept, &format!("{n} x {d} into {k}, {}, gaps", T::NAME));
    }
}

#[test]
fn a_fits_distances_are_its_models() {
    fits::<f32>();
    fits::<f64>();
}

#[test]
fn several_parts_give_the_distances_of_one() {
    let random = &mut Random(5);
    for k in [1, 25] {
        let x: Vec<f32> = rows("blobs", 5_000, 3, random);
        let features = Features::from_rows(&x, 3).unwrap();
        let estimator = KMeans::new(k).max_iter(4).seed(3);
        let parts = parts_of(&features, None, &[0, 1, 700, 700, 5_000]);
        let parts = estimator.fit_parts(parts, InstructionSet::detect(), Wanted::Distances).unwrap();
        let whole = estimator.fit_with(&features, None, Wanted::Distances).unwrap();
        assert_eq!(hash(&parts), hash(&whole));
        assert_eq!(parts.into_predictions().unwrap(), whole.into_predictions().unwrap());
    }
}

#[test]
fn too_few_distinct_rows_have_no_distances() {
    let features = Features::from_columns([&[1.0f64; 9][..]]).unwrap();
    let error = KMeans::new(2).fit_with(&features, None, Wanted::Distances).unwrap_err();
    assert!(matches!(error, KMeansError::TooFewDistinct { .. }), "{error}");
}

/// A score of more rows than a thread takes at a time, with rows that have no part in it.
#[test]
fn a_score_leaves_out_the_rows_that_a_fit_leaves_out() {
    let (n, d, k) = (50_000, 3, 12);
    let mut x: Vec<f64> = rows("blobs", n, d, &mut Random(8));
    let weights: Vec<f64> = (0..n).map(|i| (i % 3) as f64 * 0.7).collect();
    (0..n).filter(|i| i % 13 == 5).for_each(|i| x[i * d] = f64::NAN);
    let (features, weights) = (Features::from_rows(&x, d).unwrap(), Column::from_slice(&weights));
    for weights in [None, Some(&weights)] {
        let estimator = KMeans::new(k).max_iter(5).null_policy(NullPolicy::Skip).seed(2);
        let model = estimator.fit_features(&features, weights).unwrap().model;
        let score = model.score(&features, weights).unwrap();
        assert!((score + model.inertia()).abs() <= 1e-12 * model.inertia(), "{score} for {}", model.inertia());
    }
    assert_eq!(
        KMeans::new(1)
            .fit_features(&Features::from_rows(&x[..d], d).unwrap(), None)
            .unwrap()
            .model
            .score(&Features::from_rows(&[0.0f64; 0], d).unwrap(), None)
            .unwrap(),
        0.0
    );
}
