//! The session of a fit, for benches (feature `bench`): they time its passes apart from everything else.

use crate::backend::timed::Timed;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Init, KMeans};
use crate::fit::prepared::{LocalRows, PreparedRows};
use crate::fit::{Running, rows};
use crate::input::features::Features;
use crate::input::tile::RowBlock;
use crate::seeding::CENTROIDS;
use crate::simd::InstructionSet;
use crate::statistics::Statistics;

/// What is done with a session, its starting centroids, and what is known about its rows.
pub type Use<'u, T> = &'u mut dyn FnMut(&mut dyn Timed<T>, &[T], &Statistics) -> Result<()>;

/// Makes the session of a fit from given starting centroids, on the device that the fit would take.
pub(crate) fn in_session<T: Float>(estimator: &KMeans, features: &Features<'_, T>, then: Use<'_, T>) -> Result<()> {
    let _running = Running::enter(estimator);
    let params = estimator.validate(features.n_features())?;
    let Init::Given(start) = &params.seeding.init else { unreachable!("the bench gives the starting centroids") };
    let start = memory::collected(start.iter().map(|c| T::from_f64(*c)), CENTROIDS)?;
    let mut parts = vec![RowBlock::new(features.clone(), None)];
    let choice = rows::place(&mut parts, &params)?;
    let rows = LocalRows::new(parts, &choice, &params, InstructionSet::detect(), None)?;
    then(rows.timed(&params)?.as_mut(), &start, rows.statistics())
}
