//! Which kernels a fit launches, and the blocks and shared memory of each launch. All of it follows from the shape of the fit
//! and the GPU.

use super::device::{Gpu, Kernel};
use super::session::launch_rows;
use super::systems::RowKernel;
use crate::certify::Chains;
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::strategy::Strategy as Named;

/// Threads of a block in most kernels.
pub const THREADS: u32 = 256;
/// Numbers of dimensions that `assign_registers` is compiled for. Any other number uses the next larger variant. The extra
/// dimensions are zeros.
pub const REGISTER_DIMENSIONS: [usize; 7] = [1, 2, 3, 4, 6, 8, 12];
/// The rows of a warp's tile (`kernels/step/assign_registers.cu`), the most tiles in a run, and the runs that each warp should have.
const REGISTER_TILE: usize = 128;
const LONGEST_RUN: usize = 16;
const RUNS: usize = 6;
/// At d <= 4 and at most this many clusters, the pass is bound by memory bandwidth.
const FEW_CLUSTERS: usize = 8;
/// Limits for the shared memory of a block: bytes for centroids, bytes for copies of the table of cells, and bytes for the
/// table if only one copy fits.
const CENTROID_BYTES: usize = 48 << 10;
pub const TABLE_BYTES: usize = 24 << 10;
pub const MOST_TABLE_BYTES: usize = 64 << 10;
/// Limits of the variants of `kernels/step/assign_tiled.cu` with panels. They need this much shared memory for each block, so that
/// as many blocks run at once as they are compiled for. They allow at most this many clusters, because they store cluster
/// numbers in 16 bits.
pub const PANELS_FROM: usize = 224 << 10;
pub const MOST_WITH_PANELS: usize = 1 << 16;
/// Threads of a block of `settle_pairs` (`kernels/step/settle.cu`).
pub const SETTLE_PAIRS_THREADS: u32 = 128;
/// The largest result of [`settle_values`]: at least one value of each of 128 rows.
const SETTLE_VALUES: usize = 8_192;
/// Limits of `kernels/passes/update.cu`: the most threads of a block, the most threads of one cluster, and the number of blocks up to
/// which blocks stay small (see `update_shape`).
const UPDATE_THREADS: u32 = 512;
const LARGEST_TEAM: u32 = 256;
const MANY_BLOCKS: usize = 256;
/// Constants of `kernels/step/deltas.cu`: threads of a block, bytes of labels that a warp compares at a time, and the shared memory
/// besides the table.
const DELTAS_THREADS: u32 = 512;
const DELTAS_TILE_BYTES: usize = 512;
const DELTAS_OTHER_BYTES: usize = 41 << 10;
/// The fewest and the most columns of a chunk.
const DELTAS_COLUMNS: std::ops::RangeInclusive<usize> = 8..=1_024;
/// The cost of adding one cell of a table to device memory, in bytes of labels read.
const DELTAS_CELL: f64 = 20.0;
/// Up to this many values, direct additions to device memory are about as fast as tables, even if they go to few places.
const DELTAS_ADDITIONS: usize = 4_096;
/// Bytes for copies of cells, and bytes of the largest table. The largest table is used if a table of `MOST_TABLE_BYTES` would
/// hold only one column. A thread would then have only one load in flight.
const DELTAS_COPIES_BYTES: usize = 40 << 10;
const LARGEST_TABLE_BYTES: usize = 184 << 10;

/// How an assign finds the labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// `kernels/step/assign_registers.cu`: the number of dimensions that it is compiled for, and the centroids of a group (0: no
    /// groups, one centroid at a time).
    Registers {
        dimensions: usize,
        group: usize,
    },
    Tiled(Tiled),
    /// A kernel of one of the systems from the papers.
    Rows(RowKernel),
}

/// A variant of `kernels/step/assign_tiled.cu`: the centroids of a tile, and the features of a partial sum (0: no partial sums).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiled {
    width: usize,
    panel: usize,
}

/// A kernel with its number of blocks, and the threads and shared memory of each block.
#[derive(Clone, Copy)]
pub struct Launch {
    pub kernel: Kernel,
    pub blocks: u32,
    pub threads: u32,
    pub shared: u32,
}

/// All launches of one fit and their settings.
pub struct Plan {
    pub strategy: Strategy,
    /// Bytes of a label.
    pub label_bytes: usize,
    /// Clusters with the padding that the assign needs.
    pub k_padded: usize,
    /// Floats of the copy of one centroid (registers), or of the copies of one feature (tiled).
    pub copy_width: usize,
    /// Whether the centroids fit in shared memory (registers).
    pub fits: bool,
    pub assign: Launch,
    pub assign_copies: usize,
    /// Tiles that a warp takes at a time (registers): a power of two.
    pub run: u32,
    /// The number of tiles that are shared evenly between the warps, in whole rounds (registers). Warps take the other tiles
    /// from a counter, each at its own pace.
    pub even: u32,
    /// The kernels that follow the assign (tiled): `settle` for rows in doubt, `deltas` for the sums.
    pub rest: Option<[Launch; 2]>,
    /// The kernel for rows in doubt that have only two centroids in reach, if the assign lists them separately.
    pub pairs: Option<Launch>,
    pub deltas_copies: usize,
    pub deltas_chunk: usize,
    /// Up to this many changed rows, a block adds directly to device memory, without a table.
    pub deltas_few: usize,
    pub inertia: Launch,
    pub inertia_copies: usize,
    /// Threads of one cluster in an update.
    pub team: u32,
    pub update: Launch,
    pub fold: Launch,
    pub start: Launch,
}

/// The number of copies of each cell that fit in `bytes`: a power of two, at most 32. If not even one copy fits, the result is
/// 1 if one copy fits in `most`, and else 0.
pub fn copies(cells: usize, bytes: usize, most: usize) -> usize {
    match bytes / (cells * 8) {
        0 if cells * 8 <= most => 1,
        0 => 0,
        fit => 1 << fit.min(32).ilog2(),
    }
}

/// Centroids of a group (registers). 0 if the variant takes them one by one.
pub fn group_of(named: Named) -> usize {
    match named {
        Named::RegistersGroups8 => 8,
        Named::RegistersGroups16 => 16,
        _ => 0,
    }
}

/// Rounds `k` up to whole groups of centroids, or to whole pairs if there are no groups.
fn padded(k: usize, group: usize) -> usize {
    k.next_multiple_of(group.max(2))
}

/// Floats of the copy of one centroid: its values, its half square, and padding to a multiple of 16 bytes.
fn centroid_width(dimensions: usize) -> usize {
    (dimensions + 1).next_multiple_of(4)
}

/// Whether the centroids fit in the shared memory of a block (registers).
pub fn centroids_fit(d: usize, k: usize, group: usize) -> bool {
    let dimensions = REGISTER_DIMENSIONS.into_iter().find(|&dimensions| dimensions >= d).unwrap_or(d);
    padded(k, group) * centroid_width(dimensions) * 4 <= CENTROID_BYTES
}

/// The threads of a cluster, the threads of a block, and the blocks for all clusters in an update. Each feature has a thread.
/// If one block is enough for all clusters, there is one block. Otherwise blocks are small, so that no two share an SM. But if
/// that gave too many blocks, blocks are larger.
fn update_shape(d: usize, k: usize) -> (u32, u32, usize) {
    let team = (d.next_power_of_two() as u32).clamp(32, LARGEST_TEAM);
    let all = k.saturating_mul(team as usize);
    let threads = if all <= UPDATE_THREADS as usize {
        (all as u32).max(64)
    } else {
        team.max(if all <= MANY_BLOCKS * 128 { 128 } else { 256 })
    };
    (team, threads, k.div_ceil((threads / team) as usize))
}

/// Returns the tiles that a warp takes at a time, and the number of tiles that are shared evenly. Some warps are faster than
/// others. So each warp owns only its first run and takes all later runs from a counter. Each turn costs one addition to that
/// counter. This matters if the pass is bound by memory bandwidth and runs are short (`few`). Then only the last runs come from
/// the counter.
fn shares(tiles: usize, warps: usize, few: bool) -> (u32, u32) {
    let run = |runs: usize, longest: usize| 1 << (tiles / (runs * warps)).clamp(1, longest).ilog2();
    if !few || tiles / warps >= RUNS * LONGEST_RUN {
        let run = run(RUNS, LONGEST_RUN);
        return (run as u32, (warps * run) as u32);
    }
    let run: usize = run(4 * RUNS, LONGEST_RUN / 4);
    let rounds = tiles / (warps * run);
    let even = rounds - (rounds / 10).max(2).min(rounds);
    (run as u32, (even.max(1) * warps * run) as u32)
}

/// Float64 values that `kernels/step/settle.cu` keeps in shared memory: 16 rows for each group of threads in a block, if they fit.
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
    /// The variant for a shape. Panels leave fewer rows in doubt. `shared`: the bytes of shared memory that a block may have.
    pub fn of(d: usize, k: usize, shared: usize) -> Self {
        let width = [32, 64].into_iter().find(|&width| k <= width).unwrap_or(128);
        let panel = match width {
            _ if shared < PANELS_FROM || k > MOST_WITH_PANELS => 0,
            64 => 64,
            128 => 128,
            _ => 0,
        };
        Self { width, panel: if d > panel { panel } else { 0 } }
    }

    /// The kernel's name; `*` stands for the type.
    pub fn name(self) -> String {
        format!("assign_tiled_*_k{}{}", self.width, if self.panel > 0 { "_panels" } else { "" })
    }

    pub fn threads(self) -> u32 {
        2 * self.width as u32
    }

    /// Bytes of dynamic shared memory: 64 floats for each thread, and one float for each row and each warp across the tile.
    pub fn shared(self) -> usize {
        if self.panel > 0 { 256 * self.threads() as usize + self.width / 32 * 512 } else { 0 }
    }

    /// Whether rows with exactly two centroids in reach go to a separate list.
    pub fn has_pairs(self) -> bool {
        self.panel > 0
    }

    /// How a score's products are added up.
    pub fn chains(self) -> Chains {
        if self.panel > 0 { Chains::Panels(self.panel) } else { Chains::One }
    }
}

impl Strategy {
    /// How a score's products are added up.
    pub fn chains(self) -> Chains {
        match self {
            Self::Registers { .. } | Self::Rows(_) => Chains::FromHalf,
            Self::Tiled(tiled) => tiled.chains(),
        }
    }

    /// The strategy of one of our own names, which the chooser or the caller gave. `shared`: the bytes of shared memory that a
    /// block may have.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] if the strategy cannot do the shape.
    pub fn of(named: Named, d: usize, k: usize, shared: usize) -> Result<Self> {
        let refused = |limit: String, got: String| KMeansError::InvalidOption {
            option: "strategy",
            expected: format!("{limit} for \"{named}\""),
            got,
        };
        let registers = |group: usize| {
            let dimensions = REGISTER_DIMENSIONS.into_iter().find(|&dimensions| dimensions >= d);
            let dimensions = dimensions.ok_or_else(|| refused("at most 12 features".into(), d.to_string()))?;
            Ok(Self::Registers { dimensions, group })
        };
        let tiled = |width: usize, panel: usize| Ok(Self::Tiled(Tiled { width, panel }));
        let panels = shared >= PANELS_FROM && k <= MOST_WITH_PANELS;
        match named {
            Named::Registers | Named::RegistersSingle | Named::RegistersGroups8 | Named::RegistersGroups16 => {
                registers(group_of(named))
            }
            Named::Tiled => Ok(Self::Tiled(Tiled::of(d, k, shared))),
            Named::Tiled32 => tiled(32, 0),
            Named::Tiled64 => tiled(64, if panels && d > 64 { 64 } else { 0 }),
            Named::Tiled128 => tiled(128, 0),
            Named::Tiled128Panels if shared < PANELS_FROM => {
                Err(refused(format!("{PANELS_FROM} bytes of shared memory a block"), shared.to_string()))
            }
            Named::Tiled128Panels if !panels => Err(refused(format!("at most {MOST_WITH_PANELS} clusters"), k.to_string())),
            Named::Tiled128Panels => tiled(128, 128),
            _ => unreachable!("a family was narrowed down by the chooser, and the papers' systems are made in systems.rs"),
        }
    }
}

impl Plan {
    /// The plan for `n` rows of `d` features and `k` clusters. `columns` and `limbs` describe the sums.
    pub fn new<T: Float>(gpu: &Gpu, strategy: Strategy, [n, d, k]: [usize; 3], columns: usize, limbs: usize) -> Result<Self> {
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
        let cells = k * columns * limbs;
        let (k_padded, copy_width, fits, assign_copies, assign) = match strategy {
            Strategy::Registers { dimensions, group } => {
                let k_padded = padded(k, group);
                let (width, fits) = (centroid_width(dimensions), centroids_fit(d, k, group));
                let copies = copies(cells, TABLE_BYTES, MOST_TABLE_BYTES);
                // There is a gap of 16 bytes for each group.
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
                let mut launch = launch_of(tiled.threads(), "assign_tiled", name, tiled.shared(), n.div_ceil(128))?;
                launch.shared = gpu.evenly(launch.kernel, launch.threads, launch.blocks, launch.shared)?;
                (k_padded, k_padded, false, 0, launch)
            }
            Strategy::Rows(rows) => (rows.k_padded, rows.width, false, 0, launch_rows::<T>(gpu, &rows, n)?),
        };
        let (mut rest, mut pairs) = (None, None);
        let (mut deltas_copies, mut deltas_chunk, mut deltas_few) = (0, columns, 0);
        if let Strategy::Tiled(tiled) = strategy {
            // A table takes as many columns as it can hold, but the work must still be enough for the whole device.
            let (column, counters, tiles) = ((k | 1) * limbs * 8, (k | 1) * 4, (n * label_bytes).div_ceil(DELTAS_TILE_BYTES));
            let fit = |bytes: usize| (bytes.saturating_sub(counters) / column).min(*DELTAS_COLUMNS.end());
            let room = (gpu.shared_per_block as usize).saturating_sub(DELTAS_OTHER_BYTES);
            let (usual, largest) = (fit(MOST_TABLE_BYTES.min(room)), fit(LARGEST_TABLE_BYTES.min(room)));
            let fit = if usual > 1 { usual } else { largest };
            deltas_chunk = deltas_chunk.min(*DELTAS_COLUMNS.end());
            if fit > 0 {
                // The chunks of columns have two costs. Each block that has a share of the rows adds the cells of its table to
                // device memory. Each chunk of columns reads all labels again. The sum of both costs is least at this number of
                // chunks:
                let blocks = 2 * gpu.processors as usize;
                let even = (DELTAS_CELL * (blocks * k * columns) as f64 / (n * label_bytes) as f64).sqrt() as usize;
                let chunks = columns.div_ceil(fit).max(even.min(columns / DELTAS_COLUMNS.start()));
                deltas_chunk = columns.div_ceil(chunks);
                deltas_copies = copies(deltas_chunk * column / 8, DELTAS_COPIES_BYTES, LARGEST_TABLE_BYTES);
            }
            let chunks = columns.div_ceil(deltas_chunk);
            let table = (deltas_chunk * column * deltas_copies + counters).next_multiple_of(16);
            let shared = (deltas_chunk * 24).next_multiple_of(16) + if deltas_copies > 0 { table } else { 0 };
            let mut deltas = launch_of(DELTAS_THREADS, "deltas", format!("deltas_{suffix}"), shared, tiles * chunks)?;
            // Every chunk gets the same number of blocks.
            deltas.blocks -= if deltas.blocks as usize > chunks { deltas.blocks % chunks as u32 } else { 0 };
            // Direct additions pay off for rows that hardly share cells, or if there are few values in all. The limit is not
            // higher, because additions to the same place wait for each other.
            deltas_few = (k / 2).max(DELTAS_ADDITIONS * chunks / (deltas.blocks as usize * columns));
            if tiled.has_pairs() {
                pairs = Some(launch_of(SETTLE_PAIRS_THREADS, "settle", format!("settle_pairs_{suffix}"), 0, n)?);
            }
            rest = Some([launch("settle", format!("settle_{suffix}"), 8 * settle_values(d, k), n)?, deltas]);
        }
        let (team, update_threads, update_blocks) = update_shape(d, k);
        let updating = |name: &str| launch_of(update_threads, "update", format!("{name}_{suffix}"), 0, update_blocks);
        let few = matches!(strategy, Strategy::Registers { dimensions: ..=4, group: 0 }) && k <= FEW_CLUSTERS;
        let (run, even) = shares(n.div_ceil(REGISTER_TILE), 8 * assign.blocks as usize, few);
        let inertia_copies = copies(k * 2, TABLE_BYTES, MOST_TABLE_BYTES);
        Ok(Self {
            strategy,
            label_bytes,
            k_padded,
            copy_width,
            fits,
            assign,
            assign_copies,
            run,
            even,
            rest,
            pairs,
            deltas_copies,
            deltas_chunk,
            deltas_few,
            inertia: launch("distances", format!("inertia_{suffix}"), k * 16 * inertia_copies, n.div_ceil(THREADS as usize))?,
            inertia_copies,
            team,
            update: updating("update")?,
            fold: launch("update", format!("update_fold_{suffix}"), 0, (k * columns).div_ceil(THREADS as usize))?,
            start: updating("start")?,
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
    fn a_team_has_a_cluster() {
        assert_eq!(update_shape(2, 1), (32, 64, 1));
        assert_eq!(update_shape(20, 16), (32, 512, 1));
        assert_eq!(update_shape(20, 17), (32, 128, 5));
        assert_eq!(update_shape(34, 32), (64, 128, 16));
        assert_eq!(update_shape(30, 2_000), (32, 256, 250));
        assert_eq!(update_shape(4_000, 100), (256, 256, 100));
    }

    #[test]
    fn warps_share_tiles() {
        // Every warp owns its first run.
        assert_eq!(shares(1, 100, false), (1, 100));
        assert_eq!(shares(1, 100, true), (1, 100));
        assert_eq!(shares(10_000, 100, false), (16, 1_600));
        // With few clusters, all tiles but a tenth (at least two rounds) are shared evenly, unless there are very many tiles.
        assert_eq!(shares(1_000, 100, true), (1, 800));
        assert_eq!(shares(9_500, 100, true), (2, 8_600));
        assert_eq!(shares(10_000, 100, true), (16, 1_600));
    }

    #[test]
    fn few_dimensions_live_in_registers() {
        assert_eq!(REGISTER_DIMENSIONS.last(), Some(&crate::backend::chunking::LABELS_IN_PLACE));
        let of = |named, d| Strategy::of(named, d, 5_000, 227 << 10);
        assert_eq!(of(Named::RegistersSingle, 5).unwrap(), Strategy::Registers { dimensions: 6, group: 0 });
        assert_eq!(of(Named::RegistersGroups16, 12).unwrap(), Strategy::Registers { dimensions: 12, group: 16 });
        assert_eq!(of(Named::Tiled64, 17).unwrap(), Strategy::Tiled(Tiled { width: 64, panel: 0 }));
        assert_eq!(of(Named::Tiled64, 65).unwrap(), Strategy::Tiled(Tiled { width: 64, panel: 64 }));
        assert_eq!(of(Named::Tiled128Panels, 408).unwrap(), Strategy::Tiled(Tiled { width: 128, panel: 128 }));
        let error = of(Named::Registers, 13).unwrap_err().to_string();
        assert!(error.contains("at most 12 features for \"registers\", got 13"), "{error}");
        assert_eq!(of(Named::Tiled, 408).unwrap(), of(Named::Tiled128Panels, 408).unwrap());
        assert!(Strategy::of(Named::Tiled128Panels, 408, 5_000, 99 << 10).is_err());
        assert!(Strategy::of(Named::Tiled128Panels, 408, 70_000, 227 << 10).is_err());
    }
}
