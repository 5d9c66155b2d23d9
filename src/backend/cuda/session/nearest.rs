//! The two nearest centroids of every row of a fit, by `nearest` of `kernels/predict.cu`, piece by piece of every chunk.

use super::CudaSession;
use crate::answers::{Distances, LABELS};
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::predict::{NearestArgument, ROWS};
use crate::error::Result;
use crate::float::Float;
use crate::memory;

/// Most rows of a piece.
const MOST_ROWS: usize = 1 << 20;
/// The answers for a row take 20 bytes. A piece of at most a quarter of a chunk takes less than the 8 bytes a row that every fit
/// has for the distances of a chunk (`src/backend/chunking.rs`).
const PIECES: usize = 4;
/// The name of the answers in errors.
const ANSWERS: &str = "the distances of some rows";

impl<T: Float + Plain> CudaSession<'_, T> {
    /// For every row: its nearest centroid, and the distances to this one and to the second nearest.
    pub(super) fn nearest_rows(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        self.start(centroids)?;
        let n = self.rows.n();
        let (mut all_labels, mut all) = (memory::zeroed(n, LABELS)?, Distances::zeroed(n, self.k)?);
        let gpu = &self.queue.gpu;
        let kernel = gpu.kernel("predict", if T::IS_F32 { "nearest_f32" } else { "nearest_f64" })?;
        let most_blocks = gpu.resident_blocks(kernel, ROWS, 0)? as usize;
        // A piece consists of whole tiles.
        let tile = ROWS as usize;
        let piece = (self.rows.longest() / PIECES / tile * tile).clamp(tile, MOST_ROWS);
        let labels = self.queue.alloc::<u32>(piece, ANSWERS)?;
        let [distances, seconds] = [self.queue.alloc::<f64>(piece, ANSWERS)?, self.queue.alloc::<f64>(piece, ANSWERS)?];
        self.rows.visit(|chunk| {
            for start in (0..chunk.rows.n).step_by(piece) {
                let rows = start..chunk.rows.n.min(start + piece);
                let argument = NearestArgument {
                    rows: chunk.rows.argument_of(rows.clone()),
                    columns: self.column_centroids.at(),
                    labels: labels.at(),
                    distances: distances.at(),
                    seconds: seconds.at(),
                    k: self.k as i32,
                    unused: 0,
                };
                let blocks = rows.len().div_ceil(tile).min(most_blocks) as u32;
                // SAFETY: the argument mirrors the kernel's. The outputs have one entry for each row of a piece. Rows may be read
                // up to the stride, which is a multiple of the tile, as the first row of the piece is. `start` has set the
                // centroids.
                unsafe { self.queue.launch(kernel, blocks, ROWS, 0, &argument)? };
                let place = chunk.first + rows.start..chunk.first + rows.end;
                labels.read(0, &mut all_labels[place.clone()])?;
                distances.read(0, &mut all.nearest[place.clone()])?;
                if let Some(second) = &mut all.second {
                    seconds.read(0, &mut second[place])?;
                }
            }
            Ok(())
        })?;
        Ok((all_labels, all))
    }
}
