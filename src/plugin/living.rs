//! Models that go on: sums as an expression, models of sums, texts that a model carries.

use std::collections::BTreeMap;

use polars::prelude::*;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_polars::PyDataFrame;
use serde::Deserialize;

use super::copy_to_python;
use super::entry::{expression, without_panic};
use super::expressions::{feature_type, with_model};
use super::signals::{Raised, interruptible};
use crate::base::error::{KMeansError, Result};
use crate::base::params::Device;
use crate::frame::sums_dtype;
use crate::model::{AnyModel, Decay, KMeansModel, Match, Update};

#[derive(Deserialize)]
struct SumsOptions {
    /// The names of the features.
    names: Vec<String>,
    /// Whether weights stand after the features, and labels after them.
    weighted: bool,
    labelled: bool,
    /// For a model without quanta: the largest magnitude of each feature.
    extents: Option<Vec<f64>>,
}

fn sums_field(fields: &[Field], kwargs: &SumsOptions) -> PolarsResult<Field> {
    feature_type(fields, 1 + usize::from(kwargs.weighted) + usize::from(kwargs.labelled), true)?;
    Ok(Field::new("sums".into(), sums_dtype(&kwargs.names)?))
}

/// The table of sums as one list of structs.
fn sums(inputs: &[Series], kwargs: &SumsOptions) -> PolarsResult<Series> {
    let (model, mut columns) = with_model(inputs)?;
    let labels = if kwargs.labelled { columns.pop() } else { None };
    let weights = if kwargs.weighted { columns.pop() } else { None };
    let with_quanta = kwargs.extents.as_ref().map(|extents| model.with_extents(extents, None)).transpose()?;
    let placed = with_quanta.as_ref().unwrap_or(&model).on(Device::Auto);
    let table = placed.sums_columns(&columns, weights.as_ref(), labels.as_ref()).map_err(|error| match error {
        KMeansError::BeyondExtent { column, got, limit, .. } if with_quanta.is_some() => {
            let remedy = "give larger extents to sums, and the same ones to updated".into();
            KMeansError::BeyondExtent { column, got, limit, remedy }
        }
        error => error,
    })?;
    Ok(table.into_struct("sums".into()).into_series().implode()?.into_series())
}

expression!(sums(SumsOptions) -> sums_field);

/// How to make a model of sums, as it travels.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct UpdateOptions {
    sums: Option<PyDataFrame>,
    removed: Option<PyDataFrame>,
    start: String,
    decay: Option<f64>,
    extents: Option<Vec<f64>>,
    batch: Option<String>,
    removed_batch: Option<String>,
}

/// The model of other sums: see [`KMeansModel::updated`].
#[pyfunction]
pub fn update_model<'py>(py: Python<'py>, model: &[u8], options: UpdateOptions) -> PyResult<Bound<'py, PyBytes>> {
    let UpdateOptions { sums, removed, start, decay, extents, batch, removed_batch } = options;
    let update = || -> Result<Vec<u8>> {
        let model = KMeansModel::from_wire(model)?;
        let with_quanta = extents.map(|extents| model.with_extents(&extents, None)).transpose()?;
        let model = with_quanta.as_ref().unwrap_or(&model);
        let read = |table: &Option<PyDataFrame>| table.as_ref().map(|table| model.read_sums(&table.0)).transpose();
        let (sums, removed) = (read(&sums)?, read(&removed)?);
        let update = Update {
            sums: sums.as_ref(),
            removed: removed.as_ref(),
            start: start.parse()?,
            decay: decay.map(Decay::try_from).transpose()?,
            batch: batch.as_deref(),
            removed_batch: removed_batch.as_deref(),
        };
        model.updated(&update)?.into_wire()
    };
    let bytes = py.detach(|| without_panic(update))?;
    Ok(copy_to_python(py, &bytes)?)
}

/// The model with room for larger values: see [`KMeansModel::with_wider_extents`].
#[pyfunction]
pub fn widen_model<'py>(py: Python<'py>, model: &[u8], extents: Vec<f64>, weight: Option<f64>) -> Result<Bound<'py, PyBytes>> {
    copy_to_python(py, &KMeansModel::from_wire(model)?.with_wider_extents(&extents, weight)?.into_wire()?)
}

/// The weight of each cluster of a model.
#[pyfunction]
pub fn model_weights(model: &[u8]) -> Result<Vec<f64>> {
    KMeansModel::from_wire(model)?.weights()
}

/// The keys of the batches that a model has added, and of those that were removed.
#[pyfunction]
pub fn model_batches(model: &[u8]) -> Result<[Vec<String>; 2]> {
    Ok(KMeansModel::from_wire(model)?.batches().map(<[String]>::to_vec))
}

/// The clusters of a model, and those that they match in another one: cluster, match, distance.
#[pyfunction]
pub fn match_models(py: Python<'_>, model: &[u8], other: &[u8]) -> PyResult<Vec<Match>> {
    interruptible(py, &Raised::default(), || KMeansModel::from_wire(model)?.match_with(&*KMeansModel::from_wire(other)?))
}

/// The encoded model at other centroids, with quanta for features and weights of these largest magnitudes.
#[pyfunction]
pub fn model_starting_at<'py>(
    py: Python<'py>,
    model: &[u8],
    centroids: Vec<f64>,
    extents: Vec<f64>,
    weight: f64,
) -> Result<Bound<'py, PyBytes>> {
    let model = KMeansModel::from_wire(model)?.with_extents(&extents, Some(weight))?.starting_at(centroids)?;
    copy_to_python(py, &model.into_wire()?)
}

/// The centroids that rows are compared with, in float64.
#[pyfunction]
pub fn model_compared(model: &[u8]) -> Result<Vec<Vec<f64>>> {
    let model = KMeansModel::from_wire(model)?;
    let rows = |values: Vec<f64>| values.chunks(model.n_features()).map(<[f64]>::to_vec).collect();
    Ok(match model.as_any() {
        AnyModel::F32(model) => rows(model.centroids().iter().map(|c| f64::from(*c)).collect()),
        AnyModel::F64(model) => rows(model.centroids().to_vec()),
    })
}

/// The texts that an encoded model carries.
#[pyfunction]
pub fn model_metadata(model: &[u8]) -> Result<BTreeMap<String, String>> {
    Ok(KMeansModel::from_wire(model)?.metadata().clone())
}

/// The same encoded model with these texts, or without quanta: that of centroids that no fit found.
#[pyfunction]
#[pyo3(signature = (model, metadata=None))]
pub fn model_with<'py>(
    py: Python<'py>,
    model: &[u8],
    metadata: Option<BTreeMap<String, String>>,
) -> Result<Bound<'py, PyBytes>> {
    let model = KMeansModel::clone(&*KMeansModel::from_wire(model)?);
    let model = if let Some(metadata) = metadata { model.with_metadata(metadata) } else { model.without_quanta() };
    copy_to_python(py, &model.into_wire()?)
}
