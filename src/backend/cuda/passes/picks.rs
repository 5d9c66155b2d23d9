//! The rows that a draw names. Rows on the device are found there (`seed_search` of `kernels/passes/seed.cu`, a block a row), in
//! batches that take no more memory than the steps of k-means++. Rows that stream are found by the host: the totals say which ranges
//! have the rows, and the host looks through each of these ranges once.

use std::ops::Range;

use crate::backend::cuda::arguments::{self, DrawsArgument, SearchArgument};
use crate::backend::cuda::device::{Plain, buffers, bytes_of};
use crate::backend::cuda::passes::ranges::Ranges;
use crate::backend::cuda::passes::seeds::{CANDIDATES, DeviceDraws, DrawKind, TOTALS, argument, totals};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::chunks::{DeviceChunk, RowChunks};
use crate::backend::cuda::rows::stream::RowStream;
use crate::backend::cuda::shape::FitShape;
use crate::backend::sweep::Sweep;
use crate::backend::{Draw, DrawBy, Picked};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::exact::reference;
use crate::input::tile::WeightScale;

/// The most rows of a batch.
const MOST: usize = 1 << 14;

buffers! {
    /// A batch of `m` drawn rows of `d` features.
    struct BatchBuffers<T> = "the rows drawn" (m: usize, d: usize) {
        targets: u128 [m],
        rows: u64 [m],
        values: T [m * d],
        weights: f64 [m],
    }
}

/// The rows of a batch for a fit of this shape: as many as there is room for, at least one.
pub fn batch<T: Float + Plain>(shape: &FitShape) -> usize {
    // Totals of weights are made for a call.
    let totals = bytes_of::<u128>(Ranges::new(shape.chunk, shape.chunk).count()).saturating_add(bytes_of::<u128>(1));
    let room = DeviceDraws::<T>::room(shape).saturating_sub(totals);
    let sizes = std::iter::successors(Some(MOST), |size| Some(size / 2)).take_while(|size| *size > 1);
    sizes.into_iter().find(|&size| BatchBuffers::<T>::bytes(size, shape.d) <= room).unwrap_or(1)
}

/// The rows that a draw names. `draws`: the table of draws, if there is one. `batch`: the rows of a batch.
pub fn pick<T: Float + Plain>(
    rows: &RowChunks<'_, T>,
    draws: Option<&mut DeviceDraws<T>>,
    weights: Option<WeightScale>,
    draw: &Draw,
    batch: usize,
) -> Result<Picked<T>> {
    use Draw::{All, Each, Totals};
    match (rows, draw, draws) {
        (RowChunks::Resident(rows), All, _) => all(rows),
        (RowChunks::Streamed(stream), All, _) => {
            let all = 0..stream.sources.n;
            Ok(Picked { rows: Vec::new(), values: stream.values_of(all.clone())?, weights: stream.weights_of(all, weights)? })
        }
        (_, Each(sample), Some(draws)) => {
            let found = draws.each(rows, sample)?;
            match rows {
                RowChunks::Resident(rows) => {
                    let found: Vec<u128> = memory::collected(found.into_iter().map(u128::from), CANDIDATES)?;
                    numbered(rows, &found, batch)
                }
                RowChunks::Streamed(stream) => stream.picked(found, weights),
            }
        }
        (_, Totals(by, targets), Some(draws)) if draws.is_by(*by) => match rows {
            RowChunks::Resident(rows) => {
                search(rows, draws.argument(&DeviceChunk::of_all(rows)), draws.totals.at(), targets, batch)
            }
            RowChunks::Streamed(stream) => stream.picked(sweep(stream, draws, targets)?, weights),
        },
        (_, Totals(DrawBy::Distance, _) | Each(_), _) => unreachable!("centroids were taken"),
        (RowChunks::Streamed(stream), Totals(by, targets), _) => stream.pick(*by, weights, targets),
        (RowChunks::Resident(rows), Totals(by, targets), _) => {
            if weights.is_none() {
                return numbered(rows, targets, batch);
            }
            let kind = if *by == DrawBy::Positive { DrawKind::Positive } else { DrawKind::Weight };
            let (draws, of_ranges, _) = totals(&DeviceChunk::of_all(rows), kind, weights)?;
            search(rows, draws, of_ranges.at(), targets, batch)
        }
    }
}

/// The rows of these numbers.
fn numbered<T: Float + Plain>(rows: &DeviceRows<T>, numbers: &[u128], batch: usize) -> Result<Picked<T>> {
    let draws = argument(&DeviceChunk::of_all(rows), Ranges::new(rows.n, rows.n), DrawKind::Row, None);
    search(rows, draws, 0, numbers, batch)
}

/// For each target, the first row that streams whose running total exceeds it.
fn sweep<T: Float + Plain>(stream: &RowStream<'_, T>, draws: &DeviceDraws<T>, targets: &[u128]) -> Result<Vec<u64>> {
    let totals = draws.totals.to_vec()?;
    let mut sweep = Sweep::new(targets)?;
    for (index, rows) in draws.gain_ranges.iter().enumerate() {
        let [first, last] = [rows.start, rows.end - 1].map(|row| draws.ranges.of(row));
        let total: u128 = totals[first..=last].iter().sum();
        if sweep.stops_in(total - draws.lowered.get(index).unwrap_or(&0)) {
            let weights = draw_weights(stream, draws, rows.clone())?;
            rows.zip(weights).for_each(|(row, weight)| sweep.visit(row, weight));
        }
    }
    Ok(sweep.rows())
}

/// The draw weights of some rows that stream.
fn draw_weights<T: Float + Plain>(stream: &RowStream<'_, T>, draws: &DeviceDraws<T>, rows: Range<usize>) -> Result<Vec<u128>> {
    const TOGETHER: usize = 1_024;
    let (d, w) = (stream.sources.d, stream.weights_of(rows.clone(), draws.weights)?);
    if let (DrawKind::Weight, Some(scale)) = (draws.kind(), draws.weights) {
        return memory::collected(w.into_iter().map(|w| scale.integer(w) as u128), TOTALS);
    }
    let mut nearest = memory::zeroed::<f64>(rows.len(), TOTALS)?;
    draws.nearest.read(rows.start, &mut nearest)?;
    let values = if draws.pending.is_empty() { Vec::new() } else { stream.values_of(rows.clone())? };
    let mut weights = memory::zeroed::<u128>(rows.len(), TOTALS)?;
    let mut workers = vec![(); workers_for(0, rows.len().div_ceil(TOGETHER))];
    let tasks = (0..).step_by(TOGETHER).zip(weights.chunks_mut(TOGETHER));
    for_each_task(&mut workers, tasks, |(), (first, some)| {
        for (row, weight) in (first..).zip(some) {
            let x = values.get(row * d..(row + 1) * d);
            let pending = x.map_or(f64::INFINITY, |x| reference::distance(x, &draws.pending));
            *weight = draws.scale.quantise(w[row], nearest[row].min(pending));
        }
    })?;
    Ok(weights)
}

/// `totals`: the address of the totals of the ranges of `draws`. There are none where all rows weigh the same.
fn search<T: Float + Plain>(
    rows: &DeviceRows<T>,
    draws: DrawsArgument,
    totals: u64,
    targets: &[u128],
    batch: usize,
) -> Result<Picked<T>> {
    let (queue, d, count) = (&rows.queue, rows.d, targets.len());
    assert!(targets.iter().all(|target| draws.kind != DrawKind::Row as i32 || *target < rows.n as u128));
    let mut picked = Picked {
        rows: memory::zeroed(count, CANDIDATES)?,
        values: memory::zeroed(count.saturating_mul(d), CANDIDATES)?,
        weights: memory::zeroed(count, CANDIDATES)?,
    };
    let most = batch.min(count.max(1));
    let buffers = BatchBuffers::<T>::allocate(queue, most, d)?;
    let launch = rows.entry(arguments::seed_search::<T>()).exactly(&queue.gpu, "", 1)?;
    for first in (0..count).step_by(most) {
        let entries = first..count.min(first + most);
        buffers.targets.write(0, &targets[entries.clone()])?;
        let argument = SearchArgument {
            rows: rows.argument(),
            draws,
            totals,
            targets: buffers.targets.at(),
            found: buffers.rows.at(),
            values: buffers.values.at(),
            weights: buffers.weights.at(),
        };
        // SAFETY: each block reads one target, and writes a row number, a weight and the d values of this row. Targets are below
        // the total, so the rows exist.
        unsafe { queue.run(&launch.with_blocks(entries.len()), &argument)? };
        buffers.rows.read(0, &mut picked.rows[entries.clone()])?;
        buffers.values.read(0, &mut picked.values[entries.start * d..entries.end * d])?;
        buffers.weights.read(0, &mut picked.weights[entries])?;
    }
    Ok(picked)
}

/// All rows.
fn all<T: Float + Plain>(rows: &DeviceRows<T>) -> Result<Picked<T>> {
    const WHAT: &str = "all rows";
    let (n, d) = (rows.n, rows.d);
    let (mut values, mut column) = (memory::zeroed(n.saturating_mul(d), WHAT)?, memory::zeroed(n, WHAT)?);
    for f in 0..d {
        rows.x.read(f * rows.stride, &mut column)?;
        values.iter_mut().skip(f).step_by(d).zip(&column).for_each(|(value, x)| *value = *x);
    }
    let mut weights = memory::filled(n, 1.0, WHAT)?;
    rows.weights.as_ref().map_or(Ok(()), |w| w.read(0, &mut weights))?;
    Ok(Picked { rows: Vec::new(), values, weights })
}
