//! The sizes of the tables of the papers' systems, and of the blocks that hold them.

use crate::backend::cuda::shape::{FitShape, GpuSize};

/// If the tables of a block have at most this many bytes, two blocks fit on one SM.
pub const FIT_BYTES: usize = 100 << 10;
/// The most bytes of tables in device memory.
pub const MOST_SCRATCH: usize = 1 << 30;
/// Bytes of static shared memory of `kernels/papers/sum_features.cu`: the labels of a tile.
const TILE_LABELS: usize = 2 << 10;
/// The most rows that the threads of one column take at a time. Each thread has four loads in flight, so this is a quarter of a
/// tile.
const MOST_POINTS: u32 = 128;

/// The tables of a block, and its number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumTables {
    pub threads: u32,
    /// Bytes of dynamic shared memory that the tables need. This may be more than a block may have.
    pub shared: usize,
    /// Bytes of the tables alone.
    pub bytes: usize,
}

impl SumTables {
    /// The largest block that leaves room for a second block on the SM. If there is none, 32 threads.
    fn of(bytes: impl Fn(usize) -> usize) -> Self {
        let threads = [256, 128, 64].into_iter().find(|&threads| bytes(threads) <= FIT_BYTES).unwrap_or(32);
        Self { threads: threads as u32, shared: bytes(threads), bytes: bytes(threads) }
    }

    /// Whether the tables fit in shared memory.
    pub fn fits(&self, gpu: GpuSize) -> bool {
        self.shared <= gpu.shared.saturating_sub(TILE_LABELS)
    }
}

/// The number of sums and counts in the table of one group (`kernels/papers/sum_groups.cu`).
pub fn entries(shape: &FitShape) -> usize {
    shape.accumulators().saturating_add(shape.k)
}

/// Bytes of all centroids and their half squares in shared memory.
pub fn table(shape: &FitShape, width: usize) -> usize {
    shape.k.next_multiple_of(4).saturating_mul((width + 1) * 4)
}

/// Bytes of the sums and counters of a block. Threads add to them by atomics.
pub fn block_sums(shape: &FitShape) -> usize {
    shape.accumulators().saturating_mul(8).saturating_add(shape.k.saturating_mul(4))
}

/// Settings of `kernels/papers/sum_features.cu`: the tables, the rows that a block takes at a time (`points`), and the columns of
/// a block (`chunk`).
#[derive(Debug, Clone, Copy)]
pub struct SumFeatures {
    pub tables: SumTables,
    pub points: u32,
    pub chunk: usize,
}

pub fn features(shape: &FitShape, gpu: GpuSize) -> SumFeatures {
    let bytes = |threads: usize| threads.saturating_mul(shape.k).saturating_mul(shape.limbs * 8);
    let mut tables = SumTables::of(bytes);
    if !tables.fits(gpu) {
        tables = SumTables { threads: 128, shared: bytes(128), bytes: bytes(128) };
    }
    let across = u32::try_from(shape.columns().next_power_of_two()).unwrap_or(u32::MAX);
    let points = (tables.threads / across.min(tables.threads)).clamp(8, MOST_POINTS);
    SumFeatures { tables, points, chunk: (tables.threads / points) as usize }
}

/// The tables of `kernels/papers/sum_merge.cu`.
pub fn merge(shape: &FitShape) -> SumTables {
    SumTables::of(|threads| shape.accumulators().saturating_mul(threads * 8))
}

/// The tables of `mass_private` in `kernels/papers/mass.cu`.
pub fn private(shape: &FitShape) -> SumTables {
    SumTables::of(|threads| shape.k.saturating_mul(threads * 4))
}

/// Settings of `kernels/papers/assign_fused.cu`: the tables with the tile, the rows that a block takes at a time, and the number
/// of slots. A slot is a set of sums that only one thread adds to.
pub fn fused(shape: &FitShape) -> (SumTables, u32, usize) {
    let split = |threads: usize| match shape.columns().next_power_of_two() {
        across if across <= threads => (threads / across, threads),
        _ => (1, shape.columns()),
    };
    let tables = SumTables::of(|threads| {
        let sums = shape.k.saturating_mul(shape.limbs * 8).saturating_mul(split(threads).1);
        let tile = (shape.d * (threads + 1)).next_multiple_of(2).saturating_mul(shape.value_bytes());
        let counters = shape.k.saturating_mul(threads * 4);
        sums.saturating_add(tile).saturating_add(threads * 4).saturating_add(counters)
    });
    let (points, slots) = split(tables.threads as usize);
    (tables, points as u32, slots)
}
