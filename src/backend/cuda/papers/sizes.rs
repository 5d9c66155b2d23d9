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

/// What the sizes depend on.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub d: usize,
    pub k: usize,
    /// Columns of the sums: the features, and the mass if there are weights.
    pub columns: usize,
    /// Limbs of a sum.
    pub limbs: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Bytes of shared memory that a block may have.
    pub shared: usize,
}

impl Sizes {
    pub fn new(shape: &FitShape, gpu: GpuSize) -> Self {
        let FitShape { d, k, limbs, .. } = *shape;
        Self { d, k, columns: shape.columns(), limbs, value: shape.value_bytes(), shared: gpu.shared }
    }
}

/// The tables of a block, and its number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    pub threads: u32,
    /// Bytes of dynamic shared memory that the tables need. This may be more than a block may have.
    pub shared: usize,
    /// Bytes of the tables alone.
    pub bytes: usize,
}

impl Tables {
    /// The largest block that leaves room for a second block on the SM. If there is none, 32 threads.
    fn of(bytes: impl Fn(usize) -> usize) -> Self {
        let threads = [256, 128, 64].into_iter().find(|&threads| bytes(threads) <= FIT_BYTES).unwrap_or(32);
        Self { threads: threads as u32, shared: bytes(threads), bytes: bytes(threads) }
    }

    /// Whether the tables fit in shared memory.
    pub fn fits(&self, sizes: &Sizes) -> bool {
        self.shared <= sizes.shared.saturating_sub(TILE_LABELS)
    }
}

/// The number of sums in a table.
pub fn cells(sizes: &Sizes) -> usize {
    sizes.k.saturating_mul(sizes.columns).saturating_mul(sizes.limbs)
}

/// The number of sums and counts in the table of one group (`kernels/papers/sum_groups.cu`).
pub fn entries(sizes: &Sizes) -> usize {
    cells(sizes).saturating_add(sizes.k)
}

/// Bytes of all centroids and their half squares in shared memory.
pub fn table(sizes: &Sizes, width: usize) -> usize {
    sizes.k.next_multiple_of(4).saturating_mul((width + 1) * 4)
}

/// Bytes of the sums and counters of a block. Threads add to them by atomics.
pub fn block_sums(sizes: &Sizes) -> usize {
    cells(sizes).saturating_mul(8).saturating_add(sizes.k.saturating_mul(4))
}

/// Settings of `kernels/papers/sum_features.cu`: the tables, the rows that a block takes at a time (`points`), and the columns of
/// a block (`chunk`).
#[derive(Debug, Clone, Copy)]
pub struct Features {
    pub tables: Tables,
    pub points: u32,
    pub chunk: usize,
}

pub fn features(sizes: &Sizes) -> Features {
    let bytes = |threads: usize| threads.saturating_mul(sizes.k).saturating_mul(sizes.limbs * 8);
    let mut tables = Tables::of(bytes);
    if !tables.fits(sizes) {
        tables = Tables { threads: 128, shared: bytes(128), bytes: bytes(128) };
    }
    let across = u32::try_from(sizes.columns.next_power_of_two()).unwrap_or(u32::MAX);
    let points = (tables.threads / across.min(tables.threads)).clamp(8, MOST_POINTS);
    Features { tables, points, chunk: (tables.threads / points) as usize }
}

/// The tables of `kernels/papers/sum_merge.cu`.
pub fn merge(sizes: &Sizes) -> Tables {
    Tables::of(|threads| cells(sizes).saturating_mul(threads * 8))
}

/// The tables of `mass_private` in `kernels/papers/mass.cu`.
pub fn private(sizes: &Sizes) -> Tables {
    Tables::of(|threads| sizes.k.saturating_mul(threads * 4))
}

/// Settings of `kernels/papers/assign_fused.cu`: the tables with the tile, the rows that a block takes at a time, and the number
/// of slots. A slot is a set of sums that only one thread adds to.
pub fn fused(sizes: &Sizes) -> (Tables, u32, usize) {
    let split = |threads: usize| match sizes.columns.next_power_of_two() {
        across if across <= threads => (threads / across, threads),
        _ => (1, sizes.columns),
    };
    let tables = Tables::of(|threads| {
        let sums = sizes.k.saturating_mul(sizes.limbs * 8).saturating_mul(split(threads).1);
        let tile = (sizes.d * (threads + 1)).next_multiple_of(2).saturating_mul(sizes.value);
        let counters = sizes.k.saturating_mul(threads * 4);
        sums.saturating_add(tile).saturating_add(threads * 4).saturating_add(counters)
    });
    let (points, slots) = split(tables.threads as usize);
    (tables, points as u32, slots)
}
