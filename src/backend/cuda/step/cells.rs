//! Labels and sums over rows in the order of small cells of space, for few features and many clusters: `kernels/step/cells_tree.cu`,
//! `cells_rows.cu`, `cells_lists.cu` and `assign_cells.cu`.
//!
//! ```text
//! once a fit:     a tree that splits space into cells; a copy of the rows in the order of their cells; the box of the rows of each cell
//! an iteration:   for each cell, the centroids that can be nearest to a row of its box; then the rows, each beside these centroids alone
//! ```
//! The step keeps labels in the order of its copy. They are written to those of the rows when somebody wants to read these.

use super::choice::PROCESSORS;
use super::filter::FilterSpec;
use super::registers::Registers;
use super::{Candidate, Fit, LabelArrays, MOST_TABLE_BYTES, Needs, Refusal, Step, Supported, TABLE_BYTES, THREADS, copies};
use crate::backend::cuda::arguments::{
    self, AssignCellsArgument, CellLabelsArgument, CellListsArgument, CellRowsArgument, CellSplitArgument, CellTile, CellTreeArgument,
    LabelsArgument, RowsArgument,
};
use crate::backend::cuda::device::{Block, Entry, Launch, Plain, Queue, buffers, product, sum};
use crate::backend::cuda::rows::chunks::Chunk;
use crate::backend::cuda::shape::{FitShape, GpuSize, ROW_ALIGNMENT, padded};
use crate::backend::cuda::state::State;
use crate::certify::Difference;
use crate::certify::cells::Farther;
use crate::error::Result;
use crate::float::Float;
use crate::strategy::Strategy;
use std::sync::atomic::{AtomicBool, Ordering};

/// Constants of `kernels/common/cells.cuh`: the most cells as a power of two, points of a part of the tree, places of a tile, words of a list,
/// and the most parents of cells.
const MOST_LEVELS: u32 = 15;
const POINTS: usize = 2_048;
const TILE: usize = 128;
const LIST: usize = 64;
const MOST_PARENTS: usize = 512;
/// The most features and clusters that kernels are compiled for.
const MOST_FEATURES: usize = 4;
const MOST_CLUSTERS: usize = 1 << 16;
/// Levels of the tree that one block makes first.
const TOP: u32 = 6;
/// A cell should have so many rows.
const ROWS_OF_CELL: usize = 256;
/// Rows that a block of `cells_split` sorts, and its threads.
const SPLIT_ROWS: usize = 8_192;
const SPLIT_THREADS: u32 = 512;
const TREE_THREADS: u32 = 512;
const FIND_THREADS: u32 = 1_024;
/// The most bytes of centroids in shared memory.
const CENTROID_BYTES: usize = 32 << 10;
/// The generation of GPUs that was measured, and the longest lists, by prediction, of fits that take this strategy by default.
const GENERATION: u32 = 90;
const LONGEST_LIST: f64 = 12.0;
/// The most rows: places are numbers of 32 bits.
const MOST_ROWS: usize = 1 << 31;

/// The candidate.
#[derive(Debug, Clone, Copy)]
pub struct Cells;

/// The sizes of a fit's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    n: usize,
    d: usize,
    k: usize,
    levels: u32,
    /// Bytes of a value.
    value: usize,
    label: usize,
    weighted: bool,
}

impl Sizes {
    fn new(shape: &FitShape) -> Self {
        let levels = (shape.chunk / ROWS_OF_CELL).max(1).ilog2().min(MOST_LEVELS);
        let value = if shape.half {
            2
        } else if shape.float64 {
            8
        } else {
            4
        };
        let FitShape { chunk: n, d, k, weighted, .. } = *shape;
        Self { n, d, k, levels, value, label: shape.label_bytes(), weighted }
    }

    fn cells(&self) -> usize {
        1 << self.levels
    }

    fn parents(&self) -> usize {
        self.cells().min(MOST_PARENTS)
    }

    /// Levels of the top of the tree.
    fn top(&self) -> u32 {
        self.levels.min(TOP)
    }

    /// Cells of a parent: a power of two.
    fn parent_cells(&self) -> usize {
        self.cells() / self.parents()
    }

    /// The most places: a cell's first one is a multiple of 4.
    fn stride(&self) -> usize {
        padded(self.n.saturating_add(4 * self.cells()), ROW_ALIGNMENT)
    }

    /// The most tiles.
    fn tiles(&self) -> usize {
        self.n / TILE + self.cells()
    }

    /// Bytes of shared memory for a part of the tree, for the whole tree, and to sort rows.
    fn shared(&self) -> [usize; 3] {
        [POINTS * (8 + 4 * self.d), 4 * self.cells(), SPLIT_ROWS * (4 + self.value.max(4))]
    }
}

buffers! {
    /// The rows in the order of their cells.
    struct PlaceBuffers = "rows in the order of their cells" (sizes: &Sizes) {
        /// `(d, stride)`.
        x: u8 [product([sizes.d, sizes.stride(), sizes.value])],
        w: f64 [if sizes.weighted { sizes.stride() } else { 0 }],
        row_of_place: u32 [sizes.stride()],
        labels: u8 [product([sizes.stride(), sizes.label])],
        cell_of_row: u16 [padded(sizes.n, ROW_ALIGNMENT)],
        tiles: CellTile [sizes.tiles()],
    }
}

buffers! {
    /// The rows in the order of the parents of their cells, until they are in the order of the cells. Nothing if cells have no parents.
    struct Between = "rows on their way to their cells" (sizes: &Sizes) {
        x: u8 [if sizes.parent_cells() > 1 { product([sizes.d, padded(sizes.n, ROW_ALIGNMENT), sizes.value]) } else { 0 }],
        rows: u32 [if sizes.parent_cells() > 1 { sizes.n } else { 0 }],
        cells: u16 [if sizes.parent_cells() > 1 { sizes.n } else { 0 }],
    }
}

buffers! {
    /// The cells.
    struct CellBuffers<T> = "cells of rows" (sizes: &Sizes) {
        nodes: u32 [sizes.cells()],
        /// `(nodes of the top, d, POINTS)`.
        samples: f32 [product([1 << sizes.top(), sizes.d, POINTS])],
        sampled: u32 [1 << sizes.top()],
        counts: u32 [sizes.cells()],
        starts: u32 [sizes.cells()],
        next: u32 [sizes.cells()],
        tile_starts: u32 [sizes.cells() + 1],
        parent_starts: u32 [sizes.parents() + 1],
        parent_next: u32 [sizes.parents()],
        /// `(cells, 2, d)`, as integers of the same order.
        boxes: T [product([sizes.cells(), 2, sizes.d])],
        /// `(cells, LIST)`.
        lists: u16 [product([sizes.cells(), LIST])],
        /// `(parents, k)`.
        parents: u16 [product([sizes.parents(), sizes.k])],
        parent_counts: u32 [sizes.parents()],
    }
}

impl Cells {
    /// The copies that updates make. This step does not read them.
    fn filter(shape: &FitShape) -> FilterSpec {
        Registers::SINGLE.filter(shape.d, shape.k).1
    }
}

impl<T: Float + Plain> Candidate<T> for Cells {
    fn strategy(&self) -> Strategy {
        Strategy::Cells
    }

    fn supports(&self, shape: &FitShape, gpu: GpuSize) -> Supported {
        let refused = |limit: String, got: String| Err(Refusal { limit, hint: "", got });
        let sizes = Sizes::new(shape);
        let shared = sizes.shared().into_iter().max().unwrap_or(0) + (10 << 10);
        if shape.d > MOST_FEATURES {
            return refused(format!("at most {MOST_FEATURES} features"), shape.d.to_string());
        }
        if shape.k > MOST_CLUSTERS {
            return refused(format!("at most {MOST_CLUSTERS} clusters"), shape.k.to_string());
        }
        if shape.chunk > MOST_ROWS {
            return refused(format!("at most {MOST_ROWS} rows"), shape.chunk.to_string());
        }
        if gpu.shared < shared {
            return refused(format!("{shared} bytes of shared memory a block"), gpu.shared.to_string());
        }
        if shape.chunk < shape.rows {
            return refused("rows that fit on the GPU".into(), "rows that do not, or a limit that they exceed".into());
        }
        Ok(())
    }

    fn streams(&self) -> bool {
        false
    }

    fn copies_rows(&self) -> bool {
        true
    }

    fn needs(&self, shape: &FitShape, _gpu: GpuSize) -> Needs {
        let sizes = Sizes::new(shape);
        let bytes = sum([PlaceBuffers::bytes(&sizes), Between::bytes(&sizes), CellBuffers::<T>::bytes(&sizes)]);
        Needs { filter: Self::filter(shape), label_arrays: LabelArrays::InPlace, bytes }
    }

    /// Measured on an H200, for float32. The length of lists is that of cells of equal sides. It is meant to be too large rather than too small, since
    /// lists are longer where data have long tails. A tenth of the time in which the rows are put in order: fits have ten iterations or more.
    fn predicted(&self, shape: &FitShape, gpu: GpuSize) -> Option<f64> {
        Candidate::<T>::supports(self, shape, gpu).ok()?;
        let sizes = Sizes::new(shape);
        let (d, k) = (shape.d as f64, shape.k as f64);
        let side = (k / sizes.cells() as f64).powf(1.0 / d);
        let list = (1.0 + 1.3 * side).powf(d);
        if gpu.generation != GENERATION || shape.float64 || list > LONGEST_LIST {
            return None;
        }
        let n = shape.chunk as f64 * PROCESSORS as f64 / gpu.processors.max(1) as f64;
        let order = 450.0 + n * (20.0 + 10.0 * d) * 1e-6;
        Some(50.0 + 0.005 * k + n * (4.0 + 5.0 * list) * 1e-6 + order / 10.0)
    }

    fn make<'a>(&self, fit: &Fit<'a, '_, T>) -> Result<Box<dyn Step<T> + 'a>> {
        Ok(Box::new(CellsStep::<T>::new(&fit.shape, fit.queue)?))
    }
}

/// The launches that put the rows in the order of their cells.
struct Order {
    clear: Launch<CellRowsArgument>,
    sample: Launch<CellRowsArgument>,
    tree: Launch<CellTreeArgument>,
    find: Launch<CellRowsArgument>,
    places: Launch<CellRowsArgument>,
    tiles: Launch<CellRowsArgument>,
    split: Launch<CellSplitArgument>,
    boxes: Launch<CellRowsArgument>,
    take_labels: Launch<CellLabelsArgument>,
    give_labels: Launch<CellLabelsArgument>,
}

/// The step of one fit.
struct CellsStep<T> {
    sizes: Sizes,
    places: PlaceBuffers,
    /// Kept as long as the fit: to give so much memory back takes as long as several iterations.
    between: Between,
    cells: CellBuffers<T>,
    order: Order,
    lists: Launch<CellListsArgument>,
    assign: Launch<AssignCellsArgument<T>>,
    table_copies: usize,
    centroids_in_shared: bool,
    /// Whether the rows are in order.
    ordered: bool,
    /// Whether nobody else has changed the labels since the last launch.
    current: bool,
    /// Whether the places have labels that the rows do not have yet.
    ahead: AtomicBool,
}

impl Order {
    fn new<T: Float + Plain>(sizes: &Sizes, half: bool, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
        let variant = format!("_d{}", sizes.d);
        let launch = |entry: Entry<CellRowsArgument>, block: Block, most: usize| {
            Launch::resident(gpu, entry.half_if(half).load(gpu, &variant)?, block, most)
        };
        let usual = |entry, threads: usize| launch(entry, Block::of(THREADS), threads.div_ceil(THREADS as usize));
        let [of_part, of_tree, of_split] = sizes.shared();
        let labels = |entry: Entry<CellLabelsArgument>| {
            Launch::resident(gpu, entry.load(gpu, "")?, Block::of(THREADS), sizes.stride().div_ceil(THREADS as usize))
        };
        let find = Block { threads: FIND_THREADS, shared: of_tree };
        let tree = Block { threads: TREE_THREADS, shared: of_part };
        Ok(Self {
            clear: usual(arguments::cells_clear::<T>(), sizes.cells())?,
            sample: usual(arguments::cells_sample::<T>(), POINTS << sizes.top())?
                .with_blocks((POINTS << sizes.top()) / THREADS as usize),
            tree: Launch::exactly(arguments::cells_tree().load(gpu, "")?, tree, 1),
            find: launch(arguments::cells_find::<T>(), find, sizes.n.div_ceil(4 * FIND_THREADS as usize))?,
            places: launch(arguments::cells_places::<T>(), Block::of(FIND_THREADS), 1)?,
            tiles: usual(arguments::cells_tiles::<T>(), sizes.tiles())?,
            split: Launch::resident(
                gpu,
                arguments::cells_split::<T>().half_if(half).load(gpu, &variant)?,
                Block { threads: SPLIT_THREADS, shared: of_split },
                1,
            )?,
            boxes: usual(arguments::cells_boxes::<T>(), sizes.tiles().saturating_mul(32))?,
            take_labels: labels(arguments::cells_take_labels())?,
            give_labels: labels(arguments::cells_give_labels())?,
        })
    }
}

impl<T: Float + Plain> CellsStep<T> {
    fn new(shape: &FitShape, queue: &Queue) -> Result<Self> {
        let sizes = Sizes::new(shape);
        let Sizes { d, k, .. } = sizes;
        let gpu = &*queue.gpu;
        let lists = arguments::cells_lists::<T>().load(gpu, &format!("_d{d}"))?;
        let table_copies = copies(shape.cells(), TABLE_BYTES, MOST_TABLE_BYTES);
        let table = if table_copies > 0 { shape.cells() * 8 * table_copies + k * 4 } else { 0 };
        let centroids = k * if d == 3 { 4 } else { d } * size_of::<T>();
        let centroids_in_shared = T::IS_F32 && centroids <= CENTROID_BYTES;
        let arriving = THREADS as usize * (d * sizes.value * 4 + 4 * sizes.label);
        let shared = arriving + table + if centroids_in_shared { centroids.next_multiple_of(16) } else { 0 };
        let assign = arguments::assign_cells::<T>().half_if(shape.half).load(gpu, &format!("_d{d}"))?;
        Ok(Self {
            sizes,
            places: PlaceBuffers::allocate(queue, &sizes)?,
            between: Between::allocate(queue, &sizes)?,
            cells: CellBuffers::allocate(queue, &sizes)?,
            order: Order::new::<T>(&sizes, shape.half, queue)?,
            lists: Launch::exactly(lists, Block::of(THREADS), sizes.parents() as u32),
            assign: Launch::resident(gpu, assign, Block { threads: THREADS, shared }, sizes.tiles().div_ceil(8))?,
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

    fn rows_argument(&self, chunk: &Chunk<'_, T>, levels: u32, wanted: usize) -> CellRowsArgument {
        let Self { sizes, places, cells, .. } = self;
        CellRowsArgument {
            rows: chunk.rows.argument(),
            x: places.x.at(),
            stride: sizes.stride() as u64,
            cell_of_row: places.cell_of_row.at(),
            nodes: cells.nodes.at(),
            samples: cells.samples.at(),
            sampled: cells.sampled.at(),
            counts: cells.counts.at(),
            starts: cells.starts.at(),
            next: cells.next.at(),
            tile_starts: cells.tile_starts.at(),
            parent_starts: cells.parent_starts.at(),
            parent_next: cells.parent_next.at(),
            tiles: places.tiles.at(),
            boxes: cells.boxes.at(),
            cells: sizes.cells() as u32,
            levels,
            wanted: wanted as u32,
            parent_cells: sizes.parent_cells() as u32,
        }
    }

    fn labels_argument(&self, state: &State<T>) -> CellLabelsArgument {
        CellLabelsArgument {
            labels: state.labels.now(0),
            own: self.own_labels(),
            row_of_place: self.places.row_of_place.at(),
            stride: self.sizes.stride() as u64,
        }
    }

    /// Makes `levels` levels of the tree below the nodes of level `from`, from some rows.
    fn grow(&mut self, chunk: &Chunk<'_, T>, state: &State<T>, from: u32, levels: u32) -> Result<()> {
        if levels == 0 {
            return Ok(());
        }
        self.cells.sampled.fill(0)?;
        let blocks = 1usize << from;
        let wanted = (POINTS * blocks).min(self.sizes.n);
        let tree = CellTreeArgument {
            samples: self.cells.samples.at(),
            sampled: self.cells.sampled.at(),
            nodes: self.cells.nodes.at(),
            d: self.sizes.d as i32,
            first: 1 << from,
            levels,
            unused: 0,
        };
        let sample = self.order.sample.with_blocks(wanted.div_ceil(THREADS as usize));
        // SAFETY: the buffers have places for the points of every node of the top, and for all nodes.
        unsafe {
            state.queue.run(&sample, &self.rows_argument(chunk, from, wanted))?;
            state.queue.run(&self.order.tree.with_blocks(blocks), &tree)
        }
    }

    /// Puts the rows in the order of their cells. No place has a label.
    fn order(&mut self, chunk: &Chunk<'_, T>, state: &State<T>) -> Result<()> {
        let Sizes { levels, .. } = self.sizes;
        let top = self.sizes.top();
        self.grow(chunk, state, 0, top)?;
        self.grow(chunk, state, top, levels - top)?;
        self.places.row_of_place.fill(0xff)?;
        self.places.labels.fill(0xff)?;
        let argument = self.rows_argument(chunk, levels, 0);
        let Order { clear, find, places, tiles, boxes, .. } = &self.order;
        // SAFETY: the buffers have a place for each row, also where cells begin at multiples of 4, and for each tile and cell.
        unsafe {
            for launch in [clear, find, places, tiles] {
                state.queue.run(launch, &argument)?;
            }
            self.split(&argument, &state.queue)?;
            state.queue.run(boxes, &argument)
        }
    }

    /// Copies the rows to their places: if cells have parents, first to those of their parents.
    ///
    /// # Safety
    /// The rows of the argument are live. Each row has a cell, and the first places of the cells are known.
    unsafe fn split(&self, rows: &CellRowsArgument, queue: &Queue) -> Result<()> {
        let Self { sizes, places, between, cells, .. } = self;
        let first = CellSplitArgument {
            x: rows.rows.x,
            stride: rows.rows.stride,
            rows: 0,
            cells: places.cell_of_row.at(),
            to_x: places.x.at(),
            to_stride: sizes.stride() as u64,
            to_rows: places.row_of_place.at(),
            to_cells: 0,
            w: rows.rows.w,
            to_w: if sizes.weighted { places.w.at() } else { 0 },
            next: cells.next.at(),
            segments: 0,
            n: rows.rows.n,
            parents: sizes.parents() as u32,
            shift: 0,
            bins: MOST_PARENTS as u32,
        };
        let split = &self.order.split;
        let blocks = sizes.n.div_ceil(SPLIT_ROWS);
        if sizes.parent_cells() == 1 {
            // SAFETY: there are as many bins as cells, and a place for each row.
            return unsafe { queue.run(&split.with_blocks(blocks), &first) };
        }
        let by_parents = CellSplitArgument {
            to_x: between.x.at(),
            to_stride: padded(sizes.n, ROW_ALIGNMENT) as u64,
            to_rows: between.rows.at(),
            to_cells: between.cells.at(),
            w: 0,
            to_w: 0,
            next: cells.parent_next.at(),
            shift: sizes.parent_cells().ilog2(),
            ..first
        };
        let by_cells = CellSplitArgument {
            x: by_parents.to_x,
            stride: by_parents.to_stride,
            rows: by_parents.to_rows,
            cells: by_parents.to_cells,
            segments: cells.parent_starts.at(),
            bins: sizes.parent_cells() as u32,
            ..first
        };
        // SAFETY: the buffers between have a place for each row. The blocks are enough for all parents, each of which may have an unfilled one.
        unsafe {
            queue.run(&split.with_blocks(blocks), &by_parents)?;
            queue.run(&split.with_blocks(blocks + sizes.parents()), &by_cells)
        }
    }

    /// The lists of the cells.
    fn lists_argument(&self, state: &State<T>) -> CellListsArgument {
        let Self { sizes, cells, .. } = self;
        let Farther { relative, underflow } = Farther::new(sizes.d);
        CellListsArgument {
            boxes: cells.boxes.at(),
            counts: cells.counts.at(),
            centroids: state.centroids.now.at(),
            lists: cells.lists.at(),
            parents: cells.parents.at(),
            parent_counts: cells.parent_counts.at(),
            control: state.control,
            relative,
            underflow,
            k: sizes.k as u32,
            cells: sizes.cells() as u32,
            parent_cells: sizes.parent_cells() as u32,
            unused: 0,
        }
    }

    fn assign_argument(&self, chunk: &Chunk<'_, T>, state: &State<T>) -> AssignCellsArgument<T> {
        let Self { sizes, places, cells, .. } = self;
        let mut assign = state.assign_argument(chunk, 0);
        let w = if sizes.weighted { places.w.at() } else { 0 };
        let stride = sizes.stride();
        assign.rows = RowsArgument { x: places.x.at(), w, stride: stride as u64, n: stride as u32, ..assign.rows };
        assign.labels = self.own_labels();
        assign.table_copies = self.table_copies as i32;
        assign.centroids_in_shared = i32::from(self.centroids_in_shared);
        let Difference { slope, offset } = Difference::new(sizes.d);
        AssignCellsArgument {
            assign,
            tiles: places.tiles.at(),
            count: cells.tile_starts.at_index(sizes.cells()),
            lists: cells.lists.at(),
            parents: cells.parents.at(),
            parent_counts: cells.parent_counts.at(),
            parent_cells: sizes.parent_cells() as u32,
            slope,
            offset,
            unused: 0,
        }
    }
}

impl<T: Float + Plain> Step<T> for CellsStep<T> {
    fn launch(&mut self, chunk: &Chunk<'_, T>, state: &State<T>) -> Result<()> {
        if !self.ordered {
            self.order(chunk, state)?;
        } else if !self.current {
            // SAFETY: every place has a row or none.
            unsafe { state.queue.run(&self.order.take_labels, &self.labels_argument(state))? };
        }
        if !self.ordered || !self.current {
            // No cell is settled.
            self.cells.lists.fill(0)?;
        }
        (self.ordered, self.current) = (true, true);
        self.ahead.store(true, Ordering::Relaxed);
        // SAFETY: the rows are in order. The lists have room for each cell and each parent, and the state has k x d centroids. Both kernels begin
        // with the wait.
        unsafe {
            state.queue.run_behind(&self.lists, &self.lists_argument(state))?;
            state.queue.run_behind(&self.assign, &self.assign_argument(chunk, state))
        }
    }

    fn write_labels(&self, state: &State<T>) -> Result<()> {
        if self.ahead.swap(false, Ordering::Relaxed) {
            // SAFETY: every place has a row or none.
            unsafe { state.queue.run(&self.order.give_labels, &self.labels_argument(state))? };
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.current = false;
        self.ahead.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::tests::{H200, shape};
    use super::*;

    #[test]
    fn sizes_follow_the_shape() {
        let sizes = |n| Sizes::new(&shape(n, 4, 64));
        assert_eq!((sizes(1).levels, sizes(511).levels, sizes(512).levels), (0, 0, 1));
        assert_eq!((sizes(8_000_000).cells(), sizes(134_217_728).cells()), (16_384, 32_768));
        assert_eq!((sizes(1).parents(), sizes(134_217_728).parents()), (1, 512));
    }

    #[test]
    fn the_default_takes_cells_where_lists_are_short() {
        let time = |n, d, k| Candidate::<f32>::predicted(&Cells, &shape(n, d, k), H200);
        assert!(time(10_000_000, 2, 1_000).unwrap() < 500.0);
        assert!(time(134_217_728, 4, 64).unwrap() < 3_000.0);
        assert_eq!(time(100_000, 2, 5_000), None);
        assert_eq!(Candidate::<f64>::predicted(&Cells, &FitShape { float64: true, ..shape(10_000_000, 2, 1_000) }, H200), None);
    }

    #[test]
    fn limits_are_errors() {
        let error = |shape, gpu| Candidate::<f32>::supports(&Cells, &shape, gpu).err().map(|refusal| refusal.limit);
        let largest = shape(134_217_728, 4, 64);
        assert_eq!(error(largest, H200), None);
        assert!(error(largest, GpuSize { shared: 99 << 10, ..H200 }).unwrap().contains("shared memory"));
        assert!(error(shape(10, 5, 2), H200).unwrap().contains("at most 4 features"));
        assert!(error(shape(100_000, 2, 65_537), H200).unwrap().contains("at most 65536 clusters"));
        assert!(error(FitShape { chunk: 1_000, ..largest }, H200).unwrap().contains("fit on the GPU"));
    }
}
