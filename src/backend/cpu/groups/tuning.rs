//! The constants that decide how labels are found: whether rows have groups, how many groups there are, and whether integer copies
//! are compared first. No constant can change a label.
//!
//! Each comment begins with the unit; a *score* is the time of one score of a row and a centroid. *Measured*: in
//! `docs/lab/cpu.md`, on two cores of a Zen 4. No measurement of the other values is on record. `tree.rs` says where a tree may
//! pay and where it is certain.

use std::ops::Range;

// Whether to look at a sample at all.
pub const FEWEST_CLUSTERS: usize = 16; // clusters: groups are not tried for fewer
pub const FEWEST_ROWS: usize = 8_192; // rows: a sample of fewer is taken only if they have FEWEST_VALUES
pub const FEWEST_VALUES: usize = 1 << 22; // values. Measured: uniform 8,000 x 1500 x 40

// The sample.
pub const SAMPLE: usize = 2_048; // rows
pub const SAMPLE_VALUES: usize = 1 << 19; // values at most, but never fewer rows than FEWEST_SAMPLED
pub const FEWEST_SAMPLED: usize = 256; // rows
pub const WIDE: usize = 512; // features: with as many, at most one of SAMPLED rows is in the sample
pub const SAMPLED: usize = 32; // rows for each row of the sample
pub const WITHOUT_GROUPS: usize = 128; // rows of the sample, where no groups are tried
pub const SIDE_BY_SIDE: usize = 4; // rows of the sample that lie side by side: features that are columns share cache lines
pub const MORE_RADIUS: f64 = 1.1; // the radius of a group over that in the sample: centroids within it are copied

// The number of groups.
pub const MOST_GROUPS: usize = 512; // groups at most, where products are computed
pub const MOST_SMALL_GROUPS: usize = 256; // the same for differences. Measured against 128: uniform 2,000,000 x 3 x 2000
pub const FEWEST_IN_GROUP: usize = 32; // rows of a group among those of a worker, on average, at least
pub const FEWEST_IN_SAMPLE: usize = 10; // rows of a group in the sample, on average, at least
pub const MEMBERS: usize = 8; // clusters of a group, where few groups are made
pub const FEW_MEMBERS: usize = 3; // clusters of a group, where MEMBERS would make fewer than half of FEW_GROUPS
pub const FEW_GROUPS: usize = 32; // groups: so many are few
pub const DROP: f32 = 3.0; // how many times smaller the next farthest squared distance is, if clusters are natural
pub const MOST_SPLIT: usize = 16; // features: with fewer, rows without natural clusters are split all the same
pub const FEWEST_SPLIT: usize = 64; // groups of such a split, at least
pub const PROMISING: Range<f64> = 0.15..0.5; // shares of the scores that others leave, where many groups are tried

// The predicted time of groups.
pub const MORE_SCORES: f64 = 1.05; // scores that are computed for each one that a row needs
pub const EMPTY_PLACES: f64 = 20.0; // places of a group's last block that are empty, on average
pub const OF_LIST: f64 = 4.0; // scores: a distance between points in the lists
pub const OF_COPY: f64 = 10.0; // scores: a copy of a listed centroid
pub const OF_GUESS: f64 = 2.0; // scores: a distance of a row without a label from a group's point
pub const OF_BLOCK: f64 = 250.0; // scores: a block of rows
pub const ITERATIONS: f64 = 12.0; // iterations that share what is done once
pub const OF_VISIT: f64 = 110.0; // scores: a leaf or node of a tree
pub const OF_GROUPED: f64 = 100.0; // scores: what a row in a group takes besides
/// How many times smaller squared distances from the points are, at least, than those from one point, where groups are made for
/// finer copies alone. That groups make copies finer was measured: 40,000 x 768 x 24 blobs.
pub const FINER: f64 = 4.0;

// The parts of the rows that are sorted together.
pub const MOST_ROWS: usize = 16_384; // rows of a part at most, where products are computed
pub const MOST_SHORT_ROWS: usize = 65_536; // the same for differences. Measured together with MOST_SMALL_GROUPS
pub const PARTS: usize = 4; // parts of a worker at least, unless they have fewer rows than LEAST_ROWS
pub const LEAST_ROWS: usize = 4_096; // rows of a part
pub const TIMES_WORK: usize = 4; // the most work of a part over that of a task. A call can be stopped between parts
pub const FEW_FEATURES: usize = 64; // features of long columns at most, where rows are sorted for one assign
pub const MOST_BYTES: usize = 1 << 30; // bytes of all sorted rows that are kept, at most: a limit on memory
pub const FEW_BYTES: usize = 96 << 20; // bytes of all sorted rows in large pages, at most. Large pages were measured
pub const SORTED_VALUES: usize = 1 << 20; // values that a worker sorts together, where sorted rows are not kept
pub const FEWEST_SORTED_ROWS: usize = 1_024; // rows that it sorts together at least
pub const UNIT_VALUES: usize = 1 << 16; // values of sorted rows in a task of a later assign
pub const MOST_OF_UNIT: usize = 4_096; // rows of such a task, at most

// The groups of rows without labels.
pub const FEWEST_GUESS_FEATURES: usize = 8; // features that tell rows apart, at least
pub const GUESS_SAMPLE: usize = 256; // rows of the sample that they must tell apart

// When groups are made again or given up.
pub const WORSE: f64 = 1.15; // the last share over the first: groups are made again. Measured against fixed iterations
pub const SURPRISE: f64 = 3.0; // the share of an assign over that of the sample: a surprise
pub const ONE_AGAIN_IN: u64 = 3; // rows: copies leave much doubt where one of them is compared again

// Integer copies.
pub const FEWEST_DOT_FEATURES: usize = 32; // features at least. Measured: 494,080 x 34 x 32
pub const FEWEST_BYTES: usize = 64; // features: copies of fewer have words. Measured
pub const FEWEST_TO_COPY: usize = 1_024; // rows of a worker at least, for Sorting::ToCopy
pub const MOST_TABLE_BYTES: usize = 128 << 20; // bytes of the copies of centroids of one assign, at most: a limit on memory
pub const DOUBT: f64 = 5.0; // the share of rows in doubt by copies in bytes, over the coarseness of the copies
pub const CLOSER: f64 = 200.0; // products of bytes: a closer look at a row with a few candidates
pub const CLOSER_ROW: f64 = 4_096.0; // products of bytes, over the number of features: to load a row

/// The fewest centroids that a row is compared with where copies are worth it. Measured.
pub fn fewest_dot_centroids(d: usize) -> f64 {
    match d {
        ..64 => 128.0,
        64..128 => 48.0,
        128..512 => 8.0,
        512.. => 4.0,
    }
}

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
        _ if d <= FEW_FEATURES => (40.0, 150.0),
        (Sorting::ForOneAssign, false) => (50.0, 150.0),
        (Sorting::ForOneAssign, true) => (100.0, 150.0),
    };
    skipped * k as f64 * d as f64 > of_value * d as f64 + of_row
}
