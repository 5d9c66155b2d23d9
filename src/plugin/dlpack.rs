//! DLPack: how array libraries pass arrays to each other in memory (<https://dmlc.github.io/dlpack/latest/>). The structs are
//! those of `dlpack.h`, version 1.0 and the one before it.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Devices, as DLPack numbers them.
pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;
/// Memory of the host that CUDA has pinned.
pub const CUDA_HOST: i32 = 3;
/// Memory that CUDA moves between the host and its GPUs.
pub const CUDA_MANAGED: i32 = 13;

/// Codes of types.
pub const INTEGER: u8 = 0;
pub const FLOAT: u8 = 2;
pub const BFLOAT: u8 = 4;

/// The version that is asked for and exported.
const VERSION: (u32, u32) = (1, 0);

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    dimensions: i32,
    data_type: DataType,
    shape: *mut i64,
    /// In values. Null: row-major without gaps.
    strides: *mut i64,
    byte_offset: u64,
}

/// The form of before version 1.
#[repr(C)]
struct Managed {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DLTensor,
}

const OLD: &CStr = c"dltensor";
const OLD_USED: &CStr = c"used_dltensor";
const NEW: &CStr = c"dltensor_versioned";
const NEW_USED: &CStr = c"used_dltensor_versioned";

/// An array of another library. When this is dropped, that library is told that the array is not read any more.
pub struct Imported {
    /// The address of a `Managed` or, if it has a version, of a `Versioned`.
    address: NonNull<c_void>,
    versioned: bool,
}

// SAFETY: this owns the struct. Producers must allow any thread to call the deleter. What is read does not change.
unsafe impl Send for Imported {}
// SAFETY: as above.
unsafe impl Sync for Imported {}

/// What an array says of itself.
pub struct Described {
    /// The address of the first value.
    pub address: usize,
    pub device: DLDevice,
    pub data_type: DataType,
    pub shape: Vec<i64>,
    /// In values. Row-major arrays without gaps may have none.
    pub strides: Option<Vec<i64>>,
}

impl Imported {
    /// Asks an object for its array. On a GPU, the library makes `stream` wait until the values are there.
    pub fn of(object: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Self> {
        let py = object.py();
        let export = object.getattr("__dlpack__")?;
        let oldest = PyDict::new(py);
        if let Some(stream) = stream {
            oldest.set_item("stream", stream)?;
        }
        let newest = oldest.copy()?;
        newest.set_item("max_version", VERSION)?;
        newest.set_item("copy", false)?;
        let capsule = export.call((), Some(&newest)).or_else(|error| {
            // A library of before version 1 does not know these keywords.
            if error.is_instance_of::<PyTypeError>(py) { export.call((), Some(&oldest)) } else { Err(error) }
        })?;
        Self::take(&capsule)
    }

    /// Takes the array out of its capsule, which then no longer owns it.
    fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let object = capsule.as_ptr();
        // SAFETY: the object is alive. The functions check that it is a capsule of this name.
        let versioned = unsafe { ffi::PyCapsule_IsValid(object, NEW.as_ptr()) == 1 };
        let (name, used) = if versioned { (NEW, NEW_USED) } else { (OLD, OLD_USED) };
        // SAFETY: as above. The names are static, as the capsule needs them.
        let address = unsafe { ffi::PyCapsule_GetPointer(object, name.as_ptr()) };
        let Some(address) = NonNull::new(address) else { return Err(PyErr::fetch(capsule.py())) };
        // SAFETY: as above.
        if unsafe { ffi::PyCapsule_SetName(object, used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        let taken = Self { address, versioned };
        // SAFETY: the struct begins with its version, in every version.
        if versioned && unsafe { taken.address.cast::<Versioned>().as_ref().version[0] } != VERSION.0 {
            return Err(PyBufferError::new_err("the array comes in a version of DLPack other than 1"));
        }
        Ok(taken)
    }

    fn tensor(&self) -> &DLTensor {
        // SAFETY: the capsule's name says what the address points to. The struct lives until the deleter is called.
        unsafe {
            if self.versioned {
                &self.address.cast::<Versioned>().as_ref().tensor
            } else {
                &self.address.cast::<Managed>().as_ref().tensor
            }
        }
    }

    pub fn describe(&self) -> Described {
        let tensor = self.tensor();
        let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
        let list = |at: *const i64| {
            // SAFETY: the tensor has as many lengths and strides as dimensions.
            (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at, dimensions) }.to_vec())
        };
        Described {
            address: tensor.data as usize + tensor.byte_offset as usize,
            device: tensor.device,
            data_type: tensor.data_type,
            shape: list(tensor.shape).unwrap_or_default(),
            strides: list(tensor.strides),
        }
    }
}

/// The steps of a row-major array without gaps. `step`: from one value to the next.
pub fn row_major(shape: &[i64], step: i64) -> Vec<i64> {
    let mut steps = vec![step; shape.len()];
    for i in (1..steps.len()).rev() {
        steps[i - 1] = steps[i].wrapping_mul(shape[i]);
    }
    steps
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: this owns the struct, and nothing reads it after this.
        unsafe {
            if self.versioned {
                let managed = self.address.cast::<Versioned>();
                managed.as_ref().deleter.inspect(|delete| delete(managed.as_ptr()));
            } else {
                let managed = self.address.cast::<Managed>();
                managed.as_ref().deleter.inspect(|delete| delete(managed.as_ptr()));
            }
        }
    }
}

/// An array for another library.
#[derive(Clone)]
pub struct Export {
    /// What keeps the values where they are.
    pub owner: Arc<dyn Send + Sync>,
    pub address: usize,
    pub device: DLDevice,
    pub data_type: DataType,
    pub shape: Vec<i64>,
}

/// An exported array: the struct that the other library reads, and what it points to.
#[repr(C)]
struct Exported<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Arc<dyn Send + Sync>,
}

impl Export {
    /// Puts the array into a capsule. `versioned`: in the form of version 1, which the other library must know.
    pub fn into_capsule(self, py: Python<'_>, versioned: bool) -> PyResult<Bound<'_, PyAny>> {
        let Self { owner: _owner, address, device, data_type, mut shape } = self;
        let mut strides = row_major(&shape, 1);
        let tensor = DLTensor {
            data: address as *mut c_void,
            device,
            dimensions: shape.len() as i32,
            data_type,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let context = std::ptr::null_mut();
        // The lists stay where they are when the struct moves to the heap.
        if versioned {
            let version = [VERSION.0, VERSION.1];
            let managed = Versioned { version, context, deleter: Some(delete::<Versioned>), flags: 0, tensor };
            capsule(py, Exported { managed, shape, strides, _owner }, NEW)
        } else {
            let managed = Managed { tensor, context, deleter: Some(delete::<Managed>) };
            capsule(py, Exported { managed, shape, strides, _owner }, OLD)
        }
    }
}

fn capsule<'py, M>(py: Python<'py>, exported: Exported<M>, name: &'static CStr) -> PyResult<Bound<'py, PyAny>> {
    let at = Box::into_raw(Box::new(exported));
    // SAFETY: the name is static. The destructor knows what a capsule of this name holds.
    let capsule = unsafe { ffi::PyCapsule_New(at.cast(), name.as_ptr(), Some(delete_untaken)) };
    if capsule.is_null() {
        // SAFETY: the box was just made, and this is the only reference to it.
        drop(unsafe { Box::from_raw(at) });
        return Err(PyErr::fetch(py));
    }
    // SAFETY: this is a new reference to a capsule.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}

/// What the other library calls when it no longer needs the array.
///
/// # Safety
/// `managed` is the first field of an `Exported<M>` in a box. It is called once.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: the caller promises it.
    drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
}

/// Deletes an array that no library has taken out of its capsule.
///
/// # Safety
/// Only Python calls this, for a capsule that it frees.
unsafe extern "C" fn delete_untaken(capsule: *mut ffi::PyObject) {
    for (name, versioned) in [(NEW, true), (OLD, false)] {
        // SAFETY: the capsule is alive, and a name says what a capsule holds. If it still has this name, no library has taken
        // the array.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
                let address = NonNull::new(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()));
                drop(address.map(|address| Imported { address, versioned }));
            }
        }
    }
}
