//! arrow-rs record batches in and out. Arrays of float32 or float64, and fixed-size lists of them, are viewed and not copied.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{Float32Array, RecordBatch};
//! use polars_kmeans::KMeans;
//!
//! let x = Arc::new(Float32Array::from(vec![0.0, 0.1, 9.0, 9.1]));
//! let y = Arc::new(Float32Array::from(vec![1.0, 1.1, 5.0, 5.1]));
//! let batch = RecordBatch::try_from_iter([("x", x as _), ("y", y as _)])?;
//! let fit = KMeans::new(2).seed(1).fit_batches(&[batch.clone()], ["x", "y"], None)?;
//! assert_eq!(fit.labels[0], fit.model.predict_batch(&batch)?);
//! assert_eq!(fit.model.centroids_batch()?.num_rows(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod columns;
mod trees;

pub use self::trees::BatchTreeFit;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeListArray, Float64Array, PrimitiveArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float32Type, Float64Type, Schema};

use self::columns::{Arrays, frame_error, list_width};
use crate::backend::answers::{Answered, LABELS, Labels};
#[cfg(doc)]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::{KMeans, Wanted};
use crate::columns::COLUMNS;
use crate::model::{AnyModel, KMeansModel, Model, on_any_device};

/// How error messages call names.
const NAMES: &str = "the names of the columns";
/// How they call the centroids.
const TABLE: &str = "the table of the centroids";

/// A fitted model, and the labels of the batches that it was fitted to.
#[derive(Debug, Clone)]
pub struct BatchFit {
    pub model: KMeansModel,
    /// One array per batch. Null if `null_policy="skip"` left the row out.
    pub labels: Vec<UInt32Array>,
}

impl KMeans {
    /// Fits the named columns of record batches, which are taken as one table. `weight` names a column of weights.
    ///
    /// The columns hold numbers or booleans. Or there is one column, and it holds lists of such values, all of one width.
    ///
    /// # Errors
    /// Whatever is wrong with the parameters, the columns or their values: see [`KMeansError`].
    pub fn fit_batches(
        &self,
        batches: &[RecordBatch],
        columns: impl IntoIterator<Item = impl AsRef<str>>,
        weight: Option<&str>,
    ) -> Result<BatchFit> {
        let names = columns.into_iter().map(|name| memory::text(format_args!("{}", name.as_ref()), NAMES));
        let names = memory::try_collected(names, NAMES)?;
        let columns = arrays(batches, &names)?;
        let weights = weight.map(|name| Arrays::of(batches, name)).transpose()?;
        let (model, rows) = self.cast(&columns, weights.as_ref(), FeatureLayout::check)?.fit(Wanted::Labels)?;
        let lengths = batches.iter().map(RecordBatch::num_rows);
        Ok(BatchFit { model, labels: split(rows.into_labels()?, lengths)? })
    }
}

/// Columns over some batches.
fn arrays<'n>(batches: &[RecordBatch], names: &'n [String]) -> Result<Vec<Arrays<'n>>> {
    memory::try_collected(names.iter().map(|name| Arrays::of(batches, name)), COLUMNS)
}

/// The labels of each batch. They are views of the engine's own buffer.
fn split(labels: Labels, lengths: impl Iterator<Item = usize>) -> Result<Vec<UInt32Array>> {
    let all = label_array(labels);
    let mut start = 0;
    let mut next = |len| {
        start += len;
        all.slice(start - len, len)
    };
    memory::collected(lengths.map(&mut next), LABELS)
}

/// An array of labels. Neither the values nor the bitmap are copied.
fn label_array(labels: Labels) -> UInt32Array {
    let (values, answered) = labels.into_parts();
    UInt32Array::new(values.into(), nulls(answered))
}

fn nulls(answered: Answered) -> Option<NullBuffer> {
    let rows = answered.rows();
    answered.into_bits().map(|bits| NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(bits), 0, rows)))
}

impl KMeansModel {
    /// A table of `k` rows: `cluster` (UInt32), `size` (UInt64), `inertia` (Float64), then one column per feature in the
    /// features' type and units, or the one column of lists.
    ///
    /// # Errors
    /// [`KMeansError::Frame`] if arrow refuses.
    pub fn centroids_batch(&self) -> Result<RecordBatch> {
        let _environment = FloatEnvironment::default_rounding();
        let mut names = vec!["cluster", "size", "inertia"];
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from(memory::collected(0..self.n_clusters() as u32, TABLE)?)),
            Arc::new(UInt64Array::from(memory::copied(self.sizes(), TABLE)?)),
            match self.inertias() {
                [] => Arc::new(Float64Array::new_null(self.n_clusters())),
                inertias => Arc::new(Float64Array::from(memory::copied(inertias, TABLE)?)),
            },
        ];
        arrays.extend(match self.as_any() {
            AnyModel::F32(model) => centroids::<Float32Type>(self.layout(), model)?,
            AnyModel::F64(model) => centroids::<Float64Type>(self.layout(), model)?,
        });
        names.extend(self.names().iter().map(String::as_str));
        // Only the inertia of a model that was updated is null.
        let field = |(name, array): (&&str, &ArrayRef)| Field::new(*name, array.data_type().clone(), array.null_count() > 0);
        let fields: Vec<Field> = names.iter().zip(&arrays).map(field).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).map_err(frame_error)
    }
}

/// One array for each column of the features.
fn centroids<P: ArrowPrimitiveType>(layout: &FeatureLayout, model: &Model<P::Native>) -> Result<Vec<ArrayRef>>
where
    P::Native: Float,
{
    let d = model.n_features();
    let all = model.centroids_in_units()?;
    let array = |values: Vec<P::Native>| -> ArrayRef { Arc::new(PrimitiveArray::<P>::new(values.into(), None)) };
    match layout {
        FeatureLayout::Columns(_) => {
            let column = |f| Ok(array(memory::collected(all.iter().skip(f).step_by(d).copied(), TABLE)?));
            memory::try_collected((0..d).map(column), TABLE)
        }
        FeatureLayout::Array(_) => Ok(vec![Arc::new(rows(array(all), d, None)?)]),
    }
}

on_any_device! {
    impl KMeansModel {
        /// The label of every row of a batch that has the model's columns. Null if a value is null or not finite.
        ///
        /// # Errors
        /// [`KMeansError::MissingColumn`], [`KMeansError::UnsupportedDtype`] or [`KMeansError::WidthMismatch`].
        pub fn predict_batch(&self, batch: &RecordBatch) -> Result<UInt32Array> {
            Ok(label_array(self.labels_of(&arrays(std::slice::from_ref(batch), self.model.columns_to_find()?)?)?))
        }

        /// The Euclidean distance of every row to every centroid, or with `squared` the squared one that decides labels: lists of
        /// `k` Float64, null if a value is null or not finite. See [`Model::transform`].
        ///
        /// # Errors
        /// As [`KMeansModel::predict_batch`].
        pub fn transform_batch(&self, batch: &RecordBatch, squared: bool) -> Result<FixedSizeListArray> {
            let k = self.model.n_clusters();
            let distances = self.distances_of(&arrays(std::slice::from_ref(batch), self.model.columns_to_find()?)?, squared)?;
            let answered = distances.chunks_exact(k).map(|row| !row[0].is_nan());
            let nulls = nulls(Answered::collect(batch.num_rows(), answered)?);
            rows(Arc::new(Float64Array::from(distances)), k, nulls)
        }

        /// Minus the inertia of the batches' rows under the model, as in scikit-learn. Rows with nulls or values that are not
        /// finite are left out.
        ///
        /// # Errors
        /// As [`KMeansModel::predict_batch`], and those of the weights.
        pub fn score_batches(&self, batches: &[RecordBatch], weight: Option<&str>) -> Result<f64> {
            let columns = arrays(batches, self.model.columns_to_find()?)?;
            let weights = weight.map(|name| Arrays::of(batches, name)).transpose()?;
            if batches.is_empty() { Ok(0.0) } else { self.score_of(&columns, weights.as_ref()) }
        }
    }
}

/// An array of rows with `width` values each.
fn rows(values: ArrayRef, width: usize, nulls: Option<NullBuffer>) -> Result<FixedSizeListArray> {
    let item = Arc::new(Field::new("item", values.data_type().clone(), values.data_type() == &DataType::Null));
    FixedSizeListArray::try_new(item, list_width(width)?, values, nulls).map_err(frame_error)
}
