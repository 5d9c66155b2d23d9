//! How fast one thread compares rows with centroids by integer copies, for each unit of this machine: multiply-adds a nanosecond, with rows that lie in
//! a cache, and with rows that come from memory. Uniform rows.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- quads [DxK ...]`.

use crate::Arguments;
use polars_kmeans::DotUnit;
use polars_kmeans::backend::cpu::seconds_a_score;

const SHAPES: [[usize; 2]; 5] = [[64, 64], [64, 1_000], [256, 100], [256, 1_000], [768, 100]];
/// Blocks of 64 rows.
const FEW: usize = 4;
const MANY: usize = 1_024;

pub fn main(arguments: Arguments) {
    let shapes: Vec<[usize; 2]> = arguments
        .filter(|argument| argument != "--bench")
        .map(|shape| {
            let numbers = shape.split('x').map(|n| n.parse().expect("a shape: DxK")).collect::<Vec<usize>>();
            <[usize; 2]>::try_from(numbers).expect("a shape: DxK")
        })
        .collect();
    let shapes = if shapes.is_empty() { SHAPES.to_vec() } else { shapes };
    println!("d x k: multiply-adds a nanosecond of {FEW} blocks, and of {MANY}");
    for [d, k] in shapes {
        for unit in DotUnit::HARDWARE.into_iter().filter(|unit| unit.or_emulated() == *unit) {
            let rate = |blocks, times| d as f64 / (1e9 * seconds_a_score(unit, [d, k, blocks], times).expect("memory"));
            let times = (1e9 / (d * k * FEW * 64) as f64).ceil() as usize;
            let (few, many) = (rate(FEW, times), rate(MANY, times.div_ceil(MANY / FEW)));
            println!("{d:>5} x {k:<6} {:<24} {few:8.0} {many:8.0}", format!("{unit:?}"));
        }
    }
}
