//! What Polars users do with a model: labels, distances and frames.

use polars::prelude::*;
use polars_arrow::array::{FixedSizeListArray, PrimitiveArray};
use polars_arrow::bitmap::Bitmap;
use polars_arrow::datatypes::ArrowDataType;
use polars_arrow::types::NativeType as PolarsNativeType;

use super::{CLUSTER, bitmap, label_column, nullable, select};
use crate::backend::answers::{self, Answered, Distances, NearestClusters, Predictions};
#[cfg(any(doc, feature = "python"))]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::params::KMeans;
#[cfg(feature = "python")]
use crate::columns::is_all_null;
use crate::model::{AnyModel, KMeansModel, Model, on_any_device};

impl KMeansModel {
    /// A frame of `k` rows: `cluster` (UInt32), `size` (UInt64), `inertia` (Float64; null after an update), then one column per feature in the
    /// features' type and units, or the one Array column.
    ///
    /// # Errors
    /// [`KMeansError::Frame`] if Polars refuses the names.
    pub fn centroids(&self) -> Result<DataFrame> {
        match self.as_any() {
            AnyModel::F32(model) => centroid_frame::<Float32Type>(self.layout(), model),
            AnyModel::F64(model) => centroid_frame::<Float64Type>(self.layout(), model),
        }
    }

    /// One row per iteration: `iteration` (UInt32), `changed` (UInt64), `shift`, `inertia` (null unless the history is full),
    /// `settled`, `rescored` and `skipped` (Float64: shares of the rows that reference distances settled, of those that a second
    /// filter looked at, and of the scores that were not computed), `groups` (UInt32: groups of rows with their own centroids),
    /// `passes` (Float64: those over the rows that an assignment with bounds on sizes took) and `seconds` (Float64). The last six are null if the fit did not count them, and in a model that was loaded.
    ///
    /// # Errors
    /// [`KMeansError::Frame`] if Polars refuses.
    pub fn history(&self) -> Result<DataFrame> {
        let rows = self.history_rows();
        Ok(df!(
            "iteration" => rows.iter().map(|row| row.iteration).collect::<Vec<_>>(),
            "changed" => rows.iter().map(|row| row.changed).collect::<Vec<_>>(),
            "shift" => rows.iter().map(|row| row.shift).collect::<Vec<_>>(),
            "inertia" => rows.iter().map(|row| row.inertia).collect::<Vec<_>>(),
            "settled" => rows.iter().map(|row| row.settled).collect::<Vec<_>>(),
            "rescored" => rows.iter().map(|row| row.rescored).collect::<Vec<_>>(),
            "skipped" => rows.iter().map(|row| row.skipped).collect::<Vec<_>>(),
            "groups" => rows.iter().map(|row| row.groups).collect::<Vec<_>>(),
            "passes" => rows.iter().map(|row| row.passes).collect::<Vec<_>>(),
            "seconds" => rows.iter().map(|row| row.seconds).collect::<Vec<_>>(),
        )?)
    }

    /// The error for columns of which some rows have no label. It counts the values that are at fault.
    #[cfg(feature = "python")]
    pub(crate) fn refused_values(&self, columns: &[Column]) -> Result<KMeansError> {
        match self.table(columns)? {
            Some(table) => self.bad_values(&table.view()?),
            None => {
                let column = columns.iter().find(|column| is_all_null(*column)).unwrap_or(&columns[0]);
                let (column, nulls) = (column.name().to_string(), column.len() as u64);
                Ok(KMeansError::NotFinite { column, nulls, nans: 0, infinities: 0 })
            }
        }
    }

    /// Labels rows by this model's centroids: of all labels within the bounds on sizes, those of least inertia. `estimator` gives
    /// the bounds, the threads, the device and the null policy. The columns are given in the order of the model's features. The
    /// labels are `UInt32`, null where a row was skipped. A cluster may be empty, unless `min_size` forbids it. So there may be
    /// fewer rows than clusters.
    ///
    /// ```
    /// use polars::prelude::*;
    /// use polars_kmeans::{KMeans, SizeLimit};
    ///
    /// let df = df!("x" => [1.0, 1.2, 8.0, 8.2])?;
    /// let model = KMeans::new(2).seed(1).fit(&df, ["x"])?;
    /// let new = df!("x" => [1.1, 1.3, 1.4, 1.5])?;
    /// let labels = model.assign_columns(&KMeans::new(2).max_size(SizeLimit::Rows(2)), new.columns(), None)?;
    /// assert_eq!(labels.into_no_null_iter().filter(|label| *label == 0).count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`KMeansError::InfeasibleSizes`], or as [`KMeansModel::predict_columns`] and those of weights.
    pub fn assign_columns(&self, estimator: &KMeans, columns: &[Column], weights: Option<&Column>) -> Result<UInt32Chunked> {
        label_column(self.assigned(estimator, columns, weights)?)
    }

    /// The columns of a frame that the model needs.
    fn select(&self, df: &DataFrame) -> Result<Vec<Column>> {
        select(df, self.columns_to_find()?)
    }
}

on_any_device! {
    impl KMeansModel {
        /// The label of every row of a frame that has the model's columns: `UInt32`, null if a value is null or not finite.
        ///
        /// # Errors
        /// [`KMeansError::MissingColumn`], or as [`KMeansModel::predict_columns`].
        pub fn predict(&self, df: &DataFrame) -> Result<UInt32Chunked> {
            self.predict_columns(&self.model.select(df)?)
        }

        /// The label of every row. The columns are given in the order of the model's features.
        ///
        /// # Errors
        /// [`KMeansError::WidthMismatch`], [`KMeansError::UnsupportedDtype`] or [`KMeansError::LengthMismatch`].
        pub fn predict_columns(&self, columns: &[Column]) -> Result<UInt32Chunked> {
            label_column(self.labels_of(columns)?)
        }

        /// A frame with `cluster` (UInt32), `distance` and `second_distance` (Float64; null with one cluster) of every row.
        ///
        /// # Errors
        /// As [`KMeansModel::predict_columns`].
        pub fn predict_distances(&self, columns: &[Column]) -> Result<DataFrame> {
            distance_frame(self.predictions_of(columns)?)
        }

        /// As [`KMeansModel::predict_distances`], as one struct per row. A struct is null where [`KMeansModel::predict`] gives
        /// null.
        ///
        /// # Errors
        /// As [`KMeansModel::predict_columns`].
        pub fn predict_structs(&self, columns: &[Column]) -> Result<StructChunked> {
            structs(self.predictions_of(columns)?)
        }

        /// The Euclidean distance of every row of a frame to every centroid, or with `squared` the squared one that decides
        /// labels: `Array(Float64, k)`, null if a value is null or not finite. See [`Model::transform`].
        ///
        /// # Errors
        /// As [`KMeansModel::predict`].
        pub fn transform(&self, df: &DataFrame, squared: bool) -> Result<Series> {
            self.transform_columns(&self.model.select(df)?, squared)
        }

        /// As [`KMeansModel::transform`]. The columns are given in the order of the model's features.
        ///
        /// # Errors
        /// As [`KMeansModel::predict_columns`].
        pub fn transform_columns(&self, columns: &[Column], squared: bool) -> Result<Series> {
            let name = if squared { "squared_distances" } else { "distances" };
            nan_is_null(name, self.distances_of(columns, squared)?, Some(self.model.n_clusters()))
        }

        /// The `m` nearest centroids of every row of a frame: a struct of `clusters` (Array(UInt32, m)) and `distances`
        /// (Array(Float64, m); with `squared`, those that decide labels), by (distance, number). Null if a value is null or not
        /// finite.
        ///
        /// # Errors
        /// As [`KMeansModel::predict`] and [`Model::nearest_clusters`].
        pub fn nearest_clusters(&self, df: &DataFrame, m: usize, squared: bool) -> Result<StructChunked> {
            self.nearest_clusters_columns(&self.model.select(df)?, m, squared)
        }

        /// As [`KMeansModel::nearest_clusters`]. The columns are given in the order of the model's features.
        ///
        /// # Errors
        /// As [`KMeansModel::predict_columns`] and [`Model::nearest_clusters`].
        pub fn nearest_clusters_columns(&self, columns: &[Column], m: usize, squared: bool) -> Result<StructChunked> {
            let NearestClusters { clusters, distances, answered, .. } = self.nearest_clusters_of(columns, m, squared)?;
            let validity = bitmap(answered)?;
            let n = clusters.len() / m;
            let clusters = arrays("clusters", clusters, m, validity.clone())?.into_column();
            let distances = arrays("distances", distances, m, validity.clone())?.into_column();
            Ok(DataFrame::new(n, vec![clusters, distances])?.into_struct(PlSmallStr::EMPTY).with_outer_validity(validity))
        }

        /// Minus the inertia of a frame's rows under the model, as in scikit-learn. Rows with nulls or values that are not finite
        /// are left out.
        ///
        /// # Errors
        /// As [`KMeansModel::predict`].
        pub fn score(&self, df: &DataFrame) -> Result<f64> {
            self.score_columns(&self.model.select(df)?, None)
        }

        /// As [`KMeansModel::score`]. The columns are given in the order of the model's features. `weights` has one weight per
        /// row.
        ///
        /// # Errors
        /// As [`KMeansModel::predict_columns`], and those of the weights.
        pub fn score_columns(&self, columns: &[Column], weights: Option<&Column>) -> Result<f64> {
            self.score_of(columns, weights)
        }
    }
}

/// A column of values, or of arrays of `width` values each. It is null where they are NaN.
pub(crate) fn nan_is_null(name: &'static str, values: Vec<f64>, width: Option<usize>) -> Result<Series> {
    let validity = |width: usize| {
        let answered = values.iter().step_by(width).map(|first| !first.is_nan());
        bitmap(Answered::collect(values.len() / width, answered)?)
    };
    let Some(width) = width else {
        let validity = validity(1)?;
        return Ok(nullable::<Float64Type>(name, values, validity).into_series());
    };
    let name = PlSmallStr::from_static(name);
    if values.is_empty() {
        return Ok(Series::new_empty(name, &DataType::Array(Box::new(DataType::Float64), width)));
    }
    let n = values.len() / width;
    let rows = validity(width)?;
    // The values in a null row are null too.
    let each = if rows.is_some() { validity(1)? } else { None };
    let values = PrimitiveArray::try_new(ArrowDataType::Float64, values.into(), each)?;
    let shape = FixedSizeListArray::default_datatype(ArrowDataType::Float64, width);
    let array = FixedSizeListArray::try_new(shape, n, values.boxed(), rows)?;
    Ok(ArrayChunked::with_chunk(name, array).into_series())
}

/// A column of arrays of `width` values each.
fn arrays<V: PolarsNativeType>(name: &'static str, values: Vec<V>, width: usize, rows: Option<Bitmap>) -> Result<Series> {
    let (n, dtype) = (values.len() / width, ArrowDataType::from(V::PRIMITIVE));
    let shape = FixedSizeListArray::default_datatype(dtype.clone(), width);
    let array = FixedSizeListArray::try_new(shape, n, PrimitiveArray::try_new(dtype, values.into(), None)?.boxed(), rows)?;
    Ok(ArrayChunked::with_chunk(PlSmallStr::from_static(name), array).into_series())
}

/// Columns of labels and distances, which share one bitmap. No value is copied.
fn distance_frame(predictions: Predictions) -> Result<DataFrame> {
    let n = predictions.len();
    let (labels, Distances { nearest, second }) = predictions.into_parts();
    let (labels, answered) = labels.into_parts();
    let answered = bitmap(answered)?;
    // With one cluster there is no second distance.
    let (second, second_answered) = match second {
        Some(second) => (second, answered.clone()),
        None => (memory::zeroed(n, answers::DISTANCES)?, bitmap(Answered::none(n)?)?),
    };
    let cluster: UInt32Chunked = nullable(CLUSTER, labels, answered.clone());
    let distance: Float64Chunked = nullable("distance", nearest, answered);
    let second: Float64Chunked = nullable("second_distance", second, second_answered);
    Ok(DataFrame::new(n, vec![cluster.into_column(), distance.into_column(), second.into_column()])?)
}

/// The same as one struct per row. A struct is null where the row has no answer.
pub(super) fn structs(predictions: Predictions) -> Result<StructChunked> {
    let rows = distance_frame(predictions)?;
    let validity = rows.column(CLUSTER)?.u32()?.downcast_iter().next().and_then(|labels| labels.validity().cloned());
    Ok(rows.into_struct(PlSmallStr::EMPTY).with_outer_validity(validity))
}

fn centroid_frame<P>(layout: &FeatureLayout, model: &Model<P::Native>) -> Result<DataFrame>
where
    P: PolarsNumericType,
    P::Native: Float,
    ChunkedArray<P>: IntoSeries,
{
    let (k, d) = (model.n_clusters(), model.n_features());
    let centroids = model.centroids_in_units()?;
    const WHAT: &str = "the frame of the centroids";
    let clusters = memory::collected(0..k as u32, WHAT)?;
    let sizes = memory::copied(model.sizes(), WHAT)?;
    // A model that was updated has none.
    let inertias = match model.inertias() {
        [] => Float64Chunked::full_null("inertia".into(), k),
        inertias => Float64Chunked::from_vec("inertia".into(), memory::copied(inertias, WHAT)?),
    };
    let mut columns = memory::with_room(3 + layout.columns().len(), WHAT)?;
    columns.push(UInt32Chunked::from_vec(CLUSTER.into(), clusters).into_column());
    columns.push(UInt64Chunked::from_vec("size".into(), sizes).into_column());
    columns.push(inertias.into_column());
    let series = |name: &str, values: Vec<P::Native>| ChunkedArray::<P>::from_vec(name.into(), values).into_series();
    match layout {
        FeatureLayout::Columns(names) => {
            for (f, name) in names.iter().enumerate() {
                let values = memory::collected(centroids.iter().copied().skip(f).step_by(d), WHAT)?;
                columns.push(series(name, values).into_column());
            }
        }
        FeatureLayout::Array(name) => {
            let shape = [ReshapeDimension::new_dimension(k as u64), ReshapeDimension::new_dimension(d as u64)];
            columns.push(series(name, centroids).reshape_array(&shape)?.into_column());
        }
    }
    Ok(DataFrame::new(k, columns)?)
}
