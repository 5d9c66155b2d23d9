//! A fit's rows as its passes see them: chunk by chunk, whether they are all on the device or pass through it.

use super::device::{Plain, Queue};
use super::rows::DeviceRows;
use super::stream::Stream;
use crate::backend::chunking::{Chunking, LEAST_ROWS};
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::tile::{Part, WeightScale};

/// The kept rows of a fit.
pub enum Chunks<'a, T> {
    /// One chunk, which is always there.
    Resident(DeviceRows<T>),
    Streamed(Stream<'a, T>),
}

/// Rows that are on the device now.
pub struct Chunk<'c, T> {
    /// The first of them.
    pub first: usize,
    pub rows: &'c DeviceRows<T>,
}

impl<'a, T: Float + Plain> Chunks<'a, T> {
    /// Sends the kept rows, or makes ready to.
    pub fn new(queue: &Queue, parts: &[Part<'a, T>], chunking: Option<Chunking>) -> Result<Self> {
        match chunking {
            Some(chunking) => Ok(Self::Streamed(Stream::new(queue, parts, chunking)?)),
            None => Ok(Self::Resident(super::upload::upload(queue, parts)?)),
        }
    }

    /// Calls `work` for every chunk, in some order; what it puts into the queue finds the chunk there.
    pub fn visit(&self, mut work: impl FnMut(&Chunk<'_, T>) -> Result<()>) -> Result<()> {
        match self {
            Self::Resident(rows) => work(&Chunk { first: 0, rows }),
            Self::Streamed(stream) => stream.visit(work),
        }
    }

    pub fn queue(&self) -> &Queue {
        match self {
            Self::Resident(rows) => &rows.queue,
            Self::Streamed(stream) => stream.queue(),
        }
    }

    /// Rows.
    pub fn n(&self) -> usize {
        match self {
            Self::Resident(rows) => rows.n,
            Self::Streamed(stream) => stream.n(),
        }
    }

    /// Rows with the padding that labels need.
    pub fn padded(&self) -> usize {
        match self {
            Self::Resident(rows) => rows.stride,
            Self::Streamed(stream) => stream.n().next_multiple_of(LEAST_ROWS as usize),
        }
    }

    /// Rows of the longest chunk.
    pub fn longest(&self) -> usize {
        match self {
            Self::Resident(rows) => rows.n,
            Self::Streamed(stream) => stream.chunk_rows(),
        }
    }

    pub fn d(&self) -> usize {
        match self {
            Self::Resident(rows) => rows.d,
            Self::Streamed(stream) => stream.d(),
        }
    }

    pub fn weighted(&self) -> bool {
        match self {
            Self::Resident(rows) => rows.weights.is_some(),
            Self::Streamed(stream) => stream.weighted(),
        }
    }

    /// From here on weights are `w^`.
    pub fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        match self {
            Self::Resident(rows) => rows.round_weights(scale),
            Self::Streamed(stream) => {
                stream.round_weights(scale);
                Ok(())
            }
        }
    }

    /// The rows where all are on the device.
    pub fn into_resident(self) -> Result<DeviceRows<T>> {
        match self {
            Self::Resident(rows) => Ok(rows),
            Self::Streamed(_) => Err(KMeansError::NoMemory { what: "all rows at once on the GPU".into(), bytes: None }),
        }
    }
}
