//! A model of either float type, as Polars users meet it.

use polars::prelude::*;

use super::columns::FrameFeatures;
use super::select;
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::model::{Model, Prediction};
use crate::parallel::FloatEnvironment;

/// A fitted k-means over named columns.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum KMeansModel {
    /// Fitted to float32 features.
    F32(Model<f32>),
    /// Fitted to float64 features.
    F64(Model<f64>),
}

/// Calls a method of whichever model it is.
macro_rules! either {
    ($self:expr, $model:ident => $body:expr) => {
        match $self {
            KMeansModel::F32($model) => $body,
            KMeansModel::F64($model) => $body,
        }
    };
}

impl KMeansModel {
    /// The features' names, in order.
    pub fn names(&self) -> &[String] {
        either!(self, model => model.names())
    }

    /// The number of clusters.
    pub fn n_clusters(&self) -> usize {
        either!(self, model => model.n_clusters())
    }

    /// Weighted sum of squared distances of the rows to their centroids.
    pub fn inertia(&self) -> f64 {
        either!(self, model => model.inertia())
    }

    /// Iterations of the winning restart.
    pub fn n_iter(&self) -> u32 {
        either!(self, model => model.n_iter())
    }

    /// `cluster` (UInt32), `size` (UInt64), `inertia` (Float64), then one column a feature in the features' type: `k` rows.
    ///
    /// # Errors
    /// [`KMeansError::Frame`] if Polars refuses the names.
    pub fn centroids(&self) -> Result<DataFrame> {
        either!(self, model => centroid_frame(model))
    }

    /// `iteration` (UInt32), `changed` (UInt64), `shift`, `inertia` (null unless the history is full) and `seconds` (Float64).
    ///
    /// # Errors
    /// [`KMeansError::Frame`] if Polars refuses.
    pub fn history(&self) -> Result<DataFrame> {
        let rows = either!(self, model => model.history());
        Ok(df!(
            "iteration" => rows.iter().map(|row| row.iteration).collect::<Vec<_>>(),
            "changed" => rows.iter().map(|row| row.changed).collect::<Vec<_>>(),
            "shift" => rows.iter().map(|row| row.shift).collect::<Vec<_>>(),
            "inertia" => rows.iter().map(|row| row.inertia).collect::<Vec<_>>(),
            "seconds" => rows.iter().map(|row| row.seconds).collect::<Vec<_>>(),
        )?)
    }

    /// The label of every row of a frame that has the model's columns: `UInt32`, null where a value is null or not finite.
    ///
    /// # Errors
    /// As [`KMeansModel::predict_columns`].
    pub fn predict(&self, df: &DataFrame) -> Result<UInt32Chunked> {
        self.predict_columns(&select(df, self.names())?)
    }

    /// The label of every row, the columns given in the order of the model's features.
    ///
    /// # Errors
    /// [`KMeansError::WidthMismatch`], [`KMeansError::UnsupportedDtype`] or [`KMeansError::LengthMismatch`].
    pub fn predict_columns(&self, columns: &[Column]) -> Result<UInt32Chunked> {
        let labels = self.on(columns, |model, x| model.predict(x), |model, x| model.predict(x))?;
        Ok(UInt32Chunked::from_iter_options("label".into(), labels.into_iter()))
    }

    /// `label` (UInt32), `distance` and `second_distance` (Float64; null with one cluster) of every row, as a frame.
    ///
    /// # Errors
    /// As [`KMeansModel::predict_columns`].
    pub fn predict_distances(&self, columns: &[Column]) -> Result<DataFrame> {
        let rows: Vec<Option<Prediction>> =
            self.on(columns, |model, x| model.predict_distances(x), |model, x| model.predict_distances(x))?;
        let label = UInt32Chunked::from_iter_options("label".into(), rows.iter().map(|row| row.as_ref().and_then(|p| p.label)));
        let distance =
            Float64Chunked::from_iter_options("distance".into(), rows.iter().map(|row| row.as_ref().map(|p| p.distance)));
        let second = rows.iter().map(|row| row.as_ref().and_then(|p| p.second_distance));
        let second = Float64Chunked::from_iter_options("second_distance".into(), second);
        Ok(DataFrame::new(rows.len(), vec![label.into_column(), distance.into_column(), second.into_column()])?)
    }

    /// The Euclidean distance of every row to every centroid: `Array(Float64, k)`, null where a value is null or not finite.
    ///
    /// # Errors
    /// As [`KMeansModel::predict_columns`].
    pub fn transform(&self, columns: &[Column]) -> Result<Series> {
        let distances = self.on(columns, |model, x| model.transform(x), |model, x| model.transform(x))?;
        let k = self.n_clusters();
        let rows = distances.len() / k;
        // The engine marks rows without an answer by NaN, which no distance of finite rows is.
        let valid: Vec<bool> = distances.chunks_exact(k).map(|row| !row[0].is_nan()).collect();
        let values = Float64Chunked::from_vec("distances".into(), distances).into_series();
        let shape = [ReshapeDimension::new_dimension(rows as u64), ReshapeDimension::new_dimension(k as u64)];
        let array = values.reshape_array(&shape)?;
        if valid.iter().all(|valid| *valid) {
            return Ok(array);
        }
        let mask = BooleanChunked::from_slice("valid".into(), &valid);
        Ok(array.zip_with(&mask, &Series::full_null("distances".into(), rows, array.dtype()))?)
    }

    /// Minus the inertia of the rows under the model, as in scikit-learn; rows with nulls or values that are not finite are left
    /// out.
    ///
    /// # Errors
    /// As [`KMeansModel::predict_columns`], and those of the weights.
    pub fn score(&self, columns: &[Column], weights: Option<&Column>) -> Result<f64> {
        let weights = weights.map(super::columns::weights).transpose()?;
        let weights = weights.as_ref().map(super::columns::view).transpose()?;
        self.on(columns, |model, x| model.score(x, weights.as_ref()), |model, x| model.score(x, weights.as_ref()))
    }

    /// Runs on the columns in the wider of the model's type and theirs: float64 input is never cast down.
    fn on<R>(
        &self,
        columns: &[Column],
        narrow: impl FnOnce(&Model<f32>, &crate::Features<'_, f32>) -> Result<R>,
        wide: impl FnOnce(&Model<f64>, &crate::Features<'_, f64>) -> Result<R>,
    ) -> Result<R> {
        if columns.len() != self.names().len() {
            return Err(KMeansError::WidthMismatch { what: "features", expected: self.names().len(), got: columns.len() });
        }
        let _environment = FloatEnvironment::default_rounding();
        let features = FrameFeatures::with_type(columns, matches!(self, Self::F64(_)))?;
        match (self, &features) {
            (Self::F32(model), FrameFeatures::F32 { .. }) => narrow(model, &features.view_f32()?),
            (Self::F32(model), FrameFeatures::F64 { .. }) => wide(&model.widened(), &features.view_f64()?),
            (Self::F64(model), _) => wide(model, &features.view_f64()?),
        }
    }
}

fn centroid_frame<T: Float>(model: &Model<T>) -> Result<DataFrame> {
    let _environment = FloatEnvironment::default_rounding();
    let k = model.n_clusters();
    let mut columns = vec![
        Column::new("cluster".into(), (0..k as u32).collect::<Vec<_>>()),
        Column::new("size".into(), model.sizes().to_vec()),
        Column::new("inertia".into(), model.inertias().to_vec()),
    ];
    let dtype = if T::IS_F32 { DataType::Float32 } else { DataType::Float64 };
    for (f, name) in model.names().iter().enumerate() {
        let values: Vec<f64> = model.centroids().iter().skip(f).step_by(model.n_features()).map(|c| c.to_f64()).collect();
        columns.push(Column::new(name.as_str().into(), values).cast(&dtype)?);
    }
    Ok(DataFrame::new(k, columns)?)
}
