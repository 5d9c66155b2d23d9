//! Passes over a table of draws on the CPU (`seeds/table.rs`): gains of candidates, and distances that a centroid lowers.
//!
//! ```text
//! new    totals of w^; for fits that fit a limit, a copy of the rows in an order of neighbours      seeds/copy.rs, tree.rs
//! gains  for each block of rows in reach of a candidate, the rows that are nearer to it          seeds/blocks.rs, nearer.rs
//! lower  the same with the candidate that was chosen, in the units of 32 rows where it had a gain
//! ```
//! What is skipped changes no distance, so all integers are those of a pass over all rows. Very small and very large fits have no
//! copy: their rows come through tiles (`seeds/tiles.rs`), and nothing is skipped.

mod blocks;
mod copy;
mod nearer;
pub mod table;
mod tiles;
mod tree;

use std::ops::Range;

use self::blocks::{BlockGains, BlockLower, KnownCandidate};
use self::copy::NeighbourCopy;
pub use self::copy::pays;
use self::nearer::{CandidateBatch, GainSums, MOST, NearerShare, ONES, TotalChanges};
pub use self::nearer::{Strip, UNIT};
use self::table::{DrawTable, Ranges};
use self::tiles::{TileGains, TileLower};
use super::{TaskRows, for_each_weight, split_off};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::exact::distances::DistanceScale;
use crate::input::tile::{RowBlock, Tile};
use crate::simd::{InstructionSet, Task, Vector};
use crate::statistics::Statistics;

/// The name for the distances in errors.
const DISTANCES: &str = "the distances of the rows to the nearest seed";
/// The name for the gains in errors.
const GAINS: &str = "the gains of candidates";

/// What a pass needs of the session.
pub struct SeedingContext<'s, 'a, T> {
    pub set: InstructionSet,
    pub part: &'s RowBlock<'a, T>,
    pub statistics: &'s Statistics,
    pub tasks: &'s [TaskRows],
    /// One tile per worker.
    pub tiles: Vec<&'s mut Tile<T>>,
}

/// The numbers of the rows of some places.
#[derive(Clone, Copy)]
pub enum RowNumbers<'r> {
    /// Consecutive rows from this one on.
    From(usize),
    List(&'r [u32]),
}

impl RowNumbers<'_> {
    #[inline(always)]
    fn at(&self, place: usize) -> usize {
        match self {
            Self::From(first) => first + place,
            Self::List(rows) => rows[place] as usize,
        }
    }
}

/// The table of draws, and what makes passes over it short.
pub struct Seeds<T> {
    pub table: DrawTable,
    /// The rows in an order of neighbours, if that pays. Then the places of the table are those of the copy.
    copy: Option<NeighbourCopy<T>>,
    /// For each worker and range, what a pass lowers the total by.
    amounts: Vec<Vec<u128>>,
    /// For each block of the copy, its largest distance.
    farthest: Vec<f64>,
    /// The candidates of the last gains, and for each unit of places those that are nearer to some row. Later passes only make
    /// fewer rows nearer.
    tried: Vec<T>,
    gaining: Vec<u32>,
    /// `(units, candidates, UNIT)`: the distances to the candidates of `gaining`. Empty where it costs less to compute them
    /// again.
    distances: Vec<f64>,
    share: NearerShare,
}

impl<T: Float> Seeds<T> {
    /// `k`: the number of centroids that are to be taken.
    pub fn new(context: &mut SeedingContext<'_, '_, T>, k: usize) -> Result<Self> {
        let SeedingContext { set, part, statistics, tasks, tiles } = context;
        let (rows, d, kept) = (part.features.n_rows(), part.features.n_features(), tasks.iter().map(|task| task.kept).sum());
        let pays = copy::pays::<T>(rows, d, k, statistics.weights.is_some());
        let found = pays.then(|| NeighbourCopy::new(*set, part, tasks, tiles)).transpose()?;
        let (copy, row_places) = found.map_or((None, Vec::new()), |(copy, places)| (Some(copy), places));
        let places = copy.as_ref().map_or(kept, |copy| copy.rows.len());
        let blocks = copy.as_ref().map_or(0, NeighbourCopy::blocks);
        let ranges = Ranges::new(kept)?;
        let amounts = tiles.iter().map(|_| memory::zeroed(ranges.totals.len(), "the totals of ranges of rows"));
        let amounts = memory::try_collected(amounts, "the threads' buffers")?;
        let mut nearest = memory::filled(places, f64::INFINITY, DISTANCES)?;
        if let Some(copy) = &copy {
            let padding = nearest.iter_mut().zip(&copy.rows).filter(|(_, row)| **row == copy::NO_ROW);
            padding.for_each(|(nearest, _)| *nearest = 0.0);
        }
        let (weights, weight_scale) = (Vec::new(), statistics.weights);
        let mut seeds = Self {
            table: DrawTable { places: row_places, nearest, weights, weight_scale, scale: None, ranges },
            amounts,
            farthest: memory::filled(blocks, f64::INFINITY, DISTANCES)?,
            tried: Vec::new(),
            gaining: memory::zeroed(if blocks > 0 { places / UNIT } else { 0 }, GAINS)?,
            distances: Vec::new(),
            share: NearerShare::default(),
            copy,
        };
        seeds.copy_weights(context)?;
        seeds.add_up(context)?;
        Ok(seeds)
    }

    /// Copies `w^` of all rows, unless all are 1.
    fn copy_weights(&mut self, context: &SeedingContext<'_, '_, T>) -> Result<()> {
        let Some(scale) = self.table.weight_scale else { return Ok(()) };
        self.table.weights = memory::zeroed(self.table.nearest.len(), "the weights of the rows")?;
        let mut row = 0;
        for_each_weight(context.part, 0..context.part.features.n_rows(), |weight| {
            let place = self.table.place(row);
            self.table.weights[place] = scale.round(weight);
            row += 1;
        });
        Ok(())
    }

    pub fn total(&self) -> u128 {
        self.table.ranges.totals.iter().sum()
    }

    /// Adds up the draw weights of every range.
    fn add_up(&mut self, context: &SeedingContext<'_, '_, T>) -> Result<()> {
        let mut totals = std::mem::take(&mut self.table.ranges.totals);
        let table = &self.table;
        for_each_task(&mut vec![(); context.tiles.len()], totals.iter_mut().enumerate(), |(), (range, total)| {
            *total = context.set.run(AddUp { table, rows: table.ranges.rows(range) });
        })?;
        self.table.ranges.totals = totals;
        Ok(())
    }

    /// Whether float32 differences save time: not while many rows are nearer to a candidate than to their seeds.
    fn filter_pays(&self) -> bool {
        self.share.nearer * 8 <= self.share.asked
    }

    /// Makes room for the distances to `m` candidates, if they are few beside the rows themselves.
    fn make_room(&mut self, m: usize, d: usize) -> Result<()> {
        let few = m * 4 * size_of::<f64>() <= d * size_of::<T>();
        let len = if few && self.copy.is_some() { self.table.nearest.len() * m } else { 0 };
        if self.distances.len() != len {
            self.distances = Vec::new();
            self.distances = memory::zeroed(len, GAINS)?;
        }
        Ok(())
    }

    /// The amount by which each candidate would lower the total.
    pub fn gains(&mut self, context: SeedingContext<'_, '_, T>, candidates: &[T]) -> Result<Vec<u128>> {
        let d = context.part.features.n_features();
        let mut gains = memory::zeroed(candidates.len() / d, GAINS)?;
        let scale = self.table.scale.unwrap_or(DistanceScale::NONE);
        let SeedingContext { set, part, statistics, tasks, tiles } = context;
        let workers = tiles.into_iter().map(|tile| (tile, [0u128; MOST], NearerShare::default()));
        let mut workers = memory::collected(workers, "the threads' buffers")?;
        for (batch, gains) in candidates.chunks(MOST * d).zip(gains.chunks_mut(MOST)) {
            let candidates = &CandidateBatch::new(batch, d, self.filter_pays());
            self.make_room(candidates.count(), d)?;
            if let Some(copy) = &self.copy {
                self.tried = memory::copied(batch, GAINS)?;
                let tasks = blocks::tasks(copy, workers.len());
                let (mut rest, mut rest_distances) = (self.gaining.as_mut_slice(), self.distances.as_mut_slice());
                let work = tasks.map(|blocks| {
                    let places = copy.places(blocks.clone()).len();
                    (blocks, split_off(&mut rest, places / UNIT), split_off(&mut rest_distances, places * candidates.count()))
                });
                let (near, weights, farthest) = (&self.table.nearest, &self.table.weights, &self.farthest);
                for_each_task(&mut workers, work, |(_, gains, share), (blocks, gaining, distances)| {
                    let out = GainSums { scale, gains, share, gaining, distances };
                    set.run(BlockGains { copy, near, weights, farthest, candidates, blocks, out });
                })?;
            } else {
                let near = &self.table.nearest;
                for_each_task(&mut workers, tasks.iter(), |(tile, gains, share), task| {
                    let near = &near[task.first..][..task.kept];
                    let out = GainSums { scale, gains, share, gaining: &mut [], distances: &mut [] };
                    set.run(TileGains { part, statistics, tile, task, near, candidates, out });
                })?;
            }
            self.share = NearerShare::default();
            for (_, more, share) in &mut workers {
                gains.iter_mut().zip(std::mem::take(more)).for_each(|(all, more)| *all += more);
                self.share.add(std::mem::take(share));
            }
        }
        Ok(gains)
    }

    /// Lowers the distances of the rows to those to these centroids (`(m, d)`, row-major). From now on, distances count in this scale.
    pub fn lower(&mut self, mut context: SeedingContext<'_, '_, T>, centroids: &[T], scale: DistanceScale) -> Result<()> {
        let SeedingContext { set, part, statistics, tasks, tiles } = &mut context;
        let (set, part, statistics, d) = (*set, *part, *statistics, part.features.n_features());
        let (first, anew) = (self.table.scale.is_none(), self.table.scale != Some(scale));
        self.table.scale = Some(scale);
        for batch in centroids.chunks(MOST * d) {
            let candidates = &CandidateBatch::new(batch, d, !first && self.filter_pays());
            let Self { table, copy, amounts, farthest, tried, gaining, distances, .. } = self;
            let (weights, ranges, mut rest) = (&*table.weights, &table.ranges, table.nearest.as_mut_slice());
            if let Some(copy) = copy {
                // A candidate of the last gains has something to lower only where it had a gain.
                let number = tried.chunks_exact(d).position(|tried| tried == batch);
                let known = number.map(|number| KnownCandidate { number, of: tried.len() / d, gaining, distances });
                let (copy, mut rest_farthest) = (&*copy, farthest.as_mut_slice());
                let work = blocks::tasks(copy, amounts.len()).map(|blocks| {
                    let near = split_off(&mut rest, copy.places(blocks.clone()).len());
                    (blocks.clone(), near, split_off(&mut rest_farthest, blocks.len()))
                });
                for_each_task(amounts, work, |amounts, (blocks, near, farthest)| {
                    let amounts = if anew { &mut [] } else { amounts.as_mut_slice() };
                    let changes = TotalChanges { scale, ranges, amounts };
                    set.run(BlockLower { copy, near, weights, farthest, candidates, known, blocks, changes });
                })?;
            } else {
                let work = tasks.iter().map(|task| (task, split_off(&mut rest, task.kept)));
                let mut workers: Vec<_> = tiles.iter_mut().zip(amounts).collect();
                for_each_task(&mut workers, work, |(tile, amounts), (task, near)| {
                    let amounts = if anew { &mut [] } else { amounts.as_mut_slice() };
                    let changes = TotalChanges { scale, ranges, amounts };
                    set.run(TileLower { part, statistics, tile, task, near, candidates, changes });
                })?;
            }
        }
        if anew {
            self.add_up(&context)?;
        } else {
            for amounts in &mut self.amounts {
                self.table.ranges.totals.iter_mut().zip(amounts).for_each(|(total, amount)| *total -= std::mem::take(amount));
            }
        }
        Ok(())
    }
}

/// Adds up the draw weights of some rows.
struct AddUp<'p> {
    table: &'p DrawTable,
    rows: Range<usize>,
}

impl Task for AddUp<'_> {
    type Output = u128;

    #[inline(always)]
    fn run<V: Vector>(self) -> u128 {
        let Self { table, rows } = self;
        let Some(scale) = table.scale else { return rows.map(|row| table.draw_weight(row)).sum() };
        let mut total = 0;
        for start in rows.clone().step_by(UNIT) {
            let (mut near, mut weights) = ([0.0; UNIT], ONES);
            for (i, row) in (start..(start + UNIT).min(rows.end)).enumerate() {
                let place = table.place(row);
                near[i] = table.nearest[place];
                if let Some(weight) = table.weights.get(place) {
                    weights[i] = *weight;
                }
            }
            total += scale.lowered(&weights, &near, &[0.0; UNIT]);
        }
        total
    }
}

#[cfg(feature = "tests")]
mod tests {
    use std::sync::Arc;

    use super::super::CpuSession;
    use super::super::product::attacks::Random;
    use super::*;
    use crate::backend::{Draw, DrawBy, Seeder};
    use crate::base::params::KMeans;
    use crate::input::features::Features;
    use crate::statistics::gather;

    const ROWS: usize = 20_000;
    const CLUSTERS: usize = 60;

    /// The share of all pairs of a row and a candidate whose distances are looked at in the last of 60 steps.
    fn share_in_reach(d: usize, value: impl Fn(&mut dyn FnMut() -> f64, usize, usize) -> f64) -> f64 {
        let mut random = Random(5);
        let mut unit = || 0.5 + 0.5 * random.sign();
        let x: Vec<f32> = (0..ROWS * d).map(|i| value(&mut unit, i / d, i % d) as f32).collect();
        let mut parts = vec![RowBlock::new(Features::from_rows(&x, d).unwrap(), None)];
        let statistics = Arc::new(gather(&mut parts, &KMeans::new(CLUSTERS).validate(d).unwrap()).unwrap());
        let mut session = CpuSession::new(parts.remove(0), &statistics, CLUSTERS, 2, InstructionSet::detect()).unwrap();
        let mut total = session.weigh().unwrap();
        let mut seed: Vec<f32> = x[..d].to_vec();
        for step in 0..CLUSTERS as u128 {
            total = total.min(session.lower(&seed, statistics.distances).unwrap());
            let targets = (0..6).map(|trial| total / 360 * (6 * step + trial)).collect();
            let candidates = session.pick(&Draw::Totals(DrawBy::Distance, targets)).unwrap().values;
            session.gains(&candidates).unwrap();
            seed = candidates[..d].to_vec();
        }
        let seeds = session.seeds.unwrap();
        // A copy of the rows, and little more for each row.
        let places = seeds.table.nearest.len();
        assert!(places < ROWS * 5 / 4, "{places} places");
        seeds.share.asked as f64 / (6 * places) as f64
    }

    unit_test!(blocks_out_of_reach_are_passed_over);
    fn blocks_out_of_reach_are_passed_over() {
        let blob = |d: usize, i: usize, f: usize| (((i % 10 + 1) * (f + 3) * 7_919) % 1_000) as f64 / (d as f64).sqrt();
        for d in [2, 16, 64] {
            let blobs = share_in_reach(d, |unit, i, f| blob(d, i, f) + 10.0 * (unit() + unit() - 1.0));
            let uniform = share_in_reach(d, |unit, _, _| unit());
            println!("{d} features: {:.1} % of ten blobs, {:.1} % of uniform rows", 100.0 * blobs, 100.0 * uniform);
            assert!(blobs < 0.25, "{d}: {blobs}");
            assert!(uniform < if d == 2 { 0.25 } else { 1.01 }, "{d}: {uniform}");
        }
    }
}
