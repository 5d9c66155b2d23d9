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
        by_values: u32,
        unused: u32,
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
        weights: u64,
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
        step: StepArgument,
    }

    /// For the gains of candidates.
    GainsArgument as "Gains" {
        rows: RowsArgument,
        nearest: u64,
        candidates: u64,
        gains: u64,
        scale: DistanceArgument,
        m: i32,
        first: u32,
        step: StepArgument,
    }

    /// What the steps of k-means++ on the device tell each other and the host.
    StepControl as "StepControl" {
        total_low: u64,
        total_high: u64,
        gains: [u64; 32],
        listed: u32,
        step: u32,
        stopped: u32,
        ticket: u32,
    }

    /// A row that comes nearer to a candidate.
    Nearer as "Nearer" {
        distance: f64,
        row: u32,
        place: u32,
        candidate: u32,
        unused: u32,
    }

    /// A step of k-means++ on the device.
    StepArgument as "Step" {
        control: u64,
        candidates: u64,
        seeds: u64,
        list: u64,
        room: u64,
        terms: u64,
        m: u32,
        filtered: u32,
    }

    /// What is known of a copy in bytes.
    ByteFacts as "ByteFacts" {
        square: f32,
        step: f32,
        norm: f32,
        residual: f32,
    }

    /// The copies in bytes.
    ByteCopiesArgument as "ByteCopies" {
        bytes: u64,
        facts: u64,
        values: u64,
        order: u64,
        centre_of: u64,
        candidate_bytes: u64,
        candidate_facts: u64,
        scale: f64,
        places: u64,
        pieces: u32,
        centres: u32,
    }

    /// For the candidates of a step.
    PlusDrawArgument as "PlusDraw" {
        rows: RowsArgument,
        draws: DrawsArgument,
        totals: u64,
        step: StepArgument,
        copies: ByteCopiesArgument,
        key_low: u32,
        key_high: u32,
        stream: u32,
        restart: u32,
    }

    /// For the choice of a candidate.
    PlusTakeArgument as "PlusTake" {
        rows: RowsArgument,
        nearest: u64,
        totals: u64,
        scale: DistanceArgument,
        range: u64,
        step: StepArgument,
        copies: ByteCopiesArgument,
    }

    /// For the centres of the rows.
    PlusCentresArgument as "PlusCentres" {
        rows: RowsArgument,
        centres: u64,
        nearest: u64,
        counts: u64,
        m: u32,
        unused: u32,
    }

    /// For the copies of the rows.
    PlusCopiesArgument as "PlusCopies" {
        rows: RowsArgument,
        nearest: u64,
        centres: u64,
        centre_of: u64,
        next: u64,
        copies: ByteCopiesArgument,
    }

    /// For the rows that may come nearer to a candidate.
    PlusFilterArgument as "PlusFilter" {
        step: StepArgument,
        copies: ByteCopiesArgument,
    }

    /// For the rows that do.
    PlusSettleArgument as "PlusSettle" {
        rows: RowsArgument,
        nearest: u64,
        scale: DistanceArgument,
        step: StepArgument,
        copies: ByteCopiesArgument,
    }

    /// For the rows of a sample.
    BernoulliArgument as "Bernoulli" {
        rows: RowsArgument,
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

    /// For the distances to the nearest candidates.
    LowerArgument as "Lower" {
        rows: RowsArgument,
        nearest: u64,
        labels: u64,
        candidates: u64,
        first: i32,
        unused: i32,
    }

    /// For the masses of candidates.
    WeighArgument as "Weigh" {
        w: u64,
        labels: u64,
        masses: u64,
        weight_to_integer: f64,
        n: u64,
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

plain! {
    StepControl { u64, u64, [u64; 32], u32, u32, u32, u32 }
    Nearer { f64, u32, u32, u32, u32 }
    ByteFacts { f32, f32, f32, f32 }
}

/// The most candidates of a step on the device.
pub const MOST_TRIALS: usize = 16;

/// The values of `StepControl::stopped`: the potential is 0; the host must do the next step; the list was too short.
pub const STOPPED_ZERO: u32 = 1;
pub const STOPPED_COARSE: u32 = 2;
pub const STOPPED_FULL: u32 = 3;

impl StepControl {
    /// Before a step.
    pub fn before(step: usize, total: u128) -> Self {
        Self {
            total_low: total as u64,
            total_high: (total >> 64) as u64,
            gains: [0; 2 * MOST_TRIALS],
            listed: 0,
            step: step as u32,
            stopped: 0,
            ticket: 0,
        }
    }

    /// The potential.
    pub fn total(&self) -> u128 {
        u128::from(self.total_high) << 64 | u128::from(self.total_low)
    }
}

impl StepArgument {
    /// The host does the step.
    pub const NONE: Self = Self { control: 0, candidates: 0, seeds: 0, list: 0, room: 0, terms: 0, m: 0, filtered: 0 };
}

impl ByteCopiesArgument {
    /// There are no copies.
    pub const NONE: Self = Self {
        bytes: 0,
        facts: 0,
        values: 0,
        order: 0,
        centre_of: 0,
        candidate_bytes: 0,
        candidate_facts: 0,
        scale: 1.0,
        places: 0,
        pieces: 0,
        centres: 0,
    };
}
