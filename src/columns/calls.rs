//! Fits of columns, and what models say of columns.

use super::{FeatureTable, Source, view_weights};
use crate::backend::answers::{DISTANCES, KeptRows, Labels};
#[cfg(feature = "polars")]
use crate::backend::answers::{NearestClusters, Predictions};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::parallel::FloatEnvironment;
#[cfg(feature = "polars")]
use crate::base::params::Space;
use crate::base::params::{KMeans, NullPolicy, Wanted};
use crate::fit;
use crate::input::features::Column;
use crate::input::tile::RowBlock;
#[cfg(feature = "polars")]
use crate::model::Sums;
use crate::model::{AnyFeatures, DeviceModel, KMeansModel};
use crate::simd::InstructionSet;

/// The columns of a fit, in the type of the fit.
pub(crate) struct FitTable<'e, S> {
    estimator: &'e KMeans,
    pub(super) table: FeatureTable<S>,
    pub(super) weights: Option<S>,
}

impl KMeans {
    /// Casts the columns of a fit. `check` refuses names: with [`FeatureLayout::check`], those that a centroid frame cannot have.
    pub(crate) fn cast<S: Source>(
        &self,
        columns: &[S],
        weights: Option<&S>,
        check: impl FnOnce(&FeatureLayout) -> Result<()>,
    ) -> Result<FitTable<'_, S>> {
        let _environment = FloatEnvironment::default_rounding();
        let table = FeatureTable::new(columns, false, None)?;
        if table.all_null {
            return Err(self.refuse_null_lists(columns[0].name(), columns[0].rows()));
        }
        let weights = weights.map(super::weights).transpose()?;
        check(&table.layout)?;
        Ok(FitTable { estimator: self, table, weights })
    }

    /// The error for a column of `n` lists that are all null, so that their width is unknown.
    fn refuse_null_lists(&self, column: &str, n: usize) -> KMeansError {
        let n = n as u64;
        match self.rows.null_policy {
            NullPolicy::Raise if n > 0 => KMeansError::NotFinite { column: column.into(), nulls: n, nans: 0, infinities: 0 },
            _ => KMeansError::NoRows { skipped: (n > 0).then_some(n) },
        }
    }

    /// For each of these numbers of clusters, the model of features of either type, and what is wanted of the rows.
    pub(crate) fn fit_any(
        &self,
        clusters: &[usize],
        layout: &FeatureLayout,
        features: AnyFeatures<'_>,
        weights: Option<&Column<'_, f64>>,
        wanted: Wanted,
    ) -> Result<Vec<Result<(KMeansModel, KeptRows)>>> {
        macro_rules! named {
            ($x:expr) => {{
                let parts = vec![RowBlock::new($x, weights.cloned())];
                let fits = fit::fits(self, clusters, None, parts, InstructionSet::detect(), wanted)?;
                Ok(fits.into_iter().map(|fit| Ok(fit?.named(layout.copy()?))).collect())
            }};
        }
        match features {
            AnyFeatures::F32(x) => named!(x),
            AnyFeatures::F64(x) => named!(x),
        }
    }
}

impl<S: Source> FitTable<'_, S> {
    /// The model of the columns, and what is wanted of the rows.
    pub(crate) fn fit(&self, wanted: Wanted) -> Result<(KMeansModel, KeptRows)> {
        let weights = self.weights.as_ref().map(view_weights).transpose()?;
        let (estimator, FeatureTable { layout, .. }) = (self.estimator, &self.table);
        estimator.fit_any(&[estimator.k], layout, self.table.view()?, weights.as_ref(), wanted)?.remove(0)
    }

    /// The model for each of these numbers of clusters.
    #[cfg(feature = "python")]
    pub(crate) fn fit_each(&self, clusters: &[usize]) -> Result<Vec<Result<KMeansModel>>> {
        let weights = self.weights.as_ref().map(view_weights).transpose()?;
        let (layout, features) = (&self.table.layout, self.table.view()?);
        let fits = self.estimator.fit_any(clusters, layout, features, weights.as_ref(), Wanted::Nothing)?;
        Ok(fits.into_iter().map(|fit| Ok(fit?.0)).collect())
    }
}

impl KMeansModel {
    /// The columns in the wider of the model's type and their own type: float64 input is never cast to float32. `None` if no row
    /// can have an answer: see [`FeatureTable::all_null`].
    pub(crate) fn table<S: Source>(&self, columns: &[S]) -> Result<Option<FeatureTable<S>>> {
        let _environment = FloatEnvironment::default_rounding();
        let table = FeatureTable::new(columns, !self.is_f32(), Some(self.n_features()))?;
        Ok((!table.all_null).then_some(table))
    }
}

impl KMeansModel {
    /// The labels of least inertia of rows under this model, within the bounds on sizes of the estimator.
    #[cfg(feature = "polars")]
    pub(crate) fn assigned<S: Source>(&self, estimator: &KMeans, columns: &[S], weights: Option<&S>) -> Result<Labels> {
        let Some(table) = self.table(columns)? else { return Labels::none(columns[0].rows()) };
        let weights = weights.map(super::weights).transpose()?;
        let weights = weights.as_ref().map(view_weights).transpose()?;
        let (k, space) = (self.n_clusters(), Space::default());
        let estimator = KMeans { k, space, ..estimator.clone() };
        let (centroids, transform) = self.as_compared()?;
        macro_rules! labels {
            ($x:expr) => {{
                let parts = vec![RowBlock::new($x.transformed_by(transform), weights)];
                let fit = fit::fits(&estimator, &[k], Some(&centroids), parts, InstructionSet::detect(), Wanted::Labels)?;
                fit.into_iter()
                    .next()
                    .map_or(Err(KMeansError::NoFeatures), |fit| fit?.named(table.layout.copy()?).1.into_labels())
            }};
        }
        match table.view()? {
            AnyFeatures::F32(x) => labels!(x),
            AnyFeatures::F64(x) => labels!(x),
        }
    }
}

impl DeviceModel<'_, KMeansModel> {
    /// What `answer` says of the columns as features. `none` answers for so many rows that cannot have an answer.
    fn ask<S: Source, R>(
        &self,
        columns: &[S],
        answer: impl FnOnce(&AnyFeatures<'_>) -> Result<R>,
        none: impl FnOnce(usize) -> Result<R>,
    ) -> Result<R> {
        match self.model.table(columns)? {
            Some(table) => answer(&table.view()?),
            None => none(columns[0].rows()),
        }
    }

    pub(crate) fn labels_of<S: Source>(&self, columns: &[S]) -> Result<Labels> {
        self.ask(columns, |features| self.predict_any(features), Labels::none)
    }

    #[cfg(feature = "polars")]
    pub(crate) fn predictions_of<S: Source>(&self, columns: &[S]) -> Result<Predictions> {
        let k = self.model.n_clusters();
        self.ask(columns, |features| self.predict_distances_any(features), |rows| Predictions::none(rows, k))
    }

    /// The distances to all centroids, or their squares. They are NaN for a row without an answer. Rows with finite values never
    /// have a distance of NaN.
    pub(crate) fn distances_of<S: Source>(&self, columns: &[S], squared: bool) -> Result<Vec<f64>> {
        let none = |rows| memory::filled(rows * self.model.n_clusters(), f64::NAN, DISTANCES);
        self.ask(columns, |features| self.transform_any(features, squared), none)
    }

    #[cfg(feature = "polars")]
    pub(crate) fn nearest_clusters_of<S: Source>(&self, columns: &[S], m: usize, squared: bool) -> Result<NearestClusters> {
        let answer = |features: &AnyFeatures<'_>| self.nearest_clusters_any(features, m, squared);
        self.ask(columns, answer, |rows| NearestClusters::none(rows, m))
    }

    /// The sums of rows by cluster. Rows of columns without values have none.
    #[cfg(feature = "polars")]
    pub(crate) fn sums_of<S: Source>(
        &self,
        columns: &[S],
        weights: Option<&Column<'_, f64>>,
        labels: Option<&Labels>,
    ) -> Result<Sums> {
        let model = self.model;
        let none = |rows: usize| {
            if rows > 0 && model.settings().null_policy == NullPolicy::Raise.word() {
                let (column, nulls) = (columns[0].name().into(), rows as u64);
                return Err(KMeansError::NotFinite { column, nulls, nans: 0, infinities: 0 });
            }
            Sums::none(model.fingerprint()?, model.n_clusters(), model.n_features())
        };
        let sums = |features: &AnyFeatures<'_>| {
            self.check_type(features)?;
            self.sums_any(features, weights, labels)
        };
        self.ask(columns, sums, none)
    }

    pub(crate) fn score_of<S: Source>(&self, columns: &[S], weights: Option<&S>) -> Result<f64> {
        let _environment = FloatEnvironment::default_rounding();
        let weights = weights.map(super::weights).transpose()?;
        let weights = weights.as_ref().map(view_weights).transpose()?;
        self.ask(columns, |features| self.score_any(features, weights.as_ref()), |_| Ok(0.0))
    }
}
