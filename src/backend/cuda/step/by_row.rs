//! A copy of the rows whose features lie side by side: `kernels/step/by_row.cu`. Settling and sums read single rows, all features
//! of each. It is made once a fit, if there is memory for it.

use crate::backend::cuda::arguments::{self, ByRowArgument, RowsArgument};
use crate::backend::cuda::device::{Block, Buffer, Launch, Plain, Queue, bytes_of, product};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::shape::{FitShape, padded};
use crate::base::error::Result;
use crate::base::float::Float;

/// Constants of the kernel: threads of a block, and the rows and the bytes of a row in its tile.
const THREADS: u32 = 256;
const TILE_ROWS: usize = 128;
const ROW_BYTES: usize = 128;
/// A row begins where memory sends whole pieces of so many bytes.
const SECTOR: usize = 32;

/// The copy.
pub struct ByRow {
    words: Buffer<u32>,
    /// Values of a row, with those that fill it up.
    pub width: usize,
    /// Tiles side by side.
    across: usize,
    launch: Launch<ByRowArgument>,
    made: bool,
}

/// Bytes of a row.
fn row_bytes(shape: &FitShape) -> usize {
    padded(product([shape.d, shape.value_bytes()]), SECTOR)
}

impl ByRow {
    pub fn bytes(shape: &FitShape) -> u64 {
        bytes_of::<u32>(Self::words(shape))
    }

    /// The words of all rows, and of a sector behind the last one: `deltas.cu` may read there.
    fn words(shape: &FitShape) -> usize {
        product([shape.chunk, row_bytes(shape) / 4]).saturating_add(SECTOR / 4)
    }

    pub fn new<T: Float + Plain>(shape: &FitShape, queue: &Queue) -> Result<Self> {
        let bytes = row_bytes(shape);
        let across = bytes.div_ceil(ROW_BYTES);
        let blocks = product([shape.chunk.div_ceil(TILE_ROWS), across]);
        let launch = arguments::by_row::<T>().half_if(shape.half).exactly(&queue.gpu, "", Block::of(THREADS), blocks)?;
        let words = queue.alloc(Self::words(shape), "a copy of the rows")?;
        Ok(Self { words, width: bytes / shape.value_bytes(), across, launch, made: false })
    }

    /// Copies the rows, if that has not been done. These must be the same rows each time.
    pub fn make<T: Float + Plain>(&mut self, rows: &DeviceRows<T>) -> Result<()> {
        if self.made {
            return Ok(());
        }
        let argument =
            ByRowArgument { rows: rows.argument(), copies: self.at(), width: self.width as u32, across: self.across as u32 };
        // SAFETY: the launch has a block for each tile, and the copy has a place for each row.
        unsafe { rows.queue.run(&self.launch, &argument)? };
        self.made = true;
        Ok(())
    }

    pub fn at(&self) -> u64 {
        self.words.at()
    }

    /// The copy as a kernel parameter, for kernels that read `Rows::of`.
    pub fn of(&self, rows: RowsArgument) -> RowsArgument {
        RowsArgument { x: self.at(), stride: 1, step: self.width as i32, ..rows }
    }
}
