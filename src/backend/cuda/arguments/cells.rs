//! The parameters of the kernels that label rows in the order of their cells: `kernels/step/cells_*.cu` and `assign_cells.cu`.

use super::*;

arguments! {
    /// Places of one cell.
    CellTile as "CellTile" {
        first: u32,
        cell_and_count: u32,
    }

    /// For a part of the tree.
    CellTreeArgument as "CellTree" {
        samples: u64,
        sampled: u64,
        nodes: u64,
        d: i32,
        first: u32,
        levels: u32,
        unused: u32,
    }

    /// For the rows in the order of their cells.
    CellRowsArgument as "CellRows" {
        rows: RowsArgument,
        x: u64,
        stride: u64,
        cell_of_row: u64,
        nodes: u64,
        samples: u64,
        sampled: u64,
        counts: u64,
        starts: u64,
        next: u64,
        tile_starts: u64,
        group_starts: u64,
        group_next: u64,
        tiles: u64,
        boxes: u64,
        cells: u32,
        levels: u32,
        wanted: u32,
        group_cells: u32,
    }

    /// For sorting rows by bins.
    CellSplitArgument as "CellSplit" {
        x: u64,
        stride: u64,
        rows: u64,
        cells: u64,
        to_x: u64,
        to_stride: u64,
        to_rows: u64,
        to_cells: u64,
        w: u64,
        to_w: u64,
        next: u64,
        segments: u64,
        n: u32,
        groups: u32,
        shift: u32,
        bins: u32,
    }

    /// For the labels of rows and places.
    CellLabelsArgument as "CellLabels" {
        labels: LabelsArgument,
        own: LabelsArgument,
        row_of_place: u64,
        stride: u64,
    }

    /// For the lists of centroids.
    CellListsArgument as "CellLists" {
        boxes: u64,
        counts: u64,
        centroids: u64,
        lists: u64,
        parents: u64,
        parent_counts: u64,
        control: u64,
        relative: f64,
        underflow: f64,
        k: u32,
        cells: u32,
        parent_cells: u32,
        unused: u32,
    }

    /// For the kernel that labels.
    AssignCellsArgument<T> as "AssignCells" {
        assign: AssignArgument<T>,
        tiles: u64,
        count: u64,
        lists: u64,
        parents: u64,
        parent_counts: u64,
        parent_cells: u32,
        slope: f32,
        offset: f32,
        unused: u32,
    }
}

plain! {
    CellTile { u32, u32 }
}
