//! The parameters of a fit. [`KMeans`] is unchecked. [`KMeans::validate`] turns it into checked [`Params`].
//!
//! All defaults are in [`KMeans::new`]. The names mean the same as in scikit-learn.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use crate::answers::Wanted;
use crate::error::{KMeansError, Result};
use crate::progress::{Observer, Progress};
use crate::strategy::Strategy;

/// How to find starting centroids.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Init {
    /// Greedy k-means++ (Arthur & Vassilvitskii 2007), with `2 + floor(ln k)` trials per step.
    #[default]
    KMeansPlusPlus,
    /// `k` different rows, chosen uniformly.
    Random,
    /// Given centroids: row-major, `k` rows of `d` values, rounded to the feature type.
    Given(Vec<f64>),
}

impl FromStr for Init {
    type Err = KMeansError;
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "k-means++" => Ok(Self::KMeansPlusPlus),
            "random" => Ok(Self::Random),
            "kmeans-parallel" | "afk-mc2" => Err(KMeansError::NotAvailable { option: "init", value: name.into() }),
            _ => Err(invalid("init", "\"k-means++\", \"random\" or starting centroids", format!("{name:?}"))),
        }
    }
}

/// What to do with rows that hold nulls, NaNs or infinities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NullPolicy {
    /// An error that names the column and counts such values.
    #[default]
    Raise,
    /// Skip those rows: the result has the bits of a fit of the frame without them, and their labels are null.
    Skip,
}

impl FromStr for NullPolicy {
    type Err = KMeansError;
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "raise" => Ok(Self::Raise),
            "skip" => Ok(Self::Skip),
            _ => Err(invalid("null_policy", "\"raise\" or \"skip\"", format!("{name:?}"))),
        }
    }
}

/// What a history row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum History {
    /// Changed rows, shift and seconds.
    #[default]
    Light,
    /// Also the inertia of every iteration. This costs one reference distance per row.
    Full,
}

impl FromStr for History {
    type Err = KMeansError;
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "light" => Ok(Self::Light),
            "full" => Ok(Self::Full),
            _ => Err(invalid("history", "\"light\" or \"full\"", format!("{name:?}"))),
        }
    }
}

/// The number of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restarts {
    /// 1 for k-means++ and given centroids, 10 for random starts.
    #[default]
    Auto,
    /// This many. Given centroids always start once, because every restart would be the same.
    Count(u32),
}

/// Where a fit runs. This never changes a bit of the result, and it is not part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Device {
    /// A GPU if one can be used and is predicted to be faster, even if the rows have to stream through it. Otherwise the CPU.
    /// [`Fitted::choice`](crate::Fitted) says which, and why.
    #[default]
    Auto,
    Cpu,
    /// The GPU with this number in the driver's count. Without a number, the GPU with the most free memory. It is an error if
    /// there is none.
    Cuda(Option<u32>),
}

impl FromStr for Device {
    type Err = KMeansError;
    fn from_str(name: &str) -> Result<Self> {
        // Only accept the form that is printed: no "cuda:+1".
        let cuda = || {
            let device = Self::Cuda(Some(name.strip_prefix("cuda:")?.parse().ok()?));
            (device.to_string() == name).then_some(device)
        };
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            _ => cuda().ok_or_else(|| {
                invalid("device", "\"auto\", \"cpu\", \"cuda\" or a numbered GPU as \"cuda:0\"", format!("{name:?}"))
            }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A k-means to be fitted: unchecked parameters, with scikit-learn's meanings.
///
/// ```
/// use polars_kmeans::{Features, KMeans};
///
/// let (x, y) = ([0.0f32, 0.1, 9.0, 9.1], [0.0f32, 0.1, 5.0, 5.1]);
/// let features = Features::from_columns([&x[..], &y[..]])?;
/// let fitted = KMeans::new(2).seed(1).fit_features(&features, None)?;
/// assert_eq!(fitted.labels[0], fitted.labels[1]);
/// assert_ne!(fitted.labels[0], fitted.labels[2]);
/// assert_eq!(fitted.model.n_clusters(), 2);
/// # Ok::<(), polars_kmeans::KMeansError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct KMeans {
    pub(crate) k: usize,
    pub(crate) init: Init,
    pub(crate) n_init: Restarts,
    pub(crate) max_iter: u32,
    pub(crate) tol: f64,
    pub(crate) tol_labels: f64,
    pub(crate) seed: u64,
    pub(crate) null_policy: NullPolicy,
    pub(crate) history: History,
    pub(crate) threads: usize,
    pub(crate) device: Device,
    pub(crate) strategy: Strategy,
    pub(crate) device_memory_limit: Option<u64>,
    pub(crate) observer: Option<Observer>,
}

impl KMeans {
    /// `k` clusters, with defaults for everything else.
    pub fn new(k: usize) -> Self {
        Self {
            k,
            init: Init::default(),
            n_init: Restarts::default(),
            max_iter: 300,
            tol: 1e-4,
            tol_labels: 0.0,
            seed: 0,
            null_policy: NullPolicy::default(),
            history: History::default(),
            threads: 0,
            device: Device::default(),
            strategy: Strategy::default(),
            device_memory_limit: None,
            observer: None,
        }
    }

    /// How to find starting centroids (default: greedy k-means++).
    pub fn init(self, init: Init) -> Self {
        Self { init, ..self }
    }
    /// Number of restarts. The restart of least inertia wins (default: [`Restarts::Auto`]).
    pub fn n_init(self, n_init: Restarts) -> Self {
        Self { n_init, ..self }
    }
    /// Maximum number of iterations (default: 300).
    pub fn max_iter(self, max_iter: u32) -> Self {
        Self { max_iter, ..self }
    }
    /// Stop when the squared centroid shift is at most `tol` times the mean variance of the features (default: 1e-4).
    ///
    /// This is scikit-learn's rule. Outliers raise the variance. If some values are a million times farther out than the rest,
    /// every shift is small compared with the variance, and a fit stops after one iteration. Remove the outliers, or use 0: then
    /// the fit stops when no centroid moves.
    pub fn tol(self, tol: f64) -> Self {
        Self { tol, ..self }
    }
    /// Stop when at most this share of the rows changed cluster (default: 0).
    pub fn tol_labels(self, tol_labels: f64) -> Self {
        Self { tol_labels, ..self }
    }
    /// The seed of all random draws (default: 0).
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }
    /// What to do with nulls, NaNs and infinities (default: raise).
    pub fn null_policy(self, null_policy: NullPolicy) -> Self {
        Self { null_policy, ..self }
    }
    /// What the history holds (default: light).
    pub fn history(self, history: History) -> Self {
        Self { history, ..self }
    }
    /// Number of threads that work on a large fit (default 0: one per processor). Never changes a bit of the result.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }
    /// Where the fit runs (default: auto). Never changes a bit of the result.
    pub fn device(self, device: Device) -> Self {
        Self { device, ..self }
    }
    /// Which kernels a GPU uses (default: the fastest). A named strategy requires a GPU. Never changes a bit of the result.
    pub fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }
    /// Bytes of a GPU's memory that the fit may take (default: nine tenths of the free memory). Rows that do not fit pass through
    /// the GPU in chunks, again in every iteration. Never changes a bit of the result.
    pub fn device_memory_limit(self, bytes: Option<u64>) -> Self {
        Self { device_memory_limit: bytes, ..self }
    }
    /// Calls `observer` after each iteration. If it returns [`ControlFlow::Break`], the fit ends with
    /// [`KMeansError::Cancelled`]. A GPU does several iterations in one batch, so the calls for a batch come together.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use polars_kmeans::{Features, KMeans, KMeansError};
    ///
    /// let x: Vec<f64> = (0..1_000).map(|i| f64::from(i * i % 997)).collect();
    /// let features = Features::from_rows(&x, 1)?;
    /// let stopped = KMeans::new(20).on_iteration(|progress| {
    ///     println!("iteration {}: {} rows changed", progress.iteration, progress.changed);
    ///     if progress.iteration < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    /// });
    /// assert_eq!(stopped.fit_features(&features, None).err(), Some(KMeansError::Cancelled { iteration: 3 }));
    /// # Ok::<(), KMeansError>(())
    /// ```
    pub fn on_iteration(self, observer: impl Fn(&Progress) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        Self { observer: Some(Observer::new(observer)), ..self }
    }

    /// Checks the parameters against the width of the data.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`], [`KMeansError::NoFeatures`] or [`KMeansError::LengthMismatch`].
    pub fn validate(&self, d: usize) -> Result<Params<'_>> {
        if d == 0 {
            return Err(KMeansError::NoFeatures);
        }
        if self.k == 0 || u32::try_from(self.k).is_err() {
            return Err(invalid("k", "an integer from 1 to 2^32 - 1", self.k));
        }
        if self.max_iter == 0 {
            return Err(invalid("max_iter", "an integer from 1 to 2^32 - 1", self.max_iter));
        }
        for (option, value) in [("tol", self.tol), ("tol_labels", self.tol_labels)] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(invalid(option, "a finite number of at least 0", value));
            }
        }
        if self.n_init == Restarts::Count(0) {
            return Err(invalid("n_init", "\"auto\" or an integer from 1 to 2^32 - 1", 0));
        }
        if self.device_memory_limit == Some(0) {
            return Err(invalid("device_memory_limit", "a positive number of bytes, or none for what is free", 0));
        }
        if let Init::Given(centroids) = &self.init {
            if Some(centroids.len()) != self.k.checked_mul(d) {
                let what = format!("starting centroids (k = {} rows of {d} features)", self.k);
                return Err(KMeansError::LengthMismatch { what, expected: self.k.saturating_mul(d), got: centroids.len() });
            }
            if let Some(value) = centroids.iter().find(|value| !value.is_finite()) {
                return Err(invalid("init", "finite starting centroids", value));
            }
        }
        let device = match (self.strategy, self.device) {
            (Strategy::Default, device) | (_, device @ Device::Cuda(_)) => device,
            (_, Device::Auto) => Device::Cuda(None),
            (named, Device::Cpu) => {
                return Err(invalid("strategy", "\"default\" on the CPU (device=\"cpu\")", format!("\"{named}\"")));
            }
        };
        let restarts = match (&self.init, self.n_init) {
            (Init::Given(_), _) | (Init::KMeansPlusPlus, Restarts::Auto) => 1,
            (Init::Random, Restarts::Auto) => 10,
            (_, Restarts::Count(count)) => count,
        };
        Ok(Params {
            k: self.k,
            init: &self.init,
            restarts,
            max_iter: self.max_iter,
            tol: self.tol,
            tol_labels: self.tol_labels,
            seed: self.seed,
            null_policy: self.null_policy,
            history: self.history,
            threads: self.threads,
            device,
            strategy: self.strategy,
            device_memory_limit: self.device_memory_limit,
            observer: self.observer.as_ref(),
            wanted: Wanted::Labels,
        })
    }
}

/// Checked parameters. Compute code takes these.
#[derive(Debug, Clone, PartialEq)]
pub struct Params<'e> {
    /// Number of clusters, at least 1.
    pub k: usize,
    pub init: &'e Init,
    /// Number of restarts, at least 1.
    pub restarts: u32,
    /// Maximum number of iterations, at least 1.
    pub max_iter: u32,
    pub tol: f64,
    pub tol_labels: f64,
    pub seed: u64,
    pub null_policy: NullPolicy,
    pub history: History,
    /// Number of worker threads. 0 means one per processor.
    pub threads: usize,
    /// Where the fit runs. This is a GPU if a strategy was named.
    pub device: Device,
    pub strategy: Strategy,
    /// Number of bytes, positive.
    pub device_memory_limit: Option<u64>,
    /// What sees each iteration.
    pub(crate) observer: Option<&'e Observer>,
    /// What the caller wants to know about the rows.
    pub wanted: Wanted,
}

fn invalid(option: &'static str, expected: &str, got: impl fmt::Display) -> KMeansError {
    KMeansError::InvalidOption { option, expected: expected.into(), got: got.to_string() }
}
