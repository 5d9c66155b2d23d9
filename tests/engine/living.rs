//! Sums as values, and models of sums: against integers of any size, in any split, added and removed.

use num_bigint::BigInt;
use polars_kmeans::{
    Column, Decay, Device, Engine, Features, Float, Init, KMeans, KMeansError, Labels, Metric, Model, NullPolicy, Scale, Start,
    Sums,
};

use super::data::{
    KINDS, Random, arriving, clusters_of, columns, from_columns, from_some, gpu, in_chunks, rounds, rows, some_cuts,
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
        let estimator = arriving(from_some(&x, d, clusters_of(kind, d, 1 + random.below(5)), 6, random), round, d);
        let weights = (random.below(2) == 0).then(|| some_weights(n, random));
        if round.is_multiple_of(4) {
            x[random.below(n * d)] = T::from_f64(f64::NAN);
        }
        let estimator = estimator.null_policy(NullPolicy::Skip).keep_sums(true).max_iter(1 + random.below(20) as u32);
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
    let zero = case.model.updated(&whole, None, Start::Zero, None).unwrap();
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
    let same = case.model.updated(&case.none(), None, Start::Kept, None).unwrap();
    assert_eq!(same, zero, "round {round}: no rows more");
    // Add, then remove with the labels of then.
    let extra = case.sums(0..random.below(n), false);
    let more = same.updated(&extra, None, Start::Kept, None).unwrap();
    assert_eq!(more.updated(&case.none(), Some(&extra), Start::Kept, None).unwrap().centroids(), same.centroids());
    assert_eq!(same.updated(&extra, Some(&extra), Start::Kept, None).unwrap(), same, "round {round}");
    // A decay by 1 is none, one by 0 leaves nothing but the numbers of rows.
    let all = Some(Decay { factor: 1 << 7, shift: 7 });
    assert_eq!(same.updated(&extra, None, Start::Kept, all).unwrap(), more, "round {round}");
    let forgotten = same.updated(&whole, None, Start::Kept, Some(Decay { factor: 0, shift: 9 })).unwrap();
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
    let updated = model.updated(&most, None, Start::Zero, None).unwrap();
    assert_eq!(updated.centroids().iter().map(|c| c.to_f64()).collect::<Vec<_>>(), [-128.0, 127.9375]);
    let beyond = T::from_f64(128.0).to_f64() * (1.0 + if T::IS_F32 { f64::from(f32::EPSILON) } else { f64::EPSILON });
    let refused = sums_of(&model, &[1.0, beyond], None).unwrap_err();
    assert_eq!(refused, KMeansError::BeyondExtent { column: "column_0".into(), got: beyond, limit: 128.0 });
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
    let taken = model.updated(&none, model.kept_sums(), Start::Kept, None).unwrap();
    assert_eq!((taken.sizes(), taken.centroids()), (&[0, 0][..], model.centroids()), "without rows, centroids stay");
    assert!(text(taken.updated(&none, Some(&one), Start::Kept, None)).contains("0 to 2^33 - 1 rows in cluster 0, got -1"));
    let mut light = one.clone();
    light.weights[0] = 0;
    assert!(text(model.updated(&light, None, Start::Zero, None)).contains("a weight from 1 to"));
    let mut heavy = one.clone();
    heavy.sums[0] = i128::MAX;
    assert!(text(model.updated(&heavy, None, Start::Zero, None)).contains("a sum of at most"));
    // Through 2^127 and back.
    let mut wrapped = one.clone();
    wrapped.add(&heavy).unwrap();
    wrapped.subtract(&heavy).unwrap();
    assert_eq!(wrapped, one);
    let half = model.updated(&one, None, Start::Kept, Some(Decay::try_from(0.5).unwrap())).unwrap();
    for decay in [None, Some(Decay { factor: 1, shift: 0 })] {
        assert!(text(half.updated(&none, Some(&one), Start::Kept, decay)).starts_with("removed: expected none after a decay"));
    }
    assert!(half.updated(&one, Some(&one), Start::Zero, None).is_ok(), "it began anew");
    assert!(Decay::try_from(1.5).is_err() && Decay::try_from(f64::NAN).is_err());
    let other = KMeans::new(2).fit_features(&Features::from_rows(&[0.0f64, 100.0], 1).unwrap(), None).unwrap().model;
    assert_ne!(other.fingerprint().unwrap(), model.fingerprint().unwrap());
    let sums = Sums { fingerprint: other.fingerprint().unwrap(), ..none.clone() };
    assert!(text(model.updated(&sums, None, Start::Kept, None)).starts_with("sums: expected sums of this model (fingerprint"));
    assert!(other.updated(&sums, None, Start::Kept, None).unwrap_err().to_string().contains("KMeans(keep_sums=True)"));
    // Opposite directions have a mean of zero, which has no direction.
    let x = [1.0, 0.1, 0.0, 1.0].map(T::from_f64);
    let estimator = KMeans::new(1).metric(Metric::Cosine).keep_sums(true).scale(Scale::Factors([("column_0".into(), 2.0)].into()));
    let round = estimator.fit_features(&Features::from_rows(&x, 2).unwrap(), None).unwrap().model;
    let opposite = [2.0, 1.0, -2.0, -1.0].map(T::from_f64);
    let sums = round.sums(&Features::from_rows(&opposite, 2).unwrap(), None, None).unwrap();
    assert_eq!(round.updated(&sums, None, Start::Zero, None).unwrap().centroids(), round.centroids());
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
    let (stepped, inertia) = start.on(Device::Cpu).step(&features, None, 0.0).unwrap();
    let update = |model: &Model<f64>, sums: &Sums| model.updated(sums, None, Start::Zero, None).unwrap();
    assert_eq!(update(&start, &stepped), start.updated(&sums, None, Start::Kept, None).unwrap());
    assert!((inertia + start.score(&features, None).unwrap()).abs() < 1e-6 * inertia);
}
