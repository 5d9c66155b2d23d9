//! Sums as values, and models of sums: against integers of any size, in any split, added and removed.

use num_bigint::BigInt;
use polars_kmeans::{
    Column, Decay, Device, Engine, Extents, Features, Float, Init, KMeans, KMeansError, Labels, Metric, Model, NullPolicy,
    Scale, Start, Sums, Update,
};

use super::data::{
    KINDS, Random, clusters_of, columns, from_columns, from_some, gpu, in_chunks, rounds, rows, some_cuts, transformed,
};
use super::data::{here_and_on_gpu, some_weights};
use super::oracle::{self, Scaling, Task, direction, quantise, round_ratio};

/// A random table, and the model of a fit to it that keeps its sums.
struct Case<T> {
    d: usize,
    x: Vec<T>,
    weights: Option<Vec<f64>>,
    model: Model<T>,
    labels: Labels,
    /// Whether the last iteration changed no label, and no row ever moved to an empty cluster.
    settled: bool,
}

fn update<'u>(sums: &'u Sums, removed: Option<&'u Sums>, start: Start, decay: Option<Decay>) -> Update<'u> {
    Update { sums: Some(sums), removed, start, decay, ..Update::default() }
}

fn weight_column(weights: &Option<Vec<f64>>) -> Option<Column<'_, f64>> {
    weights.as_ref().map(|weights| Column::from_slice(weights))
}

impl<T: Engine> Case<T> {
    /// `None` if a fit refuses the rows.
    fn new(round: u64) -> Option<Self> {
        let random = &mut Random(round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (n, d) = (5 + random.below(60), 1 + random.below(5));
        let mut x: Vec<T> = rows(kind, n, d, random);
        let estimator = transformed(from_some(&x, d, clusters_of(kind, d, 1 + random.below(5)), 6, random), round, d);
        let weights = (random.below(2) == 0).then(|| some_weights(n, random));
        if round.is_multiple_of(4) {
            x[random.below(n * d)] = T::from_f64(f64::NAN);
        }
        let estimator = estimator.null_policy(NullPolicy::Skip).keep_sums(true).max_iter(1 + random.below(20) as u32);
        // Now and then there is room for larger values. Rows decide where they are larger.
        let extents = (0..d).map(|_| random.below(3) as f64 * 40.0).collect();
        let estimator = if round.is_multiple_of(5) { estimator.extents(Extents::InOrder(extents)) } else { estimator };
        let features = Features::from_rows(&x, d).unwrap();
        let (mut model, mut relocated) = (None, false);
        for estimator in here_and_on_gpu(&estimator) {
            let fit = estimator.fit_features(&features, weight_column(&weights).as_ref()).ok()?;
            assert!(model.as_ref().is_none_or(|(first, _): &(Model<T>, Labels)| first.kept_sums() == fit.model.kept_sums()));
            relocated = !fit.relocated.is_empty();
            model = Some((fit.model.clone(), fit.expand().unwrap()));
        }
        let (model, labels) = model?;
        let settled = !relocated && model.history().last().is_some_and(|row| row.changed == 0);
        Some(Self { d, x, weights, model, labels, settled })
    }

    /// The sums of some rows, under given labels or under the model's own.
    fn sums(&self, rows: std::ops::Range<usize>, labelled: bool) -> Sums {
        let features = Features::from_rows(&self.x[rows.start * self.d..rows.end * self.d], self.d).unwrap();
        let weights = self.weights.as_ref().map(|weights| Column::from_slice(&weights[rows.clone()]));
        let labels = labelled.then(|| self.model.predict(&features).unwrap());
        self.model.sums(&features, weights.as_ref(), labels.as_ref()).unwrap()
    }

    fn none(&self) -> Sums {
        Sums::none(self.model.fingerprint().unwrap(), self.model.n_clusters(), self.d).unwrap()
    }

    /// Rows as they arrive, by the oracle. `None` for rows that were left out.
    fn arrived(&self) -> Vec<Option<Vec<T>>> {
        let scaling = self.model.scaling().map_or(Scaling::None, |scaling| Scaling::Factors(scaling.factors().to_vec()));
        let arrive = |(row, label): (&[T], Option<u32>)| {
            label?;
            let mut task = Task::new(vec![row.to_vec()], 1, oracle::Start::Random);
            task.cosine = self.model.settings().metric == "cosine";
            Some(oracle::transform(&task, &scaling).0.rows.remove(0))
        };
        self.x.chunks(self.d).zip(self.labels.iter()).map(arrive).collect()
    }
}

fn checked<T: Engine>(round: u64) -> [usize; 3] {
    let Some(case) = Case::<T>::new(round) else { return [0; 3] };
    let (random, n) = (&mut Random(round + 77), case.labels.len());
    let (units, weight_unit) = case.model.units().unwrap();
    let (k, d) = (case.model.n_clusters(), case.d);
    // The kept sums are those of an aggregation, which are those of integers of any size.
    let whole = case.sums(0..n, false);
    assert_eq!(case.model.kept_sums().unwrap(), &whole, "round {round}");
    let (mut sums, mut masses) = (vec![BigInt::ZERO; k * d], vec![BigInt::ZERO; k]);
    for (i, row) in case.arrived().into_iter().enumerate() {
        let (Some(row), Some(j)) = (row, case.labels.get(i)) else { continue };
        let weight = case.weights.as_ref().map_or(1.0, |weights| weights[i]);
        let integer = if weight > 0.0 { quantise(weight, weight_unit).max(1.into()) } else { BigInt::ZERO };
        let rounded: f64 = round_ratio(&integer, &1.into(), weight_unit);
        for f in 0..d {
            sums[j as usize * d + f] += quantise(rounded * row[f].to_f64(), units[f]);
        }
        masses[j as usize] += integer;
    }
    let wide = |values: &[i128]| values.iter().map(|value| BigInt::from(*value)).collect::<Vec<_>>();
    assert_eq!((wide(&whole.sums), wide(&whole.weights)), (sums.clone(), masses.clone()), "round {round}");
    // Any split, in any order, in chunks, on any device.
    let cuts = some_cuts(n, 1 + random.below(6), random);
    let mut parts: Vec<Sums> = cuts.windows(2).map(|cut| case.sums(cut[0]..cut[1], random.below(2) == 0)).collect();
    let mut merged = case.none();
    while !parts.is_empty() {
        merged.add(&parts.swap_remove(random.below(parts.len()))).unwrap();
    }
    assert_eq!(merged, whole, "round {round}");
    let by_column = columns(&case.x, d);
    let chunked = Features::new(by_column.iter().map(|column| in_chunks(column, random)).collect()).unwrap();
    let chunked = chunked.with_names(from_columns(&by_column).names().clone()).unwrap();
    for device in [Some(Device::Cpu), gpu()].into_iter().flatten() {
        let weights = weight_column(&case.weights);
        assert_eq!(case.model.on(device).sums(&chunked, weights.as_ref(), None).unwrap(), whole, "round {round}");
    }
    // The update is the exact quotient.
    let zero = case.model.updated(&update(&whole, None, Start::Zero, None)).unwrap();
    for j in (0..k).filter(|j| masses[*j] > BigInt::ZERO) {
        let mean = |f: usize| (&sums[j * d + f], &masses[j], units[f] - weight_unit);
        let expected: Vec<T> = if case.model.settings().metric == "cosine" {
            let exact: Vec<f64> = (0..d).map(|f| round_ratio(mean(f).0, mean(f).1, mean(f).2)).collect();
            let old: Vec<f64> = case.model.centroids()[j * d..][..d].iter().map(|c| c.to_f64()).collect();
            direction(&exact).unwrap_or(old).into_iter().map(T::from_f64).collect()
        } else {
            (0..d).map(|f| round_ratio(mean(f).0, mean(f).1, mean(f).2)).collect()
        };
        assert_eq!(zero.centroids()[j * d..][..d], expected, "round {round}");
    }
    let same = case.model.updated(&update(&case.none(), None, Start::Kept, None)).unwrap();
    assert_eq!(same, zero, "round {round}: no rows more");
    // Add, then remove with the labels of then.
    let extra = case.sums(0..random.below(n), false);
    let more = same.updated(&update(&extra, None, Start::Kept, None)).unwrap();
    assert_eq!(more.updated(&update(&case.none(), Some(&extra), Start::Kept, None)).unwrap().centroids(), same.centroids());
    assert_eq!(same.updated(&update(&extra, Some(&extra), Start::Kept, None)).unwrap(), same, "round {round}");
    // A decay by 1 is none, one by 0 leaves nothing but the numbers of rows.
    let all = Some(Decay { factor: 1 << 7, shift: 7 });
    assert_eq!(same.updated(&update(&extra, None, Start::Kept, all)).unwrap(), more, "round {round}");
    let forgotten = same.updated(&update(&whole, None, Start::Kept, Some(Decay { factor: 0, shift: 9 }))).unwrap();
    assert_eq!(forgotten.centroids(), zero.centroids(), "round {round}");
    // A fit clamps means to the extents of the columns. Weights may round the mean of equal values beyond them.
    let mut clamped = zero.centroids().to_vec();
    if case.model.settings().metric == "euclidean" {
        let counted = case.arrived().into_iter().enumerate().filter(|(i, _)| case.weights.as_ref().is_none_or(|w| w[*i] > 0.0));
        let there: Vec<Vec<T>> = counted.filter_map(|(_, row)| row).collect();
        for (i, c) in clamped.iter_mut().enumerate() {
            let column = || there.iter().map(|row| row[i % d].to_f64());
            let (low, high) = (column().fold(f64::INFINITY, f64::min), column().fold(f64::NEG_INFINITY, f64::max));
            if masses[i / d] > BigInt::ZERO {
                *c = T::from_f64(c.to_f64().clamp(low, high));
            }
        }
    }
    // All rows from zero are the next iteration of a fit, where that has the same quanta and no empty cluster.
    let ordinary = !["mixed scales", "denormals", "sentinel", "a row far out"].contains(&KINDS[round as usize % KINDS.len()]);
    if ordinary && case.model.scaling().is_none() && case.model.settings().metric == "euclidean" {
        let given = Init::Given(case.model.centroids().iter().map(|c| c.to_f64()).collect());
        let next = KMeans::new(k).init(given).max_iter(1).null_policy(NullPolicy::Skip).keep_sums(true);
        let next = next.fit_features(&Features::from_rows(&case.x, d).unwrap(), weight_column(&case.weights).as_ref());
        let next = next.ok().filter(|next| next.relocated.is_empty() && next.model.units() == case.model.units());
        assert!(next.is_none_or(|next| next.model.centroids() == clamped), "round {round}");
    }
    // Nothing changes after a fit that has settled.
    let unchanged = clamped == case.model.centroids();
    assert!(unchanged || !case.settled || !ordinary, "round {round} {:?}", case.model.history().len());
    [1, case.settled.into(), (case.settled && unchanged).into()]
}

in_both_types!(sums_and_updates_of_random_tables, T => {
    let mut seen = [0; 3];
    for round in 0..rounds(5_000) as u64 {
        seen.iter_mut().zip(checked::<T>(round)).for_each(|(seen, more)| *seen += more);
    }
    assert!(seen[0] > rounds(5_000) * 3 / 5 && seen[1] > seen[0] / 3, "{seen:?}");
});

/// A model of one feature with two clusters.
fn small<T: Engine>(weights: Option<&[f64]>) -> Model<T> {
    let x = [0.0, 1.0, 7.0, 8.0].map(T::from_f64);
    let estimator = KMeans::new(2).init(Init::Given(vec![0.0, 8.0])).keep_sums(true);
    let weights = weights.map(Column::from_slice);
    estimator.fit_features(&Features::from_rows(&x, 1).unwrap(), weights.as_ref()).unwrap().model
}

fn sums_of<T: Engine>(model: &Model<T>, x: &[f64], weights: Option<&[f64]>) -> polars_kmeans::Result<Sums> {
    let x: Vec<T> = x.iter().map(|x| T::from_f64(*x)).collect();
    model.sums(&Features::from_rows(&x, 1).unwrap(), weights.map(Column::from_slice).as_ref(), None)
}

in_both_types!(values_up_to_sixteen_times_the_extent_are_taken, T => {
    // The power of two above the extent is 8.
    let model = small::<T>(None);
    let most = sums_of(&model, &[128.0, -128.0, 127.875], None).unwrap();
    let updated = model.updated(&update(&most, None, Start::Zero, None)).unwrap();
    assert_eq!(updated.centroids().iter().map(|c| c.to_f64()).collect::<Vec<_>>(), [-128.0, 127.9375]);
    let beyond = T::from_f64(128.0).to_f64() * (1.0 + if T::IS_F32 { f64::from(f32::EPSILON) } else { f64::EPSILON });
    let refused = sums_of(&model, &[1.0, beyond], None).unwrap_err();
    let is_right = matches!(&refused, KMeansError::BeyondExtent { column, got, limit: 128.0, .. } if column == "column_0" && *got == beyond);
    assert!(is_right, "{refused}");
    let weighted = small::<T>(Some(&[1.0, 2.0, 1.0, 2.0]));
    assert!(sums_of(&weighted, &[1.0], Some(&[32.0])).is_ok());
    assert!(matches!(sums_of(&weighted, &[1.0], Some(&[33.0])), Err(KMeansError::BeyondExtent { limit: 32.0, .. })));
    assert!(matches!(sums_of(&weighted, &[1.0], Some(&[-1.0])), Err(KMeansError::NegativeWeight { row: 0, .. })));
});

in_both_types!(what_cannot_be_is_refused, T => {
    let model = small::<T>(None);
    let one = sums_of(&model, &[1.0], None).unwrap();
    let none = Sums::none(one.fingerprint, 2, 1).unwrap();
    let text = |result: polars_kmeans::Result<Model<T>>| result.unwrap_err().to_string();
    let mut twice = one.clone();
    twice.subtract(&one).unwrap();
    assert_eq!(twice, none);
    let taken = model.updated(&update(&none, model.kept_sums(), Start::Kept, None)).unwrap();
    assert_eq!((taken.sizes(), taken.centroids()), (&[0, 0][..], model.centroids()), "without rows, centroids stay");
    assert!(text(taken.updated(&update(&none, Some(&one), Start::Kept, None))).contains("0 to 2^33 - 1 rows in cluster 0 (is a table added twice, or removed twice?), got -1"));
    let mut light = one.clone();
    light.weights[0] = 0;
    assert!(text(model.updated(&update(&light, None, Start::Zero, None))).contains("a weight from 1 to"));
    let mut heavy = one.clone();
    heavy.sums[0] = i128::MAX;
    assert!(text(model.updated(&update(&heavy, None, Start::Zero, None))).contains("a sum of at most"));
    // Through 2^127 and back.
    let mut wrapped = one.clone();
    wrapped.add(&heavy).unwrap();
    wrapped.subtract(&heavy).unwrap();
    assert_eq!(wrapped, one);
    let half = model.updated(&update(&one, None, Start::Kept, Some(Decay::try_from(0.5).unwrap()))).unwrap();
    for decay in [None, Some(Decay { factor: 1, shift: 0 })] {
        assert!(text(half.updated(&update(&none, Some(&one), Start::Kept, decay))).starts_with("removed: expected none after a decay"));
    }
    assert!(half.updated(&update(&one, Some(&one), Start::Zero, None)).is_ok(), "it began anew");
    assert!(Decay::try_from(1.5).is_err() && Decay::try_from(f64::NAN).is_err());
    let other = KMeans::new(2).fit_features(&Features::from_rows(&[0.0f64, 100.0], 1).unwrap(), None).unwrap().model;
    assert_ne!(other.fingerprint().unwrap(), model.fingerprint().unwrap());
    let sums = Sums { fingerprint: other.fingerprint().unwrap(), ..none.clone() };
    assert!(text(model.updated(&update(&sums, None, Start::Kept, None))).starts_with("sums: expected sums of this model (fingerprint"));
    assert!(other.updated(&update(&sums, None, Start::Kept, None)).unwrap_err().to_string().contains("KMeans(keep_sums=True)"));
    // Opposite directions have a mean of zero, which has no direction.
    let x = [1.0, 0.1, 0.0, 1.0].map(T::from_f64);
    let estimator = KMeans::new(1).metric(Metric::Cosine).keep_sums(true).scale(Scale::Factors([("column_0".into(), 2.0)].into()));
    let round = estimator.fit_features(&Features::from_rows(&x, 2).unwrap(), None).unwrap().model;
    let opposite = [2.0, 1.0, -2.0, -1.0].map(T::from_f64);
    let sums = round.sums(&Features::from_rows(&opposite, 2).unwrap(), None, None).unwrap();
    assert_eq!(round.updated(&update(&sums, None, Start::Zero, None)).unwrap().centroids(), round.centroids());
});

fn nearest<T: Engine>(kind: &str, [n, d, k, m]: [usize; 4]) {
    let random = &mut Random((d * k + m) as u64);
    let x: Vec<T> = rows(kind, n, d, random);
    let estimator = KMeans::new(k).init(Init::Given(x[..k * d].iter().map(|c| c.to_f64()).collect())).max_iter(1).tol(0.0);
    let Ok(fit) = estimator.fit_features(&Features::from_rows(&x, d).unwrap(), None) else { return };
    let mut rows = x.clone();
    rows[d * (n / 2)] = T::from_f64(f64::NAN);
    let features = Features::from_rows(&rows, d).unwrap();
    let order = check_nearest(&fit.model, &features, m, &format!("{kind} n {n} d {d} k {k} m {m}"));
    assert!(order.iter().enumerate().all(|(i, order)| order.is_some() == (i != n / 2)));
}

/// Squared distances and clusters, in ascending order.
type Order = Vec<(f64, u32)>;

/// Checks the m nearest clusters. Returns the order of all clusters for each row with an answer.
fn check_nearest<T: Engine>(model: &Model<T>, features: &Features<'_, T>, m: usize, what: &str) -> Vec<Option<Order>> {
    let near = model.nearest_clusters(features, m, true).unwrap();
    if let Some(device) = gpu() {
        assert_eq!(model.on(device).nearest_clusters(features, m, true).unwrap(), near, "{what}");
    }
    let check = |(i, all): (usize, &[f64])| {
        let mut order: Order = all.iter().copied().zip(0..).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let found: Order =
            near.distances[i * m..][..m].iter().copied().zip(near.clusters[i * m..][..m].iter().copied()).collect();
        near.answered.get(i).then(|| {
            assert_eq!(found, order[..m], "{what} row {i}");
            order
        })
    };
    model.transform(features, true).unwrap().chunks_exact(model.n_clusters()).enumerate().map(check).collect()
}

in_both_types!(the_nearest_clusters_are_those_of_all_distances, T => {
    for kind in KINDS {
        let shapes = [[90, 1, 5, 5], [150, 3, 40, 2], [130, 9, 33, 8], [70, 20, 64, 16], [300, 17, 200, 3], [90, 70, 30, 1]];
        shapes.into_iter().for_each(|shape| nearest::<T>(kind, shape));
    }
    nearest::<T>("lattice", [1_500, 12, 1_300, 8]);
    nearest::<T>("blobs", [20_000, 10, 100, 4]);
});

/// Clusters enough for a tree are the points of a lattice, in an order of their numbers that has nothing to do with their places.
/// Rows lie on the lattice, or between 2, 4, .. of its points, or in a corner: many clusters are equally near, in several leaves.
fn nearest_of_equals<T: Engine>(d: usize, side: usize) {
    let (k, shuffle) = (side.pow(d as u32), 7_919);
    let point = |p: usize| (0..d as u32).map(move |f| (p / side.pow(f) % side) as f64);
    let centroids: Vec<T> = (0..k).flat_map(|j| point(j * shuffle % k)).map(T::from_f64).collect();
    let given = Init::Given(centroids.iter().map(|c| c.to_f64()).collect());
    let estimator = KMeans::new(k).init(given).max_iter(1).tol(0.0);
    let model = estimator.fit_features(&Features::from_rows(&centroids, d).unwrap(), None).unwrap().model;
    assert!(model.centroids() == centroids, "each point is a cluster");
    let halves = |r: usize| move |f: usize| if r >> f & 1 == 1 { 0.5 } else { 0.0 };
    let rows: Vec<T> =
        (0..150).flat_map(|r| point(r * 31 % k).enumerate().map(move |(f, x)| T::from_f64(x + halves(r)(f)))).collect();
    let features = Features::from_rows(&rows, d).unwrap();
    // The last one is more than a leaf holds.
    for m in [1, 2, 3, 4, 5, 7, 12, 40] {
        let order = check_nearest(&model, &features, m, &format!("lattice d {d} k {k} m {m}"));
        let ties = order.iter().flatten().filter(|order| order[m - 1].0 == order[m].0).count();
        assert!(ties > 20, "d {d} m {m}: the last place is between equals in {ties} rows");
        let found = model.predict_distances(&features).unwrap();
        for (found, order) in found.iter().flatten().zip(order.iter().flatten()) {
            let [(nearest, label), (second, _)] = [order[0], order[1]];
            let expected = (label, nearest.sqrt(), Some(second.sqrt()));
            assert_eq!((found.label, found.distance, found.second_distance), expected, "lattice d {d}");
        }
        let labels = model.predict(&features).unwrap();
        assert!(labels.iter().flatten().eq(order.iter().flatten().map(|order| order[0].1)), "lattice d {d}");
    }
}

in_both_types!(of_equally_near_clusters_the_smallest_numbers_come_first, T => {
    [[1, 600], [2, 23], [3, 11], [4, 6]].into_iter().for_each(|[d, side]| nearest_of_equals::<T>(d, side));
});

#[test]
fn a_step_is_an_update() {
    let x: Vec<f64> = (0..200).map(|i| f64::from(i % 10) + if i % 50 == 0 { 1_000.0 } else { 0.0 }).collect();
    let features = Features::from_rows(&x, 1).unwrap();
    let given = KMeans::new(3).init(Init::Given(vec![2.0, 7.0, -500.0])).max_iter(1);
    let start = given.keep_sums(true).fit_features(&features, None).unwrap().model;
    let sums = start.sums(&features, None, None).unwrap();
    let (stepped, inertia) = start.stepped(&features, None, 0.0).unwrap();
    assert_eq!(stepped, start.updated(&update(&sums, None, Start::Kept, None)).unwrap());
    assert!((inertia + start.score(&features, None).unwrap()).abs() < 1e-6 * inertia);
}

/// The least of three times of a step with `k` clusters. Half of them are light, and each of these takes a row.
fn seconds_of_a_step(k: u32) -> f64 {
    let x: Vec<f64> = (0..k).map(f64::from).collect();
    let given = KMeans::new(k as usize).init(Init::Given(x.clone())).max_iter(1).keep_sums(true);
    let start = given.fit_features(&Features::from_rows(&x, 1).unwrap(), None).unwrap().model;
    let batch: Vec<f64> = (0..3 * k / 2).map(|i| f64::from(i % (k / 2)) + 0.25).collect();
    let batch = Features::from_rows(&batch, 1).unwrap();
    let step = |_| {
        let begin = std::time::Instant::now();
        let (stepped, _) = start.stepped(&batch, None, 0.5).unwrap();
        assert!(stepped.centroids()[(k / 2) as usize..].iter().all(|c| c.fract() == 0.25), "light clusters lie at rows");
        begin.elapsed().as_secs_f64()
    };
    (0..3).map(step).fold(f64::INFINITY, f64::min)
}

#[test]
fn the_time_of_a_step_grows_with_the_clusters() {
    // Sixteen times in theory, 256 times if each light cluster looked at all others.
    let [few, many] = [2_000, 32_000].map(seconds_of_a_step);
    assert!(many < 64.0 * few, "{few} s with 2,000 clusters, {many} s with 32,000");
}

in_both_types!(decayed_means_are_those_of_fractions, T => {
    // The weight of each cluster and its sum, over 2^shift: the same for both.
    struct Exact {
        weight: BigInt,
        sum: BigInt,
        rows: i64,
    }
    for (factor, shift, weighted) in [(9u64, 4u32, false), (3_865_470_566, 32, false), (1, 1, true), (4_294_967_000, 32, true)] {
        let random = &mut Random(factor);
        let start = [0.5, 3.25, 100.1, 101.7, 1_000.3, 999.9].map(T::from_f64);
        let weights = [0.5, 1.0, 0.25, 1.0, 0.75, 0.5];
        let estimator = KMeans::new(3).init(Init::Given(vec![1.0, 100.0, 1_000.0])).keep_sums(true).max_iter(1);
        let column = weighted.then(|| Column::from_slice(&weights));
        let mut model = estimator.fit_features(&Features::from_rows(&start, 1).unwrap(), column.as_ref()).unwrap().model;
        let (units, weight_unit) = model.units().unwrap();
        let kept = model.kept_sums().unwrap().clone();
        let mut exact: Vec<Exact> = (0..3)
            .map(|j| Exact { weight: kept.weights[j].into(), sum: kept.sums[j].into(), rows: kept.rows[j] })
            .collect();
        let (a, mut bits) = (factor as f64 / 2f64.powi(shift as i32), 0);
        let mut asleep = [0u32; 3];
        for step in 0..600 {
            // Cluster 0 gets rows often, cluster 1 after long sleeps, cluster 2 hardly ever.
            let wakes = [random.below(3) > 0, step % 97 == 5, step == 300];
            let rows: Vec<(f64, u32)> = (0..3u32)
                .filter(|j| wakes[*j as usize])
                .flat_map(|j| (0..1 + j).map(move |i| ([0.0, 100.0, 1_000.0][j as usize] + f64::from(i) * 0.37, j)))
                .collect();
            let x: Vec<T> = rows.iter().map(|row| T::from_f64(row.0)).collect();
            let w: Vec<f64> = rows.iter().map(|_| 0.25 * (1.0 + random.below(4) as f64)).collect();
            let column = weighted.then(|| Column::from_slice(&w));
            let features = Features::from_rows(&x, 1).unwrap();
            let table = model.sums(&features, column.as_ref(), None).unwrap();
            let before = model.clone();
            model = model.updated(&update(&table, None, Start::Kept, Some(Decay { factor, shift }))).unwrap();
            bits += shift;
            for (j, exact) in exact.iter_mut().enumerate() {
                exact.weight = &exact.weight * factor + (BigInt::from(table.weights[j]) << bits);
                exact.sum = &exact.sum * factor + (BigInt::from(table.sums[j]) << bits);
                exact.rows += table.rows[j];
                asleep[j] = if wakes[j] { 0 } else { asleep[j] + 1 };
                assert_eq!(model.sizes()[j], exact.rows as u64);
                if !wakes[j] && step > 0 {
                    let kept = |model: &Model<T>| (model.kept_sums().unwrap().weights[j], model.kept_sums().unwrap().sums[j]);
                    assert_eq!(kept(&model), kept(&before), "a cluster without rows keeps its integers");
                    assert_eq!(model.centroids()[j], before.centroids()[j], "and its centroid");
                }
                let mean: f64 = round_ratio(&exact.sum, &exact.weight, units[0] - weight_unit);
                let heavy: f64 = round_ratio(&exact.weight, &(BigInt::from(1) << bits), weight_unit);
                // The weight when it got rows last: sleep divides weight and sum alike.
                let awake = heavy / a.powi(asleep[j] as i32);
                let got = model.centroids()[j].to_f64();
                let quanta = (2f64.powi(units[0]) + 1_000.0 * 2f64.powi(weight_unit)) / awake;
                let ulp = mean.abs() * if T::IS_F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
                let allowed = (1.0 + 1.0 / (1.0 - a)) * quanta + ulp;
                assert!((got - mean).abs() <= allowed, "step {step} cluster {j}: {got} for {mean}, allowed {allowed:e}");
                let weight = model.weights().unwrap()[j];
                assert!((weight - heavy).abs() <= heavy * 1e-9 + 700.0 * 2f64.powi(weight_unit), "{weight} for {heavy}");
            }
        }
    }
});

in_both_types!(tables_after_a_decay_commute, T => {
    let model = small::<T>(None);
    let tables: Vec<Sums> = [&[0.5, 7.5][..], &[1.0], &[8.0, 8.0, 6.5]].map(|x| sums_of(&model, x, None).unwrap()).into();
    let decay = Some(Decay::try_from(0.3).unwrap());
    let mut all = Sums::none(tables[0].fingerprint, 2, 1).unwrap();
    tables.iter().for_each(|table| all.add(table).unwrap());
    let whole = model.updated(&update(&all, None, Start::Kept, decay)).unwrap();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut parts = model.clone();
        for (i, at) in order.into_iter().enumerate() {
            parts = parts.updated(&update(&tables[at], None, Start::Kept, decay.filter(|_| i == 0))).unwrap();
        }
        assert_eq!(parts, whole);
    }
});

in_both_types!(batches_have_keys_that_are_taken_once, T => {
    let model = small::<T>(None);
    let table = sums_of(&model, &[0.5, 7.5], None).unwrap();
    let some = Some(&table);
    let add = |model: &Model<T>, key| model.updated(&Update { sums: some, batch: Some(key), ..Update::default() });
    let take = |model: &Model<T>, key| model.updated(&Update { removed: some, removed_batch: Some(key), ..Update::default() });
    let text = |result: polars_kmeans::Result<Model<T>>| result.unwrap_err().to_string();
    let both = add(&add(&model, "b").unwrap(), "a").unwrap();
    assert_eq!(both.batches(), [&["a", "b"][..], &[]]);
    assert!(text(add(&both, "a")).contains("\"a\", which was added: each batch counts once"));
    let less = take(&both, "a").unwrap();
    assert_eq!(less.batches(), [&["b"][..], &["a"]]);
    assert_eq!(less.kept_sums(), add(&model, "b").unwrap().kept_sums());
    assert!(text(add(&less, "a")).contains("which was removed"));
    assert!(text(take(&less, "a")).contains("which was removed"));
    // A part of a batch has a key of its own.
    assert_eq!(take(&both, "a, rows 1 and 2").unwrap().batches()[1], ["a, rows 1 and 2"]);
    let same = Update { sums: some, batch: Some("c"), removed: some, removed_batch: Some("c"), ..Update::default() };
    assert!(text(model.updated(&same)).starts_with("removed_batch: expected the key of another batch"));
    assert!(text(model.updated(&Update { batch: Some("c"), ..Update::default() })).contains("without a table"));
    assert!(text(model.updated(&Update { sums: some, removed_batch: Some("c"), ..Update::default() })).contains("without a table"));
    let zero = less.updated(&Update { sums: some, start: Start::Zero, ..Update::default() }).unwrap();
    assert_eq!(zero.batches(), [&[] as &[String]; 2]);
});

in_both_types!(models_are_widened, T => {
    let mut wider = 0;
    for round in 0..rounds(400) as u64 {
        let Some(case) = Case::<T>::new(round) else { continue };
        let (random, d, k) = (&mut Random(round + 5), case.d, case.model.n_clusters());
        let n = case.labels.len();
        let more = case.model.updated(&update(&case.sums(0..n / 2, false), None, Start::Kept, None)).unwrap();
        let extents: Vec<f64> = (0..d).map(|_| [0.0, 1e3, 1e9, 3e11][random.below(4)]).collect();
        let weight = case.weights.as_ref().map(|_| [1.0, 64.0, 1e5][random.below(3)]);
        let wide = match more.with_wider_extents(&extents, weight) {
            Ok(wide) => wide,
            // A factor may take a magnitude out of range.
            Err(KMeansError::BeyondSums { .. } | KMeansError::InvalidOption { option: "extents", .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let ((old, old_weight), (new, new_weight)) = (more.units().unwrap(), wide.units().unwrap());
        let (before, after) = (more.kept_sums().unwrap(), wide.kept_sums().unwrap());
        let rounded = |value: i128, [from, to]: [i32; 2]| -> BigInt {
            let shifted: BigInt = BigInt::from(value) << (from + 3_000);
            let (unit, half) = (BigInt::from(1) << (to + 3_000), BigInt::from(1) << (to + 2_999));
            let low: BigInt = ((&shifted % &unit) + &unit) % &unit;
            let floor: BigInt = (&shifted - &low) / &unit;
            let odd = &floor % 2 != BigInt::ZERO;
            if low > half || (low == half && odd) { floor + 1 } else { floor }
        };
        for j in 0..k {
            let weight = rounded(before.weights[j], [old_weight, new_weight]);
            assert_eq!(BigInt::from(after.weights[j]), weight, "round {round}");
            for f in 0..d {
                let sum = if weight == BigInt::ZERO { BigInt::ZERO } else { rounded(before.sums[j * d + f], [old[f], new[f]]) };
                assert_eq!(BigInt::from(after.sums[j * d + f]), sum, "round {round}");
            }
        }
        assert_eq!(wide.centroids(), more.centroids());
        if wide.fingerprint() == more.fingerprint() {
            assert_eq!(wide, more, "nothing is wider");
            continue;
        }
        wider += 1;
        let refused = wide.updated(&update(&case.sums(0..n, false), None, Start::Kept, None)).unwrap_err().to_string();
        assert!(refused.contains("from before the model was widened"), "{refused}");
        let table = |rows: std::ops::Range<usize>| {
            let features = Features::from_rows(&case.x[rows.start * d..rows.end * d], d).unwrap();
            let weights = case.weights.as_ref().map(|weights| Column::from_slice(&weights[rows.clone()]));
            wide.sums(&features, weights.as_ref(), Some(&case.model.predict(&features).unwrap())).unwrap()
        };
        // Rows can still be removed, all of them too.
        let gone = wide.updated(&update(&table(0..n), Some(&table(0..n)), Start::Kept, None)).unwrap();
        assert_eq!(gone.kept_sums(), wide.kept_sums(), "round {round}");
        let none = Sums::none(wide.fingerprint().unwrap(), k, d).unwrap();
        let mut all = table(0..n);
        all.add(&table(0..n / 2)).unwrap();
        let empty = wide.updated(&update(&none, Some(&all), Start::Kept, None)).unwrap();
        assert_eq!(empty.kept_sums(), Some(&none), "round {round}");
    }
    assert!(wider > rounds(400) / 5, "{wider}");
});

in_both_types!(a_column_of_zeros_takes_values_once_it_is_widened, T => {
    let x = [0.0, 1.0, 0.0, 9.0].map(T::from_f64);
    let zeros = KMeans::new(2).init(Init::Given(vec![0.0, 1.0, 0.0, 9.0])).keep_sums(true);
    let model = zeros.clone().fit_features(&Features::from_rows(&x, 2).unwrap(), None).unwrap().model;
    let later = [1e20, 2.0].map(T::from_f64);
    let later = Features::from_rows(&later, 2).unwrap();
    let refused = model.sums(&later, None, None).unwrap_err();
    assert!(matches!(&refused, KMeansError::BeyondExtent { remedy, .. } if remedy.contains("widened({\"column_0\": ")), "{refused}");
    let means = |model: &Model<T>| model.centroids().iter().map(|c| c.to_f64()).collect::<Vec<_>>();
    let half = T::from_f64(T::from_f64(1e20).to_f64() / 2.0).to_f64();
    let extents = KMeans::extents(zeros, Extents::InOrder(vec![1e20, 0.0])).fit_features(&Features::from_rows(&x, 2).unwrap(), None);
    for wide in [model.with_wider_extents(&[1e20, 0.0], None).unwrap(), extents.unwrap().model] {
        let sums = wide.sums(&later, None, None).unwrap();
        let updated = wide.updated(&update(&sums, None, Start::Kept, None)).unwrap();
        assert_eq!(means(&updated), [half, 1.5, 0.0, 9.0]);
        let (stepped, _) = model.stepped(&later, None, 0.0).unwrap();
        assert_eq!(means(&stepped), means(&updated));
        // Sums that are there keep their digits: a sentinel is refused.
        let sentinel = [if T::IS_F32 { 3e38 } else { 1e37 }, 1e37].map(T::from_f64);
        let sentinel = Features::from_rows(&sentinel, 2).unwrap();
        assert!(matches!(stepped.stepped(&sentinel, None, 0.0), Err(KMeansError::BeyondSums { .. })));
        assert!(matches!(updated.with_wider_extents(&[0.0, 1e37], None), Err(KMeansError::BeyondSums { .. })));
    }
    let weighted = small::<T>(Some(&[1.0, 2.0, 1.0, 2.0]));
    let wide = weighted.with_wider_extents(&[0.0], Some(1e4)).unwrap();
    assert!(sums_of(&wide, &[1.0], Some(&[1e5])).is_ok() && sums_of(&weighted, &[1.0], Some(&[1e5])).is_err());
    assert!(matches!(weighted.with_wider_extents(&[0.0], Some(1e12)), Err(KMeansError::BeyondSums { .. })));
    assert!(model.with_wider_extents(&[0.0, 0.0], Some(2.0)).is_err() && model.with_wider_extents(&[0.0], None).is_err());
});

in_both_types!(weights_of_clusters_are_kept, T => {
    let x = [0.0, 1.0, 7.0, 8.0].map(T::from_f64);
    let weights = Column::from_slice(&[0.5, 0.25, 3.0, 0.0]);
    for keep_sums in [false, true] {
        let estimator = KMeans::new(2).init(Init::Given(vec![0.0, 8.0])).keep_sums(keep_sums);
        for estimator in here_and_on_gpu(&estimator) {
            let features = Features::from_rows(&x, 1).unwrap();
            let model = estimator.fit_features(&features, Some(&weights)).unwrap().model;
            assert_eq!((model.weights().unwrap(), model.sizes()), (vec![0.75, 3.0], &[2, 1][..]));
            assert_eq!(estimator.fit_features(&features, None).unwrap().model.weights().unwrap(), [2.0, 2.0]);
        }
    }
});
