//! Learns from the data before fitting: validity, extents, quanta, the scale of distances, the variance.
//!
//! ```text
//! pass 1   rows with nulls or non-finite values; lows, highs, largest weight
//! pass 2   extents of the weighted contributions                     (only with weights other than 1)
//! pass 3   how many values are tiny beside their column's largest    (only where the smallest one is)
//! pass 4   the mean variance of the features                         (only if `tol` is positive)
//! ```
//! Everything that affects a result is an extremum, a count or a fixed-point sum. So it can be merged over tasks, chunks and
//! parts in any order.

pub(crate) mod factors;
pub(crate) mod given;
pub(crate) mod passes;
pub(crate) mod quanta;
pub(crate) mod refused;
pub(crate) mod score;
pub(crate) mod survey;
pub(crate) mod tiles;
pub(crate) mod variance;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::given::{check_negative, check_overflow, count_bad};
use self::passes::{HostPasses, Passes};
use self::quanta::{given_extents, quanta};
use self::survey::{EXTENTS, Survey};
use self::variance::variance;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::params::{Init, Metric, NullPolicy, Params};
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::{ColumnScale, frexp, power_of_two};
use crate::exact::reference;
use crate::input::tile::{RowBlock, WeightScale};
use crate::statistics::refused::check_vanished;

/// Most rows of a fit.
pub(crate) const MAX_ROWS: u64 = 1 << 36;

/// What the fit knows about its data.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Statistics {
    /// Number of kept rows.
    pub n: u64,
    /// Number of kept rows of positive weight.
    pub n_positive: u64,
    /// Column extents over rows of positive weight, `d` values each.
    pub lows: Vec<f64>,
    pub highs: Vec<f64>,
    /// One quantum per column. A score has none, because it adds up no features.
    pub scales: Vec<ColumnScale>,
    /// Base scale of the integer distances in inertia and draws.
    pub distances: DistanceScale,
    /// Base scale of the centroid shift: the scale of distances of weight 1.
    pub shifts: DistanceScale,
    /// Mean variance of the features; 0 if `tol` is 0.
    pub variance: f64,
    /// How weights become integers. `None` if rows have no weights.
    pub weights: Option<WeightScale>,
    /// Whether rows were equally far when their order decided which of them moves. `None` if the fit does not ask.
    #[cfg_attr(feature = "parts", serde(skip))]
    pub ties: Option<Arc<AtomicBool>>,
    /// With `Cosine`, the mean of a cluster is normalised. So centroids may be outside of the extents.
    pub metric: Metric,
}

impl Statistics {
    /// The largest magnitude of the rows of positive weight.
    pub fn extent(&self) -> f64 {
        self.lows.iter().chain(&self.highs).fold(0.0, |m, v| m.max(v.abs()))
    }

    /// Whether the fit asks for ties, and there was one.
    pub fn had_ties(&self) -> bool {
        self.ties.as_ref().is_some_and(|ties| ties.load(Ordering::Relaxed))
    }
}

/// Surveys the parts, sets their selections, and fixes every scale of the fit.
///
/// # Errors
/// Any error in the values: see [`KMeansError`].
pub fn gather<T: Float>(parts: &mut [RowBlock<'_, T>], params: &Params) -> Result<Statistics> {
    gather_by(&mut HostPasses::new(parts, params.execution.threads), params)
}

/// As [`gather`], with passes over rows that may be anywhere.
pub fn gather_by<T: Float>(passes: &mut dyn Passes<T>, params: &Params) -> Result<Statistics> {
    let (survey, n) = surveyed(passes, params)?;
    let weighted = passes.given().is_weighted();
    let weights = (weighted && survey.largest_weight > 0.0).then(|| WeightScale::new(survey.largest_weight));
    if let Some(scale) = weights {
        passes.round_weights(scale)?;
    }
    // If all weights are 1 or 0, the contributions equal the values.
    let weigh = weights.is_some() && !survey.all_weights_one;
    let contributions = if weigh { passes.weighted_extents()? } else { memory::copied(&survey.columns, EXTENTS)? };
    let largest_weight = weights.map_or(1.0, |scale| scale.largest);
    let given = given_extents::<T>(&*passes.given(), params.space, &params.output.extents, largest_weight)?;
    let scales = quanta(passes, &contributions, weigh, &given)?;

    // -0.0 + 0.0 is 0.0. So the result does not show which zero came first.
    let lows: Vec<f64> = memory::collected(survey.columns.iter().map(|column| column.low + 0.0), EXTENTS)?;
    let highs: Vec<f64> = memory::collected(survey.columns.iter().map(|column| column.high + 0.0), EXTENTS)?;
    let (mut box_lows, mut box_highs) = (memory::copied(&lows, EXTENTS)?, memory::copied(&highs, EXTENTS)?);
    if let Init::Given(centroids) = &params.seeding.init {
        widen::<T>(&mut box_lows, &mut box_highs, centroids)?;
    }
    let metric = params.space.metric;
    let s = diameter(metric, &box_highs, &box_lows);
    let variance = if params.stopping.tol > 0.0 { variance(passes, &lows, &highs, survey.positive)? } else { 0.0 };
    Ok(Statistics {
        n,
        n_positive: survey.positive,
        distances: DistanceScale::new(s, largest_weight),
        shifts: DistanceScale::new(s, 1.0),
        lows,
        highs,
        scales,
        variance,
        weights,
        ties: None,
        metric,
    })
}

/// The largest squared distance that scales of distances must hold: between corners of the box of the rows and centroids. With
/// `Cosine`, centroids leave the box of the rows when they are normalised, but not the unit sphere.
pub(crate) fn diameter(metric: Metric, highs: &[f64], lows: &[f64]) -> f64 {
    match metric {
        Metric::Euclidean => reference::distance(highs, lows),
        Metric::Cosine => 4.0,
    }
}

/// Surveys the kept rows and checks them. Also returns how many there are.
fn surveyed<T: Float>(passes: &mut dyn Passes<T>, params: &Params) -> Result<(Survey, u64)> {
    let (survey, n) = survey_rows(passes, params)?;
    check_vanished(&*passes.given(), &survey)?;
    // The check over all rows keeps rows of weight 0 from overflowing. The check over rows of positive weight keeps S in range.
    check_column_magnitudes::<T>(passes.given().names(), &survey)?;
    check_magnitude::<T>("values of rows of weight 0", survey.largest)?;
    Ok((survey, n))
}

/// Checks the magnitude of the column with the largest one.
pub(crate) fn check_column_magnitudes<T: Float>(names: &Names, survey: &Survey) -> Result<()> {
    let columns = &survey.columns;
    let widest = (0..columns.len()).max_by(|&a, &b| columns[a].largest.total_cmp(&columns[b].largest)).unwrap_or(0);
    check_magnitude::<T>(&format!("column {:?}", names.get(widest).unwrap_or_default()), columns[widest].largest)
}

/// Surveys the kept rows and checks them, but not how large their values are. Also returns how many there are.
pub(crate) fn survey_rows<T: Float>(passes: &mut dyn Passes<T>, params: &Params) -> Result<(Survey, u64)> {
    let total = passes.given().count()?;
    let weighted = passes.given().is_weighted();
    let mut survey = passes.survey()?;
    check_negative(&*passes.given(), &survey)?;
    if survey.bad > 0 {
        survey = match params.rows.null_policy {
            NullPolicy::Raise => return Err(count_bad(&*passes.given())?),
            NullPolicy::Skip => {
                check_overflow(&*passes.given())?;
                passes.skip_bad(survey)?
            }
        };
    }
    let n = total - survey.bad;
    if n == 0 {
        return Err(KMeansError::NoRows { skipped: (survey.bad > 0).then_some(survey.bad) });
    }
    if weighted {
        check_weights(passes, &survey, params.execution.threads)?;
    }
    if params.k as u64 > survey.positive {
        return Err(KMeansError::TooFewDistinct { k: params.k, rows: survey.positive });
    }
    Ok((survey, n))
}

/// Checks the magnitudes of the weights. Refuses them if more than one in 1,000 positive ones is below 2^-43 of the largest: `w^`
/// keeps 53 bits below the largest weight, so such small weights would keep fewer than ten bits.
fn check_weights<T: Float>(passes: &mut dyn Passes<T>, survey: &Survey, threads: usize) -> Result<()> {
    if survey.positive == 0 {
        return Err(KMeansError::NoPositiveWeight);
    }
    if !(power_of_two(-64)..=power_of_two(64)).contains(&survey.largest_weight) {
        return Err(KMeansError::WeightOutOfRange { got: survey.largest_weight });
    }
    let (largest, positive) = (survey.largest_weight, survey.positive);
    let bound = largest * power_of_two(-43);
    let small = if survey.smallest_weight < bound { passes.given().weights_below(bound, threads)? } else { 0 };
    if small * 1000 > positive { Err(KMeansError::WeightRangeTooWide { largest, small, positive }) } else { Ok(()) }
}

/// Widens the box of the rows so that it holds the starting centroids (`(k, d)`, row-major).
fn widen<T: Float>(lows: &mut [f64], highs: &mut [f64], centroids: &[f64]) -> Result<()> {
    let typed = |value: f64| T::from_f64(value).to_f64() + 0.0;
    if let Some(got) = centroids.iter().find(|value| !typed(**value).is_finite()) {
        let expected = format!("starting centroids that are finite as {}", T::NAME);
        return Err(KMeansError::InvalidOption { option: "init", expected, got: format!("{got:e}") });
    }
    let mut largest = 0.0f64;
    for row in centroids.chunks_exact(lows.len()) {
        for ((&value, low), high) in row.iter().zip(&mut *lows).zip(&mut *highs) {
            let value = typed(value);
            largest = largest.max(value.abs());
            *low = low.min(value);
            *high = high.max(value);
        }
    }
    check_centroid_magnitude::<T>("starting centroids", largest)
}

/// Checks a magnitude. For float64 it must be 0 or in `[2^-450, 2^450]`. Every finite float32 is accepted.
pub fn check_magnitude<T: Float>(what: &str, largest: f64) -> Result<()> {
    if T::IS_F32 || largest == 0.0 || (power_of_two(-450)..=power_of_two(450)).contains(&largest) {
        Ok(())
    } else {
        Err(KMeansError::MagnitudeOutOfRange { what: what.into(), got: largest })
    }
}

/// Checks the magnitude of centroids. They may be 0 or arbitrarily small, because values within [`check_magnitude`] may nearly
/// cancel out.
pub fn check_centroid_magnitude<T: Float>(what: &str, largest: f64) -> Result<()> {
    check_magnitude::<T>(what, if largest > power_of_two(450) { largest } else { 0.0 })
}

/// The power of two that brings a positive number into `[1/2, 1)`. Used to scale copies.
pub fn unit_exponent(m: f64) -> i32 {
    if m > 0.0 && m.is_finite() { -frexp(m).1 } else { 0 }
}
