//! The table of options as the Python package sees it, and the keywords of a call. They are checked here before they reach the
//! engine.

use std::collections::BTreeMap;
use std::ops::Deref;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList, PyString};
use serde::{Deserialize, Deserializer};

use crate::base::error::{KMeansError, Result, STARTING_CENTROIDS};
use crate::base::memory;
use crate::base::parallel::pool_threads;
use crate::base::params::declare::{options, words};
use crate::base::params::{self, Init, KMeans, Numbers, Value};
use crate::model::KMeansModel;

words! {
    /// What to do when there are fewer distinct rows than clusters.
    pub enum TooFew("too_few") {
        #[default]
        Raise = "raise",
        Null = "null",
        Fewer = "fewer",
    }
}

words! {
    /// What a row is answered with.
    pub enum RowAnswer("output") {
        #[default]
        Label = "label",
        /// Label and distances.
        Struct = "struct",
    }
}

options! {
    /// What a call returns. `src/base/params/table.rs` has the other options.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Results {
        /// What to do if there are fewer distinct rows (of positive weight) than clusters: `"raise"`, `"null"` for null labels,
        /// or `"fewer"` for as many clusters as there are distinct rows.
        ///
        /// With `"fewer"`, these rows are then the centroids, in the order in which they first appear. With `metric="cosine"`, in
        /// the order in which they are drawn.
        too_few: TooFew = TooFew::Raise;

        /// `"label"`, or `"struct"` with the distances to the two nearest centroids.
        output: RowAnswer = RowAnswer::Label;
    }
}

/// An option of the Python functions: what their signatures and documentation are written from, and how its values travel.
#[pyclass(frozen, get_all)]
pub struct OptionInfo {
    name: &'static str,
    /// What it means, in paragraphs.
    doc: Vec<String>,
    /// Type and default, as Python writes them.
    annotation: String,
    default: String,
    /// Texts that are passed on as they are.
    words: Vec<&'static str>,
    integers: bool,
    floats: bool,
    /// Whether there may be no value.
    none: bool,
    /// What an error says that it expected.
    expected: String,
}

/// Every option of the Python functions but `k`, in the order of their keywords.
#[pyfunction]
pub fn options() -> Vec<OptionInfo> {
    let all = KMeans::options().into_iter().chain(Results::describe()).filter(|info| !info.rust_only);
    let described = all.map(|info| OptionInfo {
        annotation: info.python_type(),
        name: info.name,
        doc: info.doc,
        default: info.default,
        words: info.form.words.to_vec(),
        integers: info.form.numbers == Some(Numbers::Integers),
        floats: info.form.numbers == Some(Numbers::Floats),
        none: info.form.none,
        expected: info.form.expected(),
    });
    described.collect()
}

/// Bytes from a pickled keyword, or from a Python object that is not copied.
pub enum Bytes {
    Own(Vec<u8>),
    Python(PyBackedBytes),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Python(bytes) => bytes,
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        serde_bytes::deserialize(deserializer).map(Self::Own)
    }
}

impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Python(object.extract()?))
    }
}

/// The options of a fit, set by name from the values that travelled.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(try_from = "BTreeMap<String, Option<Value>>")]
struct OptionValues {
    /// Without given centroids.
    estimator: KMeans,
    results: Results,
}

impl TryFrom<BTreeMap<String, Option<Value>>> for OptionValues {
    type Error = KMeansError;
    fn try_from(values: BTreeMap<String, Option<Value>>) -> Result<Self> {
        let mut all = Self { estimator: KMeans::new(1), results: Results::default() };
        for (option, value) in &values {
            if !all.results.set(option, value.as_ref())? {
                all.estimator.set(option, value.as_ref())?;
            }
        }
        let threads = &mut all.estimator.execution.threads;
        *threads = (*threads).min(pool_threads());
        Ok(all)
    }
}

/// Nothing is tried that fails: an exception takes microseconds.
impl<'py> FromPyObject<'_, 'py> for Value {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(match () {
            () if object.is_instance_of::<PyString>() => Self::Text(object.extract()?),
            () if object.is_instance_of::<PyDict>() => Self::Factors(object.extract()?),
            () if object.is_instance_of::<PyList>() => Self::Numbers(object.extract()?),
            () => Self::Number(object.extract()?),
        })
    }
}

impl<'py> FromPyObject<'_, 'py> for OptionValues {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(object.extract::<BTreeMap<String, Option<Value>>>()?.try_into()?)
    }
}

/// The options of a fit.
#[derive(Deserialize)]
pub struct FitOptions {
    /// There is no `init` if centroids are given.
    values: OptionValues,
    /// Starting centroids: float64, little-endian, row-major. Also `None` while the options are checked before the centroids
    /// exist.
    given: Option<Bytes>,
    /// The names of the centroids' columns if they came as a frame. The next field holds how many values each column has in a
    /// row.
    given_names: Option<Vec<String>>,
    given_widths: Vec<usize>,
    /// The encoded model whose clusters give the numbers.
    like: Option<Bytes>,
    /// Whether the last input of an expression holds the weights.
    pub weighted: bool,
}

/// From a mapping. Errors of its items are passed on as they are.
impl<'py> FromPyObject<'_, 'py> for FitOptions {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            values: object.get_item("values")?.extract()?,
            given: object.get_item("given")?.extract()?,
            given_names: object.get_item("given_names")?.extract()?,
            given_widths: object.get_item("given_widths")?.extract()?,
            like: object.get_item("like")?.extract()?,
            weighted: object.get_item("weighted")?.extract()?,
        })
    }
}

/// The options of a prediction.
#[derive(Debug, Clone, Deserialize)]
pub struct PredictOptions {
    pub output: String,
    pub device: String,
    /// Whether rows without a label are refused.
    pub complete: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct TransformOptions {
    pub k: usize,
    pub squared: bool,
    pub device: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct NearestClustersOptions {
    pub m: usize,
    pub squared: bool,
    pub device: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ScoreOptions {
    pub weighted: bool,
    pub device: String,
}

pub fn invalid(option: &'static str, expected: &str, got: impl std::fmt::Debug) -> KMeansError {
    KMeansError::InvalidOption { option, expected: expected.into(), got: format!("{got:?}") }
}

impl FitOptions {
    /// Checks everything that can be checked before there are data.
    pub fn check(&self) -> Result<()> {
        self.values.results.check()?;
        // Any width works here. Checks that depend on the width run when the columns are known.
        self.values.estimator.validate(1).map(|_| ())
    }

    pub fn results(&self) -> Results {
        self.values.results
    }

    /// The result of a fit. `None` if there are too few distinct rows and the options ask for nulls in that case.
    pub fn unless_too_few<F>(&self, fit: Result<F>) -> Result<Option<F>> {
        match fit {
            Err(error) if error.is_too_few() && self.results().too_few == TooFew::Null => Ok(None),
            fit => fit.map(Some),
        }
    }

    /// As an expression answers: with `too_few="fewer"`, no rows have no clusters, which is no error.
    pub fn or_nulls<F>(&self, fit: Result<F>) -> Result<Option<F>> {
        match fit {
            Err(error) if error.is_too_few() && self.results().too_few == TooFew::Fewer => Ok(None),
            fit => self.unless_too_few(fit),
        }
    }

    /// The estimator with these options, for columns of these names. `width`: the number of features, which a List column does
    /// not say.
    pub fn estimator<'n>(&self, names: impl IntoIterator<Item = &'n str>, width: Option<usize>) -> Result<KMeans> {
        let mut estimator = self.values.estimator.clone();
        if self.values.results.too_few == TooFew::Fewer {
            estimator = estimator.too_few(params::TooFew::Fewer);
        }
        if let Some(model) = &self.like {
            estimator = estimator.sort_by(KMeansModel::from_wire(model)?.numbering()?);
        }
        let Some(bytes) = &self.given else { return Ok(estimator) };
        let values = bytes.as_chunks::<8>().0.iter().map(|value| f64::from_le_bytes(*value));
        let values = memory::collected(values, STARTING_CENTROIDS)?;
        let centroids = self.in_feature_order(self.rows_of(values, estimator.k)?, names, width)?;
        Ok(estimator.init(Init::Given(centroids)))
    }

    /// The values, if they are `k` rows. The width of a list column is not known here, so the number of values alone does not
    /// show this.
    fn rows_of(&self, values: Vec<f64>, k: usize) -> Result<Vec<f64>> {
        let width = self.given_widths.iter().sum::<usize>();
        if width == 0 {
            return Ok(values);
        }
        if values.len() / width != k {
            let what = format!("starting centroids (k = {k} rows of {width} values)");
            return Err(KMeansError::LengthMismatch { what, expected: k.saturating_mul(width), got: values.len() });
        }
        Ok(values)
    }

    /// The given centroids with their columns in the order of the features. Columns are matched by name if the centroids came
    /// as a frame.
    fn in_feature_order<'n>(
        &self,
        centroids: Vec<f64>,
        features: impl IntoIterator<Item = &'n str>,
        expected: Option<usize>,
    ) -> Result<Vec<f64>> {
        let width: usize = self.given_widths.iter().sum();
        let check = |got: usize| match expected {
            Some(expected) if expected != got => Err(KMeansError::WidthMismatch { what: STARTING_CENTROIDS, expected, got }),
            _ => Ok(()),
        };
        let Some(names) = &self.given_names else { return check(width).map(|()| centroids) };
        let starts = self.given_widths.iter().scan(0, |at, width| {
            *at += width;
            Some(*at - width)
        });
        let starts: Vec<usize> = memory::collected(starts, STARTING_CENTROIDS)?;
        let mut places = Vec::new();
        for name in features {
            let column = names.iter().position(|given| given == name);
            let column = column.ok_or_else(|| {
                invalid("init", &format!("a frame with a column {name:?} of numbers, or of lists of one width"), names)
            })?;
            let columns = starts[column]..starts[column] + self.given_widths[column];
            memory::reserve(&mut places, columns.len(), STARTING_CENTROIDS)?;
            places.extend(columns);
        }
        check(places.len())?;
        let rows = centroids.chunks_exact(width.max(1));
        let mut ordered = memory::with_room(rows.len().saturating_mul(places.len()), STARTING_CENTROIDS)?;
        rows.for_each(|row| ordered.extend(places.iter().map(|&place| row[place])));
        Ok(ordered)
    }
}
