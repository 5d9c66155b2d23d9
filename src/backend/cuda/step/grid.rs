//! Labels and sums over rows in the order of small cells of space, for few features and many clusters:
//! `kernels/step/grid_tree.cu`, `grid_rows.cu`, `grid_split.cu`, `grid_lists.cu`, `assign_grid.cu` and `grid_labels.cu`.
//!
//! ```text
//! once a fit:     a tree that splits space into cells; a copy of the rows in the order of their cells;
//!                 the box of the rows of each cell
//! an iteration:   for each cell, the centroids that can be nearest to a row of its box; then the rows,
//!                 each compared with these centroids alone
//! ```
//! One feature and more clusters than lists have numbers for: the centroids are sorted, and a row is compared with those on both
//! sides of it (`sorted.rs`).
//!
//! The step keeps labels in the order of its copy. They are written in the order of the rows before they are read.

mod order;
mod sizes;
mod sorted;

use std::sync::atomic::{AtomicBool, Ordering};

use self::order::Order;
use self::sizes::{Between, GridBuffers, GridSizes, MOST_LISTED, PlaceBuffers};
use self::sorted::{SortedBuffers, SortedCentroids};
use super::choice::PROCESSORS;
use super::filter::FilterSpec;
use super::registers::Registers;
use super::{Candidate, LabelArrays, Needs, Step, Supported, at_most, needs_shared};
use crate::backend::cuda::arguments::{
    self, AssignCellsArgument, CellLabelsArgument, CellListsArgument, LabelsArgument, RowsArgument,
};
use crate::backend::cuda::device::{At, Launch, Plain, Queue, sum};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, GpuSize, MOST_TABLE_BYTES, TABLE_BYTES, copies};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;
use crate::bounds::Difference;
use crate::bounds::grid::Farther;

/// The most features that kernels are compiled for, and the most clusters of one feature.
const MOST_FEATURES: usize = 4;
const MOST_SORTED: usize = 1 << 26;
/// The most bytes of centroids in shared memory.
const CENTROID_BYTES: usize = 32 << 10;
/// The generation of GPUs that was measured, and the longest lists, by prediction, of fits that take this strategy by default.
const GENERATION: u32 = 90;
const LONGEST_LIST: f64 = 30.0;
/// The most shared memory that a block of `assign_grid` may want: a table of sums, centroids, copies of the next tile, and lists.
const ASSIGN_BYTES: usize = 140 << 10;
/// The most rows: places are numbers of 32 bits.
const MOST_ROWS: usize = 1 << 31;

/// The candidate.
#[derive(Debug, Clone, Copy)]
pub struct Grid;

impl Grid {
    /// The copies that updates make. This step does not read them.
    fn filter(shape: &FitShape) -> FilterSpec {
        Registers::Single.filter(shape.d, shape.k).1
    }
}

impl<T: Float + Plain> Candidate<T> for Grid {
    fn strategy(&self) -> Strategy {
        Strategy::Grid
    }

    fn supports(&self, shape: &FitShape, gpu: GpuSize) -> Supported {
        at_most(MOST_FEATURES, "features", shape.d)?;
        // Rows of 16 bits and one feature cannot fill more clusters.
        at_most(if shape.d == 1 && !shape.half { MOST_SORTED } else { MOST_LISTED }, "clusters", shape.k)?;
        at_most(MOST_ROWS, "rows", shape.chunk)?;
        let shared = GridSizes::new(shape).shared().into_iter().max().unwrap_or(0).max(ASSIGN_BYTES);
        needs_shared(shared + (10 << 10), gpu)
    }

    fn streams(&self) -> bool {
        false
    }

    fn copies_rows(&self) -> bool {
        true
    }

    fn needs(&self, shape: &FitShape, _gpu: GpuSize) -> Needs {
        let sizes = GridSizes::new(shape);
        let rows = sum([PlaceBuffers::bytes(&sizes), Between::bytes(&sizes)]);
        let sorted = if sizes.sorted() > 0 { SortedBuffers::<T>::bytes(&sizes) } else { 0 };
        let bytes = sum([rows, GridBuffers::<T>::bytes(&sizes), sorted]);
        Needs { filter: Self::filter(shape), label_arrays: LabelArrays::InPlace, bytes }
    }

    /// Measured on an H200, for float32 and short lists. The time of a row grows with the square of a short list, and in
    /// proportion to a long one. A tenth of the time in which the rows are put in order: fits are assumed to have ten iterations.
    fn predicted(&self, shape: &FitShape, gpu: GpuSize) -> Option<f64> {
        Candidate::<T>::supports(self, shape, gpu).ok()?;
        let sizes = GridSizes::new(shape);
        let (d, k, list) = (shape.d as f64, shape.k as f64, sizes.list());
        if sizes.sorted() > 0 {
            // 3,000,000 rows and 100,000 clusters take 240 on an H100. Every other strategy computes all scores.
            return Some(150.0 + shape.chunk as f64 * 30e-6 + k * 500e-6);
        }
        if gpu.generation != GENERATION || shape.float64 || list > LONGEST_LIST {
            return None;
        }
        let n = shape.chunk as f64 * PROCESSORS as f64 / gpu.processors.max(1) as f64;
        let order = 450.0 + n * (20.0 + 10.0 * d) * 1e-6;
        Some(15.0 + 0.03 * k + n * (6.0 + 0.9 * list * list.min(4.0)) * 1e-6 + order / 10.0)
    }

    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>> {
        Ok(Box::new(GridStep::<T>::new(shape, queue)?))
    }
}

/// The step of one fit.
struct GridStep<T> {
    sizes: GridSizes,
    places: PlaceBuffers,
    /// Kept as long as the fit: to give so much memory back takes as long as several iterations.
    between: Between,
    grid: GridBuffers<T>,
    order: Order,
    lists: Launch<CellListsArgument>,
    assign: Launch<AssignCellsArgument<T>>,
    /// Used instead of lists for one feature and very many clusters.
    sorted: Option<SortedCentroids<T>>,
    table_copies: usize,
    centroids_in_shared: bool,
    /// Whether the rows are in order.
    ordered: bool,
    /// Whether only this step has changed the labels since the last launch.
    current: bool,
    /// Whether the places have labels that the rows do not have yet.
    ahead: AtomicBool,
}

impl<T: Float + Plain> GridStep<T> {
    fn new(shape: &FitShape, queue: &Queue) -> Result<Self> {
        let sizes = GridSizes::new(shape);
        let GridSizes { d, k, .. } = sizes;
        let gpu = &*queue.gpu;
        let table_copies = copies(shape.accumulators(), TABLE_BYTES, MOST_TABLE_BYTES);
        let table = if table_copies > 0 { shape.accumulators() * 8 * table_copies + k * 4 } else { 0 };
        let centroids = k * if d == 3 { 4 } else { d } * size_of::<T>();
        let centroids_in_shared = T::IS_F32 && centroids <= CENTROID_BYTES;
        let (variant, assign) = (format!("_d{d}"), arguments::assign_grid::<T>().half_if(shape.half));
        let async_tiles = assign.block.threads as usize * (d * sizes.value * 4 + 4 * sizes.label);
        let shared = async_tiles + table + if centroids_in_shared { centroids.next_multiple_of(16) } else { 0 };
        Ok(Self {
            sizes,
            places: PlaceBuffers::allocate(queue, &sizes)?,
            between: Between::allocate(queue, &sizes)?,
            grid: GridBuffers::allocate(queue, &sizes)?,
            order: Order::new::<T>(&sizes, shape.half, queue)?,
            lists: arguments::grid_lists::<T>().exactly(gpu, &variant, sizes.parents())?,
            assign: assign.with_shared(shared).resident(gpu, &variant, sizes.tiles().div_ceil(8))?,
            sorted: (sizes.sorted() > 0).then(|| SortedCentroids::new(&sizes, queue)).transpose()?,
            table_copies,
            centroids_in_shared,
            ordered: false,
            current: false,
            ahead: AtomicBool::new(false),
        })
    }

    /// The labels of the places.
    fn own_labels(&self) -> LabelsArgument {
        LabelsArgument { at: self.places.labels.at(), bytes: self.sizes.label as i32 }
    }

    fn labels_argument(&self, state: &DeviceState<T>) -> CellLabelsArgument {
        CellLabelsArgument {
            labels: state.labels.now(0),
            own: self.own_labels(),
            row_of_place: self.places.row_of_place.at(),
            stride: self.sizes.stride() as u64,
        }
    }

    /// The lists of the cells.
    fn lists_argument(&self, state: &DeviceState<T>) -> CellListsArgument {
        let Self { sizes, grid, .. } = self;
        let Farther { relative, underflow } = Farther::new(sizes.d);
        CellListsArgument {
            boxes: grid.boxes.at(),
            counts: grid.counts.at(),
            centroids: state.centroids.now.at(),
            lists: grid.lists.at(),
            parents: grid.parents.at(),
            parent_counts: grid.parent_counts.at(),
            control: state.control,
            relative,
            underflow,
            k: sizes.k as u32,
            cells: sizes.cells() as u32,
            parent_cells: sizes.parent_cells() as u32,
            unused: 0,
        }
    }

    fn assign_argument(&self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> AssignCellsArgument<T> {
        let Self { sizes, places, grid, .. } = self;
        let mut assign = state.assign_argument(chunk, At::NULL);
        let w = if sizes.weighted { places.w.at() } else { At::NULL };
        let stride = sizes.stride();
        assign.rows = RowsArgument { x: places.x.at(), w, stride: stride as u64, n: stride as u32, ..assign.rows };
        assign.labels = self.own_labels();
        assign.table_copies = self.table_copies as i32;
        assign.centroids_in_shared = i32::from(self.centroids_in_shared);
        let Difference { slope, offset } = Difference::new(sizes.d);
        AssignCellsArgument {
            assign,
            tiles: places.tiles.at(),
            count: grid.tile_starts.at_index(sizes.cells()),
            lists: grid.lists.at(),
            parents: grid.parents.at(),
            parent_counts: grid.parent_counts.at(),
            parent_cells: sizes.parent_cells() as u32,
            slope,
            offset,
            unused: 0,
        }
    }
}

impl<T: Float + Plain> Step<T> for GridStep<T> {
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        if !self.ordered {
            self.order(chunk, state)?;
        } else if !self.current {
            // SAFETY: every place has a row or none.
            unsafe { state.queue.run(&self.order.take_labels, &self.labels_argument(state))? };
        }
        let cleared = !self.ordered || !self.current;
        if cleared {
            // No cell has a label for all of its rows.
            match &mut self.sorted {
                Some(sorted) => sorted.buffers.ranges.fill(0)?,
                None => self.grid.lists.fill(0)?,
            }
        }
        (self.ordered, self.current) = (true, true);
        self.ahead.store(true, Ordering::Relaxed);
        // SAFETY: the rows are in order. The lists have room for each cell and each parent, and the state has k x d centroids.
        // The kernels begin with the wait.
        unsafe {
            if let Some(sorted) = &self.sorted {
                return sorted.launch(self, self.assign_argument(chunk, state), state, cleared);
            }
            // Not behind the memset, which is no kernel.
            let lists = self.lists_argument(state);
            state.queue.run_behind_if(!cleared, &self.lists, &lists)?;
            state.queue.run_behind(&self.assign, &self.assign_argument(chunk, state))
        }
    }

    fn write_labels(&self, state: &DeviceState<T>) -> Result<()> {
        if self.ahead.load(Ordering::Relaxed) {
            // SAFETY: every place has a row or none.
            unsafe { state.queue.run(&self.order.give_labels, &self.labels_argument(state))? };
            self.ahead.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn counts_scores(&self) -> bool {
        true
    }

    fn forget(&mut self) {
        self.current = false;
        self.ahead.store(false, Ordering::Relaxed);
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::choice::tests::{H200, shape};
    use super::*;

    unit_test!(sizes_follow_the_shape);
    fn sizes_follow_the_shape() {
        let sizes = |n| GridSizes::new(&shape(n, 4, 64));
        assert_eq!((sizes(1).levels, sizes(511).levels, sizes(768).levels), (0, 2, 3));
        assert_eq!((sizes(8_000_000).cells(), sizes(134_217_728).cells()), (16_384, 32_768));
        assert_eq!((sizes(1).parents(), sizes(134_217_728).parents()), (1, 512));
        // Long lists make cells small.
        let long = |n| GridSizes::new(&shape(n, 4, 10_000));
        assert_eq!((long(8_000_000).cells(), long(8_000_000).parent_cells(), long(8_000_000).top()), (65_536, 128, 7));
        assert_eq!((long(100_000).levels, long(100_000).top()), (10, 6));
        assert!(long(134_217_728).list() < 12.0);
    }

    unit_test!(the_default_takes_the_grid_where_lists_are_short);
    fn the_default_takes_the_grid_where_lists_are_short() {
        let time = |n, d, k| Candidate::<f32>::predicted(&Grid, &shape(n, d, k), H200);
        assert!(time(10_000_000, 2, 1_000).unwrap() < 500.0);
        assert!(time(134_217_728, 4, 64).unwrap() < 3_000.0);
        assert!(time(8_000_000, 4, 10_000).unwrap() < 1_000.0);
        assert_eq!(time(100_000, 4, 60_000), None);
        assert!(time(3_000_000, 1, 100_000).unwrap() < 1_000.0 && time(100_000, 1, 90_000).unwrap() < 1_000.0);
        assert_eq!(Candidate::<f64>::predicted(&Grid, &FitShape { float64: true, ..shape(10_000_000, 2, 1_000) }, H200), None);
    }

    unit_test!(limits_are_errors);
    fn limits_are_errors() {
        let error = |shape, gpu| Candidate::<f32>::supports(&Grid, &shape, gpu).err().map(|refusal| refusal.limit);
        let largest = shape(134_217_728, 4, 64);
        assert_eq!(error(largest, H200), None);
        assert!(error(largest, GpuSize { shared: 99 << 10, ..H200 }).unwrap().contains("shared memory"));
        assert!(error(shape(10, 5, 2), H200).unwrap().contains("at most 4 features"));
        assert!(error(shape(100_000, 2, 65_537), H200).unwrap().contains("at most 65536 clusters"));
        assert_eq!(error(shape(30_000_000, 1, 16_777_217), H200), None);
        assert!(error(shape(100_000_000, 1, MOST_SORTED + 1), H200).unwrap().contains("at most 67108864 clusters"));
    }
}
