//! Shards of the rows as seeding sees them.
//!
//! Totals after a centroid was taken are those before it less its gains, which are known if it was a candidate. So that call says
//! nothing new, and shards that are elsewhere may do it together with the next one.

use std::sync::Arc;

use super::{SHARDS, Sharded, Shards};
use crate::backend::call::{Call, Calls, Reply};
use crate::backend::{DRAWN, DrawBy, Picked, PlusPlus, Sample, Sampled, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::RowBlock;
use crate::statistics::Statistics;

/// The number of a row that was drawn in another order than that of the shards: its place is not known.
const IN_ORDER: u64 = u64::MAX;

/// What seeding knows of the shards.
pub struct Draws<T> {
    /// The draw total of each shard, its total weight, and the scale of the distances, once a centroid was taken.
    totals: Vec<u128>,
    weights: Vec<u128>,
    scale: Option<DistanceScale>,
    gains: Option<Gains<T>>,
    /// The row that was drawn last.
    drawn: Option<(u64, Vec<T>)>,
}

/// What candidates gain in each shard.
struct Gains<T> {
    candidates: Vec<T>,
    /// `(shards, candidates)`.
    gains: Vec<u128>,
}

impl<T: Float> Draws<T> {
    pub fn new(shards: usize) -> Result<Self> {
        let (totals, weights) = (memory::zeroed(shards, SHARDS)?, memory::zeroed(shards, SHARDS)?);
        Ok(Self { totals, weights, scale: None, gains: None, drawn: None })
    }

    /// The gains of a centroid of `d` values in each shard, if it was a candidate and distances have this scale.
    fn known_gains(&self, centroid: &[T], scale: DistanceScale, d: usize) -> Option<impl Iterator<Item = u128>> {
        let known = self.gains.as_ref().filter(|_| self.scale == Some(scale) && centroid.len() == d)?;
        let same = |candidate: &[T]| candidate.iter().zip(centroid).all(|(a, b)| a.to_f64().to_bits() == b.to_f64().to_bits());
        let place = known.candidates.chunks_exact(d).position(same)?;
        Some(known.gains[place..].iter().step_by(known.candidates.len() / d).copied())
    }
}

impl<T: Float, S: Shards<T>> Sharded<T, S> {
    /// Asks each shard for the rows that its targets draw. Returns the rows in the order of the targets.
    fn drawn(&mut self, by: DrawBy, targets: &[u128], call: impl Fn(Vec<u128>) -> Call) -> Result<Picked<T>> {
        let totals = match by {
            DrawBy::Weight => &self.draws.weights,
            DrawBy::Distance => &self.draws.totals,
            DrawBy::Positive => &self.positive,
        };
        let ends = totals.iter().scan(0, |end, total| {
            *end += total;
            Some(*end)
        });
        let ends = memory::collected(ends, SHARDS)?;
        let mut own = memory::filled(totals.len(), Vec::new(), SHARDS)?;
        // The shard of each target, and its place there.
        let mut places = memory::with_room(targets.len(), DRAWN)?;
        for target in targets {
            let shard = ends.partition_point(|end| end <= target);
            let Some(own) = own.get_mut(shard) else { unreachable!("targets are below the total") };
            places.push((shard, own.len()));
            memory::push(own, target + totals[shard] - ends[shard], DRAWN)?;
        }
        // Rows come in the order of the shards.
        let firsts = own.iter().scan(0, |next, own| Some(std::mem::replace(next, *next + own.len())));
        let firsts: Vec<usize> = memory::collected(firsts, SHARDS)?;
        let calls = memory::collected(own.into_iter().map(|own| (!own.is_empty()).then(|| call(own))), SHARDS)?;
        let (Reply { rows, mut weights, .. }, values) = self.ask(Reply::default(), Calls::Each(calls), &[])?;
        // Only picks tell the weights.
        if weights.is_empty() {
            weights = memory::filled(rows.len(), 1.0, DRAWN)?;
        }
        let places = memory::collected(places.into_iter().map(|(shard, place)| firsts[shard] + place), DRAWN)?;
        Picked { rows, values, weights }.in_order(&places)
    }
}

impl<T: Float, S: Shards<T>> Seeder<T> for Sharded<T, S> {
    fn positive_rows(&self) -> u64 {
        self.positive.iter().sum::<u128>() as u64
    }

    fn row(&mut self, row: u64) -> Result<Vec<T>> {
        if let Some((_, values)) = self.draws.drawn.take().filter(|(drawn, _)| *drawn == row) {
            return Ok(values);
        }
        let shard = self.starts.partition_point(|start| *start <= row) - 1;
        let mut calls = memory::filled(self.starts.len(), None, SHARDS)?;
        calls[shard] = Some(Call::Row(row - self.starts[shard]));
        Ok(self.ask(Reply::default(), Calls::Each(calls), &[])?.1)
    }

    fn start_draws(&mut self) -> Result<u128> {
        let weights = self.ask_all(Call::StartDraws, &[])?.0.totals;
        let totals = memory::copied(&weights, SHARDS)?;
        self.draws = Draws { totals, weights, scale: None, gains: None, drawn: None };
        Ok(self.draws.totals.iter().sum())
    }

    fn draw(&mut self, target: u128) -> Result<u64> {
        let in_order = if self.draws.scale.is_none() { self.shards.draw_in_order(target)? } else { None };
        let (row, values) = match in_order {
            Some(values) => (IN_ORDER, values),
            None => {
                let found = self.drawn(DrawBy::Distance, &[target], Call::Draw)?;
                (found.rows[0], found.values)
            }
        };
        self.draws.drawn = Some((row, values));
        Ok(row)
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let call = Call::TakeSeeds(scale);
        let known = self.draws.known_gains(centroids, scale, self.statistics.lows.len());
        match known.map(|gains| memory::collected(gains, SHARDS)).transpose()? {
            Some(gains) => {
                self.draws.totals.iter_mut().zip(gains).for_each(|(total, gain)| *total -= gain);
                self.shards.later(call, centroids)?;
            }
            None => self.draws.totals = self.ask_all(call, centroids)?.0.totals,
        }
        (self.draws.scale, self.draws.gains) = (Some(scale), None);
        Ok(self.draws.totals.iter().sum())
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let gains = self.ask_all(Call::Gains, candidates)?.0.totals;
        let all = self.sum(&gains)?;
        self.draws.gains = Some(Gains { candidates: memory::copied(candidates, DRAWN)?, gains });
        Ok(all)
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let candidates = self.drawn(DrawBy::Distance, targets, Call::Draw)?.values;
        let gains = self.gains(&candidates)?;
        Ok((candidates, gains))
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        let Some(in_step) = self.shards.in_step() else { return Ok(()) };
        let before = centroids.len();
        if in_step.plus_plus_steps(asked, potential, centroids)? && centroids.len() < asked.k * self.statistics.lows.len() {
            // The host goes on. The shards have not taken the new ones.
            self.take_seeds(&centroids[before..], potential.scale)?;
        }
        Ok(())
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        self.drawn(by, targets, |targets| Call::Pick { by, targets })
    }

    fn all_rows(&mut self) -> Result<(Vec<T>, Vec<f64>)> {
        let (reply, values) = self.ask_all(Call::AllRows, &[])?;
        Ok((values, reply.weights))
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        let call = |start: &u64| Some(Call::Sample(Sample { first: sample.first + start, ..*sample }));
        let calls = Calls::Each(memory::collected(self.starts.iter().map(call), SHARDS)?);
        let (reply, values) = self.ask(Reply::default(), calls, &[])?;
        Ok(Sampled { rows: reply.rows, values })
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        self.added(Call::Masses, candidates)
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        self.shards.first()?.nearest_of(rows, centroids)
    }

    fn other_rows<'t>(
        &self,
        part: &RowBlock<'t, T>,
        statistics: &Arc<Statistics>,
        k: usize,
    ) -> Option<Box<dyn Seeder<T> + 't>> {
        self.shards.first()?.other_rows(part, statistics, k)
    }

    fn end_draws(&mut self) {
        (self.draws.scale, self.draws.gains) = (None, None);
        // No session fails to free memory.
        let _ = self.shards.later(Call::EndDraws, &[]);
    }
}
