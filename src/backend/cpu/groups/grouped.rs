//! Groups of rows and centroids, and an assign by them.

use std::sync::Mutex;

use super::int_dot::{ByCopies, Copies};
use super::method::{CopiesDecision, MethodDecision};
use super::partition::Partition;
use super::plan::{PlannedGroups, Planner};
use super::scores::{BLOCK, GROUPS, Scores, largest};
use super::sorted::{RowLayout, Sorted};
use super::state::State;
use super::step::GroupStep;
use super::task::{Blocks, GroupScratch, Lists, SortTask, UnitTask, shared_labels};
use super::tuning::{self, Sorting, pays};
use super::view::{SessionView, UseGroups, UseIntDot};
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::filter::ScoreForm;
use crate::backend::cpu::layout::SessionLayout;
use crate::backend::cpu::pass::{Shared, WorkerBuffers};
use crate::backend::cpu::tasks::TaskRows;
use crate::backend::cpu::tree;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, made};
use crate::exact::cluster_sums::{ClusterSums, Quantiser};
use crate::simd::InstructionSet;

/// The rows of each part, in the order of their groups. The next assign writes rows that are not [`SortedRows`] before it reads them.
pub enum RowOrder<T> {
    /// Sorted rows are not kept: they would take too much memory. Each thread has room for some of them.
    Fleeting(Vec<Sorted<T>>),
    /// There is room for the rows of each part, and for the radius of each group.
    Unsorted(Vec<Sorted<T>>, Vec<f64>),
    Sorted(SortedRows<T>),
}

/// Rows in the order of their groups, where they stay.
pub struct SortedRows<T> {
    parts: Vec<Sorted<T>>,
    /// For each group, at least the largest distance of its rows from its point.
    radii: Vec<f64>,
}

impl<T: Float> RowOrder<T> {
    /// All rows were sorted.
    fn sorted(self, groups: usize) -> Self {
        let Self::Unsorted(parts, mut radii) = self else { return self };
        // There is room for the most groups.
        radii.resize(groups, 0.0);
        for (group, radius) in radii.iter_mut().enumerate() {
            *radius = largest(parts.iter().map(|sorted| sorted.radius(sorted.rows(group))));
        }
        Self::Sorted(SortedRows { parts, radii })
    }

    /// The rows belong to other groups, at most as many.
    fn unsorted(self) -> Self {
        match self {
            Self::Sorted(SortedRows { parts, radii }) => Self::Unsorted(parts, radii),
            other => other,
        }
    }

    /// The sorted rows that are kept, or room for them.
    fn kept(&self) -> &[Sorted<T>] {
        match self {
            Self::Fleeting(_) => &[],
            Self::Unsorted(parts, _) | Self::Sorted(SortedRows { parts, .. }) => parts,
        }
    }
}

/// How much the groups left out since they were made.
#[derive(Clone, Copy)]
struct Trend {
    /// The share of the scores in the first assign by these groups, and in the last one. Assigns that say nothing of later ones do
    /// not count.
    shares: Option<[f64; 2]>,
    /// Assigns by these groups.
    assigns: u32,
    /// How many there must be before the groups are made again.
    patience: u32,
}

impl Trend {
    const NONE: Self = Self { shares: None, assigns: 0, patience: 1 };

    fn see(&mut self, share: f64) {
        self.shares = Some([self.shares.map_or(share, |[first, _]| first), share]);
    }

    /// Other groups, or a tree, may do better, whatever the first share was.
    fn doubt(&mut self, share: f64) {
        self.shares = Some([0.0, share]);
    }

    /// Centroids move most in the first iterations, and those of empty clusters leave their group. So groups may leave out less
    /// than they did.
    fn is_worse(&self) -> bool {
        self.assigns >= self.patience && self.shares.is_some_and(|[first, last]| last > first * tuning::WORSE + 0.01)
    }

    fn of_other_groups(self) -> Self {
        Self { patience: 2 * self.patience, ..Self::NONE }
    }
}

/// Groups of centroids, and the rows in their order. Labels do not depend on them.
pub struct Grouped<T> {
    pub groups: Partition<T>,
    /// Why there are groups.
    pub plan: MethodDecision,
    /// For each group, about the largest distance of its rows from its point: that of a sample, with some room.
    radii: Vec<f64>,
    /// The most groups that there is memory for.
    most: usize,
    trend: Trend,
    /// The rows that are sorted together: tasks of the session, a few at a time.
    parts: Vec<TaskRows>,
    order: RowOrder<T>,
    /// What integer copies need, where they are used.
    copies: Option<ByCopies>,
    /// For each thread.
    scratches: Vec<GroupScratch<T>>,
}

/// What an assign works with, beside the groups.
pub struct AssignByGroups<'s, T> {
    pub quantiser: &'s Quantiser,
    /// There is one, once the centroids are known.
    pub table: Option<&'s CentroidTable<T>>,
    /// Whether the labels are those of the last assign.
    pub known: bool,
    pub workers: &'s mut [WorkerBuffers<T>],
    pub labels: &'s mut [u32],
    pub cluster_sums: &'s mut ClusterSums,
}

impl<T: Float> Grouped<T> {
    /// Takes the memory for these groups and copies. Without memory for sorted rows, each assign sorts some of them at a time.
    pub fn new(
        view: SessionView<'_, '_, T>,
        workers: &mut [WorkerBuffers<T>],
        PlannedGroups { groups, radii, .. }: PlannedGroups<T>,
        mut copies: Option<Copies>,
        is_kept: bool,
        mut plan: MethodDecision,
    ) -> Result<Self> {
        let most = groups.count();
        let parts = view.parts(most)?;
        let kept = match is_kept.then(|| Self::room_for_all(view, &parts, copies.as_ref(), most)) {
            None => None,
            Some(Err(KMeansError::NoMemory { .. })) if most > 1 => {
                copies = None;
                None
            }
            Some(kept) => Some(kept?),
        };
        let (scratches, order) = Self::room_of_threads(view, workers, &parts, kept, most)?;
        if let (Some(copies), MethodDecision::Groups { copies: copied, .. } | MethodDecision::All { copies: copied, .. }) =
            (&copies, &mut plan)
        {
            *copied = Some(CopiesDecision { unit: copies.unit, given_up: false });
        }
        let copies = copies.map(|copies| ByCopies::new(copies, most)).transpose()?;
        Ok(Self { groups, plan, radii, most, trend: Trend::NONE, parts, order, copies, scratches })
    }

    /// Room for the sorted rows of each part.
    fn room_for_all(
        view: SessionView<'_, '_, T>,
        parts: &[TaskRows],
        copies: Option<&Copies>,
        groups: usize,
    ) -> Result<Vec<Sorted<T>>> {
        let (part, d, workers) = (view.part, view.layout.d, view.layout.workers);
        let layout = Sorted::<T>::layout([true, copies.is_some(), part.features.is_by_columns()], d);
        let lanes = copies.map(|copies| copies.unit.lanes(d));
        let shapes = parts.iter().map(|part| [d, part.physical.len(), groups]);
        let bytes = shapes.clone().map(|shape| Sorted::<T>::bytes(shape, layout, lanes)).fold(0, usize::saturating_add);
        let few = bytes <= tuning::FEW_BYTES;
        // Threads share the work where memory that was in use before is set to zeros.
        let touched = if few && !layout.has_columns() { 0 } else { bytes };
        made([workers, touched], shapes, GROUPS, |shape| Sorted::new(shape, layout, lanes, [part.weights.is_some(), few]))
    }

    /// The buffers of each thread. Where there is no room for all rows, each thread has some for those that it sorts at a time.
    fn room_of_threads(
        view: SessionView<'_, '_, T>,
        workers: &mut [WorkerBuffers<T>],
        parts: &[TaskRows],
        kept: Option<Vec<Sorted<T>>>,
        groups: usize,
    ) -> Result<(Vec<GroupScratch<T>>, RowOrder<T>)> {
        let SessionView { part, layout: &SessionLayout { d, k, .. }, .. } = view;
        let longest = parts.iter().map(|part| part.physical.len()).max().unwrap_or(0);
        let most = if kept.is_some() { longest } else { view.sorted_together(longest) };
        let for_one_assign = Sorted::<T>::layout([false, false, part.features.is_by_columns()], d);
        let layout = kept.as_ref().and_then(|kept| kept.first()).map_or(for_one_assign, |sorted| sorted.layout);
        let made_by = [workers.len(), workers.len().saturating_mul(BLOCK * size_of::<T>() * d)];
        let order = match kept {
            Some(kept) => RowOrder::Unsorted(kept, memory::zeroed(groups, GROUPS)?),
            None => {
                let sorted =
                    |_: &WorkerBuffers<T>| Sorted::new([d, most, groups], layout, None, [part.weights.is_some(), false]);
                RowOrder::Fleeting(made(made_by, workers.iter(), GROUPS, sorted)?)
            }
        };
        let scratches = made(made_by, workers.iter_mut(), GROUPS, |worker| {
            worker.assigner.reserve_near::<T>(k, d)?;
            GroupScratch::new([d, most, worker.tile.stride], layout)
        })?;
        Ok((scratches, order))
    }

    /// Takes other groups, as many as suit these centroids, unless a tree does better than the last groups did.
    pub fn planned_again(self, planner: &Planner<'_, '_, T>, workers: &mut [WorkerBuffers<T>]) -> Result<State<T>> {
        let Planner { view, centroids, .. } = planner;
        if let Some([_, last]) = self.trend.shares
            && planner.suits_tree(last)?
        {
            return Ok(State::Without(MethodDecision::Tree));
        }
        let planned = match view.forced.groups {
            UseGroups::Auto => {
                let is_kept = !matches!(self.order, RowOrder::Fleeting(_));
                planner.choose_groups(view.layout.sorting(self.copies.is_some(), is_kept))?.0
            }
            _ => {
                let (d, count) = (view.layout.d, self.groups.count());
                Some(planner.planned(Partition::new(centroids, d, count, view.set, view.layout.workers)?)?)
            }
        };
        match planned {
            Some(planned) if planned.groups.count() <= self.most => Ok(State::Grouped(self.with_groups(planned))),
            // There is no room for more groups, or copies alone may pay.
            _ => {
                drop(self);
                planner.plan(workers)
            }
        }
    }

    /// Takes other groups, of which there are at most as many as before. Rows stay in the order of the same points.
    fn with_groups(self, PlannedGroups { groups, radii, .. }: PlannedGroups<T>) -> Self {
        let is_same = groups.points == self.groups.points;
        let order = if is_same { self.order } else { self.order.unsorted() };
        Self { groups, radii, order, trend: self.trend.of_other_groups(), ..self }
    }

    /// Labels all rows. Returns the state for the next assign, and the number of scores.
    pub fn assign(
        mut self,
        view: SessionView<'_, '_, T>,
        AssignByGroups { quantiser, known, workers, labels, cluster_sums, .. }: AssignByGroups<'_, T>,
        table: &CentroidTable<T>,
        sample: &[T],
    ) -> Result<(State<T>, Option<u64>)> {
        let SessionView { part, statistics, set, .. } = view;
        let Self { groups, radii, parts, order, copies, scratches, .. } = &mut self;
        let sorted = if let RowOrder::Sorted(sorted) = order { Some(&*sorted) } else { None };
        let is_sorted = sorted.is_some();
        let step = &Self::near_lists(view, groups, sorted, table, known, sample)?;
        let (sorted, radii) = sorted.map_or((&[][..], &radii[..]), |sorted| (&sorted.parts, &sorted.radii));
        let copied = match copies {
            Some(copies) => copies.copy_centroids(step, &table.rows, sorted, radii, set, workers.len())?,
            None => false,
        };
        let shared = &Shared { part, statistics, quantiser, table, cluster_sums: Mutex::new(cluster_sums) };
        let tables = copies.as_ref().filter(|_| copied).map_or(&[][..], |copies| &copies.tables);
        let lists = &Lists { shared, step, copies: copies.as_ref().map(|copies| &copies.copies), tables };
        label_parts(set, lists, workers, scratches, parts, order, labels)?;
        let scores = workers.iter_mut().map(|worker| std::mem::take(&mut worker.assigner.scores));
        let scores = scores.fold(Scores::default(), Scores::add);
        self.order = self.order.sorted(self.groups.count());
        Ok((self.judged(view, scores, known, is_sorted && !copied), Some(scores.needed)))
    }

    /// For each group, the centroids near it. `sorted`: the rows, if they are in the order of the groups already.
    fn near_lists<'g>(
        view: SessionView<'_, '_, T>,
        groups: &'g Partition<T>,
        sorted: Option<&SortedRows<T>>,
        table: &CentroidTable<T>,
        known: bool,
        sample: &[T],
    ) -> Result<GroupStep<'g, T>> {
        let SessionView { part, set, layout: &SessionLayout { workers, .. }, .. } = view;
        let mut step = GroupStep::new(groups, &table.rows, known, sorted.map(|sorted| &sorted.radii[..]), set, workers)?;
        let guesses = sorted.is_none() && groups.count() > 1 && !(known && groups.are_of_centroids);
        if guesses {
            let is_read = part.features.is_by_columns() || part.features.row(0).is_some();
            let is_plain = part.features.row_transform().is_none() && is_read;
            step.prepare_guesses(is_plain.then_some(sample), set, workers)?;
        }
        Ok(step)
    }

    /// Decides how the next assign is done. `is_idle`: whether rows are sorted, but no
    /// centroids were copied. Without integer copies it says nothing.
    fn judged(mut self, view: SessionView<'_, '_, T>, scores: Scores, known: bool, is_idle: bool) -> State<T> {
        let SessionView { layout: &SessionLayout { k, d, .. }, forced, .. } = view;
        self.trend.assigns += 1;
        self.judge_copies(forced.copies, scores, is_idle);
        // Without labels, differences have long lists. That says nothing of later assigns.
        if !known && ScoreForm::of::<T>(d) == ScoreForm::Difference {
            return self.judged_by_trend();
        }
        let share = scores.computed as f64 / (view.rows as f64 * k as f64).max(1.0);
        self.trend.see(share);
        if forced.groups != UseGroups::Auto {
            return self.judged_by_trend();
        }
        let groups = self.groups.count();
        let may_be_tree = tree::pays(k, d);
        let pays = self.copies.is_some() || pays(1.0 - share, [k, d], self.sorting(), view.part.features.is_by_columns());
        // This was the first assign by these groups, or new groups would be the same.
        if !pays && (self.trend.assigns <= 1 || groups == 1) {
            return State::Without(match self.plan {
                _ if may_be_tree => MethodDecision::Tree,
                _ if groups > 1 => MethodDecision::GivenUp { groups, remained: share },
                plan => plan,
            });
        }
        let is_surprise = matches!(self.plan, MethodDecision::Groups { remains, .. } if share > tuning::SURPRISE * remains);
        if !pays || is_surprise && may_be_tree {
            self.trend.doubt(share);
        }
        self.judged_by_trend()
    }

    fn judged_by_trend(self) -> State<T> {
        if self.trend.is_worse() { State::Outdated(self) } else { State::Grouped(self) }
    }

    /// Gives up integer copies that did not pay twice in a row.
    fn judge_copies(&mut self, forced: UseIntDot, scores: Scores, is_idle: bool) {
        let is_doubtful = match forced {
            UseIntDot::Auto => is_idle || scores.again * tuning::ONE_AGAIN_IN > scores.by_int_dot,
            UseIntDot::Twice(_) => true,
            UseIntDot::Always(_) | UseIntDot::Never => false,
        };
        if self.copies.as_mut().is_some_and(|copies| copies.gives_up(is_doubtful)) {
            self.copies = None;
            self.plan = self.plan.without_copies();
            if let RowOrder::Unsorted(parts, _) | RowOrder::Sorted(SortedRows { parts, .. }) = &mut self.order {
                parts.iter_mut().for_each(|sorted| sorted.copies = None);
            }
        }
    }

    /// What another assign does with the order of the rows. Integer copies pay without anything left out.
    fn sorting(&self) -> Sorting {
        // Without their copies, rows that were not moved are gathered.
        let is_kept = self.order.kept().first().is_some_and(|kept| kept.layout != RowLayout::Unmoved);
        if is_kept { Sorting::Kept } else { Sorting::ForOneAssign }
    }
}

/// Labels the rows of all parts, and sorts them where they are not sorted yet. Threads share the work.
fn label_parts<T: Float>(
    set: InstructionSet,
    lists: &Lists<'_, '_, '_, '_, T>,
    workers: &mut [WorkerBuffers<T>],
    scratches: &mut [GroupScratch<T>],
    parts: &[TaskRows],
    order: &mut RowOrder<T>,
    labels: &mut [u32],
) -> Result<()> {
    let mut rest = shared_labels(labels);
    let tasks = parts.iter().map(move |task| {
        let (labels, others) = rest.split_at(task.kept.min(rest.len()));
        rest = others;
        (task, labels)
    });
    let mut threads = memory::collected(workers.iter_mut().zip(scratches), GROUPS)?;
    match order {
        RowOrder::Sorted(SortedRows { parts: sorted, .. }) => {
            // Threads end together if tasks are small.
            let rows = (tuning::UNIT_VALUES / lists.shared.table.d).clamp(BLOCK, tuning::MOST_OF_UNIT);
            let units = tasks.zip(&*sorted);
            let units = units.flat_map(|((_, labels), sorted)| sorted.units(rows).map(move |unit| (labels, sorted, unit)));
            for_each_task(&mut threads, units, |(worker, scratch), (labels, sorted, unit)| {
                set.run(UnitTask { blocks: Blocks { lists, worker, scratch, labels }, sorted, unit });
            })
        }
        RowOrder::Unsorted(kept, _) => {
            for_each_task(&mut threads, tasks.zip(kept), |(worker, scratch), ((task, labels), sorted)| {
                set.run(SortTask { blocks: Blocks { lists, worker, scratch, labels }, sorted, task });
            })
        }
        RowOrder::Fleeting(rooms) => {
            let mut threads = memory::collected(threads.into_iter().zip(rooms), GROUPS)?;
            for_each_task(&mut threads, tasks, |((worker, scratch), sorted), (task, labels)| {
                set.run(SortTask { blocks: Blocks { lists, worker, scratch, labels }, sorted, task });
            })
        }
    }
}
