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
use super::ties::{self, FreeRows};
use super::transport::{self, Costs, Solution};
use crate::backend::priced::{Band, LISTED, ListedRows, PricedPasses};
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
const ALL_LISTED: usize = 1 << 23;
/// A sample has at least so many rows, and so many for each cluster.
const LEAST_SAMPLE: [usize; 2] = [4_096, 8];
/// How often a sample is solved again because prices left their widths.
const TRIES: u32 = 3;
/// Prices are kept below this, whatever the scale. Widths, too: a width as large rules nothing out.
const LARGEST_PRICE: i128 = 1 << 110;
/// What roundings of integers take off a width, in quanta.
const ROUNDINGS: i128 = 4;

/// Assigns rows within bounds, again and again. It keeps the prices, which only save time.
pub struct BoundedAssigner<'a> {
    bounds: SizeBounds,
    statistics: &'a Statistics,
    k: usize,
    /// The prices of the last assignment, in quanta of the base scale, and how far each of them moved in it.
    prices: Vec<i128>,
    moves: Option<Vec<i128>>,
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
struct Pass<'p> {
    rows: ListedRows<'p>,
    scale: DistanceScale,
    band: Band,
    prices: Vec<i128>,
    widths: Vec<i128>,
}

impl<'a> BoundedAssigner<'a> {
    pub fn new<T: Float>(session: &mut dyn Session<T>, bounds: SizeBounds, statistics: &'a Statistics, k: usize) -> Result<Self> {
        let heavy = passes(session)?.heavy_rows()?;
        if statistics.n > u64::from(u32::MAX) {
            let (expected, got) = ("at most 2^32 - 1 rows".into(), statistics.n.to_string());
            return Err(KMeansError::InvalidOption { option: "max_size", expected, got });
        }
        Ok(Self { bounds, statistics, k, prices: memory::zeroed(k, WHAT)?, moves: None, heavy, labels: None })
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

    /// Gives the rows of positive weight their optimal labels. Returns the passes over the rows, and the inertia of each cluster in
    /// the base scale, if that is precise enough.
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
        let mut widths = self.first_widths(session, centroids, &mut prices, &mut listed)?;
        let heavy = self.heavy.take();
        let rows = heavy.as_ref().map_or(ListedRows::Every(1), |rows| ListedRows::These(rows));
        let mut scale = base;
        let totals = loop {
            let (pass, mut solution) = self.certain(session, centroids, rows, scale, &mut prices, widths, u32::MAX, &mut listed)?;
            if scale == base {
                let moves = self.prices.iter().zip(&prices).map(|(before, now)| now - before);
                self.moves = Some(memory::collected(moves, WHAT)?);
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
            widths = memory::collected(pass.widths.iter().map(|width| finer(*width)), WHAT)?;
        };
        self.heavy = heavy;
        Ok((listed as f64 / n as f64, (scale == base).then_some(totals)))
    }

    /// Finds prices from samples, and how far they may be from those of all rows.
    fn first_widths<T: Float>(
        &self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        prices: &mut [i128],
        listed: &mut usize,
    ) -> Result<Vec<i128>> {
        let (n, scale) = (self.statistics.n_positive as usize, self.statistics.distances);
        let [rows, each] = LEAST_SAMPLE;
        let mut step = 1;
        while n / (4 * step) >= rows.max(each * self.k) {
            step *= 4;
        }
        let mut widths = match &self.moves {
            Some(moves) => spread(moves)?,
            None => {
                let all = (n / step).saturating_mul(self.k) <= ALL_LISTED;
                let mean = session.inertia(Scales::Same(scale))?.iter().sum::<u128>() / n as u128;
                memory::filled(self.k, if all { LARGEST_PRICE } else { mean as i128 / 4 + 1 }, WHAT)?
            }
        };
        let mut is_first = self.moves.is_none();
        while step > 1 {
            let some = self.heavy.as_ref().map(|rows| memory::collected(rows.iter().step_by(step).copied(), WHAT)).transpose()?;
            let rows = some.as_ref().map_or(ListedRows::Every(step), |rows| ListedRows::These(rows));
            let before = memory::copied(prices, WHAT)?;
            let (pass, solution) = self.certain(session, centroids, rows, scale, prices, widths, TRIES, listed)?;
            widths = match is_first {
                true => pass.margins(&solution, prices)?,
                false => spread(&memory::collected(before.iter().zip(&*prices).map(|(before, now)| now - before), WHAT)?)?,
            };
            is_first = false;
            step /= 4;
        }
        Ok(widths)
    }

    /// An optimal solution of some rows: certain, unless there were too many tries.
    #[expect(clippy::too_many_arguments, reason = "a pass takes all of these")]
    fn certain<'p, T: Float>(
        &self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        rows: ListedRows<'p>,
        scale: DistanceScale,
        prices: &mut [i128],
        mut widths: Vec<i128>,
        tries: u32,
        listed: &mut usize,
    ) -> Result<(Pass<'p>, Solution)> {
        let all = u128::from(self.statistics.n_positive);
        let mut tried = 0;
        loop {
            tried += 1;
            let before = memory::copied(prices, WHAT)?;
            let unit = unit(scale);
            let in_distances = |price: i128| unit.apply(price as f64);
            let low = memory::collected(prices.iter().zip(&widths).map(|(price, width)| in_distances(price - width)), WHAT)?;
            let high = memory::collected(prices.iter().zip(&widths).map(|(price, width)| in_distances(price + width)), WHAT)?;
            let band = passes(session)?.band(centroids, rows, &low, &high)?;
            let count = band.labels.len() as u128;
            *listed += band.labels.len();
            let mut range = self.bounds.range(self.k, [count, all])?;
            for &label in band.labels.iter().filter(|label| **label != LISTED) {
                range.least[label as usize] -= 1;
                range.most[label as usize] -= 1;
            }
            let pass = Pass { rows, scale, band, prices: before, widths };
            let solution = transport::solve(&pass, &range, prices)?;
            if std::env::var("SIZES").is_ok() { eprintln!("rows {count} listed {} entries {} missing {} certain {} tried {tried}", pass.band.rows.len(), pass.band.clusters.len(), solution.missing, pass.covers(prices).is_some()); }
            let common = if solution.missing == 0 { pass.covers(prices) } else { None };
            if common.is_some() || tried == tries {
                return Ok((pass, solution));
            }
            // Twice as far as prices moved, or four times as wide where rows were missing.
            let shift = pass.usual_move(prices)?;
            let wider = pass.widths.iter().enumerate().map(|(j, width)| {
                let moved = 2 * (prices[j] - pass.prices[j] - shift).abs();
                let least = if solution.missing > 0 { 4 * width + 1 } else { *width };
                moved.max(least).clamp(ROUNDINGS, LARGEST_PRICE)
            });
            widths = memory::collected(wider, WHAT)?;
            prices.iter_mut().for_each(|price| *price = (*price).clamp(-LARGEST_PRICE, LARGEST_PRICE));
        }
    }

    /// Replaces the labels of rows between clusters by those that rules 2 and 3 choose.
    fn choose(&self, pass: &Pass<'_>, solution: &mut Solution, prices: &[i128]) -> Result<()> {
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

impl Pass<'_> {
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

    /// A number that takes all prices back into their widths, if there is one. Then the lists have all clusters that matter.
    fn covers(&self, prices: &[i128]) -> Option<i128> {
        let moves = || prices.iter().zip(&self.prices).map(|(now, before)| now - before).zip(&self.widths);
        let least = moves().map(|(moved, width)| moved - (width - ROUNDINGS)).max()?;
        let most = moves().map(|(moved, width)| moved + (width - ROUNDINGS)).min()?;
        (least <= most).then_some(least)
    }

    /// The median move of the prices.
    fn usual_move(&self, prices: &[i128]) -> Result<i128> {
        let mut moves = memory::collected(prices.iter().zip(&self.prices).map(|(now, before)| now - before), WHAT)?;
        let middle = moves.len() / 2;
        Ok(*moves.select_nth_unstable(middle).1)
    }

    /// For each cluster, the median of the positive margins of its listed rows.
    fn margins(&self, solution: &Solution, prices: &[i128]) -> Result<Vec<i128>> {
        let mut margins: Vec<(u32, i128)> = memory::with_room(solution.places.len(), WHAT)?;
        for (row, place) in solution.places.iter().enumerate() {
            let clusters = self.clusters(row);
            let total = |place: usize| self.cost(row, place) + prices[clusters[place] as usize];
            let least = total(*place as usize);
            let second = (0..clusters.len()).map(total).filter(|total| *total > least).min();
            margins.extend(second.map(|second| (clusters[*place as usize], second - least)));
        }
        margins.sort_unstable();
        let mut all = memory::collected(margins.iter().map(|(_, margin)| *margin), WHAT)?;
        let middle = all.len() / 2;
        let usual = if all.is_empty() { LARGEST_PRICE } else { *all.select_nth_unstable(middle).1 };
        let mut widths = memory::filled(prices.len(), usual, WHAT)?;
        for of_cluster in margins.chunk_by(|(a, _), (b, _)| a == b) {
            let (label, margin) = of_cluster[of_cluster.len() / 2];
            widths[label as usize] = margin;
        }
        Ok(widths)
    }
}

impl Costs for Pass<'_> {
    fn rows(&self) -> usize {
        self.band.rows.len()
    }

    #[inline]
    fn clusters(&self, row: usize) -> &[u32] {
        let start = if row == 0 { 0 } else { self.band.ends[row - 1] };
        &self.band.clusters[start..self.band.ends[row]]
    }

    #[inline]
    fn cost(&self, row: usize, place: usize) -> i128 {
        let start = if row == 0 { 0 } else { self.band.ends[row - 1] };
        let weight = if self.band.weights.is_empty() { 1.0 } else { self.band.weights[row] };
        self.scale.quantise(weight, self.band.squares[start + place]) as i128
    }
}

/// Widths that suit moves like these: as far as each price moved, and at least as far as most of them.
fn spread(moves: &[i128]) -> Result<Vec<i128>> {
    let mut sorted = memory::copied(moves, WHAT)?;
    let middle = sorted.len() / 2;
    let usual = *sorted.select_nth_unstable(middle).1;
    sorted.iter_mut().for_each(|moved| *moved = (*moved - usual).abs());
    let most = *sorted.select_nth_unstable(middle).1;
    memory::collected(moves.iter().map(|moved| (moved - usual).abs().max(most).clamp(2 * ROUNDINGS, LARGEST_PRICE)), WHAT)
}

/// From integers of a scale to distances.
fn unit(scale: DistanceScale) -> PowerOfTwo {
    PowerOfTwo::new(scale.column().map_or(0, |column| column.quantum_exponent()))
}

/// The passes of a session that has some.
pub fn passes<'s, T: Float>(session: &'s mut dyn Session<T>) -> Result<&'s mut (dyn PricedPasses<T> + 's)> {
    session.priced().ok_or_else(|| {
        let (expected, got) = ("rows in the memory of the CPU or of one GPU".into(), "rows in parts".into());
        KMeansError::InvalidOption { option: "max_size", expected, got }
    })
}
