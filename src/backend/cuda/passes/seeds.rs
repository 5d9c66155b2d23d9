//! The state of seeding on the device: for each row the reference distance to the nearest centroid taken so far, and totals of
//! the draw weights for ranges of rows (`kernels/passes/seed.cu`). Only totals, gains and drawn rows come to the host.

use crate::backend::cuda::arguments::{
    self, BernoulliArgument, DrawsArgument, GainsArgument, GatherArgument, RowArgument, SearchArgument, StepArgument,
    TakeArgument, TotalsArgument, weight_to_integer,
};
use crate::backend::cuda::device::{Buffer, Launch, Plain, Queue, bytes_of, product, sum};
use crate::backend::cuda::passes::byte_copies::{CopiedRows, copies_scale};
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::plus_plus::StepBuffers;
use crate::backend::cuda::passes::samples::found_rows;
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::shape::FitShape;
use crate::backend::trials;
use crate::backend::{Sample, Sampled};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::DistanceScale;
use crate::input::tile::WeightScale;
use crate::statistics::Statistics;

/// The most ranges that a draw searches. One block searches all of them.
pub(super) const RANGES: usize = 4_096;
/// Rows of a tile of `seed_take` and `seed_gains`. A range is a multiple of it.
const TILE: usize = 256;
/// The most tiles of a block of `seed_gains`. A thread has two rows in each tile, and an int64 can hold the sum of 131,072
/// limbs.
const MAX_TILES: usize = 131_072 / 2;
/// The most candidates that one launch of `seed_gains` can take.
const MOST_AT_ONCE: usize = 12;

/// Draw weights of the rows. They are `w^` before the first centroid is taken, and integer distances afterwards.
pub struct DeviceSeeds<T> {
    weights: Option<WeightScale>,
    /// The scale of copies in bytes, if there can be any.
    pub(super) copies_scale: Option<f64>,
    /// The copies, once steps have used them.
    pub(super) copied: Option<CopiedRows<T>>,
    /// The scale of the integer distances, once a centroid was taken.
    pub(super) scale: arguments::DistanceScale,
    pub(super) ranges: Ranges,
    /// For each row, the reference distance to the nearest centroid taken so far. Undefined before the first one.
    pub(super) nearest: Buffer<f64>,
    taken: bool,
    /// The total draw weight of each range. Undefined while all rows weigh the same.
    pub(super) totals: Buffer<u128>,
    /// The total of all draw weights.
    pub total: u128,
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

impl<T: Float + Plain> DeviceSeeds<T> {
    /// The bytes that seeding takes on the device.
    pub fn bytes(shape: &FitShape) -> u64 {
        let FitShape { d, k, .. } = *shape;
        let m = trials(k) as usize;
        let (values, wide) = (bytes_of::<T>(product([m, d])), bytes_of::<u128>(m));
        // A search holds row numbers, values and targets. Then the values and the gains are there.
        let search = sum([bytes_of::<u64>(m), values, wide]);
        let take = sum([bytes_of::<T>(d), bytes_of::<u128>(1)]);
        let steps = StepBuffers::<T>::bytes_of_steps(shape.chunk, d, k);
        sum([Self::state_bytes(shape), search.max(take).max(steps)])
    }

    /// The bytes of the distances and the totals.
    fn state_bytes(shape: &FitShape) -> u64 {
        sum([bytes_of::<f64>(shape.padded_rows()), bytes_of::<u128>(Ranges::new(shape.chunk).count)])
    }

    /// The bytes of this that a pass may take besides the distances and the totals.
    pub(super) fn room(shape: &FitShape) -> u64 {
        Self::bytes(shape).saturating_sub(Self::state_bytes(shape))
    }

    /// Makes every row's draw weight its `w^`.
    pub fn start(rows: &DeviceRows<T>, statistics: &Statistics) -> Result<Self> {
        let ranges = Ranges::new(rows.n);
        let mut seeds = Self {
            weights: statistics.weights,
            copies_scale: copies_scale(statistics),
            copied: None,
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

    pub(super) fn draws(&self, rows: &DeviceRows<T>) -> DrawsArgument {
        let kind = match self.weights {
            _ if self.taken => Draw::Distance,
            Some(_) => Draw::Weight,
            None => Draw::Row,
        };
        DrawsArgument { nearest: self.nearest.at(), scale: self.scale, ..draws(rows, self.ranges, kind, self.weights) }
    }

    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    pub fn draw(&self, rows: &DeviceRows<T>, target: u128) -> Result<u64> {
        if !self.taken && self.weights.is_none() {
            return Ok(target as u64);
        }
        let (found, _) = search(rows, self.draws(rows), &self.totals, &[target])?;
        Ok(found.to_vec()?[0])
    }

    /// Does a whole step of the seeding except the choice: draws one row for each target, and computes by how much each row
    /// would lower the total.
    pub fn trials(&self, rows: &DeviceRows<T>, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let (_, candidates) = search(rows, self.draws(rows), &self.totals, targets)?;
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
        for (launch, argument) in self.gains_launches(rows, candidates, m, gains.at(), StepArgument::ZERO)? {
            // SAFETY: there are m candidates and gains. `nearest` is as long as the stride.
            unsafe { queue.run(&launch, &argument)? };
        }
        Ok(gains)
    }

    /// The launches that add to `gains` (the address of `m` integers) by how much each candidate would lower the total. Each
    /// kernel is compiled for at least as many candidates as it takes.
    pub(super) fn gains_launches(
        &self,
        rows: &DeviceRows<T>,
        candidates: &Buffer<T>,
        m: usize,
        gains: u64,
        step: StepArgument,
    ) -> Result<Vec<(Launch<GainsArgument>, GainsArgument)>> {
        let launches = (0..m).step_by(MOST_AT_ONCE).map(|first| {
            let here = (m - first).min(MOST_AT_ONCE);
            let entry = rows.entry(arguments::seed_gains::<T>());
            let variant = format!("_{}", here.next_multiple_of(2));
            let launch = entry.resident(&rows.queue.gpu, &variant, usize::MAX)?;
            let argument = GainsArgument {
                rows: rows.argument(),
                nearest: self.nearest.at(),
                candidates: candidates.at_index(first * rows.d),
                gains: gains + (first * size_of::<u128>()) as u64,
                scale: self.scale,
                m: here as i32,
                first: first as u32,
                step,
            };
            Ok((launch.with_blocks(gains_blocks(rows.n, launch.blocks) as usize), argument))
        });
        memory::try_collected(launches, "the launches of k-means++")
    }

    /// The launch that takes a centroid by a pass over all rows. `centroids`, `total`: the addresses of the centroid (with a
    /// step: of its candidates) and, if the host wants it, of the total.
    pub(super) fn take_launch(
        &self,
        rows: &DeviceRows<T>,
        centroids: u64,
        total: u64,
        step: StepArgument,
    ) -> Result<(Launch<TakeArgument>, TakeArgument)> {
        let entry = rows.entry(arguments::seed_take::<T>());
        let argument = TakeArgument {
            rows: rows.argument(),
            nearest: self.nearest.at(),
            centroids,
            totals: self.totals.at(),
            total,
            scale: self.scale,
            range: self.ranges.rows as u64,
            ranges: self.ranges.count as u32,
            first: i32::from(!self.taken),
            step,
        };
        Ok((entry.resident(&rows.queue.gpu, "", self.ranges.count)?, argument))
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
        let (launch, argument) = self.take_launch(rows, centroid.at(), total.at(), StepArgument::ZERO)?;
        // SAFETY: the kernel reads one centroid. `nearest` is as long as the stride. Each range has a total.
        unsafe { queue.run(&launch, &argument)? };
        self.taken = true;
        self.total = total.to_vec()?[0];
        Ok(self.total)
    }

    /// The rows of a sample in which every row decides alone.
    pub fn sample(&self, rows: &DeviceRows<T>, sample: &Sample) -> Result<Sampled<T>> {
        assert!(self.taken, "a sample is by the distances to centroids taken before");
        let (queue, draws) = (&rows.queue, self.draws(rows));
        let entry = rows.entry(arguments::seed_sample::<T>());
        let launch = entry.resident(&queue.gpu, "", entry.blocks_of(rows.n))?;
        let found = found_rows(queue, sample, rows.n, |found| {
            let argument = BernoulliArgument { rows: rows.argument(), draws, sample: sample.into(), found };
            // SAFETY: the kernel reads n distances and weights. It writes no more row numbers than there is room for.
            unsafe { queue.run(&launch, &argument) }
        })?;
        Ok(Sampled { values: gather(rows, &found)?, rows: found })
    }
}

/// Blocks of `seed_gains`: as many as are resident at once. But no thread may have more rows than its sums have room for, and
/// no block may be without rows.
fn gains_blocks(n: usize, resident: u32) -> u32 {
    let tiles = n.div_ceil(TILE);
    tiles.min(tiles.div_ceil(MAX_TILES).max(resident as usize)) as u32
}

/// The values of a row.
pub fn row<T: Float + Plain>(rows: &DeviceRows<T>, row: u64) -> Result<Vec<T>> {
    assert!(row < rows.n as u64, "row {row} of {}", rows.n);
    let values = rows.queue.alloc(rows.d, "a row")?;
    let argument = RowArgument { rows: rows.argument(), values: values.at(), row };
    let launch = rows.entry(arguments::seed_row::<T>()).exactly(&rows.queue.gpu, "", 1)?;
    // SAFETY: the kernel writes d values. The row exists (asserted).
    unsafe { rows.queue.run(&launch, &argument)? };
    values.to_vec()
}

/// The values of these rows: `(m, d)`.
fn gather<T: Float + Plain>(rows: &DeviceRows<T>, wanted: &[u64]) -> Result<Vec<T>> {
    assert!(wanted.iter().all(|&row| row < rows.n as u64));
    let (queue, count) = (&rows.queue, wanted.len());
    let (wanted, values) = (queue.upload(wanted, CANDIDATES)?, queue.alloc(count * rows.d, CANDIDATES)?);
    let argument = GatherArgument { rows: rows.argument(), wanted: wanted.at(), values: values.at(), count: count as u64 };
    let launch = rows.entry(arguments::seed_gather::<T>()).resident(&queue.gpu, "", count)?;
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
    let of_ranges = rows.queue.alloc(ranges.count, TOTALS)?;
    totals(&rows.queue, draws(rows, ranges, Draw::Positive, None), &of_ranges).map(|total| total as u64)
}

/// What rows weigh in draws, but for distances.
pub(super) fn draws<T: Float + Plain>(
    rows: &DeviceRows<T>,
    ranges: Ranges,
    kind: Draw,
    weights: Option<WeightScale>,
) -> DrawsArgument {
    DrawsArgument {
        w: rows.weights.as_ref().map_or(0, Buffer::at),
        nearest: 0,
        scale: (&DistanceScale::NONE).into(),
        weight_to_integer: weight_to_integer(weights),
        n: rows.n as u64,
        range: ranges.rows as u64,
        ranges: ranges.count as u32,
        kind: kind as i32,
    }
}

/// Writes the total draw weight of each range. Returns the total of all ranges.
pub(super) fn totals(queue: &Queue, draws: DrawsArgument, totals: &Buffer<u128>) -> Result<u128> {
    assert!(totals.len() >= draws.ranges as usize);
    // SAFETY: there is room for the totals (asserted).
    let total = unsafe { write_totals(queue, draws, totals.at())? };
    Ok(total.to_vec()?[0])
}

/// Queues the kernel that writes the total draw weight of each range. Returns the total of all ranges, on the device.
///
/// # Safety
/// `totals` is the address of room for the total of each range.
unsafe fn write_totals(queue: &Queue, draws: DrawsArgument, totals: u64) -> Result<Buffer<u128>> {
    let total = queue.zeros::<u128>(1, TOTALS)?;
    let launch = arguments::seed_totals().exactly(&queue.gpu, "", draws.ranges as usize)?;
    // SAFETY: the kernel writes one total for each range. The caller promises room for them.
    unsafe { queue.run(&launch, &TotalsArgument { draws, totals, total: total.at() })? };
    Ok(total)
}

/// Writes the total weight of each range of `range` rows. `totals` is the address of the first total. There must be room for
/// all totals.
pub fn weight_totals<T: Float + Plain>(rows: &DeviceRows<T>, scale: WeightScale, range: usize, totals: u64) -> Result<()> {
    let ranges = Ranges { rows: range, count: rows.n.div_ceil(range) };
    // SAFETY: the caller has room for the totals.
    unsafe { write_totals(&rows.queue, draws(rows, ranges, Draw::Weight, Some(scale)), totals) }.map(drop)
}

/// Finds the row of each target, with the help of the totals of the ranges. Returns the rows and their values (`(m, d)`), on the
/// device.
fn search<T: Float + Plain>(
    rows: &DeviceRows<T>,
    draws: DrawsArgument,
    totals: &Buffer<u128>,
    targets: &[u128],
) -> Result<(Buffer<u64>, Buffer<T>)> {
    let (queue, m) = (&rows.queue, targets.len());
    let (found, values) = (queue.alloc(m, CANDIDATES)?, queue.alloc(m * rows.d, CANDIDATES)?);
    let targets = queue.upload(targets, CANDIDATES)?;
    let argument = SearchArgument {
        rows: rows.argument(),
        draws,
        totals: totals.at(),
        targets: targets.at(),
        found: found.at(),
        values: values.at(),
        weights: 0,
    };
    let launch = rows.entry(arguments::seed_search::<T>()).exactly(&queue.gpu, "", m)?;
    // SAFETY: each block reads one target, and writes one row number and the d values of this row. Targets are below the total,
    // so the rows exist.
    unsafe { queue.run(&launch, &argument)? };
    Ok((found, values))
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
