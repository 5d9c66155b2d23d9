//! A model of float32 or float64 over named columns. Frames, record batches and files all use this type.

use std::collections::BTreeMap;
#[cfg(any(feature = "arrow", feature = "polars"))]
use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(feature = "python")]
use super::AnyFeatures;
use super::any::AnyModel;
#[cfg(any(feature = "arrow", feature = "polars"))]
use super::living::Living;
use super::{Derived, DeviceModel, Fitted, HistoryRow, Model, Update, invalid};
use crate::backend::answers::KeptRows;
use crate::backend::cpu::MethodExplanation;
use crate::backend::select::Choice;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::{Device, Metric};
use crate::base::progress::Seconds;
#[cfg(feature = "python")]
use crate::input::tile::RowBlock;
#[cfg(feature = "polars")]
use crate::input::transform::RowTransform;
#[cfg(feature = "parts")]
use crate::model::AnyFitted;
use crate::statistics::check_centroid_magnitude;
#[cfg(feature = "python")]
use crate::statistics::given::{HostRows, count_bad};

/// A fitted k-means over named columns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KMeansModel {
    pub(crate) layout: FeatureLayout,
    pub(crate) model: AnyModel,
    /// Whether the features were computed by expressions. Columns with their names may then hold other values.
    pub(crate) computed: bool,
    /// Texts of users. Encoded by `wire.rs`.
    #[serde(skip)]
    pub(crate) metadata: BTreeMap<String, String>,
    /// How the fit ran. Not saved with the model.
    #[serde(skip)]
    ran: Option<Ran>,
    /// A float32 model in float64, for float64 rows.
    #[serde(skip)]
    pub(super) widened: Derived<Model<f64>>,
}

/// How a fit ran.
#[derive(Debug, Clone)]
struct Ran {
    /// The device, and why.
    choice: Choice,
    method: Option<MethodExplanation>,
    /// Where the time went.
    seconds: Seconds,
    relocated: Vec<u32>,
}

/// How a fit ran is no part of what a model is, and neither are texts about it.
impl PartialEq for KMeansModel {
    fn eq(&self, other: &Self) -> bool {
        self.layout == other.layout && self.model == other.model && self.computed == other.computed
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
        Self { layout, model, computed: false, metadata: BTreeMap::new(), ran: None, widened: Derived::default() }
    }

    /// The model of a fit of rows in parts.
    ///
    /// # Errors
    /// As [`FeatureLayout::check`].
    #[cfg(feature = "parts")]
    pub fn of_parts(fitted: AnyFitted) -> Result<Self> {
        let names = match &fitted {
            AnyFitted::F32(fitted) => &fitted.model.names,
            AnyFitted::F64(fitted) => &fitted.model.names,
        };
        let layout = FeatureLayout::of_names(names)?;
        layout.check()?;
        Ok(match fitted {
            AnyFitted::F32(fitted) => fitted.named(layout).0,
            AnyFitted::F64(fitted) => fitted.named(layout).0,
        })
    }

    /// The same model, marked as fitted to computed features or not.
    #[cfg(feature = "arrow")]
    pub(crate) fn with_computed(self, computed: bool) -> Self {
        Self { computed, ..self }
    }

    /// The same model with what its bytes hold after it.
    #[cfg(any(feature = "arrow", feature = "polars"))]
    pub(super) fn with_tail(mut self, stopped: bool, living: Living, metadata: BTreeMap<String, String>) -> Self {
        let living = Arc::new(living);
        match &mut self.model {
            AnyModel::F32(model) => (model.stopped, model.living) = (stopped, living),
            AnyModel::F64(model) => (model.stopped, model.living) = (stopped, living),
        }
        Self { metadata, ..self }
    }

    /// The same model, whose history has these costs: `rescored`, `groups` and `passes`.
    #[cfg(any(feature = "arrow", feature = "polars"))]
    pub(super) fn with_costs(mut self, costs: &[(Option<f64>, Option<u32>, Option<f64>)]) -> Self {
        let history = match &mut self.model {
            AnyModel::F32(model) => &mut model.history,
            AnyModel::F64(model) => &mut model.history,
        };
        for (row, cost) in history.iter_mut().zip(costs) {
            (row.rescored, row.groups, row.passes) = *cost;
        }
        self
    }

    /// The same model without quanta and sums.
    #[cfg(feature = "python")]
    pub(crate) fn without_quanta(self) -> Self {
        let (stopped, metadata) = (self.stopped(), self.metadata.clone());
        self.with_tail(stopped, Living::default(), metadata)
    }

    /// Quanta and kept sums.
    #[cfg(any(feature = "arrow", feature = "polars"))]
    pub(crate) fn living(&self) -> &Living {
        either!(self, model => &model.living)
    }

    /// The same model with these texts, which are saved with it. They are no part of what models are compared by.
    pub fn with_metadata(self, metadata: BTreeMap<String, String>) -> Self {
        Self { metadata, ..self }
    }

    /// The texts that the model was given.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// How rows and centroids are compared.
    pub(super) fn metric(&self) -> Metric {
        either!(self, model => model.metric())
    }

    /// The same model with quanta: see [`Model::with_extents`].
    ///
    /// # Errors
    /// As [`Model::with_extents`].
    pub fn with_extents(&self, extents: &[f64], weight: Option<f64>) -> Result<Self> {
        let model = either!(self, model => model.with_extents(extents, weight)?.into());
        Ok(Self::new(self.layout.copy()?, model).carrying(self))
    }

    /// The same model at other centroids: see [`Model::starting_at`].
    #[cfg(feature = "python")]
    pub(crate) fn starting_at(self, centroids: Vec<f64>) -> Result<Self> {
        let model = match self.model {
            AnyModel::F32(model) => model.starting_at(centroids)?.into(),
            AnyModel::F64(model) => model.starting_at(centroids)?.into(),
        };
        Self::new(self.layout, model).check()
    }

    /// The model of other sums: see [`Model::updated`].
    ///
    /// # Errors
    /// As [`Model::updated`].
    pub fn updated(&self, update: &Update<'_>) -> Result<Self> {
        let model = either!(self, model => model.updated(update)?.into());
        Ok(Self::new(self.layout.copy()?, model).carrying(self))
    }

    /// The model of these kept sums.
    #[cfg(feature = "python")]
    pub(crate) fn at_means(&self, living: Living) -> Result<Self> {
        let model = either!(self, model => model.at_means(living)?.into());
        Ok(Self::new(self.layout.copy()?, model).carrying(self))
    }

    /// The same model with room for larger values: see [`Model::with_wider_extents`].
    ///
    /// # Errors
    /// As [`Model::with_wider_extents`].
    pub fn with_wider_extents(&self, extents: &[f64], weight: Option<f64>) -> Result<Self> {
        let model = either!(self, model => model.with_wider_extents(extents, weight)?.into());
        Ok(Self::new(self.layout.copy()?, model).carrying(self))
    }

    /// This model with what another one says beside its numbers.
    fn carrying(self, other: &Self) -> Self {
        Self { computed: other.computed, metadata: other.metadata.clone(), ..self }
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
        self.ran.as_ref().map(|ran| &ran.choice)
    }

    /// How the fit compared rows with centroids on the CPU, and why. `None` for fits on GPUs and in parts, and in a model that
    /// was read from bytes or a file.
    pub fn method(&self) -> Option<MethodExplanation> {
        self.ran.as_ref().and_then(|ran| ran.method)
    }

    /// Where the time of the fit went. `None` in a model that was read from bytes or a file.
    pub fn seconds(&self) -> Option<Seconds> {
        self.ran.as_ref().map(|ran| ran.seconds)
    }

    /// The numbers of the starting centroids that lost all of their rows, in ascending order. A row far from its centroid took
    /// the place of each, so their clusters are others than at the start. Empty in a model that was read from bytes or a file.
    pub fn relocated(&self) -> &[u32] {
        self.ran.as_ref().map_or(&[], |ran| &ran.relocated)
    }

    /// How the features were stored in the frame.
    pub fn layout(&self) -> &FeatureLayout {
        &self.layout
    }

    /// The model in its own float type.
    pub fn as_any(&self) -> &AnyModel {
        &self.model
    }

    /// One row per iteration of the winning restart.
    pub fn history_rows(&self) -> &[HistoryRow] {
        either!(self, model => model.history())
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

    /// The centroids as rows are compared with them, in float64: `(k, d)`, row-major; and what happens to rows before.
    #[cfg(feature = "polars")]
    pub(crate) fn as_compared(&self) -> Result<(Vec<f64>, Option<Arc<RowTransform>>)> {
        either!(self, model => {
            let centroids = memory::collected(model.centroids.iter().map(|c| c.to_f64()), "the centroids in float64")?;
            Ok((centroids, model.row_transform()?))
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
        let refused = |error| invalid("columns that a centroid frame can have", format!("others: {error}"));
        self.layout.check().map_err(refused)?;
        self.settings().check()?;
        if let Some(scaling) = self.scaling() {
            scaling.check(self.n_features())?;
        }
        let consistent = either!(self, model => {
            model.is_consistent() && model.names == self.layout.feature_names(model.d)?
        });
        if consistent {
            return Ok(self);
        }
        let got = format!("{} sizes and {} columns that do not", self.sizes().len(), self.names().len());
        Err(invalid("finite centroids within range that fit their names, sizes and parameters", got))
    }
}

#[cfg(feature = "python")]
impl KMeansModel {
    /// The error that counts the values because of which rows have no label.
    pub(crate) fn bad_values(&self, features: &AnyFeatures<'_>) -> Result<KMeansError> {
        let row_transform = either!(self, model => model.row_transform()?);
        match features {
            AnyFeatures::F32(x) => count_bad(&HostRows(&[RowBlock::new(x.transformed_by(row_transform), None)])),
            AnyFeatures::F64(x) => count_bad(&HostRows(&[RowBlock::new(x.transformed_by(row_transform), None)])),
        }
    }
}

impl<T> Fitted<T>
where
    AnyModel: From<Model<T>>,
{
    /// The model over columns in this layout, and what the fit says of the rows.
    pub(crate) fn named(self, layout: FeatureLayout) -> (KMeansModel, KeptRows) {
        let Self { model, labels, distances, relocated, choice, method, seconds, selection: selections, totals: _ } = self;
        let ran = Some(Ran { choice, method, seconds, relocated });
        (KMeansModel { ran, ..KMeansModel::new(layout, model.into()) }, KeptRows { labels, distances, selections })
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
            && (self.inertias.is_empty() || self.inertias.len() == k)
            && self.living.is_consistent(k, self.d, || self.fingerprint())
            && self.inertias.iter().chain([&self.inertia]).all(|inertia| *inertia >= 0.0 && inertia.is_finite())
            && Some(self.centroids.len()) == k.checked_mul(self.d)
    }
}
