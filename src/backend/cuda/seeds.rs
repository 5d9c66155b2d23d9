//! The state of seeding on the device: for each row the reference distance to the nearest centroid taken so far, and totals of
//! the draw weights for ranges of rows (`kernels/seed.cu`). Only totals, gains and drawn rows come to the host.

use super::arguments::DistanceArgument;
use super::device::{Buffer, Plain, Queue};
use super::rows::{DeviceRows, RowsArgument};
use super::samples::{FoundArgument, SampleArgument, found_rows};
use crate::backend::{Sample, Sampled};
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::fixed::power_of_two;
use crate::float::Float;
use crate::tile::WeightScale;

/// The most ranges that a draw searches. One block searches all of them.
const RANGES: usize = 4_096;
/// Rows of a tile of `seed_take` and `seed_gains`. A range is a multiple of it.
const TILE: usize = 256;
/// Threads of a block of `seed_take` and `seed_gains`, and threads of a block of `seed_search`.
const THREADS: u32 = 128;
const SEARCHERS: u32 = 1_024;
/// The most tiles of a block of `seed_gains`. A thread has two rows in each tile, and an int64 can hold the sum of 131,072
/// limbs.
const MAX_TILES: usize = 131_072 / 2;
/// The most candidates that one launch of `seed_gains` can take.
const MOST_AT_ONCE: usize = 12;

/// Draw weights of the rows. They are `w^` before the first centroid is taken, and integer distances afterwards.
pub struct DeviceSeeds<T> {
    weights: Option<WeightScale>,
    /// The scale of the integer distances, once a centroid was taken.
    scale: DistanceArgument,
    ranges: Ranges,
    /// For each row, the reference distance to the nearest centroid taken so far. Undefined before the first one.
    nearest: Buffer<f64>,
    taken: bool,
    /// The total draw weight of each range. Undefined while all rows weigh the same.
    totals: Buffer<u128>,
    total: u128,
    kind: std::marker::PhantomData<T>,
}

/// Rows in ranges of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranges {
    rows: usize,
    count: usize,
}

impl Ranges {
    fn new(n: usize) -> Self {
        let rows = n.div_ceil(RANGES).next_multiple_of(TILE).max(TILE);
        Self { rows, count: n.div_ceil(rows) }
    }
}

// ---- arguments, as `kernels/seed.cu` declares them -----------------------------------------------------------------------

/// What a row weighs in a draw: `DRAW_*` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Draw {
    /// All rows weigh the same.
    Row = 0,
    Weight = 1,
    Distance = 2,
    /// 1 if the weight is positive.
    Positive = 3,
}

/// `Draws`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DrawsArgument {
    w: u64,
    nearest: u64,
    scale: DistanceArgument,
    weight_to_integer: f64,
    n: u64,
    range: u64,
    ranges: u32,
    kind: i32,
}

/// `Totals`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TotalsArgument {
    draws: DrawsArgument,
    totals: u64,
    total: u64,
}

/// `Search`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SearchArgument {
    rows: RowsArgument,
    draws: DrawsArgument,
    totals: u64,
    targets: u64,
    found: u64,
    values: u64,
}

/// `Bernoulli`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BernoulliArgument {
    draws: DrawsArgument,
    sample: SampleArgument,
    found: FoundArgument,
}

/// `Gather`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GatherArgument {
    rows: RowsArgument,
    wanted: u64,
    values: u64,
    count: u64,
}

/// `Row`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RowArgument {
    rows: RowsArgument,
    values: u64,
    row: u64,
}

/// `Take`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TakeArgument {
    rows: RowsArgument,
    nearest: u64,
    centroids: u64,
    totals: u64,
    total: u64,
    scale: DistanceArgument,
    range: u64,
    ranges: u32,
    first: i32,
    m: u32,
    unused: u32,
}

/// `Gains`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GainsArgument {
    rows: RowsArgument,
    nearest: u64,
    candidates: u64,
    gains: u64,
    scale: DistanceArgument,
    m: i32,
    unused: i32,
}

/// `Masses`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MassesArgument {
    rows: RowsArgument,
    candidates: u64,
    masses: u64,
    weight_to_integer: f64,
    m: u32,
    unused: u32,
}

/// The names of the totals of ranges, and of the drawn rows, in errors.
const TOTALS: &str = "the totals of the draws";
const CANDIDATES: &str = "the rows drawn";

// ---- the state -----------------------------------------------------------------------------------------------------------

impl<T: Float + Plain> DeviceSeeds<T> {
    /// Makes every row's draw weight its `w^`.
    pub fn start(rows: &DeviceRows<T>, weights: Option<WeightScale>) -> Result<Self> {
        let ranges = Ranges::new(rows.n);
        let mut seeds = Self {
            weights,
            scale: (&DistanceScale::NONE).into(),
            ranges,
            nearest: rows.queue.alloc(rows.stride, "the distances of the rows to the nearest seed")?,
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

    fn draws(&self, rows: &DeviceRows<T>) -> DrawsArgument {
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
            let suffix = if T::IS_F32 { "f32" } else { "f64" };
            let kernel = queue.gpu.kernel("seed", &format!("seed_gains_{suffix}_{}", here.next_multiple_of(2)))?;
            let blocks = gains_blocks(rows.n, queue.gpu.resident_blocks(kernel, THREADS, 0)?);
            let argument = GainsArgument {
                rows: rows.argument(),
                nearest: self.nearest.at(),
                candidates: candidates.at_index(first * rows.d),
                gains: gains.at_index(first),
                scale: self.scale,
                m: here as i32,
                unused: 0,
            };
            // SAFETY: the argument mirrors `Gains`. The kernel reads `here` candidates and adds to as many gains. `nearest` is
            // as long as the stride. The kernel is compiled for at least `here` candidates.
            unsafe { queue.launch(kernel, blocks, THREADS, 0, &argument)? };
        }
        Ok(gains)
    }

    /// Takes centroids (`(m, d)`, row-major). The draw weights become integer distances, in this scale, to the nearest centroid
    /// taken so far. Returns their total.
    pub fn take(&mut self, rows: &DeviceRows<T>, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        assert!(centroids.len().is_multiple_of(rows.d) && (self.taken || !centroids.is_empty()));
        self.scale = (&scale).into();
        let (queue, m) = (&rows.queue, centroids.len() / rows.d);
        if m == 0 {
            self.total = totals(queue, self.draws(rows), &self.totals)?;
            return Ok(self.total);
        }
        let (centroids, total) = (queue.upload(centroids, "the centroids taken")?, queue.zeros::<u128>(1, TOTALS)?);
        let (many, suffix) = (if m > 1 { "many_" } else { "" }, if T::IS_F32 { "f32" } else { "f64" });
        let kernel = queue.gpu.kernel("seed", &format!("seed_take_{many}{suffix}"))?;
        let blocks = self.ranges.count.min(queue.gpu.resident_blocks(kernel, THREADS, 0)? as usize) as u32;
        let argument = TakeArgument {
            rows: rows.argument(),
            nearest: self.nearest.at(),
            centroids: centroids.at(),
            totals: self.totals.at(),
            total: total.at(),
            scale: self.scale,
            range: self.ranges.rows as u64,
            ranges: self.ranges.count as u32,
            first: i32::from(!self.taken),
            m: m as u32,
            unused: 0,
        };
        // SAFETY: the argument mirrors `Take`. The kernel reads m centroids. `nearest` is as long as the stride. Each range has a
        // total.
        unsafe { queue.launch(kernel, blocks, THREADS, 0, &argument)? };
        self.taken = true;
        self.total = total.to_vec()?[0];
        Ok(self.total)
    }

    /// The rows of a sample in which every row decides alone.
    pub fn sample(&self, rows: &DeviceRows<T>, sample: &Sample) -> Result<Sampled<T>> {
        assert!(self.taken, "a sample is by the distances to centroids taken before");
        let (queue, draws) = (&rows.queue, self.draws(rows));
        let kernel = queue.gpu.kernel("seed", "seed_sample")?;
        let blocks = rows.n.div_ceil(256).min(queue.gpu.resident_blocks(kernel, 256, 0)? as usize) as u32;
        let found = found_rows(queue, sample, rows.n, |found| {
            let argument = BernoulliArgument { draws, sample: sample.into(), found };
            // SAFETY: the argument mirrors `Bernoulli`. The kernel reads n distances and weights. It writes no more row numbers
            // than there is room for.
            unsafe { queue.launch(kernel, blocks, 256, 0, &argument) }
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

// ---- single rows ---------------------------------------------------------------------------------------------------------

/// The values of a row.
pub fn row<T: Float + Plain>(rows: &DeviceRows<T>, row: u64) -> Result<Vec<T>> {
    assert!(row < rows.n as u64, "row {row} of {}", rows.n);
    let values = rows.queue.alloc(rows.d, "a row")?;
    let argument = RowArgument { rows: rows.argument(), values: values.at(), row };
    let kernel = rows.queue.gpu.kernel("seed", if T::IS_F32 { "seed_row_f32" } else { "seed_row_f64" })?;
    // SAFETY: the argument mirrors `Row`. The kernel writes d values. The row exists (asserted).
    unsafe { rows.queue.launch(kernel, 1, 256, 0, &argument)? };
    values.to_vec()
}

/// The values of these rows: `(m, d)`.
fn gather<T: Float + Plain>(rows: &DeviceRows<T>, wanted: &[u64]) -> Result<Vec<T>> {
    assert!(wanted.iter().all(|&row| row < rows.n as u64));
    let (queue, count) = (&rows.queue, wanted.len());
    let (wanted, values) = (queue.upload(wanted, CANDIDATES)?, queue.alloc(count * rows.d, CANDIDATES)?);
    let argument = GatherArgument { rows: rows.argument(), wanted: wanted.at(), values: values.at(), count: count as u64 };
    let kernel = queue.gpu.kernel("seed", if T::IS_F32 { "seed_gather_f32" } else { "seed_gather_f64" })?;
    let blocks = count.min(queue.gpu.resident_blocks(kernel, 256, 0)? as usize) as u32;
    // SAFETY: the argument mirrors `Gather`. The kernel writes d values for each of `count` rows. The rows exist (asserted).
    unsafe { queue.launch(kernel, blocks, 256, 0, &argument)? };
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

/// Adds the weight of each row to the mass of its nearest candidate. `candidates`: `(m, d)`, row-major.
pub fn add_masses<T: Float + Plain>(
    rows: &DeviceRows<T>,
    weights: Option<WeightScale>,
    candidates: &Buffer<T>,
    masses: &Buffer<u128>,
) -> Result<()> {
    assert_eq!(candidates.len(), masses.len() * rows.d);
    let queue = &rows.queue;
    let kernel = queue.gpu.kernel("seed", if T::IS_F32 { "seed_masses_f32" } else { "seed_masses_f64" })?;
    let blocks = rows.n.div_ceil(TILE).min(queue.gpu.resident_blocks(kernel, THREADS, 0)? as usize) as u32;
    let argument = MassesArgument {
        rows: rows.argument(),
        candidates: candidates.at(),
        masses: masses.at(),
        weight_to_integer: weights.map_or(1.0, |scale| power_of_two(53 - scale.exponent)),
        m: masses.len() as u32,
        unused: 0,
    };
    // SAFETY: the argument mirrors `Masses`. The kernel reads m candidates and adds to m masses. It reads only rows below the
    // stride.
    unsafe { queue.launch(kernel, blocks, THREADS, 0, &argument) }
}

/// The `rank`th row of positive weight.
pub fn positive_row<T: Float + Plain>(rows: &DeviceRows<T>, rank: u64) -> Result<u64> {
    if rows.weights.is_none() {
        return Ok(rank);
    }
    let ranges = Ranges::new(rows.n);
    let (draws, counts) = (draws(rows, ranges, Draw::Positive), rows.queue.alloc(ranges.count, TOTALS)?);
    totals(&rows.queue, draws, &counts)?;
    Ok(search(rows, draws, &counts, &[u128::from(rank)])?.rows.to_vec()?[0])
}

fn draws<T: Float + Plain>(rows: &DeviceRows<T>, ranges: Ranges, kind: Draw) -> DrawsArgument {
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
fn totals(queue: &Queue, draws: DrawsArgument, totals: &Buffer<u128>) -> Result<u128> {
    assert!(totals.len() >= draws.ranges as usize);
    let total = queue.zeros::<u128>(1, TOTALS)?;
    let argument = TotalsArgument { draws, totals: totals.at(), total: total.at() };
    let kernel = queue.gpu.kernel("seed", "seed_totals")?;
    // SAFETY: the argument mirrors `Totals`. The kernel writes one total for each range, and there is room for them (asserted).
    unsafe { queue.launch(kernel, draws.ranges, 256, 0, &argument)? };
    Ok(total.to_vec()?[0])
}

/// Writes the total weight of each range of `range` rows. `totals` is the address of the first total. There must be room for
/// all totals.
pub fn weight_totals<T: Float + Plain>(rows: &DeviceRows<T>, scale: WeightScale, range: usize, totals: u64) -> Result<()> {
    let ranges = Ranges { rows: range, count: rows.n.div_ceil(range) };
    let weight_to_integer = power_of_two(53 - scale.exponent);
    let draws = DrawsArgument { weight_to_integer, ..draws(rows, ranges, Draw::Weight) };
    let total = rows.queue.zeros::<u128>(1, TOTALS)?;
    let kernel = rows.queue.gpu.kernel("seed", "seed_totals")?;
    // SAFETY: the argument mirrors `Totals`. The kernel writes one total for each range. The caller promises room for them.
    unsafe { rows.queue.launch(kernel, draws.ranges, 256, 0, &TotalsArgument { draws, totals, total: total.at() }) }
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
    };
    let kernel = queue.gpu.kernel("seed", if T::IS_F32 { "seed_search_f32" } else { "seed_search_f64" })?;
    // SAFETY: the argument mirrors `Search`. Each block reads one target, and writes one row number and the d values of this
    // row. Targets are below the total, so the rows exist.
    unsafe { queue.launch(kernel, m as u32, SEARCHERS, 0, &argument)? };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_tiles_and_few() {
        for n in [1, 255, 256, 257, 1 << 20, (1 << 20) + 1, 134_217_728, u32::MAX as usize] {
            let Ranges { rows, count } = Ranges::new(n);
            assert!(rows % TILE == 0 && rows <= 1 << 24, "{n}");
            assert!(count <= RANGES && (count - 1) * rows < n && n <= count * rows, "{n}");
        }
    }

    #[test]
    fn no_thread_has_too_many_rows() {
        for (n, resident, blocks) in [(1, 1_000, 1), (257, 1_000, 2), (1 << 30, 1_000, 1_000), (u32::MAX as usize, 16, 256)] {
            assert_eq!(gains_blocks(n, resident), blocks);
            assert!(n.div_ceil(TILE).div_ceil(blocks as usize) <= MAX_TILES);
        }
    }

    #[test]
    fn arguments_have_the_sizes_of_the_kernels() {
        assert_eq!((size_of::<DrawsArgument>(), size_of::<TotalsArgument>(), size_of::<SearchArgument>()), (80, 96, 144));
        assert_eq!((size_of::<RowArgument>(), size_of::<TakeArgument>(), size_of::<GainsArgument>()), (48, 120, 96));
        assert_eq!((size_of::<BernoulliArgument>(), size_of::<GatherArgument>(), size_of::<MassesArgument>()), (152, 56, 64));
    }
}
