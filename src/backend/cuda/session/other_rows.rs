//! A few rows beside those of a fit on a GPU, for seeding: the candidates of k-means||, or a sample. The plan of the GPU's memory
//! does not count them. If there is no room, the CPU has them.

use std::sync::Arc;

use super::draws::{DeviceDraws, Drawable, Lent, positive_rows};
use crate::backend::Seeder;
use crate::backend::cuda::device::{Buffer, Plain, Queue};
use crate::backend::cuda::passes::labels::SeedLabels;
use crate::backend::cuda::passes::seeds::DeviceSeeds;
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
    /// Nothing: only seeding from rows that stream writes labels.
    labels: Buffer<u8>,
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
        let queue = rows.queue().clone();
        let shape = Self::shape([rows.n(), rows.d(), k], statistics.weights.is_some(), rows.half().is_some());
        let (positive, labels) = (positive_rows(&rows)?, queue.alloc(1, "the rows drawn")?);
        Ok(Self { rows, shape, positive, statistics: statistics.clone(), draws: None, labels })
    }

    fn shape([n, d, k]: [usize; 3], weighted: bool, half: bool) -> FitShape {
        FitShape { rows: n, chunk: n, d, k, weighted, float64: !T::IS_F32, half, limbs: 2, more_copies: false }
    }

    /// The bytes that draws from `n` rows take beside the rows.
    pub fn draw_bytes(shape: [usize; 3], weighted: bool, half: bool) -> u64 {
        DeviceSeeds::<T>::bytes(&Self::shape(shape, weighted, half))
    }
}

impl<T: Float + Plain> Drawable for OtherRows<'_, T> {
    type Value = T;

    fn chunks(&self) -> &RowChunks<'_, T> {
        &self.rows
    }

    fn positive(&self) -> u64 {
        self.positive
    }

    fn lend(&mut self) -> Lent<'_, T> {
        let Self { rows, shape, statistics, draws, labels, .. } = self;
        Lent { rows, shape, statistics, labels: SeedLabels { labels, bytes: 1 }, draws }
    }
}
