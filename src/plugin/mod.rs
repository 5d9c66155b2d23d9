//! The functions that Polars calls in the Python package: expressions, and a few that decode, save and load a model.
//!
//! A panic never crosses: the expressions' boundary catches it, and every refusal is an error value.

mod expressions;
mod options;

use std::path::PathBuf;
use std::sync::Arc;

use polars::prelude::{DataFrame, DataType, ExplodeOptions, PolarsError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_polars::PyDataFrame;

use self::options::FitOptions;
use crate::error::{KMeansError, Result};
use crate::model::KMeansModel;

/// Inside a query, an error is Polars' `ComputeError`; its text starts with the name of the Python exception.
impl From<KMeansError> for PolarsError {
    fn from(error: KMeansError) -> Self {
        Self::ComputeError(format!("{}: {error}", error.kind().name()).into())
    }
}

/// Outside of a query, an error is an exception of `polars_kmeans.errors`.
fn raise(py: Python<'_>, error: &KMeansError) -> PyErr {
    let exception = py
        .import("polars_kmeans.errors")
        .and_then(|module| module.getattr(error.kind().name()))
        .and_then(|class| class.call1((error.to_string(),)));
    exception.map_or_else(|_| PyRuntimeError::new_err(error.to_string()), PyErr::from_value)
}

fn decode(py: Python<'_>, model: &[u8]) -> PyResult<Arc<KMeansModel>> {
    KMeansModel::from_bytes(model).map_err(|error| raise(py, &error))
}

/// The centroid frame of an encoded model.
#[pyfunction]
fn model_centroids(py: Python<'_>, model: &[u8]) -> PyResult<PyDataFrame> {
    Ok(PyDataFrame(decode(py, model)?.centroids().map_err(|error| raise(py, &error))?))
}

/// The history frame of an encoded model.
#[pyfunction]
fn model_history(py: Python<'_>, model: &[u8]) -> PyResult<PyDataFrame> {
    Ok(PyDataFrame(decode(py, model)?.history().map_err(|error| raise(py, &error))?))
}

/// Column names, clusters, inertia and iterations of an encoded model.
#[pyfunction]
fn model_facts(py: Python<'_>, model: &[u8]) -> PyResult<(Vec<String>, usize, f64, u32)> {
    let model = decode(py, model)?;
    Ok((model.names().to_vec(), model.n_clusters(), model.inertia(), model.n_iter()))
}

/// Writes an encoded model to a file.
#[pyfunction]
fn save_model(py: Python<'_>, model: &[u8], path: PathBuf) -> PyResult<()> {
    let model = decode(py, model)?;
    py.detach(|| model.save(path)).map_err(|error| raise(py, &error))
}

/// Reads an encoded model from a file.
#[pyfunction]
fn load_model(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyBytes>> {
    let bytes = py.detach(|| KMeansModel::load(path).and_then(|model| model.to_bytes()));
    Ok(PyBytes::new(py, &bytes.map_err(|error| raise(py, &error))?))
}

/// Refuses what is wrong with a fit's options whatever the data.
#[pyfunction]
fn check_options(py: Python<'_>, options: FitOptions) -> PyResult<()> {
    options.check().map_err(|error| raise(py, &error))
}

/// Starting centroids as float64, little-endian, row-major; and each column's values in a row. Nulls become NaN, which the fit
/// refuses.
#[pyfunction]
fn encode_centroids(py: Python<'_>, frame: PyDataFrame) -> PyResult<(Bound<'_, PyBytes>, Vec<usize>)> {
    let (values, widths) = row_major(&frame.0).map_err(|error| raise(py, &error))?;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok((PyBytes::new(py, &bytes), widths))
}

fn row_major(frame: &DataFrame) -> Result<(Vec<f64>, Vec<usize>)> {
    let k = frame.height();
    let mut columns = Vec::new();
    for column in frame.columns() {
        let name = column.name();
        crate::frame::float_type([(name.as_str(), column.dtype())].into_iter())?;
        let series = column.as_materialized_series();
        let values = match series.dtype() {
            DataType::List(_) | DataType::Array(..) => {
                series.explode(ExplodeOptions { empty_as_null: true, keep_nulls: true })?
            }
            _ => series.clone(),
        };
        let values: Vec<f64> = values.cast(&DataType::Float64)?.f64()?.iter().map(|v| v.unwrap_or(f64::NAN)).collect();
        let width = values.len() / k.max(1);
        if width * k != values.len() || width == 0 {
            let what = format!("starting centroids in column {name:?}");
            return Err(KMeansError::LengthMismatch { what, expected: k * width.max(1), got: values.len() });
        }
        columns.push((values, width));
    }
    let row = |j: usize| columns.iter().flat_map(move |(values, width)| values[j * width..(j + 1) * width].iter().copied());
    Ok(((0..k).flat_map(row).collect(), columns.iter().map(|(_, width)| *width).collect()))
}

#[pymodule]
fn _internal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Who limits Polars' threads means ours too. If a pool is there already, it stays.
    if let Some(threads) = std::env::var("POLARS_MAX_THREADS").ok().and_then(|threads| threads.parse().ok()) {
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(model_centroids, module)?)?;
    module.add_function(wrap_pyfunction!(model_history, module)?)?;
    module.add_function(wrap_pyfunction!(model_facts, module)?)?;
    module.add_function(wrap_pyfunction!(save_model, module)?)?;
    module.add_function(wrap_pyfunction!(load_model, module)?)?;
    module.add_function(wrap_pyfunction!(check_options, module)?)?;
    module.add_function(wrap_pyfunction!(encode_centroids, module)?)?;
    Ok(())
}
