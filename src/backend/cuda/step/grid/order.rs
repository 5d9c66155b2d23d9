//! Puts the rows of a fit in the order of their cells: `kernels/step/grid_tree.cu`, `grid_rows.cu` and `grid_split.cu`.

use super::GridStep;
use super::sizes::{GridSizes, MOST_BINS, POINTS, SPLIT_ROWS};
use crate::backend::cuda::arguments::{self, CellLabelsArgument, CellRowsArgument, CellSplitArgument, CellTreeArgument};
use crate::backend::cuda::device::{At, Entry, Launch, Plain, Queue};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{ROW_ALIGNMENT, padded};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;

/// The launches that put the rows in the order of their cells.
pub struct Order {
    clear: Launch<CellRowsArgument>,
    sample: Launch<CellRowsArgument>,
    tree: Launch<CellTreeArgument>,
    find: Launch<CellRowsArgument>,
    places: Launch<CellRowsArgument>,
    tiles: Launch<CellRowsArgument>,
    split: Launch<CellSplitArgument>,
    boxes: Launch<CellRowsArgument>,
    pub take_labels: Launch<CellLabelsArgument>,
    pub give_labels: Launch<CellLabelsArgument>,
}

impl Order {
    pub fn new<T: Float + Plain>(sizes: &GridSizes, half: bool, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
        let variant = format!("_d{}", sizes.d);
        let usual = |entry: Entry<CellRowsArgument>, threads: usize| {
            entry.half_if(half).resident(gpu, &variant, entry.blocks_of(threads))
        };
        let [of_part, of_tree, of_split] = sizes.shared();
        let labels = |entry: Entry<CellLabelsArgument>| entry.resident(gpu, "", entry.blocks_of(sizes.stride()));
        let (find, split) = (arguments::grid_find::<T>().half_if(half), arguments::grid_split::<T>().half_if(half));
        let tiles = arguments::grid_tiles();
        Ok(Self {
            clear: usual(arguments::grid_clear::<T>(), sizes.cells())?,
            sample: usual(arguments::grid_sample::<T>(), POINTS << sizes.top())?,
            tree: arguments::grid_tree().with_shared(of_part).exactly(gpu, "", 1)?,
            find: find.with_shared(of_tree).resident(gpu, &variant, find.blocks_of(sizes.n.div_ceil(4)))?,
            places: arguments::grid_places().exactly(gpu, "", 1)?,
            tiles: tiles.resident(gpu, "", tiles.blocks_of(sizes.tiles()))?,
            split: split.with_shared(of_split).resident(gpu, &variant, 1)?,
            boxes: usual(arguments::grid_boxes::<T>(), sizes.tiles().saturating_mul(32))?,
            take_labels: labels(arguments::grid_take_labels())?,
            give_labels: labels(arguments::grid_give_labels())?,
        })
    }
}

impl<T: Float + Plain> GridStep<T> {
    fn rows_argument(&self, chunk: &DeviceChunk<'_, T>, levels: u32, wanted: usize) -> CellRowsArgument {
        let Self { sizes, places, grid, .. } = self;
        CellRowsArgument {
            rows: chunk.rows.argument(),
            x: places.x.at(),
            stride: sizes.stride() as u64,
            cell_of_row: places.cell_of_row.at(),
            nodes: grid.nodes.at(),
            samples: grid.samples.at(),
            sampled: grid.sampled.at(),
            counts: grid.counts.at(),
            starts: grid.starts.at(),
            next: grid.next.at(),
            tile_starts: grid.tile_starts.at(),
            group_starts: grid.group_starts.at(),
            group_next: grid.group_next.at(),
            tiles: places.tiles.at(),
            boxes: grid.boxes.at(),
            cells: sizes.cells() as u32,
            levels,
            wanted: wanted as u32,
            group_cells: sizes.group_cells() as u32,
        }
    }

    /// Makes `levels` levels of the tree below the nodes of level `from`, from some rows.
    fn grow(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>, from: u32, levels: u32) -> Result<()> {
        if levels == 0 {
            return Ok(());
        }
        self.grid.sampled.fill(0)?;
        let blocks = 1usize << from;
        let wanted = (POINTS * blocks).min(self.sizes.n);
        let tree = CellTreeArgument {
            samples: self.grid.samples.at(),
            sampled: self.grid.sampled.at(),
            nodes: self.grid.nodes.at(),
            d: self.sizes.d as i32,
            first: 1 << from,
            levels,
            unused: 0,
        };
        let sample = self.order.sample.with_blocks(wanted.div_ceil(self.order.sample.threads as usize));
        // SAFETY: the buffers have places for the points of every node of the top, and for all nodes.
        unsafe {
            state.queue.run(&sample, &self.rows_argument(chunk, from, wanted))?;
            state.queue.run(&self.order.tree.with_blocks(blocks), &tree)
        }
    }

    /// Puts the rows in the order of their cells. No place has a label.
    pub fn order(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        let GridSizes { levels, .. } = self.sizes;
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

    /// Copies the rows to their places: if there are many cells, first to those of their groups.
    ///
    /// # Safety
    /// The rows of the argument are live. Each row has a cell, and the first places of the cells are known.
    unsafe fn split(&self, rows: &CellRowsArgument, queue: &Queue) -> Result<()> {
        let Self { sizes, places, between, grid, .. } = self;
        let first = CellSplitArgument {
            x: rows.rows.x,
            stride: rows.rows.stride,
            rows: At::NULL,
            cells: places.cell_of_row.at(),
            to_x: places.x.at(),
            to_stride: sizes.stride() as u64,
            to_rows: places.row_of_place.at(),
            to_cells: At::NULL,
            w: rows.rows.w,
            to_w: if sizes.weighted { places.w.at() } else { At::NULL },
            next: grid.next.at(),
            segments: At::NULL,
            n: rows.rows.n,
            groups: sizes.groups() as u32,
            shift: 0,
            bins: MOST_BINS as u32,
        };
        let split = &self.order.split;
        let blocks = sizes.n.div_ceil(SPLIT_ROWS);
        if sizes.group_cells() == 1 {
            // SAFETY: there are as many bins as cells, and a place for each row.
            return unsafe { queue.run(&split.with_blocks(blocks), &first) };
        }
        let by_groups = CellSplitArgument {
            to_x: between.x.at(),
            to_stride: padded(sizes.n, ROW_ALIGNMENT) as u64,
            to_rows: between.rows.at(),
            to_cells: between.cells.at(),
            w: At::NULL,
            to_w: At::NULL,
            next: grid.group_next.at(),
            shift: sizes.group_cells().ilog2(),
            ..first
        };
        let by_cells = CellSplitArgument {
            x: by_groups.to_x,
            stride: by_groups.to_stride,
            rows: by_groups.to_rows,
            cells: by_groups.to_cells,
            segments: grid.group_starts.at(),
            bins: sizes.group_cells() as u32,
            ..first
        };
        // SAFETY: the buffers between have a place for each row. The blocks are enough for all groups, each of which may have an
        // unfilled one.
        unsafe {
            queue.run(&split.with_blocks(blocks), &by_groups)?;
            queue.run(&split.with_blocks(blocks + sizes.groups()), &by_cells)
        }
    }
}
