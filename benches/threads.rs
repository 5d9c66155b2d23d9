//! Times the same fits with 1, 2, 4, ... threads, beside bare loops of these threads: products of integer copies, which lie in a cache, and copies of
//! memory.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- threads [NxDxK ... --kinds blobs,uniform --threads 1,2,4,8,16 --iterations 12 --repeats 3 --columns]`.
//! The time is that of the whole fit, from given rows to labels, of its loop, and of the first and the last iteration. "Times as fast" is the loop's time
//! with the least number of threads over its time; "of products" and "of copies" are its shares of what the bare loops gain. A fit cannot use more of
//! the machine than these loops do. `--columns`: the rows are one array for each feature.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use polars_kmeans::backend::cpu::seconds_a_score;
use polars_kmeans::{Device, DotUnit, Init, KMeans};

use crate::kinds::{Kind, starting_rows};
use crate::options::{Options, Rows};
use crate::{Arguments, median, seconds};

/// Shapes, and the kinds of data that each is timed with.
const SHAPES: [([usize; 3], &[Kind]); 6] = [
    ([200_000, 256, 1_000], &[Kind::Uniform, Kind::Blobs, Kind::Clusters(300)]),
    ([1_000_000, 32, 256], &[Kind::Uniform, Kind::Blobs]),
    ([16_000_000, 4, 4], &[Kind::Uniform]),
    ([4_000_000, 8, 100], &[Kind::Uniform, Kind::Blobs]),
    ([2_000_000, 2, 1_000], &[Kind::Uniform]),
    ([40_000, 1_500, 40], &[Kind::Uniform, Kind::Blobs]),
];
/// Bytes that a thread copies: more than caches hold.
const COPIED: usize = 128 << 20;
const TIMES: usize = 5;
/// How often the bare loops run. The best rate counts: a machine that others use too may be slow for a moment.
const ROUNDS: usize = 3;

/// What so many threads do in a nanosecond: multiply-adds of products, and bytes that are copied.
fn bare_loops(threads: usize) -> [f64; 2] {
    let start = Barrier::new(threads);
    let all_at_once = |work: &(dyn Fn() -> f64 + Sync)| -> f64 {
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        })
    };
    let products = || {
        let ([d, k], unit) = ([256, 1_000], DotUnit::fastest().unwrap_or(DotUnit::Emulated));
        start.wait();
        d as f64 / (1e9 * seconds_a_score(unit, [d, k, 4], 100).expect("memory"))
    };
    let copies = || {
        let (from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
        start.wait();
        let copied = || (0..TIMES).for_each(|_| black_box(&mut to).copy_from_slice(black_box(&from)));
        (TIMES * COPIED) as f64 / (1e9 * seconds(copied).0)
    };
    [all_at_once(&products), all_at_once(&copies)]
}

pub fn main(arguments: Arguments) {
    let options = Options { iterations: 12, threads: vec![1, 2, 4, 8, 16], repeats: 3, ..Options::default() };
    let Options { shapes, kinds, iterations, mut threads, repeats, by_columns, .. } = options.parse(arguments);
    let asked: Vec<_> = shapes.into_iter().map(|shape| (shape, &[Kind::Uniform][..])).collect();
    // The pool has a thread for each processor. Fits with more threads use one processor for several.
    threads.retain(|threads| thread::available_parallelism().is_ok_and(|most| *threads <= most.get()));
    println!("threads: products, multiply-adds a nanosecond; copies, GB/s");
    let mut bare = vec![[0.0f64; 2]; threads.len()];
    for _ in 0..ROUNDS {
        for (best, threads) in bare.iter_mut().zip(&threads) {
            let found = bare_loops(*threads);
            *best = [0, 1].map(|i| best[i].max(found[i]));
        }
    }
    for (threads, [products, copies]) in threads.iter().zip(&bare) {
        println!("{threads:>7}: {products:8.0} {copies:8.1}");
    }
    println!("threads: ms of the fit, its loop, the first and the last iteration; times as fast, of products, of copies");
    for ([n, d, k], own) in if asked.is_empty() { SHAPES.to_vec() } else { asked } {
        for kind in kinds.as_deref().unwrap_or(own) {
            let rows = Rows::new(*kind, [n, d, k], by_columns);
            let (features, start) = (rows.features(), starting_rows(&rows.columns, *kind, k).expect("enough rows"));
            let estimator = KMeans::new(k).init(Init::Given(start)).tol(0.0).max_iter(iterations).device(Device::Cpu);
            println!("{n} x {d} x {k}, {kind}");
            let mut first_loop = None;
            for (threads, rates) in threads.iter().zip(&bare) {
                let estimator = estimator.clone().threads(*threads);
                let fits = (0..repeats).map(|_| {
                    let (whole, fit) = seconds(|| estimator.fit_features(&features, None).expect("a fit"));
                    let all: Vec<f64> = fit.model.history().iter().map(|row| 1e3 * row.seconds.unwrap_or(0.0)).collect();
                    [1e3 * whole, all.iter().sum(), all[0], all[all.len() - 1]]
                });
                let fits: Vec<[f64; 4]> = fits.collect();
                let [whole, in_loop, first, last] = [0, 1, 2, 3].map(|i| median(fits.iter().map(|fit| fit[i]).collect()));
                let faster = *first_loop.get_or_insert(in_loop) / in_loop;
                let [products, copies] = [0, 1].map(|i| 100.0 * faster * bare[0][i] / rates[i]);
                println!(
                    "{threads:>7}: {whole:9.1} {in_loop:9.1} {first:8.1} {last:8.1} | {faster:5.2} {products:4.0} % {copies:4.0} %"
                );
            }
        }
    }
}
