//! The leaf of a row.
//!
//! ```text
//! "tree":   from the root, the nearest child again and again
//! "exact":  the nearest of all leaves: a prediction of the flat model of the leaves, with the filters and devices of any model
//! ```
//! Distances are reference distances, and the smaller child or leaf wins a tie.

use std::ops::Range;

use super::nodes::refused;
use super::{TREE, Tree, TreeNode};
use crate::backend::answers::{Answered, Labels};
use crate::backend::cpu;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{FloatEnvironment, for_each_task, workers_for};
use crate::base::params::Device;
use crate::base::params::declare::words;
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, Tile};
use crate::simd::{InstructionSet, Task, Vector};

/// Rows of a task.
const TASK: usize = 1_024;
/// Distances that are computed side by side.
const TOGETHER: usize = 8;

words! {
    /// How the leaf of a row is found.
    pub enum Search("search") {
        /// From the root, the nearest child again and again. The nearest leaf of all may lie below another child.
        #[default]
        Tree = "tree",
        /// The nearest of all leaves.
        Exact = "exact",
    }
}

/// What a thread needs.
struct Searcher<T> {
    tile: Tile<T>,
    row: Vec<f64>,
    distances: Vec<f64>,
}

impl<T: Engine> Tree<T> {
    /// The leaf of each row, on the CPU. A row with a null or a value that is not finite has none.
    ///
    /// # Errors
    /// [`KMeansError::WidthMismatch`](crate::KMeansError), [`KMeansError::NoMemory`](crate::KMeansError) or
    /// [`KMeansError::Cancelled`](crate::KMeansError).
    pub fn predict(&self, features: &Features<'_, T>, search: Search) -> Result<Labels> {
        self.predict_on(features, search, Device::Cpu)
    }

    /// As [`Tree::predict`]. An exact search runs on the device. A search through the tree runs on the CPU.
    ///
    /// # Errors
    /// As [`Tree::predict`], and a device that was demanded and cannot be used.
    pub fn predict_on(&self, features: &Features<'_, T>, search: Search, device: Device) -> Result<Labels> {
        match search {
            Search::Tree => self.descend(features),
            Search::Exact => self.flat.on(device).predict(features),
        }
    }

    /// Minus the inertia of rows around the leaves that the search finds: exact sums, rounded once. Rows without a leaf are left out.
    ///
    /// # Errors
    /// As [`DeviceModel::score`](crate::DeviceModel::score).
    pub fn score(
        &self,
        features: &Features<'_, T>,
        weights: Option<&Column<'_, f64>>,
        search: Search,
        device: Device,
    ) -> Result<f64> {
        if search == Search::Exact {
            return self.flat.on(device).score(features, weights);
        }
        if let Some(weights) = weights.filter(|weights| weights.len() != features.n_rows()) {
            let (expected, got) = (features.n_rows(), weights.len());
            return Err(KMeansError::LengthMismatch { what: "weight".into(), expected, got });
        }
        let _environment = FloatEnvironment::default_rounding();
        let labels = self.descend(features)?;
        let rows = features.transformed_by(self.flat.row_transform()?);
        let table = self.flat.host_table()?.clone();
        let (centroids, metric) = (self.flat.centroids(), self.flat.metric());
        cpu::predict::inertia(centroids, metric, table, &rows, weights, Some(labels.values())).map(|sum| -sum)
    }
}

impl<T: Float> Tree<T> {
    /// For each row, the leaf below the nearest child of the nearest child, and so on.
    fn descend(&self, features: &Features<'_, T>) -> Result<Labels> {
        let (n, d) = (features.n_rows(), self.flat.names().len());
        if features.n_features() != d {
            return Err(KMeansError::WidthMismatch { what: "features", expected: d, got: features.n_features() });
        }
        if features.gpu().is_some() {
            return Err(refused("search", "\"exact\" for rows on a GPU", "\"tree\""));
        }
        let part = &RowBlock::new(features.transformed_by(self.flat.row_transform()?), None);
        let (mut labels, mut is_bad) = (memory::zeroed(n, TREE)?, memory::zeroed(n, TREE)?);
        let searcher = |_| {
            let (tile, row) = (Tile::new(d, TASK)?, memory::zeroed(d, TREE)?);
            Ok(Searcher { tile, row, distances: memory::with_room(self.nodes.len(), TREE)? })
        };
        let mut searchers = memory::try_collected((0..workers_for(0, n.div_ceil(TASK))).map(searcher), TREE)?;
        let tasks = (0..).step_by(TASK).zip(labels.chunks_mut(TASK).zip(is_bad.chunks_mut(TASK)));
        let set = InstructionSet::detect();
        for_each_task(&mut searchers, tasks, |searcher, (first, (labels, is_bad))| {
            searcher.tile.load_checked(part, first..first + labels.len());
            is_bad.copy_from_slice(&searcher.tile.bad[..labels.len()]);
            set.run(DescendRows { tree: self, searcher, labels, is_bad });
        })?;
        Ok(Labels::new(labels, Answered::collect(n, is_bad.iter().map(|is_bad| !is_bad))?))
    }

    /// The leaf of the row of a searcher.
    #[inline(always)]
    fn leaf(&self, searcher: &mut Searcher<T>) -> u32 {
        let mut node = 0u32;
        loop {
            let TreeNode { leaf, children, .. } = &self.nodes[node as usize];
            if let Some(leaf) = leaf {
                return *leaf;
            }
            self.measure(children, searcher);
            let mut best = (f64::INFINITY, children.start);
            for (child, distance) in (children.start..).zip(&searcher.distances) {
                if *distance < best.0 {
                    best = (*distance, child);
                }
            }
            node = best.1;
        }
    }

    /// The reference distances of the row to some nodes.
    #[inline(always)]
    fn measure(&self, nodes: &Range<u32>, searcher: &mut Searcher<T>) {
        let Searcher { row, distances, .. } = searcher;
        let d = row.len();
        let centroids = &self.centroids[nodes.start as usize * d..nodes.end as usize * d];
        distances.clear();
        for some in centroids.chunks(TOGETHER * d) {
            // Where there are fewer, the last one is measured several times.
            let last = some.len() / d - 1;
            let of: [&[T]; TOGETHER] = std::array::from_fn(|i| &some[i.min(last) * d..][..d]);
            let mut sums = [0.0f64; TOGETHER];
            for (f, x) in row.iter().enumerate() {
                for (sum, of) in sums.iter_mut().zip(&of) {
                    let t = x - of[f].to_f64();
                    *sum = t.mul_add(t, *sum);
                }
            }
            distances.extend_from_slice(&sums[..=last]);
        }
    }
}

/// Finds the leaves of the rows of a tile.
struct DescendRows<'s, T> {
    tree: &'s Tree<T>,
    searcher: &'s mut Searcher<T>,
    labels: &'s mut [u32],
    is_bad: &'s [bool],
}

impl<T: Float> Task for DescendRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { tree, searcher, labels, is_bad } = self;
        let kept = labels.iter_mut().zip(is_bad).filter(|(_, is_bad)| !**is_bad);
        for (row, (label, _)) in kept.enumerate() {
            let Searcher { tile, row: x, .. } = &mut *searcher;
            x.iter_mut().enumerate().for_each(|(f, x)| *x = tile.column(f)[row].to_f64());
            *label = tree.leaf(searcher);
        }
    }
}
