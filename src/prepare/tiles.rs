//! Visiting all rows of all parts, a tile at a time, in parallel.

use std::ops::Range;

use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::parallel::{for_each_task, workers_for};
use crate::tile::{Part, Tile, WeightScale};

/// Number of rows in a tile of these passes.
pub const TILE: usize = 256;
/// Number of rows in a task.
const TASK: usize = 16 * TILE;

/// Visits every tile of every part in parallel. Returns the workers.
pub fn for_each_tile<T: Float, W: Send>(
    parts: &[Part<'_, T>],
    threads: usize,
    worker: impl Fn() -> Result<W>,
    visit: impl Fn(&mut W, &Part<'_, T>, Range<usize>) + Sync,
) -> Result<Vec<W>> {
    let count = parts.iter().map(|part| part.features.n_rows().div_ceil(TASK)).sum();
    let tasks = parts.iter().flat_map(|part| {
        let n = part.features.n_rows();
        (0..n).step_by(TASK).map(move |start| (part, start..(start + TASK).min(n)))
    });
    let mut workers = memory::try_collected((0..workers_for(threads, count)).map(|_| worker()), "the threads' buffers")?;
    for_each_task(&mut workers, tasks, |worker, (part, range)| {
        for start in range.clone().step_by(TILE) {
            visit(worker, part, start..(start + TILE).min(range.end));
        }
    });
    Ok(workers)
}

/// Visits every tile of kept rows of positive weight.
pub fn for_each_positive_tile<T: Float, W: Send>(
    parts: &[Part<'_, T>],
    weights: Option<WeightScale>,
    threads: usize,
    worker: impl Fn() -> Result<W>,
    visit: impl Fn(&mut W, &Tile<T>) + Sync,
) -> Result<Vec<W>> {
    let d = parts[0].features.n_features();
    let visit = |(tile, worker): &mut (Tile<T>, W), part: &Part<'_, T>, range: Range<usize>| {
        tile.load(part, weights, range);
        tile.drop_weightless();
        visit(worker, tile);
    };
    let workers = for_each_tile(parts, threads, || Ok((Tile::new(d, TILE)?, worker()?)), visit)?;
    memory::collected(workers.into_iter().map(|(_, worker)| worker), "the threads' buffers")
}

/// Merges the workers' results for each column.
pub fn merge_columns<C>(workers: Vec<Vec<C>>, merge: impl Fn(&mut C, &C)) -> Vec<C> {
    workers
        .into_iter()
        .reduce(|mut all, other| {
            all.iter_mut().zip(&other).for_each(|(a, b)| merge(a, b));
            all
        })
        .unwrap_or_default()
}
