//! The rows that `assign_tensor` leaves in doubt: their lists, and the launches that label them exactly.
//!
//! | in reach | kernel | list |
//! |---|---|---|
//! | two centroids | `settle_pairs` | the front of the rows in doubt |
//! | a few, whose numbers are known | `settle_few` | rows with their candidates |
//! | more, for not many rows | `settle_listed` | the back of the rows in doubt: compared with the group's list or all centroids |
//! | more | `settle` | the back of the rows in doubt: compared with all centroids |
//!
//! Float32 differences come first, and decide most rows. Reference distances decide the others.

use super::sizes::TensorSizes;
use crate::backend::cuda::arguments::{
    self, AssignArgument, FewArgument, FewControl, FewRow, ListedPart, RowInDoubt, SettleFewArgument, SettleListedArgument,
    TensorGroup,
};
use crate::backend::cuda::device::{At, Launch, Plain, Queue, buffers, field, product, sum};
use crate::backend::cuda::step::tiled::{Doubt, SettleLaunches};
use crate::base::error::Result;
use crate::base::float::Float;

/// The fewest candidates of a row that is not one of a pair.
const FEWEST: usize = 3;
/// Threads of a block of `settle_listed`, and the most rows that it takes.
const LISTED_THREADS: usize = arguments::settle_listed::<f32>().block.threads as usize;
pub(super) const MOST_LISTED: usize = 512;
/// It reads all centroids for each of its rows. Beyond so many values `settle`, which reads them for several rows at once, is
/// faster.
const LISTED_VALUES: usize = 500_000_000;

buffers! {
    /// The list of rows with a few centroids in reach, and what blocks of `settle_listed` tell each other.
    struct FewRows = "the rows in doubt" (sizes: &TensorSizes) {
        rows: FewRow [sizes.n / FEWEST],
        candidates: u32 [sizes.n],
        control: FewControl [1],
        /// `(MOST_LISTED, slices)`.
        parts: ListedPart [product([MOST_LISTED, slices(sizes)])],
        tickets: u32 [MOST_LISTED],
    }
}

/// Parts of a list that `settle_listed` shares among blocks.
fn slices(sizes: &TensorSizes) -> usize {
    sizes.k_padded / LISTED_THREADS
}

/// The most rows that `settle_listed` takes.
pub(super) fn most_listed(sizes: &TensorSizes) -> usize {
    (LISTED_VALUES / product([sizes.k, sizes.d]).max(1)).clamp(16, MOST_LISTED)
}

/// The rows in doubt of a step.
pub struct DoubtLists<T> {
    sizes: TensorSizes,
    rows: Doubt,
    few: FewRows,
    settle: SettleLaunches<T>,
    settle_few: Launch<SettleFewArgument<T>>,
    settle_listed: Launch<SettleListedArgument>,
}

impl<T: Float + Plain> DoubtLists<T> {
    pub fn bytes(sizes: &TensorSizes) -> u64 {
        sum([Doubt::bytes(sizes.n), FewRows::bytes(sizes)])
    }

    /// `half`: whether the rows' values have 16 bits.
    pub fn new(sizes: TensorSizes, half: bool, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
        let TensorSizes { n, d, k, .. } = sizes;
        let mut few = FewRows::allocate(queue, &sizes)?;
        few.tickets.fill(0)?;
        let settle_few = arguments::settle_few::<T>().half_if(half);
        let settle_listed = arguments::settle_listed::<T>().half_if(half);
        let blocks = product([most_listed(&sizes), slices(&sizes)]);
        Ok(Self {
            sizes,
            rows: Doubt::allocate(queue, n)?,
            few,
            settle: SettleLaunches::new([n, d, k], half, true, queue)?,
            settle_few: settle_few.resident(gpu, "", n)?,
            settle_listed: settle_listed.resident(gpu, "", blocks)?,
        })
    }

    /// The address of the list of rows in doubt.
    pub fn rows(&self) -> At<RowInDoubt> {
        self.rows.in_doubt.at()
    }

    /// The address of the number of rows that the first product leaves to be compared with all centroids.
    pub fn doubtful(&self) -> At<u32> {
        field!(self.few.control.at::<At<FewControl>>(), FewControl, doubtful)
    }

    /// The list of rows with a few candidates.
    pub fn few(&self) -> FewArgument {
        let FewRows { rows, candidates, control, .. } = &self.few;
        let room = u32::try_from(self.sizes.n).unwrap_or(u32::MAX);
        FewArgument { rows: rows.at(), candidates: candidates.at(), control: control.at(), room, unused: 0 }
    }

    /// Sets the counters of doubt above every limit, so that the kernels make the groups again.
    pub fn force_regroup(&mut self) -> Result<()> {
        self.few.control.fill(0xff)
    }

    /// No row is in doubt.
    pub fn clear(&mut self) -> Result<()> {
        self.few.control.fill(0)
    }

    /// Labels the rows in doubt. `list`, `groups`: the addresses of the groups and of their lists of centroids. `centroids`: `(k,
    /// d)`.
    ///
    /// # Safety
    /// `assign_tensor` was launched before in the same queue, with the same rows and labels as `assign` and with the lists of
    /// this object. All addresses are live. `centroids` has k x d values.
    pub unsafe fn launch(
        &self,
        queue: &Queue,
        assign: &AssignArgument<T>,
        (list, groups): (At<u32>, At<TensorGroup>),
        centroids: u64,
    ) -> Result<()> {
        let (rows, next, control) = (assign.rows, assign.next, assign.control);
        let few = SettleFewArgument { rows, next, centroids, scale: assign.scale, few: self.few(), control };
        let listed = SettleListedArgument {
            rows,
            next,
            centroids,
            list,
            groups,
            in_doubt: assign.in_doubt,
            parts: self.few.parts.at(),
            tickets: self.few.tickets.at(),
            control,
            k: self.sizes.k as u32,
            k_padded: self.sizes.k_padded as u32,
            slices: slices(&self.sizes) as u32,
            most: most_listed(&self.sizes) as u32,
        };
        // SAFETY: the caller promises the addresses. The lists have a place for each row of a chunk, and the parts one for each
        // slice of the most rows. The kernels that run behind begin with the wait.
        unsafe {
            queue.run_behind(&self.settle_few, &few)?;
            queue.run_behind(&self.settle_listed, &listed)?;
            self.settle.launch(queue, assign, centroids, most_listed(&self.sizes) as u32 + 1)
        }
    }
}
