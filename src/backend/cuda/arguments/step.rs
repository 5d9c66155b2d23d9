//! The parameters of the kernels of an iteration: `kernels/step/` and `kernels/passes/update.cu`.

use super::*;
use crate::certify::{Ceiling, ExpandedTerms};

arguments! {
    /// For kernels that label rows.
    AssignArgument<T> as "Assign" {
        rows: RowsArgument,
        labels: LabelsArgument,
        next: LabelsArgument,
        minus_centre: u64,
        scale: T,
        copies: u64,
        half_squares: u64,
        margins: u64,
        bound: u64,
        contested: u64,
        control: u64,
        k: i32,
        k_padded: i32,
        sums: SumsArgument,
        factors: u64,
        mass_to_integer: f64,
        table_copies: i32,
        centroids_in_shared: i32,
        centroid_columns: u64,
        centroids: u64,
        run: u32,
        even: u32,
        shares: u32,
        share_bests: u64,
        share_tickets: u64,
    }

    /// What one of several blocks found for a row.
    ShareBest as "ShareBest" {
        best: f32,
        second: f32,
        third: f32,
        index: u32,
    }

    /// For the kernels that label rows in doubt.
    SettleArgument<T> as "Settle" {
        rows: RowsArgument,
        next: LabelsArgument,
        centroid_columns: u64,
        centroids: u64,
        scale: T,
        contested: u64,
        control: u64,
        k: i32,
        values: i32,
        fewest: u32,
        unused: u32,
    }

    /// For the kernel that moves the sums of changed rows.
    DeltasArgument as "Deltas" {
        rows: RowsArgument,
        labels: LabelsArgument,
        next: LabelsArgument,
        sums: SumsArgument,
        factors: u64,
        mass_to_integer: f64,
        control: u64,
        table_copies: i32,
        chunk: i32,
        chunks: i32,
        width: u32,
        by_row: u64,
    }

    /// For the copy of the rows whose features lie side by side.
    ByRowArgument as "ByRow" {
        rows: RowsArgument,
        copies: u64,
        width: u32,
        across: u32,
    }

    /// The terms of the bound that do not depend on the centroids.
    BoundTerms as "BoundTerms" {
        unit: f64,
        start: f64,
        reference: f64,
        underflow: f64,
        half: f64,
        balance: f64,
        offset: f64,
        ceiling_lower: f64,
        ceiling_offset: f64,
        ceiling_slope: f32,
        ceiling_rise: f32,
        slope: f32,
        panel: i32,
    }

    /// For the update, and for what prepares a filter.
    UpdateArgument<T> as "Update" {
        sums: SumsArgument,
        mean_exponents: u64,
        lows: u64,
        highs: u64,
        centroids: u64,
        previous: u64,
        centroid_columns: u64,
        minus_centre: u64,
        scale: T,
        copies: u64,
        half_squares: u64,
        margins: u64,
        copy_stride_j: u64,
        copy_stride_f: u64,
        half_stride: u64,
        terms: BoundTerms,
        bound: u64,
        control: u64,
        records: u64,
        block_moves: u64,
        distances: u64,
        shifts: DistanceArgument,
        largest_changed: f64,
        largest_shift: f64,
        iterations: u32,
        first_iteration: u32,
        team: u32,
        most_unresolved: u32,
        lowered: i32,
        unused: i32,
    }

    /// For the counters between chunks.
    EndChunkArgument as "EndChunk" {
        control: u64,
    }

    /// For the centroids of normalised means.
    DirectionsArgument as "Directions" {
        sums: SumsArgument,
        mean_exponents: u64,
        centroids: u64,
        directions: u64,
        control: u64,
    }

    /// One iteration in the history.
    Record as "Record" {
        changed: u64,
        shift: f64,
        nanoseconds: u64,
        settled: u64,
        scores: u64,
        moved: u32,
        unused: u32,
    }

    /// What one block of the update has found.
    BlockMoves as "BlockMoves" {
        shift: [u64; 2],
        exponents: i32,
        moved: u32,
        empty: u32,
        not_finite: u32,
        terms: u32,
        unused: u32,
    }
}

plain! {
    ShareBest { f32, f32, f32, u32 }
    Record { u64, f64, u64, u64, u64, u32, u32 }
    BlockMoves { [u64; 2], i32, u32, u32, u32, u32, u32 }
}

impl From<ExpandedTerms> for BoundTerms {
    fn from(terms: ExpandedTerms) -> Self {
        let (slope, half) = (terms.slope(), terms.half());
        let Ceiling { slope: ceiling_slope, rise: ceiling_rise, lower: ceiling_lower, offset: ceiling_offset } =
            terms.ceiling();
        let ExpandedTerms { unit, start, reference, balance, norm_offset, chains, .. } = terms;
        let (offset, panel) = (f64::from(slope) * norm_offset, chains.panel() as i32);
        let (reference, underflow) = (reference.relative, reference.underflow);
        Self {
            unit,
            start,
            reference,
            underflow,
            half,
            balance,
            offset,
            ceiling_lower,
            ceiling_offset,
            ceiling_slope,
            ceiling_rise,
            slope,
            panel,
        }
    }
}

impl Record {
    pub const ZERO: Self = Self { changed: 0, shift: 0.0, nanoseconds: 0, settled: 0, scores: 0, moved: 0, unused: 0 };
}
