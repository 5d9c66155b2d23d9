//! Labels by tensor cores, then the labels of the rows in doubt, then the sums of the rows that changed: `tensor_centres.cu`,
//! `tensor_groups.cu`, `tensor_places.cu`, `tensor_rows.cu`, `tensor_centroids.cu`, `assign_tensor.cu` or `assign_tensor_mma.cu`,
//! `tensor_rescore.cu`, `settle_few.cu`, `settle.cu` and `deltas.cu` of `kernels/step/`. `tensor/labels.rs` has the steps of a
//! pass as types, `tensor/products.rs` the products, `tensor/rescore.rs` the second product, `tensor/doubt.rs` what settles rows
//! in doubt. `tensor/unit.rs` says which GPUs have which kernel, `tensor/adding.rs` how they add up, `tensor/sizes.rs` what
//! memory the copies take, `tensor/predicted.rs` what time a step takes.
//!
//! ```text
//! once a fit:     groups of rows near one point each, half-precision copies of the rows in the order of groups
//! an iteration:   for each group, copies of the centroids that can be nearest to its rows; products;
//!                 a second product for the rows that are in doubt among many; settling; sums
//! ```
//! The columns of the rows stay where they are. Settling and sums read them, or where there is memory a copy whose features lie
//! side by side. If rows stream, the copies are made again for every chunk. Groups come from the centroids, which say how many
//! there are. Rows that are far from their group, and groups that are not small beside the data, belong to the fallback group: a
//! group that is compared with all centroids. Where centroids start far from where they end, groups are bad and many rows are in
//! doubt. So groups are made again in a few iterations, if the iteration before left many rows in doubt. Rows of a group are in
//! the order of the labels that they had when groups were made.

pub mod adding;
pub mod centres;
mod doubt;
pub mod labels;
mod predicted;
pub mod products;
mod rescore;
pub mod sizes;
pub mod unit;

use self::centres::Centres;
use self::labels::{GroupCentres, TensorLabels};
use self::products::TensorProducts;
use self::sizes::TensorSizes;
use self::unit::TensorUnit;
use super::by_row::ByRow;
use super::deltas::DeltasLaunch;
use super::filter::FilterSpec;
use super::tiled::CLUSTER_PADDING;
use super::{Candidate, LabelArrays, Needs, Refusal, Step, Supported, at_most, needs_shared};
use crate::backend::cuda::device::{Plain, Queue, sum};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, GpuSize, padded};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::strategy::Strategy;
use crate::bounds::Chains;
use crate::bounds::fp16::MOST_FEATURES;

/// The candidate with this instruction.
#[derive(Debug, Clone, Copy)]
pub struct Tensor(pub TensorUnit);

impl Tensor {
    /// The copies that settling and updates read.
    fn filter(shape: &FitShape) -> FilterSpec {
        FilterSpec::by_feature(padded(shape.k, CLUSTER_PADDING), Chains::One)
    }
}

impl<T: Float + Plain> Candidate<T> for Tensor {
    fn strategy(&self) -> Strategy {
        self.0.strategy()
    }

    fn family(&self) -> Option<Strategy> {
        Some(Strategy::Tensor)
    }

    fn supports(&self, shape: &FitShape, gpu: GpuSize) -> Supported {
        if !self.0.is_in(gpu.generation) {
            let got = format!("{}.{}", gpu.generation / 10, gpu.generation % 10);
            return Err(Refusal::new(self.0.generations(), got));
        }
        if gpu.untrusted[self.0 as usize] {
            return Err(adding::untrusted_unit());
        }
        needs_shared(self.0.kernel(TensorSizes::new(shape).chunks).entry.block.shared, gpu)?;
        at_most(MOST_FEATURES, "features", shape.d)?;
        at_most(unit::MOST_CLUSTERS, "clusters", shape.k)
    }

    fn needs(&self, shape: &FitShape, _gpu: GpuSize) -> Needs {
        let sizes = TensorSizes::new(shape);
        let by_row = if has_by_row(shape) { ByRow::bytes(shape) } else { 0 };
        let of_products = TensorProducts::<T>::bytes(&sizes);
        let bytes = sum([TensorLabels::<T>::bytes(&sizes), of_products, Centres::<T>::bytes(&sizes), by_row]);
        Needs { filter: Self::filter(shape), label_arrays: LabelArrays::BeforeAndAfter, bytes }
    }

    fn predicted(&self, shape: &FitShape, gpu: GpuSize) -> Option<f64> {
        Candidate::<T>::supports(self, shape, gpu).ok()?;
        Some(self.predicted_mean(shape, gpu))
    }

    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>> {
        let sizes = TensorSizes::new(shape);
        let centres = GroupCentres::Own(Box::new(Centres::allocate(queue, &sizes)?));
        let by_row = match has_by_row(shape).then(|| ByRow::new(shape, queue)) {
            // Another program was faster. This copy is not needed.
            Some(Err(KMeansError::NoMemory { .. })) | None => None,
            Some(made) => Some(made?),
        };
        let labels = TensorLabels::new(self.0, sizes, shape.half, centres, queue)?;
        Ok(Box::new(TensorStep::<T> {
            products: TensorProducts::new(labels.unit_and_sizes(), shape.half, queue)?,
            labels,
            launches: 0,
            resident: shape.chunk == shape.rows,
            by_row,
            copied: false,
            deltas: DeltasLaunch::new::<T>(shape, queue)?,
        }))
    }
}

/// Whether there is a copy of the rows for settling and sums: if they stay where they are, and there is memory for it.
fn has_by_row(shape: &FitShape) -> bool {
    shape.more_copies && shape.chunk == shape.rows
}

/// The step of one fit.
struct TensorStep<T> {
    labels: TensorLabels<T>,
    products: TensorProducts<T>,
    /// The launches since the host has set the centroids. Before some of them, groups are made again if there is much doubt.
    launches: u32,
    /// Whether the rows stay where they are.
    resident: bool,
    by_row: Option<ByRow>,
    /// Whether `by_row` holds the rows: the first launch copies them.
    copied: bool,
    deltas: DeltasLaunch,
}

impl<T: Float + Plain> Step<T> for TensorStep<T> {
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        let Self { labels, products, resident, by_row, .. } = self;
        let (queue, assign) = (&state.queue, state.assign_argument(chunk, labels.in_doubt()));
        let (resident, first, power) = (*resident, self.launches == 0, self.launches.is_power_of_two());
        if !resident {
            labels.force_regroup()?;
        }
        // SAFETY: the addresses are those of the state's buffers and of the list, which has a place for each row of a chunk. The
        // copy by row has one for each row, and the first pass makes it. Rows that do not stay are grouped again.
        let mut pass = unsafe { labels.begin(queue, &assign, self.launches) };
        if first || resident && power {
            pass = pass.choose_centres()?;
        }
        let pass = if first || !resident || power {
            let pass = pass.regroup(by_row.as_ref().filter(|_| !self.copied))?;
            self.copied = true;
            pass
        } else {
            pass.keep_groups()
        };
        pass.measure()?.label(products, by_row.as_ref())?;
        self.launches = self.launches.saturating_add(1);
        self.deltas.launch(chunk, state, self.by_row.as_ref())
    }

    fn counts_scores(&self) -> bool {
        true
    }

    fn restart(&mut self) {
        // Groups may be bad for other centroids: the next step makes them again if there is much doubt.
        self.launches = self.launches.min(1);
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::choice::tests::{H200, shape};
    use super::sizes::{TILE_CENTROIDS, TILE_ROWS};
    use super::*;

    unit_test!(sizes_follow_the_shape);
    fn sizes_follow_the_shape() {
        let sizes = |n, d, k| TensorSizes::new(&shape(n, d, k));
        let groups = |n, k| sizes(n, 408, k).groups;
        assert_eq!([groups(300_000, 5_000), groups(300_000, 100), groups(10_000, 5_000)], [1_024, 32, 32]);
        assert_eq!((sizes(100, 3, 2).groups, sizes(100, 3, 2).tiles, sizes(100, 3, 2).copied), (1, 4, 6));
        // Where there are too few groups, rows are expected to be in doubt.
        let few = predicted::FEW_CLUSTERS;
        assert_eq!([groups(300_000, few - 1), groups(300_000, few)], [8, 16]);
        // All lists have room if all rows belong to the fallback group.
        for (n, k) in [(300_000, 5_000), (20_000, 16_384), (10_000_000, 70_000)] {
            assert!(sizes(n, 8, k).copied >= k.div_ceil(TILE_CENTROIDS), "{n} {k}");
        }
        // There is a tile for every row, however rows are spread over groups.
        for (n, d, k) in [(100, 3, 2), (300_000, 256, 5_000), (300_000, 257, 5_000), (262_144, 64, 65_536)] {
            let (sizes, row_tiles) = (sizes(n, d, k), if d <= 256 { 2 } else { 1 });
            let of = |rows: usize| rows.div_ceil(row_tiles * TILE_ROWS) * row_tiles;
            let few = n / sizes.with_fallback();
            for of_most in [1, few, few / 256 * 256 + 1].map(|rows| rows.clamp(1, few)) {
                let most = sizes.groups * of(of_most) + of(n - sizes.groups * of_most);
                assert!(most <= sizes.tiles, "{n} {d} {k} {of_most}: {most} of {}", sizes.tiles);
            }
        }
        let kernel = |chunks| TensorUnit::Wgmma.kernel(chunks);
        assert_eq!([1, 2, 4, 5, 11].map(|chunks| kernel(chunks).stages), [7, 5, 5, 4, 4]);
        for chunks in [1, 2, 3, 4, 5, 80] {
            assert!(kernel(chunks).entry.block.shared <= H200.shared, "{chunks}");
        }
    }

    unit_test!(generations_have_their_kernels);
    fn generations_have_their_kernels() {
        let error =
            |unit, shape, gpu| Candidate::<f32>::supports(&Tensor(unit), &shape, gpu).err().map(|refusal| refusal.limit);
        let later = GpuSize { generation: 100, ..H200 };
        assert_eq!(error(TensorUnit::Wgmma, shape(10, 3, 2), H200), None);
        assert!(error(TensorUnit::Wgmma, shape(10, 3, 2), later).unwrap().contains("capability 9.0"));
        for (generation, shared) in [(80, 163), (86, 99), (89, 99), (90, 227), (100, 227), (120, 99)] {
            let gpu = GpuSize { generation, shared: shared << 10, ..H200 };
            assert_eq!(error(TensorUnit::Mma, shape(10, 3, 2), gpu), None);
            // Two blocks, and what the driver takes of each, fit on a multiprocessor.
            let block = TensorUnit::Mma.kernel(1).entry.block.shared;
            assert!(2 * (block + 1_024) <= (shared + 1) << 10, "{generation}");
        }
        for unit in TensorUnit::ALL {
            assert!(error(unit, shape(10, 70_000, 2), H200).unwrap().contains("features"));
            let broken = GpuSize { untrusted: [true; 2], ..H200 };
            assert!(error(unit, shape(10, 3, 2), broken).unwrap().contains("bounds"));
        }
    }
}
