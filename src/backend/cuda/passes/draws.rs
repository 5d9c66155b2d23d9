//! Seeding for both cases: all rows are on the device (`seeds.rs`), or they stream through it (`stream/seeds.rs`).

use crate::backend::cuda::device::Plain;
use crate::backend::cuda::passes::labels::SeedLabels;
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::passes::picks;
use crate::backend::cuda::passes::seeds::{self, DeviceSeeds};
use crate::backend::cuda::predict::DeviceTable;
use crate::backend::cuda::rows::chunks::Chunks;
use crate::backend::cuda::rows::stream::seeds::StreamedSeeds;
use crate::backend::{DrawBy, Picked, PlusPlus, Sample, Sampled};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::WeightScale;
use crate::statistics::Statistics;

/// Draw weights of the rows.
pub enum DeviceDraws<T> {
    Resident(DeviceSeeds<T>),
    Streamed(StreamedSeeds<T>),
}

/// Matches the draws and the rows at the same time. Both are always of the same kind.
macro_rules! on_rows {
    ($draws:expr, $chunks:expr, |$seeds:ident, $rows:ident| $resident:expr, $streamed:expr) => {
        match ($draws, $chunks) {
            (DeviceDraws::Resident($seeds), Chunks::Resident($rows)) => $resident,
            (DeviceDraws::Streamed($seeds), Chunks::Streamed($rows)) => $streamed,
            _ => unreachable!("draws are of these rows"),
        }
    };
}

impl<T: Float + Plain> DeviceDraws<T> {
    /// Sets the draw weight of every row to its `w^`. Up to `k` centroids may be taken.
    pub fn start(chunks: &Chunks<'_, T>, statistics: &Statistics, k: usize) -> Result<Self> {
        Ok(match chunks {
            Chunks::Resident(rows) => Self::Resident(DeviceSeeds::start(rows, statistics)?),
            Chunks::Streamed(stream) => Self::Streamed(StreamedSeeds::start(stream, statistics, k)?),
        })
    }

    /// The total of all draw weights.
    pub fn total(&self) -> u128 {
        match self {
            Self::Resident(seeds) => seeds.total(),
            Self::Streamed(seeds) => seeds.total(),
        }
    }

    /// The first row whose running total of draw weights, in row order, exceeds `target`.
    pub fn draw(&self, chunks: &Chunks<'_, T>, labels: &SeedLabels<'_>, target: u128) -> Result<u64> {
        on_rows!(self, chunks, |seeds, rows| seeds.draw(rows, target), seeds.draw(rows, labels, target))
    }

    /// For each candidate, by how much it would lower the total. `candidates`: `(m, d)`, row-major.
    pub fn gains(&mut self, chunks: &Chunks<'_, T>, labels: &SeedLabels<'_>, candidates: &[T]) -> Result<Vec<u128>> {
        on_rows!(self, chunks, |seeds, rows| seeds.gains(rows, candidates), seeds.gains(rows, labels, candidates))
    }

    /// For each target, the values of the row that it draws as a candidate, and the gain of this row.
    pub fn trials(&mut self, chunks: &Chunks<'_, T>, labels: &SeedLabels<'_>, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        on_rows!(self, chunks, |seeds, rows| seeds.trials(rows, targets), seeds.trials(rows, labels, targets))
    }

    /// Takes centroids (`(m, d)`, row-major). From now on distances are counted in this scale. Returns the total.
    pub fn take(
        &mut self,
        chunks: &Chunks<'_, T>,
        labels: &SeedLabels<'_>,
        centroids: &[T],
        scale: DistanceScale,
    ) -> Result<u128> {
        on_rows!(self, chunks, |seeds, rows| seeds.take(rows, centroids, scale), seeds.take(rows, labels, centroids, scale))
    }

    /// Does steps of k-means++, as many as it can. `positive`: the number of rows of positive weight.
    pub fn plus_plus_steps(
        &mut self,
        chunks: &Chunks<'_, T>,
        asked: &PlusPlus,
        positive: u64,
        potential: &mut DistanceSum,
        centroids: &mut Vec<T>,
    ) -> Result<()> {
        match (self, chunks) {
            (Self::Resident(seeds), Chunks::Resident(rows)) => {
                seeds.plus_plus_steps(rows, asked, positive, potential, centroids)
            }
            // The host draws from rows that stream.
            _ => Ok(()),
        }
    }

    /// The rows of a sample in which every row decides alone.
    pub fn sample(&mut self, chunks: &Chunks<'_, T>, labels: &SeedLabels<'_>, sample: &Sample) -> Result<Sampled<T>> {
        on_rows!(self, chunks, |seeds, rows| seeds.sample(rows, sample), seeds.sample(rows, labels, sample))
    }
}

/// The rows that targets draw. `draws`: the distances, if the caller wants them. `batch`: how many rows a device draws at a time.
pub fn pick<T: Float + Plain>(
    chunks: &Chunks<'_, T>,
    draws: Option<(&DeviceDraws<T>, &SeedLabels<'_>)>,
    weights: Option<WeightScale>,
    by: DrawBy,
    targets: &[u128],
    batch: usize,
) -> Result<Picked<T>> {
    match (chunks, draws) {
        (Chunks::Resident(rows), Some((DeviceDraws::Resident(seeds), _))) => {
            picks::pick(rows, Some(seeds), weights, by, targets, batch)
        }
        (Chunks::Resident(rows), _) => picks::pick(rows, None, weights, by, targets, batch),
        (Chunks::Streamed(stream), Some((DeviceDraws::Streamed(seeds), labels))) if by == DrawBy::Distance => {
            seeds.pick(stream, labels, targets)
        }
        (Chunks::Streamed(stream), _) => stream.pick(by, weights, targets),
    }
}

/// The values of all rows, row-major, and their `w^`.
pub fn all_rows<T: Float + Plain>(chunks: &Chunks<'_, T>, weights: Option<WeightScale>) -> Result<(Vec<T>, Vec<f64>)> {
    match chunks {
        Chunks::Resident(rows) => picks::all(rows),
        Chunks::Streamed(stream) => stream.all(weights),
    }
}

/// The values of a row.
pub fn row<T: Float + Plain>(chunks: &Chunks<'_, T>, row: u64) -> Result<Vec<T>> {
    match chunks {
        Chunks::Resident(rows) => seeds::row(rows, row),
        Chunks::Streamed(stream) => Ok(stream.gather(row as usize..row as usize + 1)?.0),
    }
}

/// The number of rows of positive weight.
pub fn positive_rows<T: Float + Plain>(chunks: &Chunks<'_, T>) -> Result<u64> {
    match chunks {
        Chunks::Resident(rows) => seeds::positive_rows(rows),
        Chunks::Streamed(stream) => Ok(stream.positive_rows()),
    }
}

/// For each candidate (`(m, d)`, row-major), the total weight of the rows that are nearest to it.
pub fn masses<T: Float + Plain>(chunks: &Chunks<'_, T>, weights: Option<WeightScale>, candidates: &[T]) -> Result<Vec<u128>> {
    const WHAT: &str = "the masses of the candidates";
    let queue = chunks.queue();
    let masses = queue.zeros::<u128>(candidates.len() / chunks.d(), WHAT)?;
    let table = DeviceTable::new(queue.gpu.ordinal, candidates, chunks.d())?;
    chunks.visit(|chunk| nearest_batch::add_masses(&table, chunk.rows, weights, &masses))?;
    masses.to_vec()
}
