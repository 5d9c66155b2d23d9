//! Rows that another library has: an array (`__dlpack__` or `__array_interface__`), or a data frame on a GPU
//! (`__arrow_c_device_array__`). They are read where they are, also on a GPU. On the host, values of 16 bits are widened in a
//! copy, and so are values that are not aligned.

mod array;

use pyo3::prelude::*;

use self::array::{Array, import, interface};
#[cfg(feature = "cuda")]
use super::device_frame;
#[cfg(feature = "cuda")]
use crate::backend::cuda::CallersContext;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::names::{FeatureLayout, Names};
use crate::input::features::{Column, Features};
#[cfg(feature = "cuda")]
use crate::input::gpu_table::GpuTable;
use crate::model::AnyFeatures;

/// Neighbouring values on the host, and the rows among them.
struct Slice {
    address: usize,
    len: usize,
    first: usize,
    steps: [isize; 2],
}

/// Values that are read as `T`.
enum ExternalValues<T> {
    Host(Slice),
    Copy(Vec<T>),
    #[cfg(feature = "cuda")]
    Gpu(GpuTable<T>),
}

enum AnyValues {
    F32(ExternalValues<f32>),
    F64(ExternalValues<f64>),
}

impl<T: Float> ExternalValues<T> {
    fn features(&self, shape: [usize; 2]) -> Result<Features<'_, T>> {
        match self {
            Self::Host(slice) => slice.features(shape),
            Self::Copy(values) => Features::from_rows(values, shape[1]),
            #[cfg(feature = "cuda")]
            Self::Gpu(table) => Features::on_gpu(table),
        }
    }
}

/// Rows that another library has, in one of the two float types.
pub struct ExternalArray {
    values: AnyValues,
    shape: [usize; 2],
    one_dimension: bool,
    pub layout: FeatureLayout,
    /// What keeps the values where they are.
    _keeper: Box<dyn Send + Sync>,
}

/// The error for an array that cannot be read.
pub(super) fn unreadable(what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> PyErr {
    KMeansError::InvalidOption { option: what, expected: expected.into(), got: got.into() }.into()
}

impl ExternalArray {
    /// The rows of an object. `what` is what errors call it. `wide`: as float64, whatever type they have.
    pub fn of(object: &Bound<'_, PyAny>, what: &'static str, wide: bool) -> PyResult<Self> {
        Self::read(object, what, wide, false)
    }

    /// The weights of an object, as float64. A column is of neighbours.
    pub fn weights_of(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Self> {
        Self::read(object, what, true, true)
    }

    fn read(object: &Bound<'_, PyAny>, what: &'static str, wide: bool, neighbours: bool) -> PyResult<Self> {
        let py = object.py();
        #[cfg(feature = "cuda")]
        let _context = CallersContext::kept();
        #[cfg(feature = "cuda")]
        if object.hasattr("__arrow_c_device_array__")? {
            return Self::of_frame(object, what, wide);
        }
        let (array, keeper): (_, Box<dyn Send + Sync>) = if object.hasattr("__array_interface__")? {
            (interface(object, what)?, Box::new(object.clone().unbind()))
        } else if object.hasattr("__dlpack__")? {
            let imported = import(object, what)?;
            let array = Array::of(&imported, what)?;
            (array, Box::new(imported))
        } else {
            let got = object.get_type().name()?.to_string();
            return Err(unreadable(what, "an array with `__dlpack__` or `__array_interface__`", got));
        };
        let layout = FeatureLayout::of_names(&Names::numbered(array.shape[1])?)?;
        let values = py.detach(|| array.values(wide, neighbours))?;
        Ok(Self { values, shape: array.shape, one_dimension: array.one_dimension, layout, _keeper: keeper })
    }

    #[cfg(feature = "cuda")]
    fn of_frame(object: &Bound<'_, PyAny>, what: &'static str, wide: bool) -> PyResult<Self> {
        let frame = device_frame::DeviceFrame::of(object, what)?;
        let shape = [frame.rows, frame.pieces.len()];
        let wide = wide || frame.pieces.iter().any(|piece| piece.value_type.is_wide());
        let (ordinal, pieces) = (frame.ordinal, frame.pieces);
        // SAFETY: the frame is kept as long as the table, and `DeviceFrame::of` has waited until its values are there. The caller
        // of the package does not change a frame while a call reads it.
        let values = unsafe {
            if wide {
                AnyValues::F64(ExternalValues::Gpu(GpuTable::new(ordinal, frame.rows, pieces)?))
            } else {
                AnyValues::F32(ExternalValues::Gpu(GpuTable::new(ordinal, frame.rows, pieces)?))
            }
        };
        let layout = FeatureLayout::Columns(frame.names);
        Ok(Self { values, shape, one_dimension: false, layout, _keeper: Box::new(frame.capsules) })
    }

    pub fn n_rows(&self) -> usize {
        self.shape[0]
    }

    /// The bytes of the copy that holds the values, if there is one.
    pub fn copied_bytes(&self) -> usize {
        match &self.values {
            AnyValues::F32(ExternalValues::Copy(values)) => size_of_val(&values[..]),
            AnyValues::F64(ExternalValues::Copy(values)) => size_of_val(&values[..]),
            _ => 0,
        }
    }

    /// Whether answers for these rows stay on a GPU.
    #[cfg(feature = "cuda")]
    pub fn is_on_gpu(&self) -> bool {
        matches!(&self.values, AnyValues::F32(ExternalValues::Gpu(_)) | AnyValues::F64(ExternalValues::Gpu(_)))
    }

    /// The number of the GPU that the rows are on, if they are on one.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Result<Option<u32>> {
        Ok(match self.features()? {
            AnyFeatures::F32(features) => features.gpu(),
            AnyFeatures::F64(features) => features.gpu(),
        })
    }

    pub fn features(&self) -> Result<AnyFeatures<'_>> {
        let names = self.layout.feature_names(self.shape[1])?;
        Ok(match &self.values {
            AnyValues::F32(values) => AnyFeatures::F32(values.features(self.shape)?.with_names(names)?),
            AnyValues::F64(values) => AnyFeatures::F64(values.features(self.shape)?.with_names(names)?),
        })
    }

    /// The rows as weights: an array of one dimension that was read by [`ExternalArray::weights_of`].
    pub fn weights(&self) -> Result<Column<'_, f64>> {
        if !self.one_dimension {
            let got = format!("{} x {}", self.shape[0], self.shape[1]);
            return Err(KMeansError::InvalidOption { option: "weight", expected: "one dimension".into(), got });
        }
        match &self.values {
            AnyValues::F64(ExternalValues::Host(slice)) => {
                // SAFETY: as in `Slice::features`.
                let values = unsafe { slice.values::<f64>() };
                Ok(Column::from_slice(&values[slice.first.min(values.len())..][..self.shape[0]]))
            }
            AnyValues::F64(ExternalValues::Copy(values)) => Ok(Column::from_slice(values)),
            #[cfg(feature = "cuda")]
            AnyValues::F64(ExternalValues::Gpu(table)) => Column::on_gpu(table),
            AnyValues::F32(_) => unreachable!("weights are read as neighbouring values of float64"),
        }
    }
}

impl Slice {
    /// # Safety
    /// The values are still there, and no thread writes to them.
    unsafe fn values<T>(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller promises it. The address is aligned: `Array::slice` has checked that.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.len) }
    }

    fn features<T: Float>(&self, shape: [usize; 2]) -> Result<Features<'_, T>> {
        // SAFETY: the keeper of the rows keeps the values. The caller of the package does not write to an array while a call
        // reads it.
        let values = unsafe { self.values::<T>() };
        Features::from_strided(values, self.first, shape, self.steps)
    }
}
