//! Seeding, wherever the rows are: all on the device (`seeds.rs`), or passing through it (`stream/seeds.rs`).

use std::ops::Range;

use super::arguments::LabelsArgument;
use super::chunks::Chunks;
use super::device::{Buffer, Plain};
use super::seeds::{self, DeviceSeeds};
use super::stream::seeds::StreamedSeeds;
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::UNASSIGNED;
use crate::prepare::Prepared;

/// Draw weights of the rows.
pub enum Draws<T> {
    Resident(DeviceSeeds<T>),
    Streamed(StreamedSeeds<T>),
}

/// A fit's labels, which seeding may use: the loop forgets them when it starts.
pub struct SeedLabels<'s> {
    pub labels: &'s Buffer<u8>,
    /// Of a label.
    pub bytes: usize,
}

impl SeedLabels<'_> {
    /// As kernels take the labels of a chunk.
    pub fn from(&self, first: usize) -> LabelsArgument {
        LabelsArgument { at: self.labels.at_index(first * self.bytes), bytes: self.bytes as i32 }
    }

    /// Labels of rows.
    pub fn read(&self, rows: Range<usize>) -> Result<Vec<u32>> {
        const WHAT: &str = "the labels of some rows";
        let mut narrow = memory::zeroed(rows.len() * self.bytes, WHAT)?;
        self.labels.read(rows.start * self.bytes, &mut narrow)?;
        memory::collected(narrow.chunks_exact(self.bytes).map(widen), WHAT)
    }
}

/// A label of 1, 2 or 4 bytes; all ones stay all ones.
pub fn widen(bytes: &[u8]) -> u32 {
    match *bytes {
        [u8::MAX] | [u8::MAX, u8::MAX] => UNASSIGNED,
        [a] => u32::from(a),
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        _ => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}

/// For a match on both at once: draws are made of the rows that they are given.
macro_rules! on_rows {
    ($draws:expr, $chunks:expr, |$seeds:ident, $rows:ident| $resident:expr, $streamed:expr) => {
        match ($draws, $chunks) {
            (Draws::Resident($seeds), Chunks::Resident($rows)) => $resident,
            (Draws::Streamed($seeds), Chunks::Streamed($rows)) => $streamed,
            _ => unreachable!("draws are of these rows"),
        }
    };
}

impl<T: Float + Plain> Draws<T> {
    /// Makes every row's draw weight its `w^`; `k` centroids may be taken.
    pub fn start(chunks: &Chunks<'_, T>, prepared: &Prepared, k: usize) -> Result<Self> {
        Ok(match chunks {
            Chunks::Resident(rows) => Self::Resident(DeviceSeeds::start(rows, prepared.weights)?),
            Chunks::Streamed(stream) => Self::Streamed(StreamedSeeds::start(stream, prepared, k)?),
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

    /// For each candidate (`(m, d)`, row-major), by how much it would lower the total.
    pub fn gains(&mut self, chunks: &Chunks<'_, T>, labels: &SeedLabels<'_>, candidates: &[T]) -> Result<Vec<u128>> {
        on_rows!(self, chunks, |seeds, rows| seeds.gains(rows, candidates), seeds.gains(rows, labels, candidates))
    }

    /// For each target, the row that is drawn as a candidate, and its gain.
    pub fn trials(&mut self, chunks: &Chunks<'_, T>, labels: &SeedLabels<'_>, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        on_rows!(self, chunks, |seeds, rows| seeds.trials(rows, targets), seeds.trials(rows, labels, targets))
    }

    /// Takes a centroid, or that which was taken last again; distances count in this scale from now on. Returns the total.
    pub fn take(
        &mut self,
        chunks: &Chunks<'_, T>,
        labels: &SeedLabels<'_>,
        centroid: &[T],
        scale: DistanceScale,
    ) -> Result<u128> {
        on_rows!(self, chunks, |seeds, rows| seeds.take(rows, centroid, scale), seeds.take(rows, labels, centroid, scale))
    }
}

/// The values of a row.
pub fn row<T: Float + Plain>(chunks: &Chunks<'_, T>, row: u64) -> Result<Vec<T>> {
    match chunks {
        Chunks::Resident(rows) => seeds::row(rows, row),
        Chunks::Streamed(stream) => Ok(stream.gather(row as usize..row as usize + 1)?.0),
    }
}

/// The `rank`th row of positive weight.
pub fn positive_row<T: Float + Plain>(chunks: &Chunks<'_, T>, rank: u64) -> Result<u64> {
    match chunks {
        Chunks::Resident(rows) => seeds::positive_row(rows, rank),
        Chunks::Streamed(stream) => stream.positive_row(rank),
    }
}
