//! One assignment with bounds on the sizes of the clusters.
//!
//! ```text
//! plain assign: if its sizes keep the bounds, it is the assignment
//! prices from samples of the rows: every 4^s-th, ever more of them, with bounds in proportion
//! until it is certain:
//!   pass: which clusters can be a row's label while each price stays within its width             backend/priced.rs
//!   most rows have one; the others are a transport between the clusters of their lists            transport.rs
//!   certain if the new prices are within the widths, but for a number that all have in common
//! of all optimal labelings the one that rules 2 and 3 name                                        ties.rs
//! too coarse for its total? the same with finer integers
//! ```

use super::SizeBounds;
use super::newton;
use super::ties::{self, FreeRows};
use super::transport::{self, ListedCosts, Solution};
use super::widths;
use crate::backend::priced::{Band, LISTED, ListedRows, PriceRange, PricedPasses, Widths};
use crate::backend::{Scales, Session, WorkCounts};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::{DistanceScale, PRECISE_BITS};
use crate::exact::fixed::PowerOfTwo;
use crate::statistics::Statistics;

/// What errors call the memory of this file.
const WHAT: &str = "the labels of clusters of bounded size";
/// The first sample has lists of all clusters if that makes at most so many entries.
const ALL_LISTED: usize = 1 << 24;
/// A sample has at least so many rows, and so many for each cluster.
const LEAST_SAMPLE: [usize; 2] = [4_096, 8];
/// How often a sample is solved again because prices left their widths.
const TRIES: u32 = 8;
/// Searches for paths in a sample.
const SEARCHES: u32 = 100;
/// Prices that moved by more than so many margins in the last assignment are looked for anew.
const FAR: f64 = 0.5;
/// Once prices are known, one in so many rows follows them.
const FOLLOWING: usize = 16;
/// Prices are kept below this, whatever the scale. Widths, too: a width as large rules nothing out.
const LARGEST_PRICE: i128 = 1 << 110;
/// The smallest quantum with which prices are float64.
const SMALLEST_UNIT: f64 = 1e-290;
/// What roundings of integers take off a width, in quanta.
const ROUNDINGS: f64 = 8.0;

/// Assigns rows within bounds, again and again. It keeps the prices, which only save time.
pub struct BoundedAssigner<'a> {
    bounds: SizeBounds,
    statistics: &'a Statistics,
    k: usize,
    threads: usize,
    /// The prices of the last assignment, in quanta of the base scale.
    prices: Vec<i128>,
    /// The margins between clusters, if a sample has measured them.
    margins: Option<Widths>,
    /// How far a price moved in the last assignment, in margins.
    moved: f64,
    /// The numbers of the rows of positive weight, or none if all are.
    heavy: Option<Vec<u64>>,
    /// The labels of the last assignment. None before the first one.
    labels: Option<Vec<u32>>,
}

/// What an assignment did.
pub struct Bounded {
    /// Rows of positive weight whose label differs from that of the last assignment.
    pub changed: u64,
    /// Whether the nearest centroids broke the bounds.
    pub is_active: bool,
    /// Passes over all rows, samples in proportion.
    pub passes: f64,
    pub work_counts: WorkCounts,
    /// The inertia of each cluster in the base scale, if it is known.
    pub inertia: Option<Vec<u128>>,
}

/// The rows of a pass, and the prices and widths that it had.
struct BandPass<'p> {
    rows: ListedRows<'p>,
    scale: DistanceScale,
    band: Band,
    prices: Vec<i128>,
    widths: Widths,
}

impl<'a> BoundedAssigner<'a> {
    pub fn new<T: Float>(
        session: &mut dyn Session<T>,
        bounds: SizeBounds,
        statistics: &'a Statistics,
        [k, threads]: [usize; 2],
    ) -> Result<Self> {
        let heavy = passes(session)?.heavy_rows()?;
        if statistics.n > u64::from(u32::MAX) {
            let (expected, got) = ("at most 2^32 - 1 rows".into(), statistics.n.to_string());
            return Err(KMeansError::InvalidOption { option: "max_size", expected, got });
        }
        Ok(Self {
            bounds,
            statistics,
            k,
            threads,
            prices: memory::zeroed(k, WHAT)?,
            margins: None,
            moved: 1.0,
            heavy,
            labels: None,
        })
    }

    /// Labels all rows by these centroids, and gives the labels to the session.
    pub fn assign<T: Float>(&mut self, session: &mut dyn Session<T>, centroids: &[T]) -> Result<Bounded> {
        let assigned = session.assign(centroids, false)?;
        let sizes = session.sizes()?;
        let mut labels = session.labels()?;
        let is_active = !sizes.iter().all(|size| self.bounds.allow(*size));
        let (mut passes, mut inertia) = (1.0, None);
        if is_active {
            let (listed, totals) = self.optimal(session, centroids, &mut labels)?;
            (passes, inertia) = (passes + listed, totals);
        }
        let before = self.labels.replace(labels);
        let changed = match (&before, &self.labels) {
            (Some(before), Some(now)) => self.differences(before, now),
            _ => self.statistics.n_positive,
        };
        Ok(Bounded { changed, is_active, passes, work_counts: assigned.work_counts, inertia })
    }

    /// How many rows of positive weight have different labels.
    fn differences(&self, before: &[u32], now: &[u32]) -> u64 {
        match &self.heavy {
            None => before.iter().zip(now).filter(|(before, now)| before != now).count() as u64,
            Some(rows) => rows.iter().filter(|&&row| before[row as usize] != now[row as usize]).count() as u64,
        }
    }

    /// Gives the rows of positive weight their optimal labels. Returns the passes over the rows, and the inertia of each cluster
    /// in the base scale, if that is precise enough.
    fn optimal<T: Float>(
        &mut self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        labels: &mut [u32],
    ) -> Result<(f64, Option<Vec<u128>>)> {
        let n = self.statistics.n_positive as usize;
        let base = self.statistics.distances;
        let mut prices = memory::copied(&self.prices, WHAT)?;
        let mut listed = 0;
        let mut widths = self.prices_from_samples(session, centroids, &mut prices, &mut listed)?;
        let heavy = self.heavy.take();
        let rows = heavy.as_ref().map_or(ListedRows::Every(1), |rows| ListedRows::These(rows));
        let mut scale = base;
        let totals = loop {
            let (pass, mut solution) =
                self.certain(session, centroids, rows, scale, &mut prices, widths, u32::MAX, &mut listed)?;
            if scale == base {
                // The first prices come from nowhere.
                if let Some(margins) = self.margins.as_ref().filter(|_| self.labels.is_some()) {
                    self.moved = usual_share(&moves(&self.prices, &prices, scale)?, margins)?;
                }
                self.prices.copy_from_slice(&prices);
            }
            self.choose(&pass, &mut solution, &prices)?;
            pass.write(&solution, labels);
            passes(session)?.relabel(labels)?;
            let totals = session.inertia(Scales::Same(scale))?;
            let total: u128 = totals.iter().sum();
            if total == 0 || total >> PRECISE_BITS >= n as u128 {
                break totals;
            }
            let bits = 128 - (total + n as u128).leading_zeros() as i32;
            scale = scale.below_quanta(bits);
            let finer = |price: i128| price.clamp(-LARGEST_PRICE >> (90 - bits), LARGEST_PRICE >> (90 - bits)) << (90 - bits);
            prices.iter_mut().for_each(|price| *price = finer(*price));
            widths = pass.widths;
        };
        self.heavy = heavy;
        Ok((listed as f64 / n as f64, (scale == base).then_some(totals)))
    }

    /// Finds prices from samples, and how far they may be from those of all rows.
    fn prices_from_samples<T: Float>(
        &mut self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        prices: &mut [i128],
        listed: &mut usize,
    ) -> Result<Widths> {
        let (n, k, scale) = (self.statistics.n_positive as usize, self.k, self.statistics.distances);
        let [rows, each] = LEAST_SAMPLE;
        let mut step = 1;
        while n / (4 * step) >= rows.max(each * self.k) {
            step *= 4;
        }
        // The share of a margin that the price of a cluster is off, if it has so many rows.
        let noise = |step: usize| 1.0 / ((n / step / k).max(1) as f64).sqrt();
        let mut factor = 3.0 * self.moved.max(noise(1));
        if self.margins.is_none() || self.moved > FAR {
            let all = (n / step).saturating_mul(k) <= ALL_LISTED;
            let width = match all {
                true => widths::EVERYTHING,
                false => unit(scale).apply(0.5 * session.inertia(Scales::Same(scale))?.iter().sum::<u128>() as f64 / n as f64),
            };
            let widths = widths::uniform(k, width)?;
            if step == 1 {
                return Ok(widths);
            }
            let some = self.sample(step)?;
            let rows = some.as_ref().map_or(ListedRows::Every(step), |rows| ListedRows::These(rows));
            let (pass, _) = self.certain(session, centroids, rows, scale, prices, widths, TRIES, listed)?;
            self.margins = Some(widths::margins(&pass, prices, unit(scale).apply(1.0))?);
            factor = 3.0 * noise(step);
            step /= 4;
        } else {
            // One sample is enough to follow prices.
            step = step.min(FOLLOWING);
            while step > 1 && noise(step) > self.moved {
                step /= 4;
            }
        }
        while step > 1 {
            let some = self.sample(step)?;
            let rows = some.as_ref().map_or(ListedRows::Every(step), |rows| ListedRows::These(rows));
            let widths = self.widths(factor)?;
            self.certain(session, centroids, rows, scale, prices, widths, TRIES, listed)?;
            factor = 3.0 * noise(step);
            step = if self.moved > FAR { step / 4 } else { 1 };
        }
        self.widths(factor)
    }

    /// Widths of this multiple of the margins.
    fn widths(&self, factor: f64) -> Result<Widths> {
        let Some(margins) = &self.margins else { unreachable!("margins were measured") };
        widths::multiples(margins, factor)
    }

    /// Every `step`-th of the rows of positive weight, if not all rows are.
    fn sample(&self, step: usize) -> Result<Option<Vec<u64>>> {
        self.heavy.as_ref().map(|rows| memory::collected(rows.iter().step_by(step).copied(), WHAT)).transpose()
    }

    /// An optimal solution of some rows: certain, unless there were too many tries.
    #[expect(clippy::too_many_arguments, reason = "a pass takes all of these")]
    fn certain<'p, T: Float>(
        &mut self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        rows: ListedRows<'p>,
        scale: DistanceScale,
        prices: &mut [i128],
        mut widths: Widths,
        tries: u32,
        listed: &mut usize,
    ) -> Result<(BandPass<'p>, Solution)> {
        let all = u128::from(self.statistics.n_positive);
        let mut tried = 0;
        loop {
            tried += 1;
            let before = memory::copied(prices, WHAT)?;
            let unit = unit(scale);
            let in_distances = |price: i128| unit.apply(price as f64);
            // Prices that are no normal float64 say nothing, so every row lists all clusters.
            let is_tiny = in_distances(1) < SMALLEST_UNIT;
            if is_tiny {
                widths = widths::uniform(self.k, widths::EVERYTHING)?;
            }
            let here = memory::collected(prices.iter().map(|price| in_distances(*price)), WHAT)?;
            let range = PriceRange { prices: &here, widths: &widths };
            let band = passes(session)?.band(centroids, rows, &range)?;
            let count = band.labels.len() as u128;
            *listed += band.labels.len();
            let mut range = self.bounds.range(self.k, [count, all])?;
            for &label in band.labels.iter().filter(|label| **label != LISTED) {
                range.least[label as usize] -= 1;
                range.most[label as usize] -= 1;
            }
            let pass = BandPass { rows, scale, band, prices: before, widths };
            // Lists say nothing of prices that move farther.
            let caps = memory::collected((0..self.k).map(|j| pass.widths.reach(j)), WHAT)?;
            let off = match is_tiny {
                true => count as f64,
                false => newton::balance(&pass, &range, prices, in_distances(1), &caps, self.threads)?,
            };
            // A sample only has to give good prices.
            let solution = match tries {
                u32::MAX => transport::solve(&pass, &range, prices, u32::MAX)?,
                _ if off <= 0.02 * count as f64 => Solution { places: Vec::new(), missing: 0, reached: Vec::new() },
                _ => transport::solve(&pass, &range, prices, SEARCHES)?,
            };
            let moves = moves(&pass.prices, prices, scale)?;
            let least = ROUNDINGS * in_distances(1) + f64::MIN_POSITIVE;
            let is_enough = widths::cover(&pass.widths, &moves, least);
            if solution.missing == 0 && is_enough || tried == tries {
                return Ok((pass, solution));
            }
            // Within the widths, the dual rises on the way to the new prices. Beyond, lists may miss rows.
            let share = widths::share(&pass.widths, &moves, least)?;
            if share < 1.0 {
                for (price, before) in prices.iter_mut().zip(&pass.prices) {
                    *price = before + ((*price - before) as f64 * share) as i128;
                }
            }
            widths = widths::wider(&pass.widths, &moves, &solution, least)?;
            prices.iter_mut().for_each(|price| *price = (*price).clamp(-LARGEST_PRICE, LARGEST_PRICE));
        }
    }

    /// Replaces the labels of rows between clusters by those that rules 2 and 3 choose.
    fn choose(&self, pass: &BandPass<'_>, solution: &mut Solution, prices: &[i128]) -> Result<()> {
        let mut free = FreeRows::default();
        let mut rows = Vec::new();
        let mut range = self.bounds.range(self.k, [1, 1])?;
        let mut set = memory::with_room(self.k, WHAT)?;
        let mut taken = memory::zeroed::<i64>(self.k, WHAT)?;
        pass.band.labels.iter().filter(|label| **label != LISTED).for_each(|label| taken[*label as usize] += 1);
        for (row, place) in solution.places.iter().enumerate() {
            let clusters = pass.clusters(row);
            let total = |place: usize| pass.cost(row, place) + prices[clusters[place] as usize];
            let least = total(*place as usize);
            set.clear();
            set.extend((0..clusters.len()).filter(|&place| total(place) == least).map(|place| clusters[place]));
            if set.len() > 1 {
                free.add(pass.number(row), &set)?;
                memory::push(&mut rows, row, WHAT)?;
            } else {
                taken[clusters[*place as usize] as usize] += 1;
            }
        }
        for j in 0..self.k {
            // A cluster of positive price is full, and one of negative price has as few rows as it may have.
            match prices[j].signum() {
                1 => range.least[j] = range.most[j],
                -1 => range.most[j] = range.least[j],
                _ => {}
            }
            range.least[j] = (range.least[j] - taken[j]).max(0);
            range.most[j] -= taken[j];
        }
        let Some(chosen) = ties::chosen(&free, &range, self.statistics.n)? else { return Ok(()) };
        for (row, label) in rows.into_iter().zip(chosen) {
            let place = pass.clusters(row).iter().position(|j| *j == label);
            solution.places[row] = place.map_or(solution.places[row], |place| place as u32);
        }
        Ok(())
    }
}

impl BandPass<'_> {
    /// The number of a listed row among all kept rows.
    fn number(&self, row: usize) -> u64 {
        self.rows.row(self.band.rows[row] as usize)
    }

    /// Writes the labels of a solution.
    fn write(&self, solution: &Solution, labels: &mut [u32]) {
        for (place, &label) in self.band.labels.iter().enumerate().filter(|(_, label)| **label != LISTED) {
            labels[self.rows.row(place) as usize] = label;
        }
        for (row, place) in solution.places.iter().enumerate() {
            labels[self.number(row) as usize] = self.clusters(row)[*place as usize];
        }
    }
}

impl ListedCosts for BandPass<'_> {
    fn rows(&self) -> usize {
        self.band.rows.len()
    }

    #[inline]
    fn clusters(&self, row: usize) -> &[u32] {
        let start = if row == 0 { 0 } else { self.band.ends[row - 1] };
        &self.band.clusters[start..self.band.ends[row]]
    }

    #[inline]
    fn about(&self, row: usize, place: usize, _: f64) -> f64 {
        let start = if row == 0 { 0 } else { self.band.ends[row - 1] };
        let weight = if self.band.weights.is_empty() { 1.0 } else { self.band.weights[row] };
        weight * self.band.squares[start + place]
    }

    #[inline]
    fn cost(&self, row: usize, place: usize) -> i128 {
        let start = if row == 0 { 0 } else { self.band.ends[row - 1] };
        let weight = if self.band.weights.is_empty() { 1.0 } else { self.band.weights[row] };
        self.scale.quantise(weight, self.band.squares[start + place]) as i128
    }
}

/// How far prices moved, in units of distances.
fn moves(before: &[i128], now: &[i128], scale: DistanceScale) -> Result<Vec<f64>> {
    let unit = unit(scale);
    memory::collected(before.iter().zip(now).map(|(before, now)| unit.apply((now - before) as f64)), WHAT)
}

/// How far the prices of three in four clusters moved at most, in margins, of those that moved otherwise than most.
fn usual_share(moves: &[f64], margins: &Widths) -> Result<f64> {
    let mut sorted = memory::copied(moves, WHAT)?;
    let middle = sorted.len() / 2;
    let common = *sorted.select_nth_unstable_by(middle, f64::total_cmp).1;
    let shares = moves.iter().zip(&margins.own).map(|(moved, margin)| (moved - common).abs() / margin.max(f64::MIN_POSITIVE));
    let mut shares = memory::collected(shares.filter(|share| *share > 0.0), WHAT)?;
    let most = shares.len() * 3 / 4;
    Ok(if shares.is_empty() { 0.0 } else { *shares.select_nth_unstable_by(most, f64::total_cmp).1 })
}

/// From integers of a scale to distances.
fn unit(scale: DistanceScale) -> PowerOfTwo {
    PowerOfTwo::new(scale.column().map_or(0, |column| column.quantum_exponent()))
}

/// The passes of a session that has some.
pub fn passes<'s, T: Float>(session: &'s mut dyn Session<T>) -> Result<&'s mut (dyn PricedPasses<T> + 's)> {
    session.priced().ok_or_else(|| {
        let (expected, got) = ("rows in one place, since clusters have bounds on their sizes".into(), "rows in parts".into());
        KMeansError::InvalidOption { option: "max_size", expected, got }
    })
}
