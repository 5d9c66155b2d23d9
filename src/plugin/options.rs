//! The keywords of a call. They are checked here before they reach the engine.

use polars::prelude::*;
use pyo3::FromPyObject;
use serde::Deserialize;

use crate::error::{KMeansError, Result, STARTING_CENTROIDS};
use crate::memory;
use crate::params::{Device, History, Init, KMeans, NullPolicy, Restarts};

/// The options of a fit. Integers that may exceed 63 bits are passed as text.
#[derive(Debug, Clone, Deserialize, FromPyObject)]
#[pyo3(from_item_all)]
pub struct FitOptions {
    k: i64,
    /// The name of a method. `None` if centroids are given.
    init: Option<String>,
    n_init: Option<i64>,
    max_iter: i64,
    tol: f64,
    tol_labels: f64,
    seed: String,
    null_policy: String,
    too_few: String,
    history: String,
    pub device: String,
    /// In bytes.
    device_memory_limit: Option<u64>,
    pub output: String,
    pub weighted: bool,
    /// Whether any feature is an expression other than a plain column.
    pub computed: bool,
    /// Starting centroids: float64, little-endian, row-major. Also `None` while the options are checked before the centroids
    /// exist.
    #[serde(with = "serde_bytes")]
    given: Option<Vec<u8>>,
    /// The names of the centroids' columns if they came as a frame. The next field holds how many values each column has in a
    /// row.
    given_names: Option<Vec<String>>,
    given_widths: Vec<usize>,
}

/// The options of a prediction.
#[derive(Debug, Clone, Deserialize)]
pub struct PredictOptions {
    pub output: String,
    pub device: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct TransformOptions {
    pub k: usize,
    pub device: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ScoreOptions {
    pub weighted: bool,
    pub device: String,
}

/// What to do when there are fewer distinct rows than clusters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TooFew {
    Raise,
    Null,
}

pub fn invalid(option: &'static str, expected: &str, got: impl std::fmt::Debug) -> KMeansError {
    KMeansError::InvalidOption { option, expected: expected.into(), got: format!("{got:?}") }
}

impl FitOptions {
    /// Checks everything that can be checked before there are data.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] or [`KMeansError::NotAvailable`].
    pub fn check(&self) -> Result<()> {
        self.too_few()?;
        is_struct(&self.output)?;
        // Any width works here. Checks that depend on the width run when the columns are known.
        self.with_init(Init::default())?.validate(1).map(|_| ())
    }

    /// The estimator with these options, for these features.
    pub fn estimator(&self, features: &[Column]) -> Result<KMeans> {
        let init = match &self.given {
            Some(bytes) => {
                let values = bytes.as_chunks::<8>().0.iter().map(|value| f64::from_le_bytes(*value));
                let values = memory::collected(values, STARTING_CENTROIDS)?;
                Init::Given(self.in_feature_order(self.rows_of(values)?, features)?)
            }
            None => Init::default(),
        };
        self.with_init(init)
    }

    fn with_init(&self, given: Init) -> Result<KMeans> {
        let k = usize::try_from(self.k).map_err(|_| invalid("k", "an integer from 1 to 2^32 - 1", self.k))?;
        let seed = self.seed.parse();
        let seed = seed.map_err(|_| KMeansError::InvalidOption {
            option: "seed",
            expected: "an integer from 0 to 2^64 - 1".into(),
            got: self.seed.clone(),
        })?;
        let max_iter =
            u32::try_from(self.max_iter).map_err(|_| invalid("max_iter", "an integer from 1 to 2^32 - 1", self.max_iter))?;
        let n_init = match self.n_init {
            None => Restarts::Auto,
            Some(n) => Restarts::Count(
                u32::try_from(n).map_err(|_| invalid("n_init", "\"auto\" or an integer from 1 to 2^32 - 1", n))?,
            ),
        };
        let init = match &self.init {
            Some(method) => method.parse()?,
            None => given,
        };
        let null_policy: NullPolicy = self.null_policy.parse()?;
        let history: History = self.history.parse()?;
        let device: Device = self.device.parse()?;
        Ok(KMeans::new(k)
            .init(init)
            .n_init(n_init)
            .max_iter(max_iter)
            .tol(self.tol)
            .tol_labels(self.tol_labels)
            .seed(seed)
            .null_policy(null_policy)
            .history(history)
            .device(device)
            .device_memory_limit(self.device_memory_limit))
    }

    pub fn too_few(&self) -> Result<TooFew> {
        match self.too_few.as_str() {
            "raise" => Ok(TooFew::Raise),
            "null" => Ok(TooFew::Null),
            other => Err(invalid("too_few", "\"raise\" or \"null\"", other)),
        }
    }

    /// The values, if they are `k` rows. The width of a list column is not known here, so the number of values alone does not
    /// show this.
    fn rows_of(&self, values: Vec<f64>) -> Result<Vec<f64>> {
        let width = self.given_widths.iter().sum::<usize>();
        if width == 0 {
            return Ok(values);
        }
        if i64::try_from(values.len() / width).is_ok_and(|rows| rows != self.k) {
            let what = format!("starting centroids (k = {} rows of {width} values)", self.k);
            let expected = usize::try_from(self.k).unwrap_or(0).saturating_mul(width);
            return Err(KMeansError::LengthMismatch { what, expected, got: values.len() });
        }
        Ok(values)
    }

    /// The given centroids with their columns in the order of the features. Columns are matched by name if the centroids came
    /// as a frame.
    fn in_feature_order(&self, centroids: Vec<f64>, features: &[Column]) -> Result<Vec<f64>> {
        let width: usize = self.given_widths.iter().sum();
        let expected = match features[0].dtype() {
            DataType::Array(_, width) if features.len() == 1 => Some(*width),
            DataType::List(_) if features.len() == 1 => None,
            _ => Some(features.len()),
        };
        let Some(names) = &self.given_names else {
            return match expected {
                Some(expected) if expected != width => {
                    Err(KMeansError::WidthMismatch { what: STARTING_CENTROIDS, expected, got: width })
                }
                _ => Ok(centroids),
            };
        };
        let starts = self.given_widths.iter().scan(0, |at, width| {
            *at += width;
            Some(*at - width)
        });
        let starts: Vec<usize> = memory::collected(starts, STARTING_CENTROIDS)?;
        let mut places = Vec::new();
        for feature in features {
            let name = feature.name().as_str();
            let column = names.iter().position(|given| given == name);
            let column = column.ok_or_else(|| {
                invalid("init", &format!("a frame with a column {name:?} of numbers, or of lists of one width"), names)
            })?;
            let columns = starts[column]..starts[column] + self.given_widths[column];
            memory::reserve(&mut places, columns.len(), STARTING_CENTROIDS)?;
            places.extend(columns);
        }
        if let Some(expected) = expected.filter(|&expected| expected != places.len()) {
            return Err(KMeansError::WidthMismatch { what: STARTING_CENTROIDS, expected, got: places.len() });
        }
        let rows = centroids.chunks_exact(width.max(1));
        let mut ordered = memory::with_room(rows.len().saturating_mul(places.len()), STARTING_CENTROIDS)?;
        rows.for_each(|row| ordered.extend(places.iter().map(|&place| row[place])));
        Ok(ordered)
    }
}

/// Whether the output is the struct of label and distances.
pub fn is_struct(output: &str) -> Result<bool> {
    match output {
        "label" => Ok(false),
        "struct" => Ok(true),
        other => Err(invalid("output", "\"label\" or \"struct\"", other)),
    }
}
