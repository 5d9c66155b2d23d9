//! A fitted model: its centroids, and the predictions that they allow.
//!
//! [`Model`] is the model of the engine, in one float type. [`KMeansModel`] is the model that users of frames, batches and
//! files get: it has either float type, and the names of its columns.

#[cfg(feature = "serde")]
mod any;
mod device_model;
#[cfg(feature = "arrow")]
#[doc(hidden)]
pub mod file;
#[cfg(feature = "arrow")]
#[doc(hidden)]
pub mod groups;
#[cfg(feature = "serde")]
mod kmeans_model;
mod living;
#[cfg(feature = "serde")]
mod matching;
pub(crate) mod predict;
mod quanta;
mod scaling;
mod settings;
mod step;
mod sums;
mod tables;
#[cfg(any(feature = "arrow", feature = "polars"))]
pub(crate) mod wire;

#[cfg(feature = "serde")]
pub(crate) use any::AnyFeatures;
#[cfg(feature = "serde")]
pub use any::AnyModel;
pub use device_model::DeviceModel;
#[cfg(any(feature = "polars", feature = "arrow"))]
pub(crate) use device_model::on_any_device;
#[cfg(feature = "serde")]
pub use kmeans_model::KMeansModel;
#[cfg(feature = "serde")]
pub use matching::Match;
pub use scaling::Scaling;
pub use settings::Settings;
#[cfg(feature = "serde")]
pub(crate) use settings::invalid;
pub use sums::{Decay, Start, Sums, Update};
#[cfg(any(feature = "arrow", feature = "polars"))]
pub use wire::FORMAT;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::predict::Predictor;
use self::tables::Tables;
use crate::backend::answers::{Distances, KeptRows, Labels, Predictions};
use crate::backend::cpu::MethodExplanation;
use crate::backend::select::Choice;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::Device;
use crate::base::progress::Seconds;
use crate::exact::distances::DistanceSum;
use crate::input::tile::Selection;

/// One iteration of a fit.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HistoryRow {
    /// Counted from 1.
    pub iteration: u32,
    /// Rows of positive weight that changed cluster.
    pub changed: u64,
    /// Sum over the centroids of the squared distance that each moved.
    pub shift: f64,
    /// Inertia after the assign step and before the update step. Present only with [`crate::History::Full`].
    pub inertia: Option<f64>,
    /// The share of the rows whose label the filter could not prove, so that more precise distances settled it. `None` if the
    /// fit did not count them. It depends on the device and the strategy, and so do the fields below. So they are not saved: `None` in a
    /// model that was loaded.
    pub settled: Option<f64>,
    /// The share of the rows whose label the first filter left to a second one, of more precise products. `None` if there is one
    /// filter.
    #[cfg_attr(feature = "serde", serde(skip))] // in the tail: `model/wire.rs`
    pub rescored: Option<f64>,
    /// The share of the scores of a row and a centroid that were not computed. `None` if the fit did not count them, as on
    /// the CPU where all are computed.
    pub skipped: Option<f64>,
    /// Groups of rows, each of which is compared only with the centroids that can be nearest. `None` if there are none.
    #[cfg_attr(feature = "serde", serde(skip))] // likewise
    pub groups: Option<u32>,
    /// Passes over the rows that the assignment took, samples in proportion. `None` if sizes have no bounds.
    #[cfg_attr(feature = "serde", serde(skip))] // likewise
    pub passes: Option<f64>,
    /// Wall time.
    pub seconds: Option<f64>,
}

/// `k` centroids of `d` features of type `T`.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Model<T> {
    pub(crate) d: usize,
    pub(crate) names: Names,
    pub(crate) centroids: Vec<T>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) inertias: Vec<f64>,
    pub(crate) inertia: f64,
    pub(crate) n_iter: u32,
    pub(crate) history: Vec<HistoryRow>,
    pub(crate) settings: Settings,
    /// Encoded by `wire.rs`.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) stopped: bool,
    /// `None` if rows are not scaled.
    pub(crate) scaling: Option<Scaling>,
    /// Encoded by `wire.rs`.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) living: Arc<living::Living>,
    /// The centroids in the form that predictions read. Made at the first prediction.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) table: Derived<Tables<T>>,
}

/// A value that is computed from the rest of a structure. It is made once, at the first request. Equality ignores it.
#[derive(Debug)]
pub(crate) struct Derived<D> {
    made: OnceLock<D>,
    /// The thread that makes the value holds this lock. Other threads wait for it, so that the value is made once.
    making: Mutex<()>,
}

impl<D> Derived<D> {
    pub(crate) fn get(&self, make: impl FnOnce() -> Result<D>) -> Result<&D> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        match self.made.get() {
            Some(made) => Ok(made),
            None => {
                let new = make()?;
                Ok(self.made.get_or_init(|| new))
            }
        }
    }
}

impl<D> Default for Derived<D> {
    fn default() -> Self {
        Self { made: OnceLock::new(), making: Mutex::new(()) }
    }
}

impl<D> Clone for Derived<D> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<D> PartialEq for Derived<D> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A model, and what the fit says of the rows.
#[derive(Debug, Clone)]
pub struct Fitted<T> {
    pub model: Model<T>,
    /// One label per kept row.
    pub labels: Vec<u32>,
    /// The distances of the kept rows, if the caller wanted them.
    pub distances: Option<Distances>,
    /// The starting centroids that lost all of their rows, in ascending order of their numbers. A row far from its centroid took
    /// the place of each, so their clusters are others than at the start.
    pub relocated: Vec<u32>,
    /// The device that the fit ran on, and why.
    pub choice: Choice,
    /// How rows were compared with centroids on the CPU, and why. None for fits on GPUs and in parts.
    pub method: Option<MethodExplanation>,
    /// Where the time of the fit went.
    pub seconds: Seconds,
    /// The inertia of each cluster, exactly.
    pub(crate) totals: Vec<DistanceSum>,
    pub(crate) selection: Vec<(Selection, usize)>,
}

/// A fit in the type of its features.
#[cfg(feature = "parts")]
#[derive(Debug, Clone)]
pub enum AnyFitted {
    F32(Fitted<f32>),
    F64(Fitted<f64>),
}

impl<T> Fitted<T> {
    /// One entry per row of the input. A row that `null_policy="skip"` left out has no label.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError).
    pub fn expand(&self) -> Result<Labels> {
        Labels::of_kept(&self.labels, &self.selection)
    }

    /// As [`Fitted::expand`], with distances. `None` if the caller did not want them. If every row was kept, nothing is copied.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError).
    pub fn into_predictions(self) -> Result<Option<Predictions>> {
        let Self { labels, distances, selection: selections, .. } = self;
        KeptRows { labels, distances, selections }.into_predictions()
    }
}

/// Declares what a model says of itself in one float type, and in either.
macro_rules! facts {
    ($($(#[$about:meta])* pub fn $name:ident(&$self:ident) -> $type:ty = $value:expr;)*) => {
        impl<T: Float> Model<T> {
            $(
                $(#[$about])*
                pub fn $name(&$self) -> $type {
                    $value
                }
            )*
        }

        #[cfg(feature = "serde")]
        impl KMeansModel {
            $(
                $(#[$about])*
                pub fn $name(&self) -> $type {
                    match self.as_any() {
                        AnyModel::F32(model) => model.$name(),
                        AnyModel::F64(model) => model.$name(),
                    }
                }
            )*
        }
    };
}

facts! {
    /// The number of clusters.
    pub fn n_clusters(&self) -> usize = self.centroids.len() / self.d;
    /// The number of features.
    pub fn n_features(&self) -> usize = self.d;
    /// Rows of positive weight in each cluster.
    pub fn sizes(&self) -> &[u64] = &self.sizes;
    /// Weighted sum of squared distances in each cluster. Empty in a model of [`Model::updated`], which has seen no rows.
    pub fn inertias(&self) -> &[f64] = &self.inertias;
    /// Weighted sum of squared distances of the rows to their centroids. NaN in a model of [`Model::updated`].
    pub fn inertia(&self) -> f64 = if self.inertias.is_empty() { f64::NAN } else { self.inertia };
    /// Iterations of the winning restart.
    pub fn n_iter(&self) -> u32 = self.n_iter;
    /// The parameters that the fit was given.
    pub fn settings(&self) -> &Settings = &self.settings;
    /// Whether the function that sees the progress of the fit stopped the fit: see [`crate::KMeans::on_progress`].
    pub fn stopped(&self) -> bool = self.stopped;
    /// Which models take the sums of this one: a hash of type, quanta, metric, factors and names. An error if the model has no
    /// quanta: see [`Model::with_extents`].
    pub fn fingerprint(&self) -> Result<u64> = self.hash_of_units();
    /// The sums that the model keeps, before the factors of a decay: see [`Model::weights`].
    pub fn kept_sums(&self) -> Option<&Sums> = self.living.kept.as_ref();
    /// The weight of each cluster: of the rows in the sums that the model keeps, after decays, or else of the rows of the fit. Empty
    /// if a file of a weighted fit does not say it.
    pub fn weights(&self) -> Result<Vec<f64>> = self.weights_of_clusters();
    /// The keys of the batches that the model has added and not removed, and of those that were removed, in ascending order.
    pub fn batches(&self) -> [&[String]; 2] = [&self.living.later.added, &self.living.later.removed];
    /// The factors that the values of the columns are multiplied by. `None` if rows are not scaled.
    pub fn scaling(&self) -> Option<&Scaling> = self.scaling.as_ref();
}

impl<T: Float> Model<T> {
    /// The names of the features, in order.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The centroids that rows are compared with: `(k, d)`, row-major. They are in the scaled space, if rows are scaled. See
    /// [`Model::centroids_in_units`].
    pub fn centroids(&self) -> &[T] {
        &self.centroids
    }

    /// One row per iteration of the winning restart.
    pub fn history(&self) -> &[HistoryRow] {
        &self.history
    }
}

impl<T: Predictor> Model<T> {
    /// The model on a device. [`DeviceModel`] gives the same predictions, with the same bits.
    pub fn on(&self, device: Device) -> DeviceModel<'_, Self> {
        DeviceModel::new(self, device)
    }
}

impl<T: Float> Model<T> {
    /// The same model in float64. Float64 rows are compared with it.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError).
    pub fn widened(&self) -> Result<Model<f64>> {
        let _environment = FloatEnvironment::default_rounding();
        const WHAT: &str = "the model in float64";
        self.copy_with(memory::collected(self.centroids.iter().map(|c| c.to_f64()), WHAT)?, WHAT)
    }

    /// A copy without the figures of iterations that depend on the device.
    #[cfg(feature = "arrow")]
    fn without_costs(&self) -> Result<Self> {
        const WHAT: &str = "a model to save";
        let mut copy = self.copy_with(memory::copied(&self.centroids, WHAT)?, WHAT)?;
        for row in &mut copy.history {
            (row.settled, row.rescored, row.skipped) = (None, None, None);
            (row.groups, row.seconds) = (None, None);
        }
        Ok(copy)
    }

    /// A copy with these centroids.
    fn copy_with<U>(&self, centroids: Vec<U>, what: &'static str) -> Result<Model<U>> {
        Ok(Model {
            d: self.d,
            names: self.names.clone(),
            centroids,
            sizes: memory::copied(&self.sizes, what)?,
            inertias: memory::copied(&self.inertias, what)?,
            inertia: self.inertia,
            n_iter: self.n_iter,
            history: memory::copied(&self.history, what)?,
            settings: self.settings.clone(),
            stopped: self.stopped,
            scaling: self.scaling.as_ref().map(Scaling::copy).transpose()?,
            living: self.living.clone(),
            table: Derived::default(),
        })
    }
}
