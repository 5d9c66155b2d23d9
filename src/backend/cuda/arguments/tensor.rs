//! The parameters of the kernels that label with tensor cores: `kernels/step/tensor_*.cu`, `assign_tensor*.cu` and `probe_tensor.cu`.

use super::*;
use crate::certify::halves::Halves;

arguments! {
    /// A group of rows.
    TensorGroup as "TensorGroup" {
        farthest: f32,
        rows: u32,
        lengths: f64,
        first_tile: u32,
        centroids: u32,
        balance: f32,
        row_scale: f32,
        centroid_scale: f32,
        radius: f32,
        alone: u32,
        unused: u32,
    }

    /// A row with a few centroids in reach.
    FewRow as "FewRow" {
        row: u32,
        first: u32,
        count: u32,
        unused: u32,
    }

    /// Counters of such rows, and how much work a step was.
    FewControl as "FewControl" {
        rows: u32,
        candidates: u32,
        doubt: u64,
        kept: u64,
        visited: u64,
    }

    /// The list of such rows.
    FewArgument as "Few" {
        rows: u64,
        candidates: u64,
        control: u64,
        room: u32,
        unused: u32,
    }

    /// For the kernel that labels them.
    SettleFewArgument as "SettleFew" {
        rows: RowsArgument,
        next: LabelsArgument,
        centroids: u64,
        few: FewArgument,
        control: u64,
    }

    /// The least distance of a part of a list.
    ListedPart as "ListedPart" {
        least: f64,
        label: u32,
        unused: u32,
    }

    /// For the kernel that labels the other rows in doubt, if they are not many.
    SettleListedArgument as "SettleListed" {
        rows: RowsArgument,
        next: LabelsArgument,
        centroids: u64,
        list: u64,
        groups: u64,
        contested: u64,
        parts: u64,
        tickets: u64,
        control: u64,
        k: u32,
        k_padded: u32,
        slices: u32,
        most: u32,
    }

    /// The constants of the bound.
    TensorTerms as "TensorTerms" {
        share: f64,
        sum: f64,
        reference: f64,
        underflow: f64,
        subnormal: f64,
        half: f64,
        least: f64,
        radius: f64,
    }

    /// For the copies of the rows.
    TensorRowsArgument<T> as "TensorRows" {
        rows: RowsArgument,
        centres: u64,
        scale: T,
        count: i32,
        groups: u64,
        labels: LabelsArgument,
        group_of_centroid: u64,
        group_of_row: u64,
        buckets: u64,
        group_of_tile: u64,
        row_of_place: u64,
        terms: u64,
        copies: u64,
        control: u64,
        few: u64,
        bound: TensorTerms,
        tiles: u32,
        chunks: u32,
        k: u32,
        unused: u32,
        most_doubt: u64,
        most_kept: u64,
    }

    /// For the copies of the centroids.
    TensorCentroidsArgument<T> as "TensorCentroids" {
        centroids: u64,
        centres: u64,
        scale: T,
        count: i32,
        groups: u64,
        near: u64,
        group_of_centroid: u64,
        list: u64,
        position: u64,
        folded: u64,
        margins: u64,
        tile_margins: u64,
        copies: u64,
        labels: LabelsArgument,
        group_of_tile: u64,
        row_of_place: u64,
        first_visit: u64,
        control: u64,
        few: u64,
        bound: TensorTerms,
        d: i32,
        k: i32,
        k_padded: u32,
        chunks: u32,
        tiles: u32,
        before_groups: u32,
        most_doubt: u64,
        most_kept: u64,
    }

    /// For the kernels that show how tensor cores add up.
    ProbeTensorArgument as "ProbeTensor" {
        rows: u64,
        centroids: u64,
        sums: u64,
    }

    /// For the kernels that label.
    TensorArgument as "Tensor" {
        rows: u64,
        terms: u64,
        row_of_place: u64,
        group_of_tile: u64,
        groups: u64,
        centroids: u64,
        folded: u64,
        margins: u64,
        tile_margins: u64,
        list: u64,
        first_visit: u64,
        next: LabelsArgument,
        contested: u64,
        control: u64,
        few: FewArgument,
        n: u32,
        tiles: u32,
        chunks: u32,
        last_steps: u32,
        k_padded: u32,
        stages: u32,
        folded_slots: u32,
        unused: u32,
    }
}

plain! {
    TensorGroup { f32, u32, f64, u32, u32, f32, f32, f32, f32, u32, u32 }
    FewRow { u32, u32, u32, u32 }
    FewControl { u32, u32, u64, u64, u64 }
    ListedPart { f64, u32, u32 }
}

impl From<Halves> for TensorTerms {
    fn from(bound: Halves) -> Self {
        let Halves { share, sum, subnormal, half, least, radius, reference } = bound;
        let (reference, underflow) = (reference.relative, reference.underflow);
        Self { share, sum, reference, underflow, subnormal, half, least, radius }
    }
}
