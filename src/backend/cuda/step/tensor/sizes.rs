//! How many tiles and groups a fit by tensor cores has, and the memory of its copies.

use crate::backend::cuda::arguments::{TensorGroup, TensorTotals};
use crate::backend::cuda::device::{buffers, product};
use crate::backend::cuda::shape::{FitShape, padded};

/// Constants of `kernels/common/tensor.cuh`: places of a tile of rows and of centroids, features of a chunk, bytes of a place in
/// a chunk, and the most groups besides the fallback group.
pub const TILE_ROWS: usize = 128;
pub const TILE_CENTROIDS: usize = 256;
pub const CHUNK: usize = 64;
pub const PLACE_BYTES: usize = 2 * CHUNK;
pub const MOST_GROUPS: usize = 1_024;

/// Rows of up to so many chunks stay in shared memory while they are multiplied. Then a block takes two tiles of rows at a time.
pub const CHUNKS_THAT_STAY: usize = 4;

/// The most pairs of a group and a centroid, each of which has a distance and a place in a list.
const MOST_PAIRS: usize = 1 << 24;

/// The sizes of a fit's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorSizes {
    /// Rows of a chunk.
    pub n: usize,
    pub d: usize,
    pub k: usize,
    /// The groups that there may be, a power of two. The centroids say how many there are: `kernels/step/tensor_centres.cu`.
    pub groups: usize,
    pub k_padded: usize,
    /// Chunks of features.
    pub chunks: usize,
    /// The most tiles of rows.
    pub tiles: usize,
    /// Tiles of copies of centroids.
    pub copied: usize,
    /// The most of these tiles when groups are made.
    pub at_first: usize,
}

impl TensorSizes {
    /// The sizes for the rows of a fit, or for a batch of rows of a model.
    pub fn new(shape: &FitShape) -> Self {
        let FitShape { chunk: n, d, k, .. } = *shape;
        let k_padded = padded(k, TILE_CENTROIDS);
        // The last tile of rows of a group is half empty, so a group should have 256 rows or more. At most about half of the
        // centroids become centres. The others show how far apart centres are.
        let most = MOST_GROUPS.min(k.saturating_mul(11) / 20).min(n / (2 * TILE_ROWS)).min(MOST_PAIRS / k_padded).max(1);
        let chunks = d.div_ceil(CHUNK);
        let none = Self { n, d, k, groups: 0, k_padded, chunks, tiles: 0, copied: 0, at_first: 0 };
        let sizes = none.of_model(1 << most.ilog2());
        // The centroids move.
        let copied = sizes.at_first + sizes.at_first / 3 + 4;
        Self { copied, at_first: copied / 4 * 3, ..sizes }
    }

    /// The sizes for so many groups, a power of two, of a batch of rows of a model: its centroids do not move.
    pub fn of_model(self, groups: usize) -> Self {
        let Self { n, k_padded, .. } = self;
        // A copy of a centroid costs about as much as one of a row.
        let of_all = k_padded / TILE_CENTROIDS;
        let at_first = of_all.saturating_mul(16).min(n / (4 * TILE_CENTROIDS)) + of_all + groups;
        // The last tiles of each group, and of the fallback group, may have few rows.
        let row_tiles = if self.chunks <= CHUNKS_THAT_STAY { 2 } else { 1 };
        let rows = row_tiles * TILE_ROWS;
        let tiles = n.saturating_add((groups + 1) * (rows - 1)) / rows * row_tiles;
        // Because of roundings, lists are a little longer than when groups are made.
        Self { groups, tiles, copied: at_first + 4, at_first, ..self }
    }

    pub fn places(&self) -> usize {
        product([self.tiles, TILE_ROWS])
    }

    /// Groups, and the fallback group.
    pub fn with_fallback(&self) -> usize {
        self.groups + 1
    }

    /// Values of a centre, as `centre_width` of `kernels/common/tensor.cuh`.
    pub fn centre_width(&self) -> usize {
        padded(self.d, 4)
    }

    /// Places for copies of centroids.
    pub fn copies(&self) -> usize {
        product([self.copied, TILE_CENTROIDS])
    }

    /// If an iteration has this many rows in doubt, groups are made again.
    pub fn most_doubt(&self) -> u64 {
        self.n as u64 / 2
    }

    /// If an iteration looks at this many sets of columns, rows are put in order: this saves in `iterations` iterations the time that
    /// it takes. An H100 looks at a set in about 30 clocks of an SM. To put a row in order takes 75 clocks, and half a clock for each
    /// value. Rows in order still look at about a third of a set each.
    pub fn most_kept(&self, iterations: u32) -> u64 {
        let row = 75.0 + 0.5 * self.d as f64;
        (self.n as f64 * (0.33 + row / (30.0 * f64::from(iterations)))) as u64
    }
}

buffers! {
    /// The copies of the rows.
    pub struct HalfRowCopies = "half-precision copies of the rows" (sizes: &TensorSizes) {
        /// `(tiles, chunks, 128, 64)` values of 16 bits.
        copies: u8 [product([sizes.tiles, sizes.chunks, TILE_ROWS * PLACE_BYTES])],
        terms: f32 [sizes.places()],
        row_of_place: u32 [sizes.places()],
        group_of_tile: u32 [sizes.tiles],
        group_of_row: u16 [sizes.n],
        /// Rows of each group without a label, then rows of each label.
        buckets: u32 [sizes.k.saturating_add(sizes.with_fallback())],
        first_visit: u32 [sizes.tiles],
    }
}

buffers! {
    /// The groups, and what the copies of the centroids for each of them are.
    pub struct RowGroups = "the groups of rows" (sizes: &TensorSizes) {
        groups: TensorGroup [sizes.with_fallback()],
        totals: TensorTotals [1],
        /// `(groups and the fallback group, k padded)`.
        list: u32 [product([sizes.with_fallback(), sizes.k_padded])],
        group_of_copy: u32 [sizes.copied],
        lowered: f32 [sizes.copies()],
        slacks: f32 [sizes.copies()],
        tile_slacks: f32 [sizes.copied],
    }
}

buffers! {
    /// The copies of the centroids for each group.
    pub struct CentroidCopies = "half-precision copies of the centroids" (sizes: &TensorSizes) {
        /// `(copied, chunks, 256, 64)` values of 16 bits.
        copies: u8 [product([sizes.copies(), sizes.chunks, PLACE_BYTES])],
    }
}
