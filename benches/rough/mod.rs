//! Rough data beside blobs: what an iteration costs on data that is hard on the filter, as a multiple of what it costs on ten blobs
//! of the same shape, on the CPU or on one GPU.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- rough [OPTIONS]` (the CPU), or with `--features bench,cuda` and
//! `--device cuda`. Every fit starts from distinct rows in random order. There are three times: the first iteration, in which every row changes; the
//! median of the later ones, beside the median share of rows that they change; and a pass with the last centroids, in which no row
//! changes. The multiples of the first and of the last compare passes at an equal share of changed rows. The goal: the first at
//! most 2, a pass without changes at most 1.3. A `*` marks what misses it. The share of rows in doubt is given for
//! the first iteration and for a pass without changes: rows compared with a few centroids + rows compared with all centroids.
//!
//! - `--d 2,16`, `--k 64`, `--kinds pareto,ties` choose shapes and data (default: all).
//! - `--rows N`: rows (default: 8,000,000 on a GPU, 400,000 on the CPU; never more than 2^29 values).
//! - `--iterations I`, `--runs R`: iterations after the start, and how often everything runs (the least times count).
//! - `--quick`: d of 4, 16 and 64, and what 50 seconds are enough for. `--seconds S`: another limit. What comes after is left out.
//! - `--csv FILE`: also writes a line for each fit, as soon as it is done.

mod measure;
mod options;
mod table;

use std::io::Write;
use std::time::Instant;

use polars_kmeans::backend::cpu::InDoubt;
use polars_kmeans::{Features, Init, KMeans};

use self::measure::{Extent, measure};
use self::options::Options;
use crate::kinds::{self, Kind, starting_rows};
use crate::{Arguments, median};

/// One fit.
pub struct Result {
    pub kind: Kind,
    pub n: usize,
    pub d: usize,
    pub k: usize,
    /// Milliseconds of the first iteration, the median of the later ones, and of a pass in which nothing changes.
    pub first: f64,
    pub later: f64,
    pub steady: f64,
    /// The median share of rows that the later iterations change.
    pub changed: f64,
    pub first_in_doubt: InDoubt,
    pub steady_in_doubt: InDoubt,
}

/// Measures one fit.
fn fit(columns: &[Vec<f32>], kind: Kind, k: usize, options: &Options) -> std::result::Result<Result, String> {
    let (n, d) = (columns[0].len(), columns.len());
    let features = Features::from_columns(columns.iter().map(|column| &column[..])).map_err(|error| error.to_string())?;
    let start = starting_rows(columns, kind, k)?;
    let estimator = KMeans::new(k).init(Init::Given(start)).device(options.device).strategy(options.strategy);
    // Enough passes for a time that is much longer than the wait at their end.
    let passes = if options.on_gpu() { 16 } else { 1 };
    let extent = Extent { iterations: options.iterations, runs: options.runs, passes };
    let measured = measure(&estimator, &features, extent).map_err(|error| error.to_string())?;
    let (first, later) = measured.iterations.split_first().ok_or("no iterations")?;
    Ok(Result {
        kind,
        n,
        d,
        k,
        first: 1e3 * first.seconds,
        later: 1e3 * median(later.iter().map(|iteration| iteration.seconds).collect()),
        steady: 1e3 * measured.steady,
        changed: median(later.iter().map(|iteration| iteration.changed as f64 / n as f64).collect()),
        first_in_doubt: measured.first_in_doubt,
        steady_in_doubt: measured.steady_in_doubt,
    })
}

pub fn main(arguments: Arguments) {
    let options = Options::parse(arguments).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2)
    });
    let begin = Instant::now();
    let mut csv = options.csv.as_ref().map(|path| std::fs::File::create(path).expect("a file that can be written"));
    if let Some(csv) = &mut csv {
        writeln!(csv, "{}", table::CSV_HEAD).expect("room on the disk");
    }
    let (mut results, mut left_out) = (Vec::new(), 0);
    for &d in &options.d {
        let before = results.len();
        for &kind in &options.kinds {
            if begin.elapsed().as_secs_f64() > options.seconds {
                left_out += options.k.len();
                continue;
            }
            let columns = kinds::generate(kind, options.rows_of(d), d);
            for &k in &options.k {
                match fit(&columns, kind, k, &options) {
                    Ok(result) => {
                        if let Some(csv) = &mut csv {
                            writeln!(csv, "{}", table::csv(&result)).expect("room on the disk");
                        }
                        results.push(result);
                    }
                    Err(error) => println!("{kind} {d} x {k}: {error}"),
                }
            }
        }
        table::print(&results[before..], &options.k);
    }
    table::summary(&results, left_out);
}
