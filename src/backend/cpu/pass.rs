//! One pass over the rows of a session: labels and sums, inertia, or the farthest rows. Workers share the tasks.

use std::marker::PhantomData;
use std::sync::Mutex;

use super::assign::{Assigner, ToLabel, replace};
use super::centroids::CentroidTable;
use super::distances::own_distances;
use super::farthest::Farthest;
use super::groups::{BLOCK, GroupScratch};
use super::inertia::Inertia;
use super::product::{NextRows, PrefetchNext};
use super::tasks::{TaskRows, split_off};
use crate::backend::cpu::deltas::{Deltas, MoveRows, Moved};
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

/// Replaces the labels of some rows, and lists those that change. `places`: where in `labels` each row's is. `moved` has room for
/// all rows.
#[inline(always)]
pub fn list_moved(labels: &mut [u32], places: &[u32], new: &[u32], moved: &mut Vec<Moved>) {
    moved.clear();
    for (row, (place, to)) in (0..).zip(places.iter().zip(new)) {
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
    if !moved.is_empty() {
        let task = MoveRows { deltas, quantiser, values, weights, moved, target: cluster_sums, of: PhantomData::<T> };
        // SAFETY: the caller runs with this instruction set.
        unsafe { V::call(task) }
    }
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
        let (part, physical) = (self.part, self.task.physical.clone());
        let is_plain = part.weights.is_none() && part.selection.is_all();
        let columns = if is_plain { part.features.in_place(physical.clone()) } else { None };
        let mut rest = std::mem::take(&mut self.labels);
        let mut tile = std::mem::take(&mut self.worker.tile);
        for first in (0..physical.len()).step_by(tile.stride) {
            let here = first..physical.len().min(first + tile.stride);
            // Kernels read whole blocks.
            if let Some(columns) = columns.as_ref().filter(|_| here.len().is_multiple_of(BLOCK)) {
                let behind = here.end..physical.len().min(here.end + here.len());
                let next = NextRows { columns: columns.slice(behind), d: self.table.d, blocks: here.len() / BLOCK };
                let (values, count, next) = (columns.slice(here.clone()), here.len(), PrefetchNext::Rows(&next));
                let rows = ToLabel { values, count, near: None, next };
                self.label::<V, _>(&rows, &tile.weights, split_off(&mut rest, count), sums, want_inertia);
            } else {
                tile.load(part, self.statistics.weights, physical.start + here.start..physical.start + here.end);
                let labels = split_off(&mut rest, tile.rows);
                self.label::<V, _>(&ToLabel::tile(&tile), &tile.weights, labels, sums, want_inertia);
            }
        }
        self.worker.tile = tile;
    }

    /// Finds the new labels of some rows, and takes them over: their sums, and their inertia.
    #[inline(always)]
    fn label<V: Vector, C: Columns<T>>(
        &mut self,
        rows: &ToLabel<'_, T, C>,
        weights: &[f64],
        labels: &mut [u32],
        sums: bool,
        want_inertia: bool,
    ) {
        let Worker { assigner, deltas, moved, distances, inertia, changed, .. } = &mut *self.worker;
        replace(labels, assigner.label::<V, T, C, false>(rows, self.table, &mut []), moved);
        if sums {
            let weights = given(weights, self.statistics);
            *changed += take_moved::<V, T>(rows.values, weights, moved, deltas, self.quantiser, self.cluster_sums);
        }
        if want_inertia {
            own_distances(rows.values, self.table, labels, distances);
            inertia.add(weights, labels, distances, Scales::Same(self.statistics.distances));
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
            own_distances(tile.values(), table, labels, distances);
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
