//! Prices that almost balance the clusters: a damped Newton method on the dual of the transport.
//!
//! ```text
//! sizes  = rows of each cluster by least cost + price;  residual = how many rows are too many
//! window of a cluster: the margin below which it has about as many rows as must leave it
//! a price difference of one moves (rows within the window) / window rows between two clusters: a weighted graph
//! if lists have all clusters, the nearest row counts for other pairs: clusters may lie in blobs without rows between them
//! step   = the solution of the graph's Laplacian for the residuals, kept within the walls      laplacian.rs, widths.rs
//! damp the step until the dual rises enough (Levenberg and Marquardt); lengthen it as long as the dual rises
//! ```
//! The dual is concave and piecewise linear, `sum min(cost + price) - sum (most price+ - least price-)`. Prices only save time
//! (`transport.rs` finds the exact ones), so this is float64.

use super::laplacian::PriceGraph;
use super::transport::SizeRange;
use super::widths::Walls;
use crate::backend::priced::MOST_IN_PAIRS;
use crate::base::error::Result;
use crate::base::interrupt;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};

/// What errors call the memory of this file.
const WHAT: &str = "the prices of clusters of bounded size";
/// Most values of the dual that are computed.
const VALUES: u32 = 100;
/// The damping that the first search of an assignment begins with, relative to the diagonal.
pub const FIRST_DAMPING: f64 = 1e-4;
/// A later search begins with the damping that the last one ended with, but at most this.
const MOST_DAMPING_AT_START: f64 = 1.0;
/// A search ends at a larger damping.
const MOST_DAMPING: f64 = 1e4;
/// The damping does not fall below this.
const LEAST_DAMPING: f64 = 1e-8;
/// The share of the predicted rise that a step must have.
const RISE: f64 = 1e-2;
/// By how much a good step is lengthened.
const LONGER: f64 = 3.0;
/// A step that ends at a wall may leave at most this share of the imbalance.
const PROGRESS: f64 = 0.9;
/// A search ends after so many steps in a row that change the imbalance by less than this share: no row of the lists can help.
const MOST_STALLED: u32 = 3;
const STALLED: f64 = 1e-2;
/// The least window, in the mean of all and in distances.
const EMPTY_WINDOW: f64 = 1e-9;
const LEAST_WINDOW: f64 = 1e-200;
/// Rows of a task.
const TASK: usize = 1 << 12;
/// Most pairs of clusters whose nearest row counts.
const NEAREST_ROWS: usize = 1 << 16;

/// The nearest two clusters of a row, and the margin between both.
#[derive(Debug, Clone, Copy, Default)]
pub struct Margin {
    pub own: u32,
    pub second: u32,
    pub margin: f64,
}

/// Rows that follow prices, in units of distances.
pub trait PricedRows: Sync {
    fn rows(&self) -> usize;
    /// Finds the margins of some rows from `first` on, a multiple of [`TASK`]. Returns the sum of their least costs with prices.
    fn margins(&self, prices: &[f64], first: usize, out: &mut [Margin]) -> Result<f64>;
    /// `(k, k)`: by how much the nearest row of each cluster is dearer in each other one. None if lists do not have all clusters.
    fn nearest_rows(&self, prices: &[f64], threads: usize) -> Result<Option<Vec<f64>>>;
}

/// What prices do.
pub struct Balance {
    /// The value of the dual.
    pub value: f64,
    /// For each cluster, the rows that are too many. Negative: too few.
    pub residuals: Vec<f64>,
    /// For each cluster, its rows.
    pub sizes: Vec<i64>,
    /// The sum of the absolute residuals. A row in the wrong cluster counts there, and where the row is missing.
    pub imbalance: f64,
    pub rows: Vec<Margin>,
}

/// Changes prices until they balance the clusters well enough, or nothing helps. Returns whether they do.
pub fn search(
    rows: &impl PricedRows,
    range: &SizeRange,
    prices: &mut [f64],
    walls: &Walls,
    is_enough: impl Fn(&Balance) -> bool,
    damping: &mut f64,
    threads: usize,
) -> Result<bool> {
    let mut here = balance(rows, range, prices, threads)?;
    let (mut graph, mut values) = (None, 1);
    *damping = damping.min(MOST_DAMPING_AT_START);
    let mut stalled = 0;
    while !is_enough(&here) && *damping <= MOST_DAMPING && values < VALUES && stalled < MOST_STALLED {
        interrupt::check()?;
        let of_prices = match graph.take() {
            Some(graph) => graph,
            None => price_graph(rows, &here, prices, |label| 2 * here.residuals[label].abs() as usize + 8, threads)?,
        };
        // Clusters between their bounds keep the price 0.
        let is_free = |j: usize| prices[j] != 0.0 || here.residuals[j] != 0.0 || range.least[j] == range.most[j];
        let step = of_prices.solve(&here.residuals, is_free, *damping)?;
        let (first, is_at_wall) = along(prices, &step, 1.0, range, walls)?;
        let slopes = here.residuals.iter().zip(first.iter().zip(&*prices));
        let predicted: f64 = slopes.map(|(r, (now, before))| r * (now - before)).sum();
        let mut there = balance(rows, range, &first, threads)?;
        values += 1;
        let rises = there.value >= here.value + RISE * predicted && there.value.is_finite();
        // At a wall, the dual may rise while the imbalance grows.
        if predicted <= 0.0 || !rises || is_at_wall && there.imbalance > PROGRESS * here.imbalance {
            graph = Some(of_prices);
            *damping *= 10.0;
            continue;
        }
        let (mut best, mut length, mut was_at_wall) = (first, 1.0, is_at_wall);
        while !is_enough(&there) && !was_at_wall && values < VALUES {
            length *= LONGER;
            let (longer, is_at_wall) = along(prices, &step, length, range, walls)?;
            let farther = balance(rows, range, &longer, threads)?;
            values += 1;
            let rises = farther.value > there.value && farther.value.is_finite();
            if !rises || is_at_wall && farther.imbalance >= there.imbalance {
                break;
            }
            (best, there, was_at_wall) = (longer, farther, is_at_wall);
        }
        prices.copy_from_slice(&best);
        stalled = if (there.imbalance / here.imbalance - 1.0).abs() < STALLED { stalled + 1 } else { 0 };
        here = there;
        *damping = (0.1 * *damping).max(LEAST_DAMPING);
    }
    Ok(is_enough(&here))
}

impl Balance {
    /// How far the sizes are from the bounds, relative to the usual error of those of a sample with so many rows.
    pub fn misfit(&self) -> f64 {
        (self.residuals.iter().map(|rows| rows * rows).sum::<f64>() / self.rows.len() as f64).sqrt()
    }
}

/// What these prices do.
pub fn balance(all: &impl PricedRows, range: &SizeRange, prices: &[f64], threads: usize) -> Result<Balance> {
    let (k, n) = (prices.len(), all.rows());
    let mut rows = memory::filled(n, Margin::default(), WHAT)?;
    let count = workers_for(threads, n.div_ceil(TASK));
    let worker = |_| Ok((memory::zeroed::<i64>(k, WHAT)?, 0.0, Ok(())));
    let mut workers = memory::try_collected((0..count).map(worker), WHAT)?;
    for_each_task(&mut workers, rows.chunks_mut(TASK).enumerate(), |(sizes, value, result), (task, rows)| {
        match all.margins(prices, task * TASK, rows) {
            Ok(sum) => *value += sum,
            Err(error) => *result = Err(error),
        }
        rows.iter().for_each(|row| sizes[row.own as usize] += 1);
    })?;
    let (mut sizes, mut value) = (memory::zeroed::<i64>(k, WHAT)?, 0.0);
    for (own, part, result) in workers {
        result?;
        sizes.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        value += part;
    }
    let limits = prices.iter().zip(range.least.iter().zip(&range.most));
    let bound = limits.map(|(price, (least, most))| price * if *price > 0.0 { *most } else { *least } as f64);
    value -= bound.sum::<f64>();
    let residual = |j: usize| {
        let size = sizes[j];
        let wanted = match prices[j] {
            price if price > 0.0 => range.most[j],
            price if price < 0.0 => range.least[j],
            _ => size.clamp(range.least[j], range.most[j]),
        };
        (size - wanted) as f64
    };
    let residuals = memory::collected((0..k).map(residual), WHAT)?;
    let imbalance = residuals.iter().map(|residual| residual.abs()).sum();
    Ok(Balance { value, residuals, sizes, imbalance, rows })
}

/// The graph of clusters. `wanted`: how many rows of a cluster, of least margin, make its edges.
pub fn price_graph(
    all: &impl PricedRows,
    balance: &Balance,
    prices: &[f64],
    wanted: impl Fn(usize) -> usize,
    threads: usize,
) -> Result<PriceGraph> {
    let k = prices.len();
    // The rows of each cluster, side by side: their margins and second clusters.
    let mut ends = memory::zeroed::<usize>(k + 1, WHAT)?;
    balance.rows.iter().for_each(|row| ends[row.own as usize + 1] += 1);
    (0..k).for_each(|j| ends[j + 1] += ends[j]);
    let mut next = memory::copied(&ends, WHAT)?;
    let mut rows = memory::filled(balance.rows.len(), (0.0, 0u32), WHAT)?;
    for &Margin { own, second, margin } in &balance.rows {
        rows[next[own as usize]] = (margin, second);
        next[own as usize] += 1;
    }
    let mut edges: Vec<(u32, u32, f64)> = Vec::new();
    let mut windows = memory::zeroed::<f64>(k, WHAT)?;
    for label in 0..k {
        let rows = &mut rows[ends[label]..ends[label + 1]];
        if let Some(last) = wanted(label).min(rows.len()).checked_sub(1) {
            windows[label] = rows.select_nth_unstable_by(last, |a, b| a.0.total_cmp(&b.0)).1.0.min(f64::MAX);
        }
    }
    // Windows of equal rows are empty. They must not outweigh all others.
    let usual = windows.iter().sum::<f64>() / k as f64;
    windows.iter_mut().for_each(|window| *window = window.max(EMPTY_WINDOW * usual).max(LEAST_WINDOW));
    for label in 0..k {
        let rows = &rows[ends[label]..ends[label + 1]];
        for &(margin, second) in rows.iter().take(wanted(label)).filter(|(margin, _)| margin.is_finite()) {
            debug_assert!(margin <= windows[label]);
            memory::push(&mut edges, edge(label as u32, second, windows[label]), WHAT)?;
        }
    }
    if k <= MOST_IN_PAIRS
        && let Some(nearest) = all.nearest_rows(prices, threads)?
    {
        add_nearest_rows(nearest, &windows, &mut edges)?;
    }
    PriceGraph::new(edges, k)
}

/// An edge of the graph: a row at this margin. Both clusters of a pair estimate the weight from their own rows, so each counts
/// half.
fn edge(a: u32, b: u32, margin: f64) -> (u32, u32, f64) {
    (a.min(b), a.max(b), 0.5 / margin.min(f64::MAX))
}

/// Adds the pairs of clusters that have no edge: from the nearest row, at least as far as the window of its cluster.
fn add_nearest_rows(mut nearest: Vec<f64>, windows: &[f64], edges: &mut Vec<(u32, u32, f64)>) -> Result<()> {
    let k = windows.len();
    for &(a, b, _) in &*edges {
        nearest[a as usize * k + b as usize] = f64::INFINITY;
        nearest[b as usize * k + a as usize] = f64::INFINITY;
    }
    (0..k).for_each(|j| nearest[j * k + j] = f64::INFINITY);
    let mut near = memory::with_room(k, WHAT)?;
    for (label, row) in (0u32..).zip(nearest.chunks_exact(k)) {
        near.clear();
        near.extend((0u32..).zip(row).filter(|(_, margin)| margin.is_finite()).map(|(j, margin)| (*margin, j)));
        let most = (NEAREST_ROWS / k).min(near.len());
        if most < near.len() {
            near.select_nth_unstable_by(most, |a, b| a.0.total_cmp(&b.0));
        }
        for &(margin, j) in &near[..most] {
            memory::push(edges, edge(label, j, margin.max(windows[label as usize])), WHAT)?;
        }
    }
    Ok(())
}

/// Prices after a step of this length, and whether walls stopped them.
fn along(prices: &[f64], step: &[f64], length: f64, range: &SizeRange, walls: &Walls) -> Result<(Vec<f64>, bool)> {
    let moved = prices.iter().zip(step).enumerate().map(|(j, (price, step))| {
        let moved = price + length * step;
        // A price between the bounds of a cluster is 0.
        if range.least[j] < range.most[j] && moved * price < 0.0 { 0.0 } else { moved }
    });
    let mut moved = memory::collected(moved, WHAT)?;
    let is_at_wall = walls.keep(prices, &mut moved);
    Ok((moved, is_at_wall))
}
