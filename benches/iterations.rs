//! Times fits on the CPU, whose bounds leave out scores: iterations and whole fits, on several kinds of data.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- iterations [NxDxK ... --iterations 100 --threads 0 --columns --random --kinds blobs,uniform --repeats 3]`.
//! `--columns`: one array for each feature. `--random`: starts at random rows, instead of rows at equal distances. `--repeats`: each fit so many times, which must give the same result. Seconds are those of the history.

use std::time::Instant;

use crate::Arguments;
use crate::kinds::{Kind, generate, row_by_row};
use polars_kmeans::{Device, Features, Init, KMeans, Restarts};

const SHAPES: [[usize; 3]; 4] = [[2_000_000, 3, 2_000], [1_000_000, 8, 16], [200_000, 32, 256], [50_000, 256, 1_000]];

pub fn main(arguments: Arguments) {
    let (mut shapes, mut iterations, mut threads, mut by_columns) = (Vec::new(), 60, 0, false);
    let (mut repeats, mut random) = (1, false);
    let mut kinds = vec![Kind::Blobs, Kind::Uniform];
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--iterations" => iterations = arguments.next().and_then(|n| n.parse().ok()).expect("a number"),
            "--columns" => by_columns = true,
            "--random" => random = true,
            "--repeats" => repeats = arguments.next().and_then(|n| n.parse().ok()).expect("a number"),
            "--kinds" => {
                let names = arguments.next().expect("kinds of data");
                kinds = names.split(',').map(|name| name.parse().expect("a kind of data")).collect();
            }
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
        for &kind in &kinds {
            let columns = generate(kind, n, d);
            let x = row_by_row(&columns);
            let features = match by_columns {
                true => Features::from_columns(columns.iter().map(|column| &column[..])),
                false => Features::from_rows(&x, d),
            };
            let features = features.expect("rows");
            let start = (0..k).flat_map(|j| x[j * (n / k) * d..][..d].iter().map(|v| f64::from(*v))).collect();
            let init = if random { Init::Random } else { Init::Given(start) };
            let estimator = KMeans::new(k).init(init).n_init(Restarts::Count(1)).tol(0.0).max_iter(iterations).threads(threads);
            let mut first = None;
            println!("{n} x {d} x {k}, {kind}");
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
