//! Finds the rows that are farthest from their centroids, and moves them to empty clusters.

use super::CudaSession;
use crate::backend::Far;
use crate::backend::cuda::arguments::{Candidate, Farthest, Masked, Relocate};
use crate::backend::cuda::chunks::{Chunk, Chunks};
use crate::backend::cuda::device::{Buffer, Plain};
use crate::backend::cuda::plan::THREADS;
use crate::backend::cuda::rows::RowsArgument;
use crate::error::Result;
use crate::float::Float;
use crate::memory;

/// The name in errors of these rows, and of the clusters that may give up rows.
const FAR: &str = "the farthest rows";
/// The most blocks of the search for the farthest row.
const BLOCKS: u32 = 1_024;

fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.distance.total_cmp(&a.distance).then(a.row.cmp(&b.row))
}

impl<T: Float + Plain> CudaSession<'_, T> {
    /// The `count` rows of positive weight that are farthest from their centroids. Only rows of clusters that `donors` allows
    /// count. They are in the order [`Far::order`].
    pub(super) fn farthest_rows(&self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        let donors: Buffer<u8> = self.queue.upload(&memory::collected(donors.iter().map(|&may| u8::from(may)), FAR)?, FAR)?;
        let mut best: Vec<Candidate> = Vec::new();
        self.rows.visit(|chunk| {
            self.farthest_of_chunk(chunk, count, &donors, &mut best)?;
            best.sort_unstable_by(order);
            best.truncate(count);
            Ok(())
        })?;
        let far = |c: Candidate| Ok(Far { distance: c.distance, row: c.row, cluster: self.label(c.row)? });
        memory::try_collected(best.into_iter().map(far), FAR)
    }

    /// Adds to `best` the rows of a chunk that may be among the `count` farthest.
    fn farthest_of_chunk(
        &self,
        chunk: &Chunk<'_, T>,
        count: usize,
        donors: &Buffer<u8>,
        best: &mut Vec<Candidate>,
    ) -> Result<()> {
        let suffix = if T::IS_F32 { "f32" } else { "f64" };
        let (gpu, n) = (&self.queue.gpu, chunk.rows.n);
        let (masked, search) =
            (gpu.kernel("distances", &format!("masked_distances_{suffix}"))?, gpu.kernel("distances", "farthest")?);
        let distances: Buffer<f64> = self.queue.alloc(n, "the distances of the rows")?;
        let blocks = (n.div_ceil(THREADS as usize) as u32).min(BLOCKS);
        let found: Buffer<Candidate> = self.queue.alloc(blocks as usize, FAR)?;
        let arguments = Masked {
            rows: chunk.rows.argument(),
            labels: self.labels_argument(self.current, chunk.first),
            centroids: self.centroids.at(),
            donors: donors.at(),
            out: distances.at(),
        };
        // SAFETY: the argument mirrors the kernel's. `distances` has n values, and `donors` has k.
        unsafe { self.queue.launch(masked, blocks, THREADS, 0, &arguments)? };
        let last = best.get(count - 1).copied();
        let mut after = Candidate { distance: f64::INFINITY, row: 0 };
        // Distances are finite, because magnitudes are bounded. So the first search considers all rows.
        for _ in 0..count {
            let arguments = Farthest { distances: distances.at(), out: found.at(), after, n: n as u32, unused: 0 };
            // SAFETY: the argument mirrors the kernel's. `found` has one entry for each block.
            unsafe { self.queue.launch(search, blocks, THREADS, 0, &arguments)? };
            let Some(next) = found.to_vec()?.into_iter().filter(|c| c.distance >= 0.0).min_by(order) else { break };
            let global = Candidate { row: next.row + chunk.first as u64, ..next };
            if last.is_some_and(|last| order(&last, &global).is_lt()) {
                break;
            }
            memory::push(best, global, FAR)?;
            after = next;
        }
        Ok(())
    }

    /// Moves a row and its contribution to another cluster.
    pub(super) fn move_row(&mut self, row: u64, to: u32) -> Result<()> {
        let kernel = self.queue.gpu.kernel("distances", if T::IS_F32 { "relocate_f32" } else { "relocate_f64" })?;
        // A row that may not be on the device is uploaded alone. The kernel sees it as row 0, and its label as label 0.
        let alone = match &self.rows {
            Chunks::Resident(_) => None,
            Chunks::Streamed(stream) => {
                let (values, weights) = stream.gather(row as usize..row as usize + 1)?;
                let weights =
                    self.prepared.weights.map(|scale| self.queue.upload(&[scale.round(weights[0])], "a row")).transpose()?;
                Some((self.queue.upload(&values, "a row")?, weights))
            }
        };
        let (rows, labels, place) = match (&self.rows, &alone) {
            (Chunks::Resident(rows), _) => (rows.argument(), self.labels_argument(self.current, 0), row),
            (_, Some((values, weights))) => {
                let rows = RowsArgument::of_one(values, weights.as_ref().map_or(0, Buffer::at));
                (rows, self.labels_argument(self.current, row as usize), 0)
            }
            (_, None) => unreachable!("it was just fetched"),
        };
        let arguments = Relocate {
            rows,
            labels,
            sums: self.sums_argument(),
            factors: self.factors.at(),
            mass_to_integer: self.mass_to_integer(),
            row: place,
            to,
            unused: 0,
        };
        // SAFETY: the argument mirrors the kernel's. The row is below n, and the cluster is below k.
        unsafe { self.queue.launch(kernel, 1, 32, 0, &arguments)? };
        self.fold()
    }

    fn label(&self, row: u64) -> Result<u32> {
        let bytes = self.plan.label_bytes;
        let mut narrow = [0u8; 4];
        self.labels[self.current].read(row as usize * bytes, &mut narrow[..bytes])?;
        Ok(u32::from_le_bytes(narrow))
    }
}
