//! A few rows beside those of a fit on a GPU, for seeding: the candidates of k-means||, or a sample. The plan of the GPU's memory
//! does not count them. If there is no room, the CPU has them.

use std::sync::Arc;

use crate::backend::cuda::device::{Buffer, Plain, Queue};
use crate::backend::cuda::passes::draws::{self, DeviceDraws, positive_rows};
use crate::backend::cuda::passes::labels::SeedLabels;
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::picks::batch;
use crate::backend::cuda::passes::seeds::DeviceSeeds;
use crate::backend::cuda::rows::chunks::Chunks;
use crate::backend::cuda::shape::FitShape;
use crate::backend::{DrawBy, Draws, KeptRows, Picked, PlusPlus, Sample, Sampled};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::Part;
use crate::statistics::Statistics;

/// The least arithmetic (rows x features x centroids) for which it pays to send the rows. Below this a CPU takes a few
/// milliseconds.
const LEAST: usize = 1 << 22;

pub struct OtherRows<'t, T> {
    rows: Chunks<'t, T>,
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
        part: &Part<'t, T>,
        statistics: &Arc<Statistics>,
        k: usize,
    ) -> Option<Box<dyn Draws<T> + 't>> {
        let size = part.features.n_rows().saturating_mul(part.features.n_features()).saturating_mul(k);
        let other = (size >= LEAST).then(|| Self::new(queue, part, statistics, k).ok())??;
        Some(Box::new(other))
    }

    fn new(queue: &Queue, part: &Part<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Result<Self> {
        let mut rows = Chunks::new(queue, std::slice::from_ref(part), None)?;
        if let Some(scale) = statistics.weights {
            rows.round_weights(scale)?;
        }
        Self::of(rows, statistics, k)
    }

    /// These rows, which are all on the GPU. Their weights are `w^`.
    pub fn of(rows: Chunks<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Result<Self> {
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

    /// Calls `work` with the draws, while nobody else has them.
    fn with_draws<R>(&mut self, work: impl FnOnce(&Self, &SeedLabels<'_>, &mut DeviceDraws<T>) -> R) -> R {
        let Some(mut draws) = self.draws.take() else { unreachable!("draws were started") };
        let result = work(self, &self.seed_labels(), &mut draws);
        self.draws = Some(draws);
        result
    }

    fn seed_labels(&self) -> SeedLabels<'_> {
        SeedLabels { labels: &self.labels, bytes: 1 }
    }
}

impl<T: Float + Plain> KeptRows for OtherRows<'_, T> {
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

impl<T: Float + Plain> Draws<T> for OtherRows<'_, T> {
    fn row(&self, row: u64) -> Result<Vec<T>> {
        draws::row(&self.rows, row)
    }

    fn start_draws(&mut self) -> Result<u128> {
        let draws = DeviceDraws::start(&self.rows, &self.statistics, self.shape.k)?;
        Ok(self.draws.insert(draws).total())
    }

    fn draw(&self, target: u128) -> Result<u64> {
        let Some(draws) = &self.draws else { unreachable!("draws were started") };
        draws.draw(&self.rows, &self.seed_labels(), target)
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        self.with_draws(|other, labels, draws| draws.take(&other.rows, labels, centroids, scale))
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        self.with_draws(|other, labels, draws| draws.gains(&other.rows, labels, candidates))
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        self.with_draws(|other, labels, draws| draws.trials(&other.rows, labels, targets))
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        let positive = self.positive;
        self.with_draws(|other, _, draws| draws.plus_plus_steps(&other.rows, asked, positive, potential, centroids))
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        let (labels, weights) = (self.seed_labels(), self.statistics.weights);
        let draws = self.draws.as_ref().map(|draws| (draws, &labels));
        draws::pick(&self.rows, draws, weights, by, targets, batch::<T>(&self.shape))
    }

    fn all_rows(&self) -> Result<(Vec<T>, Vec<f64>)> {
        draws::all_rows(&self.rows, self.statistics.weights)
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        self.with_draws(|other, labels, draws| draws.sample(&other.rows, labels, sample))
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        draws::masses(&self.rows, self.statistics.weights, candidates)
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        nearest_batch::nearest_of(self.rows.queue(), rows, centroids, self.rows.d())
    }

    fn other_rows<'o>(&self, part: &Part<'o, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Draws<T> + 'o>> {
        OtherRows::if_it_pays(self.rows.queue(), part, statistics, k)
    }

    fn end_draws(&mut self) {
        self.draws = None;
    }
}
