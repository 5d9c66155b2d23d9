//! Shards of the rows as seeding sees them.
//!
//! The total after a centroid was taken is the total before it, less the gain of the centroid. The gain is known if the centroid
//! was a candidate. Then the reply to `Lower` is known too, and shards in other processes do it together with the next call.

use super::{SHARDS, Sharded, Shards};
use crate::backend::call::{Call, Calls, other_reply};
use crate::backend::{DRAWN, Draw, DrawBy, Picked, PlusPlus, Sample, Seeder, SeedingDevice};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::{DistanceScale, DistanceSum};

/// The number of a row that was drawn in another order than that of the shards: its number and its weight are not known; the first centroid needs
/// neither.
const IN_ORDER: u64 = u64::MAX;

/// The table of draws of all shards: their totals.
pub struct Draws<T> {
    /// The draw total of each shard, its total weight, and the scale of the distances, once a centroid was taken.
    totals: Vec<u128>,
    weights: Vec<u128>,
    scale: Option<DistanceScale>,
    gains: Option<KnownGains<T>>,
}

/// What candidates gain in each shard.
struct KnownGains<T> {
    candidates: Vec<T>,
    /// `(shards, candidates)`.
    gains: Vec<u128>,
}

impl<T: Float> Draws<T> {
    pub fn new(shards: usize) -> Result<Self> {
        let (totals, weights) = (memory::zeroed(shards, SHARDS)?, memory::zeroed(shards, SHARDS)?);
        Ok(Self { totals, weights, scale: None, gains: None })
    }

    /// The gains of a centroid of `d` values in each shard, if it was a candidate and distances have this scale.
    fn known_gains(&self, centroid: &[T], scale: DistanceScale, d: usize) -> Option<impl Iterator<Item = u128>> {
        let known = self.gains.as_ref().filter(|_| self.scale == Some(scale) && centroid.len() == d)?;
        let same = |candidate: &[T]| candidate.iter().zip(centroid).all(|(a, b)| a.to_f64().to_bits() == b.to_f64().to_bits());
        let index = known.candidates.chunks_exact(d).position(same)?;
        Some(known.gains[index..].iter().step_by(known.candidates.len() / d).copied())
    }
}

impl<T: Float, S: Shards<T>> Sharded<T, S> {
    /// Asks each shard for the rows that its targets draw. Returns the rows in the order of the targets.
    fn by_totals(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        if let (DrawBy::Weight, [target]) = (by, targets)
            && let Some(values) = self.shards.draw_in_order(*target)?
        {
            return Ok(Picked { rows: vec![IN_ORDER], values, weights: Vec::new() });
        }
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
        // The shard of each target, and its index among the targets of the shard.
        let mut indices = memory::with_room(targets.len(), DRAWN)?;
        for target in targets {
            let shard = ends.partition_point(|end| end <= target);
            // Targets are below the total.
            let own = own.get_mut(shard).ok_or_else(other_reply)?;
            indices.push((shard, own.len()));
            memory::push(own, target + totals[shard] - ends[shard], DRAWN)?;
        }
        // Rows come in the order of the shards.
        let firsts = own.iter().scan(0, |next, own| Some(std::mem::replace(next, *next + own.len())));
        let firsts: Vec<usize> = memory::collected(firsts, SHARDS)?;
        let call = |own: Vec<u128>| (!own.is_empty()).then_some(Call::Pick(Draw::Totals(by, own)));
        let picked = self.rows_of(Calls::Each(memory::collected(own.into_iter().map(call), SHARDS)?))?;
        let indices = indices.into_iter().map(|(shard, index)| firsts[shard] + index);
        picked.in_order(&memory::collected(indices, DRAWN)?)
    }
}

impl<T: Float, S: Shards<T>> Seeder<T> for Sharded<T, S> {
    fn positive_rows(&self) -> u64 {
        self.positive.iter().sum::<u128>() as u64
    }

    fn weigh(&mut self) -> Result<u128> {
        let weights = self.totals(Call::Weigh, &[])?;
        let totals = memory::copied(&weights, SHARDS)?;
        self.draws = Draws { totals, weights, scale: None, gains: None };
        Ok(self.draws.totals.iter().sum())
    }

    fn lower(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let call = Call::Lower(scale);
        let known = self.draws.known_gains(centroids, scale, self.statistics.lows.len());
        match known.map(|gains| memory::collected(gains, SHARDS)).transpose()? {
            Some(gains) => {
                self.draws.totals.iter_mut().zip(gains).for_each(|(total, gain)| *total -= gain);
                self.shards.later(call, centroids)?;
            }
            None => self.draws.totals = self.totals(call, centroids)?,
        }
        (self.draws.scale, self.draws.gains) = (Some(scale), None);
        Ok(self.draws.totals.iter().sum())
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let gains = self.totals(Call::Gains, candidates)?;
        // A shard that has told another total may tell gains beyond the total that is known here.
        let of_shards = gains.chunks_exact((gains.len() / self.starts.len()).max(1));
        if of_shards.zip(&self.draws.totals).any(|(gains, total)| gains.iter().any(|gain| gain > total)) {
            return Err(other_reply());
        }
        let all = self.sum(&gains)?;
        self.draws.gains = Some(KnownGains { candidates: memory::copied(candidates, DRAWN)?, gains });
        Ok(all)
    }

    fn pick(&mut self, draw: &Draw) -> Result<Picked<T>> {
        match draw {
            Draw::Totals(by, targets) => self.by_totals(*by, targets),
            Draw::Each(sample) => {
                let call = |start: &u64| Some(Call::Pick(Draw::Each(Sample { first: sample.first + start, ..*sample })));
                self.rows_of(Calls::Each(memory::collected(self.starts.iter().map(call), SHARDS)?))
            }
            Draw::All => self.rows_of(Calls::All(Call::Pick(Draw::All))),
        }
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        self.added(Call::Masses, candidates)
    }

    fn end_draws(&mut self) {
        (self.draws.scale, self.draws.gains) = (None, None);
        // No session fails to free memory.
        let _ = self.shards.later(Call::EndDraws, &[]);
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        let Some(in_step) = self.shards.in_step() else { return Ok(()) };
        let before = centroids.len();
        if in_step.plus_plus_steps(asked, potential, centroids)? && centroids.len() < asked.k * self.statistics.lows.len() {
            // The host goes on. The shards have not taken the new ones.
            self.lower(&centroids[before..], potential.scale)?;
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn SeedingDevice<T>> {
        self.shards.first()?.device()
    }
}
