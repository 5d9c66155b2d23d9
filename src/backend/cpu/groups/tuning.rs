//! The constants that decide how labels are found: whether rows have groups, how many groups there are, and whether integer copies
//! are compared first. No constant can change a label.
//!
//! Units: a *score* is the time of one score of a row and a centroid. The end of each comment says how the value was found:
//! *measured* (`docs/lab/cpu.md`, on two cores of a Zen 4), a *formula*, or *not measured* if no measurement is on record.
//! `tree.rs` says where a tree may pay and where it is certain.

use std::ops::Range;

use super::sorted;

// Whether to look at a sample at all.

/// Clusters: groups are not tried for fewer. Not measured.
pub const FEWEST_CLUSTERS: usize = 16;
/// Rows: no sample is taken for fewer, unless they have [`FEWEST_VALUES`]. Not measured.
pub const FEWEST_ROWS: usize = 8_192;
/// Values: so many make a sample worth it for few rows. Measured: uniform 8,000 x 1500 x 40.
pub const FEWEST_VALUES: usize = 1 << 22;

// The sample.

/// Rows of the sample. Not measured.
pub const SAMPLE: usize = 2_048;
/// Values of the sample, unless that leaves fewer than [`FEWEST_SAMPLED`] rows. Not measured.
pub const SAMPLE_VALUES: usize = 1 << 19;
/// Rows. Not measured.
pub const FEWEST_SAMPLED: usize = 256;
/// From this number of features on, the sample has at most one of [`SAMPLED`] rows. Not measured.
pub const WIDE: usize = 512;
/// Rows for each row of the sample. Not measured.
pub const SAMPLED: usize = 32;
/// Rows of the sample where no groups are tried. Not measured.
pub const WITHOUT_GROUPS: usize = 128;
/// Rows of the sample that lie side by side. Where features are columns, they share a cache line. Not measured.
pub const SIDE_BY_SIDE: usize = 4;
/// The radius of a group over that of its rows in the sample. Centroids within it are copied. Not measured.
pub const MORE_RADIUS: f64 = 1.1;

// The number of groups.

/// Groups where products are computed, at most. Not measured.
pub const MOST_GROUPS: usize = 512;
/// Groups where differences are computed, at most. Measured against 128: uniform 2,000,000 x 3 x 2000.
pub const MOST_SMALL_GROUPS: usize = 256;
/// Rows of a group in a part of the rows, on average, at least. Not measured.
pub const FEWEST_IN_GROUP: usize = 32;
/// Rows of a group in the sample, on average, at least. Not measured.
pub const FEWEST_IN_SAMPLE: usize = 10;
/// Clusters of a group, where few groups are made. Not measured.
pub const MEMBERS: usize = 8;
/// Clusters of a group, where [`MEMBERS`] would make fewer than half of [`FEW_GROUPS`]. Not measured.
pub const FEW_MEMBERS: usize = 3;
/// Groups that count as few. Not measured.
pub const FEW_GROUPS: usize = 32;
/// How many times smaller the squared distance to the farthest row is, at least, when each natural cluster has its first pick.
/// Not measured.
pub const DROP: f32 = 3.0;
/// Features: where there are no natural clusters, groups of fewer features may be split. Not measured.
pub const MOST_SPLIT: usize = 16;
/// Groups that such a split makes, at least. Not measured.
pub const FEWEST_SPLIT: usize = 64;
/// Shares of the scores that other groups leave, between which many groups are tried. Not measured.
pub const PROMISING: Range<f64> = 0.15..0.5;

// The predicted time of groups.

/// Scores that are computed for each one that a row needs. Not measured.
pub const MORE_SCORES: f64 = 1.05;
/// Empty places of a group's last block, on average. Not measured.
pub const EMPTY_PLACES: f64 = 20.0;
/// Scores: a distance between points in the lists. Not measured.
pub const OF_LIST: f64 = 4.0;
/// Scores: a copy of a listed centroid. Not measured.
pub const OF_COPY: f64 = 10.0;
/// Scores: a distance of a row without a label from a group's point. Not measured.
pub const OF_GUESS: f64 = 2.0;
/// Scores: a block of rows. Not measured.
pub const OF_BLOCK: f64 = 250.0;
/// Iterations that share what is done once. Not measured.
pub const ITERATIONS: f64 = 12.0;
/// Scores: a leaf or node of a tree. Not measured.
pub const OF_VISIT: f64 = 110.0;
/// Scores: what a row in a group takes besides its own scores. Not measured.
pub const OF_GROUPED: f64 = 100.0;
/// How many times smaller the squared distances from the points are, at least, where groups that leave out too little are made
/// for finer copies. Measured with 40,000 x 768 x 24 blobs.
pub const FINER: f64 = 4.0;

/// What an assign does with the order of the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sorting {
    /// The order of an earlier assign is used again.
    Kept,
    /// A new order is made, and kept.
    ToKeep,
    /// The same, for integer copies. Rows are copied anyway, so an order costs little more.
    ToCopy,
    /// A new order is made for this assign alone.
    ForOneAssign,
}

/// Whether it pays to put rows in the order of their groups and leave out this share of the scores. Measured.
pub fn pays(skipped: f64, [k, d]: [usize; 2], sorting: Sorting, by_columns: bool) -> bool {
    // For each value and for each row: the time to sort it and to measure its distance, in multiply-adds of the kernel.
    let (of_value, of_row) = match (sorting, by_columns) {
        (Sorting::Kept, _) => (14.0, 60.0),
        // A part of the sort, too: most fits have a dozen iterations.
        (Sorting::ToKeep, _) => (22.0, 60.0),
        (Sorting::ToCopy, _) => (12.0, 60.0),
        _ if d <= sorted::FEW => (40.0, 150.0),
        (Sorting::ForOneAssign, false) => (50.0, 150.0),
        (Sorting::ForOneAssign, true) => (100.0, 150.0),
    };
    skipped * k as f64 * d as f64 > of_value * d as f64 + of_row
}

// The parts of the rows that are sorted together.

/// Rows of a part where products are computed, at most. Not measured.
pub const MOST_ROWS: usize = 16_384;
/// Rows of a part where differences are computed, at most. Measured together with [`MOST_SMALL_GROUPS`].
pub const MOST_SHORT_ROWS: usize = 65_536;
/// Parts of a worker, at least, unless they have fewer than [`LEAST_ROWS`] rows. Not measured.
pub const PARTS: usize = 4;
/// Rows. Not measured.
pub const LEAST_ROWS: usize = 4_096;
/// The work of a part over that of a task, at most. Most of it is left out. A call can be stopped between parts. Not measured.
pub const TIMES_WORK: usize = 4;
/// Bytes of all sorted rows that are kept, at most. A limit on memory.
pub const MOST_BYTES: usize = 1 << 30;
/// Bytes of all sorted rows that lie in large pages, at most. Not measured; large pages themselves are.
pub const FEW_BYTES: usize = 96 << 20;
/// Values that a worker sorts together where sorted rows are not kept. Not measured.
pub const SORTED_VALUES: usize = 1 << 20;
/// Rows that a worker sorts together in any case. Not measured.
pub const FEWEST_SORTED_ROWS: usize = 1_024;
/// Values of sorted rows in a task of a later assign. Not measured.
pub const UNIT_VALUES: usize = 1 << 16;
/// Rows of such a task, at most. Not measured.
pub const MOST_OF_UNIT: usize = 4_096;

// The groups of rows without labels.

/// Features that tell rows apart, at least. Not measured.
pub const FEWEST_GUESS_FEATURES: usize = 8;
/// Rows of the sample that these features must tell apart. Not measured.
pub const GUESS_SAMPLE: usize = 256;

// When groups are made again or given up.

/// Groups are made again when the share of the computed scores is so many times the first one. Measured against new groups in
/// fixed iterations; the value is not.
pub const WORSE: f64 = 1.15;
/// The share is a surprise when it is so many times that of the sample. Not measured.
pub const SURPRISE: f64 = 3.0;
/// Copies leave much doubt where one of so many rows is compared again. Not measured.
pub const ONE_AGAIN_IN: u64 = 3;

// Integer copies.

/// Features: there are no copies for fewer. Measured: 494,080 x 34 x 32.
pub const FEWEST_DOT_FEATURES: usize = 32;
/// Features: copies have words for fewer. Measured, as `fewest_dot_centroids`.
pub const FEWEST_BYTES: usize = 64;
/// Rows of a worker, at least, for [`Sorting::ToCopy`]. Measured.
pub const FEWEST_TO_COPY: usize = 1_024;
/// Bytes of the copies of the centroids of one assign, at most. A limit on memory.
pub const MOST_TABLE_BYTES: usize = 128 << 20;
/// The share of the rows that copies in bytes leave in doubt, for each unit of their coarseness. Not measured.
pub const DOUBT: f64 = 5.0;
/// Products of bytes: a closer look at a row with a few candidates. Not measured.
pub const CLOSER: f64 = 200.0;
/// Products of bytes, times the number of features: what it takes to load a row. Not measured.
pub const CLOSER_ROW: f64 = 4_096.0;

/// Centroids that a row is compared with, at least, where copies are worth it. Measured.
pub fn fewest_dot_centroids(d: usize) -> f64 {
    match d {
        ..64 => 128.0,
        64..128 => 48.0,
        128..512 => 8.0,
        512.. => 4.0,
    }
}
