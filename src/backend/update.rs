//! The update step: moves rows into empty clusters, computes exact means, and measures how far the centroids moved.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::{Move, Session, Updated};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::base::params::Metric;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::fixed::{ColumnScale, round_quotient};
use crate::exact::reference;
use crate::input::transform::{finish_centroid, same_direction};
use crate::statistics::Statistics;

/// What errors call the numbers of clusters.
const EMPTY: &str = "the empty clusters";
/// The sums that a task divides: some ten microseconds.
const TASK: usize = 1 << 12;

/// Memory of an update, for the next one.
#[derive(Default)]
pub struct Scratch<T> {
    /// How far each centroid moved.
    moves: Vec<f64>,
    workers: Vec<DivisionWorker<T>>,
    /// The clusters that were empty in any update so far, in ascending order.
    pub emptied: Vec<u32>,
}

/// Replaces `centroids` by the means of their rows. `threads`: the most threads, or 0 for those of the pool. `scratch`: of an
/// update of as many clusters, or empty.
pub fn update<T: Float>(
    session: &mut dyn Session<T>,
    centroids: &mut [T],
    statistics: &Statistics,
    threads: usize,
    scratch: &mut Scratch<T>,
) -> Result<Updated> {
    let d = statistics.lows.len();
    let same = if statistics.metric == Metric::Cosine { same_direction::<T>(d) } else { 0.0 };
    let relocated = relocate_into_empty(session, same, statistics.ties.as_deref(), &mut scratch.emptied)?;
    if let Some(updated) = session.means(centroids)? {
        return Ok(Updated { moved: relocated || updated.moved, ..updated });
    }
    let cluster_sums = session.cluster_sums()?;
    let Scratch { moves, workers, .. } = scratch;
    let clusters = (TASK / d).max(1);
    if moves.len() != cluster_sums.mass.len() {
        *moves = memory::zeroed(cluster_sums.mass.len(), "how far the centroids moved")?;
        let count = workers_for(threads, moves.len().div_ceil(clusters));
        *workers =
            memory::try_collected((0..count).map(|_| DivisionWorker::new(d, statistics.metric)), "the threads' buffers")?;
    }
    moves.fill(0.0);
    workers.iter_mut().for_each(|worker| worker.moved = false);
    let tasks = centroids.chunks_mut(clusters * d).zip(moves.chunks_mut(clusters)).enumerate();
    for_each_task(workers, tasks, |worker, (task, (centroids, moves))| {
        for (i, (centroid, moved)) in centroids.chunks_exact_mut(d).zip(moves).enumerate() {
            let j = task * clusters + i;
            // A cluster whose rows did not change keeps its mean. Right after seeding all clusters are dirty.
            if cluster_sums.dirty[j] {
                *moved = worker.replace(cluster_sums, j, statistics, centroid);
            }
        }
    })?;
    let moved = relocated || workers.iter().any(|worker| worker.moved);
    session.clear_dirty();
    Ok(Updated { shift: statistics.shifts.sum(moves.iter().copied()).to_f64(), moved })
}

/// What a thread needs to divide.
struct DivisionWorker<T> {
    /// The sum of directions. Empty if the metric is Euclidean.
    direction: Vec<f64>,
    old: Vec<T>,
    /// Whether it has moved a centroid.
    moved: bool,
}

impl<T: Float> DivisionWorker<T> {
    fn new(d: usize, metric: Metric) -> Result<Self> {
        let direction = memory::zeroed(if metric == Metric::Cosine { d } else { 0 }, "a centroid")?;
        Ok(Self { direction, old: memory::zeroed(d, "a centroid")?, moved: false })
    }

    /// Replaces a centroid by the mean of the rows of cluster j. Returns the reference distance between both.
    fn replace(&mut self, cluster_sums: &ClusterSums, j: usize, statistics: &Statistics, centroid: &mut [T]) -> f64 {
        self.old.copy_from_slice(centroid);
        match statistics.metric {
            Metric::Euclidean => mean(cluster_sums, j, statistics, centroid),
            Metric::Cosine => {
                quotients(cluster_sums, j, statistics, &mut self.direction);
                finish_centroid(&mut self.direction, centroid);
            }
        }
        let moved = reference::distance(&self.old, centroid);
        self.moved |= moved > 0.0 || self.old != centroid;
        moved
    }
}

/// The exact quotient, rounded once to `T` and clamped to the column's extent.
fn mean<T: Float>(cluster_sums: &ClusterSums, j: usize, statistics: &Statistics, out: &mut [T]) {
    quotients(cluster_sums, j, statistics, out);
    for (f, mean) in out.iter_mut().enumerate() {
        let (low, high) = (T::from_f64(statistics.lows[f]), T::from_f64(statistics.highs[f]));
        if *mean < low {
            *mean = low;
        } else if *mean > high {
            *mean = high;
        }
    }
}

/// The exact quotients of sums and weight, rounded once to `R`.
fn quotients<R: Float>(cluster_sums: &ClusterSums, j: usize, statistics: &Statistics, out: &mut [R]) {
    let unit = statistics.weights.map_or(0, |scale| scale.exponent - 53);
    quotients_of(cluster_sums.sums_of(j), cluster_sums.mass[j], &statistics.scales, unit, out);
}

/// The exact quotients of sums and a weight in units of `2^unit`, rounded once to `R`.
pub fn quotients_of<R: Float>(sums: &[i128], mass: i128, scales: &[ColumnScale], unit: i32, out: &mut [R]) {
    for ((out, &sum), scale) in out.iter_mut().zip(sums).zip(scales) {
        *out = round_quotient(sum, mass.unsigned_abs(), scale.quantum_exponent() - unit);
    }
}

/// Adds clusters to a list in ascending order.
pub fn merge(all: &mut Vec<u32>, more: &[u32]) -> Result<()> {
    memory::extend(all, more, EMPTY)?;
    all.sort_unstable();
    all.dedup();
    Ok(())
}

/// Gives one row to every empty cluster, in index order. The row is the one farthest from the centroid that gave it its label,
/// among the rows whose cluster keeps at least one other row. A row whose squared distance is at most `same` counts as equal to
/// its centroid. Returns whether there was an empty cluster. `ties` becomes true if rows are equally far. `emptied`: gets the
/// empty clusters.
fn relocate_into_empty<T: Float>(
    session: &mut dyn Session<T>,
    same: f64,
    ties: Option<&AtomicBool>,
    emptied: &mut Vec<u32>,
) -> Result<bool> {
    let mut sizes = session.sizes()?;
    if sizes.iter().all(|rows| *rows > 0) {
        return Ok(false);
    }
    let without_rows = (0u32..).zip(&sizes).filter(|(_, rows)| **rows == 0).map(|(j, _)| j);
    let mut empty = memory::collected(without_rows, EMPTY)?;
    merge(emptied, &empty)?;
    let too_few = Err(KMeansError::TooFewDistinct { k: sizes.len(), rows: session.positive_rows() });
    empty.reverse();
    // A row that cannot be given now can never be given: clusters only lose rows, and a relocated row is alone in its cluster. So
    // the loop goes through the farthest rows once, in batches as large as the number of empty clusters.
    while !empty.is_empty() {
        let donors = memory::collected(sizes.iter().map(|rows| *rows >= 2), "the clusters that may give a row")?;
        let mut moves = memory::with_room(empty.len(), "the rows that move to empty clusters")?;
        // Whether one row more is equally far is only known with it.
        let asked = empty.len() + usize::from(ties.is_some());
        let farthest = session.farthest(asked, &donors)?;
        if let Some(ties) = ties
            && farthest.windows(2).any(|two| two[0].distance == two[1].distance && two[0].distance > same)
        {
            ties.store(true, Ordering::Relaxed);
        }
        for far in farthest.into_iter().take(empty.len()) {
            if far.distance <= same {
                return too_few;
            }
            if sizes[far.cluster as usize] < 2 {
                continue;
            }
            let Some(to) = empty.pop() else { break };
            sizes[far.cluster as usize] -= 1;
            sizes[to as usize] = 1;
            moves.push(Move { row: far.row, to });
        }
        if moves.is_empty() {
            return too_few;
        }
        session.relocate(&moves)?;
    }
    Ok(true)
}
