//! Fits of features of either type, with the names of their columns.

use crate::backend::answers::KeptRows;
use crate::base::error::{KMeansError, Result};
use crate::base::params::{KMeans, NullPolicy, Wanted};
use crate::input::features::Column;
use crate::model::{AnyFeatures, AnyModel, FeatureLayout, KMeansModel};
#[cfg(feature = "python")]
use crate::model::{Fitted, Model};

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

    /// The models of [`KMeans::fit_each`].
    #[cfg(feature = "python")]
    pub(crate) fn fit_each_any(
        &self,
        k: &[usize],
        layout: &FeatureLayout,
        features: AnyFeatures<'_>,
        weights: Option<&Column<'_, f64>>,
    ) -> Result<Vec<Result<KMeansModel>>> {
        fn named<T>(
            fits: Vec<Result<Fitted<T>>>,
            layout: &FeatureLayout,
            any: fn(Model<T>) -> AnyModel,
        ) -> Vec<Result<KMeansModel>> {
            let model = |fit: Fitted<T>| {
                let ((model, ran), _) = fit.into_model_and_rows();
                Ok(KMeansModel::of_fit(layout.copy()?, any(model), ran))
            };
            fits.into_iter().map(|fit| fit.and_then(model)).collect()
        }
        layout.check()?;
        Ok(match features {
            AnyFeatures::F32(features) => named(self.fit_each(k, &features, weights)?, layout, AnyModel::F32),
            AnyFeatures::F64(features) => named(self.fit_each(k, &features, weights)?, layout, AnyModel::F64),
        })
    }

    /// As [`KMeans::fit_any`], where no column of the model's frame will have one of the names.
    pub(crate) fn fit_named(
        &self,
        layout: FeatureLayout,
        features: AnyFeatures<'_>,
        weights: Option<&Column<'_, f64>>,
        wanted: Wanted,
    ) -> Result<(KMeansModel, KeptRows)> {
        let ((model, ran), rows) = match features {
            AnyFeatures::F32(features) => {
                let ((model, ran), rows) = self.fit_with(&features, weights, wanted)?.into_model_and_rows();
                ((AnyModel::F32(model), ran), rows)
            }
            AnyFeatures::F64(features) => {
                let ((model, ran), rows) = self.fit_with(&features, weights, wanted)?.into_model_and_rows();
                ((AnyModel::F64(model), ran), rows)
            }
        };
        Ok((KMeansModel::of_fit(layout, model, ran), rows))
    }
}
