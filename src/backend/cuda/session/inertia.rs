//! The inertia of each cluster, added up chunk by chunk.

use super::{CudaSession, MOST_PENDING};
use crate::backend::Scales;
use crate::backend::cuda::arguments::{DistanceArgument, Inertia};
use crate::backend::cuda::chunks::Chunk;
use crate::backend::cuda::device::{Buffer, Plain, Queue};
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::float::Float;
use crate::memory;

/// The integer inertia of each cluster while it is added up.
pub struct PendingInertia {
    /// `(k, 2 limbs, 2)`.
    pending: Buffer<u64>,
    /// The number of rows that were added to `pending`.
    rows: usize,
    /// The sums that were already moved out of `pending`.
    clusters: Vec<u128>,
    /// One scale for all clusters, or (`scales`) one for each cluster.
    scale: DistanceArgument,
    scales: Option<Buffer<DistanceArgument>>,
}

impl PendingInertia {
    pub fn new(queue: &Queue, k: usize, scales: Scales<'_>) -> Result<Self> {
        const WHAT: &str = "the inertia of the clusters";
        let (scale, scales) = match scales {
            Scales::Same(scale) => (scale, None),
            Scales::Each(scales) => {
                let arguments = memory::collected(scales.iter().map(DistanceArgument::from), WHAT)?;
                (DistanceScale::NONE, Some(queue.upload(&arguments, WHAT)?))
            }
        };
        let (pending, clusters) = (queue.zeros(k * 4, WHAT)?, memory::zeroed(k, WHAT)?);
        Ok(Self { pending, rows: 0, clusters, scale: (&scale).into(), scales })
    }

    fn take(&mut self) -> Result<()> {
        let limb = |halves: &[u64]| (i128::from(halves[1] as i64) << 32) + i128::from(halves[0]);
        for (cluster, p) in self.clusters.iter_mut().zip(self.pending.to_vec()?.chunks_exact(4)) {
            *cluster += ((limb(&p[..2]) << 45) + limb(&p[2..])) as u128;
        }
        Ok(())
    }

    pub fn total(mut self) -> Result<Vec<u128>> {
        self.take()?;
        Ok(self.clusters)
    }
}

impl<T: Float + Plain> CudaSession<'_, T> {
    /// Adds the inertia of the rows of a chunk, under the labels `which` and the current centroids.
    pub(super) fn add_inertia(&self, chunk: &Chunk<'_, T>, which: usize, inertia: &mut PendingInertia) -> Result<()> {
        if inertia.rows > MOST_PENDING.saturating_sub(chunk.rows.n) {
            inertia.take()?;
            inertia.pending.fill(0)?;
            inertia.rows = 0;
        }
        inertia.rows += chunk.rows.n;
        let arguments = Inertia {
            rows: chunk.rows.argument(),
            labels: self.labels_argument(which, chunk.first),
            centroids: self.centroids.at(),
            scale: inertia.scale,
            scales: inertia.scales.as_ref().map_or(0, Buffer::at),
            pending: inertia.pending.at(),
            k: self.k as i32,
            table_copies: self.plan.inertia_copies as i32,
        };
        self.run(self.plan.inertia, &arguments)
    }
}
