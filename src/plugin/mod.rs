//! The functions that Polars and the Python package call: the expressions, the estimator's fit, and a few functions that decode,
//! save and load a model.
//!
//! A panic never reaches Python: the entry points of the expressions catch it. Every refusal is an error value.

mod arrays;
#[cfg(all(feature = "bench", feature = "cuda"))]
mod benchmark;
#[cfg(feature = "cuda")]
mod device_frame;
mod dlpack;
mod entry;
mod expressions;
mod external;
mod fit;
mod gathered;
mod inputs;
mod options;
mod parts;
mod signals;
mod table;

use std::path::PathBuf;
use std::sync::Arc;

use polars::prelude::PolarsError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use pyo3_polars::PyDataFrame;
use serde::Serialize;

use self::arrays::Answers;
use self::fit::Columns;
use self::options::FitOptions;
use self::table::OptionInfo;
use crate::backend::select::DeviceInfo;
use crate::base::error::KMeansError;
use crate::base::memory;
use crate::base::parallel;
use crate::base::params::Device;
use crate::model::{KMeansModel, Scaling, Settings};

/// Inside a query, an error is Polars' `ComputeError`. Its text starts with the name of the Python exception.
impl From<KMeansError> for PolarsError {
    fn from(error: KMeansError) -> Self {
        // Polars cuts a plugin's error text at a blank line.
        Self::ComputeError(format!("{}: {error}", error.kind().name()).replace("\n\n", "\n").into())
    }
}

/// Outside a query, an error is an exception of `polars_kmeans.errors`.
fn raise(py: Python<'_>, error: &KMeansError) -> PyErr {
    let exception = py
        .import("polars_kmeans.errors")
        .and_then(|module| module.getattr(error.kind().name()))
        .and_then(|class| class.call1((error.to_string(),)));
    exception.map_or_else(|_| PyRuntimeError::new_err(error.to_string()), PyErr::from_value)
}

/// `len` bytes for Python. `fill` writes them.
fn to_python(py: Python<'_>, len: usize, fill: impl FnOnce(&mut [u8])) -> PyResult<Bound<'_, PyBytes>> {
    let bytes = PyBytes::new_with(py, len, |bytes| {
        fill(bytes);
        Ok(())
    });
    // The only possible error is a lack of memory.
    bytes.map_err(|_| raise(py, &memory::no_memory("bytes for Python", len as u128)))
}

fn copy_to_python<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    to_python(py, bytes.len(), |copy| copy.copy_from_slice(bytes))
}

fn decode(py: Python<'_>, model: &[u8]) -> PyResult<Arc<KMeansModel>> {
    KMeansModel::from_bytes(model).map_err(|error| raise(py, &error))
}

/// An encoded model, the device that the fit ran on, why it ran there, how the CPU found labels, and the seconds for rows,
/// seeding and iterations.
type Fit<'py> = (Bound<'py, PyBytes>, String, String, Option<String>, (f64, f64, f64));

/// What Python gets of a fit, if there is a model.
fn encoded(py: Python<'_>, model: Option<KMeansModel>) -> PyResult<Option<Fit<'_>>> {
    let Some(model) = model else { return Ok(None) };
    let (device, reason) = model.choice().map(|choice| (choice.place.to_string(), choice.reason.clone())).unzip();
    let method = model.method().map(|method| method.to_string());
    let seconds = model.seconds().unwrap_or_default();
    let seconds = (seconds.rows, seconds.seeding, seconds.iterations);
    let bytes = py.detach(|| model.into_bytes()).map_err(|error| raise(py, &error))?;
    Ok(Some((copy_to_python(py, &bytes)?, device.unwrap_or_default(), reason.unwrap_or_default(), method, seconds)))
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

/// The columns to look for in a frame. An error if the features were computed by expressions.
#[pyfunction]
fn model_columns(py: Python<'_>, model: &[u8]) -> PyResult<Vec<String>> {
    Ok(decode(py, model)?.columns_to_find().map_err(|error| raise(py, &error))?.to_vec())
}

/// The parameters of a model by name.
#[derive(Serialize)]
struct Parameters<'m> {
    #[serde(flatten)]
    settings: &'m Settings,
    scale: Option<&'m str>,
}

/// The parameters that an encoded model was fitted with, as JSON.
#[pyfunction]
fn model_parameters(py: Python<'_>, model: &[u8]) -> PyResult<String> {
    let model = decode(py, model)?;
    let parameters = Parameters { settings: model.settings(), scale: model.scaling().map(Scaling::scale) };
    serde_json::to_string(&parameters).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// The factors of an encoded model by the names of its features, in their order.
#[pyfunction]
fn model_factors<'py>(py: Python<'py>, model: &[u8]) -> PyResult<Option<Bound<'py, PyDict>>> {
    let model = decode(py, model)?;
    let Some(scaling) = model.scaling() else { return Ok(None) };
    let names = model.layout().feature_names(model.n_features()).map_err(|error| raise(py, &error))?;
    let factors = PyDict::new(py);
    for (f, factor) in scaling.factors().iter().enumerate() {
        factors.set_item(names.get(f).unwrap_or_default(), factor)?;
    }
    Ok(Some(factors))
}

/// Whether two encoded models are equal apart from wall times. They are if their files are equal.
#[pyfunction]
fn models_equal(py: Python<'_>, one: &[u8], other: &[u8]) -> PyResult<bool> {
    let file = |model: &[u8]| decode(py, model)?.to_parquet().map_err(|error| raise(py, &error));
    Ok(one == other || file(one)? == file(other)?)
}

/// The bytes of the file of an encoded model.
#[pyfunction]
fn model_to_file<'py>(py: Python<'py>, model: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = decode(py, model)?.to_parquet().map_err(|error| raise(py, &error))?;
    copy_to_python(py, &bytes)
}

/// An encoded model from the bytes of its file.
#[pyfunction]
fn model_from_file<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let encoded = KMeansModel::from_parquet(bytes).and_then(KMeansModel::into_bytes);
    copy_to_python(py, &encoded.map_err(|error| raise(py, &error))?)
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
    let bytes = py.detach(|| KMeansModel::load(path).and_then(KMeansModel::into_bytes));
    copy_to_python(py, &bytes.map_err(|error| raise(py, &error))?)
}

/// A Python context manager: `with FloatEnvironment(): ...`. In the block, floats round by the engine's rules, whatever the
/// host program has set.
#[pyclass(unsendable)]
#[derive(Default)]
struct FloatEnvironment {
    /// The environments of the open blocks. Blocks may be nested.
    saved: Vec<parallel::FloatEnvironment>,
}

#[pymethods]
impl FloatEnvironment {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __enter__(&mut self) {
        self.saved.push(parallel::FloatEnvironment::default_rounding());
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&mut self, _error: &Bound<'_, PyTuple>) {
        self.saved.pop();
    }
}

/// Refuses to work in a child process that was forked after queries were run. There, Polars would wait for threads that do not
/// exist. `runs` says that this process is about to run queries.
#[pyfunction]
fn check_process(py: Python<'_>, runs: bool) -> PyResult<()> {
    if let Some(parent) = expressions::forked_from() {
        return Err(raise(py, &KMeansError::Forked { parent }));
    }
    if runs {
        expressions::enter();
    }
    Ok(())
}

/// Refuses options of a fit that are wrong for any data.
#[pyfunction]
fn check_options(options: &Bound<'_, PyAny>) -> PyResult<()> {
    let _environment = parallel::FloatEnvironment::default_rounding();
    // Not an argument of this type: PyO3 would add to the text of an error.
    options.extract::<FitOptions>()?.check().map_err(|error| raise(options.py(), &error))
}

/// Refuses a text that is not the name of a device.
#[pyfunction]
fn check_device(py: Python<'_>, name: &str) -> PyResult<()> {
    name.parse::<Device>().map(|_| ()).map_err(|error| raise(py, &error))
}

/// Encodes starting centroids as float64, little-endian, row-major. Also returns the names of the columns that hold numbers,
/// and how many values each has in a row. Nulls become NaN, which the fit refuses.
#[pyfunction]
fn encode_centroids(py: Python<'_>, frame: PyDataFrame) -> PyResult<(Bound<'_, PyBytes>, Vec<String>, Vec<usize>)> {
    let rows = crate::frame::row_major(&frame.0).map_err(|error| raise(py, &error))?;
    let bytes = to_python(py, rows.values.len() * size_of::<f64>(), |bytes| {
        let values = bytes.as_chunks_mut::<8>().0.iter_mut().zip(&rows.values);
        values.for_each(|(bytes, value)| *bytes = value.to_le_bytes());
    })?;
    Ok((bytes, rows.names, rows.widths))
}

/// A device as a row of a frame: ordinal, name, free and total memory, compute capability, CUDA version of the driver, whether
/// it can be used, and the reason for that.
type DeviceRow = (u32, String, u64, u64, String, String, bool, String);

/// The GPUs, or the reason why there is none.
#[pyfunction]
fn devices(py: Python<'_>) -> (Vec<DeviceRow>, Option<String>) {
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let row = |device: DeviceInfo| {
        let DeviceInfo { ordinal, name, memory_free, memory_total, compute_capability, driver, usable, reason, .. } = device;
        (ordinal, name, memory_free, memory_total, version(compute_capability), version(driver), usable, reason)
    };
    match py.detach(crate::backend::devices) {
        Ok(devices) => (devices.into_iter().map(row).collect(), None),
        Err(why) => (Vec::new(), Some(why)),
    }
}

#[pymodule]
fn _internal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // The limit on Polars' threads holds for our threads too.
    if let Some(threads) = std::env::var("POLARS_MAX_THREADS").ok().and_then(|threads| threads.parse().ok()) {
        parallel::limit_pool(threads);
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("NUL", expressions::NUL)?;
    module.add_class::<FloatEnvironment>()?;
    module.add_class::<Columns>()?;
    module.add_class::<gathered::Gathered>()?;
    module.add_class::<OptionInfo>()?;
    module.add_function(wrap_pyfunction!(check_process, module)?)?;
    module.add_function(wrap_pyfunction!(model_centroids, module)?)?;
    module.add_function(wrap_pyfunction!(model_history, module)?)?;
    module.add_function(wrap_pyfunction!(model_facts, module)?)?;
    module.add_function(wrap_pyfunction!(model_columns, module)?)?;
    module.add_function(wrap_pyfunction!(model_parameters, module)?)?;
    module.add_function(wrap_pyfunction!(model_factors, module)?)?;
    module.add_function(wrap_pyfunction!(models_equal, module)?)?;
    module.add_function(wrap_pyfunction!(model_to_file, module)?)?;
    module.add_function(wrap_pyfunction!(model_from_file, module)?)?;
    module.add_function(wrap_pyfunction!(save_model, module)?)?;
    module.add_function(wrap_pyfunction!(load_model, module)?)?;
    module.add_function(wrap_pyfunction!(table::options, module)?)?;
    module.add_function(wrap_pyfunction!(check_options, module)?)?;
    module.add_function(wrap_pyfunction!(fit::fit, module)?)?;
    module.add_function(wrap_pyfunction!(fit::fit_each, module)?)?;
    module.add_class::<parts::Part>()?;
    module.add_function(wrap_pyfunction!(parts::fit_parts, module)?)?;
    module.add_class::<Answers>()?;
    module.add_class::<signals::Centroids>()?;
    module.add_function(wrap_pyfunction!(arrays::fit_array, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::predict_array, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::transform_array, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::score_array, module)?)?;
    #[cfg(feature = "cuda")]
    module.add_function(wrap_pyfunction!(arrays::bus_traffic, module)?)?;
    module.add_function(wrap_pyfunction!(check_device, module)?)?;
    module.add_function(wrap_pyfunction!(encode_centroids, module)?)?;
    module.add_function(wrap_pyfunction!(devices, module)?)?;
    Ok(())
}
