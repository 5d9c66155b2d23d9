//! The two kernels that multiply on tensor cores, and how each device's tensor cores add up, which is asked once a process.
//!
//! | strategy | kernel | instruction | generations |
//! |---|---|---|---|
//! | `tensor-wgmma` | `assign_tensor`, `assign_tensor_narrow` | `wgmma`, a warpgroup | 9.0 |
//! | `tensor-mma` | `assign_tensor_mma` | `mma.sync`, a warp | from 8.0 on |

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::Refusal;
use super::sizes::{CHUNK, CHUNKS_THAT_STAY, PLACE_BYTES, TILE_CENTROIDS, TILE_ROWS};
use crate::backend::cuda::arguments::{self, ProbeTensorArgument, TensorArgument};
use crate::backend::cuda::device::{Entry, Gpu, Launch};
use crate::backend::select::{Choice, Place};
use crate::base::error::Result;
use crate::base::strategy::Strategy;
use crate::bounds::fp16::adding::{self, Added, Vectors};

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

    /// Picoseconds for a score of `d` features with as many multiprocessors as an H200 has, where all centroids are multiplied.
    ///
    /// Both instructions were measured on an H200, half tiles on an H100. Other generations were not measured. Per multiprocessor
    /// and clock, data-centre GPUs (8.0, 10.x) should make about as many products by `mma.sync` as an H200, and the others two
    /// fifths of that. The factors here are larger, so tensor cores are chosen only where they win clearly.
    pub(super) fn score(self, d: usize, generation: u32) -> f64 {
        let of_mma = (0.4 + 0.0055 * d as f64).max(0.75);
        match (self, generation) {
            // Half tiles.
            (Self::Wgmma, _) if d <= CHUNKS_THAT_STAY * CHUNK => 0.22 + 0.0027 * d as f64,
            (Self::Wgmma, _) => 0.14 + 0.00305 * d as f64,
            (Self::Mma, 90) => of_mma,
            (Self::Mma, 80 | 100..=109) => 2.0 * of_mma,
            (Self::Mma, _) => 4.0 * of_mma,
        }
    }

    /// Microseconds for a row, beside its values and scores.
    pub(super) fn row(self) -> f64 {
        match self {
            Self::Wgmma => 4.0e-5,
            Self::Mma => 1.7e-4,
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

    /// How this device's tensor cores add up.
    pub(super) fn added(self, gpu: &Arc<Gpu>) -> Result<Added> {
        self.found(gpu)?.ok_or_else(|| untrusted_unit().of(self.strategy()))
    }

    /// How the tensor cores of this GPU add up. None if their sums are outside of every bound.
    fn found(self, gpu: &Arc<Gpu>) -> Result<Option<Added>> {
        let known = answers().get(&(gpu.ordinal, self)).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.ask(gpu)?;
        answers().insert((gpu.ordinal, self), found);
        Ok(found)
    }

    /// Whether this device's sums are within a bound.
    pub fn is_trusted(self, gpu: &Arc<Gpu>) -> Result<bool> {
        Ok(self.found(gpu)?.is_some())
    }

    /// Lets the device add up, and looks at the sums.
    fn ask(self, gpu: &Arc<Gpu>) -> Result<Option<Added>> {
        const WHAT: &str = "asking how tensor cores add up";
        let entry = match self {
            Self::Wgmma => arguments::probe_tensor_wgmma(),
            Self::Mma => arguments::probe_tensor_mma(),
        };
        let (vectors, queue) = (Vectors::given(), gpu.queue()?);
        let rows = queue.upload(&in_a_chunk(&vectors.rows), WHAT)?;
        let centroids = queue.upload(&in_a_chunk(&vectors.centroids), WHAT)?;
        let starts = queue.upload(&vectors.starts, WHAT)?;
        let sums = queue.zeros::<f32>(adding::ROWS * adding::CENTROIDS, WHAT)?;
        let launch = entry.exactly(gpu, "", 1)?;
        let argument = ProbeTensorArgument { rows: rows.at(), centroids: centroids.at(), starts: starts.at(), sums: sums.at() };
        // SAFETY: the buffers have the sizes that the kernel reads and writes: `Vectors` says so. `TensorUnit::is_in` was asked.
        unsafe { queue.run(&launch, &argument)? };
        let mut found = vec![0.0; sums.len()];
        sums.read(0, &mut found)?;
        Ok(vectors.added(&found))
    }
}

/// The vectors of one side as they lie in a chunk: `swizzled` of `kernels/common/tensor.cuh`.
fn in_a_chunk(vectors: &[u16]) -> Vec<u16> {
    let piece = 8;
    let source = |i: usize| {
        let (place, at) = (i / CHUNK, i % CHUNK);
        place * CHUNK + ((at / piece) ^ (place % 8)) * piece + at % piece
    };
    (0..vectors.len()).map(|i| vectors[source(i)]).collect()
}

const _: () = assert!(adding::FEATURES == CHUNK && adding::CENTROIDS == TILE_CENTROIDS && adding::ROWS == TILE_ROWS / 2);

/// What the devices have answered in this process.
type ProbeResults = HashMap<(u32, TensorUnit), Option<Added>>;

fn answers() -> MutexGuard<'static, ProbeResults> {
    static ANSWERS: LazyLock<Mutex<ProbeResults>> = LazyLock::new(Mutex::default);
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The instructions whose sums were outside of every bound on a device, as far as it was asked.
pub fn untrusted(ordinal: u32) -> [bool; 2] {
    let answers = answers();
    TensorUnit::ALL.map(|unit| answers.get(&(ordinal, unit)) == Some(&None))
}

/// Why such an instruction is not used.
pub(super) fn untrusted_unit() -> Refusal {
    let limit = "tensor cores whose sums are within the bounds of certified labels".into();
    Refusal {
        limit,
        hint: "",
        got: "sums that are not: this device may be broken, or it adds up in a way that is not known".into(),
    }
}

/// Whether a choice is one of tensor cores that cannot be trusted. It asks the device, and later choices know the answer.
pub fn is_untrusted(choice: &Choice) -> Result<bool> {
    let untrusted =
        |ordinal: u32, strategy: Strategy| match TensorUnit::ALL.into_iter().find(|unit| unit.strategy() == strategy) {
            Some(unit) => Ok(unit.found(&Gpu::get(ordinal)?)?.is_none()),
            None => Ok(false),
        };
    match choice.place {
        Place::Cuda(ordinal) => untrusted(ordinal, choice.plan.strategy),
        _ => choice.shares.iter().try_fold(false, |any, share| Ok(any | untrusted(share.ordinal, share.plan.strategy)?)),
    }
}

/// Each instruction that a device has, and how it adds up. For tests.
#[doc(hidden)]
pub fn how_tensor_cores_add(ordinal: u32) -> Result<Vec<(Strategy, String)>> {
    let gpu = Gpu::get(ordinal)?;
    let units = TensorUnit::ALL.into_iter().filter(|unit| unit.is_in(gpu.size().generation));
    units.map(|unit| Ok((unit.strategy(), format!("{:?}", unit.found(&gpu)?)))).collect()
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(vectors_lie_as_copies_do);
    /// Feature f of place p is in piece f / 8, which is at (f / 8) ^ (p % 8).
    fn vectors_lie_as_copies_do() {
        let vectors: Vec<u16> = (0..16 * CHUNK as u16).collect();
        let chunk = in_a_chunk(&vectors);
        assert_eq!(chunk[..CHUNK], vectors[..CHUNK]);
        for (place, f) in [(1, 0), (5, 13), (13, 63)] {
            assert_eq!(chunk[place * CHUNK + ((f / 8) ^ (place % 8)) * 8 + f % 8], vectors[place * CHUNK + f]);
        }
    }
}
