//! Rows on a GPU as seeding sees them.

use std::sync::Arc;

use super::CudaSession;
use super::other_rows::OtherRows;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::passes::draws::{self, DeviceDraws};
use crate::backend::cuda::passes::labels::SeedLabels;
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::picks::batch;
use crate::backend::cuda::rows::chunks::Chunks;
use crate::backend::cuda::shape::FitShape;
use crate::backend::{DrawBy, Picked, PlusPlus, Sample, Sampled, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::Part;
use crate::statistics::Statistics;

/// What holds rows on a GPU that seeding draws from.
pub trait Drawable: Send {
    /// The type of the features.
    type Value: Float + Plain;
    fn chunks(&self) -> &Chunks<'_, Self::Value>;
    /// Number of these rows that have a positive weight.
    fn positive(&self) -> u64;
    fn lend(&mut self) -> Lent<'_, Self::Value>;
}

/// The rows, and what draws from them need.
pub struct Lent<'s, T> {
    pub rows: &'s Chunks<'s, T>,
    pub shape: &'s FitShape,
    pub statistics: &'s Statistics,
    /// The array of labels, where seeding may write its own numbers.
    pub labels: SeedLabels<'s>,
    pub draws: &'s mut Option<DeviceDraws<T>>,
}

impl<'s, T> Lent<'s, T> {
    /// The draws that were started, the rows, and the labels.
    fn started(self) -> (&'s mut DeviceDraws<T>, &'s Chunks<'s, T>, SeedLabels<'s>) {
        let Some(draws) = self.draws else { unreachable!("draws were started") };
        (draws, self.rows, self.labels)
    }
}

impl<T: Float + Plain> Drawable for CudaSession<'_, T> {
    type Value = T;

    fn chunks(&self) -> &Chunks<'_, T> {
        &self.rows
    }

    fn lend(&mut self) -> Lent<'_, T> {
        let Self { rows, statistics, state, draws, .. } = self;
        let labels = SeedLabels { labels: state.labels.scratch(), bytes: state.labels.bytes };
        Lent { rows, shape: &state.shape, statistics, labels, draws }
    }

    fn positive(&self) -> u64 {
        self.positive
    }
}

impl<T: Float + Plain, D: Drawable<Value = T>> Seeder<T> for D {
    fn positive_rows(&self) -> u64 {
        self.positive()
    }

    fn row(&mut self, row: u64) -> Result<Vec<T>> {
        draws::row(self.chunks(), row)
    }

    fn start_draws(&mut self) -> Result<u128> {
        let Lent { rows, statistics, shape, draws, .. } = self.lend();
        Ok(draws.insert(DeviceDraws::start(rows, statistics, shape.k)?).total())
    }

    fn draw(&mut self, target: u128) -> Result<u64> {
        let (draws, rows, labels) = self.lend().started();
        draws.draw(rows, &labels, target)
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let (draws, rows, labels) = self.lend().started();
        draws.take(rows, &labels, centroids, scale)
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let (draws, rows, labels) = self.lend().started();
        draws.gains(rows, &labels, candidates)
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let (draws, rows, labels) = self.lend().started();
        draws.trials(rows, &labels, targets)
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        let positive = self.positive();
        let (draws, rows, _) = self.lend().started();
        draws.plus_plus_steps(rows, asked, positive, potential, centroids)
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        let Lent { rows, shape, statistics, labels, draws, .. } = self.lend();
        let draws = draws.as_ref().map(|draws| (draws, &labels));
        draws::pick(rows, draws, statistics.weights, by, targets, batch::<T>(shape))
    }

    fn all_rows(&mut self) -> Result<(Vec<T>, Vec<f64>)> {
        let Lent { rows, statistics, .. } = self.lend();
        draws::all_rows(rows, statistics.weights)
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        let (draws, rows, labels) = self.lend().started();
        draws.sample(rows, &labels, sample)
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let Lent { rows, statistics, .. } = self.lend();
        draws::masses(rows, statistics.weights, candidates)
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        nearest_batch::nearest_of(self.chunks().queue(), rows, centroids, self.chunks().d())
    }

    fn other_rows<'t>(&self, part: &Part<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Seeder<T> + 't>> {
        OtherRows::if_it_pays(self.chunks().queue(), part, statistics, k)
    }

    fn end_draws(&mut self) {
        *self.lend().draws = None;
    }
}
