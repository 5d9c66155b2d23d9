//! The rows of a fit on the device, as a column-major matrix. Columns are uploaded into it as they are. Columns that are on the
//! device already are read where they are, or copied there.

pub mod chunks;
pub mod download;
pub mod external;
mod matrix;
pub mod stream;
mod table;
mod transform;
pub mod upload;

use std::ops::Range;

pub use self::matrix::Matrix;
use crate::backend::cuda::arguments::{self, RoundWeightsArgument, RowsArgument};
use crate::backend::cuda::device::{Argument, At, Buffer, Entry, Plain, Queue, bytes_of, product};
use crate::backend::cuda::shape::{ROW_ALIGNMENT, padded};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::exact::fixed::power_of_two;
use crate::input::fp16::Half;
use crate::input::gpu_table::GpuValues;
use crate::input::tile::WeightScale;

/// The kept rows on the device. From row `n` on, a column holds values that kernels may read but do not use.
pub struct DeviceRows<T> {
    pub queue: Queue,
    /// `(d, stride)`.
    pub x: Matrix<T>,
    pub stride: usize,
    pub n: usize,
    pub d: usize,
    /// `(stride)`: the weights. They are `w^` once they were rounded. They are zero from row `n` on.
    pub weights: Option<Buffer<f64>>,
}

impl<T: Float + Plain> DeviceRows<T> {
    /// The stride of the columns for `n` rows. It is a multiple of [`ROW_ALIGNMENT`]. So every column is aligned, and kernels may
    /// read whole tiles.
    fn stride(n: usize) -> usize {
        padded(n.max(1), ROW_ALIGNMENT)
    }

    /// The bytes that `n` rows take on the device.
    pub fn bytes(n: usize, d: usize, weighted: bool, half: bool) -> u64 {
        let weights = if weighted { bytes_of::<f64>(Self::stride(n)) } else { 0 };
        Matrix::<T>::bytes(product([Self::stride(n), d]), half).saturating_add(weights)
    }

    /// Memory for `n` rows of `d` features. Only the padding is written.
    pub fn new(queue: &Queue, n: usize, d: usize, weighted: bool, half: Option<Half>) -> Result<Self> {
        let stride = Self::stride(n);
        let x = Matrix::allocate(queue, product([stride, d]), half)?;
        let weights = if weighted { Some(queue.alloc(stride, "the weights")?) } else { None };
        let rows = Self { queue: queue.clone(), x, stride, n, d, weights };
        rows.clear_padding()?;
        Ok(rows)
    }

    /// As [`DeviceRows::new`], for values that the caller's memory holds as columns. They are read there. Only the weights are
    /// ours.
    pub fn in_place(queue: &Queue, values: GpuValues, n: usize, d: usize, weighted: bool) -> Result<Self> {
        let stride = if d == 1 { Self::stride(n) } else { values.column_pitch as usize };
        let half = values.value_type.half().filter(|_| T::IS_F32);
        let size = if half.is_some() { size_of::<u16>() } else { size_of::<T>() };
        let at = values.address + (values.first as usize * size) as u64;
        // SAFETY: the maker of the table has promised that the values are there as long as it lives, and rows do not outlive it.
        // The table has checked that whole tiles may be read.
        let x = unsafe { Matrix::external(queue, at, product([stride, d - 1]) + Self::stride(n), half) };
        let weights = if weighted { Some(queue.zeros(Self::stride(n), "the weights")?) } else { None };
        Ok(Self { queue: queue.clone(), x, stride, n, d, weights })
    }

    /// A copy of the rows of several GPUs, in this order, on the GPU of this queue. All work that writes those rows is done.
    pub fn gathered(queue: &Queue, parts: &[&Self]) -> Result<Self> {
        let n = parts.iter().map(|part| part.n).sum();
        let (d, weighted, half) = (parts[0].d, parts[0].weights.is_some(), parts[0].half());
        let all = Self::new(queue, n, d, weighted, half)?;
        let mut first = 0;
        for part in parts {
            let bytes = part.n * all.x.size();
            for f in 0..d {
                let (from, to) = (part.x.at_index(f * part.stride), all.x.at_index(f * all.stride + first));
                // SAFETY: both columns have so many values from there on. The copy was just allocated in this queue's order.
                unsafe { queue.copy_between((to, from), bytes, &part.queue.gpu)? };
            }
            if let (Some(to), Some(from)) = (&all.weights, &part.weights) {
                // SAFETY: as above.
                unsafe { queue.copy_between((to.at_index(first), from.at()), part.n * size_of::<f64>(), &part.queue.gpu)? };
            }
            first += part.n;
        }
        Ok(all)
    }

    /// The rows of whole tiles: `n` and the padding.
    pub fn padded_rows(&self) -> usize {
        Self::stride(self.n)
    }

    /// The type of the values, if it is one of 16 bits.
    pub fn half(&self) -> Option<Half> {
        self.x.half()
    }

    /// The kernel for values of the type that these rows have.
    pub fn entry<A: Argument>(&self, entry: Entry<A>) -> Entry<A> {
        entry.half_if(self.half().is_some())
    }

    /// Sets the padding to zero, because other rows may have been there.
    pub fn clear_padding(&self) -> Result<()> {
        self.x.zero_ends(self.d, self.stride, self.n)?;
        self.weights.as_ref().map_or(Ok(()), |weights| weights.zero_ends(1, self.stride, self.n))
    }

    /// Rounds the weights to `w^`. Doing it again changes nothing.
    pub fn round_weights(&self, scale: WeightScale) -> Result<()> {
        let Some(w) = &self.weights else { return Ok(()) };
        let argument = RoundWeightsArgument { w: w.at(), n: self.n as u64, quantum: power_of_two(scale.exponent - 53) };
        let entry = arguments::round_weights();
        let blocks = entry.blocks_of(self.n).min(64 * self.queue.gpu.processors as usize);
        let launch = entry.exactly(&self.queue.gpu, "", blocks)?;
        // SAFETY: the kernel reads and writes the first n weights, each by one thread.
        unsafe { self.queue.run(&launch, &argument) }
    }

    /// Some of the rows as a kernel parameter, for kernels that read tiles of rows. Whole tiles must lie before the first row.
    pub fn argument_of(&self, range: Range<usize>) -> RowsArgument {
        let all = self.argument();
        let w = if all.w == At::NULL { all.w } else { all.w.index(range.start as u64) };
        RowsArgument { x: self.x.at_index(range.start), w, n: range.len() as u32, ..all }
    }

    /// The rows as a kernel parameter.
    pub fn argument(&self) -> RowsArgument {
        RowsArgument {
            x: self.x.at(),
            w: self.weights.as_ref().map_or(At::NULL, Buffer::at),
            stride: self.stride as u64,
            n: self.n as u32,
            d: self.d as i32,
            bfloat16: i32::from(self.half() == Some(Half::BFloat16)),
            step: 1,
        }
    }
}
