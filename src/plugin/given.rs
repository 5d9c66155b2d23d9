//! Rows that another library has: an array (`__dlpack__` or `__array_interface__`), or a data frame on a GPU
//! (`__arrow_c_device_array__`). They are read where they are, also on a GPU. On the host, values of 16 bits are widened in a copy, and
//! so are values that are not aligned.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

#[cfg(feature = "cuda")]
use super::device_frame::{self, Held};
use super::dlpack::{self, Imported};
use super::raise;
#[cfg(feature = "cuda")]
use crate::backend::cuda::Gpu;
use crate::error::{KMeansError, Result};
use crate::features::{Column, Features};
use crate::float::Float;
#[cfg(feature = "cuda")]
use crate::gpu_table::{GpuTable, GpuValues, ValueType};
use crate::memory;
use crate::model::{AnyFeatures, FeatureLayout};

/// What errors call a copy of an array.
const COPY: &str = "a copy of an array";
/// The types of values of arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float16,
    BFloat16,
    Float32,
    Float64,
}

impl Kind {
    fn bytes(self) -> usize {
        match self {
            Self::Float16 | Self::BFloat16 => 2,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(self) -> ValueType {
        match self {
            Self::Float16 => ValueType::Float16,
            Self::BFloat16 => ValueType::BFloat16,
            Self::Float32 => ValueType::Float32,
            Self::Float64 => ValueType::Float64,
        }
    }
}

/// What keeps the values where they are.
enum Keeper {
    Capsule {
        _imported: Imported,
    },
    Object {
        _object: Py<PyAny>,
    },
    #[cfg(feature = "cuda")]
    Frame {
        _held: Held,
    },
}

/// An array: where its values are. Value `f` of row `r` is `r * steps[0] + f * steps[1]` bytes after the address.
struct Array {
    address: usize,
    kind: Kind,
    shape: [usize; 2],
    steps: [i64; 2],
    one_dimension: bool,
    /// `None`: on the host.
    gpu: Option<u32>,
}

/// Neighbouring values on the host, and the rows among them.
struct Slice {
    address: usize,
    len: usize,
    first: usize,
    steps: [isize; 2],
}

enum Values {
    HostF32(Slice),
    HostF64(Slice),
    CopyF32(Vec<f32>),
    CopyF64(Vec<f64>),
    #[cfg(feature = "cuda")]
    GpuF32(GpuTable<f32>),
    #[cfg(feature = "cuda")]
    GpuF64(GpuTable<f64>),
}

/// Rows that another library has, in one of the two float types.
pub struct Given {
    values: Values,
    shape: [usize; 2],
    one_dimension: bool,
    layout: FeatureLayout,
    _keeper: Keeper,
}

/// The error for an array that cannot be read.
fn unreadable(py: Python<'_>, what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> PyErr {
    raise(py, &KMeansError::InvalidOption { option: what, expected: expected.into(), got: got.into() })
}

impl Given {
    /// The rows of an object. `what` is what errors call it. `wide`: as float64, whatever type they have.
    pub fn of(object: &Bound<'_, PyAny>, what: &'static str, wide: bool) -> PyResult<Self> {
        let py = object.py();
        #[cfg(feature = "cuda")]
        if object.hasattr("__arrow_c_device_array__")? {
            return Self::of_frame(object, what, wide);
        }
        let (array, keeper) = if object.hasattr("__array_interface__")? {
            (interface(object, what)?, Keeper::Object { _object: object.clone().unbind() })
        } else if object.hasattr("__dlpack__")? {
            let imported = import(object, what)?;
            let array = Array::of(&imported, what, py)?;
            (array, Keeper::Capsule { _imported: imported })
        } else {
            let got = object.get_type().name()?.to_string();
            return Err(unreadable(py, what, "an array with `__dlpack__` or `__array_interface__`", got));
        };
        let names = (0..array.shape[1]).map(|f| memory::text(format_args!("column_{f}"), "the names of the columns"));
        let names = memory::try_collected(names, "the names of the columns");
        let layout = FeatureLayout::Columns(names.map_err(|error| raise(py, &error))?);
        let values = py.detach(|| array.values(wide)).map_err(|error| raise(py, &error))?;
        Ok(Self { values, shape: array.shape, one_dimension: array.one_dimension, layout, _keeper: keeper })
    }

    #[cfg(feature = "cuda")]
    fn of_frame(object: &Bound<'_, PyAny>, what: &'static str, wide: bool) -> PyResult<Self> {
        let py = object.py();
        let frame = device_frame::DeviceFrame::of(object, what)?;
        let shape = [frame.rows, frame.pieces.len()];
        let wide = wide || frame.pieces.iter().any(|piece| piece.value_type.is_wide());
        let (ordinal, pieces) = (frame.ordinal, frame.pieces);
        // SAFETY: the frame is kept as long as the table, and `DeviceFrame::of` has waited until its values are there. The caller of the
        // package does not change a frame while a call reads it.
        let table = unsafe {
            if wide {
                GpuTable::new(ordinal, frame.rows, pieces).map(Values::GpuF64)
            } else {
                GpuTable::new(ordinal, frame.rows, pieces).map(Values::GpuF32)
            }
        };
        let values = table.map_err(|error| raise(py, &error))?;
        let layout = FeatureLayout::Columns(frame.names);
        Ok(Self { values, shape, one_dimension: false, layout, _keeper: Keeper::Frame { _held: frame.held } })
    }

    /// The number of rows.
    pub fn n_rows(&self) -> usize {
        self.shape[0]
    }

    /// Whether answers for these rows stay on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        match &self.values {
            #[cfg(feature = "cuda")]
            Values::GpuF32(_) | Values::GpuF64(_) => true,
            _ => false,
        }
    }

    pub fn layout(&self) -> Result<FeatureLayout> {
        self.layout.copy()
    }

    /// The rows as features.
    pub fn features(&self) -> Result<AnyFeatures<'_>> {
        let d = self.shape[1];
        let names = self.layout.feature_names(d)?;
        Ok(match &self.values {
            Values::HostF32(slice) => AnyFeatures::F32(slice.features(self.shape)?.with_names(names)?),
            Values::HostF64(slice) => AnyFeatures::F64(slice.features(self.shape)?.with_names(names)?),
            Values::CopyF32(values) => AnyFeatures::F32(Features::from_rows(values, d)?.with_names(names)?),
            Values::CopyF64(values) => AnyFeatures::F64(Features::from_rows(values, d)?.with_names(names)?),
            #[cfg(feature = "cuda")]
            Values::GpuF32(table) => AnyFeatures::F32(Features::on_gpu(table)?.with_names(names)?),
            #[cfg(feature = "cuda")]
            Values::GpuF64(table) => AnyFeatures::F64(Features::on_gpu(table)?.with_names(names)?),
        })
    }

    /// The weights of an object, as float64.
    pub fn weights_of(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Self> {
        let mut weights = Self::of(object, what, true)?;
        // A column is of neighbours.
        if let Values::HostF64(slice) = &weights.values
            && slice.steps[0] != 1
        {
            let copy = slice.values_in_order(weights.shape[0]).map_err(|error| raise(object.py(), &error))?;
            weights.values = Values::CopyF64(copy);
        }
        Ok(weights)
    }

    /// The rows as weights: an array of one dimension that was read by [`Given::weights_of`].
    pub fn weights(&self) -> Result<Column<'_, f64>> {
        if !self.one_dimension {
            let got = format!("{} x {}", self.shape[0], self.shape[1]);
            return Err(KMeansError::InvalidOption { option: "sample_weight", expected: "one dimension".into(), got });
        }
        match &self.values {
            Values::HostF64(slice) => {
                // SAFETY: as in `Slice::features`.
                let values = unsafe { slice.values::<f64>() };
                Ok(Column::from_slice(&values[slice.first.min(values.len())..][..self.shape[0]]))
            }
            Values::CopyF64(values) => Ok(Column::from_slice(values)),
            #[cfg(feature = "cuda")]
            Values::GpuF64(table) => Column::on_gpu(table),
            _ => unreachable!("weights are read as neighbouring values of float64"),
        }
    }
}

impl Slice {
    /// # Safety
    /// The values are still there, and nobody writes to them.
    unsafe fn values<T>(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller promises it. The address is aligned: `Array::slice` has checked that.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.len) }
    }

    /// A copy of `n` values in their order.
    fn values_in_order(&self, n: usize) -> Result<Vec<f64>> {
        // SAFETY: as in `Slice::features`.
        let values = unsafe { self.values::<f64>() };
        memory::collected((0..n).map(|i| values[self.first.wrapping_add_signed(i as isize * self.steps[0])]), COPY)
    }

    fn features<T: Float>(&self, shape: [usize; 2]) -> Result<Features<'_, T>> {
        // SAFETY: the keeper of the rows keeps the values. The caller of the package does not write to an array while a call reads it.
        let values = unsafe { self.values::<T>() };
        Features::from_strided(values, self.first, shape, self.steps)
    }
}

impl Array {
    fn of(imported: &Imported, what: &'static str, py: Python<'_>) -> PyResult<Self> {
        let array = imported.describe();
        let kind = match (array.data_type.code, array.data_type.bits) {
            (dlpack::FLOAT, 16) => Some(Kind::Float16),
            (dlpack::BFLOAT, 16) => Some(Kind::BFloat16),
            (dlpack::FLOAT, 32) => Some(Kind::Float32),
            (dlpack::FLOAT, 64) => Some(Kind::Float64),
            _ => None,
        };
        let Some(kind) = kind.filter(|_| array.data_type.lanes == 1) else {
            return Err(wrong_type(py, what, &name_of(array.data_type)));
        };
        let gpu = match array.device.device_type {
            dlpack::CPU | dlpack::CUDA_HOST => None,
            dlpack::CUDA | dlpack::CUDA_MANAGED => Some(array.device.device_id as u32),
            other => {
                return Err(unreadable(py, what, "an array on the CPU or on an NVIDIA GPU", format!("device type {other}")));
            }
        };
        let strides = array.strides.unwrap_or_else(|| dlpack::row_major(&array.shape, 1));
        let bytes: Vec<i64> = strides.iter().map(|stride| stride.wrapping_mul(kind.bytes() as i64)).collect();
        Self::new(py, what, array.address, kind, &array.shape, &bytes, gpu)
    }

    fn new(
        py: Python<'_>,
        what: &'static str,
        address: usize,
        kind: Kind,
        shape: &[i64],
        steps: &[i64],
        gpu: Option<u32>,
    ) -> PyResult<Self> {
        let length = |n: i64| usize::try_from(n).map_err(|_| unreadable(py, what, "lengths of at least 0", n.to_string()));
        // An array of one dimension is one feature.
        let (shape, steps, one_dimension) = match (shape, steps) {
            (&[n], &[step]) => ([length(n)?, 1], [step, kind.bytes() as i64], true),
            (&[n, d], &[row, column]) => ([length(n)?, length(d)?], [row, column], false),
            _ => return Err(unreadable(py, what, "one or two dimensions (rows x features)", format!("{}", shape.len()))),
        };
        Ok(Self { address, kind, shape, steps, one_dimension, gpu })
    }

    fn values(&self, wide: bool) -> Result<Values> {
        let wide = wide || self.kind == Kind::Float64;
        #[cfg(feature = "cuda")]
        if let Some(ordinal) = self.gpu {
            return self.on_gpu(ordinal, wide);
        }
        if self.gpu.is_some() {
            return Err(KMeansError::DeviceNotAvailable {
                requested: "cuda".into(),
                reason: "this build has no CUDA backend".into(),
            });
        }
        match self.kind {
            Kind::Float32 if !wide => {
                self.slice().map_or_else(|| Ok(Values::CopyF32(self.copy()?)), |s| Ok(Values::HostF32(s)))
            }
            Kind::Float64 => self.slice().map_or_else(|| Ok(Values::CopyF64(self.copy()?)), |s| Ok(Values::HostF64(s))),
            _ if wide => Ok(Values::CopyF64(self.copy()?)),
            _ => Ok(Values::CopyF32(self.copy()?)),
        }
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, ordinal: u32, wide: bool) -> Result<Values> {
        let ([n, d], bytes) = (self.shape, self.kind.bytes() as i64);
        let values = GpuValues {
            address: self.address as u64,
            value_type: self.kind.on_gpu(),
            columns: d,
            first: 0,
            row_pitch: self.steps[0] / bytes,
            column_pitch: self.steps[1] / bytes,
            validity: None,
        };
        // SAFETY: the array is kept as long as the table, and `import` has waited until its values are there. The caller of the package
        // does not write to an array while a call reads it.
        unsafe {
            Ok(if wide {
                Values::GpuF64(GpuTable::new(ordinal, n, [values])?)
            } else {
                Values::GpuF32(GpuTable::new(ordinal, n, [values])?)
            })
        }
    }

    /// The values as they are, if they are aligned, and rows and columns are whole values apart.
    fn slice(&self) -> Option<Slice> {
        let bytes = self.kind.bytes() as i64;
        if self.shape.contains(&0) {
            return Some(Slice { address: 0, len: 0, first: 0, steps: [1, 1] });
        }
        let whole = self.steps.iter().all(|step| step % bytes == 0) && self.address.is_multiple_of(bytes as usize);
        if !whole {
            return None;
        }
        let steps = self.steps.map(|step| step / bytes);
        let mut ends = [0i64; 2];
        for (step, len) in steps.iter().zip(self.shape) {
            let last = step.checked_mul(len as i64 - 1)?;
            ends[usize::from(last > 0)] += last;
        }
        let address = self.address.checked_add_signed((ends[0] * bytes) as isize)?;
        let first = ends[0].unsigned_abs() as usize;
        Some(Slice { address, len: (ends[1] - ends[0] + 1) as usize, first, steps: steps.map(|step| step as isize) })
    }

    /// A row-major copy of the values in `T`, which holds them exactly.
    fn copy<T: Float>(&self) -> Result<Vec<T>> {
        let [n, d] = self.shape;
        let mut values = memory::with_room(n.saturating_mul(d), COPY)?;
        for row in 0..n as i64 {
            for f in 0..d as i64 {
                let at = self.address.wrapping_add_signed((row * self.steps[0] + f * self.steps[1]) as isize);
                // SAFETY: the array has this value, of this type. It need not be aligned.
                let value = unsafe {
                    match self.kind {
                        Kind::Float16 => half::f16::from_bits((at as *const u16).read_unaligned()).to_f64(),
                        Kind::BFloat16 => half::bf16::from_bits((at as *const u16).read_unaligned()).to_f64(),
                        Kind::Float32 => f64::from((at as *const f32).read_unaligned()),
                        Kind::Float64 => (at as *const f64).read_unaligned(),
                    }
                };
                values.push(T::from_f64(value));
            }
        }
        Ok(values)
    }
}

/// The error for values that are no floats.
fn wrong_type(py: Python<'_>, what: &'static str, got: &str) -> PyErr {
    unreadable(py, what, "values of float16, bfloat16, float32 or float64", format!("{got}: convert it first"))
}

fn name_of(data_type: dlpack::DataType) -> String {
    let name = match data_type.code {
        dlpack::INTEGER => "int",
        1 => "uint",
        dlpack::FLOAT => "float",
        dlpack::BFLOAT => "bfloat",
        5 => "complex",
        6 => return "bool".into(),
        _ => "type ",
    };
    format!("{name}{}", data_type.bits)
}

/// Takes an array by DLPack. If it is on a GPU, its values are there when this returns.
fn import(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Imported> {
    let py = object.py();
    let refused = |error: PyErr| {
        // Interrupts pass. Whatever else a library says is the reason why it cannot export its array.
        if !error.is_instance_of::<PyException>(py) {
            return error;
        }
        unreadable(py, what, "an array that its library exports", format!("{error}"))
    };
    let (device_type, device_id): (i32, i32) = match object.getattr("__dlpack_device__") {
        Ok(device) => device.call0().and_then(|device| device.extract::<(i32, i32)>()).map_err(refused)?,
        Err(_) => (dlpack::CPU, 0),
    };
    if !matches!(device_type, dlpack::CUDA | dlpack::CUDA_MANAGED) {
        return Imported::of(object, None).map_err(refused);
    }
    #[cfg(feature = "cuda")]
    {
        let queue = py.detach(|| Gpu::get(device_id as u32).and_then(|gpu| gpu.queue())).map_err(|error| raise(py, &error))?;
        let imported = Imported::of(object, Some(queue.stream.cu_stream() as usize)).map_err(refused)?;
        py.detach(|| queue.wait()).map_err(|error| raise(py, &error))?;
        Ok(imported)
    }
    #[cfg(not(feature = "cuda"))]
    Err(unreadable(py, what, "an array on the CPU, because this build has no CUDA backend", format!("cuda:{device_id}")))
}

/// An array that describes itself in `__array_interface__`, as those of NumPy do.
fn interface(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Array> {
    let py = object.py();
    let interface = object.getattr("__array_interface__")?;
    let text: String = interface.get_item("typestr")?.extract()?;
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let kind = match text.strip_prefix([native, '=', '|']) {
        Some("f2") => Kind::Float16,
        Some("f4") => Kind::Float32,
        Some("f8") => Kind::Float64,
        _ => return Err(wrong_type(py, what, &object.getattr("dtype").map_or(text.clone(), |dtype| dtype.to_string()))),
    };
    let shape: Vec<i64> = interface.get_item("shape")?.extract()?;
    let data = interface.get_item("data").ok().and_then(|data| data.extract::<(usize, bool)>().ok());
    let masked = interface.get_item("mask").is_ok_and(|mask| !mask.is_none());
    let Some((address, _)) = data.filter(|_| !masked) else {
        return Err(unreadable(py, what, "an array of values in memory", "one without an address, or with a mask"));
    };
    let steps = match interface.get_item("strides") {
        Ok(strides) if !strides.is_none() => strides.extract()?,
        _ => dlpack::row_major(&shape, kind.bytes() as i64),
    };
    Array::new(py, what, address, kind, &shape, &steps, None)
}
