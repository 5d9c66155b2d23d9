//! The lists of clusters near each row, and the proof that clusters outside of them do not matter.
//!
//! A list was made under some prices, and has a lower bound on distance + price of all clusters outside of it. Under other prices
//! the bound is lower by the largest fall of a price. While it is above the least distance + price of the list, no other cluster
//! can be the row's label. Otherwise the row gets a new list.

use super::transport::Costs;
use crate::backend::Session;
use crate::backend::priced::{LISTS, ListedRows, NearLists};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::PowerOfTwo;

/// Rows of a task.
const TASK: usize = 1 << 14;

/// The lists of some rows, all of positive weight.
pub struct Lists {
    /// Their numbers among the kept rows. Empty: all kept rows.
    pub rows: Vec<u64>,
    /// Where the list of each row starts, and its length.
    spans: Vec<(usize, u32)>,
    clusters: Vec<u32>,
    squares: Vec<f64>,
    weights: Vec<f64>,
    /// The bound of each row, and the number of the prices that it holds for.
    rest: Vec<(f64, u32)>,
    /// The prices of each pass.
    prices: Vec<Vec<f64>>,
    /// The rows that were given lists.
    pub listed: u64,
}

impl Lists {
    /// Lists of `m` clusters for every `step`-th kept row, of those of positive weight. `heavy`: the numbers of the rows of positive
    /// weight, or none if all are.
    pub fn new<T: Float>(
        session: &mut dyn Session<T>,
        centroids: &[T],
        prices: Vec<f64>,
        [m, step]: [usize; 2],
        heavy: Option<&[u64]>,
        weighted: bool,
    ) -> Result<Self> {
        let some = heavy.map(|heavy| memory::collected(heavy.iter().step_by(step).copied(), LISTS)).transpose()?;
        let wanted = some.as_ref().map_or(ListedRows::Every(step), |rows| ListedRows::These(rows));
        let n = wanted.count(session.rows() as usize);
        let mut near = NearLists::zeroed(n, m, weighted)?;
        passes(session)?.near(centroids, wanted, &prices, &mut near)?;
        let rows = match some {
            Some(rows) => rows,
            None if step == 1 => Vec::new(),
            None => memory::collected((0..n).map(|place| (place * step) as u64), LISTS)?,
        };
        let spans = memory::collected((0..n).map(|row| (row * m, m as u32)), LISTS)?;
        let rest = memory::collected(near.rest.iter().map(|rest| (*rest, 0)), LISTS)?;
        let NearLists { clusters, squares, weights, .. } = near;
        Ok(Self { rows, spans, clusters, squares, weights, rest, prices: vec![prices], listed: n as u64 })
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The number of a row among all kept rows.
    pub fn number(&self, row: usize) -> u64 {
        if self.rows.is_empty() { row as u64 } else { self.rows[row] }
    }

    /// The cluster at a place of a row's list, and the reference distance to its centroid.
    pub fn entry(&self, row: usize, place: usize) -> (u32, f64) {
        let at = self.spans[row].0 + place;
        (self.clusters[at], self.squares[at])
    }

    /// How many clusters a row's list has.
    pub fn length(&self, row: usize) -> usize {
        self.spans[row].1 as usize
    }

    fn weight(&self, row: usize) -> f64 {
        if self.weights.is_empty() { 1.0 } else { self.weights[row] }
    }

    /// The costs of the lists, as integers of this scale.
    pub fn costs(&self, scale: DistanceScale) -> Listed<'_> {
        Listed { lists: self, scale }
    }

    /// The rows whose lists may miss a cluster of least cost + price. `prices`: in units of distances, with `integers` in the scale.
    pub fn doubtful(&self, scale: DistanceScale, integers: &[i128], prices: &[f64], threads: usize) -> Result<Vec<u32>> {
        let largest = |prices: &[f64]| prices.iter().fold(0.0f64, |most, price| most.max(price.abs()));
        let here = largest(prices);
        // How far a price fell since each pass, and the magnitudes of what was subtracted.
        let falls = self.prices.iter().map(|then| {
            let fall = then.iter().zip(prices).map(|(then, now)| now - then).fold(f64::INFINITY, f64::min);
            (fall, largest(then) + here)
        });
        let falls = memory::collected(falls, LISTS)?;
        let unit = unit(scale);
        let quantum = unit.apply(1.0);
        let costs = self.costs(scale);
        let count = self.len().div_ceil(TASK);
        let mut workers = memory::with_room(workers_for(threads, count), LISTS)?;
        workers.resize_with(workers.capacity().min(count).max(1), || Ok(Vec::new()));
        for_each_task(&mut workers, (0..count).map(|task| task * TASK), |found: &mut Result<Vec<u32>>, first| {
            for row in first..self.len().min(first + TASK) {
                let clusters = costs.clusters(row);
                let totals = (0..clusters.len()).map(|place| costs.cost(row, place) + integers[clusters[place] as usize]);
                let least = unit.apply(totals.min().unwrap_or(0) as f64);
                let (rest, pass) = self.rest[row];
                let (fall, magnitude) = falls[pass as usize];
                let bound = self.weight(row) * rest + fall;
                let roundings = (bound.abs() + least.abs() + magnitude) * 2f64.powi(-48) + 4.0 * quantum + 8.0 * f64::MIN_POSITIVE;
                if rest == f64::INFINITY || bound - roundings > least {
                    continue;
                }
                if let Ok(Err(error)) = found.as_mut().map(|found| memory::push(found, row as u32, LISTS)) {
                    *found = Err(error);
                }
            }
        })?;
        let mut all = Vec::new();
        for found in workers {
            memory::extend(&mut all, &found?, LISTS)?;
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Gives these rows new lists of `m` clusters.
    pub fn renew<T: Float>(
        &mut self,
        session: &mut dyn Session<T>,
        centroids: &[T],
        prices: Vec<f64>,
        m: usize,
        rows: &[u32],
    ) -> Result<()> {
        let numbers = memory::collected(rows.iter().map(|row| self.number(*row as usize)), LISTS)?;
        let mut near = NearLists::zeroed(rows.len(), m, !self.weights.is_empty())?;
        passes(session)?.near(centroids, ListedRows::These(&numbers), &prices, &mut near)?;
        let pass = self.prices.len() as u32;
        memory::push(&mut self.prices, prices, LISTS)?;
        for (place, &row) in rows.iter().enumerate() {
            let list = place * m..(place + 1) * m;
            let (mut start, len) = self.spans[row as usize];
            if (len as usize) < m {
                start = self.clusters.len();
                memory::extend(&mut self.clusters, &near.clusters[list.clone()], LISTS)?;
                memory::extend(&mut self.squares, &near.squares[list], LISTS)?;
            } else {
                self.clusters[start..start + m].copy_from_slice(&near.clusters[list.clone()]);
                self.squares[start..start + m].copy_from_slice(&near.squares[list]);
            }
            self.spans[row as usize] = (start, m as u32);
            self.rest[row as usize] = (near.rest[place], pass);
        }
        self.listed += rows.len() as u64;
        Ok(())
    }
}

/// The passes of a session that has some.
pub fn passes<'s, T: Float>(session: &'s mut dyn Session<T>) -> Result<&'s mut (dyn crate::backend::priced::PricedPasses<T> + 's)> {
    match session.priced() {
        Some(passes) => Ok(passes),
        None => {
            let (expected, got) = ("rows in the memory of one device".into(), "rows in parts".into());
            Err(KMeansError::InvalidOption { option: "max_size", expected, got })
        }
    }
}

/// From integers of a scale to distances.
pub fn unit(scale: DistanceScale) -> PowerOfTwo {
    PowerOfTwo::new(scale.column().map_or(0, |column| column.quantum_exponent()))
}

/// Lists with integer costs.
pub struct Listed<'l> {
    lists: &'l Lists,
    scale: DistanceScale,
}

impl Costs for Listed<'_> {
    fn rows(&self) -> usize {
        self.lists.len()
    }

    #[inline]
    fn clusters(&self, row: usize) -> &[u32] {
        let (start, len) = self.lists.spans[row];
        &self.lists.clusters[start..start + len as usize]
    }

    #[inline]
    fn cost(&self, row: usize, place: usize) -> i128 {
        let Lists { spans, squares, .. } = self.lists;
        self.scale.quantise(self.lists.weight(row), squares[spans[row].0 + place]) as i128
    }
}
