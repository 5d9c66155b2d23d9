//! The clusters that can be the labels of rows while prices move within the walls of a pass (`widths.rs`).

use std::cmp::Ordering;

use super::newton::{Margin, PricedRows};
use super::transport::{ListedCosts, SizeRange, Solution};
use super::widths;
use crate::backend::Session;
use crate::backend::priced::{Band, PassRows, PriceRange, PricedPasses, Widths};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::PowerOfTwo;

/// What errors call the memory of this file.
const WHAT: &str = "lists of the clusters near each row";
/// What roundings of integers take off a width, in quanta.
const ROUNDINGS: f64 = 8.0;
/// Listed rows of a task.
const TASK: usize = 1 << 12;

/// Rows and their lists.
pub struct RowLists<'r> {
    rows: PassRows<'r>,
    scale: DistanceScale,
    band: Band,
    /// The prices of the pass, in quanta, and how far they may move.
    prices: Vec<i128>,
    widths: Widths,
}

impl<'r> RowLists<'r> {
    /// The lists of these rows, from a pass with these prices.
    pub fn new<T: Float>(
        session: &mut dyn Session<T>,
        centroids: &[T],
        rows: PassRows<'r>,
        scale: DistanceScale,
        prices: &[i128],
        widths: Widths,
    ) -> Result<Self> {
        let here = in_distances(prices, scale)?;
        let band = priced_passes(session)?.band(centroids, rows, &PriceRange { prices: &here, widths: &widths })?;
        #[cfg(feature = "tests")]
        if super::trial::costs().is_some() {
            let widths_of_all = widths::uniform(here.len(), widths::EVERYTHING)?;
            let all = priced_passes(session)?.band(centroids, rows, &PriceRange { prices: &here, widths: &widths_of_all })?;
            compare(&band, &all, &here, &widths);
        }
        Ok(Self { rows, scale, band, prices: memory::copied(prices, WHAT)?, widths })
    }

    /// How many rows there are, with lists or without.
    pub fn count(&self) -> usize {
        self.band.nearest.len()
    }

    /// The widths of the pass.
    pub fn widths(&self) -> &Widths {
        &self.widths
    }

    pub fn scale(&self) -> DistanceScale {
        self.scale
    }

    /// The prices of the pass.
    pub fn prices(&self) -> &[i128] {
        &self.prices
    }

    /// How many rows have lists.
    fn listed(&self) -> usize {
        self.band.rows.len()
    }

    /// Whether the lists are complete at these prices.
    pub fn are_complete(&self, prices: &[i128]) -> Result<bool> {
        let unit = unit(self.scale);
        let moves = self.prices.iter().zip(prices).map(|(before, now)| unit.apply((now - before) as f64));
        let least = ROUNDINGS * unit.apply(1.0) + f64::MIN_POSITIVE;
        Ok(widths::cover(&self.widths, &memory::collected(moves, WHAT)?, least))
    }

    /// The rows without a list: their places and labels.
    fn certain_rows(&self) -> impl Iterator<Item = (usize, u32)> {
        let mut listed = self.band.rows.iter().copied().peekable();
        (0..).zip(&self.band.nearest).filter_map(move |(place, label)| {
            let has_list = listed.next_if(|row| *row as usize == place).is_some();
            (!has_list).then_some((place, *label))
        })
    }

    /// Takes the rows without a list off what each cluster may have.
    pub fn without_certain_rows(&self, mut range: SizeRange) -> SizeRange {
        for (_, label) in self.certain_rows() {
            range.least[label as usize] -= 1;
            range.most[label as usize] -= 1;
        }
        range
    }

    /// How many rows without a list each cluster has.
    pub fn certain_sizes(&self, k: usize) -> Result<Vec<i64>> {
        let mut sizes = memory::zeroed::<i64>(k, WHAT)?;
        self.certain_rows().for_each(|(_, label)| sizes[label as usize] += 1);
        Ok(sizes)
    }

    /// The number of a listed row among all kept rows.
    pub fn number(&self, row: usize) -> u64 {
        self.rows.row(self.band.rows[row] as usize)
    }

    /// Writes the labels of a solution.
    pub fn write(&self, solution: &Solution, labels: &mut [u32]) {
        for (place, label) in self.certain_rows() {
            labels[self.rows.row(place) as usize] = label;
        }
        for (row, place) in solution.places.iter().enumerate() {
            labels[self.number(row) as usize] = self.clusters(row)[*place as usize];
        }
    }

    /// The listed rows for which several clusters have the least cost + price. None if the label of a row is not one of its
    /// cheapest clusters.
    pub fn ties(&self, solution: &Solution, prices: &[i128], threads: usize) -> Result<Option<Vec<u32>>> {
        let find = |rows: std::ops::Range<usize>, found: &mut Vec<u32>| -> Result<bool> {
            for row in rows {
                let (clusters, own) = (self.clusters(row), solution.places[row] as usize);
                let total = |place: usize| self.cost(row, place) + prices[clusters[place] as usize];
                let (least, mut equal) = (total(own), false);
                for other in (0..clusters.len()).filter(|other| *other != own) {
                    match total(other).cmp(&least) {
                        Ordering::Less => return Ok(false),
                        Ordering::Equal => equal = true,
                        Ordering::Greater => {}
                    }
                }
                if equal {
                    memory::push(found, row as u32, WHAT)?;
                }
            }
            Ok(true)
        };
        let tasks = self.listed().div_ceil(TASK);
        let mut found = memory::filled(tasks, (Vec::new(), Ok(true)), WHAT)?;
        let mut workers = memory::filled(workers_for(threads, tasks), (), WHAT)?;
        for_each_task(&mut workers, found.iter_mut().enumerate(), |(), (task, (found, result))| {
            *result = find(task * TASK..((task + 1) * TASK).min(self.listed()), found);
        })?;
        let mut all = Vec::new();
        for (some, result) in found {
            if !result? {
                return Ok(None);
            }
            memory::extend(&mut all, &some, WHAT)?;
        }
        Ok(Some(all))
    }

    /// For each row the place of its cheapest cluster, and the rows for which another cluster is at most `near(cheapest, other)`
    /// dearer.
    pub fn near_rows(
        &self,
        prices: &[f64],
        near: impl Fn(u32, u32) -> f64 + Sync,
        threads: usize,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut places = memory::zeroed::<u32>(self.listed(), WHAT)?;
        let tasks = self.listed().div_ceil(TASK);
        let mut found = memory::filled(tasks, (Vec::new(), Ok(())), WHAT)?;
        let mut workers = memory::filled(workers_for(threads, tasks), (), WHAT)?;
        let each = places.chunks_mut(TASK).zip(&mut found).enumerate();
        for_each_task(&mut workers, each, |(), (task, (places, (found, result)))| {
            for (row, out) in (task * TASK..).zip(places) {
                let clusters = self.clusters(row);
                let total = |place: usize| self.float_cost(row, place) + prices[clusters[place] as usize];
                let Some(best) = (0..clusters.len()).min_by(|a, b| total(*a).total_cmp(&total(*b))) else { continue };
                *out = best as u32;
                let (least, own) = (total(best), clusters[best]);
                let is_near = |place: usize| total(place) - least <= near(own, clusters[place]);
                if result.is_ok() && (0..clusters.len()).any(|place| place != best && is_near(place)) {
                    *result = memory::push(found, row as u32, WHAT);
                }
            }
        })?;
        let mut rows = Vec::new();
        for (some, result) in found {
            result?;
            memory::extend(&mut rows, &some, WHAT)?;
        }
        Ok((places, rows))
    }

    fn float_cost(&self, row: usize, place: usize) -> f64 {
        self.weight(row) * self.band.squares[self.band.list(row).start + place]
    }

    fn weight(&self, row: usize) -> f64 {
        if self.band.weights.is_empty() { 1.0 } else { self.band.weights[row] }
    }
}

impl ListedCosts for RowLists<'_> {
    fn rows(&self) -> usize {
        self.band.rows.len()
    }

    #[inline]
    fn clusters(&self, row: usize) -> &[u32] {
        &self.band.clusters[self.band.list(row)]
    }

    #[inline]
    fn cost(&self, row: usize, place: usize) -> i128 {
        self.scale.quantise(self.weight(row), self.band.squares[self.band.list(row).start + place]) as i128
    }
}

impl PricedRows for RowLists<'_> {
    fn rows(&self) -> usize {
        self.band.rows.len()
    }

    fn margins(&self, prices: &[f64], first: usize, out: &mut [Margin]) -> Result<f64> {
        let mut value = 0.0;
        for (row, out) in (first..).zip(out) {
            let (list, weight) = (self.band.list(row), self.weight(row));
            let (mut best, mut second) = ((f64::INFINITY, 0), (f64::INFINITY, 0));
            for (&j, square) in self.band.clusters[list.clone()].iter().zip(&self.band.squares[list]) {
                let total = (weight * square + prices[j as usize], j);
                if total.0 < best.0 {
                    (second, best) = (best, total);
                } else if total.0 < second.0 {
                    second = total;
                }
            }
            value += best.0;
            *out = Margin { own: best.1, second: second.1, margin: second.0 - best.0 };
        }
        Ok(value)
    }

    fn nearest_rows(&self, prices: &[f64], _: usize) -> Result<Option<Vec<f64>>> {
        let (k, rows) = (prices.len(), self.band.rows.len());
        if self.band.clusters.len() < rows * k {
            return Ok(None);
        }
        let mut nearest = memory::filled(k * k, f64::INFINITY, WHAT)?;
        for row in 0..rows {
            let total = |place: usize| self.float_cost(row, place) + prices[place];
            let Some(best) = (0..k).min_by(|a, b| total(*a).total_cmp(&total(*b))) else { continue };
            let of_best = &mut nearest[best * k..][..k];
            of_best.iter_mut().enumerate().for_each(|(j, nearest)| *nearest = nearest.min(total(j) - total(best)));
        }
        Ok(Some(nearest))
    }
}

/// Compares lists with those of all clusters.
#[cfg(feature = "tests")]
fn compare(band: &Band, all: &Band, prices: &[f64], widths: &Widths) {
    let mut listed = 0;
    for (place, &nearest) in band.nearest.iter().enumerate() {
        let is_listed = band.rows.get(listed) == Some(&(place as u32));
        let list = if is_listed { &band.clusters[band.list(listed)] } else { &[nearest][..] };
        listed += usize::from(is_listed);
        let weight = all.weights.get(place).copied().unwrap_or(1.0);
        let squares = &all.squares[all.list(place)];
        let total = |j: usize| weight * squares[j] + prices[j];
        for j in (0..squares.len()).filter(|j| !list.contains(&(*j as u32))) {
            let (own, other, width) = (total(nearest as usize), total(j), widths.of(nearest as usize, j));
            assert!(
                other - own >= width * (1.0 - 1e-12),
                "row {place}: cluster {j} is not listed beside {nearest}: {own} {other} {width}"
            );
        }
    }
}

/// Some of the rows of lists.
pub struct SomeRows<'l> {
    pub lists: &'l RowLists<'l>,
    pub rows: Vec<u32>,
}

impl ListedCosts for SomeRows<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    #[inline]
    fn clusters(&self, row: usize) -> &[u32] {
        self.lists.clusters(self.rows[row] as usize)
    }

    #[inline]
    fn cost(&self, row: usize, place: usize) -> i128 {
        self.lists.cost(self.rows[row] as usize, place)
    }
}

/// Prices in units of distances.
pub fn in_distances(prices: &[i128], scale: DistanceScale) -> Result<Vec<f64>> {
    let unit = unit(scale);
    memory::collected(prices.iter().map(|price| unit.apply(*price as f64)), WHAT)
}

/// From integers of a scale to distances.
pub fn unit(scale: DistanceScale) -> PowerOfTwo {
    PowerOfTwo::new(scale.column().map_or(0, |column| column.quantum_exponent()))
}

/// The passes of a session that has some.
pub fn priced_passes<'s, T: Float>(session: &'s mut dyn Session<T>) -> Result<&'s mut (dyn PricedPasses<T> + 's)> {
    session.priced().ok_or_else(|| {
        let (expected, got) = ("rows in one place, since clusters have bounds on their sizes".into(), "rows in parts".into());
        KMeansError::InvalidOption { option: "max_size", expected, got }
    })
}
