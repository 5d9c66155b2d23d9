//! Inertia, and rows far from their centroids: `kernels/passes/distances.cu`.

use crate::backend::Scales;
use crate::backend::cuda::arguments::{
    self, DistanceArgument, FarRow, FarthestArgument, InertiaArgument, LabelsArgument, MaskedArgument, RowsArgument,
};
use crate::backend::cuda::device::{Block, Buffer, Launch, Queue, buffers, bytes_of, product};
use crate::backend::cuda::shape::FitShape;
use crate::backend::cuda::step::{MOST_TABLE_BYTES, TABLE_BYTES, THREADS, copies};
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::float::Float;
use crate::memory;

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
    pub fn new<T: Float>(queue: &Queue, n: usize, k: usize) -> Result<Self> {
        let table_copies = copies(k.saturating_mul(2), TABLE_BYTES, MOST_TABLE_BYTES);
        let block = Block { threads: THREADS, shared: k * 16 * table_copies };
        let kernel = arguments::inertia::<T>().load(&queue.gpu, "")?;
        let launch = Launch::resident(&queue.gpu, kernel, block, n.div_ceil(THREADS as usize))?;
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
        inertia: &mut Inertia,
    ) -> Result<()> {
        inertia.make_room(rows.n as usize)?;
        let argument = InertiaArgument {
            rows,
            labels,
            centroids,
            scale: inertia.scale,
            scales: inertia.scales.as_ref().map_or(0, Buffer::at),
            pending: inertia.buffers.pending.at(),
            k: self.k as i32,
            table_copies: self.table_copies as i32,
        };
        // SAFETY: the caller promises labels and centroids. There are k pending sums. The shared memory holds `table_copies` cells
        // of 8 bytes for each of the 2 k limbs.
        unsafe { queue.run(&self.launch, &argument) }
    }
}

buffers! {
    /// Sums that are not moved out yet.
    struct InertiaBuffers = "the inertia of the clusters" (k: usize) {
        /// `(k, 2 limbs, 2)`.
        pending: u64 [product([k, 4])],
    }
}

/// The integer inertia of each cluster while it is added up.
pub struct Inertia {
    buffers: InertiaBuffers,
    /// The number of rows that were added to the pending sums.
    rows: usize,
    /// The sums that were already moved out.
    clusters: Vec<u128>,
    /// One scale for all clusters, or (`scales`) one for each cluster.
    scale: DistanceArgument,
    scales: Option<Buffer<DistanceArgument>>,
}

impl Inertia {
    const WHAT: &str = "the inertia of the clusters";

    /// The most bytes that it takes on the device.
    pub fn bytes(k: usize) -> u64 {
        InertiaBuffers::bytes(k).saturating_add(bytes_of::<DistanceArgument>(k))
    }

    pub fn new(queue: &Queue, k: usize, scales: Scales<'_>) -> Result<Self> {
        let (scale, scales) = match scales {
            Scales::Same(scale) => (scale, None),
            Scales::Each(scales) => {
                let arguments = memory::collected(scales.iter().map(DistanceArgument::from), Self::WHAT)?;
                (DistanceScale::NONE, Some(queue.upload(&arguments, Self::WHAT)?))
            }
        };
        let mut buffers = InertiaBuffers::allocate(queue, k)?;
        buffers.pending.fill(0)?;
        Ok(Self { buffers, rows: 0, clusters: memory::zeroed(k, Self::WHAT)?, scale: (&scale).into(), scales })
    }

    /// Moves the pending sums out if they have no room for `n` rows more.
    fn make_room(&mut self, n: usize) -> Result<()> {
        if self.rows > MOST_PENDING.saturating_sub(n) {
            self.move_out()?;
            self.buffers.pending.fill(0)?;
            self.rows = 0;
        }
        self.rows += n;
        Ok(())
    }

    fn move_out(&mut self) -> Result<()> {
        let limb = |halves: &[u64]| (i128::from(halves[1] as i64) << 32) + i128::from(halves[0]);
        for (cluster, p) in self.clusters.iter_mut().zip(self.buffers.pending.to_vec()?.chunks_exact(4)) {
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

/// The name in errors of the farthest rows.
pub const FAR: &str = "the farthest rows";
/// The most blocks of the search for the farthest row.
const BLOCKS: usize = 1_024;

/// The farther row first. Of rows equally far, the one with the smaller number first.
pub fn order(a: &FarRow, b: &FarRow) -> std::cmp::Ordering {
    b.distance.total_cmp(&a.distance).then(a.row.cmp(&b.row))
}

/// The number of blocks of the search.
fn search_blocks(n: usize) -> usize {
    n.div_ceil(THREADS as usize).clamp(1, BLOCKS)
}

buffers! {
    /// The memory of a search for the farthest rows of a chunk.
    struct FarBuffers = "the farthest rows" (n: usize) {
        distances: f64 [n],
        /// One for each block.
        found: FarRow [search_blocks(n)],
    }
}

/// A search for the rows that are farthest from the centroids that their labels name.
pub struct FarSearch {
    buffers: FarBuffers,
    donors: Buffer<u8>,
    masked: Launch<MaskedArgument>,
    search: Launch<FarthestArgument>,
}

impl FarSearch {
    /// The bytes that a search takes on the device.
    pub fn bytes(shape: &FitShape) -> u64 {
        FarBuffers::bytes(shape.chunk).saturating_add(bytes_of::<u8>(shape.k))
    }

    /// A search in chunks of at most `n` rows. Only rows of clusters that `donors` allows count.
    pub fn new<T: Float>(queue: &Queue, n: usize, donors: &[bool]) -> Result<Self> {
        let donors = memory::collected(donors.iter().map(|&may| u8::from(may)), FAR)?;
        let (block, blocks) = (Block::of(THREADS), search_blocks(n) as u32);
        let masked = arguments::masked_distances::<T>().load(&queue.gpu, "")?;
        let search = arguments::farthest().load(&queue.gpu, "")?;
        Ok(Self {
            donors: queue.upload(&donors, FAR)?,
            buffers: FarBuffers::allocate(queue, n)?,
            masked: Launch::exactly(masked, block, blocks),
            search: Launch::exactly(search, block, blocks),
        })
    }

    /// Adds to `best` the rows of a chunk that may be among the `count` farthest. `first`: the number of the chunk's first row.
    ///
    /// # Safety
    /// Each row has a label below k. `centroids` has k x d values on the device.
    pub unsafe fn add(
        &self,
        queue: &Queue,
        (rows, labels, centroids): (RowsArgument, LabelsArgument, u64),
        first: usize,
        count: usize,
        best: &mut Vec<FarRow>,
    ) -> Result<()> {
        let FarBuffers { distances, found } = &self.buffers;
        let argument = MaskedArgument { rows, labels, centroids, donors: self.donors.at(), out: distances.at() };
        // SAFETY: the caller promises labels and centroids. There is a distance for each row of a chunk, and a donor for each
        // cluster.
        unsafe { queue.run(&self.masked, &argument)? };
        let last = best.get(count - 1).copied();
        let mut after = FarRow { distance: f64::INFINITY, row: 0 };
        // Distances are finite, because magnitudes are bounded. So the first search considers all rows.
        for _ in 0..count {
            let argument = FarthestArgument { distances: distances.at(), out: found.at(), after, n: rows.n, unused: 0 };
            // SAFETY: `distances` has n values, and `found` has one entry for each block.
            unsafe { queue.run(&self.search, &argument)? };
            let Some(next) = found.to_vec()?.into_iter().filter(|c| c.distance >= 0.0).min_by(order) else { break };
            let global = FarRow { row: next.row + first as u64, ..next };
            if last.is_some_and(|last| order(&last, &global).is_lt()) {
                break;
            }
            memory::push(best, global, FAR)?;
            after = next;
        }
        Ok(())
    }
}
