//! `too_few="fewer"`: as many clusters as there are distinct rows, which are the centroids.

use std::collections::HashSet;

use polars_kmeans::InstructionSet;
use polars_kmeans::{
    Column, Engine, Features, History, Init, KMeans, KMeansError, Metric, NullPolicy, Restarts, RowOrder, Scale, SortBy,
    TooFew, Wanted,
};

use crate::data::{Random, hash, here_and_on_gpu, parts_of, predicted, rounds};

const INITS: [Init; 4] = [Init::KMeansPlusPlus, Init::Random, Init::KMeansParallel, Init::AfkMc2];

/// The distinct rows of positive weight, as they first appear.
fn distinct<T: Engine>(x: &[T], d: usize, weights: Option<&[f64]>) -> Vec<T> {
    let mut seen = HashSet::new();
    let rows = x.chunks_exact(d).enumerate();
    let rows = rows.filter(|(i, _)| weights.is_none_or(|w| w[*i] > 0.0));
    rows.filter(|(_, row)| seen.insert(row.iter().map(|x| (x.to_f64() + 0.0).to_bits()).collect::<Vec<_>>()))
        .flat_map(|(_, row)| row.iter().copied())
        .collect()
}

fn random_rows<T: Engine>(seed: u64) {
    for round in 0..rounds(80) as u64 {
        let random = &mut Random(seed + round);
        let (n, d, different) = (1 + random.below(400), 1 + random.below(5), 1 + random.below(9));
        let points: Vec<T> = (0..different * d).map(|_| T::from_f64(random.normal())).collect();
        let x: Vec<T> = (0..n).flat_map(|_| points[random.below(different) * d..][..d].to_vec()).collect();
        let mut weights: Vec<f64> = (0..n).map(|_| random.below(3) as f64).collect();
        weights[random.below(n)] = 1.0;
        let weights = (round % 2 == 0).then_some(weights);
        let column = weights.as_ref().map(|w| Column::from_slice(w));
        let features = Features::from_rows(&x, d).unwrap();
        let expected = distinct(&x, d, weights.as_deref());
        let m = expected.len() / d;
        let k = m + 1 + random.below(2 * n);
        let init = INITS[round as usize % INITS.len()].clone();
        let history = [History::Light, History::Full][random.below(2)];
        let fewer = KMeans::new(k).init(init.clone()).seed(round).history(history).too_few(TooFew::Fewer);
        let mut first = None;
        for estimator in here_and_on_gpu(&fewer) {
            let fit = estimator.fit_features(&features, column.as_ref()).unwrap();
            assert_eq!(fit.model.centroids(), expected, "{init:?}");
            assert_eq!((fit.model.inertia(), fit.model.n_iter(), fit.model.settings().k), (0.0, 1, m as u64));
            assert_eq!(fit.model.history()[0].inertia, (history == History::Full).then_some(0.0));
            assert_eq!(fit.model.settings().init, init.word());
            for (row, label) in x.chunks_exact(d).zip(&fit.labels) {
                assert!(weights.is_some() || fit.model.centroids()[*label as usize * d..][..d] == *row);
            }
            let labels = predicted(&fit.model, &features);
            assert_eq!(labels, fit.labels);
            assert_eq!(*first.get_or_insert(hash(&fit)), hash(&fit));
        }
        let parts = parts_of(&features, weights.as_deref(), &[0, n / 2, n]);
        let fit = fewer.fit_parts(parts, InstructionSet::detect(), Wanted::Distances).unwrap();
        assert_eq!(Some(hash(&fit)), first);
        assert_eq!(fit.distances.unwrap().second.is_some(), m > 1);
        // Enough rows: nothing changes.
        let enough = KMeans::new(m).init(init).seed(round);
        let plain = enough.fit_features(&features, column.as_ref());
        let fewer = enough.too_few(TooFew::Fewer).fit_features(&features, column.as_ref());
        if let Ok(plain) = plain {
            assert_eq!(hash(&fewer.unwrap()), hash(&plain));
        }
    }
}

in_both_types!(centroids_are_the_distinct_rows, T, seed in [1, 2] => random_rows::<T>(seed));

#[test]
fn given_centroids_sorted_clusters_and_rows_in_any_order() {
    let x = [3.0f64, -0.0, 0.0, 7.0, 3.0, 7.0, 7.0];
    let features = Features::from_rows(&x, 1).unwrap();
    let given = KMeans::new(5).init(Init::Given(vec![1.0, 2.0, 100.0, 3.0, 4.0])).too_few(TooFew::Fewer);
    assert_eq!(given.fit_features(&features, None).unwrap().model.centroids(), [3.0, 0.0, 7.0]);
    let sorted = given.clone().sort_by(SortBy::Feature("column_0".into())).fit_features(&features, None).unwrap();
    assert_eq!((sorted.model.centroids(), sorted.labels), (&[0.0, 3.0, 7.0][..], vec![1, 0, 0, 2, 1, 2, 2]));
    let by_size = given.clone().sort_by(SortBy::Size).fit_features(&features, None).unwrap();
    assert_eq!((by_size.model.centroids(), by_size.model.sizes()), (&[3.0, 0.0, 7.0][..], &[2, 2, 3][..]));
    for init in [given.clone(), given.init(Init::KMeansPlusPlus)] {
        let fit = init.row_order(RowOrder::Values).fit_features(&features, None).unwrap();
        assert_eq!((fit.model.centroids(), fit.labels), (&[0.0, 3.0, 7.0][..], vec![1, 0, 0, 2, 1, 2, 2]));
    }
    // Values that are too small beside the largest to be their own means are centroids as they are.
    let tiny = [1.0f32, 1e-30, 0.0, 1.0, 1.0, 1.0];
    let features = Features::from_rows(&tiny, 1).unwrap();
    let fit = KMeans::new(9).too_few(TooFew::Fewer).fit_features(&features, None).unwrap();
    assert_eq!((fit.model.centroids(), fit.labels), (&tiny[..3], vec![0, 1, 2, 0, 0, 0]));
}

#[test]
fn scaled_rows_of_which_there_are_too_few() {
    let x = [1.0f64, 10.0, 3.0, 30.0, 1.0, 10.0];
    let features = Features::from_rows(&x, 2).unwrap();
    for scale in [Scale::Standard, Scale::Robust] {
        for k in [3, 4, 9] {
            let fit = KMeans::new(k).scale(scale.clone()).too_few(TooFew::Fewer).fit_features(&features, None).unwrap();
            assert_eq!((fit.model.n_clusters(), fit.labels.clone()), (2, vec![0, 1, 0]));
            let shown = fit.model.centroids_in_units().unwrap();
            assert!(shown.iter().zip(&x).all(|(c, x)| (c - x).abs() < 1e-12 * x), "{shown:?}");
        }
    }
}

#[test]
fn directions_that_differ_by_rounding_are_one() {
    let random = &mut Random(3);
    let directions: [[f64; 3]; 3] = [[1.0, 0.3, -0.7], [-0.2, 0.9, 0.4], [0.1, 0.1, 0.11]];
    let x: Vec<f64> = (0..300).flat_map(|i| directions[i % 3].map(|x| x * (0.5 + random.unit()))).collect::<Vec<_>>();
    // One factor a row.
    let x: Vec<f64> = x.chunks_exact(3).enumerate().flat_map(|(i, row)| directions[i % 3].map(|x| x * row[0].abs())).collect();
    let features = Features::from_rows(&x, 3).unwrap();
    for k in [4, 40, 400] {
        let fewer = KMeans::new(k).metric(Metric::Cosine).seed(5).too_few(TooFew::Fewer);
        match fewer.fit_features(&features, None) {
            // Roundings may be enough for k clusters; then the fit is an ordinary one.
            Ok(fit) if fit.model.n_clusters() == k => assert!(k < 40),
            fit => {
                let fit = fit.unwrap();
                assert_eq!(fit.model.n_clusters(), 3);
                assert!((0..300).all(|i| fit.labels[i] == fit.labels[i % 3]));
            }
        }
    }
}

#[test]
fn no_rows_are_refused_as_ever() {
    let fewer = KMeans::new(2).too_few(TooFew::Fewer);
    let features = Features::from_rows(&[] as &[f32], 1).unwrap();
    assert_eq!(fewer.fit_features(&features, None).unwrap_err(), KMeansError::NoRows { skipped: None });
    let x = [f32::NAN, 1.0, 1.0];
    let features = Features::from_rows(&x, 1).unwrap();
    let skip = fewer.clone().null_policy(NullPolicy::Skip).n_init(Restarts::Count(3));
    let fit = skip.fit_features(&features, None).unwrap();
    assert_eq!((fit.model.centroids(), fit.expand().unwrap().get(0)), (&[1.0][..], None));
    let weights = [0.0; 3];
    let error = skip.fit_features(&features, Some(&Column::from_slice(&weights))).unwrap_err();
    assert_eq!(error, KMeansError::NoPositiveWeight);
}
