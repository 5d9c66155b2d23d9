//! What the CPU does in each iteration of some systems: it divides, and in one of them it also adds up the rows.
//!
//! The latter is cross-processing (Zechner & Granitzer 2009; Rodinia 2009): the GPU labels the rows. In each iteration the labels
//! go to the host, and k x d centroids come back. The CPU of the paper adds up all rows in one thread. Here all threads do it,
//! each with its own sums.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::systems::{FeatureSums, System};
use crate::backend::cpu::deltas::{Deltas, MoveRows, Moved};
use crate::backend::cuda::device::{Buffer, Plain};
use crate::backend::cuda::session::download;
use crate::backend::cuda::shape::FitShape;
use crate::backend::cuda::state::DeviceState;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::base::strategy::Strategy;
use crate::exact::cluster_sums::{ClusterSums, Quantiser, UNASSIGNED};
use crate::input::tile::{RowBlock, Tile};
use crate::simd::InstructionSet;
use crate::statistics::Statistics;

/// The nanoseconds that this process has spent waiting for labels, downloading them, and adding up rows by them. These are the
/// stages in the figures of Zechner & Granitzer.
pub static STAGES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Does the work of a stage, and adds its time.
fn timed<R>(stage: usize, work: impl FnOnce() -> R) -> R {
    let begin = Instant::now();
    let done = work();
    STAGES[stage].fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    done
}

/// Rows of a task, and rows of a tile.
const TASK: usize = 1 << 14;
const TILE: usize = 256;
/// The most bytes that the sums of all workers may take together.
const WORKER_MEMORY: usize = 4 << 30;

/// A range of the rows of a part, and the number of kept rows in it.
struct RowRange {
    part: usize,
    physical: Range<usize>,
    kept: usize,
}

/// The CPU's part of a fit by a system whose means it computes.
pub struct HostUpdate<'a, T> {
    /// The rows, if it also adds them up.
    rows: Option<RowsSummedOnHost<'a, T>>,
}

impl<'a, T: Float + Plain> HostUpdate<'a, T> {
    /// None: the GPU computes the means of this strategy.
    pub fn of(strategy: Strategy, parts: &[RowBlock<'a, T>], statistics: &Arc<Statistics>) -> Result<Option<Self>> {
        let Some(system) = System::of(strategy).filter(|system| system.host_means) else { return Ok(None) };
        let rows = if system.sums == FeatureSums::Host { Some(RowsSummedOnHost::new(parts, statistics)?) } else { None };
        Ok(Some(Self { rows }))
    }

    /// The labels were changed outside this step.
    pub fn forget(&mut self) {
        if let Some(rows) = &mut self.rows {
            rows.stale = true;
        }
    }

    /// Called after the step. Where the CPU adds up: the sums, and how many rows of positive weight have a new label.
    pub fn add(&mut self, state: &mut DeviceState<T>) -> Result<Option<(ClusterSums, u64)>> {
        let Some(rows) = &mut self.rows else { return Ok(None) };
        let FitShape { rows: n, k, weighted, .. } = state.shape;
        let labels_of = |array: &Buffer<u8>| {
            let mut labels = memory::zeroed(n, "the labels")?;
            download(array, state.labels.bytes, &mut labels).map(|()| labels)
        };
        if std::mem::take(&mut rows.stale) {
            rows.before = labels_of(state.labels.array_before())?;
        }
        timed(0, || state.queue.wait())?;
        let labels = timed(1, || labels_of(state.labels.array()))?;
        let (cluster_sums, changed) = timed(2, || rows.add(labels, k))?;
        let mut sums = memory::with_room(k * state.shape.columns(), "the sums of the clusters")?;
        for j in 0..k {
            sums.extend_from_slice(cluster_sums.sums_of(j));
            sums.extend(weighted.then_some(cluster_sums.mass[j]));
        }
        state.sums.canonical.write(0, &sums)?;
        state.sums.rows.write(0, &cluster_sums.rows)?;
        Ok(Some((cluster_sums, changed)))
    }
}

/// The rows in host memory.
struct RowsSummedOnHost<'a, T> {
    parts: Vec<RowBlock<'a, T>>,
    statistics: Arc<Statistics>,
    tasks: Vec<RowRange>,
    /// The labels of the iteration before.
    before: Vec<u32>,
    /// Whether they are out of date.
    stale: bool,
}

impl<'a, T: Float> RowsSummedOnHost<'a, T> {
    fn new(parts: &[RowBlock<'a, T>], statistics: &Arc<Statistics>) -> Result<Self> {
        if parts[0].features.gpu().is_some() {
            let (expected, got) = ("one that adds up on the GPU, where the rows are", "one that adds up on the host");
            return Err(KMeansError::InvalidOption { option: "strategy", expected: expected.into(), got: got.into() });
        }
        let mut tasks =
            memory::with_room(parts.iter().map(|part| part.features.n_rows().div_ceil(TASK)).sum(), "the list of tasks")?;
        for (i, part) in parts.iter().enumerate() {
            let n = part.features.n_rows();
            tasks.extend((0..n).step_by(TASK).map(|start| {
                let physical = start..(start + TASK).min(n);
                RowRange { part: i, kept: part.selection.count(physical.clone()), physical }
            }));
        }
        let parts = memory::collected(parts.iter().cloned(), "a list of the rows")?;
        Ok(Self { parts, statistics: statistics.clone(), tasks, before: Vec::new(), stale: true })
    }

    /// The sums of all rows under their labels, and how many rows of positive weight have a new label.
    fn add(&mut self, labels: Vec<u32>, k: usize) -> Result<(ClusterSums, u64)> {
        let (parts, statistics, d) = (&self.parts, &self.statistics, self.statistics.scales.len());
        let quantiser = Quantiser::new(&statistics.scales)?;
        let room = (WORKER_MEMORY / k.saturating_mul(d).saturating_mul(16).max(1)).max(1);
        let count = workers_for(0, self.tasks.len()).min(room);
        let weighted = statistics.weights.is_some();
        let worker = |_| {
            let moved = memory::with_room::<Moved>(TILE, "the labels of a tile")?;
            Ok((Tile::<T>::new(d, TILE)?, Deltas::new(k, &quantiser, weighted)?, moved, 0u64))
        };
        let mut workers = memory::try_collected((0..count).map(worker), "the threads' buffers")?;
        let mut cluster_sums = ClusterSums::new(k, d)?;
        let target = Mutex::new(&mut cluster_sums);
        let tasks = self.tasks.iter().scan(0, |first, task| {
            let start = *first;
            *first += task.kept;
            Some((task, &labels[start..*first], &self.before[start..*first]))
        });
        for_each_task(&mut workers, tasks, |(tile, deltas, moved, changed), (task, labels, before)| {
            let mut at = 0;
            for start in task.physical.clone().step_by(TILE) {
                tile.load(&parts[task.part], statistics.weights, start..(start + TILE).min(task.physical.end));
                moved.clear();
                for r in 0..tile.rows {
                    if !weighted || tile.weights[r] > 0.0 {
                        let to = labels[at + r];
                        *changed += u64::from(to != before[at + r]);
                        moved.push(Moved { row: r as u32, from: UNASSIGNED, to });
                    }
                }
                let (values, weights) = (tile.values(), statistics.weights.map(|scale| (&tile.weights[..], scale)));
                let (quantiser, target, of) = (&quantiser, &target, PhantomData::<T>);
                InstructionSet::detect().run(MoveRows { deltas, quantiser, values, weights, moved, target, of });
                at += tile.rows;
            }
        })?;
        let mut changed = 0;
        for (_, mut deltas, _, count) in workers {
            deltas.flush(&quantiser, &mut cluster_sums);
            changed += count;
        }
        cluster_sums.dirty.fill(true);
        self.before = labels;
        Ok((cluster_sums, changed))
    }
}
