//! One pass over the rows of a session: labels and sums, inertia, the farthest rows, or distances. Workers share the tasks.

use std::sync::Mutex;

use super::assign::{Assigner, TwoNearest};
use super::centroids::CentroidTable;
use super::distances::{own_distances, own_distances_from};
use super::farthest::Farthest;
use super::filter::Filter;
use super::groups::{BLOCK, GroupScratch};
use super::inertia::Inertia;
use super::product::NextRows;
use super::tasks::{TaskRows, split_off};
use crate::backend::cpu::deltas::{Deltas, Moved};
use crate::backend::{Far, Scales};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::cluster_sums::{ClusterSums, Quantiser};
use crate::exact::distances::DistanceScale;
use crate::input::tile::{Columns, Part, Tile, WeightScale};
use crate::simd::{Task, Vector};
use crate::statistics::Statistics;

/// One worker's buffers.
pub struct Worker<T> {
    pub tile: Tile<T>,
    pub assigner: Assigner,
    pub deltas: Deltas,
    /// Room for all rows of a tile.
    pub moved: Vec<Moved>,
    pub distances: Vec<f64>,
    pub inertia: Inertia,
    pub changed: u64,
    pub far: Farthest,
    /// For assigns by near centroids.
    pub groups: Option<GroupScratch<T>>,
    chosen: Chosen,
}

/// The rows of a tile that a pass needs, where it does not need all of them.
#[derive(Default)]
struct Chosen {
    /// Their physical rows.
    rows: Vec<usize>,
    /// Their positions among the kept rows of the tile.
    places: Vec<usize>,
    labels: Vec<u32>,
}

impl Chosen {
    fn clear(&mut self) {
        self.rows.clear();
        self.places.clear();
        self.labels.clear();
    }

    /// There is room: see [`Worker::reserve`].
    fn push(&mut self, row: usize, place: usize, label: u32) {
        self.rows.push(row);
        self.places.push(place);
        self.labels.push(label);
    }
}

impl<T: Float> Worker<T> {
    pub fn new(d: usize, k: usize, tile_rows: usize, quantiser: &Quantiser, weighted: bool) -> Result<Self> {
        const WHAT: &str = "a tile's distances";
        Ok(Self {
            tile: Tile::new(d, tile_rows)?,
            assigner: Assigner::new::<T>(d, k, tile_rows)?,
            deltas: Deltas::new(k, quantiser, weighted)?,
            moved: memory::with_room(tile_rows, WHAT)?,
            distances: memory::zeroed(tile_rows, WHAT)?,
            inertia: Inertia::default(),
            changed: 0,
            far: Farthest::default(),
            groups: None,
            chosen: Chosen::default(),
        })
    }

    /// Makes room for a pass that does not need all rows.
    pub fn reserve(&mut self) -> Result<()> {
        const WHAT: &str = "the rows of a tile";
        self.chosen.clear();
        memory::reserve(&mut self.chosen.rows, self.tile.stride, WHAT)?;
        memory::reserve(&mut self.chosen.places, self.tile.stride, WHAT)?;
        memory::reserve(&mut self.chosen.labels, self.tile.stride, WHAT)
    }
}

/// The weights of rows at hand, if there are weights.
#[inline(always)]
pub fn given<'w>(weights: &'w [f64], statistics: &Statistics) -> Option<(&'w [f64], WeightScale)> {
    statistics.weights.map(|scale| (weights, scale))
}

/// Replaces the labels of some rows, and lists those that change. `places`: where in `labels` each row's is. `first`: the number
/// of the first row at hand. `moved` has room for all rows.
#[inline(always)]
pub fn list_moved(labels: &mut [u32], places: &[u32], (first, new): (usize, &[u32]), moved: &mut Vec<Moved>) {
    moved.clear();
    for (row, (place, to)) in (first as u32..).zip(places.iter().zip(new)) {
        let from = std::mem::replace(&mut labels[*place as usize], *to);
        if from != *to {
            moved.push(Moved { row, from, to: *to });
        }
    }
}

/// Moves the sums of rows whose label changed. Returns how many of them have positive weight.
#[inline(always)]
pub fn take_moved<V: Vector, T: Float>(
    values: impl Columns<T>,
    weights: Option<(&[f64], WeightScale)>,
    moved: &mut Vec<Moved>,
    deltas: &mut Deltas,
    quantiser: &Quantiser,
    cluster_sums: &Mutex<&mut ClusterSums>,
) -> u64 {
    if let Some((weights, _)) = weights {
        moved.retain(|moved| weights[moved.row as usize] > 0.0);
    }
    deltas.move_rows::<V, T, _>(quantiser, values, weights, moved, cluster_sums);
    moved.len() as u64
}

/// What to do with each tile.
#[derive(Clone, Copy)]
pub enum Pass<'p> {
    /// Find new labels. Move the sums of rows whose label changed, and compute the inertia, if asked for.
    Assign { sums: bool, inertia: bool },
    /// Compute the inertia under the current labels.
    Inertia { scales: Scales<'p> },
    /// Find the farthest rows of the clusters that may give one.
    Farthest { donors: &'p [bool] },
}

impl Pass<'_> {
    /// Whether the pass needs the rows of this label.
    #[inline(always)]
    fn needs(&self, label: u32) -> bool {
        match self {
            Self::Assign { .. } | Self::Inertia { scales: Scales::Same(_) } => true,
            Self::Inertia { scales: Scales::Each(scales) } => scales[label as usize] != DistanceScale::NONE,
            Self::Farthest { donors } => donors[label as usize],
        }
    }
}

/// One task of one pass. It is compiled for each instruction set.
pub struct TaskPass<'p, 'a, 'm, T> {
    pub part: &'p Part<'a, T>,
    pub statistics: &'p Statistics,
    pub quantiser: &'p Quantiser,
    pub table: &'p CentroidTable<T>,
    pub cluster_sums: &'p Mutex<&'m mut ClusterSums>,
    pub worker: &'p mut Worker<T>,
    pub task: &'p TaskRows,
    pub labels: &'p mut [u32],
    pub pass: Pass<'p>,
}

impl<T: Float> Task for TaskPass<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.pass {
            Pass::Assign { sums, inertia } => self.assign::<V>(sums, inertia),
            Pass::Inertia { .. } | Pass::Farthest { .. } => self.measure(),
        }
    }
}

impl<T: Float> TaskPass<'_, '_, '_, T> {
    #[inline(always)]
    fn assign<V: Vector>(mut self, sums: bool, want_inertia: bool) {
        let (part, table, physical, d) = (self.part, self.table, self.task.physical.clone(), self.table.d);
        let may = table.reads_in_place() && part.weights.is_none() && part.selection.is_all();
        let is_few = matches!(table.filter, Filter::Difference(_));
        let few = if may && is_few { part.features.in_place(physical.clone()) } else { None };
        let many = if may && !is_few { part.features.in_place(physical.clone()) } else { None };
        let all = std::mem::take(&mut self.labels);
        let mut at = 0;
        for start in physical.clone().step_by(self.worker.tile.stride) {
            let range = start..(start + self.worker.tile.stride).min(physical.end);
            // Kernels read whole blocks.
            let (here, is_whole) = (at..at + range.len(), range.len().is_multiple_of(BLOCK));
            let Worker { tile, assigner, moved, .. } = &mut *self.worker;
            let (few, many) = (few.as_ref().filter(|_| is_whole), many.as_ref().filter(|_| is_whole));
            if let Some(few) = few {
                let (columns, labels) = (few.slice(here.clone(), d), &mut all[here.clone()]);
                assigner.relabel_few::<V, T>(&columns, here.len(), table, labels, moved);
                self.take::<V, _>(|_| &columns, labels, sums, want_inertia);
                at = here.end;
            } else if let Some(many) = many {
                let (columns, labels) = (many.slice(here.clone(), d), &mut all[here.clone()]);
                let next = many.slice(here.end..physical.len().min(here.end + here.len()), d);
                let next = NextRows { columns: next, d, blocks: here.len() / BLOCK };
                assigner.relabel_many::<V, T>(&columns, &next, here.len(), table, labels, moved);
                self.take::<V, _>(|_| &columns, labels, sums, want_inertia);
                at = here.end;
            } else {
                tile.load(part, self.statistics.weights, range);
                let labels = &mut all[at..at + tile.rows];
                assigner.relabel::<V, T>(tile, table, labels, moved);
                at += tile.rows;
                self.take::<V, _>(Tile::values, labels, sums, want_inertia);
            }
        }
    }

    /// Takes over the new labels of some rows: their sums, and their inertia. `values`: where the rows are, maybe in the tile.
    #[inline(always)]
    fn take<'v, V: Vector, C: Columns<T>>(
        &'v mut self,
        values: impl Fn(&'v Tile<T>) -> C,
        labels: &[u32],
        sums: bool,
        want_inertia: bool,
    ) {
        let Worker { tile, deltas, moved, distances, inertia, changed, .. } = &mut *self.worker;
        let tile = &*tile;
        if sums {
            let weights = given(&tile.weights, self.statistics);
            *changed += take_moved::<V, T>(values(tile), weights, moved, deltas, self.quantiser, self.cluster_sums);
        }
        if want_inertia {
            own_distances_from(values(tile), 0, self.table, labels, distances);
            inertia.add(&tile.weights, labels, distances, Scales::Same(self.statistics.distances));
        }
    }

    /// Measures the distances of rows to the centroids of their labels. Rows that the pass does not need are not loaded.
    #[inline(always)]
    fn measure(self) {
        let Self { part, statistics, table, worker, task, labels, pass, .. } = self;
        let Worker { tile, distances, inertia, far, chosen, .. } = worker;
        let mut at = 0;
        for start in task.physical.clone().step_by(tile.stride) {
            let range = start..(start + tile.stride).min(task.physical.end);
            let first = at;
            let labels = &labels[first..first + part.selection.count(range.clone())];
            at += labels.len();
            let all = labels.iter().all(|label| pass.needs(*label));
            if all {
                tile.load(part, statistics.weights, range);
            } else {
                chosen.clear();
                for (place, row) in range.filter(|&row| part.selection.contains(row)).enumerate() {
                    if pass.needs(labels[place]) {
                        chosen.push(row, place, labels[place]);
                    }
                }
                tile.load_list(part, statistics.weights, &chosen.rows);
            }
            let labels = if all { labels } else { &chosen.labels[..] };
            own_distances(tile, table, labels, distances);
            match pass {
                Pass::Inertia { scales } => inertia.add(&tile.weights, labels, distances, scales),
                Pass::Farthest { .. } => {
                    for r in (0..tile.rows).filter(|&r| tile.weights[r] > 0.0) {
                        let row = task.first + first + if all { r } else { chosen.places[r] };
                        far.see(Far { distance: distances[r], row: row as u64, cluster: labels[r] });
                    }
                }
                Pass::Assign { .. } => unreachable!("an assign finds labels"),
            }
        }
    }
}

/// Finds the two nearest centroids of the rows of one task.
pub struct TaskNearest<'p, 'a, T> {
    pub part: &'p Part<'a, T>,
    pub statistics: &'p Statistics,
    pub table: &'p CentroidTable<T>,
    pub worker: &'p mut Worker<T>,
    pub two: &'p mut TwoNearest,
    pub task: &'p TaskRows,
    pub out: NearestSink<'p>,
}

impl<T: Float> Task for TaskNearest<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let Worker { tile, assigner, .. } = self.worker;
        let mut at = 0;
        for start in self.task.physical.clone().step_by(tile.stride) {
            tile.load(self.part, self.statistics.weights, start..(start + tile.stride).min(self.task.physical.end));
            assigner.nearest::<V, T>(tile, self.table, self.two);
            for r in 0..tile.rows {
                self.out.set(at + r, self.two, r);
            }
            at += tile.rows;
        }
    }
}

/// Where labels and Euclidean distances of rows go.
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

    /// Writes the answer for row `r` of a tile.
    #[inline(always)]
    pub fn set(&mut self, place: usize, two: &TwoNearest, r: usize) {
        self.labels[place] = two.labels[r];
        self.nearest[place] = two.nearest[r].sqrt();
        if let Some(second) = self.second.get_mut(place) {
            *second = two.second[r].sqrt();
        }
    }
}
