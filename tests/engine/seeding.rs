//! k-means++ that skips rows against one that looks at every row: the same totals, draws and gains, step by step.

use std::sync::Arc;

use polars_kmeans::InstructionSet;
use polars_kmeans::backend::cpu::CpuSession;
use polars_kmeans::backend::{Draw, DrawBy, Session, Sessions, Sharded};
use polars_kmeans::exact::distances::{DistanceScale, DistanceSum};
use polars_kmeans::statistics::gather;
use polars_kmeans::{Float, KMeans, NullPolicy};

use crate::data::{KINDS, Random, rows};
use crate::draws::{Direct, drawn};
use crate::sessions::Data;

/// What k-means++ asks.
trait Seeding<T> {
    fn start(&mut self) -> u128;
    fn trials(&mut self, targets: &[u128]) -> (Vec<T>, Vec<u128>);
    fn take(&mut self, centroids: &[T], scale: DistanceScale) -> u128;
}

/// A session, and whether a centroid was taken.
struct Verbs<'s, 'a, T>(&'s mut (dyn Session<T> + 'a), bool);

impl<T: Float> Seeding<T> for Verbs<'_, '_, T> {
    fn start(&mut self) -> u128 {
        self.0.weigh().unwrap()
    }
    fn trials(&mut self, targets: &[u128]) -> (Vec<T>, Vec<u128>) {
        // Before the first centroid there are no gains.
        let by = if self.1 { DrawBy::Distance } else { DrawBy::Weight };
        let candidates = self.0.pick(&Draw::Totals(by, targets.to_vec())).unwrap().values;
        let gains = if self.1 { self.0.gains(&candidates).unwrap() } else { vec![0; targets.len()] };
        (candidates, gains)
    }
    fn take(&mut self, centroids: &[T], scale: DistanceScale) -> u128 {
        self.1 = true;
        self.0.lower(centroids, scale).unwrap()
    }
}

/// Looks at every row.
struct Plain<'a, T> {
    direct: Direct<'a, T>,
    /// None before the first centroid.
    scale: Option<DistanceScale>,
}

impl<T: Float> Seeding<T> for Plain<'_, T> {
    fn start(&mut self) -> u128 {
        self.direct.integers().iter().sum()
    }

    fn trials(&mut self, targets: &[u128]) -> (Vec<T>, Vec<u128>) {
        let weights = self.scale.map_or_else(|| self.direct.integers(), |scale| self.direct.draw_weights(scale));
        let candidates: Vec<&[T]> = targets.iter().map(|target| self.direct.row(drawn(&weights, *target))).collect();
        let gain = |candidate: &&[T]| self.scale.map_or(0, |scale| self.direct.gain(candidate, scale));
        (candidates.concat(), candidates.iter().map(gain).collect())
    }

    fn take(&mut self, centroids: &[T], scale: DistanceScale) -> u128 {
        self.scale = Some(scale);
        self.direct.take(centroids);
        self.direct.total(scale)
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
        let expected = expected.get_or_insert_with(|| {
            let direct = Direct::new(&data, &statistics);
            seeding(&mut Plain { direct, scale: None }, shape, statistics.distances)
        });
        let sessions: Vec<Box<dyn Session<T> + '_>> = parts
            .into_iter()
            .map(|part| Box::new(CpuSession::new(part, &statistics, k, threads, set).unwrap()) as Box<dyn Session<T>>)
            .collect();
        let mut session = Sharded::new(Sessions::new(sessions), &statistics, 1).unwrap();
        let answers = seeding(&mut Verbs(&mut session, false), shape, statistics.distances);
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
