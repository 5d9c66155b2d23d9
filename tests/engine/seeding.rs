//! k-means++ that skips rows against one that looks at every row: the same totals, draws and gains, step by step.

use std::sync::Arc;

use polars_kmeans::InstructionSet;
use polars_kmeans::backend::cpu::CpuSession;
use polars_kmeans::backend::{Seeder, Session, Sessions, Sharded};
use polars_kmeans::exact::distances::{DistanceScale, DistanceSum};
use polars_kmeans::exact::reference;
use polars_kmeans::statistics::{Statistics, gather};
use polars_kmeans::{Float, KMeans, NullPolicy};

use crate::data::{KINDS, Random, rows};
use crate::sessions::Data;

/// What k-means++ asks.
trait Seeding<T> {
    fn start(&mut self) -> u128;
    fn trials(&mut self, targets: &[u128]) -> (Vec<T>, Vec<u128>);
    fn take(&mut self, centroids: &[T], scale: DistanceScale) -> u128;
}

impl<T: Float> Seeding<T> for &mut dyn Session<T> {
    fn start(&mut self) -> u128 {
        self.start_draws().unwrap()
    }
    fn trials(&mut self, targets: &[u128]) -> (Vec<T>, Vec<u128>) {
        Seeder::trials(*self, targets).unwrap()
    }
    fn take(&mut self, centroids: &[T], scale: DistanceScale) -> u128 {
        self.take_seeds(centroids, scale).unwrap()
    }
}

/// Looks at every row.
struct Plain<'a, T> {
    /// The kept rows.
    x: Vec<&'a [T]>,
    /// `w^` of each row, and its integer.
    weights: Vec<(f64, u128)>,
    nearest: Vec<f64>,
    scale: Option<DistanceScale>,
}

impl<'a, T: Float> Plain<'a, T> {
    fn new(data: &'a Data<T>, statistics: &Statistics) -> Self {
        let kept = |x: &[T]| x.iter().all(|x| x.to_f64().is_finite());
        let all = data.x.chunks_exact(data.d).enumerate();
        let weight = |i: usize| match (statistics.weights, &data.weights) {
            (Some(scale), Some(weights)) => (scale.round(weights[i]), scale.integer(scale.round(weights[i])) as u128),
            _ => (1.0, 1),
        };
        let (x, weights): (Vec<_>, Vec<_>) = all.filter(|(_, x)| kept(x)).map(|(i, x)| (x, weight(i))).unzip();
        Self { nearest: vec![f64::INFINITY; x.len()], x, weights, scale: None }
    }

    fn integer(&self, i: usize, s: f64) -> u128 {
        self.scale.map_or(self.weights[i].1, |scale| scale.quantise(self.weights[i].0, s))
    }

    fn total(&self) -> u128 {
        (0..self.x.len()).map(|i| self.integer(i, self.nearest[i])).sum()
    }
}

impl<T: Float> Seeding<T> for Plain<'_, T> {
    fn start(&mut self) -> u128 {
        self.total()
    }

    fn trials(&mut self, targets: &[u128]) -> (Vec<T>, Vec<u128>) {
        let (mut values, mut gains) = (Vec::new(), Vec::new());
        for &target in targets {
            let mut left = target;
            let drawn = (0..self.x.len()).find(|&i| {
                let weight = self.integer(i, self.nearest[i]);
                left.checked_sub(weight).map(|rest| left = rest).is_none()
            });
            let candidate = self.x[drawn.unwrap()];
            let gain = |i: usize| {
                let s = reference::distance(self.x[i], candidate);
                if s < self.nearest[i] { self.integer(i, self.nearest[i]) - self.integer(i, s) } else { 0 }
            };
            gains.push(if self.scale.is_some() { (0..self.x.len()).map(gain).sum() } else { 0 });
            values.extend_from_slice(candidate);
        }
        (values, gains)
    }

    fn take(&mut self, centroids: &[T], scale: DistanceScale) -> u128 {
        self.scale = Some(scale);
        for (x, nearest) in self.x.iter().zip(&mut self.nearest) {
            let distances = centroids.chunks_exact(x.len()).map(|centroid| reference::distance(x, centroid));
            *nearest = distances.fold(*nearest, f64::min);
        }
        self.total()
    }
}

/// All answers of a seeding: totals, and for each step the values of its candidates and their gains.
type Answers<T> = (Vec<u128>, Vec<(Vec<T>, Vec<u128>)>);

fn seeding<T: Float>(of: &mut dyn Seeding<T>, [n, d, k]: [usize; 3], base: DistanceScale) -> Answers<T> {
    let random = &mut Random((n + d + k) as u64);
    let mut target = |total: u128| (total >> 32) * u128::from(random.next() >> 32);
    let (mut totals, mut steps) = (vec![of.start()], Vec::new());
    // Gains before the first centroid mean nothing. Only the row counts.
    let (first, _) = of.trials(&[target(totals[0])]);
    totals.push(of.take(&first, base));
    let mut potential = DistanceSum { total: totals[1], scale: base };
    let trials = 2 + (k as f64).ln() as usize;
    for _ in 1..k {
        potential = potential.precise(n as u64, |finer| Ok(of.take(&[], finer))).unwrap();
        totals.push(potential.total);
        if potential.total == 0 {
            break;
        }
        let targets: Vec<u128> = (0..trials).map(|_| target(potential.total)).collect();
        let (values, gains) = of.trials(&targets);
        let best = (0..trials).rev().max_by_key(|&trial| gains[trial]).unwrap();
        potential.total = of.take(&values[best * d..][..d], potential.scale);
        totals.push(potential.total);
        assert_eq!(potential.total, totals[totals.len() - 2] - gains[best]);
        steps.push((values, gains));
    }
    // Many centroids at once, as k-means|| takes them.
    let many: Vec<T> = steps.iter().flat_map(|(values, _)| values).copied().take(70 * d).collect();
    totals.push(of.take(&many, base));
    (totals, steps)
}

fn check<T: Float>(kind: &str, shape: [usize; 3], weighted: bool, nulls: bool) {
    let [n, d, k] = shape;
    let random = &mut Random((n * d * k) as u64);
    let mut x: Vec<T> = rows(kind, n, d, random);
    if nulls {
        (0..n / 7).for_each(|_| x[random.below(n * d)] = T::from_f64(f64::NAN));
    }
    let weights = weighted.then(|| (0..n).map(|_| [0.0, 9.0, 9.0, 1e-3 + 8.0 * random.unit()][random.below(4)]).collect());
    let data = Data { x, weights, d };
    let policy = if nulls { NullPolicy::Skip } else { NullPolicy::Raise };
    let cases =
        [(1, false, InstructionSet::detect()), (3, true, InstructionSet::detect()), (2, false, InstructionSet::Portable)];
    let mut expected = None;
    for (threads, in_parts, set) in cases {
        let estimator = KMeans::new(k).threads(threads).null_policy(policy);
        let params = estimator.validate(d).unwrap();
        // The first part is too small for an order of its own.
        let cuts = if in_parts { vec![0, n / 30, n] } else { vec![0, n] };
        let mut parts = data.parts(&cuts);
        let statistics = match gather(&mut parts, &params) {
            Ok(statistics) => Arc::new(statistics),
            Err(error) => panic!("{kind}, {shape:?}: {error}"),
        };
        let expected =
            expected.get_or_insert_with(|| seeding(&mut Plain::new(&data, &statistics), shape, statistics.distances));
        let sessions: Vec<Box<dyn Session<T> + '_>> = parts
            .into_iter()
            .map(|part| Box::new(CpuSession::new(part, &statistics, k, threads, set).unwrap()) as Box<dyn Session<T>>)
            .collect();
        let mut session = Sharded::new(Sessions::new(sessions), &statistics, 1).unwrap();
        let answers = seeding(&mut (&mut session as &mut dyn Session<T>), shape, statistics.distances);
        assert_eq!(answers, *expected, "{kind}, {shape:?}, {}, {threads} threads, {set:?}", T::NAME);
    }
}

/// Every kind of data that both types hold.
#[test]
fn seeding_that_skips_rows_is_seeding_over_all_rows() {
    for (i, kind) in KINDS.into_iter().enumerate() {
        let [n, k] = [9_000 + 100 * i, 20];
        let d = [1, 2, 5, 12][i % 4];
        check::<f32>(kind, [n, d, k], i % 2 == 0, i % 3 == 0);
        check::<f64>(kind, [n, 1 + d % 5, k], i % 2 == 1, i % 3 == 1);
    }
}

#[test]
fn many_features_and_many_clusters() {
    check::<f32>("blobs", [9_000, 300, 9], false, false);
    check::<f64>("offset 1e6", [9_000, 100, 8], true, false);
    check::<f32>("mixed scales", [8_500, 40, 30], true, true);
    check::<f32>("lattice", [12_000, 16, 60], false, false);
    check::<f32>("blobs", [20_000, 2, 500], true, false);
    check::<f64>("uniform", [16_000, 3, 400], false, true);
}
