//! Rows that are already in the memory of a GPU: a tensor, or the columns of a data frame that lives there. Fits, predictions and
//! scores read them there. No value passes through the host.
//!
//! A [`GpuTable`] says where the values are. [`Features::on_gpu`](crate::Features::on_gpu) and
//! [`Column::on_gpu`](crate::Column::on_gpu) are views of it, as others are of slices. If the values are columns of the engine's own
//! type, kernels read them where they are. Otherwise the device makes such columns of them, once (`kernels/passes/foreign.cu`).

use std::ops::Range;
use std::sync::OnceLock;

use crate::backend::cuda::device::{Buffer, Gpu};
use crate::backend::cuda::{HostCopy, Plain, host_copy};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::Validity;
use crate::input::fp16::Half;

/// The type of values on a GPU. The kernels know the types by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum ValueType {
    /// Bits as in an Arrow bitmap.
    Bit,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    BFloat16,
    Float32,
    Float64,
}

impl ValueType {
    /// Whether the values become float64: all others become float32 without a loss.
    pub fn is_wide(self) -> bool {
        matches!(self, Self::Int32 | Self::Int64 | Self::UInt32 | Self::UInt64 | Self::Float64)
    }

    /// The bytes of a value that kernels for features of type `T` read as it is. `None`: they read no such values.
    fn size_as<T: Float>(self) -> Option<usize> {
        let own = if T::IS_F32 { Self::Float32 } else { Self::Float64 };
        if self == own { Some(size_of::<T>()) } else { self.half().filter(|_| T::IS_F32).map(|_| size_of::<u16>()) }
    }

    /// The type, if it is a float type of 16 bits.
    pub fn half(self) -> Option<Half> {
        match self {
            Self::Float16 => Some(Half::Float16),
            Self::BFloat16 => Some(Half::BFloat16),
            _ => None,
        }
    }
}

/// Where the values of some neighbouring features are. Value `f` of row `r` is number `first + r * row_pitch + f * column_pitch`,
/// counted from the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuValues {
    /// An address in the memory of the GPU.
    pub address: u64,
    pub value_type: ValueType,
    /// The number of features.
    pub columns: usize,
    pub first: i64,
    pub row_pitch: i64,
    pub column_pitch: i64,
    /// An Arrow bitmap that says which rows hold values, if there are nulls: its address on the GPU, and the bit of row 0.
    pub validity: Option<(u64, u64)>,
}

impl GpuValues {
    /// Row-major values without gaps.
    pub fn rows(address: u64, value_type: ValueType, columns: usize) -> Self {
        Self { address, value_type, columns, first: 0, row_pitch: columns as i64, column_pitch: 1, validity: None }
    }

    /// Column-major values, with `pitch` values from one column to the next.
    pub fn columns(address: u64, value_type: ValueType, columns: usize, pitch: usize) -> Self {
        Self { address, value_type, columns, first: 0, row_pitch: 1, column_pitch: pitch as i64, validity: None }
    }
}

/// Rows in the memory of a GPU, as values of type `T`. Some other program owns them.
#[derive(Debug)]
pub struct GpuTable<T> {
    ordinal: u32,
    rows: usize,
    d: usize,
    pieces: Vec<GpuValues>,
    in_place: bool,
    /// Made if an error has to name values, or if a pass is for the host alone.
    host: OnceLock<HostCopy<T>>,
}

/// Some of the rows of a table.
#[derive(Debug)]
pub struct GpuRows<'a, T> {
    pub(crate) table: &'a GpuTable<T>,
    pub(crate) rows: Range<usize>,
}

impl<T> Clone for GpuRows<'_, T> {
    fn clone(&self) -> Self {
        Self { table: self.table, rows: self.rows.clone() }
    }
}

impl<T> GpuRows<'_, T> {
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        Self { table: self.table, rows: self.rows.start + range.start..self.rows.start + range.end }
    }
}

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
    /// - The work that wrote the values is done, and nobody writes to them.
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
        Ok(Self { ordinal, rows, d, pieces, in_place, host: OnceLock::new() })
    }

    /// The values on the host. They are copied once.
    pub(crate) fn host(&self) -> Result<&HostCopy<T>> {
        if let Some(copy) = self.host.get() {
            return Ok(copy);
        }
        let copy = host_copy(self)?;
        Ok(self.host.get_or_init(|| copy))
    }
}

impl<T> GpuTable<T> {
    /// The number of the GPU.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows
    }

    /// The number of features.
    pub fn n_features(&self) -> usize {
        self.d
    }

    /// Whether a fit reads the values where they are: they are columns of the type `T` that kernels can read, and rows are neither
    /// scaled nor normalised. Otherwise a fit makes its own copy on the GPU.
    pub fn is_read_in_place(&self) -> bool {
        self.in_place
    }

    /// The type of the values, if all have the same of 16 bits, and features are float32. A GPU keeps them so.
    pub(crate) fn half(&self) -> Option<Half>
    where
        T: Float,
    {
        let half = self.pieces[0].value_type.half().filter(|_| T::IS_F32)?;
        self.pieces.iter().all(|piece| piece.value_type.half() == Some(half)).then_some(half)
    }

    pub(crate) fn pieces(&self) -> &[GpuValues] {
        &self.pieces
    }

    pub(crate) fn all(&self) -> GpuRows<'_, T> {
        GpuRows { table: self, rows: 0..self.rows }
    }
}

/// Kernels load 16 bytes at once, and whole tiles: up to so many rows at the end of the last column that do not exist.
const TILE: usize = 1024;

/// Whether kernels can read columns where they are. What lies behind a column is read but never used. So it may be anything, but it
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
    let values = (piece.columns - 1).checked_mul(pitch).and_then(|values| values.checked_add(rows.next_multiple_of(TILE)));
    let bytes = values.and_then(|values| values.checked_mul(size));
    bytes.is_some_and(|bytes| gpu.readable_from(start).is_some_and(|there| bytes as u64 <= there))
}

impl<T> HostCopy<T> {
    /// The values of a feature, and which of them are not null.
    pub(crate) fn column(&self, f: usize) -> (&[T], Option<Validity<'_>>) {
        let values = &self.values[f * self.stride..][..self.rows];
        (values, self.validity[f].as_ref().map(|(bits, first)| Validity::new(bits, *first)))
    }
}

/// Values that the engine has put into the memory of a GPU: answers for rows.
pub struct GpuArray<V: Plain> {
    buffer: Buffer<V>,
}

impl<V: Plain> GpuArray<V> {
    pub(crate) fn new(buffer: Buffer<V>) -> Self {
        Self { buffer }
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
    /// [`KMeansError::NoMemory`] or [`KMeansError::Device`].
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
        // The owner may have read the values in streams of its own. So all work of the device comes before the memory is free. An error
        // means that the context no longer exists, and neither does its memory.
        let _ = self.buffer.queue().gpu.wait();
    }
}
