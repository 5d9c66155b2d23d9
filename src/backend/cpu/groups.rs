//! Assigns that compare rows only with the centroids near them. Integer copies are compared first, where the machine multiplies
//! them fast.
//!
//! ```text
//! at the first assign, and again when less is left out than before:
//!   points m among the centroids or the rows, and for each point the centroids near it          (`groups/partition.rs`)
//!   each task's rows in the order of the groups of their labels, in blocks of 64 rows of one group      (`groups/sorted.rs`)
//!   for each block:  R = the largest distance to m
//! each assign:
//!   for each group:  all centroids, a few at a time, in the order of their distance from m             (`groups/step.rs`)
//!   for each block:  U = the largest distance to a centroid
//!     the block is compared with the centroids at most R + U from m: the first ones of the order       (`groups/task.rs`)
//!
//! where the product filter is used, and the machine multiplies small integers:                (`groups/int_dot.rs`)
//!   sorted rows are copied about m, and in each assign the centroids near each group, too
//!   a block is compared by its copies; only rows in doubt and rows whose label changes are loaded
//!   a block with much doubt is compared again in float32
//! ```
//! Points to note: (1) `src/bounds/groups.rs` derives what may be left out. (2) A row that changes its label stays in its block
//! until rows are put in order again: neither the row nor m has moved. (3) Before the first assign, rows take the group whose
//! point is nearest, by few features where a sample says that they are enough. Later they take that of their label, if the points
//! are means of centroids. (4) The sorted rows are kept from assign to assign where their copy is small enough. Else each assign
//! sorts some of them at a time. (5) To sort takes time. So a sample of the rows decides at the first assign whether it pays, and
//! every assign decides for the next one. (6) Where differences are computed (few features), U comes from the distances to the
//! labels so far, for up to eight blocks together; else from R. (7) Where nothing can be left out, copies alone may pay. Then
//! there is one group of all centroids. (8) There are as many groups as a sample says: few, one for each natural cluster of the
//! rows, or many (`groups/plan.rs`). Where some natural clusters have no centroid yet, only points among the rows find them. (9)
//! Rows of few features are not grouped where a tree finds the centroids near each row faster (`tree.rs`): where there are very
//! many centroids, or where the sample or a bad assign says so.
//!
//! The idea is that of the rings of Drake & Hamerly (2012) and of blocks of rows as in the tree of Kanungo et al. (2002), for
//! kernels that work on blocks.

mod guess;
mod int_dot;
mod method;
mod partition;
mod plan;
mod sample;
mod scores;
mod sorted;
mod step;
mod task;

use std::sync::Mutex;

use self::int_dot::ByCopies;
#[cfg(feature = "bench")]
pub use self::int_dot::seconds_a_score;
pub use self::method::{MethodDecision, MethodExplanation, PossibleMethods};
use self::partition::Partition;
use self::plan::{PlannedGroups, RowOrderStep, pays};
use self::scores::GROUPS;
pub use self::scores::{BLOCK, MOST_GROUPS, Scores, largest};
use self::sorted::{RowLayout, Sorted};
pub use self::step::GroupStep;
pub use self::task::GroupScratch;
use self::task::{GroupTask, TaskRowsOrder, shared_labels};
use super::CpuSession;
use super::filter::ScoreForm;
use super::pass::{Shared, WorkerBuffers};
use super::product::DotTable;
use super::tree;
use crate::backend::cpu::tasks::TaskRows;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, made};
use crate::simd::DotUnit;

/// Groups are made again when so many times the scores are computed.
const WORSE: f64 = 1.15;
/// So many times the scores that a sample promised are a surprise.
const SURPRISE: f64 = 3.0;
/// About the values of sorted rows in a task, and the most rows.
const UNIT: usize = 1 << 16;
const MOST_OF_UNIT: usize = 4_096;

/// Whether a session compares groups of rows with the centroids near them only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UseGroups {
    /// Where it pays.
    #[default]
    Auto,
    /// Wherever it is possible. For tests.
    Always,
    /// Wherever it is possible. Rows are sorted for each assign, a few at a time, and belong to the nearest points among the
    /// rows.
    AlwaysSort,
    /// Never. Where rows have few features, a tree finds the centroids near each row. For tests.
    Tree,
    Never,
}

/// Whether the product filter of a session takes integer copies first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UseIntDot {
    /// Where it pays.
    #[default]
    Auto,
    /// Wherever it is possible, by this unit or its emulation. For tests.
    Always(DotUnit),
    /// Wherever it is possible, but copies are given up after two assigns.
    Twice(DotUnit),
    Never,
}

/// Groups of centroids, and the rows in their order. Labels do not depend on them.
pub struct GroupPruning<T> {
    pub groups: Partition<T>,
    /// For each group, about the largest distance of its rows from its point: that of a sample, with some room.
    radii: Vec<f64>,
    /// The most groups that there is memory for.
    most: usize,
    /// Whether the labels are those of the last assign.
    pub known: bool,
    /// The share of the scores in the first assign by these groups, and in the last one.
    shares: Option<(f64, f64)>,
    /// Number of assigns since then, and how many there must be before the groups are made again.
    assigns: u32,
    patience: u32,
    /// The rows that are sorted together: tasks of the session, a few at a time.
    parts: Vec<TaskRows>,
    /// The sorted rows of each part, or nothing where they are not kept.
    kept: Vec<Sorted<T>>,
    /// Whether `kept` is in the order of the groups.
    is_sorted: bool,
    /// For each group, at least the largest distance of its rows from its point, once the kept rows are sorted. Empty before.
    sorted_radii: Vec<f64>,
    /// What integer copies need, where they are used.
    by_copies: Option<ByCopies>,
    /// For each thread: its buffers, and the rows that it sorts for one assign, where sorted rows are not kept.
    scratches: Vec<(GroupScratch<T>, Option<Sorted<T>>)>,
}

impl<T: Float> GroupPruning<T> {
    /// Whether the groups leave out less than they did. Centroids move most in the first iterations, and those of empty clusters
    /// leave their group.
    fn is_outdated(&self) -> bool {
        self.assigns >= self.patience && self.shares.is_some_and(|(first, last)| last > first * WORSE + 0.01)
    }

    /// Takes other groups, of which there are at most as many as before. Rows stay in the order of the same points.
    fn take_groups(&mut self, PlannedGroups { groups, radii, .. }: PlannedGroups<T>) {
        self.is_sorted &= groups.points == self.groups.points;
        (self.groups, self.radii) = (groups, radii);
        (self.shares, self.assigns, self.patience) = (None, 0, 2 * self.patience);
        self.sorted_radii.clear();
    }
}

impl<T: Float> CpuSession<'_, T> {
    /// Assigns by the centroids near each row, if that was decided. Returns the number of scores. None if the assign must compare
    /// all, also where there is no memory for the order of the rows.
    pub(super) fn assign_by_groups(&mut self) -> Result<Option<u64>> {
        let longest = self.pruning.iter().flat_map(|pruning| &pruning.parts).map(|part| part.physical.len()).max().unwrap_or(0);
        let (together, threads) = (self.sorted_together(longest), self.workers.len());
        let Self { part, statistics, quantiser, set, labels, cluster_sums, workers, table, pruning, sample, d, k, .. } = self;
        let by_columns = part.features.is_by_columns();
        let (Some(table), Some(found)) = (table.as_deref(), pruning.as_mut()) else { return Ok(None) };
        let is_kept = !found.kept.is_empty();
        // An assign that ends early leaves some parts unsorted.
        let is_sorted = std::mem::take(&mut found.is_sorted);
        let GroupPruning { groups, radii, most: most_groups, parts, kept, sorted_radii, known, by_copies, scratches, .. } =
            found;
        let mut make_room = || {
            if scratches.is_empty() {
                let layout = kept.first().map_or(Sorted::<T>::layout([false, false, by_columns], *d), |kept| kept.layout);
                let most = if is_kept { longest } else { together };
                let room = |worker: &mut WorkerBuffers<T>| {
                    worker.assigner.reserve_near::<T>(*k, *d)?;
                    let sorted = || Sorted::new([*d, most, *most_groups], layout, None, [part.weights.is_some(), false]);
                    let scratch = GroupScratch::new([*d, most, worker.tile.stride], layout)?;
                    Ok((scratch, (!is_kept).then(sorted).transpose()?))
                };
                let bytes = threads.saturating_mul(BLOCK * size_of::<T>() * *d);
                *scratches = made([threads, bytes], workers.iter_mut(), GROUPS, room)?;
            }
            // Sorted rows stay in their groups, so their distances from the points are known.
            let sorted = if is_sorted { &kept[..] } else { &[] };
            let of_group = |group| largest(sorted.iter().map(|sorted| sorted.radius(sorted.rows(group))));
            if is_sorted && sorted_radii.is_empty() {
                *sorted_radii = memory::collected((0..groups.count()).map(of_group), GROUPS)?;
            }
            let known_radii = is_sorted.then_some(&sorted_radii[..]);
            let mut step = GroupStep::new(groups, &table.rows, *known, known_radii, *set, threads)?;
            let guesses = !is_sorted && groups.count() > 1 && !(*known && groups.are_of_centroids);
            if guesses {
                let is_plain = part.features.row_transform().is_none() && (by_columns || part.features.row(0).is_some());
                step.prepare_guesses(sample.get().filter(|_| is_plain).map(|sample| &sample[..]), *set, threads)?;
            }
            let radii = known_radii.unwrap_or(radii);
            let copied = match by_copies {
                Some(by_copies) => by_copies.copy_centroids(&step, &table.rows, sorted, radii, *set, threads)?,
                None => false,
            };
            Ok((step, copied))
        };
        let (step, copied) = match make_room() {
            Err(KMeansError::NoMemory { .. }) => {
                self.plan = MethodDecision::NoMemory;
                self.pruning = None;
                return Ok(None);
            }
            step => step?,
        };
        let rows = labels.len() as f64;
        let (mut rest, step) = (shared_labels(labels), &step);
        let copies = by_copies.as_ref().map(|by_copies| &by_copies.copies);
        let tables: &[DotTable] = by_copies.as_ref().filter(|_| copied).map_or(&[], |by_copies| &by_copies.tables);
        let tasks = parts.iter().map(move |task| {
            let (labels, others) = rest.split_at(task.kept.min(rest.len()));
            rest = others;
            (task, labels)
        });
        let shared = &Shared { part, statistics, quantiser, table, cluster_sums: Mutex::new(cluster_sums) };
        let mut pairs = memory::collected(workers.iter_mut().zip(scratches), GROUPS)?;
        if is_sorted {
            // Threads end together if tasks are small.
            let rows = (UNIT / *d).clamp(BLOCK, MOST_OF_UNIT);
            let tasks = tasks.zip(&*kept).flat_map(|(task, kept)| kept.units(rows).map(move |unit| (task, kept, unit)));
            for_each_task(&mut pairs, tasks, |(worker, (scratch, _)), ((task, labels), sorted, unit)| {
                let sorted = TaskRowsOrder::Sorted(sorted, unit);
                set.run(GroupTask { shared, worker, scratch, sorted, task, labels, step, copies, tables });
            })?;
        } else {
            let mut kept = kept.iter_mut();
            for_each_task(&mut pairs, tasks.map(move |task| (task, kept.next())), |(worker, (scratch, own)), (task, kept)| {
                let Some(sorted) = kept.or(own.as_mut()) else { unreachable!("sorted rows are a thread's or a task's") };
                let ((task, labels), sorted) = (task, TaskRowsOrder::ToSort(sorted));
                set.run(GroupTask { shared, worker, scratch, sorted, task, labels, step, copies, tables });
            })?;
        }
        let scores = workers.iter_mut().map(|worker| std::mem::take(&mut worker.assigner.scores));
        let scores = scores.fold(Scores::default(), Scores::add);
        // Without labels, differences have long lists.
        let is_usual = step.known || ScoreForm::of::<T>(*d) == ScoreForm::Product;
        (found.known, found.is_sorted) = (true, is_kept);
        found.assigns += 1;
        let share = scores.computed as f64 / (rows * *k as f64).max(1.0);
        if is_usual {
            found.shares = Some((found.shares.map_or(share, |(first, _)| first), share));
        }
        self.judge_groups(scores, share, is_usual, is_sorted && !copied);
        Ok(Some(scores.needed))
    }

    /// Decides how the next assign is done. `share`: that of the scores which were computed. `is_usual`: whether it says
    /// something of later assigns. `is_idle`: whether integer copies were there, but not used.
    fn judge_groups(&mut self, scores: Scores, share: f64, is_usual: bool, is_idle: bool) {
        let Some(pruning) = &mut self.pruning else { return };
        let is_doubtful = match self.use_int_dot {
            UseIntDot::Auto => is_idle || scores.again * 3 > scores.by_int_dot,
            UseIntDot::Twice(_) => true,
            UseIntDot::Always(_) | UseIntDot::Never => false,
        };
        if pruning.by_copies.as_mut().is_some_and(|by_copies| by_copies.gives_up(is_doubtful)) {
            pruning.by_copies = None;
            self.plan = self.plan.without_copies();
            pruning.kept.iter_mut().for_each(|sorted| sorted.copies = None);
        }
        // Without their copies, such rows are gathered.
        let is_kept = pruning.kept.first().is_some_and(|kept| kept.layout != RowLayout::Unmoved);
        let rows = if is_kept { RowOrderStep::Kept } else { RowOrderStep::Sorted };
        let by_columns = self.part.features.is_by_columns();
        let is_surprise = matches!(self.plan, MethodDecision::Groups { remains, .. } if share > SURPRISE * remains);
        // Integer copies pay without anything left out.
        let pays = pruning.by_copies.is_some() || pays(1.0 - share, [self.k, self.d], rows, by_columns);
        if is_usual && self.use_groups == UseGroups::Auto && !pays {
            let groups = pruning.groups.count();
            // Whether the last assign was the first one by these groups.
            if pruning.assigns <= 1 || groups == 1 {
                if tree::pays(self.k, self.d) {
                    self.plan = MethodDecision::Tree;
                } else if groups > 1 {
                    self.plan = MethodDecision::GivenUp { groups, remained: share };
                }
                self.pruning = None;
            } else {
                // New groups may do.
                pruning.shares = Some((0.0, share));
            }
        } else if is_usual && self.use_groups == UseGroups::Auto && is_surprise && tree::pays(self.k, self.d) {
            // New groups or a tree may do better.
            pruning.shares = Some((0.0, share));
        }
    }
}
