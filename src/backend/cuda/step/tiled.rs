//! Labels in tiles of shared memory, then the labels of the rows in doubt, then the sums of the rows that changed:
//! `kernels/step/assign_tiled.cu`, `settle.cu` and `deltas.cu`. For any number of features.

use super::deltas::DeltasLaunch;
use super::filter::FilterSpec;
use super::shares::{Shares, Tiles};
use super::{Candidate, LabelArrays, Needs, Refusal, Step, Supported, TimeScaling, at_most};
use crate::backend::cuda::arguments::{self, AssignArgument, RowInDoubt, SettleArgument};
use crate::backend::cuda::device::{Block, Gpu, Launch, Plain, Queue, buffers, sum};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, GpuSize, padded};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;
use crate::bounds::Chains;

/// Limits of the variants with panels. They need this much shared memory for each block, so that as many blocks run at once as
/// they are compiled for. They allow at most this many clusters, because they store cluster numbers in 16 bits.
const PANELS_FROM: usize = 224 << 10;
const MOST_WITH_PANELS: usize = 1 << 16;
/// Clusters are padded to a multiple of this.
pub const CLUSTER_PADDING: usize = 128;
/// The largest result of [`settle_values`]: at least one value of each of 128 rows.
const SETTLE_VALUES: usize = 8_192;

/// A variant of the kernel. Its panels depend on the shape and on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiled {
    strategy: Strategy,
    /// Centroids of a tile.
    width: usize,
    /// With more features and more clusters than these, it adds up its products in panels, if the GPU can.
    panels_beyond: [usize; 2],
}

impl Tiled {
    pub const WIDTH_32: Self = Self { strategy: Strategy::Tiled32, width: 32, panels_beyond: [usize::MAX; 2] };
    pub const WIDTH_64: Self = Self { strategy: Strategy::Tiled64, width: 64, panels_beyond: [64, 0] };
    pub const WIDTH_128: Self = Self { strategy: Strategy::Tiled128, width: 128, panels_beyond: [usize::MAX; 2] };
    pub const PANELS_128: Self = Self { strategy: Strategy::Tiled128Panels, width: 128, panels_beyond: [0; 2] };

    pub const ALL: [Self; 4] = [Self::WIDTH_32, Self::WIDTH_64, Self::WIDTH_128, Self::PANELS_128];

    /// The variant that leaves the fewest rows in doubt, for a model's predictions.
    pub fn for_model(d: usize, k: usize) -> Self {
        match k {
            0..=32 => Self::WIDTH_32,
            33..=64 => Self::WIDTH_64,
            _ if d > 128 => Self::PANELS_128,
            _ => Self::WIDTH_128,
        }
    }

    /// Its tiles for a shape. `shared`: the shared memory that a block may have.
    pub fn tile(self, d: usize, k: usize, shared: usize) -> TileShape {
        let [features, clusters] = self.panels_beyond;
        let possible = shared >= PANELS_FROM && k <= MOST_WITH_PANELS;
        TileShape { width: self.width, panel: if possible && d > features && k > clusters { self.width } else { 0 } }
    }

    /// The tiles of a pass over `n` rows.
    pub fn tiles(self, [n, d, k]: [usize; 3], gpu: GpuSize) -> Tiles {
        let blocks = match self.width {
            128 => 2,
            64 if self.tile(d, k, gpu.shared).panel > 0 => 3,
            64 => 4,
            _ => 8,
        };
        Tiles { rows: Tiles::of_rows(n), centroids: k.div_ceil(self.width), features: d, processors: gpu.processors, blocks }
    }

    /// How the copies of the centroids are laid out for it.
    pub fn filter(self, d: usize, k: usize, gpu: GpuSize) -> FilterSpec {
        self.tile(d, k, gpu.shared).filter(k)
    }
}

/// A tile of a kernel that multiplies in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileShape {
    /// Its centroids.
    pub width: usize,
    /// Features of a partial sum. 0: no partial sums.
    pub panel: usize,
}

impl TileShape {
    /// How the copies of the centroids are laid out.
    pub fn filter(self, k: usize) -> FilterSpec {
        let chains = if self.panel > 0 { Chains::Panels(self.panel) } else { Chains::One };
        FilterSpec::by_feature(padded(k, CLUSTER_PADDING), chains)
    }

    /// The end of the kernel's name.
    pub fn variant(self) -> String {
        format!("_k{}{}", self.width, if self.panel > 0 { "_panels" } else { "" })
    }

    pub fn threads(self) -> u32 {
        2 * self.width as u32
    }

    /// Bytes of the partial sums of a block: 64 floats for each thread.
    pub fn partial_sums(self) -> usize {
        if self.panel > 0 { 256 * self.threads() as usize } else { 0 }
    }
}

impl<T: Float + Plain> Candidate<T> for Tiled {
    fn strategy(&self) -> Strategy {
        self.strategy
    }

    fn family(&self) -> Option<Strategy> {
        Some(Strategy::Tiled)
    }

    fn supports(&self, shape: &FitShape, gpu: GpuSize) -> Supported {
        if self.strategy != Strategy::Tiled128Panels || self.tile(shape.d, shape.k, gpu.shared).panel > 0 {
            return Ok(());
        }
        at_most(MOST_WITH_PANELS, "clusters", shape.k)?;
        let limit = format!("{PANELS_FROM} bytes of shared memory a block");
        Err(Refusal { limit, hint: "", got: gpu.shared.to_string() })
    }

    fn needs(&self, shape: &FitShape, gpu: GpuSize) -> Needs {
        let filter = self.filter(shape.d, shape.k, gpu);
        let shares = Shares::bytes(self.tiles([shape.chunk, shape.d, shape.k], gpu));
        Needs { filter, label_arrays: LabelArrays::BeforeAndAfter, bytes: sum([Doubt::bytes(shape.chunk), shares]) }
    }

    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>> {
        let FitShape { chunk, d, k, half, .. } = *shape;
        Ok(Box::new(TiledStep {
            labels: TiledLabels::new(*self, [chunk, d, k], half, queue)?,
            doubt: Doubt::allocate(queue, chunk)?,
            deltas: DeltasLaunch::new::<T>(shape, queue)?,
        }))
    }

    fn work(&self) -> Option<&dyn TimeScaling> {
        Some(self)
    }
}

impl TimeScaling for Tiled {
    fn filled(&self, d: usize, k: usize) -> (usize, usize) {
        (d, padded(k, self.width))
    }

    fn in_rounds(&self) -> bool {
        true
    }
}

/// Float64 values that `kernels/step/settle.cu` keeps in shared memory: 16 rows for each group of threads in a block, if they
/// fit.
fn settle_values(d: usize, k: usize) -> usize {
    let groups = match k {
        0..=32 => 8,
        33..=64 => 4,
        65..=128 => 2,
        _ => 1,
    };
    16usize.saturating_mul(groups).saturating_mul(d).min(SETTLE_VALUES)
}

/// The launches that label all rows in doubt by reference distances to all centroids in reach.
pub struct SettleLaunches<T> {
    launch: Launch<SettleArgument<T>>,
    /// For rows that have only two centroids in reach, if the assign lists them separately.
    pairs: Option<Launch<SettleArgument<T>>>,
    values: usize,
}

impl<T: Float + Plain> SettleLaunches<T> {
    /// `n`: the most rows of a chunk. `half`: whether their values have 16 bits. `pairs`: whether the assign lists rows with two
    /// centroids in reach separately.
    pub fn new([n, d, k]: [usize; 3], half: bool, pairs: bool, queue: &Queue) -> Result<Self> {
        let (gpu, values) = (&*queue.gpu, settle_values(d, k));
        let launch = arguments::settle::<T>().half_if(half).with_shared(8 * values).resident(gpu, "", n)?;
        let entry = arguments::settle_pairs::<T>().half_if(half);
        let pairs = if pairs { Some(entry.resident(gpu, "", n)?) } else { None };
        Ok(Self { launch, pairs, values })
    }

    /// Labels the rows that an assign with the same argument has left in doubt. `centroids`: `(k, d)`. `fewest`: if fewer rows
    /// are in doubt, not counting pairs, `settle_listed` has labelled them.
    ///
    /// # Safety
    /// The assign was launched before in the same queue, and its addresses are still live. `centroids` has k x d values.
    pub unsafe fn launch(&self, queue: &Queue, assign: &AssignArgument<T>, centroids: u64, fewest: u32) -> Result<()> {
        let argument = SettleArgument {
            rows: assign.rows,
            next: assign.next,
            centroid_columns: assign.centroid_columns,
            centroids,
            scale: assign.scale,
            in_doubt: assign.in_doubt,
            control: assign.control,
            k: assign.k,
            values: self.values as i32,
            fewest,
            ..SettleArgument::zero()
        };
        // SAFETY: the caller promises the addresses. The shared memory has room for the values. The kernels begin with the wait.
        unsafe {
            queue.run_behind(&self.launch, &argument)?;
            self.pairs.map_or(Ok(()), |pairs| queue.run_behind(&pairs, &argument))
        }
    }
}

/// The launches that label rows exactly: what the filter is sure of, then the rows in doubt. A fit's step and the predictions of
/// a model share them.
pub struct TiledLabels<T> {
    assign: Launch<AssignArgument<T>>,
    shares: Shares,
    settle: SettleLaunches<T>,
}

impl<T: Float + Plain> TiledLabels<T> {
    /// `n`: the most rows of a chunk. `half`: whether their values have 16 bits.
    pub fn new(variant: Tiled, [n, d, k]: [usize; 3], half: bool, queue: &Queue) -> Result<Self> {
        let gpu: &Gpu = &queue.gpu;
        let tile = variant.tile(d, k, gpu.size().shared);
        let with_panels = tile.panel > 0;
        // Besides the partial sums, one float for each row and each warp across the tile.
        let thirds = if with_panels { tile.width / 32 * 512 } else { 0 };
        let block = Block { threads: tile.threads(), shared: tile.partial_sums() + thirds };
        let tiles = variant.tiles([n, d, k], gpu.size());
        let shares = Shares::new(queue, tiles)?;
        let entry = arguments::assign_tiled::<T>().half_if(half).with_block(block);
        let assign = entry.resident(gpu, &tile.variant(), tiles.rows * shares.count)?;
        // Every tile of rows gets all of its blocks.
        let blocks = (assign.blocks as usize / shares.count).max(1) * shares.count;
        let assign = assign.with_blocks(blocks).spread(gpu)?;
        // Only variants with panels list pairs separately.
        Ok(Self { assign, shares, settle: SettleLaunches::new([n, d, k], half, with_panels, queue)? })
    }

    /// Labels the rows of the argument. `first`: how the first kernel is launched. `centroids`: `(k, d)`.
    ///
    /// # Safety
    /// All addresses of the argument are live, with the sizes that the kernels index: rows up to the stride, copies of k padded
    /// centroids by feature, (d, k) centroids, a label and a place in the list of rows in doubt for each row. `centroids` has
    /// k x d values.
    pub unsafe fn launch(&self, queue: &Queue, after_kernel: bool, argument: &AssignArgument<T>, centroids: u64) -> Result<()> {
        let shared = self.shares.of(argument);
        // SAFETY: the caller promises the addresses. The shares have a place for every row of every share, and the number of
        // blocks is a multiple of theirs. All kernels here begin with the wait.
        unsafe {
            queue.run_behind_if(after_kernel, &self.assign, &shared)?;
            self.settle.launch(queue, argument, centroids, 1)
        }
    }
}

buffers! {
    /// The list of rows in doubt, for chunks of at most `n` rows.
    pub struct Doubt = "the rows in doubt" (n: usize) {
        in_doubt: RowInDoubt [n],
    }
}

/// The step of one fit.
struct TiledStep<T> {
    labels: TiledLabels<T>,
    doubt: Doubt,
    deltas: DeltasLaunch,
}

impl<T: Float + Plain> Step<T> for TiledStep<T> {
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        let argument = state.assign_argument(chunk, self.doubt.in_doubt.at());
        // SAFETY: the addresses are those of the state's buffers and of the list, which has a place for each row of a chunk.
        unsafe { self.labels.launch(&state.queue, chunk.after_kernel, &argument, state.centroids.now.at())? };
        self.deltas.launch(chunk, state, None)
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::choice::tests::{H200, shape};
    use super::*;

    unit_test!(panels_where_they_fit);
    fn panels_where_they_fit() {
        let panel = |variant: Tiled, d, k| variant.tile(d, k, 227 << 10).panel;
        assert_eq!(panel(Tiled::WIDTH_64, 17, 5_000), 0);
        assert_eq!(panel(Tiled::WIDTH_64, 65, 5_000), 64);
        assert_eq!([64, 408].map(|d| panel(Tiled::PANELS_128, d, 5_000)), [128; 2]);
        assert_eq!([128, 130].map(|d| panel(Tiled::for_model(d, 5_000), d, 5_000)), [0, 128]);
        let supports =
            |k, shared| Candidate::<f32>::supports(&Tiled::PANELS_128, &shape(1_000, 408, k), GpuSize { shared, ..H200 });
        assert!(supports(5_000, 227 << 10).is_ok());
        assert!(supports(5_000, 99 << 10).is_err() && supports(70_000, 227 << 10).is_err());
    }
}
