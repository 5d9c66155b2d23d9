//! Times a seeding on the CPU beside the loop that follows it, on several kinds of data.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- seeding [SHAPE ...] [KIND ...] [--init METHOD ...] [--sample ROWS] [--array] [--f64]
//! [--vectors FILE] [--seeds COUNT]`
//!
//! With `--seeds`, inertias and times are medians over so many seeds. SHAPE is NxDxK. The seeding's time is that of a fit of one
//! iteration, less that of the same fit from given centroids. `--vectors` reads rows of float32 in little endian, N x D of them,
//! as another kind of data.

use crate::data::features_of;
use crate::kinds::{Kind, generate, row_by_row};
use crate::{Arguments, median, seconds};
use polars_kmeans::{Engine, Features, History, Init, KMeans};

/// Rows, features, clusters.
const SHAPES: [[usize; 3]; 5] =
    [[200_000, 16, 100], [50_000, 64, 200], [20_000, 256, 50], [1_000_000, 2, 50], [3_000_000, 2, 500]];
const KINDS: [Kind; 4] = [Kind::Blobs, Kind::Uniform, Kind::LognormalScales, Kind::Ties];

/// What is asked besides shapes and data.
#[derive(Clone, Copy)]
struct Asked {
    array: bool,
    sample: Option<u64>,
    seeds: Option<u64>,
}

/// Inertia after the seeding and after the fit, and times, as medians over some seeds.
fn quality<T: Engine>(features: &Features<'_, T>, estimator: &KMeans, seeds: u64, what: &str) {
    let (mut before, mut after, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..seeds {
        let fit = || estimator.clone().seed(seed).history(History::Full).fit_features(features, None);
        let (time, fitted) = seconds(fit);
        let Ok(fitted) = fitted else { return println!("{what}: too few distinct rows") };
        before.extend(fitted.model.history()[0].inertia);
        after.push(fitted.model.inertia());
        times.push(time);
    }
    let worst = after.iter().copied().fold(0.0, f64::max);
    let (before, after, time) = (median(before), median(after), 1e3 * median(times));
    println!("{what}: inertia {before:.6e} before the loop, {after:.6e} after it, at worst {worst:.6e}, fit {time:>9.1} ms");
}

fn bench<T: Engine>(kind: &str, x: &[f32], [n, d, k]: [usize; 3], init: &Init, asked: Asked) {
    let array = asked.array;
    let x: Vec<T> = x.iter().map(|&x| T::from_f64(f64::from(x))).collect();
    let columns: Vec<Vec<T>> =
        if array { Vec::new() } else { (0..d).map(|f| x.iter().skip(f).step_by(d).copied().collect()).collect() };
    let features = if array { Features::from_rows(&x, d).expect("whole rows") } else { features_of(&columns) };
    let estimator = KMeans::new(k).init(init.clone()).init_sample(asked.sample);
    if let Some(seeds) = asked.seeds {
        let what = format!("{n:>9} x {d:>3} into {k:>4} {kind:<10} {:<16}", init.word());
        return quality(&features, &estimator, seeds, &what);
    }
    let given: Vec<f64> = (0..k).flat_map(|j| x[j * (n / k) * d..][..d].iter().map(|c| c.to_f64())).collect();
    let fit = |estimator: KMeans| seconds(|| estimator.fit_features(&features, None));
    let rounds = if n * d * k > 1 << 29 { 1 } else { 3 };
    let (mut seeding, mut inertia) = (f64::INFINITY, 0.0);
    for _ in 0..rounds {
        let (with, fitted) = fit(estimator.clone().max_iter(1));
        let Ok(fitted) = fitted else { return println!("{n} x {d} into {k}, {kind}: too few distinct rows") };
        let (without, _) = fit(KMeans::new(k).max_iter(1).init(Init::Given(given.clone())));
        seeding = seeding.min(with - without);
        inertia = fitted.model.inertia();
    }
    let (whole, fitted) = fit(estimator);
    let model = fitted.expect("clusters").model;
    let looped: f64 = model.history().iter().filter_map(|row| row.seconds).sum();
    println!(
        "{n:>9} x {d:>3} into {k:>4} {kind:<10}{} {} {:<16}: seeding {:>9.1} ms, loop {:>9.1} ms of {:>3}, fit {:>9.1} ms, inertia {inertia:.6e}",
        if array { " Array" } else { "" },
        T::NAME,
        init.word(),
        1e3 * seeding,
        1e3 * looped,
        model.n_iter(),
        1e3 * whole,
    );
}

pub fn main(arguments: Arguments) {
    let arguments: Vec<String> = arguments.filter(|arg| arg != "--bench").collect();
    let has = |flag: &str| arguments.iter().any(|arg| arg == flag);
    let shape = |arg: &String| {
        let parts: Vec<usize> = arg.split('x').filter_map(|part| part.parse().ok()).collect();
        <[usize; 3]>::try_from(parts).ok()
    };
    let asked: Vec<[usize; 3]> = arguments.iter().filter_map(shape).collect();
    let shapes = if asked.is_empty() { SHAPES.to_vec() } else { asked };
    let kinds: Vec<Kind> = arguments.iter().filter_map(|arg| arg.parse().ok()).collect();
    let kinds = if kinds.is_empty() { KINDS.to_vec() } else { kinds };
    let vectors = arguments.iter().position(|arg| arg == "--vectors").and_then(|at| arguments.get(at + 1));
    let number = |flag: &str| {
        let at = arguments.iter().position(|arg| arg == flag)?;
        arguments.get(at + 1)?.parse().ok()
    };
    let asked = Asked { array: has("--array"), sample: number("--sample"), seeds: number("--seeds") };
    let inits: Vec<Init> = arguments.iter().filter_map(|arg| arg.parse().ok()).collect();
    let inits = if inits.is_empty() { vec![Init::KMeansPlusPlus] } else { inits };
    for [n, d, k] in shapes {
        let run = |kind: &str, x: &[f32]| {
            for init in &inits {
                if has("--f64") {
                    bench::<f64>(kind, x, [n, d, k], init, asked)
                } else {
                    bench::<f32>(kind, x, [n, d, k], init, asked)
                }
            }
        };
        if let Some(path) = vectors {
            let bytes = std::fs::read(path).expect("a file of vectors");
            let x: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            run("vectors", &x[..n * d]);
            continue;
        }
        for kind in &kinds {
            run(&kind.to_string(), &row_by_row(&generate(*kind, n, d)));
        }
    }
}
