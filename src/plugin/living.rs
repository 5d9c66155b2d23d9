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
use crate::base::error::Result;
use crate::base::params::Device;
use crate::frame::sums_dtype;
use crate::model::{AnyModel, Decay, KMeansModel, Match};

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
    let table = placed.sums_columns(&columns, weights.as_ref(), labels.as_ref())?;
    Ok(table.into_struct("sums".into()).into_series().implode()?.into_series())
}

expression!(sums(SumsOptions) -> sums_field);

/// The model of other sums: see [`KMeansModel::updated`].
#[pyfunction]
#[pyo3(signature = (model, sums, removed, start, decay, extents=None))]
pub fn update_model<'py>(
    py: Python<'py>,
    model: &[u8],
    sums: PyDataFrame,
    removed: Option<PyDataFrame>,
    start: &str,
    decay: Option<f64>,
    extents: Option<Vec<f64>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let update = || -> Result<Vec<u8>> {
        let model = KMeansModel::from_wire(model)?;
        let with_quanta = extents.map(|extents| model.with_extents(&extents, None)).transpose()?;
        let model = with_quanta.as_ref().unwrap_or(&model);
        let removed = removed.map(|removed| model.read_sums(&removed.0)).transpose()?;
        let decay = decay.map(Decay::try_from).transpose()?;
        model.updated(&model.read_sums(&sums.0)?, removed.as_ref(), start.parse()?, decay)?.into_wire()
    };
    let bytes = py.detach(|| without_panic(update))?;
    Ok(copy_to_python(py, &bytes)?)
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
