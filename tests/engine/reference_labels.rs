//! The labels that benches check fits with: they are those of the naive search, and a wrong label does not pass.

use polars_kmeans::backend::cuda::reference_labels;
use polars_kmeans::exact::reference;
use polars_kmeans::{Engine, Init, KMeans};

use crate::data::{KINDS, Random, columns, from_columns, gpu, on_gpu, rounds, rows, some_rows};
use crate::looped::{labels_of_loop, wrong_rows};

fn labels_of<T: Engine>(x: &[T], d: usize, centroids: &[T]) -> Vec<u32> {
    let columns = columns(x, d);
    reference_labels(0, &columns.iter().map(|column| &column[..]).collect::<Vec<_>>(), centroids).unwrap()
}

fn naive<T: Engine>(x: &[T], d: usize, centroids: &[T]) -> Vec<u32> {
    x.chunks_exact(d).map(|x| reference::nearest(x, centroids).label).collect()
}

fn check<T: Engine>(seed: u64) {
    let shapes = [[1, 1, 1], [127, 7, 3], [128, 8, 128], [300, 9, 129], [1_000, 16, 257], [129, 70, 500], [2_000, 2, 1_000]];
    for (i, [n, d, k]) in shapes.into_iter().enumerate().take(rounds(shapes.len())) {
        for (j, kind) in KINDS.iter().enumerate() {
            let random = &mut Random(seed + (i * KINDS.len() + j) as u64);
            let x: Vec<T> = rows(kind, n, d, random);
            let centroids: Vec<T> = some_rows(&x, d, k, 9, random).into_iter().map(T::from_f64).collect();
            assert_eq!(labels_of(&x, d, &centroids), naive(&x, d, &centroids), "{kind}, {n} x {d}, k = {k}");
        }
    }
}

#[test]
fn labels_are_those_of_the_naive_search() {
    if gpu().is_some() {
        check::<f32>(90_000);
        check::<f64>(91_000);
    }
}

#[test]
fn the_smallest_number_wins() {
    if gpu().is_none() {
        return;
    }
    // Two centroids at equal distances, in one thread, in two threads and in two tiles.
    for other in [1, 2, 31, 32, 100, 128, 200] {
        let mut centroids = vec![50.0f32; 201];
        (centroids[0], centroids[other]) = (1.0, -1.0);
        assert_eq!(labels_of(&[0.0], 1, &centroids), [0], "{other}");
        centroids[0] = 1.0f32.next_up();
        assert_eq!(labels_of(&[0.0], 1, &centroids), [other as u32]);
    }
    // Distances that overflow.
    assert_eq!(labels_of(&[1e300f64], 1, &[-1e300, -1e299]), [0]);
    // Differences are rounded before they are squared, so this is a tie.
    assert_eq!(labels_of(&[-1e17f64], 1, &[0.1, -0.1]), [0]);
}

/// A label that is changed, or a centroid that is moved by one float: both are seen.
#[test]
fn a_wrong_label_does_not_pass() {
    let random = &mut Random(92_000);
    let (n, d, k) = (5_000, 20, 40);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let start = some_rows(&x, d, k, usize::MAX, random);
    let columns = columns(&x, d);
    let features = from_columns(&columns);
    let Some(estimator) = on_gpu(&KMeans::new(k).init(Init::Given(start)).tol(0.0).max_iter(3)) else { return };
    let wrong = |labels: &[u32], centroids: &[f32]| wrong_rows(labels, &labels_of(&x, d, centroids)).collect::<Vec<_>>();

    // Labels of a loop belong to the centroids before its last update, those of a fit to its last centroids.
    let looped = labels_of_loop(&estimator, &features, 3).unwrap();
    assert_eq!(wrong(&looped.labels, &looped.centroids), Vec::<usize>::new());
    let fit = estimator.fit_features(&features, None).unwrap();
    let centroids = fit.model.centroids();
    assert_eq!(wrong(&fit.labels, centroids), Vec::<usize>::new());
    assert_ne!(wrong(&looped.labels, centroids), Vec::<usize>::new());
    assert_ne!(wrong(&fit.labels, &looped.centroids), Vec::<usize>::new());

    let mut labels = fit.labels.clone();
    labels[4_321] = (labels[4_321] + 1) % k as u32;
    assert_eq!(wrong(&labels, centroids), [4_321]);

    // A row amid two centroids belongs to the first. One float nearer, the second has it, and the old label is wrong.
    let row = [1.0f32, 0.0];
    let mut two = [0.0f32, 0.0, 2.0, 0.0];
    assert_eq!(labels_of(&row, 2, &two), [0]);
    two[2] = two[2].next_down();
    let right = labels_of(&row, 2, &two);
    assert_eq!((wrong_rows(&[0], &right).count(), right), (1, vec![1]));
}
