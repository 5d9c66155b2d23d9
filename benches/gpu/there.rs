//! Rows in the memory of a GPU, as another program would have them.

use std::sync::Arc;

use cudarc::driver::{CudaContext, result};
use polars_kmeans::{Engine, GpuTable, GpuValues, ValueType};

/// Columns on the first GPU.
pub struct Columns {
    address: u64,
    pitch: usize,
    n: usize,
    d: usize,
    context: Arc<CudaContext>,
}

impl Columns {
    /// A copy of the columns.
    pub fn of<T: Engine>(columns: &[Vec<T>]) -> Self {
        let (n, d) = (columns[0].len(), columns.len());
        // Whole tiles, which kernels read.
        let pitch = n.next_multiple_of(1_024);
        let context = CudaContext::new(0).expect("a GPU");
        context.bind_to_thread().expect("a GPU");
        // SAFETY: each column has a place of `pitch` values.
        let address = unsafe { result::malloc_sync(pitch * d * size_of::<T>()) }.expect("memory on the GPU");
        for (f, column) in columns.iter().enumerate() {
            // SAFETY: as above.
            unsafe { result::memcpy_htod_sync(address + (f * pitch * size_of::<T>()) as u64, column) }.expect("a copy");
        }
        context.synchronize().expect("a copy");
        Self { address, pitch, n, d, context }
    }

    /// The table of these columns.
    pub fn table<T: Engine>(&self) -> GpuTable<T> {
        let kind = if T::IS_F32 { ValueType::Float32 } else { ValueType::Float64 };
        let piece = GpuValues::columns(self.address, kind, self.d, self.pitch);
        // SAFETY: the memory has the values. It is freed when this is dropped, after the table.
        unsafe { GpuTable::new(0, self.n, [piece]) }.expect("a table")
    }
}

impl Drop for Columns {
    fn drop(&mut self) {
        // SAFETY: it was allocated once, and no table reads it any more.
        let freed = self.context.bind_to_thread().and_then(|()| unsafe { result::free_sync(self.address) });
        freed.expect("memory of the GPU");
    }
}
