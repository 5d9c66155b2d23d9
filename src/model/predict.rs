//! Passes of a fitted model over rows: labels, distances, inertia. The rows are not prepared. A row that is not finite gets no
//! answer. Every finite row gets an exact one.

#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::answers::{Labels, Predictions};
use crate::backend::cpu;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, DeviceTable};
use crate::backend::select::Place;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Metric;
use crate::base::strategy::Strategy;
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::power_of_two;
use crate::input::features::{Column, Features};
use crate::input::tile::WeightScale;
use crate::model::Model;
use crate::statistics::given::first_negative_weight;
use crate::statistics::passes::Passes;
use crate::statistics::survey::check_weight_range;
use crate::statistics::{Prepared, diameter};

/// The name for the extents of the rows in errors.
const EXTENTS: &str = "the extents of the columns";

/// The name for answers in errors.
pub const ANSWERS: &str = "the answers for all rows";

/// The rows, the model that they are compared with, and where the pass runs.
#[derive(Clone, Copy)]
pub struct Rows<'p, 'a, T> {
    pub model: &'p Model<T>,
    pub features: &'p Features<'a, T>,
    pub place: Place,
    /// The kernels that find labels on a GPU.
    pub strategy: Strategy,
}

#[cfg(feature = "cuda")]
impl<T: Float> Rows<'_, '_, T> {
    /// The GPU that the rows are on.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] if they are on the host.
    pub fn gpu(&self) -> Result<u32> {
        let expected = "rows on a GPU for answers there".into();
        let error = || KMeansError::InvalidOption { option: "device", expected, got: "rows on the host".into() };
        self.features.gpu().ok_or_else(error)
    }
}

/// The labels of the rows.
pub fn labels<T: Float>(rows: Rows<'_, '_, T>) -> Result<Labels> {
    match rows.place {
        Place::Cpu => cpu::predict::labels(rows.model, rows.features),
        #[cfg(feature = "cuda")]
        _ => on_gpus(rows, |tables| cuda::predict::labels(tables, rows.features, rows.strategy)),
        #[cfg(not(feature = "cuda"))]
        _ => no_gpu(),
    }
}

/// The labels, and the distances to the nearest and the second nearest centroid.
pub fn nearest<T: Float>(rows: Rows<'_, '_, T>) -> Result<Predictions> {
    match rows.place {
        Place::Cpu => cpu::predict::nearest(rows.model, rows.features),
        #[cfg(feature = "cuda")]
        _ => on_gpus(rows, |tables| cuda::predict::nearest(tables, rows.features)),
        #[cfg(not(feature = "cuda"))]
        _ => no_gpu(),
    }
}

/// The distances to all centroids.
pub fn distances<T: Float>(rows: Rows<'_, '_, T>) -> Result<Vec<f64>> {
    match rows.place {
        Place::Cpu => cpu::predict::distances(rows.model, rows.features),
        #[cfg(feature = "cuda")]
        _ => on_gpus(rows, |tables| cuda::predict::distances(tables, rows.features)),
        #[cfg(not(feature = "cuda"))]
        _ => no_gpu(),
    }
}

/// The inertia of the finite rows of positive weight.
pub fn inertia<T: Float>(rows: Rows<'_, '_, T>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
    match rows.place {
        Place::Cpu => cpu::predict::inertia(rows.model, rows.features, weights),
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => cuda::predict::inertia(&*rows.model.device_table(ordinal)?, rows.model, rows.features, weights),
        _ => no_gpu(),
    }
}

/// Calls `work` with the model's tables on the GPUs of these rows. Calls with few rows go to the GPUs in turn.
#[cfg(feature = "cuda")]
fn on_gpus<T: Float, R>(rows: Rows<'_, '_, T>, work: impl FnOnce(&[&DeviceTable<T>]) -> Result<R>) -> Result<R> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mut tables = match rows.place {
        Place::Cuda(ordinal) => vec![rows.model.device_table(ordinal)?],
        Place::Several(gpus) => {
            let tables = gpus.ordinals().iter().map(|&ordinal| rows.model.device_table(ordinal));
            memory::try_collected(tables, ANSWERS)?
        }
        Place::Cpu => no_gpu(),
    };
    let count = tables.len();
    tables.rotate_left(CALLS.fetch_add(1, Ordering::Relaxed) % count);
    work(&memory::collected(tables.iter().map(|table| &**table), ANSWERS)?)
}

fn no_gpu() -> ! {
    unreachable!("there is no such GPU to choose")
}

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
        crate::statistics::check_magnitude::<T>("feature values", largest)?;
        let weights = largest_weight.map(WeightScale::new);
        let s = diameter(metric, highs, lows);
        let distances = DistanceScale::new(s, weights.map_or(1.0, |scale| scale.largest));
        Ok(Self { weights, distances })
    }
}

/// The lowest and the highest value of each feature over the centroids.
pub fn centroid_extents<T: Float>(model: &Model<T>) -> Result<[Vec<f64>; 2]> {
    let [mut lows, mut highs] =
        [memory::filled(model.d, f64::INFINITY, EXTENTS)?, memory::filled(model.d, f64::NEG_INFINITY, EXTENTS)?];
    for row in model.centroids.chunks_exact(model.d) {
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
pub fn survey_score<T: Float>(passes: &mut dyn Passes<T>, model: &Model<T>) -> Result<Prepared> {
    let (n, weighted) = (passes.given().count()?, passes.given().is_weighted());
    let mut survey = passes.survey()?;
    if let Some(error) = survey.any_negative_weight.then(|| first_negative_weight(&*passes.given())).flatten() {
        return Err(error);
    }
    if survey.bad > 0 {
        survey = passes.skip_bad(survey)?;
    }
    let [mut lows, mut highs] = centroid_extents(model)?;
    for (f, column) in survey.columns.iter().enumerate() {
        lows[f] = lows[f].min(column.low);
        highs[f] = highs[f].max(column.high);
    }
    let metric = model.metric();
    let scales = ScoreScales::new::<T>(metric, &lows, &highs, weighted.then_some(survey.largest_weight))?;
    if weighted {
        let range = [survey.smallest_weight, survey.largest_weight];
        check_weight_range(range, survey.positive, |bound| passes.given().weights_below(bound, 0))?;
    }
    if let Some(scale) = scales.weights {
        passes.round_weights(scale)?;
    }
    Ok(Prepared {
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
