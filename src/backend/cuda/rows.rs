//! A fit's rows on the device: the column-major matrix that columns are uploaded into, as they are.

use super::device::{Buffer, Plain, Queue};
use crate::error::Result;
use crate::float::Float;

/// The stride is a multiple of this, so that every column is aligned and kernels may read whole tiles.
pub const ROW_ALIGNMENT: usize = 1_024;

/// Kept rows on the device. Columns are zero from row `n` to the stride.
pub struct DeviceRows<T> {
    pub queue: Queue,
    /// `(d, stride)`.
    pub x: Buffer<T>,
    pub stride: usize,
    pub n: usize,
    pub d: usize,
    /// `(stride)`: the weights; `w^` once they were rounded; zero from row `n` on.
    pub weights: Option<Buffer<f64>>,
}

/// `struct Rows` of `kernels/common.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RowsArgument {
    x: u64,
    w: u64,
    stride: u64,
    n: u32,
    d: i32,
}

impl<T: Float + Plain> DeviceRows<T> {
    /// Room for `n` rows of `d` features; only the padding is written.
    pub fn new(queue: &Queue, n: usize, d: usize, weighted: bool) -> Result<Self> {
        let stride = n.next_multiple_of(ROW_ALIGNMENT).max(ROW_ALIGNMENT);
        let mut x = queue.alloc(stride * d)?;
        let mut weights = if weighted { Some(queue.alloc(stride)?) } else { None };
        let (zeros, no_weights) = (vec![T::default(); stride - n], vec![0.0; stride - n]);
        for f in 0..d {
            x.write(f * stride + n, &zeros)?;
        }
        if let Some(weights) = &mut weights {
            weights.write(n, &no_weights)?;
        }
        Ok(Self { queue: queue.clone(), x, stride, n, d, weights })
    }

    /// As kernels take it.
    pub fn argument(&self) -> RowsArgument {
        RowsArgument {
            x: self.x.at(),
            w: self.weights.as_ref().map_or(0, Buffer::at),
            stride: self.stride as u64,
            n: self.n as u32,
            d: self.d as i32,
        }
    }
}
