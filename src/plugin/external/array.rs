//! One array of another library: where its values are, as it says by DLPack or in `__array_interface__`.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use super::{AnyValues, ExternalValues, Slice, unreadable};
#[cfg(feature = "cuda")]
use crate::backend::cuda::Gpu;
#[cfg(not(feature = "cuda"))]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
#[cfg(feature = "cuda")]
use crate::input::gpu_table::{GpuTable, GpuValues};
use crate::input::value_type::ValueType;
use crate::plugin::dlpack::{self, Imported};

/// An array: where its values are. Value `f` of row `r` is `r * steps[0] + f * steps[1]` bytes after the address.
pub struct Array {
    address: usize,
    value_type: ValueType,
    /// The bytes of a value.
    size: usize,
    pub shape: [usize; 2],
    steps: [i64; 2],
    pub one_dimension: bool,
    /// `None`: on the host.
    gpu: Option<u32>,
}

impl Array {
    pub fn of(imported: &Imported, what: &'static str) -> PyResult<Self> {
        let array = imported.describe();
        let value_type = match (array.data_type.code, array.data_type.bits) {
            (dlpack::FLOAT, 16) => Some(ValueType::Float16),
            (dlpack::BFLOAT, 16) => Some(ValueType::BFloat16),
            (dlpack::FLOAT, 32) => Some(ValueType::Float32),
            (dlpack::FLOAT, 64) => Some(ValueType::Float64),
            _ => None,
        };
        let size = usize::from(array.data_type.bits / 8);
        let Some(value_type) = value_type.filter(|_| array.data_type.lanes == 1) else {
            return Err(wrong_type(what, &name_of(array.data_type)));
        };
        let gpu = match array.device.device_type {
            dlpack::CPU | dlpack::CUDA_HOST => None,
            dlpack::CUDA | dlpack::CUDA_MANAGED => Some(array.device.device_id as u32),
            other => {
                return Err(unreadable(what, "an array on the CPU or on an NVIDIA GPU", format!("device type {other}")));
            }
        };
        let strides = array.strides.unwrap_or_else(|| dlpack::row_major(&array.shape, 1));
        let bytes: Vec<i64> = strides.iter().map(|stride| stride.wrapping_mul(size as i64)).collect();
        Self::new(what, array.address, (value_type, size), [&array.shape, &bytes], gpu)
    }

    fn new(
        what: &'static str,
        address: usize,
        (value_type, size): (ValueType, usize),
        [shape, steps]: [&[i64]; 2],
        gpu: Option<u32>,
    ) -> PyResult<Self> {
        let length = |n: i64| usize::try_from(n).map_err(|_| unreadable(what, "lengths of at least 0", n.to_string()));
        // An array of one dimension is one feature.
        let (shape, steps, one_dimension) = match (shape, steps) {
            (&[n], &[step]) => ([length(n)?, 1], [step, size as i64], true),
            (&[n, d], &[row, column]) => ([length(n)?, length(d)?], [row, column], false),
            _ => return Err(unreadable(what, "one or two dimensions (rows x features)", format!("{}", shape.len()))),
        };
        Ok(Self { address, value_type, size, shape, steps, one_dimension, gpu })
    }

    /// The values. `wide`: as float64, whatever type they have. `neighbours`: each row is read right behind the one before.
    pub fn values(&self, wide: bool, neighbours: bool) -> Result<AnyValues> {
        Ok(if wide || self.value_type == ValueType::Float64 {
            AnyValues::F64(self.values_as(neighbours)?)
        } else {
            AnyValues::F32(self.values_as(neighbours)?)
        })
    }

    fn values_as<T: Float>(&self, neighbours: bool) -> Result<ExternalValues<T>> {
        if let Some(ordinal) = self.gpu {
            return self.on_gpu(ordinal);
        }
        let own = if T::IS_F32 { ValueType::Float32 } else { ValueType::Float64 };
        match self.slice().filter(|slice| self.value_type == own && (!neighbours || slice.steps[0] == 1)) {
            Some(slice) => Ok(ExternalValues::Host(slice)),
            None => self.copy().map(ExternalValues::Copy),
        }
    }

    #[cfg(feature = "cuda")]
    fn on_gpu<T: Float>(&self, ordinal: u32) -> Result<ExternalValues<T>> {
        let ([n, d], size) = (self.shape, self.size as i64);
        let values = GpuValues {
            address: self.address as u64,
            value_type: self.value_type,
            columns: d,
            first: 0,
            row_pitch: self.steps[0] / size,
            column_pitch: self.steps[1] / size,
            validity: None,
        };
        // SAFETY: the array is kept as long as the table, and `import` has waited until its values are there. The caller of the
        // package does not write to an array while a call reads it.
        unsafe { GpuTable::new(ordinal, n, [values]) }.map(ExternalValues::Gpu)
    }

    #[cfg(not(feature = "cuda"))]
    fn on_gpu<T>(&self, _: u32) -> Result<ExternalValues<T>> {
        let reason = "this build has no CUDA backend".into();
        Err(KMeansError::DeviceNotAvailable { requested: "cuda".into(), reason })
    }

    /// The values as they are, if they are aligned, and rows and columns are whole values apart.
    fn slice(&self) -> Option<Slice> {
        let bytes = self.size as i64;
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
        let mut values = memory::with_room(n.saturating_mul(d), "a copy of an array")?;
        for row in 0..n as i64 {
            for f in 0..d as i64 {
                let at = self.address.wrapping_add_signed((row * self.steps[0] + f * self.steps[1]) as isize);
                // SAFETY: the array has this value, of one of these types. It need not be aligned.
                let value = unsafe {
                    match self.value_type {
                        ValueType::Float16 => half::f16::from_bits((at as *const u16).read_unaligned()).to_f64(),
                        ValueType::BFloat16 => half::bf16::from_bits((at as *const u16).read_unaligned()).to_f64(),
                        ValueType::Float32 => f64::from((at as *const f32).read_unaligned()),
                        _ => (at as *const f64).read_unaligned(),
                    }
                };
                values.push(T::from_f64(value));
            }
        }
        Ok(values)
    }
}

/// The error for values that are no floats.
fn wrong_type(what: &'static str, got: &str) -> PyErr {
    unreadable(what, "values of float16, bfloat16, float32 or float64", format!("{got}: convert it first"))
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
pub fn import(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Imported> {
    let py = object.py();
    let refused = |error: PyErr| {
        // Interrupts pass. Whatever else a library says is the reason why it cannot export its array.
        if !error.is_instance_of::<PyException>(py) {
            return error;
        }
        unreadable(what, "an array that its library exports", format!("{error}"))
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
        let queue = py.detach(|| Gpu::get(device_id as u32).and_then(|gpu| gpu.queue()))?;
        let imported = Imported::of(object, Some(queue.stream.cu_stream() as usize)).map_err(refused)?;
        py.detach(|| queue.wait())?;
        Ok(imported)
    }
    #[cfg(not(feature = "cuda"))]
    Err(unreadable(what, "an array on the CPU, because this build has no CUDA backend", format!("cuda:{device_id}")))
}

/// An array that describes itself in `__array_interface__`, as those of NumPy do.
pub fn interface(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Array> {
    let interface = object.getattr("__array_interface__")?;
    let text: String = interface.get_item("typestr")?.extract()?;
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let kind = match text.strip_prefix([native, '=', '|']) {
        Some("f2") => (ValueType::Float16, 2),
        Some("f4") => (ValueType::Float32, 4),
        Some("f8") => (ValueType::Float64, 8),
        _ => return Err(wrong_type(what, &object.getattr("dtype").map_or(text.clone(), |dtype| dtype.to_string()))),
    };
    let shape: Vec<i64> = interface.get_item("shape")?.extract()?;
    let data = interface.get_item("data").ok().and_then(|data| data.extract::<(usize, bool)>().ok());
    // NumPy's masked arrays do not say so in their interface.
    let mask = object.getattr("mask").and_then(|mask| mask.call_method0("any")?.is_truthy());
    if mask.unwrap_or(false) {
        return Err(unreadable(what, "an array of values", "one with a mask: call filled(numpy.nan) on it"));
    }
    let masked = interface.get_item("mask").is_ok_and(|mask| !mask.is_none());
    let Some((address, _)) = data.filter(|_| !masked) else {
        return Err(unreadable(what, "an array of values in memory", "one without an address, or with a mask"));
    };
    let steps = match interface.get_item("strides") {
        Ok(strides) if !strides.is_none() => strides.extract()?,
        _ => dlpack::row_major(&shape, kind.1 as i64),
    };
    Array::new(what, address, kind, [&shape, &steps], None)
}
