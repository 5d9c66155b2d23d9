//! The state of seeding on the device: for each row the reference distance to the nearest centroid taken so far, and totals of
//! the draw weights for ranges of rows (`kernels/passes/seed.cu`). Only totals, gains and drawn rows come to the host.

use crate::backend::cuda::arguments::{
    self, BernoulliArgument, DrawsArgument, GainsArgument, GatherArgument, RowArgument, SearchArgument, StepArgument,
    TakeArgument, TotalsArgument,
};
use crate::backend::cuda::device::{Block, Buffer, Launch, Plain, Queue, bytes_of, product, sum};
use crate::backend::cuda::passes::byte_copies::copies_scale;
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::plus_plus::StepBuffers;
use crate::backend::cuda::passes::samples::found_rows;
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::shape::FitShape;
use crate::backend::trials;
use crate::backend::{Sample, Sampled};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::power_of_two;
use crate::input::tile::WeightScale;
use crate::statistics::Statistics;

/// The most ranges that a draw searches. One block searches all of them.
const RANGES: usize = 4_096;
/// Rows of a tile of `seed_take` and `seed_gains`. A range is a multiple of it.
pub(super) const TILE: usize = 256;
/// Threads of a block of `seed_take` and `seed_gains`, and threads of a block of `seed_search`.
const THREADS: u32 = 128;
pub(super) const SEARCHERS: u32 = 1_024;
/// The most tiles of a block of `seed_gains`. A thread has two rows in each tile, and an int64 can hold the sum of 131,072
/// limbs.
const MAX_TILES: usize = 131_072 / 2;
/// The most candidates that one launch of `seed_gains` can take.
pub(super) const MOST_AT_ONCE: usize = 12;

/// Draw weights of the rows. They are `w^` before the first centroid is taken, and integer distances afterwards.
pub struct DeviceSeeds<T> {
    weights: Option<WeightScale>,
    /// The scale of copies in bytes, if there can be any.
    pub(super) copies_scale: Option<f64>,
    /// The scale of the integer distances, once a centroid was taken.
    pub(super) scale: arguments::DistanceScale,
    pub(super) ranges: Ranges,
    /// For each row, the reference distance to the nearest centroid taken so far. Undefined before the first one.
    pub(super) nearest: Buffer<f64>,
    taken: bool,
    /// The total draw weight of each range. Undefined while all rows weigh the same.
    pub(super) totals: Buffer<u128>,
    pub(super) total: u128,
    kind: std::marker::PhantomData<T>,
}

/// Rows in ranges of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranges {
    pub rows: usize,
    pub count: usize,
}

impl Ranges {
    pub(super) fn new(n: usize) -> Self {
        let rows = n.div_ceil(RANGES).next_multiple_of(TILE).max(TILE);
        Self { rows, count: n.div_ceil(rows) }
    }
}

// ---- arguments, as `kernels/passes/seed.cu` declares
// them -----------------------------------------------------------------------

/// What a row weighs in a draw: `DRAW_*` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Draw {
    /// All rows weigh the same.
    Row = 0,
    Weight = 1,
    Distance = 2,
    /// 1 if the weight is positive.
    Positive = 3,
}

/// The names of the totals of ranges, and of the drawn rows, in errors.
pub(super) const TOTALS: &str = "the totals of the draws";
pub(super) const CANDIDATES: &str = "the rows drawn";

// ---- the state -----------------------------------------------------------------------------------------------------------

impl<T: Float + Plain> DeviceSeeds<T> {
    /// The bytes that seeding takes on the device.
    pub fn bytes(shape: &FitShape) -> u64 {
        let FitShape { d, k, .. } = *shape;
        let (ranges, m) = (Ranges::new(shape.chunk).count, trials(k) as usize);
        let (values, wide) = (bytes_of::<T>(product([m, d])), bytes_of::<u128>(m));
        // A search holds row numbers, values and targets. Then the values and the gains are there.
        let search = sum([bytes_of::<u64>(m), values, wide]);
        let take = sum([bytes_of::<T>(d), bytes_of::<u128>(1)]);
        let state = sum([bytes_of::<f64>(shape.padded_rows()), bytes_of::<u128>(ranges)]);
        let steps = StepBuffers::<T>::bytes_of_steps(shape.chunk, d, k);
        sum([state, search.max(take).max(steps)])
    }

    /// The bytes of this that a pass may take besides the distances and the totals.
    pub(super) fn room(shape: &FitShape) -> u64 {
        let state = sum([bytes_of::<f64>(shape.padded_rows()), bytes_of::<u128>(Ranges::new(shape.chunk).count)]);
        Self::bytes(shape).saturating_sub(state)
    }

    /// Makes every row's draw weight its `w^`.
    pub fn start(rows: &DeviceRows<T>, statistics: &Statistics) -> Result<Self> {
        let ranges = Ranges::new(rows.n);
        let mut seeds = Self {
            weights: statistics.weights,
            copies_scale: copies_scale(statistics),
            scale: (&DistanceScale::NONE).into(),
            ranges,
            nearest: rows.queue.alloc(rows.padded_rows(), "the distances of the rows to the nearest seed")?,
            taken: false,
            totals: rows.queue.alloc(ranges.count, TOTALS)?,
            total: rows.n as u128,
            kind: std::marker::PhantomData,
        };
        let draws = seeds.draws(rows);
        if draws.kind != Draw::Row as i32 {
            seeds.total = totals(&rows.queue, draws, &seeds.totals)?;
        }
        Ok(seeds)
    }

    /// The total of all draw weights.
    pub fn total(&self) -> u128 {
        self.total
    }

    pub(super) fn draws(&self, rows: &DeviceRows<T>) -> DrawsArgument {
        let kind = match self.weights {
            _ if self.taken => Draw::Distance,
            Some(_) => Draw::Weight,
            None => Draw::Row,
        };
        let weight_to_integer = self.weights.map_or(1.0, |scale| power_of_two(53 - scale.exponent));
        let nearest = self.nearest.at();
        DrawsArgument { nearest, scale: self.scale, weight_to_integer, ..draws(rows, self.ranges, kind) }
    }

    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    pub fn draw(&self, rows: &DeviceRows<T>, target: u128) -> Result<u64> {
        if !self.taken && self.weights.is_none() {
            return Ok(target as u64);
        }
        let found = search(rows, self.draws(rows), &self.totals, &[target])?;
        Ok(found.rows.to_vec()?[0])
    }

    /// Does a whole step of the seeding except the choice: draws one row for each target, and computes by how much each row
    /// would lower the total.
    pub fn trials(&self, rows: &DeviceRows<T>, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let candidates = search(rows, self.draws(rows), &self.totals, targets)?.values;
        let gains = self.gains_of(rows, &candidates)?;
        Ok((candidates.to_vec()?, gains.to_vec()?))
    }

    /// For each candidate, by how much it would lower the total. `candidates`: `(m, d)`, row-major.
    pub fn gains(&mut self, rows: &DeviceRows<T>, candidates: &[T]) -> Result<Vec<u128>> {
        self.gains_of(rows, &rows.queue.upload(candidates, CANDIDATES)?)?.to_vec()
    }

    fn gains_of(&self, rows: &DeviceRows<T>, candidates: &Buffer<T>) -> Result<Buffer<u128>> {
        assert!(self.taken, "a gain is over a centroid taken before");
        let (queue, m) = (&rows.queue, candidates.len() / rows.d);
        let gains = queue.zeros(m, CANDIDATES)?;
        for first in (0..m).step_by(MOST_AT_ONCE) {
            let here = (m - first).min(MOST_AT_ONCE);
            let kernel = arguments::seed_gains::<T>()
                .half_if(rows.half().is_some())
                .load(&queue.gpu, &format!("_{}", here.next_multiple_of(2)))?;
            let launch = Launch::resident(&queue.gpu, kernel, Block::of(THREADS), usize::MAX)?;
            let launch = launch.with_blocks(gains_blocks(rows.n, launch.blocks) as usize);
            let argument = GainsArgument {
                rows: rows.argument(),
                nearest: self.nearest.at(),
                candidates: candidates.at_index(first * rows.d),
                gains: gains.at_index(first),
                scale: self.scale,
                m: here as i32,
                first: first as u32,
                step: StepArgument::ZERO,
            };
            // SAFETY: the kernel reads `here` candidates and adds to as many gains. `nearest` is
            // as long as the stride. The kernel is compiled for at least `here` candidates.
            unsafe { queue.run(&launch, &argument)? };
        }
        Ok(gains)
    }

    /// Takes centroids (`(m, d)`, row-major). The draw weights become integer distances, in this scale, to the nearest centroid
    /// taken so far. Returns their total.
    pub fn take(&mut self, rows: &DeviceRows<T>, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        assert!(centroids.len().is_multiple_of(rows.d) && (self.taken || !centroids.is_empty()));
        self.scale = (&scale).into();
        let queue = &rows.queue;
        if centroids.len() != rows.d {
            if !centroids.is_empty() {
                nearest_batch::lower(rows, &self.nearest, centroids, !self.taken)?;
                self.taken = true;
            }
            self.total = totals(queue, self.draws(rows), &self.totals)?;
            return Ok(self.total);
        }
        let (centroid, total) = (queue.upload(centroids, "the centroid taken")?, queue.zeros::<u128>(1, TOTALS)?);
        let kernel = arguments::seed_take::<T>().half_if(rows.half().is_some()).load(&queue.gpu, "")?;
        let launch = Launch::resident(&queue.gpu, kernel, Block::of(THREADS), self.ranges.count)?;
        let argument = TakeArgument {
            rows: rows.argument(),
            nearest: self.nearest.at(),
            centroids: centroid.at(),
            totals: self.totals.at(),
            total: total.at(),
            scale: self.scale,
            range: self.ranges.rows as u64,
            ranges: self.ranges.count as u32,
            first: i32::from(!self.taken),
            step: StepArgument::ZERO,
        };
        // SAFETY: the kernel reads one centroid. `nearest` is as long as the stride. Each range has a
        // total.
        unsafe { queue.run(&launch, &argument)? };
        self.taken = true;
        self.total = total.to_vec()?[0];
        Ok(self.total)
    }

    /// The rows of a sample in which every row decides alone.
    pub fn sample(&self, rows: &DeviceRows<T>, sample: &Sample) -> Result<Sampled<T>> {
        assert!(self.taken, "a sample is by the distances to centroids taken before");
        let (queue, draws) = (&rows.queue, self.draws(rows));
        let kernel = arguments::seed_sample::<T>().half_if(rows.half().is_some()).load(&queue.gpu, "")?;
        let launch = Launch::resident(&queue.gpu, kernel, Block::of(256), rows.n.div_ceil(256))?;
        let found = found_rows(queue, sample, rows.n, |found| {
            let argument = BernoulliArgument { rows: rows.argument(), draws, sample: sample.into(), found };
            // SAFETY: the kernel reads n distances and weights. It writes no more row numbers
            // than there is room for.
            unsafe { queue.run(&launch, &argument) }
        })?;
        Ok(Sampled { values: gather(rows, &found)?, rows: found })
    }
}

/// Blocks of `seed_gains`: as many as are resident at once. But no thread may have more rows than its sums have room for, and
/// no block may be without rows.
pub(super) fn gains_blocks(n: usize, resident: u32) -> u32 {
    let tiles = n.div_ceil(TILE);
    tiles.min(tiles.div_ceil(MAX_TILES).max(resident as usize)) as u32
}

// ---- single rows ---------------------------------------------------------------------------------------------------------

/// The values of a row.
pub fn row<T: Float + Plain>(rows: &DeviceRows<T>, row: u64) -> Result<Vec<T>> {
    assert!(row < rows.n as u64, "row {row} of {}", rows.n);
    let values = rows.queue.alloc(rows.d, "a row")?;
    let argument = RowArgument { rows: rows.argument(), values: values.at(), row };
    let kernel = arguments::seed_row::<T>().half_if(rows.half().is_some()).load(&rows.queue.gpu, "")?;
    // SAFETY: the kernel writes d values. The row exists (asserted).
    unsafe { rows.queue.run(&Launch::exactly(kernel, Block::of(256), 1), &argument)? };
    values.to_vec()
}

/// The values of these rows: `(m, d)`.
fn gather<T: Float + Plain>(rows: &DeviceRows<T>, wanted: &[u64]) -> Result<Vec<T>> {
    assert!(wanted.iter().all(|&row| row < rows.n as u64));
    let (queue, count) = (&rows.queue, wanted.len());
    let (wanted, values) = (queue.upload(wanted, CANDIDATES)?, queue.alloc(count * rows.d, CANDIDATES)?);
    let argument = GatherArgument { rows: rows.argument(), wanted: wanted.at(), values: values.at(), count: count as u64 };
    let kernel = arguments::seed_gather::<T>().half_if(rows.half().is_some()).load(&queue.gpu, "")?;
    let launch = Launch::resident(&queue.gpu, kernel, Block::of(256), count)?;
    // SAFETY: the kernel writes d values for each of `count` rows. The rows exist (asserted).
    unsafe { queue.run(&launch, &argument)? };
    values.to_vec()
}

/// The number of rows of positive weight.
pub fn positive_rows<T: Float + Plain>(rows: &DeviceRows<T>) -> Result<u64> {
    if rows.weights.is_none() {
        return Ok(rows.n as u64);
    }
    let ranges = Ranges::new(rows.n);
    totals(&rows.queue, draws(rows, ranges, Draw::Positive), &rows.queue.alloc(ranges.count, TOTALS)?).map(|total| total as u64)
}

pub(super) fn draws<T: Float + Plain>(rows: &DeviceRows<T>, ranges: Ranges, kind: Draw) -> DrawsArgument {
    DrawsArgument {
        w: rows.weights.as_ref().map_or(0, Buffer::at),
        nearest: 0,
        scale: (&DistanceScale::NONE).into(),
        weight_to_integer: 1.0,
        n: rows.n as u64,
        range: ranges.rows as u64,
        ranges: ranges.count as u32,
        kind: kind as i32,
    }
}

/// Writes the total draw weight of each range. Returns the total of all ranges.
pub(super) fn totals(queue: &Queue, draws: DrawsArgument, totals: &Buffer<u128>) -> Result<u128> {
    assert!(totals.len() >= draws.ranges as usize);
    let total = queue.zeros::<u128>(1, TOTALS)?;
    let argument = TotalsArgument { draws, totals: totals.at(), total: total.at() };
    let kernel = arguments::seed_totals().load(&queue.gpu, "")?;
    // SAFETY: the kernel writes one total for each range, and there is room for them (asserted).
    unsafe { queue.run(&Launch::exactly(kernel, Block::of(256), draws.ranges), &argument)? };
    Ok(total.to_vec()?[0])
}

/// Writes the total weight of each range of `range` rows. `totals` is the address of the first total. There must be room for
/// all totals.
pub fn weight_totals<T: Float + Plain>(rows: &DeviceRows<T>, scale: WeightScale, range: usize, totals: u64) -> Result<()> {
    let ranges = Ranges { rows: range, count: rows.n.div_ceil(range) };
    let weight_to_integer = power_of_two(53 - scale.exponent);
    let draws = DrawsArgument { weight_to_integer, ..draws(rows, ranges, Draw::Weight) };
    let total = rows.queue.zeros::<u128>(1, TOTALS)?;
    let launch = Launch::exactly(arguments::seed_totals().load(&rows.queue.gpu, "")?, Block::of(256), draws.ranges);
    // SAFETY: the kernel writes one total for each range. The caller promises room for them.
    unsafe { rows.queue.run(&launch, &TotalsArgument { draws, totals, total: total.at() }) }
}

/// The drawn rows, on the device.
struct Found<T> {
    rows: Buffer<u64>,
    /// `(m, d)`.
    values: Buffer<T>,
}

/// Finds the row of each target, with the help of the totals of the ranges.
fn search<T: Float + Plain>(
    rows: &DeviceRows<T>,
    draws: DrawsArgument,
    totals: &Buffer<u128>,
    targets: &[u128],
) -> Result<Found<T>> {
    let (queue, m) = (&rows.queue, targets.len());
    let found = Found { rows: queue.alloc(m, CANDIDATES)?, values: queue.alloc(m * rows.d, CANDIDATES)? };
    let targets = queue.upload(targets, CANDIDATES)?;
    let argument = SearchArgument {
        rows: rows.argument(),
        draws,
        totals: totals.at(),
        targets: targets.at(),
        found: found.rows.at(),
        values: found.values.at(),
        weights: 0,
    };
    let kernel = arguments::seed_search::<T>().half_if(rows.half().is_some()).load(&queue.gpu, "")?;
    // SAFETY: each block reads one target, and writes one row number and the d values of this
    // row. Targets are below the total, so the rows exist.
    unsafe { queue.run(&Launch::exactly(kernel, Block::of(SEARCHERS), m as u32), &argument)? };
    Ok(found)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(ranges_are_whole_tiles_and_few);
    fn ranges_are_whole_tiles_and_few() {
        for n in [1, 255, 256, 257, 1 << 20, (1 << 20) + 1, 134_217_728, u32::MAX as usize] {
            let Ranges { rows, count } = Ranges::new(n);
            assert!(rows % TILE == 0 && rows <= 1 << 24, "{n}");
            assert!(count <= RANGES && (count - 1) * rows < n && n <= count * rows, "{n}");
        }
    }

    unit_test!(no_thread_has_too_many_rows);
    fn no_thread_has_too_many_rows() {
        for (n, resident, blocks) in [(1, 1_000, 1), (257, 1_000, 2), (1 << 30, 1_000, 1_000), (u32::MAX as usize, 16, 256)] {
            assert_eq!(gains_blocks(n, resident), blocks);
            assert!(n.div_ceil(TILE).div_ceil(blocks as usize) <= MAX_TILES);
        }
    }
}
