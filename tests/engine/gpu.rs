//! The GPU beside the CPU, over shapes that reach every kernel: the same bits.

use polars_kmeans::{Column, Features, Float, History, Init, KMeans, Restarts};

use crate::data::{KINDS, Random, columns, hash, on_gpu, rows};

/// Shapes by round: registers of every width, one sweep and groups, one and many portions of centroids, sums in shared memory
/// and in device memory, every tile of the tiled kernel, labels of one and two bytes.
fn shape(round: u64, random: &mut Random) -> [usize; 3] {
    let (d, k) = match round % 12 {
        0 => (1 + random.below(4), 1 + random.below(20)),
        1 => (1 + random.below(8), 20 + random.below(100)),
        2 => (5 + random.below(12), 1 + random.below(300)),
        3 => (1 + random.below(3), 254 + random.below(4)),
        4 => (2, 1_000 + random.below(2_001)),
        5 => (16, 900 + random.below(1_000)),
        6 => (17 + random.below(50), 1 + random.below(32)),
        7 => (17 + random.below(50), 33 + random.below(32)),
        8 => (17 + random.below(120), 65 + random.below(300)),
        9 => (200 + random.below(300), 1 + random.below(150)),
        10 => (1_000 - random.below(3), 1 + random.below(40)),
        _ => (20 + random.below(30), 3_000 - random.below(1_500)),
    };
    let n = k + random.below(if d > 100 { 1_500 } else { 6_000 });
    [n, d, k]
}

/// Returns whether there was a fit to compare.
fn check<T: Float>(round: u64) -> bool {
    let random = &mut Random(7_000 + round);
    let [n, d, k] = shape(round, random);
    let kind = KINDS[random.below(KINDS.len())];
    let x: Vec<T> = rows(kind, n, d, random);
    let weights: Option<Vec<f64>> = match round / 12 % 4 {
        1 => Some((0..n).map(|_| if random.below(8) == 0 { 0.0 } else { random.unit() * 9.0 }).collect()),
        3 => Some(vec![1.0; n]),
        _ => None,
    };
    let init = match random.below(4) {
        0 if k <= 200 => Init::KMeansPlusPlus,
        1 => Init::Random,
        // Some of them the same row: empty clusters, which take the farthest rows.
        _ => Init::Given(
            (0..k)
                .flat_map(|_| {
                    let i = if random.below(12) == 0 { 0 } else { random.below(n) };
                    x[i * d..][..d].iter().map(|v| v.to_f64()).collect::<Vec<_>>()
                })
                .collect(),
        ),
    };
    let history = if random.below(5) == 0 { History::Full } else { History::Light };
    let estimator = KMeans::new(k)
        .init(init)
        .n_init(Restarts::Count(1 + random.below(2) as u32))
        .max_iter(1 + random.below(20) as u32)
        .tol([0.0, 1e-4][random.below(2)])
        .seed(random.next())
        .history(history);
    let Some(on_gpu) = on_gpu(&estimator) else { return true };
    let by_columns = columns(&x, d);
    let features = match random.below(2) {
        0 => Features::from_columns(by_columns.iter().map(|c| &c[..])).unwrap(),
        _ => Features::from_rows(&x, d).unwrap(),
    };
    let weights = weights.as_ref().map(|w| Column::from_slice(w));
    let brief = |estimator: &KMeans| {
        estimator.fit_features(&features, weights.as_ref()).map(|fit| (hash(&fit), fit.labels)).map_err(|e| e.to_string())
    };
    let (gpu, cpu) = (brief(&on_gpu), brief(&estimator));
    assert_eq!(gpu, cpu, "{kind}, round {round}: n {n}, d {d}, k {k}, {}, {} weights", T::NAME, weights.is_some());
    cpu.is_ok()
}

#[test]
fn the_gpu_gives_the_bits_of_the_cpu() {
    let answered = (0..216).map(|round| usize::from(check::<f32>(round)) + usize::from(check::<f64>(round + 1_000))).sum::<usize>();
    println!("{answered} of 432 fits compared");
    assert!(answered >= 300, "only {answered} fits had an answer");
}
