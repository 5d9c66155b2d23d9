//! Compares the GPU with the CPU, over shapes that reach every kernel: the bits are the same.

use polars_kmeans::exact::reference;
use polars_kmeans::{
    Chunk, Column, Device, Engine, Features, History, Init, Job, KMeans, KMeansError, Model, Place, Prediction, Predictions,
    Restarts, Strategy, Validity,
};

use crate::data::{
    KINDS, Random, brief, columns, from_columns, from_some, gpu, hash, on_gpu, rounds, rows, some_rows, some_valid,
    some_weights, transformed,
};

/// The shape of a round. Together, the rounds reach registers of every width, one sweep and groups, one and many portions of
/// centroids, sums in shared memory and in device memory, every tile of the tiled kernel, and labels of one and two bytes.
pub fn shape(round: u64, random: &mut Random) -> [usize; 3] {
    let (d, k) = match round % 12 {
        0 => (1 + random.below(4), 1 + random.below(20)),
        1 => (1 + random.below(8), 20 + random.below(100)),
        2 => (5 + random.below(12), 1 + random.below(300)),
        3 => (1 + random.below(3), 254 + random.below(4)),
        4 => (2, 1_000 + random.below(2_001)),
        5 => (16, 900 + random.below(1_000)),
        6 => (17 + random.below(50), 1 + random.below(32)),
        7 => (17 + random.below(50), 33 + random.below(32)),
        8 => (65 + random.below(120), 33 + random.below(330)),
        9 => (200 + random.below(300), 1 + random.below(150)),
        10 => (1_000 - random.below(3), 1 + random.below(40)),
        _ => (20 + random.below(30), 3_000 - random.below(1_500)),
    };
    let n = k + random.below(if d > 100 { 1_500 } else { 6_000 });
    [n, d, k]
}

/// A fit of any kind over rows of any kind.
pub fn any_fit<T: Engine>([n, d, k]: [usize; 3], random: &mut Random) -> (&'static str, Vec<T>, KMeans) {
    let kind = KINDS[random.below(KINDS.len())];
    let x: Vec<T> = rows(kind, n, d, random);
    let init = match random.below(4) {
        0 if k <= 200 => [Init::KMeansPlusPlus, Init::KMeansParallel, Init::AfkMc2][random.below(3)].clone(),
        1 => Init::Random,
        _ => Init::Given(some_rows(&x, d, k, 12, random)),
    };
    let estimator = KMeans::new(k)
        .init(init)
        .n_init(Restarts::Count(1 + random.below(2) as u32))
        .max_iter(1 + random.below(20) as u32)
        .tol([0.0, 1e-4][random.below(2)])
        .seed(random.next())
        .history(if random.below(5) == 0 { History::Full } else { History::Light });
    (kind, x, estimator)
}

/// Returns whether there was a fit to compare.
fn check<T: Engine>(round: u64) -> bool {
    let random = &mut Random(7_000 + round);
    let [n, d, k] = shape(round, random);
    let (kind, x, estimator) = any_fit::<T>([n, d, k], random);
    let weights: Option<Vec<f64>> = match round / 12 % 4 {
        1 => Some(some_weights(n, random)),
        3 => Some(vec![1.0; n]),
        _ => None,
    };
    let estimator = transformed(estimator, round / 7, d);
    let Some(on_gpu) = on_gpu(&estimator) else { return true };
    // With so few rows the default would use tiles.
    let on_gpu = if d <= 12 { on_gpu.strategy(Strategy::Registers) } else { on_gpu };
    let columns = columns(&x, d);
    let features = if random.below(2) == 0 { from_columns(&columns) } else { Features::from_rows(&x, d).unwrap() };
    let weights = weights.as_ref().map(|w| Column::from_slice(w));
    let [gpu, cpu] = [on_gpu, estimator].map(|estimator| brief(&estimator.fit_features(&features, weights.as_ref())));
    assert_eq!(gpu, cpu, "{kind}, round {round}: n {n}, d {d}, k {k}, {}, {} weights", T::NAME, weights.is_some());
    cpu.is_ok()
}

#[test]
fn the_gpu_gives_the_bits_of_the_cpu() {
    let rounds = rounds(216);
    let answered: usize = (0..rounds)
        .map(|round| usize::from(check::<f32>(round as u64)) + usize::from(check::<f64>(round as u64 + 1_000)))
        .sum();
    println!("{answered} of {} fits compared", 2 * rounds);
    assert!(answered * 3 >= rounds * 2, "only {answered} fits had an answer");
}

#[test]
fn many_rows_change_at_once() {
    // Rows of weight zero among them: the lists of changed rows fill up to the last place in uneven steps.
    let random = &mut Random(41);
    let [n, d, k] = [1_200_000, 13, 5];
    let x: Vec<f32> = (0..n * d).map(|i| (random.unit() + (i / d % 4) as f64) as f32).collect();
    let weights: Vec<f64> = (0..n).map(|_| if random.below(8) == 0 { 0.0 } else { 1.0 + random.unit() }).collect();
    let estimator = KMeans::new(k).init(Init::Random).max_iter(3).tol(0.0);
    let Some(on_gpu) = on_gpu(&estimator) else { return };
    let (features, weights) = (Features::from_rows(&x, d).unwrap(), Column::from_slice(&weights));
    let [gpu, cpu] = [on_gpu, estimator].map(|estimator| hash(&estimator.fit_features(&features, Some(&weights)).unwrap()));
    assert_eq!(gpu, cpu);
}

/// A fit that is short enough for a checker of memory errors and races. It starts from some of the rows if `init` is `None`.
fn short<T: Engine>([n, d, k]: [usize; 3], weighted: bool, init: Option<Init>) {
    let random = &mut Random(n as u64 + d as u64);
    let x: Vec<T> = rows(KINDS[0], n, d, random);
    let weights = some_weights(n, random);
    let start = || (0..k).flat_map(|j| x[j * (n / k) * d..][..d].iter().map(|v| v.to_f64())).collect();
    let estimator = KMeans::new(k).init(init.unwrap_or_else(|| Init::Given(start()))).max_iter(3).tol(0.0).seed(5);
    let Some(on_gpu) = on_gpu(&estimator) else { return };
    println!("n {n}, d {d}, k {k}, {}, weights: {weighted}", T::NAME);
    let on_gpu = if d <= 12 { on_gpu.strategy(Strategy::Registers) } else { on_gpu };
    let (features, weights) = (Features::from_rows(&x, d).unwrap(), Column::from_slice(&weights));
    let fit = |estimator: KMeans| hash(&estimator.fit_features(&features, weighted.then_some(&weights)).unwrap());
    let [gpu, cpu] = [on_gpu, estimator.device(Device::Cpu)].map(fit);
    assert_eq!(gpu, cpu, "n {n}, d {d}, k {k}, {}", T::NAME);
}

#[test]
fn short_fits_reach_every_kernel_of_the_default() {
    // Registers one by one and in groups of 8 and 16. Tiles of 32, 64 and 128 centroids, with panels and without. Updates of
    // one block and of many. Sums in tables of one chunk and of several.
    let shapes = [
        [900, 2, 5],
        [700, 7, 30],
        [900, 4, 210],
        [500, 20, 16],
        [400, 70, 50],
        [400, 30, 90],
        [400, 140, 130],
        [400, 200, 130],
    ];
    for (round, shape) in shapes.into_iter().enumerate() {
        short::<f32>(shape, round % 2 == 1, None);
        short::<f64>(shape, round % 2 == 0, None);
    }
    // A race checker takes half a second for each block of 1,024 threads of a draw.
    for (init, weighted) in [(Init::KMeansPlusPlus, false), (Init::KMeansPlusPlus, true), (Init::Random, true)] {
        short::<f32>(shapes[0], weighted, Some(init.clone()));
        short::<f64>(shapes[0], weighted, Some(init));
    }
}

#[test]
fn tiles_are_shared_out_among_the_multiprocessors() {
    // On a GPU with 132 SMs these are at most two to four tiles of 128 rows per SM, of all three widths. No SM may hold more of
    // them at a time.
    for (n, k) in [(20_000, 130), (40_000, 50), (60_000, 20)] {
        short::<f32>([n, 20, k], false, None);
    }
}

// ---- predictions -----------------------------------------------------------------------------------------------------------

/// The shape of a round: edges of the tiles of `kernels/passes/predict.cu`, and every tile of the filter.
fn model_shape(round: u64, random: &mut Random) -> [usize; 2] {
    match round % 10 {
        0 => [1 + random.below(3), 1 + random.below(20)],
        1 => [1 + random.below(40), 1 + random.below(40)],
        2 => [1 + random.below(2), 3_000 - random.below(20)],
        3 => [62 + random.below(5), 15 + random.below(3)],
        4 => [200 + random.below(800), 1 + random.below(60)],
        5 => [17 + random.below(50), 60 + random.below(10)],
        6 => [1_000 - random.below(2), 1 + random.below(2)],
        7 => [126 + random.below(5), 31 + random.below(4)],
        8 => [1 + random.below(12), 120 + random.below(300)],
        _ => [5 + random.below(60), 1_000 + random.below(2_001)],
    }
}

/// The model after one iteration from some of the rows. `None` if there are too few distinct rows.
fn model_of<T: Engine>(x: &[T], d: usize, k: usize, random: &mut Random) -> Option<Model<T>> {
    let estimator = from_some(x, d, k, usize::MAX, random).max_iter(1).device(Device::Cpu);
    match estimator.fit_features(&Features::from_rows(x, d).unwrap(), None) {
        Ok(fitted) => Some(fitted.model),
        Err(KMeansError::TooFewDistinct { .. } | KMeansError::RangeTooWide { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The bits of an answer. All NaNs count as the same.
fn bits(values: impl IntoIterator<Item = f64>) -> Vec<u64> {
    values.into_iter().map(|v| if v.is_nan() { u64::MAX } else { v.to_bits() }).collect()
}

fn prediction_bits(rows: &Predictions) -> Vec<u64> {
    let words = |row: Option<Prediction>| match row {
        None => [u64::MAX; 3],
        Some(p) => [u64::from(p.label), p.distance.to_bits(), p.second_distance.map_or(u64::MAX, f64::to_bits)],
    };
    rows.iter().flat_map(words).collect()
}

fn assert_same<A: PartialEq + std::fmt::Debug>(ours: &[A], theirs: &[A], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    if let Some(i) = (0..ours.len()).find(|&i| ours[i] != theirs[i]) {
        panic!("{what}: entry {i} of {} is {:?} on the GPU, {:?} on the CPU", ours.len(), ours[i], theirs[i]);
    }
}

/// Compares all answers of a model for these rows on CPU and GPU. Returns how many rows had an answer, and whether there was a
/// score.
fn compare<T: Engine>(
    model: &Model<T>,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
    device: Device,
    what: &str,
) -> (usize, bool) {
    let gpu = model.on(device);
    let labels = model.predict(features).unwrap();
    let on_gpu = gpu.predict(features).unwrap();
    assert_same(&on_gpu.iter().collect::<Vec<_>>(), &labels.iter().collect::<Vec<_>>(), &format!("{what}: labels"));
    assert_eq!(on_gpu, labels, "{what}: rows without a label");
    for strategy in [Strategy::TensorWgmma, Strategy::TensorMma, Strategy::Tiled] {
        let forced = gpu.strategy(strategy).predict(features).unwrap();
        assert_same(&forced.iter().collect::<Vec<_>>(), &labels.iter().collect::<Vec<_>>(), &format!("{what}: {strategy}"));
    }
    let nearest = model.predict_distances(features).unwrap();
    let on_gpu = gpu.predict_distances(features).unwrap();
    assert_same(&prediction_bits(&on_gpu), &prediction_bits(&nearest), &format!("{what}: nearest"));
    assert_eq!(on_gpu, nearest, "{what}: rows without a distance");
    for squared in [false, true] {
        let distances = bits(model.transform(features, squared).unwrap());
        assert_same(&bits(gpu.transform(features, squared).unwrap()), &distances, &format!("{what}: distances, {squared}"));
    }
    let score = |score: polars_kmeans::Result<f64>| score.map(f64::to_bits).map_err(|error| error.to_string());
    let on_cpu = score(model.score(features, weights));
    assert_eq!(score(gpu.score(features, weights)), on_cpu, "{what}: score");
    (labels.answered().count(), on_cpu.is_ok())
}

/// Returns whether there was a model, and whether it had a score.
fn check_predictions<T: Engine>(round: u64, device: Device) -> (bool, bool) {
    const WORK: usize = 40_000_000;
    let random = &mut Random(9_000 + round);
    let [d, k] = model_shape(round, random);
    let kind = KINDS[random.below(KINDS.len())];
    let known: Vec<T> = rows(kind, k + random.below(300), d, random);
    let Some(model) = model_of(&known, d, k, random) else { return (false, false) };

    let n = 1 + random.below((WORK / (k * d)).clamp(1, 4_000));
    // The rows are of the model's kind or of another. Some are rows that the model was fitted to: they give ties and distances
    // of 0.
    let mut x: Vec<T> = rows(if random.below(4) == 0 { KINDS[random.below(KINDS.len())] } else { kind }, n, d, random);
    for row in x.chunks_exact_mut(d) {
        if random.below(4) == 0 {
            row.copy_from_slice(&known[random.below(known.len() / d) * d..][..d]);
        }
    }
    let (far, tiny) = if T::IS_F32 { (3e38, 1e-45) } else { (1e300, 5e-324) };
    let extreme = round / 10 % 2 == 1;
    for _ in 0..if random.below(3) == 0 { 0 } else { n / 8 + 1 } {
        let at = random.below(n * d);
        x[at] = T::from_f64(match random.below(6) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            3 if extreme => far,
            4 if extreme => -far,
            _ => tiny,
        });
    }
    // Nulls in the first and in the last column. The values under the nulls may be of any kind.
    let bitmap: Vec<u8> = (0..=n).map(|_| if random.below(3) == 0 { random.next() as u8 | 0x3c } else { 0xff }).collect();
    let with_nulls = random.below(2) == 0;
    let by_columns = columns(&x, d);
    let features = match random.below(3) {
        0 => Features::from_rows(&x, d).unwrap(),
        1 => {
            let validity = with_nulls.then(|| Validity::new(&bitmap, 3));
            Features::from_blocks([(&x[..], validity, None)], d).unwrap()
        }
        _ => {
            let step = 1 + n / 3;
            let columns = by_columns.iter().enumerate().map(|(f, values)| {
                let nulls = with_nulls && (f == 0 || f + 1 == d);
                let validity = |start: usize| nulls.then(|| Validity::new(&bitmap, f % 7 + start));
                let chunks = values.chunks(step).zip((0..).step_by(step));
                Column::new(chunks.map(|(values, start)| Chunk::new(values, validity(start)).unwrap()))
            });
            Features::new(columns.collect()).unwrap()
        }
    };
    let weights: Option<Vec<f64>> = match random.below(6) {
        0 => Some(some_weights(n, random)),
        1 => Some((0..n).map(|_| if random.below(9) == 0 { f64::NAN } else { 1.0 }).collect()),
        2 if extreme => Some((0..n).map(|_| if random.below(50) == 0 { -1.0 } else { 2.0 }).collect()),
        3 if extreme => Some(vec![0.0; n]),
        _ => None,
    };
    let weights = weights.as_ref().map(|w| Column::from_slice(w));
    let what = format!("{kind}, round {round}: n {n}, d {d}, k {k}, {}", T::NAME);
    (true, compare(&model, &features, weights.as_ref(), device, &what).1)
}

#[test]
fn a_model_on_the_gpu_says_what_it_says_on_the_cpu() {
    let Some(device) = gpu() else { return };
    let cases =
        (0..120).flat_map(|round| [check_predictions::<f32>(round, device), check_predictions::<f64>(round + 1_000, device)]);
    let (models, scores) =
        cases.fold((0, 0), |(models, scores), (model, score)| (models + u32::from(model), scores + u32::from(score)));
    println!("{models} of 240 models compared, {scores} of them with scores");
    assert!(models >= 150 && scores >= 80, "only {models} models, {scores} scores");
}

#[test]
fn rows_in_several_batches_are_one_answer() {
    let Some(device) = gpu() else { return };
    let random = &mut Random(77);
    // More than one batch of 128 MiB: first of features, then of distances.
    for [n, d, k] in [[34_000, 1_000, 2], [12_000, 2, 3_000]] {
        let mut x: Vec<f64> = rows("uniform", n, d, random);
        let model = model_of(&x[..(k + 10) * d], d, k, random).unwrap();
        (0..50).for_each(|_| x[random.below(n * d)] = f64::NAN);
        let bitmap = some_valid(n, random);
        let features = Features::from_blocks([(&x[..], Some(Validity::new(&bitmap, 0)), None)], d).unwrap();
        let (answered, score) = compare(&model, &features, None, device, &format!("{n} rows of {d} for {k}"));
        assert!(score && answered > n / 2 && answered < n);
    }
}

#[test]
fn a_place_for_predictions_is_chosen_and_refused_as_for_fits() {
    let x: Vec<f32> = rows("blobs", 100, 2, &mut Random(5));
    let features = Features::from_rows(&x, 2).unwrap();
    let model = KMeans::new(3).fit_features(&features, None).unwrap().model;
    let choice = model.on(Device::Auto).choice(Job::Labels, 100, false).unwrap();
    assert_eq!(choice.place, Place::Cpu);
    assert!(choice.reason.starts_with("100 rows x 2 features x 3 clusters are predicted to take "), "{}", choice.reason);
    assert_eq!(model.on(Device::Auto).predict(&features), model.predict(&features));
    let nowhere = model.on(Device::Cuda(Some(99)));
    let refused = |error: KMeansError| matches!(error, KMeansError::DeviceNotAvailable { .. });
    assert!(refused(nowhere.predict(&features).unwrap_err()));
    assert!(refused(nowhere.predict_distances(&features).unwrap_err()));
    assert!(refused(nowhere.transform(&features, false).unwrap_err()));
    assert!(refused(nowhere.score(&features, None).unwrap_err()));
    // Errors that do not depend on the device come first.
    let narrow = Features::from_rows(&x, 1).unwrap();
    assert!(matches!(nowhere.predict(&narrow), Err(KMeansError::WidthMismatch { .. })));
    let few = Column::from_slice(&[1.0][..]);
    assert!(matches!(nowhere.score(&features, Some(&few)), Err(KMeansError::LengthMismatch { .. })));
}

/// Starting centroids far below the smallest magnitude of the data, and data whose means nearly cancel out.
#[test]
fn centroids_of_any_magnitude() {
    for (d, k) in [1, 4, 20, 70].into_iter().flat_map(|d| [1, 2, 40].map(|k| (d, k))) {
        let n = 3_000;
        let value = |i: usize| {
            let nearly = 1.0 + (i / d % 3) as f64 * f64::EPSILON;
            let size = if i.is_multiple_of(d) { (1 + i / d / 2 % 50) as f64 } else { 1.0 };
            2f64.powi(-449) * size * if (i / d).is_multiple_of(2) { 1.0 } else { -nearly }
        };
        let x: Vec<f64> = (0..n * d).map(value).collect();
        let start: Vec<f64> = (0..k * d).map(|i| 2f64.powi(-460 - (i % 600) as i32) * (i / d) as f64).collect();
        let features = Features::from_rows(&x, d).unwrap();
        for max_iter in [1, 5] {
            let estimator = KMeans::new(k).init(Init::Given(start.clone())).max_iter(max_iter).tol(0.0);
            let cpu = estimator.clone().device(Device::Cpu).fit_features(&features, None).unwrap();
            let naive = x.chunks_exact(d).map(|row| reference::nearest(row, cpu.model.centroids()).label);
            assert!(naive.eq(cpu.labels.iter().copied()), "d {d}, k {k}");
            assert_eq!(cpu.model.score(&features, None).unwrap(), -cpu.model.inertia());
            let Some(on_gpu) = on_gpu(&estimator) else { continue };
            assert_eq!(hash(&on_gpu.fit_features(&features, None).unwrap()), hash(&cpu), "d {d}, k {k}");
            let model = cpu.model.on(Device::Cuda(None));
            assert_eq!(model.predict(&features), cpu.model.predict(&features), "d {d}, k {k}");
            assert_eq!(model.score(&features, None), cpu.model.score(&features, None), "d {d}, k {k}");
        }
    }
}
