//! A second product for the rows that the first one leaves in doubt, with copies of twice as many bits: `tensor_rescore.cu`.

use super::doubt::{MOST_LISTED, most_listed};
use super::labels::scale_exponent;
use super::sizes::{PLACE_BYTES, TILE_CENTROIDS, TILE_ROWS, TensorSizes};
use super::unit::{Kernel, TensorUnit};
use crate::backend::cuda::arguments::{
    self, AssignArgument, Control, TensorArgument, TensorCentroidsArgument, TensorRescoreArgument,
};
use crate::backend::cuda::device::{Launch, Plain, Queue, buffers, field, product};
use crate::backend::cuda::shape::padded;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::bounds::fp16::{Added, Fp16Bound};

/// The fewest rows of a second product, where centroids have few values. A product of one tile of rows takes as long as that of one
/// tile for each multiprocessor. It takes less time to settle fewer rows than this.
const FEWEST: usize = 1_024;
/// The part of the rows that a batch takes, and the fewest rows that it has room for.
const SHARE: usize = 4;
const LEAST_ROOM: usize = 8_192;
/// If an iteration has this many products of a feature, there are batches for all rows: two more launches cost little then.
const ALL_BATCHES: usize = 20_000_000_000;

buffers! {
    /// The copies of the rows and of the centroids of the fallback group.
    struct SecondCopies = "copies for a second product" (sizes: &TensorSizes) {
        /// `(capacity / 128, 2 chunks, 128, 64)` values of 16 bits.
        rows: u8 [product([capacity(sizes), 2 * sizes.chunks, PLACE_BYTES])],
        terms: f32 [capacity(sizes)],
        /// `(batches, capacity)`.
        row_of_place: u32 [product([batches(sizes), capacity(sizes)])],
        group_of_tile: u32 [capacity(sizes) / TILE_ROWS],
        first_visit: u32 [capacity(sizes) / TILE_ROWS],
        /// `(k padded / 256, 2 chunks, 256, 64)` values of 16 bits.
        centroids: u8 [product([sizes.k_padded, 2 * sizes.chunks, PLACE_BYTES])],
        lowered: f32 [sizes.k_padded],
        slacks: f32 [sizes.k_padded],
        tile_slacks: f32 [sizes.k_padded / TILE_CENTROIDS],
    }
}

/// Rows of a batch.
fn capacity(sizes: &TensorSizes) -> usize {
    padded((sizes.n / SHARE).max(LEAST_ROOM).min(sizes.n.max(1)), TILE_ROWS)
}

/// Batches of an iteration.
fn batches(sizes: &TensorSizes) -> usize {
    let large = product([sizes.n, sizes.k, sizes.d]) >= ALL_BATCHES;
    if large { sizes.n.div_ceil(capacity(sizes)) } else { 1 }
}

/// The fewest rows of a second product. Where centroids have many values, it takes what `settle_listed` does not take.
fn fewest(sizes: &TensorSizes) -> u32 {
    let listed = most_listed(sizes);
    (if listed < MOST_LISTED { listed + 1 } else { FEWEST }) as u32
}

/// The launches, and what they write.
pub struct Rescore<T> {
    sizes: TensorSizes,
    added: Added,
    copies: SecondCopies,
    batches: usize,
    copy: Launch<TensorRescoreArgument<T>>,
    kernel: Kernel,
    assign: Launch<TensorArgument>,
}

impl<T: Float + Plain> Rescore<T> {
    pub fn bytes(sizes: &TensorSizes) -> u64 {
        SecondCopies::bytes(sizes)
    }

    pub fn new(unit: TensorUnit, added: Added, sizes: &TensorSizes, half: bool, queue: &Queue) -> Result<Self> {
        let (gpu, kernel) = (&*queue.gpu, unit.kernel_of_parts());
        let mut copies = SecondCopies::allocate(queue, sizes)?;
        copies.first_visit.fill(0)?;
        copies.tile_slacks.fill(0)?;
        // Places without a centroid must hold finite values.
        copies.centroids.fill(0)?;
        let capacity = capacity(sizes);
        let copy = arguments::tensor_rescore::<T>().half_if(half);
        let blocks = copy.blocks_of_warps(capacity + sizes.k_padded);
        Ok(Self {
            sizes: *sizes,
            added,
            batches: batches(sizes),
            copy: copy.resident(gpu, "", blocks)?,
            assign: kernel.launch(gpu, capacity / TILE_ROWS)?,
            kernel,
            copies,
        })
    }

    /// Clears the largest slack of each tile. Without this call they stay valid, but may be larger than needed.
    pub fn forget_slacks(&mut self) -> Result<()> {
        self.copies.tile_slacks.fill(0)
    }

    /// Labels the rows that the products of `first` left in doubt, or leaves them in doubt once more. `of_centroids`: the groups
    /// and lists of these products. `assign`: the rows as they are read one by one.
    ///
    /// # Safety
    /// All addresses of the arguments are live, and the first products were launched before in this queue.
    pub unsafe fn launch(
        &self,
        queue: &Queue,
        assign: &AssignArgument<T>,
        of_centroids: &TensorCentroidsArgument<T>,
        first: &TensorArgument,
    ) -> Result<()> {
        let Self { sizes, copies, .. } = self;
        let fallback = sizes.groups;
        let copy = TensorRescoreArgument {
            rows: assign.rows,
            centroids: of_centroids.centroids,
            centre: of_centroids.centres + (fallback * sizes.centre_width() * size_of::<T>()) as u64,
            scale: assign.scale,
            fallback: fallback as u32,
            groups: of_centroids.groups,
            list: of_centroids.list.index((fallback * sizes.k_padded) as u64),
            in_doubt: first.in_doubt,
            control: assign.control,
            few: of_centroids.few,
            row_copies: copies.rows.at(),
            terms: copies.terms.at(),
            row_of_place: copies.row_of_place.at(),
            group_of_tile: copies.group_of_tile.at(),
            copies: copies.centroids.at(),
            lowered: copies.lowered.at(),
            slacks: copies.slacks.at(),
            tile_slacks: copies.tile_slacks.at(),
            bound: Fp16Bound::rescoring(sizes.d, self.added, scale_exponent(assign)).into(),
            chunks: sizes.chunks as u32,
            capacity: copies.terms.len() as u32,
            batch: 0,
            batches: self.batches as u32,
            fewest: fewest(sizes),
            unused: 0,
        };
        let products = TensorArgument {
            rows: copy.row_copies,
            terms: copy.terms,
            row_of_place: copy.row_of_place,
            group_of_tile: copy.group_of_tile,
            centroids: copy.copies,
            lowered: copy.lowered,
            slacks: copy.slacks,
            tile_slacks: copy.tile_slacks,
            first_visit: copies.first_visit.at(),
            left: field!(first.control, Control, in_doubt),
            tiles: (copies.terms.len() / TILE_ROWS) as u32,
            chunks: 3 * sizes.chunks as u32,
            stages: self.kernel.stages as u32,
            row_buffers: self.kernel.row_buffers as u32,
            stored: 2 * sizes.chunks as u32,
            part: sizes.chunks as u32,
            ..*first
        };
        for batch in 0..self.batches as u32 {
            // SAFETY: the caller promises the addresses. The copies have a place for each row of a batch and for each centroid.
            unsafe {
                queue.run_behind(&self.copy, &TensorRescoreArgument { batch, ..copy })?;
                let row_of_place = copy.row_of_place.index(u64::from(batch) * u64::from(copy.capacity));
                queue.run_behind(&self.assign, &TensorArgument { row_of_place, ..products })?;
            }
        }
        Ok(())
    }
}
