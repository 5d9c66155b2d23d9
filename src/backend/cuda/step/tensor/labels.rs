//! A pass that labels rows by tensor cores. Each step of a pass is a type, so the compiler checks their order.
//!
//! ```text
//! TensorLabels::begin          -> TensorPass<Begun>
//!     choose_centres           -> TensorPass<Begun>         centres of groups, from the centroids of a fit
//!     regroup                  -> TensorPass<RowsGrouped>   rows in groups, and their copies: made again if there is much doubt
//!     keep_groups              -> TensorPass<RowsGrouped>   the groups and copies of the pass before
//!     measure                  -> TensorPass<Measured>      the distances of the centroids from the centres
//!     group_by_fixed_centres   -> TensorPass<Measured>      from Begun, for a model: its centroids and centres do not move
//!     label                                                 copies of the centroids, products, settling
//! ```
//! What depends on earlier passes is a state of [`TensorLabels`], which the steps check. All launches read an [`AssignArgument`]:
//! the rows, the labels before and after, and the centroids. The caller of `begin` promises once that its addresses are live.

use std::sync::Arc;

use super::centres::{Centres, Centring, NEAR_ALWAYS, NEAR_WITHOUT_GROUPS};
use super::doubt::DoubtLists;
use super::products::TensorProducts;
use super::sizes::{HalfRowCopies, RowGroups, TILE_ROWS, TensorSizes};
use super::unit::TensorUnit;
use crate::backend::cuda::arguments::{
    self, AssignArgument, RowInDoubt, TensorArgument, TensorCentroidsArgument, TensorRowsArgument, TensorTermsArgument,
};
use crate::backend::cuda::device::{At, Entry, Launch, Plain, Queue, sum};
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

/// The least number of passes that is expected.
const FEWEST_PASSES: u32 = 8;

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
    sum([TensorLabels::<T>::bytes(sizes), TensorProducts::<T>::bytes(sizes), Centres::<T>::fixed_bytes(sizes)])
}

/// The centres for a model, and how many groups there are: [`Centres::fixed`].
///
/// # Safety
/// The same as for [`TensorLabels::begin`].
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

/// The groups of the rows of a chunk, with their copies, and the rows in doubt.
pub struct TensorLabels<T> {
    sizes: TensorSizes,
    /// If an iteration looks at this many sets of columns, rows are put in order.
    most_kept: u64,
    unit: TensorUnit,
    added: Added,
    rows: HalfRowCopies,
    centres: GroupCentres<T>,
    state: LabelsState,
    groups: RowGroups,
    centring: Centring<T>,
    launches: RowLaunches<T>,
    doubt: DoubtLists<T>,
}

/// The centres of the groups.
pub enum GroupCentres<T> {
    /// Those of a fit, which passes choose.
    Own(Box<Centres<T>>),
    /// Those of a model: [`centres_of_model`]. Other queues read them too.
    Fixed(Arc<Centres<T>>),
}

impl<T> GroupCentres<T> {
    fn all(&self) -> &Centres<T> {
        match self {
            Self::Own(centres) => centres,
            Self::Fixed(centres) => centres,
        }
    }
}

/// What earlier passes, or earlier steps of a pass, have made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LabelsState {
    /// Nothing: the buffers are not initialised.
    New,
    /// Centres.
    HasCentres,
    /// Centres, groups, and copies of the rows.
    HasGroups,
}

/// The launches that group and copy the rows, in their order.
struct RowLaunches<T> {
    clear: Launch<TensorRowsArgument<T>>,
    group: Launch<TensorRowsArgument<T>>,
    /// `group` in the variant that also copies the rows with their features side by side.
    group_and_copy: Launch<TensorRowsArgument<T>>,
    count: Launch<TensorRowsArgument<T>>,
    reach: Launch<TensorRowsArgument<T>>,
    places: Launch<TensorRowsArgument<T>>,
    copy: Launch<TensorRowsArgument<T>>,
}

impl<T: Float + Plain> RowLaunches<T> {
    fn new(sizes: &TensorSizes, half: bool, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
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
        Ok(Self {
            clear: rows(arguments::tensor_clear::<T>(), blocks.min(1 << 10))?,
            group: group(0)?,
            group_and_copy: group(staged)?,
            count: few(arguments::tensor_count::<T>(), 4)?,
            reach: rows(arguments::tensor_reach::<T>(), sizes.groups)?,
            places: rows(arguments::tensor_places::<T>(), 1)?,
            copy: rows(arguments::tensor_rows::<T>(), blocks)?,
        })
    }
}

impl<T: Float + Plain> TensorLabels<T> {
    /// The bytes that this takes on the device, without the centres and the products.
    pub fn bytes(sizes: &TensorSizes) -> u64 {
        sum([DoubtLists::<T>::bytes(sizes), HalfRowCopies::bytes(sizes), RowGroups::bytes(sizes)])
    }

    /// `half`: whether the rows' values have 16 bits. `centres`: one for each group. The first pass groups and copies the rows.
    pub fn new(unit: TensorUnit, sizes: TensorSizes, half: bool, centres: GroupCentres<T>, queue: &Queue) -> Result<Self> {
        let state = if let GroupCentres::Fixed(_) = centres { LabelsState::HasCentres } else { LabelsState::New };
        let mut labels = Self {
            sizes,
            most_kept: sizes.most_kept(FEWEST_PASSES),
            unit,
            added: unit.added(&queue.gpu)?,
            rows: HalfRowCopies::allocate(queue, &sizes)?,
            centres,
            state,
            groups: RowGroups::allocate(queue, &sizes)?,
            centring: Centring::new(&sizes, queue)?,
            launches: RowLaunches::new(&sizes, half, queue)?,
            doubt: DoubtLists::new(sizes, half, queue)?,
        };
        labels.force_regroup()?;
        Ok(labels)
    }

    /// The address of the list of rows in doubt, for the argument.
    pub fn in_doubt(&self) -> At<RowInDoubt> {
        self.doubt.rows()
    }

    /// Makes the next pass group and copy the rows again, however few rows are in doubt.
    pub fn force_regroup(&mut self) -> Result<()> {
        self.doubt.force_regroup()
    }

    /// The instruction and the sizes, for the products of these rows.
    pub fn unit_and_sizes(&self) -> (TensorUnit, TensorSizes) {
        (self.unit, self.sizes)
    }

    /// Begins a pass over the rows of the argument. `passes`: how many there were. As many are expected to follow, and at least
    /// [`FEWEST_PASSES`].
    ///
    /// # Safety
    /// While the pass and its launches run, all addresses of the argument are live, with the sizes that the kernels index: rows
    /// up to the stride, k x d centroids in both orders, a label before and after for each row. Its list of rows in doubt is that
    /// of this object. `queue` is that of [`TensorLabels::new`]. There are at most as many rows as in the shape that this object
    /// was made for, and d and k are the same. A copy `by_row` that a step of the pass takes has room for these rows, and holds
    /// them before `label`. The rows are those of the pass before, unless [`TensorLabels::force_regroup`] was called since.
    pub unsafe fn begin<'a>(
        &'a mut self,
        queue: &'a Queue,
        assign: &'a AssignArgument<T>,
        passes: u32,
    ) -> TensorPass<'a, T, Begun> {
        self.most_kept = self.sizes.most_kept(passes.max(FEWEST_PASSES));
        TensorPass { labels: self, queue, assign, step: Begun }
    }

    fn terms(&self, assign: &AssignArgument<T>) -> TensorTermsArgument {
        terms(self.sizes.d, self.added, assign)
    }

    fn of_rows(&self, assign: &AssignArgument<T>, by_row: Option<&ByRow>) -> TensorRowsArgument<T> {
        let Self { sizes, rows, centres, groups, most_kept, .. } = self;
        TensorRowsArgument {
            rows: assign.rows,
            centres: centres.all().centres.at(),
            scale: assign.scale,
            most: sizes.groups as u32,
            count: centres.all().count.at(),
            groups: groups.groups.at(),
            totals: groups.totals.at(),
            near: centres.all().near.at(),
            labels: assign.labels,
            group_of_centroid: centres.all().group_of_centroid.at(),
            group_of_row: rows.group_of_row.at(),
            buckets: rows.buckets.at(),
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            terms: rows.terms.at(),
            copies: rows.copies.at(),
            by_row: by_row.map_or(0, ByRow::at),
            control: assign.control,
            few: self.doubt.few().control,
            bound: self.terms(assign),
            tiles: sizes.tiles as u32,
            chunks: sizes.chunks as u32,
            k: sizes.k as u32,
            width: by_row.map_or(0, |copy| copy.width as u32),
            copies_of_centroids: sizes.at_first as u32,
            most_doubt: sizes.most_doubt(),
            most_kept: *most_kept,
            row_tiles: self.unit.kernel(sizes.chunks).row_tiles as u32,
        }
    }

    /// Without the address of the copies of the centroids.
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
            labels: assign.labels,
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            first_visit: rows.first_visit.at(),
            few: self.doubt.few().control,
            most_doubt: sizes.most_doubt(),
            most_kept: self.most_kept,
            ..self.centres.all().argument(sizes, assign, self.terms(assign))
        }
    }

    /// Without the address of the copies of the centroids, and without what [`TensorProducts`] knows of its kernel.
    fn of_products(&self, assign: &AssignArgument<T>) -> TensorArgument {
        let Self { sizes, rows, groups, .. } = self;
        TensorArgument {
            rows: rows.copies.at(),
            terms: rows.terms.at(),
            row_of_place: rows.row_of_place.at(),
            group_of_tile: rows.group_of_tile.at(),
            groups: groups.groups.at(),
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
            k_padded: sizes.k_padded as u32,
            ..TensorArgument::ZERO
        }
    }
}

/// Nothing is made in this pass yet.
pub struct Begun;

/// The rows are in groups and copied. The centroids may have moved since their distances from the centres were measured.
pub struct RowsGrouped {
    /// Whether this pass may have grouped the rows. If it did, the distances were measured just before.
    again: bool,
}

/// The rows are in groups and copied, and the distances of the centroids from the centres are known.
pub struct Measured {
    /// Whether this pass may have grouped the rows.
    again: bool,
}

/// A pass at a step.
#[must_use]
pub struct TensorPass<'a, T, S> {
    labels: &'a mut TensorLabels<T>,
    queue: &'a Queue,
    assign: &'a AssignArgument<T>,
    step: S,
}

impl<'a, T, S> TensorPass<'a, T, S> {
    fn then<Next>(self, step: Next) -> TensorPass<'a, T, Next> {
        let Self { labels, queue, assign, .. } = self;
        TensorPass { labels, queue, assign, step }
    }
}

impl<'a, T: Float + Plain> TensorPass<'a, T, Begun> {
    /// Makes centres of groups from the centroids of a fit, if there is much doubt.
    pub fn choose_centres(self) -> Result<Self> {
        let Self { labels, queue, assign, .. } = &self;
        assert!(matches!(labels.centres, GroupCentres::Own(_)), "the centres of a model do not change");
        // SAFETY: the caller of `begin` promised that the addresses are live. The buffers have a place for each group.
        unsafe { labels.centring.choose(queue, &labels.of_centroids(assign))? };
        self.labels.state = self.labels.state.max(LabelsState::HasCentres);
        Ok(self)
    }

    /// Measures the distances of the centroids from the centres, groups the rows and copies them in the order of their groups, if
    /// there is much doubt. `by_row`: a copy to make too.
    pub fn regroup(self, by_row: Option<&ByRow>) -> Result<TensorPass<'a, T, RowsGrouped>> {
        let Self { labels, queue, assign, .. } = &self;
        assert!(labels.state >= LabelsState::HasCentres, "the first pass of a fit chooses centres");
        // SAFETY: as in `choose_centres`.
        unsafe { labels.centring.measure_again(queue, &labels.of_centroids(assign))? };
        Ok(self.copy_rows(by_row)?.then(RowsGrouped { again: true }))
    }

    /// Keeps the groups and copies of the pass before.
    pub fn keep_groups(self) -> TensorPass<'a, T, RowsGrouped> {
        assert!(self.labels.state == LabelsState::HasGroups, "the first pass makes groups");
        self.then(RowsGrouped { again: false })
    }

    /// Groups and copies the rows for the centres of a model, whose centroids have not moved since these were made.
    pub fn group_by_fixed_centres(self) -> Result<TensorPass<'a, T, Measured>> {
        assert!(matches!(self.labels.centres, GroupCentres::Fixed(_)), "the centroids of a fit move");
        self.labels.force_regroup()?;
        Ok(self.copy_rows(None)?.then(Measured { again: true }))
    }

    fn copy_rows(self, by_row: Option<&ByRow>) -> Result<Self> {
        let Self { labels, queue, assign, .. } = &self;
        let argument = labels.of_rows(assign, by_row);
        let RowLaunches { clear, group, group_and_copy, count, reach, places, copy } = &labels.launches;
        let group = if by_row.is_some() { group_and_copy } else { group };
        for launch in [clear, group, count, reach, places, copy] {
            // SAFETY: the caller of `begin` promised that the addresses are live, and that `by_row` has a place for each row. The
            // buffers have one for each row, each tile, each group and each label. The launches have a thread for each row, or
            // threads that go on to the next rows, and a block for each group.
            unsafe { queue.run(launch, &argument)? };
        }
        self.labels.state = LabelsState::HasGroups;
        Ok(self)
    }
}

impl<'a, T: Float + Plain> TensorPass<'a, T, RowsGrouped> {
    /// Measures the distances of the centroids from the centres, unless that was done before the rows were grouped.
    pub fn measure(self) -> Result<TensorPass<'a, T, Measured>> {
        let Self { labels, queue, assign, step: RowsGrouped { again } } = &self;
        let near_when = if *again { NEAR_WITHOUT_GROUPS } else { NEAR_ALWAYS };
        let near = TensorCentroidsArgument { near_when, ..labels.of_centroids(assign) };
        // SAFETY: the caller of `begin` promised that the addresses are live. The buffers have a place for each pair of a group
        // and a centroid.
        unsafe { queue.run(&labels.centring.near, &near)? };
        let again = *again;
        Ok(self.then(Measured { again }))
    }
}

impl<T: Float + Plain> TensorPass<'_, T, Measured> {
    /// Labels the rows. `products`: made for these labels. `by_row`: a copy of the rows for settling, if there is one.
    pub fn label(self, products: &mut TensorProducts<T>, by_row: Option<&ByRow>) -> Result<()> {
        let Self { labels, queue, assign, step: Measured { again } } = self;
        assert!(products.made_for() == labels.unit_and_sizes(), "the products are of other rows");
        if again {
            products.forget_slacks()?;
        }
        let rows = by_row.map_or(assign.rows, |copy| copy.of(assign.rows));
        let settled = AssignArgument { rows, ..*assign };
        labels.doubt.clear()?;
        let (of_centroids, of_products) = (labels.of_centroids(assign), labels.of_products(assign));
        // SAFETY: the caller of `begin` promised that the addresses are live, and that `by_row` holds the rows. The rows are
        // grouped and copied, and the distances of the centroids are measured, as the type of this pass says. The products have
        // the sizes and the instruction of these labels (asserted).
        unsafe {
            products.launch(queue, &settled, &of_centroids, &of_products)?;
            let lists = (labels.groups.list.at(), labels.groups.groups.at());
            labels.doubt.launch(queue, &settled, lists, assign.centroids)
        }
    }
}
