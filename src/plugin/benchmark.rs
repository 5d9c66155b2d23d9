//! Timings for benchmarks only: an upload alone, and a fit without the expression around it.

use std::time::Instant;

use polars::prelude::*;
use serde::Deserialize;

use super::entry::expression;
use super::expressions::Call;
use super::options::FitOptions;
use crate::backend::cuda::upload_benchmark;
use crate::columns::Table;
use crate::input::tile::Part;
use crate::model::AnyFeatures;

#[derive(Debug, Deserialize)]
struct UploadOptions {
    ordinal: u32,
    rounds: usize,
}

/// Returns the bytes of one upload of the columns, the throughput of pinned memory in bytes per second, and the seconds of each
/// upload.
fn benchmark_upload(inputs: &[Series], kwargs: &UploadOptions) -> PolarsResult<Series> {
    let table = Table::new(&Call::new(inputs, false)?.0.features, false, None)?;
    let &UploadOptions { ordinal, rounds } = kwargs;
    let (bytes, seconds, pinned) = match table.view()? {
        AnyFeatures::F32(view) => upload_benchmark(ordinal, &[Part::new(view, None)], rounds)?,
        AnyFeatures::F64(view) => upload_benchmark(ordinal, &[Part::new(view, None)], rounds)?,
    };
    let values = [bytes as f64, pinned].into_iter().chain(seconds);
    Ok(Float64Chunked::from_iter_values("seconds".into(), values).into_series())
}

/// Returns the seconds of a fit, from columns to model and labels. The time includes freeing both, as the time of a query does.
fn benchmark_fit(inputs: &[Series], kwargs: &FitOptions) -> PolarsResult<Series> {
    let call = Call::new(inputs, false)?;
    let estimator = call.estimator(kwargs)?;
    let start = Instant::now();
    drop(estimator.fit_columns(&call.0.features, None)?);
    let seconds = start.elapsed().as_secs_f64();
    Ok(Float64Chunked::from_slice("seconds".into(), &[seconds]).into_series())
}

fn seconds_field<K>(_: &[Field], _: &K) -> PolarsResult<Field> {
    Ok(Field::new("seconds".into(), DataType::Float64))
}

expression!(benchmark_upload(UploadOptions) -> seconds_field);
expression!(benchmark_fit(FitOptions) -> seconds_field);
