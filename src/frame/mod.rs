//! Polars frames in and out: columns become [`Features`](crate::Features) without a copy where they are float32 or float64
//! already, results become a label column and frames.

mod columns;
mod model;

pub use columns::{FrameFeatures, RowMajor, check_weight, float_type, row_major};
#[cfg(feature = "python")]
pub(crate) use model::null_where_not;

use polars::prelude::*;

use crate::error::{KMeansError, Result};
use crate::model::{KMeansModel, Labels};
use crate::parallel::FloatEnvironment;
use crate::params::KMeans;

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
    /// Fits the named columns of a frame: columns of numbers or booleans, or one Array or List column of them.
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
        self.fit_model(&select(df, columns)?, None)
    }

    /// As [`KMeans::fit`], with the weight of every row in a column of the frame: numbers of at least 0.
    ///
    /// # Errors
    /// As [`KMeans::fit`], and those of the weights.
    pub fn fit_weighted(
        &self,
        df: &DataFrame,
        columns: impl IntoIterator<Item = impl AsRef<str>>,
        weight: &str,
    ) -> Result<KMeansModel> {
        self.fit_model(&select(df, columns)?, Some(&select(df, [weight])?[0]))
    }

    /// Fits columns, with a weight a row if given; also returns the labels.
    ///
    /// # Errors
    /// As [`KMeans::fit`].
    pub fn fit_columns(&self, columns: &[Column], weights: Option<&Column>) -> Result<FrameFit> {
        let (model, labels) = self.fit_frame(columns, weights)?;
        Ok(FrameFit { model, labels: label_column(labels) })
    }

    /// As [`KMeans::fit_columns`] without the labels, which then do not leave a GPU.
    ///
    /// # Errors
    /// As [`KMeans::fit`].
    pub fn fit_model(&self, columns: &[Column], weights: Option<&Column>) -> Result<KMeansModel> {
        Ok(Self { labels: false, ..self.clone() }.fit_frame(columns, weights)?.0)
    }

    fn fit_frame(&self, columns: &[Column], weights: Option<&Column>) -> Result<(KMeansModel, Labels)> {
        let _environment = FloatEnvironment::default_rounding();
        let features = FrameFeatures::new(columns, false)?;
        if features.width_unknown {
            return Err(self.refuse_null_lists(columns[0].name(), columns[0].len()));
        }
        let weights = weights.map(columns::weights).transpose()?;
        let weights = weights.as_ref().map(columns::view).transpose()?;
        self.fit_any(features.layout().clone(), features.view()?, weights.as_ref())
    }
}

/// The named columns of a frame.
fn select(df: &DataFrame, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Column>> {
    let find = |name: &str| {
        df.column(name).cloned().map_err(|_| KMeansError::MissingColumn {
            column: name.into(),
            available: df.get_column_names().iter().map(ToString::to_string).collect(),
        })
    };
    names.into_iter().map(|name| find(name.as_ref())).collect()
}

/// Labels as a column: the engine's own buffer where every row was kept.
fn label_column(labels: Labels) -> UInt32Chunked {
    let name = "label".into();
    if labels.kept_all() {
        UInt32Chunked::from_vec(name, labels.kept)
    } else {
        UInt32Chunked::from_iter_options(name, labels.expand().into_iter())
    }
}
