//! The columns of a query, taken batch by batch, for the estimator.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3_polars::PyDataFrame;

use super::entry::without_panic;
use super::expressions::Call;
use super::fit::Columns;
use crate::base::error::{KMeansError, Result};
use crate::frame::{self, Spill};

/// The rows so far. Those that memory may not hold are in a file.
#[pyclass(frozen)]
pub struct Gathered(Mutex<Option<frame::Gathered>>);

#[pymethods]
impl Gathered {
    /// `weighted`: the last column of each batch has weights.
    #[new]
    #[pyo3(signature = (weighted, memory_limit=None, directory=None))]
    fn new(weighted: bool, memory_limit: Option<u64>, directory: Option<PathBuf>) -> Result<Self> {
        let mut spill = memory_limit.map_or_else(Spill::new, |bytes| Spill::new().memory_limit(bytes));
        if let Some(directory) = directory {
            spill = spill.directory(directory);
        }
        let gathered = frame::Gathered::new(weighted, &spill)?;
        Ok(Self(Mutex::new(Some(gathered))))
    }

    /// Takes the rows that follow.
    fn push(&self, py: Python<'_>, batch: PyDataFrame) -> Result<()> {
        self.with(py, |gathered| match gathered {
            Some(gathered) => gathered.push(batch.0.columns()),
            None => Err(KMeansError::NoFeatures),
        })
    }

    /// Frees the rows, if they are still here. An exception may keep this object for long.
    fn close(&self, py: Python<'_>) -> Result<()> {
        self.with(py, |gathered| {
            *gathered = None;
            Ok(())
        })
    }

    /// Puts the columns of all rows into the room for the columns of a fit.
    fn hold(&self, py: Python<'_>, columns: &Columns) -> Result<()> {
        self.with(py, |gathered| {
            columns.put(Call(gathered.take().ok_or(KMeansError::NoFeatures)?.finish()?));
            Ok(())
        })
    }
}

impl Gathered {
    fn with(&self, py: Python<'_>, work: impl FnOnce(&mut Option<frame::Gathered>) -> Result<()> + Send) -> Result<()> {
        let work = || work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        py.detach(|| without_panic(work))
    }
}
