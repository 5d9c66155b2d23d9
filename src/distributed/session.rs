//! A session over the kept rows of all parts. It is for parts what `backend/joined.rs` is for sessions of this process.
//!
//! ```text
//! rounds of messages, if no part is lost:
//! k-means++   2 a step: draw the candidates (with the centroid that the last step took), gains
//! k-means||   2 a round: sample, take; then the weights of the candidates
//! an iteration of the loop: 1
//! ```
//! Totals after a centroid was taken are those before it less its gains, which are known. So that call waits for the next one.

mod iterate;

use std::sync::{Arc, Mutex, PoisonError};

use super::by_values;
use super::fit::not_sorted;
use super::link::{Link, PARTS};
use super::message::{Call, Known, Reply, SomeRows, Sums, refused};
use super::passes::taken;
use crate::backend::{DrawBy, Draws, KeptRows, Picked, Sample, Sampled};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Init, Params, RowOrder};
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceScale;
use crate::statistics::Statistics;

/// What errors call rows that travel.
const ROWS: &str = "the rows drawn";

/// The number of a row that was drawn by the order of the values: nobody knows its place.
const IN_ORDER: u64 = u64::MAX;

/// The kept rows of all parts.
pub struct Remote<'l, 'e, T> {
    link: &'l Link<'e>,
    statistics: Arc<Statistics>,
    threads: usize,
    d: usize,
    /// The first row of each part, its kept rows, and those of positive weight.
    starts: Vec<u64>,
    rows: Vec<u64>,
    positive: Vec<u64>,
    /// The sums of all parts, as of the last assign or relocation.
    merged: ClusterSums,
    /// The draw total of each part, its total weight, and the scale of the distances.
    totals: Vec<u128>,
    weights: Vec<u128>,
    scale: Option<DistanceScale>,
    gains: Option<Gains<T>>,
    /// Whether rows count in the order of their values.
    by_values: bool,
    /// The row that was drawn last.
    drawn: Mutex<Option<(u64, Vec<T>)>>,
}

/// What candidates gain in each part.
struct Gains<T> {
    candidates: Vec<T>,
    /// `(parts, candidates)`.
    gains: Vec<Vec<u128>>,
}

impl<'l, 'e, T: Float> Remote<'l, 'e, T> {
    /// A session for the clusters of these parameters.
    pub fn new(link: &'l Link<'e>, statistics: &Arc<Statistics>, params: &Params) -> Result<Self> {
        let (k, threads) = (params.k, params.execution.threads);
        let began = |reply| match reply {
            Reply::Began { rows, positive } => Some((rows, positive)),
            _ => None,
        };
        let starting = match &params.seeding.init {
            Init::Given(centroids) => memory::copied(centroids, PARTS)?,
            _ => Vec::new(),
        };
        let began = link.ask_all(Call::Begin { known: Known::from(&**statistics), k, starting }, began)?;
        let (rows, positive): (Vec<u64>, Vec<u64>) = began.into_iter().unzip();
        if rows.iter().sum::<u64>() != statistics.n || positive.iter().sum::<u64>() != statistics.n_positive {
            return Err(refused("other rows than before".into()));
        }
        let starts = rows.iter().scan(0, |next, rows| {
            *next += rows;
            Some(*next - rows)
        });
        let (starts, d) = (starts.collect(), statistics.lows.len());
        let zeros = || memory::zeroed(rows.len(), PARTS);
        Ok(Self {
            link,
            statistics: statistics.clone(),
            threads,
            d,
            starts,
            merged: ClusterSums::new(k, d)?,
            totals: zeros()?,
            weights: zeros()?,
            scale: None,
            gains: None,
            by_values: params.rows.row_order == RowOrder::Values,
            drawn: Mutex::new(None),
            rows,
            positive,
        })
    }

    /// The part that has a row.
    fn part_of(&self, row: u64) -> usize {
        self.starts.partition_point(|&start| start <= row) - 1
    }

    /// Asks each part for the rows that its targets draw. `totals` are those of the parts. Returns the rows in the order of the
    /// targets.
    fn drawn_by(&self, totals: &[u128], targets: &[u128], call: impl Fn(Vec<u128>) -> Call) -> Result<Picked<T>> {
        if self.by_values {
            return Err(not_sorted("for a seeding that finds too few candidates and draws more rows"));
        }
        let ends: Vec<u128> = totals
            .iter()
            .scan(0, |end, total| {
                *end += total;
                Some(*end)
            })
            .collect();
        let mut own = memory::filled(totals.len(), Vec::new(), PARTS)?;
        // The part of each target, and its place there.
        let mut places = memory::with_room(targets.len(), ROWS)?;
        for target in targets {
            let part = ends.partition_point(|end| end <= target);
            let Some(own) = own.get_mut(part) else { return Err(refused("other totals than before".into())) };
            places.push((part, own.len()));
            memory::push(own, target + totals[part] - ends[part], ROWS)?;
        }
        let asked = own.iter().map(|own| (!own.is_empty()).then(|| Arc::new(call(own.clone())))).collect();
        let found = self.link.ask(asked, taken!(Rows))?;
        let mut all = Picked { rows: Vec::new(), values: Vec::new(), weights: Vec::new() };
        let mut firsts = memory::with_room(found.len(), PARTS)?;
        for ((found, start), own) in found.into_iter().zip(&self.starts).zip(&own) {
            firsts.push(all.rows.len());
            let Some(SomeRows { rows, values, mut weights }) = found else { continue };
            if rows.len() != own.len() || values.len() != rows.len() * self.d {
                return Err(refused("another number of rows than was asked for".into()));
            }
            // Draws without weights have none to tell.
            weights.resize(rows.len(), 1.0);
            all.rows.extend(rows.into_iter().map(|row| row + start));
            all.values.extend(values.into_iter().map(T::from_f64));
            all.weights.extend(weights);
        }
        let places: Vec<usize> = memory::collected(places.into_iter().map(|(part, place)| firsts[part] + place), ROWS)?;
        all.in_order(&places)
    }

    fn ask_total(&self, call: Call) -> Result<Vec<u128>> {
        self.link.ask_all(call, taken!(Total))
    }

    /// The sums of all parts for each of some things.
    fn ask_totals(&self, call: Call, len: usize) -> Result<Vec<Vec<u128>>> {
        let totals = self.link.ask_all(call, taken!(Totals))?;
        if totals.iter().all(|totals| totals.len() == len) { Ok(totals) } else { Err(refused("lists of other lengths".into())) }
    }

    /// Takes the sums of all parts in place of those before.
    fn merge(&mut self, all: &[Sums]) -> Result<()> {
        let mut merged = ClusterSums::new(self.merged.rows.len(), self.d)?;
        for Sums { sums, mass, rows } in all {
            if [sums.len(), mass.len(), rows.len()] != [merged.sums.len(), merged.mass.len(), merged.rows.len()] {
                return Err(refused("sums of other clusters".into()));
            }
            merged.sums.iter_mut().zip(sums).for_each(|(a, b)| *a += b);
            merged.mass.iter_mut().zip(mass).for_each(|(a, b)| *a += b);
            merged.rows.iter_mut().zip(rows).for_each(|(a, b)| *a += b);
        }
        // Parts do not tell which sums changed: one that was lost does not know.
        for j in 0..merged.rows.len() {
            let before = &self.merged;
            merged.dirty[j] = before.dirty[j]
                || merged.rows[j] != before.rows[j]
                || merged.mass[j] != before.mass[j]
                || merged.sums_of(j) != before.sums_of(j);
        }
        self.merged = merged;
        Ok(())
    }

    /// The gains of a centroid in each part, if it was a candidate and distances have this scale.
    fn known_gains(&self, centroid: &[T], scale: DistanceScale) -> Option<Vec<u128>> {
        let known = self.gains.as_ref().filter(|_| self.scale == Some(scale))?;
        let bits = |row: &[T]| row.iter().map(|x| x.to_f64().to_bits()).collect::<Vec<_>>();
        let place = known.candidates.chunks_exact(self.d).position(|candidate| bits(candidate) == bits(centroid))?;
        Some(known.gains.iter().map(|gains| gains[place]).collect())
    }
}

/// Adds up lists of equal length, of which there is at least one.
fn added(lists: Vec<Vec<u128>>) -> Vec<u128> {
    let add = |mut all: Vec<u128>, list: Vec<u128>| {
        all.iter_mut().zip(list).for_each(|(a, b)| *a += b);
        all
    };
    lists.into_iter().reduce(add).unwrap_or_default()
}

/// Values as they travel.
fn sent<T: Float>(values: &[T]) -> Result<Vec<f64>> {
    memory::collected(values.iter().map(|x| x.to_f64()), ROWS)
}

impl<T: Float> KeptRows for Remote<'_, '_, T> {
    fn rows(&self) -> u64 {
        self.rows.iter().sum()
    }

    fn positive_rows(&self) -> u64 {
        self.positive.iter().sum()
    }
}

impl<T: Float> Draws<T> for Remote<'_, '_, T> {
    fn row(&self, row: u64) -> Result<Vec<T>> {
        let known = self.drawn.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, values)) = known.filter(|(drawn, _)| *drawn == row) {
            return Ok(values);
        }
        let part = self.part_of(row);
        let found = self.link.ask_one(part, Call::Row(row - self.starts[part]), taken!(Rows))?;
        memory::collected(found.values.into_iter().map(T::from_f64), ROWS)
    }

    fn start_draws(&mut self) -> Result<u128> {
        (self.scale, self.gains) = (None, None);
        self.weights = self.ask_total(Call::StartDraws)?;
        self.totals = memory::copied(&self.weights, PARTS)?;
        Ok(self.totals.iter().sum())
    }

    fn draw(&self, target: u128) -> Result<u64> {
        if self.by_values && self.scale.is_none() {
            let values = by_values::draw(self.link, &self.statistics, target)?;
            *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = Some((IN_ORDER, values));
            return Ok(IN_ORDER);
        }
        let found = self.drawn_by(&self.totals, &[target], Call::Draw)?;
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = Some((found.rows[0], found.values));
        Ok(found.rows[0])
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let call = Call::TakeSeeds { centroids: sent(centroids)?, scale };
        if let Some(gains) = self.known_gains(centroids, scale) {
            self.totals.iter_mut().zip(gains).for_each(|(total, gain)| *total -= gain);
            self.link.later(call);
        } else {
            self.totals = self.ask_total(call)?;
        }
        (self.scale, self.gains) = (Some(scale), None);
        Ok(self.totals.iter().sum())
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let gains = self.ask_totals(Call::Gains(sent(candidates)?), candidates.len() / self.d)?;
        let all = added(gains.clone());
        self.gains = Some(Gains { candidates: memory::copied(candidates, ROWS)?, gains });
        Ok(all)
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let candidates = self.drawn_by(&self.totals, targets, Call::Draw)?.values;
        let gains = self.gains(&candidates)?;
        Ok((candidates, gains))
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        let positive: Vec<u128> = self.positive.iter().map(|rows| u128::from(*rows)).collect();
        let totals = match by {
            DrawBy::Weight => &self.weights,
            DrawBy::Distance => &self.totals,
            DrawBy::Positive => &positive,
        };
        self.drawn_by(totals, targets, |targets| Call::Pick { by, targets })
    }

    fn all_rows(&self) -> Result<(Vec<T>, Vec<f64>)> {
        let (mut values, mut weights) = (Vec::new(), Vec::new());
        for rows in self.link.ask_all(Call::AllRows, taken!(Rows))? {
            memory::reserve(&mut values, rows.values.len(), ROWS)?;
            values.extend(rows.values.into_iter().map(T::from_f64));
            memory::extend(&mut weights, &rows.weights, ROWS)?;
        }
        Ok((values, weights))
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        let calls =
            self.starts.iter().map(|start| Some(Arc::new(Call::Sample(Sample { first: sample.first + start, ..*sample }))));
        let found = self.link.ask(calls.collect(), taken!(Rows))?;
        let mut all = Sampled { rows: Vec::new(), values: Vec::new() };
        for (found, start) in found.into_iter().flatten().zip(&self.starts) {
            memory::reserve(&mut all.rows, found.rows.len(), ROWS)?;
            all.rows.extend(found.rows.into_iter().map(|row| row + start));
            memory::reserve(&mut all.values, found.values.len(), ROWS)?;
            all.values.extend(found.values.into_iter().map(T::from_f64));
        }
        Ok(all)
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        Ok(added(self.ask_totals(Call::Masses(sent(candidates)?), candidates.len() / self.d)?))
    }

    fn end_draws(&mut self) {
        (self.scale, self.gains) = (None, None);
        self.link.later(Call::EndDraws);
    }
}
