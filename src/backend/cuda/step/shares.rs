//! With few rows and many clusters, several blocks share the centroids of a tile of rows: `kernels/step/assign_tiled.cu`.
//!
//! Otherwise there would be one block for each tile of 128 rows, and most SMs would have no work. Each block leaves its best
//! scores in device memory, and the last one merges them.

use crate::backend::cuda::arguments::{AssignArgument, ShareBest};
use crate::backend::cuda::device::{Queue, buffers, product};
use crate::base::error::Result;

/// Rows of a tile.
const TILE_ROWS: usize = 128;
/// Blocks fill an SM from this share of the most that it can hold.
const FILLED: f64 = 0.75;
/// What it costs to merge, as the time that an SM takes for the products of a tile with this many features.
const MERGE_FEATURES: f64 = 40.0;
/// The time of a tile besides its products, as a number of features.
const OTHER_FEATURES: f64 = 12.0;

/// The tiles of a pass, and what the device can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    pub rows: usize,
    pub centroids: usize,
    pub features: usize,
    /// The SMs of the device, and the most blocks that each can hold.
    pub processors: usize,
    pub blocks: usize,
}

impl Tiles {
    /// The number of tiles of `n` rows.
    pub fn of_rows(n: usize) -> usize {
        n.div_ceil(TILE_ROWS)
    }

    /// The blocks that share the centroids of a tile of rows: the number that takes the least time. If every SM has a tile of
    /// rows, it is 1.
    pub fn shares(self) -> usize {
        if self.rows >= self.processors {
            return 1;
        }
        // As long as an SM is not filled, further blocks cost no time.
        let least = (FILLED * self.blocks as f64).max(1.0);
        let merge = MERGE_FEATURES / (self.features as f64 + OTHER_FEATURES);
        let time = |shares: usize| {
            let at_once = ((self.rows * shares).div_ceil(self.processors) as f64).max(least);
            self.centroids.div_ceil(shares) as f64 * at_once + if shares > 1 { merge * at_once } else { 0.0 }
        };
        let most = self.centroids.min(self.processors * self.blocks / self.rows.max(1)).max(1);
        (1..=most).min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(1)
    }
}

buffers! {
    /// What the blocks that share a tile of rows found, and how many of them are done.
    struct ShareBuffers = "the best centroids of each share" (tiles: usize, shares: usize) {
        bests: ShareBest [product([tiles, shares, TILE_ROWS])],
        tickets: u32 [tiles],
    }
}

/// The shares of a launch, and their memory.
pub struct Shares {
    pub count: usize,
    /// None if there is only one.
    buffers: Option<ShareBuffers>,
}

impl Shares {
    /// The bytes that [`Shares::new`] allocates.
    pub fn bytes(tiles: Tiles) -> u64 {
        let count = tiles.shares();
        if count > 1 { ShareBuffers::bytes(tiles.rows, count) } else { 0 }
    }

    pub fn new(queue: &Queue, tiles: Tiles) -> Result<Self> {
        let count = tiles.shares();
        let buffers = if count > 1 {
            let mut buffers = ShareBuffers::allocate(queue, tiles.rows, count)?;
            buffers.tickets.fill(0)?;
            Some(buffers)
        } else {
            None
        };
        Ok(Self { count, buffers })
    }

    /// The argument of `assign_tiled` with these shares.
    pub fn of<T: Copy>(&self, argument: &AssignArgument<T>) -> AssignArgument<T> {
        let Some(ShareBuffers { bests, tickets }) = &self.buffers else { return *argument };
        AssignArgument { shares: self.count as u32, share_bests: bests.at(), share_tickets: tickets.at(), ..*argument }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(shares_fill_the_device);
    fn shares_fill_the_device() {
        let shares = |n: usize, features: usize, k: usize| {
            Tiles { rows: Tiles::of_rows(n), centroids: k.div_ceil(128), features, processors: 132, blocks: 2 }.shares()
        };
        assert_eq!(shares(2_000, 512, 1_000), 8);
        assert_eq!(shares(2_000, 512, 128), 1);
        assert_eq!(shares(2_000, 512, 4_000), 16);
        // 7,813 tiles of centroids, 30 for each block.
        assert_eq!(shares(1, 512, 1_000_000), 261);
        assert_eq!((shares(16_896, 512, 5_000), shares(1_000_000, 512, 5_000)), (1, 1));
        // The merge would cost more than it saves.
        assert_eq!(shares(2_000, 1, 130), 1);
    }
}
