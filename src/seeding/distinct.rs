//! `too_few="fewer"`: the distinct rows of positive weight, for a fit that asks for more clusters than there are such rows.
//!
//! ```text
//! the first row of positive weight; then, again and again, the first row that is at a positive distance from all of them
//! ```
//! The integers of draws say which row that is: a positive distance is at least 1, so the first row whose running total exceeds 0
//! is the one. Each row found is one pass.
//!
//! With `metric="cosine"`, rows of one direction may differ by rounding (`transform::same_direction`), and there may be as many
//! such rows as there are rows. So rows are drawn by k-means++, which finds directions that differ long before it finds
//! roundings, and roundings are left out. The rows are then in the order of the draws.

use super::{CENTROIDS, finish, plus_plus};
use crate::backend::{Draw, DrawBy, PlusPlus, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Metric, Params};
use crate::exact::reference;
use crate::input::transform::same_direction;
use crate::statistics::Statistics;

/// The distinct rows, at most k: row-major, in the order in which they first appear.
pub fn distinct_rows<T: Float>(session: &mut dyn Seeder<T>, params: &Params, statistics: &Statistics) -> Result<Vec<T>> {
    let (k, d) = (params.k, statistics.lows.len());
    let mut rows = match statistics.metric {
        Metric::Euclidean => in_order(session, statistics, k, d)?,
        Metric::Cosine => {
            let drawn = plus_plus::seed(session, &PlusPlus::of(params, 0), statistics.distances)?;
            let same = same_direction::<T>(d);
            let mut rows = memory::with_room(drawn.len(), CENTROIDS)?;
            for row in drawn.chunks_exact(d) {
                if rows.chunks_exact(d).all(|other| reference::distance(row, other) > same) {
                    rows.extend_from_slice(row);
                }
            }
            rows
        }
    };
    finish(session, params, &mut rows);
    Ok(rows)
}

fn in_order<T: Float>(session: &mut dyn Seeder<T>, statistics: &Statistics, k: usize, d: usize) -> Result<Vec<T>> {
    session.weigh()?;
    let first = |by| Draw::Totals(by, vec![0]);
    let mut rows = session.pick(&first(DrawBy::Weight))?.values;
    while rows.len() < k.saturating_mul(d) && session.lower(&rows[rows.len() - d..], statistics.distances)? > 0 {
        memory::extend(&mut rows, &session.pick(&first(DrawBy::Distance))?.values, CENTROIDS)?;
    }
    Ok(rows)
}
