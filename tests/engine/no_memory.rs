//! A GPU without memory: each of the engine's allocations is refused in turn.

use polars_kmeans::backend::cuda::memory;
use polars_kmeans::backend::cuda::refusal;
use polars_kmeans::backend::select::Shape;
use polars_kmeans::{Column, Device, Engine, Features, Half, History, Init, KMeans, KMeansError, Result, Wanted};

use crate::child::{STEP, in_child};
use crate::data::{Random, columns, from_columns, gpu, gpu_info, hash, rows, shape};
use crate::half::Halves;

/// Repeats the work and refuses one allocation on the GPU each time, of device memory or pinned memory. It refuses each of the
/// first allocations, then fewer and fewer, since the steps of a seeding and the iterations repeat the same allocations.
fn refuse_each<R: PartialEq>(what: &str, expected: &R, work: impl Fn() -> Result<R>) {
    let numbers = std::iter::successors(Some(0), |after| Some(after + 1 + after / 8));
    for after in numbers {
        eprintln!("{STEP}{what}, allocation {after}");
        refusal::set(Some(after));
        let result = work();
        let reached = !refusal::set(None);
        match result {
            Ok(result) => assert!(!reached && result == *expected, "{what}, allocation {after}: another answer"),
            Err(KMeansError::NoMemory { bytes: Some(1..), .. }) if reached => {}
            Err(error) => panic!("{what}, allocation {after}: {error}"),
        }
        // The next run must find everything as it was.
        assert!(work().is_ok_and(|result| result == *expected), "{what}: after allocation {after}");
        if !reached {
            println!("{what}: {after} allocations");
            assert!(after > 3, "{what}: {after} allocations");
            return;
        }
    }
}

fn fits<T: Engine>(device: Device) {
    for [n, d, k] in [[6_000, 3, 5], [5_000, 24, 20]] {
        let x: Vec<T> = rows("blobs", n, d, &mut Random(n as u64));
        let by_columns = columns(&x, d);
        let views = [from_columns(&by_columns), Features::from_rows(&x, d).unwrap()];
        let weights: Vec<f64> = (0..n).map(|i| (i % 5) as f64 * 0.5).collect();
        let weights = Column::from_slice(&weights);
        // One row twice: this makes an empty cluster, which takes the farthest row.
        let given = (0..k).flat_map(|j| x[j.max(1) * d..][..d].iter().map(|v| v.to_f64())).collect();
        for (init, weighted, view) in [(Init::KMeansPlusPlus, true, 0), (Init::Random, true, 1), (Init::Given(given), false, 1)]
        {
            let features = &views[view];
            let weights = weighted.then_some(&weights);
            let estimator = KMeans::new(k).init(init).max_iter(3).tol(0.0).seed(7);
            let estimator = if view == 1 { estimator.history(History::Full) } else { estimator };
            let expected = estimator.clone().device(Device::Cpu).fit_with(features, weights, Wanted::Distances).unwrap();
            let expected = (hash(&expected), expected.distances);
            if view == 0 {
                let bounded = estimator.clone().balanced(true).max_iter(1);
                let labels = bounded.fit_features(features, weights).unwrap().labels;
                refuse_each(&format!("{n} x {d} into {k} of one size, {}", T::NAME), &labels, || {
                    Ok(bounded.clone().device(device).fit_features(features, weights)?.labels)
                });
            }
            let least = memory::chunking(shape::<T>([n, d, k], weighted), &gpu_info(), 0).unwrap_err();
            for limit in [None, Some(least)] {
                let estimator = estimator.clone().device(device).device_memory_limit(limit);
                let what = format!("{n} x {d} into {k}, {}, {limit:?}, view {view}", T::NAME);
                refuse_each(&what, &expected, || {
                    let fitted = estimator.fit_with(features, weights, Wanted::Distances)?;
                    Ok((hash(&fitted), fitted.distances))
                });
            }
        }
    }
}

fn predictions<T: Engine>(device: Device) {
    let [n, d, k] = [3_000, 20, 40];
    let x: Vec<T> = rows("blobs", n, d, &mut Random(5));
    let features = Features::from_rows(&x, d).unwrap();
    let model = KMeans::new(k).max_iter(2).device(Device::Cpu).fit_features(&features, None).unwrap().model;
    // A clone has no tables on the device yet.
    refuse_each("labels", &model.predict(&features).unwrap(), || model.clone().on(device).predict(&features));
    let nearest = model.predict_distances(&features).unwrap();
    refuse_each("nearest", &nearest, || model.clone().on(device).predict_distances(&features));
    let distances = model.transform(&features, false).unwrap();
    refuse_each("distances", &distances, || model.clone().on(device).transform(&features, false));
    let score = model.score(&features, None).unwrap();
    refuse_each("score", &score, || model.clone().on(device).score(&features, None));
}

/// The refusal hits the next allocation of any thread. So this test runs in a process of its own.
#[test]
fn a_device_without_memory_says_so_and_goes_on() {
    let Some(device) = gpu() else { return };
    in_child("no_memory::a_device_without_memory_says_so_and_goes_on", || {
        fits::<f32>(device);
        fits::<f64>(device);
        predictions::<f32>(device);
        predictions::<f64>(device);
    });
}

/// What is predicted for a fit is what it allocates: the predicted memory is enough, and one unit of allocation less is not.
/// `more_copies`: also of the copies that kernels could do without.
fn exactly<T: Engine>(device: Device, features: &Features<'_, T>, k: usize, half: bool, more_copies: bool) {
    const UNIT: u64 = 512;
    let (n, d) = (features.n_rows(), features.n_features());
    // With weights, sums have two limbs, as the prediction assumes.
    let weights: Vec<f64> = (0..n).map(|i| 0.5 + (i % 5) as f64).collect();
    let weights = Column::from_slice(&weights);
    let shape = Shape { half, ..shape::<T>([n, d, k], true) };
    let predicted = memory::resident_bytes(shape, &gpu_info(), more_copies);
    let estimator = KMeans::new(k).max_iter(3).device(device).device_memory_limit(Some(predicted));
    let what = format!("{n} x {d} into {k}, {}, 16 bits: {half}: {predicted} bytes", T::NAME);
    let fit = || estimator.fit_features(features, Some(&weights));
    let fitted = fit().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(fitted.choice.plan.chunking.is_none(), "{what}: {}", fitted.choice.reason);
    assert!(fitted.choice.plan.more_copies == more_copies || !more_copies, "{what}");
    refusal::shrink_rooms(UNIT);
    let refused = fit();
    refusal::shrink_rooms(0);
    assert!(matches!(refused, Err(KMeansError::NoMemory { .. })), "{what}, {}: not all of it was taken", fitted.choice.reason);
}

#[test]
fn the_predicted_memory_is_what_is_allocated() {
    let Some(device) = gpu() else { return };
    in_child("no_memory::the_predicted_memory_is_what_is_allocated", || {
        for [n, d, k] in
            [[20_000, 3, 5], [50_000, 12, 300], [30_000, 20, 40], [40_000, 70, 300], [200_000, 2, 2_000], [30_000, 100, 1_000]]
        {
            let exact: Vec<f64> = rows("blobs", n, d, &mut Random(n as u64));
            let halves = Halves::new(Half::Float16, "blobs", n, d, &mut Random(n as u64));
            let [narrow, wide] = halves.by_rows();
            for more_copies in [false, true] {
                exactly(device, &narrow, k, true, more_copies);
                exactly(device, &wide, k, false, more_copies);
                exactly(device, &Features::from_rows(&exact, d).unwrap(), k, false, more_copies);
            }
            if k > 300 {
                continue;
            }
            let priced = Shape { priced: true, ..shape::<f32>([n, d, k], false) };
            let bytes = memory::resident_bytes(priced, &gpu_info(), true);
            let bounded = KMeans::new(k).balanced(true).max_iter(2).device(device).device_memory_limit(Some(bytes));
            let fit = bounded.fit_features(&wide, None);
            fit.unwrap_or_else(|error| panic!("{n} x {d} into {k} of one size: {bytes} bytes, {error}"));
        }
    });
}
