//! The distances of some rows to the nearest of a growing list of centroids, for the chains of AFK-MC².

use super::centroids::CentroidTable;
use super::distances::own_distances;
use super::simd::{InstructionSet, Task, Vector};
use super::{Assigner, split_off};
use crate::backend::centre::middle;
use crate::error::Result;
use crate::features::Features;
use crate::float::Float;
use crate::memory;
use crate::parallel::{for_each_task, workers_for};
use crate::tile::{Part, Tile};

/// Rows whose distances to one centroid are computed together.
const TOGETHER: usize = 32;
/// The name for the distances in errors.
const DISTANCES: &str = "the distances of the rows drawn";

/// Some rows, and for each its reference distance to the nearest centroid so far.
pub struct LeastDistances<T> {
    /// `(d, stride)`: the rows by features. The stride is a multiple of [`TOGETHER`].
    tile: Tile<T>,
    least: Vec<f64>,
    rows: usize,
    set: InstructionSet,
}

impl<T: Float> LeastDistances<T> {
    /// The distances of `rows` to the nearest of `centroids`, both row-major. `extent`: the largest magnitude of all rows.
    pub fn new(rows: &[T], centroids: &[T], d: usize, extent: f64, threads: usize) -> Result<Self> {
        let (n, k, set) = (rows.len() / d, centroids.len() / d, InstructionSet::detect());
        let part = Part::new(Features::from_rows(rows, d)?, None);
        let mut tile = Tile::new(d, n.next_multiple_of(TOGETHER))?;
        tile.load(&part, None, 0..n);
        let mut least = memory::filled(tile.stride, f64::INFINITY, DISTANCES)?;
        let table = CentroidTable::new(centroids, d, &middle(centroids, d)?, extent)?;
        let tile_rows = Assigner::tile_rows(&part.features);
        let workers = (0..workers_for(threads, n.div_ceil(tile_rows)))
            .map(|_| Ok((Tile::new(d, tile_rows)?, Assigner::new::<T>(d, k, tile_rows)?)));
        let mut workers = memory::try_collected(workers, "the threads' buffers")?;
        let mut rest = &mut least[..n];
        let tasks = (0..n).step_by(tile_rows).map(|first| (first, split_off(&mut rest, tile_rows.min(n - first))));
        for_each_task(&mut workers, tasks, |(tile, assigner), (first, out)| {
            tile.load(&part, None, first..first + out.len());
            set.run(OfTile { tile, assigner, table: &table, out });
        });
        Ok(Self { tile, least, rows: n, set })
    }

    pub fn distances(&self) -> &[f64] {
        &self.least[..self.rows]
    }

    /// Takes one more centroid into account, for the rows from `first` on.
    pub fn lower(&mut self, first: usize, centroid: &[T]) {
        self.set.run(Lower { tile: &self.tile, least: &mut self.least, first: first / TOGETHER * TOGETHER, centroid });
    }
}

/// The distances of the rows of a tile to their nearest centroids.
struct OfTile<'p, T> {
    tile: &'p Tile<T>,
    assigner: &'p mut Assigner,
    table: &'p CentroidTable<T>,
    out: &'p mut [f64],
}

impl<T: Float> Task for OfTile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let labels = self.assigner.label::<V, T>(self.tile, self.table);
        own_distances(self.tile, self.table, labels, self.out);
    }
}

/// Lowers the distances of the rows from `first` on. Padding may get any distance.
struct Lower<'p, T> {
    tile: &'p Tile<T>,
    least: &'p mut [f64],
    first: usize,
    centroid: &'p [T],
}

impl<T: Float> Task for Lower<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { tile, least, first, centroid } = self;
        for start in (first..tile.rows).step_by(TOGETHER) {
            let mut s = [0.0f64; TOGETHER];
            for (column, c) in tile.x.chunks_exact(tile.stride).zip(centroid) {
                let column: &[T; TOGETHER] = column[start..start + TOGETHER].try_into().unwrap_or_else(|_| unreachable!());
                for (s, x) in s.iter_mut().zip(column) {
                    let t = x.to_f64() - c.to_f64();
                    *s = t.mul_add(t, *s);
                }
            }
            for (least, s) in least[start..start + TOGETHER].iter_mut().zip(s) {
                *least = if s < *least { s } else { *least };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    fn check<T: Float>([n, d, k]: [usize; 3]) {
        let mut state = (n + d + k) as u64;
        let mut value = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::from_f64((state >> 40) as f64 / 1e3)
        };
        let rows: Vec<T> = (0..n * d).map(|_| value()).collect();
        let centroids: Vec<T> = (0..(k + 3) * d).map(|_| value()).collect();
        let nearest = |i: usize, k: usize| reference::nearest(&rows[i * d..][..d], &centroids[..k * d]).distance;
        let mut least = LeastDistances::new(&rows, &centroids[..k * d], d, 2e4, 2).unwrap();
        for (i, found) in least.distances().iter().enumerate() {
            assert_eq!(*found, nearest(i, k), "{n} x {d}, {k} centroids, row {i}");
        }
        for more in 0..3 {
            least.lower(n / 3, &centroids[(k + more) * d..][..d]);
        }
        for i in n / 3..n {
            assert_eq!(least.distances()[i], nearest(i, k + 3), "{n} x {d}, {k} and 3 centroids, row {i}");
        }
    }

    #[test]
    fn distances_are_the_reference_distances_to_the_nearest() {
        for shape in [[1, 1, 1], [31, 2, 3], [200, 8, 40], [700, 20, 130], [33, 70, 2]] {
            check::<f32>(shape);
            check::<f64>(shape);
        }
    }
}
