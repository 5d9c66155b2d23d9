//! The centres of groups of rows: some of the centroids, far from each other, and then means of the centroids near them.

use super::sizes::{CHUNK, TensorSizes};
use crate::backend::cuda::arguments::{self, AssignArgument, FewControl, TensorCentroidsArgument, TensorTermsArgument};
use crate::backend::cuda::device::{Launch, Plain, Queue, buffers, bytes_of, product, sum};
use crate::base::error::Result;
use crate::base::float::Float;

/// Features of a block of `tensor_means`, centroids of one of `tensor_nearest`, and centroids and groups of one of `tensor_near`.
const MEANS_FEATURES: usize = CHUNK / 2;
const NEAREST_CENTROIDS: usize = 32;
const NEAR_CENTROIDS: usize = 64;
const NEAR_GROUPS: usize = 32;
/// Blocks of `tensor_apart`, and the centroids beyond which it has work.
const APART_BLOCKS: usize = 128;
const SAMPLE: usize = 2_048;
/// How often the centres of groups become means.
const ROUNDS: usize = 2;
/// When `tensor_near` has work: always, if groups are made now, or if they were not made just now.
pub(super) const NEAR_ALWAYS: u32 = 0;
const NEAR_BEFORE_GROUPS: u32 = 1;
pub(super) const NEAR_WITHOUT_GROUPS: u32 = 2;
/// The name of the memory in errors.
const CENTRES: &str = "the centres of groups of rows";

buffers! {
    /// The centres, and where the centroids are from them.
    pub struct Centres<T> = "the centres of groups of rows" (sizes: &TensorSizes) {
        /// The number of groups, without the fallback group.
        count: u32 [1],
        /// `(groups and the fallback group, centre width)`.
        centres: T [product([sizes.with_fallback(), sizes.centre_width()])],
        /// `(groups and the fallback group, k)`: squared distances.
        near: f32 [product([sizes.with_fallback(), sizes.k])],
        group_of_centroid: u16 [sizes.k],
    }
}

impl<T: Float + Plain> Centres<T> {
    /// The bytes that [`Centres::fixed`] takes, also while it is made.
    pub fn fixed_bytes(sizes: &TensorSizes) -> u64 {
        sum([Self::bytes(sizes), bytes_of::<FewControl>(1)])
    }

    /// The centres for centroids that do not change, and how many groups there are. They are there when this returns, so every
    /// queue may read them. Of the sizes, only the groups, d and k matter.
    ///
    /// # Safety
    /// The addresses of the centroids and of the counters in the argument are live.
    pub unsafe fn fixed(
        mut sizes: TensorSizes,
        queue: &Queue,
        assign: &AssignArgument<T>,
        bound: TensorTermsArgument,
    ) -> Result<(Self, usize)> {
        // Counters above every limit: the kernels always make centres.
        let mut few = queue.alloc::<FewControl>(1, CENTRES)?;
        few.fill(0xff)?;
        loop {
            let centres = Self::allocate(queue, &sizes)?;
            let argument = TensorCentroidsArgument { few: few.at(), ..centres.argument(&sizes, assign, bound) };
            let launches = Centring::new(&sizes, queue)?;
            // SAFETY: the caller promises the centroids and the counters.
            unsafe {
                launches.choose(queue, &argument)?;
                launches.measure_again(queue, &argument)?;
            }
            let mut count = [0];
            centres.count.read(0, &mut count)?;
            let groups = count[0] as usize;
            if groups == sizes.groups {
                return Ok((centres, groups));
            }
            // Makes the same groups again, in less memory. Batches then take less memory too.
            sizes = sizes.of_model(groups);
        }
    }

    /// The part of the argument that does not depend on rows and copies. The other addresses are 0.
    pub fn argument(
        &self,
        sizes: &TensorSizes,
        assign: &AssignArgument<T>,
        bound: TensorTermsArgument,
    ) -> TensorCentroidsArgument<T> {
        TensorCentroidsArgument {
            centroids: assign.centroids,
            centres: self.centres.at(),
            scale: assign.scale,
            most: sizes.groups as u32,
            count: self.count.at(),
            near: self.near.at(),
            group_of_centroid: self.group_of_centroid.at(),
            control: assign.control,
            bound,
            d: sizes.d as i32,
            k: sizes.k as i32,
            k_padded: sizes.k_padded as u32,
            chunks: sizes.chunks as u32,
            tiles: sizes.tiles as u32,
            copied: sizes.copied as u32,
            ..TensorCentroidsArgument::zero()
        }
    }
}

/// The launches that make centres.
pub struct Centring<T> {
    /// Measures the distances between centroids. None if there are few.
    apart: Option<Launch<TensorCentroidsArgument<T>>>,
    centres: Launch<TensorCentroidsArgument<T>>,
    means: Launch<TensorCentroidsArgument<T>>,
    /// Measures how far all centroids are from the centres. If all rows belong to the fallback group, only from its centre.
    pub(super) near: Launch<TensorCentroidsArgument<T>>,
    nearest: Launch<TensorCentroidsArgument<T>>,
}

impl<T: Float + Plain> Centring<T> {
    pub fn new(sizes: &TensorSizes, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
        let tiles = product([sizes.k.div_ceil(NEAR_CENTROIDS), sizes.with_fallback().div_ceil(NEAR_GROUPS)]);
        let pieces = product([sizes.with_fallback(), sizes.d.div_ceil(MEANS_FEATURES)]);
        let nearest = sizes.k.div_ceil(NEAREST_CENTROIDS);
        let apart = || arguments::tensor_apart::<T>().exactly(gpu, "", APART_BLOCKS);
        Ok(Self {
            apart: (sizes.k > SAMPLE).then(apart).transpose()?,
            centres: arguments::tensor_centres::<T>().exactly(gpu, "", 1)?,
            means: arguments::tensor_means::<T>().exactly(gpu, "", pieces)?,
            near: arguments::tensor_near::<T>().resident(gpu, "", tiles.max(sizes.k))?,
            nearest: arguments::tensor_nearest::<T>().exactly(gpu, "", nearest)?,
        })
    }

    /// Makes centres from the centroids, if there is much doubt.
    ///
    /// # Safety
    /// All addresses that the kernels of this object read are live: those of [`Centres::argument`], and `few`.
    pub unsafe fn choose(&self, queue: &Queue, argument: &TensorCentroidsArgument<T>) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe {
            self.apart.iter().try_for_each(|apart| queue.run(apart, argument))?;
            queue.run(&self.centres, argument)?;
            for _ in 0..ROUNDS {
                self.measure_again(queue, argument)?;
                queue.run(&self.means, argument)?;
            }
        }
        Ok(())
    }

    /// Measures how far all centroids are from the centres, and which group each belongs to, before groups are made, if there is
    /// much doubt.
    ///
    /// # Safety
    /// The addresses of [`Centres::argument`] and `few` are live.
    pub unsafe fn measure_again(&self, queue: &Queue, argument: &TensorCentroidsArgument<T>) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe {
            queue.run(&self.near, &TensorCentroidsArgument { near_when: NEAR_BEFORE_GROUPS, ..*argument })?;
            queue.run(&self.nearest, argument)
        }
    }
}
