//! Several fits of the same rows, which are prepared once, have the bits of single fits.

use polars_kmeans::{
    Column, Engine, Features, Init, KMeans, KMeansError, Metric, NullPolicy, Restarts, RowOrder, Scale, SortBy, TooFew,
};

use crate::data::{KINDS, Random, hash, here_and_on_gpu, rounds, rows};

fn estimator(round: u64, random: &mut Random) -> KMeans {
    let estimator = KMeans::new(1).seed(round).max_iter(1 + random.below(9) as u32);
    let estimator = match round % 7 {
        0 => estimator.init(Init::Random).n_init(Restarts::Count(2)),
        1 => estimator.init(Init::KMeansParallel),
        2 => estimator.metric(Metric::Cosine),
        3 => estimator.scale(Scale::Standard),
        4 => estimator.row_order(RowOrder::Values),
        5 => estimator.sort_by(SortBy::Size),
        _ => estimator.init(Init::AfkMc2),
    };
    let estimator = if random.below(2) == 0 { estimator.too_few(TooFew::Fewer) } else { estimator };
    estimator.null_policy(NullPolicy::Skip)
}

fn same_bits<T: Engine>(seed: u64) {
    let mut failed = 0;
    for round in 0..rounds(60) as u64 {
        let random = &mut Random(seed + round);
        let (n, d) = (1 + random.below(1_200), 1 + random.below(14));
        let mut x: Vec<T> = rows(KINDS[round as usize % KINDS.len()], n, d, random);
        if round % 3 == 1 {
            x[random.below(n * d)] = T::from_f64(f64::NAN);
        }
        let weights: Vec<f64> = (0..n).map(|_| random.below(3) as f64).collect();
        let weights = (round % 4 == 0).then(|| Column::from_slice(&weights));
        let features = Features::from_rows(&x, d).unwrap();
        let estimator = estimator(round, random);
        let k: Vec<usize> = (0..1 + random.below(5)).map(|_| 1 + random.below(40)).collect();
        for estimator in here_and_on_gpu(&estimator) {
            let single = |k: usize| {
                let mut one = estimator.clone();
                one.set("k", Some(&(k as i128).into())).unwrap();
                one.fit_features(&features, weights.as_ref())
            };
            match estimator.fit_each(&k, &features, weights.as_ref()) {
                Ok(fits) => {
                    assert_eq!(fits.len(), k.len());
                    for (fit, k) in fits.into_iter().zip(&k) {
                        match (fit, single(*k)) {
                            (Ok(mut fit), Ok(single)) => {
                                assert_eq!(fit.model.settings(), single.model.settings());
                                assert!(fit.labels.is_empty());
                                fit.labels = single.labels.clone();
                                assert_eq!(hash(&fit), hash(&single));
                            }
                            (fit, single) => {
                                assert_eq!(fit.err(), single.err());
                                failed += 1;
                            }
                        }
                    }
                }
                // What is wrong with the rows is wrong for all.
                Err(error) => assert!(k.iter().all(|k| single(*k).unwrap_err() == error), "{error}"),
            }
        }
    }
    assert!(failed > 0);
}

in_both_types!(as_single_fits, T, seed in [1, 2] => same_bits::<T>(seed));

#[test]
fn a_number_that_is_none_is_refused_at_once() {
    let x = [1.0f32, 2.0];
    let features = Features::from_rows(&x, 1).unwrap();
    let error = KMeans::new(1).fit_each(&[1, 0], &features, None).unwrap_err();
    assert!(matches!(error, KMeansError::InvalidOption { option: "k", .. }));
    assert!(KMeans::new(1).fit_each(&[], &features, None).unwrap().is_empty());
}

/// Also if there is no other number.
#[test]
fn a_number_that_is_too_large_has_its_error_in_the_list() {
    let features = Features::from_columns([&[1.0, 2.0][..]]).unwrap();
    for k in [&[3][..], &[2, 3]] {
        let last = KMeans::new(1).fit_each(k, &features, None).unwrap().pop().unwrap();
        assert_eq!(last.err(), Some(KMeansError::TooFewDistinct { k: 3, rows: 2 }));
    }
}
