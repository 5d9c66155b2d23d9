//! Of all optimal labelings one: rules 2 and 3 of the definition in `mod.rs`.
//!
//! Only rows with several clusters of least distance + price can differ between optimal labelings. They are *free*. Rule 2 asks
//! for the least sum of `(N - r) label`, which is again a transport between the free rows and what the other rows leave of the
//! sizes, with the same solver. Rule 3 asks for the smallest labels in the order of the rows. Under optimal prices of rule 2 few
//! rows have a choice left. Each of them, in order, takes its smallest cluster from which a path of such choices leads back.
//!
//! If the free rows and their clusters make a forest, one labeling keeps the sizes, and there is nothing to choose.

use std::collections::HashMap;

use super::transport::{self, ListedCosts, SizeRange};
use crate::base::error::Result;
use crate::base::interrupt;
use crate::base::memory;

/// What errors call the memory of this file.
const WHAT: &str = "the rows between clusters of bounded size";
/// From so many free rows for each cluster on, a sample of them finds prices first.
const SAMPLED: usize = 8;
/// The sample has at least so many rows.
const LEAST_SAMPLE: usize = 4_096;

/// Rows that several clusters suit equally well.
#[derive(Debug, Default)]
pub struct FreeRows {
    /// Their numbers among all kept rows, ascending.
    pub rows: Vec<u64>,
    /// For each, the number of its set.
    sets: Vec<u32>,
    /// The different sets of clusters, each ascending.
    clusters: Vec<Vec<u32>>,
    known: HashMap<Vec<u32>, u32>,
}

impl FreeRows {
    /// Adds a row, whose number is larger than those before. `set`: its clusters, in ascending order.
    pub fn add(&mut self, row: u64, set: &[u32]) -> Result<()> {
        let number = match self.known.get(set) {
            Some(number) => *number,
            None => {
                let (number, own) = (self.clusters.len() as u32, memory::copied(set, WHAT)?);
                self.known.try_reserve(1).map_err(|_| memory::no_memory(WHAT, 64))?;
                self.known.insert(memory::copied(set, WHAT)?, number);
                memory::push(&mut self.clusters, own, WHAT)?;
                number
            }
        };
        memory::push(&mut self.rows, row, WHAT)?;
        memory::push(&mut self.sets, number, WHAT)
    }

    fn set(&self, row: usize) -> &[u32] {
        &self.clusters[self.sets[row] as usize]
    }

    /// Whether rows and clusters make a forest. `grounded`: clusters that may change their size; they are linked, too.
    fn is_forest(&self, k: usize, grounded: impl Iterator<Item = usize>) -> Result<bool> {
        let mut roots = memory::collected(0..=k, WHAT)?;
        fn root(roots: &mut [usize], mut node: usize) -> usize {
            while roots[node] != node {
                roots[node] = roots[roots[node]];
                node = roots[node];
            }
            node
        }
        let mut join = |a: usize, b: usize| {
            let (a, b) = (root(&mut roots, a), root(&mut roots, b));
            roots[a] = b;
            a != b
        };
        for cluster in grounded {
            join(k, cluster);
        }
        let sets = (0..self.rows.len()).map(|row| self.set(row));
        Ok(sets.flat_map(|set| set[1..].iter().map(|b| (set[0], *b))).all(|(a, b)| join(a as usize, b as usize)))
    }
}

/// Every `step`-th of the free rows, with the costs of rule 2.
struct Ranked<'f> {
    free: &'f FreeRows,
    step: usize,
    /// The number of all kept rows.
    all: u64,
}

impl ListedCosts for Ranked<'_> {
    fn rows(&self) -> usize {
        self.free.rows.len().div_ceil(self.step)
    }

    fn clusters(&self, row: usize) -> &[u32] {
        self.free.set(row * self.step)
    }

    fn cost(&self, row: usize, place: usize) -> i128 {
        let number = self.free.rows[row * self.step];
        i128::from(self.all - number) * i128::from(self.free.set(row * self.step)[place])
    }
}

/// The labels of the free rows by rules 2 and 3, or none if only those that they have keep the sizes. `range`: what the other
/// rows leave. `all`: the number of kept rows.
pub fn chosen(free: &FreeRows, range: &SizeRange, all: u64) -> Result<Option<Vec<u32>>> {
    let k = range.least.len();
    if free.is_forest(k, (0..k).filter(|&j| range.least[j] < range.most[j]))? {
        return Ok(None);
    }
    let mut prices = memory::zeroed::<i128>(k, WHAT)?;
    let mut step = 1;
    while free.rows.len() / (4 * step) >= LEAST_SAMPLE.max(SAMPLED * k) {
        step *= 4;
    }
    while step > 1 {
        let sample = Ranked { free, step, all };
        let (rows, of) = (sample.rows() as i128, free.rows.len() as i128);
        let least = range.least.iter().map(|least| (i128::from(*least) * rows / of) as i64);
        let most = range.most.iter().map(|most| ((i128::from(*most) * rows + of - 1) / of) as i64);
        let some = SizeRange { least: memory::collected(least, WHAT)?, most: memory::collected(most, WHAT)? };
        transport::solve(&sample, &some, &mut prices, &[])?;
        step /= 4;
    }
    let costs = Ranked { free, step: 1, all };
    let solution = transport::solve(&costs, range, &mut prices, &[])?;
    if solution.missing > 0 {
        unreachable!("the labels before kept the sizes");
    }
    smallest(&costs, range, &prices, solution.places).map(Some)
}

/// Rule 3: of the labels with the same sum, the smallest in the order of the rows.
fn smallest(costs: &Ranked<'_>, range: &SizeRange, prices: &[i128], places: Vec<u32>) -> Result<Vec<u32>> {
    let (k, n) = (prices.len(), costs.rows());
    let mut labels = memory::with_room(n, WHAT)?;
    labels.extend(places.iter().enumerate().map(|(row, place)| costs.clusters(row)[*place as usize]));
    // The rows with a choice, and their clusters of least cost.
    let mut open: Vec<(usize, Vec<u32>)> = Vec::new();
    for (row, place) in places.iter().enumerate() {
        let clusters = costs.clusters(row);
        let total = |place: usize| costs.cost(row, place) + prices[clusters[place] as usize];
        let least = total(*place as usize);
        if (0..clusters.len()).filter(|&place| total(place) == least).count() > 1 {
            let set = (0..clusters.len()).filter(|&place| total(place) == least).map(|place| clusters[place]);
            memory::push(&mut open, (row, memory::collected(set, WHAT)?), WHAT)?;
        }
    }
    let mut sizes = memory::zeroed::<i64>(k, WHAT)?;
    labels.iter().for_each(|label: &u32| sizes[*label as usize] += 1);
    let mut choices = Choices { range, prices, sizes, leaving: memory::with_room(k, WHAT)?, steps: Vec::new() };
    choices.leaving.resize_with(k, Vec::new);
    for (number, (row, _)) in open.iter().enumerate() {
        memory::push(&mut choices.leaving[labels[*row] as usize], number, WHAT)?;
    }
    for (number, (row, set)) in open.iter().enumerate() {
        interrupt::check()?;
        let own = labels[*row];
        // This row does not move any more, but here.
        choices.leaving[own as usize].retain(|other| *other != number);
        for &to in set.iter().take_while(|to| **to < own) {
            if choices.lead_back(to, own, &open, &mut labels)? {
                labels[*row] = to;
                choices.sizes[own as usize] -= 1;
                choices.sizes[to as usize] += 1;
                break;
            }
        }
    }
    Ok(labels)
}

/// The rows with a choice that are not fixed yet.
struct Choices<'r> {
    range: &'r SizeRange,
    prices: &'r [i128],
    sizes: Vec<i64>,
    /// For each cluster, the numbers of its rows with a choice.
    leaving: Vec<Vec<usize>>,
    /// For each cluster, and for the ground, the cluster before it and the row on a path.
    steps: Vec<Option<(usize, Option<usize>)>>,
}

impl Choices<'_> {
    /// Moves rows along a path between two clusters, if there is one, so that another row can go the other way. A path may take
    /// the ground: then the clusters before and behind it change their sizes.
    fn lead_back(&mut self, from: u32, back: u32, open: &[(usize, Vec<u32>)], labels: &mut [u32]) -> Result<bool> {
        let (k, back, from) = (self.sizes.len(), back as usize, from as usize);
        self.steps.clear();
        self.steps.resize(k + 1, None);
        self.steps[from] = Some((from, None));
        let mut queue = memory::with_room(k + 1, WHAT)?;
        queue.push(from);
        let mut next = 0;
        while next < queue.len() && self.steps[back].is_none() {
            let at = queue[next];
            next += 1;
            let mut reach = |to: usize, row: Option<usize>| {
                if self.steps[to].is_none() {
                    self.steps[to] = Some((at, row));
                    queue.push(to);
                }
            };
            // A cluster of price 0 may keep a row more, or give one up, within its range.
            if at == k {
                (0..k).filter(|&j| self.prices[j] == 0 && self.sizes[j] > self.range.least[j]).for_each(|j| reach(j, None));
                continue;
            }
            if self.prices[at] == 0 && self.sizes[at] < self.range.most[at] {
                reach(k, None);
            }
            for &number in &self.leaving[at] {
                open[number].1.iter().for_each(|to| reach(*to as usize, Some(number)));
            }
        }
        let Some((mut before, mut row)) = self.steps[back] else { return Ok(false) };
        let mut at = back;
        loop {
            if let Some(number) = row {
                labels[open[number].0] = at as u32;
                self.leaving[before].retain(|other| *other != number);
                memory::push(&mut self.leaving[at], number, WHAT)?;
                self.sizes[before] -= 1;
                self.sizes[at] += 1;
            }
            if before == from {
                break;
            }
            at = before;
            let Some(step) = self.steps[at] else { unreachable!("a path leads to each of its clusters") };
            (before, row) = step;
        }
        Ok(true)
    }
}
