//! Starting centroids: one file per method.

mod afk_mc2;
mod distinct;
mod optimal;
mod parallel;
pub mod plus_plus;
mod sample;
mod table;
mod without_replacement;

pub use self::distinct::distinct_rows;
use self::table::Table;
use crate::backend::{PlusPlus, Seeder};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Init, Params, RowOrder};
use crate::statistics::Statistics;

/// The name for the starting centroids in errors.
pub(crate) const CENTROIDS: &str = "the starting centroids";
/// The name for drawn rows in errors.
const ROWS: &str = "the rows that seeding draws";

/// The starting centroids of a restart: `(k, d)`, row-major.
///
/// # Errors
/// [`KMeansError::TooFewDistinct`] when a method runs out of distinct rows.
pub fn seed<T: Float>(session: &mut dyn Seeder<T>, params: &Params, statistics: &Statistics, restart: u32) -> Result<Vec<T>> {
    if let Init::Given(centroids) = &params.seeding.init {
        let mut typed = memory::zeroed(centroids.len(), CENTROIDS)?;
        typed.iter_mut().zip(centroids).for_each(|(typed, c)| *typed = T::from_f64(*c));
        return Ok(typed);
    }
    let rows = session.positive_rows();
    let mut centroids = match params.seeding.init_sample {
        Some(most) if most < rows => from_sample(session, params, statistics, restart, most)?,
        _ => by_method(session, params, statistics, restart)?,
    };
    let d = statistics.lows.len();
    if centroids.len() < params.k * d && params.seeding.init_sample.is_some() {
        plus_plus::complete(session, &PlusPlus::of(params, restart), statistics.distances, &mut centroids, d)?;
    }
    finish(session, params, &mut centroids);
    if centroids.len() < params.k * d { Err(KMeansError::TooFewDistinct { k: params.k, rows }) } else { Ok(centroids) }
}

/// Ends the draws. With `row_order="values"`, the centroids do not show which of two equal rows came first.
fn finish<T: Float>(session: &mut dyn Seeder<T>, params: &Params, centroids: &mut [T]) {
    session.end_draws();
    if params.rows.row_order == RowOrder::Values {
        // -0.0 + 0.0 is 0.0.
        centroids.iter_mut().for_each(|c| *c = T::from_f64(c.to_f64() + 0.0));
    }
}

/// As many centroids as the method finds, at most k.
fn by_method<T: Float>(session: &mut dyn Seeder<T>, params: &Params, statistics: &Statistics, restart: u32) -> Result<Vec<T>> {
    match params.seeding.init {
        Init::Given(_) => unreachable!("given centroids need no method"),
        Init::Random => sample::seed(session, params, restart),
        Init::KMeansPlusPlus => plus_plus::seed(session, &PlusPlus::of(params, restart), statistics.distances),
        Init::KMeansParallel => parallel::seed(session, params, statistics, restart),
        Init::AfkMc2 => afk_mc2::seed(session, params, statistics, restart),
        Init::Optimal => optimal::seed(session, params, statistics),
    }
}

/// Centroids from a sample of `rows` rows, without those that the sample has too few distinct rows for.
fn from_sample<T: Float>(
    session: &mut dyn Seeder<T>,
    params: &Params,
    statistics: &Statistics,
    restart: u32,
    rows: u64,
) -> Result<Vec<T>> {
    let sample = sample::draw(session, params, restart, rows)?;
    // Weights are rounded already, and distances count in the scale of all rows.
    let weights = statistics.weights.map(|scale| (sample.weights, scale));
    let table = Table::new(sample.values, weights, statistics.distances, statistics)?;
    table.with_session(session, params, |session| by_method(session, params, &table.statistics, restart))
}
