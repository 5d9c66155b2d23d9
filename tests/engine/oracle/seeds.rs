//! Starting centroids, straight from the contract, in big integers.

use num_bigint::BigInt;
use polars_kmeans::Float;
use polars_kmeans::exact::{reference, rng};

use super::{
    Exact, Facts, Failure, Start, Task, decode, divide_to_even, exponent_above, integer, precise, quantise, round_ratio,
    unit_for,
};

/// The numbers of a restart.
#[derive(Clone, Copy)]
struct Draws {
    seed: u64,
    restart: u32,
}

impl Draws {
    fn two(self, stream: u32, step: u32, trial: u32) -> [u64; 2] {
        let words = rng::philox([stream, self.restart, step, trial], [self.seed as u32, (self.seed >> 32) as u32]);
        [u64::from(words[0]) + (u64::from(words[1]) << 32), u64::from(words[2]) + (u64::from(words[3]) << 32)]
    }

    /// A number below `total`.
    fn below(self, stream: u32, step: usize, trial: usize, total: &BigInt) -> BigInt {
        (total * self.two(stream, step as u32, trial as u32)[0]) >> 64
    }
}

/// Rows that centroids are chosen from.
#[derive(Clone)]
struct View<T> {
    rows: Vec<Vec<T>>,
    weights: Vec<f64>,
    integers: Vec<BigInt>,
    weight_unit: i32,
    /// The unit of the first integer distances.
    base: i32,
}

impl<T: Float> View<T> {
    fn all(task: &Task<T>, facts: &Facts) -> Self {
        Self {
            rows: task.rows.clone(),
            weights: facts.weights.clone(),
            integers: facts.integers.clone(),
            weight_unit: facts.weight_unit,
            base: facts.base(),
        }
    }

    fn only(&self, rows: &[usize]) -> Self {
        Self {
            rows: rows.iter().map(|&i| self.rows[i].clone()).collect(),
            weights: rows.iter().map(|&i| self.weights[i]).collect(),
            integers: rows.iter().map(|&i| self.integers[i].clone()).collect(),
            ..*self
        }
    }

    fn positive(&self) -> Vec<usize> {
        (0..self.rows.len()).filter(|&i| self.weights[i] > 0.0).collect()
    }

    fn terms(&self, centroids: &[Vec<T>]) -> Vec<(f64, f64)> {
        let nearest = |x: &Vec<T>| centroids.iter().map(|c| reference::distance(x, c)).fold(f64::INFINITY, f64::min);
        self.rows.iter().zip(&self.weights).map(|(x, w)| (*w, nearest(x))).collect()
    }

    /// The potential, from this unit on, and the integer distances of all rows in the unit of the potential.
    fn potential(&self, centroids: &[Vec<T>], unit: i32) -> (Exact, Vec<BigInt>) {
        let terms = self.terms(centroids);
        let potential = precise(&terms, unit, self.positive().len());
        let distances = terms.iter().map(|(w, s)| integer(*w, *s, potential.unit)).collect();
        (potential, distances)
    }
}

/// The first place at which the running total exceeds the target.
fn pick(weights: &[BigInt], target: &BigInt) -> usize {
    let mut running = BigInt::from(0);
    let exceeds = |w: &BigInt| {
        running += w;
        running > *target
    };
    weights.iter().position(exceeds).unwrap()
}

pub fn seed<T: Float>(task: &Task<T>, facts: &Facts, restart: u32) -> Result<Vec<Vec<T>>, Failure> {
    if let Start::Given(centroids) = &task.start {
        return Ok(centroids.clone());
    }
    let (all, draws) = (View::all(task, facts), Draws { seed: task.seed, restart });
    let positive = all.positive();
    let mut centroids = match task.sample {
        Some(count) if count < positive.len() => {
            let mut left = positive;
            let mut sample: Vec<usize> = (0..count)
                .map(|step| left.remove(usize::try_from(draws.below(6, step, 0, &left.len().into())).unwrap()))
                .collect();
            sample.sort_unstable();
            by_method(task, facts, draws, &all.only(&sample))
        }
        _ => by_method(task, facts, draws, &all),
    };
    if task.sample.is_some() {
        plus_plus(&all, draws, 1, task.k, &mut centroids);
    }
    if centroids.len() < task.k { Err(Failure::TooFewDistinct) } else { Ok(centroids) }
}

/// As many centroids as there are.
fn by_method<T: Float>(task: &Task<T>, facts: &Facts, draws: Draws, view: &View<T>) -> Vec<Vec<T>> {
    let mut centroids = Vec::new();
    match task.start {
        Start::Given(_) => unreachable!(),
        Start::Random => {
            let mut left = view.positive();
            for step in 0..task.k.min(left.len()) {
                let place = usize::try_from(draws.below(0, step, 0, &left.len().into())).unwrap();
                centroids.push(view.rows[left.remove(place)].clone());
            }
        }
        Start::PlusPlus => plus_plus(view, draws, 1, task.k, &mut centroids),
        Start::Parallel { oversampling, rounds, by_values } => {
            let number = |i: usize| if by_values { hash_of(&view.rows[i]) } else { i as u64 };
            let expected = (oversampling * task.k as f64).ceil().max(1.0) as u64;
            let candidates = candidates(view, draws, expected, rounds, number);
            if candidates.len() < task.k {
                centroids = candidates.iter().map(|&i| view.rows[i].clone()).collect();
            } else {
                plus_plus(&weighted(view, &candidates, facts), draws, 3, task.k, &mut centroids);
            }
            plus_plus(view, draws, 1, task.k, &mut centroids);
        }
        Start::AfkMc2 { chain } => {
            centroids.push(view.rows[first(view, draws, 1)].clone());
            while centroids.len() < task.k {
                match end_of_chain(view, draws, chain as usize, &centroids) {
                    Some(row) => centroids.push(view.rows[row].clone()),
                    None => {
                        plus_plus(view, draws, 1, task.k, &mut centroids);
                        break;
                    }
                }
            }
        }
        Start::Optimal => centroids = optimal(view, task.k),
    }
    centroids
}

fn first<T: Float>(view: &View<T>, draws: Draws, stream: u32) -> usize {
    pick(&view.integers, &draws.below(stream, 0, 0, &view.integers.iter().sum()))
}

/// Appends centroids until there are k, or until all distances are 0.
fn plus_plus<T: Float>(view: &View<T>, draws: Draws, stream: u32, k: usize, centroids: &mut Vec<Vec<T>>) {
    if centroids.is_empty() {
        centroids.push(view.rows[first(view, draws, stream)].clone());
    }
    if centroids.len() == k {
        return;
    }
    let trials = 2 + (1..).take_while(|m| (k as f64) >= std::f64::consts::E.powi(*m)).count();
    // Each potential starts from the unit of the potential before.
    let (mut current, _) = view.potential(centroids, view.base);
    while centroids.len() < k && current.integer != BigInt::from(0) {
        let Exact { integer: total, unit } = current.clone();
        let weights: Vec<BigInt> = view.terms(centroids).iter().map(|(w, s)| integer(*w, *s, unit)).collect();
        let with = |trial: usize| {
            let row = pick(&weights, &draws.below(stream, centroids.len(), trial, &total));
            [&centroids[..], &[view.rows[row].clone()]].concat()
        };
        let tried = (0..trials).map(with).map(|with| (view.potential(&with, unit).0, with));
        let best = tried.reduce(|best, other| if other.0.less_than(&best.0) { other } else { best });
        (current, *centroids) = best.unwrap();
    }
}

/// The hash of the values of a row, by which it draws where the order of the rows does not matter.
pub fn hash_of<T: Float>(row: &[T]) -> u64 {
    row.iter().fold(0x243F_6A88_85A3_08D3, |hash: u64, x| {
        let x = x.to_f64();
        let bits = if x == 0.0 { 0 } else { x.to_bits() };
        let times = |word: u64, factor: u64| (u128::from(word) * u128::from(factor)) as u64;
        let first = times(hash ^ bits, 0x9E37_79B9_7F4A_7C15);
        let second = times(first ^ (first >> 32), 0xD6E8_FEB8_6659_FD93);
        second ^ (second >> 29)
    })
}

/// The different candidates of k-means||, in row order.
fn candidates<T: Float>(view: &View<T>, draws: Draws, expected: u64, rounds: u32, number: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut all = vec![first(view, draws, 1)];
    let mut unit = view.base;
    for round in 0..rounds {
        let centroids: Vec<Vec<T>> = all.iter().map(|&i| view.rows[i].clone()).collect();
        let (potential, distances) = view.potential(&centroids, unit);
        if potential.integer == BigInt::from(0) {
            break;
        }
        unit = potential.unit;
        let drawn = |i: &usize| {
            let words = number(*i);
            let u = draws.two(2 + 256 * round, words as u32, (words >> 32) as u32)[0];
            (&potential.integer * u) >> 64 < &distances[*i] * expected
        };
        all.extend((0..view.rows.len()).filter(drawn).collect::<Vec<_>>());
    }
    all.sort_unstable();
    let mut different: Vec<usize> = Vec::new();
    for i in all {
        if different.iter().all(|&j| view.rows[j] != view.rows[i]) {
            different.push(i);
        }
    }
    different
}

/// The candidates with the weights of the rows nearest to them.
fn weighted<T: Float>(view: &View<T>, candidates: &[usize], facts: &Facts) -> View<T> {
    let rows: Vec<Vec<T>> = candidates.iter().map(|&i| view.rows[i].clone()).collect();
    let mut masses = vec![BigInt::from(0); rows.len()];
    for (x, weight) in view.rows.iter().zip(&view.integers) {
        let distances: Vec<f64> = rows.iter().map(|c| reference::distance(x, c)).collect();
        let nearest = (0..rows.len()).min_by(|&a, &b| distances[a].total_cmp(&distances[b])).unwrap();
        masses[nearest] += weight;
    }
    let weights: Vec<f64> = masses.iter().map(|mass| round_ratio(mass, &BigInt::from(1), 0)).collect();
    let weight_unit = exponent_above(weights.iter().copied().fold(0.0, f64::max)) - 53;
    let round = |w: &f64| if *w > 0.0 { quantise(*w, weight_unit).max(BigInt::from(1)) } else { BigInt::from(0) };
    let integers: Vec<BigInt> = weights.iter().map(round).collect();
    let weights: Vec<f64> = integers.iter().map(|i| round_ratio(i, &BigInt::from(1), weight_unit)).collect();
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let base = if facts.diameter > 0.0 { unit_for(facts.diameter, largest) } else { 0 };
    View { rows, weights, integers, weight_unit, base }
}

/// The row in which the chain of the next centroid ends, unless its distance is 0.
fn end_of_chain<T: Float>(view: &View<T>, draws: Draws, chain: usize, centroids: &[Vec<T>]) -> Option<usize> {
    let step = centroids.len();
    let (potential, distances) = view.potential(&centroids[..1], view.base);
    if potential.integer == BigInt::from(0) {
        return None;
    }
    let weight: BigInt = view.integers.iter().sum();
    let (all_distances, all_weights) = (potential.to_f64(), Exact::new(weight.clone(), view.weight_unit).to_f64());
    let proposed = |trial: usize| {
        let by_weight = draws.two(4, step as u32, trial as u32)[0] % 2 == 1;
        let (weights, total) = if by_weight { (&view.integers, &weight) } else { (&distances, &potential.integer) };
        pick(weights, &draws.below(5, step, trial, total))
    };
    let q = |i: usize| {
        let w = view.weights[i];
        w * reference::distance(&view.rows[i], &centroids[0]) / all_distances + w / all_weights
    };
    let terms = view.terms(centroids);
    let far = |i: usize| terms[i].0 * terms[i].1;
    let mut x = proposed(0);
    for trial in 1..chain {
        let y = proposed(trial);
        let u = (draws.two(4, step as u32, trial as u32)[1] >> 11) as f64 * 2f64.powi(-53);
        if far(x) == 0.0 || u < (far(y) * q(x)) / (far(x) * q(y)) {
            x = y;
        }
    }
    (far(x) > 0.0).then_some(x)
}

/// The means of the best clusters of one feature, by all cuts of all suffixes.
fn optimal<T: Float>(view: &View<T>, k: usize) -> Vec<Vec<T>> {
    let mut rows: Vec<(f64, BigInt)> =
        view.positive().into_iter().map(|i| (view.rows[i][0].to_f64() + 0.0, view.integers[i].clone())).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let largest = rows.iter().fold(0.0f64, |m, (x, _)| m.max(x.abs()));
    let mut values: Vec<(f64, BigInt)> = Vec::new();
    for (x, w) in rows {
        match values.last_mut() {
            Some(last) if (last.0 - x).mul_add(last.0 - x, 0.0) == 0.0 => last.1 += w,
            _ => values.push((x, w)),
        }
    }
    let unit = if largest > 0.0 { exponent_above(largest) - 90 } else { 0 };
    // Limbs: the high one rounded, the low one the rest, rounded.
    let fixed = |x: f64| {
        let high = quantise(x, unit + 45);
        let ((mantissa, exponent), wide) = (decode(x), unit.min(decode(x).1));
        let rest = (mantissa << (exponent - wide)) - (&high << (unit + 45 - wide));
        (high << 45) + divide_to_even(&rest, &(BigInt::from(1) << (unit - wide)))
    };
    let units: Vec<BigInt> = values.iter().map(|(x, _)| fixed(*x)).collect();
    let float = |integer: BigInt| round_ratio::<f64>(&integer, &BigInt::from(1), 0);
    let sums = |from: usize, to: usize| {
        let terms = (from..to).map(|i| (&values[i].1, &units[i] - &units[from]));
        terms.fold([BigInt::from(0), BigInt::from(0), BigInt::from(0)], |[w, x, xx], (weight, u)| {
            let weighted: BigInt = weight * &u;
            [w + weight, x + &weighted, xx + weighted * u]
        })
    };
    let deviation = |from: usize, to: usize| {
        let [w, x, xx] = sums(from, to);
        float(&w * xx - &x * &x) / float(w)
    };
    let (m, k) = (values.len(), k.min(values.len()));
    let mut best: Vec<(f64, Vec<usize>)> = (0..m).map(|from| (deviation(from, m), vec![from])).collect();
    for j in 2..=k {
        best = (0..=m - j)
            .map(|from| {
                let with = |cut: usize| (deviation(from, cut) + best[cut].0, cut);
                let least = (from + 1..=m - j + 1).map(with).reduce(|a, b| if b.0 < a.0 { b } else { a }).unwrap();
                (least.0, [vec![from], best[least.1].1.clone()].concat())
            })
            .collect();
    }
    let starts = &best[0].1;
    let ends = starts[1..].iter().copied().chain([m]);
    let mean = |(from, to): (usize, usize)| {
        let [w, x, _] = sums(from, to);
        let mean = values[from].0 + float(x) / float(w) * Exact::new(BigInt::from(1), unit).to_f64();
        vec![T::from_f64(mean.clamp(values[from].0, values[to - 1].0))]
    };
    starts.iter().copied().zip(ends).map(mean).collect()
}
