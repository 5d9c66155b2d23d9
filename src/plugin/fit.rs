//! A fit on the calling thread, for the estimator.
//!
//! A query of a frame computes the columns. Its only expression, `hold`, puts them into a [`Columns`] as they are, without a
//! copy. Columns of numbers that are there already need no query: [`Columns::take`] takes them through Arrow's C stream interface
//! (<https://arrow.apache.org/docs/format/CStreamInterface.html>), which takes a microsecond instead of the hundred of a query.
//! Then [`fit`] takes them, after the query. So columns have the same rules and errors as in the expressions, and the fit itself
//! runs where the caller waits for it. The columns of a lazy query come batch by batch instead: [`Gathered`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use polars::prelude::*;
use polars_arrow::ffi::{ArrowArrayStream, ArrowArrayStreamReader};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_polars::PySeries;
use serde::Deserialize;

use super::entry::{expression, stored, without_panic};
use super::expressions::fit_fields;
use super::options::FitOptions;
use super::signals::{Raised, interruptible, watched};
use super::{Fit, encoded};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::frame::{self, FitColumns, Spill};

/// The columns of every [`Columns`], by its key. `None`: they are not there yet, or they were taken.
static HELD: Mutex<BTreeMap<u64, Option<FitColumns>>> = Mutex::new(BTreeMap::new());

/// The next key. No key is used again, since a query that was given up may still run.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn held() -> MutexGuard<'static, BTreeMap<u64, Option<FitColumns>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Room for the columns of one fit.
#[pyclass(frozen)]
pub struct Columns {
    /// What the expression `hold` is told, so that it finds this room.
    #[pyo3(get)]
    key: u64,
}

#[pymethods]
impl Columns {
    #[new]
    fn new() -> Self {
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        held().insert(key, None);
        Self { key }
    }

    /// Takes columns of numbers as they are, in place of a query. `weighted`: the last one has weights.
    fn take(&self, names: Vec<String>, columns: Vec<Bound<'_, PyAny>>, weighted: bool) -> PyResult<()> {
        let mut inputs = Vec::with_capacity(columns.len());
        for (name, column) in names.into_iter().zip(&columns) {
            inputs.push(streamed(name.into(), column)?);
        }
        let rows = without_panic(|| {
            // As the schema of a query is checked before it runs.
            let fields: Vec<Field> =
                memory::collected(inputs.iter().map(|input| input.field().into_owned()), "the list of columns")?;
            fit_fields(&fields, weighted, FeatureLayout::check)?;
            FitColumns::of_inputs(&inputs, weighted)
        });
        self.put(rows?);
        Ok(())
    }
}

/// A column that an object gives as a stream of Arrow.
pub fn streamed(name: PlSmallStr, column: &Bound<'_, PyAny>) -> PyResult<Series> {
    let capsule = column.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<ArrowArrayStream>();
    // SAFETY: by the interface, a capsule of this name holds a stream. The stream moves out of it, and what is left is one that
    // was released, so the stream is released once.
    let stream = unsafe { std::ptr::replace(stream.as_ptr(), ArrowArrayStream::empty()) };
    let read = || -> Result<Series> {
        // SAFETY: a valid stream gives a valid field and valid arrays. They own their values.
        let mut reader = unsafe { ArrowArrayStreamReader::try_new(Box::new(stream)) }?;
        let mut chunks = Vec::new();
        // SAFETY: as above.
        while let Some(chunk) = unsafe { reader.next() } {
            chunks.push(stored(chunk?)?);
        }
        Ok(Series::try_from((name, chunks))?)
    };
    Ok(without_panic(read)?)
}

/// A frame of Python, as it is stored: see [`stored`].
pub struct Frame(pub DataFrame);

impl<'a, 'py> FromPyObject<'a, 'py> for Frame {
    type Error = PyErr;

    fn extract(frame: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let column = |series: PyResult<Bound<'py, PyAny>>| {
            let series = series?;
            Ok(streamed(series.getattr("name")?.extract::<String>()?.into(), &series)?.into_column())
        };
        let columns = frame.call_method0("get_columns")?.try_iter()?.map(column).collect::<PyResult<_>>()?;
        Ok(Self(DataFrame::new(frame.getattr("height")?.extract()?, columns).map_err(KMeansError::from)?))
    }
}

impl Columns {
    /// Puts columns there in place of a query.
    pub fn put(&self, rows: FitColumns) {
        let former = held().insert(self.key, Some(rows));
        drop(former);
    }

    /// Takes the columns that a query has put there.
    pub fn taken(&self) -> Result<FitColumns> {
        held().get_mut(&self.key).and_then(Option::take).ok_or(KMeansError::NoFeatures)
    }
}

impl Drop for Columns {
    fn drop(&mut self) {
        // Free the columns after the lock: that may wait for another thread.
        let columns = held().remove(&self.key);
        drop(columns);
    }
}

#[derive(Debug, Clone, Deserialize)]
struct HoldOptions {
    key: u64,
    weighted: bool,
}

/// Puts the columns into the [`Columns`] with this key.
fn hold(inputs: &[Series], kwargs: &HoldOptions) -> PolarsResult<Series> {
    let mut rows = Some(FitColumns::of_inputs(inputs, kwargs.weighted)?);
    // Columns for which there is no room are freed after the lock, as above.
    let former = held().get_mut(&kwargs.key).map(|room| std::mem::replace(room, rows.take()));
    let answer = BooleanChunked::from_slice("held".into(), &[former.is_some()]);
    drop(former);
    Ok(answer.into_series())
}

fn held_field(fields: &[Field], kwargs: &HoldOptions) -> PolarsResult<Field> {
    fit_fields(fields, kwargs.weighted, FeatureLayout::check)?;
    Ok(Field::new("held".into(), DataType::Boolean))
}

expression!(hold(HoldOptions) -> held_field);

/// The columns of a query, taken batch by batch. Those that memory may not hold are in a file.
#[pyclass(frozen)]
pub struct Gathered(Mutex<Option<frame::ColumnGatherer>>);

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
        let gathered = frame::ColumnGatherer::new(weighted, &spill)?;
        Ok(Self(Mutex::new(Some(gathered))))
    }

    /// Takes the rows that follow.
    fn push(&self, py: Python<'_>, batch: Frame) -> Result<()> {
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
            columns.put(gathered.take().ok_or(KMeansError::NoFeatures)?.finish()?);
            Ok(())
        })
    }
}

impl Gathered {
    fn with(&self, py: Python<'_>, work: impl FnOnce(&mut Option<frame::ColumnGatherer>) -> Result<()> + Send) -> Result<()> {
        let work = || work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        py.detach(|| without_panic(work))
    }
}

/// Fits columns that a query has put there. `computed` says whether any feature is an expression other than a plain column. None
/// if there are too few distinct rows and the options ask for that. `progress` sees the stages of the fit. With `labels`, also returns
/// the labels of the rows.
#[pyfunction]
#[pyo3(signature = (columns, options, computed, progress=None, labels=false))]
pub fn fit<'py>(
    columns: &Columns,
    options: &Bound<'py, PyAny>,
    computed: bool,
    progress: Option<Py<PyAny>>,
    labels: bool,
) -> PyResult<Option<(Fit<'py>, Option<PySeries>)>> {
    let (py, options, raised) = (options.py(), options.extract::<FitOptions>()?, Raised::default());
    let rows = columns.taken();
    let fit = || {
        let rows = rows?;
        let estimator = watched(rows.estimator(&options)?, progress, &raised);
        options.unless_too_few(estimator.fit_and_label(&rows.features, rows.weights.as_ref(), labels))
    };
    let (model, labels) = interruptible(py, &raised, fit)?.unzip();
    let model = model.map(|model| model.with_computed(computed));
    Ok(encoded(py, model)?.map(|fit| (fit, labels.flatten().map(PySeries))))
}

/// Fits columns that a query has put there, once for each of these numbers of clusters, in place of that of the options.
#[pyfunction]
pub fn fit_each<'py>(
    columns: &Columns,
    options: &Bound<'py, PyAny>,
    clusters: Vec<usize>,
    computed: bool,
) -> PyResult<Vec<Option<Fit<'py>>>> {
    let (py, options) = (options.py(), options.extract::<FitOptions>()?);
    let rows = columns.taken();
    let fits = || {
        let rows = rows?;
        let estimator = rows.estimator(&options)?;
        let columns = estimator.cast(&rows.features, rows.weights.as_ref(), FeatureLayout::check)?;
        let fits = columns
            .fit_each(&clusters)?
            .into_iter()
            .map(|fit| options.unless_too_few(fit.map(|model| model.with_computed(computed))));
        fits.collect::<Result<Vec<_>>>()
    };
    interruptible(py, &Raised::default(), fits)?.into_iter().map(|model| Ok(encoded(py, model)?)).collect()
}
