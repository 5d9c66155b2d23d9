//! The rows of a fit on the CPU, as seeding sees them.

use super::seeds::{SeedingContext, Seeds};
use super::{CpuSession, masses, picks};
use crate::backend::{Draw, Picked, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::DistanceScale;

impl<'a, T: Float> CpuSession<'a, T> {
    /// The state of seeding, and what its passes need.
    fn lend(&mut self) -> (Option<&mut Seeds<T>>, SeedingContext<'_, 'a, T>) {
        let Self { part, statistics, set, tasks, workers, seeds, .. } = self;
        let tiles = workers.iter_mut().map(|worker| &mut worker.tile).collect();
        (seeds.as_mut(), SeedingContext { set: *set, part, statistics, tasks, tiles })
    }
}

impl<T: Float> Seeder<T> for CpuSession<'_, T> {
    fn positive_rows(&self) -> u64 {
        self.tasks.iter().map(|task| task.positive as u64).sum()
    }

    fn weigh(&mut self) -> Result<u128> {
        self.seeds = None;
        let k = self.k;
        let (_, mut context) = self.lend();
        let seeds = Seeds::new(&mut context, k)?;
        Ok(self.seeds.insert(seeds).total())
    }

    fn lower(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let (Some(seeds), context) = self.lend() else { unreachable!("draws were started") };
        seeds.lower(context, centroids, scale)?;
        Ok(seeds.total())
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let (Some(seeds), context) = self.lend() else { unreachable!("draws were started") };
        seeds.gains(context, candidates)
    }

    fn pick(&mut self, draw: &Draw) -> Result<Picked<T>> {
        let rows = match draw {
            Draw::All => return picks::all(self),
            Draw::Totals(by, targets) => picks::by_totals(self, *by, targets)?,
            Draw::Each(sample) => picks::each(self, sample)?,
        };
        let (values, weights) = picks::load(self, &rows)?;
        Ok(Picked { rows, values, weights })
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        masses::masses(self, candidates)
    }

    fn end_draws(&mut self) {
        self.seeds = None;
    }
}
