//! The CPU backend: threads share tiles of rows, and filter them in vector registers.
//!
//! ```text
//! for each task (a few thousand rows), by whichever worker is free:
//!   for each tile of it:
//!     load (kept rows only) -> filter -> settle contested rows by reference distances
//!     rows whose label changed: quantise, take from one cluster's limbs, add to the other's
//! flush every worker's limbs into the canonical sums
//! ```
//! Results do not depend on which worker does a task: labels go to their own places, and everything else is an integer sum.

mod assign;
mod candidates;
mod centroids;
mod difference;
mod distances;
mod draws;
mod product;
mod seeds;
mod simd;

use std::ops::Range;
use std::sync::Mutex;

pub use assign::Assigner;
pub use centroids::CentroidTable;
pub use simd::{InstructionSet, Task, Vector};

use self::distances::own_distances;
use self::seeds::Seeds;
use super::{Assigned, Far, Iterate, Scales};
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::parallel::{for_each_task, workers_for};
use crate::partial::{Contribution, Deltas, Partial, Quantiser, UNASSIGNED};
use crate::prepare::Prepared;
use crate::tile::{Part, Tile};

/// Most rows of a task.
const MAX_TASK: usize = 16_384;
/// Bytes that the sum tables of all workers together may take.
const WORKER_MEMORY: usize = 4 << 30;
/// A fit with less arithmetic than this (rows x features x centroids) stays on the calling thread.
const SMALL_FIT: usize = 1 << 16;

/// The name for the labels and for the inertia of the clusters in errors.
const LABELS: &str = "the labels";
const INERTIA: &str = "the inertia of the clusters";

/// A range of physical rows, and the number of its first kept row.
#[derive(Debug, Clone)]
pub(crate) struct TaskRows {
    pub(crate) physical: Range<usize>,
    pub(crate) first: usize,
    /// Number of kept rows.
    pub(crate) kept: usize,
    /// Number of kept rows with positive weight.
    positive: usize,
}

/// The rows of one fit on the CPU.
pub struct CpuSession<'a, T> {
    part: Part<'a, T>,
    prepared: &'a Prepared,
    quantiser: Quantiser,
    set: InstructionSet,
    k: usize,
    d: usize,
    tasks: Vec<TaskRows>,
    labels: Vec<u32>,
    partial: Partial,
    workers: Vec<Worker<T>>,
    /// The centroids of the last assign.
    table: Option<CentroidTable<T>>,
    seeds: Option<Seeds>,
}

/// One worker's buffers.
struct Worker<T> {
    tile: Tile<T>,
    assigner: Assigner,
    deltas: Deltas,
    distances: Vec<f64>,
    inertia: Vec<u128>,
    changed: u64,
    far: Vec<Far>,
}

impl<'a, T: Float> CpuSession<'a, T> {
    /// A session over one part of the rows. `prepared` was computed from all rows.
    pub fn new(part: Part<'a, T>, prepared: &'a Prepared, k: usize, threads: usize, set: InstructionSet) -> Result<Self> {
        let (n, d) = (part.features.n_rows(), part.features.n_features());
        let tile_rows = Assigner::tile_rows::<T>(d, n);
        let small = n.saturating_mul(d).saturating_mul(k) < SMALL_FIT;
        let room = (WORKER_MEMORY / (k.saturating_mul(d).saturating_mul(16)).max(1)).max(1);
        let threads = if small { 1 } else { workers_for(threads, n.div_ceil(tile_rows)).min(room) };
        // There are enough tasks for workers to finish together. A task consists of whole tiles, and its labels fit in a cache.
        let task =
            if threads == 1 { MAX_TASK } else { (n / (threads * 8)).clamp(tile_rows, MAX_TASK).next_multiple_of(tile_rows) };
        let quantiser = Quantiser::new(&prepared.scales)?;
        let workers = (0..threads).map(|_| Worker::new(d, k, tile_rows, &quantiser));
        let mut session = Self {
            workers: memory::try_collected(workers, "the threads' buffers")?,
            part,
            prepared,
            quantiser,
            set,
            k,
            d,
            tasks: memory::with_room(n.div_ceil(task), "the list of tasks")?,
            labels: Vec::new(),
            partial: Partial::new(k, d)?,
            table: None,
            seeds: None,
        };
        let mut first = 0;
        for start in (0..n).step_by(task) {
            let physical = start..(start + task).min(n);
            let kept = session.part.selection.count(physical.clone());
            let positive = session.count_positive(&physical, kept)?;
            session.tasks.push(TaskRows { physical, first, kept, positive });
            first += kept;
        }
        session.labels = memory::filled(first, UNASSIGNED, LABELS)?;
        Ok(session)
    }

    fn count_positive(&mut self, physical: &Range<usize>, kept: usize) -> Result<usize> {
        if self.prepared.weights.is_none() {
            return Ok(kept);
        }
        let mut count = 0;
        self.visit_task(physical.clone(), |tile, _| count += tile.weights[..tile.rows].iter().filter(|w| **w > 0.0).count())?;
        Ok(count)
    }

    /// Loads the tiles of a task on the calling thread: `visit(tile, first kept row within the task)`.
    fn visit_task(&self, physical: Range<usize>, mut visit: impl FnMut(&Tile<T>, usize)) -> Result<()> {
        let stride = self.workers[0].tile.stride;
        let (mut tile, mut at) = (Tile::new(self.d, stride)?, 0);
        for start in physical.clone().step_by(stride) {
            tile.load(&self.part, self.prepared.weights, start..(start + stride).min(physical.end));
            visit(&tile, at);
            at += tile.rows;
        }
        Ok(())
    }

    /// The physical row of a kept row.
    fn physical(&self, row: usize) -> usize {
        let task = &self.tasks[self.tasks.partition_point(|task| task.first <= row) - 1];
        let rank = row - task.first;
        if self.part.selection.is_all() {
            return task.physical.start + rank;
        }
        task.physical.clone().filter(|&i| self.part.selection.contains(i)).nth(rank).unwrap_or(task.physical.start)
    }

    fn load_row(&self, row: usize) -> Result<Tile<T>> {
        let at = self.physical(row);
        let mut tile = Tile::new(self.d, 1)?;
        tile.load(&self.part, self.prepared.weights, at..at + 1);
        Ok(tile)
    }

    /// Runs one pass. `pass` says what to do with each tile.
    fn pass(&mut self, pass: Pass<'_>) {
        let Self { part, prepared, quantiser, set, tasks, labels, partial, workers, table, .. } = self;
        let Some(table) = table else { return };
        let mut rest = labels.as_mut_slice();
        let tasks = tasks.iter().map(move |task| {
            let (labels, tail) = std::mem::take(&mut rest).split_at_mut(task.kept);
            rest = tail;
            (task, labels)
        });
        let partial = Mutex::new(partial);
        for_each_task(workers, tasks, |worker, (task, labels)| {
            set.run(TaskPass { part, prepared, quantiser, table, partial: &partial, worker, task, labels, pass });
        });
    }
}

impl<T: Float> Worker<T> {
    fn new(d: usize, k: usize, tile_rows: usize, quantiser: &Quantiser) -> Result<Self> {
        Ok(Self {
            tile: Tile::new(d, tile_rows)?,
            assigner: Assigner::new::<T>(d, k, tile_rows)?,
            deltas: Deltas::new(k, quantiser)?,
            distances: memory::zeroed(tile_rows, "a tile's distances")?,
            inertia: Vec::new(),
            changed: 0,
            far: Vec::new(),
        })
    }
}

/// What to do with each tile.
#[derive(Clone, Copy)]
enum Pass<'p> {
    /// Find new labels and deltas, then the inertia if asked for.
    Assign { want_inertia: bool },
    /// Compute the inertia under the current labels.
    Inertia { scales: Scales<'p> },
    /// Find the farthest rows of the clusters that may give one.
    Farthest { count: usize, donors: &'p [bool] },
}

/// One task of one pass. It is compiled for each instruction set.
struct TaskPass<'p, 'a, 'm, T> {
    part: &'p Part<'a, T>,
    prepared: &'p Prepared,
    quantiser: &'p Quantiser,
    table: &'p CentroidTable<T>,
    partial: &'p Mutex<&'m mut Partial>,
    worker: &'p mut Worker<T>,
    task: &'p TaskRows,
    labels: &'p mut [u32],
    pass: Pass<'p>,
}

impl<T: Float> Task for TaskPass<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Worker { tile, assigner, deltas, distances, inertia, changed, far } = self.worker;
        let stride = tile.stride;
        let mut at = 0;
        for start in self.task.physical.clone().step_by(stride) {
            tile.load(self.part, self.prepared.weights, start..(start + stride).min(self.task.physical.end));
            let labels = &mut self.labels[at..at + tile.rows];
            if let Pass::Assign { .. } = self.pass {
                let new = assigner.assign::<V, T>(tile, self.table);
                if labels != new {
                    for r in 0..tile.rows {
                        let (old, new, weight) = (labels[r], new[r], tile.weights[r]);
                        if old != new {
                            labels[r] = new;
                            if weight > 0.0 {
                                *changed += 1;
                                let (row, mass) = contribution(tile, r, self.prepared);
                                deltas.move_row(self.quantiser, row, mass, [old, new], self.partial);
                            }
                        }
                    }
                }
            }
            match self.pass {
                Pass::Assign { want_inertia: false } => {}
                Pass::Assign { .. } => {
                    own_distances(tile, self.table, labels, distances);
                    add_inertia(tile, labels, distances, Scales::Same(self.prepared.distances), inertia);
                }
                Pass::Inertia { scales } => {
                    own_distances(tile, self.table, labels, distances);
                    add_inertia(tile, labels, distances, scales, inertia);
                }
                Pass::Farthest { count, donors } => {
                    own_distances(tile, self.table, labels, distances);
                    for r in 0..tile.rows {
                        if tile.weights[r] > 0.0 && donors[labels[r] as usize] {
                            keep_farthest(
                                far,
                                count,
                                Far { distance: distances[r], row: (self.task.first + at + r) as u64, cluster: labels[r] },
                            );
                        }
                    }
                }
            }
            at += tile.rows;
        }
    }
}

/// Adds the weighted distances of a tile's rows to the inertia of their clusters.
#[inline(always)]
fn add_inertia<T: Float>(tile: &Tile<T>, labels: &[u32], distances: &[f64], scales: Scales<'_>, inertia: &mut [u128]) {
    let rows = labels.iter().zip(&tile.weights).zip(distances).take(tile.rows);
    match scales {
        Scales::Same(scale) => rows.for_each(|((&j, &w), &s)| inertia[j as usize] += scale.quantise(w, s)),
        Scales::Each(scales) => rows.for_each(|((&j, &w), &s)| inertia[j as usize] += scales[j as usize].quantise(w, s)),
    }
}

/// The capacity of a list of the `count` farthest rows.
fn room_for_farthest(count: usize) -> usize {
    2 * count + 64
}

/// Keeps the `count` farthest rows. Sorts and cuts the list whenever it holds twice as many.
fn keep_farthest(far: &mut Vec<Far>, count: usize, new: Far) {
    far.push(new);
    if far.len() >= room_for_farthest(count) {
        far.sort_unstable_by(Far::order);
        far.truncate(count);
    }
}

/// A row's contribution, and the integer of its weight.
#[inline(always)]
fn contribution<'a, T: Float>(tile: &'a Tile<T>, r: usize, prepared: &Prepared) -> (Contribution<'a, T>, i128) {
    let weight = tile.weights[r];
    let row = Contribution { x: &tile.x, stride: tile.stride, row: r, weight: prepared.weights.map(|_| weight) };
    (row, prepared.weights.map_or(1, |scale| scale.integer(weight)))
}

impl<T: Float> Iterate<T> for CpuSession<'_, T> {
    fn reset(&mut self) -> Result<()> {
        self.labels.fill(UNASSIGNED);
        self.partial.reset();
        Ok(())
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        self.table = Some(CentroidTable::new(centroids, self.d, &self.prepared.centre, self.prepared.extent())?);
        if want_inertia {
            self.make_room_for_inertia()?;
        }
        self.pass(Pass::Assign { want_inertia });
        let mut changed = 0;
        for worker in &mut self.workers {
            worker.deltas.flush(&self.quantiser, &mut self.partial);
            changed += std::mem::take(&mut worker.changed);
        }
        Ok(Assigned { changed, inertia: want_inertia.then(|| self.take_inertia()).transpose()? })
    }

    fn partial(&mut self) -> Result<&Partial> {
        Ok(&self.partial)
    }

    fn clear_dirty(&mut self) {
        self.partial.clear_dirty();
    }

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        const WHAT: &str = "the farthest rows";
        let most = room_for_farthest(count).min(self.labels.len());
        self.workers.iter_mut().try_for_each(|worker| memory::reserve(&mut worker.far, most, WHAT))?;
        self.pass(Pass::Farthest { count, donors });
        let mut all: Vec<Far> = memory::with_room(self.workers.iter().map(|worker| worker.far.len()).sum(), WHAT)?;
        self.workers.iter_mut().for_each(|worker| all.extend(std::mem::take(&mut worker.far)));
        all.sort_unstable_by(Far::order);
        all.truncate(count);
        Ok(all)
    }

    fn relocate(&mut self, row: u64, to: u32) -> Result<()> {
        let tile = self.load_row(row as usize)?;
        let from = std::mem::replace(&mut self.labels[row as usize], to);
        let (contribution, mass) = contribution(&tile, 0, self.prepared);
        let deltas = &mut self.workers[0].deltas;
        let target = Mutex::new(&mut self.partial);
        deltas.move_row(&self.quantiser, contribution, mass, [from, to], &target);
        deltas.flush(&self.quantiser, &mut self.partial);
        Ok(())
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        self.make_room_for_inertia()?;
        self.pass(Pass::Inertia { scales });
        self.take_inertia()
    }

    fn labels(&self) -> Result<Vec<u32>> {
        memory::copied(&self.labels, LABELS)
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        Ok(self.labels)
    }
}

impl<T: Float> CpuSession<'_, T> {
    fn make_room_for_inertia(&mut self) -> Result<()> {
        let k = self.k;
        self.workers.iter_mut().try_for_each(|worker| memory::zeroed(k, INERTIA).map(|inertia| worker.inertia = inertia))
    }

    fn take_inertia(&mut self) -> Result<Vec<u128>> {
        let mut total = memory::zeroed::<u128>(self.k, INERTIA)?;
        for worker in &mut self.workers {
            total.iter_mut().zip(std::mem::take(&mut worker.inertia)).for_each(|(a, b)| *a += b);
        }
        Ok(total)
    }
}
