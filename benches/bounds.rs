//! Times fits on the CPU, whose bounds leave out scores: iterations and whole fits, on blobs and on uniform rows.
//!
//! `cargo bench --no-default-features --bench bounds [-- NxDxK ... --iterations 100 --threads 0 --columns --blobs --repeats 3]`.
//! `--columns`: one array for each feature. `--blobs` or `--uniform`: such rows alone. `--repeats`: each fit so many times, which
//! must give the same result. Seconds are those of the history.

use std::time::Instant;

use polars_kmeans::{Device, Features, Init, KMeans};

const SHAPES: [[usize; 3]; 4] = [[2_000_000, 3, 2_000], [1_000_000, 8, 16], [200_000, 32, 256], [50_000, 256, 1_000]];

/// Ten blobs, or uniform rows: `(n, d)`, row-major.
fn rows(uniform: bool, n: usize, d: usize) -> Vec<f32> {
    let mut state = (n + d) as u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let centres: Vec<f32> = (0..10 * d).map(|_| 200.0 * unit() - 100.0).collect();
    let mut x = Vec::with_capacity(n * d);
    for _ in 0..n {
        let blob = (10.0 * unit()) as usize;
        for f in 0..d {
            // The sum of six uniform numbers is close enough to normal. Its variance is 1/2.
            let value =
                if uniform { unit() } else { centres[blob * d + f] + 14.1 * ((0..6).map(|_| unit()).sum::<f32>() - 3.0) };
            x.push(value);
        }
    }
    x
}

fn main() {
    let (mut shapes, mut iterations, mut threads, mut by_columns) = (Vec::new(), 60, 0, false);
    let mut repeats = 1;
    let mut kinds = &[false, true][..];
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--iterations" => iterations = arguments.next().and_then(|n| n.parse().ok()).expect("a number"),
            "--columns" => by_columns = true,
            "--repeats" => repeats = arguments.next().and_then(|n| n.parse().ok()).expect("a number"),
            "--blobs" => kinds = &[false],
            "--uniform" => kinds = &[true],
            "--threads" => threads = arguments.next().and_then(|n| n.parse().ok()).expect("a number"),
            shape => {
                let numbers: Vec<usize> = shape.split('x').map(|n| n.parse().expect("a shape: NxDxK")).collect();
                shapes.push(<[usize; 3]>::try_from(numbers).expect("a shape: NxDxK"));
            }
        }
    }
    let shapes = if shapes.is_empty() { SHAPES.to_vec() } else { shapes };
    println!("iteration, ms: 1, 2, 5, 10, 20, 40 and the mean; skipped, %: the same; whole fit, s");
    for [n, d, k] in shapes {
        for &uniform in kinds {
            let x = rows(uniform, n, d);
            let columns: Vec<Vec<f32>> = (0..d).map(|f| x.iter().skip(f).step_by(d).copied().collect()).collect();
            let features = match by_columns {
                true => Features::from_columns(columns.iter().map(|column| &column[..])),
                false => Features::from_rows(&x, d),
            };
            let features = features.expect("rows");
            let start = (0..k).flat_map(|j| x[j * (n / k) * d..][..d].iter().map(|v| f64::from(*v))).collect();
            let estimator = KMeans::new(k).init(Init::Given(start)).tol(0.0).max_iter(iterations).threads(threads);
            let mut first = None;
            println!("{n} x {d} x {k}, {}", if uniform { "uniform" } else { "ten blobs" });
            for _ in 0..repeats {
                let time = Instant::now();
                let fit = estimator.clone().device(Device::Cpu).fit_features(&features, None).expect("a fit");
                let whole = time.elapsed().as_secs_f64();
                let result = (fit.labels, fit.model.inertia().to_bits(), fit.model.n_iter());
                assert!(*first.get_or_insert_with(|| result.clone()) == result, "another result");
                let history = fit.model.history();
                let times: Vec<f64> = history.iter().map(|row| 1e3 * row.seconds.unwrap_or(0.0)).collect();
                let skipped: Vec<f64> = history.iter().map(|row| 100.0 * row.skipped.unwrap_or(0.0)).collect();
                let show = |values: &[f64]| {
                    let some = [0, 1, 4, 9, 19, 39].iter().filter_map(|i| values.get(*i)).map(|v| format!("{v:8.2}"));
                    let mean = values.iter().sum::<f64>() / values.len() as f64;
                    format!("{} mean {mean:8.1}", some.collect::<String>())
                };
                println!("  {} | {} | {whole:.2} in {}", show(&times), show(&skipped), history.len());
            }
        }
    }
}
