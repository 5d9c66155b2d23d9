//! `init="random"`: k different rows of positive weight, each equally likely (Forgy 1965).

use crate::backend::Draws;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::params::Params;
use crate::rng::{Stream, below, draw_u64};

pub fn seed<T: Float>(session: &mut dyn Draws<T>, params: &Params, restart: u32) -> Result<Vec<T>> {
    let n = session.positive_rows();
    let mut drawn: Vec<u64> = memory::with_room(params.k, super::CENTROIDS)?;
    let mut centroids = Vec::new();
    for step in 0..params.k {
        let u = draw_u64(params.seeding.seed, Stream::Random, restart, step as u32, 0);
        let target = below(u, u128::from(n) - step as u128) as u64;
        let (place, rank) = nth_not_drawn(&drawn, target);
        drawn.insert(place, rank);
        let row = session.positive_row(rank)?;
        let row = session.row(row)?;
        if step == 0 {
            memory::reserve(&mut centroids, row.len().saturating_mul(params.k), super::CENTROIDS)?;
        }
        centroids.extend(row);
    }
    Ok(centroids)
}

/// The `target`th number that is not in the ascending list, and where it would be inserted. `drawn[i] - i` numbers below
/// `drawn[i]` are not in the list.
fn nth_not_drawn(drawn: &[u64], target: u64) -> (usize, u64) {
    let (mut low, mut high) = (0, drawn.len());
    while low < high {
        let middle = (low + high) / 2;
        if drawn[middle] - middle as u64 <= target { low = middle + 1 } else { high = middle }
    }
    (low, target + low as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_already_drawn_are_passed_over() {
        let drawn = [0, 2, 3, 7];
        let rest: Vec<u64> = (0..10).filter(|i| !drawn.contains(i)).collect();
        for (target, &expected) in rest.iter().enumerate() {
            let (place, rank) = nth_not_drawn(&drawn, target as u64);
            assert_eq!(rank, expected);
            assert_eq!(place, drawn.iter().filter(|d| **d < rank).count());
        }
    }
}
