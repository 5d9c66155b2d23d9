//! The CPU backend: threads share tiles of rows, and filter them in vector registers.
//!
//! ```text
//! for each task (a few thousand rows), by whichever worker is free:
//!   for each tile of it:
//!     load (kept rows only) -> filter -> settle rows in doubt by reference distances
//!     rows whose label changed: quantise, take from one cluster's limbs, add to the other's
//! flush every worker's limbs into the canonical sums
//! ```
//! Results do not depend on which worker does a task: labels go to their own places, and everything else is an integer sum.

mod assign;
mod centroids;
pub(crate) mod deltas;
mod difference;
mod distances;
mod draws;
mod farthest;
mod filter;
mod forecast;
mod groups;
mod inertia;
mod layout;
mod least;
mod masses;
mod nearest_clusters;
mod pass;
mod picks;
pub mod predict;
mod priced;
mod product;
mod seeds;
mod settle;
mod sinks;
pub mod sums;
mod tasks;
mod tree;

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

pub use centroids::CentroidTable;
pub use forecast::Forecast;
#[cfg(feature = "bench")]
pub use groups::seconds_a_score;
pub use groups::{MethodExplanation, PossibleMethods, UseGroups, UseIntDot};
pub use layout::{MemoryOrder, SessionLayout};
pub use least::LeastDistances;
pub use settle::InDoubt;
pub(crate) use tasks::split_off;

use self::assign::Assigner;
use self::groups::{AssignByGroups, Forced, Grouping, MethodDecision, SessionView};
use self::inertia::Inertia;
use self::layout::MAX_TASK;
use self::pass::{Pass, Shared, TaskPass, WorkerBuffers, given};
use self::picks::Walk;
use self::seeds::Seeds;
use self::sinks::{LabelTask, Labeller, NearestSink};
use self::tasks::{TaskRows, for_each_weight, pieces};
use super::centre::middle;
use super::{Assigned, Far, Move, Scales, Session, WorkCounts};
use crate::backend::answers::{Distances, LABELS};
use crate::backend::cpu::deltas::{Deltas, MoveRows, Moved};
use crate::backend::priced::PricedPasses;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, made};
use crate::exact::cluster_sums::{ClusterSums, Quantiser, UNASSIGNED};
use crate::exact::distances::DistanceScale;
use crate::input::tile::{RowBlock, Tile};
use crate::simd::InstructionSet;
use crate::statistics::Statistics;

/// The rows of one fit on the CPU.
pub struct CpuSession<'a, T> {
    part: RowBlock<'a, T>,
    statistics: Arc<Statistics>,
    quantiser: Quantiser,
    set: InstructionSet,
    k: usize,
    d: usize,
    layout: SessionLayout,
    tries: PossibleMethods,
    tasks: Vec<TaskRows>,
    labels: Vec<u32>,
    labels_of: LabelsOf,
    cluster_sums: ClusterSums,
    workers: Vec<WorkerBuffers<T>>,
    /// A point near the centroids of the first assign. Empty before.
    centre: Vec<f64>,
    /// The centroids of the last assign.
    table: Option<Arc<CentroidTable<T>>>,
    seeds: Option<Seeds<T>>,
    forced: Forced,
    grouping: Grouping<T>,
}

/// Where the labels of a session come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabelsOf {
    /// They are not set yet.
    Nothing,
    /// Rows may be [`UNASSIGNED`], or have the labels of a model.
    Other,
    LastAssign,
}

impl<'a, T: Float> CpuSession<'a, T> {
    /// A session over one part of the rows. `statistics` was computed from all rows.
    pub fn new(
        part: RowBlock<'a, T>,
        statistics: &Arc<Statistics>,
        k: usize,
        threads: usize,
        set: InstructionSet,
    ) -> Result<Self> {
        let (n, d) = (part.features.n_rows(), part.features.n_features());
        let layout = SessionLayout::new::<T>([n, d, k], MemoryOrder::of(&part.features), statistics.scales.len(), threads);
        let task = layout.task;
        let quantiser = Quantiser::new(&statistics.scales)?;
        // Sums and a tile.
        let of_worker = k.saturating_mul(8 * d).saturating_add(layout.tile.saturating_mul(size_of::<T>() * d));
        let bytes = layout.workers.saturating_mul(of_worker);
        let worker = |_| WorkerBuffers::new(d, k, layout.tile, &quantiser, statistics.weights.is_some());
        let workers = made([layout.workers, bytes], 0..layout.workers, "the threads' buffers", worker)?;
        let mut session = Self {
            workers,
            part,
            statistics: statistics.clone(),
            quantiser,
            set,
            k,
            d,
            layout,
            tries: PossibleMethods::NOTHING,
            tasks: memory::with_room(n.div_ceil(task), "the list of tasks")?,
            labels: Vec::new(),
            labels_of: LabelsOf::Nothing,
            cluster_sums: ClusterSums::new(k, statistics.scales.len())?,
            centre: Vec::new(),
            table: None,
            seeds: None,
            forced: Forced::default(),
            grouping: Grouping::UNDECIDED,
        };
        let mut first = 0;
        for physical in pieces(0..n, task) {
            let kept = session.part.selection.count(physical.clone());
            let mut positive = if session.part.weights.is_some() { 0 } else { kept };
            for_each_weight(&session.part, physical.clone(), |weight| positive += usize::from(weight > 0.0));
            session.tasks.push(TaskRows { physical, first, kept, positive });
            first += kept;
        }
        session.labels = memory::zeroed(first, LABELS)?;
        session.tries = layout.tries::<T>(first, set);
        Ok(session)
    }

    /// The same session, with groups and integer copies as demanded. For tests and benchmarks.
    #[doc(hidden)]
    pub fn forced(self, groups: UseGroups, copies: UseIntDot) -> Self {
        Self { forced: Forced { groups, copies }, ..self }
    }

    /// What an assign by groups may read and write of the session.
    fn lend_to_groups(&mut self) -> (&mut Grouping<T>, SessionView<'_, 'a, T>, AssignByGroups<'_, T>) {
        let Self { part, statistics, quantiser, layout, tasks, labels, cluster_sums, workers, table, grouping, .. } = self;
        let (rows, known) = (labels.len(), self.labels_of == LabelsOf::LastAssign);
        let view = SessionView { part, statistics, set: self.set, layout, tasks, rows, tries: self.tries, forced: self.forced };
        (grouping, view, AssignByGroups { quantiser, table: table.as_deref(), known, workers, labels, cluster_sums })
    }

    /// Runs one pass. `pass` says what to do with each tile.
    fn pass(&mut self, pass: Pass<'_>) -> Result<()> {
        let Self { part, statistics, quantiser, set, tasks, labels, cluster_sums, workers, table, .. } = self;
        let Some(table) = table else { return Ok(()) };
        let mut rest = labels.as_mut_slice();
        let tasks = tasks.iter().map(move |task| (task, split_off(&mut rest, task.kept)));
        let shared = &Shared { part, statistics, quantiser, table, cluster_sums: Mutex::new(cluster_sums) };
        for_each_task(workers, tasks, |worker, (task, labels)| {
            set.run(TaskPass { shared, worker, task, labels, pass });
        })
    }

    /// Makes the table of these centroids, in the memory of the one before where it can.
    fn take_centroids(&mut self, centroids: &[T]) -> Result<()> {
        let extent = self.statistics.extent();
        let (by_tree, order) = (self.grouping.plan() == MethodDecision::Tree, self.grouping.centroid_order());
        let (centre, threads) = (&self.centre[..], self.workers.len());
        let mut table = self.table.take();
        let again = table.as_mut().and_then(Arc::get_mut).filter(|table| by_tree == table.filter.is_tree());
        let is_replaced = match again {
            Some(table) => table.replace(centroids, centre, extent, order, threads)?,
            None => false,
        };
        self.table = match (is_replaced, by_tree) {
            (true, _) => table,
            (false, true) => Some(Arc::new(CentroidTable::by_tree(centroids, self.d, self.set, threads)?)),
            (false, false) => {
                Some(Arc::new(CentroidTable::in_order(centroids, self.d, centre, extent, order, self.set, threads)?))
            }
        };
        Ok(())
    }

    /// Labels every row by the centroids of a model, without any sums. Returns the integer inertia of each cluster.
    pub fn label(&mut self, table: Arc<CentroidTable<T>>) -> Result<Vec<u128>> {
        self.table = Some(table);
        self.labels_of = LabelsOf::Other;
        self.make_room_for_inertia()?;
        self.pass(Pass::Assign { sums: false, inertia: true })?;
        self.take_inertia()
    }

    /// Takes labels, one a kept row, and returns the inertia of all clusters together in this scale.
    pub fn take_labels(&mut self, table: Arc<CentroidTable<T>>, labels: &[u32], scale: DistanceScale) -> Result<u128> {
        self.table = Some(table);
        self.labels_of = LabelsOf::Other;
        self.labels.copy_from_slice(labels);
        self.total_inertia(scale)
    }

    /// The inertia of all clusters together, in this scale.
    pub fn total_inertia(&mut self, scale: DistanceScale) -> Result<u128> {
        Ok(self.inertia(Scales::Same(scale))?.iter().sum())
    }
}

impl<T: Float> Session<T> for CpuSession<'_, T> {
    fn rows(&self) -> u64 {
        self.labels.len() as u64
    }

    fn reset(&mut self) -> Result<()> {
        self.labels_of = LabelsOf::Nothing;
        self.cluster_sums.reset();
        self.centre.clear();
        self.grouping.reset();
        Ok(())
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        if self.centre.is_empty() {
            self.centre = middle(centroids, self.d)?;
        }
        let (grouping, view, AssignByGroups { workers, .. }) = self.lend_to_groups();
        grouping.prepare(view, workers, centroids)?;
        self.start_labels()?;
        self.take_centroids(centroids)?;
        self.take_in_doubt();
        // An assign may give its groups up for the next one.
        let groups = self.grouping.count();
        let (grouping, view, run) = self.lend_to_groups();
        let by_groups = grouping.assign(view, run)?;
        if by_groups.is_none() {
            if want_inertia {
                self.make_room_for_inertia()?;
            }
            self.pass(Pass::Assign { sums: true, inertia: want_inertia })?;
        }
        self.labels_of = LabelsOf::LastAssign;
        let InDoubt { few, all } = self.take_in_doubt();
        let is_tree = self.table.as_ref().is_some_and(|table| table.filter.is_tree());
        let searched = self.workers.iter_mut().map(|worker| std::mem::take(&mut worker.assigner.scores).needed).sum();
        let scores = by_groups.or(is_tree.then_some(searched));
        let work_counts = WorkCounts { settled: Some(few + all), scores, rescored: None, groups: by_groups.and(groups) };
        let mut changed = 0;
        let mut deltas = memory::with_room(self.workers.len(), "the threads' sums")?;
        for worker in &mut self.workers {
            changed += std::mem::take(&mut worker.changed);
            deltas.push(&mut worker.deltas);
        }
        Deltas::flush_all(&mut deltas, &self.quantiser, &mut self.cluster_sums)?;
        let inertia = match (want_inertia, by_groups) {
            (false, _) => None,
            (true, None) => Some(self.take_inertia()?),
            // An assign by groups adds up no distances.
            (true, Some(_)) => Some(self.inertia(Scales::Same(self.statistics.distances))?),
        };
        Ok(Assigned { changed, inertia, work_counts })
    }

    fn cluster_sums(&mut self) -> Result<&ClusterSums> {
        Ok(&self.cluster_sums)
    }

    fn clear_dirty(&mut self) {
        self.cluster_sums.clear_dirty();
    }

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        for worker in &mut self.workers {
            worker.far.start(count, self.labels.len())?;
        }
        self.pass(Pass::Farthest { donors })?;
        let kept = self.workers.iter_mut().flat_map(|worker| std::mem::take(&mut worker.far.kept));
        let mut all: Vec<Far> = memory::collected(kept, "the farthest rows")?;
        all.sort_unstable_by(Far::order);
        all.truncate(count);
        Ok(all)
    }

    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        for &Move { row, to } in moves {
            let mut tile = Tile::new(self.d, 1)?;
            tile.load_list(&self.part, self.statistics.weights, &[Walk::default().physical(self, row as usize)]);
            let from = std::mem::replace(&mut self.labels[row as usize], to);
            let (weights, moved) = (given(&tile.weights, &self.statistics), [Moved { row: 0, from, to }]);
            let (deltas, target) = (&mut self.workers[0].deltas, Mutex::new(&mut self.cluster_sums));
            let (quantiser, values, of) = (&self.quantiser, tile.values(), PhantomData::<T>);
            self.set.run(MoveRows { deltas, quantiser, values, weights, moved: &moved, target: &target, of });
        }
        self.workers[0].deltas.flush(&self.quantiser, &mut self.cluster_sums);
        Ok(())
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        self.make_room_for_inertia()?;
        self.pass(Pass::Inertia { scales })?;
        self.take_inertia()
    }

    fn method(&self) -> Option<MethodExplanation> {
        Some(MethodExplanation { set: self.set, tries: self.tries, plan: self.grouping.plan() })
    }

    fn copy_labels(&mut self, out: &mut [u32]) -> Result<()> {
        out.copy_from_slice(&self.labels);
        Ok(())
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        Ok(self.labels)
    }

    fn priced(&mut self) -> Option<&mut dyn PricedPasses<T>> {
        Some(self)
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        let (centre, extent) = (middle(centroids, self.d)?, self.statistics.extent());
        let table = CentroidTable::new(centroids, self.d, &centre, extent, self.set, self.workers.len())?;
        let n = self.labels.len();
        let (mut labels, mut distances) = (memory::zeroed(n, LABELS)?, Distances::zeroed(n, self.k)?);
        let (Self { part, set, tasks, .. }, weights, table) = (&*self, self.statistics.weights, &table);
        let mut labellers = Labeller::several(self.workers.len(), [self.d, self.k, self.workers[0].tile.stride])?;
        let second = distances.second.as_deref_mut().unwrap_or_default();
        let mut rest = NearestSink { labels: &mut labels, nearest: &mut distances.nearest, second };
        let tasks = tasks.iter().map(move |task| (task, rest.split_off(task.kept)));
        for_each_task(&mut labellers, tasks, |labeller, (task, sink)| {
            set.run(LabelTask { part, weights, table, rows: task.physical.clone(), labeller, bits: None, sink });
        })?;
        Ok((labels, distances))
    }
}

impl<T: Float> CpuSession<'_, T> {
    /// Before the first assign, no row has a label. The threads share the work, because the system provides the pages of the
    /// labels at the first write.
    fn start_labels(&mut self) -> Result<()> {
        if self.labels_of == LabelsOf::Nothing {
            self.labels_of = LabelsOf::Other;
            for_each_task(&mut self.workers, self.labels.chunks_mut(MAX_TASK), |_, labels| labels.fill(UNASSIGNED))?;
        }
        Ok(())
    }

    /// The rows in doubt since the last call.
    pub(in crate::backend) fn take_in_doubt(&mut self) -> InDoubt {
        self.workers.iter_mut().fold(InDoubt::default(), |sum, worker| {
            let InDoubt { few, all } = std::mem::take(&mut worker.assigner.open.in_doubt);
            InDoubt { few: sum.few + few, all: sum.all + all }
        })
    }

    fn make_room_for_inertia(&mut self) -> Result<()> {
        let k = self.k;
        self.workers.iter_mut().try_for_each(|worker| worker.inertia.start(k))
    }

    fn take_inertia(&mut self) -> Result<Vec<u128>> {
        let mut total = memory::zeroed::<u128>(self.k, Inertia::WHAT)?;
        for worker in &mut self.workers {
            total.iter_mut().zip(worker.inertia.take()).for_each(|(a, b)| *a += b);
        }
        Ok(total)
    }
}
