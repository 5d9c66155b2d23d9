//! The functions that Polars calls in the Python package: expressions and a few that decode a model.
//!
//! A panic never crosses: the expressions' boundary catches it, and every refusal is an error value.

mod expressions;

use polars::prelude::PolarsError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_polars::PyDataFrame;

use crate::error::KMeansError;
use crate::frame::KMeansModel;

impl From<KMeansError> for PolarsError {
    fn from(error: KMeansError) -> Self {
        Self::ComputeError(error.to_string().into())
    }
}

fn decode(model: &[u8]) -> PyResult<KMeansModel> {
    KMeansModel::from_bytes(model).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn to_python(result: crate::Result<polars::prelude::DataFrame>) -> PyResult<PyDataFrame> {
    result.map(PyDataFrame).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The centroid frame of an encoded model.
#[pyfunction]
fn model_centroids(model: &[u8]) -> PyResult<PyDataFrame> {
    to_python(decode(model)?.centroids())
}

/// The history frame of an encoded model.
#[pyfunction]
fn model_history(model: &[u8]) -> PyResult<PyDataFrame> {
    to_python(decode(model)?.history())
}

/// Feature names, inertia and iterations of an encoded model.
#[pyfunction]
fn model_facts(model: &[u8]) -> PyResult<(Vec<String>, f64, u32)> {
    let model = decode(model)?;
    Ok((model.names().to_vec(), model.inertia(), model.n_iter()))
}

#[pymodule]
fn _internal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(model_centroids, module)?)?;
    module.add_function(wrap_pyfunction!(model_history, module)?)?;
    module.add_function(wrap_pyfunction!(model_facts, module)?)?;
    Ok(())
}
