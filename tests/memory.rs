//! Fits and predictions without memory must give an error that says so, and the process must go on.
//!
//! The tests refuse every allocation above a certain size in turn. If the code does not check for the failure, the process
//! ends. So the tests run in child processes.

#[path = "common/child.rs"]
mod child;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use polars_kmeans::InstructionSet;
use polars_kmeans::input::tile::RowBlock;
use polars_kmeans::{
    Column, Engine, Features, History, Init, KMeans, KMeansError, Metric, Model, NullPolicy, Result, RowOrder, Scale, Wanted,
};

use crate::child::{ONLY, STEP, in_child};

/// Allocations below this size do not grow with rows, features or clusters. The shapes below are large enough for that.
const LEAST: usize = 2_048;
const NEVER: usize = usize::MAX;

/// Refuses one allocation on demand.
struct Refusing;
/// The number of allocations before the one that is refused.
static LEFT: AtomicUsize = AtomicUsize::new(NEVER);
static TRACE: AtomicBool = AtomicBool::new(false);

fn refused(size: usize) -> bool {
    let count = |left| (left != NEVER).then(|| if left == 0 { NEVER } else { left - 1 });
    let refused = size >= LEAST && LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(0);
    if refused && TRACE.load(Ordering::Relaxed) {
        eprintln!("refused {size} bytes:\n{}", Backtrace::force_capture());
    }
    refused
}

// SAFETY: forwards to the system's allocator, or refuses. Every caller must expect a refusal.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        if refused(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        if refused(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`.
        if refused(size) { std::ptr::null_mut() } else { unsafe { System.realloc(old, layout, size) } }
    }
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`. All memory came from the system's allocator.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Runs the work once for each of its allocations, and refuses that allocation. There must be at least `least` allocations.
fn refuse_each<S, R: PartialEq + Debug>(what: &str, least: usize, set_up: impl Fn() -> S, work: impl Fn(S) -> Result<R>) {
    let only = std::env::var(ONLY).ok();
    if only.as_ref().is_some_and(|only| !only.starts_with(&format!("{what}, "))) {
        return;
    }
    let expected = work(set_up()).unwrap();
    // A thread of the pool allocates when it starts. It must have started before allocations are refused.
    rayon::broadcast(|_| ());
    let mut after = 0;
    loop {
        let step = format!("{what}, allocation {after}");
        if only.as_ref().is_none_or(|only| *only == step) {
            eprintln!("{STEP}{step}");
            TRACE.store(only.is_some(), Ordering::Relaxed);
            let start = set_up();
            LEFT.store(after, Ordering::Relaxed);
            let result = work(start);
            let reached = LEFT.swap(NEVER, Ordering::Relaxed) == NEVER;
            match result {
                Ok(result) => assert!(!reached && result == expected, "{step}: an answer without the memory for it"),
                Err(KMeansError::NoMemory { what, bytes: Some(1..) }) if reached => assert!(!what.is_empty()),
                Err(error) => panic!("{step}: {error}"),
            }
            if !reached {
                assert!(after >= least, "{step}: expected {least} or more");
                break;
            }
        }
        // Each of the first 64, then fewer and fewer: the later ones are repeated steps of long loops.
        after += 1 + after / 64;
        assert!(after < 1_000_000, "{step}: there is no end");
    }
    assert!(work(set_up()).unwrap() == expected, "{what}: afterwards");
}

// ---- fits ------------------------------------------------------------------------------------------------------------------

/// Rows, features, clusters. One of them is large in each shape.
const SHAPES: [[usize; 3]; 3] = [[40_000, 2, 3], [3_000, 2, 700], [40, 3_000, 3]];

fn rows<T: Engine>(n: usize, d: usize) -> Vec<T> {
    let value = |i: usize| (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    (0..n * d).map(|i| T::from_f64(value(i) as f64 + (i / d % 7) as f64 * 1e8)).collect()
}

/// The result of a fit, as bits.
type Bits = (Vec<u64>, Vec<u32>, u64);

fn fit<T: Engine>(estimator: &KMeans, parts: Vec<RowBlock<'_, T>>) -> Result<Bits> {
    let fitted = estimator.fit_parts(parts, InstructionSet::detect(), Wanted::Distances)?;
    // The engine has answered. Allocations of the test itself, from here on, are not refused.
    LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left != NEVER).then_some(NEVER - 1)).ok();
    let centroids = fitted.model.centroids().iter().map(|c| c.to_f64().to_bits()).collect();
    Ok((centroids, fitted.labels, fitted.model.inertia().to_bits()))
}

fn fits<T: Engine>() {
    for [n, d, k] in SHAPES {
        let mut x: Vec<T> = rows(n, d);
        let weights: Vec<f64> = (0..n).map(|i| (i % 5) as f64 * 0.5).collect();
        // The same row many times: this makes empty clusters, which take the farthest rows.
        let given: Vec<f64> = (0..k).flat_map(|j| x[(j / 3) * d..][..d].iter().map(|v| v.to_f64())).collect();
        let what = |kind: &str| format!("{n} x {d} into {k}, {}, {kind}", T::NAME);
        let estimator = KMeans::new(k).max_iter(2).tol(0.0).threads(2).seed(3);
        let by_rows = Features::from_rows(&x, d).unwrap();
        let part = |weighted: bool| vec![RowBlock::new(by_rows.clone(), weighted.then(|| Column::from_slice(&weights)))];
        // Each seed takes one pass over the rows. For eight clusters of many rows, these are copied first.
        let plus_plus = KMeans::new(k.clamp(8, 40)).max_iter(2).tol(0.0).threads(2).seed(3);
        refuse_each(&what("k-means++"), 5, || part(false), |parts| fit(&plus_plus, parts));
        refuse_each(&what("weighted"), 5, || part(true), |parts| fit(&plus_plus, parts));
        for init in [Init::KMeansParallel, Init::AfkMc2] {
            let seeding = plus_plus.clone().init(init.clone()).chain_length(5).init_sample((d == 2).then_some(n as u64 / 2));
            refuse_each(&what(init.word()), 5, || part(true), |parts| fit(&seeding, parts));
        }
        let one = Features::from_rows(&x, 1).unwrap();
        let optimal = KMeans::new(3).max_iter(2).tol(0.0).threads(2).init(Init::Optimal);
        refuse_each(&what("optimal"), 5, || vec![RowBlock::new(one.clone(), None)], |parts| fit(&optimal, parts));
        let random = estimator.clone().init(Init::Random).n_init(polars_kmeans::Restarts::Count(2));
        refuse_each(&what("random"), 5, || part(true), |parts| fit(&random, parts));
        let from_given = estimator.clone().init(Init::Given(given)).history(History::Full).tol(1e-9);
        refuse_each(&what("given"), 5, || part(false), |parts| fit(&from_given, parts));
        let by_columns: Vec<Vec<T>> = (0..d).map(|f| x.iter().skip(f).step_by(d).copied().collect()).collect();
        let columns = Features::from_columns(by_columns.iter().map(|column| &column[..])).unwrap();
        let halves = || [0..n / 2, n / 2..n].map(|range| RowBlock::new(columns.slice(range).unwrap(), None)).into();
        refuse_each(&what("two parts"), 5, halves, |parts| fit(&from_given, parts));
        refuse_each(&what("two parts, k-means++"), 5, halves, |parts| fit(&plus_plus, parts));
        let by_values = plus_plus.clone().row_order(RowOrder::Values);
        refuse_each(&what("two parts, by values"), 5, halves, |parts| fit(&by_values, parts));
        let transformed = from_given.clone().scale(Scale::Standard).metric(Metric::Cosine);
        refuse_each(&what("standard, cosine"), 5, || part(true), |parts| fit(&transformed, parts));
        let robust = estimator.clone().init(Init::Random).scale(Scale::Robust);
        refuse_each(&what("robust"), 5, || part(false), |parts| fit(&robust, parts));
        x[n / 3 * d] = T::from_f64(f64::NAN);
        let by_rows = Features::from_rows(&x, d).unwrap();
        let skip = random.clone().null_policy(NullPolicy::Skip);
        let part = || vec![RowBlock::new(by_rows.clone(), Some(Column::from_slice(&weights)))];
        refuse_each(&what("skip"), 5, part, |parts| fit(&skip, parts));
        let skip_by_values = skip.row_order(RowOrder::Values);
        refuse_each(&what("skip, by values"), 5, part, |parts| fit(&skip_by_values, parts));
        // Finding out what is wrong with the values takes memory too.
        let raise = |parts| match fit(&random, parts) {
            Err(KMeansError::NotFinite { nans, .. }) => Ok(nans),
            Err(error) => Err(error),
            Ok(_) => Ok(0),
        };
        refuse_each(&what("raise"), 1, part, raise);
    }
}

#[test]
fn float32_fits_without_memory() {
    in_child("float32_fits_without_memory", fits::<f32>);
}

#[test]
fn float64_fits_without_memory() {
    in_child("float64_fits_without_memory", fits::<f64>);
}

// ---- predictions -----------------------------------------------------------------------------------------------------------

fn predictions<T: Engine>() {
    for [n, d, k] in SHAPES {
        let x: Vec<T> = rows(n, d);
        let features = Features::from_rows(&x, d).unwrap();
        let given = x[..k * d].iter().map(|v| v.to_f64()).collect();
        let estimator = KMeans::new(k).init(Init::Given(given)).max_iter(1);
        let model = estimator.fit_features(&features, None).unwrap().model;
        let scaled = estimator.scale(Scale::Standard).fit_features(&features, None).unwrap().model;
        let weights: Vec<f64> = (0..n).map(|i| (i % 5) as f64 * 0.5).collect();
        let weights = Column::from_slice(&weights);
        let what = |job: &str| format!("{n} x {d} into {k}, {}, {job}", T::NAME);
        // A clone does not have its tables yet.
        let new = || model.clone();
        refuse_each(&what("labels, scaled"), 3, || scaled.clone(), |model: Model<T>| model.predict(&features));
        refuse_each(&what("labels"), 3, new, |model: Model<T>| model.predict(&features));
        refuse_each(&what("distances"), 3, new, |model: Model<T>| model.predict_distances(&features));
        refuse_each(&what("transform"), 3, new, |model: Model<T>| model.transform(&features, false));
        refuse_each(&what("score"), 2, new, |model: Model<T>| model.score(&features, Some(&weights)));
        refuse_each(&what("widened"), usize::from(k * d > 1_000), new, |model: Model<T>| {
            model.widened().map(|model| model.inertia())
        });
    }
}

#[test]
fn float32_predictions_without_memory() {
    in_child("float32_predictions_without_memory", predictions::<f32>);
}

#[test]
fn float64_predictions_without_memory() {
    in_child("float64_predictions_without_memory", predictions::<f64>);
}

#[test]
fn views_and_labels_without_memory() {
    in_child("views_and_labels_without_memory", || {
        let (x, d) = (vec![1.5f32; 6_000], 3_000);
        let columns: Vec<&[f32]> = x.chunks_exact(2).collect();
        let of_columns = |()| Features::from_columns(columns.iter().copied()).map(|view| view.n_features());
        refuse_each("a view of columns", 2, || (), of_columns);
        refuse_each("a view of rows", 1, || (), |()| Features::from_rows(&x, d).map(|view| view.n_rows()));
        let view = Features::from_columns(columns.iter().copied()).unwrap();
        refuse_each("a slice", 1, || (), |()| view.slice(0..1).map(|view| view.n_rows()));
        let mut x: Vec<f32> = rows(40_000, 1);
        x[7] = f32::NAN;
        let estimator = KMeans::new(2).null_policy(NullPolicy::Skip).max_iter(1);
        let fitted = estimator.fit_features(&Features::from_rows(&x, 1).unwrap(), None).unwrap();
        refuse_each("labels with gaps", 1, || (), |()| fitted.expand().map(|labels| labels.len()));
    });
}

// ---- a limit of the system -------------------------------------------------------------------------------------------------

/// The address space of this process in bytes, and a limit on it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod limit {
    use std::ffi::c_int;

    unsafe extern "C" {
        fn setrlimit(resource: c_int, limit: *const [u64; 2]) -> c_int;
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    const ADDRESS_SPACE: c_int = 9;
    const MMAP_THRESHOLD: c_int = -3;

    /// Makes the allocator take large blocks from the system and give them back. Blocks that it keeps would hide a limit.
    pub fn keep_nothing() {
        // SAFETY: sets an option of the allocator.
        assert_eq!(unsafe { mallopt(MMAP_THRESHOLD, 128 << 10) }, 1);
    }

    pub fn used() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    }

    /// Sets the limit. It can be raised again.
    pub fn set(bytes: u64) {
        // SAFETY: the call reads two numbers: the limit, and the highest limit that can be set later.
        assert_eq!(unsafe { setrlimit(ADDRESS_SPACE, &[bytes, u64::MAX]) }, 0);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn under_a_limit_of_the_system_there_is_an_answer_or_an_error() {
    in_child("under_a_limit_of_the_system_there_is_an_answer_or_an_error", || {
        limit::keep_nothing();
        let small: Vec<f32> = rows(40_000, 4);
        let small = Features::from_rows(&small, 4).unwrap();
        // This fit starts the threads before the limit is set.
        KMeans::new(8).seed(1).fit_features(&small, None).unwrap();
        for [n, d, k] in [[1_500_000, 1, 3], [10_000, 16, 8_000], [64, 100_000, 3]] {
            let x: Vec<f32> = rows(n, d);
            let features = Features::from_rows(&x, d).unwrap();
            let given: Vec<f64> = x[..k * d].iter().map(|v| f64::from(*v)).collect();
            let estimator = KMeans::new(k).max_iter(1).init(Init::Given(given));
            let model = estimator.fit_features(&features, None).unwrap().model;
            let few = KMeans::new(k.min(8)).max_iter(1).seed(2);
            let inertia = |estimator: &KMeans| estimator.fit_features(&features, None).map(|fit| fit.model.inertia());
            let fresh = || model.clone();
            type Job<'j> = Box<dyn Fn(Model<f32>) -> Result<f64> + 'j>;
            let jobs: [(&str, Job<'_>); 5] = [
                ("given", Box::new(|_| inertia(&estimator))),
                ("k-means++", Box::new(|_| inertia(&few))),
                ("labels", Box::new(|model| model.predict(&features).map(|labels| labels.len() as f64))),
                ("transform", Box::new(|model| model.transform(&features, false).map(|distances| distances[0]))),
                ("score", Box::new(|model| model.score(&features, None))),
            ];
            let mut refused = 0;
            for (job, run) in &jobs {
                let (mut answered, before) = (0, refused);
                // From one megabyte of room for small things, up to more than anything here needs.
                let expected = if *job == "transform" && n * k > 10_000_000 { None } else { Some(run(fresh()).unwrap()) };
                for step in 0..12 {
                    eprintln!("{STEP}{n} x {d} into {k}, {job}, limit {step}");
                    let model = fresh();
                    limit::set(limit::used() + (1 << 20) + if step == 11 { 1 << 30 } else { step * (1 << 21) });
                    let result = run(model);
                    limit::set(u64::MAX);
                    match result {
                        Ok(answer) => {
                            assert!(expected.is_none_or(|expected| expected == answer));
                            answered += 1;
                        }
                        Err(KMeansError::NoMemory { bytes: Some(_), .. }) => refused += 1,
                        Err(error) => panic!("{job}: {error}"),
                    }
                    KMeans::new(8).seed(1).fit_features(&small, None).unwrap();
                }
                println!("{n} x {d} into {k}, {job}: {answered} answered, {} refused", refused - before);
                assert!(expected.is_none() || answered > 0, "{job}: no limit was enough");
            }
            assert!(refused > 3, "{n} x {d} into {k}: {refused} refused");
        }
    });
}
