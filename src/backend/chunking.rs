//! Streaming: rows that do not fit on a GPU pass through it in chunks. This file decides how large the chunks are.
//!
//! ```text
//! always there   one or two labels per row, the tables of the clusters; while seeding runs, a distance per row
//! buffers        as many chunks as fit; every chunk is sent once, and each later pass sends the chunks that are not there
//! scratch        what the kernels need for the one chunk that they work on
//! ```
//! Chunks whose partial sums stay on the device are an idea of Lutz et al. 2018, section 5, and of Li et al. 2010, algorithm 7.
//! Those systems send every chunk again in every pass. Here as many chunks as fit stay on the device.

use std::fmt;

use super::select::Shape;
use crate::base::figures::GroupedDigits;

/// The rows of a chunk are a multiple of this number, because the kernels work on whole blocks of rows.
pub const LEAST_ROWS: u64 = 1_024;
/// Most rows that kernels can count in 32 bits, rounded down to whole tiles.
pub const MOST_ROWS: u64 = (1 << 32) - LEAST_ROWS;
/// Bytes of a chunk. A chunk is large enough to use the full bus and the whole device, and small enough that waiting for one
/// chunk costs almost nothing. Chunks are larger where there is much memory.
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=512 << 20;
const SHARE_OF_ROOM: u64 = 32;
/// The number of chunks that should fit at a time, and the fewest that let one travel while the GPU works on another.
const ENOUGH_BUFFERS: u64 = 4;
const FEWEST_BUFFERS: u64 = 2;

/// How rows pass through a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking {
    /// Rows of every chunk but the last, which may have fewer.
    pub rows: u64,
    pub chunks: u64,
    /// Number of chunks that fit at a time.
    pub buffers: u64,
    /// Bytes that the whole fit may take.
    pub room: u64,
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chunks, rows, there) = (GroupedDigits(self.chunks), GroupedDigits(self.rows), GroupedDigits(self.buffers));
        write!(
            f,
            "the rows do not fit there and stream through it in {chunks} chunks of {rows}, of which it holds {there} at a time"
        )
    }
}

impl Chunking {
    /// The chunking for a fit in `room` bytes of a GPU. `bytes_of`: what the fit takes with chunks of so many rows, of which so
    /// many are there at a time. The error is the number of bytes that are needed.
    pub fn new(shape: Shape, room: u64, bytes_of: impl Fn(u64, u64) -> u64) -> Result<Self, u64> {
        let row = row_bytes(shape);
        let all = shape.rows.div_ceil(LEAST_ROWS).max(1).saturating_mul(LEAST_ROWS);
        let bytes = (room / SHARE_OF_ROOM).clamp(*CHUNK_BYTES.start(), *CHUNK_BYTES.end());
        // Chunk sizes are powers of two times LEAST_ROWS, whatever the room, so the number of bytes needed does not depend on the
        // room. Chunks longer than the bus needs are tried last: they have fewer totals.
        let halves_of = |bytes: u64| (bytes / row / LEAST_ROWS).max(1).ilog2();
        let (longest, limit) = (halves_of(bytes), halves_of(*CHUNK_BYTES.end()));
        let mut needed = u64::MAX;
        for enough in [ENOUGH_BUFFERS, FEWEST_BUFFERS] {
            for rows in (0..=longest).rev().chain(longest + 1..=limit).map(|halves| (LEAST_ROWS << halves).min(all)) {
                let chunks = shape.rows.div_ceil(rows).max(1);
                let buffers = enough.min(chunks);
                let taken = bytes_of(rows, buffers);
                if taken <= room && taken < u64::MAX {
                    // Each further buffer takes the same.
                    let more = (room - taken) / bytes_of(rows, buffers + 1).saturating_sub(taken).max(1);
                    return Ok(Self { rows, chunks, buffers: buffers.saturating_add(more).min(chunks), room });
                }
                needed = needed.min(taken);
            }
        }
        Err(needed)
    }

    /// The share of the rows that each pass sends again. Rows that are on the device when the pass begins are not sent.
    pub fn travelling(&self) -> f64 {
        1.0 - self.buffers as f64 / self.chunks as f64
    }
}

/// The fewest bytes for these pieces.
const LEAST_PIECE: u64 = 512;

/// Bytes of device memory for the pieces of row-major blocks that are on their way. It is a share of a chunk.
pub fn piece_bytes(chunk: u64) -> u64 {
    (chunk / 8).max(LEAST_PIECE)
}

/// Bytes of a row in a chunk.
pub fn row_bytes(shape: Shape) -> u64 {
    let value = match (shape.float64, shape.half) {
        (true, _) => 8,
        (false, true) => 2,
        (false, false) => 4,
    };
    let weight = if shape.weighted { 8 } else { 0 };
    (shape.features as u64).saturating_mul(value).saturating_add(weight).max(1)
}
