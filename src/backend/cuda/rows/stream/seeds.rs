//! Seeding from rows that stream through the device. The host has the totals of the draw weights of ranges of rows. The device
//! has one label for each row (`kernels/passes/stream.cu`). Rows are drawn from host memory: the totals say which ranges have the
//! rows, and then the host looks through each of these ranges once.

use std::ops::Range;

use super::RowStream;
use crate::backend::chunking::range_rows;
use crate::backend::cuda::arguments::{self, PotentialsArgument, SeedsArgument, StreamSampleArgument};
use crate::backend::cuda::device::{Buffer, Plain, bytes_of, product, sum};
use crate::backend::cuda::passes::labels::SeedLabels;
use crate::backend::cuda::passes::samples::found_rows;
use crate::backend::cuda::passes::seeds::weight_totals;
use crate::backend::cuda::shape::FitShape;
use crate::backend::sweep::Sweep;
use crate::backend::trials;
use crate::backend::{Picked, Sample, Sampled};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::exact::distances::DistanceScale;
use crate::exact::reference;
use crate::input::tile::WeightScale;
use crate::statistics::Statistics;

/// The numbers of candidates that `potentials` is compiled for, and the largest of them.
const CANDIDATES: [usize; 3] = [0, 4, 8];
const MOST_AT_ONCE: usize = 8;

/// Draw weights of the rows. They are `w^` before the first centroid is taken, and integer distances afterwards.
pub struct StreamedSeeds<T> {
    weights: Option<WeightScale>,
    /// The scale of the integer distances, once a centroid was taken.
    scale: DistanceScale,
    n: usize,
    d: usize,
    ranges: Ranges,
    /// The centroids taken so far, row-major: on the host (`taken`) and on the device (`seeds`).
    taken: Vec<T>,
    seeds: Buffer<T>,
    /// How many of these the labels take into account: the first ones.
    known: usize,
    /// The total draw weight of each range. Empty while all rows weigh the same.
    totals: Vec<u128>,
    /// The candidates of the last trials, and the totals of the ranges under each candidate.
    trial: Option<(Vec<T>, Vec<Vec<u128>>)>,
}

/// The ranges of all chunks. No range lies in two chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranges {
    rows: usize,
    n: usize,
    chunk: usize,
    /// The ranges of every chunk except the last, which may have fewer.
    per_chunk: usize,
}

impl Ranges {
    fn new(n: usize, chunk: usize) -> Self {
        let rows = range_rows(chunk as u64) as usize;
        Self { rows, n, chunk, per_chunk: chunk.div_ceil(rows) }
    }

    /// The number of ranges before a chunk. `first`: the first row of the chunk.
    fn before(&self, first: usize) -> usize {
        first / self.chunk * self.per_chunk
    }

    fn count(&self) -> usize {
        let last = (self.n - 1) / self.chunk * self.chunk;
        self.before(last) + (self.n - last).div_ceil(self.rows)
    }

    fn range(&self, index: usize) -> Range<usize> {
        let chunk = index / self.per_chunk * self.chunk;
        let first = chunk + index % self.per_chunk * self.rows;
        first..(first + self.rows).min(chunk + self.chunk).min(self.n)
    }
}

/// The names of the seeds, and of the totals of ranges, in errors.
const SEEDS: &str = "the seeds";
const TOTALS: &str = "the totals of the draws";

/// The rows of a range, on the host.
struct Loaded<T> {
    /// The number of the first row.
    first: usize,
    values: Vec<T>,
    /// The `w^` of the rows.
    weights: Vec<f64>,
    /// For each row, the number of its nearest seed. Empty as long as the labels take no seed into account.
    labels: Vec<u32>,
    /// How many numbers there are. Seeds whose indices differ by a multiple of it share a number.
    numbers: usize,
}

impl<T: Float + Plain> StreamedSeeds<T> {
    /// The bytes that seeding takes on the device.
    pub fn bytes(shape: &FitShape) -> u64 {
        let FitShape { rows, chunk, d, k, .. } = *shape;
        let (ranges, m) = (Ranges::new(rows.max(1), chunk).count(), trials(k) as usize);
        let totals = bytes_of::<u128>(product([1usize.saturating_add(m), ranges]));
        let groups = m.div_ceil(MOST_AT_ONCE).max(1) as u64;
        let points = bytes_of::<f64>(product([d, MOST_AT_ONCE])).saturating_mul(groups);
        sum([bytes_of::<T>(product([k, d])), totals, points])
    }

    /// Sets the draw weight of every row to its `w^`. There is room for `k` centroids, and it grows if more are taken.
    pub fn start(stream: &RowStream<'_, T>, statistics: &Statistics, k: usize) -> Result<Self> {
        let (n, d, queue) = (stream.sources.n, stream.sources.d, &stream.queue);
        let ranges = Ranges::new(n, stream.chunk_rows);
        let mut seeds = Self {
            weights: statistics.weights,
            scale: DistanceScale::NONE,
            n,
            d,
            ranges,
            taken: memory::with_room(k.saturating_mul(d), SEEDS)?,
            seeds: queue.alloc(k * d, SEEDS)?,
            known: 0,
            totals: Vec::new(),
            trial: None,
        };
        if let Some(scale) = statistics.weights {
            let totals: Buffer<u128> = queue.zeros(ranges.count(), TOTALS)?;
            stream.visit(|chunk| weight_totals(chunk.rows, scale, ranges.rows, totals.at_index(ranges.before(chunk.first))))?;
            seeds.totals = totals.to_vec()?;
        }
        Ok(seeds)
    }

    /// The total of all draw weights.
    pub fn total(&self) -> u128 {
        if self.totals.is_empty() { self.n as u128 } else { self.totals.iter().sum() }
    }

    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    pub fn draw(&self, stream: &RowStream<'_, T>, labels: &SeedLabels<'_>, target: u128) -> Result<u64> {
        Ok(self.pick(stream, labels, &[target])?.rows[0])
    }

    /// For each candidate, by how much it would lower the total. `candidates`: `(m, d)`, row-major.
    pub fn gains(&mut self, stream: &RowStream<'_, T>, labels: &SeedLabels<'_>, candidates: &[T]) -> Result<Vec<u128>> {
        let totals = self.pass(stream, labels, candidates)?;
        let sums: Vec<u128> = memory::collected(totals.iter().map(|totals| totals.iter().sum()), TOTALS)?;
        let mut totals = totals.into_iter();
        self.totals = totals.next().unwrap_or_default();
        self.trial = Some((memory::copied(candidates, SEEDS)?, memory::collected(totals, TOTALS)?));
        memory::collected(sums[1..].iter().map(|sum| sums[0] - sum), TOTALS)
    }

    /// For each target, the row that is drawn as a candidate, and its gain.
    pub fn trials(
        &mut self,
        stream: &RowStream<'_, T>,
        labels: &SeedLabels<'_>,
        targets: &[u128],
    ) -> Result<(Vec<T>, Vec<u128>)> {
        let candidates = self.pick(stream, labels, targets)?.values;
        let gains = self.gains(stream, labels, &candidates)?;
        Ok((candidates, gains))
    }

    /// Takes centroids (`(m, d)`, row-major). The draw weights become integer distances, in this scale, to the nearest centroid
    /// taken so far. Returns their total.
    ///
    /// If there is one centroid, it is one of the candidates of the last trials, and their scale is the same, this needs no
    /// pass. The next pass will take the centroid.
    pub fn take(
        &mut self,
        stream: &RowStream<'_, T>,
        labels: &SeedLabels<'_>,
        centroids: &[T],
        scale: DistanceScale,
    ) -> Result<u128> {
        assert!(centroids.len().is_multiple_of(self.d));
        let trial = self.trial.take().filter(|_| self.scale == scale && centroids.len() == self.d);
        self.scale = scale;
        let tried = trial.and_then(|(candidates, mut totals)| {
            let bits = |x: &T| x.to_f64().to_bits();
            let same = |candidate: &[T]| candidate.iter().map(bits).eq(centroids.iter().map(bits));
            Some(totals.swap_remove(candidates.chunks_exact(self.d).position(same)?))
        });
        let place = self.taken.len();
        memory::extend(&mut self.taken, centroids, SEEDS)?;
        if self.taken.len() > self.seeds.len() {
            self.seeds = stream.queue.upload(&self.taken, SEEDS)?;
        } else {
            self.seeds.write(place, centroids)?;
        }
        self.totals = match tried {
            Some(totals) => totals,
            None => self.pass(stream, labels, &[])?.swap_remove(0),
        };
        Ok(self.total())
    }

    /// The rows of a sample in which every row decides alone.
    pub fn sample(&mut self, stream: &RowStream<'_, T>, labels: &SeedLabels<'_>, sample: &Sample) -> Result<Sampled<T>> {
        assert!(!self.taken.is_empty(), "a sample is by the distances to centroids taken before");
        if self.known * self.d < self.taken.len() {
            self.pass(stream, labels, &[])?;
        }
        let queue = &stream.queue;
        let entry = arguments::stream_sample::<T>().half_if(stream.sources.half.is_some());
        let launch = entry.resident(&queue.gpu, "", usize::MAX)?;
        let rows = found_rows(queue, sample, self.n, |found| {
            stream.visit(|chunk| {
                let argument = StreamSampleArgument {
                    rows: chunk.rows.argument(),
                    seeds: self.seeds_argument(labels, chunk.first, self.known),
                    scale: (&self.scale).into(),
                    sample: sample.into(),
                    found,
                    first: chunk.first as u64,
                };
                let blocks = entry.blocks_of(chunk.rows.n).min(launch.blocks as usize);
                // SAFETY: each row has a label, which names seeds that are taken. The kernel writes no more row numbers than
                // there is room for.
                unsafe { queue.run(&launch.with_blocks(blocks), &argument) }
            })
        })?;
        let Picked { rows, values, .. } = stream.picked(rows, None)?;
        Ok(Sampled { rows, values })
    }

    /// The seeds as a kernel parameter. The labels take the first `known` of them into account.
    fn seeds_argument(&self, labels: &SeedLabels<'_>, first: usize, known: usize) -> SeedsArgument {
        let numbers = labels.numbers() as u32;
        SeedsArgument { labels: labels.from(first), seeds: self.seeds.at(), numbers, known: known as u32 }
    }

    /// Makes one pass. Afterwards the labels take all seeds into account. Returns the totals of all ranges, and then those
    /// under each candidate.
    fn pass(&mut self, stream: &RowStream<'_, T>, labels: &SeedLabels<'_>, candidates: &[T]) -> Result<Vec<Vec<u128>>> {
        let (queue, d, m, all) = (&stream.queue, self.d, candidates.len() / self.d, self.ranges.count());
        let totals: Buffer<u128> = queue.zeros((1 + m) * all, TOTALS)?;
        // Groups of candidates. Each group has a kernel that is compiled for at least as many candidates.
        let mut groups = Vec::new();
        for first in (0..m.max(1)).step_by(MOST_AT_ONCE) {
            let here = (m - first).min(MOST_AT_ONCE);
            let width = CANDIDATES.into_iter().find(|&width| width >= here).unwrap_or(MOST_AT_ONCE);
            let mut points = memory::zeroed::<f64>(d * width, SEEDS)?;
            for (j, candidate) in candidates[first * d..][..here * d].chunks_exact(d).enumerate() {
                points.iter_mut().skip(j).step_by(width.max(1)).zip(candidate).for_each(|(to, x)| *to = x.to_f64());
            }
            let entry = arguments::potentials::<T>().half_if(stream.sources.half.is_some());
            let launch = entry.resident(&queue.gpu, &format!("_{width}"), usize::MAX)?;
            memory::push(&mut groups, (first, here, queue.upload(&points, SEEDS)?, launch), SEEDS)?;
        }
        let known = self.taken.len() / d;
        stream.visit(|chunk| {
            let count = chunk.rows.n.div_ceil(self.ranges.rows);
            for (first, here, points, launch) in &groups {
                let resident = launch.blocks;
                // Only the first group takes the last seeds. For the other groups they are taken already.
                let before = if *first == 0 { self.known } else { known };
                let split = resident.div_ceil(count as u32).min(self.ranges.rows.div_ceil(launch.threads as usize) as u32);
                let argument = PotentialsArgument {
                    rows: chunk.rows.argument(),
                    seeds: self.seeds_argument(labels, chunk.first, before),
                    points: points.at(),
                    totals: totals.at_index(first * all + self.ranges.before(chunk.first)),
                    stride: all as u64,
                    scale: (&self.scale).into(),
                    range: self.ranges.rows as u64,
                    ranges: count as u32,
                    split,
                    take: (known - before) as u32,
                    m: *here as u32,
                    base: u32::from(*first == 0),
                    unused: 0,
                };
                let blocks = (count as u32 * split).min(resident);
                // SAFETY: each row has a label. Each range has a total for each candidate. The seeds buffer has room for all
                // seeds that are taken. There are as many points as the kernel is compiled for.
                unsafe { queue.run(&launch.with_blocks(blocks as usize), &argument)? };
            }
            Ok(())
        })?;
        self.known = known;
        memory::try_collected(totals.to_vec()?.chunks_exact(all).map(|totals| memory::copied(totals, TOTALS)), TOTALS)
    }

    /// The rows that the targets draw: for each target the first row whose running total of draw weights, in row order, exceeds
    /// it.
    pub fn pick(&self, stream: &RowStream<'_, T>, labels: &SeedLabels<'_>, targets: &[u128]) -> Result<Picked<T>> {
        const TOGETHER: usize = 1_024;
        if self.totals.is_empty() {
            return stream.picked(memory::collected(targets.iter().map(|&target| target as u64), SEEDS)?, self.weights);
        }
        let mut sweep = Sweep::new(targets)?;
        for (index, &total) in self.totals.iter().enumerate() {
            if !sweep.is_in(total) {
                continue;
            }
            let range = self.load(stream, labels, self.ranges.range(index))?;
            let mut all = memory::zeroed::<u128>(range.weights.len(), TOTALS)?;
            let mut workers = vec![(); workers_for(0, all.len().div_ceil(TOGETHER))];
            let tasks = (0..).step_by(TOGETHER).zip(all.chunks_mut(TOGETHER));
            for_each_task(&mut workers, tasks, |(), (first, some)| {
                some.iter_mut().zip(first..).for_each(|(weight, place)| *weight = self.weight_of(&range, place));
            })?;
            all.iter().zip(range.first..).for_each(|(weight, row)| sweep.visit(row, *weight));
        }
        stream.picked(sweep.rows(), self.weights)
    }

    /// A range of rows from host memory, with all that their draw weights depend on.
    fn load(&self, stream: &RowStream<'_, T>, labels: &SeedLabels<'_>, rows: Range<usize>) -> Result<Loaded<T>> {
        let (values, weights) = stream.gather_rounded(rows.clone(), self.weights)?;
        let (numbers, first) = (labels.numbers(), rows.start);
        let labels = if self.known > 0 { labels.read(rows)? } else { Vec::new() };
        Ok(Loaded { first, values, weights, labels, numbers })
    }

    /// The draw weight of one of these rows.
    fn weight_of(&self, range: &Loaded<T>, place: usize) -> u128 {
        let (x, w) = (&range.values[place * self.d..][..self.d], range.weights[place]);
        if self.taken.is_empty() {
            return self.weights.map_or(1, |scale| scale.integer(w) as u128);
        }
        // The nearest seed has the number that the label holds, or the labels do not take it into account yet.
        let own = range.labels.get(place).map_or(self.known, |&label| label as usize);
        let seeds = (own..self.known).step_by(range.numbers).chain(self.known..self.taken.len() / self.d);
        let near = seeds.map(|seed| reference::distance(x, &self.taken[seed * self.d..][..self.d]));
        self.scale.quantise(w, near.fold(f64::INFINITY, f64::min))
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(ranges_cover_all_rows_in_order);
    fn ranges_cover_all_rows_in_order() {
        for (n, chunk) in [(1, 1_024), (1_024, 1_024), (1_025, 1_024), (100_000, 4_096), (1_000_000, 65_536 * 3)] {
            let ranges = Ranges::new(n, chunk);
            let mut next = 0;
            for index in 0..ranges.count() {
                let range = ranges.range(index);
                assert!(range.start == next && !range.is_empty() && range.len() <= ranges.rows);
                assert_eq!(range.start / chunk, (range.end - 1) / chunk);
                if range.start.is_multiple_of(chunk) {
                    assert_eq!(ranges.before(range.start), index);
                }
                next = range.end;
            }
            assert_eq!(next, n);
        }
    }
}
