//! A timing for benchmarks only: a fit without the expression around it.

use std::time::Instant;

use polars::prelude::*;

use super::entry::expression;
use super::options::FitOptions;
use crate::frame::FitColumns;

/// Returns the seconds of a fit, from columns to model and labels. The time includes freeing both, as the time of a query does.
fn benchmark_fit(inputs: &[Series], kwargs: &FitOptions) -> PolarsResult<Series> {
    let rows = FitColumns::of_inputs(inputs, false)?;
    let estimator = rows.estimator(kwargs)?;
    let start = Instant::now();
    drop(estimator.fit_columns(&rows.features, None)?);
    let seconds = start.elapsed().as_secs_f64();
    Ok(Float64Chunked::from_slice("seconds".into(), &[seconds]).into_series())
}

fn seconds_field(_: &[Field], _: &FitOptions) -> PolarsResult<Field> {
    Ok(Field::new("seconds".into(), DataType::Float64))
}

expression!(benchmark_fit(FitOptions) -> seconds_field);
