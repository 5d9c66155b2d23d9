//! Models and features of either float type.

use serde::{Deserialize, Serialize};

#[cfg(feature = "polars")]
use super::Sums;
#[cfg(feature = "python")]
use super::living::Living;
use super::{DeviceModel, KMeansModel, Model};
use crate::backend::answers::Labels;
#[cfg(feature = "polars")]
use crate::backend::answers::{NearestClusters, Predictions};
#[cfg(all(feature = "python", feature = "cuda"))]
use crate::backend::cuda::array::{GpuArray, GpuPredictions};
use crate::base::error::{KMeansError, Result};
use crate::base::parallel::FloatEnvironment;
use crate::input::features::{Column, Features};

/// A model in the float type of the features that it was fitted to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AnyModel {
    F32(Model<f32>),
    F64(Model<f64>),
}

impl From<Model<f32>> for AnyModel {
    fn from(model: Model<f32>) -> Self {
        Self::F32(model)
    }
}

impl From<Model<f64>> for AnyModel {
    fn from(model: Model<f64>) -> Self {
        Self::F64(model)
    }
}

/// Features in one of the two float types.
pub(crate) enum AnyFeatures<'a> {
    F32(Features<'a, f32>),
    F64(Features<'a, f64>),
}

/// Answers for features of either type, in the wider of the model's type and theirs: float64 input is never cast to float32.
/// Callers widen float32 columns for a float64 model.
macro_rules! answers {
    ($($(#[$when:meta])* $any:ident($($argument:ident: $type:ty),*) = $method:ident -> $answer:ty;)*) => {
        impl DeviceModel<'_, KMeansModel> {
            $(
                $(#[$when])*
                pub(crate) fn $any(&self, features: &AnyFeatures<'_> $(, $argument: $type)*) -> Result<$answer> {
                    let _environment = FloatEnvironment::default_rounding();
                    let (whole, device) = (self.model, self.device);
                    match (&whole.model, features) {
                        (AnyModel::F32(model), AnyFeatures::F32(x)) => model.on(device).$method(x $(, $argument)*),
                        (AnyModel::F32(model), AnyFeatures::F64(x)) => {
                            whole.widened.get(|| model.widened())?.on(device).$method(x $(, $argument)*)
                        }
                        (AnyModel::F64(model), AnyFeatures::F64(x)) => model.on(device).$method(x $(, $argument)*),
                        (AnyModel::F64(_), AnyFeatures::F32(_)) => Err(KMeansError::UnsupportedDtype {
                            column: whole.names()[0].clone(),
                            got: "float32 for a float64 model".into(),
                        }),
                    }
                }
            )*
        }
    };
}

answers! {
    predict_any() = predict -> Labels;
    #[cfg(feature = "polars")]
    predict_distances_any() = predict_distances -> Predictions;
    transform_any(squared: bool) = transform -> Vec<f64>;
    #[cfg(feature = "polars")]
    nearest_clusters_any(m: usize, squared: bool) = nearest_clusters -> NearestClusters;
    #[cfg(feature = "polars")]
    sums_any(weights: Option<&Column<'_, f64>>, labels: Option<&Labels>) = sums -> Sums;
    #[cfg(feature = "python")]
    step_any(weights: Option<&Column<'_, f64>>, ratio: f64) = step -> (Living, f64);
    score_any(weights: Option<&Column<'_, f64>>) = score -> f64;
    #[cfg(all(feature = "python", feature = "cuda"))]
    predict_any_on_device() = predict_there -> GpuArray<i32>;
    #[cfg(all(feature = "python", feature = "cuda"))]
    predict_distances_any_on_device() = predict_distances_there -> GpuPredictions;
    #[cfg(all(feature = "python", feature = "cuda"))]
    transform_any_on_device(squared: bool) = transform_there -> GpuArray<f64>;
}

impl DeviceModel<'_, KMeansModel> {
    /// Refuses features of another type than the model's: their sums would not be those of the fit.
    #[cfg(feature = "polars")]
    pub(crate) fn check_type(&self, features: &AnyFeatures<'_>) -> Result<()> {
        let word = |float32: bool| if float32 { "float32" } else { "float64" };
        let (expected, got) = (word(self.model.is_f32()), word(matches!(features, AnyFeatures::F32(_))));
        if expected == got { Ok(()) } else { Err(KMeansError::OtherType { expected, got }) }
    }
}
