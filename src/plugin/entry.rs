//! The symbols that Polars looks for in a plugin. Each function has two: one for its schema and one for its values. One more
//! symbol returns the last error.
//!
//! pyo3-polars has a macro for this. This module does the same without it, for two reasons. The crate of the macro makes cargo
//! compile Polars a second time, for the compiler's own use. And here a panic becomes an error that Python can catch like any
//! other.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;
use std::thread::LocalKey;

use polars::prelude::*;
use polars_arrow::ffi::{
    ArrowArray, ArrowSchema, export_array_to_c, export_field_to_c, import_array_from_c, import_field_from_c,
};
use polars_ffi::version_0::{SeriesExport, export_series};
use serde::de::DeserializeOwned;

use super::signals::{self, InQuery};
use crate::base::error::KMeansError;
use crate::base::memory;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps an error for [`_polars_plugin_get_last_error_message`]. A NUL would cut its text short.
fn keep(error: &PolarsError) {
    let text = CString::new(error.to_string().replace('\0', "\\0")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
}

/// Runs the work of one call. A panic becomes an error. The GPU that is current on this thread stays so.
pub fn without_panic<R, E: From<KMeansError>>(work: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
    #[cfg(feature = "cuda")]
    let _context = crate::backend::cuda::CallersContext::kept();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("a fault of polars-kmeans, please report it: {}", said.unwrap_or("it panicked"));
        Err(KMeansError::Frame(text).into())
    })
}

/// Runs the work of one call. If there is an error or a panic, it is kept and the result is `None`.
fn guarded<R>(work: impl FnOnce() -> PolarsResult<R>) -> Option<R> {
    without_panic(work).inspect_err(keep).ok()
}

/// The keywords of a thread's last call of one function, as they came and decoded. A query of many groups makes a call for each
/// of them, all with the same keywords.
pub struct Last<K>(RefCell<Option<(Vec<u8>, Rc<K>)>>);

impl<K> Last<K> {
    /// No call yet.
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }
}

/// Most bytes of keywords that are kept. Only starting centroids take more.
const MOST_KEPT: usize = 4_096;

impl<K: DeserializeOwned> Last<K> {
    /// Decodes the keywords of a call, unless they are those of the last call.
    fn keywords(&self, bytes: &[u8]) -> PolarsResult<Rc<K>> {
        if let Some((kept, keywords)) = &*self.0.borrow()
            && kept == bytes
        {
            return Ok(Rc::clone(keywords));
        }
        let keywords = Rc::new(keywords(bytes)?);
        if bytes.len() <= MOST_KEPT {
            *self.0.borrow_mut() = Some((memory::copied(bytes, KEYWORDS)?, Rc::clone(&keywords)));
        }
        Ok(keywords)
    }
}

/// The name for the keywords in errors.
const KEYWORDS: &str = "the keywords of a call";

/// Decodes the keywords of a call. Polars passes them on as Python pickled them.
fn keywords<K: DeserializeOwned>(bytes: &[u8]) -> PolarsResult<K> {
    // Polars passes nothing for an empty dict.
    let bytes = if bytes.is_empty() { b"}." } else { bytes };
    let parsed = serde_pickle::from_slice(bytes, serde_pickle::DeOptions::default());
    parsed.map_err(|error| match error {
        serde_pickle::Error::Io(error) if error.kind() == ErrorKind::OutOfMemory => {
            memory::no_memory(KEYWORDS, bytes.len() as u128).into()
        }
        error => PolarsError::ComputeError(format!("KMeansError: the keywords cannot be read: {error}").into()),
    })
}

/// A pointer and a length, as Polars passes them.
pub struct Raw<P>(pub P, pub usize);

/// A field as it is stored: extension types, also those in lists and structs, become the types below them.
pub fn storage(mut field: polars_arrow::datatypes::Field) -> polars_arrow::datatypes::Field {
    field.dtype = field.dtype.to_storage_recursive();
    field
}

/// An array as it is stored, without a copy.
pub fn stored(array: ArrayRef) -> PolarsResult<ArrayRef> {
    let dtype = array.dtype().to_storage_recursive();
    // SAFETY: a valid array was exported, and values of an extension type are stored as those of the type below it.
    if dtype == *array.dtype() { Ok(array) } else { unsafe { import_array_from_c(export_array_to_c(array), dtype) } }
}

/// Takes series over, as they are stored. Polars' own function panics at extension types, which this build of Polars lacks.
///
/// # Safety
/// As in [`evaluate`].
unsafe fn import(inputs: Raw<*mut SeriesExport>) -> PolarsResult<Vec<Series>> {
    /// How a [`SeriesExport`] begins in version 0 of this interface.
    #[repr(C)]
    struct SeriesExportHead {
        field: *mut ArrowSchema,
        arrays: *mut *mut ArrowArray,
        len: usize,
    }
    const { assert!(size_of::<SeriesExport>() == 5 * size_of::<usize>()) };
    // SAFETY: the caller promises that there are so many series.
    let all: Vec<SeriesExport> = (0..inputs.1).map(|i| unsafe { inputs.0.add(i).read() }).collect();
    let series = all.iter().map(|export| {
        // SAFETY: the layout is that of C. Field and arrays are valid, and each array is taken once.
        let (field, arrays) = unsafe {
            let parts = &*std::ptr::from_ref(export).cast::<SeriesExportHead>();
            (storage(import_field_from_c(&*parts.field)?), std::slice::from_raw_parts(parts.arrays, parts.len))
        };
        // SAFETY: as above. The types of the arrays are that of the field.
        unsafe {
            let chunks = arrays.iter().map(|array| import_array_from_c(array.read(), field.dtype.clone()));
            let chunks = chunks.collect::<PolarsResult<Vec<_>>>()?;
            Series::_try_from_arrow_unchecked_with_md(field.name, chunks, &field.dtype, field.metadata.as_deref())
        }
    });
    series.collect()
}

/// Calls `function` on the inputs. If there is an error, `out` does not change.
///
/// # Safety
/// `inputs` must point to series that this call may take over, `kwargs` to readable bytes, and `out` to a series that may be
/// overwritten.
pub unsafe fn evaluate<K: DeserializeOwned>(
    inputs: Raw<*mut SeriesExport>,
    kwargs: Raw<*const u8>,
    out: *mut SeriesExport,
    last: &'static LocalKey<Last<K>>,
    function: fn(&[Series], &K) -> PolarsResult<Series>,
) {
    let call = InQuery::enter();
    let result = guarded(|| {
        call.check()?;
        // SAFETY: the caller promises that the series may be taken over and that the keywords are readable.
        let (inputs, kwargs) = unsafe { (import(inputs)?, std::slice::from_raw_parts(kwargs.0, kwargs.1)) };
        let kwargs = last.with(|last| last.keywords(kwargs))?;
        function(&inputs, &kwargs).map(|series| export_series(&series))
    });
    match result {
        // SAFETY: the caller promises that `out` may be overwritten.
        Some(result) => unsafe { *out = result },
        // The error ends the query.
        None => signals::forget(),
    }
}

/// Calls `function` on the fields of the inputs. If there is an error, `out` does not change.
///
/// # Safety
/// As for [`evaluate`], with fields in the place of series.
pub unsafe fn resolve<K: DeserializeOwned>(
    fields: Raw<*mut ArrowSchema>,
    kwargs: Raw<*const u8>,
    out: *mut ArrowSchema,
    function: fn(&[Field], &K) -> PolarsResult<Field>,
) {
    // The types of a query are asked for before it runs. So a signal that has come is not for this query.
    signals::forget();
    let result = guarded(|| {
        // SAFETY: the caller promises that the fields and the keywords are readable.
        let (fields, kwargs) = unsafe {
            (std::slice::from_raw_parts(fields.0, fields.1), keywords(std::slice::from_raw_parts(kwargs.0, kwargs.1))?)
        };
        // SAFETY: the caller promises that each field is a valid schema.
        let fields = fields.iter().map(|field| Ok(Field::from(&storage(unsafe { import_field_from_c(field) }?))));
        let field = function(&fields.collect::<PolarsResult<Vec<_>>>()?, &kwargs)?;
        Ok(export_field_to_c(&field.to_arrow(CompatLevel::newest())))
    });
    if let Some(result) = result {
        // SAFETY: the caller promises that `out` may be overwritten.
        unsafe { *out = result };
    }
}

/// Exports `$function(&[Series], &$keywords)`. `$field(&[Field], &$keywords)` computes the field of its result from the fields of
/// the inputs.
macro_rules! expression {
    ($function:ident($keywords:ty) -> $field:ident) => {
        const _: () = {
            use $crate::plugin::entry::{Last, Raw, evaluate, resolve};

            std::thread_local! {
                static LAST: Last<$keywords> = const { Last::new() };
            }

            /// # Safety
            /// Only Polars may call this.
            #[unsafe(export_name = concat!("_polars_plugin_", stringify!($function)))]
            unsafe extern "C" fn values(
                inputs: *mut polars_ffi::version_0::SeriesExport,
                len: usize,
                kwargs: *const u8,
                kwargs_len: usize,
                out: *mut polars_ffi::version_0::SeriesExport,
                _context: *mut polars_ffi::version_0::CallerContext,
            ) {
                // SAFETY: Polars passes valid arguments: series that this call owns, pickled keywords, and room for the result.
                unsafe { evaluate::<$keywords>(Raw(inputs, len), Raw(kwargs, kwargs_len), out, &LAST, $function) }
            }

            /// # Safety
            /// Only Polars may call this.
            #[unsafe(export_name = concat!("_polars_plugin_field_", stringify!($function)))]
            unsafe extern "C" fn field(
                fields: *mut polars_arrow::ffi::ArrowSchema,
                len: usize,
                out: *mut polars_arrow::ffi::ArrowSchema,
                kwargs: *const u8,
                kwargs_len: usize,
            ) {
                // SAFETY: Polars passes valid arguments: fields, pickled keywords, and room for the result.
                unsafe { resolve::<$keywords>(Raw(fields, len), Raw(kwargs, kwargs_len), out, $field) }
            }
        };
    };
}
pub(crate) use expression;

/// Prints no panics from now on: a caught panic is returned as an error.
pub fn quiet() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// The text of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn _polars_plugin_get_last_error_message() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// The version of this interface: major in the upper 16 bits, minor in the lower 16 bits. Polars asks for it before anything
/// else.
#[unsafe(no_mangle)]
pub extern "C" fn _polars_plugin_get_version() -> u32 {
    quiet();
    let (major, minor) = polars_ffi::get_version();
    u32::from(major) << 16 | u32::from(minor)
}
