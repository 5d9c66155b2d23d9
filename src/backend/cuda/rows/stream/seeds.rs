//! Seeding from rows that stream through the device. The host has the totals of the draw weights of ranges of rows. The device
//! has one label for each row (`kernels/passes/stream.cu`). Rows are drawn from host memory: the totals say which range has the
//! row, and then the host looks through this range once.

use std::ops::Range;

use super::Stream;
use crate::backend::chunking::range_rows;
use crate::backend::cuda::arguments::{self, PotentialsArgument, SeedsArgument, StreamSampleArgument};
use crate::backend::cuda::device::{Block, Buffer, Launch, Plain, bytes_of, product, sum};
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

/// Threads of a block of `potentials`, the numbers of candidates that it is compiled for, and the largest of them.
const THREADS: u32 = 128;
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

/// The range of rows that a target falls in, and the rest of the target within this range.
struct Drawn<T> {
    first: usize,
    target: u128,
    values: Vec<T>,
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
    pub fn start(stream: &Stream<'_, T>, statistics: &Statistics, k: usize) -> Result<Self> {
        let (n, d, queue) = (stream.n(), stream.d(), stream.queue());
        let ranges = Ranges::new(n, stream.chunk_rows());
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
    pub fn draw(&self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, target: u128) -> Result<u64> {
        Ok(self.rows(stream, labels, &[target])?[0].0)
    }

    /// For each candidate, by how much it would lower the total. `candidates`: `(m, d)`, row-major.
    pub fn gains(&mut self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, candidates: &[T]) -> Result<Vec<u128>> {
        let totals = self.pass(stream, labels, candidates)?;
        let sums: Vec<u128> = memory::collected(totals.iter().map(|totals| totals.iter().sum()), TOTALS)?;
        let mut totals = totals.into_iter();
        self.totals = totals.next().unwrap_or_default();
        self.trial = Some((memory::copied(candidates, SEEDS)?, memory::collected(totals, TOTALS)?));
        memory::collected(sums[1..].iter().map(|sum| sums[0] - sum), TOTALS)
    }

    /// For each target, the row that is drawn as a candidate, and its gain.
    pub fn trials(&mut self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let candidates = self.rows(stream, labels, targets)?.into_iter().flat_map(|(_, values)| values);
        let candidates = memory::collected(candidates, SEEDS)?;
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
        stream: &Stream<'_, T>,
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
            self.seeds = stream.queue().upload(&self.taken, SEEDS)?;
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
    pub fn sample(&mut self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, sample: &Sample) -> Result<Sampled<T>> {
        assert!(!self.taken.is_empty(), "a sample is by the distances to centroids taken before");
        if self.known * self.d < self.taken.len() {
            self.pass(stream, labels, &[])?;
        }
        let queue = stream.queue();
        let kernel = arguments::stream_sample::<T>().half_if(stream.half().is_some()).load(&queue.gpu, "")?;
        let launch = Launch::resident(&queue.gpu, kernel, Block::of(THREADS), usize::MAX)?;
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
                let blocks = chunk.rows.n.div_ceil(THREADS as usize).min(launch.blocks as usize);
                // SAFETY: each row has a label, which names seeds that are taken. The
                // kernel writes no more row numbers than there is room for.
                unsafe { queue.run(&launch.with_blocks(blocks), &argument) }
            })
        })?;
        let mut values = memory::with_room(rows.len().saturating_mul(self.d), SEEDS)?;
        for &row in &rows {
            values.extend(stream.gather(row as usize..row as usize + 1)?.0);
        }
        Ok(Sampled { rows, values })
    }

    /// The seeds as a kernel parameter. The labels take the first `known` of them into account.
    fn seeds_argument(&self, labels: &SeedLabels<'_>, first: usize, known: usize) -> SeedsArgument {
        let numbers = labels.numbers() as u32;
        SeedsArgument { labels: labels.from(first), seeds: self.seeds.at(), numbers, known: known as u32 }
    }

    /// Makes one pass. Afterwards the labels take all seeds into account. Returns the totals of all ranges, and then those
    /// under each candidate.
    fn pass(&mut self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, candidates: &[T]) -> Result<Vec<Vec<u128>>> {
        let (queue, d, m, all) = (stream.queue(), self.d, candidates.len() / self.d, self.ranges.count());
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
            let kernel =
                arguments::potentials::<T>().half_if(stream.half().is_some()).load(&queue.gpu, &format!("_{width}"))?;
            let launch = Launch::resident(&queue.gpu, kernel, Block::of(THREADS), usize::MAX)?;
            memory::push(&mut groups, (first, here, queue.upload(&points, SEEDS)?, launch), SEEDS)?;
        }
        let known = self.taken.len() / d;
        stream.visit(|chunk| {
            let count = chunk.rows.n.div_ceil(self.ranges.rows);
            for (first, here, points, launch) in &groups {
                let resident = launch.blocks;
                // Only the first group takes the last seeds. For the other groups they are taken already.
                let before = if *first == 0 { self.known } else { known };
                let split = resident.div_ceil(count as u32).min(self.ranges.rows.div_ceil(THREADS as usize) as u32);
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
                // SAFETY: each row has a label. Each range has a total for each candidate.
                // The seeds buffer has room for all seeds that are taken. There are as many points as the kernel is compiled
                // for.
                unsafe { queue.run(&launch.with_blocks(blocks as usize), &argument)? };
            }
            Ok(())
        })?;
        self.known = known;
        memory::try_collected(totals.to_vec()?.chunks_exact(all).map(|totals| memory::copied(totals, TOTALS)), TOTALS)
    }

    /// The rows that the targets draw: their numbers and their values.
    fn rows(&self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, targets: &[u128]) -> Result<Vec<(u64, Vec<T>)>> {
        let drawn = targets.iter().map(|&target| self.range_of(stream, labels, target));
        let drawn = memory::try_collected(drawn, SEEDS)?;
        let room = drawn.iter().map(|_| Ok((0, memory::with_room(self.d, SEEDS)?)));
        let mut found = memory::try_collected(room, SEEDS)?;
        let mut workers = vec![(); workers_for(0, drawn.len())];
        for_each_task(&mut workers, drawn.iter().zip(&mut found), |(), (drawn, (row, values)): (_, &mut (u64, Vec<T>))| {
            let place = self.place_of(drawn);
            *row = (drawn.first + place) as u64;
            // There is room for the values of one row.
            values.extend_from_slice(&drawn.values[place * self.d..][..self.d]);
        })?;
        Ok(found)
    }

    /// The range in which the running total first exceeds the target, with its rows.
    fn range_of(&self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, mut target: u128) -> Result<Drawn<T>> {
        let mut rows = target as usize..target as usize + 1;
        if self.totals.is_empty() {
            target = 0;
        } else {
            let mut index = 0;
            while target >= self.totals[index] {
                target -= self.totals[index];
                index += 1;
            }
            rows = self.ranges.range(index);
        }
        self.load(stream, labels, rows, target)
    }

    /// Rows with all that their draw weights depend on.
    fn load(&self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, rows: Range<usize>, target: u128) -> Result<Drawn<T>> {
        let (values, mut weights) = stream.gather(rows.clone())?;
        weights.iter_mut().for_each(|w| *w = self.weights.map_or(1.0, |scale| scale.round(*w)));
        let (numbers, labels) = (labels.numbers(), if self.known > 0 { labels.read(rows.clone())? } else { Vec::new() });
        Ok(Drawn { first: rows.start, target, values, weights, labels, numbers })
    }

    /// The rows that targets draw by their distances.
    pub fn pick(&self, stream: &Stream<'_, T>, labels: &SeedLabels<'_>, targets: &[u128]) -> Result<Picked<T>> {
        assert!(!self.taken.is_empty(), "distances are to centroids taken before");
        const TOGETHER: usize = 1_024;
        let mut sweep = Sweep::new(targets)?;
        for (index, &total) in self.totals.iter().enumerate() {
            if !sweep.is_in(total) {
                continue;
            }
            let drawn = self.load(stream, labels, self.ranges.range(index), 0)?;
            let mut all = memory::zeroed::<u128>(drawn.weights.len(), TOTALS)?;
            let mut workers = vec![(); workers_for(0, all.len().div_ceil(TOGETHER))];
            let tasks = (0..).step_by(TOGETHER).zip(all.chunks_mut(TOGETHER));
            for_each_task(&mut workers, tasks, |(), (first, some)| {
                some.iter_mut().zip(first..).for_each(|(weight, place)| *weight = self.weight_of(&drawn, place));
            })?;
            all.iter().zip(drawn.first..).for_each(|(weight, row)| sweep.visit(row, *weight));
        }
        stream.picked(sweep.rows(), self.weights)
    }

    /// The first of these rows whose running total exceeds the rest of the target.
    fn place_of(&self, drawn: &Drawn<T>) -> usize {
        let mut left = drawn.target;
        for place in 0..drawn.weights.len() {
            match left.checked_sub(self.weight_of(drawn, place)) {
                Some(rest) => left = rest,
                None => return place,
            }
        }
        unreachable!("the target is below the range's total")
    }

    /// The draw weight of one of these rows.
    fn weight_of(&self, drawn: &Drawn<T>, place: usize) -> u128 {
        let (x, w) = (&drawn.values[place * self.d..][..self.d], drawn.weights[place]);
        if self.taken.is_empty() {
            return self.weights.map_or(1, |scale| scale.integer(w) as u128);
        }
        // The nearest seed has the number that the label holds, or the labels do not take it into account yet.
        let own = drawn.labels.get(place).map_or(self.known, |&label| label as usize);
        let seeds = (own..self.known).step_by(drawn.numbers).chain(self.known..self.taken.len() / self.d);
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
