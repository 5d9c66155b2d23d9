//! Prices that almost balance the clusters: a damped Newton method on the dual of the transport.
//!
//! ```text
//! sizes  = rows of each cluster by least cost + price;  residual = how many rows are too many
//! for each cluster: the margin within which about as many of its rows are as have to leave, and their second clusters
//! a price difference of one moves (rows within the margin) / margin rows between two clusters: a weighted graph
//! step   = the solution of the graph's Laplacian for the residuals                           conjugate gradients
//! damp the step until the dual rises enough (Levenberg and Marquardt)
//! ```
//! The dual is concave and piecewise linear, `sum min(cost + price) - sum (most price+ - least price-)`. Prices only save time
//! (`transport.rs` finds the exact ones), so this is float64.

use super::transport::{ListedCosts, SizeRange};
use crate::base::error::Result;
use crate::base::interrupt;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};

/// What errors call the memory of this file.
const WHAT: &str = "the prices of clusters of bounded size";
/// Most steps.
const STEPS: u32 = 40;
/// The first damping, relative to the diagonal, and the largest.
const DAMPING: [f64; 2] = [1e-4, 1e4];
/// The share of the predicted rise that a step must have.
const RISE: f64 = 1e-2;
/// Rows of a task.
const TASK: usize = 1 << 13;
/// Most iterations of conjugate gradients, and the residual that ends them, relative to the first.
const SOLVING: (u32, f64) = (60, 1e-3);

/// The lists of all rows in float64.
struct PriceLists {
    ends: Vec<usize>,
    clusters: Vec<u32>,
    costs: Vec<f64>,
}

/// What prices do.
struct Balance {
    /// The value of the dual.
    value: f64,
    /// For each cluster, the rows that are too many.
    residuals: Vec<f64>,
    /// The sum of their magnitudes.
    off: f64,
    /// For each row: its cluster, the second one, and the margin between both.
    rows: Vec<(u32, u32, f64)>,
}

/// Changes prices so that few rows are in the wrong cluster, each price by at most its cap. `unit`: of the integers. Returns how
/// many rows still are in the wrong cluster.
pub fn balance<C: ListedCosts>(
    costs: &C,
    range: &SizeRange,
    integers: &mut [i128],
    unit: f64,
    caps: &[f64],
    threads: usize,
) -> Result<f64> {
    let mut lists = PriceLists { ends: memory::with_room(costs.rows(), WHAT)?, clusters: Vec::new(), costs: Vec::new() };
    for row in 0..costs.rows() {
        let clusters = costs.clusters(row);
        memory::extend(&mut lists.clusters, clusters, WHAT)?;
        memory::reserve_more(&mut lists.costs, clusters.len(), WHAT)?;
        lists.costs.extend((0..clusters.len()).map(|place| costs.about(row, place, unit)));
        lists.ends.push(lists.clusters.len());
    }
    let start = memory::collected(integers.iter().map(|price| *price as f64 * unit), WHAT)?;
    let mut prices = memory::copied(&start, WHAT)?;
    let mut here = lists.balance(&prices, range, threads)?;
    let enough = prices.len() as f64 / 8.0;
    let mut damping = DAMPING[0];
    for _ in 0..STEPS {
        if here.off <= enough || damping > DAMPING[1] {
            break;
        }
        interrupt::check()?;
        let step = newton_step(&here, &prices, range, damping)?;
        let moved = prices.iter().zip(&step).enumerate().map(|(j, (price, step))| {
            let moved = (price + step).clamp(start[j] - caps[j], start[j] + caps[j]);
            // A price between the bounds of a cluster is 0.
            if range.least[j] < range.most[j] && moved * price < 0.0 { 0.0 } else { moved }
        });
        let moved = memory::collected(moved, WHAT)?;
        let predicted: f64 =
            here.residuals.iter().zip(moved.iter().zip(&prices)).map(|(r, (now, before))| r * (now - before)).sum();
        let there = lists.balance(&moved, range, threads)?;
        if predicted > 0.0 && there.value >= here.value + RISE * predicted {
            (prices, here) = (moved, there);
            damping = (0.1 * damping).max(1e-8);
        } else {
            damping *= 10.0;
        }
    }
    for ((integer, price), start) in integers.iter_mut().zip(&prices).zip(&start) {
        // A price that did not change keeps all of its bits.
        if price != start {
            *integer = if *price == 0.0 { 0 } else { (price / unit) as i128 };
        }
    }
    Ok(here.off)
}

impl PriceLists {
    fn balance(&self, prices: &[f64], range: &SizeRange, threads: usize) -> Result<Balance> {
        let (k, n) = (prices.len(), self.ends.len());
        let mut rows = memory::filled(n, (0, 0, 0.0), WHAT)?;
        let count = workers_for(threads, n.div_ceil(TASK));
        let worker = |_| Ok((memory::zeroed::<i64>(k, WHAT)?, 0.0));
        let mut workers = memory::try_collected((0..count).map(worker), WHAT)?;
        for_each_task(&mut workers, rows.chunks_mut(TASK).enumerate(), |(sizes, value), (task, rows)| {
            let first = task * TASK;
            let mut start = if first == 0 { 0 } else { self.ends[first - 1] };
            for (row, &end) in rows.iter_mut().zip(&self.ends[first..]) {
                let (mut best, mut second) = ((f64::INFINITY, 0), (f64::INFINITY, 0));
                for (cost, &j) in self.costs[start..end].iter().zip(&self.clusters[start..end]) {
                    let total = (cost + prices[j as usize], j);
                    if total.0 < best.0 {
                        (second, best) = (best, total);
                    } else if total.0 < second.0 {
                        second = total;
                    }
                }
                sizes[best.1 as usize] += 1;
                *value += best.0;
                *row = (best.1, second.1, second.0 - best.0);
                start = end;
            }
        })?;
        let (mut sizes, mut value) = (memory::zeroed::<i64>(k, WHAT)?, 0.0);
        for (own, part) in &workers {
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
        let residuals = memory::collected((0..prices.len()).map(residual), WHAT)?;
        let off = residuals.iter().map(|residual| residual.abs()).sum();
        Ok(Balance { value, residuals, off, rows })
    }
}

/// The change of prices that would balance the clusters if rows were spread evenly.
fn newton_step(balance: &Balance, prices: &[f64], range: &SizeRange, damping: f64) -> Result<Vec<f64>> {
    let k = prices.len();
    let mut of_cluster = memory::filled(k, Vec::new(), WHAT)?;
    for &(label, second, margin) in balance.rows.iter().filter(|(.., margin)| margin.is_finite()) {
        memory::push(&mut of_cluster[label as usize], (margin, second), WHAT)?;
    }
    // The weights of pairs of clusters, from both sides.
    let mut edges: Vec<(u32, u32, f64)> = Vec::new();
    for (label, rows) in of_cluster.iter_mut().enumerate() {
        let wanted = 2 * balance.residuals[label].abs() as usize + 8;
        if rows.is_empty() {
            continue;
        }
        let last = wanted.min(rows.len()) - 1;
        let margin = rows.select_nth_unstable_by(last, |a, b| a.0.total_cmp(&b.0)).1.0;
        for &(_, second) in &rows[..=last] {
            let pair = (second.min(label as u32), second.max(label as u32));
            memory::push(&mut edges, (pair.0, pair.1, 0.5 / margin.max(f64::MIN_POSITIVE)), WHAT)?;
        }
    }
    edges.sort_unstable_by_key(|(a, b, _)| (*a, *b));
    edges.dedup_by(|other, kept| {
        let same = (other.0, other.1) == (kept.0, kept.1);
        if same {
            kept.2 += other.2;
        }
        same
    });
    // Clusters between their bounds keep the price 0.
    let is_free = |j: usize| prices[j] != 0.0 || balance.residuals[j] != 0.0 || range.least[j] == range.most[j];
    let mut diagonal = memory::zeroed::<f64>(k, WHAT)?;
    for &(a, b, weight) in &edges {
        diagonal[a as usize] += weight;
        diagonal[b as usize] += weight;
    }
    let usual = diagonal.iter().sum::<f64>() / k as f64;
    // Damping also keeps the system regular where the prices of many clusters may move together.
    diagonal.iter_mut().for_each(|entry| *entry = (1.0 + damping) * *entry + 0.01 * damping * usual + f64::MIN_POSITIVE);
    let product = |x: &[f64], out: &mut [f64]| {
        out.iter_mut().zip(x).zip(&diagonal).for_each(|((out, x), entry)| *out = entry * x);
        for &(a, b, weight) in &edges {
            out[a as usize] -= weight * x[b as usize];
            out[b as usize] -= weight * x[a as usize];
        }
        (0..k).filter(|&j| !is_free(j)).for_each(|j| out[j] = 0.0);
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut x = memory::zeroed::<f64>(k, WHAT)?;
    let mut rest = memory::collected((0..k).map(|j| if is_free(j) { balance.residuals[j] } else { 0.0 }), WHAT)?;
    let eased =
        |rest: &[f64]| memory::collected(rest.iter().zip(&diagonal).map(|(r, d)| if *d > 0.0 { r / d } else { 0.0 }), WHAT);
    let mut direction = eased(&rest)?;
    let mut image = memory::zeroed::<f64>(k, WHAT)?;
    let mut size = dot(&rest, &direction);
    let first = size;
    for _ in 0..SOLVING.0 {
        if size <= SOLVING.1 * SOLVING.1 * first || size <= 0.0 {
            break;
        }
        product(&direction, &mut image);
        let share = size / dot(&direction, &image);
        if !share.is_finite() {
            break;
        }
        x.iter_mut().zip(&direction).for_each(|(x, d)| *x += share * d);
        rest.iter_mut().zip(&image).for_each(|(r, i)| *r -= share * i);
        let next = eased(&rest)?;
        let now = dot(&rest, &next);
        direction.iter_mut().zip(&next).for_each(|(d, n)| *d = n + now / size * *d);
        size = now;
    }
    Ok(x)
}
