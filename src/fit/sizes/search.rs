//! The search for prices that prove an optimal labeling.
//!
//! ```text
//! sample of the rows: do the last prices fit it? else prices that do                           sample.rs, newton.rs
//! until the lists are complete at the new prices:
//!   walls around the prices, from the sample: between them the lists of a pass are complete    widths.rs
//!   pass: which clusters can be a row's label between the walls                                lists.rs, backend/priced.rs
//!   prices that almost balance these lists, then the exact ones                                newton.rs, transport.rs
//! ```
//! Most rows have one possible cluster. Where walls stop the prices, the next pass begins there.

use super::SizeBounds;
use super::lists::{RowLists, SomeRows, in_distances, priced_passes, unit};
use super::newton::{self, Balance, PricedRows};
use super::random::splitmix;
use super::sample::Sample;
use super::transport::{self, ListedCosts, SizeRange, Solution};
#[cfg(feature = "tests")]
use super::trial;
use super::widths::{self, Walls};
use crate::backend::Session;
use crate::backend::priced::PassRows;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::PowerOfTwo;
use crate::statistics::Statistics;

/// What errors call the memory of this file.
const WHAT: &str = "the search for prices of clusters of bounded size";
/// All rows list all clusters if that makes at most so many entries.
const ALL_LISTED: usize = 1 << 14;
/// The rows of a sample: so many for each cluster, but so many costs at least, so many rows at most, and so many costs at most. The
/// last limit wins.
const ROWS_EACH: usize = 64;
const MOST_ROWS: usize = 1 << 18;
const COSTS: [usize; 2] = [1 << 24, 1 << 26];
/// Prices are looked for in every 16th block of a sample, then in every 4th one, then in all blocks. A part has so many rows for each
/// cluster at least.
const PARTS: [usize; 3] = [16, 4, 1];
const LEAST_ROWS: usize = 16;
/// Costs of a part of a sample that is solved exactly, at most.
const MOST_SOLVED: usize = 1 << 19;
/// Prices fit a sample if the sizes are off by at most so many of their usual errors.
const FITTING: f64 = 1.2;
/// And a search for prices ends with so many.
const FITTED: f64 = 0.4;
/// Rows that may be too many or too few before the transport begins: for each cluster in the mean, and at most.
const ALMOST: [f64; 2] = [8.0, 32.0];
/// The shares of the widths within which rows move at first. None: all of them.
const NEAR_SHARES: [Option<f64>; 3] = [Some(0.06), Some(0.25), None];
/// Prices are kept below this, whatever the scale.
const LARGEST_PRICE: i128 = 1 << 110;
/// Below this quantum, prices are not computed in float64.
const SMALLEST_UNIT: f64 = 1e-290;
/// Without walls, moves of prices are halved at most so often.
const MOST_HALVED: u32 = 128;
/// After so many passes, lists have all clusters.
const MOST_PASSES: u32 = 40;

/// A search for the prices of one assignment.
pub struct PriceSearch<'s, T> {
    pub session: &'s mut dyn Session<T>,
    pub centroids: &'s [T],
    pub statistics: &'s Statistics,
    pub bounds: SizeBounds,
    pub threads: usize,
    /// The damping of the last search for prices.
    pub damping: f64,
    /// The rows that samples and passes have looked at. A row counts each time.
    pub rows_read: usize,
}

impl<T: Float> PriceSearch<'_, T> {
    /// A sample of the rows. Prices are changed to fit it. None if lists should have all clusters. `counted`: the rows of
    /// positive weight, if not all are. `memory`: for the sample.
    pub fn sample(&mut self, counted: Option<&[u64]>, prices: &mut [i128], memory: Vec<f32>) -> Result<Option<Sample>> {
        let (n, k, scale) = (self.statistics.n_positive as usize, prices.len(), self.statistics.distances);
        #[cfg(feature = "tests")]
        trial::change(prices, self.session.inertia(crate::backend::Scales::Same(scale))?.iter().sum::<u128>() / n as u128);
        #[cfg(feature = "tests")]
        let all_listed = trial::costs().map_or(ALL_LISTED, |_| 0);
        #[cfg(not(feature = "tests"))]
        let all_listed = ALL_LISTED;
        if n.saturating_mul(k) <= all_listed || unit(scale).apply(1.0) < SMALLEST_UNIT {
            return Ok(None);
        }
        let step = n.div_ceil(sample_rows(k));
        // A row of each step, at no fixed place: rows may be periodic.
        let place = |from: usize| (from + splitmix(from as u64) as usize % step).min(n - 1);
        let row = |place: usize| counted.map_or(place as u64, |rows| rows[place]);
        let rows = memory::collected((0..n).step_by(step).map(|from| row(place(from))), WHAT)?;
        let costs = priced_passes(self.session)?.sample(self.centroids, PassRows::These(&rows), memory)?;
        if !(SMALLEST_UNIT..=1.0 / SMALLEST_UNIT).contains(&costs.unit) {
            return Ok(None);
        }
        self.rows_read += costs.rows;
        let (sample, mut is_fitted) = (Sample::new(costs, k), true);
        for step in PARTS {
            let part = sample.part(step);
            if step > 1 && part.rows() < LEAST_ROWS * k {
                continue;
            }
            let (count, before) = (part.rows(), in_distances(prices, scale)?);
            let range = self.bounds.range(k, [count as u128, n as u128])?;
            if newton::balance(&part, &range, &before, self.threads)?.misfit() > FITTING {
                let mut now = memory::copied(&before, WHAT)?;
                let fits = |balance: &Balance| balance.misfit() <= FITTED;
                is_fitted &= newton::search(&part, &range, &mut now, &Walls::default(), fits, &mut self.damping, self.threads)?;
                follow(prices, &before, &now, unit(scale));
            }
        }
        if !is_fitted {
            self.solve_part(&sample, prices)?;
        }
        Ok(Some(sample))
    }

    /// Solves a small part of a sample with equal rows, and takes its prices if the dual rises: no steps of prices divide blocks of
    /// equal rows.
    fn solve_part(&self, sample: &Sample, prices: &mut [i128]) -> Result<()> {
        let (k, unit) = (prices.len(), unit(self.statistics.distances));
        let range = |rows: usize| self.bounds.range(k, [rows as u128, u128::from(self.statistics.n_positive)]);
        let part = sample.part((sample.part(1).rows() * k).div_ceil(MOST_SOLVED));
        if !part.has_equal_rows()? {
            return Ok(());
        }
        let (costs, quantum) = part.integers()?;
        let before = in_distances(prices, self.statistics.distances)?;
        let mut solved = memory::collected(before.iter().map(|price| (price / quantum).clamp(-1e30, 1e30) as i128), WHAT)?;
        transport::solve(&costs, &range(part.rows())?, &mut solved, &[])?;
        let now = memory::collected(solved.iter().map(|price| *price as f64 * quantum), WHAT)?;
        let judge = sample.part(PARTS[1]);
        let value =
            |prices: &[f64]| -> Result<f64> { Ok(newton::balance(&judge, &range(judge.rows())?, prices, self.threads)?.value) };
        if value(&now)? > value(&before)? {
            follow(prices, &before, &now, unit);
        }
        Ok(())
    }

    /// Finds an optimal solution of these rows. `prices`: any at the start, those that prove the solution at the end. Returns the
    /// lists of the rows, the solution, and the listed rows that could have another label at the same cost.
    pub fn solve<'r>(
        &mut self,
        rows: PassRows<'r>,
        scale: DistanceScale,
        prices: &mut [i128],
        sample: Option<&Sample>,
    ) -> Result<(RowLists<'r>, Solution, Vec<u32>)> {
        let (k, unit) = (prices.len(), unit(scale));
        // Prices that are no normal float64 say nothing, so every row lists all clusters.
        let is_tiny = unit.apply(1.0) < SMALLEST_UNIT;
        let sample = sample.filter(|_| !is_tiny);
        let mut wider = memory::filled(k, 1.0, WHAT)?;
        for pass in 0.. {
            let here = in_distances(prices, scale)?;
            let (widths, walls) = match sample.filter(|_| pass < MOST_PASSES) {
                Some(sample) => {
                    let of_rows = |rows| self.bounds.range(k, [rows as u128, u128::from(self.statistics.n_positive)]);
                    widths::around(sample, of_rows, self.statistics.n_positive, &here, &wider, self.threads)?
                }
                None => (widths::uniform(k, widths::EVERYTHING)?, Walls::default()),
            };
            let lists = RowLists::new(self.session, self.centroids, rows, scale, prices, widths)?;
            self.rows_read += lists.count();
            let all = [lists.count() as u128, u128::from(self.statistics.n_positive)];
            let range = lists.without_certain_rows(self.bounds.range(k, all)?);
            let mut is_balanced = is_tiny;
            if !is_tiny {
                let mut now = memory::copied(&here, WHAT)?;
                let almost = |balance: &Balance| {
                    let most = balance.residuals.iter().fold(0.0f64, |most, rows| most.max(rows.abs()));
                    balance.imbalance <= ALMOST[0] * k as f64 && most <= ALMOST[1]
                };
                is_balanced = newton::search(&lists, &range, &mut now, &walls, almost, &mut self.damping, self.threads)?;
                follow(prices, &here, &now, unit);
            }
            // Where walls are in the way of many rows, they are in the way of exact prices, too.
            let is_stopped = !is_balanced && walls.are_reached(&in_distances(prices, scale)?)?;
            let tries: &[Option<f64>] = match (walls.exist(), is_stopped) {
                (true, false) => &NEAR_SHARES,
                (true, true) => &[],
                (false, _) => &[None],
            };
            for &near in tries {
                let solution = self.transport(&lists, &range, prices, &walls, near)?;
                if solution.missing == 0
                    && lists.are_complete(prices)?
                    && let Some(ties) = lists.ties(&solution, prices, self.threads)?
                {
                    return Ok((lists, solution, ties));
                }
            }
            if !walls.exist() {
                halve_moves(&lists, prices)?;
            }
            walls.widen_reached(&in_distances(prices, scale)?, &mut wider)?;
        }
        unreachable!("lists of all clusters are complete")
    }

    /// The exact prices, within the walls. `near`: only rows within this share of the widths may move.
    fn transport(
        &self,
        lists: &RowLists<'_>,
        range: &SizeRange,
        prices: &mut [i128],
        walls: &Walls,
        near: Option<f64>,
    ) -> Result<Solution> {
        let (k, scale) = (prices.len(), lists.scale());
        let quanta = |width: f64| (width / unit(scale).apply(1.0)).min(LARGEST_PRICE as f64) as i128;
        let mut limits = memory::with_room(k, WHAT)?;
        for a in 0..if walls.exist() { k } else { 0 } {
            let limit_of = |&(b, width): &(u32, f64)| {
                let at = |from: &[i128], share: f64| quanta(share * width) + from[a] - from[b as usize];
                let limit = at(lists.prices(), 1.0);
                (b, near.map_or(limit, |share| limit.min(at(prices, share))))
            };
            limits.push(memory::collected(walls.of(a).iter().map(limit_of), WHAT)?);
        }
        let Some(share) = near else { return transport::solve(lists, range, prices, &limits) };
        let here = in_distances(prices, scale)?;
        let width = |a: u32, b: u32| share * lists.widths().of(a as usize, b as usize);
        let (mut places, rows) = lists.near_rows(&here, width, self.threads)?;
        let mut left = range.clone();
        let mut near_rows = rows.iter().peekable();
        for (row, place) in (0u32..).zip(&places) {
            if near_rows.next_if_eq(&&row).is_none() {
                let label = lists.clusters(row as usize)[*place as usize] as usize;
                left.least[label] -= 1;
                left.most[label] -= 1;
            }
        }
        let some = SomeRows { lists, rows };
        let Solution { places: moved, missing } = transport::solve(&some, &left, prices, &limits)?;
        some.rows.iter().zip(moved).for_each(|(row, place)| places[*row as usize] = place);
        Ok(Solution { places, missing })
    }
}

/// The rows that a sample should have. It has all rows if there are fewer, and more than half as many otherwise.
pub fn sample_rows(k: usize) -> usize {
    #[cfg(feature = "tests")]
    if let Some(costs) = trial::costs() {
        return (costs / k).max(1);
    }
    (ROWS_EACH * k).max((COSTS[0] / k).min(MOST_ROWS)).min(COSTS[1] / k).max(1)
}

/// Halves what prices moved since the pass until the lists are complete. Beyond the widths, prices say nothing.
fn halve_moves(lists: &RowLists<'_>, prices: &mut [i128]) -> Result<()> {
    for _ in 0..MOST_HALVED {
        if lists.are_complete(prices)? {
            break;
        }
        prices.iter_mut().zip(lists.prices()).for_each(|(price, before)| *price = before + (*price - before) / 2);
    }
    Ok(())
}

/// Gives integers the prices that changed. The others keep all of their bits.
fn follow(integers: &mut [i128], before: &[f64], now: &[f64], unit: PowerOfTwo) {
    let largest = LARGEST_PRICE as f64;
    for ((integer, price), _) in integers.iter_mut().zip(now).zip(before).filter(|((_, now), before)| now != before) {
        *integer = if *price == 0.0 { 0 } else { (price / unit.apply(1.0)).clamp(-largest, largest) as i128 };
    }
}

/// Prices of a finer scale: `bits` more.
pub fn finer(prices: &mut [i128], bits: i32) {
    let most = LARGEST_PRICE >> bits;
    prices.iter_mut().for_each(|price| *price = (*price).clamp(-most, most) << bits);
}
