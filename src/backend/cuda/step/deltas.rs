//! The sums of rows whose label changed, after a pass that only labels: `kernels/step/deltas.cu`.

use super::{MOST_TABLE_BYTES, copies};
use crate::backend::cuda::arguments::{self, DeltasArgument};
use crate::backend::cuda::device::{Block, Launch, Plain, Queue};
use crate::backend::cuda::rows::chunks::Chunk;
use crate::backend::cuda::shape::FitShape;
use crate::backend::cuda::state::State;
use crate::error::Result;
use crate::float::Float;

/// Constants of the kernel: threads of a block, bytes of labels that a warp compares at a time, and the shared memory besides
/// the table.
const THREADS: u32 = 512;
const TILE_BYTES: usize = 512;
const OTHER_BYTES: usize = 41 << 10;
/// The fewest and the most columns of a table.
const COLUMNS: std::ops::RangeInclusive<usize> = 8..=1_024;
/// The cost of adding one cell of a table to device memory, in bytes of labels read.
const CELL: f64 = 20.0;
/// Up to this many values, direct additions to device memory are about as fast as tables, even if they go to few places.
const ADDITIONS: usize = 4_096;
/// Bytes for copies of cells, and bytes of the largest table. The largest table is used if a table of `MOST_TABLE_BYTES` would
/// hold only one column. A thread would then have only one load in flight.
const COPIES_BYTES: usize = 40 << 10;
const LARGEST_TABLE_BYTES: usize = 184 << 10;

/// The tables of a block: how many columns each has, and how many copies of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tables {
    columns: usize,
    /// 0: no table, the kernel adds directly to device memory.
    copies: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl Tables {
    /// A table takes as many columns as it can hold, but the work must still be enough for the whole device. `room`: the bytes of
    /// shared memory that a block may have. `processors`: the SMs.
    fn new(shape: &FitShape, room: usize, processors: usize) -> Self {
        let (n, k, columns) = (shape.chunk, shape.k, shape.columns());
        let (column, counters) = ((k | 1) * shape.limbs * 8, (k | 1) * 4);
        let fit = |bytes: usize| (bytes.saturating_sub(counters) / column).min(*COLUMNS.end());
        let room = room.saturating_sub(OTHER_BYTES);
        let (usual, largest) = (fit(MOST_TABLE_BYTES.min(room)), fit(LARGEST_TABLE_BYTES.min(room)));
        let fit = if usual > 1 { usual } else { largest };
        let mut tables = Self { columns: columns.min(*COLUMNS.end()), copies: 0, shared: 0 };
        if fit > 0 {
            // Tables of few columns have two costs. Each block that has a share of the rows adds the cells of its table to device
            // memory. Each group of columns reads all labels again. The sum of both costs is least at this number of groups:
            let blocks = 2 * processors;
            let even = (CELL * (blocks * k * columns) as f64 / (n * shape.label_bytes()) as f64).sqrt() as usize;
            let groups = columns.div_ceil(fit).max(even.min(columns / COLUMNS.start()));
            tables.columns = columns.div_ceil(groups);
            tables.copies = copies(tables.columns * column / 8, COPIES_BYTES, LARGEST_TABLE_BYTES);
        }
        let table = (tables.columns * column * tables.copies + counters).next_multiple_of(16);
        tables.shared = (tables.columns * 24).next_multiple_of(16) + if tables.copies > 0 { table } else { 0 };
        tables
    }
}

/// The launch for one fit.
pub struct Deltas {
    launch: Launch<DeltasArgument>,
    tables: Tables,
    /// Groups of columns.
    groups: usize,
    /// Up to this many changed rows, a block adds directly to device memory, without a table.
    few: usize,
}

impl Deltas {
    pub fn new<T: Float + Plain>(shape: &FitShape, queue: &Queue) -> Result<Self> {
        let gpu = &queue.gpu;
        let tables = Tables::new(shape, gpu.shared_per_block as usize, gpu.processors as usize);
        let (columns, groups) = (shape.columns(), shape.columns().div_ceil(tables.columns));
        let tiles = (shape.chunk * shape.label_bytes()).div_ceil(TILE_BYTES);
        let block = Block { threads: THREADS, shared: tables.shared };
        let kernel = arguments::deltas::<T>().half_if(shape.half).load(gpu, "")?;
        let launch = Launch::resident(gpu, kernel, block, tiles * groups)?;
        // Every group gets the same number of blocks.
        let blocks = launch.blocks as usize;
        let launch = launch.with_blocks(if blocks > groups { blocks - blocks % groups } else { blocks });
        // Direct additions pay off for rows that hardly share cells, or if there are few values in all. The limit is not higher,
        // because additions to the same place wait for each other.
        let few = (shape.k / 2).max(ADDITIONS * groups / (launch.blocks as usize * columns));
        Ok(Self { launch, tables, groups, few })
    }

    /// Adds the moves of a chunk's rows to the pending sums. The labels before and after are those of the state.
    pub fn launch<T: Float + Plain>(&self, chunk: &Chunk<'_, T>, state: &State<T>) -> Result<()> {
        let [labels, next] = state.labels.before_and_after(chunk.first);
        let argument = DeltasArgument {
            rows: chunk.rows.argument(),
            labels,
            next,
            sums: state.sums.argument(&state.shape),
            factors: state.columns.factors.at(),
            mass_to_integer: state.mass_to_integer,
            control: state.control,
            table_copies: self.tables.copies as i32,
            chunk: self.tables.columns as i32,
            chunks: self.groups as i32,
            few: self.few as i32,
        };
        // SAFETY: the addresses are those of the state's buffers. Each row has a label before and after, below k. The shared
        // memory has room for the tables. The kernel begins with the wait.
        unsafe { state.queue.run_behind(&self.launch, &argument) }
    }
}
