//! The symbols that Polars looks for in a plugin: two a function, one for its schema and one for its values, and the last error.
//!
//! pyo3-polars has a macro for this. Ours does the same without it, for two reasons. The macro's crate makes cargo compile Polars a
//! second time, for the compiler's own use. And here a panic becomes an error that can be caught like any other.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use polars::prelude::*;
use polars_arrow::ffi::{ArrowSchema, export_field_to_c, import_field_from_c};
use polars_ffi::version_0::{SeriesExport, export_series, import_series_buffer};
use serde::de::DeserializeOwned;

use crate::memory;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps an error for [`_polars_plugin_get_last_error_message`]. A NUL would end its text early.
fn keep(error: &PolarsError) {
    let text = CString::new(error.to_string().replace('\0', "\\0")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
}

/// Runs the work of one call. An error or a panic is kept, and nothing is returned.
fn guarded<R>(work: impl FnOnce() -> PolarsResult<R>) -> Option<R> {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("KMeansError: a fault of polars-kmeans, please report it: {}", said.unwrap_or("it panicked"));
        Err(PolarsError::ComputeError(text.into()))
    });
    result.inspect_err(keep).ok()
}

/// The keywords of a call, which Polars hands on as Python pickled them.
///
/// # Safety
/// `len` bytes can be read from `at`.
unsafe fn keywords<K: DeserializeOwned>(at: *const u8, len: usize) -> PolarsResult<K> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
    let parsed = serde_pickle::from_slice(bytes, serde_pickle::DeOptions::default());
    parsed.map_err(|error| match error {
        serde_pickle::Error::Io(error) if error.kind() == ErrorKind::OutOfMemory => {
            memory::no_memory("the keywords of a call", len as u128).into()
        }
        error => PolarsError::ComputeError(format!("KMeansError: the keywords cannot be read: {error}").into()),
    })
}

/// A pointer and a length, as Polars hands them over.
pub struct Raw<P>(pub P, pub usize);

/// Calls `function` on the inputs. On an error `out` stays as it is.
///
/// # Safety
/// Inputs are series that may be taken, keywords bytes that may be read, `out` a series that may be overwritten.
pub unsafe fn evaluate<K: DeserializeOwned>(
    inputs: Raw<*mut SeriesExport>,
    kwargs: Raw<*const u8>,
    out: *mut SeriesExport,
    function: fn(&[Series], K) -> PolarsResult<Series>,
) {
    let result = guarded(|| {
        // SAFETY: the caller's promise.
        let (inputs, kwargs) = unsafe { (import_series_buffer(inputs.0, inputs.1)?, keywords(kwargs.0, kwargs.1)?) };
        function(&inputs, kwargs).map(|series| export_series(&series))
    });
    if let Some(result) = result {
        // SAFETY: the caller's promise.
        unsafe { *out = result };
    }
}

/// Calls `function` on the fields of the inputs. On an error `out` stays as it is.
///
/// # Safety
/// As for [`evaluate`], for fields.
pub unsafe fn resolve<K: DeserializeOwned>(
    fields: Raw<*mut ArrowSchema>,
    kwargs: Raw<*const u8>,
    out: *mut ArrowSchema,
    function: fn(&[Field], K) -> PolarsResult<Field>,
) {
    let result = guarded(|| {
        // SAFETY: the caller's promise.
        let (fields, kwargs) = unsafe { (std::slice::from_raw_parts(fields.0, fields.1), keywords(kwargs.0, kwargs.1)?) };
        // SAFETY: the caller's promise: each is a valid schema.
        let fields = fields.iter().map(|field| Ok(Field::from(&unsafe { import_field_from_c(field) }?)));
        let field = function(&fields.collect::<PolarsResult<Vec<_>>>()?, kwargs)?;
        Ok(export_field_to_c(&field.to_arrow(CompatLevel::newest())))
    });
    if let Some(result) = result {
        // SAFETY: the caller's promise.
        unsafe { *out = result };
    }
}

/// Exports `$function(&[Series], $keywords)`, whose field `$field(&[Field], $keywords)` tells from those of the inputs.
macro_rules! expression {
    ($function:ident($keywords:ty) -> $field:ident) => {
        const _: () = {
            use $crate::plugin::entry::{Raw, evaluate, resolve};

            /// # Safety
            /// For Polars to call.
            #[unsafe(export_name = concat!("_polars_plugin_", stringify!($function)))]
            unsafe extern "C" fn values(
                inputs: *mut polars_ffi::version_0::SeriesExport,
                len: usize,
                kwargs: *const u8,
                kwargs_len: usize,
                out: *mut polars_ffi::version_0::SeriesExport,
                _context: *mut polars_ffi::version_0::CallerContext,
            ) {
                // SAFETY: Polars calls with what it says: series of its own, pickled keywords, and room for the result.
                unsafe { evaluate::<$keywords>(Raw(inputs, len), Raw(kwargs, kwargs_len), out, $function) }
            }

            /// # Safety
            /// For Polars to call.
            #[unsafe(export_name = concat!("_polars_plugin_field_", stringify!($function)))]
            unsafe extern "C" fn field(
                fields: *mut polars_arrow::ffi::ArrowSchema,
                len: usize,
                out: *mut polars_arrow::ffi::ArrowSchema,
                kwargs: *const u8,
                kwargs_len: usize,
            ) {
                // SAFETY: as above, for fields.
                unsafe { resolve::<$keywords>(Raw(fields, len), Raw(kwargs, kwargs_len), out, $field) }
            }
        };
    };
}
pub(crate) use expression;

/// The text of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn _polars_plugin_get_last_error_message() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// The version of this interface: major in the upper 16 bits, minor in the lower. Polars asks for it before anything else.
#[unsafe(no_mangle)]
pub extern "C" fn _polars_plugin_get_version() -> u32 {
    static QUIET: Once = Once::new();
    // A caught panic is an error; it need not be printed too.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let (major, minor) = polars_ffi::get_version();
    u32::from(major) << 16 | u32::from(minor)
}
