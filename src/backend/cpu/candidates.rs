//! What k-means|| asks about many rows at once: samples in which every row decides alone, and the masses of candidates.

use super::sinks::{LabelTask, Labeller, Sink};
use super::tasks::{pieces, split_off};
use super::{CentroidTable, CpuSession};
use crate::backend::Sample;
use crate::backend::centre::middle;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::exact::rng::{NO_VALUES, hash_value};
use crate::input::tile::WeightScale;
use crate::simd::Vector;

/// The numbers of the rows of a sample, in ascending order.
pub fn sample<T: Float>(session: &mut CpuSession<'_, T>, sample: &Sample) -> Result<Vec<u64>> {
    const WHAT: &str = "the rows drawn";
    let CpuSession { part, statistics, tasks, workers, seeds, labels, .. } = session;
    let Some(seeds) = seeds else { unreachable!("draws were started") };
    let mut drawn = memory::zeroed::<bool>(labels.len(), WHAT)?;
    let mut rest = drawn.as_mut_slice();
    let work = tasks.iter().map(|task| (task, split_off(&mut rest, task.kept)));
    for_each_task(workers, work, |worker, (task, drawn)| {
        let mut rows = (task.first..).zip(drawn);
        if !sample.by_values {
            rows.for_each(|(row, drawn)| *drawn = sample.has(sample.first + row as u64, seeds.weight(row, statistics)));
            return;
        }
        let tile = &mut worker.tile;
        for range in pieces(task.physical.clone(), tile.stride) {
            tile.load(part, statistics.weights, range);
            for (r, (row, drawn)) in (0..tile.rows).zip(&mut rows) {
                let value = |f: usize| tile.x[f * tile.stride + r].to_f64();
                let hash = (0..part.features.n_features()).fold(NO_VALUES, |hash, f| hash_value(hash, value(f)));
                *drawn = sample.has(hash, seeds.weight(row, statistics));
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
    let table = CentroidTable::new(candidates, session.d, &centre, session.statistics.extent(), session.set, 1)?;
    let (CpuSession { part, set, tasks, .. }, weights) = (&*session, session.statistics.weights);
    let labellers = Labeller::several(session.workers.len(), [session.d, m, session.workers[0].tile.stride])?;
    let workers = labellers.into_iter().map(|labeller| Ok((labeller, memory::zeroed::<u128>(m, WHAT)?)));
    let mut workers = memory::try_collected(workers, "the threads' buffers")?;
    for_each_task(&mut workers, tasks.iter(), |(labeller, masses), task| {
        let (rows, sink) = (task.physical.clone(), MassSink { weights, masses });
        set.run(LabelTask { part, weights, table: &table, rows, labeller, bits: None, sink });
    })?;
    let mut all = memory::zeroed::<u128>(m, WHAT)?;
    for (_, masses) in workers {
        all.iter_mut().zip(masses).for_each(|(all, mass)| *all += mass);
    }
    Ok(all)
}

/// Adds the weight of each row to the mass of its nearest candidate.
struct MassSink<'o> {
    weights: Option<WeightScale>,
    masses: &'o mut [u128],
}

impl<T: Float> Sink<T> for MassSink<'_> {
    #[inline(always)]
    fn tile<V: Vector>(&mut self, table: &CentroidTable<T>, labeller: &mut Labeller<T>) {
        let Labeller { tile, assigner, .. } = labeller;
        for (label, weight) in assigner.label_tile::<V, T>(tile, table).iter().zip(&tile.weights) {
            self.masses[*label as usize] += self.weights.map_or(1, |scale| scale.integer(*weight) as u128);
        }
    }
}
