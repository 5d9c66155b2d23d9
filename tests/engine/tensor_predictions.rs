//! Predictions by tensor cores: the labels of the CPU for all rows, whatever the rows are. Some are not finite or far from all centroids; some tie; they
//! come in one batch or in several, from several threads, and from the GPU's memory. `gpu.rs` has other shapes, small ones above all.

use polars_kmeans::{Column, Device, Engine, Features, Float, Half, KMeansError, Model, Strategy, Validity};

use crate::data::{KINDS, MORE_KINDS, Random, columns, from_columns, from_some, gpu, rounds, rows, some_valid};
use crate::half::Halves;

/// The kernels that label batches, each by its name, and the choice among them.
const KERNELS: [Strategy; 4] = [Strategy::TensorWgmma, Strategy::TensorMma, Strategy::Tiled, Strategy::Default];

/// A model of one iteration from some rows, a few of them twice. With fewer clusters, if there are few distinct rows.
fn model<T: Engine>(x: &[T], d: usize, k: usize, random: &mut Random) -> Model<T> {
    let estimator = from_some(x, d, k, 50, random).max_iter(1).device(Device::Cpu);
    match estimator.fit_features(&Features::from_rows(x, d).unwrap(), None) {
        Err(KMeansError::TooFewDistinct { .. }) if k > 1 => model(x, d, k / 2, random),
        fit => fit.unwrap().model,
    }
}

/// All kernels give the labels of the CPU. Returns how many rows have one.
fn check<T: Engine>(model: &Model<T>, features: &Features<'_, T>, what: &str) -> usize {
    let Some(device) = gpu() else { return 0 };
    let right = model.predict(features).unwrap();
    for kernel in KERNELS {
        let labels = model.on(device).strategy(kernel).predict(features).unwrap();
        let wrong = labels.iter().zip(right.iter()).position(|(ours, right)| ours != right);
        if let Some(row) = wrong {
            let [ours, right] = [&labels, &right].map(|labels| labels.iter().nth(row).unwrap());
            let count = labels.iter().zip(right_of(model, features)).filter(|(ours, right)| ours != right).count();
            panic!("{kernel}, {what}: {count} labels differ; row {row} has {ours:?}, right is {right:?}");
        }
    }
    right.answered().count()
}

fn right_of<T: Engine>(model: &Model<T>, features: &Features<'_, T>) -> Vec<Option<u32>> {
    model.predict(features).unwrap().iter().collect()
}

/// Puts values that are not finite, and values far out, into some rows.
fn spoil<T: Float>(x: &mut [T], d: usize, one_in: usize, random: &mut Random) {
    let far = if T::IS_F32 { 3e38 } else { 1e300 };
    for row in x.chunks_exact_mut(d) {
        if random.below(one_in) == 0 {
            let value = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -f64::NAN, far, -far][random.below(6)];
            row[random.below(d)] = T::from_f64(value);
            if random.below(4) == 0 {
                row.fill(T::from_f64(value));
            }
        }
    }
}

/// From 34 to 768 features, and from 100 to 5,000 clusters.
const SHAPES: [[usize; 3]; 6] =
    [[30_000, 34, 100], [12_000, 65, 1_000], [20_000, 128, 700], [5_000, 408, 300], [6_000, 768, 120], [16_000, 40, 5_000]];

fn check_kinds<T: Engine>(seed: u64) {
    let some = KINDS.iter().filter(|kind| !["one value", "duplicates", "lattice"].contains(kind));
    let kinds: Vec<&str> = some.chain(&MORE_KINDS[..5]).copied().collect();
    for (i, kind) in kinds.iter().copied().enumerate().take(rounds(kinds.len())) {
        let random = &mut Random(seed + i as u64);
        let [n, d, k] = SHAPES[(i + seed as usize) % SHAPES.len()];
        let mut x: Vec<T> = rows(kind, n, d, random);
        let model = model(&x[..(k + k / 2) * d], d, k, random);
        let what = format!("{kind}, {n} x {d} {}, k = {k}", T::NAME);
        assert_eq!(check(&model, &Features::from_rows(&x, d).unwrap(), &what), if gpu().is_some() { n } else { 0 });
        spoil(&mut x, d, [2_000, 50, 3][i % 3], random);
        let columns = columns(&x, d);
        check(&model, &from_columns(&columns), &format!("{what}, some not finite"));
    }
}

in_both_types!(predictions_of_every_kind, T, seed in [90_000, 91_003] => check_kinds::<T>(seed));

#[test]
fn predictions_of_every_size() {
    let shapes =
        [[1, 34, 1], [1, 40, 300], [127, 34, 3], [129, 50, 257], [1_025, 64, 255], [2_049, 33, 256], [9_000, 100, 2_000]];
    for (seed, [n, d, k]) in (92_000..).zip(shapes).take(rounds(shapes.len())) {
        let random = &mut Random(seed);
        let known: Vec<f32> = rows(["blobs", "uniform"][seed as usize % 2], k + 50, d, random);
        let model = model(&known, d, k, random);
        // Rows of the model, and rows amid two of its centroids.
        let between = |random: &mut Random| {
            let [a, b] = [0; 2].map(|_| random.below(k) * d);
            let middle = |f: usize| {
                let [a, b] = [a, b].map(|first| f64::from(model.centroids()[first + f]));
                ((a + b) / 2.0) as f32
            };
            (0..d).map(middle).collect::<Vec<f32>>()
        };
        let mut x = Vec::new();
        for i in 0..n {
            if i % 2 == 0 {
                x.extend(between(random));
            } else {
                x.extend_from_slice(&known[random.below(k + 50) * d..][..d]);
            }
        }
        check(&model, &Features::from_rows(&x, d).unwrap(), &format!("{n} x {d}, k = {k}"));
        // Every row is bad; then one is not.
        x.fill(f32::NAN);
        assert_eq!(check(&model, &Features::from_rows(&x, d).unwrap(), "no row is finite"), 0);
        x[..d].copy_from_slice(&known[..d]);
        check(&model, &Features::from_rows(&x, d).unwrap(), "one row is finite");
    }
}

/// A batch has fewer groups than there are natural clusters. So many rows are in doubt among many centroids.
#[test]
fn rows_of_natural_clusters() {
    let random = &mut Random(96_000);
    let (n, d, k) = (20_000, 64, 3_000);
    let x: Vec<f32> = rows("hundred clusters", n, d, random);
    let model = model(&x[..2 * k * d], d, k, random);
    check(&model, &Features::from_rows(&x, d).unwrap(), "natural clusters");
}

/// Rows far from all centroids, and models whose distances are out of the range of float32, or below that of float64.
#[test]
fn rows_that_are_not_of_the_model() {
    let (n, d, k) = (6_000, 36, 300);
    for (round, [of_model, of_rows]) in
        [[0, 20], [0, 400], [440, 449], [-440, -460], [-530, -530], [0, -1_000], [20, 0], [-300, 300]].into_iter().enumerate()
    {
        let random = &mut Random(93_000 + round as u64);
        let power = |exponent: i32| 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
        // Below 2^-450 no data is accepted, but some of the columns may be.
        let mut of = |n: usize, exponent: i32| -> Vec<f64> {
            let value = |i: usize| if of_model < -450 && i.is_multiple_of(d) { 1.0 } else { random.normal() * power(exponent) };
            (0..n * d).map(value).collect()
        };
        let known = of(2 * k, of_model);
        let mut x = of(n / 2, of_rows);
        x.extend(of(n / 2, of_model));
        let mut random = Random(93_500 + round as u64);
        let model = model(&known, d, k, &mut random);
        check(&model, &Features::from_rows(&x, d).unwrap(), &format!("rows of 2^{of_rows} for a model of 2^{of_model}"));
    }
    // A feature that is the same everywhere and large, and others that are tiny: differences are exact, values times the scale are not finite.
    let random = &mut Random(93_900);
    let mut x: Vec<f32> = (0..n * d).map(|i| if i % d == 3 { 1e30 } else { (random.normal() * 1e-30) as f32 }).collect();
    let model = model(&x[..2 * k * d], d, k, random);
    check(&model, &Features::from_rows(&x, d).unwrap(), "values times the scale are not finite");
    spoil(&mut x, d, 10, random);
    check(&model, &Features::from_rows(&x, d).unwrap(), "values times the scale are not finite, some rows are not");
}

#[test]
fn predictions_of_16_bits() {
    for (round, half) in [Half::Float16, Half::BFloat16].into_iter().enumerate() {
        for (i, kind) in ["blobs", "uniform", "mixed scales", "a row far out"].into_iter().enumerate() {
            let random = &mut Random(94_000 + 10 * round as u64 + i as u64);
            let (n, d, k) = (9_000, [34, 130][i % 2], 400);
            let mut data = Halves::new(half, kind, n, d, random);
            let model = model(&data.wide[..2 * k * d], d, k, random);
            let what = format!("{kind}, {half:?}");
            check(&model, &data.by_rows()[0], &what);
            let infinite = if half == Half::Float16 { 0x7c00 } else { 0x7f80 };
            for i in 0..300 {
                data.bits[random.below(n * d)] = if i % 2 == 0 { infinite } else { infinite | 0x8001 };
            }
            let columns = columns(&data.bits, d);
            let features = Features::from_half_columns(half, columns.iter().map(|bits| &bits[..])).unwrap();
            let answered = check(&model, &features, &format!("{what}, some not finite"));
            assert!(gpu().is_none() || answered > n - 301 && answered < n);
        }
    }
}

/// Several batches, with nulls and values that are not finite. A batch of a quarter comes first.
#[test]
fn predictions_in_several_batches() {
    fn check_batches<T: Engine>([n, d, k]: [usize; 3], seed: u64) {
        let random = &mut Random(seed);
        let mut x: Vec<T> = rows("one blob", n, d, random);
        let model = model(&x[..(k + 20) * d], d, k, random);
        spoil(&mut x, d, 100, random);
        let bitmap = some_valid(n, random);
        let features = Features::from_blocks([(&x[..], Some(Validity::new(&bitmap, 0)), None)], d).unwrap();
        let answered = check(&model, &features, &format!("{n} rows of {d} {} for {k}", T::NAME));
        assert!(gpu().is_none() || answered > n / 2 && answered < n);
    }
    check_batches::<f32>([60_000, 768, 500], 95_000);
    check_batches::<f64>([30_000, 700, 300], 95_001);
}

/// Many calls at once on a model that no call was made on before, each with some of the rows.
#[test]
fn predictions_from_several_threads() {
    let Some(device) = gpu() else { return };
    let random = &mut Random(96_000);
    let (n, d, k) = (64_000, 50, 600);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let model = model(&x[..2 * k * d], d, k, random);
    let features = Features::from_rows(&x, d).unwrap();
    let right = right_of(&model, &features);
    std::thread::scope(|scope| {
        for (i, start) in (0..n).step_by(4_000).enumerate() {
            let (model, features, right) = (&model, &features, &right);
            scope.spawn(move || {
                let part = features.slice(start..start + 4_000 - i).unwrap();
                let kernel = KERNELS[i % 2];
                for _ in 0..5 {
                    let labels = model.on(device).strategy(kernel).predict(&part).unwrap();
                    assert!(labels.iter().eq(right[start..start + 4_000 - i].iter().copied()), "{kernel}, from row {start}");
                }
            });
        }
    });
}

/// The score adds up distances to the same labels.
#[test]
fn scores_by_tensor_cores() {
    let Some(device) = gpu() else { return };
    let random = &mut Random(97_000);
    let (n, d, k) = (60_000, 130, 1_500);
    let mut x: Vec<f32> = rows("blobs", n, d, random);
    let model = model(&x[..2 * k * d], d, k, random);
    (0..100).for_each(|_| x[random.below(n * d)] = f32::NAN);
    let features = Features::from_rows(&x, d).unwrap();
    let weights: Vec<f64> = (0..n).map(|_| random.below(4) as f64).collect();
    let weights = Column::from_slice(&weights);
    for weights in [None, Some(&weights)] {
        assert_eq!(model.on(device).score(&features, weights).unwrap(), model.score(&features, weights).unwrap());
    }
}
