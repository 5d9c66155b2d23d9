//! The two kernels that multiply on tensor cores.
//!
//! | strategy | kernel | instruction | generations |
//! |---|---|---|---|
//! | `tensor-wgmma` | `assign_tensor`, `assign_tensor_narrow` | `wgmma`, a warpgroup | 9.0 |
//! | `tensor-mma` | `assign_tensor_mma` | `mma.sync`, a warp | from 8.0 on |

use super::sizes::{CHUNKS_THAT_STAY, PLACE_BYTES, TILE_CENTROIDS, TILE_ROWS};
use crate::backend::cuda::arguments::{self, TensorArgument};
use crate::backend::cuda::device::{Entry, Gpu, Launch};
use crate::base::error::Result;
use crate::base::strategy::Strategy;

/// An instruction, with its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorUnit {
    Wgmma,
    Mma,
}

/// Shared memory of a block of `assign_tensor_mma`: three parts, each with 32 features of 128 rows and of 128 centroids, and half
/// squares of a tile. Two blocks run on a multiprocessor.
const MMA_SHARED: usize = 3 * (2 * TILE_ROWS * PLACE_BYTES / 2) + TILE_ROWS * 4;
/// Shared memory before the stages of the other kernels: lowered half squares of all stages, and barriers.
const LOWERED_ROOM: usize = 4_096;
const HEADER: usize = LOWERED_ROOM + 1_024;

/// A row keeps the number of a tile of 128 centroids in 16 bits.
pub(super) const MOST_CLUSTERS: usize = (TILE_CENTROIDS / 2) << 16;

/// A kernel that multiplies tiles of rows and of centroids.
pub(super) struct Kernel {
    /// With its shared memory.
    pub entry: Entry<TensorArgument>,
    /// Tiles of rows that a block works on at a time. All of them are of one group.
    pub row_tiles: usize,
    /// Chunks of centroids in shared memory, some in use and the others on their way. A chunk of rows comes with each, unless
    /// rows stay.
    pub stages: usize,
    /// How often a block's rows have room in shared memory: one to three times if they stay, else 0.
    pub row_buffers: usize,
}

impl Kernel {
    /// The most shared memory of a block, on generation 9.0.
    const SHARED: usize = 227 << 10;

    /// `assign_tensor`: a tile of rows and one of centroids at a time.
    fn wide() -> Self {
        Self::with(arguments::assign_tensor(), 1, 4, 0)
    }

    /// `assign_tensor_narrow`: two tiles of rows, which stay, and half a tile of centroids at a time. There are as many stages as
    /// there is room for.
    fn narrow(chunks: usize) -> Self {
        let row_buffers = (CHUNKS_THAT_STAY / chunks).min(3);
        let mut kernels = (2..8).rev().map(|stages| {
            let mut kernel = Self::with(arguments::assign_tensor_narrow(), 2, stages, row_buffers);
            kernel.entry.block.shared += row_buffers * chunks * 2 * TILE_ROWS * PLACE_BYTES;
            kernel
        });
        let found = kernels.find(|kernel| kernel.entry.block.shared <= Self::SHARED);
        found.unwrap_or_else(|| unreachable!("two stages have room"))
    }

    /// Two warpgroups for each tile of rows multiply. Threads of one more warpgroup request chunks. Rows that stay take more
    /// shared memory.
    fn with(entry: Entry<TensorArgument>, row_tiles: usize, stages: usize, row_buffers: usize) -> Self {
        let (rows, centroids) = (TILE_ROWS * PLACE_BYTES, TILE_CENTROIDS / row_tiles);
        let stage = centroids * PLACE_BYTES + if row_buffers == 0 { rows } else { 0 };
        assert!(stages * centroids * 4 <= LOWERED_ROOM, "half squares of all stages have room");
        let shared = HEADER + stages * stage;
        Self { entry: entry.with_shared(shared), row_tiles, stages, row_buffers }
    }

    pub fn launch(&self, gpu: &Gpu, tiles: usize) -> Result<Launch<TensorArgument>> {
        self.entry.resident(gpu, "", tiles.div_ceil(self.row_tiles))
    }
}

impl TensorUnit {
    pub const ALL: [Self; 2] = [Self::Wgmma, Self::Mma];

    pub fn strategy(self) -> Strategy {
        match self {
            Self::Wgmma => Strategy::TensorWgmma,
            Self::Mma => Strategy::TensorMma,
        }
    }

    /// Whether a generation has the instruction. Kernels are compiled for no generation before 8.0.
    pub fn is_in(self, generation: u32) -> bool {
        match self {
            Self::Wgmma => generation == 90,
            Self::Mma => true,
        }
    }

    pub fn generations(self) -> &'static str {
        match self {
            Self::Wgmma => "a GPU of compute capability 9.0",
            Self::Mma => "a GPU of compute capability 8.0 or later",
        }
    }

    /// The kernel for products of so many chunks of features.
    pub(super) fn kernel(self, chunks: usize) -> Kernel {
        match self {
            Self::Wgmma if chunks <= CHUNKS_THAT_STAY => Kernel::narrow(chunks),
            _ => self.kernel_of_parts(),
        }
    }

    /// The kernel for products of copies in two parts: a chunk takes part more than once.
    pub(super) fn kernel_of_parts(self) -> Kernel {
        match self {
            Self::Wgmma => Kernel::wide(),
            Self::Mma => {
                let entry = arguments::assign_tensor_mma().with_shared(MMA_SHARED);
                Kernel { entry, row_tiles: 1, stages: 0, row_buffers: 0 }
            }
        }
    }
}
