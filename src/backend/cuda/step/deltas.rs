//! The sums of rows whose label changed, after a pass that only labels: `kernels/step/deltas.cu`.

use super::by_row::ByRow;
use crate::backend::cuda::arguments::{self, DeltasArgument};
use crate::backend::cuda::device::{Launch, Plain, Queue};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, copies};
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;

/// Constants of the kernel: threads of a block, bytes of labels that a warp compares at a time, and values of a row that a lane
/// loads at once.
const THREADS: usize = arguments::deltas::<f32>().block.threads as usize;
const LABEL_BYTES: usize = 512;
const FLIGHT: usize = 4;
/// The fewest and the most columns of a table.
const COLUMNS: std::ops::RangeInclusive<usize> = 8..=1_024;
/// The cost of adding one accumulator of a table to device memory, in bytes of labels read.
const CELL: f64 = 20.0;
/// Bytes for copies of accumulators, and of the largest table.
const COPIES_BYTES: usize = 40 << 10;
const MOST_BYTES: usize = 184 << 10;

/// The tables of a block: how many columns each has, and how many copies of an accumulator. One column counts rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeltaTables {
    columns: usize,
    /// 0: no table, the kernel adds directly to device memory.
    copies: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl DeltaTables {
    /// A table takes as many columns as it can hold, but the work must still be enough for the whole device. `room`: the bytes of
    /// shared memory that a block may have. `processors`: the SMs. Each has one block.
    fn new(shape: &FitShape, room: usize, processors: usize) -> Self {
        let (n, k, columns) = (shape.chunk, shape.k, shape.columns() + 1);
        let column = (k | 1).saturating_mul(shape.limbs * 8);
        // The lists of the warps, and the factors of a column.
        let lists = THREADS / 32 * (LABEL_BYTES / shape.label_bytes() + 32) * 4;
        let other = |columns: usize| lists + (columns * 24).next_multiple_of(16);
        let most = MOST_BYTES.min(room.saturating_sub(other(columns.min(*COLUMNS.end()))));
        let fit = (most / column).min(*COLUMNS.end());
        let mut tables = Self { columns: columns.min(*COLUMNS.end()), copies: 0, shared: 0 };
        if fit > 0 {
            // Tables of few columns have two costs. Each block that has a share of the rows adds the accumulators of its table to device
            // memory. Each group of columns reads all labels again. The sum of both costs is least at this number of groups:
            let even = (CELL * (processors * k * columns) as f64 / (n * shape.label_bytes()) as f64).sqrt() as usize;
            let groups = columns.div_ceil(fit).max(even.min(columns / COLUMNS.start()));
            // Fewer columns, if more blocks have work then.
            let most = columns.div_ceil(groups);
            let time = |c: usize| {
                let groups = columns.div_ceil(c);
                (c.next_multiple_of(FLIGHT) * groups.div_ceil(processors)) as f64 / (processors / groups).max(1) as f64
            };
            let by_time = |&a: &usize, &b: &usize| time(a).total_cmp(&time(b));
            // Then a lane may load several values of a row at once. Tables of fewer columns have none to load.
            let even = |&columns: &usize| most < FLIGHT || columns % FLIGHT == 0 || groups == 1 && columns == most;
            tables.columns = (most.div_ceil(2)..=most).rev().filter(even).min_by(by_time).unwrap_or(most);
            let left = room.saturating_sub(other(tables.columns));
            tables.copies = copies(tables.columns * column / 8, COPIES_BYTES.min(left), MOST_BYTES.min(left));
        }
        let table = (tables.columns * column * tables.copies).next_multiple_of(16);
        tables.shared = other(tables.columns) + table;
        tables
    }
}

/// The launch for one fit.
pub struct DeltasLaunch {
    launch: Launch<DeltasArgument>,
    tables: DeltaTables,
    /// Groups of columns.
    groups: usize,
}

impl DeltasLaunch {
    pub fn new<T: Float + Plain>(shape: &FitShape, queue: &Queue) -> Result<Self> {
        let gpu = &queue.gpu;
        let tables = DeltaTables::new(shape, gpu.shared_per_block as usize, gpu.processors as usize);
        let groups = (shape.columns() + 1).div_ceil(tables.columns);
        let tiles = (shape.chunk * shape.label_bytes()).div_ceil(LABEL_BYTES);
        let entry = arguments::deltas::<T>().half_if(shape.half).with_shared(tables.shared);
        let launch = entry.resident(gpu, "", entry.blocks_of_warps(tiles) * groups)?;
        // Every group gets the same number of blocks.
        let blocks = launch.blocks as usize;
        let launch = launch.with_blocks(if blocks > groups { blocks - blocks % groups } else { blocks });
        Ok(Self { launch, tables, groups })
    }

    /// Adds the moves of a chunk's rows to the pending sums. The labels before and after are those of the state.
    /// `by_row`: a copy of all rows, if there is one.
    pub fn launch<T: Float + Plain>(
        &self,
        chunk: &DeviceChunk<'_, T>,
        state: &DeviceState<T>,
        by_row: Option<&ByRow>,
    ) -> Result<()> {
        let [labels, next] = state.labels.before_and_after(chunk.first);
        // Tables of few columns read no more than a sector of a row from either.
        let by_row = by_row.filter(|_| self.groups == 1 || self.tables.columns.is_multiple_of(FLIGHT));
        let argument = DeltasArgument {
            rows: chunk.rows.argument(),
            labels,
            next,
            sums: state.sums_of_step(),
            factors: state.columns.factors.at(),
            mass_to_integer: state.mass_to_integer,
            control: state.control,
            table_copies: self.tables.copies as i32,
            chunk: self.tables.columns as i32,
            chunks: self.groups as i32,
            width: by_row.map_or(0, |copy| copy.width as u32),
            by_row: by_row.map_or(0, ByRow::at),
        };
        // SAFETY: the addresses are those of the state's buffers. Each row has a label before and after, below k. The shared
        // memory has room for the tables. The kernel begins with the wait.
        unsafe { state.queue.run_behind(&self.launch, &argument) }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::choice::tests::shape;
    use super::*;

    unit_test!(tables_fit_in_shared_memory);
    fn tables_fit_in_shared_memory() {
        for room in [99 << 10, 163 << 10, 227 << 10] {
            for n in [1, 5_000, 100_000, 1_000_000, 20_000_000] {
                for d in [1, 8, 9, 10, 15, 40, 100, 300, 1_024, 4_096, 65_536] {
                    for k in [1, 2, 16, 48, 64, 100, 255, 256, 1_000, 4_096, 20_000, 40_000, 70_000] {
                        let tables = DeltaTables::new(&shape(n, d, k), room, 132);
                        assert!(tables.shared <= room && tables.columns > 0, "{room} {n} {d} {k} {tables:?}");
                        assert!(tables.copies > 0 || k > 255, "{room} {n} {d} {k} {tables:?}");
                    }
                }
            }
        }
    }
}
