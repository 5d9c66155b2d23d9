//! How large the tables of the papers' systems are, and the blocks that hold them.

/// Bytes of a block's tables that let two blocks share a multiprocessor.
pub const FIT_BYTES: usize = 100 << 10;
/// Bytes of tables in device memory, at most.
pub const MOST_SCRATCH: usize = 1 << 30;
/// Static shared memory of `kernels/sum_features.cu`: labels of a tile.
const TILE_LABELS: usize = 2 << 10;
/// Rows that a sum with four loads under way takes turns over: a quarter of a tile.
const MOST_POINTS: u32 = 128;

/// What the sizes depend on.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub d: usize,
    pub k: usize,
    /// Columns of the sums: the features, and the mass.
    pub columns: usize,
    /// Limbs of a sum.
    pub limbs: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Bytes of shared memory that a block may have.
    pub shared: usize,
}

/// Tables of a block of so many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    pub threads: u32,
    /// Bytes of dynamic shared memory, whether or not a block may have them.
    pub shared: usize,
    /// Bytes of the tables alone.
    pub bytes: usize,
}

impl Tables {
    /// The largest block whose tables let another one run beside it, or else 32 threads.
    fn of(bytes: impl Fn(usize) -> usize) -> Self {
        let threads = [256, 128, 64].into_iter().find(|&threads| bytes(threads) <= FIT_BYTES).unwrap_or(32);
        Self { threads: threads as u32, shared: bytes(threads), bytes: bytes(threads) }
    }

    /// Whether they fit in shared memory.
    pub fn fits(&self, shape: &Shape) -> bool {
        self.shared <= shape.shared.saturating_sub(TILE_LABELS)
    }
}

/// Sums of a table.
pub fn cells(shape: &Shape) -> usize {
    shape.k.saturating_mul(shape.columns).saturating_mul(shape.limbs)
}

/// Sums and counts of a group's table (`kernels/sum_groups.cu`).
pub fn entries(shape: &Shape) -> usize {
    cells(shape).saturating_add(shape.k)
}

/// Bytes of all centroids in shared memory, and their half squares.
pub fn table(shape: &Shape, width: usize) -> usize {
    shape.k.next_multiple_of(4).saturating_mul((width + 1) * 4)
}

/// Bytes of a block's sums and counters, added to by atomics.
pub fn block_sums(shape: &Shape) -> usize {
    cells(shape).saturating_mul(8).saturating_add(shape.k.saturating_mul(4))
}

/// `kernels/sum_features.cu`: tables, rows at a time, columns of a block.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    pub tables: Tables,
    pub points: u32,
    pub chunk: usize,
}

pub fn features(shape: &Shape) -> Features {
    let bytes = |threads: usize| threads.saturating_mul(shape.k).saturating_mul(shape.limbs * 8);
    let mut tables = Tables::of(bytes);
    if !tables.fits(shape) {
        tables = Tables { threads: 128, shared: bytes(128), bytes: bytes(128) };
    }
    let across = u32::try_from(shape.columns.next_power_of_two()).unwrap_or(u32::MAX);
    let points = (tables.threads / across.min(tables.threads)).clamp(8, MOST_POINTS);
    Features { tables, points, chunk: (tables.threads / points) as usize }
}

/// `kernels/sum_merge.cu`.
pub fn merge(shape: &Shape) -> Tables {
    Tables::of(|threads| cells(shape).saturating_mul(threads * 8))
}

/// `mass_private` of `kernels/mass.cu`.
pub fn private(shape: &Shape) -> Tables {
    Tables::of(|threads| shape.k.saturating_mul(threads * 4))
}

/// `kernels/assign_fused.cu`: tables and tile, rows at a time, exclusive sums.
pub fn fused(shape: &Shape) -> (Tables, u32, usize) {
    let split = |threads: usize| match shape.columns.next_power_of_two() {
        across if across <= threads => (threads / across, threads),
        _ => (1, shape.columns),
    };
    let tables = Tables::of(|threads| {
        let sums = shape.k.saturating_mul(shape.limbs * 8).saturating_mul(split(threads).1);
        let tile = (shape.d * (threads + 1)).next_multiple_of(2).saturating_mul(shape.value);
        let counters = shape.k.saturating_mul(threads * 4);
        sums.saturating_add(tile).saturating_add(threads * 4).saturating_add(counters)
    });
    let (points, slots) = split(tables.threads as usize);
    (tables, points as u32, slots)
}
