//! Labels and sums in one pass, for few clusters of many features: `kernels/step/assign_columns.cu`.

use super::filter::FilterSpec;
use super::{Candidate, LabelArrays, Needs, Refusal, Step, Supported, TimeScaling, at_most};
use crate::backend::cuda::arguments::{self, AssignArgument};
use crate::backend::cuda::device::{At, Block, Launch, Plain, Queue};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;
use crate::bounds::Chains;

/// Numbers of clusters that the kernel is compiled for. Any other number uses the next larger variant.
const CLUSTERS: [usize; 5] = [2, 4, 8, 16, 32];
const MOST_CLUSTERS: usize = CLUSTERS[CLUSTERS.len() - 1];
/// With fewer features, copies would run more than one tile ahead.
const FEWEST_FEATURES: usize = 9;
/// The rows of a warp's tile.
const TILE: usize = 128;
/// Static shared memory of a warp, and of a block.
const WARP_BYTES: usize = 1_600;
const BLOCK_BYTES: usize = 256;

/// What the kernel calls its shape: the threads of a block, and the bytes of columns on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ColumnRing {
    threads: u32,
    bytes: usize,
}

impl ColumnRing {
    fn new(padded: usize, float64: bool, half: bool) -> Self {
        // Steps of two columns, each with 16 bytes a thread for two or four rows, or 8 bytes for four rows.
        let (threads, steps, planes) =
            if float64 { (384, 3, 2) } else { (if padded < 32 { 512 } else { 384 }, if padded < 32 { 5 } else { 6 }, 1) };
        Self { threads, bytes: steps * 2 * planes * if half { 8 } else { 16 } * threads as usize }
    }

    /// Static shared memory.
    fn other(self) -> usize {
        self.threads as usize / 32 * WARP_BYTES + BLOCK_BYTES
    }
}

/// The candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns;

/// What a block has in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    /// Bytes besides the table of sums.
    fixed: usize,
    /// Bytes of a feature besides its accumulators: the copies of the centroids, and its factors.
    copies: usize,
    factors: usize,
    /// Accumulators of a limb of a column.
    across: usize,
    /// The bytes that a block may have.
    most: usize,
}

impl Room {
    fn new(k: usize, float64: bool, half: bool, shared: usize) -> Self {
        let padded = Columns::padded(k);
        let ring = ColumnRing::new(padded, float64, half);
        // The copies of the centroids, the centre and the weight of a feature, padded to 16 bytes.
        let width = (padded + if float64 { 3 } else { 2 }).next_multiple_of(4);
        Self {
            fixed: ring.bytes + 4 * padded.max(4) + 4 * padded,
            copies: 4 * width,
            factors: 24,
            across: k | 1,
            most: shared.saturating_sub(ring.other()),
        }
    }

    /// The most features for which a table fits. Weights and float64 features have two limbs. float32 features have two only if
    /// the data need them; if the table has no room for two limbs, sums are added without it.
    fn most_features(&self, shape: &FitShape) -> usize {
        let limbs = if shape.float64 || shape.weighted { 2 } else { 1 };
        let column = self.across * limbs * 8;
        let mass = if shape.weighted { column } else { 0 };
        // One feature fills the last step of two.
        self.most.saturating_sub(self.fixed + self.copies + mass) / (self.copies + self.factors + column)
    }

    /// Whether there is a table, and the bytes of shared memory.
    fn table(&self, shape: &FitShape) -> (bool, usize) {
        let others = self.fixed + shape.d.next_multiple_of(2) * self.copies + shape.d * self.factors;
        let accumulators = shape.columns() * shape.limbs * self.across * 8;
        let fits = others + accumulators <= self.most;
        (fits, others + if fits { accumulators } else { 0 })
    }
}

impl Columns {
    /// The clusters of the variant.
    fn padded(k: usize) -> usize {
        CLUSTERS.into_iter().find(|&clusters| clusters >= k).unwrap_or(k)
    }
}

impl<T: Float + Plain> Candidate<T> for Columns {
    fn strategy(&self) -> Strategy {
        Strategy::Columns
    }

    fn supports(&self, shape: &FitShape, gpu: GpuSize) -> Supported {
        at_most(MOST_CLUSTERS, "clusters", shape.k)?;
        if shape.d < FEWEST_FEATURES {
            return Err(Refusal::new(format!("at least {FEWEST_FEATURES} features"), shape.d));
        }
        let most = Room::new(shape.k, shape.float64, shape.half, gpu.shared).most_features(shape);
        at_most(most, &format!("features in {} clusters", shape.k), shape.d)
    }

    fn needs(&self, shape: &FitShape, _gpu: GpuSize) -> Needs {
        let filter = FilterSpec::by_feature(Self::padded(shape.k), Chains::One);
        Needs { filter, label_arrays: LabelArrays::InPlace, bytes: 0 }
    }

    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>> {
        Ok(Box::new(ColumnsStep::new(shape, queue)?))
    }

    fn work(&self) -> Option<&dyn TimeScaling> {
        Some(self)
    }
}

impl TimeScaling for Columns {
    fn filled(&self, d: usize, k: usize) -> (usize, usize) {
        (d, Self::padded(k))
    }

    fn in_rounds(&self) -> bool {
        true
    }
}

/// The step of one fit.
struct ColumnsStep<T> {
    launch: Launch<AssignArgument<T>>,
    table: bool,
}

impl<T: Float + Plain> ColumnsStep<T> {
    fn new(shape: &FitShape, queue: &Queue) -> Result<Self> {
        let gpu = &queue.gpu;
        let (table, shared) = Room::new(shape.k, shape.float64, shape.half, gpu.size().shared).table(shape);
        let padded = Columns::padded(shape.k);
        let threads = ColumnRing::new(padded, shape.float64, shape.half).threads;
        let entry = arguments::assign_columns::<T>().half_if(shape.half).with_block(Block { threads, shared });
        let launch = entry.resident(gpu, &format!("_k{padded}"), shape.chunk.div_ceil(TILE))?;
        Ok(Self { launch, table })
    }
}

impl<T: Float + Plain> Step<T> for ColumnsStep<T> {
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        let argument = AssignArgument { table_copies: i32::from(self.table), ..state.assign_argument(chunk, At::NULL) };
        // SAFETY: the addresses are those of the state's buffers, which have the sizes that the kernel indexes: rows up to the
        // stride, (k, columns, limbs) sums, copies of k padded centroids by feature. A label has one byte, because there are few
        // clusters. The kernel settles its rows in doubt itself, so it needs no list of them. It begins with the wait.
        unsafe { state.queue.run_behind_if(chunk.after_kernel, &self.launch, &argument) }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::choice::tests::{H200, shape};
    use super::*;

    unit_test!(what_a_block_needs_fits);
    fn what_a_block_needs_fits() {
        for (d, k) in [(9, 1), (48, 8), (100, 16), (256, 32), (300, 17)] {
            let shape = shape(1_000, d, k);
            assert!(Candidate::<f32>::supports(&Columns, &shape, H200).is_ok(), "{d} {k}");
            let room = Room::new(k, false, false, H200.shared);
            let (table, shared) = room.table(&shape);
            assert!(table && shared <= room.most && shared > room.fixed, "{d} {k}: {table} {shared}");
        }
        // If float32 features turn out to need two limbs, a table that is too large is left out.
        let room = Room::new(32, false, false, H200.shared);
        let (table, shared) = room.table(&FitShape { limbs: 2, ..shape(1_000, 300, 32) });
        assert!(!table && shared <= room.most);
    }

    unit_test!(limits_are_named);
    fn limits_are_named() {
        let error =
            |shape, gpu| Candidate::<f32>::supports(&Columns, &shape, gpu).unwrap_err().of(Strategy::Columns).to_string();
        assert!(error(shape(9, 20, 33), H200).contains("at most 32 clusters for \"columns\", got 33"));
        assert!(error(shape(9, 8, 5), H200).contains("at least 9 features for \"columns\", got 8"));
        assert!(error(shape(9, 5_000, 5), H200).contains("features in 5 clusters for \"columns\", got 5000"));
        assert!(error(shape(9, 300, 32), GpuSize { shared: 99 << 10, ..H200 }).contains("features in 32 clusters"));
    }
}
