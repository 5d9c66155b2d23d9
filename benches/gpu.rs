//! One GPU, without Polars: uploads beside the pinned ceiling, then whole fits, from given centroids or those of k-means++,
//! iteration by iteration.
//!
//! `cargo bench --no-default-features --features cuda --bench gpu [-- SHAPE ... --float64 --fits --sweep --plus-plus --limit BYTES]`, where a
//! shape is a name of the table or `NxDxKxITERATIONS`, e.g. `10000000x4x16x20`. An upload counts from host memory to the last byte's arrival; a
//! fit is everything: preparation, upload, iterations, and labels on the host. Time and inertia are reported together. With a
//! limit, rows stream through so many bytes of the device; with `--fits` too, the resident fit follows.

use std::time::Instant;

use polars_kmeans::backend::cuda::{UploadPlan, upload_benchmark};
use polars_kmeans::parallel::for_each_task;
use polars_kmeans::tile::Part;
use polars_kmeans::{Chunk, Column, Device, Features, Float, Init, KMeans};

/// Name, rows, features, clusters, iterations.
const SHAPES: [(&str, Shape); 10] = [
    ("lutz-k4", Shape { n: 134_217_728, d: 4, k: 4, iterations: 10 }),
    ("lutz-k64", Shape { n: 134_217_728, d: 4, k: 64, iterations: 20 }),
    ("lutz-d256", Shape { n: 2_097_152, d: 256, k: 64, iterations: 20 }),
    ("li-2-100", Shape { n: 4_000_000, d: 2, k: 100, iterations: 50 }),
    ("li-kdd", Shape { n: 494_080, d: 34, k: 32, iterations: 100 }),
    ("blog-5", Shape { n: 10_000_000, d: 2, k: 5, iterations: 100 }),
    ("blog-1000", Shape { n: 10_000_000, d: 2, k: 1_000, iterations: 20 }),
    ("kmcuda", Shape { n: 300_000, d: 408, k: 5_000, iterations: 15 }),
    ("expression", Shape { n: 10_000_000, d: 4, k: 16, iterations: 20 }),
    ("small", Shape { n: 5_000, d: 20, k: 16, iterations: 100 }),
];

#[derive(Clone, Copy)]
struct Shape {
    n: usize,
    d: usize,
    k: usize,
    iterations: u32,
}

/// The generator of splitmix64, entered at any place.
fn scrambled(place: u64) -> u64 {
    let mut z = place.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Ten blobs (Lutz et al. 2018, section 6.1), `d` columns, by all threads.
fn blobs<T: Float>(n: usize, d: usize) -> Vec<Vec<T>> {
    const PIECE: usize = 1 << 16;
    let salt = ((n + d) as u64) << 40;
    let unit = |bits: u64| bits as f64 / 65_536.0;
    let centres: Vec<f64> = (0..10 * d as u64).map(|i| 200.0 * unit(scrambled(salt ^ !i) >> 48) - 100.0).collect();
    let mut columns: Vec<Vec<T>> = (0..d).map(|_| vec![T::default(); n]).collect();
    let tasks = columns
        .iter_mut()
        .enumerate()
        .flat_map(|(f, column)| column.chunks_mut(PIECE).enumerate().map(move |(piece, values)| (f, piece * PIECE, values)));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for_each_task(&mut vec![(); threads], tasks, |(), (f, first, values)| {
        for (i, value) in (first as u64..).zip(values) {
            let blob = ((scrambled(salt ^ i) >> 32) * 10) >> 32;
            // The sum of four uniform numbers is normal enough, and has variance 1/3.
            let bits = scrambled(salt ^ (1 << 39) ^ (i * d as u64 + f as u64));
            let sum: f64 = (0..4).map(|q| unit(bits >> (16 * q) & 0xFFFF)).sum();
            *value = T::from_f64(centres[blob as usize * d + f] + 17.32 * (sum - 2.0));
        }
    });
    columns
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

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

fn uploads<T: Float>(columns: &[Vec<T>], shape: Shape, sweep: bool) {
    let time = |parts: &[Part<'_, T>], plan| upload_benchmark(0, parts, plan, 6).expect("a GPU");
    let chunked = |chunks: usize| {
        let step = shape.n.div_ceil(chunks);
        let chunk = |values| Chunk::new(values, None).expect("no validity");
        let columns = columns.iter().map(|column| Column::new(column.chunks(step).map(chunk))).collect();
        Features::new(columns).expect("equal lengths")
    };
    for chunks in [1, 10, 1_000] {
        let parts = [Part::new(chunked(chunks), None)];
        report_upload(&format!("{chunks} chunks a column"), &time(&parts, None));
    }
    if shape.n * shape.d <= 1 << 28 {
        let mut rows = vec![T::default(); shape.n * shape.d];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let tasks = rows.chunks_mut(shape.d << 12).enumerate();
        for_each_task(&mut vec![(); threads], tasks, |(), (piece, rows)| {
            for (i, row) in rows.chunks_exact_mut(shape.d).enumerate() {
                row.iter_mut().zip(columns).for_each(|(value, column)| *value = column[(piece << 12) + i]);
            }
        });
        let parts = [Part::new(Features::from_rows(&rows, shape.d).expect("whole rows"), None)];
        report_upload("row-major", &time(&parts, None));
    }
    for lanes in if sweep { vec![1, 2, 4, 6, 8, 12, 16] } else { Vec::new() } {
        for slot in [256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20] {
            let parts = [Part::new(chunked(1), None)];
            let name = format!("{lanes} lanes, 2 x {} KiB", slot >> 10);
            report_upload(&name, &time(&parts, Some(UploadPlan { lanes, slot })));
        }
    }
}

fn fits<T: Float>(columns: &[Vec<T>], shape: Shape, init: Init) {
    let Shape { n, d, k, iterations } = shape;
    let features = Features::from_columns(columns.iter().map(|column| &column[..])).expect("equal lengths");
    let estimator = KMeans::new(k).init(init).max_iter(iterations).tol(0.0).device(Device::Cuda(None));
    let (mut whole, mut last) = (Vec::new(), None);
    for _ in 0..if n * d < 1 << 20 { 21 } else { 4 } {
        let begin = Instant::now();
        last = Some(estimator.fit_features(&features, None).expect("clusters"));
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
    println!("  {:>9}{:>12}{:>12}{:>14}", "iteration", "ms", "changed, %", "shift");
    for (row, seconds) in history.iter().zip(seconds).take(30) {
        let changed = 100.0 * row.changed as f64 / n as f64;
        println!("  {:>9}{:>12.4}{changed:>12.4}{:>14.5e}", row.iteration, 1e3 * seconds, row.shift);
    }
}

/// A line of this process's status, in bytes.
fn memory(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0
}

/// A fit whose rows stream through so many bytes of the device: what each iteration sends, beside the pinned ceiling, and the
/// host memory that it takes besides the labels that it returns.
fn streamed<T: Float>(columns: &[Vec<T>], shape: Shape, init: Init, limit: u64) {
    let Shape { n, d, k, iterations } = shape;
    let features = Features::from_columns(columns.iter().map(|column| &column[..])).expect("equal lengths");
    let some = [Part::new(features.slice(0..n.min(1 << 24)), None)];
    let ceiling = || upload_benchmark(0, &some, None, 2).expect("a GPU").2;
    let estimator = KMeans::new(k).init(init).max_iter(iterations).tol(0.0).device(Device::Cuda(None));
    // The peak from here on, where that is allowed.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let resident = memory("VmRSS:");
    let begin = Instant::now();
    let fitted = match estimator.device_memory_limit(Some(limit)).fit_features(&features, None) {
        Ok(fitted) => fitted,
        Err(error) => return println!("  {error}"),
    };
    let whole = begin.elapsed().as_secs_f64();
    let added = memory("VmHWM:") - resident - (4 * n) as f64;
    let ceiling = ceiling().max(ceiling());
    println!("  {}", fitted.choice.reason);
    let bytes = (n * d * size_of::<T>()) as f64;
    let sent = fitted.choice.chunking.map_or(0.0, |chunking| bytes * chunking.travelling());
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

fn run<T: Float>(name: &str, shape: Shape, limit: Option<u64>, flag: impl Fn(&str) -> bool) {
    let Shape { n, d, k, .. } = shape;
    println!("{name}: {n} x {d} {}, k = {k}, {:.3} GB", T::NAME, (n * d * size_of::<T>()) as f64 / 1e9);
    let columns = blobs::<T>(n, d);
    let start = (0..k).flat_map(|j| columns.iter().map(move |c| c[j * (n / k)].to_f64()));
    let init = if flag("--plus-plus") { Init::KMeansPlusPlus } else { Init::Given(start.collect()) };
    if let Some(limit) = limit {
        streamed(&columns, shape, init.clone(), limit);
    } else if !flag("--fits") {
        uploads(&columns, shape, flag("--sweep"));
    }
    if limit.is_none() || flag("--fits") {
        fits(&columns, shape, init);
    }
}

/// `10000000x4x16x20`.
fn parse(text: &str) -> Option<Shape> {
    let numbers: Vec<usize> = text.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [n, d, k, iterations] = numbers[..] else { return None };
    Some(Shape { n, d, k, iterations: u32::try_from(iterations).ok()? })
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let named = |name: &str| SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape).or_else(|| parse(name));
    let mut shapes: Vec<(String, Shape)> = Vec::new();
    let place = arguments.iter().position(|argument| argument == "--limit");
    let limit = place.and_then(|place| arguments.get(place + 1)).and_then(|bytes| bytes.parse().ok());
    let is_shape = |(i, argument): &(usize, &String)| !argument.starts_with('-') && place.is_none_or(|place| *i != place + 1);
    for (_, name) in arguments.iter().enumerate().filter(is_shape) {
        let Some(shape) = named(name) else {
            let names = SHAPES.map(|(name, _)| name).join(", ");
            return eprintln!("shape: expected NxDxKxITERATIONS or one of {names}, got {name:?}");
        };
        shapes.push((name.clone(), shape));
    }
    if shapes.is_empty() {
        shapes = SHAPES.map(|(name, shape)| (name.to_string(), shape)).to_vec();
    }
    if let Err(why) = polars_kmeans::devices() {
        return eprintln!("no GPU: {why}");
    }
    for (name, shape) in shapes {
        if flag("--float64") {
            run::<f64>(&name, shape, limit, flag);
        } else {
            run::<f32>(&name, shape, limit, flag);
        }
    }
}
