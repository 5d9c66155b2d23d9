//! Answers that stay in the memory of a GPU.

#[cfg(feature = "python")]
use super::device::Gpu;
use super::device::{Buffer, Plain};
use crate::base::error::Result;

/// Values that the engine has put into the memory of a GPU: answers for rows.
pub struct GpuArray<V: Plain> {
    buffer: Buffer<V>,
}

impl<V: Plain> GpuArray<V> {
    pub(crate) fn new(buffer: Buffer<V>) -> Self {
        Self { buffer }
    }

    /// A copy of host values. `what`: what they are for.
    #[cfg(feature = "python")]
    pub(crate) fn upload(ordinal: u32, values: &[V], what: &'static str) -> Result<Self> {
        let buffer = Gpu::get(ordinal)?.queue()?.upload(values, what)?;
        buffer.queue().wait()?;
        Ok(Self { buffer })
    }

    /// The address of the first value. All work on the values is done.
    pub fn address(&self) -> u64 {
        self.buffer.at()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the GPU.
    pub fn ordinal(&self) -> u32 {
        self.buffer.queue().gpu.ordinal
    }

    /// A copy of the values on the host.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError::NoMemory) or [`KMeansError::Device`](crate::KMeansError::Device).
    pub fn to_vec(&self) -> Result<Vec<V>> {
        self.buffer.to_vec()
    }
}

/// Labels and distances of rows on a GPU, on that GPU.
pub struct GpuPredictions {
    /// -1 for a row without an answer.
    pub labels: GpuArray<i32>,
    /// The distances to the nearest centroid. NaN for a row without an answer.
    pub nearest: GpuArray<f64>,
    /// The distances to the second nearest centroid. None if there is only one.
    pub seconds: Option<GpuArray<f64>>,
}

impl<V: Plain> Drop for GpuArray<V> {
    fn drop(&mut self) {
        // The owner may have read the values in streams of its own. So all work of the device comes before the memory is free. An
        // error means that the context no longer exists, and neither does its memory.
        let _ = self.buffer.queue().gpu.wait();
    }
}
