//! Passes of a fitted model over rows, on one GPU.
//!
//! ```text
//! once a model:  the centroids and the filter's copies of them go to the device, and stay there
//! per batch of rows, of bounded size:
//!   upload
//!   labels       what the filter is sure of, then the others              step/tiled.rs
//!   distances    to the two nearest centroids, or to all                  predict/table.rs
//!   blank        no answer for a row with a value that is not finite      predict/table.rs
//!   download; rows with nulls have no answer either: the host sees to that, because the device does not know nulls
//! ```
//! The scale of the inertia depends on the extents of all rows. So `inertia` has all rows on the device at once, as a fit does.

mod table;

pub use self::table::DeviceTable;
use self::table::{DistanceBuffers, NearestBuffers};
use super::device::Plain;
use super::passes::prepare::DevicePasses;
use super::rows::upload::upload;
use crate::backend::select::Job;
use crate::distances::{DistanceScale, DistanceSum};
use crate::error::Result;
use crate::features::{Column, Features};
use crate::float::Float;
use crate::memory::{self, Zero};
use crate::model::{Model, Prediction};
use crate::predict::{ScoreScales, centroid_extents, reserve};
use crate::prepare::passes::Passes;
use crate::prepare::survey::{check_weight_range, count_weights_below, first_negative_weight};
use crate::tile::Part;

/// The name of the answers in errors.
const ANSWERS: &str = "the answers for a batch of rows";
/// The label of a row that has no cluster.
const UNASSIGNED: u32 = u32::MAX;

/// Makes room for the answers of a batch of `len` values. The first batch is the longest, so this allocates only once.
fn resize<R: Zero>(here: &mut Vec<R>, len: usize) -> Result<()> {
    if here.len() < len {
        *here = memory::zeroed(len, ANSWERS)?;
    }
    here.truncate(len);
    Ok(())
}

/// The labels of the rows. None for rows with a null or a value that is not finite.
pub fn labels<T: Float + Plain>(table: &DeviceTable<T>, features: &Features<'_, T>) -> Result<Vec<Option<u32>>> {
    let n = features.n_rows();
    let (queue, mut out, mut here) = (table.queue()?, reserve(n, 1)?, Vec::new());
    for range in table.batches(Job::Labels, n) {
        let features = features.slice(range.clone())?;
        let rows = upload(&queue, &[Part::new(features.clone(), None)])?;
        let labels = table.assign(&queue, &rows)?;
        table.blank(&queue, &rows, Some(&labels), None)?;
        resize(&mut here, range.len())?;
        labels.read(0, &mut here)?;
        out.extend(here.iter().map(|&label| (label != UNASSIGNED).then_some(label)));
        features.for_each_null(0..range.len(), |_, i| out[range.start + i] = None);
    }
    Ok(out)
}

/// The labels, and the distances to the two nearest centroids. None for rows with a null or a value that is not finite.
pub fn nearest<T: Float + Plain>(table: &DeviceTable<T>, features: &Features<'_, T>) -> Result<Vec<Option<Prediction>>> {
    let n = features.n_rows();
    let (queue, mut out) = (table.queue()?, reserve(n, 1)?);
    let (mut labels_here, mut distances_here, mut seconds_here) = (Vec::new(), Vec::new(), Vec::new());
    for range in table.batches(Job::Nearest, n) {
        let (features, len) = (features.slice(range.clone())?, range.len());
        let rows = upload(&queue, &[Part::new(features.clone(), None)])?;
        let on_device = NearestBuffers::allocate(&queue, len)?;
        table.nearest(&queue, &rows, &on_device)?;
        table.blank(&queue, &rows, Some(&on_device.labels), None)?;
        resize(&mut labels_here, len)?;
        resize(&mut distances_here, len)?;
        resize(&mut seconds_here, len)?;
        on_device.labels.read(0, &mut labels_here)?;
        on_device.distances.read(0, &mut distances_here)?;
        on_device.seconds.read(0, &mut seconds_here)?;
        let answers = labels_here.iter().zip(distances_here.iter().zip(&seconds_here));
        out.extend(answers.map(|(&label, (&distance, &second))| {
            let second_distance = (table.k > 1).then_some(second);
            (label != UNASSIGNED).then_some(Prediction { label: Some(label), distance, second_distance })
        }));
        features.for_each_null(0..len, |_, i| out[range.start + i] = None);
    }
    Ok(out)
}

/// The distances to all centroids, `(n, k)`, row-major. They are NaN for rows with a null or a value that is not finite.
pub fn distances<T: Float + Plain>(table: &DeviceTable<T>, features: &Features<'_, T>) -> Result<Vec<f64>> {
    let (n, k) = (features.n_rows(), table.k);
    let (queue, mut out) = (table.queue()?, reserve(n, k)?);
    out.resize(n * k, f64::NAN);
    for range in table.batches(Job::Distances, n) {
        let features = features.slice(range.clone())?;
        let rows = upload(&queue, &[Part::new(features.clone(), None)])?;
        let distances = DistanceBuffers::allocate(&queue, range.len(), k)?;
        table.distances(&queue, &rows, &distances)?;
        table.blank(&queue, &rows, None, Some(&distances.distances))?;
        let out = &mut out[range.start * k..range.end * k];
        distances.distances.read(0, out)?;
        features.for_each_null(0..range.len(), |_, i| out[i * k..][..k].fill(f64::NAN));
    }
    Ok(out)
}

/// The inertia of the finite rows of positive weight.
pub fn inertia<T: Float + Plain>(
    table: &DeviceTable<T>,
    model: &Model<T>,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
) -> Result<f64> {
    let queue = table.queue()?;
    let mut parts = [Part::new(features.clone(), weights.cloned())];
    let mut passes = DevicePasses::new(&queue, &mut parts, None);
    let mut survey = passes.survey()?;
    if let Some(error) = survey.any_negative_weight.then(|| first_negative_weight(passes.parts())).flatten() {
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
    let scales = ScoreScales::new::<T>(&lows, &highs, weights.map(|_| survey.largest_weight))?;
    if weights.is_some() {
        let range = [survey.smallest_weight, survey.largest_weight];
        check_weight_range(range, survey.positive, |bound| count_weights_below(passes.parts(), bound, 0))?;
    }
    if survey.bad == features.n_rows() as u64 {
        return Ok(0.0);
    }
    if let Some(scale) = scales.weights {
        passes.round_weights(scale)?;
    }
    let rows = passes.into_chunks().into_resident()?;
    let labels = table.assign(&queue, &rows)?;
    let total = |scale: DistanceScale| table.total_distance(&queue, &rows, &labels, scale);
    let first = DistanceSum { total: total(scales.distances)?, scale: scales.distances };
    Ok(first.precise(survey.positive, total)?.to_f64())
}
