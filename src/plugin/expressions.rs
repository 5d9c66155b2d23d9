//! The expressions: `kmeans` and `fit_model` see whole columns, `predict` a morsel at a time, `score` whole columns.
//!
//! Inputs are the feature columns, then the optional ones in this order, each said by a keyword: weights, starting centroids
//! (one binary value: float64, little-endian, row-major). `predict` and `score` end with the model, one binary value.

use polars::prelude::*;
use pyo3_polars::derive::polars_expr;
use serde::Deserialize;

use crate::error::{KMeansError, Result};
use crate::frame::{FrameFit, KMeansModel};
use crate::params::{History, Init, KMeans, NullPolicy, Restarts};

/// Name of the output column.
const NAME: &str = "kmeans";

/// How a fit is asked for. Integers that may exceed 63 bits travel as text.
#[derive(Debug, Clone, Deserialize)]
struct FitOptions {
    k: i64,
    init: String,
    n_init: Option<i64>,
    max_iter: i64,
    tol: f64,
    tol_labels: f64,
    seed: String,
    null_policy: String,
    too_few: String,
    history: String,
    output: String,
    weighted: bool,
    given: bool,
    /// Width of the given centroids, and their columns' names where they came as a frame.
    given_width: usize,
    given_names: Option<Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
struct PredictOptions {
    output: String,
}

#[derive(Debug, Clone, Deserialize)]
struct ScoreOptions {
    weighted: bool,
}

/// What to do when there are fewer distinct rows than clusters.
#[derive(Debug, Clone, Copy, PartialEq)]
enum TooFew {
    Raise,
    Null,
}

fn invalid(option: &'static str, expected: &str, got: impl std::fmt::Debug) -> KMeansError {
    KMeansError::InvalidOption { option, expected: expected.into(), got: format!("{got:?}") }
}

impl FitOptions {
    fn estimator(&self, given: Option<Vec<f64>>) -> Result<KMeans> {
        let k = usize::try_from(self.k).map_err(|_| invalid("k", "an integer of at least 1", self.k))?;
        let seed = self.seed.parse().map_err(|_| invalid("seed", "an integer from 0 to 2^64 - 1", &self.seed))?;
        let max_iter =
            u32::try_from(self.max_iter).map_err(|_| invalid("max_iter", "an integer from 1 to 2^32 - 1", self.max_iter))?;
        let n_init = match self.n_init {
            None => Restarts::Auto,
            Some(n) => Restarts::Count(
                u32::try_from(n).map_err(|_| invalid("n_init", "\"auto\" or an integer from 1 to 2^32 - 1", n))?,
            ),
        };
        let init = match given {
            Some(centroids) => Init::Given(centroids),
            None => self.init.parse()?,
        };
        let null_policy: NullPolicy = self.null_policy.parse()?;
        let history: History = self.history.parse()?;
        Ok(KMeans::new(k)
            .init(init)
            .n_init(n_init)
            .max_iter(max_iter)
            .tol(self.tol)
            .tol_labels(self.tol_labels)
            .seed(seed)
            .null_policy(null_policy)
            .history(history))
    }

    fn too_few(&self) -> Result<TooFew> {
        match self.too_few.as_str() {
            "raise" => Ok(TooFew::Raise),
            "null" => Ok(TooFew::Null),
            other => Err(invalid("too_few", "\"raise\" or \"null\"", other)),
        }
    }

    /// Given centroids with their columns in the order of the features: matched by name where they came as a frame.
    fn in_feature_order(&self, centroids: Vec<f64>, features: &[Column]) -> Result<Vec<f64>> {
        if self.given_width != features.len() {
            return Err(KMeansError::WidthMismatch {
                what: "starting centroids",
                expected: features.len(),
                got: self.given_width,
            });
        }
        let Some(names) = &self.given_names else { return Ok(centroids) };
        let place = |column: &Column| {
            let place = names.iter().position(|name| name == column.name().as_str());
            place.ok_or_else(|| invalid("init", &format!("a frame with a column {:?}", column.name().as_str()), names))
        };
        let places = features.iter().map(place).collect::<Result<Vec<_>>>()?;
        Ok(centroids.chunks_exact(self.given_width).flat_map(|row| places.iter().map(|&place| row[place])).collect())
    }

    /// Fits; `None` if there are too few distinct rows and that is to give nulls. Also returns the feature columns.
    fn fit(&self, inputs: &[Series]) -> Result<(Vec<Column>, Option<FrameFit>)> {
        let too_few = self.too_few()?;
        let mut columns: Vec<Column> = inputs.iter().map(|series| series.clone().into_column()).collect();
        let given = if self.given { columns.pop().map(|literal| centroids(&literal)).transpose()? } else { None };
        let weights = if self.weighted { columns.pop() } else { None };
        let given = given.map(|centroids| self.in_feature_order(centroids, &columns)).transpose()?;
        match self.estimator(given)?.fit_columns(&columns, weights.as_ref()) {
            Ok(fit) => Ok((columns, Some(fit))),
            Err(KMeansError::TooFewDistinct { .. }) if too_few == TooFew::Null => Ok((columns, None)),
            Err(error) => Err(error),
        }
    }
}

/// The value of a literal of one binary.
fn bytes<'a>(literal: &'a BinaryChunked, what: &str) -> Result<&'a [u8]> {
    literal
        .first()
        .ok_or_else(|| KMeansError::InvalidModel { expected: format!("{what} as one binary value"), got: "null".into() })
}

fn centroids(literal: &Column) -> Result<Vec<f64>> {
    let bytes = bytes(literal.binary()?, "starting centroids")?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|value| f64::from_le_bytes(*value)).collect())
}

fn model(literal: Option<Column>) -> Result<KMeansModel> {
    let literal = literal
        .ok_or_else(|| KMeansError::InvalidModel { expected: "a model after the features".into(), got: "nothing".into() })?;
    KMeansModel::from_bytes(bytes(literal.binary()?, "a model")?)
}

fn is_struct(output: &str) -> Result<bool> {
    match output {
        "label" => Ok(false),
        "struct" => Ok(true),
        other => Err(invalid("output", "\"label\" or \"struct\"", other)),
    }
}

fn label_dtype(output: &str) -> Result<DataType> {
    Ok(if is_struct(output)? {
        DataType::Struct(vec![
            Field::new("label".into(), DataType::UInt32),
            Field::new("distance".into(), DataType::Float64),
            Field::new("second_distance".into(), DataType::Float64),
        ])
    } else {
        DataType::UInt32
    })
}

fn fit_field(_: &[Field], kwargs: FitOptions) -> PolarsResult<Field> {
    Ok(Field::new(NAME.into(), label_dtype(&kwargs.output)?))
}

fn predict_field(_: &[Field], kwargs: PredictOptions) -> PolarsResult<Field> {
    Ok(Field::new(NAME.into(), label_dtype(&kwargs.output)?))
}

/// Labels (or the struct of label and distances) of the rows of a fit.
#[polars_expr(output_type_func_with_kwargs=fit_field)]
fn kmeans(inputs: &[Series], kwargs: FitOptions) -> PolarsResult<Series> {
    let (columns, fit) = kwargs.fit(inputs)?;
    let n = columns.first().map_or(0, Column::len);
    Ok(match fit {
        None => Series::full_null(NAME.into(), n, &label_dtype(&kwargs.output)?),
        Some(fit) if is_struct(&kwargs.output)? => {
            let mut rows = fit.model.predict_distances(&columns)?;
            if fit.labels.null_count() > 0 {
                // Rows that were skipped for their weight have features, and still no answer.
                let kept = fit.labels.is_not_null();
                let masked = rows.columns().iter().map(|column| {
                    let column = column.as_materialized_series();
                    Ok(column
                        .zip_with(&kept, &Series::full_null(column.name().clone(), column.len(), column.dtype()))?
                        .into_column())
                });
                rows = DataFrame::new(rows.height(), masked.collect::<PolarsResult<Vec<_>>>()?)?;
            }
            rows.into_struct(NAME.into()).into_series()
        }
        Some(fit) => fit.labels.with_name(NAME.into()).into_series(),
    })
}

/// A fitted model as one binary value; null if there are too few distinct rows and that is to give nulls.
#[polars_expr(output_type=Binary)]
fn fit_model(inputs: &[Series], kwargs: FitOptions) -> PolarsResult<Series> {
    let (_, fit) = kwargs.fit(inputs)?;
    let model = fit.map(|fit| fit.model.to_bytes()).transpose()?;
    Ok(BinaryChunked::from_slice_options(NAME.into(), &[model]).into_series())
}

/// Labels (or the struct) of rows under a model: row by row.
#[polars_expr(output_type_func_with_kwargs=predict_field)]
fn predict(inputs: &[Series], kwargs: PredictOptions) -> PolarsResult<Series> {
    let mut columns: Vec<Column> = inputs.iter().map(|series| series.clone().into_column()).collect();
    let model = model(columns.pop())?;
    Ok(if is_struct(&kwargs.output)? {
        model.predict_distances(&columns)?.into_struct(NAME.into()).into_series()
    } else {
        model.predict_columns(&columns)?.with_name(NAME.into()).into_series()
    })
}

/// Minus the inertia of the rows under a model.
#[polars_expr(output_type=Float64)]
fn score(inputs: &[Series], kwargs: ScoreOptions) -> PolarsResult<Series> {
    let mut columns: Vec<Column> = inputs.iter().map(|series| series.clone().into_column()).collect();
    let model = model(columns.pop())?;
    let weights = if kwargs.weighted { columns.pop() } else { None };
    let score = model.score(&columns, weights.as_ref())?;
    Ok(Float64Chunked::from_slice("score".into(), &[score]).into_series())
}
