//! Rows on a GPU as seeding sees them, for both cases: all rows are on the device (`passes/seeds.rs`), or they stream through it
//! (`rows/stream/seeds.rs`).

use std::sync::Arc;

use super::CudaSession;
use super::other_rows::OtherRows;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::passes::labels::SeedLabels;
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::picks::{self, batch};
use crate::backend::cuda::passes::seeds::{self, DeviceSeeds};
use crate::backend::cuda::predict::DeviceTable;
use crate::backend::cuda::rows::chunks::RowChunks;
use crate::backend::cuda::rows::stream::seeds::StreamedSeeds;
use crate::backend::cuda::shape::FitShape;
use crate::backend::{DrawBy, Picked, PlusPlus, Sample, Sampled, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::RowBlock;
use crate::statistics::Statistics;

/// Draw weights of the rows.
#[expect(clippy::large_enum_variant, reason = "there is one for each fit")]
pub enum DeviceDraws<T> {
    Resident(DeviceSeeds<T>),
    Streamed(StreamedSeeds<T>),
}

/// What holds rows on a GPU that seeding draws from.
pub trait Drawable: Send {
    /// The type of the features.
    type Value: Float + Plain;
    fn chunks(&self) -> &RowChunks<'_, Self::Value>;
    /// Number of these rows that have a positive weight.
    fn positive(&self) -> u64;
    fn lend(&mut self) -> Lent<'_, Self::Value>;
}

/// The rows, and what draws from them need.
pub struct Lent<'s, T> {
    pub rows: &'s RowChunks<'s, T>,
    pub shape: &'s FitShape,
    pub statistics: &'s Statistics,
    /// The array of labels, where seeding may write its own numbers.
    pub labels: SeedLabels<'s>,
    pub draws: &'s mut Option<DeviceDraws<T>>,
}

/// Matches the draws that were started and their rows. Both are always of the same kind.
macro_rules! on_rows {
    ($rows:expr, |$seeds:ident, $found:ident, $labels:ident| $resident:expr, $streamed:expr) => {{
        let Lent { rows, draws, labels: $labels, .. } = $rows.lend();
        match (draws, rows) {
            (Some(DeviceDraws::Resident($seeds)), RowChunks::Resident($found)) => $resident,
            (Some(DeviceDraws::Streamed($seeds)), RowChunks::Streamed($found)) => $streamed,
            _ => unreachable!("draws were started from these rows"),
        }
    }};
}

impl<T: Float + Plain> Drawable for CudaSession<'_, T> {
    type Value = T;

    fn chunks(&self) -> &RowChunks<'_, T> {
        &self.rows
    }

    fn positive(&self) -> u64 {
        self.positive
    }

    fn lend(&mut self) -> Lent<'_, T> {
        let Self { rows, statistics, state, draws, .. } = self;
        let labels = SeedLabels { labels: state.labels.scratch(), bytes: state.labels.bytes };
        Lent { rows, shape: &state.shape, statistics, labels, draws }
    }
}

impl<T: Float + Plain, D: Drawable<Value = T>> Seeder<T> for D {
    fn positive_rows(&self) -> u64 {
        self.positive()
    }

    fn row(&mut self, row: u64) -> Result<Vec<T>> {
        match self.chunks() {
            RowChunks::Resident(rows) => seeds::row(rows, row),
            RowChunks::Streamed(stream) => Ok(stream.gather(row as usize..row as usize + 1)?.0),
        }
    }

    fn start_draws(&mut self) -> Result<u128> {
        let Lent { rows, statistics, shape, draws, .. } = self.lend();
        let (started, total) = match rows {
            RowChunks::Resident(rows) => {
                let seeds = DeviceSeeds::start(rows, statistics)?;
                let total = seeds.total;
                (DeviceDraws::Resident(seeds), total)
            }
            RowChunks::Streamed(stream) => {
                let seeds = StreamedSeeds::start(stream, statistics, shape.k)?;
                let total = seeds.total();
                (DeviceDraws::Streamed(seeds), total)
            }
        };
        *draws = Some(started);
        Ok(total)
    }

    fn draw(&mut self, target: u128) -> Result<u64> {
        on_rows!(self, |seeds, rows, labels| seeds.draw(rows, target), seeds.draw(rows, &labels, target))
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        on_rows!(self, |seeds, rows, labels| seeds.take(rows, centroids, scale), seeds.take(rows, &labels, centroids, scale))
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        on_rows!(self, |seeds, rows, labels| seeds.gains(rows, candidates), seeds.gains(rows, &labels, candidates))
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        on_rows!(self, |seeds, rows, labels| seeds.trials(rows, targets), seeds.trials(rows, &labels, targets))
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        let positive = self.positive();
        match self.lend() {
            Lent { draws: Some(DeviceDraws::Resident(seeds)), rows: RowChunks::Resident(rows), .. } => {
                seeds.plus_plus_steps(rows, asked, positive, potential, centroids)
            }
            // The host draws from rows that stream.
            _ => Ok(()),
        }
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        let Lent { rows, shape, statistics, labels, draws } = self.lend();
        match (rows, draws) {
            (RowChunks::Resident(rows), draws) => {
                let seeds = match draws {
                    Some(DeviceDraws::Resident(seeds)) => Some(&*seeds),
                    _ => None,
                };
                picks::pick(rows, seeds, statistics.weights, by, targets, batch::<T>(shape))
            }
            (RowChunks::Streamed(stream), Some(DeviceDraws::Streamed(seeds))) if by == DrawBy::Distance => {
                seeds.pick(stream, &labels, targets)
            }
            (RowChunks::Streamed(stream), _) => stream.pick(by, statistics.weights, targets),
        }
    }

    fn all_rows(&mut self) -> Result<(Vec<T>, Vec<f64>)> {
        let Lent { rows, statistics, .. } = self.lend();
        match rows {
            RowChunks::Resident(rows) => picks::all(rows),
            RowChunks::Streamed(stream) => stream.gather_rounded(0..stream.sources.n, statistics.weights),
        }
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        on_rows!(self, |seeds, rows, labels| seeds.sample(rows, sample), seeds.sample(rows, &labels, sample))
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let Lent { rows, statistics, .. } = self.lend();
        let masses = rows.queue().zeros::<u128>(candidates.len() / rows.d(), "the masses of the candidates")?;
        let table = DeviceTable::new(rows.queue().gpu.ordinal, candidates, rows.d())?;
        rows.visit(|chunk| nearest_batch::add_masses(&table, chunk.rows, statistics.weights, &masses))?;
        masses.to_vec()
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        nearest_batch::nearest_of(self.chunks().queue(), rows, centroids, self.chunks().d())
    }

    fn other_rows<'t>(
        &self,
        part: &RowBlock<'t, T>,
        statistics: &Arc<Statistics>,
        k: usize,
    ) -> Option<Box<dyn Seeder<T> + 't>> {
        OtherRows::if_it_pays(self.chunks().queue(), part, statistics, k)
    }

    fn end_draws(&mut self) {
        *self.lend().draws = None;
    }
}

/// The number of rows of positive weight.
pub fn positive_rows<T: Float + Plain>(chunks: &RowChunks<'_, T>) -> Result<u64> {
    match chunks {
        RowChunks::Resident(rows) => seeds::positive_rows(rows),
        RowChunks::Streamed(stream) => Ok(stream.positive),
    }
}
