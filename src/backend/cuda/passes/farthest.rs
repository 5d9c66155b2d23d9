//! The rows that are farthest from their centroids: `kernels/passes/distances.cu`.
//!
//! The first pass finds the farthest row of each warp. Of these rows, the one in place `count` says where to cut: at least
//! `count` rows do not come after it, and usually not many more. The second pass computes the distances again and lists these
//! rows.

use crate::backend::Far;
use crate::backend::cuda::arguments::{self, Candidate, FarArgument, FarRow, LabelsArgument, RowsArgument};
use crate::backend::cuda::device::{Buffer, Entry, Launch, Queue, buffers, bytes_of};
use crate::backend::cuda::shape::FitShape;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// The name in errors of the farthest rows.
const FAR: &str = "the farthest rows";
/// What a list holds before it is read.
const NOTHING: FarRow = FarRow { at: Candidate { distance: -1.0, row: 0 }, label: 0, unused: 0 };
/// The most blocks of a pass.
const BLOCKS: usize = 1_024;

/// Threads of a block of either kernel.
const THREADS: usize = arguments::farthest::<f32>().block.threads as usize;

/// The number of blocks of a pass over `n` rows.
fn blocks(n: usize) -> usize {
    n.div_ceil(THREADS).clamp(1, BLOCKS)
}

/// The number of warps of a pass over `n` rows.
fn warps(n: usize) -> usize {
    blocks(n) * THREADS / 32
}

/// The rows that the list has room for, if `count` are wanted.
fn room(count: usize) -> usize {
    count.saturating_mul(4).saturating_add(256)
}

buffers! {
    /// The memory of a search for the `count` farthest rows of a chunk.
    struct FarBuffers = "the farthest rows" (n: usize, count: usize) {
        /// The farthest row of each warp.
        farthest: Candidate [warps(n)],
        list: FarRow [room(count)],
        /// The number of rows that the list should hold.
        listed: u32 [1],
    }
}

/// A search for the rows that are farthest from the centroids that their labels name.
pub struct FarSearch {
    count: usize,
    buffers: FarBuffers,
    donors: Buffer<u8>,
    farthest: Launch<FarArgument>,
    far_rows: Launch<FarArgument>,
}

impl FarSearch {
    /// The bytes that a search takes on the device.
    pub fn bytes(shape: &FitShape) -> u64 {
        FarBuffers::bytes(shape.chunk, shape.k).saturating_add(bytes_of::<u8>(shape.k))
    }

    /// A search for `count` rows in chunks of at most `n` rows. Only rows of clusters that `donors` allows count.
    pub fn new<T: Float>(queue: &Queue, (n, half): (usize, bool), count: usize, donors: &[bool]) -> Result<Self> {
        let donors = memory::collected(donors.iter().map(|&may| u8::from(may)), FAR)?;
        let launch = |entry: Entry<FarArgument>| entry.half_if(half).exactly(&queue.gpu, "", blocks(n));
        let (farthest, far_rows) = (launch(arguments::farthest::<T>())?, launch(arguments::far_rows::<T>())?);
        Ok(Self {
            count,
            donors: queue.upload(&donors, FAR)?,
            buffers: FarBuffers::allocate(queue, n, count)?,
            farthest,
            far_rows,
        })
    }

    /// Adds to `best` the rows of a chunk that may be among the farthest. Keeps the farthest of all, in the order [`Far::order`].
    /// `first`: the number of the chunk's first row.
    ///
    /// # Safety
    /// Each row has a label below k. `centroids` has k x d values on the device.
    pub unsafe fn add(
        &mut self,
        queue: &Queue,
        (rows, labels, centroids): (RowsArgument, LabelsArgument, u64),
        first: usize,
        best: &mut Vec<Far>,
    ) -> Result<()> {
        let FarBuffers { farthest, list, listed } = &mut self.buffers;
        let mut argument = FarArgument {
            rows,
            labels,
            centroids,
            donors: self.donors.at(),
            farthest: farthest.at(),
            list: list.at(),
            listed: listed.at(),
            last: NOTHING.at,
            room: list.len() as u32,
            unused: 0,
        };
        // SAFETY: the caller promises labels and centroids. There is a donor for each cluster, and a place for each warp.
        unsafe { queue.run(&self.farthest, &argument)? };
        argument.last = cut(farthest.to_vec()?, self.count, best);
        loop {
            listed.fill(0)?;
            // SAFETY: as above, and `list` has `room` places.
            unsafe { queue.run(&self.far_rows, &argument)? };
            let found = listed.to_vec()?[0] as usize;
            let mut rows = memory::filled(found.min(list.len()), NOTHING, FAR)?;
            list.read(0, &mut rows)?;
            if found <= list.len() {
                let far = |far: FarRow| Far { distance: far.at.distance, row: first as u64 + far.at.row, cluster: far.label };
                memory::reserve(best, rows.len(), FAR)?;
                best.extend(rows.into_iter().map(far));
                best.sort_unstable_by(Far::order);
                best.truncate(self.count);
                return Ok(());
            }
            // So many rows that the list did not hold them. Those that it holds give a closer cut.
            argument.last = rows.select_nth_unstable_by(self.count - 1, |a, b| order(&a.at, &b.at)).1.at;
        }
    }
}

/// The farther row first. Of rows equally far, the one with the smaller number first.
fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.distance.total_cmp(&a.distance).then(a.row.cmp(&b.row))
}

/// Where to cut the rows of a chunk, in the order of [`order`]. No row after the cut is among the `count` farthest of the chunk
/// and of `best` together.
fn cut(mut farthest: Vec<Candidate>, count: usize, best: &[Far]) -> Candidate {
    let mut last = Candidate { distance: 0.0, row: u64::MAX };
    farthest.retain(|far| far.distance >= 0.0);
    if count <= farthest.len() {
        last = *farthest.select_nth_unstable_by(count - 1, order).1;
    }
    // Chunks come in any order, so a row that is as far may come before it.
    let known = best.get(count - 1).map(|far| Candidate { distance: far.distance, row: u64::MAX });
    known.filter(|known| order(known, &last).is_lt()).unwrap_or(last)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(a_cut_keeps_the_farthest_rows);
    fn a_cut_keeps_the_farthest_rows() {
        let far = |distance: f64, row: u64| Candidate { distance, row };
        let pair = |Candidate { distance, row }| (distance, row);
        let found = || vec![far(3.0, 7), far(-1.0, u64::MAX), far(5.0, 2), far(3.0, 4), far(1.0, 0)];
        assert_eq!(pair(cut(found(), 1, &[])), (5.0, 2));
        assert_eq!(pair(cut(found(), 2, &[])), (3.0, 4));
        assert_eq!(pair(cut(found(), 3, &[])), (3.0, 7));
        // There is no such row, so all rows may be among the farthest.
        assert_eq!(pair(cut(found(), 5, &[])), (0.0, u64::MAX));
        let known = |distance| [Far { distance, row: 1, cluster: 0 }];
        assert_eq!(pair(cut(found(), 1, &known(4.0))), (5.0, 2));
        assert_eq!(pair(cut(found(), 1, &known(6.0))), (6.0, u64::MAX));
    }
}
