//! The products of a pass: the copies of the centroids, the product of all rows, and a second product for the rows that the first
//! one leaves in doubt among many centroids (`rescore.rs`).

use super::rescore::Rescore;
use super::sizes::{CHUNK, CentroidCopies, TensorSizes};
use super::unit::{Kernel, TensorUnit};
use crate::backend::cuda::arguments::{self, AssignArgument, TensorArgument, TensorCentroidsArgument};
use crate::backend::cuda::device::{Launch, Plain, Queue, sum};
use crate::base::error::Result;
use crate::base::float::Float;

/// The launches of products and of what they need, and what these write.
pub struct TensorProducts<T> {
    unit: TensorUnit,
    sizes: TensorSizes,
    copies: CentroidCopies,
    list: Launch<TensorCentroidsArgument<T>>,
    copy: Launch<TensorCentroidsArgument<T>>,
    kernel: Kernel,
    assign: Launch<TensorArgument>,
    rescore: Rescore<T>,
}

impl<T: Float + Plain> TensorProducts<T> {
    pub fn bytes(sizes: &TensorSizes) -> u64 {
        sum([CentroidCopies::bytes(sizes), Rescore::<T>::bytes(sizes)])
    }

    /// The products for labels with this instruction and these sizes:
    /// [`TensorLabels::unit_and_sizes`](super::labels::TensorLabels::unit_and_sizes). `half`: whether the rows' values have 16 bits.
    pub fn new((unit, sizes): (TensorUnit, TensorSizes), half: bool, queue: &Queue) -> Result<Self> {
        let (gpu, kernel) = (&*queue.gpu, unit.kernel(sizes.chunks));
        let mut copies = CentroidCopies::allocate(queue, &sizes)?;
        // Places without a centroid must hold finite values.
        copies.copies.fill(0)?;
        let copy = arguments::tensor_centroids::<T>();
        Ok(Self {
            unit,
            sizes,
            copies,
            list: arguments::tensor_list::<T>().exactly(gpu, "", sizes.with_fallback())?,
            copy: copy.resident(gpu, "", copy.blocks_of_warps(sizes.copies()))?,
            assign: kernel.launch(gpu, sizes.tiles)?,
            kernel,
            rescore: Rescore::new(unit, unit.added(&queue.gpu)?, &sizes, half, queue)?,
        })
    }

    /// The instruction and the sizes of the labels that these products were made for.
    pub fn made_for(&self) -> (TensorUnit, TensorSizes) {
        (self.unit, self.sizes)
    }

    /// Clears the largest slack of each tile of the second product. Without this call the slacks stay valid, but may be larger
    /// than needed.
    pub fn forget_slacks(&mut self) -> Result<()> {
        self.rescore.forget_slacks()
    }

    /// Labels the rows, or puts them on the lists of rows in doubt. `assign`: the rows as they are read one by one.
    ///
    /// # Safety
    /// The arguments are those of labels with the same sizes and instruction. All of their addresses are live, but the copies of
    /// the centroids, which are here. `queue` is that of [`TensorProducts::new`]. The rows are grouped and copied, and the
    /// distances between centroids and centres are measured. `assign` has the rows that were copied.
    pub unsafe fn launch(
        &self,
        queue: &Queue,
        assign: &AssignArgument<T>,
        of_centroids: &TensorCentroidsArgument<T>,
        of_products: &TensorArgument,
    ) -> Result<()> {
        let Self { sizes, copies, .. } = self;
        let of_centroids = TensorCentroidsArgument { copies: copies.copies.at(), ..*of_centroids };
        let products = TensorArgument {
            centroids: copies.copies.at(),
            chunks: sizes.chunks as u32,
            stored: sizes.chunks as u32,
            last_steps: (sizes.d - (sizes.chunks - 1) * CHUNK).div_ceil(16) as u32,
            stages: self.kernel.stages as u32,
            row_buffers: self.kernel.row_buffers as u32,
            ..*of_products
        };
        // SAFETY: the caller promises the addresses. The copies of the centroids have room for the tiles that `tensor_list` gives
        // out, and are made before the products. The kernels that run behind begin with the wait.
        unsafe {
            queue.run(&self.list, &of_centroids)?;
            queue.run_behind(&self.copy, &of_centroids)?;
            queue.run_behind(&self.assign, &products)?;
            self.rescore.launch(queue, assign, &of_centroids, &products)
        }
    }
}
