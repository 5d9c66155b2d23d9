//! The launches that label rows by tensor cores: groups of rows, copies of rows and centroids, products, and the rows in doubt.
//!
//! All of them read an [`AssignArgument`]: the rows, the labels before and after, and the centroids.

use super::doubt::InDoubt;
use super::sizes::{CHUNK, CentroidCopies, RowCopies, STAGES, Sizes, TILE_ROWS};
use super::unit::Unit;
use crate::backend::cuda::arguments::{
    self, AssignArgument, TensorArgument, TensorCentroidsArgument, TensorRowsArgument, TensorTerms,
};
use crate::backend::cuda::device::{Block, Entry, Launch, Plain, Queue, sum};
use crate::backend::cuda::shape::FitShape;
use crate::backend::cuda::step::THREADS;
use crate::backend::cuda::step::by_row::ByRow;
use crate::certify::halves::{Added, Halves};
use crate::error::Result;
use crate::fixed::frexp;
use crate::float::Float;

/// Threads of a block of `tensor_group`, `tensor_rows`, `tensor_centres`, `tensor_places` and `tensor_list`.
const GROUP_THREADS: u32 = 128;
const ROWS_THREADS: u32 = 256;
const CENTRES_THREADS: u32 = 1_024;
const PLACES_THREADS: u32 = 1_024;
const LIST_THREADS: u32 = 512;
/// How often the centres of groups become means.
const ROUNDS: usize = 2;

/// The labels of the rows of a chunk, and what their kernels keep.
pub struct TensorLabels<T> {
    sizes: Sizes,
    added: Added,
    rows: RowCopies,
    centroids: CentroidCopies<T>,
    centres: Launch<TensorCentroidsArgument<T>>,
    means: Launch<TensorCentroidsArgument<T>>,
    clear: Launch<TensorRowsArgument<T>>,
    group: Launch<TensorRowsArgument<T>>,
    places: Launch<TensorRowsArgument<T>>,
    copy_rows: Launch<TensorRowsArgument<T>>,
    merge: Launch<TensorCentroidsArgument<T>>,
    near: Launch<TensorCentroidsArgument<T>>,
    list: Launch<TensorCentroidsArgument<T>>,
    copy_centroids: Launch<TensorCentroidsArgument<T>>,
    assign: Launch<TensorArgument>,
    doubt: InDoubt<T>,
}

impl<T: Float + Plain> TensorLabels<T> {
    pub fn bytes(sizes: &Sizes) -> u64 {
        sum([InDoubt::<T>::bytes(sizes), RowCopies::bytes(sizes), CentroidCopies::<T>::bytes(sizes)])
    }

    pub fn new(unit: Unit, shape: &FitShape, queue: &Queue) -> Result<Self> {
        let sizes = Sizes::new(shape);
        let added = unit.added(&queue.gpu)?;
        let FitShape { chunk, half, .. } = *shape;
        let gpu = &*queue.gpu;
        let blocks = u32::try_from(chunk.div_ceil(TILE_ROWS)).unwrap_or(u32::MAX);
        let rows = |entry: Entry<TensorRowsArgument<T>>, threads: u32, blocks: u32| -> Result<_> {
            Ok(Launch::exactly(entry.half_if(half).load(gpu, "")?, Block::of(threads), blocks))
        };
        let of_groups = |entry: Entry<TensorCentroidsArgument<T>>, threads: u32, blocks: usize| -> Result<_> {
            Ok(Launch::exactly(entry.load(gpu, "")?, Block::of(threads), u32::try_from(blocks).unwrap_or(u32::MAX)))
        };
        let assign = unit.entry().load(gpu, "")?;
        let by_warps = sizes.pairs().div_ceil(THREADS as usize / 32);
        Ok(Self {
            sizes,
            added,
            rows: RowCopies::allocate(queue, &sizes)?,
            centroids: CentroidCopies::allocate(queue, &sizes)?,
            centres: of_groups(arguments::tensor_centres::<T>(), CENTRES_THREADS, 1)?,
            means: of_groups(arguments::tensor_means::<T>(), THREADS, sizes.groups)?,
            clear: rows(arguments::tensor_clear::<T>(), THREADS, blocks.min(1 << 10))?,
            group: rows(arguments::tensor_group::<T>(), GROUP_THREADS, blocks)?,
            places: rows(arguments::tensor_places::<T>(), PLACES_THREADS, 1)?,
            copy_rows: rows(arguments::tensor_rows::<T>(), ROWS_THREADS, blocks)?,
            merge: of_groups(arguments::tensor_merge::<T>(), CENTRES_THREADS, 1)?,
            near: Launch::resident(gpu, arguments::tensor_near::<T>().load(gpu, "")?, Block::of(THREADS), sizes.k.div_ceil(2))?,
            list: of_groups(arguments::tensor_list::<T>(), LIST_THREADS, sizes.groups)?,
            copy_centroids: Launch::resident(
                gpu,
                arguments::tensor_centroids::<T>().load(gpu, "")?,
                Block::of(THREADS),
                by_warps,
            )?,
            assign: Launch::resident(gpu, assign, unit.block(&sizes), sizes.tiles)?,
            doubt: InDoubt::new(sizes, half, queue)?,
        })
    }

    /// The address of the list of rows in doubt, for the argument.
    pub fn in_doubt(&self) -> u64 {
        self.doubt.rows()
    }

    /// What follows is made without asking for doubt.
    pub fn pretend(&mut self) -> Result<()> {
        self.doubt.pretend()
    }

    /// The constants of the bound.
    fn terms(&self, assign: &AssignArgument<T>) -> TensorTerms {
        let exponent = frexp(assign.scale.to_f64()).1 - 1;
        Halves::new(self.sizes.d, self.added, exponent).into()
    }

    /// Makes centres of groups from the centroids, if there is much doubt.
    ///
    /// # Safety
    /// The same as for [`TensorLabels::launch`], but the copies need not be made.
    pub unsafe fn choose_centres(&self, queue: &Queue, assign: &AssignArgument<T>) -> Result<()> {
        let argument = self.of_centroids(assign);
        // SAFETY: as in `copy_centroids`. The means are added up in the copies: a group has room for d numbers of 4 bytes there.
        unsafe {
            queue.run(&self.centres, &argument)?;
            for _ in 0..ROUNDS {
                queue.run(&self.near, &TensorCentroidsArgument { before_groups: 1, ..argument })?;
                queue.run(&self.means, &argument)?;
            }
        }
        Ok(())
    }

    /// Copies the rows of a chunk in the order of their groups, if there is much doubt.
    ///
    /// # Safety
    /// The same as for [`TensorLabels::launch`], but the copies need not be made.
    pub unsafe fn copy_rows(&self, queue: &Queue, assign: &AssignArgument<T>) -> Result<()> {
        let Self { sizes, rows, centroids, .. } = self;
        let argument = TensorRowsArgument {
            rows: assign.rows,
            centres: centroids.centres.at(),
            scale: assign.scale,
            count: sizes.groups as i32,
            groups: centroids.groups.at(),
            labels: assign.labels,
            group_of_centroid: centroids.group_of_centroid.at(),
            group_of_row: rows.group_of_row.at(),
            buckets: rows.buckets.at(),
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            terms: rows.terms.at(),
            copies: rows.copies.at(),
            control: assign.control,
            few: self.doubt.few().control,
            bound: self.terms(assign),
            tiles: sizes.tiles as u32,
            chunks: sizes.chunks as u32,
            k: sizes.k as u32,
            unused: 0,
            most_doubt: sizes.most_doubt(),
            most_kept: sizes.most_kept(),
        };
        let near = TensorCentroidsArgument { before_groups: 1, ..self.of_centroids(assign) };
        // SAFETY: the buffers have a place for each row, each tile, each group and each label. The launches have a thread for each row. A mean of d values
        // fits in the copies of the centroids.
        unsafe {
            queue.run(&self.near, &near)?;
            queue.run(&self.clear, &argument)?;
            queue.run(&self.group, &argument)?;
            queue.run(&self.merge, &near)?;
            queue.run(&self.places, &argument)?;
            queue.run(&self.copy_rows, &argument)?;
        }
        Ok(())
    }

    fn of_centroids(&self, assign: &AssignArgument<T>) -> TensorCentroidsArgument<T> {
        let Self { sizes, rows, centroids, .. } = self;
        TensorCentroidsArgument {
            centroids: assign.centroids,
            centres: centroids.centres.at(),
            scale: assign.scale,
            count: sizes.groups as i32,
            groups: centroids.groups.at(),
            near: centroids.near.at(),
            group_of_centroid: centroids.group_of_centroid.at(),
            list: centroids.list.at(),
            position: centroids.position.at(),
            folded: centroids.folded.at(),
            margins: centroids.margins.at(),
            tile_margins: centroids.tile_margins.at(),
            copies: centroids.copies.at(),
            labels: assign.labels,
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            first_visit: rows.first_visit.at(),
            control: assign.control,
            few: self.doubt.few().control,
            bound: self.terms(assign),
            d: sizes.d as i32,
            k: sizes.k as i32,
            k_padded: sizes.k_padded as u32,
            chunks: sizes.chunks as u32,
            tiles: sizes.tiles as u32,
            before_groups: 0,
            most_doubt: sizes.most_doubt(),
            most_kept: sizes.most_kept(),
        }
    }

    /// Copies the centroids for each group.
    ///
    /// # Safety
    /// The same as for [`TensorLabels::launch`].
    unsafe fn copy_centroids(&self, queue: &Queue, assign: &AssignArgument<T>) -> Result<()> {
        let argument = self.of_centroids(assign);
        // SAFETY: the buffers have a place for each pair of a group and a centroid. There are k x d centroids.
        unsafe {
            for launch in [&self.near, &self.list, &self.copy_centroids] {
                queue.run(launch, &argument)?;
            }
        }
        Ok(())
    }

    fn argument(&self, assign: &AssignArgument<T>) -> TensorArgument {
        let Self { sizes, rows, centroids, .. } = self;
        TensorArgument {
            rows: rows.copies.at(),
            terms: rows.terms.at(),
            row_of_place: rows.row_of_place.at(),
            group_of_tile: rows.group_of_tile.at(),
            groups: centroids.groups.at(),
            centroids: centroids.copies.at(),
            folded: centroids.folded.at(),
            margins: centroids.margins.at(),
            tile_margins: centroids.tile_margins.at(),
            list: centroids.list.at(),
            first_visit: rows.first_visit.at(),
            next: assign.next,
            contested: self.doubt.rows(),
            control: assign.control,
            few: self.doubt.few(),
            n: assign.rows.n,
            tiles: sizes.tiles as u32,
            chunks: sizes.chunks as u32,
            last_steps: (sizes.d - (sizes.chunks - 1) * CHUNK).div_ceil(16) as u32,
            k_padded: sizes.k_padded as u32,
            stages: STAGES as u32,
            folded_slots: sizes.folded_slots() as u32,
            unused: 0,
        }
    }

    /// Labels the rows. Their copies were made before; those of the centroids are made here. `by_row`: a copy of the rows for settling, if there
    /// is one.
    ///
    /// # Safety
    /// All addresses of the argument are live, with the sizes that the kernels index: rows up to the stride, k x d centroids in both orders, a label
    /// before and after for each row. Its list of rows in doubt is that of this object. There are at most as many rows as in the shape that this
    /// object was made for, and d and k are the same.
    pub unsafe fn launch(&mut self, queue: &Queue, assign: &AssignArgument<T>, by_row: Option<&ByRow>) -> Result<()> {
        // SAFETY: the caller promises the addresses. The copies of the centroids are made before the products.
        unsafe {
            self.copy_centroids(queue, assign)?;
            self.doubt.clear()?;
            queue.run(&self.assign, &self.argument(assign))?;
            let lists = [self.centroids.list.at(), self.centroids.groups.at()];
            let settled = AssignArgument { rows: by_row.map_or(assign.rows, |copy| copy.of(assign.rows)), ..*assign };
            self.doubt.launch(queue, &settled, lists, assign.centroids)
        }
    }
}
