//! Fits of features of either type, with the names of their columns.

use crate::backend::answers::KeptRows;
use crate::base::error::{KMeansError, Result};
use crate::base::params::{KMeans, NullPolicy, Wanted};
use crate::input::features::Column;
use crate::model::{AnyFeatures, AnyModel, FeatureLayout, Fitted, KMeansModel, Model};

impl KMeans {
    /// The error for a column of `n` lists that are all null, so that their width is unknown.
    pub(crate) fn refuse_null_lists(&self, column: &str, n: usize) -> KMeansError {
        let n = n as u64;
        match self.rows.null_policy {
            NullPolicy::Raise if n > 0 => KMeansError::NotFinite { column: column.into(), nulls: n, nans: 0, infinities: 0 },
            _ => KMeansError::NoRows { skipped: (n > 0).then_some(n) },
        }
    }

    /// Fits features of either type.
    pub(crate) fn fit_any(
        &self,
        layout: FeatureLayout,
        features: AnyFeatures<'_>,
        weights: Option<&Column<'_, f64>>,
        wanted: Wanted,
    ) -> Result<(KMeansModel, KeptRows)> {
        layout.check()?;
        self.fit_named(layout, features, weights, wanted)
    }

    /// As [`KMeans::fit_any`], where no column of the model's frame will have one of the names.
    pub(crate) fn fit_named(
        &self,
        layout: FeatureLayout,
        features: AnyFeatures<'_>,
        weights: Option<&Column<'_, f64>>,
        wanted: Wanted,
    ) -> Result<(KMeansModel, KeptRows)> {
        Ok(match features {
            AnyFeatures::F32(features) => named(self.fit_with(&features, weights, wanted)?, layout, AnyModel::F32),
            AnyFeatures::F64(features) => named(self.fit_with(&features, weights, wanted)?, layout, AnyModel::F64),
        })
    }

    /// The models of [`KMeans::fit_each`].
    #[cfg(feature = "python")]
    pub(crate) fn fit_each_any(
        &self,
        k: &[usize],
        layout: &FeatureLayout,
        features: AnyFeatures<'_>,
        weights: Option<&Column<'_, f64>>,
    ) -> Result<Vec<Result<KMeansModel>>> {
        fn models<T>(
            fits: Vec<Result<Fitted<T>>>,
            layout: &FeatureLayout,
            any: fn(Model<T>) -> AnyModel,
        ) -> Vec<Result<KMeansModel>> {
            fits.into_iter().map(|fit| Ok(named(fit?, layout.copy()?, any).0)).collect()
        }
        layout.check()?;
        Ok(match features {
            AnyFeatures::F32(features) => models(self.fit_each(k, &features, weights)?, layout, AnyModel::F32),
            AnyFeatures::F64(features) => models(self.fit_each(k, &features, weights)?, layout, AnyModel::F64),
        })
    }
}

/// The model of a fit with the names of its columns, and what the fit says of the rows.
fn named<T>(fit: Fitted<T>, layout: FeatureLayout, any: fn(Model<T>) -> AnyModel) -> (KMeansModel, KeptRows) {
    let ((model, ran), rows) = fit.into_model_and_rows();
    (KMeansModel::of_fit(layout, any(model), ran), rows)
}
