//! What seeding asks of a session, against a direct computation: totals, samples in which every row decides alone, gains, draws and
//! masses. Every backend, any parts and any number of threads give the same integers.

use polars_kmeans::backend::{Draw, DrawBy, Picked, Sample, Seeder};
use polars_kmeans::exact::distances::DistanceScale;
use polars_kmeans::exact::reference;
use polars_kmeans::exact::rng::{below, philox};
use polars_kmeans::statistics::Statistics;
use polars_kmeans::{Float, KMeans};

use crate::data::{Random, rows};
use crate::oracle::hash_of;
use crate::sessions::{Data, every_way};

/// The draw weights of all rows that are finite, computed one by one.
pub struct Direct<'a, T> {
    x: Vec<&'a [T]>,
    statistics: &'a Statistics,
    /// `w^` of each row.
    weights: Vec<f64>,
    /// Distance of each row to the nearest centroid taken.
    nearest: Vec<f64>,
}

impl<'a, T: Float> Direct<'a, T> {
    pub fn new(data: &'a Data<T>, statistics: &'a Statistics) -> Self {
        let round = |w: f64| statistics.weights.map_or(1.0, |scale| scale.round(w));
        let weight = |i: usize| round(data.weights.as_ref().map_or(1.0, |w| w[i]));
        let rows = data.x.chunks_exact(data.d).enumerate().filter(|(_, x)| x.iter().all(|x| x.to_f64().is_finite()));
        let (x, weights): (Vec<_>, Vec<_>) = rows.map(|(i, x)| (x, weight(i))).unzip();
        Self { nearest: vec![f64::INFINITY; x.len()], x, statistics, weights }
    }

    pub fn row(&self, i: usize) -> &'a [T] {
        self.x[i]
    }

    /// The integer of each `w^`.
    pub fn integers(&self) -> Vec<u128> {
        let integer = |w: &f64| self.statistics.weights.map_or(1, |scale| scale.integer(*w) as u128);
        self.weights.iter().map(integer).collect()
    }

    pub fn take(&mut self, centroids: &[T]) {
        for (x, nearest) in self.x.iter().zip(&mut self.nearest) {
            let distances = centroids.chunks_exact(x.len()).map(|centroid| reference::distance(x, centroid));
            *nearest = distances.fold(*nearest, f64::min);
        }
    }

    pub fn draw_weights(&self, scale: DistanceScale) -> Vec<u128> {
        self.weights.iter().zip(&self.nearest).map(|(&w, &s)| scale.quantise(w, s)).collect()
    }

    pub fn total(&self, scale: DistanceScale) -> u128 {
        self.draw_weights(scale).iter().sum()
    }

    /// By how much the total falls if a candidate becomes a centroid.
    pub fn gain(&self, candidate: &[T], scale: DistanceScale) -> u128 {
        let distances = self.x.iter().map(|x| reference::distance(x, candidate));
        let after =
            distances.zip(&self.nearest).zip(&self.weights).map(|((s, nearest), &w)| scale.quantise(w, s.min(*nearest)));
        self.total(scale) - after.sum::<u128>()
    }

    fn sample(&self, sample: &Sample, scale: DistanceScale) -> Picked<T> {
        let weights = self.draw_weights(scale);
        let drawn = |i: &usize| is_drawn(sample, self.number(sample, *i), weights[*i]);
        self.picked((0..weights.len()).filter(drawn).map(|i| i as u64).collect())
    }

    /// These rows, with their values and weights.
    fn picked(&self, rows: Vec<u64>) -> Picked<T> {
        Picked {
            values: rows.iter().flat_map(|&i| self.row(i as usize)).copied().collect(),
            weights: rows.iter().map(|&i| self.weights[i as usize]).collect(),
            rows,
        }
    }

    /// The number that a row draws with.
    fn number(&self, sample: &Sample, i: usize) -> u64 {
        if sample.by_values { hash_of(self.row(i)) } else { sample.first + i as u64 }
    }

    fn pick(&self, weights: &[u128], targets: &[u128]) -> Picked<T> {
        let ends: Vec<u128> = weights
            .iter()
            .scan(0, |end, weight| {
                *end += weight;
                Some(*end)
            })
            .collect();
        self.picked(targets.iter().map(|target| ends.iter().position(|end| end > target).unwrap() as u64).collect())
    }

    fn masses(&self, candidates: &[T]) -> Vec<u128> {
        let mut masses = vec![0; candidates.len() / self.x[0].len()];
        for (x, integer) in self.x.iter().zip(self.integers()) {
            masses[reference::nearest(x, candidates).label as usize] += integer;
        }
        masses
    }
}

/// The row at which the running sum of the draw weights exceeds the target.
pub fn drawn(weights: &[u128], target: u128) -> usize {
    let mut left = target;
    weights.iter().position(|weight| left.checked_sub(*weight).map(|rest| left = rest).is_none()).unwrap()
}

/// `floor(u * total / 2^64) < expected * weight`, without the division: `u * total < 2^64 * expected * weight`. Both sides are in
/// words of 64 bits, the high ones first.
fn is_drawn(sample: &Sample, number: u64, weight: u128) -> bool {
    let counter = [2 + 256 * sample.round, sample.restart, (number % (1 << 32)) as u32, (number >> 32) as u32];
    let words = philox(counter, [sample.seed as u32, (sample.seed >> 32) as u32]);
    let u = u128::from(words[0]) + (u128::from(words[1]) << 32);
    let low = u * (sample.total % (1 << 64));
    let high = u * (sample.total >> 64) + (low >> 64);
    let bound = u128::from(sample.expected) * weight;
    (high, low % (1 << 64)) < (bound, 0)
}

fn data<T: Float>(kind: &str, [n, d]: [usize; 2], weighted: bool, random: &mut Random) -> Data<T> {
    // The largest weight comes often, so that every part has it.
    let weight = |random: &mut Random| [0.0, 9.0, 9.0, 1e-3 + 8.0 * random.unit()][random.below(4)];
    let x = rows(kind, n, d, random);
    let mut weights: Vec<f64> = (0..n).map(|_| weight(random)).collect();
    weights[0] = 9.0;
    Data { x, weights: weighted.then_some(weights), d }
}

/// Some rows one after the other. Some come twice.
fn some<T: Float>(data: &Data<T>, count: usize, random: &mut Random) -> Vec<T> {
    (0..count).flat_map(|_| &data.x[random.below(data.rows()) * data.d..][..data.d]).copied().collect()
}

/// What a session answered.
#[derive(Debug, PartialEq)]
struct Answers<T> {
    totals: Vec<u128>,
    samples: Vec<Picked<T>>,
    gains: Vec<u128>,
    /// By weight before a centroid is taken, by weight, by distance, among the rows of positive weight, and by distance after a
    /// candidate was taken.
    picked: [Picked<T>; 5],
    all: Picked<T>,
    masses: Vec<Vec<u128>>,
    positive: u64,
}

/// The questions, in the order in which they are asked.
struct Questions<T> {
    scales: [DistanceScale; 2],
    first: Vec<T>,
    batches: Vec<Vec<T>>,
    candidates: Vec<T>,
    /// The seed of the targets.
    targets: u64,
    sample: Sample,
}

impl<T: Float> Questions<T> {
    /// The samples of one state: of the right size, and of eight times the size that the caller expects.
    fn samples(&self, round: usize, total: u128) -> [Sample; 2] {
        let sample = Sample { round: round as u32 * 51, total, ..self.sample };
        [sample, Sample { total: total / 8, restart: 9, by_values: true, ..sample }]
    }

    /// Many targets below a total, in no order, some of them twice.
    fn many(&self, total: u128) -> Vec<u128> {
        let random = &mut Random(self.targets);
        let mut targets: Vec<u128> = (0..400).map(|_| below(random.next(), total)).collect();
        targets.extend_from_within(..20);
        targets.extend([0, total - 1]);
        targets
    }

    /// The candidate that is taken after the gains.
    fn chosen(&self) -> &[T] {
        &self.candidates[..self.first.len()]
    }

    /// The candidates that are taken later, one after the other, and two more centroids.
    fn later(&self) -> [&[T]; 4] {
        let d = self.first.len();
        [d..2 * d, 2 * d..3 * d, 3 * d..4 * d, 4 * d..6 * d].map(|range| &self.candidates[range])
    }

    fn ask(&self, session: &mut dyn Seeder<T>) -> Answers<T> {
        let by = |session: &mut dyn Seeder<T>, by, total| session.pick(&Draw::Totals(by, self.many(total))).unwrap();
        let mut totals = vec![session.weigh().unwrap()];
        let before = by(session, DrawBy::Weight, totals[0]);
        totals.push(session.lower(&self.first, self.scales[0]).unwrap());
        let mut samples = Vec::new();
        for (round, batch) in self.batches.iter().enumerate() {
            for sample in self.samples(round, totals[totals.len() - 1]) {
                samples.push(session.pick(&Draw::Each(sample)).unwrap());
            }
            totals.push(session.lower(batch, self.scales[0]).unwrap());
        }
        totals.push(session.lower(&[], self.scales[1]).unwrap());
        let total = totals[totals.len() - 1];
        let mut gains = session.gains(&self.candidates).unwrap();
        let positive = session.positive_rows();
        let three = [(DrawBy::Weight, totals[0]), (DrawBy::Distance, total), (DrawBy::Positive, positive.into())];
        let [weight, distance, one] = three.map(|(kind, total)| by(session, kind, total));
        // A session may know the totals from the gains, and take the candidate later.
        let total = session.lower(self.chosen(), self.scales[1]).unwrap();
        totals.push(total);
        let picked = [before, weight, distance, one, by(session, DrawBy::Distance, total)];
        for sample in self.samples(4, total) {
            samples.push(session.pick(&Draw::Each(sample)).unwrap());
        }
        assert_eq!(session.gains(self.chosen()).unwrap(), [0]);
        // After a candidate was taken: gains, another scale, more centroids.
        let [one, two, three, more] = self.later();
        for (step, candidate) in [one, two, three].into_iter().enumerate() {
            session.gains(&self.candidates).unwrap();
            totals.push(session.lower(candidate, self.scales[1]).unwrap());
            match step {
                0 => gains.extend(session.gains(&self.candidates).unwrap()),
                1 => totals.extend([0, 1].map(|scale| session.lower(&[], self.scales[scale]).unwrap())),
                _ => totals.push(session.lower(more, self.scales[1]).unwrap()),
            }
        }
        let all_rows = session.pick(&Draw::All).unwrap();
        let none = session.pick(&Draw::Totals(DrawBy::Distance, vec![])).unwrap();
        assert_eq!(none, Picked { rows: vec![], values: vec![], weights: vec![] });
        let mut all = self.first.clone();
        all.extend(self.batches.iter().flatten());
        let masses = vec![session.masses(&self.candidates).unwrap(), session.masses(&all).unwrap()];
        session.end_draws();
        Answers { totals, samples, gains, picked, all: all_rows, masses, positive }
    }

    fn answer(&self, mut direct: Direct<'_, T>) -> Answers<T> {
        let mut totals = vec![direct.integers().iter().sum()];
        direct.take(&self.first);
        totals.push(direct.total(self.scales[0]));
        let mut samples = Vec::new();
        for (round, batch) in self.batches.iter().enumerate() {
            let asked = self.samples(round, totals[totals.len() - 1]);
            samples.extend(asked.map(|sample| direct.sample(&sample, self.scales[0])));
            direct.take(batch);
            totals.push(direct.total(self.scales[0]));
        }
        let now = direct.total(self.scales[1]);
        totals.push(now);
        let weights = direct.draw_weights(self.scales[1]);
        let integers = direct.integers();
        let positives = integers.iter().map(|&integer| u128::from(integer > 0)).collect();
        let all_rows = Picked { rows: vec![], ..direct.picked((0..direct.x.len() as u64).collect()) };
        let mut all = self.first.clone();
        all.extend(self.batches.iter().flatten());
        let masses = vec![direct.masses(&self.candidates), direct.masses(&all)];
        let positive = direct.weights.iter().filter(|w| **w > 0.0).count() as u64;
        let candidates = self.candidates.chunks_exact(direct.x[0].len());
        let mut gains: Vec<u128> = candidates.clone().map(|candidate| direct.gain(candidate, self.scales[1])).collect();
        direct.take(self.chosen());
        let lowered = direct.draw_weights(self.scales[1]);
        totals.push(lowered.iter().sum());
        samples.extend(self.samples(4, totals[totals.len() - 1]).map(|sample| direct.sample(&sample, self.scales[1])));
        let picked = [integers.clone(), integers, weights, positives, lowered]
            .map(|weights| direct.pick(&weights, &self.many(weights.iter().sum())));
        let [one, two, three, more] = self.later();
        direct.take(one);
        totals.push(direct.total(self.scales[1]));
        gains.extend(candidates.map(|candidate| direct.gain(candidate, self.scales[1])));
        direct.take(two);
        totals.extend([1, 0, 1].map(|scale| direct.total(self.scales[scale])));
        direct.take(three);
        totals.push(direct.total(self.scales[1]));
        direct.take(more);
        totals.push(direct.total(self.scales[1]));
        Answers { gains, totals, samples, picked, all: all_rows, masses, positive }
    }
}

fn check<T: Float>(kind: &str, shape: [usize; 2], weighted: bool, seeds: [usize; 3]) {
    let random = &mut Random(shape[0] as u64 * 3 + u64::from(weighted));
    let data: Data<T> = data(kind, shape, weighted, random);
    let estimator = KMeans::new(5);
    let statistics = data.statistics(&estimator);
    let batches: Vec<Vec<T>> = seeds.iter().map(|&count| some(&data, count, random)).collect();
    let base = statistics.distances;
    let finer = base.finer(1 << 40, 1).unwrap_or(base);
    let questions = Questions {
        scales: [base, finer],
        first: some(&data, 1, random),
        batches,
        candidates: some(&data, 13, random),
        targets: random.next(),
        // The numbers of the rows go from 32 to 33 bits.
        sample: Sample {
            seed: random.next(),
            restart: 3,
            round: 0,
            total: 0,
            expected: 40,
            first: (1 << 32) - 500,
            by_values: false,
        },
    };
    let expected = questions.answer(Direct::new(&data, &statistics));
    let drawn: usize = expected.samples.iter().map(|sampled| sampled.rows.len()).sum();
    assert!(drawn > 100 && drawn < 3 * shape[0], "{drawn} of {shape:?}");
    assert!(expected.samples[1].rows.len() > 40 + 6 * 7 + 64, "more rows are drawn than a list for 40 has room for");
    every_way(&data, &statistics, &estimator, |what, session| {
        let answers = questions.ask(session);
        assert_eq!(answers, expected, "{kind}, {shape:?}, {}, weights: {weighted}, {what}", T::NAME);
    });
}

#[test]
fn draws_are_those_of_a_direct_computation() {
    for weighted in [false, true] {
        check::<f32>("blobs", [6_000, 3], weighted, [1, 12, 40]);
        check::<f64>("blobs", [5_000, 4], weighted, [2, 300, 700]);
        check::<f32>("lattice", [4_500, 9], weighted, [3, 8, 300]);
        check::<f64>("uniform", [3_300, 40], weighted, [0, 31, 9]);
    }
    // More features than the points of a group have room for in the shared memory of a block.
    check::<f32>("uniform", [2_100, 300], true, [1, 9, 20]);
}

#[test]
fn a_certain_row_is_always_in_the_sample() {
    // One row has all of the draw weight, and others have none.
    let mut x = vec![1.0f64; 1_500];
    x[1_234] = 5.0;
    let data = Data { x, weights: None, d: 1 };
    let estimator = KMeans::new(1);
    let statistics = data.statistics(&estimator);
    every_way(&data, &statistics, &estimator, |what, session| {
        session.weigh().unwrap();
        let total = session.lower(&[1.0], statistics.distances).unwrap();
        for seed in 0..20 {
            let sample = Sample { seed, restart: 0, round: 255, total, expected: 1, first: 0, by_values: false };
            let picked = session.pick(&Draw::Each(sample)).unwrap();
            assert_eq!(picked, Picked { rows: vec![1_234], values: vec![5.0], weights: vec![1.0] }, "{what}");
        }
        session.end_draws();
    });
}
