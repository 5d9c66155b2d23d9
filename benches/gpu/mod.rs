//! Times one GPU without Polars. First come uploads, compared with the ceiling for pinned memory. Then come whole fits, from
//! given centroids or from k-means++, iteration by iteration.
//!
//! `cargo bench --no-default-features --features bench,papers --bench kmeans -- gpu [SHAPE ... OPTIONS]`. A shape is a name from the table or
//! `NxDxKxITERATIONS`, e.g. `10000000x4x16x20`. The time of an upload runs from host memory until the last byte arrives. The time
//! of a fit includes everything: preparation, upload, iterations, and labels on the host. Time and inertia are reported together.
//!
//! - `--float64` uses float64 features.
//! - `--uniform` uses uniform data, of which nothing can be skipped, instead of ten blobs.
//! - `--kind NAME` uses another kind of data: `lognormal-scales`, `ties` or another one of `benches/kinds.rs`.
//! - `--rows FILE` repeats the rows of a file, with noise: float32 values, or float16 if its name ends with `.f16`.
//!   `benches/embeddings.py` writes such a file of real embeddings.
//! - `--check` counts the wrong labels among all rows, by reference distances to all centroids: `check.rs`. With `--strategy`, `--limit` and
//!   `--predictions`, of these.
//! - `--fits` leaves uploads out.
//! - `--init NAME` starts from this seeding, such as `k-means++`, not from given rows.
//! - `--limit BYTES` streams rows through this many bytes of the device. With `--fits` too, the resident fit follows.
//! - `--strategy NAME` (more than once, or `all`) times iterations alone, with one line per strategy.
//! - `--predictions` times `predict` instead: rows on the host and on the GPU, in one call and in morsels of 100,000 rows. With `--labels`,
//!   labels in one call alone.
//! - `--device LIST` (more than once) runs the fit on each list of devices, such as `cuda:0` and then `cuda:0,cuda:1`, and compares them.
//! - `--choose` times every strategy that the default may take, and says how much time the default's choice loses.
//! - `--json` prints one object per strategy (`--strategies A,B`; the default is `default`; `cpu` is the CPU).
//!   `benches/papers.py` uses it and also gives `--tol-labels SHARE`.

mod check;
mod devices;
#[path = "../../tests/common/looped.rs"]
mod looped;
mod options;
mod rows;
mod there;

use std::sync::atomic::Ordering;
use std::time::Instant;

use polars_kmeans::backend::cuda::{STAGES, measured, upload_benchmark};
use polars_kmeans::base::parallel::for_each_task;
use polars_kmeans::input::tile::RowBlock;
use polars_kmeans::model::Fitted;
use polars_kmeans::{Chunk, Column, Device, Engine, Features, Init, KMeans, KMeansError, Restarts, Strategy};

use self::options::{Options, Shape};
use self::rows::{Rows, rows};
use self::there::Columns;
use crate::data::{features_of, scrambled};
use crate::{Arguments, median};

fn report_upload(name: &str, (bytes, seconds, ceiling): &(u64, Vec<f64>, f64)) {
    let (first, median) = (seconds[0], median(seconds[1..].to_vec()));
    let speed = *bytes as f64 / median;
    println!(
        "  upload {name:<24}{:>10.3} ms (first {:.3}){:>8.2} GB/s, pinned ceiling {:.2} GB/s:{:>5.0} %",
        1e3 * median,
        1e3 * first,
        speed / 1e9,
        ceiling / 1e9,
        100.0 * speed / ceiling
    );
}

fn uploads<T: Engine>(columns: &[Vec<T>], shape: Shape) {
    let time = |parts: &[RowBlock<'_, T>]| upload_benchmark(0, parts, 6).expect("a GPU");
    let chunked = |chunks: usize| {
        let step = shape.n.div_ceil(chunks);
        let chunk = |values| Chunk::new(values, None).expect("no validity");
        let columns = columns.iter().map(|column| Column::new(column.chunks(step).map(chunk))).collect();
        Features::new(columns).expect("equal lengths")
    };
    for chunks in [1, 10, 1_000] {
        let parts = [RowBlock::new(chunked(chunks), None)];
        report_upload(&format!("{chunks} chunks a column"), &time(&parts));
    }
    if shape.n * shape.d <= 1 << 28 {
        let mut rows = vec![T::default(); shape.n * shape.d];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let tasks = rows.chunks_mut(shape.d << 12).enumerate();
        for_each_task(&mut vec![(); threads], tasks, |(), (piece, rows)| {
            for (i, row) in rows.chunks_exact_mut(shape.d).enumerate() {
                row.iter_mut().zip(columns).for_each(|(value, column)| *value = column[(piece << 12) + i]);
            }
        })
        .expect("it is not stopped");
        let parts = [RowBlock::new(Features::from_rows(&rows, shape.d).expect("whole rows"), None)];
        report_upload("row-major", &time(&parts));
    }
}

/// A fit on the GPU, from given rows or from rows that k-means++ draws.
fn estimator<T: Engine>(columns: &[Vec<T>], Shape { n, k, iterations, .. }: Shape, init: &Option<Init>) -> KMeans {
    let start = || (0..k).flat_map(|j| columns.iter().map(move |c| c[j * (n / k)].to_f64())).collect();
    let init = init.clone().unwrap_or_else(|| Init::Given(start()));
    KMeans::new(k).init(init).n_init(Restarts::Count(1)).max_iter(iterations).tol(0.0).device(Device::Cuda(None))
}

/// Seconds of fits per strategy.
const ENOUGH: f64 = 0.03;

/// Repeats a fit until `least` seconds are over, so that an idle GPU has time to raise its clock. There are at least two fits,
/// unless one takes long. Returns the wall seconds and the result of each fit.
fn repeated<T: Engine>(
    estimator: &KMeans,
    features: &Features<'_, T>,
    least: f64,
) -> Result<Vec<(f64, Fitted<T>)>, KMeansError> {
    let (begin, mut fits) = (Instant::now(), Vec::new());
    let wanted = |fits: usize, seconds: f64| fits == 0 || fits == 1 && seconds < 0.5 || seconds < least;
    while wanted(fits.len(), begin.elapsed().as_secs_f64()) {
        let begin = Instant::now();
        let fitted = estimator.fit_features(features, None)?;
        fits.push((begin.elapsed().as_secs_f64(), fitted));
    }
    Ok(fits)
}

/// Milliseconds of each iteration.
fn each<T: Engine>(fitted: &Fitted<T>) -> Vec<f64> {
    fitted.model.history().iter().map(|row| 1e3 * row.seconds.unwrap_or(f64::NAN)).collect()
}

/// The mean over all iterations but the first. In the first iteration, and only there, every row changes its cluster.
fn later(ms: &[f64]) -> f64 {
    let later = if ms.len() > 1 { &ms[1..] } else { ms };
    later.iter().sum::<f64>() / later.len() as f64
}

/// The fit whose iterations took the least time.
fn fastest<T: Engine>(fits: &[(f64, Fitted<T>)]) -> &(f64, Fitted<T>) {
    let total = |fit: &(f64, Fitted<T>)| each(&fit.1).iter().sum::<f64>();
    fits.iter().min_by(|a, b| total(a).total_cmp(&total(b))).expect("a fit at least")
}

/// Milliseconds per iteration (the mean and the median) of the fastest of some fits, and a digest of the result.
fn iteration<T: Engine>(estimator: &KMeans, features: &Features<'_, T>) -> Result<(f64, f64, u64), KMeansError> {
    let fits = repeated(estimator, features, ENOUGH)?;
    let fitted = &fastest(&fits).1;
    let ms = each(fitted);
    Ok((ms.iter().sum::<f64>() / ms.len() as f64, median(ms), digest(fitted)))
}

/// A digest of labels and inertia.
fn digest<T: Engine>(fitted: &Fitted<T>) -> u64 {
    let words = fitted.labels.iter().map(|label| u64::from(*label)).chain([fitted.model.inertia().to_bits()]);
    words.fold(0, |digest: u64, word| scrambled(digest.rotate_left(5) ^ word))
}

/// Prints one line per strategy.
fn strategies<T: Engine>(columns: &[Vec<T>], estimator: &KMeans, names: &[Strategy]) {
    let features = features_of(columns);
    let mut digest = None;
    for &strategy in names {
        match iteration(&estimator.clone().strategy(strategy), &features) {
            Ok((mean, median, found)) => {
                let same = if *digest.get_or_insert(found) == found { "same bits" } else { "OTHER BITS" };
                println!("  {:<20}{mean:>12.4} ms an iteration{median:>12.4} median   {same}", strategy.name());
            }
            Err(error) => println!("  {:<20}{error}", strategy.name()),
        }
    }
}

/// Prints a row of the chooser's table: the microseconds per iteration of every strategy that the default may take. Prints to
/// stderr how much the default loses compared with the best strategy.
fn choose<T: Engine>(columns: &[Vec<T>], shape: Shape, estimator: &KMeans) {
    let Shape { n, d, k, .. } = shape;
    let features = features_of(columns);
    let time = |strategy| {
        // A third of the usual time, because there are hundreds of shapes.
        let fits = repeated(&estimator.clone().strategy(strategy), &features, ENOUGH / 3.0);
        fits.map_or(f64::NAN, |fits| 1e3 * later(&each(&fastest(&fits).1)))
    };
    let candidates = measured();
    let times: Vec<f64> = candidates.iter().copied().map(time).collect();
    let best = (0..times.len()).min_by(|&i, &j| f64::total_cmp(&times[i], &times[j])).unwrap_or(0);
    let taken = time(Strategy::Default);
    // Four digits, or nothing for a strategy that does not support the shape.
    let digits = |time: f64| format!("{:.*}", (3 - time.log10().floor() as i32).max(0) as usize, time);
    let row: Vec<_> = times.iter().map(|&time| if time.is_nan() { String::new() } else { digits(time) }).collect();
    println!("{n},{d},{k},{},{}", T::NAME, row.join(","));
    let loss = 100.0 * (taken / times[best] - 1.0);
    eprintln!("{n} x {d}, k = {k}: best {} {:.1}, default {taken:.1}: {loss:+.1} %", candidates[best], times[best]);
}

/// Prints one object per strategy for `benches/papers.py`: the fastest of some fits.
fn json<T: Engine>(columns: &[Vec<T>], shape: Shape, estimator: &KMeans, names: &[String]) {
    let features = features_of(columns);
    let Shape { n, d, k, iterations } = shape;
    for name in names {
        let head = format!("{{\"shape\": \"{n}x{d}x{k}x{iterations}\", \"strategy\": {name:?}");
        let named = match name.as_str() {
            "cpu" => Ok(estimator.clone().device(Device::Cpu).device_memory_limit(None)),
            name => name.parse().map(|strategy| estimator.clone().strategy(strategy)),
        };
        STAGES.iter().for_each(|stage| stage.store(0, Ordering::Relaxed));
        let fits = match named.and_then(|estimator| repeated(&estimator, &features, ENOUGH)) {
            Ok(fits) => fits,
            Err(error) => {
                println!("{head}, \"error\": {:?}}}", error.to_string());
                continue;
            }
        };
        let (whole, best) = fastest(&fits);
        let ms = each(best);
        // The time that cross-processing spends on labels, fetches and additions, as shares of the iterations of all fits.
        let all: f64 = fits.iter().flat_map(|(_, fitted)| each(fitted)).sum();
        let stages = STAGES.each_ref().map(|stage| 1e-6 * stage.load(Ordering::Relaxed) as f64 / all);
        let stages = if stages[0] > 0.0 { format!(", \"stages\": {stages:.3?}") } else { String::new() };
        let mean = later(&ms);
        let sent = best.choice.plan.chunking.map_or(0.0, |chunking| (n * d * size_of::<T>()) as f64 * chunking.travelling());
        let changed: Vec<u64> = best.model.history().iter().map(|row| row.changed).collect();
        println!(
            "{head}, \"iterations\": {}, \"ms\": {mean}, \"total_ms\": {}, \"fit_ms\": {}, \"sent_bytes\": {sent}, \"inertia\": \
             {:e}, \"each\": {ms:?}, \"changed\": {changed:?}{stages}}}",
            ms.len(),
            ms.iter().sum::<f64>(),
            1e3 * whole,
            best.model.inertia(),
        );
    }
}

/// Predictions of all rows in one call, and of morsels from several threads, as a query engine calls them. The model is the starting
/// centroids after one iteration.
fn predictions<T: Engine>(columns: &[Vec<T>], shape: Shape, estimator: &KMeans, options: &Options) {
    const MORSEL: usize = 100_000;
    const THREADS: usize = 8;
    let Shape { n, d, .. } = shape;
    let begin = Instant::now();
    let features = features_of(columns);
    let model = estimator.clone().max_iter(1).fit_features(&features, None).expect("clusters").model;
    println!("  fit of one iteration, the first call: {:.3} ms", 1e3 * begin.elapsed().as_secs_f64());
    let model = model.on(Device::Cuda(None));
    let report = |name: &str, predict: &dyn Fn()| {
        let mut seconds: Vec<f64> = Vec::new();
        let begun = Instant::now();
        let few = |done: usize| done < if n * d < 1 << 20 { 21 } else { 6 };
        while seconds.len() < 2 || few(seconds.len()) && begun.elapsed().as_secs_f64() < 2.0 {
            let begin = Instant::now();
            predict();
            seconds.push(begin.elapsed().as_secs_f64());
        }
        let (first, median) = (seconds[0], median(seconds[1..].to_vec()));
        let speed = (n * d * size_of::<T>()) as f64 / median / 1e9;
        println!("  predict {name:<36}{:>10.3} ms (first {:.3}), {speed:.2} GB/s of rows", 1e3 * median, 1e3 * first);
    };
    // Without a name, the kernels are those that are predicted to be the fastest.
    let kernels = [("", Strategy::Default), (", float32 products", Strategy::Tiled), (", tensor cores", Strategy::Tensor)];
    for (name, kernel) in kernels {
        let model = model.strategy(kernel);
        report(&format!("in one call{name}"), &|| drop(model.predict(&features).expect("labels")));
    }
    let there = Columns::of(columns);
    let table = there.table::<T>();
    let on_gpu = Features::on_gpu(&table).expect("columns");
    for (name, kernel) in kernels {
        let model = model.strategy(kernel);
        report(&format!("on the GPU{name}"), &|| drop(model.predict_there(&on_gpu).expect("labels")));
    }
    if options.flag("--labels") {
        return;
    }
    report("with distances", &|| drop(model.predict_distances(&features).expect("distances")));
    let morsel = |start: usize| model.predict(&features.slice(start..n.min(start + MORSEL)).expect("a view")).expect("labels");
    report("in morsels, one thread", &|| (0..n).step_by(MORSEL).for_each(|start| drop(morsel(start))));
    report("in morsels, eight threads", &|| {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    loop {
                        let start = next.fetch_add(MORSEL, Ordering::Relaxed);
                        if start >= n {
                            break;
                        }
                        drop(morsel(start));
                    }
                });
            }
        });
    });
}

fn fits<T: Engine>(features: &Features<'_, T>, estimator: &KMeans) {
    let (n, d) = (features.n_rows(), features.n_features());
    let (mut whole, mut last) = (Vec::new(), None);
    for _ in 0..if n * d < 1 << 20 { 21 } else { 4 } {
        let begin = Instant::now();
        last = Some(estimator.fit_features(features, None).expect("clusters"));
        whole.push(begin.elapsed().as_secs_f64());
    }
    let Some(fitted) = last else { return };
    let history = fitted.model.history();
    let seconds: Vec<f64> = history.iter().map(|row| row.seconds.unwrap_or(f64::NAN)).collect();
    let (first, whole, loops): (_, _, f64) = (whole[0], median(whole[1..].to_vec()), seconds.iter().sum());
    println!(
        "  fit {:.3} ms (first {:.3}): {} iterations {:.3} ms, {:.4} ms each (median {:.4}); upload, preparation, labels \
         {:.3} ms; inertia {:.9e}",
        1e3 * whole,
        1e3 * first,
        history.len(),
        1e3 * loops,
        1e3 * loops / history.len() as f64,
        1e3 * median(seconds.clone()),
        1e3 * (whole - loops),
        fitted.model.inertia(),
    );
    println!("  {:>9}{:>12}{:>12}{:>14}{:>12}{:>12}", "iteration", "ms", "changed, %", "shift", "settled, %", "skipped, %");
    for (row, seconds) in history.iter().zip(seconds).take(30) {
        let changed = 100.0 * row.changed as f64 / n as f64;
        let [settled, skipped] = [row.settled, row.skipped].map(|share| 100.0 * share.unwrap_or(f64::NAN));
        println!(
            "  {:>9}{:>12.4}{changed:>12.4}{:>14.5e}{settled:>12.4}{skipped:>12.4}",
            row.iteration,
            1e3 * seconds,
            row.shift,
        );
    }
}

/// A line of this process's status, in bytes.
fn memory(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0
}

/// Runs a fit whose rows stream through `limit` bytes of the device. Prints what each iteration sends, compared with the ceiling
/// for pinned memory, and the host memory that the fit takes in addition to the labels that it returns.
fn streamed<T: Engine>(columns: &[Vec<T>], shape: Shape, estimator: &KMeans, limit: u64) {
    let Shape { n, d, .. } = shape;
    let features = features_of(columns);
    let some = [RowBlock::new(features.slice(0..n.min(1 << 24)).expect("memory for a view"), None)];
    let ceiling = || upload_benchmark(0, &some, 2).expect("a GPU").2;
    // Resets the peak memory, where the system allows it.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let resident = memory("VmRSS:");
    let begin = Instant::now();
    let fitted = match estimator.clone().device_memory_limit(Some(limit)).fit_features(&features, None) {
        Ok(fitted) => fitted,
        Err(error) => return println!("  {error}"),
    };
    let whole = begin.elapsed().as_secs_f64();
    let added = memory("VmHWM:") - resident - (4 * n) as f64;
    let ceiling = ceiling().max(ceiling());
    println!("  {}", fitted.choice.reason);
    let bytes = (n * d * size_of::<T>()) as f64;
    let sent = fitted.choice.plan.chunking.map_or(0.0, |chunking| bytes * chunking.travelling());
    let seconds: Vec<f64> = fitted.model.history().iter().map(|row| row.seconds.unwrap_or(f64::NAN)).collect();
    let median = median(seconds.clone());
    let [speed, of_data] = [sent / median, bytes / median].map(|speed| speed / 1e9);
    println!(
        "  fit {whole:.3} s: {} iterations, {:.3} ms each (median), which send {:.3} of {:.3} GB: {speed:.2} GB/s, pinned ceiling \
         {:.2} GB/s: {:.0} %; {of_data:.2} GB/s of data; host memory besides the labels {:.0} MB; inertia {:.9e}",
        seconds.len(),
        1e3 * median,
        sent / 1e9,
        bytes / 1e9,
        ceiling / 1e9,
        100e9 * speed / ceiling,
        added / 1e6,
        fitted.model.inertia(),
    );
    let each: Vec<String> = seconds.iter().take(30).map(|seconds| format!("{:.1}", sent / seconds / 1e9)).collect();
    println!("  GB/s of each iteration: {}", each.join(" "));
}

/// Returns whether all labels are right, as far as they are checked.
fn run<T: Engine>(name: &str, shape: Shape, options: &Options) -> bool {
    let Shape { n, d, k, .. } = shape;
    let Rows { columns, start } = match rows::<T>(shape, options) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("{error}");
            return false;
        }
    };
    let init = options.init.clone().or(start.map(Init::Given));
    let estimator = estimator(&columns, shape, &init).tol_labels(options.tol_labels);
    if options.flag("--check") {
        let kind = options.kind.map_or(String::new(), |kind| format!(" {kind}"));
        println!("{name}: {n} x {d} {}, k = {k}{kind}", T::NAME);
        return check::check(&columns, &estimator.device_memory_limit(options.limit), shape.iterations, options);
    }
    time(name, shape, options, &columns, estimator);
    true
}

fn time<T: Engine>(name: &str, shape: Shape, options: &Options, columns: &[Vec<T>], estimator: KMeans) {
    let Shape { n, d, k, .. } = shape;
    if options.flag("--predictions") {
        println!("{name}: {n} x {d} {}, k = {k}", T::NAME);
        return predictions(columns, shape, &estimator, options);
    }
    if options.flag("--json") {
        return json(columns, shape, &estimator.device_memory_limit(options.limit), &options.names);
    }
    if options.flag("--choose") {
        return choose(columns, shape, &estimator);
    }
    println!("{name}: {n} x {d} {}, k = {k}, {:.3} GB", T::NAME, (n * d * size_of::<T>()) as f64 / 1e9);
    if !options.strategies.is_empty() {
        return strategies(columns, &estimator, &options.strategies);
    }
    if !options.devices.is_empty() {
        return devices::report(columns, &estimator.device_memory_limit(options.limit), &options.devices);
    }
    match options.limit {
        Some(limit) => streamed(columns, shape, &estimator, limit),
        None if !options.flag("--fits") => uploads(columns, shape),
        None => {}
    }
    if options.limit.is_none() || options.flag("--fits") {
        let features = features_of(columns);
        fits(&features, &estimator);
    }
}

pub fn main(arguments: Arguments) {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2)
        }
    };
    if let Err(why) = polars_kmeans::devices() {
        return eprintln!("no GPU: {why}");
    }
    let mut right = true;
    for (name, shape) in &options.shapes {
        right &= match options.flag("--float64") {
            true => run::<f64>(name, *shape, &options),
            false => run::<f32>(name, *shape, &options),
        };
    }
    if !right {
        std::process::exit(1);
    }
}
