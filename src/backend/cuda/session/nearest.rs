//! The two nearest centroids of every row of a fit, by `nearest` of `kernels/passes/predict.cu`, piece by piece of every chunk.

use super::CudaSession;
use crate::backend::answers::{Distances, LABELS};
use crate::backend::cuda::arguments;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::predict::{NearestBuffers, ROWS};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// Most rows of a piece.
const MOST_ROWS: usize = 1 << 20;
/// The answers for a row take 20 bytes. A piece of at most a quarter of a chunk takes at most 5 bytes for each row of the chunk.
/// That is less than the 8 bytes for each row that the search for far rows takes.
const PIECES: usize = 4;
/// The rows of a piece, for chunks of at most `n` rows: whole tiles.
fn piece(n: usize) -> usize {
    let tile = ROWS as usize;
    (n / PIECES / tile * tile).clamp(tile, MOST_ROWS)
}

/// The bytes that the answers for a piece take on the device.
pub fn nearest_bytes(n: usize) -> u64 {
    NearestBuffers::bytes(piece(n))
}

impl<T: Float + Plain> CudaSession<'_, T> {
    /// For every row: its nearest centroid, and the distances to this one and to the second nearest.
    pub(super) fn nearest_rows(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        self.start(centroids)?;
        let n = self.rows.n();
        let (mut all_labels, mut all) = (memory::zeroed(n, LABELS)?, Distances::zeroed(n, self.state.shape.k)?);
        let state = &self.state;
        let entry = arguments::nearest::<T>().half_if(state.shape.half);
        let launch = entry.resident(&state.queue.gpu, "", usize::MAX)?;
        let tile = ROWS as usize;
        let piece = piece(self.rows.longest());
        let out = NearestBuffers::allocate(&state.queue, piece)?;
        self.rows.visit(|chunk| {
            for start in (0..chunk.rows.n).step_by(piece) {
                let rows = start..chunk.rows.n.min(start + piece);
                let argument = out.argument(chunk.rows.argument_of(rows.clone()), &state.centroids, state.shape.k);
                let blocks = rows.len().div_ceil(tile).min(launch.blocks as usize);
                // SAFETY: the outputs have one entry for each row of a piece. Rows may be read up to the stride, which is a
                // multiple of the tile, as the first row of the piece is. `start` has set the centroids.
                unsafe { state.queue.run(&launch.with_blocks(blocks), &argument)? };
                let place = chunk.first + rows.start..chunk.first + rows.end;
                out.labels.read(0, &mut all_labels[place.clone()])?;
                out.distances.read(0, &mut all.nearest[place.clone()])?;
                if let Some(second) = &mut all.second {
                    out.seconds.read(0, &mut second[place])?;
                }
            }
            Ok(())
        })?;
        Ok((all_labels, all))
    }
}
