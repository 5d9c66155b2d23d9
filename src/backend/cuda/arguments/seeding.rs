//! The parameters of the kernels of seeding.

use super::*;

arguments! {
    /// A sample in which every row decides alone.
    SampleArgument as "Sample" {
        total_low: u64,
        total_high: u64,
        expected: u64,
        first: u64,
        key_low: u32,
        key_high: u32,
        stream: u32,
        restart: u32,
    }

    /// A list of row numbers that kernels append to.
    FoundArgument as "FoundRows" {
        rows: u64,
        count: u64,
        room: u64,
    }

    /// What a row weighs in a draw.
    DrawsArgument as "Draws" {
        w: u64,
        nearest: u64,
        scale: DistanceArgument,
        weight_to_integer: f64,
        n: u64,
        range: u64,
        ranges: u32,
        kind: i32,
    }

    /// For the totals of draw weights.
    TotalsArgument as "Totals" {
        draws: DrawsArgument,
        totals: u64,
        total: u64,
    }

    /// For the rows that targets draw.
    SearchArgument as "Search" {
        rows: RowsArgument,
        draws: DrawsArgument,
        totals: u64,
        targets: u64,
        found: u64,
        values: u64,
    }

    /// For the values of a row.
    RowArgument as "Row" {
        rows: RowsArgument,
        values: u64,
        row: u64,
    }

    /// For distances to new seeds.
    TakeArgument as "Take" {
        rows: RowsArgument,
        nearest: u64,
        centroids: u64,
        totals: u64,
        total: u64,
        scale: DistanceArgument,
        range: u64,
        ranges: u32,
        first: i32,
        m: u32,
        unused: u32,
    }

    /// For the gains of candidates.
    GainsArgument as "Gains" {
        rows: RowsArgument,
        nearest: u64,
        candidates: u64,
        gains: u64,
        scale: DistanceArgument,
        m: i32,
        unused: i32,
    }

    /// For the rows of a sample.
    BernoulliArgument as "Bernoulli" {
        draws: DrawsArgument,
        sample: SampleArgument,
        found: FoundArgument,
    }

    /// For the values of some rows.
    GatherArgument as "Gather" {
        rows: RowsArgument,
        wanted: u64,
        values: u64,
        count: u64,
    }

    /// For the masses of candidates.
    MassesArgument as "Masses" {
        rows: RowsArgument,
        candidates: u64,
        masses: u64,
        weight_to_integer: f64,
        m: u32,
        unused: u32,
    }

    /// The seeds of rows that stream.
    SeedsArgument as "Seeds" {
        labels: LabelsArgument,
        seeds: u64,
        numbers: u32,
        known: u32,
    }

    /// For the rows of a sample, if rows stream.
    StreamSampleArgument as "StreamSample" {
        rows: RowsArgument,
        seeds: SeedsArgument,
        scale: DistanceArgument,
        sample: SampleArgument,
        found: FoundArgument,
        first: u64,
    }

    /// For totals of draw weights, if rows stream.
    PotentialsArgument as "Potentials" {
        rows: RowsArgument,
        seeds: SeedsArgument,
        points: u64,
        totals: u64,
        stride: u64,
        scale: DistanceArgument,
        range: u64,
        ranges: u32,
        split: u32,
        take: u32,
        m: u32,
        base: u32,
        unused: u32,
    }
}
