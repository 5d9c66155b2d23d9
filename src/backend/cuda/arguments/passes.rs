//! The parameters of the kernels of single passes over the rows.

use super::*;

arguments! {
    /// For the inertia of each cluster.
    InertiaArgument as "Inertia" {
        rows: RowsArgument,
        labels: LabelsArgument,
        centroids: u64,
        scale: DistanceArgument,
        scales: u64,
        pending: u64,
        k: i32,
        table_copies: i32,
    }

    /// The distance of a row from its centroid.
    FarCandidate as "Candidate" {
        distance: f64,
        row: u64,
    }

    /// A row far from its centroid, and its label.
    FarRow as "FarRow" {
        at: FarCandidate,
        label: u32,
        unused: u32,
    }

    /// For the search for the rows that are farthest from their centroids.
    FarArgument as "Far" {
        rows: RowsArgument,
        labels: LabelsArgument,
        centroids: u64,
        donors: u64,
        farthest: u64,
        list: u64,
        listed: u64,
        last: FarCandidate,
        room: u32,
        unused: u32,
    }

    /// A row that moves to another cluster.
    MoveArgument as "Moved" {
        row: u64,
        place: u32,
        to: u32,
    }

    /// For rows that move to other clusters.
    RelocateArgument as "Relocate" {
        rows: RowsArgument,
        labels: LabelsArgument,
        sums: SumsArgument,
        factors: u64,
        mass_to_integer: f64,
        moves: u64,
    }

    /// What a GPU tells the others of a fit beside its sums.
    Counts as "Counts" {
        changed: u64,
        settled: u64,
        scores: u64,
    }

    /// For the meeting of the GPUs of a fit.
    MeetArgument as "Meet" {
        control: u64,
        arrived: u64,
        others: [u64; 16],
        alarm: u64,
        gpus: i32,
        moves: i32,
    }

    /// For a GPU of a fit to say that its sums are there.
    ArriveArgument as "Arrive" {
        control: u64,
        counts: u64,
        arrived: u64,
        scores: u64,
        moves: i32,
        unused: i32,
    }

    /// For the total of the sums of all GPUs of a fit.
    TotalArgument as "Total" {
        pending: [u64; 16],
        rows: [u64; 16],
        counts: [u64; 16],
        sums: u64,
        sum_rows: u64,
        next: u64,
        next_rows: u64,
        control: u64,
        words: u64,
        k: i32,
        gpus: i32,
        moves: i32,
        unused: i32,
    }

    /// For weights that are rounded.
    RoundWeightsArgument as "RoundWeights" {
        w: u64,
        n: u64,
        quantum: f64,
    }

    /// For the extents of the columns.
    SurveyArgument as "Survey" {
        rows: RowsArgument,
        extents: u64,
        chunk: u64,
    }

    /// What is known about one chunk of a column.
    ChunkExtent as "Extent" {
        low: f64,
        high: f64,
        smallest: f64,
        largest: f64,
        not_finite: u64,
    }

    /// For the survey of the weights.
    WeightSurveyArgument as "WeightSurvey" {
        w: u64,
        facts: u64,
        n: u64,
        chunk: u64,
    }

    /// What is known about one chunk of the weights.
    WeightFacts as "WeightFacts" {
        largest: f64,
        smallest: f64,
        positive: u64,
        other_than_one: u32,
        negative: u32,
        not_finite: u32,
        unused: u32,
    }

    /// For the counts of values below thresholds.
    CountSmallArgument as "CountSmall" {
        rows: RowsArgument,
        largest: u64,
        counts: u64,
        chunk: u64,
    }

    /// The middle of a column, and the quanta of its moments.
    MomentsArgument as "Moments" {
        middle: f64,
        first: Factors,
        second: Factors,
    }

    /// For the variances of the columns.
    VarianceArgument as "Variance" {
        rows: RowsArgument,
        moments: u64,
        sums: u64,
        chunk: u64,
    }

    /// For the distances to the two nearest centroids.
    NearestArgument as "Nearest" {
        rows: RowsArgument,
        centroid_columns: u64,
        labels: u64,
        distances: u64,
        seconds: u64,
        k: i32,
        unused: i32,
    }

    /// For the distances to all centroids.
    DistancesArgument as "Distances" {
        rows: RowsArgument,
        centroid_columns: u64,
        out: u64,
        k: i32,
        unused: i32,
    }

    /// For rows that have no answer.
    BlankArgument as "Blank" {
        rows: RowsArgument,
        labels: u64,
        distances: u64,
        k: i32,
        unused: i32,
    }

    /// For columns that are scaled.
    ScaleColumnsArgument as "ScaleColumns" {
        x: u64,
        stride: u64,
        n: u32,
        columns: u32,
        factors: [f64; 256],
    }

    /// For rows that are normalised.
    NormaliseArgument as "Normalise" {
        x: u64,
        stride: u64,
        n: u32,
        d: i32,
    }

    /// Some of the rows: a bit for each, and the kept rows before each word.
    KeptArgument as "KeptRows" {
        bits: u64,
        before: u64,
    }

    /// For values of another program that become columns.
    ForeignArgument as "Foreign" {
        from: u64,
        validity: u64,
        kept: KeptArgument,
        to: u64,
        stride: u64,
        first: i64,
        row_pitch: i64,
        column_pitch: i64,
        validity_first: i64,
        rows: u32,
        columns: u32,
        log_width: u32,
        tiles_across: u32,
        kind: i32,
        unused: i32,
    }

    /// For a bit for each row that has only finite values.
    FiniteRowsArgument as "FiniteRows" {
        rows: RowsArgument,
        bits: u64,
    }

    /// For rows that become columns.
    TransposeArgument as "Transpose" {
        rows_in: u64,
        columns_out: u64,
        stride: u64,
        rows: u32,
        width: u32,
        log_width: u32,
        tiles_across: u32,
    }
}

plain! {
    FarCandidate { f64, u64 }
    FarRow { FarCandidate, u32, u32 }
    MoveArgument { u64, u32, u32 }
    Counts { u64, u64, u64 }
    ChunkExtent { f64, f64, f64, f64, u64 }
    WeightFacts { f64, f64, u64, u32, u32, u32, u32 }
    MomentsArgument { f64, Factors, Factors }
}
