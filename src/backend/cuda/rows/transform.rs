//! Rows that were sent are transformed: scaled and normalised where they are (`kernels/passes/transform.cu`).

use super::DeviceRows;
use crate::backend::cuda::arguments::{self, NormaliseArgument, ScaleColumnsArgument};
use crate::backend::cuda::device::Plain;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::transform::RowTransform;

/// Values of a column that a block scales.
const CHUNK: usize = 8_192;
/// Columns that are scaled at once.
const COLUMNS: usize = 256;

impl<T: Float + Plain> DeviceRows<T> {
    /// Scales and normalises rows that have just been sent. Their padding stays zero.
    pub fn transform(&self, row_transform: Option<&RowTransform>) -> Result<()> {
        let Some(row_transform) = row_transform.filter(|_| self.n > 0) else { return Ok(()) };
        let gpu = &self.queue.gpu;
        for (group, some) in row_transform.factors().chunks(COLUMNS).enumerate() {
            let mut factors = [1.0; COLUMNS];
            factors[..some.len()].copy_from_slice(some);
            let x = self.x.at_index(group * COLUMNS * self.stride);
            let argument =
                ScaleColumnsArgument { x, stride: self.stride as u64, n: self.n as u32, columns: some.len() as u32, factors };
            let blocks = some.len() * self.n.div_ceil(CHUNK);
            let launch = arguments::scale_columns::<T>().exactly(gpu, "", blocks)?;
            // SAFETY: the kernel reads and writes the first n values of these columns, each by one thread. The columns are below
            // d, because there is one factor per feature.
            unsafe { self.queue.run(&launch, &argument)? };
        }
        if !row_transform.directions() {
            return Ok(());
        }
        let argument = NormaliseArgument { x: self.x.at(), stride: self.stride as u64, n: self.n as u32, d: self.d as i32 };
        let entry = arguments::normalise::<T>();
        let launch = entry.exactly(gpu, "", entry.blocks_of(self.n))?;
        // SAFETY: the kernel reads and writes the first n rows, each by one thread.
        unsafe { self.queue.run(&launch, &argument) }
    }
}
