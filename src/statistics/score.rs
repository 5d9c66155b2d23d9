//! What a score needs to know of the rows: the inertia of rows under a model that was fitted before.

use super::given::first_negative_weight;
use super::passes::Passes;
use super::survey::check_weight_range;
use super::{Statistics, check_magnitude, diameter};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Metric;
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::power_of_two;
use crate::input::tile::WeightScale;

/// The name for the extents of the rows in errors.
const EXTENTS: &str = "the extents of the columns";

/// The scales that turn the distances and weights of a score into integers.
pub struct ScoreScales {
    pub weights: Option<WeightScale>,
    pub distances: DistanceScale,
}

impl ScoreScales {
    /// `lows` and `highs` are taken over the finite rows of positive weight and the centroids. `largest_weight` is the largest
    /// weight of these rows, if there are weights.
    pub fn new<T: Float>(metric: Metric, lows: &[f64], highs: &[f64], largest_weight: Option<f64>) -> Result<Self> {
        match largest_weight {
            Some(0.0) => return Err(KMeansError::NoPositiveWeight),
            Some(got) if !(power_of_two(-64)..=power_of_two(64)).contains(&got) => {
                return Err(KMeansError::WeightOutOfRange { got });
            }
            _ => {}
        }
        let largest = lows.iter().chain(highs).fold(0.0f64, |m, v| m.max(v.abs()));
        check_magnitude::<T>("feature values", largest)?;
        let weights = largest_weight.map(WeightScale::new);
        let s = diameter(metric, highs, lows);
        let distances = DistanceScale::new(s, weights.map_or(1.0, |scale| scale.largest));
        Ok(Self { weights, distances })
    }
}

/// The lowest and the highest value of each feature over centroids: `(k, d)`, row-major.
pub fn centroid_extents<T: Float>(centroids: &[T], d: usize) -> Result<[Vec<f64>; 2]> {
    let [mut lows, mut highs] = [memory::filled(d, f64::INFINITY, EXTENTS)?, memory::filled(d, f64::NEG_INFINITY, EXTENTS)?];
    for row in centroids.chunks_exact(d) {
        for (f, c) in row.iter().enumerate() {
            lows[f] = lows[f].min(c.to_f64());
            highs[f] = highs[f].max(c.to_f64());
        }
    }
    Ok([lows, highs])
}

/// Surveys the rows of a score, leaves out rows that are not finite, and fixes the scales. A score adds up no features, so it has
/// no quanta.
///
/// # Errors
/// [`KMeansError::NegativeWeight`], [`KMeansError::NoPositiveWeight`], [`KMeansError::WeightOutOfRange`],
/// [`KMeansError::WeightRangeTooWide`] or [`KMeansError::MagnitudeOutOfRange`].
pub fn survey_score<T: Float>(passes: &mut dyn Passes<T>, centroids: &[T], d: usize, metric: Metric) -> Result<Statistics> {
    let (n, weighted) = (passes.given().count()?, passes.given().is_weighted());
    let mut survey = passes.survey()?;
    if let Some(error) = survey.any_negative_weight.then(|| first_negative_weight(&*passes.given())).flatten() {
        return Err(error);
    }
    if survey.bad > 0 {
        survey = passes.skip_bad(survey)?;
    }
    let [mut lows, mut highs] = centroid_extents(centroids, d)?;
    for (f, column) in survey.columns.iter().enumerate() {
        lows[f] = lows[f].min(column.low);
        highs[f] = highs[f].max(column.high);
    }
    let scales = ScoreScales::new::<T>(metric, &lows, &highs, weighted.then_some(survey.largest_weight))?;
    if weighted {
        let range = [survey.smallest_weight, survey.largest_weight];
        check_weight_range(range, survey.positive, |bound| passes.given().weights_below(bound, 0))?;
    }
    if let Some(scale) = scales.weights {
        passes.round_weights(scale)?;
    }
    Ok(Statistics {
        n: n - survey.bad,
        n_positive: survey.positive,
        lows,
        highs,
        scales: Vec::new(),
        distances: scales.distances,
        shifts: DistanceScale::NONE,
        variance: 0.0,
        weights: scales.weights,
        ties: None,
        metric,
    })
}
