//! How many tiles and groups a fit by tensor cores has, and the memory of its copies.

use crate::backend::cuda::arguments::TensorGroup;
use crate::backend::cuda::device::{buffers, product};
use crate::backend::cuda::shape::{FitShape, padded};

/// Constants of `kernels/common/tensor.cuh`: places of a tile of rows and of centroids, features of a chunk, bytes of a place in
/// a chunk, and the most groups.
pub const TILE_ROWS: usize = 128;
pub const TILE_CENTROIDS: usize = 256;
pub const CHUNK: usize = 64;
pub const PLACE_BYTES: usize = 2 * CHUNK;
pub const MOST_GROUPS: usize = 32;
/// Chunks of a block in shared memory: one in use by each of two warpgroups, the others on their way.
pub const STAGES: usize = 4;
const STAGE_BYTES: usize = (TILE_ROWS + TILE_CENTROIDS) * PLACE_BYTES;

/// The sizes of a fit's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of a chunk.
    pub n: usize,
    pub d: usize,
    pub k: usize,
    pub groups: usize,
    pub k_padded: usize,
    /// Chunks of features.
    pub chunks: usize,
    /// The most tiles of rows.
    pub tiles: usize,
}

impl Sizes {
    pub fn new(shape: &FitShape) -> Self {
        let FitShape { chunk: n, k, .. } = *shape;
        // A group costs copies of all centroids near it. So it has many rows, and there are several centroids for each group.
        Self::with_groups(shape, MOST_GROUPS.min(k / 4).min(n / (8 * TILE_ROWS)).min(n / k.max(1).saturating_mul(2)).max(1))
    }

    /// The sizes for a batch of rows of a model. A batch is labelled once, so groups must be good at once: there are more of them
    /// for fewer rows than in a fit. Their number is a power of two, because each number has its own centres.
    pub fn of_batch(shape: &FitShape) -> Self {
        let most = MOST_GROUPS.min(shape.k / 4).min(shape.chunk / (4 * TILE_ROWS)).max(1);
        Self::with_groups(shape, 1 << most.ilog2())
    }

    fn with_groups(shape: &FitShape, groups: usize) -> Self {
        let FitShape { chunk: n, d, k, .. } = *shape;
        let tiles = n.div_ceil(TILE_ROWS).saturating_add(groups);
        Self { n, d, k, groups, k_padded: padded(k, TILE_CENTROIDS), chunks: d.div_ceil(CHUNK), tiles }
    }

    pub fn places(&self) -> usize {
        product([self.tiles, TILE_ROWS])
    }

    /// Pairs of a group and a centroid.
    pub fn pairs(&self) -> usize {
        product([self.groups, self.k_padded])
    }

    /// Tiles of centroids whose folded half squares are in shared memory at a time. One that is in use is not overwritten: the
    /// chunk that would do so is requested when this many chunks before it are done.
    pub fn folded_slots(&self) -> usize {
        if self.chunks > STAGES { 1 } else { 1 + (STAGES + 1 - self.chunks).div_ceil(self.chunks) }
    }

    /// The doubt of an iteration from which groups are made again.
    pub fn most_doubt(&self) -> u64 {
        self.n as u64 / 2
    }

    /// The sets of columns kept in an iteration from which rows are put in order: in about eight iterations it saves the time
    /// that it takes. An H200 looks at a set in 16 clocks of an SM. A row takes 75 clocks and half a clock for each value. Rows
    /// in order still keep some sets: about a third of one each.
    pub fn most_kept(&self) -> u64 {
        self.n as u64 * (230 + self.d as u64) / 256
    }

    /// Bytes of shared memory of a block of `assign_tensor`.
    pub fn shared(&self) -> usize {
        // Tiles are aligned to 1,024 bytes. Two barriers belong to each stage.
        1_024 + STAGES * (STAGE_BYTES + 16) + self.folded_slots() * TILE_CENTROIDS * 8 + 16
    }
}

buffers! {
    /// The copies of the rows.
    pub struct RowCopies = "half-precision copies of the rows" (sizes: &Sizes) {
        /// `(tiles, chunks, 128, 64)` values of 16 bits.
        copies: u32 [product([sizes.tiles, sizes.chunks, TILE_ROWS * PLACE_BYTES / 4])],
        terms: f32 [sizes.places()],
        row_of_place: u32 [sizes.places()],
        group_of_tile: u32 [sizes.tiles],
        group_of_row: u8 [sizes.n],
        /// Rows of each group without a label, then rows of each label.
        buckets: u32 [MOST_GROUPS + sizes.k],
        first_visit: u32 [sizes.tiles],
    }
}

buffers! {
    /// The groups, and the copies of the centroids for each of them.
    pub struct CentroidCopies = "half-precision copies of the centroids" (sizes: &Sizes) {
        groups: TensorGroup [sizes.groups],
        list: u32 [sizes.pairs()],
        position: u32 [product([sizes.groups, sizes.k])],
        folded: f32 [sizes.pairs()],
        margins: f32 [sizes.pairs()],
        tile_margins: f32 [sizes.pairs() / TILE_CENTROIDS],
        /// `(groups, k padded / 256, chunks, 256, 64)` values of 16 bits.
        copies: u32 [product([sizes.pairs(), sizes.chunks, PLACE_BYTES / 4])],
    }
}
