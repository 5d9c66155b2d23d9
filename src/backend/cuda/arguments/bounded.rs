//! The parameters of the kernels that carry bounds: `kernels/step/bounds_*.cu` and `assign_bounded.cu`.

use super::*;

arguments! {
    /// How far something has moved.
    Drifted as "Drifted" {
        sum: f64,
        down: f32,
        up: f32,
    }

    /// A row to compare with the centroids of some groups.
    Listed as "Listed" {
        place: u32,
        others: f32,
        groups: u64,
    }

    /// What the product needs of a row.
    RowTerms as "Terms" {
        low: f32,
        high: f32,
        square: f32,
        others: f32,
    }

    /// What the kernels tell each other.
    BoundsControl as "BoundsControl" {
        computed: u64,
        full: u32,
        wait: u32,
        patience: u32,
        doubtful: u32,
        listed: u32,
        ticket: u32,
        epoch: u32,
        unused: u32,
    }

    /// For all kernels that carry bounds.
    CarriedArgument as "Carried" {
        control: u64,
        own: u64,
        labels: LabelsArgument,
        next: LabelsArgument,
        row_of_place: u64,
        own_labels: u64,
        bounds: u64,
        group_bounds: u64,
        centroids: u64,
        groups: u64,
        largest: u64,
        order: u64,
        places: u64,
        counts: u64,
        doubtful: u64,
        listed: u64,
        copies: u64,
        half_squares: u64,
        own_copies: u64,
        own_half_squares: u64,
        x: u64,
        terms: u64,
        unions: u64,
        stride: u64,
        n: u32,
        k: u32,
        k_padded: u32,
        d: u32,
        group_count: u32,
        width: u32,
        group_size: u32,
        epoch: u32,
        low: f32,
        high: f32,
        underflow: f32,
        unused: u32,
    }

    /// For those that read rows.
    CarriedRowsArgument<T> as "CarriedRows" {
        carried: CarriedArgument,
        rows: RowsArgument,
        centroids: u64,
        kept: u64,
        minus_centre: u64,
        scale: T,
        bound: u64,
        grown: f64,
        tiny: f64,
        error: f64,
        squares: f64,
        panel: i32,
        unused: i32,
    }

    /// For the copy of the rows by place.
    MovedRowsArgument as "MovedRows" {
        rows: RowsArgument,
        row_of_place: u64,
        x: u64,
        stride: u64,
    }

    /// For the product.
    BoundedArgument as "Bounded" {
        carried: CarriedArgument,
        margins: u64,
        bound: u64,
        contested: u64,
        tiles: u32,
        group_tiles: u32,
    }
}

plain! {
    Drifted { f64, f32, f32 }
    Listed { u32, f32, u64 }
    RowTerms { f32, f32, f32, f32 }
    BoundsControl { u64, u32, u32, u32, u32, u32, u32, u32, u32 }
}
