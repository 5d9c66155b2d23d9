//! Tables of rows in the memory of a GPU are made here, because only the backend knows what kernels can read.

use std::sync::OnceLock;

use super::external::host_copy;
use crate::backend::cuda::device::Gpu;
use crate::backend::cuda::shape::ROW_ALIGNMENT;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::input::gpu_table::{GpuTable, GpuValues};

/// The name for the list of addresses in errors.
const PIECES: &str = "the list of columns on the GPU";

impl<T: Float> GpuTable<T> {
    /// `rows` rows in the memory of the GPU with this ordinal. Their features are those of all pieces, in order.
    ///
    /// # Errors
    /// [`KMeansError::NoFeatures`]. [`KMeansError::UnsupportedDtype`] if values would lose bits in `T`.
    /// [`KMeansError::Device`] if the GPU cannot be used.
    ///
    /// # Safety
    /// As long as the table lives:
    /// - Every value of every row is in memory of this GPU that kernels of its primary context may read, and so is its bitmap.
    /// - The work that wrote the values is done, and nothing writes to them.
    pub unsafe fn new(ordinal: u32, rows: usize, pieces: impl IntoIterator<Item = GpuValues>) -> Result<Self> {
        let pieces = memory::collected(pieces, PIECES)?;
        let d = pieces.iter().map(|piece| piece.columns).sum();
        if d == 0 {
            return Err(KMeansError::NoFeatures);
        }
        if let Some(f) = pieces.iter().position(|piece| T::IS_F32 && piece.value_type.is_wide()) {
            let got = format!("{:?} for features of type {}", pieces[f].value_type, T::NAME);
            return Err(KMeansError::UnsupportedDtype { column: format!("column_{f}"), got });
        }
        let gpu = Gpu::get(ordinal)?;
        let in_place = match &pieces[..] {
            [piece] if rows > 0 => piece.value_type.size_as::<T>().is_some_and(|size| fits_kernels(piece, rows, size, &gpu)),
            _ => false,
        };
        Ok(Self { ordinal, rows, d, pieces, in_place, to_host: host_copy, host: OnceLock::new() })
    }
}

/// Whether kernels can read columns where they are. They load 16 bytes at once, and whole tiles: up to [`ROW_ALIGNMENT`] rows at
/// the end of the last column that do not exist. What lies behind a column is read but never used. So it may be anything, but it
/// must be in the same allocation.
fn fits_kernels(piece: &GpuValues, rows: usize, size: usize, gpu: &Gpu) -> bool {
    let one = piece.columns == 1;
    let (Ok(first), Ok(pitch)) = (u64::try_from(piece.first), usize::try_from(if one { 0 } else { piece.column_pitch })) else {
        return false;
    };
    let start = piece.address + first * size as u64;
    if piece.row_pitch != 1 || piece.validity.is_some() || !start.is_multiple_of(16) || !(pitch * size).is_multiple_of(16) {
        return false;
    }
    if !one && pitch < rows {
        return false;
    }
    let values =
        (piece.columns - 1).checked_mul(pitch).and_then(|values| values.checked_add(rows.next_multiple_of(ROW_ALIGNMENT)));
    let bytes = values.and_then(|values| values.checked_mul(size));
    bytes.is_some_and(|bytes| gpu.readable_from(start).is_some_and(|there| bytes as u64 <= there))
}
