//! Streaming: rows that do not fit on a GPU pass through it in chunks. This file decides how large the chunks are and computes
//! how much GPU memory the fit then takes.
//!
//! ```text
//! always there   one label per row, the tables of the clusters, totals of the draws
//! buffers        as many chunks as fit; every chunk is sent once, and each later pass sends the chunks that are not there
//! scratch        what the kernels need for the one chunk that they work on
//! ```
//! Chunks whose partial sums stay on the device are an idea of Lutz et al. 2018, section 5, and of Li et al. 2010, algorithm 7.
//! Those systems send every chunk again in every pass. Here as many chunks as fit stay on the device.

use std::fmt;

use super::select::{Shape, counted};

/// Up to this many dimensions, the pass that finds the labels also updates the sums and overwrites the labels in place. With more
/// dimensions, there are two arrays: the labels before and after.
pub const LABELS_IN_PLACE: usize = 12;
/// The rows of a chunk are a multiple of this number, because the kernels work on whole blocks of rows.
pub const LEAST_ROWS: u64 = 1_024;
/// Most rows that kernels can count in 32 bits, rounded down to whole tiles.
pub const MOST_ROWS: u64 = (1 << 32) - LEAST_ROWS;
/// When rows are drawn, each range of a chunk has its own total. These are the most ranges per chunk and the fewest rows per
/// range.
const RANGES: u64 = 64;
const RANGE_ROWS: u64 = 256;
/// Bytes of a chunk. A chunk is large enough to use the full bus and the whole device, and small enough that waiting for one
/// chunk costs almost nothing. Chunks are larger where there is much memory.
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=512 << 20;
const SHARE_OF_ROOM: u64 = 32;
/// The number of chunks that should fit at a time, and the fewest that let one travel while the GPU works on another.
const ENOUGH_BUFFERS: u64 = 4;
const FEWEST_BUFFERS: u64 = 2;
/// An allocation is rounded up to this many bytes. `ALLOCATIONS` is the number of small allocations.
pub const ALLOCATION: u64 = 512;
const ALLOCATIONS: u64 = 64;

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
        let (chunks, rows, there) = (counted(self.chunks), counted(self.rows), counted(self.buffers));
        write!(
            f,
            "the rows do not fit there and stream through it in {chunks} chunks of {rows}, of which it holds {there} at a time"
        )
    }
}

impl Chunking {
    /// The chunking for a fit in `room` bytes of a GPU. The error is the number of bytes that are needed.
    pub fn new(shape: Shape, room: u64) -> Result<Self, u64> {
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
                let taken = bytes_needed(shape, rows, buffers);
                if taken <= room && taken < u64::MAX {
                    let more = (room - taken) / buffer_bytes(row, rows);
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

/// Number of rows in one range of a chunk.
pub fn range_rows(chunk: u64) -> u64 {
    chunk.div_ceil(RANGES).next_multiple_of(RANGE_ROWS)
}

/// Bytes of device memory for the pieces of row-major blocks that are on their way. It is a share of a chunk.
pub fn piece_bytes(chunk: u64) -> u64 {
    (chunk / 8).max(ALLOCATION)
}

/// Bytes of a row in a chunk.
pub fn row_bytes(shape: Shape) -> u64 {
    let (values, weight) = (if shape.float64 { 8 } else { 4 }, if shape.weighted { 8 } else { 0 });
    (shape.features as u64).saturating_mul(values).saturating_add(weight).max(1)
}

/// Bytes of a chunk's buffer: one allocation for the rows and one for their weights.
fn buffer_bytes(row: u64, rows: u64) -> u64 {
    row.saturating_mul(rows).saturating_add(2 * ALLOCATION)
}

/// Bytes that a fit takes with chunks of `rows` rows and with `buffers` buffers. This is never less than the sum of its
/// allocations.
fn bytes_needed(shape: Shape, rows: u64, buffers: u64) -> u64 {
    let Shape { features, clusters, float64, weighted, .. } = shape;
    let [d, k, n] = [features as u128, clusters as u128, u128::from(shape.rows)];
    let [chunk, chunks] = [u128::from(rows), u128::from(shape.rows.div_ceil(rows))];
    let value = if float64 { 8 } else { 4 };
    let columns = d + u128::from(weighted);

    let label = if clusters <= 0xff {
        1
    } else if clusters <= 0xffff {
        2
    } else {
        4
    };
    let arrays = if features <= LABELS_IN_PLACE { 1 } else { 2 };
    let labels = n.next_multiple_of(u128::from(LEAST_ROWS)) * label * arrays;

    // Pending sums (two limbs of two words each) and canonical sums; centroids in three layouts, and seeds; copies for the
    // filter.
    let copies = if features <= LABELS_IN_PLACE { 16 } else { d };
    let cells = k.saturating_mul(columns.saturating_mul(32 + 16)).saturating_add(k.saturating_mul(d).saturating_mul(4 * value));
    let filter = k.next_multiple_of(128).saturating_mul(copies.saturating_mul(4) + 4);
    let trials = 3 + u128::from(u64::BITS - (clusters as u64).leading_zeros());
    let tables = cells.saturating_add(filter).saturating_add(k * 176).saturating_add(d.saturating_mul(256 + 16 * trials));

    // Totals of the ranges: the current total and one per candidate. The search for far rows has one candidate per block of rows.
    let ranges = chunks.saturating_mul(chunk.div_ceil(u128::from(range_rows(rows))));
    let draws = ranges.saturating_mul(16 * (trials + 2));
    let far = 16 * chunk.div_ceil(256).min(1_024);

    // Contested rows (with few dimensions there is no list of them) and distances. Preparation also keeps what it learns about
    // each 4,096 rows of a column and of the weights.
    let doubt = if features <= LABELS_IN_PLACE { 0 } else { 8 };
    let scratch = chunk.saturating_mul(doubt + 8).saturating_add((chunk / 4_096 + 1).saturating_mul(48 * d + 32));
    let pieces = u128::from(piece_bytes(rows.saturating_mul(row_bytes(shape))));
    let chunk_buffers = u128::from(buffer_bytes(row_bytes(shape), rows)).saturating_mul(u128::from(buffers));

    let small = u128::from(ALLOCATION * ALLOCATIONS);
    let all = [labels, tables, draws, far, scratch, pieces, chunk_buffers, small];
    u64::try_from(all.into_iter().fold(0, u128::saturating_add)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::select::Job;
    use super::*;

    const SHAPE: Shape = Shape { job: Job::Fit, rows: 1 << 30, features: 4, clusters: 64, float64: false, weighted: false };

    #[test]
    fn a_large_fit_streams_in_chunks_of_64_mib() {
        // A one-byte label for each of 2^30 rows, and 64 MiB for each buffer.
        let chunking = Chunking::new(SHAPE, 2 << 30).unwrap();
        assert_eq!((chunking.rows, chunking.chunks, chunking.buffers), (1 << 22, 256, 15));
        let text = "the rows do not fit there and stream through it in 256 chunks of 4,194,304, of which it holds 15 at a time";
        assert_eq!(chunking.to_string(), text);
        assert!((chunking.travelling() - 241.0 / 256.0).abs() < 1e-12);
        // With more room, chunks are longer and there are more of them.
        let chunking = Chunking::new(SHAPE, 10 << 30).unwrap();
        assert_eq!((chunking.rows, chunking.chunks, chunking.buffers), (16 << 20, 64, 35));
        // Room for all chunks: no chunk is sent twice.
        let chunking = Chunking::new(SHAPE, 100 << 30).unwrap();
        assert_eq!((chunking.chunks, chunking.buffers, chunking.travelling()), (32, 32, 0.0));
    }

    #[test]
    fn what_does_not_even_fit_in_chunks_says_what_it_needs() {
        let shapes = [
            SHAPE,
            Shape { rows: 1, features: 1, clusters: 1, ..SHAPE },
            Shape { rows: 7_000, clusters: 300, float64: true, weighted: true, ..SHAPE },
            Shape { features: 100, ..SHAPE },
            Shape { rows: 1 << 36, clusters: 70_000, ..SHAPE },
        ];
        for shape in shapes {
            let needed = Chunking::new(shape, 0).unwrap_err();
            assert!(Chunking::new(shape, needed - 1).is_err(), "{shape}");
            let chunking = Chunking::new(shape, needed).unwrap();
            assert_eq!(chunking.buffers, FEWEST_BUFFERS.min(chunking.chunks), "{shape}");
        }
        let absurd = Shape { rows: u64::MAX, features: usize::MAX, clusters: usize::MAX, ..SHAPE };
        assert_eq!(Chunking::new(absurd, u64::MAX - 1), Err(u64::MAX));
    }

    #[test]
    fn more_room_is_never_worse_and_always_enough() {
        for shape in [
            Shape { rows: 7_000, ..SHAPE },
            Shape { rows: 100_000, features: 100, clusters: 300, ..SHAPE },
            Shape { rows: 3_000_000, weighted: true, ..SHAPE },
        ] {
            let least = Chunking::new(shape, 0).unwrap_err();
            let mut share = 1.0;
            for step in 0..400 {
                let room = least + least / 16 * step;
                let Chunking { rows, chunks, buffers, .. } = Chunking::new(shape, room).unwrap();
                assert!(bytes_needed(shape, rows, buffers) <= room, "{shape} in {room}");
                assert!(rows % LEAST_ROWS == 0 && (chunks - 1) * rows < shape.rows && shape.rows <= chunks * rows);
                assert!(buffers == chunks || buffers >= FEWEST_BUFFERS);
                let travelling = Chunking { rows, chunks, buffers, room }.travelling();
                // Chunk sizes are powers of two, so a little may be lost at each step.
                assert!(travelling <= share + 0.2, "{shape} in {room}: {travelling} after {share}");
                share = travelling;
            }
            assert_eq!(share, 0.0, "{shape}");
        }
    }

    #[test]
    fn ranges_are_few_and_short() {
        for rows in [1_024, 4_096, 65_536, 4 << 20, 1 << 27] {
            let range = range_rows(rows);
            assert!(range.is_multiple_of(RANGE_ROWS) && rows.div_ceil(range) <= RANGES && range <= 1 << 24);
        }
    }
}
