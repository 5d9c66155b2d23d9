//! The factors of the columns for a fit of rows in this process.

#[cfg(feature = "cuda")]
use crate::backend::cuda::{DevicePasses, Gpu};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::params::{Params, Scale};
use crate::input::tile::{Part, Selection, on_host};
use crate::statistics::factors::factors_by;
use crate::statistics::passes::{HostPasses, Passes};

/// One factor per feature for the rows of these parts, which are not transformed. `None` if nothing is scaled.
///
/// # Errors
/// [`KMeansError::InvalidOption`](crate::KMeansError::InvalidOption) for a factor of no column. Any error in the rows.
pub fn factors<T: Float>(parts: &mut [Part<'_, T>], params: &Params) -> Result<Option<Vec<f64>>> {
    let factors = match params.space.scale {
        Scale::Robust => factors_by(&mut HostPasses::new(&mut on_host(parts)?, params.execution.threads), params)?,
        _ => factors_by(&mut *passes_over(parts, params)?, params)?,
    };
    // What follows decides again which rows it keeps.
    parts.iter_mut().for_each(|part| part.selection = Selection::default());
    Ok(factors)
}

/// Passes over rows where they are. Those of a query are on the host, also if the fit runs on a GPU.
fn passes_over<'p, 'a, T: Float>(parts: &'p mut [Part<'a, T>], params: &Params) -> Result<Box<dyn Passes<T> + 'p>> {
    #[cfg(feature = "cuda")]
    if let Some(ordinal) = parts[0].features.gpu() {
        return Ok(Box::new(DevicePasses::new(&Gpu::get(ordinal)?.queue()?, parts, None)));
    }
    Ok(Box::new(HostPasses::new(parts, params.execution.threads)))
}
