//! Labels and sums in one pass, for few features: `kernels/step/assign_registers.cu`.

use super::filter::{CopyLayout, FilterSpec};
use super::{Candidate, LabelArrays, Needs, Step, Supported, TimeScaling, at_most};
use crate::backend::cuda::arguments::{self, AssignArgument};
use crate::backend::cuda::device::{At, Launch, Plain, Queue};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, GpuSize, padded};
use crate::backend::cuda::shape::{MOST_TABLE_BYTES, TABLE_BYTES, copies};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;
use crate::bounds::Chains;

/// Numbers of dimensions that the kernel is compiled for. Any other number uses the next larger variant. The extra dimensions
/// are zeros.
const DIMENSIONS: [usize; 7] = [1, 2, 3, 4, 6, 8, 12];
const MOST_DIMENSIONS: usize = DIMENSIONS[DIMENSIONS.len() - 1];
/// The rows of a warp's tile, the most tiles in a run, and the runs that each warp should have.
const TILE: usize = 128;
const LONGEST_RUN: usize = 16;
const RUNS: usize = 6;
/// At d <= 4 and at most this many clusters, the pass is bound by memory bandwidth.
const FEW_CLUSTERS: usize = 8;
/// The most bytes of centroids in shared memory.
const CENTROID_BYTES: usize = 48 << 10;

/// Up to this many clusters, groups of 8 centroids are faster than groups of 16.
const MOST_IN_EIGHTS: usize = 384;

/// A variant of the kernel: centroids come one by one, or in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    Single,
    Groups,
}

impl Registers {
    pub const ALL: [Self; 2] = [Self::Single, Self::Groups];

    /// Centroids of a group. 0: no groups.
    fn group(self, k: usize) -> usize {
        match self {
            Self::Single => 0,
            Self::Groups if k <= MOST_IN_EIGHTS => 8,
            Self::Groups => 16,
        }
    }

    /// Rounds `k` up to whole groups of centroids, or to whole pairs if there are no groups.
    fn k_padded(self, k: usize) -> usize {
        padded(k, self.group(k).max(2))
    }

    /// The variant for `d` features, and how the copies of the centroids are laid out for it.
    pub(super) fn filter(self, d: usize, k: usize) -> (usize, FilterSpec) {
        let dimensions = DIMENSIONS.into_iter().find(|&dimensions| dimensions >= d).unwrap_or(d);
        // The values, the half square, and padding to a multiple of 16 bytes.
        let layout = CopyLayout::ByCentroid { width: (dimensions + 1).next_multiple_of(4), half: Some(dimensions) };
        (
            dimensions,
            FilterSpec { k_padded: self.k_padded(k), layout, chains: Chains::FromHalf, subtracts_lower: self == Self::Groups },
        )
    }

    /// Bytes of the centroids in shared memory, without the gaps between groups.
    fn centroid_bytes(self, d: usize, k: usize) -> usize {
        let (dimensions, spec) = self.filter(d, k);
        spec.k_padded.saturating_mul((dimensions + 1).next_multiple_of(4) * 4)
    }
}

impl<T: Float + Plain> Candidate<T> for Registers {
    fn strategy(&self) -> Strategy {
        match self {
            Self::Single => Strategy::RegistersSingle,
            Self::Groups => Strategy::RegistersGroups,
        }
    }

    fn family(&self) -> Option<Strategy> {
        Some(Strategy::Registers)
    }

    fn supports(&self, shape: &FitShape, _gpu: GpuSize) -> Supported {
        at_most(MOST_DIMENSIONS, "features", shape.d)
    }

    fn needs(&self, shape: &FitShape, _gpu: GpuSize) -> Needs {
        Needs { filter: self.filter(shape.d, shape.k).1, label_arrays: LabelArrays::InPlace, bytes: 0 }
    }

    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>> {
        Ok(Box::new(RegistersStep::new(*self, shape, queue)?))
    }

    fn work(&self) -> Option<&dyn TimeScaling> {
        Some(self)
    }
}

impl TimeScaling for Registers {
    /// The next larger width that the kernel is compiled for. But the time of the largest width depends on the actual `d`.
    fn filled(&self, d: usize, k: usize) -> (usize, usize) {
        let compiled = DIMENSIONS.into_iter().find(|&width| width >= d);
        (compiled.filter(|&width| width < MOST_DIMENSIONS).unwrap_or(d), k)
    }

    fn in_rounds(&self) -> bool {
        false
    }

    fn centroids_in_shared(&self, d: usize, k: usize) -> bool {
        self.centroid_bytes(d, k) <= CENTROID_BYTES
    }
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

/// The step of one fit.
struct RegistersStep<T> {
    launch: Launch<AssignArgument<T>>,
    table_copies: usize,
    centroids_in_shared: bool,
    /// Tiles that a warp takes at a time: a power of two.
    run: u32,
    /// The number of tiles that are shared evenly between the warps, in whole rounds. Warps take the other tiles from a counter,
    /// each at its own pace.
    even: u32,
}

impl<T: Float + Plain> RegistersStep<T> {
    fn new(variant: Registers, shape: &FitShape, queue: &Queue) -> Result<Self> {
        let FitShape { chunk: n, d, k, .. } = *shape;
        let (dimensions, spec) = variant.filter(d, k);
        let accumulators = shape.accumulators();
        let table_copies = copies(accumulators, TABLE_BYTES, MOST_TABLE_BYTES);
        let centroids_in_shared = variant.centroids_in_shared(d, k);
        // There is a gap of 16 bytes for each group.
        let group = variant.group(k);
        let gaps = spec.k_padded.checked_div(group).map_or(0, |groups| groups * 16);
        let centroids = if centroids_in_shared { variant.centroid_bytes(d, k) + gaps } else { 0 };
        let entry = arguments::assign_registers::<T>().half_if(shape.half);
        let async_tiles = entry.block.threads as usize * (dimensions * shape.value_bytes() * 4 + 4 * shape.label_bytes());
        let table = if table_copies > 0 { accumulators * 8 * table_copies + k * 4 } else { 0 };
        let groups = if group > 0 { format!("_groups{group}") } else { String::new() };
        let gpu = &queue.gpu;
        let entry = entry.with_shared(async_tiles + centroids + table);
        let launch = entry.resident(gpu, &format!("_d{dimensions}{groups}"), n.div_ceil(8 * TILE))?;
        let few = dimensions <= 4 && group == 0 && k <= FEW_CLUSTERS;
        let (run, even) = shares(n.div_ceil(TILE), 8 * launch.blocks as usize, few);
        Ok(Self { launch, table_copies, centroids_in_shared, run, even })
    }
}

impl<T: Float + Plain> Step<T> for RegistersStep<T> {
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        let argument = AssignArgument {
            table_copies: self.table_copies as i32,
            centroids_in_shared: i32::from(self.centroids_in_shared),
            run: self.run,
            even: self.even,
            ..state.assign_argument(chunk, At::NULL)
        };
        // SAFETY: the addresses are those of the state's buffers, which have the sizes that the kernel indexes: rows up to the
        // stride, (k, columns, limbs) sums, copies of k padded centroids. The kernel settles its rows in doubt itself, so it
        // needs no list of them. It begins with the wait.
        unsafe { state.queue.run_behind_if(chunk.after_kernel, &self.launch, &argument) }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(warps_share_tiles);
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

    unit_test!(few_dimensions_live_in_registers);
    fn few_dimensions_live_in_registers() {
        assert_eq!(Registers::Single.filter(5, 5_000).0, 6);
        assert_eq!(Registers::Groups.filter(12, 5_001).1.k_padded, 5_008);
        assert_eq!(Registers::Groups.filter(12, 383).1.k_padded, 384);
    }
}
