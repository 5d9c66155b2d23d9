//! The table of draws on the device: for each row the reference distance to the nearest centroid taken so far, and totals of the
//! draw weights for ranges of rows (`kernels/passes/seed.cu`). Only totals, gains and drawn rows come to the host.
//!
//! ```text
//! a pass, for each chunk:
//!     take the pending centroids     one: seed_take; several: seed_lower of each row's nearest, then seed_totals
//!     gains of candidates            seed_gains for each gain range of the chunk
//!     or a sample                    seed_sample
//! ```
//! Rows that are all on the device are one chunk, with one gain range. If rows stream, a pass takes the time of the bus, and k-means++
//! makes one pass a step: it takes a candidate of the pass before, whose gains say what the totals are. The next pass takes this
//! centroid before it tries the next candidates.

use std::ops::Range;

use crate::backend::cuda::arguments::{
    self, BernoulliArgument, DrawsArgument, GainsArgument, StepArgument, TakeArgument, TotalsArgument, weight_to_integer,
};
use crate::backend::cuda::device::{At, Buffer, Launch, Plain, Queue, bytes_of, product, sum};
use crate::backend::cuda::passes::byte_copies::{CopiedRows, copies_scale};
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::plus_plus::StepBuffers;
use crate::backend::cuda::passes::ranges::{Ranges, TILE};
use crate::backend::cuda::passes::samples::found_rows;
use crate::backend::cuda::predict::DeviceTable;
use crate::backend::cuda::rows::chunks::{DeviceChunk, RowChunks};
use crate::backend::cuda::shape::{FitShape, ROW_ALIGNMENT, padded};
use crate::backend::{DrawBy, Sample, trials};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::DistanceScale;
use crate::input::tile::WeightScale;
use crate::statistics::Statistics;

/// The most tiles of a block of `seed_gains`. A thread has two rows in each tile, and an int64 can hold the sum of 131,072
/// limbs.
const MAX_TILES: usize = 131_072 / 2;
/// The most candidates that one launch of `seed_gains` can take.
const MOST_AT_ONCE: usize = 12;

/// Draw weights of the rows. They are `w^` before the first centroid is taken, and integer distances afterwards.
pub struct DeviceDraws<T> {
    pub(super) weights: Option<WeightScale>,
    /// The scale of copies in bytes, if there can be any.
    pub(super) copies_scale: Option<f64>,
    /// The copies, once steps have used them.
    pub(super) copied: Option<CopiedRows<T>>,
    /// The scale of the integer distances, once a centroid was taken.
    pub(super) scale: DistanceScale,
    pub(super) ranges: Ranges,
    pub(super) gain_ranges: Ranges,
    /// For each row, the reference distance to the nearest centroid taken so far. Undefined before the first one. `nearest` and
    /// `totals` do not know the pending centroid yet; `total` and all answers do.
    pub(super) nearest: Buffer<f64>,
    /// Whether `nearest` is defined.
    taken: bool,
    /// The total draw weight of each range. Undefined while all rows weigh the same.
    pub(super) totals: Buffer<u128>,
    /// The total of all draw weights.
    pub total: u128,
    /// The centroids that the next pass takes, row-major. Between two calls there is at most one: a candidate of the last gains.
    pub(super) pending: Vec<T>,
    /// For each gain range, by how much the pending centroid lowers its total. Empty if none is pending.
    pub(super) lowered: Vec<u128>,
    /// The last candidates, if the rows stream.
    trial: Option<Trial<T>>,
}

/// Candidates, and what they would lower.
struct Trial<T> {
    /// `(m, d)`.
    candidates: Vec<T>,
    /// `(gain ranges, m)`.
    gains: Vec<u128>,
}

/// What a row weighs in a draw: `DRAW_*` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum DrawKind {
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

impl<T: Float + Plain> DeviceDraws<T> {
    /// The bytes that seeding takes on the device. `streamed`: from rows that stream.
    pub fn bytes(shape: &FitShape, streamed: bool) -> u64 {
        let FitShape { d, k, .. } = *shape;
        let m = trials(k) as usize;
        let (values, wide) = (bytes_of::<T>(product([m, d])), bytes_of::<u128>(m));
        let take = sum([bytes_of::<T>(d), bytes_of::<u128>(1)]);
        if streamed {
            let ranges = Ranges::new(shape.rows, shape.chunk).for_gains(true).count();
            return sum([Self::table_bytes(shape), take, values, bytes_of::<u128>(product([ranges, m]))]);
        }
        // A search holds row numbers, values and targets. Then the values and the gains are there.
        let search = sum([bytes_of::<u64>(m), values, wide]);
        let steps = StepBuffers::<T>::bytes_of_steps(shape.chunk, d, k);
        sum([Self::table_bytes(shape), search.max(take).max(steps)])
    }

    /// The bytes of the distances and the totals.
    fn table_bytes(shape: &FitShape) -> u64 {
        let ranges = Ranges::new(shape.rows, shape.chunk).count();
        sum([bytes_of::<f64>(shape.padded_rows()), bytes_of::<u128>(ranges)])
    }

    /// The bytes of this that a pass over rows on the device may take besides the distances and the totals.
    pub(super) fn room(shape: &FitShape) -> u64 {
        Self::bytes(shape, false).saturating_sub(Self::table_bytes(shape))
    }

    /// Makes every row's draw weight its `w^`.
    pub fn start(rows: &RowChunks<'_, T>, statistics: &Statistics) -> Result<Self> {
        const NEAREST: &str = "the distances of the rows to the nearest seed";
        let (queue, n) = (rows.queue(), rows.n());
        let ranges = Ranges::new(n, rows.longest());
        let mut draws = Self {
            weights: statistics.weights,
            copies_scale: copies_scale(statistics),
            copied: None,
            scale: DistanceScale::NONE,
            ranges,
            gain_ranges: ranges.for_gains(matches!(rows, RowChunks::Streamed(_))),
            nearest: queue.alloc(padded(n.max(1), ROW_ALIGNMENT), NEAREST)?,
            taken: false,
            totals: queue.alloc(ranges.count(), TOTALS)?,
            total: n as u128,
            pending: Vec::new(),
            lowered: Vec::new(),
            trial: None,
        };
        if draws.weights.is_some() {
            draws.pass(rows, true, |_, _| Ok(()))?;
        }
        Ok(draws)
    }

    /// What the rows weigh now.
    pub(super) fn kind(&self) -> DrawKind {
        match self.weights {
            _ if self.taken || !self.pending.is_empty() => DrawKind::Distance,
            Some(_) => DrawKind::Weight,
            None => DrawKind::Row,
        }
    }

    /// Whether the draw weights are these, and there are totals of them.
    pub(super) fn is_by(&self, by: DrawBy) -> bool {
        matches!((self.kind(), by), (DrawKind::Distance, DrawBy::Distance) | (DrawKind::Weight, DrawBy::Weight))
    }

    /// The draw weights of a chunk as a kernel parameter.
    pub(super) fn argument(&self, chunk: &DeviceChunk<'_, T>) -> DrawsArgument {
        let argument = argument(chunk, self.ranges, self.kind(), self.weights);
        DrawsArgument { nearest: self.nearest.at_index(chunk.first), scale: (&self.scale).into(), ..argument }
    }

    /// One pass over the rows: takes the pending centroids, and calls `work` for each chunk. `anew`: the totals are made even if
    /// there are no such centroids.
    fn pass(
        &mut self,
        rows: &RowChunks<'_, T>,
        anew: bool,
        mut work: impl FnMut(&Self, &DeviceChunk<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let (queue, d, draws) = (rows.queue(), rows.d(), &*self);
        if !anew && self.pending.is_empty() {
            return rows.visit(|chunk| work(draws, chunk));
        }
        let (one, several) = (self.pending.len() == d, self.pending.len() > d);
        let one = one.then(|| queue.upload(&self.pending, "the centroid taken")).transpose()?;
        let several = several.then(|| DeviceTable::new(queue.gpu.ordinal, &self.pending, d)).transpose()?;
        let total = queue.zeros::<u128>(1, TOTALS)?;
        rows.visit(|chunk| {
            if let Some(centroid) = &one {
                let (launch, argument) = draws.take_launch(chunk, centroid.at(), total.at_of(), StepArgument::ZERO)?;
                // SAFETY: the kernel reads one centroid. Each row has a distance, and each range a total.
                unsafe { queue.run(&launch, &argument)? };
            } else {
                if let Some(table) = &several {
                    nearest_batch::lower(table, chunk, &draws.nearest, !draws.taken)?;
                }
                let totals = draws.totals.at_index(draws.ranges.of(chunk.first));
                // SAFETY: each row has a distance, unless the draw weights are `w^`, and each range a total.
                unsafe { add_totals(queue, draws.argument(chunk), totals, &total)? };
            }
            work(draws, chunk)
        })?;
        self.taken = self.kind() == DrawKind::Distance;
        self.pending.clear();
        self.lowered.clear();
        self.total = total.to_vec()?[0];
        Ok(())
    }

    /// The launch that takes a centroid by a pass over the rows of a chunk. `centroids`, `total`: the addresses of the centroid
    /// (with a step: of its candidates) and, if the host wants it, of the total.
    pub(super) fn take_launch(
        &self,
        chunk: &DeviceChunk<'_, T>,
        centroids: u64,
        total: At<u64>,
        step: StepArgument,
    ) -> Result<(Launch<TakeArgument>, TakeArgument)> {
        let (rows, ranges) = (chunk.rows, chunk.rows.n.div_ceil(self.ranges.rows));
        let entry = rows.entry(arguments::seed_take::<T>());
        let argument = TakeArgument {
            rows: rows.argument(),
            nearest: self.nearest.at_index(chunk.first),
            centroids,
            totals: self.totals.at_index(self.ranges.of(chunk.first)),
            total,
            scale: (&self.scale).into(),
            range: self.ranges.rows as u64,
            ranges: ranges as u32,
            first: i32::from(!self.taken),
            step,
        };
        Ok((entry.resident(&rows.queue.gpu, "", ranges)?, argument))
    }

    /// For each candidate, by how much it would lower the total. `candidates`: `(m, d)`, row-major.
    pub fn gains(&mut self, rows: &RowChunks<'_, T>, candidates: &[T]) -> Result<Vec<u128>> {
        assert!(self.kind() == DrawKind::Distance, "a gain is over a centroid taken before");
        let (queue, m) = (rows.queue(), candidates.len() / rows.d());
        let here = queue.upload(candidates, CANDIDATES)?;
        let gains = queue.zeros::<u128>(product([self.gain_ranges.count(), m]), CANDIDATES)?;
        self.pass(rows, false, |draws, chunk| {
            for range in draws.gain_ranges.between(chunk.first, chunk.first + chunk.rows.n) {
                let gains = gains.at_index::<At<u128>>(draws.gain_ranges.of(range.start) * m).cast();
                for (launch, argument) in draws.gains_launches(chunk, range, &here, m, gains, StepArgument::ZERO)? {
                    // SAFETY: there are m candidates, and m gains of each range. Each row has a distance.
                    unsafe { queue.run(&launch, &argument)? };
                }
            }
            Ok(())
        })?;
        let gains = gains.to_vec()?;
        let mut all = memory::zeroed::<u128>(m, CANDIDATES)?;
        gains.chunks_exact(m.max(1)).for_each(|of_range| all.iter_mut().zip(of_range).for_each(|(all, gain)| *all += gain));
        if let RowChunks::Streamed(_) = rows {
            self.trial = Some(Trial { candidates: memory::copied(candidates, CANDIDATES)?, gains });
        }
        Ok(all)
    }

    /// The launches that add to `gains` (the address of `m` integers) by how much each candidate would lower the total of a range
    /// of rows of a chunk. Each kernel is compiled for at least as many candidates as it takes.
    pub(super) fn gains_launches(
        &self,
        chunk: &DeviceChunk<'_, T>,
        range: Range<usize>,
        candidates: &Buffer<T>,
        m: usize,
        gains: At<u64>,
        step: StepArgument,
    ) -> Result<Vec<(Launch<GainsArgument>, GainsArgument)>> {
        let rows = chunk.rows;
        let launches = (0..m).step_by(MOST_AT_ONCE).map(|first| {
            let here = (m - first).min(MOST_AT_ONCE);
            let entry = rows.entry(arguments::seed_gains::<T>());
            let variant = format!("_{}", here.next_multiple_of(2));
            let launch = entry.resident(&rows.queue.gpu, &variant, usize::MAX)?;
            let argument = GainsArgument {
                rows: rows.argument_of(range.start - chunk.first..range.end - chunk.first),
                nearest: self.nearest.at_index(range.start),
                candidates: candidates.at_index(first * rows.d),
                gains: gains.index(2 * first as u64), // a gain has two words
                scale: (&self.scale).into(),
                m: here as i32,
                first: first as u32,
                step,
            };
            Ok((launch.with_blocks(gains_blocks(range.len(), launch.blocks) as usize), argument))
        });
        memory::try_collected(launches, "the launches of k-means++")
    }

    /// Takes centroids (`(m, d)`, row-major). The draw weights become integer distances, in this scale, to the nearest centroid
    /// taken so far. Returns their total.
    pub fn lower(&mut self, rows: &RowChunks<'_, T>, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let d = rows.d();
        assert!(centroids.len().is_multiple_of(d) && (self.kind() == DrawKind::Distance || !centroids.is_empty()));
        let trial = self.trial.take().filter(|_| self.scale == scale);
        self.scale = scale;
        memory::extend(&mut self.pending, centroids, "the centroids taken")?;
        if let Some(Trial { candidates, gains }) = trial
            && let Some(place) = candidates.chunks_exact(d).position(|candidate| candidate == centroids)
        {
            let gains = gains.chunks_exact(candidates.len() / d).map(|of_range| of_range[place]);
            self.lowered = memory::collected(gains, TOTALS)?;
            self.total -= self.lowered.iter().sum::<u128>();
        } else {
            self.pass(rows, true, |_, _| Ok(()))?;
        }
        Ok(self.total)
    }

    /// The numbers of the rows of a sample in which every row decides alone.
    pub fn each(&mut self, rows: &RowChunks<'_, T>, sample: &Sample) -> Result<Vec<u64>> {
        assert!(self.kind() == DrawKind::Distance, "a sample is by the distances to centroids taken before");
        let queue = rows.queue();
        found_rows(queue, sample, rows.n(), |found| {
            self.pass(rows, false, |draws, chunk| {
                let (rows, draws, base) = (chunk.rows, draws.argument(chunk), chunk.first as u64);
                let entry = rows.entry(arguments::seed_sample::<T>());
                let launch = entry.resident(&queue.gpu, "", entry.blocks_of(rows.n))?;
                let argument = BernoulliArgument { rows: rows.argument(), draws, sample: sample.into(), found, base };
                // SAFETY: the kernel reads n distances and weights. It writes no more row numbers than there is room for.
                unsafe { queue.run(&launch, &argument) }
            })
        })
    }
}

/// Blocks of `seed_gains`: as many as are resident at once. But no thread may have more rows than its sums have room for, and
/// no block may be without rows.
fn gains_blocks(n: usize, resident: u32) -> u32 {
    let tiles = n.div_ceil(TILE);
    tiles.min(tiles.div_ceil(MAX_TILES).max(resident as usize)) as u32
}

/// The number of rows of positive weight.
pub fn positive_rows<T: Float + Plain>(rows: &RowChunks<'_, T>) -> Result<u64> {
    match rows {
        RowChunks::Streamed(stream) => Ok(stream.positive),
        RowChunks::Resident(rows) if rows.weights.is_none() => Ok(rows.n as u64),
        RowChunks::Resident(rows) => {
            totals(&DeviceChunk::of_all(rows), DrawKind::Positive, None).map(|(_, _, total)| total as u64)
        }
    }
}

/// What the rows of a chunk weigh in draws, but for distances.
pub(super) fn argument<T: Float + Plain>(
    chunk: &DeviceChunk<'_, T>,
    ranges: Ranges,
    kind: DrawKind,
    weights: Option<WeightScale>,
) -> DrawsArgument {
    let rows = chunk.rows;
    DrawsArgument {
        w: rows.weights.as_ref().map_or(At::NULL, Buffer::at),
        nearest: At::NULL,
        scale: (&DistanceScale::NONE).into(),
        weight_to_integer: weight_to_integer(weights),
        n: rows.n as u64,
        range: ranges.rows as u64,
        ranges: rows.n.div_ceil(ranges.rows) as u32,
        kind: kind as i32,
    }
}

/// The draw weights of rows that are all on the device, but for distances; the total of each of their ranges; and the total of all.
pub(super) fn totals<T: Float + Plain>(
    rows: &DeviceChunk<'_, T>,
    kind: DrawKind,
    weights: Option<WeightScale>,
) -> Result<(DrawsArgument, Buffer<u128>, u128)> {
    let (queue, ranges) = (&rows.rows.queue, Ranges::new(rows.rows.n, rows.rows.n));
    let (of_ranges, total) = (queue.alloc(ranges.count(), TOTALS)?, queue.zeros::<u128>(1, TOTALS)?);
    let argument = argument(rows, ranges, kind, weights);
    // SAFETY: there is room for the totals.
    unsafe { add_totals(queue, argument, of_ranges.at(), &total)? };
    let total = total.to_vec()?[0];
    Ok((argument, of_ranges, total))
}

/// Queues the kernel that writes the total draw weight of each range, and adds them to `total`.
///
/// # Safety
/// `totals` is the address of room for the total of each range.
unsafe fn add_totals(queue: &Queue, draws: DrawsArgument, totals: u64, total: &Buffer<u128>) -> Result<()> {
    let launch = arguments::seed_totals().exactly(&queue.gpu, "", draws.ranges as usize)?;
    // SAFETY: the kernel writes one total for each range. The caller promises room for them.
    unsafe { queue.run(&launch, &TotalsArgument { draws, totals, total: total.at_of() }) }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(no_thread_has_too_many_rows);
    fn no_thread_has_too_many_rows() {
        for (n, resident, blocks) in [(1, 1_000, 1), (257, 1_000, 2), (1 << 30, 1_000, 1_000), (u32::MAX as usize, 16, 256)] {
            assert_eq!(gains_blocks(n, resident), blocks);
            assert!(n.div_ceil(TILE).div_ceil(blocks as usize) <= MAX_TILES);
        }
    }
}
