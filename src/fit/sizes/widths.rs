//! How far the prices of a pass may move before its lists may miss a cluster.
//!
//! A row that is nearest to cluster a (with prices) lists b if b is at most `W(a, b)` dearer. If b is not listed, b cannot become
//! the label of the row until the price of a has risen by more than `W(a, b)` against that of b: a wall. Within the walls, prices
//! are exact although most rows list one cluster.
//!
//! Prices that fit a sample differ from those of all rows, because the sizes in the sample have random errors. The graph of
//! clusters turns errors of sizes into errors of prices (`laplacian.rs`), and widths come from these. Between distant blobs the
//! graph gives too wide a width, because many rows lie behind the first rows of a blob. There, a width ends at one of the first
//! rows. Between neighbours the graph may give too narrow a width. There, a width is at least the margin of a few rows. Where
//! prices reached a wall, widths are wider in the next pass.

use super::laplacian::PriceGraph;
use super::newton::{self, Balance, Margin, PricedRows};
use super::random::normal;
use super::sample::Sample;
use super::transport::SizeRange;
use crate::backend::priced::{MOST_IN_PAIRS, Widths};
use crate::base::error::Result;
use crate::base::memory;

/// What errors call the memory of this file.
const WHAT: &str = "the margins between clusters of bounded size";
/// The least and the largest width, in usual margins: a few rows may lie between two clusters exactly.
const WIDTHS: [f32; 2] = [1e-2, 1e30];
/// Random errors of prices, and how many usual ones a width is.
const PROBES: usize = 12;
const ERRORS: f32 = 15.0;
/// The least error of sizes in a sample, in that of a small one.
const LEAST_ERROR: f64 = 0.5;
/// The rows of a sample at which a width ends, and those of two neighbours that it does not end before, in usual errors of sizes.
const FIRST_ROWS: f64 = 4.0;
const NEIGHBOURS: f64 = 0.5;
/// To find the first rows, a part of the sample is taken that has about so many of them.
const MOST_RANKS: f64 = 3.0;
/// A cluster keeps the price 0 if its size is so many usual errors from its bounds.
const NEAR_BOUND: f64 = 3.0;
/// With so many rows of a sample for each cluster, every so many blocks of a sample are looked at.
const ENOUGH_ROWS: usize = 512;
const STEP: usize = 4;
/// No limit.
pub const EVERYTHING: f64 = 1e300;
/// Paths go through so many near clusters of each cluster. Paths are shortened, and prices kept within walls, at most so often.
const NEAR_CLUSTERS: usize = 48;
const SWEEPS: usize = 10;
/// A price has moved to a wall if it moved by this share of the width. Then the width becomes so many times as wide.
const REACHED: f64 = 0.9;
const WIDER: f32 = 4.0;
/// A little less than 1: walls are that much nearer than widths, for roundings.
const NEARER: f64 = 1.0 - 1.0 / (1 << 16) as f64;

/// The same width for all.
pub fn uniform(k: usize, width: f64) -> Result<Widths> {
    Ok(Widths { unit: width, pairs: Vec::new(), own: memory::filled(k, 0.5, WHAT)? })
}

/// Widths around prices that fit a sample of `all_rows` rows, and their walls. `range_of`: of so many rows. `wider`: for each
/// cluster, a multiple of the usual widths.
pub fn around(
    sample: &Sample,
    range_of: impl Fn(usize) -> Result<SizeRange>,
    all_rows: u64,
    prices: &[f64],
    wider: &[f32],
    threads: usize,
) -> Result<(Widths, Walls)> {
    let (k, rows) = (prices.len(), sample.part(1).rows());
    let step = if rows / k < ENOUGH_ROWS { 1 } else { STEP };
    let part = sample.part(step);
    // The usual error of a size in the sample, in rows of this part. A sample of all rows has none, but its prices are rounded.
    let missing = (1.0 - rows as f64 / all_rows as f64).max(0.0).sqrt();
    let error = (rows as f64 / k as f64).sqrt() / step as f64 * missing.max(LEAST_ERROR);
    let range = range_of(part.rows())?;
    let balance = newton::balance(&part, &range, prices, threads)?;
    let usual = median(balance.rows.iter().map(|row| row.margin))?.filter(|usual| *usual > 0.0).unwrap_or(1.0);
    let graph = newton::price_graph(&part, &balance, prices, |_| error.ceil() as usize, threads)?;
    let is_free = |j: usize| {
        let room = (balance.sizes[j] - range.least[j]).min(range.most[j] - balance.sizes[j]) as f64;
        prices[j] != 0.0 || room < NEAR_BOUND * error
    };
    let errors = random_errors(&graph, is_free, error, usual, k)?;
    let length = |error: [f32; PROBES]| ERRORS * (error.iter().map(|x| x * x).sum::<f32>() / PROBES as f32).sqrt();
    // Prices of a sample are not better than its costs.
    let least = WIDTHS[0].max((part.rounding()? / usual) as f32).min(WIDTHS[1]);
    let bounded = |width: f32| if width.is_nan() { WIDTHS[1] } else { width.clamp(least, WIDTHS[1]) };
    let own = memory::collected(errors.iter().zip(wider).map(|(error, wider)| wider * bounded(length(*error))), WHAT)?;
    if k > MOST_IN_PAIRS {
        return Ok((Widths { unit: usual, pairs: Vec::new(), own }, Walls::default()));
    }
    let rank = FIRST_ROWS * error * step as f64;
    let ranked = sample.part(((rank / MOST_RANKS).ceil() as usize).max(1));
    let mut pairs = match ranked.rows() >= k {
        true => ranked.margins_of_rank(prices, (rank / (rank / MOST_RANKS).ceil().max(1.0)).ceil() as usize, threads)?,
        false => memory::filled(k * k, f32::INFINITY, WHAT)?,
    };
    let to_usual = (sample.unit() / usual) as f32;
    for (a, row) in pairs.chunks_exact_mut(k).enumerate() {
        for (b, width) in row.iter_mut().enumerate() {
            let error = std::array::from_fn(|i| errors[a][i] - errors[b][i]);
            *width = if a == b { 0.0 } else { bounded(length(error).min(*width * to_usual)) };
        }
    }
    reach_neighbours(&mut pairs, &balance, k, (NEIGHBOURS * error).ceil() as usize, usual)?;
    for (row, of_a) in pairs.chunks_exact_mut(k).zip(wider) {
        row.iter_mut().zip(wider).for_each(|(width, of_b)| *width *= of_a.max(*of_b));
    }
    let direct = memory::copied(&pairs, WHAT)?;
    shorten(&mut pairs, k)?;
    let widths = Widths { unit: usual, pairs, own };
    let walls = Walls::new(prices, &direct, &widths)?;
    Ok((widths, walls))
}

/// Random errors of prices in units of the usual margin, from random errors of the sizes of a sample: some for each cluster.
fn random_errors(
    graph: &PriceGraph,
    is_free: impl Fn(usize) -> bool,
    error: f64,
    usual: f64,
    k: usize,
) -> Result<Vec<[f32; PROBES]>> {
    /// Only keeps the system regular.
    const REGULARISATION: f64 = 1e-6;
    let factor = if k <= MOST_IN_PAIRS { Some(graph.factored(&is_free, REGULARISATION)?) } else { None };
    let mut errors = memory::filled(k, [0.0f32; PROBES], WHAT)?;
    let mut random = 0u64;
    for probe in 0..PROBES {
        let mut moves = memory::collected((0..k).map(|_| error * normal(&mut random)), WHAT)?;
        let mean = moves.iter().sum::<f64>() / k as f64;
        moves.iter_mut().enumerate().for_each(|(j, rows)| *rows = if is_free(j) { *rows - mean } else { 0.0 });
        match &factor {
            Some(factor) => factor.solve(&mut moves),
            None => moves = graph.solve(&moves, &is_free, REGULARISATION)?,
        }
        errors.iter_mut().zip(moves).for_each(|(errors, moved)| errors[probe] = (moved / usual) as f32);
    }
    Ok(errors)
}

/// Makes the width of each two neighbours at least the margin of the `rank`-th row between them.
fn reach_neighbours(pairs: &mut [f32], balance: &Balance, k: usize, rank: usize, usual: f64) -> Result<()> {
    let key = |row: &Margin| row.own as usize * k + row.second as usize;
    let finite = balance.rows.iter().filter(|row| row.margin.is_finite());
    let mut rows = memory::collected(finite.map(|row| (key(row), row.margin)), WHAT)?;
    rows.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    for rows in rows.chunk_by(|one, other| one.0 == other.0) {
        if let Some((pair, margin)) = rows.get(rank.max(1) - 1) {
            pairs[*pair] = pairs[*pair].max((margin / usual) as f32);
        }
    }
    Ok(())
}

/// The median of finite values, if there is one.
fn median(values: impl Iterator<Item = f64>) -> Result<Option<f64>> {
    let mut values = memory::collected(values.filter(|value| value.is_finite()), WHAT)?;
    let middle = values.len() / 2;
    Ok((!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1))
}

/// Makes each width at most the sum of two others, through near clusters.
fn shorten(pairs: &mut [f32], k: usize) -> Result<()> {
    let mut order = memory::collected(0..k, WHAT)?;
    let mut row = memory::zeroed::<f32>(k, WHAT)?;
    for _ in 0..SWEEPS {
        let mut is_shorter = false;
        for a in 0..k {
            row.copy_from_slice(&pairs[a * k..][..k]);
            let near = NEAR_CLUSTERS.min(k - 1);
            order.select_nth_unstable_by(near, |&one, &other| row[one].total_cmp(&row[other]));
            for &via in &order[..=near] {
                let first = row[via];
                for (width, second) in row.iter_mut().zip(&pairs[via * k..][..k]) {
                    *width = width.min(first + second);
                }
            }
            is_shorter |= row != pairs[a * k..][..k];
            pairs[a * k..][..k].copy_from_slice(&row);
        }
        if !is_shorter {
            break;
        }
    }
    Ok(())
}

/// Between which prices the lists of a pass are complete. Empty: no limits.
#[derive(Debug, Default)]
pub struct Walls {
    /// The prices of the pass.
    from: Vec<f64>,
    /// For each cluster, other clusters, and by how much its price may rise against theirs. A pair is left out where walls
    /// through other clusters are nearer.
    arcs: Vec<(u32, f64)>,
    ends: Vec<usize>,
}

impl Walls {
    /// `direct`: the widths before paths made them shorter, `(k, k)`.
    fn new(prices: &[f64], direct: &[f32], widths: &Widths) -> Result<Self> {
        let k = prices.len();
        let mut walls = Self { from: memory::copied(prices, WHAT)?, arcs: Vec::new(), ends: memory::with_room(k, WHAT)? };
        for (direct, pairs) in direct.chunks_exact(k).zip(widths.pairs.chunks_exact(k)) {
            for (b, (direct, width)) in direct.iter().zip(pairs).enumerate() {
                if direct == width && *width > 0.0 {
                    memory::push(&mut walls.arcs, (b as u32, widths.unit * NEARER * f64::from(*width)), WHAT)?;
                }
            }
            walls.ends.push(walls.arcs.len());
        }
        Ok(walls)
    }

    /// Whether there are limits.
    pub fn exist(&self) -> bool {
        !self.ends.is_empty()
    }

    /// The walls of a cluster: other clusters, and by how much its price may rise against theirs.
    pub fn of(&self, cluster: usize) -> &[(u32, f64)] {
        let start = if cluster == 0 { 0 } else { self.ends.get(cluster - 1).copied().unwrap_or(0) };
        &self.arcs[start..self.ends.get(cluster).copied().unwrap_or(0)]
    }

    /// Whether a price has moved to a wall.
    pub fn are_reached(&self, prices: &[f64]) -> Result<bool> {
        Ok(self.reached(prices)?.contains(&true))
    }

    /// Makes the widths of those clusters wider whose prices have moved to a wall.
    pub fn widen_reached(&self, prices: &[f64], wider: &mut [f32]) -> Result<()> {
        let reached = self.reached(prices)?;
        let none_reached = !reached.contains(&true);
        let each = wider.iter_mut().zip(reached).filter(|(_, reached)| none_reached || *reached);
        each.for_each(|(wider, _)| *wider = (WIDER * *wider).min(WIDTHS[1]));
        Ok(())
    }

    /// The clusters whose prices have moved to a wall: of the two clusters of a wall the one that moved more.
    fn reached(&self, prices: &[f64]) -> Result<Vec<bool>> {
        let moved = memory::collected(prices.iter().zip(&self.from).map(|(now, before)| now - before), WHAT)?;
        let common = median(moved.iter().copied())?.unwrap_or(0.0);
        let mut reached = memory::filled(prices.len(), false, WHAT)?;
        for a in 0..self.ends.len() {
            for &(b, width) in self.of(a) {
                let b = b as usize;
                if moved[a] - moved[b] >= REACHED * width {
                    reached[if (moved[a] - common).abs() > (moved[b] - common).abs() { a } else { b }] = true;
                }
            }
        }
        Ok(reached)
    }

    /// Takes back price moves since `before` that passed walls, at most `SWEEPS` times. Returns whether any price passed a wall.
    pub fn keep(&self, before: &[f64], prices: &mut [f64]) -> bool {
        let mut is_changed = false;
        for _ in 0..SWEEPS {
            let mut is_past = false;
            for a in 0..self.ends.len() {
                for &(b, width) in self.of(a) {
                    let b = b as usize;
                    let past = (prices[a] - self.from[a]) - (prices[b] - self.from[b]) - width;
                    if past > 0.0 {
                        let of_a = past.min((prices[a] - before[a]).max(0.0));
                        prices[a] -= of_a;
                        prices[b] += (past - of_a).min((before[b] - prices[b]).max(0.0));
                        is_past = true;
                    }
                }
            }
            is_changed |= is_past;
            if !is_past {
                break;
            }
        }
        is_changed
    }
}

/// Whether prices that moved so far have stayed within the widths. `rounding`: what roundings take off a width.
pub fn cover(widths: &Widths, moves: &[f64], rounding: f64) -> bool {
    let k = moves.len();
    if widths.pairs.is_empty() {
        // A number that all have in common does not count.
        let own = |j: usize| widths.unit * f64::from(widths.own[j]);
        let from = (0..k).map(|j| moves[j] - own(j)).fold(f64::NEG_INFINITY, f64::max);
        let to = (0..k).map(|j| moves[j] + own(j)).fold(f64::INFINITY, f64::min);
        let all = moves.iter().fold(0.0f64, |most, moved| most.max(moved.abs()));
        return from - to + 2.0 * rounding + all * 2f64.powi(-30) <= 0.0;
    }
    // Moves that all have in common are rounded, too.
    let rounding = rounding + moves.iter().fold(0.0f64, |most, moved| most.max(moved.abs())) * 2f64.powi(-50);
    let is_within = |moved: f64, width: f32| moved * (1.0 + 2f64.powi(-30)) + rounding <= widths.unit * f64::from(width);
    let rows = widths.pairs.chunks_exact(k).zip(moves).enumerate();
    rows.flat_map(|(a, (row, of_a))| {
        row.iter().zip(moves).enumerate().filter(move |(b, _)| a != *b).map(move |(_, pair)| (of_a, pair))
    })
    .all(|(of_a, (width, of_b))| is_within(of_a - of_b, *width))
}
