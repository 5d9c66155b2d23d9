//! Data frames on a GPU, such as those of cuDF: Arrow's C device data interface
//! (<https://arrow.apache.org/docs/format/CDeviceDataInterface.html>).

use std::ffi::c_void;

use polars_arrow::datatypes::ArrowDataType as DataType;
use polars_arrow::ffi::{ArrowSchema, import_field_from_c};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::dlpack;
use super::external::unreadable;
use crate::backend::cuda::Gpu;
use crate::base::error::KMeansError;
use crate::columns::value_type;
use crate::input::gpu_table::GpuValues;
use crate::input::value_type::ValueType;

/// `ArrowArray` of Arrow's C data interface.
#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *const *const c_void,
    children: *const *const ArrowArray,
    dictionary: *const ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

/// `ArrowDeviceArray` of the device interface.
#[repr(C)]
struct DeviceArray {
    array: ArrowArray,
    device_id: i64,
    device_type: i32,
    /// The address of an event of CUDA, or null: the values are there already.
    sync_event: *mut c_void,
    reserved: [i64; 3],
}

/// The columns of a frame on a GPU. Their values are there.
pub struct DeviceFrame {
    /// The frame's capsules. They own it.
    pub capsules: [Py<PyCapsule>; 2],
    pub ordinal: u32,
    pub rows: usize,
    pub names: Vec<String>,
    /// One for each column.
    pub pieces: Vec<GpuValues>,
}

impl ArrowArray {
    /// # Safety
    /// The array is alive.
    unsafe fn children(&self) -> impl Iterator<Item = &ArrowArray> {
        // SAFETY: the interface says that there are so many children, and the caller that they are alive.
        (0..self.n_children as usize).map(|i| unsafe { &**self.children.add(i) })
    }

    /// The address of a buffer, or 0 if there is none.
    ///
    /// # Safety
    /// The array is alive.
    unsafe fn buffer(&self, i: usize) -> u64 {
        // SAFETY: the interface says that there are so many buffers.
        if (i as i64) < self.n_buffers { unsafe { *self.buffers.add(i) as u64 } } else { 0 }
    }

    /// The values of a column. `first`: the offset of the struct that it is a field of.
    ///
    /// # Safety
    /// The array is alive.
    unsafe fn values(&self, value_type: ValueType, first: i64) -> GpuValues {
        // SAFETY: the caller promises it.
        let [bitmap, address] = [0, 1].map(|i| unsafe { self.buffer(i) });
        let offset = first + self.offset;
        GpuValues {
            address,
            value_type,
            columns: 1,
            first: offset,
            row_pitch: 1,
            column_pitch: 0,
            validity: (bitmap != 0 && self.null_count != 0).then_some((bitmap, offset as u64)),
        }
    }
}

impl DeviceFrame {
    pub fn of(object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Self> {
        let py = object.py();
        let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) =
            object.call_method0("__arrow_c_device_array__")?.extract()?;
        let schema_at = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<ArrowSchema>();
        let array_at = array.pointer_checked(Some(c"arrow_device_array"))?.cast::<DeviceArray>();
        // SAFETY: the capsules' names say what they hold, and they live as long as these references.
        let (shape, device) = unsafe { (schema_at.as_ref(), array_at.as_ref()) };
        if !matches!(device.device_type, dlpack::CUDA | dlpack::CUDA_MANAGED) {
            let expected = "columns on a GPU (on the host, pass a frame: polars.from_arrow)";
            return Err(unreadable(what, expected, format!("device type {}", device.device_type)));
        }
        // SAFETY: the schema is alive.
        let field = unsafe { import_field_from_c(shape) };
        let field = field.map_err(|error| unreadable(what, "columns of numbers", error.to_string()))?;
        // SAFETY: the array is alive.
        let (fields, columns, first) = match field.dtype() {
            DataType::Struct(fields) => (fields.clone(), unsafe { device.array.children() }.collect(), device.array.offset),
            _ => (vec![field.clone()], vec![&device.array], 0),
        };
        let mut pieces = Vec::new();
        for (field, column) in fields.iter().zip(columns) {
            let Some(value_type) = value_type!(field.dtype(), DataType) else {
                let (column, got) = (field.name.to_string(), format!("{:?}", field.dtype()));
                return Err(KMeansError::UnsupportedDtype { column, got }.into());
            };
            // SAFETY: the array is alive.
            pieces.push(unsafe { column.values(value_type, first) });
        }
        let (ordinal, rows, event) = (device.device_id as u32, device.array.length as usize, device.sync_event as usize);
        py.detach(|| {
            let gpu = Gpu::get(ordinal)?;
            // SAFETY: the interface says that this is the address of an event of this GPU. The capsule keeps it.
            unsafe { gpu.wait_for_event(event) }
        })?;
        let names = fields.iter().map(|field| field.name.to_string()).collect();
        Ok(Self { capsules: [schema.unbind(), array.unbind()], ordinal, rows, names, pieces })
    }
}
