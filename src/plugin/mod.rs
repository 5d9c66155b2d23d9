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
mod groups;
mod living;
mod options;
mod parts;
mod plan;
mod signals;
mod sphere;
mod trees;

use std::collections::BTreeMap;
use std::path::PathBuf;

use polars::prelude::PolarsError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use pyo3_polars::PyDataFrame;
use serde::Serialize;

use self::arrays::Answers;
use self::fit::Columns;
use self::options::{FitOptions, OptionInfo};
use crate::backend::select::{DeviceInfo, Place};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::parallel;
use crate::base::params::Device;
use crate::model::{KMeansModel, Scaling, Settings};
use crate::simd::{DotUnit, InstructionSet};

/// Inside a query, an error is Polars' `ComputeError`. Its text has the name of the Python exception.
impl From<KMeansError> for PolarsError {
    fn from(error: KMeansError) -> Self {
        // Polars cuts a plugin's error text at a blank line.
        Self::ComputeError(format!("{}: {error}", error.kind().name()).replace("\n\n", "\n").into())
    }
}

/// Outside a query, an error is an exception of `polars_kmeans.errors`.
impl From<KMeansError> for PyErr {
    fn from(error: KMeansError) -> Self {
        let text = error.to_string();
        Python::attach(|py| {
            let class = py.import("polars_kmeans.errors").and_then(|module| module.getattr(error.kind().name()));
            let Ok(class) = class else { return PyRuntimeError::new_err(text) };
            // A signal's handler may raise something else.
            class.call1((&text,)).map_or_else(|raised| raised, Self::from_value)
        })
    }
}

/// `len` bytes for Python. `fill` writes them.
fn to_python(py: Python<'_>, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<Bound<'_, PyBytes>> {
    let bytes = PyBytes::new_with(py, len, |bytes| {
        fill(bytes);
        Ok(())
    });
    // The only possible error is a lack of memory.
    bytes.map_err(|_| memory::no_memory("bytes for Python", len as u128))
}

fn copy_to_python<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Bound<'py, PyBytes>> {
    to_python(py, bytes.len(), |copy| copy.copy_from_slice(bytes))
}

/// An encoded model, the device that the fit ran on, why it ran there, how it found labels, what the CPU decided and why, the
/// seconds for rows, seeding and iterations, and the starting centroids that lost all of their rows.
type Fit<'py> = (Bound<'py, PyBytes>, String, String, Option<String>, Option<String>, (f64, f64, f64), Vec<u32>);

/// What Python gets of a fit, if there is a model.
fn encoded(py: Python<'_>, model: Option<KMeansModel>) -> Result<Option<Fit<'_>>> {
    let Some(model) = model else { return Ok(None) };
    let (device, reason) = model.choice().map(|choice| (choice.place.to_string(), choice.reason.clone())).unzip();
    let kernel = model.choice().filter(|choice| choice.place != Place::Cpu).map(|choice| choice.plan.strategy.to_string());
    let method = model.method().map(|method| method.tries().to_string()).or(kernel);
    let decided = model.method().map(|method| method.to_string());
    let seconds = model.seconds().unwrap_or_default();
    let seconds = (seconds.rows, seconds.seeding, seconds.iterations);
    let relocated = memory::copied(model.relocated(), "the numbers of starting centroids")?;
    let bytes = py.detach(|| model.into_wire())?;
    let (device, reason) = (device.unwrap_or_default(), reason.unwrap_or_default());
    Ok(Some((copy_to_python(py, &bytes)?, device, reason, method, decided, seconds, relocated)))
}

/// The centroid frame of an encoded model.
#[pyfunction]
fn model_centroids(model: &[u8]) -> Result<PyDataFrame> {
    KMeansModel::from_wire(model)?.centroids().map(PyDataFrame)
}

/// The history frame of an encoded model.
#[pyfunction]
fn model_history(model: &[u8]) -> Result<PyDataFrame> {
    KMeansModel::from_wire(model)?.history().map(PyDataFrame)
}

/// Column names, clusters, inertia (None after an update) and iterations of a model, and whether its fit was stopped.
type ModelFacts = (Vec<String>, usize, Option<f64>, u32, bool);

#[pyfunction]
fn model_facts(model: &[u8]) -> Result<ModelFacts> {
    let model = KMeansModel::from_wire(model)?;
    let inertia = Some(model.inertia()).filter(|inertia| !inertia.is_nan());
    Ok((model.names().to_vec(), model.n_clusters(), inertia, model.n_iter(), model.stopped()))
}

/// The columns to look for in a frame. An error if the features were computed by expressions.
#[pyfunction]
fn model_columns(model: &[u8]) -> Result<Vec<String>> {
    Ok(KMeansModel::from_wire(model)?.columns_to_find()?.to_vec())
}

/// The parameters of a model by name.
#[derive(Serialize)]
struct Parameters<'m> {
    #[serde(flatten)]
    settings: &'m Settings,
    scale: Option<&'m str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    keep_sums: bool,
}

/// The parameters that an encoded model was fitted with, as JSON.
#[pyfunction]
fn model_parameters(model: &[u8]) -> PyResult<String> {
    let model = KMeansModel::from_wire(model)?;
    let parameters = Parameters {
        settings: model.settings(),
        scale: model.scaling().map(Scaling::scale),
        keep_sums: model.kept_sums().is_some(),
    };
    serde_json::to_string(&parameters).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// The factors of an encoded model by the names of its features, in their order.
#[pyfunction]
fn model_factors<'py>(py: Python<'py>, model: &[u8]) -> PyResult<Option<Bound<'py, PyDict>>> {
    let model = KMeansModel::from_wire(model)?;
    let Some(scaling) = model.scaling() else { return Ok(None) };
    let names = model.layout().feature_names(model.n_features())?;
    let factors = PyDict::new(py);
    for (f, factor) in scaling.factors().iter().enumerate() {
        factors.set_item(names.get(f).unwrap_or_default(), factor)?;
    }
    Ok(Some(factors))
}

/// Whether two encoded models are equal apart from wall times and metadata. They are if their files are equal without these.
#[pyfunction]
fn models_equal(one: &[u8], other: &[u8]) -> Result<bool> {
    let file = |model: &[u8]| KMeansModel::clone(&*KMeansModel::from_wire(model)?).with_metadata(BTreeMap::new()).to_bytes();
    Ok(one == other || file(one)? == file(other)?)
}

/// The bytes of the file of an encoded model.
#[pyfunction]
fn model_to_file<'py>(py: Python<'py>, model: &[u8]) -> Result<Bound<'py, PyBytes>> {
    copy_to_python(py, &KMeansModel::from_wire(model)?.to_bytes()?)
}

/// An encoded model from the bytes of its file.
#[pyfunction]
fn model_from_file<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Bound<'py, PyBytes>> {
    copy_to_python(py, &KMeansModel::from_bytes(bytes)?.into_wire()?)
}

/// Writes an encoded model to a file.
#[pyfunction]
fn save_model(py: Python<'_>, model: &[u8], path: PathBuf) -> Result<()> {
    let model = KMeansModel::from_wire(model)?;
    py.detach(|| model.save(path))
}

/// Reads an encoded model from a file.
#[pyfunction]
fn load_model(py: Python<'_>, path: PathBuf) -> Result<Bound<'_, PyBytes>> {
    let bytes = py.detach(|| KMeansModel::load(path)?.into_wire())?;
    copy_to_python(py, &bytes)
}

/// Replaces a file by a new one with these bytes, or creates it.
#[pyfunction]
fn replace_file(py: Python<'_>, path: PathBuf, bytes: &[u8]) -> Result<()> {
    py.detach(|| crate::model::file::replace(&path, bytes))
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
fn check_process(runs: bool) -> Result<()> {
    if let Some(parent) = expressions::forked_from() {
        return Err(KMeansError::Forked { parent });
    }
    signals::forget();
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
    Ok(options.extract::<FitOptions>()?.check()?)
}

/// Refuses a text that is not the name of a device.
#[pyfunction]
fn check_device(name: &str) -> Result<()> {
    name.parse::<Device>().map(|_| ())
}

/// Encodes starting centroids as float64, little-endian, row-major. Also returns the names of the columns that hold numbers,
/// and how many values each has in a row. Nulls become NaN, which the fit refuses.
#[pyfunction]
fn encode_centroids(py: Python<'_>, frame: fit::Frame) -> Result<(Bound<'_, PyBytes>, Vec<String>, Vec<usize>)> {
    let rows = crate::frame::row_major(&frame.0)?;
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

/// What fits of this process run with: the instruction sets that they use, threads, memory in bytes (of the machine, free, and
/// the limit of the control group), what the kernels of GPUs are for, and the version of Polars in this library.
type Machine = (Vec<String>, usize, Option<(u64, u64, Option<u64>)>, &'static str, &'static str);

#[pyfunction]
fn machine() -> Machine {
    let units = DotUnit::detect().into_iter().flatten().map(|unit| unit.to_string());
    let mut sets: Vec<String> = [InstructionSet::detect().to_string()].into_iter().chain(units).collect();
    sets.dedup();
    let memory = crate::frame::memory_of_machine().map(|memory| (memory.total, memory.free, memory.limit));
    #[cfg(feature = "cuda")]
    let kernels = crate::backend::cuda::ARCHITECTURES;
    #[cfg(not(feature = "cuda"))]
    let kernels = "";
    (sets, parallel::pool_threads(), memory, kernels, polars::VERSION)
}

#[pymodule]
fn _internal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // The limit on Polars' threads holds for our threads too.
    if let Some(threads) = std::env::var("POLARS_MAX_THREADS").ok().and_then(|threads| threads.parse().ok()) {
        parallel::limit_pool(threads);
    }
    InstructionSet::check_limit().map_err(PyValueError::new_err)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("NUL", expressions::NUL)?;
    module.add_class::<FloatEnvironment>()?;
    module.add_class::<Columns>()?;
    module.add_class::<fit::Gathered>()?;
    module.add_class::<OptionInfo>()?;
    module.add_class::<parts::Part>()?;
    module.add_class::<Answers>()?;
    module.add_class::<signals::Centroids>()?;
    macro_rules! add {
        ($($function:path),* $(,)?) => { $(module.add_function(wrap_pyfunction!($function, module)?)?;)* };
    }
    add!(model_centroids, model_history, model_facts, model_columns, model_parameters, model_factors, models_equal);
    add!(model_to_file, model_from_file, save_model, load_model, replace_file);
    add!(groups::groups_to_file, groups::groups_from_file);
    add!(check_process, check_options, check_device, encode_centroids, devices, machine, options::options);
    add!(fit::fit, fit::fit_each, parts::fit_parts, plan::plan, plan::plan_array, signals::check_signals);
    add!(expressions::answer_columns, arrays::array_frame);
    add!(
        living::update_model,
        living::model_compared,
        living::model_batches,
        living::model_starting_at,
        living::model_weights,
        living::widen_model,
        living::match_models,
        living::model_metadata,
        living::model_with
    );
    add!(
        trees::fit_tree,
        trees::fit_tree_array,
        trees::tree_nodes,
        trees::tree_facts,
        trees::tree_flat,
        trees::tree_cut,
        trees::tree_to_file,
        trees::tree_from_file,
        trees::save_tree,
        trees::load_tree
    );
    add!(arrays::step_array, arrays::draw_rows);
    add!(arrays::fit_array, arrays::predict_array, arrays::transform_array, arrays::score_array);
    #[cfg(feature = "cuda")]
    add!(arrays::bus_traffic);
    Ok(())
}
