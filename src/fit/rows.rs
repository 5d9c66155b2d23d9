//! The caller's rows before they are prepared: where the fit runs, and what happens to rows as they are read.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use crate::backend::cuda::{DevicePasses, Gpu};
use crate::backend::select::{self, Choice, DeviceRequest, Job, Shape, There};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::params::{Device, DrawnCandidates, Metric, Params, RowOrder, Scale, Seeding};
use crate::input::tile::{self, RowBlock, Selection};
use crate::input::transform::RowTransform;
use crate::statistics::factors::factors_by;
use crate::statistics::passes::{HostPasses, Passes};

/// Chooses where the fit runs. Nothing is computed or sent. Only weights that are on another GPU than the rows are copied.
pub fn place<T: Float>(parts: &mut [RowBlock<'_, T>], params: &Params<'_>) -> Result<Choice> {
    if !params.keeps_halves() {
        parts.iter_mut().for_each(|part| part.features = part.features.widened());
    }
    let shape = Shape { priced: params.has_sizes(), ..shape(parts, params.k, params.seeding.candidates(params.k)) };
    let execution = &params.execution;
    let (device, strategy, limit) = (device_of(params)?, execution.strategy, execution.device_memory_limit);
    select::place(DeviceRequest { device, strategy, limit, there: there(parts, params)? }, shape)
}

/// The device that is asked for. Fits with bounds on the sizes of clusters do not run on several GPUs.
pub fn device_of(params: &Params<'_>) -> Result<Device> {
    match params.execution.device {
        device @ (Device::AllCuda | Device::Several(_)) if params.has_sizes() => {
            let expected = "one device, since clusters have bounds on their sizes".into();
            Err(KMeansError::InvalidOption { option: "device", expected, got: format!("\"{device}\"") })
        }
        device => Ok(device),
    }
}

/// The shape of a fit of these rows.
pub fn shape<T: Float>(parts: &[RowBlock<'_, T>], clusters: usize, candidates: DrawnCandidates) -> Shape {
    Shape {
        job: Job::Fit,
        rows: parts.iter().map(|part| part.features.n_rows() as u64).sum(),
        features: parts[0].features.n_features(),
        clusters,
        float64: !T::IS_F32,
        half: tile::half(parts).is_some(),
        weighted: parts[0].weights.is_some(),
        candidates,
        priced: false,
    }
}

/// The GPU that the rows are on, if they are on one. Weights that are on another GPU are copied.
fn there<T: Float>(parts: &mut [RowBlock<'_, T>], params: &Params<'_>) -> Result<Option<There>> {
    let gpu = parts[0].features.gpu();
    for part in parts.iter_mut() {
        if part.features.gpu() != gpu {
            let expected = "rows in one place".into();
            return Err(KMeansError::InvalidOption { option: "device", expected, got: "rows in several".into() });
        }
        let weights = part.weights.as_ref().filter(|weights| weights.gpu().is_some() && weights.gpu() != gpu);
        if let Some(weights) = weights {
            part.weights = Some(weights.on_host()?);
        }
    }
    let unchanged = params.space.scale == Scale::None && params.space.metric == Metric::Euclidean;
    let as_they_are = unchanged && params.rows.row_order == RowOrder::Given;
    let in_place = parts.len() == 1 && as_they_are && parts[0].features.is_read_in_place();
    Ok(gpu.map(|ordinal| There { ordinal, in_place }))
}

/// From now on, rows are scaled and normalised as they are read, if the parameters ask for it. Returns how starting centroids are
/// found then, if that changes.
///
/// # Errors
/// As [`transform_by`].
pub fn transform<T: Float>(parts: &mut [RowBlock<'_, T>], params: &Params<'_>) -> Result<Option<Seeding>> {
    let (row_transform, seeding) = match params.space.scale {
        // Digits of values are counted on the host.
        Scale::Robust => {
            let mut parts = tile::on_host(parts)?;
            transform_by(&mut HostPasses::new(&mut parts, params.execution.threads), params)?
        }
        _ => transform_by(&mut *passes_over(parts, params)?, params)?,
    };
    for part in parts {
        // What follows decides again which rows it keeps.
        part.selection = Selection::default();
        part.features = part.features.transformed_by(row_transform.clone());
    }
    Ok(seeding)
}

/// How rows that may be anywhere are scaled and normalised, and how starting centroids are found then, if that changes: given ones
/// are transformed too.
///
/// # Errors
/// [`KMeansError::InvalidOption`] for a factor of no column, and for a centroid that cannot be transformed. Any error in the
/// rows.
pub fn transform_by<T: Float>(
    passes: &mut dyn Passes<T>,
    params: &Params<'_>,
) -> Result<(Option<Arc<RowTransform>>, Option<Seeding>)> {
    let row_transform = RowTransform::new(factors_by(passes, params)?, params.space.metric);
    let given = passes.given();
    let seeding = row_transform.as_ref().map(|transform| transform.seeding::<T>(params.seeding, given.names())).transpose()?;
    Ok((row_transform, seeding.flatten()))
}

/// Passes over rows where they are. Those of a query are on the host, also if the fit runs on a GPU.
fn passes_over<'p, 'a, T: Float>(parts: &'p mut [RowBlock<'a, T>], params: &Params<'_>) -> Result<Box<dyn Passes<T> + 'p>> {
    #[cfg(feature = "cuda")]
    if let Some(ordinal) = parts[0].features.gpu() {
        return Ok(Box::new(DevicePasses::new(&Gpu::get(ordinal)?.queue()?, parts, None)));
    }
    Ok(Box::new(HostPasses::new(parts, params.execution.threads)))
}
