//! Finds the rows that are farthest from their centroids, and moves them to empty clusters.

use super::CudaSession;
use crate::backend::Far;
use crate::backend::cuda::arguments::{self, FarRow, RelocateArgument, RowsArgument};
use crate::backend::cuda::device::{Block, Buffer, Launch, Plain};
use crate::backend::cuda::passes::distances::{FAR, FarSearch, order};
use crate::backend::cuda::rows::chunks::Chunks;
use crate::error::Result;
use crate::float::Float;
use crate::memory;

impl<T: Float + Plain> CudaSession<'_, T> {
    /// The `count` rows of positive weight that are farthest from their centroids. Only rows of clusters that `donors` allows
    /// count. They are in the order [`Far::order`].
    pub(super) fn farthest_rows(&self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        let state = &self.state;
        let search = FarSearch::new::<T>(&state.queue, self.rows.longest(), donors)?;
        let mut best: Vec<FarRow> = Vec::new();
        self.rows.visit(|chunk| {
            let rows = (chunk.rows.argument(), state.labels.now(chunk.first), state.centroids.now.at());
            // SAFETY: every row has a label, and the centroids are those of the state.
            unsafe { search.add(&state.queue, rows, chunk.first, count, &mut best)? };
            best.sort_unstable_by(order);
            best.truncate(count);
            Ok(())
        })?;
        let far = |c: FarRow| Ok(Far { distance: c.distance, row: c.row, cluster: self.label(c.row)? });
        memory::try_collected(best.into_iter().map(far), FAR)
    }

    /// Moves a row and its contribution to another cluster.
    pub(super) fn move_row(&mut self, row: u64, to: u32) -> Result<()> {
        let state = &self.state;
        let kernel = arguments::relocate::<T>().load(&state.queue.gpu, "")?;
        // A row that may not be on the device is uploaded alone. The kernel sees it as row 0, and its label as label 0.
        let alone = match &self.rows {
            Chunks::Resident(_) => None,
            Chunks::Streamed(stream) => {
                let (values, weights) = stream.gather(row as usize..row as usize + 1)?;
                let weights =
                    self.prepared.weights.map(|scale| state.queue.upload(&[scale.round(weights[0])], "a row")).transpose()?;
                Some((state.queue.upload(&values, "a row")?, weights))
            }
        };
        let (rows, labels, place) = match (&self.rows, &alone) {
            (Chunks::Resident(rows), _) => (rows.argument(), state.labels.now(0), row),
            (_, Some((values, weights))) => {
                let rows = RowsArgument::of_one(values, weights.as_ref().map_or(0, Buffer::at));
                (rows, state.labels.now(row as usize), 0)
            }
            (_, None) => unreachable!("it was just fetched"),
        };
        let argument = RelocateArgument {
            rows,
            labels,
            sums: state.sums.argument(&state.shape),
            factors: state.columns.factors.at(),
            mass_to_integer: state.mass_to_integer,
            row: place,
            to,
            unused: 0,
        };
        // SAFETY: the addresses are those of the state's buffers and of the row. The row is below n, and the cluster is below k.
        unsafe { state.queue.run(&Launch::exactly(kernel, Block::of(32), 1), &argument)? };
        self.update.fold(state)
    }

    fn label(&self, row: u64) -> Result<u32> {
        let bytes = self.state.labels.bytes;
        let mut narrow = [0u8; 4];
        self.state.labels.array().read(row as usize * bytes, &mut narrow[..bytes])?;
        Ok(u32::from_le_bytes(narrow))
    }
}
