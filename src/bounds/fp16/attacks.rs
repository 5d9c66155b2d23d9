//! Attacks on both bounds: the label must be in reach of every threshold.

use super::adding::{self, Way};
use super::*;
use crate::base::random::Random;
use crate::exact::fixed::frexp;
use crate::exact::reference;

/// The sum of twelve numbers below 1, less its mean.
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
}

/// The nearest float16, or 0 for what is too large.
fn half(x: f64) -> f64 {
    let exponent = if x == 0.0 { -14 } else { (frexp(x).1 - 1).max(-14) };
    let quantum = 2f64.powi(exponent - 10);
    let rounded = (x / quantum).round_ties_even() * quantum;
    if rounded.abs() < 65_505.0 { rounded } else { 0.0 }
}

fn square(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum()
}

struct Copy {
    high: Vec<f64>,
    low: Vec<f64>,
    square: f64,
    norms: Norms,
}

/// The copies of a vector. Without a second one, it is 0.
fn copy(exact: &[f64], two: bool) -> Copy {
    let high: Vec<f64> = exact.iter().map(|&v| half(v)).collect();
    let low: Vec<f64> = exact.iter().zip(&high).map(|(&v, h)| if two { half(v - h) } else { 0.0 }).collect();
    let rest: Vec<f64> = (0..exact.len()).map(|f| exact[f] - high[f] - low[f]).collect();
    let norms = Norms { high: square(&high).sqrt(), low: square(&low).sqrt(), rest: square(&rest).sqrt() };
    Copy { square: square(exact), norms, high, low }
}

/// The score of two copies, as the kernels add it up.
fn score(way: Way, lowered: f64, x: &Copy, c: &Copy, two: bool) -> f64 {
    let minus = |v: &[f64]| -> Vec<f64> { v.iter().map(|v| -v).collect() };
    if !two {
        return way.sum(lowered, &x.high, &minus(&c.high));
    }
    let parts = |parts: [&[f64]; 3]| -> Vec<f64> {
        let mut all = Vec::new();
        for part in parts {
            all.extend_from_slice(part);
            all.resize(all.len().next_multiple_of(64), 0.0);
        }
        all
    };
    lowered + way.sum(0.0, &parts([&x.low, &x.high, &x.high]), &minus(&parts([&c.high, &c.low, &c.high])))
}

/// One row with centroids of one kind, and how scores are made of them.
struct ScoreCase {
    x: Vec<f32>,
    centroids: Vec<Vec<f32>>,
    centre: Vec<f32>,
}

impl ScoreCase {
    fn new(case: usize, random: &mut Random) -> Self {
        let d = [1, 2, 15, 16, 17, 64, 130, 408][case % 8];
        let kind = case / 8 % 8;
        let centre: Vec<f32> = (0..d).map(|_| (normal(random) * if kind == 1 { 1e4 } else { 1.0 }) as f32).collect();
        let around = |random: &mut Random, from: &[f32], spread: f64| -> Vec<f32> {
            from.iter().map(|&m| m + (spread * normal(random)) as f32).collect()
        };
        let spread = [1.0, 0.01, 1.0, 1.0, 1e-20, 1e15, 1.0, 1e-5][kind];
        // All of them near one point far from the centre, as in a cluster of many.
        let from = if kind == 6 { around(random, &centre, 20.0) } else { centre.clone() };
        let mut centroids: Vec<Vec<f32>> = (0..4).map(|_| around(random, &from, spread)).collect();
        if kind == 2 {
            centroids[3] = around(random, &centre, 1e6);
        }
        if kind == 7 {
            // Far from the row, and nearly equally far: half squares are all that a sum holds.
            for c in &mut centroids {
                let direction: Vec<f64> = (0..d).map(|_| normal(random)).collect();
                let length = square(&direction).sqrt() / (1.0 + 2f64.powi(-22) * normal(random));
                *c = direction.iter().zip(&centre).map(|(v, &m)| (v / length + f64::from(m)) as f32).collect();
            }
        }
        let x = match kind {
            // Between two centroids, or next to that.
            3 => {
                let moved = (random.unit() * d as f64) as usize;
                let middle = |f: usize| ((f64::from(centroids[0][f]) + f64::from(centroids[1][f])) / 2.0) as f32;
                (0..d).map(|f| if f == moved { middle(f).next_up() } else { middle(f) }).collect()
            }
            _ => around(random, &from, spread),
        };
        Self { x, centroids, centre }
    }

    fn exact(&self, v: &[f32], s: f64) -> Vec<f64> {
        v.iter().zip(&self.centre).map(|(&v, &m)| (f64::from(v) - f64::from(m)) * s).collect()
    }

    /// The scores with their slacks, and the row's part of the bound.
    fn scores(&self, bound: &Fp16Bound, way: Way, balance: f64, two: bool) -> (Vec<(f64, f64)>, f64) {
        // Both scales bring the largest norm to between 2^14 and 2^15.
        let scale = |largest: f64| if largest > 0.0 { 2f64.powi(15 - frexp(largest).1) } else { 1.0 };
        let norm = |v: &[f32]| square(&self.exact(v, 1.0)).sqrt();
        let s_x = scale(norm(&self.x));
        let s_c = scale(self.centroids.iter().map(|c| norm(c)).fold(0.0, f64::max)).min(s_x);
        let rounded: Vec<f64> = self.x.iter().zip(&self.centre).map(|(&v, &m)| f64::from(v - m) * s_x).collect();
        let mut row = copy(&rounded, two);
        row.norms.rest += 1.001 * 6e-8 * (row.norms.high + row.norms.low + row.norms.rest);
        let score = |c: &Vec<f32>| {
            let c = copy(&self.exact(c, s_c), two);
            let own = bound.own(c.square, c.norms, s_x / s_c, balance);
            let score = score(way, f64::from(own.lowered), &row, &c, two) as f32;
            (f64::from(score), f64::from(own.slack))
        };
        (self.centroids.iter().map(score).collect(), bound.of_row(row.norms) * balance)
    }
}

/// How many rows each attack tries.
fn cases(usual: usize) -> usize {
    let more = std::env::var("POLARS_KMEANS_ATTACKS").ok().and_then(|times| times.parse::<usize>().ok());
    usual * more.unwrap_or(1)
}

/// Rows and centroids of all kinds, near ties among them. Returns the least room that was left, and the share of the rows with a
/// centroid out of reach.
fn attack(two: bool, usual: usize) -> (f64, f64) {
    let random = &mut Random(9);
    let ways: Vec<Way> = adding::ways().collect();
    let (mut tightest, mut decided) = (f64::INFINITY, 0);
    for case in 0..cases(usual) {
        let one = ScoreCase::new(case, random);
        // Every way of adding with its own bound, and each of them with the wide one.
        let way = ways[case / 3 % ways.len()];
        let added = if case / 5 % 2 == 0 { way.added() } else { Added::Otherwise };
        let bound = if two { Fp16Bound::rescoring(one.x.len(), added, 0) } else { Fp16Bound::new(one.x.len(), added, 0) };
        let balance = [1.0, 0.25, 8.0][case % 3];
        let (scored, term) = one.scores(&bound, way, balance, two);
        let label = reference::nearest(&one.x, &one.centroids.concat()).label as usize;
        let mut least = f64::INFINITY;
        for &(score, slack) in &scored {
            let limit = score + slack + term;
            let spare = limit - scored[label].0;
            assert!(spare >= 0.0, "case {case}, {} features: {spare}", one.x.len());
            tightest = tightest.min(spare / limit.abs().max(term));
            least = least.min(limit);
        }
        decided += usize::from(scored.iter().any(|&(score, _)| score > least));
    }
    (tightest, decided as f64 / cases(usual) as f64)
}

unit_test!(the_label_is_in_reach);
fn the_label_is_in_reach() {
    let (tightest, decided) = attack(false, 30_000);
    assert!(tightest < 0.05 && decided > 0.7, "{tightest} {decided}");
}

unit_test!(the_label_is_in_reach_of_two_copies);
fn the_label_is_in_reach_of_two_copies() {
    let (tightest, decided) = attack(true, 10_000);
    assert!(tightest < 1e-3 && decided > 0.7, "{tightest} {decided}");
}

unit_test!(two_copies_tell_more_apart);
/// Rows of one cluster of many, whose centre is far from that of all: the second bound tells their centroids apart.
fn two_copies_tell_more_apart() {
    let random = &mut Random(3);
    let mut apart = [0, 0];
    for _ in 0..200 {
        let one = ScoreCase::new(8 * 6 + 7, random);
        for (i, two) in [false, true].into_iter().enumerate() {
            let bound = if two { Fp16Bound::rescoring(408, Added::HOPPER, 0) } else { Fp16Bound::new(408, Added::HOPPER, 0) };
            let (scored, term) = one.scores(&bound, adding::ways().next().unwrap(), 1.0, two);
            let limit = scored.iter().map(|(score, slack)| score + slack + term).fold(f64::INFINITY, f64::min);
            apart[i] += scored.iter().filter(|(score, _)| *score > limit).count();
        }
    }
    assert!(apart[0] < 20 && apart[1] > 500, "{apart:?}");
}

/// Whether a bound loses a label of some of these cases.
fn is_careless(cases: impl Iterator<Item = usize>, two: bool, bound: impl Fn(usize, Added) -> Fp16Bound) -> bool {
    let random = &mut Random(4);
    let ways: Vec<Way> = adding::ways().collect();
    let lost = cases.enumerate().filter(|&(i, case)| {
        let one = ScoreCase::new(case, random);
        let way = ways[i % ways.len()];
        let (scored, term) = one.scores(&bound(one.x.len(), way.added()), way, 1.0, two);
        let label = reference::nearest(&one.x, &one.centroids.concat()).label as usize;
        scored.iter().any(|(score, slack)| scored[label].0 > score + slack + term)
    });
    lost.count() > 0
}

unit_test!(a_bound_without_sums_loses_labels);
/// What the second bound says of the sums is needed.
fn a_bound_without_sums_loses_labels() {
    assert!(is_careless(0..6_000, true, |d, added| Fp16Bound { sum: 0.0, ..Fp16Bound::rescoring(d, added, 0) }));
}

unit_test!(a_bound_without_beginnings_loses_labels);
/// What the first bound says of half squares that sums begin with is needed.
fn a_bound_without_beginnings_loses_labels() {
    // Those of the last kind.
    let cases = (0..8_000).map(|case| case / 8 * 64 + 56 + case % 8);
    assert!(is_careless(cases, false, |d, added| Fp16Bound { begin: 0.0, ..Fp16Bound::new(d, added, 0) }));
}
