//! A few rows beside those of a fit on a GPU, for seeding: the candidates of k-means||, or a sample. The plan of the GPU's memory
//! does not count them. If there is no room, the CPU has them.

use std::sync::Arc;

use super::draws::{Drawable, SeedingContext};
use crate::backend::Seeder;
use crate::backend::cuda::device::{Plain, Queue};
use crate::backend::cuda::passes::seeds::{DeviceDraws, positive_rows};
use crate::backend::cuda::rows::chunks::RowChunks;
use crate::backend::cuda::shape::FitShape;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::tile::RowBlock;
use crate::statistics::Statistics;

/// The least arithmetic (rows x features x centroids) for which it pays to send the rows. Below this a CPU takes a few
/// milliseconds.
const LEAST: usize = 1 << 22;

pub struct OtherRows<'t, T> {
    rows: RowChunks<'t, T>,
    shape: FitShape,
    positive: u64,
    statistics: Arc<Statistics>,
    draws: Option<DeviceDraws<T>>,
}

impl<'t, T: Float + Plain> OtherRows<'t, T> {
    pub fn if_it_pays(
        queue: &Queue,
        part: &RowBlock<'t, T>,
        statistics: &Arc<Statistics>,
        k: usize,
    ) -> Option<Box<dyn Seeder<T> + 't>> {
        let size = part.features.n_rows().saturating_mul(part.features.n_features()).saturating_mul(k);
        let other = (size >= LEAST).then(|| Self::new(queue, part, statistics, k).ok())??;
        Some(Box::new(other))
    }

    fn new(queue: &Queue, part: &RowBlock<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Result<Self> {
        let mut rows = RowChunks::new(queue, std::slice::from_ref(part), None)?;
        if let Some(scale) = statistics.weights {
            rows.round_weights(scale)?;
        }
        Self::of(rows, statistics, k)
    }

    /// These rows, which are all on the GPU. Their weights are `w^`.
    pub fn of(rows: RowChunks<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Result<Self> {
        let shape = Self::shape([rows.n(), rows.d(), k], statistics.weights.is_some(), rows.half().is_some());
        let positive = positive_rows(&rows)?;
        Ok(Self { rows, shape, positive, statistics: statistics.clone(), draws: None })
    }

    fn shape([n, d, k]: [usize; 3], weighted: bool, half: bool) -> FitShape {
        FitShape { rows: n, chunk: n, d, k, weighted, float64: !T::IS_F32, half, limbs: 2, more_copies: false }
    }

    /// The bytes that draws from `n` rows take beside the rows.
    pub fn draw_bytes(shape: [usize; 3], weighted: bool, half: bool) -> u64 {
        DeviceDraws::<T>::bytes(&Self::shape(shape, weighted, half), false)
    }
}

impl<T: Float + Plain> Drawable for OtherRows<'_, T> {
    type Value = T;

    fn surveyed(&self) -> (&RowChunks<'_, T>, u64) {
        (&self.rows, self.positive)
    }

    fn lend(&mut self) -> SeedingContext<'_, T> {
        let Self { rows, shape, statistics, draws, .. } = self;
        SeedingContext { rows, shape, statistics, draws }
    }
}
