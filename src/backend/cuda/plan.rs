//! Which kernels a fit runs, and how they share the device: a function of its shape.

use super::device::{Gpu, Kernel};
use crate::error::Result;
use crate::float::Float;

/// Threads of a block, of most kernels.
pub const THREADS: u32 = 256;
/// Dimensions that `assign_registers` is compiled for: the next larger one takes the rest, with zeros.
const REGISTER_DIMENSIONS: [usize; 7] = [1, 2, 3, 4, 6, 8, 12];
/// Rows of a warp's tile (`kernels/assign_registers.cu`), the longest run of tiles, and runs that a warp should have.
const REGISTER_TILE: usize = 128;
const LONGEST_RUN: usize = 16;
const RUNS: usize = 6;
/// Fewer clusters than this are swept one by one: five instructions a score, but no second look at a group. From the second number
/// on, groups of 16.
const GROUPS_OF_8_FROM: usize = 21;
const GROUPS_OF_16_FROM: usize = 200;
/// Bytes of shared memory of a block for centroids, and for copies of cells; cells that fit once may take more.
const CENTROID_BYTES: usize = 48 << 10;
pub const TABLE_BYTES: usize = 24 << 10;
pub const MOST_TABLE_BYTES: usize = 64 << 10;
/// Of `kernels/assign_tiled.cu` with panels: their features, bytes of partial sums, and the shared memory that lets two blocks run.
const PANEL: usize = 128;
const PANEL_BYTES: usize = 64 << 10;
const PANELS_FROM: usize = 224 << 10;
/// Most of [`settle_values`]; at least one of each of 128 rows.
const SETTLE_VALUES: usize = 8_192;
/// Of `kernels/deltas.cu`: threads of a block, rows of a tile, shared memory besides the table; bytes for copies of cells, and of the
/// largest table, where one of `MOST_TABLE_BYTES` does not hold a column.
const DELTAS_THREADS: u32 = 512;
const DELTAS_TILE: usize = 2_048;
const DELTAS_LIST_BYTES: usize = 26 << 10;
const DELTAS_COPIES_BYTES: usize = 40 << 10;
const LARGEST_TABLE_BYTES: usize = 128 << 10;

/// How the labels are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// `kernels/assign_registers.cu`, compiled for so many dimensions, in groups of so many centroids (0: one by one).
    Registers {
        dimensions: usize,
        group: usize,
    },
    Tiled(Tiled),
}

/// A variant of `kernels/assign_tiled.cu`: tiles of so many centroids, and whether it adds up partial sums of `PANEL` features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiled {
    width: usize,
    panels: bool,
}

/// A kernel, its blocks and their shared memory.
#[derive(Clone, Copy)]
pub struct Launch {
    pub kernel: Kernel,
    pub blocks: u32,
    pub threads: u32,
    pub shared: u32,
}

/// Everything about the launches of one fit.
pub struct Plan {
    pub strategy: Strategy,
    /// Bytes of a label.
    pub label_bytes: usize,
    /// Clusters with padding, as the assign wants them.
    pub k_padded: usize,
    /// Floats of a centroid's copy (registers) or of a feature's copies (tiled).
    pub copy_width: usize,
    /// Whether the centroids fit in shared memory (registers).
    pub fits: bool,
    pub assign: Launch,
    pub assign_copies: usize,
    /// Tiles that a warp takes at a time (registers): a power of two.
    pub run: u32,
    /// What the assign leaves to kernels of their own (tiled): rows in doubt, sums.
    pub rest: Option<[Launch; 2]>,
    pub deltas_copies: usize,
    pub deltas_chunk: usize,
    pub inertia: Launch,
    pub inertia_copies: usize,
    pub update: Launch,
    pub fold: Launch,
    pub start: Launch,
}

/// Copies of each cell (a power of two, 32 at most) that fit in so many bytes; one that fits in `most`; or none.
pub fn copies(cells: usize, bytes: usize, most: usize) -> usize {
    match bytes / (cells * 8) {
        0 if cells * 8 <= most => 1,
        0 => 0,
        fit => 1 << fit.min(32).ilog2(),
    }
}

/// Float64 values of shared memory of `kernels/settle.cu`: of 16 rows of each of a block's groups, if they fit.
pub fn settle_values(d: usize, k: usize) -> usize {
    let groups = match k {
        0..=32 => 8,
        33..=64 => 4,
        65..=128 => 2,
        _ => 1,
    };
    (16 * groups * d).min(SETTLE_VALUES)
}

impl Tiled {
    /// The variant for a shape; panels leave fewer rows in doubt. `shared`: bytes that a block may have.
    pub fn of(d: usize, k: usize, shared: usize) -> Self {
        let width = [32, 64].into_iter().find(|&width| k <= width).unwrap_or(128);
        Self { width, panels: width == 128 && d > PANEL && shared >= PANELS_FROM }
    }

    /// The kernel's name; `*` stands for the type.
    pub fn name(self) -> String {
        format!("assign_tiled_*_k{}{}", self.width, if self.panels { "_panels" } else { "" })
    }

    pub fn threads(self) -> u32 {
        2 * self.width as u32
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(self) -> usize {
        if self.panels { PANEL_BYTES } else { 0 }
    }

    /// Roundings of a score's sum of d products.
    pub fn roundings(self, d: usize) -> usize {
        if self.panels { PANEL + d.div_ceil(PANEL) } else { d }
    }
}

impl Strategy {
    /// Roundings of a score's sum of d products.
    pub fn roundings(self, d: usize) -> usize {
        match self {
            Self::Registers { .. } => d,
            Self::Tiled(tiled) => tiled.roundings(d),
        }
    }

    /// The strategy for a shape; `shared`: bytes of shared memory that a block may have.
    pub fn of(d: usize, k: usize, shared: usize) -> Self {
        match REGISTER_DIMENSIONS.iter().find(|&&dimensions| dimensions >= d) {
            Some(&dimensions) => Self::Registers {
                dimensions,
                group: if k >= GROUPS_OF_16_FROM {
                    16
                } else if k >= GROUPS_OF_8_FROM {
                    8
                } else {
                    0
                },
            },
            None => Self::Tiled(Tiled::of(d, k, shared)),
        }
    }
}

impl Plan {
    /// `columns` and `limbs`: of the sums.
    pub fn new<T: Float>(gpu: &Gpu, n: usize, d: usize, k: usize, columns: usize, limbs: usize) -> Result<Self> {
        let strategy = Strategy::of(d, k, gpu.shared_per_block as usize);
        let label_bytes = if k <= 0xff {
            1
        } else if k <= 0xffff {
            2
        } else {
            4
        };
        let launch_of = |threads: u32, module, name: String, shared: usize, most: usize| -> Result<Launch> {
            let kernel = gpu.kernel(module, &name)?;
            if shared > 0 {
                gpu.prefer_shared_memory(kernel)?;
            }
            let blocks = gpu.resident_blocks(kernel, threads, shared as u32)?.min(most.max(1) as u32);
            Ok(Launch { kernel, blocks, threads, shared: shared as u32 })
        };
        let launch = |module, name, shared, most| launch_of(THREADS, module, name, shared, most);
        let suffix = if T::IS_F32 { "f32" } else { "f64" };
        let warps = |count: usize| count.div_ceil(THREADS as usize / 32);
        let cells = k * columns * limbs;
        let (k_padded, copy_width, fits, assign_copies, assign) = match strategy {
            Strategy::Registers { dimensions, group } => {
                let unit = group.max(1);
                let k_padded = k.next_multiple_of(unit);
                let width = (dimensions + 1).next_multiple_of(4);
                let fits = k_padded * width * 4 <= CENTROID_BYTES;
                let copies = copies(cells, TABLE_BYTES, MOST_TABLE_BYTES);
                // Groups are 16 bytes apart.
                let gaps = k_padded.checked_div(group).map_or(0, |groups| groups * 16);
                let centroids = if fits { k_padded * width * 4 + gaps } else { 0 };
                let arriving = THREADS as usize * (dimensions * size_of::<T>() * 4 + 4 * label_bytes);
                let shared = arriving + centroids + if copies > 0 { cells * 8 * copies + k * 4 } else { 0 };
                let groups = if group > 0 { format!("_groups{group}") } else { String::new() };
                let name = format!("assign_registers_{suffix}_d{dimensions}{groups}");
                (k_padded, width, fits, copies, launch("assign_registers", name, shared, n.div_ceil(8 * REGISTER_TILE))?)
            }
            Strategy::Tiled(tiled) => {
                let k_padded = k.next_multiple_of(128);
                let name = tiled.name().replace('*', suffix);
                let launch = launch_of(tiled.threads(), "assign_tiled", name, tiled.shared(), n.div_ceil(128))?;
                (k_padded, k_padded, false, 0, launch)
            }
        };
        let mut rest = None;
        let (mut deltas_copies, mut deltas_chunk) = (0, columns);
        if let Strategy::Tiled(_) = strategy {
            // As many columns to a table as it holds, but shares of work for all of the device.
            let (column, counters, tiles) = ((k | 1) * limbs * 8, (k | 1) * 4, n.div_ceil(DELTAS_TILE));
            let fit = |bytes: usize| bytes.saturating_sub(counters) / column;
            let largest = LARGEST_TABLE_BYTES.min((gpu.shared_per_block as usize).saturating_sub(DELTAS_LIST_BYTES));
            let fit = if fit(MOST_TABLE_BYTES) > 0 { fit(MOST_TABLE_BYTES) } else { fit(largest) };
            if fit > 0 {
                let chunks = columns.div_ceil(fit).max((gpu.processors as usize / tiles.max(1)).min(columns));
                deltas_chunk = columns.div_ceil(chunks);
                deltas_copies = copies(deltas_chunk * column / 8, DELTAS_COPIES_BYTES, LARGEST_TABLE_BYTES);
            }
            let shares = tiles * columns.div_ceil(deltas_chunk);
            let shared = if deltas_copies > 0 { deltas_chunk * column * deltas_copies + counters } else { 0 };
            let deltas = launch_of(DELTAS_THREADS, "deltas", format!("deltas_{suffix}"), shared, shares)?;
            rest = Some([launch("settle", format!("settle_{suffix}"), 8 * settle_values(d, k), n)?, deltas]);
        }
        let inertia_copies = copies(k * 2, TABLE_BYTES, MOST_TABLE_BYTES);
        Ok(Self {
            strategy,
            label_bytes,
            k_padded,
            copy_width,
            fits,
            assign,
            assign_copies,
            run: 1 << (n / (REGISTER_TILE * RUNS * 8 * assign.blocks as usize)).clamp(1, LONGEST_RUN).ilog2(),
            rest,
            deltas_copies,
            deltas_chunk,
            inertia: launch("distances", format!("inertia_{suffix}"), k * 16 * inertia_copies, n.div_ceil(THREADS as usize))?,
            inertia_copies,
            update: launch("update", format!("update_{suffix}"), 0, warps(k))?,
            fold: launch("update", format!("update_fold_{suffix}"), 0, warps(k))?,
            start: launch("update", format!("start_{suffix}"), 0, warps(k))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_powers_of_two_that_fit() {
        assert_eq!(copies(16, 24 << 10, 64 << 10), 32);
        assert_eq!(copies(256, 24 << 10, 64 << 10), 8);
        assert_eq!(copies(2_000, 24 << 10, 64 << 10), 1);
        assert_eq!(copies(8_000, 24 << 10, 64 << 10), 1);
        assert_eq!(copies(8_200, 24 << 10, 64 << 10), 0);
    }

    #[test]
    fn few_dimensions_live_in_registers() {
        assert_eq!(REGISTER_DIMENSIONS.last(), Some(&crate::backend::chunking::LABELS_IN_PLACE));
        assert_eq!(Strategy::of(5, 4, 0), Strategy::Registers { dimensions: 6, group: 0 });
        assert_eq!(Strategy::of(12, 1_000, 0), Strategy::Registers { dimensions: 12, group: 16 });
        assert_eq!(Strategy::of(17, 33, 0), Strategy::Tiled(Tiled { width: 64, panels: false }));
        assert_eq!(Strategy::of(408, 5_000, 227 << 10), Strategy::Tiled(Tiled { width: 128, panels: true }));
    }
}
