//! The rows of a fit on a GPU, as seeding sees them.

use std::sync::Arc;

use super::CudaSession;
use super::other_rows::OtherRows;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::passes::draws::{self, DeviceDraws};
use crate::backend::cuda::passes::labels::SeedLabels;
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::picks::batch;
use crate::backend::{DrawBy, Draws, KeptRows, Picked, PlusPlus, Sample, Sampled};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::Part;
use crate::statistics::Statistics;

impl<T: Float + Plain> KeptRows for CudaSession<'_, T> {
    fn rows(&self) -> u64 {
        self.rows.n() as u64
    }

    fn positive_rows(&self) -> u64 {
        self.positive
    }

    fn on_device(&self) -> bool {
        true
    }
}

impl<T: Float + Plain> CudaSession<'_, T> {
    /// The array of labels, where seeding may write its own numbers.
    fn seed_labels(&self) -> SeedLabels<'_> {
        let labels = &self.state.labels;
        SeedLabels { labels: labels.scratch(), bytes: labels.bytes }
    }

    fn draws(&self) -> &DeviceDraws<T> {
        let Some(draws) = &self.draws else { unreachable!("draws were started") };
        draws
    }

    /// Calls `work` with the draws, while nobody else has them.
    fn with_draws<R>(&mut self, work: impl FnOnce(&Self, &mut DeviceDraws<T>) -> R) -> R {
        let Some(mut draws) = self.draws.take() else { unreachable!("draws were started") };
        let result = work(self, &mut draws);
        self.draws = Some(draws);
        result
    }
}

impl<T: Float + Plain> Draws<T> for CudaSession<'_, T> {
    fn row(&self, row: u64) -> Result<Vec<T>> {
        draws::row(&self.rows, row)
    }

    fn start_draws(&mut self) -> Result<u128> {
        let draws = DeviceDraws::start(&self.rows, &self.statistics, self.state.shape.k)?;
        Ok(self.draws.insert(draws).total())
    }

    fn draw(&self, target: u128) -> Result<u64> {
        self.draws().draw(&self.rows, &self.seed_labels(), target)
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        self.with_draws(|session, draws| draws.take(&session.rows, &session.seed_labels(), centroids, scale))
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        self.with_draws(|session, draws| draws.gains(&session.rows, &session.seed_labels(), candidates))
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        self.with_draws(|session, draws| draws.trials(&session.rows, &session.seed_labels(), targets))
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        let positive = self.positive;
        self.with_draws(|session, draws| draws.plus_plus_steps(&session.rows, asked, positive, potential, centroids))
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        let (labels, weights) = (self.seed_labels(), self.statistics.weights);
        let draws = self.draws.as_ref().map(|draws| (draws, &labels));
        draws::pick(&self.rows, draws, weights, by, targets, batch::<T>(&self.state.shape))
    }

    fn all_rows(&self) -> Result<(Vec<T>, Vec<f64>)> {
        draws::all_rows(&self.rows, self.statistics.weights)
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        self.with_draws(|session, draws| draws.sample(&session.rows, &session.seed_labels(), sample))
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        draws::masses(&self.rows, self.statistics.weights, candidates)
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        nearest_batch::nearest_of(self.rows.queue(), rows, centroids, self.rows.d())
    }

    fn other_rows<'t>(&self, part: &Part<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Draws<T> + 't>> {
        OtherRows::if_it_pays(self.rows.queue(), part, statistics, k)
    }

    fn end_draws(&mut self) {
        self.draws = None;
    }
}
