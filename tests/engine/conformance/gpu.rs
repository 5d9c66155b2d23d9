//! The families of strategies of a GPU, and what only they are asked.

use polars_kmeans::{
    Column, Device, Engine, Features, Fitted, Half, History, Init, KMeans, KMeansError, Metric, Restarts, Strategy,
};

use super::{Case, Shapes, Way};
use crate::data::{Random, assert_nearest, clusters_of, columns, from_columns, from_some, gpu, hash, rows, shape};
use crate::half::Halves;
use crate::streaming::limits;

/// Strategies that share their kernels.
pub trait Family {
    const STRATEGIES: &'static [Strategy];
    const SHAPES: Shapes;
    /// A shape that is neither small nor at a border.
    const SHAPE: [usize; 3];
    const STREAMS: Streams;
}

/// How rows that do not fit on the GPU are taken.
pub enum Streams {
    /// In chunks.
    Yes,
    /// In chunks, with so many bytes.
    Within(u64),
    /// They are refused.
    Never,
}

impl<F: Family> Way for F {
    const SHAPES: Shapes = F::SHAPES;

    fn check<T: Engine>(case: &Case<T>) -> Option<f64> {
        let (x, d) = (&case.data.x, case.data.d);
        let columns = columns(x, d);
        let weights = case.data.weights.as_ref().map(|weights| Column::from_slice(weights));
        let fit = same_bits(F::STRATEGIES, &case.estimator(), &from_columns(&columns), weights.as_ref(), &case.what)?;
        assert_nearest(x, &fit, &case.what);
        let history = fit.model.history();
        Some(history.iter().filter_map(|row| row.skipped).sum::<f64>() / history.len().max(1) as f64)
    }
}

/// The fit by a strategy. `None` if there is no GPU, or if the GPU has no such tensor cores.
pub fn by<T: Engine>(
    strategy: Strategy,
    estimator: &KMeans,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
) -> Option<Fitted<T>> {
    match estimator.clone().device(gpu()?).strategy(strategy).fit_features(features, weights) {
        Err(KMeansError::InvalidOption { option: "strategy", expected, .. })
            if strategy == Strategy::TensorWgmma && expected.contains("compute capability") =>
        {
            None
        }
        fit => Some(fit.unwrap_or_else(|error| panic!("{strategy}: {error}"))),
    }
}

/// Each of the strategies gives the bits of the CPU. Returns the fit by one of them.
pub fn same_bits<T: Engine>(
    strategies: &[Strategy],
    estimator: &KMeans,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
    what: &str,
) -> Option<Fitted<T>> {
    gpu()?;
    let expected = estimator.clone().device(Device::Cpu).fit_features(features, weights).unwrap();
    let mut last = None;
    for &strategy in strategies {
        let Some(fit) = by(strategy, estimator, features, weights) else { continue };
        let wrong = fit.labels.iter().zip(&expected.labels).filter(|(ours, right)| ours != right).count();
        assert_eq!((wrong, hash(&fit)), (0, hash(&expected)), "{strategy}, {what}: labels that differ, and the hash");
        last = Some(fit);
    }
    last
}

pub fn directions<F: Family>() {
    let ([n, d, k], random) = (F::SHAPE, &mut Random(F::SHAPES.seed + 6_000));
    let x: Vec<f32> = rows("one blob", n, d, random);
    let estimator = from_some(&x, d, k, 50, random).max_iter(F::SHAPES.iterations).metric(Metric::Cosine);
    same_bits(F::STRATEGIES, &estimator, &Features::from_rows(&x, d).unwrap(), None, "directions");
}

pub fn values_of_16_bits<F: Family>() {
    let ([n, d, k], random) = (F::SHAPE, &mut Random(F::SHAPES.seed + 7_000));
    for (half, kind) in [(Half::Float16, "blobs"), (Half::BFloat16, "uniform"), (Half::Float16, "lattice")] {
        let data = Halves::new(half, kind, n, d, random);
        let columns = columns(&data.bits, d);
        let features = Features::<f32>::from_half_columns(half, columns.iter().map(|c| &c[..])).unwrap();
        let estimator = from_some(&data.wide, d, clusters_of(kind, d, k), 50, random).max_iter(F::SHAPES.iterations);
        same_bits(F::STRATEGIES, &estimator, &features, None, &format!("{half:?}, {kind}"));
    }
}

/// Several fits in one session.
pub fn restarts<F: Family>() {
    let ([n, d, k], random) = (F::SHAPE, &mut Random(F::SHAPES.seed + 8_000));
    let x: Vec<f32> = rows("blobs", n, d, random);
    let features = Features::from_rows(&x, d).unwrap();
    let estimator = KMeans::new(k).init(Init::Random).n_init(Restarts::Count(3)).max_iter(F::SHAPES.iterations);
    for history in [History::Light, History::Full] {
        same_bits(F::STRATEGIES, &estimator.clone().history(history), &features, None, &format!("restarts, {history:?}"));
    }
}

pub fn rows_that_stream<F: Family>() {
    let [_, d, k] = F::SHAPE;
    let n = 60_000;
    let random = &mut Random(F::SHAPES.seed + 9_000);
    let x: Vec<f32> = rows("blobs", n, d, random);
    let columns = columns(&x, d);
    let features = from_columns(&columns);
    let room = match F::STREAMS {
        Streams::Within(room) => room,
        Streams::Yes | Streams::Never => {
            let all = limits(shape::<f32>([n, d, k], false));
            all[all.len() / 2].room
        }
    };
    let estimator = from_some(&x, d, k, 50, random).max_iter(4).device_memory_limit(Some(room));
    if matches!(F::STREAMS, Streams::Never) {
        let Some(device) = gpu() else { return };
        let refused = estimator.device(device).strategy(F::STRATEGIES[0]).fit_features(&features, None).unwrap_err();
        let text = format!("rows that fit on the GPU for \"{}\"", F::STRATEGIES[0]);
        assert!(refused.to_string().contains(&text), "{refused}");
    } else if let Some(fit) = same_bits(F::STRATEGIES, &estimator, &features, None, "rows that stream") {
        assert!(fit.choice.plan.chunking.is_some(), "{}", fit.choice.reason);
    }
}

impl Shapes {
    /// What most families share.
    const USUAL: Self = Self {
        seed: 0,
        iterations: 8,
        kinds: &[[9_000, 5, 40], [6_000, 20, 300], [5_000, 70, 90], [3_000, 150, 270], [8_000, 2, 500]],
        per_kind: 1,
        more_kinds: &[],
        sizes: &[[1, 3, 1], [2, 1, 2], [127, 5, 33], [129, 17, 65], [1_025, 33, 129], [20_000, 4, 2_049]],
        weighted: &[[8_000, 2, 90], [6_000, 20, 60], [5_000, 3, 200], [4_000, 33, 300]],
        between: ([3_000, 60], &[(1, 0.0), (2, 1e3), (17, 0.0), (40, 1e6)]),
        to_the_end: &[("blobs", [20_000, 24, 300], 0.0), ("tight blobs far apart", [9_000, 8, 70], 0.0)],
    };
}

pub struct Registers;

impl Family for Registers {
    const STRATEGIES: &'static [Strategy] = &[Strategy::Registers, Strategy::RegistersSingle, Strategy::RegistersGroups];
    const SHAPES: Shapes = Shapes {
        seed: 110_000,
        // Groups of 8 centroids, and of 16 from 385 centroids on.
        kinds: &[[9_000, 5, 40], [8_000, 2, 500], [6_000, 12, 90], [9_000, 3, 300], [5_000, 7, 30]],
        sizes: &[[1, 3, 1], [2, 1, 2], [127, 5, 33], [1_025, 12, 129], [5_000, 9, 257], [20_000, 4, 2_049]],
        weighted: &[[8_000, 2, 90], [6_000, 12, 60], [5_000, 3, 200]],
        between: ([3_000, 60], &[(1, 0.0), (2, 1e3), (7, 0.0), (12, 1e6)]),
        to_the_end: &[("blobs", [30_000, 2, 40], 0.0), ("tight blobs far apart", [9_000, 8, 70], 0.0)],
        ..Shapes::USUAL
    };
    const SHAPE: [usize; 3] = [10_000, 9, 100];
    const STREAMS: Streams = Streams::Yes;
}

pub struct Columns;

impl Family for Columns {
    const STRATEGIES: &'static [Strategy] = &[Strategy::Columns];
    const SHAPES: Shapes = Shapes {
        seed: 120_000,
        kinds: &[[9_000, 9, 20], [6_000, 20, 32], [5_000, 64, 12], [2_000, 100, 9], [8_000, 12, 3]],
        sizes: &[[1, 9, 1], [2, 10, 2], [127, 33, 3], [129, 17, 32], [1_025, 300, 9], [30_000, 12, 8]],
        weighted: &[[8_000, 9, 30], [6_000, 20, 32], [5_000, 64, 12]],
        between: ([3_000, 30], &[(9, 0.0), (17, 1e3), (40, 1e6)]),
        to_the_end: &[("blobs", [20_000, 24, 20], 0.0), ("tight blobs far apart", [9_000, 9, 8], 0.0)],
        ..Shapes::USUAL
    };
    const SHAPE: [usize; 3] = [10_000, 12, 20];
    const STREAMS: Streams = Streams::Yes;
}

pub struct Tiled;

impl Family for Tiled {
    const STRATEGIES: &'static [Strategy] =
        &[Strategy::Tiled, Strategy::Tiled32, Strategy::Tiled64, Strategy::Tiled128, Strategy::Tiled128Panels];
    const SHAPES: Shapes = Shapes {
        seed: 130_000,
        // Several panels.
        kinds: &[[9_000, 5, 40], [6_000, 20, 300], [5_000, 70, 90], [3_000, 200, 270], [8_000, 2, 500]],
        ..Shapes::USUAL
    };
    const SHAPE: [usize; 3] = [10_000, 20, 100];
    const STREAMS: Streams = Streams::Yes;
}

pub struct Tensor;

impl Family for Tensor {
    const STRATEGIES: &'static [Strategy] = &[Strategy::TensorWgmma, Strategy::TensorMma];
    const SHAPES: Shapes = Shapes {
        seed: 140_000,
        iterations: 4,
        // Several groups of rows, several tiles, and lists that leave centroids out.
        kinds: &[
            [20_000, 40, 300],
            [9_000, 140, 700],
            [40_000, 3, 500],
            [5_000, 300, 80],
            [12_000, 96, 400],
            [5_000, 260, 270],
        ],
        more_kinds: &["token vectors", "one blob", "lognormal", "unit vectors", "copies"],
        sizes: &[
            [1, 1, 1],
            [127, 5, 3],
            [2_049, 1, 33],
            [3_000, 16, 256],
            [3_000, 48, 257],
            [4_000, 64, 512],
            [3_000, 128, 513],
            [2_500, 256, 100],
            [3_000, 200, 513],
            [1_500, 1_000, 300],
            [600, 4_096, 90],
            [30_000, 20, 3_000],
        ],
        weighted: &[[8_000, 24, 90], [6_000, 140, 300]],
        between: ([6_000, 200], &[(24, 0.0), (70, 1e3), (270, 0.0)]),
        ..Shapes::USUAL
    };
    const SHAPE: [usize; 3] = [10_000, 50, 100];
    const STREAMS: Streams = Streams::Within(16 << 20);
}

pub struct Cells;

impl Family for Cells {
    const STRATEGIES: &'static [Strategy] = &[Strategy::Grid];
    const SHAPES: Shapes = Shapes {
        seed: 150_000,
        iterations: 6,
        // Many cells, several tiles a cell, and lists that leave centroids out.
        kinds: &[[60_000, 2, 500], [20_000, 1, 40], [50_000, 4, 64], [40_000, 3, 300]],
        more_kinds: &["lognormal", "uniform", "lognormal"],
        sizes: &[[1, 1, 1], [3, 2, 3], [127, 4, 33], [5_000, 3, 2_500]],
        weighted: &[[30_000, 2, 90], [20_000, 4, 60], [9_000, 3, 200], [15_000, 1, 30]],
        between: ([8_000, 60], &[(1, 0.0), (2, 1e3), (3, 0.0), (4, 1e6)]),
        to_the_end: &[
            ("blobs", [200_000, 2, 40], 0.0),
            ("uniform", [200_000, 2, 40], 0.0),
            ("lognormal", [200_000, 2, 40], 0.0),
            ("tight blobs far apart", [200_000, 2, 40], 0.0),
        ],
        ..Shapes::USUAL
    };
    const SHAPE: [usize; 3] = [40_000, 4, 100];
    const STREAMS: Streams = Streams::Never;
}

#[cfg(feature = "papers")]
pub struct Yinyang;

#[cfg(feature = "papers")]
impl Family for Yinyang {
    const STRATEGIES: &'static [Strategy] = &[Strategy::Yinyang];
    const SHAPES: Shapes = Shapes {
        seed: 160_000,
        iterations: 12,
        sizes: &[[1, 3, 1], [129, 17, 65], [1_025, 33, 129], [5_000, 9, 257], [20_000, 4, 2_049], [9_000, 3, 8_900]],
        to_the_end: &[
            ("blobs", [60_000, 2, 40], 0.3),
            ("uniform", [30_000, 3, 300], 0.3),
            ("blobs", [20_000, 24, 300], 0.3),
            ("tight blobs far apart", [30_000, 8, 70], 0.0),
        ],
        ..Shapes::USUAL
    };
    const SHAPE: [usize; 3] = [10_000, 12, 100];
    const STREAMS: Streams = Streams::Never;
}
