//! The state of seeding: each row's reference distance to the nearest centroid taken so far, and totals of draw weights.
//!
//! ```text
//! start : totals of w^; for large fits a copy of the rows in an order of neighbours               seeds/order.rs, grouped.rs
//! gains : for each block of rows in reach of a candidate, the rows that are nearer to it          seeds/blocks.rs, nearer.rs
//! take  : the same with the candidate that was chosen, in the units of 32 rows where it had a gain
//! draw  : the range of rows that has the target, then the row                                     seeds/ranges.rs
//! ```
//! What is skipped changes no distance, so all integers are those of a pass over all rows. Small fits have no copy: their rows
//! come through tiles, and nothing is skipped.

mod blocks;
mod grouped;
mod nearer;
mod order;
mod ranges;
mod tiles;

use std::ops::Range;

use self::blocks::{BlockGains, BlockTake, Tried};
use self::grouped::Grouped;
pub use self::grouped::pays;
use self::nearer::{Candidates, Changes, Gains, MOST, ONES, Share};
pub use self::nearer::{Strip, UNIT};
use self::ranges::Ranges;
use self::tiles::{TileGains, TileTake};
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

/// What a session lends for a pass.
pub struct Lent<'s, 'a, T> {
    pub set: InstructionSet,
    pub part: &'s RowBlock<'a, T>,
    pub statistics: &'s Statistics,
    pub tasks: &'s [TaskRows],
    /// One tile per worker.
    pub tiles: Vec<&'s mut Tile<T>>,
}

/// The rows at some places.
#[derive(Clone, Copy)]
pub enum Rows<'r> {
    /// Consecutive rows from this one on.
    From(usize),
    List(&'r [u32]),
}

impl Rows<'_> {
    #[inline(always)]
    fn at(&self, place: usize) -> usize {
        match self {
            Self::From(first) => first + place,
            Self::List(rows) => rows[place] as usize,
        }
    }
}

/// Draw weights of the rows: `w^` before the first centroid is taken, then integer distances.
pub struct Seeds<T> {
    /// Distances and weights are at the places of this order, or in row order.
    grouped: Option<Grouped<T>>,
    /// Reference distance to the nearest centroid taken so far. Infinite before the first; 0 in padding.
    nearest: Vec<f64>,
    /// `w^` of each row. Empty if all weights are 1.
    weights: Vec<f64>,
    ranges: Ranges,
    /// Scale of the integer distances. `None` before the first centroid is taken.
    scale: Option<DistanceScale>,
    /// For each worker and range, what a take lowers the total by.
    amounts: Vec<Vec<u128>>,
    /// For each block, its largest distance.
    farthest: Vec<f64>,
    /// The candidates of the last gains, and for each unit of places those that are nearer to some row. Later takes only make
    /// fewer rows nearer.
    tried: Vec<T>,
    gaining: Vec<u32>,
    /// `(units, candidates, UNIT)`: the distances to the candidates of `gaining`. Empty where it costs less to compute them
    /// again.
    kept: Vec<f64>,
    share: Share,
}

impl<T: Float> Seeds<T> {
    /// `k`: the number of centroids that are to be taken.
    pub fn new(lent: &mut Lent<'_, '_, T>, k: usize) -> Result<Self> {
        let (rows, d) = (lent.part.features.n_rows(), lent.part.features.n_features());
        let kept = lent.tasks.iter().map(|task| task.kept).sum();
        let pays = grouped::pays::<T>(rows, d, k, lent.statistics.weights.is_some());
        let grouped = pays.then(|| Grouped::new(lent.set, lent.part, lent.tasks, &mut lent.tiles)).transpose()?;
        let places = grouped.as_ref().map_or(kept, |grouped| grouped.rows.len());
        let blocks = grouped.as_ref().map_or(0, Grouped::blocks);
        let ranges = Ranges::new(kept)?;
        let amounts = lent.tiles.iter().map(|_| memory::zeroed(ranges.totals.len(), "the totals of ranges of rows"));
        let mut seeds = Self {
            nearest: memory::filled(places, f64::INFINITY, DISTANCES)?,
            weights: Vec::new(),
            scale: None,
            amounts: memory::try_collected(amounts, "the threads' buffers")?,
            farthest: memory::filled(blocks, f64::INFINITY, DISTANCES)?,
            tried: Vec::new(),
            gaining: memory::zeroed(if blocks > 0 { places / UNIT } else { 0 }, GAINS)?,
            kept: Vec::new(),
            share: Share::default(),
            ranges,
            grouped,
        };
        if let Some(grouped) = &seeds.grouped {
            let padding = seeds.nearest.iter_mut().zip(&grouped.rows).filter(|(_, row)| **row == grouped::NO_ROW);
            padding.for_each(|(nearest, _)| *nearest = 0.0);
        }
        seeds.copy_weights(lent)?;
        seeds.add_up(lent)?;
        Ok(seeds)
    }

    /// Copies `w^` of all rows, unless all are 1.
    fn copy_weights(&mut self, lent: &Lent<'_, '_, T>) -> Result<()> {
        let Some(scale) = lent.statistics.weights else { return Ok(()) };
        self.weights = memory::zeroed(self.nearest.len(), "the weights of the rows")?;
        let mut row = 0;
        for_each_weight(lent.part, 0..lent.part.features.n_rows(), |weight| {
            let place = self.place(row);
            self.weights[place] = scale.round(weight);
            row += 1;
        });
        Ok(())
    }

    pub fn total(&self) -> u128 {
        self.ranges.totals.iter().sum()
    }

    /// The ranges of all rows in order, each with the total of its draw weights.
    pub fn ranges(&self) -> impl Iterator<Item = (Range<usize>, u128)> + '_ {
        self.ranges.totals.iter().enumerate().map(|(range, total)| (self.ranges.rows(range), *total))
    }

    /// The draw weight of a row.
    #[inline(always)]
    pub fn weight(&self, row: usize, statistics: &Statistics) -> u128 {
        let place = self.place(row);
        let weight = self.weights.get(place).map_or(1.0, |weight| *weight);
        match self.scale {
            Some(scale) => scale.quantise(weight, self.nearest[place]),
            None => statistics.weights.map_or(1, |scale| scale.integer(weight) as u128),
        }
    }

    /// Where the distance of a row is.
    #[inline(always)]
    fn place(&self, row: usize) -> usize {
        self.grouped.as_ref().map_or(row, |grouped| grouped.places[row] as usize)
    }

    /// Adds up the draw weights of every range.
    fn add_up(&mut self, lent: &Lent<'_, '_, T>) -> Result<()> {
        let mut totals = std::mem::take(&mut self.ranges.totals);
        let (this, statistics) = (&*self, lent.statistics);
        for_each_task(&mut vec![(); lent.tiles.len()], totals.iter_mut().enumerate(), |(), (range, total)| {
            *total = lent.set.run(AddUp { seeds: this, statistics, rows: this.ranges.rows(range) });
        })?;
        self.ranges.totals = totals;
        Ok(())
    }

    /// Whether float32 differences save time: not while many rows are nearer to a candidate than to their seeds.
    fn filter_pays(&self) -> bool {
        self.share.nearer * 8 <= self.share.asked
    }

    /// Makes room to keep the distances to `m` candidates, if that is little beside the rows themselves.
    fn make_room(&mut self, m: usize, d: usize) -> Result<()> {
        let few = m * 4 * size_of::<f64>() <= d * size_of::<T>();
        let len = if few && self.grouped.is_some() { self.nearest.len() * m } else { 0 };
        if self.kept.len() != len {
            self.kept = Vec::new();
            self.kept = memory::zeroed(len, GAINS)?;
        }
        Ok(())
    }

    /// The amount by which each candidate would lower the total.
    pub fn gains(&mut self, lent: Lent<'_, '_, T>, candidates: &[T]) -> Result<Vec<u128>> {
        let d = lent.part.features.n_features();
        let mut gains = memory::zeroed(candidates.len() / d, GAINS)?;
        let scale = self.scale.unwrap_or(DistanceScale::NONE);
        let Lent { set, part, statistics, tasks, tiles } = lent;
        let workers = tiles.into_iter().map(|tile| (tile, [0u128; MOST], Share::default()));
        let mut workers = memory::collected(workers, "the threads' buffers")?;
        for (batch, gains) in candidates.chunks(MOST * d).zip(gains.chunks_mut(MOST)) {
            let candidates = &Candidates::new(batch, d, self.filter_pays());
            self.make_room(candidates.count(), d)?;
            if let Some(grouped) = &self.grouped {
                self.tried = memory::copied(batch, GAINS)?;
                let tasks = blocks::tasks(grouped, workers.len());
                let (mut rest, mut rest_kept) = (self.gaining.as_mut_slice(), self.kept.as_mut_slice());
                let work = tasks.map(|blocks| {
                    let places = grouped.places(blocks.clone()).len();
                    (blocks, split_off(&mut rest, places / UNIT), split_off(&mut rest_kept, places * candidates.count()))
                });
                let (near, weights, farthest) = (&self.nearest, &self.weights, &self.farthest);
                for_each_task(&mut workers, work, |(_, gains, share), (blocks, gaining, kept)| {
                    let out = Gains { scale, gains, share, gaining, kept };
                    set.run(BlockGains { grouped, near, weights, farthest, candidates, blocks, out });
                })?;
            } else {
                let near = &self.nearest;
                for_each_task(&mut workers, tasks.iter(), |(tile, gains, share), task| {
                    let near = &near[task.first..][..task.kept];
                    let out = Gains { scale, gains, share, gaining: &mut [], kept: &mut [] };
                    set.run(TileGains { part, statistics, tile, task, near, candidates, out });
                })?;
            }
            self.share = Share::default();
            for (_, more, share) in &mut workers {
                gains.iter_mut().zip(std::mem::take(more)).for_each(|(all, more)| *all += more);
                self.share.add(std::mem::take(share));
            }
        }
        Ok(gains)
    }

    /// Takes centroids (`(m, d)`, row-major). From now on, distances count in this scale.
    pub fn take(&mut self, mut lent: Lent<'_, '_, T>, centroids: &[T], scale: DistanceScale) -> Result<()> {
        let Lent { set, part, statistics, tasks, tiles } = &mut lent;
        let (set, part, statistics, d) = (*set, *part, *statistics, part.features.n_features());
        let (first, anew) = (self.scale.is_none(), self.scale != Some(scale));
        self.scale = Some(scale);
        for batch in centroids.chunks(MOST * d) {
            let candidates = &Candidates::new(batch, d, !first && self.filter_pays());
            let Self { grouped, nearest, weights, ranges, amounts, farthest, tried, gaining, kept, .. } = self;
            let (weights, ranges, mut rest) = (&*weights, &*ranges, nearest.as_mut_slice());
            if let Some(grouped) = grouped {
                // A candidate of the last gains has something to lower only where it had a gain.
                let number = tried.chunks_exact(d).position(|tried| tried == batch);
                let tried = number.map(|number| Tried { number, of: tried.len() / d, gaining, kept });
                let (grouped, mut rest_farthest) = (&*grouped, farthest.as_mut_slice());
                let work = blocks::tasks(grouped, amounts.len()).map(|blocks| {
                    let near = split_off(&mut rest, grouped.places(blocks.clone()).len());
                    (blocks.clone(), near, split_off(&mut rest_farthest, blocks.len()))
                });
                for_each_task(amounts, work, |amounts, (blocks, near, farthest)| {
                    let amounts = if anew { &mut [] } else { amounts.as_mut_slice() };
                    let changes = Changes { scale, ranges, amounts };
                    set.run(BlockTake { grouped, near, weights, farthest, candidates, tried, blocks, changes });
                })?;
            } else {
                let work = tasks.iter().map(|task| (task, split_off(&mut rest, task.kept)));
                let mut workers: Vec<_> = tiles.iter_mut().zip(amounts).collect();
                for_each_task(&mut workers, work, |(tile, amounts), (task, near)| {
                    let amounts = if anew { &mut [] } else { amounts.as_mut_slice() };
                    let changes = Changes { scale, ranges, amounts };
                    set.run(TileTake { part, statistics, tile, task, near, candidates, changes });
                })?;
            }
        }
        if anew {
            self.add_up(&lent)?;
        } else {
            for amounts in &mut self.amounts {
                self.ranges.totals.iter_mut().zip(amounts).for_each(|(total, amount)| *total -= std::mem::take(amount));
            }
        }
        Ok(())
    }
}

/// Adds up the draw weights of some rows.
struct AddUp<'p, T> {
    seeds: &'p Seeds<T>,
    statistics: &'p Statistics,
    rows: Range<usize>,
}

impl<T: Float> Task for AddUp<'_, T> {
    type Output = u128;

    #[inline(always)]
    fn run<V: Vector>(self) -> u128 {
        let Self { seeds, statistics, rows } = self;
        let Some(scale) = seeds.scale else { return rows.map(|row| seeds.weight(row, statistics)).sum() };
        let mut total = 0;
        for start in rows.clone().step_by(UNIT) {
            let (mut near, mut weights) = ([0.0; UNIT], ONES);
            for (i, row) in (start..(start + UNIT).min(rows.end)).enumerate() {
                let place = seeds.place(row);
                near[i] = seeds.nearest[place];
                if let Some(weight) = seeds.weights.get(place) {
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
    use crate::backend::Seeder;
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
        let mut total = session.start_draws().unwrap();
        let mut seed: Vec<f32> = x[..d].to_vec();
        for step in 0..CLUSTERS as u128 {
            total = total.min(session.take_seeds(&seed, statistics.distances).unwrap());
            let targets: Vec<u128> = (0..6).map(|trial| total / 360 * (6 * step + trial)).collect();
            seed = session.trials(&targets).unwrap().0[..d].to_vec();
        }
        let seeds = session.seeds.unwrap();
        // A copy of the rows, and little more for each row.
        let places = seeds.nearest.len();
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
