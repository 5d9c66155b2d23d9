//! One feature and very many clusters: the centroids in ascending order, and a search among them: `kernels/step/grid_sorted.cu`
//! and `assign_sorted.cu`. Lists of centroids have numbers of 16 bits; this has none.

use super::GridStep;
use super::sizes::GridSizes;
use crate::backend::cuda::arguments::{
    self, AssignCellsArgument, AssignSortedArgument, SortCentroidsArgument, SortedMinimaArgument, SortedRange,
    SortedRangesArgument,
};
use crate::backend::cuda::device::{Launch, Plain, Queue, buffers};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::bounds::grid::Farther;

/// Constants of `kernels/step/grid_sorted.cu` and `assign_sorted.cu`: centroids that a block sorts, numbers that have one
/// minimum, and the most numbers that are looked at one by one.
const RUN: usize = 1_024;
const GROUP: usize = 32;
const FEW: usize = 64;

buffers! {
    /// The sorted centroids. Nothing if there are lists.
    pub struct SortedBuffers<T> = "sorted centroids" (sizes: &GridSizes) {
        values: T [sizes.sorted()],
        numbers: u32 [sizes.sorted()],
        /// They are merged from one to the other.
        other_values: T [sizes.sorted()],
        other_numbers: u32 [sizes.sorted()],
        minima: u32 [levels(sizes.sorted()).iter().sum()],
        ranges: SortedRange [if sizes.sorted() > 0 { sizes.cells() } else { 0 }],
    }
}

/// The lengths of the minima of `k` numbers, level by level.
fn levels(k: usize) -> Vec<usize> {
    let next = |&length: &usize| (length > FEW).then(|| length.div_ceil(GROUP));
    std::iter::successors(Some(k), next).skip(1).collect()
}

/// The kernels of a fit.
pub struct SortedCentroids<T> {
    pub buffers: SortedBuffers<T>,
    runs: Launch<SortCentroidsArgument>,
    merge: Launch<SortCentroidsArgument>,
    minima: Launch<SortedMinimaArgument>,
    ranges: Launch<SortedRangesArgument>,
    assign: Launch<AssignSortedArgument<T>>,
}

impl<T: Float + Plain> SortedCentroids<T> {
    pub fn new(sizes: &GridSizes, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
        let (merge, minima) = (arguments::sorted_merge::<T>(), arguments::sorted_minima());
        let (ranges, assign) = (arguments::sorted_ranges::<T>(), arguments::assign_sorted::<T>());
        let async_tiles = assign.block.threads as usize * (sizes.value * 4 + 4 * sizes.label);
        Ok(Self {
            buffers: SortedBuffers::allocate(queue, sizes)?,
            runs: arguments::sorted_runs::<T>().exactly(gpu, "", sizes.k.div_ceil(RUN))?,
            merge: merge.resident(gpu, "", merge.blocks_of(sizes.k))?,
            minima: minima.resident(gpu, "", minima.blocks_of(sizes.k))?,
            ranges: ranges.resident(gpu, "", ranges.blocks_of(sizes.cells()))?,
            assign: assign.with_shared(async_tiles).resident(gpu, "", sizes.tiles().div_ceil(8))?,
        })
    }

    /// Sorts the centroids, finds the ranges of the cells, and labels the rows. `cleared`: the queue cleared the ranges last.
    ///
    /// # Safety
    /// The rows are in the order of their cells. `rows` and `grid` have the tiles and boxes of these cells.
    pub unsafe fn launch(
        &self,
        grid: &GridStep<T>,
        rows: AssignCellsArgument<T>,
        state: &DeviceState<T>,
        cleared: bool,
    ) -> Result<()> {
        let (buffers, queue, k) = (&self.buffers, &state.queue, grid.sizes.k);
        let sides = [(buffers.values.at(), buffers.numbers.at()), (buffers.other_values.at(), buffers.other_numbers.at())];
        // The last merge writes to the first side.
        let merges = k.div_ceil(RUN).next_power_of_two().ilog2() as usize;
        let sort = |merge: usize| {
            let ((values, numbers), (from_values, from_numbers)) =
                (sides[(merges - merge) % 2], sides[(merges - merge + 1) % 2]);
            SortCentroidsArgument {
                centroids: state.centroids.now.at(),
                from_values,
                from_numbers,
                values,
                numbers,
                control: state.control,
                k: k as u32,
                run: (RUN << merge >> 1) as u32,
            }
        };
        // SAFETY: both sides have k values and numbers, and the minima have all levels. The caller promises the rest. Each kernel
        // begins with the wait, but none runs behind a memset.
        unsafe {
            queue.run_behind_if(!cleared, &self.runs, &sort(0))?;
            for merge in 1..=merges {
                queue.run_behind(&self.merge, &sort(merge))?;
            }
            let (mut from, mut count, mut begin) = (buffers.numbers.at(), k, 0);
            for length in levels(k) {
                let to = buffers.minima.at_index(begin);
                let minima = SortedMinimaArgument { from, to, control: state.control, count: count as u32, unused: 0 };
                queue.run_behind(&self.minima, &minima)?;
                (from, count, begin) = (to, length, begin + length);
            }
            queue.run_behind(&self.ranges, &self.ranges_argument(grid, state))?;
            let AssignCellsArgument { assign, tiles, count, .. } = rows;
            let assign = AssignSortedArgument {
                assign,
                tiles,
                count,
                ranges: buffers.ranges.at(),
                values: buffers.values.at(),
                numbers: buffers.numbers.at(),
                minima: buffers.minima.at(),
            };
            queue.run_behind(&self.assign, &assign)
        }
    }

    fn ranges_argument(&self, grid: &GridStep<T>, state: &DeviceState<T>) -> SortedRangesArgument {
        let (Farther { relative, underflow }, buffers) = (Farther::new(1), &self.buffers);
        SortedRangesArgument {
            boxes: grid.grid.boxes.at(),
            counts: grid.grid.counts.at(),
            values: buffers.values.at(),
            numbers: buffers.numbers.at(),
            ranges: buffers.ranges.at(),
            control: state.control,
            relative,
            underflow,
            k: grid.sizes.k as u32,
            cells: grid.sizes.cells() as u32,
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(minima_have_few_numbers_at_the_top);
    fn minima_have_few_numbers_at_the_top() {
        assert_eq!((levels(0), levels(64), levels(65)), (vec![], vec![], vec![3]));
        assert_eq!(levels(100_000), [3_125, 98, 4]);
    }
}
