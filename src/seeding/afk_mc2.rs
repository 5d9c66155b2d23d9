//! `init="afk-mc2"`: assumption-free k-MC².
//!
//! O. Bachem, M. Lucic, S. H. Hassani and A. Krause, "Fast and Provably Good Seedings for k-Means", NIPS 2016, algorithm 1.
//!
//! ```text
//! c = one row, drawn by weight; D1 = distances to it; q = D1 / sum(D1) + w / sum(w)
//! per step: a Markov chain over `chain_length` rows that are drawn by q (half of them by D1, half by w)
//!           row y follows row x if D(x) = 0 or u < (D(y) q(x)) / (D(x) q(y)), D to the nearest centroid so far
//!           the last row of the chain is the next centroid
//! ```
//! Departures from the paper:
//! 1. The rows that chains propose do not depend on the chains. So the rows of many steps are drawn at once, and their distances
//!    to the centroids so far are computed for a block of steps at once. Within the block each new centroid lowers them.
//! 2. A chain may end in a row that is a centroid already. Then nearly all of what q draws are such rows, and further chains
//!    would find little. Steps of k-means++ find this centroid and the rest.

use std::ops::Range;

use super::plus_plus::{self, First};
use crate::backend::cpu::LeastDistances;
use crate::backend::{Draw, DrawBy, PlusPlus, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::base::params::Params;
use crate::exact::distances::DistanceSum;
use crate::exact::fixed::power_of_two;
use crate::exact::reference;
use crate::exact::rng::{DrawPurpose, below, draw_two, draw_u64};
use crate::statistics::Statistics;

/// Steps of a block.
const BLOCK: usize = 32;
/// Bytes of the rows that are drawn at once. A block is always drawn whole.
const DRAWN: usize = 64 << 20;
/// Bytes that a drawn row takes beside its values, at most.
const BESIDE: usize = 64;
/// Rows whose odds one thread computes at a time.
const TOGETHER: usize = 256;

pub fn seed<T: Float>(session: &mut dyn Seeder<T>, params: &Params, statistics: &Statistics, restart: u32) -> Result<Vec<T>> {
    let d = statistics.lows.len();
    let asked = PlusPlus::of(params, restart);
    let First { values: mut centroids, weight, .. } = plus_plus::first(session, &asked)?;
    let potential = plus_plus::take(session, &centroids, statistics.distances)?;
    if params.k == 1 || potential.total == 0 {
        return Ok(centroids);
    }
    memory::reserve(&mut centroids, d.saturating_mul(params.k - 1), super::CENTROIDS)?;
    let proposing = Proposing::new(params, statistics, restart, &centroids, weight, potential)?;
    let (threads, chain) = (params.execution.threads, proposing.chain);
    let of_block = chain.saturating_mul(BLOCK).saturating_mul(d.saturating_mul(size_of::<T>()).saturating_add(BESIDE));
    let at_once = BLOCK * (DRAWN / of_block).max(1);
    let mut step = 1;
    while step < params.k {
        let until = params.k.min(step + at_once);
        let (rows, odds) = proposing.draw(session, step..until)?;
        let (mut rows, mut odds) = (rows.as_slice(), odds.as_slice());
        while step < until {
            let steps = BLOCK.min(until - step);
            let (block, rest) = rows.split_at(steps * chain * d);
            let mut least = match session.device().and_then(|device| device.nearest(block, &centroids)) {
                Some(labels) => LeastDistances::to_known(block, &centroids, &labels, d, threads)?,
                None => LeastDistances::new(block, &centroids, d, statistics.extent(), threads)?,
            };
            let before = centroids.len();
            for (at, odds) in (0..steps * chain).step_by(chain).zip(odds.chunks_exact(chain)) {
                least.lower(at..at + chain, &centroids[before..]);
                let Some(chosen) = proposing.run_chain(step, odds, &least.distances()[at..][..chain]) else {
                    plus_plus::complete(session, &asked, statistics.distances, &mut centroids, d)?;
                    return Ok(centroids);
                };
                centroids.extend_from_slice(&block[(at + chosen) * d..][..d]);
                step += 1;
            }
            (rows, odds) = (rest, &odds[steps * chain..]);
        }
    }
    Ok(centroids)
}

/// How rows are proposed.
struct Proposing<T> {
    seed: u64,
    restart: u32,
    /// Trials of a step.
    chain: usize,
    /// The first centroid.
    first: Vec<T>,
    /// The total weight of the rows, and that of their distances to the first centroid: as integers and as numbers.
    weight: (u128, f64),
    distance: (u128, f64),
    threads: usize,
}

/// What decides whether a chain goes on to a row.
struct Odds {
    weight: f64,
    /// Twice the probability of its proposal.
    q: f64,
}

impl<T: Float> Proposing<T> {
    fn new(
        params: &Params,
        statistics: &Statistics,
        restart: u32,
        first: &[T],
        weight: u128,
        potential: DistanceSum,
    ) -> Result<Self> {
        let quantum = statistics.weights.map_or(1.0, |scale| power_of_two(scale.exponent - 53));
        Ok(Self {
            seed: params.seeding.seed,
            restart,
            chain: params.seeding.chain_length as usize,
            first: memory::copied(first, super::CENTROIDS)?,
            weight: (weight, weight as f64 * quantum),
            distance: (potential.total, potential.to_f64()),
            threads: params.execution.threads,
        })
    }

    /// The two numbers of a trial: the coin, and the one that decides whether the chain goes on to the row.
    fn coin(&self, step: usize, trial: usize) -> [u64; 2] {
        draw_two(self.seed, DrawPurpose::Chain, self.restart, step as u32, trial as u32)
    }

    /// Draws the rows of some steps: `(steps, chain, d)`, and their odds: `(steps, chain)`.
    fn draw(&self, session: &mut dyn Seeder<T>, steps: Range<usize>) -> Result<(Vec<T>, Vec<Odds>)> {
        let (d, count) = (self.first.len(), steps.len().saturating_mul(self.chain));
        let mut sides = memory::with_room(count, super::ROWS)?;
        let mut targets = [memory::with_room(count, super::ROWS)?, memory::with_room(count, super::ROWS)?];
        for (step, trial) in steps.flat_map(|step| (0..self.chain).map(move |trial| (step, trial))) {
            let side = (self.coin(step, trial)[0] & 1) as usize;
            let u = draw_u64(self.seed, DrawPurpose::Proposals, self.restart, step as u32, trial as u32);
            targets[side].push(below(u, [self.distance.0, self.weight.0][side]));
            sides.push(side);
        }
        let [by_distance, by_weight] = targets;
        let picked = [
            session.pick(&Draw::Totals(DrawBy::Distance, by_distance))?,
            session.pick(&Draw::Totals(DrawBy::Weight, by_weight))?,
        ];
        let mut values = memory::with_room(count.saturating_mul(d), super::ROWS)?;
        let mut odds = memory::with_room(count, super::ROWS)?;
        let mut next = [0; 2];
        for side in sides {
            values.extend_from_slice(&picked[side].values[next[side] * d..][..d]);
            odds.push(Odds { weight: picked[side].weights[next[side]], q: 0.0 });
            next[side] += 1;
        }
        let workers = workers_for(self.threads, odds.len().div_ceil(TOGETHER));
        let tasks = values.chunks(TOGETHER * d).zip(odds.chunks_mut(TOGETHER));
        for_each_task(&mut vec![(); workers], tasks, |(), (rows, odds)| {
            for (row, odds) in rows.chunks_exact(d).zip(odds) {
                let distance = odds.weight * reference::distance(row, &self.first);
                odds.q = distance / self.distance.1 + odds.weight / self.weight.1;
            }
        })?;
        Ok((values, odds))
    }

    /// Runs the chain of a step. `nearest`: the distances of its rows to the nearest centroid so far. Returns the index of the
    /// row in which the chain ends, unless that is a centroid already.
    fn run_chain(&self, step: usize, odds: &[Odds], nearest: &[f64]) -> Option<usize> {
        let distance = |index: usize| odds[index].weight * nearest[index];
        let mut x = 0;
        for y in 1..odds.len() {
            let u = (self.coin(step, y)[1] >> 11) as f64 * power_of_two(-53);
            let there = distance(x);
            if there == 0.0 || u < (distance(y) * odds[x].q) / (there * odds[y].q) {
                x = y;
            }
        }
        (distance(x) > 0.0).then_some(x)
    }
}
