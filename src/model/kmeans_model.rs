//! A model of float32 or float64 over named columns. Frames, record batches and files all use this type.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Derived, DeviceModel, HistoryRow, Model, Ran, Scaling, Settings};
use crate::backend::answers::Labels;
#[cfg(feature = "polars")]
use crate::backend::answers::Predictions;
use crate::backend::cpu::Method;
#[cfg(all(feature = "python", feature = "cuda"))]
use crate::backend::cuda::array::{GpuArray, GpuPredictions};
use crate::backend::select::Choice;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::Device;
use crate::base::progress::Seconds;
use crate::input::features::{Column, Features};
#[cfg(feature = "python")]
use crate::input::tile::Part;
#[cfg(feature = "parts")]
use crate::model::AnyFitted;
use crate::statistics::check_centroid_magnitude;
#[cfg(feature = "python")]
use crate::statistics::given::{HostRows, count_bad};

/// Names of the columns that every centroid frame has. A feature may not have one of these names.
pub const RESERVED_NAMES: [&str; 3] = ["cluster", "size", "inertia"];

/// How error messages call the names.
const NAMES: &str = "the names of the columns";

/// How the features are stored in a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FeatureLayout {
    /// One scalar column per feature, with these names.
    Columns(Vec<String>),
    /// One column of this name. Each of its rows holds all features.
    Array(String),
}

impl FeatureLayout {
    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        match self {
            Self::Columns(names) => names,
            Self::Array(name) => std::slice::from_ref(name),
        }
    }

    /// One name per feature, as error messages use it.
    pub(crate) fn feature_names(&self, d: usize) -> Result<Names> {
        Ok(match self {
            Self::Columns(names) => memory::texts(names, NAMES)?.into(),
            Self::Array(name) => Names::Entries { column: name.as_str().into(), width: d },
        })
    }

    /// The layout whose features have these names.
    #[cfg(feature = "parts")]
    pub(crate) fn of_names(names: &Names) -> Result<Self> {
        Ok(match names {
            Names::Each(names) => Self::Columns(memory::texts(names, NAMES)?),
            Names::Entries { column, .. } => Self::Array(column.to_string()),
        })
    }

    /// A copy of this layout. It returns an error where there is no memory.
    pub(crate) fn copy(&self) -> Result<Self> {
        Ok(match self {
            Self::Columns(names) => Self::Columns(memory::texts(names, NAMES)?),
            Self::Array(name) => Self::Array(name.clone()),
        })
    }

    /// Checks that the names can be columns of a centroid frame.
    ///
    /// # Errors
    /// As [`FeatureLayout::check_names`], or [`KMeansError::ReservedName`].
    pub fn check(&self) -> Result<()> {
        self.check_names()?;
        match self.columns().iter().find(|name| RESERVED_NAMES.contains(&name.as_str())) {
            Some(name) => Err(KMeansError::ReservedName { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// Checks that the names are different names.
    ///
    /// # Errors
    /// [`KMeansError::UnnamedColumn`], [`KMeansError::NulInName`] or [`KMeansError::DuplicateName`].
    pub fn check_names(&self) -> Result<()> {
        let mut seen = HashSet::new();
        let names = self.columns().len();
        // The set of names and its hash table. The estimate in bytes assumes a table that is half full.
        seen.try_reserve(names)
            .map_err(|_| memory::no_memory(NAMES, 2 * names as u128 * (1 + size_of::<&String>() as u128)))?;
        for name in self.columns() {
            if name.is_empty() {
                return Err(KMeansError::UnnamedColumn);
            }
            if name.contains('\0') {
                return Err(KMeansError::NulInName { name: name.clone() });
            }
            if !seen.insert(name) {
                return Err(KMeansError::DuplicateName { name: name.clone() });
            }
        }
        Ok(())
    }
}

/// A model in the float type of the features that it was fitted to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AnyModel {
    F32(Model<f32>),
    F64(Model<f64>),
}

/// Features in one of the two float types.
pub(crate) enum AnyFeatures<'a> {
    F32(Features<'a, f32>),
    F64(Features<'a, f64>),
}

/// A fitted k-means over named columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KMeansModel {
    pub(crate) layout: FeatureLayout,
    pub(crate) model: AnyModel,
    /// Whether the features were computed by expressions. Columns with their names may then hold other values.
    pub(crate) computed: bool,
    /// How the fit ran. Not saved with the model.
    #[serde(skip)]
    ran: Aside<Ran>,
    /// A float32 model in float64, for float64 rows.
    #[serde(skip)]
    widened: Derived<Model<f64>>,
}

/// A fact about a model that is not part of it: it is not saved, and equality ignores it.
#[derive(Debug, Clone)]
struct Aside<T>(Option<T>);

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Evaluates the expression with the model of either type.
macro_rules! either {
    ($self:expr, $model:ident => $body:expr) => {
        match &$self.model {
            AnyModel::F32($model) => $body,
            AnyModel::F64($model) => $body,
        }
    };
}

impl KMeansModel {
    pub(crate) fn new(layout: FeatureLayout, model: AnyModel) -> Self {
        Self { layout, model, computed: false, ran: Aside(None), widened: Derived::default() }
    }

    /// The model of a fit that ran so.
    pub(crate) fn of_fit(layout: FeatureLayout, model: AnyModel, ran: Ran) -> Self {
        Self { ran: Aside(Some(ran)), ..Self::new(layout, model) }
    }

    /// The model of a fit of rows in parts.
    ///
    /// # Errors
    /// As [`FeatureLayout::check`].
    #[cfg(feature = "parts")]
    pub fn of_parts(fitted: AnyFitted) -> Result<Self> {
        let (model, ran) = match fitted {
            AnyFitted::F32(fitted) => {
                let ((model, ran), _) = fitted.into_model_and_rows();
                (AnyModel::F32(model), ran)
            }
            AnyFitted::F64(fitted) => {
                let ((model, ran), _) = fitted.into_model_and_rows();
                (AnyModel::F64(model), ran)
            }
        };
        let names = match &model {
            AnyModel::F32(model) => &model.names,
            AnyModel::F64(model) => &model.names,
        };
        let layout = FeatureLayout::of_names(names)?;
        layout.check()?;
        Ok(Self::of_fit(layout, model, ran))
    }

    /// The same model, marked as fitted to computed features or not.
    #[cfg(feature = "arrow")]
    pub(crate) fn with_computed(self, computed: bool) -> Self {
        Self { computed, ..self }
    }

    /// The names of the columns that the model was fitted to: one per feature, or the one Array column.
    pub fn names(&self) -> &[String] {
        self.layout.columns()
    }

    /// The names of the model's columns, to look for in a frame.
    ///
    /// # Errors
    /// [`KMeansError::ComputedFeatures`] if the model was fitted to expressions: the names are then those of the expressions.
    pub fn columns_to_find(&self) -> Result<&[String]> {
        if self.computed { Err(KMeansError::ComputedFeatures { names: self.names().to_vec() }) } else { Ok(self.names()) }
    }

    /// The device that the fit ran on, and why. `None` in a model that was read from bytes or a file.
    pub fn choice(&self) -> Option<&Choice> {
        self.ran.0.as_ref().map(|ran| &ran.choice)
    }

    /// How the fit compared rows with centroids on the CPU, and why. `None` for fits on GPUs and in parts, and in a model that
    /// was read from bytes or a file.
    pub fn method(&self) -> Option<Method> {
        self.ran.0.as_ref().and_then(|ran| ran.method)
    }

    /// Where the time of the fit went. `None` in a model that was read from bytes or a file.
    pub fn seconds(&self) -> Option<Seconds> {
        self.ran.0.as_ref().map(|ran| ran.seconds)
    }

    /// How the features were stored in the frame.
    pub fn layout(&self) -> &FeatureLayout {
        &self.layout
    }

    /// The model in its own float type.
    pub fn as_any(&self) -> &AnyModel {
        &self.model
    }

    /// The number of clusters.
    pub fn n_clusters(&self) -> usize {
        either!(self, model => model.n_clusters())
    }

    /// The number of features.
    pub fn n_features(&self) -> usize {
        either!(self, model => model.n_features())
    }

    /// Weighted sum of squared distances of the rows to their centroids.
    pub fn inertia(&self) -> f64 {
        either!(self, model => model.inertia())
    }

    /// Rows of positive weight in each cluster.
    pub fn sizes(&self) -> &[u64] {
        either!(self, model => model.sizes())
    }

    /// Weighted sum of squared distances in each cluster.
    pub fn inertias(&self) -> &[f64] {
        either!(self, model => model.inertias())
    }

    /// Iterations of the winning restart.
    pub fn n_iter(&self) -> u32 {
        either!(self, model => model.n_iter())
    }

    /// One row per iteration of the winning restart.
    pub fn history_rows(&self) -> &[HistoryRow] {
        either!(self, model => model.history())
    }

    /// The parameters that the fit was given.
    pub fn settings(&self) -> &Settings {
        either!(self, model => model.settings())
    }

    /// The factors that the values of the columns are multiplied by. `None` if rows are not scaled.
    pub fn scaling(&self) -> Option<&Scaling> {
        either!(self, model => model.scaling())
    }

    /// The centroids in the units of the columns, in float64: `(k, d)`, row-major.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`].
    pub fn centroid_values(&self) -> Result<Vec<f64>> {
        let _environment = FloatEnvironment::default_rounding();
        either!(self, model => {
            memory::collected(model.centroids_in_units()?.iter().map(|c| c.to_f64()), "the centroids in float64")
        })
    }

    /// Whether the centroids are float32.
    pub fn is_f32(&self) -> bool {
        matches!(self.model, AnyModel::F32(_))
    }

    /// The model on a device. [`DeviceModel`] gives the same predictions, with the same bits.
    pub fn on(&self, device: Device) -> DeviceModel<'_, Self> {
        DeviceModel::new(self, device)
    }

    /// Refuses a model from bytes or a file whose parts do not fit together. Every error says that the model is at fault.
    pub(crate) fn check(self) -> Result<Self> {
        let _environment = FloatEnvironment::default_rounding();
        self.layout.check().map_err(|error| KMeansError::InvalidModel {
            expected: "columns that a centroid frame can have".into(),
            got: format!("others: {error}"),
        })?;
        self.settings().check()?;
        if let Some(scaling) = self.scaling() {
            scaling.check(self.n_features())?;
        }
        let consistent = either!(self, model => {
            model.is_consistent() && model.names == self.layout.feature_names(model.d)?
        });
        if consistent {
            Ok(self)
        } else {
            Err(KMeansError::InvalidModel {
                expected: "finite centroids within range that fit their names, sizes and parameters".into(),
                got: format!("{} sizes and {} columns that do not", self.sizes().len(), self.names().len()),
            })
        }
    }
}

#[cfg(feature = "python")]
impl KMeansModel {
    /// The error that counts the values because of which rows have no label.
    pub(crate) fn bad_values(&self, features: &AnyFeatures<'_>) -> Result<KMeansError> {
        let row_transform = either!(self, model => model.row_transform()?);
        Ok(match features {
            AnyFeatures::F32(x) => count_bad(&HostRows(&[Part::new(x.transformed_by(row_transform), None)])),
            AnyFeatures::F64(x) => count_bad(&HostRows(&[Part::new(x.transformed_by(row_transform), None)])),
        })
    }
}

impl DeviceModel<'_, KMeansModel> {
    pub(crate) fn predict_any(&self, features: &AnyFeatures<'_>) -> Result<Labels> {
        self.in_type(features, |model, x| model.predict(x), |model, x| model.predict(x))
    }

    #[cfg(feature = "polars")]
    pub(crate) fn predict_distances_any(&self, features: &AnyFeatures<'_>) -> Result<Predictions> {
        self.in_type(features, |model, x| model.predict_distances(x), |model, x| model.predict_distances(x))
    }

    pub(crate) fn transform_any(&self, features: &AnyFeatures<'_>) -> Result<Vec<f64>> {
        self.in_type(features, |model, x| model.transform(x), |model, x| model.transform(x))
    }

    pub(crate) fn score_any(&self, features: &AnyFeatures<'_>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
        self.in_type(features, |model, x| model.score(x, weights), |model, x| model.score(x, weights))
    }

    #[cfg(all(feature = "python", feature = "cuda"))]
    pub(crate) fn predict_any_on_device(&self, features: &AnyFeatures<'_>) -> Result<GpuArray<i32>> {
        self.in_type(features, |model, x| model.predict_there(x), |model, x| model.predict_there(x))
    }

    #[cfg(all(feature = "python", feature = "cuda"))]
    pub(crate) fn predict_distances_any_on_device(&self, features: &AnyFeatures<'_>) -> Result<GpuPredictions> {
        self.in_type(features, |model, x| model.predict_distances_there(x), |model, x| model.predict_distances_there(x))
    }

    #[cfg(all(feature = "python", feature = "cuda"))]
    pub(crate) fn transform_any_on_device(&self, features: &AnyFeatures<'_>) -> Result<GpuArray<f64>> {
        self.in_type(features, |model, x| model.transform_there(x), |model, x| model.transform_there(x))
    }

    /// Computes in the wider of the model's type and the features' type: float64 input is never cast to float32. Callers widen
    /// float32 columns for a float64 model.
    fn in_type<R>(
        &self,
        features: &AnyFeatures<'_>,
        narrow: impl FnOnce(DeviceModel<'_, Model<f32>>, &Features<'_, f32>) -> Result<R>,
        wide: impl FnOnce(DeviceModel<'_, Model<f64>>, &Features<'_, f64>) -> Result<R>,
    ) -> Result<R> {
        let _environment = FloatEnvironment::default_rounding();
        let (whole, device) = (self.model, self.device);
        match (&whole.model, features) {
            (AnyModel::F32(model), AnyFeatures::F32(x)) => narrow(model.on(device), x),
            (AnyModel::F32(model), AnyFeatures::F64(x)) => wide(whole.widened.get(|| model.widened())?.on(device), x),
            (AnyModel::F64(model), AnyFeatures::F64(x)) => wide(model.on(device), x),
            (AnyModel::F64(_), AnyFeatures::F32(_)) => Err(KMeansError::UnsupportedDtype {
                column: whole.names()[0].clone(),
                got: "float32 for a float64 model".into(),
            }),
        }
    }
}

impl<T: Float> Model<T> {
    fn is_consistent(&self) -> bool {
        let k = self.sizes.len();
        let finite = self.centroids.iter().all(|c| c.to_f64().is_finite());
        let largest = self.centroids.iter().fold(0.0f64, |m, c| m.max(c.to_f64().abs()));
        let countable = self.sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size)).is_some();
        finite
            && check_centroid_magnitude::<T>("centroids", largest).is_ok()
            && countable
            && self.d > 0
            && k > 0
            && u32::try_from(k).is_ok()
            && self.settings.k == k as u64
            && self.names.len() == self.d
            && self.inertias.len() == k
            && self.inertias.iter().chain([&self.inertia]).all(|inertia| *inertia >= 0.0 && inertia.is_finite())
            && Some(self.centroids.len()) == k.checked_mul(self.d)
    }
}
