//! Models of groups for Python: keys as columns of Polars, and the file of all of them.

use std::mem::transmute;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchReader};
use arrow::compute::cast;
use arrow::datatypes::{DataType as ArrowType, Field as ArrowField};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use arrow::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use polars::prelude::*;
use polars_arrow::ffi::{ArrowArray, ArrowSchema, import_array_from_c, import_field_from_c};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyCapsule};
use pyo3_polars::PyDataFrame;

use super::copy_to_python;
use super::entry::{quiet, without_panic};
use crate::base::error::{KMeansError, Result};
use crate::model::KMeansModel;
use crate::model::groups::{Groups, Key, Keys};

macro_rules! plain {
    ($($name:ident)*) => { [$((stringify!($name), DataType::$name)),*] };
}
/// Types of keys that nothing belongs to.
const PLAIN: [(&str, DataType); 19] = plain!(
    Null Boolean Int8 Int16 Int32 Int64 Int128 UInt8 UInt16 UInt32 UInt64 UInt128 Float16 Float32 Float64 String Binary Date Time
);
const UNITS: [(&str, TimeUnit); 3] =
    [("ms", TimeUnit::Milliseconds), ("us", TimeUnit::Microseconds), ("ns", TimeUnit::Nanoseconds)];

/// Keys, and the encoded model of each group.
type Read = (DataFrame, Vec<Option<Vec<u8>>>);

fn wrong(expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidModel { expected: expected.into(), got: format!("{got:.200}") }
}

fn no_arrow(error: ArrowError) -> KMeansError {
    wrong("a table that Arrow holds", error)
}

/// The name of a type of keys, and what belongs to it.
fn described(dtype: &DataType) -> Option<(&'static str, Vec<String>)> {
    let unit = |unit: &TimeUnit| UNITS.iter().find(|known| known.1 == *unit).map(|known| known.0.to_owned());
    Some(match dtype {
        DataType::Datetime(of, zone) => {
            ("Datetime", unit(of).into_iter().chain(zone.as_ref().map(ToString::to_string)).collect())
        }
        DataType::Duration(of) => ("Duration", vec![unit(of)?]),
        DataType::Decimal(precision, scale) => ("Decimal", vec![precision.to_string(), scale.to_string()]),
        DataType::Categorical(of, _) => {
            ("Categorical", vec![of.name().to_string(), of.namespace().to_string(), of.physical().as_str().into()])
        }
        DataType::Enum(of, _) => ("Enum", of.categories().values_iter().map(Into::into).collect()),
        _ => (PLAIN.iter().find(|known| known.1 == *dtype)?.0, Vec::new()),
    })
}

/// The type with this name and these texts.
fn dtype_of(name: &str, of: &[&str]) -> Option<DataType> {
    let unit = |text: &str| UNITS.iter().find(|known| known.0 == text).map(|known| known.1);
    Some(match (name, of) {
        ("Datetime", [of]) => DataType::Datetime(unit(of)?, None),
        ("Datetime", [of, zone]) => DataType::Datetime(unit(of)?, TimeZone::opt_try_new(Some(*zone)).ok()?),
        ("Duration", [of]) => DataType::Duration(unit(of)?),
        ("Decimal", [precision, scale]) => DataType::Decimal(precision.parse().ok()?, scale.parse().ok()?),
        ("Categorical", &[name, namespace, physical]) => {
            DataType::from_categories(Categories::new(name.into(), namespace.into(), physical.parse().ok()?))
        }
        ("Enum", of) => DataType::from_frozen_categories(FrozenCategories::new(of.iter().copied()).ok()?),
        (_, []) => PLAIN.into_iter().find(|known| known.0 == name)?.1,
        _ => return None,
    })
}

/// Keys as Polars stores them, in one chunk. Categories are texts.
fn stored(keys: &Series) -> PolarsResult<Series> {
    let keys = match keys.dtype() {
        DataType::Categorical(..) | DataType::Enum(..) => keys.cast(&DataType::String)?,
        _ => keys.to_physical_repr().into_owned(),
    };
    Ok(keys.rechunk())
}

/// The values of stored keys.
fn values(stored: &Series) -> Result<Vec<Key<'_>>> {
    let key = |value| {
        Ok(match value {
            AnyValue::Null => Key::Null,
            AnyValue::Boolean(value) => Key::Boolean(value),
            AnyValue::String(text) => Key::Text(text),
            AnyValue::Binary(bytes) => Key::Bytes(bytes),
            AnyValue::UInt128(value) => Key::Integer(value as i128),
            AnyValue::Float16(_) | AnyValue::Float32(_) | AnyValue::Float64(_) => Key::Float(value.try_extract()?),
            _ => Key::Integer(value.try_extract()?),
        })
    };
    stored.iter().map(key).collect()
}

/// The keys of a column as Polars holds them.
fn column(keys: &Keys<'_>) -> Result<Column> {
    fn all<'a, T, C: FromIterator<Option<T>>>(keys: &Keys<'a>, of: impl Fn(Key<'a>) -> Option<T>) -> Result<C> {
        let other = |key| wrong(&format!("keys of type {}", keys.dtype), format!("{key:?}"));
        let value = |&key| if key == Key::Null { Ok(None) } else { of(key).map(Some).ok_or_else(|| other(key)) };
        keys.values.iter().map(value).collect()
    }
    let unknown = || wrong("keys of a type that Polars has", format!("{} {:?}", keys.dtype, keys.of));
    let dtype = dtype_of(keys.dtype, &keys.of).ok_or_else(unknown)?;
    let physical = if matches!(keys.dtype, "Categorical" | "Enum") { DataType::String } else { dtype.to_physical() };
    let texts = |key| if let Key::Text(text) = key { Some(text) } else { None };
    let bytes = |key| if let Key::Bytes(bytes) = key { Some(bytes) } else { None };
    let truths = |key| if let Key::Boolean(value) = key { Some(value) } else { None };
    let floats = |key| if let Key::Float(value) = key { Some(value) } else { None };
    let integers = |key| if let Key::Integer(value) = key { Some(value) } else { None };
    let stored = match &physical {
        DataType::Null => all::<(), Vec<_>>(keys, |_| None).map(|nulls| Series::new_null("".into(), nulls.len()))?,
        DataType::Boolean => all::<_, BooleanChunked>(keys, truths)?.into_series(),
        DataType::String => all::<_, StringChunked>(keys, texts)?.into_series(),
        DataType::Binary => all::<_, BinaryChunked>(keys, bytes)?.into_series(),
        DataType::UInt128 => all::<_, UInt128Chunked>(keys, |key| integers(key).map(|value| value as u128))?.into_series(),
        float if float.is_float() => all::<_, Float64Chunked>(keys, floats)?.into_series().strict_cast(float)?,
        _ => all::<_, Int128Chunked>(keys, integers)?.into_series().strict_cast(&physical)?,
    };
    let series = match dtype {
        DataType::Decimal(precision, scale) => stored.into_decimal(precision, scale)?,
        // A cast knows no time zones in this build of Polars.
        DataType::Datetime(unit, zone) => stored.i64()?.clone().into_datetime(unit, zone).into_series(),
        dtype => stored.strict_cast(&dtype)?,
    };
    Ok(series.with_name(keys.name.into()).into_column())
}

/// The keys and the models of a file of an older version: the last column has the file of each model.
fn old(table: &RecordBatch) -> Result<Read> {
    let (models, keys) = table.columns().split_last().ok_or_else(|| wrong("keys and models", "nothing"))?;
    let models = cast(models, &ArrowType::LargeBinary).map_err(no_arrow)?;
    let saved = |file| KMeansModel::from_bytes(file)?.to_saved_wire();
    let models = models.as_binary::<i64>().iter().map(|model| model.map(saved).transpose()).collect::<Result<_>>()?;
    let keys =
        keys.iter().zip(table.schema_ref().fields()).map(|(keys, field)| old_column(field, keys)).collect::<Result<_>>()?;
    Ok((DataFrame::new(table.num_rows(), keys)?, models))
}

/// The metadata of the field of a column say what texts belong to its type.
fn old_column(field: &ArrowField, keys: &ArrayRef) -> Result<Column> {
    // The numbers of categories depend on the file.
    let texts = matches!(field.data_type(), ArrowType::Dictionary(..)).then(|| cast(keys, &ArrowType::LargeUtf8));
    let (array, schema) =
        texts.transpose().and_then(|texts| to_ffi(&texts.as_ref().unwrap_or(keys).to_data())).map_err(no_arrow)?;
    // SAFETY: both libraries declare the structures of Arrow's C data interface, and arrow-rs makes valid ones. They move.
    let array = unsafe {
        let (array, schema) =
            (transmute::<FFI_ArrowArray, ArrowArray>(array), transmute::<FFI_ArrowSchema, ArrowSchema>(schema));
        import_array_from_c(array, import_field_from_c(&schema)?.dtype)?
    };
    let series = Series::try_from((PlSmallStr::from(field.name().as_str()), array))?;
    let said = |key: &str, most| field.metadata().get(key).map(|said| parts(said, most));
    let dtype = match (said("_PL_ENUM_VALUES2", usize::MAX), said("_PL_CATEGORICAL2", 2)) {
        (Some(parts), _) => parts.and_then(|parts| dtype_of("Enum", &parts)),
        (None, Some(parts)) => parts.and_then(|parts| dtype_of("Categorical", &parts)),
        (None, None) => return Ok(series.into_column()),
    };
    Ok(series.strict_cast(&dtype.ok_or_else(|| wrong("categories", "something else"))?)?.into_column())
}

/// Texts that Polars has written one behind the other: each with its length before it, or, after the `most`, with `;` behind it.
fn parts(mut said: &str, most: usize) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    while !said.is_empty() {
        let (before, rest) = said.split_once(';')?;
        let (part, rest) = if parts.len() < most { rest.split_at_checked(before.parse().ok()?)? } else { (before, rest) };
        parts.push(part);
        said = rest;
    }
    Some(parts)
}

/// The bytes of the file of models of groups. `table`: what other programs read.
#[pyfunction]
pub fn groups_to_file<'py>(
    py: Python<'py>,
    keys: PyDataFrame,
    models: Vec<Option<PyBackedBytes>>,
    table: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let capsule = table.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
    let bytes = without_panic(|| {
        // SAFETY: by the interface, a capsule of this name holds a stream. The reader moves the stream out of it.
        let table = unsafe { RecordBatchStreamReader::from_raw(stream.as_ptr()) }.map_err(no_arrow)?;
        let schema = table.schema();
        let table = table.collect::<std::result::Result<Vec<_>, _>>().map_err(no_arrow)?;
        let columns: Vec<&Series> = keys.0.columns().iter().map(|column| column.as_materialized_series()).collect();
        let unknown = |series: &Series| wrong("keys of a type that can be compared", series.dtype());
        let types = columns.iter().map(|series| described(series.dtype()).ok_or_else(|| unknown(series)));
        let types = types.collect::<Result<Vec<_>>>()?;
        let stored = columns.iter().map(|series| Ok(stored(series)?)).collect::<Result<Vec<_>>>()?;
        let keys = columns.iter().zip(&types).zip(&stored).map(|((series, (dtype, of)), stored)| {
            let of = of.iter().map(String::as_str).collect();
            Ok(Keys { name: series.name(), dtype, of, values: values(stored)? })
        });
        // What depends on the device of a fit is not saved.
        let saved = |model: &PyBackedBytes| KMeansModel::from_wire(model)?.to_saved_wire();
        let models: Vec<_> = models.iter().map(|model| model.as_ref().map(saved).transpose()).collect::<Result<_>>()?;
        let models = models.iter().map(Option::as_deref).collect();
        Groups { keys: keys.collect::<Result<_>>()?, models }.to_bytes(&schema, &table)
    });
    Ok(copy_to_python(py, &bytes?)?)
}

/// The keys and the models of groups, from the bytes of their file.
#[pyfunction]
pub fn groups_from_file<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<(PyDataFrame, Vec<Option<Bound<'py, PyBytes>>>)> {
    quiet();
    let (keys, models) = without_panic(|| {
        if let Some(table) = Groups::old(bytes)? {
            return old(&table);
        }
        let body = Groups::body(bytes)?;
        let Groups { keys, models } = Groups::of_body(&body)?;
        let columns = keys.iter().map(column).collect::<Result<Vec<_>>>()?;
        let models: Vec<_> = models.into_iter().map(|model| model.map(<[u8]>::to_vec)).collect();
        Ok((DataFrame::new(models.len(), columns)?, models))
    })
    .map_err(|error| match error {
        KMeansError::Frame(error) => wrong("keys that Polars holds", error),
        error => error,
    })?;
    let models = models.iter().map(|model| Ok(model.as_deref().map(|model| copy_to_python(py, model)).transpose()?));
    Ok((PyDataFrame(keys), models.collect::<PyResult<_>>()?))
}
