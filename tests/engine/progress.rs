//! A caller sees each iteration of a fit once, and may stop the fit.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polars_kmeans::InstructionSet;
use polars_kmeans::{
    Cancel, Device, Features, History, Init, KMeans, KMeansError, Progress, Restarts, RowOrder, Scale, SortBy, Stage, TooFew,
    Wanted,
};

use crate::data::{Random, hash, here_and_on_gpu, on_gpu, parts_of, rows};

/// An estimator that notes each iteration, and stops at the one with the number `last`.
fn watched(estimator: &KMeans, last: usize) -> (KMeans, Arc<Mutex<Vec<Progress>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let estimator = estimator.clone().on_progress(move |progress| {
        if progress.stage != Stage::Iteration {
            return ControlFlow::Continue(());
        }
        let mut notes = notes.lock().unwrap();
        notes.push(*progress);
        if notes.len() == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    (estimator, seen)
}

#[test]
fn each_iteration_is_shown_once() {
    let x: Vec<f32> = rows("blobs", 6_000, 3, &mut Random(1));
    let features = Features::from_rows(&x, 3).unwrap();
    for history in [History::Light, History::Full] {
        let estimator = KMeans::new(30).seed(3).tol(0.0).max_iter(50).history(history);
        for estimator in here_and_on_gpu(&estimator) {
            let expected = hash(&estimator.fit_features(&features, None).unwrap());
            for parts in [1, 4] {
                let (watched, seen) = watched(&estimator, usize::MAX);
                let cuts: Vec<usize> = (0..=parts).map(|i| i * 6_000 / parts).collect();
                let fit =
                    watched.fit_parts(parts_of(&features, None, &cuts), InstructionSet::detect(), Wanted::Labels).unwrap();
                assert_eq!(hash(&fit), expected);
                let seen = seen.lock().unwrap();
                assert!(seen.len() > 20 && seen.iter().all(|progress| progress.restart == 0));
                let seen: Vec<_> = seen.iter().map(|p| (p.iteration, p.changed, p.shift.to_bits(), p.inertia)).collect();
                let rows = fit.model.history().iter();
                assert_eq!(
                    seen,
                    rows.map(|row| (row.iteration, row.changed, row.shift.to_bits(), row.inertia)).collect::<Vec<_>>()
                );
            }
        }
    }
}

#[test]
fn restarts_are_numbered() {
    let x: Vec<f64> = rows("uniform", 500, 2, &mut Random(2));
    let features = Features::from_rows(&x, 2).unwrap();
    let estimator = KMeans::new(4).init(Init::Random).n_init(Restarts::Count(3)).max_iter(2).tol(0.0);
    let (watched, seen) = watched(&estimator, usize::MAX);
    watched.fit_features(&features, None).unwrap();
    let seen: Vec<_> = seen.lock().unwrap().iter().map(|progress| (progress.restart, progress.iteration)).collect();
    assert_eq!(seen, [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]);
}

#[test]
fn a_stopped_fit_is_the_fit_of_its_iterations() {
    let x: Vec<f64> = rows("blobs", 4_000, 5, &mut Random(4));
    let features = Features::from_rows(&x, 5).unwrap();
    let base = KMeans::new(40).seed(1).tol(0.0).max_iter(60).device(Device::Cpu);
    let sorted = base.clone().sort_by(SortBy::Size).scale(Scale::Standard);
    for estimator in [base.clone(), base.history(History::Full), sorted] {
        for (estimator, on_gpu) in here_and_on_gpu(&estimator).zip([false, true]) {
            let expected = hash(&estimator.fit_features(&features, None).unwrap());
            for (last, parts) in [(1, 1), (7, 1), (12, 1), (1, 3), (7, 3)] {
                let (watched, seen) = watched(&estimator, last);
                let cuts: Vec<usize> = (0..=parts).map(|i| i * 4_000 / parts).collect();
                let stopped = watched.fit_parts(parts_of(&features, None, &cuts), InstructionSet::detect(), Wanted::Labels);
                let stopped = stopped.unwrap();
                assert_eq!(seen.lock().unwrap().len(), last, "nothing is shown after the stop");
                let n_iter = stopped.model.n_iter() as usize;
                assert!(n_iter == last || on_gpu && n_iter > last, "{n_iter} iterations, stopped after {last}");
                let same = estimator.clone().max_iter(n_iter as u32).fit_features(&features, None).unwrap();
                assert_eq!(hash(&stopped), hash(&same));
                assert!(stopped.model.stopped() && !same.model.stopped());
                // The same estimator does not stop a second time.
                let again = watched.fit_features(&features, None).unwrap();
                assert_eq!((hash(&again), again.model.stopped()), (expected, false));
            }
        }
    }
}

#[test]
fn finished_restarts_and_the_running_one_compete() {
    let x: Vec<f64> = rows("blobs", 600, 2, &mut Random(7));
    let features = Features::from_rows(&x, 2).unwrap();
    let base = KMeans::new(9).seed(3).tol(0.0).device(Device::Cpu);
    let several = |count| base.clone().init(Init::Random).n_init(Restarts::Count(count));
    let fit = |estimator: KMeans| estimator.fit_features(&features, None).unwrap();
    let mut running_wins = [0, 0];
    for at in (0..4).flat_map(|restart| (0..9).map(move |iteration| (restart, iteration))).skip(1) {
        for cuts in [&[0, 600][..], &[0, 1, 250, 600]] {
            let seeds = Arc::new(Mutex::new(Vec::new()));
            let notes = seeds.clone();
            let watched = several(4).on_centroids(move |progress, centroids| {
                if progress.stage == Stage::Seeds {
                    *notes.lock().unwrap() = centroids.unwrap().flatten().copied().collect();
                }
                if (progress.restart, progress.iteration) == at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let stopped = watched.fit_parts(parts_of(&features, None, cuts), InstructionSet::detect(), Wanted::Labels).unwrap();
            if !stopped.model.stopped() {
                // The restart had fewer iterations.
                continue;
            }
            let (restart, iteration) = at;
            let finished = (restart > 0).then(|| fit(several(restart)));
            let seeds = std::mem::take(&mut *seeds.lock().unwrap());
            let running = (iteration > 0).then(|| fit(base.clone().init(Init::Given(seeds)).max_iter(iteration)));
            let best = match (finished, running) {
                (Some(finished), Some(running)) => {
                    let wins = running.model.inertia() < finished.model.inertia();
                    running_wins[usize::from(wins)] += 1;
                    if wins { running } else { finished }
                }
                (finished, running) => finished.or(running).unwrap(),
            };
            assert_eq!(hash(&stopped), hash(&best), "stopped at {at:?}");
        }
    }
    assert!(running_wins.iter().all(|count| *count > 2), "{running_wins:?}");
}

#[test]
fn there_is_no_model_before_the_first_iteration_and_of_a_cancelled_fit() {
    let x: Vec<f64> = rows("uniform", 500, 2, &mut Random(2));
    let features = Features::from_rows(&x, 2).unwrap();
    for estimator in here_and_on_gpu(&KMeans::new(4).tol(0.0)) {
        for (stage, iteration) in [(Stage::Rows, 0), (Stage::Seeds, 0), (Stage::Iteration, 1), (Stage::Iteration, 2)] {
            let at = move |progress: &Progress| (progress.stage, progress.iteration) == (stage, iteration);
            for cuts in [&[0, 500][..], &[0, 100, 500]] {
                let error = |estimator: KMeans| {
                    estimator.fit_parts(parts_of(&features, None, cuts), InstructionSet::detect(), Wanted::Labels).err()
                };
                let flow = |stops: bool| if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                let stopped = error(estimator.clone().on_progress(move |progress| flow(at(progress))));
                assert_eq!(stopped, (iteration == 0).then_some(KMeansError::Cancelled), "{stage:?}");
                for stops in [false, true] {
                    let cancel = Cancel::new();
                    let cancelled = estimator.clone().cancel(&cancel).on_progress(move |progress| {
                        if at(progress) {
                            cancel.cancel();
                        }
                        flow(stops && at(progress))
                    });
                    assert_eq!(error(cancelled), Some(KMeansError::Cancelled), "{stage:?}");
                }
            }
        }
    }
}

/// Rows that tie make a fit start again: it stops after as many iterations.
#[test]
fn a_stopped_fit_that_starts_again_is_the_fit_of_its_iterations() {
    // The positive one of two rows that are equally far comes first.
    let x: Vec<f64> = (1..200).flat_map(|i| [f64::from(i * i % 1009), -f64::from(i * i % 1009)]).collect();
    let features = Features::from_rows(&x, 1).unwrap();
    let as_given = KMeans::new(2).init(Init::Given(vec![0.0, 0.0])).tol(0.0);
    for estimator in here_and_on_gpu(&as_given.clone().row_order(RowOrder::Values)) {
        for last in [1, 2, 4] {
            let (watched, seen) = watched(&estimator, last);
            let stopped = watched.fit_features(&features, None).unwrap();
            assert!(stopped.model.stopped() && seen.lock().unwrap().len() == last);
            let n_iter = stopped.model.n_iter();
            let fit = |estimator: &KMeans| hash(&estimator.clone().max_iter(n_iter).fit_features(&features, None).unwrap());
            assert_eq!(hash(&stopped), fit(&estimator));
            assert_ne!(hash(&stopped), fit(&as_given), "the order of the rows does not matter");
        }
    }
}

#[test]
fn one_of_several_fits_and_one_of_fewer_clusters_are_stopped() {
    let x: Vec<f64> = rows("blobs", 500, 2, &mut Random(6));
    let features = Features::from_rows(&x, 2).unwrap();
    let estimator = KMeans::new(1).tol(0.0).device(Device::Cpu);
    let fits = watched(&estimator, 2).0.fit_each(&[7, 5], &features, None).unwrap();
    let fits: Vec<_> = fits.into_iter().map(|fit| fit.unwrap().model).collect();
    let single = |k: i128, max_iter: u32| {
        let mut one = estimator.clone().max_iter(max_iter);
        one.set("k", Some(&k.into())).unwrap();
        one.fit_features(&features, None).unwrap().model
    };
    assert_eq!(fits[0].centroids(), single(7, 2).centroids());
    assert_eq!((fits[0].n_iter(), fits[0].stopped()), (2, true));
    assert_eq!((fits[1].centroids(), fits[1].stopped()), (single(5, 300).centroids(), false));

    let x: Vec<f64> = (0..60).map(|i| f64::from(i % 3)).collect();
    let (watched, _) = watched(&KMeans::new(5).too_few(TooFew::Fewer), 1);
    let model = watched.fit_features(&Features::from_rows(&x, 1).unwrap(), None).unwrap().model;
    assert_eq!((model.centroids(), model.stopped()), (&[0.0, 1.0, 2.0][..], true));
}

#[test]
fn a_cancelled_fit_is_an_error_of_its_own() {
    let error = KMeansError::Cancelled;
    assert_eq!(error.to_string(), "the call was cancelled");
    assert_eq!(error.kind().name(), "CancelledError");
}

#[test]
fn every_stage_is_shown_in_order() {
    let x: Vec<f64> = rows("uniform", 500, 2, &mut Random(2));
    let features = Features::from_rows(&x, 2).unwrap();
    let estimator = KMeans::new(4).init(Init::Random).n_init(Restarts::Count(2)).max_iter(2).tol(0.0);
    for estimator in here_and_on_gpu(&estimator) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = seen.clone();
        let watched = estimator.on_progress(move |progress| {
            notes.lock().unwrap().push(*progress);
            ControlFlow::Continue(())
        });
        watched.fit_features(&features, None).unwrap();
        let seen = seen.lock().unwrap();
        let stages: Vec<_> = seen.iter().map(|p| (p.stage.word(), p.restart, p.iteration)).collect();
        let restart = |restart| [("seeds", restart, 0), ("iteration", restart, 1), ("iteration", restart, 2)];
        assert_eq!(stages, [&[("rows", 0, 0)][..], &restart(0), &restart(1)].concat());
        assert!(seen.windows(2).all(|two| two[0].seconds <= two[1].seconds));
    }
}

/// Fits and predictions that take seconds, stopped from another thread: in the loop, in seedings, in preparation by value order.
#[test]
fn a_handle_stops_a_fit_at_any_time() {
    let (n, d) = (1_000_000, 8);
    let x: Vec<f32> = rows("uniform", n, d, &mut Random(5));
    let features = Features::from_rows(&x, d).unwrap();
    let base = KMeans::new(4_000).tol(0.0).max_iter(10_000).seed(1);
    let given: Vec<f64> = x[..4_000 * d].iter().map(|&x| f64::from(x)).collect();
    let seeded = |init| base.clone().init(init).n_init(Restarts::Count(1));
    let estimators = [Init::Given(given), Init::KMeansPlusPlus, Init::KMeansParallel, Init::AfkMc2].map(seeded);
    for estimator in &estimators {
        for estimator in [Some(estimator.clone()), on_gpu(estimator)].into_iter().flatten() {
            for wait in [0, 30, 150] {
                let cancel = Cancel::new();
                let estimator = estimator.clone().cancel(&cancel);
                let (stopped, took) = std::thread::scope(|scope| {
                    let fit = scope.spawn(|| {
                        let error = estimator.fit_features(&features, None).err();
                        (error, Instant::now())
                    });
                    std::thread::sleep(Duration::from_millis(wait));
                    let asked = Instant::now();
                    cancel.cancel();
                    let (error, ended) = fit.join().unwrap();
                    (error, ended.saturating_duration_since(asked))
                });
                assert_eq!(stopped, Some(KMeansError::Cancelled), "after {wait} ms of {estimator:?}");
                assert!(took < Duration::from_secs(2), "stopped only after {took:?}, asked after {wait} ms of {estimator:?}");
            }
        }
    }
}

#[test]
fn centroids_are_shown_in_units() {
    let x: Vec<f32> = rows("blobs", 3_000, 3, &mut Random(4));
    let features = Features::from_rows(&x, 3).unwrap();
    let estimator = KMeans::new(7).seed(2).tol(0.0).max_iter(9);
    let scaled = estimator.clone().scale(Scale::Standard);
    for estimator in [Some(estimator.clone()), on_gpu(&estimator), Some(scaled.clone()), on_gpu(&scaled)].into_iter().flatten()
    {
        let seen = Arc::new(Mutex::new(Vec::<(Progress, Option<Vec<f64>>)>::new()));
        let notes = seen.clone();
        let watched = estimator.on_centroids(move |progress, centroids| {
            notes.lock().unwrap().push((*progress, centroids.map(|rows| rows.flatten().copied().collect())));
            ControlFlow::Continue(())
        });
        let fit = watched.fit_features(&features, None).unwrap();
        let seen = seen.lock().unwrap();
        let values = |centroids: Vec<f32>| Some(centroids.into_iter().map(f64::from).collect::<Vec<_>>());
        assert_eq!((seen[0].0.stage, &seen[0].1), (Stage::Rows, &None));
        assert_eq!(seen[1].0.stage, Stage::Seeds);
        assert!(seen[1].1.as_ref().is_some_and(|centroids| centroids.len() == 21));
        assert_eq!(seen.last().unwrap().1, values(fit.model.centroids_in_units().unwrap()));
        // From the centroids of any stage, a fit goes on to the same end.
        for (progress, centroids) in seen.iter().filter(|(progress, _)| progress.iteration < fit.model.n_iter()) {
            let Some(centroids) = centroids.clone().filter(|_| fit.model.scaling().is_none()) else { continue };
            let rest = KMeans::new(7).init(Init::Given(centroids)).tol(0.0).max_iter(9 - progress.iteration);
            let rest = rest.fit_features(&features, None).unwrap();
            assert_eq!(rest.model.centroids(), fit.model.centroids(), "{progress:?}");
            assert_eq!(rest.labels, fit.labels);
        }
    }
}

#[test]
fn seconds_add_up() {
    let x: Vec<f64> = rows("uniform", 20_000, 4, &mut Random(5));
    let features = Features::from_rows(&x, 4).unwrap();
    let start = Instant::now();
    let fit = KMeans::new(20).n_init(Restarts::Count(3)).fit_features(&features, None).unwrap();
    let whole = start.elapsed().as_secs_f64();
    let seconds = fit.seconds;
    assert!(seconds.rows > 0.0 && seconds.seeding > 0.0 && seconds.iterations > 0.0 && seconds.total() <= whole);
    let iterations: f64 = fit.model.history().iter().filter_map(|row| row.seconds).sum();
    assert!(seconds.iterations >= iterations);
}

/// Rows amid several centroids need reference distances, and the history counts them. `tensor.rs` has the same for GPUs.
#[test]
fn the_history_counts_settled_rows() {
    let random = &mut Random(5_150);
    for (kind, first) in [("lattice", 0.1..1.0), ("blobs", 0.0..0.01)] {
        for history in [History::Light, History::Full] {
            let x: Vec<f32> = rows(kind, 20_000, 4, random);
            let estimator = KMeans::new(30).seed(3).tol(0.0).max_iter(5).history(history).device(Device::Cpu);
            let fit = estimator.fit_features(&Features::from_rows(&x, 4).unwrap(), None).unwrap();
            let rows = fit.model.history();
            assert!(first.contains(&rows[0].settled.unwrap()), "{kind}: {rows:?}");
            assert!(rows.iter().all(|row| row.settled.is_some_and(|share| share <= 1.0) && row.skipped.is_none()), "{rows:?}");
        }
    }
}
