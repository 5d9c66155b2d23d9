//! Polars frames in and out. Columns become [`Features`](crate::Features) without a copy if they are float32 or float64
//! already. Results become a label column and frames.
//!
//! The engine allocates all memory that grows with the rows, and columns take it over without a copy. Polars itself allocates
//! memory in a few cases, and ends the process if there is none: casts of columns of other types, lists that become arrays,
//! joined chunks of Array columns of other types, the batches of a file that is written, masks over structs, and the bytes of a
//! model as a literal.

mod batches;
mod columns;
mod free_memory;
mod model;
#[cfg(feature = "parts")]
mod parts;
mod spill;
mod sums;
mod trees;

pub use batches::Spill;
#[cfg(feature = "python")]
pub(crate) use batches::{ColumnGatherer, FitColumns};
#[cfg(feature = "python")]
pub(crate) use columns::frame_of;
pub use columns::{RowMajor, row_major};
#[cfg(feature = "python")]
pub(crate) use free_memory::memory as memory_of_machine;
#[cfg(feature = "python")]
pub(crate) use model::nan_is_null;
#[cfg(feature = "parts")]
pub use parts::FrameRows;
#[cfg(feature = "python")]
pub(crate) use sums::sums_dtype;
pub use trees::TreeFit;

use polars::prelude::*;
use polars_arrow::bitmap::Bitmap;

use crate::backend::answers::{Answered, KeptRows, Labels};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::params::{KMeans, Wanted};
use crate::columns::COLUMNS;
use crate::model::KMeansModel;

/// The name of columns of labels.
pub(crate) const CLUSTER: &str = "cluster";

impl From<PolarsError> for KMeansError {
    fn from(error: PolarsError) -> Self {
        Self::Frame(error.to_string())
    }
}

/// A fitted model, and the labels of the frame that it was fitted to.
#[derive(Debug, Clone)]
pub struct FrameFit {
    pub model: KMeansModel,
    /// `UInt32`, one per row of the frame. Null if `null_policy="skip"` left the row out.
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

    /// Fits columns, with one weight per row if `weights` is given. Also returns the labels.
    ///
    /// # Errors
    /// As [`KMeans::fit`].
    pub fn fit_columns(&self, columns: &[Column], weights: Option<&Column>) -> Result<FrameFit> {
        let (model, rows) = self.cast(columns, weights, FeatureLayout::check)?.fit(Wanted::Labels)?;
        Ok(FrameFit { model, labels: label_column(rows.into_labels()?)? })
    }

    /// As [`KMeans::fit_columns`], with the rows' distances: one struct per row, as [`KMeansModel::predict_structs`] gives them.
    /// The fit finds the distances where it has the rows. A struct is null if `null_policy="skip"` left the row out.
    ///
    /// # Errors
    /// As [`KMeans::fit`].
    pub fn fit_structs(&self, columns: &[Column], weights: Option<&Column>) -> Result<(KMeansModel, StructChunked)> {
        let (model, rows) = self.cast(columns, weights, FeatureLayout::check)?.fit(Wanted::Distances)?;
        Ok((model, structs_of(rows)?))
    }

    /// As [`KMeans::fit_columns`], without the labels. They are then not copied from a GPU.
    ///
    /// # Errors
    /// As [`KMeans::fit`].
    pub fn fit_model(&self, columns: &[Column], weights: Option<&Column>) -> Result<KMeansModel> {
        Ok(self.cast(columns, weights, FeatureLayout::check)?.fit(Wanted::Nothing)?.0)
    }

    /// A model, and the labels of its rows if they are wanted.
    #[cfg(feature = "python")]
    pub(crate) fn fit_and_label(
        &self,
        columns: &[Column],
        weights: Option<&Column>,
        labels: bool,
    ) -> Result<(KMeansModel, Option<Series>)> {
        if !labels {
            return Ok((self.fit_model(columns, weights)?, None));
        }
        let FrameFit { model, labels } = self.fit_columns(columns, weights)?;
        Ok((model, Some(labels.into_series())))
    }

    /// The labels of a fit, or structs of labels and distances, without its model. So columns may have the names of a centroid
    /// frame's own columns.
    #[cfg(feature = "python")]
    pub(crate) fn fit_answers(&self, columns: &[Column], weights: Option<&Column>, wanted: Wanted) -> Result<Series> {
        let (_, rows) = self.cast(columns, weights, FeatureLayout::check_names)?.fit(wanted)?;
        Ok(match wanted {
            Wanted::Distances => structs_of(rows)?.into_series(),
            _ => label_column(rows.into_labels()?)?.into_series(),
        })
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
    memory::try_collected(names.into_iter().map(|name| find(name.as_ref())), COLUMNS)
}

/// The structs of a fit of which the distances were wanted.
fn structs_of(rows: KeptRows) -> Result<StructChunked> {
    let Some(predictions) = rows.into_predictions()? else { unreachable!("the distances were wanted") };
    model::structs(predictions)
}

/// Labels as a column. The values are not copied.
fn label_column(labels: Labels) -> Result<UInt32Chunked> {
    let (values, answered) = labels.into_parts();
    Ok(nullable(CLUSTER, values, bitmap(answered)?))
}

/// A column of values, with its bitmap of those that are not null. The values are not copied.
fn nullable<P: PolarsNumericType>(name: &'static str, values: Vec<P::Native>, answered: Option<Bitmap>) -> ChunkedArray<P> {
    ChunkedArray::from_vec_validity(PlSmallStr::from_static(name), values, answered)
}

/// A bitmap that columns can share. `None` if every row has an answer.
fn bitmap(answered: Answered) -> Result<Option<Bitmap>> {
    let rows = answered.rows();
    Ok(answered.into_bits().map(|bits| Bitmap::try_new(bits, rows)).transpose()?)
}
