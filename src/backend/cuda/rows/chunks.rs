//! The rows of a fit as its passes see them: chunk by chunk. Either all rows are on the device, or they stream through it.

use crate::backend::chunking::Chunking;
use crate::backend::cuda::device::{Plain, Queue};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::stream::RowStream;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::input::fp16::Half;
use crate::input::tile::{RowBlock, WeightScale};

/// The kept rows of a fit.
pub enum RowChunks<'a, T> {
    /// All rows are on the device, as one chunk.
    Resident(DeviceRows<T>),
    Streamed(RowStream<'a, T>),
}

/// A chunk whose rows are on the device now.
pub struct DeviceChunk<'c, T> {
    /// The number of the first row of the chunk.
    pub first: usize,
    pub rows: &'c DeviceRows<T>,
    /// Whether the queue's last work is a kernel. If the rows stream, it may be a copy.
    pub after_kernel: bool,
}

impl<'c, T> DeviceChunk<'c, T> {
    /// All rows, which are on the device.
    pub fn of_all(rows: &'c DeviceRows<T>) -> Self {
        Self { first: 0, rows, after_kernel: true }
    }
}

/// An expression for each of both kinds of rows.
macro_rules! either {
    ($chunks:expr, $rows:ident => $resident:expr, $stream:ident => $streamed:expr) => {
        match $chunks {
            RowChunks::Resident($rows) => $resident,
            RowChunks::Streamed($stream) => $streamed,
        }
    };
}

impl<'a, T: Float + Plain> RowChunks<'a, T> {
    /// Sends the kept rows to the device, or prepares to stream them.
    pub fn new(queue: &Queue, parts: &[RowBlock<'a, T>], chunking: Option<Chunking>) -> Result<Self> {
        match chunking {
            Some(chunking) => Ok(Self::Streamed(RowStream::new(queue, parts, chunking)?)),
            None => Ok(Self::Resident(crate::backend::cuda::rows::upload::upload(queue, parts)?)),
        }
    }

    /// Calls `work` for every chunk, in any order. Work that it puts into the queue can use the chunk on the device.
    pub fn visit(&self, mut work: impl FnMut(&DeviceChunk<'_, T>) -> Result<()>) -> Result<()> {
        either!(self, rows => work(&DeviceChunk::of_all(rows)), stream => stream.visit(work))
    }

    pub fn queue(&self) -> &Queue {
        either!(self, rows => &rows.queue, stream => &stream.queue)
    }

    /// The number of rows.
    pub fn n(&self) -> usize {
        either!(self, rows => rows.n, stream => stream.sources.n)
    }

    /// The number of rows of the longest chunk.
    pub fn longest(&self) -> usize {
        either!(self, rows => rows.n, stream => stream.chunk_rows)
    }

    pub fn d(&self) -> usize {
        either!(self, rows => rows.d, stream => stream.sources.d)
    }

    /// The type of the values on the device, if it is one of 16 bits.
    pub fn half(&self) -> Option<Half> {
        either!(self, rows => rows.half(), stream => stream.sources.half)
    }

    /// Rounds the weights: from now on they are `w^`.
    pub fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        match self {
            Self::Resident(rows) => rows.round_weights(scale),
            Self::Streamed(stream) => {
                stream.round_weights(scale);
                Ok(())
            }
        }
    }

    /// The rows, if all of them are on the device.
    pub fn into_resident(self) -> Result<DeviceRows<T>> {
        match self {
            Self::Resident(rows) => Ok(rows),
            Self::Streamed(_) => Err(KMeansError::NoMemory { what: "all rows at once on the GPU".into(), bytes: None }),
        }
    }
}
