//! Fits of rows in parts: a part, and the driver with a Python function as its executor.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use super::fit::Frame;
use super::options::{FitOptions, invalid};
use super::signals::{Raised, interruptible, watched};
use super::{Fit, copy_to_python, encoded};
use crate::base::error::{KMeansError, Result};
use crate::base::names::FeatureLayout;
use crate::base::params::Wanted;
use crate::distributed::{self, Executor};
use crate::frame::{FitColumns, FrameRows};
use crate::model::KMeansModel;
use crate::simd::InstructionSet;

/// Rows of a fit, and the answers to what a driver asks of them.
#[pyclass(frozen, module = "polars_kmeans._internal")]
pub struct Part(distributed::Worker);

#[pymethods]
impl Part {
    /// A part with the columns of a frame. If it is weighted, the last column holds the weights. `instructions` names an
    /// instruction set; only tests have a reason to.
    #[new]
    #[pyo3(signature = (frame, weighted, computed, instructions=None))]
    fn new(frame: Frame, weighted: bool, computed: bool, instructions: Option<&str>) -> PyResult<Self> {
        let rows = FrameRows::of(FitColumns::new(frame.0.columns().to_vec(), weighted), computed);
        let set = match instructions {
            None => Ok(InstructionSet::detect()),
            Some("avx512") => Ok(InstructionSet::Avx512),
            Some("avx2") => Ok(InstructionSet::Avx2),
            Some("portable") => Ok(InstructionSet::Portable),
            Some(other) => Err(invalid("instructions", "\"avx512\", \"avx2\" or \"portable\"", other)),
        };
        let part = set.and_then(|set| distributed::Worker::with_instructions(rows, set));
        Ok(Self(part?))
    }

    /// Answers a request of a driver.
    fn answer<'py>(&self, py: Python<'py>, request: PyBackedBytes) -> Result<Bound<'py, PyBytes>> {
        let answer = py.detach(|| self.0.answer(&request));
        copy_to_python(py, &answer)
    }
}

/// An executor that is a Python function: it takes a list of parts and requests, and returns the list of answers.
struct PythonExecutor {
    ask: Py<PyAny>,
    parts: usize,
    raised: Raised,
}

impl Executor for PythonExecutor {
    fn parts(&self) -> usize {
        self.parts
    }

    fn ask(&mut self, requests: &[(usize, Arc<[u8]>)]) -> Result<Vec<Vec<u8>>> {
        let answers = Python::attach(|py| -> PyResult<Vec<Vec<u8>>> {
            let list = PyList::empty(py);
            let mut last: Option<(&Arc<[u8]>, Bound<'_, PyBytes>)> = None;
            for (part, request) in requests {
                // Parts that are asked the same share the bytes.
                let bytes = match &last {
                    Some((before, bytes)) if Arc::ptr_eq(before, request) => bytes.clone(),
                    _ => copy_to_python(py, request)?,
                };
                list.append((*part, &bytes))?;
                last = Some((request, bytes));
            }
            let answers: Vec<PyBackedBytes> = self.ask.bind(py).call1((list,))?.extract()?;
            Ok(answers.iter().map(|answer| answer.to_vec()).collect())
        });
        answers.map_err(|error| {
            self.raised.keep(error);
            KMeansError::Cancelled
        })
    }
}

/// Fits the rows of parts. `ask` carries requests to them. None if there are too few distinct rows and the options ask for
/// that.
#[pyfunction]
#[pyo3(signature = (ask, parts, options, progress=None))]
pub fn fit_parts<'py>(
    ask: Py<PyAny>,
    parts: usize,
    options: &Bound<'py, PyAny>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Option<Fit<'py>>> {
    let (py, options, raised) = (options.py(), options.extract::<FitOptions>()?, Raised::default());
    let mut executor = PythonExecutor { ask, parts, raised: raised.clone() };
    let fit = || {
        let facts = distributed::facts(&mut executor)?.swap_remove(0);
        let layout = FeatureLayout::of_names(&facts.names)?;
        layout.check()?;
        let names = layout.columns().iter().map(String::as_str);
        let estimator = watched(options.estimator(names, Some(facts.names.len()))?, progress, &raised);
        let fitted = distributed::fit(&estimator, &mut executor, Wanted::Nothing)?;
        Ok(KMeansModel::of_parts(fitted)?.with_computed(facts.computed))
    };
    Ok(encoded(py, interruptible(py, &raised, || options.unless_too_few(fit()))?)?)
}
