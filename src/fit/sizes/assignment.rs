//! One assignment with bounds on the sizes of the clusters.
//!
//! ```text
//! plain assign: if its sizes keep the bounds, it is the assignment
//! prices from samples of the rows: every 4^s-th, ever more of them, with bounds in proportion
//! until no list is in doubt:
//!   solve the transport of all rows and their lists          transport.rs
//!   rows whose list may miss a cluster get another one       lists.rs
//! too coarse for its total? the same with finer integers
//! of all optimal labelings the one that rules 2 and 3 name   ties.rs
//! ```

use super::SizeBounds;
use super::lists::{Listed, Lists, unit};
use super::ties::{self, FreeRows};
use super::transport::{self, Costs, SizeRange, Solution};
use crate::backend::{Session, WorkCounts};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::{DistanceScale, PRECISE_BITS};
use crate::statistics::Statistics;

/// What errors call the memory of this file.
const WHAT: &str = "the labels of clusters of bounded size";
/// The clusters of a list, if not all.
const LISTED: usize = 8;
/// The same where samples find the first prices.
const SAMPLED: usize = 32;
/// Lists have all clusters if that makes at most so many entries.
const ALL_LISTED: usize = 1 << 21;
/// A sample has at least so many rows, and so many for each cluster.
const LEAST_SAMPLE: [usize; 2] = [4_096, 8];
/// How often a sample is solved again because lists were in doubt.
const TRIES: u32 = 4;
/// Prices are kept below this, whatever the scale.
const LARGEST_PRICE: i128 = 1 << 110;

/// Assigns rows within bounds, again and again. It keeps the prices, which only save time.
pub struct BoundedAssigner<'a> {
    bounds: SizeBounds,
    statistics: &'a Statistics,
    k: usize,
    threads: usize,
    /// The prices of the last assignment, in quanta of the base scale.
    prices: Vec<i128>,
    /// The numbers of the rows of positive weight, or none if all are.
    heavy: Option<Vec<u64>>,
    /// The labels of the last assignment. None before the first one.
    pub labels: Option<Vec<u32>>,
}

/// What an assignment did.
pub struct Bounded {
    /// Rows of positive weight whose label differs from that of the last assignment.
    pub changed: u64,
    /// Whether the nearest centroids broke the bounds.
    pub is_active: bool,
    /// Passes over all rows.
    pub passes: f64,
    pub work_counts: WorkCounts,
    /// For each kept row, the reference distance to the centroid of its label, where the bounds are active. 0 for rows without
    /// weight.
    pub squares: Vec<f64>,
}

impl<'a> BoundedAssigner<'a> {
    pub fn new<T: Float>(
        session: &mut dyn Session<T>,
        bounds: SizeBounds,
        statistics: &'a Statistics,
        [k, threads]: [usize; 2],
    ) -> Result<Self> {
        let heavy = super::lists::passes(session)?.heavy_rows()?;
        Ok(Self { bounds, statistics, k, threads, prices: memory::zeroed(k, WHAT)?, heavy, labels: None })
    }

    /// Prices from elsewhere. They may be any: only the time depends on them.
    #[cfg(feature = "tests")]
    pub fn start_from(&mut self, prices: &[i128]) {
        self.prices.copy_from_slice(prices);
    }

    /// Labels all rows by these centroids, and gives the labels to the session.
    pub fn assign<T: Float>(&mut self, session: &mut dyn Session<T>, centroids: &[T]) -> Result<Bounded> {
        let assigned = session.assign(centroids, false)?;
        let sizes = session.sizes()?;
        let mut labels = session.labels()?;
        let is_active = !sizes.iter().all(|size| self.bounds.allow(*size));
        let (mut passes, mut squares) = (1.0, Vec::new());
        if is_active {
            squares = memory::zeroed(labels.len(), WHAT)?;
            passes += self.optimal(session, centroids, &mut labels, &mut squares)?;
            super::lists::passes(session)?.relabel(&labels)?;
        }
        let before = self.labels.replace(labels);
        let changed = match (&before, &self.labels) {
            (Some(before), Some(now)) => self.differences(before, now),
            _ => self.statistics.n_positive,
        };
        Ok(Bounded { changed, is_active, passes, work_counts: assigned.work_counts, squares })
    }

    /// How many rows of positive weight have different labels.
    fn differences(&self, before: &[u32], now: &[u32]) -> u64 {
        match &self.heavy {
            None => before.iter().zip(now).filter(|(before, now)| before != now).count() as u64,
            Some(rows) => rows.iter().filter(|&&row| before[row as usize] != now[row as usize]).count() as u64,
        }
    }

    /// Writes the optimal labels of the rows of positive weight, and their distances. Returns the passes over the rows.
    fn optimal<T: Float>(
        &mut self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        labels: &mut [u32],
        squares: &mut [f64],
    ) -> Result<f64> {
        let n = self.statistics.n_positive as usize;
        let mut scale = self.statistics.distances;
        let [rows, each] = LEAST_SAMPLE;
        let mut step = 1;
        while n / (4 * step) >= rows.max(each * self.k) {
            step *= 4;
        }
        let mut listed = 0;
        let mut prices = memory::copied(&self.prices, WHAT)?;
        while step > 1 {
            listed += self.from_sample(session, centroids, step, scale, &mut prices)?;
            step /= 4;
        }
        let mut lists = self.lists(session, centroids, 1, LISTED, scale, &prices)?;
        let mut solution = self.certified(session, centroids, &mut lists, scale, &mut prices)?;
        self.prices.copy_from_slice(&prices);
        loop {
            let costs = lists.costs(scale);
            let total: u128 = (0..n).map(|row| costs.cost(row, solution.places[row] as usize) as u128).sum();
            if total == 0 || total >> PRECISE_BITS >= n as u128 {
                break;
            }
            let bits = 128 - (total + n as u128).leading_zeros() as i32;
            scale = scale.below_quanta(bits);
            let finer = |price: i128| price.clamp(-LARGEST_PRICE >> (90 - bits), LARGEST_PRICE >> (90 - bits)) << (90 - bits);
            prices.iter_mut().for_each(|price| *price = finer(*price));
            solution = self.certified(session, centroids, &mut lists, scale, &mut prices)?;
        }
        self.choose(&lists.costs(scale), &lists, &mut solution, &prices)?;
        for (row, place) in solution.places.iter().enumerate() {
            let number = lists.number(row) as usize;
            (labels[number], squares[number]) = lists.entry(row, *place as usize);
        }
        Ok((listed + lists.listed) as f64 / n as f64)
    }

    /// Lists for every `step`-th row.
    fn lists<T: Float>(
        &self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        step: usize,
        few: usize,
        scale: DistanceScale,
        prices: &[i128],
    ) -> Result<Lists> {
        let rows = (self.statistics.n_positive as usize).div_ceil(step);
        let m = if rows.saturating_mul(self.k) <= ALL_LISTED { self.k } else { few.min(self.k) };
        let (prices, weighted) = (in_distances(prices, scale)?, self.statistics.weights.is_some());
        Lists::new(session, centroids, prices, [m, step], self.heavy.as_deref(), weighted)
    }

    /// Finds prices for every `step`-th row, not always the best ones. Returns how many rows were listed.
    fn from_sample<T: Float>(
        &self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        step: usize,
        scale: DistanceScale,
        prices: &mut [i128],
    ) -> Result<u64> {
        let mut lists = self.lists(session, centroids, step, SAMPLED, scale, prices)?;
        let (rows, n) = (lists.len() as u128, u128::from(self.statistics.n_positive));
        let SizeBounds { least, most } = self.bounds;
        let least = (u128::from(least) * rows / n) as u64;
        let most = (u128::from(most) * rows).div_ceil(n) as u64;
        let range = SizeBounds { least, most }.range(self.k)?;
        for _ in 0..TRIES {
            let solution = transport::solve(&lists.costs(scale), &range, prices, self.threads)?;
            if !self.improve(session, centroids, &mut lists, scale, prices, &solution, &range)? {
                break;
            }
        }
        Ok(lists.listed)
    }

    /// An optimal solution for these lists, which are renewed until they are certain to have all clusters that matter.
    fn certified<T: Float>(
        &self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        lists: &mut Lists,
        scale: DistanceScale,
        prices: &mut [i128],
    ) -> Result<Solution> {
        let range = self.bounds.range(self.k)?;
        loop {
            let solution = transport::solve(&lists.costs(scale), &range, prices, self.threads)?;
            if !self.improve(session, centroids, lists, scale, prices, &solution, &range)? {
                return Ok(solution);
            }
        }
    }

    /// Renews the lists that are in doubt. False if there are none, and no rows are missing.
    #[expect(clippy::too_many_arguments, reason = "what a solution was found from")]
    fn improve<T: Float>(
        &self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        lists: &mut Lists,
        scale: DistanceScale,
        prices: &mut [i128],
        solution: &Solution,
        range: &SizeRange,
    ) -> Result<bool> {
        if solution.missing > 0 {
            self.lower(lists, scale, prices, solution, range)?;
        }
        let now = in_distances(prices, scale)?;
        let rows = lists.doubtful(scale, prices, &now, self.threads)?;
        if rows.is_empty() && solution.missing == 0 {
            return Ok(false);
        }
        let longest = rows.iter().map(|row| lists.length(*row as usize)).max().unwrap_or(0);
        lists.renew(session, centroids, now, (longest * 2).min(self.k), &rows)?;
        Ok(true)
    }

    /// Lowers the prices of clusters that miss rows, by more and more, so that more lists get them.
    fn lower(
        &self,
        lists: &Lists,
        scale: DistanceScale,
        prices: &mut [i128],
        solution: &Solution,
        range: &SizeRange,
    ) -> Result<()> {
        let costs = lists.costs(scale);
        let mut sizes = memory::zeroed::<u64>(self.k, WHAT)?;
        let mut widest = 1;
        for (row, place) in solution.places.iter().enumerate() {
            let clusters = costs.clusters(row);
            sizes[clusters[*place as usize] as usize] += 1;
            let farthest = (0..clusters.len()).map(|place| costs.cost(row, place)).max();
            widest = farthest.map_or(widest, |farthest| widest.max(farthest));
        }
        for (j, price) in prices.iter_mut().enumerate() {
            if sizes[j] < range.least[j] {
                *price = (*price - widest).max(-LARGEST_PRICE);
            }
        }
        Ok(())
    }

    /// Replaces the labels of rows between clusters by those that rules 2 and 3 choose.
    fn choose(&self, costs: &Listed<'_>, lists: &Lists, solution: &mut Solution, prices: &[i128]) -> Result<()> {
        let mut free = FreeRows::default();
        let mut rows = Vec::new();
        let mut range = self.bounds.range(self.k)?;
        let mut set = memory::with_room(self.k, WHAT)?;
        let mut taken = memory::zeroed::<u64>(self.k, WHAT)?;
        for (row, place) in solution.places.iter().enumerate() {
            let clusters = costs.clusters(row);
            let least = costs.cost(row, *place as usize) + prices[clusters[*place as usize] as usize];
            set.clear();
            for (place, &j) in clusters.iter().enumerate() {
                if prices[j as usize] <= least && costs.cost(row, place) + prices[j as usize] == least {
                    set.push(j);
                }
            }
            if set.len() > 1 {
                set.sort_unstable();
                free.add(lists.number(row), &set)?;
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
            range.least[j] = range.least[j].saturating_sub(taken[j]);
            range.most[j] = range.most[j].saturating_sub(taken[j]);
        }
        let Some(chosen) = ties::chosen(&free, &range, self.statistics.n, self.threads)? else { return Ok(()) };
        for (row, label) in rows.into_iter().zip(chosen) {
            let place = costs.clusters(row).iter().position(|j| *j == label);
            solution.places[row] = place.map_or(solution.places[row], |place| place as u32);
        }
        Ok(())
    }
}

/// Prices in units of distances.
fn in_distances(prices: &[i128], scale: DistanceScale) -> Result<Vec<f64>> {
    let unit = unit(scale);
    memory::collected(prices.iter().map(|price| unit.apply(*price as f64)), WHAT)
}
