//! The launches that label rows by tensor cores: groups of rows, copies of rows and centroids, products, and the rows in doubt.
//!
//! All of them read an [`AssignArgument`]: the rows, the labels before and after, and the centroids.

use std::sync::Arc;

use super::centres::{Centres, Centring, NEAR_WITHOUT_GROUPS};
use super::doubt::DoubtLists;
use super::rescore::Rescore;
use super::sizes::{CHUNK, CentroidCopies, HalfRowCopies, RowGroups, TILE_ROWS, TensorSizes};
use super::unit::{Kernel, TensorUnit};
use crate::backend::cuda::arguments::{
    self, AssignArgument, TensorArgument, TensorCentroidsArgument, TensorRowsArgument, TensorTermsArgument,
};
use crate::backend::cuda::device::{Entry, Launch, Plain, Queue, sum};
use crate::backend::cuda::step::by_row::ByRow;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::bounds::fp16::{Added, Fp16Bound};
use crate::exact::fixed::frexp;

/// Bytes of shared memory that a group takes in a block of `tensor_group`, which has room for a multiple of so many groups.
const GROUP_BYTES: usize = 88;
const GROUPS_AT_ONCE: usize = 8;
/// Values of a row that a thread of it copies at a time, and the bytes of shared memory that it takes besides.
const STAGED_VALUES: usize = 16;
const STAGED_MORE: usize = 16;

/// The least number of iterations that is expected.
const FEWEST_ITERATIONS: u32 = 8;

/// The exponent of the power of two that rows and centroids are scaled by.
pub(super) fn scale_exponent<T: Float>(assign: &AssignArgument<T>) -> i32 {
    frexp(assign.scale.to_f64()).1 - 1
}

/// The constants of the bound. `added`: how the tensor cores add up.
fn terms<T: Float>(d: usize, added: Added, assign: &AssignArgument<T>) -> TensorTermsArgument {
    Fp16Bound::new(d, added, scale_exponent(assign)).into()
}

/// The bytes that the labels of a batch of rows take for a model, and centres too.
pub fn bytes_of_batch<T: Float + Plain>(sizes: &TensorSizes) -> u64 {
    TensorLabels::<T>::bytes(sizes).saturating_add(Centres::<T>::fixed_bytes(sizes))
}

/// The centres for a model, and how many groups there are: [`Centres::fixed`].
///
/// # Safety
/// The same as for [`TensorLabels::launch`].
pub unsafe fn centres_of_model<T: Float + Plain>(
    unit: TensorUnit,
    sizes: &TensorSizes,
    queue: &Queue,
    assign: &AssignArgument<T>,
) -> Result<(Centres<T>, usize)> {
    let bound = terms(sizes.d, unit.added(&queue.gpu)?, assign);
    // SAFETY: the caller promises it.
    unsafe { Centres::fixed(*sizes, queue, assign, bound) }
}

/// The labels of the rows of a chunk, and what their kernels keep.
pub struct TensorLabels<T> {
    sizes: TensorSizes,
    /// If an iteration looks at this many sets of columns, rows are put in order.
    most_kept: u64,
    added: Added,
    rows: HalfRowCopies,
    centres: Arc<Centres<T>>,
    groups: RowGroups,
    /// Only products need these, not groups and copies of rows.
    for_products: Option<(CentroidCopies, Rescore<T>)>,
    centring: Centring<T>,
    clear: Launch<TensorRowsArgument<T>>,
    group: Launch<TensorRowsArgument<T>>,
    /// `group` in the variant that also copies the rows.
    group_and_copy: Launch<TensorRowsArgument<T>>,
    count: Launch<TensorRowsArgument<T>>,
    reach: Launch<TensorRowsArgument<T>>,
    places: Launch<TensorRowsArgument<T>>,
    copy_rows: Launch<TensorRowsArgument<T>>,
    list: Launch<TensorCentroidsArgument<T>>,
    copy_centroids: Launch<TensorCentroidsArgument<T>>,
    kernel: Kernel,
    assign: Launch<TensorArgument>,
    doubt: DoubtLists<T>,
}

impl<T: Float + Plain> TensorLabels<T> {
    /// The bytes that this takes on the device, without the centres.
    pub fn bytes(sizes: &TensorSizes) -> u64 {
        let of_rows = sum([DoubtLists::<T>::bytes(sizes), HalfRowCopies::bytes(sizes), RowGroups::bytes(sizes)]);
        sum([of_rows, CentroidCopies::bytes(sizes), Rescore::<T>::bytes(sizes)])
    }

    /// `half`: whether the rows' values have 16 bits. `centres`: one for each group. Groups and copies of rows can be made before
    /// [`TensorLabels::take_memory`].
    pub fn new(unit: TensorUnit, sizes: TensorSizes, half: bool, centres: Arc<Centres<T>>, queue: &Queue) -> Result<Self> {
        let added = unit.added(&queue.gpu)?;
        let (gpu, kernel) = (&*queue.gpu, unit.kernel(sizes.chunks));
        let blocks = sizes.n.div_ceil(TILE_ROWS);
        let rows = |entry: Entry<TensorRowsArgument<T>>, blocks: usize| entry.half_if(half).exactly(gpu, "", blocks);
        // Few blocks, each with many rows: a block ends by adding to all groups.
        let few = |entry: Entry<TensorRowsArgument<T>>, of_processor: usize| {
            rows(entry, entry.blocks_of(sizes.n).min(of_processor * gpu.processors as usize))
        };
        let value_bytes = if half { 2 } else { size_of::<T>() };
        let entry = arguments::tensor_group::<T>();
        let staged = entry.block.threads as usize * (STAGED_VALUES * value_bytes + STAGED_MORE);
        let group = |staged: usize| {
            let shared = sizes.groups.next_multiple_of(GROUPS_AT_ONCE) * GROUP_BYTES + staged;
            let blocks = (gpu.shared_per_block as usize / (shared + 1_024)).clamp(1, if T::IS_F32 { 3 } else { 2 });
            few(entry.with_shared(shared), blocks)
        };
        let copy_centroids = arguments::tensor_centroids::<T>();
        Ok(Self {
            sizes,
            most_kept: sizes.most_kept(FEWEST_ITERATIONS),
            added,
            rows: HalfRowCopies::allocate(queue, &sizes)?,
            centres,
            groups: RowGroups::allocate(queue, &sizes)?,
            for_products: None,
            centring: Centring::new(&sizes, queue)?,
            clear: rows(arguments::tensor_clear::<T>(), blocks.min(1 << 10))?,
            group: group(0)?,
            group_and_copy: group(staged)?,
            count: few(arguments::tensor_count::<T>(), 4)?,
            reach: rows(arguments::tensor_reach::<T>(), sizes.groups)?,
            places: rows(arguments::tensor_places::<T>(), 1)?,
            copy_rows: rows(arguments::tensor_rows::<T>(), blocks)?,
            list: arguments::tensor_list::<T>().exactly(gpu, "", sizes.with_fallback())?,
            copy_centroids: copy_centroids.resident(gpu, "", copy_centroids.blocks_of_warps(sizes.copies()))?,
            assign: kernel.launch(gpu, sizes.tiles)?,
            kernel,
            doubt: DoubtLists::new(sizes, half, queue)?,
        })
    }

    /// Takes the memory that only products need. The arguments are those of [`TensorLabels::new`].
    pub fn take_memory(&mut self, unit: TensorUnit, half: bool, queue: &Queue) -> Result<()> {
        let mut centroids = CentroidCopies::allocate(queue, &self.sizes)?;
        // Places without a centroid must hold finite values.
        centroids.copies.fill(0)?;
        self.for_products = Some((centroids, Rescore::new(unit, self.added, &self.sizes, half, queue)?));
        Ok(())
    }

    /// The address of the list of rows in doubt, for the argument.
    pub fn in_doubt(&self) -> u64 {
        self.doubt.rows()
    }

    /// Expects as many iterations as there were, and at least [`FEWEST_ITERATIONS`].
    pub fn expect(&mut self, iterations: u32) {
        self.most_kept = self.sizes.most_kept(iterations.max(FEWEST_ITERATIONS));
    }

    /// Makes the next launch group and copy the rows again, however few rows are in doubt.
    pub fn force_regroup(&mut self) -> Result<()> {
        self.doubt.force_regroup()
    }

    /// Makes centres of groups from the centroids, if there is much doubt. The centres belong to this object alone.
    ///
    /// # Safety
    /// The same as for [`TensorLabels::launch`], but the copies need not be made.
    pub unsafe fn choose_centres(&self, queue: &Queue, assign: &AssignArgument<T>) -> Result<()> {
        // SAFETY: as in `launch`.
        unsafe { self.centring.choose(queue, &self.of_centroids(assign)) }
    }

    /// Measures how far the centroids are from the centres. The centroids of a model have not moved since its centres were made.
    /// `measured`: whether [`TensorLabels::measure_again`] was called just before.
    ///
    /// # Safety
    /// The same as for [`TensorLabels::launch`].
    pub unsafe fn measure(&self, queue: &Queue, assign: &AssignArgument<T>, measured: bool) -> Result<()> {
        let near_when = if measured { NEAR_WITHOUT_GROUPS } else { 0 };
        // SAFETY: as in `launch`.
        unsafe { queue.run(&self.centring.near, &TensorCentroidsArgument { near_when, ..self.of_centroids(assign) }) }
    }

    /// Copies the rows of a chunk in the order of their groups, if there is much doubt. The centroids were measured. `by_row`: a
    /// copy to make too.
    ///
    /// # Safety
    /// The same as for [`TensorLabels::launch`], but the copies need not be made.
    pub unsafe fn copy_rows(&mut self, queue: &Queue, assign: &AssignArgument<T>, by_row: Option<&ByRow>) -> Result<()> {
        let Self { sizes, rows, centres, groups, most_kept, .. } = &*self;
        let argument = TensorRowsArgument {
            rows: assign.rows,
            centres: centres.centres.at(),
            scale: assign.scale,
            most: sizes.groups as u32,
            count: centres.count.at(),
            groups: groups.groups.at(),
            totals: groups.totals.at(),
            near: centres.near.at(),
            labels: assign.labels,
            group_of_centroid: centres.group_of_centroid.at(),
            group_of_row: rows.group_of_row.at(),
            buckets: rows.buckets.at(),
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            terms: rows.terms.at(),
            copies: rows.copies.at(),
            by_row: by_row.map_or(0, ByRow::at),
            control: assign.control,
            few: self.doubt.few().control,
            bound: terms(sizes.d, self.added, assign),
            tiles: sizes.tiles as u32,
            chunks: sizes.chunks as u32,
            k: sizes.k as u32,
            width: by_row.map_or(0, |copy| copy.width as u32),
            copies_of_centroids: sizes.at_first as u32,
            most_doubt: sizes.most_doubt(),
            most_kept: *most_kept,
            row_tiles: self.kernel.row_tiles as u32,
        };
        // SAFETY: the buffers have a place for each row, each tile, each group and each label. `by_row` has one for each row. The
        // launches have a thread for each row, or threads that go on to the next rows, and a block for each group.
        unsafe {
            queue.run(&self.clear, &argument)?;
            queue.run(if by_row.is_some() { &self.group_and_copy } else { &self.group }, &argument)?;
            queue.run(&self.count, &argument)?;
            queue.run(&self.reach, &argument)?;
            queue.run(&self.places, &argument)?;
            queue.run(&self.copy_rows, &argument)?;
        }
        self.for_products.as_mut().map_or(Ok(()), |(_, rescore)| rescore.forget_slacks())
    }

    /// Measures how far the centroids are from the centres before groups are made, if there is much doubt.
    ///
    /// # Safety
    /// The same as for [`TensorLabels::launch`], but the copies need not be made.
    pub unsafe fn measure_again(&self, queue: &Queue, assign: &AssignArgument<T>) -> Result<()> {
        // SAFETY: as in `launch`.
        unsafe { self.centring.measure_again(queue, &self.of_centroids(assign)) }
    }

    fn of_centroids(&self, assign: &AssignArgument<T>) -> TensorCentroidsArgument<T> {
        let Self { sizes, rows, groups, .. } = self;
        TensorCentroidsArgument {
            groups: groups.groups.at(),
            totals: groups.totals.at(),
            list: groups.list.at(),
            group_of_copy: groups.group_of_copy.at(),
            lowered: groups.lowered.at(),
            slacks: groups.slacks.at(),
            tile_slacks: groups.tile_slacks.at(),
            copies: self.copies_of_centroids(),
            labels: assign.labels,
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            first_visit: rows.first_visit.at(),
            few: self.doubt.few().control,
            most_doubt: sizes.most_doubt(),
            most_kept: self.most_kept,
            ..self.centres.argument(sizes, assign, terms(sizes.d, self.added, assign))
        }
    }

    /// The address of the copies, or 0 if there is no memory for them yet.
    fn copies_of_centroids(&self) -> u64 {
        self.for_products.as_ref().map_or(0, |(centroids, _)| centroids.copies.at())
    }

    fn argument(&self, assign: &AssignArgument<T>) -> TensorArgument {
        let Self { sizes, rows, groups, .. } = self;
        TensorArgument {
            rows: rows.copies.at(),
            terms: rows.terms.at(),
            row_of_place: rows.row_of_place.at(),
            group_of_tile: rows.group_of_tile.at(),
            groups: groups.groups.at(),
            centroids: self.copies_of_centroids(),
            lowered: groups.lowered.at(),
            slacks: groups.slacks.at(),
            tile_slacks: groups.tile_slacks.at(),
            list: groups.list.at(),
            first_visit: rows.first_visit.at(),
            next: assign.next,
            in_doubt: self.doubt.rows(),
            control: assign.control,
            few: self.doubt.few(),
            left: self.doubt.doubtful(),
            n: assign.rows.n,
            tiles: sizes.tiles as u32,
            chunks: sizes.chunks as u32,
            last_steps: (sizes.d - (sizes.chunks - 1) * CHUNK).div_ceil(16) as u32,
            k_padded: sizes.k_padded as u32,
            stages: self.kernel.stages as u32,
            stored: sizes.chunks as u32,
            part: 0,
            row_buffers: self.kernel.row_buffers as u32,
        }
    }

    /// Labels the rows, in this order: [`TensorLabels::copy_rows`], [`TensorLabels::measure`] and [`TensorLabels::take_memory`] come
    /// before, and the copies of the centroids are made here. `by_row`: a copy of the rows for settling, if there is one.
    ///
    /// # Safety
    /// All addresses of the argument are live, with the sizes that the kernels index: rows up to the stride, k x d centroids in
    /// both orders, a label before and after for each row. Its list of rows in doubt is that of this object. There are at most as
    /// many rows as in the shape that this object was made for, and d and k are the same.
    pub unsafe fn launch(&mut self, queue: &Queue, assign: &AssignArgument<T>, by_row: Option<&ByRow>) -> Result<()> {
        let of_centroids = self.of_centroids(assign);
        let products = self.argument(assign);
        let Some((_, rescore)) = &self.for_products else { unreachable!("memory for products was taken") };
        let rows = by_row.map_or(assign.rows, |copy| copy.of(assign.rows));
        let settled = AssignArgument { rows, ..*assign };
        // SAFETY: the caller promises the addresses. The buffers have a place for each pair of a group and a centroid. The
        // copies of the centroids are made before the products.
        unsafe {
            self.doubt.clear()?;
            queue.run(&self.list, &of_centroids)?;
            queue.run_behind(&self.copy_centroids, &of_centroids)?;
            queue.run_behind(&self.assign, &products)?;
            rescore.launch(queue, &settled, &of_centroids, &products)?;
            let lists = [self.groups.list.at(), self.groups.groups.at()];
            self.doubt.launch(queue, &settled, lists, assign.centroids)
        }
    }
}
