//! Cross-processing: the GPU labels the rows, and the CPU adds them up (Zechner & Granitzer 2009; Rodinia 2009).
//!
//! In each iteration the labels go to the host, and k x d centroids come back. The CPU of the paper adds up all rows in one
//! thread. Here all threads do it, each with its own sums.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Mutex;
#[cfg(feature = "bench")]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "bench")]
use std::time::Instant;

use crate::backend::cpu::deltas::{Deltas, MoveRows, Moved};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::exact::cluster_sums::{ClusterSums, Quantiser, UNASSIGNED};
use crate::input::tile::{Part, Tile};
use crate::simd::InstructionSet;
use crate::statistics::Statistics;

/// The nanoseconds that this process has spent waiting for labels, downloading them, and adding up rows by them. These are the
/// stages in the figures of Zechner & Granitzer.
#[cfg(feature = "bench")]
pub static STAGES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// The stages of one iteration. Their time is measured only in benches.
pub struct Stages {
    #[cfg(feature = "bench")]
    begin: Instant,
}

impl Stages {
    pub fn begin() -> Self {
        Self {
            #[cfg(feature = "bench")]
            begin: Instant::now(),
        }
    }

    /// Ends a stage and begins the next.
    #[cfg_attr(not(feature = "bench"), expect(unused_variables, reason = "nothing is counted"))]
    pub fn end(&mut self, stage: usize) {
        #[cfg(feature = "bench")]
        {
            let begin = std::mem::replace(&mut self.begin, Instant::now());
            STAGES[stage].fetch_add((self.begin - begin).as_nanos() as u64, Ordering::Relaxed);
        }
    }
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

/// The rows in host memory.
pub struct HostRows<'a, T> {
    parts: &'a [Part<'a, T>],
    statistics: &'a Statistics,
    tasks: Vec<RowRange>,
    /// The labels of the iteration before.
    before: Vec<u32>,
}

impl<'a, T: Float> HostRows<'a, T> {
    pub fn new(parts: &'a [Part<'a, T>], statistics: &'a Statistics) -> Result<Self> {
        if parts[0].features.gpu().is_some() {
            return Err(KMeansError::InvalidOption {
                option: "strategy",
                expected: "one that adds up on the GPU, where the rows are".into(),
                got: "one that adds up on the host".into(),
            });
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
        Ok(Self { parts, statistics, tasks, before: Vec::new() })
    }

    /// Sets the labels of the iteration before.
    pub fn remember(&mut self, labels: Vec<u32>) {
        self.before = labels;
    }

    /// The sums of all rows under their labels, and how many rows of positive weight have a new label.
    pub fn add(&mut self, labels: Vec<u32>, k: usize) -> Result<(ClusterSums, u64)> {
        let (parts, statistics, d) = (self.parts, self.statistics, self.statistics.scales.len());
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
