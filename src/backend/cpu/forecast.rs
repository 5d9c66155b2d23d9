//! The memory and the time that a fit on the CPU is expected to take. They follow from the shape of the rows and the number of
//! threads.
//!
//! ```text
//! bytes    labels + centroids, their tables and sums + each worker's buffers
//!          + the larger of   what the starting centroids are found with
//!                            rows in the order of their groups                    both if there are several restarts
//!          + a copy of the rows, if they are put in order before
//! ```
//! Bytes are at least what a fit takes. Seconds are rough: see `seconds.rs`.

mod seconds;

use super::groups::PossibleMethods;
use super::layout::SessionLayout;
use super::seeds;
use crate::base::float::Float;
use crate::base::params::{Init, Params, RowOrder};
use crate::simd::InstructionSet;

/// What a fit is expected to take.
#[derive(Debug, Clone, Copy)]
pub struct Forecast {
    /// What it tries to find labels by.
    pub tries: PossibleMethods,
    /// The most bytes, without the rows that are given.
    pub bytes: u64,
    /// Those of them that a fit on a GPU takes on the host, too.
    pub bytes_beside_gpu: u64,
    /// The starting centroids of all restarts.
    pub seconds_seeding: f64,
    /// An iteration, on the average.
    pub seconds_iteration: f64,
}

/// Bytes that any fit may take, and each of its workers.
const BASE: f64 = (4 << 20) as f64;
const WORKER: f64 = (2 << 20) as f64;

impl Forecast {
    pub fn new<T: Float>(layout: &SessionLayout, params: &Params<'_>, weighted: bool) -> Self {
        let tries = layout.tries::<T>(layout.n, InstructionSet::detect());
        let of = CostModel { layout, params, tries, size: size_of::<T>() as f64, weighted };
        let beside_gpu = of.bytes_in_order() + of.bytes_of_model();
        Self {
            tries,
            bytes: (beside_gpu + of.bytes_of_session::<T>()) as u64,
            bytes_beside_gpu: beside_gpu as u64,
            seconds_seeding: of.seconds_of_seeding::<T>(),
            seconds_iteration: of.seconds_of_iteration(),
        }
    }
}

struct CostModel<'l, 'p> {
    layout: &'l SessionLayout,
    params: &'l Params<'p>,
    tries: PossibleMethods,
    /// Bytes of a value.
    size: f64,
    weighted: bool,
}

impl CostModel<'_, '_> {
    fn shape(&self) -> [f64; 3] {
        [self.layout.n as f64, self.layout.d as f64, self.layout.k as f64]
    }

    /// Rows that are put in order, and their order.
    fn bytes_in_order(&self) -> f64 {
        let [n, d, _] = self.shape();
        let copy = 4.0 * n + n * d * self.size + if self.weighted { 8.0 * n } else { 0.0 };
        // Entries of 16 bytes are sorted before the copy is made. Some are copied meanwhile.
        if self.params.rows.row_order == RowOrder::Given { 0.0 } else { (24.0 * n).max(copy) + 8.0 * n }
    }

    /// Labels, which rows are kept, and the centroids of the model and of the loop.
    fn bytes_of_model(&self) -> f64 {
        let [n, d, k] = self.shape();
        BASE + n * (4.0 + 1.0 / 8.0) + k * (d * (4.0 * self.size + 24.0) + 128.0)
    }

    fn bytes_of_session<T: Float>(&self) -> f64 {
        let [_, d, k] = self.shape();
        let SessionLayout { workers, tile, .. } = *self.layout;
        // Two limbs of each sum, and rows of a tile.
        let worker = 16.0 * k * d + 64.0 * k + tile as f64 * (2.0 * d * self.size + 128.0) + WORKER;
        // Two tables of centroids: a new one is made before the last one goes.
        let tree = if self.tries.tree.is_some() { 2.0 * k * (1.2 * d * self.size + 8.0) } else { 0.0 };
        let tables = 16.0 * k * d + 2.0 * k * d * (self.size + 16.0) + tree;
        let (seeding, groups) = (self.bytes_of_seeding::<T>(), self.layout.bytes_of_groups::<T>(self.tries));
        let rest = if self.params.restarts > 1 { seeding + groups } else { seeding.max(groups) };
        workers as f64 * worker + tables + rest
    }

    /// What the starting centroids of a restart are found with.
    fn bytes_of_seeding<T: Float>(&self) -> f64 {
        let ([n, d, k], seeding) = (self.shape(), self.params.seeding);
        let row = d * self.size;
        let Some(rows) = self.rows_of_seeding() else { return k * row };
        let sample = if rows < n { 2.0 * rows * (row + 24.0) } else { 0.0 };
        let grouped = seeds::pays::<T>(rows as usize, self.layout.d, self.layout.k, self.weighted);
        // A copy of the rows with gaps, boxes of its blocks, a sample to make it from, and distances to the candidates of a step.
        let copy = if grouped { 1.25 * rows * (row + 8.0) + rows * row * 3.0 / 8.0 } else { 0.0 };
        let state = rows * if self.weighted { 24.0 } else { 16.0 } + copy;
        let drawn = match seeding.init {
            Init::KMeansParallel => {
                // As many candidates as expected, and half as many more. They are rows of a fit of their own.
                let candidates = 1.5 * (1.0 + seeding.oversampling * k * f64::from(seeding.rounds));
                candidates.min(rows) * (5.0 * row + 96.0)
            }
            Init::AfkMc2 => {
                let of_block = 32.0 * f64::from(seeding.chain_length) * (row + 64.0);
                2.0 * of_block.max((64 << 20) as f64) + 4.0 * k * row
            }
            Init::Optimal => rows * (136.0 + 4.0 * k),
            Init::Given(_) | Init::Random | Init::KMeansPlusPlus => 0.0,
        };
        sample + state + drawn
    }

    /// The rows that starting centroids are chosen from by their distances, if they are.
    fn rows_of_seeding(&self) -> Option<f64> {
        let rows = self.params.seeding.init_sample.map_or(self.layout.n as f64, |rows| (rows as f64).min(self.layout.n as f64));
        (!matches!(self.params.seeding.init, Init::Given(_) | Init::Random)).then_some(rows)
    }
}
