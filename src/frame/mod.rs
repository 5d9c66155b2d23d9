//! Polars frames in and out: columns become [`Features`](crate::Features) without a copy where they are float32 or float64
//! already, results become a label column and frames.

mod columns;
mod model;
mod wire;

pub use columns::FrameFeatures;
pub use model::KMeansModel;

use polars::prelude::*;

use crate::error::{KMeansError, Result};
use crate::model::{Fitted, Model};
use crate::parallel::FloatEnvironment;
use crate::params::KMeans;

/// Names of the centroid frame's own columns, which no feature may have.
pub const RESERVED_NAMES: [&str; 3] = ["cluster", "size", "inertia"];

impl From<PolarsError> for KMeansError {
    fn from(error: PolarsError) -> Self {
        Self::Frame(error.to_string())
    }
}

/// A fitted model, and the labels of the frame that it was fitted to.
#[derive(Debug, Clone)]
pub struct FrameFit {
    pub model: KMeansModel,
    /// `UInt32`, one a row of the frame; null where `null_policy="skip"` left the row out.
    pub labels: UInt32Chunked,
}

impl KMeans {
    /// Fits the named columns of a frame.
    ///
    /// ```
    /// use polars::prelude::*;
    /// use polars_kmeans::KMeans;
    ///
    /// let df = df!("x" => [1.0, 1.2, 8.0, 8.2], "y" => [0.5, 0.4, 3.0, 3.1])?;
    /// let model = KMeans::new(2).seed(1).fit(&df, ["x", "y"])?;
    /// assert_eq!(model.centroids()?.shape(), (2, 5));
    /// assert_eq!(model.predict(&df)?.len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Whatever is wrong with the parameters, the columns or their values: see [`KMeansError`].
    pub fn fit(&self, df: &DataFrame, columns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<KMeansModel> {
        Ok(self.fit_columns(&select(df, columns)?, None)?.model)
    }

    /// Fits columns, with a weight a row if given; also returns the labels.
    ///
    /// # Errors
    /// As [`KMeans::fit`].
    pub fn fit_columns(&self, columns: &[Column], weights: Option<&Column>) -> Result<FrameFit> {
        let _environment = FloatEnvironment::default_rounding();
        let features = FrameFeatures::new(columns)?;
        features.check_names()?;
        let weights = weights.map(columns::weights).transpose()?;
        let weights = weights.as_ref().map(columns::view).transpose()?;
        match &features {
            FrameFeatures::F32 { .. } => {
                let fitted = self.fit_features(&features.view_f32()?, weights.as_ref())?;
                let (model, labels) = split(fitted);
                Ok(FrameFit { model: KMeansModel::F32(model), labels })
            }
            FrameFeatures::F64 { .. } => {
                let fitted = self.fit_features(&features.view_f64()?, weights.as_ref())?;
                let (model, labels) = split(fitted);
                Ok(FrameFit { model: KMeansModel::F64(model), labels })
            }
        }
    }
}

/// The named columns of a frame.
fn select(df: &DataFrame, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Column>> {
    names.into_iter().map(|name| Ok(df.column(name.as_ref())?.clone())).collect()
}

/// The model, and the labels as a column: the engine's own buffer where every row was kept.
fn split<T>(fitted: Fitted<T>) -> (Model<T>, UInt32Chunked) {
    let name = "label".into();
    let labels = if fitted.kept_all() {
        UInt32Chunked::from_vec(name, fitted.labels)
    } else {
        UInt32Chunked::from_iter_options(name, fitted.expand().into_iter())
    };
    (fitted.model, labels)
}
