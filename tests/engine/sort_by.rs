//! `sort_by` numbers clusters and changes nothing else. Labels are those of a prediction, also where rows are equally near to two
//! centroids.

use polars_kmeans::InstructionSet;
use polars_kmeans::{
    Column, Engine, Features, Fitted, History, Init, KMeans, KMeansError, Metric, Restarts, RowOrder, Scale, SortBy, Wanted,
};

use crate::data::{KINDS, Random, hash, here_and_on_gpu, parts_of, predicted, rounds, rows};

/// Squared distances of a row to the centroids, as the contract defines them.
fn distances<T: Engine>(row: &[T], centroids: &[T]) -> Vec<f64> {
    let distance = |centroid: &[T]| {
        row.iter().zip(centroid).fold(0.0f64, |s, (x, c)| {
            let t = x.to_f64() - c.to_f64();
            t.mul_add(t, s)
        })
    };
    centroids.chunks_exact(row.len()).map(distance).collect()
}

/// The numbers of clusters after a sort by the keys, from their numbers before. Equal keys keep their order.
fn ranks(keys: &[f64]) -> Vec<u32> {
    let before = |i: usize, j: usize| keys[j] < keys[i] || (keys[j] == keys[i] && j < i);
    (0..keys.len()).map(|i| (0..keys.len()).filter(|&j| before(i, j)).count() as u32).collect()
}

/// Checks a fit with numbered clusters against the same fit without. Returns how many rows are equally near to two centroids that have
/// changed places.
fn check<T: Engine>(x: &[T], d: usize, sorted: &Fitted<T>, plain: &Fitted<T>, weights: Option<&[f64]>) -> usize {
    let (k, model) = (plain.model.n_clusters(), &sorted.model);
    let keys: Vec<f64> = match model.settings().sort_by.as_deref() {
        Some("size") => plain.model.sizes().iter().map(|size| *size as f64).collect(),
        Some(name) => {
            let f = (0..d).find(|&f| plain.model.names().get(f).as_deref() == Some(name)).unwrap();
            plain.model.centroids().chunks_exact(d).map(|c| c[f].to_f64()).collect()
        }
        None => unreachable!("these fits number their clusters"),
    };
    let ranks = ranks(&keys);
    for j in 0..k {
        let rank = ranks[j] as usize;
        assert_eq!(model.centroids()[rank * d..][..d], plain.model.centroids()[j * d..][..d]);
    }
    let parts = |fit: &Fitted<T>| (fit.model.n_iter(), fit.model.history().iter().map(|row| row.changed).collect::<Vec<_>>());
    assert_eq!(parts(sorted), parts(plain));
    assert_eq!(sorted.relocated, plain.relocated);
    let (mut swapped, mut sizes) = (0, vec![0u64; k]);
    for (i, row) in x.chunks_exact(d).enumerate() {
        let s = distances(row, model.centroids());
        let least = s.iter().copied().fold(f64::INFINITY, f64::min);
        let label = s.iter().position(|s| *s == least).unwrap();
        assert_eq!(sorted.labels[i] as usize, label, "row {i}");
        sizes[label] += u64::from(weights.is_none_or(|w| w[i] > 0.0));
        swapped += usize::from(ranks[plain.labels[i] as usize] as usize != label);
    }
    assert_eq!(model.sizes(), sizes);
    swapped
}

fn estimator(round: u64, d: usize, k: usize, random: &mut Random) -> KMeans {
    let estimator = KMeans::new(k).seed(round).max_iter(1 + random.below(12) as u32);
    let estimator = estimator.tol([0.0, 1e-4][random.below(2)]).history([History::Light, History::Full][random.below(2)]);
    match random.below(4) {
        0 => estimator.init(Init::Random).n_init(Restarts::Count(1 + random.below(4) as u32)),
        1 => estimator.init(Init::KMeansParallel),
        2 => estimator.n_init(Restarts::Count(3)),
        _ => estimator.sort_by(SortBy::Feature(format!("column_{}", random.below(d)))),
    }
}

fn every_kind<T: Engine>(seed: u64) {
    let mut swapped = 0;
    for round in 0..rounds(120) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (n, d, k) = (20 + random.below(3_000), 1 + random.below(if round % 5 == 0 { 40 } else { 6 }), 1 + random.below(12));
        let x: Vec<T> = rows(kind, n, d, random);
        let weights: Vec<f64> = (0..n).map(|_| random.below(3) as f64).collect();
        let weights = (round % 3 == 0).then_some(weights);
        let column = weights.as_ref().map(|w| Column::from_slice(w));
        let features = Features::from_rows(&x, d).unwrap();
        let plain = estimator(round, d, k, random);
        let by = if random.below(2) == 0 { SortBy::Size } else { SortBy::Feature(format!("column_{}", random.below(d))) };
        let (plain, sorted) = (plain.clone().sort_by(SortBy::None), plain.sort_by(by));
        let expected = match plain.fit_features(&features, column.as_ref()) {
            Ok(fit) => fit,
            Err(error) => {
                assert_eq!(sorted.fit_features(&features, column.as_ref()).err(), Some(error));
                continue;
            }
        };
        let mut first = None;
        for sorted in here_and_on_gpu(&sorted) {
            let fit = sorted.fit_features(&features, column.as_ref()).unwrap();
            swapped += check(&x, d, &fit, &expected, weights.as_deref());
            assert_eq!(*first.get_or_insert(hash(&fit)), hash(&fit), "{kind} on {}", fit.choice.place);
            let labels = predicted(&fit.model, &features);
            assert_eq!(labels, fit.labels);
        }
        // In parts, and with distances.
        let parts = parts_of(&features, weights.as_deref(), &[0, n / 3, n]);
        let fit = sorted.fit_parts(parts, InstructionSet::detect(), Wanted::Distances).unwrap();
        assert_eq!(Some(hash(&fit)), first, "{kind} in parts");
        let nearest = fit.distances.unwrap().nearest;
        for ((row, label), nearest) in x.chunks_exact(d).zip(&fit.labels).zip(&nearest) {
            assert_eq!(distances(row, fit.model.centroids())[*label as usize].sqrt(), *nearest);
        }
    }
    // Without the last assign, these rows would have other labels than a prediction gives them.
    assert!(swapped > 100, "{swapped} rows");
}

in_both_types!(labels_are_those_of_a_prediction, T, seed in [1, 2] => every_kind::<T>(seed));

/// Two clusters of one row each, and a row halfway between: whichever is first has two rows.
#[test]
fn a_row_between_two_centroids_goes_to_the_smaller_number() {
    let x = [0.0f64, 2.0, 1.0, 9.0, 9.5];
    let features = Features::from_rows(&x, 1).unwrap();
    let start = KMeans::new(3).init(Init::Given(vec![2.0, 0.0, 9.25])).tol(1e9).max_iter(1);
    let plain = start.fit_features(&features, None).unwrap();
    let fit = start.clone().sort_by(SortBy::Feature("column_0".into())).fit_features(&features, None).unwrap();
    assert_eq!(plain.model.centroids(), [1.5, 0.0, 9.25]);
    assert_eq!((fit.model.centroids(), fit.model.sizes()), (&[0.0, 1.5, 9.25][..], &[1, 2, 2][..]));

    let x = [0.0f64, 4.0, 2.0, 2.0, 1.0];
    let features = Features::from_rows(&x, 1).unwrap();
    let halfway = KMeans::new(2).init(Init::Given(vec![3.0, 1.0])).tol(1e9).max_iter(1);
    let plain = halfway.fit_features(&features, None).unwrap();
    let fit = halfway.clone().sort_by(SortBy::Feature("column_0".into())).fit_features(&features, None).unwrap();
    check(&x, 1, &fit, &plain, None);
}

#[test]
fn equal_centroids_keep_their_order() {
    // Given centroids that are equal: the smaller number gets every row, and one iteration leaves the other with one that moved there.
    let x = [1.0f32, 1.0, 1.0, 5.0];
    let features = Features::from_rows(&x, 1).unwrap();
    for by in [SortBy::Size, SortBy::Feature("column_0".into())] {
        let fit = KMeans::new(2).init(Init::Given(vec![5.0, 1.0])).sort_by(by.clone()).fit_features(&features, None).unwrap();
        let expected = if by == SortBy::Size { (vec![5.0, 1.0], vec![1, 3]) } else { (vec![1.0, 5.0], vec![3, 1]) };
        assert_eq!((fit.model.centroids().to_vec(), fit.model.sizes().to_vec()), expected);
    }
}

#[test]
fn spaces_and_orders_of_rows() {
    let random = &mut Random(7);
    let x: Vec<f64> = rows("blobs", 1_500, 3, random);
    let features = Features::from_rows(&x, 3).unwrap();
    let scaled = KMeans::new(6).seed(3).scale(Scale::Factors([("column_1".to_owned(), 0.3)].into()));
    let fit = scaled.sort_by(SortBy::Feature("column_1".into())).fit_features(&features, None).unwrap();
    let shown = fit.model.centroids_in_units().unwrap();
    assert!(shown.chunks_exact(3).is_sorted_by_key(|c| c[1]), "{shown:?}");
    let cosine = KMeans::new(6).seed(3).metric(Metric::Cosine).sort_by(SortBy::Feature("column_2".into()));
    let fit = cosine.fit_features(&features, None).unwrap();
    assert!(fit.model.centroids().chunks_exact(3).is_sorted_by_key(|c| c[2]));
    let labels = predicted(&fit.model, &features);
    assert_eq!(labels, fit.labels);
    let by_values = KMeans::new(6).seed(3).row_order(RowOrder::Values).sort_by(SortBy::Size);
    let reversed: Vec<f64> = x.chunks_exact(3).rev().flatten().copied().collect();
    let (one, other) = (
        by_values.fit_features(&features, None).unwrap(),
        by_values.fit_features(&Features::from_rows(&reversed, 3).unwrap(), None).unwrap(),
    );
    assert_eq!(one.model.centroids(), other.model.centroids());
    assert!(one.labels.iter().eq(other.labels.iter().rev()));
    assert!(one.model.sizes().is_sorted());
}

#[test]
fn an_unknown_feature_is_refused() {
    let x = [1.0f32, 2.0, 3.0, 4.0];
    let features = Features::from_rows(&x, 2).unwrap();
    let error = KMeans::new(1).sort_by(SortBy::Feature("z".into())).fit_features(&features, None).unwrap_err();
    assert_eq!(error.to_string(), "sort_by: expected \"size\" or the name of a feature (column_0, column_1), got \"z\"");
    let error = KMeans::new(1).sort_by(SortBy::Feature("size".into())).fit_features(&features, None).unwrap_err();
    assert!(matches!(error, KMeansError::InvalidOption { option: "sort_by", .. }));
}
