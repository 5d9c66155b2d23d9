//! Streaming: rows that do not fit on a GPU pass through it in chunks of a good size.

use polars_kmeans::Job;
use polars_kmeans::backend::chunking::{Chunking, LEAST_ROWS, row_bytes};
use polars_kmeans::backend::select::Shape;
use polars_kmeans::base::params::DrawnCandidates;

/// The fewest chunks that must fit at a time.
const FEWEST: u64 = 2;

/// A label a row, and 64 KiB for tables.
fn bytes_of(shape: Shape) -> impl Fn(u64, u64) -> u64 {
    move |rows, buffers| {
        let chunks = rows.saturating_mul(row_bytes(shape)).saturating_mul(buffers.saturating_add(1));
        chunks.saturating_add(shape.rows).saturating_add(64 << 10)
    }
}

fn chunks_in(shape: Shape, room: u64) -> Result<Chunking, u64> {
    Chunking::new(shape, room, bytes_of(shape))
}

const SHAPE: Shape = Shape {
    job: Job::Fit,
    rows: 1 << 30,
    features: 4,
    clusters: 64,
    float64: false,
    half: false,
    weighted: false,
    candidates: DrawnCandidates::NONE,
    priced: false,
};

#[test]
fn a_large_fit_streams_in_chunks_of_64_mib() {
    // A one-byte label for each of 2^30 rows, and 64 MiB for each buffer.
    let chunking = chunks_in(SHAPE, 2 << 30).unwrap();
    assert_eq!((chunking.rows, chunking.chunks, chunking.buffers), (1 << 22, 256, 14));
    let text = "the rows do not fit there and stream through it in 256 chunks of 4,194,304, of which it holds 14 at a time";
    assert_eq!(chunking.to_string(), text);
    assert!((chunking.travelling() - 242.0 / 256.0).abs() < 1e-12);
    // With more room, chunks are longer and there are more of them.
    let chunking = chunks_in(SHAPE, 10 << 30).unwrap();
    assert_eq!((chunking.rows, chunking.chunks, chunking.buffers), (16 << 20, 64, 34));
    // Room for all chunks: no chunk is sent twice.
    let chunking = chunks_in(SHAPE, 100 << 30).unwrap();
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
        let needed = chunks_in(shape, 0).unwrap_err();
        assert!(chunks_in(shape, needed - 1).is_err(), "{shape}");
        let chunking = chunks_in(shape, needed).unwrap();
        assert_eq!(chunking.buffers, FEWEST.min(chunking.chunks), "{shape}");
    }
    let absurd = Shape { rows: u64::MAX, features: usize::MAX, clusters: usize::MAX, ..SHAPE };
    assert_eq!(chunks_in(absurd, u64::MAX - 1), Err(u64::MAX));
}

#[test]
fn more_room_is_never_worse_and_always_enough() {
    for shape in [
        Shape { rows: 7_000, ..SHAPE },
        Shape { rows: 100_000, features: 100, clusters: 300, ..SHAPE },
        Shape { rows: 3_000_000, weighted: true, ..SHAPE },
    ] {
        let least = chunks_in(shape, 0).unwrap_err();
        let mut share = 1.0;
        for step in 0..400 {
            let room = least + least / 8 * step;
            let Chunking { rows, chunks, buffers, .. } = chunks_in(shape, room).unwrap();
            assert!(bytes_of(shape)(rows, buffers) <= room, "{shape} in {room}");
            assert!(rows % LEAST_ROWS == 0 && (chunks - 1) * rows < shape.rows && shape.rows <= chunks * rows);
            assert!(buffers == chunks || buffers >= FEWEST);
            let travelling = Chunking { rows, chunks, buffers, room }.travelling();
            // Chunk sizes are powers of two, so a little may be lost at each step.
            assert!(travelling <= share + 0.2, "{shape} in {room}: {travelling} after {share}");
            share = travelling;
        }
        assert_eq!(share, 0.0, "{shape}");
    }
}
