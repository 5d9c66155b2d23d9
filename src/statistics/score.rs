//! What a score needs to know of the rows: the inertia of rows under a model that was fitted before.

use super::given::check_negative;
use super::passes::Passes;
use super::survey::EXTENTS;
use super::{Statistics, check_magnitude, check_weights, diameter};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Metric;
use crate::exact::distances::DistanceScale;
use crate::input::tile::WeightScale;

/// Surveys the rows of a score, leaves out rows that are not finite, and fixes the scales. Extents are taken over the rows of
/// positive weight and the centroids (`(k, d)`, row-major). A score adds up no features, so it has no quanta.
///
/// # Errors
/// Those of a fit for negative weights and for weights and values out of range: see [`KMeansError`](crate::KMeansError).
pub fn survey_score<T: Float>(passes: &mut dyn Passes<T>, centroids: &[T], d: usize, metric: Metric) -> Result<Statistics> {
    let (n, weighted) = (passes.given().count()?, passes.given().is_weighted());
    let mut survey = passes.survey()?;
    check_negative(&*passes.given(), &survey)?;
    if survey.bad > 0 {
        survey = passes.skip_bad(survey)?;
    }
    if weighted {
        check_weights(passes, &survey, 0)?;
    }
    let mut lows: Vec<f64> = memory::collected(survey.columns.iter().map(|column| column.low), EXTENTS)?;
    let mut highs: Vec<f64> = memory::collected(survey.columns.iter().map(|column| column.high), EXTENTS)?;
    for row in centroids.chunks_exact(d) {
        for (f, c) in row.iter().enumerate() {
            lows[f] = lows[f].min(c.to_f64());
            highs[f] = highs[f].max(c.to_f64());
        }
    }
    check_magnitude::<T>("feature values", lows.iter().chain(&highs).fold(0.0f64, |m, v| m.max(v.abs())))?;
    let weights = weighted.then(|| WeightScale::new(survey.largest_weight));
    if let Some(scale) = weights {
        passes.round_weights(scale)?;
    }
    Ok(Statistics {
        n: n - survey.bad,
        n_positive: survey.positive,
        distances: DistanceScale::new(diameter(metric, &highs, &lows), weights.map_or(1.0, |scale| scale.largest)),
        lows,
        highs,
        scales: Vec::new(),
        shifts: DistanceScale::NONE,
        variance: 0.0,
        weights,
        ties: None,
        metric,
    })
}
