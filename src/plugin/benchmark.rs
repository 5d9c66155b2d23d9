//! A timing for benchmarks only: a fit without the expression around it.

use std::time::Instant;

use polars::prelude::*;

use super::entry::expression;
use super::expressions::Call;
use super::options::FitOptions;

/// Returns the seconds of a fit, from columns to model and labels. The time includes freeing both, as the time of a query does.
fn benchmark_fit(inputs: &[Series], kwargs: &FitOptions) -> PolarsResult<Series> {
    let call = Call::new(inputs, false)?;
    let estimator = call.estimator(kwargs)?;
    let start = Instant::now();
    drop(estimator.fit_columns(&call.0.features, None)?);
    let seconds = start.elapsed().as_secs_f64();
    Ok(Float64Chunked::from_slice("seconds".into(), &[seconds]).into_series())
}

fn seconds_field(_: &[Field], _: &FitOptions) -> PolarsResult<Field> {
    Ok(Field::new("seconds".into(), DataType::Float64))
}

expression!(benchmark_fit(FitOptions) -> seconds_field);
