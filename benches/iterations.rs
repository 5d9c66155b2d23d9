//! Times fits on the CPU, whose bounds leave out scores: iterations and whole fits, on several kinds of data.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- iterations [NxDxK ... --iterations 100 --threads 0 --columns --random --kinds blobs,uniform --repeats 3]`.
//! `--columns`: one array for each feature. `--random`: starts at random rows, instead of rows at equal distances. `--repeats`: each fit so many times, which must give the same result. Seconds are those of the history.

use crate::kinds::Kind;
use crate::options::{Options, Rows};
use crate::{Arguments, seconds};
use polars_kmeans::{Device, Init, KMeans, Restarts};

const SHAPES: [[usize; 3]; 4] = [[2_000_000, 3, 2_000], [1_000_000, 8, 16], [200_000, 32, 256], [50_000, 256, 1_000]];

pub fn main(arguments: Arguments) {
    let options = Options { iterations: 60, threads: vec![0], repeats: 1, ..Options::default() }.parse(arguments);
    let kinds = options.kinds.unwrap_or(vec![Kind::Blobs, Kind::Uniform]);
    let shapes = if options.shapes.is_empty() { SHAPES.to_vec() } else { options.shapes };
    println!("iteration, ms: 1, 2, 5, 10, 20, 40 and the mean; skipped, %: the same; whole fit, s");
    for [n, d, k] in shapes {
        for &kind in &kinds {
            let rows = Rows::new(kind, [n, d, k], options.by_columns);
            let features = rows.features();
            let start = (0..k).flat_map(|j| rows.columns.iter().map(move |column| f64::from(column[j * (n / k)]))).collect();
            let init = if options.random { Init::Random } else { Init::Given(start) };
            let estimator = KMeans::new(k).init(init).n_init(Restarts::Count(1)).tol(0.0).max_iter(options.iterations);
            let estimator = estimator.threads(options.threads[0]).device(Device::Cpu);
            let mut first = None;
            println!("{n} x {d} x {k}, {kind}");
            for _ in 0..options.repeats {
                let (whole, fit) = seconds(|| estimator.fit_features(&features, None).expect("a fit"));
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
