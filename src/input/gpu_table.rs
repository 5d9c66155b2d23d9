//! Rows that are already in the memory of a GPU: a tensor, or the columns of a data frame that lives there. Fits, predictions and
//! scores read them there. No value passes through the host.
//!
//! A [`GpuTable`] says where the values are. [`Features::on_gpu`](crate::Features::on_gpu) and
//! [`Column::on_gpu`](crate::Column::on_gpu) are views of it, as others are of slices. If the values are columns of the engine's
//! own type, kernels read them where they are. Otherwise the device makes such columns of them, once
//! (`kernels/passes/external_arrays.cu`).

use std::ops::Range;
use std::sync::OnceLock;

use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::features::Validity;
use crate::input::fp16::Half;
use crate::input::value_type::ValueType;

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
    pub(crate) ordinal: u32,
    pub(crate) rows: usize,
    pub(crate) d: usize,
    pub(crate) pieces: Vec<GpuValues>,
    pub(crate) in_place: bool,
    /// Copies the values to the host. The backend knows how.
    pub(crate) to_host: fn(&Self) -> Result<HostCopy<T>>,
    /// Made if an error has to name values, or if a pass is for the host alone.
    pub(crate) host: OnceLock<HostCopy<T>>,
}

/// Some of the rows of a table.
#[derive(Debug, Clone)]
pub struct GpuRows<'a, T> {
    pub(crate) table: &'a GpuTable<T>,
    pub(crate) rows: Range<usize>,
}

impl<T> GpuRows<'_, T> {
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        Self { table: self.table, rows: self.rows.start + range.start..self.rows.start + range.end }
    }
}

impl<T: Float> GpuTable<T> {
    /// The values on the host. They are copied once.
    pub(crate) fn host(&self) -> Result<&HostCopy<T>> {
        if let Some(copy) = self.host.get() {
            return Ok(copy);
        }
        let copy = (self.to_host)(self)?;
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

    /// Whether a fit reads the values where they are: they are columns of the type `T` that kernels can read, and rows are
    /// neither scaled nor normalised. Otherwise a fit makes its own copy on the GPU.
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

    pub(crate) fn all(&self) -> GpuRows<'_, T> {
        GpuRows { table: self, rows: 0..self.rows }
    }
}

/// The values of a table on the host, column by column.
#[derive(Debug)]
pub struct HostCopy<T> {
    pub values: Vec<T>,
    pub stride: usize,
    pub rows: usize,
    /// For each feature its bitmap, if there is one, and the bit of row 0.
    pub validity: Vec<Option<(Vec<u8>, usize)>>,
}

impl<T> HostCopy<T> {
    /// The values of a feature, and which of them are not null.
    pub(crate) fn column(&self, f: usize) -> (&[T], Option<Validity<'_>>) {
        let values = &self.values[f * self.stride..][..self.rows];
        (values, self.validity[f].as_ref().map(|(bits, first)| Validity::new(bits, *first)))
    }
}
