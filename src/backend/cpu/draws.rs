//! The rows of a fit on the CPU, as seeding sees them.

use super::picks::Walk;
use super::seeds::{Lent, Seeds};
use super::{CpuSession, candidates, picks};
use crate::backend::{DrawBy, Picked, Sample, Sampled, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::DistanceScale;

impl<'a, T: Float> CpuSession<'a, T> {
    /// The state of seeding, and what its passes need.
    fn lend(&mut self) -> (Option<&mut Seeds<T>>, Lent<'_, 'a, T>) {
        let Self { part, statistics, set, tasks, workers, seeds, .. } = self;
        let tiles = workers.iter_mut().map(|worker| &mut worker.tile).collect();
        (seeds.as_mut(), Lent { set: *set, part, statistics, tasks, tiles })
    }
}

impl<T: Float> Seeder<T> for CpuSession<'_, T> {
    fn positive_rows(&self) -> u64 {
        self.tasks.iter().map(|task| task.positive as u64).sum()
    }

    fn row(&mut self, row: u64) -> Result<Vec<T>> {
        let mut values = memory::zeroed(self.d, "a row")?;
        self.part.features.gather_tile(&[Walk::default().physical(self, row as usize)], 1, &mut values);
        Ok(values)
    }

    fn start_draws(&mut self) -> Result<u128> {
        self.seeds = None;
        let k = self.k;
        let (_, mut lent) = self.lend();
        let seeds = Seeds::new(&mut lent, k)?;
        Ok(self.seeds.insert(seeds).total())
    }

    fn draw(&mut self, target: u128) -> Result<u64> {
        Ok(picks::by_distance(self, &[target])?[0])
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let (Some(seeds), lent) = self.lend() else { unreachable!("draws were started") };
        seeds.take(lent, centroids, scale)?;
        Ok(seeds.total())
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let (Some(seeds), lent) = self.lend() else { unreachable!("draws were started") };
        seeds.gains(lent, candidates)
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        picks::pick(self, by, targets)
    }

    fn all_rows(&mut self) -> Result<(Vec<T>, Vec<f64>)> {
        picks::all(self)
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        let rows = candidates::sample(self, sample)?;
        let (values, _) = picks::load(self, &rows)?;
        Ok(Sampled { rows, values })
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        candidates::masses(self, candidates)
    }

    fn end_draws(&mut self) {
        self.seeds = None;
    }
}
