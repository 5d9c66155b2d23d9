//! The centres of groups of rows: some of the centroids, far from each other, and then means of the centroids near them.

use super::sizes::{MOST_GROUPS, PLACE_BYTES, Sizes, TILE_CENTROIDS};
use crate::backend::cuda::arguments::{self, AssignArgument, FewControl, TensorCentroidsArgument, TensorTermsArgument};
use crate::backend::cuda::device::{Block, Launch, Plain, Queue, buffers, bytes_of, product, sum};
use crate::backend::cuda::shape::THREADS;
use crate::base::error::Result;
use crate::base::float::Float;

/// Threads of a block of `tensor_centres`.
const CENTRES_THREADS: u32 = 1_024;
/// How often the centres of groups become means.
const ROUNDS: usize = 2;
/// The name of the memory in errors.
const CENTRES: &str = "the centres of groups of rows";

buffers! {
    /// The centres, and where the centroids are from them.
    pub struct Centres<T> = "the centres of groups of rows" (sizes: &Sizes) {
        /// `(groups, d)`.
        centres: T [product([sizes.groups, sizes.d])],
        /// `(groups, k)`: squared distances.
        near: f64 [product([sizes.groups, sizes.k])],
        group_of_centroid: u8 [sizes.k],
    }
}

impl<T: Float + Plain> Centres<T> {
    /// The bytes that [`Centres::fixed`] takes, also while it is made.
    pub fn fixed_bytes(sizes: &Sizes) -> u64 {
        sum([Self::bytes(sizes), bytes_of::<u8>(Self::sums(sizes)), bytes_of::<FewControl>(1)])
    }

    /// The bytes in which the means of all groups are added up, if a group has as many places for copies as a tile.
    fn sums(sizes: &Sizes) -> usize {
        product([sizes.groups, TILE_CENTROIDS, sizes.chunks, PLACE_BYTES])
    }

    /// The centres for centroids that do not change. They are there when this returns, so every queue may read them. Of the
    /// sizes, only the groups, d and k matter.
    ///
    /// # Safety
    /// The addresses of the centroids and of the counters in the argument are live.
    pub unsafe fn fixed(sizes: &Sizes, queue: &Queue, assign: &AssignArgument<T>, bound: TensorTermsArgument) -> Result<Self> {
        let centres = Self::allocate(queue, sizes)?;
        let sums = queue.alloc::<u8>(Self::sums(sizes), CENTRES)?;
        // Counters above every limit: the kernels make centres in any case.
        let mut few = queue.alloc::<FewControl>(1, CENTRES)?;
        few.fill(0xff)?;
        let argument = TensorCentroidsArgument {
            copies: sums.at(),
            few: few.at(),
            k_padded: TILE_CENTROIDS as u32,
            ..centres.argument(sizes, assign, bound)
        };
        let launches = Centring::new(sizes, queue)?;
        // SAFETY: the caller promises the centroids and the counters. The sums have room for `chunks` tiles of each group.
        unsafe {
            launches.choose(queue, &argument)?;
            launches.measure_again(queue, &argument)?;
        }
        queue.wait()?;
        Ok(centres)
    }

    /// The part of the argument that does not depend on rows and copies. The other addresses are 0.
    pub fn argument(
        &self,
        sizes: &Sizes,
        assign: &AssignArgument<T>,
        bound: TensorTermsArgument,
    ) -> TensorCentroidsArgument<T> {
        TensorCentroidsArgument {
            centroids: assign.centroids,
            centres: self.centres.at(),
            scale: assign.scale,
            count: sizes.groups as i32,
            near: self.near.at(),
            group_of_centroid: self.group_of_centroid.at(),
            control: assign.control,
            bound,
            d: sizes.d as i32,
            k: sizes.k as i32,
            k_padded: sizes.k_padded as u32,
            chunks: sizes.chunks as u32,
            tiles: sizes.tiles as u32,
            ..TensorCentroidsArgument::zero()
        }
    }
}

/// The launches that make centres.
pub struct Centring<T> {
    centres: Launch<TensorCentroidsArgument<T>>,
    means: Launch<TensorCentroidsArgument<T>>,
    /// Measures how far all centroids are from the centres. If there is one group, only from its own.
    pub(super) near: Launch<TensorCentroidsArgument<T>>,
    /// Makes one group of all, if there is much doubt and groups would skip little. The rows have groups, and the centroids were
    /// measured. `copies` has room for d values.
    pub(super) merge: Launch<TensorCentroidsArgument<T>>,
}

impl<T: Float + Plain> Centring<T> {
    pub fn new(sizes: &Sizes, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
        // A block of `tensor_near` has two centroids at a time.
        let pairs = sizes.k.div_ceil(2);
        Ok(Self {
            centres: arguments::tensor_centres::<T>().exactly(gpu, "", Block::of(CENTRES_THREADS), 1)?,
            means: arguments::tensor_means::<T>().exactly(gpu, "", Block::of(THREADS), sizes.groups.min(MOST_GROUPS))?,
            near: arguments::tensor_near::<T>().resident(gpu, "", Block::of(THREADS), pairs)?,
            merge: arguments::tensor_merge::<T>().exactly(gpu, "", Block::of(CENTRES_THREADS), 1)?,
        })
    }

    /// Makes centres from the centroids, if there is much doubt.
    ///
    /// # Safety
    /// All addresses that the kernels of this object read are live: those of [`Centres::argument`], and `few`. `copies` has room
    /// for the sums of means: d numbers of 4 bytes for each group, each group as far from the one before as its copies would be.
    pub unsafe fn choose(&self, queue: &Queue, argument: &TensorCentroidsArgument<T>) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe {
            queue.run(&self.centres, argument)?;
            for _ in 0..ROUNDS {
                self.measure_again(queue, argument)?;
                queue.run(&self.means, argument)?;
            }
        }
        Ok(())
    }

    /// Measures how far all centroids are from the centres before groups are made, if there is much doubt.
    ///
    /// # Safety
    /// The addresses of [`Centres::argument`] and `few` are live.
    pub unsafe fn measure_again(&self, queue: &Queue, argument: &TensorCentroidsArgument<T>) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe { queue.run(&self.near, &TensorCentroidsArgument { before_groups: 1, ..*argument }) }
    }
}
