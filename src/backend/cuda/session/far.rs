//! Finds the rows that are farthest from their centroids, and moves them to empty clusters.

use super::CudaSession;
use crate::backend::cuda::arguments::{self, Moved, RelocateArgument, RowsArgument};
use crate::backend::cuda::device::{At, Buffer, Plain};
use crate::backend::cuda::passes::farthest::FarSearch;
use crate::backend::cuda::rows::chunks::RowChunks;
use crate::backend::cuda::rows::stream::RowStream;
use crate::backend::{Far, Move, Picked};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// The name in errors of rows that move.
const MOVED: &str = "the rows that move to empty clusters";

impl<T: Float + Plain> CudaSession<'_, T> {
    /// The `count` rows of positive weight that are farthest from their centroids. Only rows of clusters that `donors` allows
    /// count. They are in the order [`Far::order`].
    pub(super) fn farthest_rows(&self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        let state = &self.state;
        let mut search = FarSearch::new::<T>(&state.queue, (self.rows.longest(), state.shape.half), count, donors)?;
        let mut best = Vec::new();
        self.rows.visit(|chunk| {
            let rows = (chunk.rows.argument(), state.labels.now(chunk.first), state.centroids.now.at());
            // SAFETY: every row has a label, and the centroids are those of the state.
            unsafe { search.add(&state.queue, rows, chunk.first, &mut best) }
        })?;
        Ok(best)
    }

    /// Moves rows and their contributions to other clusters. The sums stay pending.
    pub(super) fn move_rows(&mut self, moves: &[Move]) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        match &*self.rows {
            RowChunks::Resident(rows) => {
                self.launch_moves((rows.argument(), rows.half().is_some()), moves, |_, row| row as u32)?;
            }
            RowChunks::Streamed(stream) => {
                // No more rows at once than take as much memory as the search for them.
                let most = FarSearch::bytes(&self.state.shape) as usize / (self.state.shape.d * size_of::<T>());
                for moves in moves.chunks(most.max(1)) {
                    let (values, weights) = self.gathered(stream, moves)?;
                    let w = weights.as_ref().map_or(At::NULL, Buffer::at);
                    let (stride, n, d) = (moves.len() as u64, moves.len() as u32, self.state.shape.d as i32);
                    let rows = RowsArgument { x: values.at(), w, stride, n, d, bfloat16: 0, step: 1 };
                    self.launch_moves((rows, false), moves, |place, _| place as u32)?;
                }
            }
        }
        Ok(())
    }

    /// Moves rows that are on the device. `half`: whether their values have 16 bits. `place(i, row)`: the place among `rows` of
    /// the row of move `i`.
    fn launch_moves(
        &self,
        (rows, half): (RowsArgument, bool),
        moves: &[Move],
        place: impl Fn(usize, u64) -> u32,
    ) -> Result<()> {
        let state = &self.state;
        let moves = moves.iter().enumerate().map(|(i, &Move { row, to })| Moved { row, place: place(i, row), to });
        let moves = state.queue.upload(&memory::collected(moves, MOVED)?, MOVED)?;
        let launch = arguments::relocate::<T>().half_if(half).exactly(&state.queue.gpu, "", moves.len())?;
        let argument = RelocateArgument {
            rows,
            labels: state.labels.now(0),
            sums: state.sums_of_step(),
            factors: state.columns.factors.at(),
            mass_to_integer: state.mass_to_integer,
            moves: moves.at(),
        };
        // SAFETY: the addresses are those of the state's buffers and of the rows. The rows are below n, and the clusters are
        // below k. No row moves twice. There is a block for each move.
        unsafe { state.queue.run(&launch, &argument) }
    }

    /// Uploads rows that may not be on the device, as columns, and their rounded weights.
    fn gathered(&self, stream: &RowStream<'_, T>, moves: &[Move]) -> Result<(Buffer<T>, Option<Buffer<f64>>)> {
        let (queue, d, scale) = (&self.state.queue, self.state.shape.d, self.statistics.weights);
        let rows = memory::collected(moves.iter().map(|one| one.row), MOVED)?;
        let Picked { values, weights, .. } = stream.picked(rows, scale)?;
        let columns = (0..d).flat_map(|f| values.iter().skip(f).step_by(d).copied());
        let columns = queue.upload(&memory::collected(columns, MOVED)?, MOVED)?;
        Ok((columns, scale.map(|_| queue.upload(&weights, MOVED)).transpose()?))
    }
}
