//! What k-means|| asks about many rows at once: samples in which every row decides alone, and the masses of candidates.

use super::seeds::rows_of_tile;
use super::{Assigner, CentroidTable, CpuSession, TaskRows};
use crate::backend::Sample;
use crate::backend::centre::middle;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::exact::rng::{NO_VALUES, hash_value};
use crate::input::tile::{Part, Tile};
use crate::simd::{Task, Vector};
use crate::statistics::Statistics;

/// The numbers of the rows of a sample, in ascending order.
pub fn sample<T: Float>(session: &mut CpuSession<'_, T>, sample: &Sample) -> Result<Vec<u64>> {
    const WHAT: &str = "the rows drawn";
    let CpuSession { part, statistics, tasks, workers, seeds, labels, .. } = session;
    let Some(seeds) = seeds else { unreachable!("draws were started") };
    let mut drawn = memory::zeroed::<bool>(labels.len(), WHAT)?;
    let mut rest = drawn.as_mut_slice();
    let work = tasks.iter().map(|task| {
        let (drawn, tail) = std::mem::take(&mut rest).split_at_mut(task.kept);
        rest = tail;
        (task, drawn)
    });
    for_each_task(workers, work, |worker, (task, drawn)| {
        if sample.by_values {
            let (tile, mut rows) = (&mut worker.tile, (task.first..).zip(drawn));
            for start in task.physical.clone().step_by(tile.stride) {
                tile.load(part, statistics.weights, rows_of_tile(tile, task, start));
                for (r, (row, drawn)) in (0..tile.rows).zip(&mut rows) {
                    let value = |f: usize| tile.x[f * tile.stride + r].to_f64();
                    let hash = (0..part.features.n_features()).fold(NO_VALUES, |hash, f| hash_value(hash, value(f)));
                    *drawn = sample.has(hash, seeds.weight(row, statistics));
                }
            }
        } else {
            for (row, drawn) in (task.first..).zip(drawn) {
                *drawn = sample.has(sample.first + row as u64, seeds.weight(row, statistics));
            }
        }
    })?;
    memory::collected((0..).zip(&drawn).filter(|(_, drawn)| **drawn).map(|(row, _)| row), WHAT)
}

/// For each candidate, the total weight of the rows that are nearest to it.
pub fn masses<T: Float>(session: &mut CpuSession<'_, T>, candidates: &[T]) -> Result<Vec<u128>> {
    const WHAT: &str = "the masses of the candidates";
    let m = candidates.len() / session.d;
    let centre = middle(candidates, session.d)?;
    let table = CentroidTable::new(candidates, session.d, &centre, session.statistics.extent(), &[])?;
    let CpuSession { part, statistics, set, tasks, workers, d, .. } = session;
    let workers = workers.iter_mut().map(|worker| {
        let assigner = Assigner::new::<T>(*d, m, worker.tile.stride)?;
        Ok((&mut worker.tile, assigner, memory::zeroed::<u128>(m, WHAT)?))
    });
    let mut workers = memory::try_collected(workers, "the threads' buffers")?;
    for_each_task(&mut workers, tasks.iter(), |(tile, assigner, masses), task| {
        set.run(Weigh { part, statistics, table: &table, tile, assigner, masses, task });
    })?;
    let mut all = memory::zeroed::<u128>(m, WHAT)?;
    for (_, _, masses) in workers {
        all.iter_mut().zip(masses).for_each(|(all, mass)| *all += mass);
    }
    Ok(all)
}

/// Adds the weight of each row of one task to the mass of its nearest candidate.
struct Weigh<'p, 'a, T> {
    part: &'p Part<'a, T>,
    statistics: &'p Statistics,
    table: &'p CentroidTable<T>,
    tile: &'p mut Tile<T>,
    assigner: &'p mut Assigner,
    masses: &'p mut [u128],
    task: &'p TaskRows,
}

impl<T: Float> Task for Weigh<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for start in self.task.physical.clone().step_by(self.tile.stride) {
            self.tile.load(self.part, self.statistics.weights, rows_of_tile(self.tile, self.task, start));
            let labels = self.assigner.label::<V, T>(self.tile, self.table);
            for (label, weight) in labels.iter().zip(&self.tile.weights) {
                self.masses[*label as usize] += self.statistics.weights.map_or(1, |scale| scale.integer(*weight) as u128);
            }
        }
    }
}
