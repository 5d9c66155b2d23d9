//! Many drawn rows at once (`seed_search` of `kernels/passes/seed.cu`, a block a row), in batches that take no more memory than
//! the steps of k-means++.

use crate::backend::cuda::arguments::{self, DrawsArgument, SearchArgument};
use crate::backend::cuda::device::{Buffer, Plain, buffers, bytes_of};
use crate::backend::cuda::passes::seeds::{CANDIDATES, DeviceSeeds, Draw, Ranges, TOTALS, draws, totals};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::shape::FitShape;
use crate::backend::{DrawBy, Picked};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
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
    let totals = bytes_of::<u128>(Ranges::new(shape.chunk).count).saturating_add(bytes_of::<u128>(1));
    let room = DeviceSeeds::<T>::room(shape).saturating_sub(totals);
    let sizes = std::iter::successors(Some(MOST), |size| Some(size / 2)).take_while(|size| *size > 1);
    sizes.into_iter().find(|&size| BatchBuffers::<T>::bytes(size, shape.d) <= room).unwrap_or(1)
}

/// The rows that targets draw. `seeds`: the distances, if the caller wants them.
pub fn pick<T: Float + Plain>(
    rows: &DeviceRows<T>,
    seeds: Option<&DeviceSeeds<T>>,
    weights: Option<WeightScale>,
    by: DrawBy,
    targets: &[u128],
    batch: usize,
) -> Result<Picked<T>> {
    let ranges = Ranges::new(rows.n);
    match (by, seeds, weights) {
        (DrawBy::Distance, Some(seeds), _) => search(rows, seeds.draws(rows), seeds.totals.at(), targets, batch),
        (DrawBy::Distance, None, _) => unreachable!("draws were started"),
        (_, _, None) => search(rows, draws(rows, ranges, Draw::Row, None), 0, targets, batch),
        (_, _, Some(scale)) => {
            let kind = if by == DrawBy::Positive { Draw::Positive } else { Draw::Weight };
            let draws = draws(rows, ranges, kind, Some(scale));
            let of_ranges: Buffer<u128> = rows.queue.alloc(ranges.count, TOTALS)?;
            totals(&rows.queue, draws, &of_ranges)?;
            search(rows, draws, of_ranges.at(), targets, batch)
        }
    }
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
    let mut picked = Picked {
        rows: memory::zeroed(count, CANDIDATES)?,
        values: memory::zeroed(count.saturating_mul(d), CANDIDATES)?,
        weights: memory::zeroed(count, CANDIDATES)?,
    };
    let most = batch.min(count.max(1));
    let buffers = BatchBuffers::<T>::allocate(queue, most, d)?;
    let launch = rows.entry(arguments::seed_search::<T>()).exactly(&queue.gpu, "", 1)?;
    for first in (0..count).step_by(most) {
        let places = first..count.min(first + most);
        buffers.targets.write(0, &targets[places.clone()])?;
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
        unsafe { queue.run(&launch.with_blocks(places.len()), &argument)? };
        buffers.rows.read(0, &mut picked.rows[places.clone()])?;
        buffers.values.read(0, &mut picked.values[places.start * d..places.end * d])?;
        buffers.weights.read(0, &mut picked.weights[places])?;
    }
    Ok(picked)
}

/// The values of all rows, row-major, and their weights.
pub fn all<T: Float + Plain>(rows: &DeviceRows<T>) -> Result<(Vec<T>, Vec<f64>)> {
    const WHAT: &str = "all rows";
    let (n, d) = (rows.n, rows.d);
    let (mut values, mut column) = (memory::zeroed(n.saturating_mul(d), WHAT)?, memory::zeroed(n, WHAT)?);
    for f in 0..d {
        rows.x.read(f * rows.stride, &mut column)?;
        values.iter_mut().skip(f).step_by(d).zip(&column).for_each(|(value, x)| *value = *x);
    }
    let mut weights = memory::filled(n, 1.0, WHAT)?;
    rows.weights.as_ref().map_or(Ok(()), |w| w.read(0, &mut weights))?;
    Ok((values, weights))
}
