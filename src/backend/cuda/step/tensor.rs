//! Labels by tensor cores, then the labels of the rows in doubt, then the sums of the rows that changed: `tensor_groups.cu`,
//! `tensor_rows.cu`, `tensor_centroids.cu`, `assign_tensor.cu` or `assign_tensor_mma.cu`, `settle_few.cu`, `settle.cu` and `deltas.cu` of `kernels/step/`.
//! `tensor/unit.rs` says which GPUs have which kernel, `tensor/sizes.rs` what memory the copies take, `tensor/doubt.rs` how rows in doubt are settled.
//!
//! ```text
//! once a fit:     groups of rows near one point each, half-precision copies of the rows in the order of groups
//! an iteration:   for each group, copies of the centroids that can be nearest to its rows; products; settling; sums
//! ```
//! The columns of the rows stay where they are: settling and sums read them. If rows stream, the copies are made again for every chunk.
//! Groups come from the centroids. Where these start far from where they end, groups are bad and many rows are in doubt. So groups are made
//! again in a few iterations, if the one before had much doubt. Rows of a group are in the order of their labels, as they were then.

mod doubt;
mod sizes;
pub mod unit;

use self::doubt::InDoubt;
use self::sizes::{CHUNK, CentroidCopies, RowCopies, STAGES, Sizes, TILE_CENTROIDS, TILE_ROWS};
use self::unit::Unit;
use super::choice::PROCESSORS;
use super::deltas::Deltas;
use super::filter::FilterSpec;
use super::tiled::Tiled;
use super::{Candidate, Fit, LabelArrays, Needs, Refusal, Step, Supported, THREADS};
use crate::backend::cuda::arguments::{self, TensorArgument, TensorCentroidsArgument, TensorRowsArgument, TensorTerms};
use crate::backend::cuda::device::{Block, Entry, Launch, Plain, Queue, sum};
use crate::backend::cuda::rows::chunks::Chunk;
use crate::backend::cuda::shape::{FitShape, GpuSize, padded};
use crate::backend::cuda::state::State;
use crate::certify::halves::{Added, Halves, MOST_FEATURES};
use crate::error::Result;
use crate::fixed::frexp;
use crate::float::Float;
use crate::strategy::Strategy;

/// Threads of a block of `assign_tensor`, and of those of `tensor_group` and `tensor_rows`.
const TENSOR_THREADS: u32 = 384;
const GROUP_THREADS: u32 = 128;
const ROWS_THREADS: u32 = 256;
const CENTRES_THREADS: u32 = 1_024;
const PLACES_THREADS: u32 = 1_024;
const LIST_THREADS: u32 = 512;
/// How often the centres of groups become means.
const ROUNDS: usize = 2;
/// The candidate with this instruction.
#[derive(Debug, Clone, Copy)]
pub struct Tensor(pub Unit);

impl Tensor {
    /// The constants of the predicted time, in microseconds, on an H200: of an iteration, and of a value. See `predicted`.
    const FIXED: f64 = 130.0;
    const COPY: f64 = 0.8e-6;

    /// The copies that settling and updates read.
    fn filter(shape: &FitShape, gpu: GpuSize) -> FilterSpec {
        Tiled::WIDTH_128.filter(shape.d, shape.k, gpu)
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
        let refused = |limit: &str, got: String| Err(Refusal { limit: limit.into(), hint: "", got });
        let shared = self.0.block(&Sizes::new(shape)).shared;
        if !self.0.is_in(gpu.generation) {
            return refused(self.0.generations(), format!("{}.{}", gpu.generation / 10, gpu.generation % 10));
        }
        if gpu.untrusted[self.0 as usize] {
            return Err(unit::untrusted_unit());
        }
        if gpu.shared < shared {
            return refused(&format!("{shared} bytes of shared memory a block"), gpu.shared.to_string());
        }
        if shape.d > MOST_FEATURES {
            return refused(&format!("at most {MOST_FEATURES} features"), shape.d.to_string());
        }
        Ok(())
    }

    fn needs(&self, shape: &FitShape, gpu: GpuSize) -> Needs {
        let sizes = Sizes::new(shape);
        let bytes = sum([InDoubt::<T>::bytes(&sizes), RowCopies::bytes(&sizes), CentroidCopies::<T>::bytes(&sizes)]);
        Needs { filter: Self::filter(shape, gpu), label_arrays: LabelArrays::BeforeAndAfter, bytes }
    }

    /// For data whose centroids are all multiplied: a fifth more than the scores for rows in doubt, and a tenth of the time in which the rows
    /// are copied, because fits have ten iterations or more. Where groups of rows are far apart, the products take a tenth of that.
    fn predicted(&self, shape: &FitShape, gpu: GpuSize) -> Option<f64> {
        Candidate::<T>::supports(self, shape, gpu).ok()?;
        let processors = gpu.processors.max(1);
        let (n, k) = (padded(shape.chunk, TILE_ROWS * processors) as f64, padded(shape.k, TILE_CENTROIDS) as f64);
        let score = self.0.score(padded(shape.d, 16), gpu.generation) * 1e-6 * PROCESSORS as f64 / processors as f64;
        Some(Self::FIXED + n * k * score * 1.2 + n * shape.d as f64 * Self::COPY)
    }

    fn make<'a>(&self, fit: &Fit<'a, '_, T>) -> Result<Box<dyn Step<T> + 'a>> {
        Ok(Box::new(TensorStep::<T>::new(self.0, &fit.shape, fit.queue)?))
    }
}

/// The step of one fit.
struct TensorStep<T> {
    sizes: Sizes,
    added: Added,
    rows: RowCopies,
    centroids: CentroidCopies<T>,
    /// How often it was launched since the host has set the centroids. Before some launches it asks for doubt.
    launches: u32,
    /// Whether the rows stay where they are.
    resident: bool,
    centres: Launch<TensorCentroidsArgument<T>>,
    means: Launch<TensorCentroidsArgument<T>>,
    clear: Launch<TensorRowsArgument<T>>,
    group: Launch<TensorRowsArgument<T>>,
    places: Launch<TensorRowsArgument<T>>,
    copy_rows: Launch<TensorRowsArgument<T>>,
    near: Launch<TensorCentroidsArgument<T>>,
    list: Launch<TensorCentroidsArgument<T>>,
    copy_centroids: Launch<TensorCentroidsArgument<T>>,
    assign: Launch<TensorArgument>,
    doubt: InDoubt<T>,
    deltas: Deltas,
}

impl<T: Float + Plain> TensorStep<T> {
    fn new(unit: Unit, shape: &FitShape, queue: &Queue) -> Result<Self> {
        let sizes = Sizes::new(shape);
        let added = unit.added(&queue.gpu)?;
        let FitShape { chunk, half, .. } = *shape;
        let gpu = &*queue.gpu;
        let blocks = |rows: u32| u32::try_from(chunk.div_ceil(rows as usize)).unwrap_or(u32::MAX);
        let rows = |entry: Entry<TensorRowsArgument<T>>, threads: u32, blocks: u32| -> Result<_> {
            Ok(Launch::exactly(entry.half_if(half).load(gpu, "")?, Block::of(threads), blocks))
        };
        let of_groups = |entry: Entry<TensorCentroidsArgument<T>>, threads: u32, blocks: usize| -> Result<_> {
            Ok(Launch::exactly(entry.load(gpu, "")?, Block::of(threads), u32::try_from(blocks).unwrap_or(u32::MAX)))
        };
        let assign = unit.entry().load(gpu, "")?;
        let by_warps = sizes.pairs().div_ceil(THREADS as usize / 32);
        Ok(Self {
            sizes,
            added,
            rows: RowCopies::allocate(queue, &sizes)?,
            centroids: CentroidCopies::allocate(queue, &sizes)?,
            launches: 0,
            resident: shape.chunk == shape.rows,
            centres: of_groups(arguments::tensor_centres::<T>(), CENTRES_THREADS, 1)?,
            means: of_groups(arguments::tensor_means::<T>(), THREADS, sizes.groups)?,
            clear: rows(arguments::tensor_clear::<T>(), THREADS, blocks(THREADS))?,
            group: rows(arguments::tensor_group::<T>(), GROUP_THREADS, blocks(GROUP_THREADS))?,
            places: rows(arguments::tensor_places::<T>(), PLACES_THREADS, 1)?,
            copy_rows: rows(arguments::tensor_rows::<T>(), ROWS_THREADS, blocks(TILE_ROWS as u32))?,
            near: Launch::resident(gpu, arguments::tensor_near::<T>().load(gpu, "")?, Block::of(THREADS), by_warps)?,
            list: of_groups(arguments::tensor_list::<T>(), LIST_THREADS, sizes.groups)?,
            copy_centroids: Launch::resident(
                gpu,
                arguments::tensor_centroids::<T>().load(gpu, "")?,
                Block::of(THREADS),
                by_warps,
            )?,
            assign: Launch::resident(gpu, assign, unit.block(&sizes), sizes.tiles)?,
            doubt: InDoubt::new(sizes, half, queue)?,
            deltas: Deltas::new::<T>(shape, queue)?,
        })
    }

    /// The constants of the bound.
    fn terms(&self, state: &State<T>) -> TensorTerms {
        let exponent = frexp(state.filter.scale().to_f64()).1 - 1;
        Halves::new(self.sizes.d, self.added, exponent).into()
    }

    /// Makes centres of groups from the centroids, if there is much doubt.
    fn choose_centres(&self, chunk: &Chunk<'_, T>, state: &State<T>) -> Result<()> {
        let argument = self.of_centroids(chunk, state);
        // SAFETY: as in `copy_centroids`. The means are added up in the copies: a group has room for d numbers of 4 bytes there.
        unsafe {
            state.queue.run(&self.centres, &argument)?;
            for _ in 0..ROUNDS {
                state.queue.run(&self.near, &argument)?;
                state.queue.run(&self.means, &argument)?;
            }
        }
        Ok(())
    }

    /// Copies the rows of a chunk in the order of their groups, if there is much doubt.
    fn copy_rows(&self, chunk: &Chunk<'_, T>, state: &State<T>) -> Result<()> {
        let Self { sizes, rows, centroids, .. } = self;
        let [labels, _] = state.labels.before_and_after(chunk.first);
        let argument = TensorRowsArgument {
            rows: chunk.rows.argument(),
            centres: centroids.centres.at(),
            scale: state.filter.scale(),
            count: sizes.groups as i32,
            groups: centroids.groups.at(),
            labels,
            group_of_centroid: centroids.group_of_centroid.at(),
            group_of_row: rows.group_of_row.at(),
            buckets: rows.buckets.at(),
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            terms: rows.terms.at(),
            copies: rows.copies.at(),
            control: state.control,
            few: self.doubt.few().control,
            bound: self.terms(state),
            tiles: sizes.tiles as u32,
            chunks: sizes.chunks as u32,
            k: sizes.k as u32,
            unused: 0,
            most_doubt: sizes.most_doubt(),
            most_kept: sizes.most_kept(),
        };
        // SAFETY: the buffers have a place for each row, each tile, each group and each label. The launches have a thread for each row.
        unsafe {
            for launch in [&self.clear, &self.group, &self.places, &self.copy_rows] {
                state.queue.run(launch, &argument)?;
            }
        }
        Ok(())
    }

    fn of_centroids(&self, chunk: &Chunk<'_, T>, state: &State<T>) -> TensorCentroidsArgument<T> {
        let Self { sizes, rows, centroids, .. } = self;
        let [labels, _] = state.labels.before_and_after(chunk.first);
        TensorCentroidsArgument {
            centroids: state.centroids.now.at(),
            centres: centroids.centres.at(),
            scale: state.filter.scale(),
            count: sizes.groups as i32,
            groups: centroids.groups.at(),
            near: centroids.near.at(),
            group_of_centroid: centroids.group_of_centroid.at(),
            list: centroids.list.at(),
            position: centroids.position.at(),
            folded: centroids.folded.at(),
            margins: centroids.margins.at(),
            tile_margins: centroids.tile_margins.at(),
            copies: centroids.copies.at(),
            labels,
            group_of_tile: rows.group_of_tile.at(),
            row_of_place: rows.row_of_place.at(),
            first_visit: rows.first_visit.at(),
            control: state.control,
            few: self.doubt.few().control,
            bound: self.terms(state),
            d: sizes.d as i32,
            k: sizes.k as i32,
            k_padded: sizes.k_padded as u32,
            chunks: sizes.chunks as u32,
            tiles: sizes.tiles as u32,
            unused: 0,
            most_doubt: sizes.most_doubt(),
            most_kept: sizes.most_kept(),
        }
    }

    /// Copies the centroids for each group.
    fn copy_centroids(&self, chunk: &Chunk<'_, T>, state: &State<T>) -> Result<()> {
        let argument = self.of_centroids(chunk, state);
        // SAFETY: the buffers have a place for each pair of a group and a centroid. The state has k x d centroids.
        unsafe {
            for launch in [&self.near, &self.list, &self.copy_centroids] {
                state.queue.run(launch, &argument)?;
            }
        }
        Ok(())
    }

    fn argument(&self, chunk: &Chunk<'_, T>, state: &State<T>) -> TensorArgument {
        let Self { sizes, rows, centroids, .. } = self;
        let [_, next] = state.labels.before_and_after(chunk.first);
        TensorArgument {
            rows: rows.copies.at(),
            terms: rows.terms.at(),
            row_of_place: rows.row_of_place.at(),
            group_of_tile: rows.group_of_tile.at(),
            groups: centroids.groups.at(),
            centroids: centroids.copies.at(),
            folded: centroids.folded.at(),
            margins: centroids.margins.at(),
            tile_margins: centroids.tile_margins.at(),
            list: centroids.list.at(),
            first_visit: rows.first_visit.at(),
            next,
            contested: self.doubt.rows(),
            control: state.control,
            few: self.doubt.few(),
            n: chunk.rows.argument().n,
            tiles: sizes.tiles as u32,
            chunks: sizes.chunks as u32,
            last_steps: (sizes.d - (sizes.chunks - 1) * CHUNK).div_ceil(16) as u32,
            k_padded: sizes.k_padded as u32,
            stages: STAGES as u32,
            folded_slots: sizes.folded_slots() as u32,
            unused: 0,
        }
    }
}

impl<T: Float + Plain> Step<T> for TensorStep<T> {
    fn launch(&mut self, chunk: &Chunk<'_, T>, state: &State<T>) -> Result<()> {
        let first = self.launches == 0;
        if first || !self.resident {
            // Everything is made without asking for doubt.
            self.doubt.pretend()?;
        }
        if first || self.resident && self.launches.is_power_of_two() {
            self.choose_centres(chunk, state)?;
        }
        if first || !self.resident || self.launches.is_power_of_two() {
            self.copy_rows(chunk, state)?;
        }
        self.launches = self.launches.saturating_add(1);
        self.copy_centroids(chunk, state)?;
        self.doubt.clear()?;
        let assign = state.assign_argument(chunk, self.doubt.rows());
        let lists = [self.centroids.list.at(), self.centroids.groups.at()];
        // SAFETY: the copies of the rows and of the centroids are made. The lists of rows in doubt are those of this step.
        unsafe {
            state.queue.run(&self.assign, &self.argument(chunk, state))?;
            self.doubt.launch(&state.queue, &assign, lists, state.centroids.now.at())?;
        }
        self.deltas.launch(chunk, state)
    }

    fn counts_scores(&self) -> bool {
        true
    }

    fn restart(&mut self) {
        // Groups may be bad for other centroids: the next step asks for doubt.
        self.launches = self.launches.min(1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::tests::{H200, shape};
    use super::*;

    #[test]
    fn sizes_follow_the_shape() {
        let sizes = |n, d, k| Sizes::new(&shape(n, d, k));
        assert_eq!(sizes(300_000, 408, 5_000).groups, 30);
        assert_eq!((sizes(100, 3, 2).groups, sizes(100, 3, 2).tiles), (1, 2));
        let slots = |d| sizes(1_000_000, d, 1_000).folded_slots();
        assert_eq!([slots(20), slots(128), slots(256), slots(257), slots(700)], [5, 3, 2, 1, 1]);
        for d in [1, 64, 65, 128, 300, 5_000] {
            assert!(sizes(1_000_000, d, 1_000).shared() <= H200.shared, "{d}");
        }
    }

    #[test]
    fn generations_have_their_kernels() {
        let error =
            |unit, shape, gpu| Candidate::<f32>::supports(&Tensor(unit), &shape, gpu).err().map(|refusal| refusal.limit);
        let later = GpuSize { generation: 100, ..H200 };
        assert_eq!(error(Unit::Wgmma, shape(10, 3, 2), H200), None);
        assert!(error(Unit::Wgmma, shape(10, 3, 2), later).unwrap().contains("capability 9.0"));
        for (generation, shared) in [(80, 163), (86, 99), (89, 99), (90, 227), (100, 227), (120, 99)] {
            let gpu = GpuSize { generation, shared: shared << 10, ..H200 };
            assert_eq!(error(Unit::Mma, shape(10, 3, 2), gpu), None);
            // Two blocks, and what the driver takes of each, fit on a multiprocessor.
            let block = Unit::Mma.block(&Sizes::new(&shape(10, 3, 2))).shared;
            assert!(2 * (block + 1_024) <= (shared + 1) << 10, "{generation}");
        }
        for unit in Unit::ALL {
            assert!(error(unit, shape(10, 70_000, 2), H200).unwrap().contains("features"));
            let broken = GpuSize { untrusted: [true; 2], ..H200 };
            assert!(error(unit, shape(10, 3, 2), broken).unwrap().contains("bounds"));
        }
    }
}
