//! Passes that label rows without sums: each tile of a task goes to a sink.

use std::ops::Range;

use super::assign::{Assigner, TwoNearest};
use super::centroids::CentroidTable;
use super::nearest_clusters::Several;
use super::tasks::{pieces, split_off};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::{RowBlock, Tile, WeightScale};
use crate::simd::{Task, Vector};

/// What a thread labels tiles with.
pub struct Labeller<T> {
    pub tile: Tile<T>,
    pub assigner: Assigner,
    pub two: TwoNearest,
    /// For each row of the tile, its place among the rows of the task.
    pub places: Vec<usize>,
    /// For sinks that take several centroids a row.
    pub several: Option<Several>,
}

impl<T: Float> Labeller<T> {
    /// One for each of some threads.
    pub fn several(threads: usize, [d, k, tile_rows]: [usize; 3]) -> Result<Vec<Self>> {
        let labeller = |_| {
            Ok(Self {
                tile: Tile::new(d, tile_rows)?,
                assigner: Assigner::new::<T>(d, k, tile_rows)?,
                two: TwoNearest::new(tile_rows)?,
                places: memory::with_room(tile_rows, "a tile of rows")?,
                several: None,
            })
        };
        memory::try_collected((0..threads).map(labeller), "the threads' buffers")
    }
}

/// Where the answers for the rows of a task go.
pub trait Sink<T: Float>: Send {
    /// Takes the answers for the rows of the labeller's tile.
    fn tile<V: Vector>(&mut self, table: &CentroidTable<T>, labeller: &mut Labeller<T>);
}

/// One task. It is compiled for each instruction set.
pub struct LabelTask<'p, 'a, T, S> {
    pub part: &'p RowBlock<'a, T>,
    pub weights: Option<WeightScale>,
    pub table: &'p CentroidTable<T>,
    pub rows: Range<usize>,
    pub labeller: &'p mut Labeller<T>,
    /// For rows that were not checked before: a bit for each row, all of them set. Rows with a null or a value that is not finite
    /// have no answer, so their bits are cleared. They still have a place.
    pub bits: Option<&'p mut [u8]>,
    pub sink: S,
}

impl<T: Float, S: Sink<T>> Task for LabelTask<'_, '_, T, S> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let (stride, mut at) = (self.labeller.tile.stride, 0);
        for range in pieces(self.rows, stride) {
            let Labeller { tile, places, .. } = &mut *self.labeller;
            // There is room for all rows of a tile.
            places.clear();
            if let Some(bits) = &mut self.bits {
                let len = range.len();
                let bad = tile.load_checked(self.part, range);
                places.extend((0..len).filter(|&i| !tile.bad[i]).map(|i| at + i));
                if bad > 0 {
                    for i in (0..len).filter(|&i| tile.bad[i]) {
                        bits[(at + i) / 8] &= !(1 << ((at + i) % 8));
                    }
                }
                at += len;
            } else {
                tile.load(self.part, self.weights, range);
                places.extend(at..at + tile.rows);
                at += tile.rows;
            }
            self.sink.tile::<V>(self.table, self.labeller);
        }
    }
}

/// Takes labels and Euclidean distances.
pub struct NearestSink<'o> {
    pub labels: &'o mut [u32],
    pub nearest: &'o mut [f64],
    /// Empty if there is one cluster.
    pub second: &'o mut [f64],
}

impl<'o> NearestSink<'o> {
    /// Takes off the first `rows` rows, or all if there are fewer.
    pub fn split_off(&mut self, rows: usize) -> Self {
        Self {
            labels: split_off(&mut self.labels, rows),
            nearest: split_off(&mut self.nearest, rows),
            second: split_off(&mut self.second, rows),
        }
    }
}

impl<T: Float> Sink<T> for NearestSink<'_> {
    #[inline(always)]
    fn tile<V: Vector>(&mut self, table: &CentroidTable<T>, labeller: &mut Labeller<T>) {
        let Labeller { tile, assigner, two, places, .. } = labeller;
        assigner.nearest::<V, T>(tile, table, two);
        for (r, &place) in places.iter().enumerate() {
            self.labels[place] = two.labels[r];
            self.nearest[place] = two.nearest[r].sqrt();
            if let Some(second) = self.second.get_mut(place) {
                *second = two.second[r].sqrt();
            }
        }
    }
}
