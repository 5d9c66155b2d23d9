//! What a fit is expected to take, before it runs.

use polars::prelude::*;
use pyo3::prelude::*;

use super::entry::without_panic;
use super::expressions::fit_fields;
use super::external::ExternalArray;
use super::fit::Frame;
use super::options::FitOptions;
use crate::base::error::{KMeansError, Result};
use crate::base::names::FeatureLayout;
use crate::base::params::KMeans;
use crate::columns::{ColumnType, Kind};
use crate::fit::plan::{FitPlan, PlannedRows};
use crate::frame::FitColumns;
use crate::input::value_type::ValueType;
use crate::model::AnyFeatures;

/// Device, reason, method, bytes of the host and of devices, seconds of seeding and of an iteration.
type PlanFacts = (String, String, String, u64, u64, f64, f64);

/// Plans a fit of `rows` rows of columns like those of an empty frame, the last one for weights if the options say so. `width`:
/// the number of features, if lists have them. `array`: the features lie row by row, as in an array. `computed`: columns are
/// computed for the fit.
#[pyfunction]
#[pyo3(signature = (frame, options, rows, width, array, computed))]
pub fn plan(
    py: Python<'_>,
    frame: Frame,
    options: FitOptions,
    rows: u64,
    width: Option<usize>,
    array: bool,
    computed: bool,
) -> Result<PlanFacts> {
    let columns = frame.0.columns();
    let fields: Vec<Field> = columns.iter().map(|column| column.field().into_owned()).collect();
    let (features, dtype) = fit_fields(&fields, options.weighted, FeatureLayout::check)?;
    let float64 = dtype == DataType::Float64;
    let numbers = |dtype: &DataType| match dtype.kind() {
        Kind::Lists(numbers, own) => (Some(numbers), own.or(width).unwrap_or(1)),
        Kind::Numbers(numbers) => (Some(numbers), 1),
        Kind::Nulls | Kind::Other => (None, 1),
    };
    let bytes = |field: &Field| {
        let (own, width) = numbers(field.dtype());
        let stays = match own {
            Some(ValueType::Float16) => true,
            Some(ValueType::Float32) => !float64,
            Some(ValueType::Float64) => float64 && matches!(field.dtype().leaf_dtype(), DataType::Float64),
            _ => false,
        };
        let size = if float64 { 8 } else { 4 };
        // Lists are cast, and then become arrays.
        let cast = match field.dtype() {
            DataType::List(_) => 2 * size,
            _ if stays => 0,
            _ => size,
        };
        rows.saturating_mul(width as u64 * (cast + if computed { 16 } else { 0 }))
    };
    let weights = if options.weighted { rows.saturating_mul(8) } else { 0 };
    let lists = features.iter().any(|field| matches!(field.dtype().kind(), Kind::Lists(..)));
    let planned = PlannedRows {
        rows,
        features: features.iter().map(|field| numbers(field.dtype()).1).sum(),
        float64,
        half: features.iter().all(|field| numbers(field.dtype()).0 == Some(ValueType::Float16)),
        weighted: options.weighted,
        by_columns: !array && !lists,
        copied: features.iter().map(bytes).fold(weights, u64::saturating_add),
    };
    let estimator = FitColumns::new(columns.to_vec(), options.weighted).estimator(&options)?;
    py.detach(|| without_panic(|| planned_by(&estimator, planned)))
}

/// Plans a fit of an array on the host.
#[pyfunction]
pub fn plan_array(array: &Bound<'_, PyAny>, options: FitOptions) -> PyResult<PlanFacts> {
    let rows = ExternalArray::of(array, "data", false)?;
    if rows.layout.columns().is_empty() {
        return Err(KMeansError::NoFeatures.into());
    }
    let estimator = options.estimator(rows.layout.columns().iter().map(String::as_str), Some(rows.layout.columns().len()))?;
    let (float64, by_columns) = match rows.features()? {
        AnyFeatures::F32(features) => (false, features.is_by_columns()),
        AnyFeatures::F64(features) => (true, features.is_by_columns()),
    };
    let planned = PlannedRows {
        rows: rows.n_rows() as u64,
        features: rows.layout.columns().len(),
        float64,
        half: false,
        weighted: options.weighted,
        by_columns,
        copied: rows.copied_bytes() as u64,
    };
    Ok(array.py().detach(|| without_panic(|| planned_by(&estimator, planned)))?)
}

fn planned_by(estimator: &KMeans, rows: PlannedRows) -> Result<PlanFacts> {
    let FitPlan { choice, method, host_bytes, device_bytes, seconds_seeding, seconds_iteration } = estimator.plan(rows)?;
    Ok((choice.place.to_string(), choice.reason, method, host_bytes, device_bytes, seconds_seeding, seconds_iteration))
}
