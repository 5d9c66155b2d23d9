//! Starting centroids: one file per method.

pub mod plus_plus;
mod random;

use crate::backend::Draws;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::params::{Init, Params};
use crate::prepare::Prepared;

/// The name for the starting centroids in errors.
const CENTROIDS: &str = "the starting centroids";

/// The starting centroids of a restart: `(k, d)`, row-major.
///
/// # Errors
/// [`crate::KMeansError::TooFewDistinct`] when a method runs out of distinct rows.
pub fn seed<T: Float>(session: &mut dyn Draws<T>, params: &Params, prepared: &Prepared, restart: u32) -> Result<Vec<T>> {
    match &params.seeding.init {
        Init::Given(centroids) => {
            let mut typed = memory::zeroed(centroids.len(), CENTROIDS)?;
            typed.iter_mut().zip(centroids).for_each(|(typed, c)| *typed = T::from_f64(*c));
            Ok(typed)
        }
        Init::Random => random::seed(session, params, restart),
        Init::KMeansPlusPlus => {
            let centroids = plus_plus::seed(session, params, prepared.distances, restart);
            session.end_draws();
            centroids
        }
    }
}
