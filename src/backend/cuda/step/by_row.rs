//! A copy of the rows whose features lie side by side, which `kernels/step/tensor_groups.cu` makes. Settling and sums read single
//! rows, all features of each. It is made once a fit, if there is memory for it.

use crate::backend::cuda::arguments::RowsArgument;
use crate::backend::cuda::device::{Buffer, Queue, bytes_of, product};
use crate::backend::cuda::shape::{FitShape, padded};
use crate::base::error::Result;

/// A row begins where memory sends whole pieces of so many bytes.
const SECTOR: usize = 32;

/// The copy.
pub struct ByRow {
    words: Buffer<u32>,
    /// Values of a row, with those that fill it up.
    pub width: usize,
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

    /// Memory for the copy.
    pub fn new(shape: &FitShape, queue: &Queue) -> Result<Self> {
        let words = queue.alloc(Self::words(shape), "a copy of the rows")?;
        Ok(Self { words, width: row_bytes(shape) / shape.value_bytes() })
    }

    pub fn at(&self) -> u64 {
        self.words.at()
    }

    /// The copy as a kernel parameter, for kernels that read `Rows::of`.
    pub fn of(&self, rows: RowsArgument) -> RowsArgument {
        RowsArgument { x: self.at(), stride: 1, step: self.width as i32, ..rows }
    }
}
