//! How many cells a fit has, and the memory that they take.

use super::MOST_FEATURES;
use crate::backend::cuda::arguments::CellTile;
use crate::backend::cuda::device::{buffers, product};
use crate::backend::cuda::shape::{FitShape, ROW_ALIGNMENT, padded};

/// Constants of `kernels/common/grid.cuh`: the most cells as a power of two, points of a part of the tree, places of a tile,
/// words of a list, and the most parents of cells.
pub const MOST_LEVELS: u32 = 16;
pub const POINTS: usize = 2_048;
pub const TILE: usize = 128;
pub const LIST: usize = 64;
pub const MOST_PARENTS: usize = 512;
/// The most clusters of lists, whose numbers have 16 bits. Centroids of one feature are sorted beyond.
pub const MOST_LISTED: usize = 1 << 16;
/// Levels of the tree that one block makes first, and the most that a block makes below them (`kernels/step/grid_tree.cu`).
pub const TOP: u32 = 6;
pub const TREE_LEVELS: u32 = 9;
/// Nodes of the tree in shared memory (`kernels/step/grid_rows.cu`).
const SHARED_NODES: usize = 1 << 15;
/// A cell should have so many rows, unless lists are long: then cells are halved while they have the fewest rows or more.
pub const ROWS_OF_CELL: usize = 256;
const FEWEST_ROWS: usize = 96;
/// The most levels where lists are short. More cells pay only where they shorten long lists.
const USUAL_LEVELS: u32 = 15;
/// Lists with more centroids are long.
const LONG_LIST: f64 = 6.0;
/// Rows that a block of `grid_split` sorts, and the most bins.
pub const SPLIT_ROWS: usize = 8_192;
pub const MOST_BINS: usize = 512;

/// The sizes of a fit's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridSizes {
    pub n: usize,
    pub d: usize,
    pub k: usize,
    pub levels: u32,
    /// Bytes of a value.
    pub value: usize,
    pub label: usize,
    pub weighted: bool,
}

impl GridSizes {
    pub fn new(shape: &FitShape) -> Self {
        let levels = (shape.chunk / ROWS_OF_CELL).max(1).ilog2().min(USUAL_LEVELS);
        let FitShape { chunk: n, d, k, weighted, .. } = *shape;
        let mut sizes = Self { n, d, k, levels, value: shape.value_bytes(), label: shape.label_bytes(), weighted };
        while sizes.list() > LONG_LIST && sizes.levels < MOST_LEVELS && n >> (sizes.levels + 1) >= FEWEST_ROWS {
            sizes.levels += 1;
        }
        sizes
    }

    /// The centroids in the list of a cell, on average, where cells and clusters have equal sides. In a simulation of k-d trees,
    /// lists of uniform rows are as long, and lists of ten blobs up to 1.4 times as long.
    pub fn list(&self) -> f64 {
        let d = self.d as f64;
        let side = (self.k as f64 / self.cells() as f64).powf(1.0 / d);
        (1.0 + 1.3 * side).powf(d)
    }

    /// The centroids that are sorted: all, or none if there are lists.
    pub fn sorted(&self) -> usize {
        if self.d == 1 && self.k > MOST_LISTED { self.k } else { 0 }
    }

    pub fn cells(&self) -> usize {
        1 << self.levels
    }

    pub fn parents(&self) -> usize {
        self.cells().min(MOST_PARENTS)
    }

    /// Levels of the top of the tree.
    pub fn top(&self) -> u32 {
        self.levels.saturating_sub(TREE_LEVELS).max(TOP).min(self.levels)
    }

    /// Cells of a parent: a power of two.
    pub fn parent_cells(&self) -> usize {
        self.cells() / self.parents()
    }

    /// Cells of a group by which rows are sorted first: a power of two. 1: they are sorted once.
    pub fn group_cells(&self) -> usize {
        if self.cells() <= MOST_BINS { 1 } else { 1 << self.levels.div_ceil(2) }
    }

    pub fn groups(&self) -> usize {
        self.cells() / self.group_cells()
    }

    /// The most places: a cell's first one is a multiple of 4.
    pub fn stride(&self) -> usize {
        padded(self.n.saturating_add(4 * self.cells()), ROW_ALIGNMENT)
    }

    /// The most tiles.
    pub fn tiles(&self) -> usize {
        (self.n / TILE).saturating_add(self.cells())
    }

    /// Bytes of shared memory for a part of the tree, for the whole tree, and to sort rows.
    pub fn shared(&self) -> [usize; 3] {
        [POINTS * (8 + 4 * self.d.min(MOST_FEATURES)), 4 * self.cells().min(SHARED_NODES), SPLIT_ROWS * (4 + self.value.max(4))]
    }
}

buffers! {
    /// The rows in the order of their cells.
    pub struct PlaceBuffers = "rows in the order of their cells" (sizes: &GridSizes) {
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
    /// The rows in the order of the groups of their cells, until they are in the order of the cells. Nothing if they are sorted
    /// once.
    pub struct Between = "rows on their way to their cells" (sizes: &GridSizes) {
        x: u8 [if sizes.group_cells() > 1 { product([sizes.d, padded(sizes.n, ROW_ALIGNMENT), sizes.value]) } else { 0 }],
        rows: u32 [if sizes.group_cells() > 1 { sizes.n } else { 0 }],
        cells: u16 [if sizes.group_cells() > 1 { sizes.n } else { 0 }],
    }
}

buffers! {
    /// The cells.
    pub struct GridBuffers<T> = "cells of rows" (sizes: &GridSizes) {
        nodes: u32 [sizes.cells()],
        /// `(nodes of the top, d, POINTS)`.
        samples: f32 [product([1 << sizes.top(), sizes.d, POINTS])],
        sampled: u32 [1 << sizes.top()],
        counts: u32 [sizes.cells()],
        starts: u32 [sizes.cells()],
        next: u32 [sizes.cells()],
        tile_starts: u32 [sizes.cells() + 1],
        group_starts: u32 [sizes.groups() + 1],
        group_next: u32 [sizes.groups()],
        /// `(cells, 2, d)`, as integers of the same order.
        boxes: T [product([sizes.cells(), 2, sizes.d])],
        /// `(cells, LIST)`.
        lists: u16 [if sizes.sorted() > 0 { 0 } else { product([sizes.cells(), LIST]) }],
        /// `(parents, k)`.
        parents: u16 [if sizes.sorted() > 0 { 0 } else { product([sizes.parents(), sizes.k]) }],
        parent_counts: u32 [sizes.parents()],
    }
}
