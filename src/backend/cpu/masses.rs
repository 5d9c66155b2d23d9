//! For each of many candidates, the weight of the rows that are nearest to it.

use super::sinks::{LabelTask, Labeller, Sink};
use super::{CentroidTable, CpuSession};
use crate::backend::centre::middle;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::input::tile::WeightScale;
use crate::simd::Vector;

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
