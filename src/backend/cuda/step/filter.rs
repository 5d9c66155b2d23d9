//! The filter: centred and scaled float32 copies of the centroids, and the bound on the error of scores from these copies.
//!
//! A fit and the predictions of a model use the same filter. The host says where the centre is and how large the values are.
//! `kernels/passes/update.cu` makes the copies and the bound: after every update in a fit, and once for a model
//! ([`Preparation`]). The bound is that of [`ExpandedTerms`].

use crate::backend::centre::middle;
use crate::backend::cuda::arguments::{
    self, AssignArgument, BlockMoves, Bound, BoundTermsArgument, Control, SumsArgument, UpdateArgument,
};
use crate::backend::cuda::device::{Argument, At, Block, Buffer, Entry, Gpu, Launch, Plain, Queue, buffers, product};
use crate::backend::cuda::state::Centroids;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::bounds::{Chains, ExpandedTerms};
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::{frexp, power_of_two};

/// The name of the copies in errors.
const COPIES: &str = "copies of the centroids";

/// How a kernel reads the copies, and how it adds up a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterSpec {
    /// Clusters with the padding that the kernel needs.
    pub k_padded: usize,
    pub layout: CopyLayout,
    pub chains: Chains,
    /// Whether a common number is subtracted from all half squares, so that most rows have a negative score.
    pub subtracts_lower: bool,
}

/// Where the copies are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyLayout {
    /// One centroid after another: `width` floats each. The half square is the value number `half`. None: the half squares are in
    /// an array of their own.
    ByCentroid { width: usize, half: Option<usize> },
    /// One feature after another: `(d, k padded)`. The half squares are in an array of their own.
    ByFeature,
}

impl FilterSpec {
    /// Copies by feature.
    pub fn by_feature(k_padded: usize, chains: Chains) -> Self {
        Self { k_padded, layout: CopyLayout::ByFeature, chains, subtracts_lower: false }
    }

    /// The number of floats of all copies.
    fn copies(&self, d: usize) -> usize {
        let width = match self.layout {
            CopyLayout::ByCentroid { width, .. } => width,
            CopyLayout::ByFeature => d,
        };
        product([width, self.k_padded])
    }

    /// The number of half squares in an array of their own.
    fn half_squares(&self) -> usize {
        if matches!(self.layout, CopyLayout::ByCentroid { half: Some(_), .. }) { 0 } else { self.k_padded }
    }
}

buffers! {
    /// The filter's memory.
    struct FilterBuffers<T> = "copies of the centroids" (d: usize, spec: &FilterSpec) {
        /// `(d)`: the centre, negated and scaled.
        minus_centre: T [d],
        /// The centred and scaled centroids, negated.
        copies: f32 [spec.copies(d)],
        /// Half of each copy's squared norm, lowered by the centroid's own error. The padding is infinite, so it is never
        /// nearest.
        half_squares: f32 [spec.half_squares()],
        /// By how much another score may exceed a centroid's own and still be in reach, without the row's part.
        slacks: f32 [spec.k_padded],
        bound: Bound [1],
    }
}

/// The filter of a fit or of a model.
pub struct DeviceFilter<T> {
    spec: FilterSpec,
    /// A power of two.
    scale: T,
    terms: BoundTermsArgument,
    buffers: FilterBuffers<T>,
}

impl<T: Float + Plain> DeviceFilter<T> {
    /// The bytes that a filter takes on the device.
    pub fn bytes(d: usize, spec: &FilterSpec) -> u64 {
        FilterBuffers::<T>::bytes(d, spec)
    }

    /// A filter without copies yet. `largest`: the largest distance of rows and centroids from each other in any feature. Only
    /// speed depends on it.
    pub fn new(queue: &Queue, spec: FilterSpec, d: usize, largest: f64) -> Result<Self> {
        let mut buffers = FilterBuffers::<T>::allocate(queue, d, &spec)?;
        // Within these limits, neither the scale nor the copies' squares leave the range.
        let most = if T::IS_F32 { 126 } else { 1_022 };
        let exponent = if largest > 0.0 && largest.is_finite() { (-frexp(largest).1).clamp(-most, most) } else { 0 };
        let scale = power_of_two(exponent);
        buffers.minus_centre.fill(0)?;
        match spec.layout {
            CopyLayout::ByCentroid { width, half: Some(half) } => {
                let mut copies = memory::zeroed::<f32>(spec.copies(d), COPIES)?;
                copies.iter_mut().skip(half).step_by(width).for_each(|half| *half = f32::INFINITY);
                buffers.copies.write(0, &copies)?;
            }
            _ => {
                buffers.copies.fill(0)?;
                buffers.half_squares.write(0, &memory::filled(spec.half_squares(), f32::INFINITY, COPIES)?)?;
            }
        }
        buffers.slacks.fill(0)?;
        buffers.bound.fill(0)?;
        let terms = ExpandedTerms::new(d, spec.chains, exponent).into();
        Ok(Self { spec, scale: T::from_f64(scale), terms, buffers })
    }

    /// Puts the centre of the copies where most of these centroids (`(k, d)`) are. The copies must be made afterwards.
    pub fn centre(&mut self, centroids: &[T]) -> Result<()> {
        let scale = self.scale.to_f64();
        let centre = middle(centroids, self.buffers.minus_centre.len())?;
        let minus_centre: Vec<T> = memory::collected(centre.into_iter().map(|m| T::from_f64(-(m * scale))), COPIES)?;
        self.buffers.minus_centre.write(0, &minus_centre)
    }

    #[cfg(feature = "papers")]
    pub fn scale(&self) -> T {
        self.scale
    }

    fn half_squares(&self) -> At<f32> {
        match self.spec.layout {
            CopyLayout::ByCentroid { half: Some(half), .. } => self.buffers.copies.at_index(half),
            _ => self.buffers.half_squares.at(),
        }
    }

    /// The part of the parameter of a kernel that labels rows by `k` centroids. It says nothing of rows and sums.
    pub fn assign_argument(&self, centroids: &Centroids<T>, k: usize) -> AssignArgument<T> {
        let FilterBuffers { minus_centre, copies, slacks, bound, .. } = &self.buffers;
        AssignArgument {
            minus_centre: minus_centre.at(),
            scale: self.scale,
            copies: copies.at(),
            half_squares: self.half_squares(),
            slacks: slacks.at(),
            bound: bound.at(),
            k: k as i32,
            k_padded: self.spec.k_padded as i32,
            centroid_columns: centroids.columns.at(),
            centroids: centroids.now.at(),
            run: 1,
            shares: 1,
            ..AssignArgument::zero()
        }
    }

    /// The strides of the copies from one centroid and from one feature to the next, and of the half squares.
    fn strides(&self) -> [u64; 3] {
        match self.spec.layout {
            CopyLayout::ByCentroid { width, half } => [width, 1, if half.is_some() { width } else { 1 }],
            CopyLayout::ByFeature => [1, self.spec.k_padded, 1],
        }
        .map(|stride| stride as u64)
    }
}

/// Limits of `kernels/passes/update.cu`: the most threads of a block, the most threads of one cluster, and the number of blocks
/// up to which blocks stay small (see [`Teams::new`]).
const MOST_THREADS: u32 = arguments::update::<f32>().block.threads;
const LARGEST_TEAM: u32 = 256;
const MANY_BLOCKS: usize = 256;

/// How the kernels of `kernels/passes/update.cu` share the clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Teams {
    /// Threads of one cluster.
    pub team: u32,
    pub threads: u32,
    /// Blocks for all clusters. Fewer may run at once.
    pub blocks: usize,
}

impl Teams {
    /// Each feature has a thread. If one block is enough for all clusters, there is one block. Otherwise blocks are small, so
    /// that no two share an SM. But if that gave too many blocks, blocks are larger.
    pub fn new(d: usize, k: usize) -> Self {
        let team =
            u32::try_from(d.min(LARGEST_TEAM as usize).next_power_of_two()).unwrap_or(LARGEST_TEAM).clamp(32, LARGEST_TEAM);
        let all = k.saturating_mul(team as usize);
        let threads = if all <= MOST_THREADS as usize {
            (all as u32).max(64)
        } else {
            team.max(if all <= MANY_BLOCKS * 128 { 128 } else { 256 })
        };
        Self { team, threads, blocks: k.div_ceil((threads / team) as usize) }
    }

    /// A launch with one team for each cluster.
    pub fn launch<A: Argument>(&self, gpu: &Gpu, entry: Entry<A>) -> Result<Launch<A>> {
        entry.with_block(Block { threads: self.threads, shared: 0 }).resident(gpu, "", self.blocks)
    }
}

buffers! {
    /// The memory of [`Preparation`].
    struct PreparationBuffers = "the state of the loop" (teams: &Teams) {
        control: Control [1],
        /// What each block has found.
        block_moves: BlockMoves [teams.blocks],
    }
}

/// Makes everything that the next step reads from the centroids: copies, bound, centroids by column.
pub struct Preparation<T> {
    pub teams: Teams,
    /// If more rows have no negative score, the next step compares scores by value.
    most_unresolved: u32,
    start: Launch<UpdateArgument<T>>,
    buffers: PreparationBuffers,
}

impl<T: Float + Plain> Preparation<T> {
    pub fn bytes(d: usize, k: usize) -> u64 {
        PreparationBuffers::bytes(&Teams::new(d, k))
    }

    /// `rows`: those of the fit.
    pub fn new(queue: &Queue, d: usize, k: usize, rows: usize) -> Result<Self> {
        let teams = Teams::new(d, k);
        let most_unresolved = u32::try_from(rows / 512).unwrap_or(u32::MAX);
        let start = teams.launch(&queue.gpu, arguments::update_start::<T>())?;
        let mut buffers = PreparationBuffers::allocate(queue, &teams)?;
        buffers.control.fill(0)?;
        Ok(Self { teams, most_unresolved, start, buffers })
    }

    /// The counters that the kernels of an iteration share.
    pub fn control(&self) -> &Buffer<Control> {
        &self.buffers.control
    }

    /// The part of the argument that `start` needs. `sums`: their addresses may be 0.
    pub fn argument(&self, filter: &DeviceFilter<T>, centroids: &Centroids<T>, sums: SumsArgument) -> UpdateArgument<T> {
        let [copy_stride_j, copy_stride_f, half_stride] = filter.strides();
        let FilterBuffers { minus_centre, copies, slacks, bound, .. } = &filter.buffers;
        UpdateArgument {
            sums,
            centroids: centroids.now.at(),
            centroid_columns: centroids.columns.at(),
            minus_centre: minus_centre.at(),
            scale: filter.scale,
            copies: copies.at(),
            half_squares: filter.half_squares(),
            slacks: slacks.at(),
            copy_stride_j,
            copy_stride_f,
            half_stride,
            terms: filter.terms,
            bound: bound.at(),
            control: self.control().at(),
            block_moves: self.buffers.block_moves.at(),
            distances: centroids.drift.at(),
            shifts: arguments::DistanceScale::from(&DistanceScale::NONE),
            team: self.teams.team as i32,
            most_unresolved: self.most_unresolved,
            subtracts_lower: i32::from(filter.spec.subtracts_lower),
            ..UpdateArgument::zero()
        }
    }

    /// Prepares the next step for the current centroids.
    pub fn start(&self, queue: &Queue, filter: &DeviceFilter<T>, centroids: &Centroids<T>, d: usize, k: usize) -> Result<()> {
        let argument = self.argument(filter, centroids, SumsArgument::none(k, d));
        // SAFETY: the buffers of the filter and of the centroids are live. They have room for k clusters of d features, and each
        // block has a place for its result. `start` reads no sums.
        unsafe { queue.run(&self.start, &argument) }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(a_team_has_a_cluster);
    fn a_team_has_a_cluster() {
        let teams = |d, k| {
            let Teams { team, threads, blocks } = Teams::new(d, k);
            (team, threads, blocks)
        };
        assert_eq!(teams(2, 1), (32, 64, 1));
        assert_eq!(teams(20, 16), (32, 512, 1));
        assert_eq!(teams(20, 17), (32, 128, 5));
        assert_eq!(teams(34, 32), (64, 128, 16));
        assert_eq!(teams(30, 2_000), (32, 256, 250));
        assert_eq!(teams(4_000, 100), (256, 256, 100));
    }

    unit_test!(copies_have_their_places);
    fn copies_have_their_places() {
        let spec = FilterSpec {
            k_padded: 8,
            layout: CopyLayout::ByCentroid { width: 4, half: Some(3) },
            chains: Chains::FromHalf,
            subtracts_lower: false,
        };
        assert_eq!((spec.copies(3), spec.half_squares()), (32, 0));
        let spec = FilterSpec { layout: CopyLayout::ByFeature, ..spec };
        assert_eq!((spec.copies(3), spec.half_squares()), (24, 8));
    }
}
