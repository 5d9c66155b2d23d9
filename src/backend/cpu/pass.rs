//! One pass over the rows of a session: labels and sums, inertia, or the farthest rows. Workers share the tasks.

use std::marker::PhantomData;
use std::sync::Mutex;

use super::assign::{Assigner, ToLabel};
use super::centroids::CentroidTable;
use super::distances::own_distances;
use super::farthest::Farthest;
use super::groups::BLOCK;
use super::inertia::Inertia;
use super::product::{NextRows, PrefetchNext};
use super::tasks::{TaskRows, pieces, split_off};
use crate::backend::cpu::deltas::{Deltas, MoveRows, MoveWholeRows, Moved};
use crate::backend::{Far, Scales};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::cluster_sums::{ClusterSums, Quantiser};
use crate::exact::distances::DistanceScale;
use crate::input::tile::{ByFeature, RowBlock, Tile, WeightScale};
use crate::simd::{Task, Vector};
use crate::statistics::Statistics;

/// Number of labels that are compared at a time.
const TOGETHER: usize = 16;

/// One worker's buffers.
pub struct WorkerBuffers<T> {
    pub tile: Tile<T>,
    pub assigner: Assigner,
    pub deltas: Deltas,
    /// Room for all rows of a tile.
    pub moved: Vec<Moved>,
    pub distances: Vec<f64>,
    pub inertia: Inertia,
    pub changed: u64,
    pub far: Farthest,
    pub chosen: ChosenRows,
}

/// The rows of a tile that a pass needs, where it does not need all of them. There is room for a whole tile.
pub struct ChosenRows {
    /// Their physical rows.
    pub rows: Vec<usize>,
    /// Their positions among the kept rows of the tile.
    places: Vec<usize>,
    labels: Vec<u32>,
}

impl<T: Float> WorkerBuffers<T> {
    pub fn new(d: usize, k: usize, tile_rows: usize, quantiser: &Quantiser, weighted: bool) -> Result<Self> {
        const WHAT: &str = "a tile's distances";
        const ROWS: &str = "the rows of a tile";
        let (rows, places) = (memory::with_room(tile_rows, ROWS)?, memory::with_room(tile_rows, ROWS)?);
        Ok(Self {
            tile: Tile::new(d, tile_rows)?,
            assigner: Assigner::new::<T>(d, k, tile_rows)?,
            deltas: Deltas::new(k, quantiser, weighted)?,
            moved: memory::with_room(tile_rows, WHAT)?,
            distances: memory::zeroed(tile_rows, WHAT)?,
            inertia: Inertia::default(),
            changed: 0,
            far: Farthest::default(),
            chosen: ChosenRows { rows, places, labels: memory::with_room(tile_rows, ROWS)? },
        })
    }
}

/// The weights of rows at hand, if there are weights.
#[inline(always)]
pub fn given<'w>(weights: &'w [f64], statistics: &Statistics) -> Option<(&'w [f64], WeightScale)> {
    statistics.weights.map(|scale| (weights, scale))
}

/// Replaces the labels of some rows, and lists those that change, in order. There is room for all of them.
#[inline(always)]
pub fn replace(labels: &mut [u32], new: &[u32], moved: &mut Vec<Moved>) {
    moved.clear();
    let (labels, last_labels) = labels.as_chunks_mut::<TOGETHER>();
    let (new, last) = new.as_chunks::<TOGETHER>();
    let all = labels.len() * TOGETHER;
    for (first, (labels, new)) in (0..).step_by(TOGETHER).zip(labels.iter_mut().zip(new)) {
        if labels != new {
            list(first, labels, new, moved);
        }
    }
    list(all as u32, last_labels, last, moved);
}

/// As [`replace`], for at most [`TOGETHER`] labels, of rows from `first` on.
#[inline(always)]
fn list(first: u32, labels: &mut [u32], new: &[u32], moved: &mut Vec<Moved>) {
    let (mut found, mut count) = ([Moved::default(); TOGETHER], 0);
    for (row, (label, to)) in (first..).zip(labels.iter_mut().zip(new)) {
        found[count % TOGETHER] = Moved { row, from: *label, to: *to };
        count += usize::from(label != to);
        *label = *to;
    }
    moved.extend_from_slice(&found[..count]);
}

/// What the tasks of a pass share.
pub struct Shared<'p, 'a, 'm, T> {
    pub part: &'p RowBlock<'a, T>,
    pub statistics: &'p Statistics,
    pub quantiser: &'p Quantiser,
    pub table: &'p CentroidTable<T>,
    pub cluster_sums: Mutex<&'m mut ClusterSums>,
}

impl<T: Float> Shared<'_, '_, '_, T> {
    /// Moves the sums of rows whose label changed. Returns how many of them have positive weight.
    #[inline(always)]
    pub fn take_moved<V: Vector>(
        &self,
        values: impl ByFeature<T>,
        weights: &[f64],
        moved: &mut Vec<Moved>,
        deltas: &mut Deltas,
    ) -> u64 {
        let weights = given(weights, self.statistics);
        if let Some((weights, _)) = weights {
            moved.retain(|moved| weights[moved.row as usize] > 0.0);
        }
        if !moved.is_empty() {
            let (quantiser, target, of) = (self.quantiser, &self.cluster_sums, PhantomData::<T>);
            V::call(MoveRows { deltas, quantiser, values, weights, moved, target, of })
        }
        moved.len() as u64
    }

    /// As [`Shared::take_moved`], for rows whose values lie side by side. There must be no weights.
    #[inline(always)]
    pub fn take_moved_rows<'v, V: Vector>(&self, row: impl Fn(u32) -> &'v [T], moved: &[Moved], deltas: &mut Deltas) -> u64
    where
        T: 'v,
    {
        if !moved.is_empty() {
            let (quantiser, target, of) = (self.quantiser, &self.cluster_sums, PhantomData::<T>);
            V::call(MoveWholeRows { deltas, quantiser, row, moved, target, of })
        }
        moved.len() as u64
    }
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
    pub shared: &'p Shared<'p, 'a, 'm, T>,
    pub worker: &'p mut WorkerBuffers<T>,
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
            Pass::Inertia { .. } | Pass::Farthest { .. } => self.measure::<V>(),
        }
    }
}

impl<T: Float> TaskPass<'_, '_, '_, T> {
    #[inline(always)]
    fn assign<V: Vector>(mut self, sums: bool, want_inertia: bool) {
        let (Shared { part, statistics, table, .. }, physical) = (self.shared, self.task.physical.clone());
        let is_plain = part.weights.is_none() && part.selection.is_all();
        let columns = if is_plain { part.features.in_place(physical.clone()) } else { None };
        let mut rest = std::mem::take(&mut self.labels);
        let mut tile = std::mem::take(&mut self.worker.tile);
        for first in (0..physical.len()).step_by(tile.stride) {
            let here = first..physical.len().min(first + tile.stride);
            // Kernels read whole blocks.
            if let Some(columns) = columns.as_ref().filter(|_| here.len().is_multiple_of(BLOCK)) {
                let behind = here.end..physical.len().min(here.end + here.len());
                let next = NextRows { columns: columns.slice(behind), d: table.d, blocks: here.len() / BLOCK };
                let (values, count, next) = (columns.slice(here.clone()), here.len(), PrefetchNext::Rows(&next));
                let rows = ToLabel { values, count, before: &[], near: None, next };
                self.label::<V, _>(&rows, &tile.weights, split_off(&mut rest, count), sums, want_inertia);
            } else {
                tile.load(part, statistics.weights, physical.start + here.start..physical.start + here.end);
                let labels = split_off(&mut rest, tile.rows);
                self.label::<V, _>(&ToLabel::tile(&tile), &tile.weights, labels, sums, want_inertia);
            }
        }
        self.worker.tile = tile;
    }

    /// Finds the new labels of some rows, and takes them over: their sums, and their inertia.
    #[inline(always)]
    fn label<V: Vector, C: ByFeature<T>>(
        &mut self,
        rows: &ToLabel<'_, T, C>,
        weights: &[f64],
        labels: &mut [u32],
        sums: bool,
        want_inertia: bool,
    ) {
        let (Shared { statistics, table, .. }, worker) = (self.shared, &mut *self.worker);
        let WorkerBuffers { assigner, deltas, moved, distances, inertia, changed, .. } = worker;
        let new = assigner.label::<V, T, C, false>(&ToLabel { before: labels, ..*rows }, table, &mut []);
        replace(labels, new, moved);
        if sums {
            *changed += self.shared.take_moved::<V>(rows.values, weights, moved, deltas);
        }
        if want_inertia {
            own_distances::<V, T>(rows.values, table, labels, distances);
            inertia.add(weights, labels, distances, Scales::Same(statistics.distances));
        }
    }

    /// Measures the distances of rows to the centroids of their labels. Rows that the pass does not need are not loaded.
    #[inline(always)]
    fn measure<V: Vector>(self) {
        let Self { shared: Shared { part, statistics, table, .. }, worker, task, labels, pass } = self;
        let WorkerBuffers { tile, distances, inertia, far, chosen, .. } = worker;
        let ChosenRows { rows, places, labels: chosen } = chosen;
        let mut at = 0;
        for range in pieces(task.physical.clone(), tile.stride) {
            let first = at;
            let labels = &labels[first..first + part.selection.count(range.clone())];
            at += labels.len();
            let all = labels.iter().all(|label| pass.needs(*label));
            if all {
                tile.load(part, statistics.weights, range);
            } else {
                rows.clear();
                places.clear();
                chosen.clear();
                for (place, row) in range.filter(|&row| part.selection.contains(row)).enumerate() {
                    if pass.needs(labels[place]) {
                        rows.push(row);
                        places.push(place);
                        chosen.push(labels[place]);
                    }
                }
                tile.load_list(part, statistics.weights, rows);
            }
            let labels = if all { labels } else { &chosen[..] };
            own_distances::<V, T>(tile.values(), table, labels, distances);
            match pass {
                Pass::Inertia { scales } => inertia.add(&tile.weights, labels, distances, scales),
                Pass::Farthest { .. } => {
                    for r in (0..tile.rows).filter(|&r| tile.weights[r] > 0.0) {
                        let row = task.first + first + if all { r } else { places[r] };
                        far.see(Far { distance: distances[r], row: row as u64, cluster: labels[r] });
                    }
                }
                Pass::Assign { .. } => unreachable!("an assign finds labels"),
            }
        }
    }
}
