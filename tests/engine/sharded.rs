//! Several sessions that go on as one: iterations, relocations and labels have the bits of a fit of all rows.

use polars_kmeans::InstructionSet;
use polars_kmeans::backend::{Session, Stop, WorkCounts};
use polars_kmeans::base::progress::Watch;
use polars_kmeans::{Column, Engine, Features, Init, KMeans};

use crate::data::{Random, rows, some_rows};
use crate::sessions::{Data, on_cpu};

/// Changed rows and shift of each iteration, then centroids, labels and sizes at the end.
type Outcome<T> = (Vec<(u64, u64)>, Vec<T>, Vec<u32>, Vec<u64>);

fn of_fit<T: Engine>(data: &Data<T>, estimator: &KMeans) -> Outcome<T> {
    let weights = data.weights.as_ref().map(|weights| Column::from_slice(weights));
    let fit = estimator.fit_features(&Features::from_rows(&data.x, data.d).unwrap(), weights.as_ref()).unwrap();
    let history = fit.model.history().iter().map(|row| (row.changed, row.shift.to_bits())).collect();
    (history, fit.model.centroids().to_vec(), fit.labels, fit.model.sizes().to_vec())
}

/// Joined sessions do all iterations by themselves.
fn of_session<T: Engine>(mut session: Box<dyn Session<T> + '_>, start: &[T], limit: u32) -> Outcome<T> {
    let (mut centroids, stop) = (start.to_vec(), Stop { changed: 0.0, shift: 0.0 });
    session.reset().unwrap();
    let advanced = session.advance(&mut centroids, stop, limit, &mut Watch::default()).unwrap();
    assert_eq!(advanced.assigned, None);
    assert!(advanced.done.iter().all(|done| done.work_counts.settled.is_some()));
    let iterations = advanced.done.iter().map(|done| (done.changed, done.shift.to_bits())).collect();
    session.assign(&centroids, false).unwrap();
    let sizes = session.sizes().unwrap();
    (iterations, centroids, session.into_labels().unwrap(), sizes)
}

/// `repeated`: see `some_rows`. Returns how many iterations were compared.
fn check<T: Engine>(kind: &str, [n, d, k]: [usize; 3], weighted: bool, repeated: usize) -> usize {
    let random = &mut Random(n as u64);
    let x: Vec<T> = rows(kind, n, d, random);
    // The largest weight comes often, so that every part has it.
    let weights: Vec<f64> = (0..n).map(|_| [0.0, 3.0, 3.0, 0.1 + random.unit()][random.below(4)]).collect();
    let data = Data { x, weights: weighted.then_some(weights), d };
    let start = some_rows(&data.x, d, k, repeated, random);
    let limit = 30;
    let estimator = KMeans::new(k).init(Init::Given(start.clone())).tol(0.0).max_iter(limit);
    let expected = of_fit(&data, &estimator);
    let start: Vec<T> = start.into_iter().map(T::from_f64).collect();
    let statistics = data.statistics(&estimator);
    let what = format!("{kind}, n {n}, d {d}, k {k}, {}, weights: {weighted}", T::NAME);
    for cuts in [&[0, n / 2, n][..], &[0, 64, 65, n / 3, n]] {
        let params = estimator.validate(d).unwrap();
        let session = on_cpu(&data, &statistics, &params, cuts, InstructionSet::detect());
        assert_eq!(of_session(session, &start, limit), expected, "{what}, on the CPU");
    }
    #[cfg(feature = "cuda")]
    if crate::data::gpu().is_some() {
        for (cuts, chunk) in [(&[0, n / 2, n][..], None), (&[0, n / 4, n / 2, n], None), (&[0, n / 2, n], Some(1_024))] {
            let params = estimator.validate(d).unwrap();
            let session = crate::sessions::on_gpu(&data, &statistics, &params, cuts, chunk);
            assert_eq!(of_session(session, &start, limit), expected, "{what}, on the GPU in chunks of {chunk:?}");
        }
    }
    expected.0.len()
}

#[test]
fn joined_sessions_go_on_with_the_bits_of_one() {
    let mut iterations = 0;
    for weighted in [false, true] {
        iterations += check::<f32>("blobs", [5_000, 3, 12], weighted, 1_000);
        iterations += check::<f64>("uniform", [4_000, 6, 40], weighted, 1_000);
        iterations += check::<f32>("uniform", [4_000, 30, 70], weighted, 1_000);
    }
    assert!(iterations > 60, "{iterations} iterations");
}

#[test]
fn joined_sessions_relocate_with_the_bits_of_one() {
    // Half of the starting centroids are the same row, so many clusters are empty at first.
    for weighted in [false, true] {
        check::<f32>("blobs", [5_000, 3, 30], weighted, 2);
        check::<f64>("tight blobs far apart", [4_000, 2, 9], weighted, 2);
        check::<f32>("uniform", [4_000, 30, 20], weighted, 2);
    }
}

#[test]
fn shares_of_what_was_counted() {
    let some = WorkCounts { settled: Some(30), scores: Some(1_500), rescored: None, groups: Some(3) };
    assert_eq!((some.share_settled(1_000), some.share_skipped(1_000, 2)), (Some(0.03), Some(0.25)));
    // Rows that fill up a tile may be counted too.
    assert_eq!(WorkCounts { scores: Some(1_028), ..some }.share_skipped(1_000, 1), Some(0.0));
    let both = some.and(WorkCounts { settled: Some(1), ..WorkCounts::default() });
    assert_eq!(both, WorkCounts { settled: Some(31), groups: Some(3), ..WorkCounts::default() });
    assert_eq!(both.share_skipped(1_000, 2), None);
}
