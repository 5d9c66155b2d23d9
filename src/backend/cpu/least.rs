//! The distances of some rows to the nearest of a growing list of centroids, for the chains of AFK-MC².

use std::ops::Range;

use super::centroids::CentroidTable;
use super::distances::own_distances;
use super::seeds::{Strip, UNIT};
use super::sinks::{LabelTask, Labeller, Sink};
use super::{Assigner, split_off};
use crate::backend::centre::middle;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::exact::reference;
use crate::input::features::Features;
use crate::input::tile::{RowBlock, Tile};
use crate::simd::{InstructionSet, Task, Vector};

/// The name for the distances in errors.
const DISTANCES: &str = "the distances of the rows drawn";

/// Some rows, and for each its reference distance to the nearest centroid so far.
pub struct LeastDistances<T> {
    /// `(d, stride)`: the rows by features. The stride is a multiple of [`UNIT`].
    tile: Tile<T>,
    least: Vec<f64>,
    rows: usize,
    set: InstructionSet,
}

impl<T: Float> LeastDistances<T> {
    /// The distances of `rows` to the nearest of `centroids`, both row-major. `extent`: the largest magnitude of all rows.
    pub fn new(rows: &[T], centroids: &[T], d: usize, extent: f64, threads: usize) -> Result<Self> {
        let (n, k) = (rows.len() / d, centroids.len() / d);
        let part = RowBlock::new(Features::from_rows(rows, d)?, None);
        let mut distances = Self::unknown(&part)?;
        let Self { least, set, .. } = &mut distances;
        let table = CentroidTable::new(centroids, d, &middle(centroids, d)?, extent, *set, 1)?;
        let tile_rows = Assigner::tile_rows(&part.features);
        let mut labellers = Labeller::several(workers_for(threads, n.div_ceil(tile_rows)), [d, k, tile_rows])?;
        let mut rest = &mut least[..n];
        let tasks = (0..n).step_by(tile_rows).map(|first| (first, split_off(&mut rest, tile_rows.min(n - first))));
        let (part, table) = (&part, &table);
        for_each_task(&mut labellers, tasks, |labeller, (first, out)| {
            let (rows, sink) = (first..first + out.len(), LeastSink(out));
            set.run(LabelTask { part, weights: None, table, rows, labeller, bits: None, sink });
        })?;
        Ok(distances)
    }

    /// The distances where the nearest centroid of each row is known: `labels`.
    pub fn to_known(rows: &[T], centroids: &[T], labels: &[u32], d: usize, threads: usize) -> Result<Self> {
        let mut distances = Self::unknown(&RowBlock::new(Features::from_rows(rows, d)?, None))?;
        let tasks = rows.chunks(UNIT * d).zip(labels.chunks(UNIT)).zip(distances.least.chunks_mut(UNIT));
        let workers = workers_for(threads, labels.len().div_ceil(UNIT));
        for_each_task(&mut vec![(); workers], tasks, |(), ((rows, labels), least)| {
            for ((row, label), least) in rows.chunks_exact(d).zip(labels).zip(least) {
                *least = reference::distance(row, &centroids[*label as usize * d..][..d]);
            }
        })?;
        Ok(distances)
    }

    /// The distances of some rows before there is a centroid.
    fn unknown(part: &RowBlock<'_, T>) -> Result<Self> {
        let (n, d) = (part.features.n_rows(), part.features.n_features());
        let mut tile = Tile::new(d, n.next_multiple_of(UNIT))?;
        tile.load(part, None, 0..n);
        let least = memory::filled(tile.stride, f64::INFINITY, DISTANCES)?;
        Ok(Self { tile, least, rows: n, set: InstructionSet::detect() })
    }

    pub fn distances(&self) -> &[f64] {
        &self.least[..self.rows]
    }

    /// Takes more centroids into account, for these rows. Other rows of the same units are lowered too.
    pub fn lower(&mut self, rows: Range<usize>, centroids: &[T]) {
        self.set.run(Lower { tile: &self.tile, least: &mut self.least, rows, centroids });
    }
}

/// Takes the distances of rows to their nearest centroids.
struct LeastSink<'o>(&'o mut [f64]);

impl<T: Float> Sink<T> for LeastSink<'_> {
    #[inline(always)]
    fn tile<V: Vector>(&mut self, table: &CentroidTable<T>, labeller: &mut Labeller<T>) {
        let Labeller { tile, assigner, .. } = labeller;
        own_distances::<V, T>(
            tile.values(),
            table,
            assigner.label_tile::<V, T>(tile, table),
            split_off(&mut self.0, tile.rows),
        );
    }
}

/// Lowers the distances of these rows and of those that are computed with them. Padding may get any distance.
struct Lower<'p, T> {
    tile: &'p Tile<T>,
    least: &'p mut [f64],
    rows: Range<usize>,
    centroids: &'p [T],
}

impl<T: Float> Task for Lower<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { tile, least, rows, centroids } = self;
        let (d, units) = (tile.x.len() / tile.stride, rows.start / UNIT..rows.end.div_ceil(UNIT));
        let strip = Strip { x: &tile.x, step: UNIT, stride: tile.stride };
        // The values of these few rows stay in the cache for all centroids.
        for (unit, least) in least.as_chunks_mut::<UNIT>().0.iter_mut().enumerate().take(units.end).skip(units.start) {
            for centroid in centroids.chunks_exact(d) {
                let Some(s) = strip.distances(unit, centroid, least) else { continue };
                for (least, s) in least.iter_mut().zip(s) {
                    *least = if s < *least { s } else { *least };
                }
            }
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cpu::product::attacks::Random;

    fn check<T: Float>([n, d, k]: [usize; 3]) {
        let mut random = Random((n + d + k) as u64);
        let mut value = || T::from_f64(1e4 * random.sign());
        let rows: Vec<T> = (0..n * d).map(|_| value()).collect();
        let centroids: Vec<T> = (0..(k + 3) * d).map(|_| value()).collect();
        let nearest = |i: usize, k: usize| reference::nearest(&rows[i * d..][..d], &centroids[..k * d]).distance;
        let mut least = LeastDistances::new(&rows, &centroids[..k * d], d, 2e4, 2).unwrap();
        for (i, found) in least.distances().iter().enumerate() {
            assert_eq!(*found, nearest(i, k), "{n} x {d}, {k} centroids, row {i}");
        }
        let labels: Vec<u32> = rows.chunks_exact(d).map(|row| reference::nearest(row, &centroids[..k * d]).label).collect();
        let known = LeastDistances::to_known(&rows, &centroids[..k * d], &labels, d, 2).unwrap();
        assert_eq!(known.distances(), least.distances(), "{n} x {d}, {k} centroids");
        least.lower(n / 3..n, &centroids[k * d..][..d]);
        least.lower(n / 3..n, &centroids[(k + 1) * d..]);
        for i in n / 3..n {
            assert_eq!(least.distances()[i], nearest(i, k + 3), "{n} x {d}, {k} and 3 centroids, row {i}");
        }
    }

    unit_test!(distances_are_the_reference_distances_to_the_nearest);
    fn distances_are_the_reference_distances_to_the_nearest() {
        for shape in [[1, 1, 1], [31, 2, 3], [200, 8, 40], [700, 20, 130], [33, 70, 2]] {
            check::<f32>(shape);
            check::<f64>(shape);
        }
    }
}
