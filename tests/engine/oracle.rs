//! A k-means written straight from the contract, in big integers. It is slow. It shares only two things with the engine: the
//! reference distance and the Philox block. These have tests of their own.

mod seeds;
pub mod sizes;
mod transform;

pub use seeds::hash_of;

use num_bigint::{BigInt, Sign};
use polars_kmeans::Float;
use polars_kmeans::exact::reference;

use self::transform::column_variance;
pub use self::transform::{Scaling, direction, transform};

/// `value = integer * 2^exponent`, exactly.
fn decode(x: f64) -> (BigInt, i32) {
    let bits = x.to_bits();
    let (exponent, fraction) = (((bits >> 52) & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let (mantissa, exponent) = if exponent == 0 { (fraction, -1074) } else { (fraction | 1 << 52, exponent - 1075) };
    (if x < 0.0 { -BigInt::from(mantissa) } else { BigInt::from(mantissa) }, exponent)
}

/// `numerator / denominator` to the nearest integer, ties to even.
fn divide_to_even(numerator: &BigInt, denominator: &BigInt) -> BigInt {
    let negative = numerator.sign() == Sign::Minus;
    let magnitude = BigInt::from(numerator.magnitude().clone());
    let (quotient, rest) = (&magnitude / denominator, &magnitude % denominator);
    let twice: BigInt = rest * 2;
    let up = twice > *denominator || (twice == *denominator && quotient.bit(0));
    let rounded = quotient + u32::from(up);
    if negative { -rounded } else { rounded }
}

fn two_to(exponent: i32) -> (BigInt, BigInt) {
    let power = BigInt::from(1) << exponent.unsigned_abs();
    if exponent >= 0 { (power, BigInt::from(1)) } else { (BigInt::from(1), power) }
}

/// `x` in units of `2^unit`, rounded to nearest, ties to even.
pub fn quantise(x: f64, unit: i32) -> BigInt {
    let (mantissa, exponent) = decode(x);
    let (up, down) = two_to(exponent - unit);
    divide_to_even(&(mantissa * up), &down)
}

/// `numerator / denominator * 2^exponent` rounded once to T.
pub fn round_ratio<T: Float>(numerator: &BigInt, denominator: &BigInt, exponent: i32) -> T {
    if numerator.sign() == Sign::NoSign {
        return T::from_f64(0.0);
    }
    // The binade of the quotient, found by trying: 2^top <= |q| < 2^(top + 1).
    let scaled = |unit: i32| {
        let (up, down) = two_to(exponent - unit);
        (numerator * up, denominator * down)
    };
    let mut top = numerator.bits() as i32 - denominator.bits() as i32 + exponent;
    let (a, b) = scaled(top);
    if a.magnitude() < b.magnitude() {
        top -= 1;
    }
    let unit = (top - T::PRECISION as i32 + 1).max(T::SMALLEST_EXPONENT);
    let (a, b) = scaled(unit);
    let integer: i128 = divide_to_even(&a, &b).try_into().unwrap();
    // A small negative quotient becomes -0.
    let mut value = if integer == 0 && numerator.sign() == Sign::Minus { -0.0 } else { integer as f64 };
    let mut left = unit;
    while left != 0 {
        let step = left.clamp(-1000, 1000);
        value *= 2f64.powi(step);
        left -= step;
    }
    T::from_f64(value)
}

/// The smallest p with `m <= 2^p`.
fn exponent_above(m: f64) -> i32 {
    let (mantissa, exponent) = decode(m);
    let bits = mantissa.bits() as i32;
    let power_of_two = mantissa == BigInt::from(1) << (bits - 1);
    exponent + bits - i32::from(power_of_two)
}

#[derive(Clone)]
pub enum Start<T> {
    Given(Vec<Vec<T>>),
    Random,
    PlusPlus,
    /// `by_values`: rows draw with the hash of their values, not with their numbers.
    Parallel {
        oversampling: f64,
        rounds: u32,
        by_values: bool,
    },
    AfkMc2 {
        chain: u32,
    },
    Optimal,
}

#[derive(Clone)]
pub struct Task<T> {
    pub rows: Vec<Vec<T>>,
    pub weights: Option<Vec<f64>>,
    pub k: usize,
    pub start: Start<T>,
    /// How many rows starting centroids are chosen from.
    pub sample: Option<usize>,
    pub restarts: u32,
    pub max_iter: usize,
    pub tol: f64,
    pub tol_labels: f64,
    pub seed: u64,
    /// The least and the most rows of a cluster.
    pub sizes: Option<[usize; 2]>,
    /// Whether centroids are normalised. The rows have arrived: see [`transform`].
    pub cosine: bool,
}

impl<T> Task<T> {
    /// One iteration over rows without weights.
    pub fn new(rows: Vec<Vec<T>>, k: usize, start: Start<T>) -> Self {
        let weights = None;
        Self {
            rows,
            weights,
            k,
            start,
            sample: None,
            restarts: 1,
            max_iter: 1,
            tol: 0.0,
            tol_labels: 0.0,
            seed: 0,
            sizes: None,
            cosine: false,
        }
    }
}

#[derive(Debug, PartialEq)]
pub enum Failure {
    TooFewDistinct,
    RangeTooWide,
    WeightRangeTooWide,
}

#[derive(Debug)]
pub struct Answer<T> {
    pub labels: Vec<u32>,
    pub centroids: Vec<Vec<T>>,
    pub sizes: Vec<u64>,
    pub inertia: f64,
    /// The inertia of each cluster.
    pub inertias: Vec<f64>,
    /// The inertia without any rounding: the sum of w^ times the reference distances.
    pub true_inertia: Exact,
    /// Changed rows, shift, inertia.
    pub history: Vec<(u64, f64, f64)>,
    /// The clusters that were empty in any iteration, in ascending order.
    pub relocated: Vec<u32>,
    exact_inertia: Exact,
}

/// `integer * 2^unit`.
#[derive(Debug, Clone)]
pub struct Exact {
    pub integer: BigInt,
    pub unit: i32,
}

impl Exact {
    fn new(integer: BigInt, unit: i32) -> Self {
        Self { integer, unit }
    }

    fn in_unit(&self, unit: i32) -> BigInt {
        &self.integer << (self.unit - unit)
    }

    fn sum(terms: &[Self]) -> Self {
        let unit = terms.iter().map(|term| term.unit).min().unwrap_or(0);
        Self::new(terms.iter().map(|term| term.in_unit(unit)).sum(), unit)
    }

    fn less_than(&self, other: &Self) -> bool {
        let unit = self.unit.min(other.unit);
        self.in_unit(unit) < other.in_unit(unit)
    }

    fn to_f64(&self) -> f64 {
        round_ratio(&self.integer, &BigInt::from(1), self.unit)
    }

    /// Whether a float64 is within a relative error of 2^-40 of this value.
    pub fn is_near(&self, value: f64) -> bool {
        let (mantissa, exponent) = decode(value);
        let unit = self.unit.min(exponent);
        let (own, other) = (self.in_unit(unit), Self::new(mantissa, exponent).in_unit(unit));
        let difference: BigInt = &own - other;
        BigInt::from(difference.magnitude().clone()) << 40u32 <= own
    }
}

/// `a * b` rounded to 53 bits, as in a float64 whose exponent has no limits.
fn product(a: f64, b: f64) -> Exact {
    let ((a, p), (b, q)) = (decode(a), decode(b));
    let exact = Exact::new(a * b, p + q);
    let drop = (exact.integer.bits() as i32 - 53).max(0);
    Exact::new(divide_to_even(&exact.integer, &two_to(drop).0), exact.unit + drop)
}

/// A weight times a distance, in units of `2^unit`. A positive product counts as at least one unit.
fn integer(weight: f64, s: f64, unit: i32) -> BigInt {
    if weight > 0.0 && s > 0.0 {
        let term = product(weight, s);
        let (up, down) = two_to(term.unit - unit);
        divide_to_even(&(term.integer * up), &down).max(BigInt::from(1))
    } else {
        BigInt::from(0)
    }
}

/// The sum of weights times distances of `count` rows, in integers of `2^unit`. The unit shrinks until the sum is precise.
fn precise(terms: &[(f64, f64)], mut unit: i32, count: usize) -> Exact {
    loop {
        let total: BigInt = terms.iter().map(|(w, s)| integer(*w, *s, unit)).sum();
        if total == BigInt::from(0) || total >= BigInt::from(count) << 41 {
            return Exact::new(total, unit);
        }
        unit += total.bits() as i32 - 90;
    }
}

struct Facts {
    /// w^ as float64 and as integers of `2^weight_unit`.
    weights: Vec<f64>,
    integers: Vec<BigInt>,
    weight_unit: i32,
    units: Vec<i32>,
    lows: Vec<f64>,
    highs: Vec<f64>,
    /// S.
    diameter: f64,
    /// The units of integer distances and of the shift. `None` if S is 0.
    distance_unit: Option<(i32, i32)>,
    variance: f64,
}

/// The unit of distances of at most `s` with weights of at most `w`: 90 bits below the power of two at or above the product of both
/// and 4. The mantissas are multiplied in float64.
fn unit_for(s: f64, w: f64) -> i32 {
    let (a, b) = (exponent_above(s), exponent_above(w));
    let scaled = |m: f64, e: i32| round_ratio::<f64>(&decode(m).0, &BigInt::from(1), decode(m).1 - e);
    exponent_above(scaled(s, a) * scaled(w, b)) + a + b + 2 - 90
}

pub fn fit<T: Float>(task: &Task<T>) -> Result<Answer<T>, Failure> {
    let facts = learn(task)?;
    let positive = facts.weights.iter().filter(|w| **w > 0.0).count();
    if task.k > positive {
        return Err(Failure::TooFewDistinct);
    }
    let mut best: Option<Answer<T>> = None;
    for restart in 0..task.restarts {
        let start = seeds::seed(task, &facts, restart)?;
        let answer = lloyd(task, &facts, start)?;
        if best.as_ref().is_none_or(|best| answer.exact_inertia.less_than(&best.exact_inertia)) {
            best = Some(answer);
        }
    }
    Ok(best.unwrap())
}

/// Minus the inertia of the rows under these centroids. The values of the centroids count in the scale of distances.
pub fn score<T: Float>(task: &Task<T>, centroids: &[Vec<T>]) -> Result<f64, Failure> {
    let facts = learn(&Task { start: Start::Given(centroids.to_vec()), ..task.clone() })?;
    Ok(-precise(&facts.nearest(task, centroids), facts.base(), facts.positive()).to_f64())
}

fn learn<T: Float>(task: &Task<T>) -> Result<Facts, Failure> {
    let (n, d) = (task.rows.len(), task.rows[0].len());
    let (weights, integers, weight_unit) = match &task.weights {
        None => (vec![1.0; n], vec![BigInt::from(1); n], 0),
        Some(weights) => {
            let unit = exponent_above(weights.iter().copied().fold(0.0, f64::max)) - 53;
            let integer = |w: &f64| if *w > 0.0 { quantise(*w, unit).max(BigInt::from(1)) } else { BigInt::from(0) };
            let integers: Vec<BigInt> = weights.iter().map(integer).collect();
            (integers.iter().map(|i| round_ratio::<f64>(i, &BigInt::from(1), unit)).collect(), integers, unit)
        }
    };
    let rows: Vec<usize> = (0..n).filter(|&i| weights[i] > 0.0).collect();
    if let Some(given) = &task.weights {
        let bound = given.iter().copied().fold(0.0, f64::max) * 2f64.powi(-43);
        if 1000 * rows.iter().filter(|&&i| given[i] < bound).count() > rows.len() {
            return Err(Failure::WeightRangeTooWide);
        }
    }
    let column = |f: usize| rows.iter().map(move |&i| task.rows[i][f].to_f64());
    let lows: Vec<f64> = (0..d).map(|f| column(f).fold(f64::INFINITY, f64::min) + 0.0).collect();
    let highs: Vec<f64> = (0..d).map(|f| column(f).fold(f64::NEG_INFINITY, f64::max) + 0.0).collect();
    let odd_weights = rows.iter().any(|&i| weights[i] != 1.0);
    let mut units = Vec::new();
    for f in 0..d {
        let values: Vec<f64> = rows.iter().map(|&i| (weights[i] * task.rows[i][f].to_f64()).abs()).collect();
        let largest = values.iter().copied().fold(0.0, f64::max);
        let nonzero = values.iter().filter(|v| **v > 0.0).count();
        let below = |bits: i32| values.iter().filter(|v| **v > 0.0 && **v * 2f64.powi(bits) < largest).count();
        if 2 * below(66) > nonzero {
            return Err(Failure::RangeTooWide);
        }
        let one = T::IS_F32 && !odd_weights && 1000 * below(26) <= nonzero;
        let p = if largest > 0.0 { exponent_above(largest) } else { T::SMALLEST_EXPONENT };
        units.push(p - if one { 50 } else { 90 });
    }
    let (mut far_lows, mut far_highs) = (lows.clone(), highs.clone());
    if let Start::Given(centroids) = &task.start {
        for c in centroids {
            for f in 0..d {
                far_lows[f] = far_lows[f].min(c[f].to_f64() + 0.0);
                far_highs[f] = far_highs[f].max(c[f].to_f64() + 0.0);
            }
        }
    }
    let s = if task.cosine { 4.0 } else { reference::distance(&far_highs, &far_lows) };
    let largest_weight = weights.iter().copied().fold(0.0, f64::max);
    let distance_unit = (s > 0.0).then(|| (unit_for(s, largest_weight), unit_for(s, 1.0)));
    let variance = (0..d).fold(0.0, |total, f| total + column_variance(&column(f).collect::<Vec<f64>>()));
    Ok(Facts { weights, integers, weight_unit, units, lows, highs, diameter: s, distance_unit, variance: variance / d as f64 })
}

impl Facts {
    /// Each row's weight, and its reference distance to the nearest of these centroids.
    fn nearest<T: Float>(&self, task: &Task<T>, centroids: &[Vec<T>]) -> Vec<(f64, f64)> {
        let nearest = |x: &Vec<T>| centroids.iter().map(|c| reference::distance(x, c)).fold(f64::INFINITY, f64::min);
        task.rows.iter().zip(&self.weights).map(|(x, w)| (*w, nearest(x))).collect()
    }

    /// The unit of the first integers of a sum. Any unit will do if all distances are 0.
    fn base(&self) -> i32 {
        self.distance_unit.map_or(0, |units| units.0)
    }

    fn positive(&self) -> usize {
        self.weights.iter().filter(|w| **w > 0.0).count()
    }
}

/// The largest squared distance at which a row counts as equal to its centroid when a row is looked for.
fn same_place<T: Float>(cosine: bool, d: usize) -> f64 {
    match (cosine, T::IS_F32) {
        (false, _) => 0.0,
        (true, true) => 2f64.powi(-45),
        (true, false) => (d as f64 + 4.0).powi(2) * 2f64.powi(-104),
    }
}

/// The centroid of these rows: the exact mean, rounded and clamped, or its direction. A mean of zero keeps the old centroid.
fn centroid_of<T: Float>(task: &Task<T>, facts: &Facts, rows: &[usize], old: &[T]) -> Vec<T> {
    let mass: BigInt = rows.iter().map(|&i| &facts.integers[i]).sum();
    let mean = |f: usize| {
        let sum: BigInt = rows.iter().map(|&i| quantise(facts.weights[i] * task.rows[i][f].to_f64(), facts.units[f])).sum();
        (sum, facts.units[f] - facts.weight_unit)
    };
    if task.cosine {
        let exact: Vec<f64> = (0..old.len()).map(mean).map(|(sum, unit)| round_ratio(&sum, &mass, unit)).collect();
        return direction(&exact).map_or(old.to_vec(), |new| new.into_iter().map(T::from_f64).collect());
    }
    let clamped = |f: usize| {
        let (sum, unit) = mean(f);
        let mean: T = round_ratio(&sum, &mass, unit);
        let value = mean.to_f64();
        if value < facts.lows[f] || value > facts.highs[f] {
            T::from_f64(value.clamp(facts.lows[f], facts.highs[f]))
        } else {
            mean
        }
    };
    (0..old.len()).map(clamped).collect()
}

fn lloyd<T: Float>(task: &Task<T>, facts: &Facts, mut centroids: Vec<Vec<T>>) -> Result<Answer<T>, Failure> {
    let (n, d, k) = (task.rows.len(), task.rows[0].len(), task.k);
    let counts = |i: usize| facts.weights[i] > 0.0;
    let positive = (0..n).filter(|&i| counts(i)).count();
    let size = |labels: &[u32], j: usize| (0..n).filter(|&i| counts(i) && labels[i] as usize == j).count();
    let assign = |centroids: &[Vec<T>]| -> Vec<u32> {
        let label = |x: &Vec<T>| {
            let mut best = (f64::INFINITY, 0);
            for (j, c) in centroids.iter().enumerate() {
                let s = reference::distance(x, c);
                if s < best.0 {
                    best = (s, j as u32);
                }
            }
            best.1
        };
        match task.sizes {
            Some(bounds) => sizes::within(task, facts, centroids, bounds),
            None => task.rows.iter().map(label).collect(),
        }
    };
    // Whether the nearest centroids break the bounds.
    let breaks = |centroids: &[Vec<T>]| {
        let plain = sizes::within(task, facts, centroids, [0, n]);
        task.sizes.is_some_and(|[least, most]| (0..k).any(|j| !(least..=most).contains(&size(&plain, j))))
    };
    let (mut before_last, mut was_active) = (None::<Exact>, false);
    let terms = |centroids: &[Vec<T>], labels: &[u32], j: usize| -> Vec<(f64, f64)> {
        let rows = (0..n).filter(|&i| labels[i] as usize == j);
        rows.map(|i| (facts.weights[i], reference::distance(&task.rows[i], &centroids[j]))).collect()
    };
    let inertia = |centroids: &[Vec<T>], labels: &[u32]| -> Vec<Exact> {
        (0..k).map(|j| precise(&terms(centroids, labels, j), facts.base(), size(labels, j))).collect()
    };
    let mut labels = vec![u32::MAX; n];
    let (mut history, mut emptied) = (Vec::new(), std::collections::BTreeSet::new());
    for iteration in 1..=task.max_iter {
        let new = assign(&centroids);
        let changed = (0..n).filter(|&i| counts(i) && new[i] != labels[i]).count();
        labels = new;
        let before = inertia(&centroids, &labels);
        let (total, active) = (Exact::sum(&before), breaks(&centroids));
        if (active || was_active) && before_last.as_ref().is_some_and(|last| !total.less_than(last)) {
            history.push((changed as u64, 0.0, total.to_f64()));
            break;
        }
        (before_last, was_active) = (Some(total), active);
        // Relocation.
        let away: Vec<f64> = (0..n).map(|i| reference::distance(&task.rows[i], &centroids[labels[i] as usize])).collect();
        let mut relocated = false;
        for j in 0..k {
            if size(&labels, j) > 0 {
                continue;
            }
            let sizes: Vec<usize> = (0..k).map(|j| size(&labels, j)).collect();
            let far = (0..n).filter(|&i| counts(i) && sizes[labels[i] as usize] >= 2);
            let far = far.max_by(|&a, &b| away[a].total_cmp(&away[b]).then(b.cmp(&a))).ok_or(Failure::TooFewDistinct)?;
            if away[far] <= same_place::<T>(task.cosine, d) {
                return Err(Failure::TooFewDistinct);
            }
            labels[far] = j as u32;
            relocated = true;
            emptied.insert(j as u32);
        }
        // Exact means.
        let mut moves = Vec::new();
        let mut moved = relocated;
        for j in 0..k {
            let rows: Vec<usize> = (0..n).filter(|&i| counts(i) && labels[i] as usize == j).collect();
            let new = centroid_of(task, facts, &rows, &centroids[j]);
            let s = reference::distance(&centroids[j], &new);
            moves.push((1.0, s));
            moved |= centroids[j].iter().zip(&new).any(|(a, b)| a != b);
            centroids[j] = new;
        }
        let moving = moves.iter().filter(|(_, s)| *s > 0.0).count();
        let shift = precise(&moves, facts.distance_unit.map_or(0, |units| units.1), moving).to_f64();
        history.push((changed as u64, shift, Exact::sum(&before).to_f64()));
        let done = changed as f64 <= task.tol_labels * positive as f64 || shift <= task.tol * facts.variance;
        if done || iteration == task.max_iter {
            if moved {
                labels = assign(&centroids);
            }
            break;
        }
    }
    let clusters = inertia(&centroids, &labels);
    let total = Exact::sum(&clusters);
    let true_term = |(w, s): (f64, f64)| Exact::new(decode(w).0 * decode(s).0, decode(w).1 + decode(s).1);
    let all: Vec<Exact> = (0..k).flat_map(|j| terms(&centroids, &labels, j)).map(true_term).collect();
    Ok(Answer {
        sizes: (0..k).map(|j| size(&labels, j) as u64).collect(),
        labels,
        inertia: total.to_f64(),
        inertias: clusters.iter().map(Exact::to_f64).collect(),
        true_inertia: Exact::sum(&all),
        centroids,
        history,
        relocated: emptied.into_iter().collect(),
        exact_inertia: total,
    })
}
