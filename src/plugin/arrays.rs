//! Fits, predictions and scores of arrays. Answers are arrays where the rows are: on the host, or on the rows' GPU.

use std::sync::Arc;

use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use pyo3_polars::PyDataFrame;

use super::dlpack::{self, Export};
use super::entry::without_panic;
use super::external::ExternalArray;
use super::options::{FitOptions, RowAnswer};
use super::signals::{Raised, interruptible, watched};
use super::{Fit, copy_to_python, encoded, to_python};
use crate::backend::answers::Labels;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{Plain, array::GpuArray};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::params::Wanted;
use crate::exact::rng::{DrawPurpose, below, draw_u64};
use crate::frame::frame_of;
use crate::model::{DeviceModel, KMeansModel};

/// What errors call the rows and their weights.
pub const ROWS: &str = "data";
pub const WEIGHTS: &str = "weight";
/// What errors call the answers.
const ANSWERS: &str = "the answers for all rows";

/// A type of answers.
trait AnswerType: Send + Sync + 'static {
    const DATA_TYPE: dlpack::DataType;
}

impl AnswerType for i32 {
    const DATA_TYPE: dlpack::DataType = dlpack::DataType { code: dlpack::INTEGER, bits: 32, lanes: 1 };
}

impl AnswerType for f64 {
    const DATA_TYPE: dlpack::DataType = dlpack::DataType { code: dlpack::FLOAT, bits: 64, lanes: 1 };
}

/// An array of answers. Other libraries take it over without a copy.
#[pyclass(frozen)]
pub struct Answers(Export);

#[pymethods]
impl Answers {
    /// Exports the array. The answers are complete, so there is nothing to wait for in any stream.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("the answers are exported where they are, without a copy"));
        }
        self.0.clone().into_capsule(py, max_version.is_some_and(|version| version >= (1, 0)))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (self.0.device.device_type, self.0.device.device_id)
    }

    /// For NumPy, if the values are on the host.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.0.device.device_type != dlpack::CPU {
            return Err(PyAttributeError::new_err("the values are on a GPU: use `__dlpack__`"));
        }
        let interface = PyDict::new(py);
        interface.set_item("shape", self.shape(py)?)?;
        let order = if cfg!(target_endian = "little") { '<' } else { '>' };
        interface.set_item("typestr", format!("{order}{}", if self.is_float() { "f8" } else { "i4" }))?;
        interface.set_item("data", (self.0.address, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    fn __len__(&self) -> usize {
        self.0.shape[0] as usize
    }

    fn __repr__(&self) -> String {
        let (n, d) = (self.0.shape[0], self.0.shape.get(1));
        let shape = d.map_or_else(|| format!("{n}"), |d| format!("{n} x {d}"));
        let kind = if self.is_float() { "float64" } else { "int32" };
        let place = if self.0.device.device_type == dlpack::CPU { "the CPU" } else { "a GPU" };
        format!("Answers({shape} of {kind} on {place})")
    }
}

impl Answers {
    fn new<T: AnswerType>(values: Vec<T>, shape: &[usize]) -> Self {
        let device = dlpack::DLDevice { device_type: dlpack::CPU, device_id: 0 };
        Self::of::<T>(values.as_ptr() as usize, device, Arc::new(values), shape)
    }

    #[cfg(feature = "cuda")]
    fn on_gpu<T: AnswerType + Plain>(values: GpuArray<T>, shape: &[usize]) -> Self {
        let device = dlpack::DLDevice { device_type: dlpack::CUDA, device_id: values.ordinal() as i32 };
        Self::of::<T>(values.address() as usize, device, Arc::new(values), shape)
    }

    /// `owner`: has the values, which are at the address.
    fn of<T: AnswerType>(address: usize, device: dlpack::DLDevice, owner: Arc<dyn Send + Sync>, shape: &[usize]) -> Self {
        let shape = shape.iter().map(|n| *n as i64).collect();
        Self(Export { owner, address, device, data_type: T::DATA_TYPE, shape })
    }

    fn is_float(&self) -> bool {
        self.0.data_type.code == dlpack::FLOAT
    }

    /// Labels, -1 for rows without one.
    fn labels(labels: &Labels) -> Result<Self> {
        Ok(Self::new(integers(labels)?, &[labels.len()]))
    }

    /// The labels of an array's rows, where these rows are.
    pub(super) fn labels_of(rows: &ExternalArray, labels: &Labels) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(ordinal) = rows.gpu()? {
            return Ok(Self::on_gpu(GpuArray::upload(ordinal, &integers(labels)?, ANSWERS)?, &[labels.len()]));
        }
        #[cfg(not(feature = "cuda"))]
        let _ = rows;
        Self::labels(labels)
    }
}

/// Labels, -1 for rows without one.
fn integers(labels: &Labels) -> Result<Vec<i32>> {
    memory::collected(labels.iter().map(|label| label.map_or(-1, |label| label as i32)), ANSWERS)
}

/// A copy of an array's rows as a frame, whose columns have the names that a fit gives them.
#[pyfunction]
pub fn array_frame(array: &Bound<'_, PyAny>) -> PyResult<PyDataFrame> {
    let rows = ExternalArray::of(array, ROWS, false)?;
    Ok(PyDataFrame(array.py().detach(|| without_panic(|| frame_of(&rows.features()?)))?))
}

/// Fits an array. None if there are too few distinct rows and the options ask for that. With `labels`, also returns the labels of
/// the rows, where these are.
#[pyfunction]
#[pyo3(signature = (array, weights, options, progress=None, labels=false))]
pub fn fit_array<'py>(
    array: &Bound<'py, PyAny>,
    weights: Option<&Bound<'py, PyAny>>,
    options: &Bound<'py, PyAny>,
    progress: Option<Py<PyAny>>,
    labels: bool,
) -> PyResult<Option<(Fit<'py>, Option<Answers>)>> {
    let (py, options, raised) = (array.py(), options.extract::<FitOptions>()?, Raised::default());
    let rows = ExternalArray::of(array, ROWS, false)?;
    let weights = weights.map(|weights| ExternalArray::weights_of(weights, WEIGHTS)).transpose()?;
    let fit = || {
        let (layout, names) = (&rows.layout, rows.layout.columns());
        if names.is_empty() {
            return Err(KMeansError::NoFeatures);
        }
        let weights = weights.as_ref().map(ExternalArray::weights).transpose()?;
        let estimator = options.estimator(names.iter().map(String::as_str), Some(names.len()))?;
        let estimator = watched(estimator, progress, &raised);
        layout.check()?;
        let wanted = if labels { Wanted::Labels } else { Wanted::Nothing };
        let (model, kept) = estimator.fit_any(&[estimator.k], layout, rows.features()?, weights.as_ref(), wanted)?.remove(0)?;
        let labels = labels.then(|| Answers::labels_of(&rows, &kept.into_labels()?)).transpose()?;
        Ok((model, labels))
    };
    let fit = interruptible(py, &raised, || options.unless_too_few(fit()))?;
    let (model, labels) = fit.unzip();
    Ok(encoded(py, model)?.map(|fit| (fit, labels.flatten())))
}

/// Calls `work` with a model on a device, and with the rows of an array.
fn answered<R: Send>(
    model: &[u8],
    array: &Bound<'_, PyAny>,
    device: &str,
    work: impl FnOnce(DeviceModel<'_, KMeansModel>, &ExternalArray) -> Result<R> + Send,
) -> PyResult<R> {
    let model = KMeansModel::from_wire(model)?;
    let rows = ExternalArray::of(array, ROWS, !model.is_f32())?;
    interruptible(array.py(), &Raised::default(), || work(model.on(device.parse()?), &rows))
}

/// The labels of an array, or labels with the distances to the nearest and the second nearest centroid.
#[pyfunction]
pub fn predict_array(model: &[u8], array: &Bound<'_, PyAny>, output: &str, device: &str) -> PyResult<Vec<Option<Answers>>> {
    answered(model, array, device, |model, rows| predict_external(model, rows, output.parse()?))
}

fn predict_external(
    model: DeviceModel<'_, KMeansModel>,
    rows: &ExternalArray,
    output: RowAnswer,
) -> Result<Vec<Option<Answers>>> {
    let (features, n) = (rows.features()?, rows.n_rows());
    #[cfg(feature = "cuda")]
    if rows.is_on_gpu() {
        if output == RowAnswer::Label {
            return Ok(vec![Some(Answers::on_gpu(model.predict_any_on_device(&features)?, &[n]))]);
        }
        let all = model.predict_distances_any_on_device(&features)?;
        let distances = [Some(all.nearest), all.seconds].map(|values| Some(Answers::on_gpu(values?, &[n])));
        return Ok([Some(Answers::on_gpu(all.labels, &[n]))].into_iter().chain(distances).collect());
    }
    if output == RowAnswer::Label {
        return Ok(vec![Some(Answers::labels(&model.predict_any(&features)?)?)]);
    }
    let (labels, distances) = model.predict_distances_any(&features)?.into_parts();
    let blank = |mut values: Vec<f64>| {
        if labels.validity().is_some() {
            values.iter_mut().zip(labels.iter()).filter(|(_, label)| label.is_none()).for_each(|(value, _)| *value = f64::NAN);
        }
        Answers::new(values, &[n])
    };
    Ok(vec![Some(Answers::labels(&labels)?), Some(blank(distances.nearest)), distances.second.map(blank)])
}

/// The distances of an array's rows to all centroids, or their squares.
#[pyfunction]
pub fn transform_array(model: &[u8], array: &Bound<'_, PyAny>, device: &str, squared: bool) -> PyResult<Answers> {
    answered(model, array, device, |model, rows| {
        let (features, shape) = (rows.features()?, [rows.n_rows(), model.model.n_clusters()]);
        #[cfg(feature = "cuda")]
        if rows.is_on_gpu() {
            return Ok(Answers::on_gpu(model.transform_any_on_device(&features, squared)?, &shape));
        }
        Ok(Answers::new(model.transform_any(&features, squared)?, &shape))
    })
}

/// Minus the inertia of an array's rows.
#[pyfunction]
pub fn score_array<'py>(
    model: &[u8],
    array: &Bound<'py, PyAny>,
    weights: Option<&Bound<'py, PyAny>>,
    device: &str,
) -> PyResult<f64> {
    let weights = weights.map(|weights| ExternalArray::weights_of(weights, WEIGHTS)).transpose()?;
    answered(model, array, device, |model, rows| {
        let weights = weights.as_ref().map(ExternalArray::weights).transpose()?;
        model.score_any(&rows.features()?, weights.as_ref())
    })
}

/// A step of mini-batch k-means: the encoded model after the rows of an array, and their inertia before.
#[pyfunction]
pub fn step_array<'py>(
    model: &[u8],
    array: &Bound<'py, PyAny>,
    weights: Option<&Bound<'py, PyAny>>,
    ratio: f64,
) -> PyResult<(Bound<'py, PyBytes>, f64)> {
    let weights = weights.map(|weights| ExternalArray::weights_of(weights, WEIGHTS)).transpose()?;
    let (stepped, inertia) = answered(model, array, "auto", |model, rows| {
        let weights = weights.as_ref().map(ExternalArray::weights).transpose()?;
        let (living, inertia) = model.step_any(&rows.features()?, weights.as_ref(), ratio)?;
        Ok((model.model.at_means(living)?.into_wire()?, inertia))
    })?;
    Ok((copy_to_python(array.py(), &stepped)?, inertia))
}

/// The rows of a batch, drawn with replacement among `rows`: one little-endian int64 each.
#[pyfunction]
pub fn draw_rows(py: Python<'_>, seed: u64, step: u32, count: u32, rows: u64) -> Result<Bound<'_, PyBytes>> {
    let row = |trial| below(draw_u64(seed, DrawPurpose::Batch, 0, step, trial), rows.into()) as i64;
    to_python(py, count as usize * 8, |bytes| {
        bytes.as_chunks_mut::<8>().0.iter_mut().zip(0..count).for_each(|(bytes, trial)| *bytes = row(trial).to_le_bytes());
    })
}

/// The bytes that this process has sent to its GPUs, and those that it has received from them.
#[cfg(feature = "cuda")]
#[pyfunction]
pub fn bus_traffic() -> (u64, u64) {
    let [up, down] = crate::backend::cuda::traffic::bytes();
    (up, down)
}
