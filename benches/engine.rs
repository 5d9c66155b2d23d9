//! Times the engine alone, on slices: a whole fit, the assign step and the update step, on the CPU shapes.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- engine [SHAPE ...]`. Time and inertia are reported together. If no row changes
//! in an assign, the time is that of the assign step alone. If every row changes, the time includes the update's sums. The
//! difference is shown as update. `predictions` times the passes of a fitted model on the same shapes. `orders` times fits of
//! rows as given, and of rows that are numbered by their values; `orders cuda` on a GPU.

use std::sync::Arc;

use crate::data::{blobs, features_of};
use crate::{Arguments, median, seconds};
use polars_kmeans::InstructionSet;
use polars_kmeans::backend::Session;
use polars_kmeans::backend::cpu::CpuSession;
use polars_kmeans::input::tile::RowBlock;
use polars_kmeans::statistics::gather;
use polars_kmeans::{Device, Engine, Features, Init, KMeans, Restarts, RowOrder};

/// Name, rows, features, clusters, iterations.
const SHAPES: [(&str, usize, usize, usize, u32); 6] = [
    ("tiny", 500, 2, 4, 20),
    ("small", 5_000, 20, 16, 50),
    ("lutz-k4", 4_194_304, 4, 4, 10),
    ("li-kdd", 494_080, 34, 32, 30),
    ("kmcuda", 30_000, 408, 500, 15),
    ("blog-1000", 1_000_000, 2, 1_000, 10),
];

fn milliseconds(work: impl FnOnce()) -> f64 {
    1e3 * seconds(work).0
}

/// Many small fits from k-means++ starts, one after the other on the calling thread, as in a group-by.
fn groups<T: Engine>() {
    const GROUPS: usize = 10_000;
    let (rows, d, k) = (200, 4, 3);
    let columns: Vec<Vec<T>> = blobs(GROUPS * rows, d);
    let estimator = KMeans::new(k);
    let mut inertia = 0.0;
    let time = milliseconds(|| {
        for start in (0..GROUPS * rows).step_by(rows) {
            let features = Features::from_columns(columns.iter().map(|c| &c[start..start + rows])).expect("equal lengths");
            inertia += estimator.fit_features(&features, None).expect("clusters").model.inertia();
        }
    });
    println!(
        "{GROUPS} fits of {rows} x {d}, k = {k}, {}: {:.1} us a fit, inertia {inertia:.8e}",
        T::NAME,
        1e3 * time / GROUPS as f64
    );
}

/// The passes of a model over the rows that it was fitted to.
fn predictions() {
    println!("{:<11}{:>12}{:>12}{:>12}{:>12}", "shape", "labels, ms", "distances", "transform", "score");
    for (name, n, d, k, _) in SHAPES {
        let columns: Vec<Vec<f32>> = blobs(n, d);
        let features = features_of(&columns);
        let start = (0..k).flat_map(|j| columns.iter().map(move |c| f64::from(c[j * (n / k)]))).collect();
        let model = KMeans::new(k).init(Init::Given(start)).max_iter(2).fit_features(&features, None).expect("clusters").model;
        let rounds = if n < 10_000 { 51 } else { 3 };
        let time = |pass: &dyn Fn()| median((0..rounds).map(|_| milliseconds(pass)).collect());
        let labels = time(&|| drop(model.predict(&features)));
        let distances = time(&|| drop(model.predict_distances(&features)));
        let score = time(&|| drop(model.score(&features, None)));
        // All distances to a thousand centroids take gigabytes.
        let transform = if n * k <= 1 << 28 { time(&|| drop(model.transform(&features, false))) } else { f64::NAN };
        println!("{name:<11}{labels:>12.3}{distances:>12.3}{transform:>12.3}{score:>12.3}");
    }
}

/// Fits of rows as given, and of rows that are numbered by their values: an iteration of the loop, and the rest of the fit.
fn orders(device: Device) {
    println!("{:<11}{:>9}{:>12}{:>14}{:>14}{:>16}", "shape", "order", "fit, ms", "an iteration", "beside them", "inertia");
    for (name, n, d, k, iterations) in SHAPES {
        let columns: Vec<Vec<f32>> = blobs(n, d);
        let features = features_of(&columns);
        for order in [RowOrder::Given, RowOrder::Values] {
            let estimator = KMeans::new(k).init(Init::Random).n_init(Restarts::Count(1)).max_iter(iterations).tol(0.0);
            let estimator = estimator.row_order(order).device(device);
            let mut inertia = 0.0;
            let fits = (0..if n < 10_000 { 51 } else { 5 }).map(|_| {
                let mut in_loop = Vec::new();
                let whole = milliseconds(|| {
                    let fitted = estimator.fit_features(&features, None).expect("clusters");
                    inertia = fitted.model.inertia();
                    in_loop = fitted.model.history().iter().filter_map(|row| row.seconds).collect();
                });
                let all: f64 = in_loop.iter().map(|seconds| 1e3 * seconds).sum();
                (whole, all / in_loop.len() as f64, whole - all)
            });
            let fits: Vec<(f64, f64, f64)> = fits.collect();
            let each = |of: fn(&(f64, f64, f64)) -> f64| median(fits.iter().map(of).collect());
            let (whole, iteration, beside) = (each(|fit| fit.0), each(|fit| fit.1), each(|fit| fit.2));
            println!("{name:<11}{:>9}{whole:>12.3}{iteration:>14.4}{beside:>14.3}{inertia:>16.8e}", order.word());
        }
    }
}

pub fn main(arguments: Arguments) {
    let only: Vec<String> = arguments.filter(|arg| !arg.starts_with('-')).collect();
    if only.iter().any(|o| o == "predictions") {
        return predictions();
    }
    if only.iter().any(|o| o == "orders") {
        return orders(if only.iter().any(|o| o == "cuda") { Device::Cuda(None) } else { Device::Cpu });
    }
    if only.is_empty() || only.iter().any(|o| o == "groups") {
        groups::<f32>();
        groups::<f64>();
    }
    println!("{:<11}{:>10}{:>10}{:>10}{:>10}{:>16}", "shape", "fit, ms", "ms/iter", "assign", "update", "inertia");
    for (name, n, d, k, iterations) in SHAPES.into_iter().filter(|shape| only.is_empty() || only.iter().any(|o| o == shape.0)) {
        let columns: Vec<Vec<f32>> = blobs(n, d);
        let features = features_of(&columns);
        let start: Vec<f64> = (0..k).flat_map(|j| columns.iter().map(move |c| f64::from(c[j * (n / k)]))).collect();
        let estimator = KMeans::new(k).init(Init::Given(start.clone())).max_iter(iterations).tol(0.0);
        let rounds = if n < 10_000 { 51 } else { 3 };
        let (mut inertia, mut ran) = (0.0, 0);
        let fit = median(
            (0..rounds)
                .map(|_| {
                    milliseconds(|| {
                        let fitted = estimator.fit_features(&features, None).expect("clusters");
                        (inertia, ran) = (fitted.model.inertia(), fitted.model.n_iter());
                    })
                })
                .collect(),
        );

        let params = estimator.validate(d).expect("valid");
        let mut parts = vec![RowBlock::new(features.clone(), None)];
        let statistics = Arc::new(gather(&mut parts, &params).expect("finite"));
        let mut session = CpuSession::new(parts.remove(0), &statistics, k, 0, InstructionSet::detect()).expect("memory for it");
        let start: Vec<f32> = start.iter().map(|c| *c as f32).collect();
        let (mut all, mut none) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            session.reset().expect("no device that could fail");
            all.push(milliseconds(|| drop(session.assign(&start, false))));
            none.push(milliseconds(|| drop(session.assign(&start, false))));
        }
        let (all, none) = (median(all), median(none));
        println!("{name:<11}{fit:>10.3}{:>10.3}{none:>10.3}{:>10.3}{inertia:>16.8e}", fit / f64::from(ran), all - none);
    }
}
