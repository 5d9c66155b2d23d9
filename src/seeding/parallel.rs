//! `init="kmeans-parallel"`: k-means||.
//!
//! B. Bahmani, B. Moseley, A. Vattani, R. Kumar and S. Vassilvitskii, "Scalable K-Means++", PVLDB 5 (2012), algorithm 2.
//!
//! ```text
//! candidates = one row, drawn by weight
//! per round:   every row becomes a candidate with probability l * D / potential, each decides alone      backend/seeder.rs
//! weights    = the total weight of the rows nearest to each candidate
//! centroids  = k-means++ among the candidates with these weights                                      seeding/plus_plus.rs
//! ```
//! l is `oversampling * k`. Departures from the paper:
//! 1. The number of rounds is an option. The paper's log of the first potential is far more than the few rounds that it finds
//!    enough.
//! 2. The k-means++ at the end is the greedy one.
//! 3. If there are too few candidates for k centroids, steps of k-means++ over all rows find the rest.

use super::plus_plus::{self, First};
use super::table::Table;
use crate::backend::{Draw, PlusPlus, Sample, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Params, RowOrder};
use crate::exact::distances::DistanceScale;
use crate::exact::rng::DrawPurpose;
use crate::input::tile::WeightScale;
use crate::statistics::{Statistics, diameter};

pub fn seed<T: Float>(session: &mut dyn Seeder<T>, params: &Params, statistics: &Statistics, restart: u32) -> Result<Vec<T>> {
    let d = statistics.lows.len();
    let asked = PlusPlus::of(params, restart);
    let candidates = candidates(session, params, statistics, &asked)?;
    let mut centroids = if candidates.len() < params.k * d {
        candidates
    } else {
        session.end_draws();
        let masses = session.masses(&candidates)?;
        let table = weighted(candidates, &masses, statistics)?;
        let among = PlusPlus { stream: DrawPurpose::Candidates, ..asked };
        table.with_session(session, params, |session| plus_plus::seed(session, &among, table.statistics.distances))?
    };
    plus_plus::complete(session, &asked, statistics.distances, &mut centroids, d)?;
    Ok(centroids)
}

/// The different candidates of all rounds, in the order of the rows.
fn candidates<T: Float>(
    session: &mut dyn Seeder<T>,
    params: &Params,
    statistics: &Statistics,
    asked: &PlusPlus,
) -> Result<Vec<T>> {
    let d = statistics.lows.len();
    let First { row, mut values, .. } = plus_plus::first(session, asked)?;
    let mut rows = memory::filled(1, row, super::ROWS)?;
    let mut potential = plus_plus::take(session, &values, statistics.distances)?;
    let expected = params.seeding.candidates(params.k).of_round;
    let by_values = params.rows.row_order == RowOrder::Values;
    for round in 0..params.seeding.rounds {
        if potential.total == 0 {
            break;
        }
        let (seed, total) = (asked.seed, potential.total);
        let sample = Sample { seed, restart: asked.restart, round, total, expected, first: 0, by_values };
        let sampled = session.pick(&Draw::Each(sample))?;
        memory::extend(&mut rows, &sampled.rows, super::ROWS)?;
        memory::extend(&mut values, &sampled.values, super::ROWS)?;
        if round + 1 < params.seeding.rounds {
            potential = plus_plus::take(session, &sampled.values, potential.scale)?;
        }
    }
    let mut order: Vec<usize> = memory::collected(0..rows.len(), super::ROWS)?;
    if by_values {
        // The order of the rows, also where they are not sorted. Equal candidates are kept once.
        let row = |i: usize| values[i * d..][..d].iter().map(|x| x.to_f64() + 0.0);
        order.sort_unstable_by(|&a, &b| {
            row(a).zip(row(b)).map(|(x, y)| x.total_cmp(&y)).find(|o| o.is_ne()).unwrap_or(rows[a].cmp(&rows[b]))
        });
    } else {
        order.sort_unstable_by_key(|&i| rows[i]);
    }
    different(&values, d, &order)
}

/// The rows of a list in its order, each only where it comes first.
fn different<T: Float>(values: &[T], d: usize, order: &[usize]) -> Result<Vec<T>> {
    let row = |index: usize| &values[order[index] * d..][..d];
    // -0.0 + 0.0 is 0.0, so both zeros are equal.
    let bits = |index: usize| row(index).iter().map(|x| (x.to_f64() + 0.0).to_bits());
    let mut sorted: Vec<usize> = memory::collected(0..order.len(), super::ROWS)?;
    sorted.sort_unstable_by(|&a, &b| bits(a).cmp(bits(b)).then(a.cmp(&b)));
    let mut repeated = memory::zeroed::<bool>(order.len(), super::ROWS)?;
    for two in sorted.windows(2) {
        repeated[two[1]] = bits(two[0]).eq(bits(two[1]));
    }
    let mut kept = memory::with_room(values.len(), super::ROWS)?;
    (0..order.len()).filter(|&index| !repeated[index]).for_each(|index| kept.extend_from_slice(row(index)));
    Ok(kept)
}

/// The candidates as rows with these weights.
fn weighted<T: Float>(candidates: Vec<T>, masses: &[u128], all: &Statistics) -> Result<Table<T>> {
    let weights: Vec<f64> = memory::collected(masses.iter().map(|mass| *mass as f64), super::ROWS)?;
    // Some row is nearest to some candidate, so the largest weight is positive.
    let scale = WeightScale::new(weights.iter().copied().fold(0.0, f64::max));
    let largest = diameter(all.metric, &all.highs, &all.lows);
    Table::new(candidates, Some((weights, scale)), DistanceScale::new(largest, scale.largest), all)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(equal_candidates_are_kept_once);
    fn equal_candidates_are_kept_once() {
        let values = [1.0, 2.0, 0.0, 5.0, 1.0, 2.0, -0.0, 5.0, 1.0, 3.0];
        let order = [4, 3, 0, 2, 1];
        assert_eq!(different(&values, 2, &order).unwrap(), [1.0, 3.0, -0.0, 5.0, 1.0, 2.0]);
    }
}
