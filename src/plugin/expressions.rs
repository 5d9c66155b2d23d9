//! The expressions. `kmeans`, `centroids`, `assign` and `score` get whole columns; `predict` and `transform` get one morsel at a time.
//!
//! `kmeans` and `centroids` take one struct that holds the features and, last, the weights. The reason: Polars runs the groups
//! of `over` and `agg` in parallel for functions of one input, but one after the other for functions of several inputs. The
//! other expressions take the columns one by one. The last input of `predict`, `transform`, `assign` and `score` is the model: a list of
//! one binary value. Wrong dtypes are refused when Polars resolves the schema of the query, before any value is passed.

use std::sync::Arc;

use polars::prelude::*;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_polars::PySeries;

use super::entry::expression;
use super::fit::streamed;
use super::options::{FitOptions, NearestClustersOptions, PredictOptions, RowAnswer, ScoreOptions, TransformOptions, invalid};
use super::signals::{Raised, interruptible};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::parallel::FirstProcess;
use crate::base::params::{KMeans, Wanted};
use crate::columns::{become_float64, check_weight};
use crate::frame::{CLUSTER, FitColumns};
use crate::model::KMeansModel;

/// The Python package writes this for a NUL in a name, because Polars panics on a NUL on the way here. U+10FFFE is not a
/// character.
pub const NUL: &str = "\u{10FFFE}NUL\u{10FFFE}";

/// Tracks the process that has run queries.
static QUERIES: FirstProcess = FirstProcess::new();

/// The parent process that ran queries, if this process was forked from it.
pub fn forked_from() -> Option<u32> {
    QUERIES.other()
}

/// Notes that this process runs queries. Queries start threads, and these do not survive a fork.
pub fn enter() {
    QUERIES.enter();
}

/// Columns of one length. A column of length 1 (a literal, an aggregate) next to longer ones is repeated, as Polars does.
pub fn columns(inputs: &[Series]) -> Result<Vec<Column>> {
    let n = inputs.iter().map(|series| series.len()).find(|&n| n != 1).unwrap_or(1);
    let repeat = |series: &Series| if series.len() == 1 && n != 1 { series.new_from_index(0, n) } else { series.clone() };
    memory::collected(inputs.iter().map(|series| repeat(series).into_column()), "the list of columns")
}

/// The rows of a fitting call.
impl FitColumns {
    /// The rows of features and, if there are any, weights as the last input.
    pub fn of_inputs(inputs: &[Series], weighted: bool) -> Result<Self> {
        let rows = Self::new(columns(inputs)?, weighted);
        if rows.features.is_empty() { Err(KMeansError::NoFeatures) } else { Ok(rows) }
    }

    /// The rows of inputs that are the fields of one struct.
    fn of_struct(inputs: &[Series], weighted: bool) -> Result<Self> {
        let [inputs] = inputs else { return Err(KMeansError::NoFeatures) };
        Self::of_inputs(&inputs.struct_()?.fields_as_series(), weighted)
    }

    /// The estimator for these columns.
    pub fn estimator(&self, options: &FitOptions) -> Result<KMeans> {
        let names = self.features.iter().map(|column| column.name().as_str());
        let width = match &self.features[..] {
            [column] if let DataType::Array(_, width) = column.dtype() => Some(*width),
            [column] if let DataType::List(_) = column.dtype() => None,
            columns => Some(columns.len()),
        };
        let estimator = options.estimator(names, width)?;
        if self.in_file {
            estimator.check_rows_in_file()?;
        }
        Ok(estimator)
    }
}

/// What `decode` makes of the bytes that are the last input, and the columns before it.
pub fn with_literal<M>(inputs: &[Series], decode: impl FnOnce(&[u8]) -> Result<M>) -> Result<(M, Vec<Column>)> {
    let no_model = |expected: &str, got: &str| KMeansError::InvalidModel { expected: expected.into(), got: got.into() };
    let (literal, rest) = inputs.split_last().ok_or_else(|| no_model("a model after the features", "nothing"))?;
    let list = literal.list()?.get_as_series(0);
    // Short values around the model keep it out of the text of an expression.
    let values = list.as_ref().map(|list| list.binary()).transpose()?;
    let bytes = values.and_then(|values| values.iter().flatten().max_by_key(|bytes| bytes.len()));
    let bytes = bytes.ok_or_else(|| no_model("a list with the bytes of a model", "null"))?;
    Ok((decode(bytes)?, columns(rest)?))
}

/// The model, which is the last input, and the columns before it.
pub fn with_model(inputs: &[Series]) -> Result<(Arc<KMeansModel>, Vec<Column>)> {
    with_literal(inputs, KMeansModel::from_wire)
}

/// The fields of the features (all inputs but the last `others`) and their float type. `nulls`: whether a column may hold nothing
/// but nulls.
pub fn feature_type(fields: &[Field], others: usize, nulls: bool) -> Result<(&[Field], DataType)> {
    enter();
    let features = &fields[..fields.len().saturating_sub(others)];
    if let Some(field) = features.iter().find(|field| field.name().contains(NUL)) {
        return Err(KMeansError::NulInName { name: field.name().replace(NUL, "\0") });
    }
    let types = features.iter().map(|field| (field.name().as_str(), field.dtype()));
    let float64 = become_float64(features.len(), nulls, types)?;
    Ok((features, if float64 { DataType::Float64 } else { DataType::Float32 }))
}

/// As [`feature_type`], for a fit. `check` refuses names: with [`FeatureLayout::check`], those that a centroid frame cannot have.
/// Weights, the last field, must be numbers.
pub fn fit_fields(
    fields: &[Field],
    weighted: bool,
    check: impl FnOnce(&FeatureLayout) -> Result<()>,
) -> Result<(&[Field], DataType)> {
    let (features, dtype) = feature_type(fields, usize::from(weighted), false)?;
    check(&FeatureLayout::Columns(features.iter().map(|field| field.name().to_string()).collect()))?;
    if weighted && let Some(weight) = fields.last() {
        check_weight(weight.dtype())?;
    }
    Ok((features, dtype))
}

/// The fields of the struct that is the only input of a call.
fn struct_fields(fields: &[Field]) -> Result<&[Field]> {
    match fields {
        [Field { dtype: DataType::Struct(fields), .. }] => Ok(fields),
        _ => Err(KMeansError::NoFeatures),
    }
}

fn label_dtype(output: RowAnswer) -> DataType {
    match output {
        RowAnswer::Label => DataType::UInt32,
        RowAnswer::Struct => DataType::Struct(vec![
            Field::new(CLUSTER.into(), DataType::UInt32),
            Field::new("distance".into(), DataType::Float64),
            Field::new("second_distance".into(), DataType::Float64),
        ]),
    }
}

fn kmeans_field(fields: &[Field], kwargs: &FitOptions) -> PolarsResult<Field> {
    // Labels come without a centroid frame.
    fit_fields(struct_fields(fields)?, kwargs.weighted, FeatureLayout::check_names)?;
    Ok(Field::new(CLUSTER.into(), label_dtype(kwargs.results().output)))
}

/// The field of a list of structs: the rows of the centroid frame. A List column of features stays a List, since its dtype does
/// not hold its width.
fn centroids_field(fields: &[Field], options: &FitOptions) -> PolarsResult<Field> {
    let (features, dtype) = fit_fields(struct_fields(fields)?, options.weighted, FeatureLayout::check)?;
    let mut columns = vec![
        Field::new(CLUSTER.into(), DataType::UInt32),
        Field::new("size".into(), DataType::UInt64),
        Field::new("inertia".into(), DataType::Float64),
    ];
    columns.extend(features.iter().map(|field| {
        let dtype = Box::new(dtype.clone());
        let dtype = match field.dtype() {
            DataType::Array(_, width) => DataType::Array(dtype, *width),
            DataType::List(_) => DataType::List(dtype),
            _ => *dtype,
        };
        Field::new(field.name().clone(), dtype)
    }));
    Ok(Field::new("centroids".into(), DataType::List(Box::new(DataType::Struct(columns)))))
}

fn predict_field(fields: &[Field], kwargs: &PredictOptions) -> PolarsResult<Field> {
    feature_type(fields, 1, true)?;
    Ok(Field::new(CLUSTER.into(), label_dtype(kwargs.output.parse()?)))
}

fn transform_field(fields: &[Field], kwargs: &TransformOptions) -> PolarsResult<Field> {
    feature_type(fields, 1, true)?;
    let name = if kwargs.squared { "squared_distances" } else { "distances" };
    Ok(Field::new(name.into(), DataType::Array(Box::new(DataType::Float64), kwargs.k)))
}

fn score_field(fields: &[Field], kwargs: &ScoreOptions) -> PolarsResult<Field> {
    feature_type(fields, 1 + usize::from(kwargs.weighted), true)?;
    Ok(Field::new("score".into(), DataType::Float64))
}

/// The labels (or structs of label and distances) of the rows of a fit.
fn kmeans(inputs: &[Series], kwargs: &FitOptions) -> PolarsResult<Series> {
    let rows = FitColumns::of_struct(inputs, kwargs.weighted)?;
    let (n, output) = (rows.features[0].len(), kwargs.results().output);
    let wanted = if output == RowAnswer::Struct { Wanted::Distances } else { Wanted::Labels };
    let fit = || rows.estimator(kwargs)?.fit_answers(&rows.features, rows.weights.as_ref(), wanted);
    // An input without rows gives no labels. Polars makes such a call to learn the result of a group-by without groups.
    let answers = if n == 0 { None } else { kwargs.or_nulls(fit())? };
    Ok(match answers {
        None => Series::full_null(CLUSTER.into(), n, &label_dtype(output)),
        Some(answers) => answers.with_name(CLUSTER.into()),
    })
}

/// The centroid frame of a fit as one list of structs. Null if there are too few distinct rows and the options ask for nulls in
/// that case.
fn centroids(inputs: &[Series], kwargs: &FitOptions) -> PolarsResult<Series> {
    let fields: Vec<Field> = inputs.iter().map(|series| series.field().into_owned()).collect();
    let field = centroids_field(&fields, kwargs)?;
    let rows = FitColumns::of_struct(inputs, kwargs.weighted)?;
    let fit = || rows.estimator(kwargs)?.fit_model(&rows.features, rows.weights.as_ref());
    // The result is null if there are no rows, as for Polars' own aggregations.
    let model = if rows.features[0].is_empty() { None } else { kwargs.or_nulls(fit())? };
    let Some(model) = model else {
        return Ok(Series::full_null(field.name().clone(), 1, field.dtype()));
    };
    let centroids = model.centroids()?.into_struct(field.name().clone()).into_series();
    let list = centroids.implode()?.into_series();
    Ok(if matches!(rows.features[0].dtype(), DataType::List(_)) { list.cast(field.dtype())? } else { list })
}

/// The labels (or structs) of rows under a model, row by row.
fn predict(inputs: &[Series], kwargs: &PredictOptions) -> PolarsResult<Series> {
    let (model, columns) = with_model(inputs)?;
    Ok(predictions(&model, &columns, kwargs)?)
}

fn predictions(model: &KMeansModel, columns: &[Column], options: &PredictOptions) -> Result<Series> {
    let placed = model.on(options.device.parse()?);
    let answers = if options.output.parse::<RowAnswer>()? == RowAnswer::Struct {
        placed.predict_structs(columns)?.with_name(CLUSTER.into()).into_series()
    } else {
        placed.predict_columns(columns)?.with_name(CLUSTER.into()).into_series()
    };
    if options.complete && answers.null_count() > 0 { Err(model.refused_values(columns)?) } else { Ok(answers) }
}

/// Answers columns of numbers that are there already, without a query, which takes longer than some rows. `output`: that of a
/// prediction. `None`: the distances to all centroids, or their squares.
#[pyfunction]
#[pyo3(signature = (model, names, columns, device, output=None, complete=false, squared=false))]
pub fn answer_columns<'py>(
    model: &Bound<'py, PyBytes>,
    names: Vec<String>,
    columns: Vec<Bound<'py, PyAny>>,
    device: String,
    output: Option<String>,
    complete: bool,
    squared: bool,
) -> PyResult<PySeries> {
    let py = model.py();
    let model = KMeansModel::from_wire(model.as_bytes())?;
    let mut inputs = Vec::with_capacity(columns.len());
    for (name, column) in names.into_iter().zip(&columns) {
        inputs.push(streamed(name.into(), column)?.into_column());
    }
    let answers = interruptible(py, &Raised::default(), || match output {
        Some(output) => predictions(&model, &inputs, &PredictOptions { output, device, complete }),
        None => model.on(device.parse()?).transform_columns(&inputs, squared),
    });
    Ok(PySeries(answers?))
}

/// The distances of rows to every centroid, row by row.
fn transform(inputs: &[Series], kwargs: &TransformOptions) -> PolarsResult<Series> {
    let (model, columns) = with_model(inputs)?;
    if model.n_clusters() != kwargs.k {
        return Err(invalid("k", &format!("{} as in the model", model.n_clusters()), kwargs.k).into());
    }
    Ok(model.on(kwargs.device.parse()?).transform_columns(&columns, kwargs.squared)?)
}

fn nearest_clusters_field(fields: &[Field], kwargs: &NearestClustersOptions) -> PolarsResult<Field> {
    feature_type(fields, 1, true)?;
    let array = |name: &str, dtype| Field::new(name.into(), DataType::Array(Box::new(dtype), kwargs.m));
    let fields = vec![array("clusters", DataType::UInt32), array("distances", DataType::Float64)];
    Ok(Field::new("nearest_clusters".into(), DataType::Struct(fields)))
}

/// The nearest centroids of rows, row by row.
fn nearest_clusters(inputs: &[Series], kwargs: &NearestClustersOptions) -> PolarsResult<Series> {
    let (model, columns) = with_model(inputs)?;
    let near = model.on(kwargs.device.parse()?).nearest_clusters_columns(&columns, kwargs.m, kwargs.squared)?;
    Ok(near.with_name("nearest_clusters".into()).into_series())
}

fn assign_field(fields: &[Field], kwargs: &FitOptions) -> PolarsResult<Field> {
    feature_type(fields, 1 + usize::from(kwargs.weighted), true)?;
    Ok(Field::new(CLUSTER.into(), DataType::UInt32))
}

/// The labels of rows under a model, within the bounds on sizes of the options.
fn assign(inputs: &[Series], kwargs: &FitOptions) -> PolarsResult<Series> {
    let (model, mut columns) = with_model(inputs)?;
    let weights = if kwargs.weighted { columns.pop() } else { None };
    let estimator = kwargs.estimator([], None)?;
    if columns[0].is_empty() {
        return Ok(Series::new_empty(CLUSTER.into(), &DataType::UInt32));
    }
    Ok(model.assign_columns(&estimator, &columns, weights.as_ref())?.with_name(CLUSTER.into()).into_series())
}

/// Minus the inertia of the rows under a model.
fn score(inputs: &[Series], kwargs: &ScoreOptions) -> PolarsResult<Series> {
    let (model, mut columns) = with_model(inputs)?;
    let weights = if kwargs.weighted { columns.pop() } else { None };
    let score = model.on(kwargs.device.parse()?).score_columns(&columns, weights.as_ref())?;
    Ok(Float64Chunked::from_slice("score".into(), &[score]).into_series())
}

expression!(kmeans(FitOptions) -> kmeans_field);
expression!(centroids(FitOptions) -> centroids_field);
expression!(predict(PredictOptions) -> predict_field);
expression!(transform(TransformOptions) -> transform_field);
expression!(nearest_clusters(NearestClustersOptions) -> nearest_clusters_field);
expression!(assign(FitOptions) -> assign_field);
expression!(score(ScoreOptions) -> score_field);
