//! One suite for every way to label rows: the families of strategies of a GPU, and the CPU with each instruction set, with groups of
//! rows and without, with integer copies and without. Labels are those of the reference, and all bits are those of the plainest way on
//! the CPU. `strategies.rs` has smaller shapes for all strategies. What only one family can do is in a file of its own.

#[cfg(feature = "cuda")]
pub mod gpu;

use polars_kmeans::{Engine, Init, KMeans};

use crate::data::{KINDS, Random, clusters_of, rounds, rows, rows_between, some_rows, some_weights};
use crate::groups::OnCpu;
use crate::sessions::Data;

/// A fit of rows from given centroids, until nothing changes or to the last of its iterations.
pub struct Case<T> {
    pub data: Data<T>,
    pub start: Vec<f64>,
    pub iterations: u32,
    pub what: String,
}

impl<T: Engine> Case<T> {
    /// `what` comes before the shape and the type.
    fn new(what: &str, x: Vec<T>, weights: Option<Vec<f64>>, d: usize, start: Vec<f64>, iterations: u32) -> Self {
        let what = format!("{what}, {} x {d} {}, k = {}", x.len() / d, T::NAME, start.len() / d);
        Self { data: Data { x, weights, d }, start, iterations, what }
    }

    pub fn estimator(&self) -> KMeans {
        let k = self.start.len() / self.data.d;
        KMeans::new(k).init(Init::Given(self.start.clone())).max_iter(self.iterations).tol(0.0)
    }
}

/// A way to label rows.
pub trait Way {
    const SHAPES: Shapes;

    /// Fails unless labels and bits are right. Returns the share of the scores that were left out, if the way is there and counts them.
    fn check<T: Engine>(case: &Case<T>) -> Option<f64>;
}

/// The shapes `[n, d, k]` on which a way is checked: few and many features and clusters for it, and the borders of its tiles.
pub struct Shapes {
    /// The first number of all data.
    pub seed: u64,
    /// The iterations of most fits.
    pub iterations: u32,
    /// For the kinds of data in turn. Each kind has `per_kind` of them.
    pub kinds: &'static [[usize; 3]],
    pub per_kind: usize,
    pub more_kinds: &'static [&'static str],
    pub sizes: &'static [[usize; 3]],
    pub weighted: &'static [[usize; 3]],
    /// Rows and clusters, then features and offsets.
    pub between: ([usize; 2], &'static [(usize, f64)]),
    /// Kind, shape, and the share of the scores that is left out at least.
    pub to_the_end: &'static [(&'static str, [usize; 3], f64)],
}

pub fn every_kind<W: Way, T: Engine>() {
    let shapes = W::SHAPES;
    let kinds: Vec<&str> = KINDS.iter().chain(shapes.more_kinds).copied().collect();
    for (i, kind) in kinds.iter().enumerate().take(rounds(kinds.len())) {
        for (j, &[n, d, k]) in shapes.kinds.iter().cycle().skip(i).take(shapes.per_kind).enumerate() {
            let random = &mut Random(shapes.seed + 1_000 * u64::from(T::IS_F32) + (20 * i + j) as u64);
            let x: Vec<T> = rows(kind, n, d, random);
            // In one of the types, if not in both, a kind has no weights.
            let weights = ((i + j + usize::from(T::IS_F32)) % 3 == 0).then(|| some_weights(n, random));
            // Few or many clusters are empty at first.
            let start = some_rows(&x, d, clusters_of(kind, d, k), [50, 3][j % 2], random);
            W::check(&Case::new(kind, x, weights, d, start, shapes.iterations));
        }
    }
}

/// One row to many tiles, one cluster to the most that a way has lists or bits for.
pub fn every_size<W: Way, T: Engine>() {
    let shapes = W::SHAPES;
    for (i, &[n, d, k]) in shapes.sizes.iter().enumerate().take(rounds(shapes.sizes.len())) {
        let random = &mut Random(shapes.seed + 2_000 + i as u64);
        let kind = ["blobs", "uniform"][i % 2];
        let x: Vec<T> = rows(kind, n, d, random);
        let start = some_rows(&x, d, k, 50, random);
        W::check(&Case::new(kind, x, None, d, start, shapes.iterations / 2 + 1));
    }
}

/// Weights, some of them 0, and clusters that start empty, so that rows are relocated between iterations.
pub fn weights_and_empty_clusters<W: Way>() {
    let shapes = W::SHAPES;
    for (i, &[n, d, k]) in shapes.weighted.iter().enumerate().take(rounds(shapes.weighted.len())) {
        let random = &mut Random(shapes.seed + 3_000 + i as u64);
        let x: Vec<f32> = rows("blobs", n, d, random);
        let start = some_rows(&x, d, k, 4, random);
        for (what, weights) in [("weights", Some(some_weights(n, random))), ("empty clusters", None)] {
            W::check(&Case::new(what, x.clone(), weights, d, start.clone(), shapes.iterations + 3));
        }
    }
}

/// Rows amid two centroids, or one float next to that, at every scale and far from the origin. Centroids move little, so bounds decide
/// as much as they can.
pub fn rows_between_two_centroids<W: Way>() {
    let shapes = W::SHAPES;
    let ([n, k], places) = shapes.between;
    for (i, exponent) in [0, -120, 60, -20, 12].into_iter().enumerate().take(rounds(5)) {
        for (j, &(d, offset)) in places.iter().enumerate() {
            let random = &mut Random(shapes.seed + 4_000 + (10 * i + j) as u64);
            let (x, start) = rows_between([n, d, k], offset, 2f64.powi(exponent), random);
            let what = format!("between two, 2^{exponent}, offset {offset}");
            let wide: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            W::check(&Case::new(&what, wide, None, d, start.clone(), shapes.iterations - 2));
            W::check(&Case::new(&what, x, None, d, start, shapes.iterations - 2));
        }
    }
}

/// Fits until nothing changes: ways that keep something from iteration to iteration settle most rows, and some come back.
pub fn fits_to_the_end<W: Way>() {
    let shapes = W::SHAPES;
    for (i, &(kind, [n, d, k], left_out)) in shapes.to_the_end.iter().enumerate().take(rounds(shapes.to_the_end.len())) {
        let random = &mut Random(shapes.seed + 5_000 + i as u64);
        let x: Vec<f32> = rows(kind, n, d, random);
        let start = some_rows(&x, d, k, 50, random);
        let wide: Vec<f64> = x.iter().map(|&v| f64::from(v) + 1e-9 * random.normal()).collect();
        let share = W::check(&Case::new(kind, x, None, d, start.clone(), 300));
        assert!(share.is_none_or(|share| share >= left_out), "{kind}: {share:?}");
        W::check(&Case::new(kind, wide, None, d, start, 60));
    }
}

/// The tests of a way that is a type.
macro_rules! conforms {
    ($($(#[$attribute:meta])* $name:ident: $way:ty $(, $gpu:ident)?;)*) => {
        $($(#[$attribute])* mod $name {
            use super::*;

            in_both_types!(every_kind_of_data, T => every_kind::<$way, T>());
            in_both_types!(all_sizes, T => every_size::<$way, T>());
            #[test]
            fn weights_and_empty_clusters() {
                super::weights_and_empty_clusters::<$way>();
            }
            #[test]
            fn rows_between_two_centroids() {
                super::rows_between_two_centroids::<$way>();
            }
            #[test]
            fn fits_to_the_end() {
                super::fits_to_the_end::<$way>();
            }
            $(
                #[test]
                fn directions() {
                    $gpu::directions::<$way>();
                }
                #[test]
                fn values_of_16_bits() {
                    $gpu::values_of_16_bits::<$way>();
                }
                #[test]
                fn restarts() {
                    $gpu::restarts::<$way>();
                }
                #[test]
                fn rows_that_stream() {
                    $gpu::rows_that_stream::<$way>();
                }
            )?
        })*
    };
}

conforms! {
    cpu: OnCpu;
    #[cfg(feature = "cuda")] registers: gpu::Registers, gpu;
    #[cfg(feature = "cuda")] columns: gpu::Columns, gpu;
    #[cfg(feature = "cuda")] tiled: gpu::Tiled, gpu;
    #[cfg(feature = "cuda")] tensor: gpu::Tensor, gpu;
    #[cfg(feature = "cuda")] cells: gpu::Cells, gpu;
    #[cfg(feature = "papers")] yinyang: gpu::Yinyang, gpu;
}
