//! The cheapest labels whose cluster sizes keep bounds, where each row has a list of clusters with integer costs.
//!
//! ```text
//! label every row by the least cost + price of its list
//! network: an arc a -> b for the rows of a whose lists have b; its length is the least cost(b) + p(b) - cost(a) - p(a)
//!          a ground node, whose arcs take what a cluster may have more or less: p = 0, sizes from least to most
//!          a wall a -> b where lists end: prices may not move past it, and no row goes there             widths.rs
//! until every size keeps its bounds:
//!   shortest paths from all clusters with too many rows                       Dijkstra, lengths are never negative
//!   lower the price of each cluster by its distance, so that paths have length 0
//!   move a row along each arc of the path to each cluster with too few, as long as the arcs last
//! ```
//! These are successive shortest paths (Edmonds & Karp 1972) on a graph of clusters in place of rows. At the end every row has a
//! label of least cost + price, a cluster of positive price has as many rows as it may have, and a cluster of negative price as
//! few. Such prices prove that the labels are optimal (Aurenhammer, Hoffmann & Aronov 1998).

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use crate::base::error::Result;
use crate::base::interrupt;
use crate::base::memory;

/// What errors call the memory of this file.
const WHAT: &str = "the moves of rows between clusters of bounded size";
/// So many searches past walls tell that walls are in the way.
const MOST_WALLED: u32 = 20;

/// Rows, each with a list of clusters and their costs.
pub trait ListedCosts: Sync {
    fn rows(&self) -> usize;
    /// The list of a row. No cluster stands there twice.
    fn clusters(&self, row: usize) -> &[u32];
    /// The cost of the cluster at this place of the list: at least 0, and below 2^100.
    fn cost(&self, row: usize, place: usize) -> i128;
}

/// The rows of the lists that each cluster may have. Rows without lists may have taken more than there are: then it is negative.
#[derive(Debug, Clone)]
pub struct SizeRange {
    pub least: Vec<i64>,
    pub most: Vec<i64>,
}

/// Labels that a solution has found.
#[derive(Debug)]
pub struct Solution {
    /// For each row, the place of its label in its list.
    pub places: Vec<u32>,
    /// Rows that are missing in clusters where no path leads: not 0 if the lists do not allow the bounds, or walls stand between.
    pub missing: u64,
}

/// For each cluster a, pairs (b, limit): the price of a may be above the price of b by at most `limit`. Past this wall, the list
/// of a row may lack b.
pub type PriceLimits = [Vec<(u32, i128)>];

/// The cheapest labels within the bounds. `prices`: any at the start, but within the walls; at the end those that prove the
/// labels. Where walls are in the way, the prices are better than before.
pub fn solve<C: ListedCosts>(costs: &C, range: &SizeRange, prices: &mut [i128], walls: &PriceLimits) -> Result<Solution> {
    let places = nearest(costs, prices)?;
    let mut network = Network::new(costs, range, prices, places, walls)?;
    let missing = network.balance()?;
    let (ground, places) = (network.ground_price, std::mem::take(&mut network.places));
    prices.iter_mut().for_each(|price| *price -= ground);
    Ok(Solution { places, missing })
}

/// For each row, the place of the least cost + price in its list.
fn nearest<C: ListedCosts>(costs: &C, prices: &[i128]) -> Result<Vec<u32>> {
    let nearest = (0..costs.rows()).map(|row| {
        let clusters = costs.clusters(row);
        let total = |place: usize| costs.cost(row, place) + prices[clusters[place] as usize];
        (0..clusters.len()).min_by_key(|&place| total(place)).unwrap_or(0) as u32
    });
    memory::collected(nearest, WHAT)
}

/// A row that may leave a cluster, and what that adds to the cost. The least comes first in a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    cost: i128,
    row: u32,
    /// The place of the other cluster in the row's list.
    place: u32,
}

impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        other.cost.cmp(&self.cost).then(other.row.cmp(&self.row))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The rows that may go from one cluster to another.
#[derive(Debug)]
struct Arc {
    to: u32,
    offers: BinaryHeap<Offer>,
}

/// How a shortest path reaches a node.
#[derive(Debug, Clone, Copy)]
enum PathStep {
    /// It starts there.
    Start,
    /// From a cluster, by this one of its arcs, for this cost.
    Row { from: u32, arc: u32, cost: i128 },
    /// From a cluster to the ground, or from the ground to a cluster.
    Ground { from: u32 },
    /// Only past a wall.
    Wall,
}

/// Clusters with their rows, and the ground behind them as node k.
struct Network<'n, C> {
    costs: &'n C,
    range: &'n SizeRange,
    walls: &'n PriceLimits,
    prices: &'n mut [i128],
    ground_price: i128,
    places: Vec<u32>,
    arcs: Vec<Vec<Arc>>,
    /// The number of an arc among those of its cluster.
    numbers: HashMap<(u32, u32), u32>,
    /// What goes from each cluster to the ground.
    drained: Vec<i64>,
    /// For each node, the rows that are too many.
    excess: Vec<i64>,
    /// Searches past walls.
    walled: u32,
    /// For each cluster, by how much its price may surely rise against the others.
    room: Vec<i128>,
    distances: Vec<i128>,
    steps: Vec<PathStep>,
    queue: BinaryHeap<Reverse<(i128, u32)>>,
}

impl<'n, C: ListedCosts> Network<'n, C> {
    /// The network of rows at these places of their lists.
    fn new(
        costs: &'n C,
        range: &'n SizeRange,
        prices: &'n mut [i128],
        places: Vec<u32>,
        walls: &'n PriceLimits,
    ) -> Result<Self> {
        let k = prices.len();
        let mut sizes = memory::zeroed::<i64>(k, WHAT)?;
        for (row, place) in places.iter().enumerate() {
            sizes[costs.clusters(row)[*place as usize] as usize] += 1;
        }
        let drained = (0..k).map(|j| match prices[j].signum() {
            1 => range.most[j],
            -1 => range.least[j],
            _ => sizes[j].clamp(range.least[j], range.most[j]),
        });
        let drained: Vec<i64> = memory::collected(drained, WHAT)?;
        let mut excess = memory::zeroed(k + 1, WHAT)?;
        for j in 0..k {
            excess[j] = sizes[j] - drained[j];
            excess[k] -= excess[j];
        }
        let mut arcs = memory::with_room(k, WHAT)?;
        arcs.resize_with(k, Vec::new);
        let mut network = Self {
            costs,
            range,
            walls,
            prices,
            ground_price: 0,
            places,
            arcs,
            numbers: HashMap::new(),
            drained,
            excess,
            walled: 0,
            room: memory::zeroed(k, WHAT)?,
            distances: memory::filled(k + 1, i128::MAX, WHAT)?,
            steps: memory::filled(k + 1, PathStep::Start, WHAT)?,
            queue: BinaryHeap::new(),
        };
        if network.excess.iter().any(|excess| *excess != 0) {
            network.offer_rows()?;
        }
        Ok(network)
    }

    /// Gives every arc the offers of its rows.
    fn offer_rows(&mut self) -> Result<()> {
        let mut lists: Vec<Vec<Vec<Offer>>> = memory::with_room(self.arcs.len(), WHAT)?;
        lists.resize_with(self.arcs.len(), Vec::new);
        let costs = self.costs;
        for row in 0..costs.rows() {
            let (clusters, place) = (costs.clusters(row), self.places[row] as usize);
            let (own, cost) = (clusters[place], costs.cost(row, place));
            for (other, &to) in clusters.iter().enumerate().filter(|(other, _)| *other != place) {
                let more = costs.cost(row, other) - cost;
                let arc = self.arc(own, to)?;
                let of_cluster = &mut lists[own as usize];
                while of_cluster.len() <= arc as usize {
                    memory::push(of_cluster, Vec::new(), WHAT)?;
                }
                let offer = Offer { cost: more, row: row as u32, place: other as u32 };
                memory::push(&mut of_cluster[arc as usize], offer, WHAT)?;
            }
        }
        for (arcs, lists) in self.arcs.iter_mut().zip(lists) {
            arcs.iter_mut().zip(lists).for_each(|(arc, list)| arc.offers = BinaryHeap::from(list));
        }
        Ok(())
    }

    /// The number of the arc between two clusters.
    fn arc(&mut self, from: u32, to: u32) -> Result<u32> {
        let arcs = &mut self.arcs[from as usize];
        if let Some(arc) = self.numbers.get(&(from, to)) {
            return Ok(*arc);
        }
        memory::push(arcs, Arc { to, offers: BinaryHeap::new() }, WHAT)?;
        self.numbers.try_reserve(1).map_err(|_| memory::no_memory(WHAT, size_of::<(u32, u32, u32)>() as u128))?;
        self.numbers.insert((from, to), arcs.len() as u32 - 1);
        Ok(arcs.len() as u32 - 1)
    }

    /// Moves rows until every cluster has what it may have. Returns how many rows are missing where no path leads.
    fn balance(&mut self) -> Result<u64> {
        while self.excess.iter().any(|excess| *excess > 0) {
            interrupt::check()?;
            let reached = self.find_paths()?;
            if reached.is_empty() {
                return Ok(self.excess.iter().map(|excess| excess.max(&0).unsigned_abs()).sum());
            }
            for node in reached {
                while self.excess[node as usize] < 0 && self.push_along(node)? {}
            }
        }
        Ok(0)
    }

    /// Finds the shortest paths from all nodes with too many rows, and changes the prices by their lengths. Returns the nodes
    /// with too few rows that paths reach before any wall, nearest first.
    fn find_paths(&mut self) -> Result<Vec<u32>> {
        let (mut reached, mut farthest) = self.search_paths(false)?;
        if farthest.is_none_or(|farthest| !self.is_within_walls(farthest)) && !self.walls.is_empty() {
            (reached, farthest) = self.search_paths(true)?;
            self.walled += 1;
            if self.walled > MOST_WALLED {
                reached.clear();
            }
        }
        let Some(farthest) = farthest else { return Ok(reached) };
        for ((price, distance), room) in self.prices.iter_mut().zip(&self.distances).zip(&mut self.room) {
            *price -= (*distance).min(farthest);
            *room -= farthest - (*distance).min(farthest);
        }
        self.ground_price -= self.distances[self.prices.len()].min(farthest);
        Ok(reached)
    }

    /// Whether prices stay within the walls if they change by distances up to this one.
    fn is_within_walls(&mut self, farthest: i128) -> bool {
        let Self { walls, prices, distances, room, .. } = self;
        let change = |j: usize| distances[j].min(farthest);
        walls.iter().enumerate().all(|(a, walls)| {
            if farthest - change(a) <= room[a] {
                return true;
            }
            let left = |b: usize, cost: i128| cost + prices[b] - prices[a];
            room[a] = walls.iter().map(|(b, cost)| left(*b as usize, *cost)).min().unwrap_or(i128::MAX >> 1);
            walls.iter().all(|(b, cost)| change(*b as usize) - change(a) <= left(*b as usize, *cost))
        })
    }

    /// Finds the distances from all nodes with too many rows. Returns the nodes with too few rows that paths reach before any
    /// wall, nearest first, and up to which distance prices may change. `may_pass_walls`: whether paths go on past walls.
    fn search_paths(&mut self, may_pass_walls: bool) -> Result<(Vec<u32>, Option<i128>)> {
        let k = self.prices.len();
        self.distances.fill(i128::MAX);
        self.queue.clear();
        for node in 0..=k {
            if self.excess[node] > 0 {
                (self.distances[node], self.steps[node]) = (0, PathStep::Start);
                self.queue.push(Reverse((0, node as u32)));
            }
        }
        let (mut reached, mut farthest) = (Vec::new(), None);
        let mut wanted = self.excess.iter().filter(|excess| **excess < 0).count();
        while let Some(Reverse((distance, node))) = self.queue.pop() {
            if distance > self.distances[node as usize] {
                continue;
            }
            let is_walled = matches!(self.steps[node as usize], PathStep::Wall);
            if self.excess[node as usize] < 0 {
                if !is_walled {
                    memory::push(&mut reached, node, WHAT)?;
                    farthest = Some(distance);
                }
                wanted -= 1;
                if wanted == 0 {
                    farthest = farthest.or(Some(distance));
                    break;
                }
            }
            self.look_from(node, distance, [is_walled, may_pass_walls]);
        }
        Ok((reached, farthest))
    }

    /// Offers shorter paths to the neighbours of a node. `is_walled`: whether the path to the node passes a wall.
    /// `may_pass_walls`: whether paths go on past walls.
    fn look_from(&mut self, node: u32, distance: i128, [is_walled, may_pass_walls]: [bool; 2]) {
        let k = self.prices.len();
        let from = node as usize;
        let step = |step| if is_walled { PathStep::Wall } else { step };
        if from == k {
            for to in 0..k {
                if self.drained[to] > self.range.least[to] {
                    let length = self.prices[to] - self.ground_price;
                    self.reach(to, distance + length, step(PathStep::Ground { from: node }));
                }
            }
            return;
        }
        if self.drained[from] < self.range.most[from] {
            let length = self.ground_price - self.prices[from];
            self.reach(k, distance + length, step(PathStep::Ground { from: node }));
        }
        for arc in 0..self.arcs[from].len() {
            let to = self.arcs[from][arc].to as usize;
            if let Some(Offer { cost, .. }) = self.best_offer(from, arc) {
                let length = cost + self.prices[to] - self.prices[from];
                self.reach(to, distance + length, step(PathStep::Row { from: node, arc: arc as u32, cost }));
            }
        }
        let of_node = self.walls.get(from).filter(|_| may_pass_walls);
        for &(to, cost) in of_node.into_iter().flatten() {
            let length = cost + self.prices[to as usize] - self.prices[from];
            self.reach(to as usize, distance + length.max(0), PathStep::Wall);
        }
    }

    fn reach(&mut self, node: usize, distance: i128, step: PathStep) {
        if distance < self.distances[node] {
            (self.distances[node], self.steps[node]) = (distance, step);
            self.queue.push(Reverse((distance, node as u32)));
        }
    }

    /// The cheapest row of an arc. Rows that have left the cluster are dropped.
    fn best_offer(&mut self, from: usize, arc: usize) -> Option<Offer> {
        let Self { costs, places, arcs, .. } = self;
        let offers = &mut arcs[from][arc].offers;
        loop {
            let offer = *offers.peek()?;
            let row = offer.row as usize;
            if costs.clusters(row)[places[row] as usize] as usize == from {
                return Some(offer);
            }
            offers.pop();
        }
    }

    /// Moves one row along every arc of the path to a node. False if an arc of the path is used up.
    fn push_along(&mut self, node: u32) -> Result<bool> {
        let k = self.prices.len();
        let mut at = node as usize;
        loop {
            match self.steps[at] {
                PathStep::Start if self.excess[at] > 0 => break,
                PathStep::Start | PathStep::Wall => return Ok(false),
                PathStep::Row { from, arc, cost } => {
                    if self.best_offer(from as usize, arc as usize).is_none_or(|offer| offer.cost != cost) {
                        return Ok(false);
                    }
                    at = from as usize;
                }
                PathStep::Ground { from } => {
                    let from = from as usize;
                    let is_open = match from == k {
                        true => self.drained[at] > self.range.least[at],
                        false => self.drained[from] < self.range.most[from],
                    };
                    if !is_open {
                        return Ok(false);
                    }
                    at = from;
                }
            }
        }
        self.excess[at] -= 1;
        self.excess[node as usize] += 1;
        at = node as usize;
        loop {
            match self.steps[at] {
                PathStep::Start | PathStep::Wall => return Ok(true),
                PathStep::Row { from, arc, .. } => {
                    self.take_best(from as usize, arc as usize)?;
                    at = from as usize;
                }
                PathStep::Ground { from } => {
                    match from as usize == k {
                        true => self.drained[at] -= 1,
                        false => self.drained[from as usize] += 1,
                    }
                    at = from as usize;
                }
            }
        }
    }

    /// Moves the cheapest row of an arc, and offers it where it is now.
    fn take_best(&mut self, from: usize, arc: usize) -> Result<()> {
        let Some(Offer { row, place, .. }) = self.best_offer(from, arc) else { unreachable!("the path was checked") };
        self.arcs[from][arc].offers.pop();
        let costs = self.costs;
        let clusters = costs.clusters(row as usize);
        let (own, cost) = (clusters[place as usize], costs.cost(row as usize, place as usize));
        self.places[row as usize] = place;
        for (other, &to) in clusters.iter().enumerate().filter(|(_, to)| **to != own) {
            let offer = Offer { cost: costs.cost(row as usize, other) - cost, row, place: other as u32 };
            let arc = self.arc(own, to)?;
            let offers = &mut self.arcs[own as usize][arc as usize].offers;
            offers.try_reserve(1).map_err(|_| memory::no_memory(WHAT, size_of::<Offer>() as u128))?;
            offers.push(offer);
        }
        Ok(())
    }
}
