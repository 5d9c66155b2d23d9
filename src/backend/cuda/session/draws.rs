//! Rows on a GPU as seeding sees them.

use std::sync::Arc;

use super::CudaSession;
use super::other_rows::OtherRows;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::picks::{self, batch};
use crate::backend::cuda::passes::seeds::DeviceDraws;
use crate::backend::cuda::predict::DeviceTable;
use crate::backend::cuda::rows::chunks::RowChunks;
use crate::backend::cuda::shape::FitShape;
use crate::backend::{Draw, Picked, PlusPlus, Seeder, SeedingDevice};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::RowBlock;
use crate::statistics::Statistics;

/// What holds rows on a GPU that seeding draws from.
pub trait Drawable: Send {
    /// The type of the features.
    type Value: Float + Plain;
    /// The rows, and the number of those that have a positive weight.
    fn surveyed(&self) -> (&RowChunks<'_, Self::Value>, u64);
    fn lend(&mut self) -> SeedingContext<'_, Self::Value>;
}

/// The rows, and what draws from them need.
pub struct SeedingContext<'s, T> {
    pub rows: &'s RowChunks<'s, T>,
    pub shape: &'s FitShape,
    pub statistics: &'s Statistics,
    pub draws: &'s mut Option<DeviceDraws<T>>,
}

impl<'s, T> SeedingContext<'s, T> {
    /// The rows and the table of draws, which was begun.
    fn begun(self) -> (&'s RowChunks<'s, T>, &'s mut DeviceDraws<T>) {
        let Some(draws) = self.draws else { unreachable!("draws were started from these rows") };
        (self.rows, draws)
    }
}

impl<T: Float + Plain> Drawable for CudaSession<'_, T> {
    type Value = T;

    fn surveyed(&self) -> (&RowChunks<'_, T>, u64) {
        (&self.rows, self.positive)
    }

    fn lend(&mut self) -> SeedingContext<'_, T> {
        let Self { rows, statistics, state, draws, .. } = self;
        SeedingContext { rows, shape: &state.shape, statistics, draws }
    }
}

impl<T: Float + Plain, D: Drawable<Value = T>> Seeder<T> for D {
    fn positive_rows(&self) -> u64 {
        self.surveyed().1
    }

    fn weigh(&mut self) -> Result<u128> {
        let SeedingContext { rows, statistics, draws, .. } = self.lend();
        // There is no room for two tables.
        *draws = None;
        Ok(draws.insert(DeviceDraws::start(rows, statistics)?).total)
    }

    fn lower(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let (rows, draws) = self.lend().begun();
        draws.lower(rows, centroids, scale)
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let (rows, draws) = self.lend().begun();
        draws.gains(rows, candidates)
    }

    fn pick(&mut self, draw: &Draw) -> Result<Picked<T>> {
        let SeedingContext { rows, shape, statistics, draws } = self.lend();
        picks::pick(rows, draws.as_mut(), statistics.weights, draw, batch::<T>(shape))
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let SeedingContext { rows, statistics, .. } = self.lend();
        let masses = rows.queue().zeros::<u128>(candidates.len() / rows.d(), "the masses of the candidates")?;
        let table = DeviceTable::new(rows.queue().gpu.ordinal, candidates, rows.d())?;
        rows.visit(|chunk| nearest_batch::add_masses(&table, chunk.rows, statistics.weights, &masses))?;
        masses.to_vec()
    }

    fn end_draws(&mut self) {
        *self.lend().draws = None;
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        let positive = self.positive_rows();
        match self.lend() {
            SeedingContext { draws: Some(draws), rows: RowChunks::Resident(rows), .. } => {
                draws.plus_plus_steps(rows, asked, positive, potential, centroids)
            }
            // The host draws from rows that stream.
            _ => Ok(()),
        }
    }

    fn device(&self) -> Option<&dyn SeedingDevice<T>> {
        Some(self)
    }
}

impl<T: Float + Plain, D: Drawable<Value = T>> SeedingDevice<T> for D {
    fn nearest(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        let (own, _) = self.surveyed();
        nearest_batch::nearest_of(own.queue(), rows, centroids, own.d())
    }

    fn session<'t>(&self, part: &RowBlock<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Seeder<T> + 't>> {
        OtherRows::if_it_pays(self.surveyed().0.queue(), part, statistics, k)
    }
}
