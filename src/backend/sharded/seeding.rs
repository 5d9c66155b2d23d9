//! Shards of the rows as seeding sees them.
//!
//! Totals after a centroid was taken are those before it less its gains, which are known if it was a candidate. So that call says
//! nothing new, and shards that are elsewhere may do it together with the next one.

use std::sync::Arc;

use super::{OTHER, SHARDS, Sharded, Shards, add};
use crate::backend::call::{Call, Calls, Reply};
use crate::backend::{DrawBy, Picked, PlusPlus, Sample, Sampled, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::Part;
use crate::statistics::Statistics;

/// What errors call rows that are drawn.
const ROWS: &str = "the rows drawn";
/// The number of a row that was drawn in another order than that of the shards: nobody knows its place.
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
    gains: Vec<Vec<u128>>,
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
        Some(known.gains.iter().map(move |gains| gains[place]))
    }
}

impl<T: Float, S: Shards<T>> Sharded<T, S> {
    /// Asks all shards the same. Returns the total of each.
    fn totals(&mut self, call: Call, values: &[T]) -> Result<Vec<u128>> {
        let mut all = memory::with_room(self.starts.len(), SHARDS)?;
        self.shards.ask(Calls::All(call), values, &mut |_, reply, _| {
            let Reply::Total(total) = reply else { unreachable!("{OTHER}") };
            all.push(total);
            Ok(())
        })?;
        Ok(all)
    }

    /// Asks each shard for the rows that its targets draw. Returns the rows in the order of the targets.
    fn drawn(&mut self, by: DrawBy, targets: &[u128], call: impl Fn(Vec<u128>) -> Call) -> Result<Picked<T>> {
        let Self { shards, starts, positive, draws, .. } = self;
        let totals = match by {
            DrawBy::Weight => &draws.weights,
            DrawBy::Distance => &draws.totals,
            DrawBy::Positive => positive,
        };
        let ends = totals.iter().scan(0, |end, total| {
            *end += total;
            Some(*end)
        });
        let ends = memory::collected(ends, SHARDS)?;
        let mut own = memory::filled(totals.len(), Vec::new(), SHARDS)?;
        // The shard of each target, and its place there.
        let mut places = memory::with_room(targets.len(), ROWS)?;
        for target in targets {
            let shard = ends.partition_point(|end| end <= target);
            let Some(own) = own.get_mut(shard) else { unreachable!("targets are below the total") };
            places.push((shard, own.len()));
            memory::push(own, target + totals[shard] - ends[shard], ROWS)?;
        }
        let calls = memory::collected(own.into_iter().map(|own| (!own.is_empty()).then(|| call(own))), SHARDS)?;
        let mut all = Picked { rows: Vec::new(), values: Vec::new(), weights: Vec::new() };
        let mut firsts = memory::zeroed::<usize>(starts.len(), SHARDS)?;
        shards.ask(Calls::Each(calls), &[], &mut |shard, reply, values| {
            let Reply::Rows { mut rows, mut weights } = reply else { unreachable!("{OTHER}") };
            firsts[shard] = all.rows.len();
            // Only picks tell the weights.
            weights.resize(rows.len(), 1.0);
            rows.iter_mut().for_each(|row| *row += starts[shard]);
            memory::extend(&mut all.rows, &rows, ROWS)?;
            memory::extend(&mut all.values, &values, ROWS)?;
            memory::extend(&mut all.weights, &weights, ROWS)
        })?;
        all.in_order(&memory::collected(places.into_iter().map(|(shard, place)| firsts[shard] + place), ROWS)?)
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
        let mut found = Vec::new();
        self.shards.ask(Calls::Each(calls), &[], &mut |_, _, values| {
            found = values;
            Ok(())
        })?;
        Ok(found)
    }

    fn start_draws(&mut self) -> Result<u128> {
        let weights = self.totals(Call::StartDraws, &[])?;
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
            None => self.draws.totals = self.totals(call, centroids)?,
        }
        (self.draws.scale, self.draws.gains) = (Some(scale), None);
        Ok(self.draws.totals.iter().sum())
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let (mut all, mut of_shards) = (Vec::new(), memory::with_room(self.starts.len(), SHARDS)?);
        self.shards.ask(Calls::All(Call::Gains), candidates, &mut |_, reply, _| {
            let Reply::Totals(gains) = reply else { unreachable!("{OTHER}") };
            add(&mut all, memory::copied(&gains, ROWS)?);
            of_shards.push(gains);
            Ok(())
        })?;
        self.draws.gains = Some(Gains { candidates: memory::copied(candidates, ROWS)?, gains: of_shards });
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
        const WHAT: &str = "all rows";
        let (mut all, mut weights) = (Vec::new(), Vec::new());
        self.shards.ask(Calls::All(Call::AllRows), &[], &mut |_, reply, values| {
            let Reply::Rows { weights: more, .. } = reply else { unreachable!("{OTHER}") };
            memory::extend(&mut all, &values, WHAT)?;
            memory::extend(&mut weights, &more, WHAT)
        })?;
        Ok((all, weights))
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        let Self { shards, starts, .. } = self;
        let calls = starts.iter().map(|start| Some(Call::Sample(Sample { first: sample.first + start, ..*sample })));
        let calls = memory::collected(calls, SHARDS)?;
        let mut all = Sampled { rows: Vec::new(), values: Vec::new() };
        shards.ask(Calls::Each(calls), &[], &mut |shard, reply, values| {
            let Reply::Rows { mut rows, .. } = reply else { unreachable!("{OTHER}") };
            rows.iter_mut().for_each(|row| *row += starts[shard]);
            memory::extend(&mut all.rows, &rows, ROWS)?;
            memory::extend(&mut all.values, &values, ROWS)
        })?;
        Ok(all)
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        self.added(Call::Masses, candidates)
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        self.shards.first()?.nearest_of(rows, centroids)
    }

    fn other_rows<'t>(&self, part: &Part<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Seeder<T> + 't>> {
        self.shards.first()?.other_rows(part, statistics, k)
    }

    fn end_draws(&mut self) {
        (self.draws.scale, self.draws.gains) = (None, None);
        // No session fails to free memory.
        let _ = self.shards.later(Call::EndDraws, &[]);
    }
}
