//! One assignment with bounds on the sizes of the clusters.
//!
//! ```text
//! plain assign: if its sizes keep the bounds, it is the assignment
//! prices that prove an optimal labeling                                                       search.rs
//! of all optimal labelings the one that rules 2 and 3 name                                    ties.rs
//! too coarse for its total? the same with finer integers
//! ```

use super::SizeBounds;
use super::lists::{RowLists, priced_passes};
use super::newton::FIRST_DAMPING;
use super::sample::Sample;
use super::search::{PriceSearch, finer};
use super::ties::{self, FreeRows};
use super::transport::{ListedCosts, Solution};
use crate::backend::priced::PassRows;
use crate::backend::{Scales, Session, WorkCounts};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::PRECISE_BITS;
use crate::statistics::Statistics;

/// What errors call the memory of this file.
const WHAT: &str = "the labels of clusters of bounded size";

/// Assigns rows within bounds, again and again. It keeps the prices, which only save time.
pub struct BoundedAssigner<'a> {
    bounds: SizeBounds,
    statistics: &'a Statistics,
    threads: usize,
    /// The prices of the last assignment, in quanta of the base scale.
    prices: Vec<i128>,
    /// The memory of samples.
    memory: Vec<f32>,
    /// The numbers of the rows of positive weight, or none if all are.
    counted: Option<Vec<u64>>,
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

impl<'a> BoundedAssigner<'a> {
    pub fn new<T: Float>(
        session: &mut dyn Session<T>,
        bounds: SizeBounds,
        statistics: &'a Statistics,
        [k, threads]: [usize; 2],
    ) -> Result<Self> {
        let counted = priced_passes(session)?.counted_rows()?;
        if statistics.n > u64::from(u32::MAX) {
            let (expected, got) = ("at most 2^32 - 1 rows".into(), statistics.n.to_string());
            return Err(KMeansError::InvalidOption { option: "max_size", expected, got });
        }
        Ok(Self { bounds, statistics, threads, prices: memory::zeroed(k, WHAT)?, memory: Vec::new(), counted, labels: None })
    }

    /// Labels all rows by these centroids, and gives the labels to the session.
    pub fn assign<T: Float>(&mut self, session: &mut dyn Session<T>, centroids: &[T]) -> Result<Bounded> {
        let assigned = session.assign(centroids, false)?;
        let sizes = session.sizes()?;
        let mut labels = session.labels()?;
        let is_active = !sizes.iter().all(|size| self.bounds.allow(*size));
        let (mut passes, mut inertia) = (1.0, None);
        if is_active {
            let (more_passes, totals) = self.optimal(session, centroids, &mut labels)?;
            (passes, inertia) = (passes + more_passes, totals);
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
        match &self.counted {
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
        let counted = self.counted.take();
        let rows = counted.as_ref().map_or(PassRows::All, |rows| PassRows::These(rows));
        let Self { bounds, statistics, threads, .. } = *self;
        let mut search = PriceSearch { session, centroids, statistics, bounds, threads, damping: FIRST_DAMPING, rows_read: 0 };
        let sample = search.sample(counted.as_deref(), &mut prices, std::mem::take(&mut self.memory))?;
        let mut scale = base;
        let totals = loop {
            let (lists, mut solution, ties) = search.solve(rows, scale, &mut prices, sample.as_ref())?;
            if scale == base {
                self.prices.copy_from_slice(&prices);
            }
            choose(&lists, &mut solution, &ties, &prices, bounds, statistics.n)?;
            lists.write(&solution, labels);
            priced_passes(search.session)?.relabel(labels)?;
            let totals = search.session.inertia(Scales::Same(scale))?;
            let total: u128 = totals.iter().sum();
            if total == 0 || total >> PRECISE_BITS >= n as u128 {
                break totals;
            }
            let bits = 128 - (total + n as u128).leading_zeros() as i32;
            scale = scale.below_quanta(bits);
            // The quanta of the new scale are 90 bits below the total.
            finer(&mut prices, 90 - bits);
        };
        self.counted = counted;
        self.memory = sample.map_or_else(Vec::new, Sample::into_memory);
        Ok((search.rows_read as f64 / n as f64, (scale == base).then_some(totals)))
    }
}

/// Replaces labels of the listed rows `tied`, which could have another label at the same cost, by those that rules 2 and 3
/// choose. `n`: the kept rows.
fn choose(
    lists: &RowLists<'_>,
    solution: &mut Solution,
    tied: &[u32],
    prices: &[i128],
    bounds: SizeBounds,
    n: u64,
) -> Result<()> {
    if tied.is_empty() {
        return Ok(());
    }
    let k = prices.len();
    let mut free = FreeRows::default();
    let mut range = bounds.range(k, [1, 1])?;
    let mut set = memory::with_room(k, WHAT)?;
    let mut taken = lists.certain_sizes(k)?;
    for (row, place) in solution.places.iter().enumerate() {
        taken[lists.clusters(row)[*place as usize] as usize] += 1;
    }
    for row in tied.iter().map(|row| *row as usize) {
        let (clusters, own) = (lists.clusters(row), solution.places[row] as usize);
        let total = |place: usize| lists.cost(row, place) + prices[clusters[place] as usize];
        let least = total(own);
        set.clear();
        set.extend((0..clusters.len()).filter(|&place| total(place) == least).map(|place| clusters[place]));
        free.add(lists.number(row), &set)?;
        taken[clusters[own] as usize] -= 1;
    }
    for j in 0..k {
        // A cluster of positive price is full, and one of negative price has as few rows as it may have.
        match prices[j].signum() {
            1 => range.least[j] = range.most[j],
            -1 => range.most[j] = range.least[j],
            _ => {}
        }
        range.least[j] = (range.least[j] - taken[j]).max(0);
        range.most[j] -= taken[j];
    }
    let Some(chosen) = ties::chosen(&free, &range, n)? else { return Ok(()) };
    for (row, label) in tied.iter().map(|row| *row as usize).zip(chosen) {
        let place = lists.clusters(row).iter().position(|j| *j == label);
        solution.places[row] = place.map_or(solution.places[row], |place| place as u32);
    }
    Ok(())
}
