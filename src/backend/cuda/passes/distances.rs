//! The inertia: `kernels/passes/distances.cu`.

use crate::backend::Scales;
use crate::backend::cuda::arguments::{self, InertiaArgument, LabelsArgument, RowsArgument};
use crate::backend::cuda::device::{At, Buffer, Launch, Queue, bytes_of, product, sum};
use crate::backend::cuda::shape::{MOST_TABLE_BYTES, TABLE_BYTES, copies};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::DistanceScale;

/// Pending sums are moved out after this many rows. Their two words could hold twice as many values.
pub const MOST_PENDING: usize = 1 << 31;

/// The launch that adds up the inertia of each cluster.
pub struct InertiaPass {
    launch: Launch<InertiaArgument>,
    table_copies: usize,
    k: usize,
}

impl InertiaPass {
    /// For chunks of at most `n` rows.
    pub fn new<T: Float>(queue: &Queue, n: usize, k: usize, half: bool) -> Result<Self> {
        let table_copies = copies(k.saturating_mul(2), TABLE_BYTES, MOST_TABLE_BYTES);
        let entry = arguments::inertia::<T>().half_if(half).with_shared(k * 16 * table_copies);
        let launch = entry.resident(&queue.gpu, "", entry.blocks_of(n))?;
        Ok(Self { launch, table_copies, k })
    }

    /// Adds the distances of a chunk's rows to the centroids that their labels name. `centroids`: `(k, d)`.
    ///
    /// # Safety
    /// Each row has a label below k. `centroids` has k x d values on the device.
    pub unsafe fn add(
        &self,
        queue: &Queue,
        rows: RowsArgument,
        labels: LabelsArgument,
        centroids: u64,
        inertia: &mut InertiaSums,
    ) -> Result<()> {
        inertia.make_room(rows.n as usize)?;
        let argument = InertiaArgument {
            rows,
            labels,
            centroids,
            scale: inertia.scale,
            scales: inertia.scales.as_ref().map_or(At::NULL, Buffer::at),
            pending: inertia.pending.at(),
            k: self.k as i32,
            table_copies: self.table_copies as i32,
        };
        // SAFETY: the caller promises labels and centroids. There are k pending sums. The shared memory holds `table_copies`
        // accumulators of 8 bytes for each of the 2 k limbs.
        unsafe { queue.run(&self.launch, &argument) }
    }
}

/// The integer inertia of each cluster while it is added up.
pub struct InertiaSums {
    /// `(k, 2 limbs, 2)`: sums that are not moved out yet.
    pending: Buffer<u64>,
    /// The number of rows that were added to the pending sums.
    rows: usize,
    /// The sums that were already moved out.
    clusters: Vec<u128>,
    /// One scale for all clusters, or (`scales`) one for each cluster.
    scale: arguments::DistanceScale,
    scales: Option<Buffer<arguments::DistanceScale>>,
}

impl InertiaSums {
    const WHAT: &str = "the inertia of the clusters";

    /// The most bytes that it takes on the device.
    pub fn bytes(k: usize) -> u64 {
        sum([bytes_of::<u64>(product([k, 4])), bytes_of::<arguments::DistanceScale>(k)])
    }

    pub fn new(queue: &Queue, k: usize, scales: Scales<'_>) -> Result<Self> {
        let (scale, scales) = match scales {
            Scales::Same(scale) => (scale, None),
            Scales::Each(scales) => {
                let arguments = memory::collected(scales.iter().map(arguments::DistanceScale::from), Self::WHAT)?;
                (DistanceScale::NONE, Some(queue.upload(&arguments, Self::WHAT)?))
            }
        };
        let pending = queue.zeros(product([k, 4]), Self::WHAT)?;
        Ok(Self { pending, rows: 0, clusters: memory::zeroed(k, Self::WHAT)?, scale: (&scale).into(), scales })
    }

    /// Moves the pending sums out if they have no room for `n` rows more.
    fn make_room(&mut self, n: usize) -> Result<()> {
        if self.rows > MOST_PENDING.saturating_sub(n) {
            self.move_out()?;
            self.pending.fill(0)?;
            self.rows = 0;
        }
        self.rows += n;
        Ok(())
    }

    fn move_out(&mut self) -> Result<()> {
        let limb = |halves: &[u64]| (i128::from(halves[1] as i64) << 32) + i128::from(halves[0]);
        for (cluster, p) in self.clusters.iter_mut().zip(self.pending.to_vec()?.chunks_exact(4)) {
            *cluster += ((limb(&p[..2]) << 45) + limb(&p[2..])) as u128;
        }
        Ok(())
    }

    /// The sum of each cluster.
    pub fn total(mut self) -> Result<Vec<u128>> {
        self.move_out()?;
        Ok(self.clusters)
    }
}
