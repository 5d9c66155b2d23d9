//! Bounds that are carried from iteration to iteration on the CPU: the same bits as without them, and fewer scores.

use polars_kmeans::backend::cpu::InstructionSet;
use polars_kmeans::tile::Part;
use polars_kmeans::{
    Column, Device, Engine, Features, Fitted, Half, History, Init, KMeans, Metric, NullPolicy, Place, Restarts, RowOrder,
    Scale, Strategy, Wanted, reference,
};

use crate::data::{KINDS, Random, columns, hash, rows, some_rows};
use crate::half::Halves;

const CARRIED: [Strategy; 2] = [Strategy::Hamerly, Strategy::Yinyang];
const SETS: [InstructionSet; 3] = [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512];

/// Shapes (n, d, k): one feature, both filters, several groups and one, more clusters than a panel of scores, few rows.
const SHAPES: [[usize; 3]; 8] = [
    [3_000, 1, 6],
    [4_000, 2, 40],
    [2_500, 5, 100],
    [2_000, 8, 17],
    [2_000, 20, 33],
    [700, 130, 20],
    [2_200, 9, 1_100],
    [90, 3, 30],
];

fn on_cpu(estimator: &KMeans, strategy: Strategy) -> KMeans {
    estimator.clone().device(Device::Cpu).strategy(strategy)
}

fn estimators<T: Engine>(x: &[T], d: usize, k: usize, random: &mut Random) -> Vec<KMeans> {
    let plain = KMeans::new(k).seed(random.next()).max_iter(25).tol(0.0);
    let mut all = vec![
        plain.clone(),
        plain.clone().init(Init::Random).n_init(Restarts::Count(2)).history(History::Full).max_iter(8),
        // Starting centroids that are equal: clusters are empty and take the farthest rows.
        plain.clone().init(Init::Given(some_rows(x, d, k, 3, random))).history(History::Full),
        plain.clone().scale(Scale::Standard).init(Init::Random),
        plain.clone().row_order(RowOrder::Values).init(Init::Random).max_iter(6),
    ];
    if d > 1 {
        all.push(plain.metric(Metric::Cosine).init(Init::Random));
    }
    all
}

/// The hash of a fit, or its error.
fn brief<T: Engine>(fit: polars_kmeans::Result<Fitted<T>>) -> Result<u64, String> {
    fit.map(|fit| hash(&fit)).map_err(|error| error.to_string())
}

fn check<T: Engine>(seed: u64) {
    for (round, kind) in KINDS.into_iter().enumerate() {
        let random = &mut Random(seed + round as u64);
        for (s, [n, d, k]) in SHAPES.into_iter().enumerate() {
            if (s + round) % 3 != 0 {
                continue;
            }
            let x: Vec<T> = rows(kind, n, d, random);
            let values: Vec<f64> = (0..n).map(|_| if random.below(8) == 0 { 0.0 } else { 9.0 * random.unit() }).collect();
            let of_rows = |range: std::ops::Range<usize>| ((round + s) % 2 == 1).then(|| Column::from_slice(&values[range]));
            let weights = of_rows(0..n);
            let columns = columns(&x, d);
            let by_columns = Features::from_columns(columns.iter().map(|c| &c[..])).unwrap();
            let by_rows = Features::from_rows(&x, d).unwrap();
            for (e, estimator) in estimators(&x, d, k, random).into_iter().enumerate() {
                let what = format!("{kind}, {n} x {d} {}, k {k}, estimator {e}", T::NAME);
                let expected = on_cpu(&estimator, Strategy::Default).fit_features(&by_columns, weights.as_ref());
                let expected = brief(expected);
                for strategy in CARRIED {
                    let features = if e % 2 == 0 { &by_columns } else { &by_rows };
                    let threads = 1 + (e + round) % 2;
                    let found = on_cpu(&estimator, strategy).threads(threads).fit_features(features, weights.as_ref());
                    assert_eq!(brief(found), expected, "{strategy}: {what}");
                    // One session for each part, and every instruction set.
                    let cut = n / 3;
                    let part = |range: std::ops::Range<usize>| {
                        Part::new(Features::from_rows(&x[range.start * d..range.end * d], d).unwrap(), of_rows(range))
                    };
                    let set = SETS[(e + s) % 3];
                    let parts = vec![part(0..cut), part(cut..n)];
                    let found = on_cpu(&estimator, strategy).fit_parts(parts, set, Wanted::Labels);
                    assert_eq!(brief(found), expected, "{strategy}, {set:?}, in parts: {what}");
                }
            }
        }
    }
}

#[test]
fn carried_bounds_give_the_same_bits_float32() {
    check::<f32>(1_000);
}

#[test]
fn carried_bounds_give_the_same_bits_float64() {
    check::<f64>(2_000);
}

#[test]
fn carried_bounds_leave_out_rows_with_nulls() {
    let random = &mut Random(5);
    let (n, d, k) = (6_000, 3, 25);
    let mut x: Vec<f32> = rows("blobs", n, d, random);
    for _ in 0..500 {
        x[random.below(n * d)] = f32::NAN;
    }
    // Long runs of rows that are left out.
    x[900 * d..1_700 * d].fill(f32::INFINITY);
    let features = Features::from_rows(&x, d).unwrap();
    let estimator = KMeans::new(k).seed(3).max_iter(20).null_policy(NullPolicy::Skip).history(History::Full);
    let expected = brief(on_cpu(&estimator, Strategy::Default).fit_features(&features, None));
    for strategy in CARRIED {
        assert_eq!(brief(on_cpu(&estimator, strategy).fit_features(&features, None)), expected, "{strategy}");
    }
}

#[test]
fn carried_bounds_take_rows_of_16_bits() {
    for (round, half) in [Half::Float16, Half::BFloat16].into_iter().enumerate() {
        let random = &mut Random(round as u64);
        let data = Halves::new(half, "blobs", 4_000, 6, random);
        let estimator = KMeans::new(40).seed(3).max_iter(20);
        let [narrow, wide] = data.by_rows();
        let expected = brief(on_cpu(&estimator, Strategy::Default).fit_features(&wide, None));
        for strategy in CARRIED {
            assert_eq!(brief(on_cpu(&estimator, strategy).fit_features(&narrow, None)), expected, "{strategy}, {half:?}");
        }
    }
}

/// Late iterations compute a small part of the scores. The reason names the strategy.
#[test]
fn carried_bounds_skip_scores() {
    let random = &mut Random(8);
    for (d, k, least) in [(2, 16, 0.6), (16, 200, 0.8)] {
        let x: Vec<f32> = rows("blobs", 20_000, d, random);
        let features = Features::from_rows(&x, d).unwrap();
        let estimator = KMeans::new(k).seed(4).tol(0.0).max_iter(40);
        for strategy in CARRIED {
            let fit = on_cpu(&estimator, strategy).fit_features(&features, None).unwrap();
            assert_eq!((fit.choice.place, fit.choice.strategy), (Place::Cpu, strategy));
            assert!(fit.choice.reason.ends_with(&format!("its strategy is {strategy}, as asked")), "{}", fit.choice.reason);
            let skipped: Vec<f64> = fit.model.history().iter().map(|row| row.skipped.unwrap()).collect();
            let settled = fit.model.history().iter().all(|row| row.settled.is_some_and(|share| (0.0..=1.0).contains(&share)));
            assert!(settled && skipped[0] < 0.01 && skipped.iter().all(|share| (0.0..=1.0).contains(share)), "{skipped:?}");
            let most = skipped.iter().fold(0.0f64, |most, share| most.max(*share));
            assert!(most > if strategy == Strategy::Hamerly { 0.3 * least } else { least }, "{strategy}, {d}: {skipped:?}");
            for (x, label) in x.chunks_exact(d).zip(&fit.labels).step_by(7) {
                assert_eq!(*label, reference::nearest(x, fit.model.centroids()).label, "{strategy}");
            }
        }
    }
}

/// One cluster, and rows that are all zero: there are no bounds.
#[test]
fn carried_bounds_are_not_needed() {
    let x = [0.0f32; 40];
    let features = Features::from_rows(&x, 2).unwrap();
    for strategy in CARRIED {
        let fit = on_cpu(&KMeans::new(1), strategy).fit_features(&features, None).unwrap();
        assert!(fit.labels.iter().all(|label| *label == 0));
        let few = on_cpu(&KMeans::new(2), strategy).fit_features(&features, None);
        assert_eq!(brief(few), brief(on_cpu(&KMeans::new(2), Strategy::Default).fit_features(&features, None)));
    }
    // A weightless row and a starting centroid are farther out than all rows that count.
    let mut x: Vec<f64> = (0..600).map(|i| f64::from(i % 37)).collect();
    x[17] = 1e130;
    let mut weights = vec![1.0; 300];
    weights[8] = 0.0;
    let (features, weights) = (Features::from_rows(&x, 2).unwrap(), Column::from_slice(&weights));
    let start = vec![0.0, 1.0, 5.0, 5.0, 30.0, 1.0, 1e60, 3.0];
    let estimator = KMeans::new(4).init(Init::Given(start)).tol(0.0);
    let expected = brief(on_cpu(&estimator, Strategy::Default).fit_features(&features, Some(&weights)));
    for strategy in CARRIED {
        assert_eq!(brief(on_cpu(&estimator, strategy).fit_features(&features, Some(&weights))), expected, "{strategy}");
    }
}
