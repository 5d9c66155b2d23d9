//! How far the prices of a pass may move before its lists may miss a cluster.
//!
//! A row that is nearest to cluster a (with prices) lists b if b is at most `W(a, b)` dearer. If b is not listed, b cannot become
//! the label of the row until the price of a has risen by more than `W(a, b)` against that of b. Widths are multiples of the median margin of each pair of clusters,
//! from a sample: distant clusters have few rows between them, so their prices are found less precisely, and a wide band costs
//! little.

use super::transport::{ListedCosts, Solution};
use crate::backend::priced::Widths;
use crate::base::error::Result;
use crate::base::memory;

/// What errors call the memory of this file.
const WHAT: &str = "the margins between clusters of bounded size";
/// For more clusters, a pair of clusters has the sum of their margins.
pub const MOST_PAIRS: usize = 2_048;
/// The least margin of a pair, as a share of the usual one.
const LEAST_MARGIN: f64 = 0.1;
/// No limit.
pub const EVERYTHING: f64 = 1e300;

/// The same width for all.
pub fn uniform(k: usize, width: f64) -> Result<Widths> {
    Ok(Widths { pairs: Vec::new(), own: memory::filled(k, 0.5 * width, WHAT)? })
}

/// Multiples of widths.
pub fn multiples(widths: &Widths, factor: f64) -> Result<Widths> {
    let scaled = |widths: &[f64]| memory::collected(widths.iter().map(|width| width * factor), WHAT);
    Ok(Widths { pairs: scaled(&widths.pairs)?, own: scaled(&widths.own)? })
}

/// The median margins of the rows of these lists.
pub fn margins<C: ListedCosts>(costs: &C, prices: &[i128], unit: f64) -> Result<Widths> {
    let k = prices.len();
    let mut rows = memory::filled(k, Vec::new(), WHAT)?;
    for row in 0..costs.rows() {
        let clusters = costs.clusters(row);
        let total = |place: &usize| costs.cost(row, *place) + prices[clusters[*place] as usize];
        let Some(place) = (0..clusters.len()).min_by_key(total) else { continue };
        memory::push(&mut rows[clusters[place] as usize], (row, total(&place)), WHAT)?;
    }
    let in_pairs = k <= MOST_PAIRS;
    let mut widths = Widths { pairs: memory::zeroed(if in_pairs { k * k } else { 0 }, WHAT)?, own: memory::zeroed(k, WHAT)? };
    let mut margins = vec![Vec::new(); k];
    let mut nearest: Vec<f64> = Vec::new();
    for (a, rows) in rows.iter().enumerate() {
        margins.iter_mut().for_each(Vec::clear);
        nearest.clear();
        for &(row, least) in rows {
            let clusters = costs.clusters(row);
            let total = |place: usize| costs.cost(row, place) + prices[clusters[place] as usize];
            let mut second = f64::INFINITY;
            for (place, &b) in clusters.iter().enumerate().filter(|(_, b)| **b as usize != a) {
                let margin = (total(place) - least) as f64 * unit;
                second = second.min(margin);
                memory::push(&mut margins[b as usize], margin, WHAT)?;
            }
            memory::push(&mut nearest, second, WHAT)?;
        }
        widths.own[a] = middle(&mut nearest);
        if in_pairs {
            for (b, margins) in margins.iter_mut().enumerate() {
                widths.pairs[a * k + b] = middle(margins);
            }
        }
    }
    // A cluster without rows in the sample has the usual margin.
    let mut known = memory::collected(widths.own.iter().copied().filter(|width| width.is_finite()), WHAT)?;
    let usual = middle(&mut known).min(EVERYTHING);
    let all = widths.own.iter_mut().chain(&mut widths.pairs);
    // A few rows may lie between two clusters exactly.
    all.for_each(|width| *width = if width.is_finite() { width.max(LEAST_MARGIN * usual) } else { usual });
    Ok(widths)
}

/// The median, or no limit where there is none.
fn middle(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() { f64::INFINITY } else { *values.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

/// Whether prices that moved so far have stayed within the widths. `least`: what roundings take off a width.
pub fn cover(widths: &Widths, moves: &[f64], least: f64) -> bool {
    let k = moves.len();
    if widths.pairs.is_empty() {
        // A number that all have in common does not count.
        let from = (0..k).map(|j| moves[j] - widths.own[j]).fold(f64::NEG_INFINITY, f64::max);
        let to = (0..k).map(|j| moves[j] + widths.own[j]).fold(f64::INFINITY, f64::min);
        let all = moves.iter().fold(0.0f64, |most, moved| most.max(moved.abs()));
        return from - to + 2.0 * least + all * 2f64.powi(-30) <= 0.0;
    }
    // Moves that all have in common are rounded, too.
    let least = least + moves.iter().fold(0.0f64, |most, moved| most.max(moved.abs())) * 2f64.powi(-50);
    let is_within = |moved: f64, width: f64| moved * (1.0 + 2f64.powi(-30)) + least <= width;
    let rows = widths.pairs.chunks_exact(k).zip(moves).enumerate();
    rows.flat_map(|(a, (row, of_a))| {
        row.iter().zip(moves).enumerate().filter(move |(b, _)| a != *b).map(move |(_, pair)| (of_a, pair))
    })
    .all(|(of_a, (width, of_b))| is_within(of_a - of_b, *width))
}

/// The largest share of these moves, up to 1, that stays within the widths.
pub fn share(widths: &Widths, moves: &[f64], least: f64) -> Result<f64> {
    let k = moves.len();
    let of_pair = |moved: f64, width: f64| if moved > 0.0 { 0.9 * (width - least).max(0.0) / moved } else { 1.0 };
    if widths.pairs.is_empty() {
        let mut sorted = memory::copied(moves, WHAT)?;
        let common = middle(&mut sorted);
        return Ok((0..k).map(|j| of_pair((moves[j] - common).abs(), widths.own[j])).fold(1.0, f64::min));
    }
    let pairs = widths.pairs.chunks_exact(k).enumerate();
    let pairs =
        pairs.flat_map(|(a, row)| row.iter().enumerate().filter(move |(b, _)| a != *b).map(move |(b, width)| (a, b, width)));
    Ok(pairs.map(|(a, b, width)| of_pair(moves[a] - moves[b], *width)).fold(1.0, f64::min))
}

/// Wider widths: of pairs whose prices moved too far, and from clusters that have too many rows, or give some to others, to those
/// that no path reaches.
pub fn wider(widths: &Widths, moves: &[f64], solution: &Solution, least: f64) -> Result<Widths> {
    let k = moves.len();
    let mut wider = Widths { pairs: memory::copied(&widths.pairs, WHAT)?, own: memory::copied(&widths.own, WHAT)? };
    if widths.pairs.is_empty() {
        let mut sorted = memory::copied(moves, WHAT)?;
        let common = middle(&mut sorted);
        for (j, width) in wider.own.iter_mut().enumerate() {
            let factor = if solution.missing > 0 { 2.0 } else { 1.0 };
            *width = (factor * *width).max(2.0 * (moves[j] - common).abs()).max(2.0 * least).min(EVERYTHING);
        }
        return Ok(wider);
    }
    for (a, row) in wider.pairs.chunks_exact_mut(k).enumerate() {
        for (b, width) in row.iter_mut().enumerate() {
            let is_cut = solution.missing > 0 && solution.reached[a] && !solution.reached[b];
            // Prices that left their widths were found from lists that miss rows. So how far they went says little.
            let is_short = solution.missing == 0 && moves[a] - moves[b] + least > 0.7 * *width;
            let factor = if is_cut || is_short { 3.0 } else { 1.0 };
            *width = (factor * *width).max(2.0 * least).min(EVERYTHING);
        }
    }
    Ok(wider)
}
