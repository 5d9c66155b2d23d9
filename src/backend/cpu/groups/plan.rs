//! What a session decides before its first assign: whether rows are compared with near centroids only, and whether integer copies
//! are compared first.

use super::int_dot::{ByCopies, Copies};
use super::method::{CopiesDecision, MethodDecision, PossibleMethods};
use super::partition::{self, FarApart, Partition};
use super::sorted::{self, Sorted};
use super::{BLOCK, GROUPS, GroupPruning, GroupStep, MOST_GROUPS, UseGroups, UseIntDot};
use crate::backend::cpu::CpuSession;
use crate::backend::cpu::filter::{GROUP, ScoreForm};
use crate::backend::cpu::layout::{MAX_WORK, MemoryOrder, SessionLayout};
use crate::backend::cpu::tasks::TaskRows;
use crate::backend::cpu::tree::{self, CentroidTree, Visits};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::made;
use crate::bounds::int_dot::MOST_FEATURES;
use crate::simd::{DotUnit, InstructionSet};

/// The most groups where differences are computed.
const MOST_SMALL_GROUPS: usize = 256;
/// The fewest rows of a group in a part of the rows, on average.
const FEWEST_IN_GROUP: usize = 32;
/// The scores that are computed for each one that counts, and the places of the last block of a group that are empty.
const MORE_SCORES: f64 = 1.05;
const EMPTY_PLACES: f64 = 20.0;
/// The time of some work, in scores: of a distance between points in the lists, of a copy of a listed centroid, of a distance
/// between a row and a point before the first assign, and of a block of rows.
const OF_LIST: f64 = 4.0;
const OF_COPY: f64 = 10.0;
const OF_GUESS: f64 = 2.0;
const OF_BLOCK: f64 = 250.0;
/// The time to look at a leaf or node of a tree, and what a row in a group takes besides its scores. Both in scores.
const OF_VISIT: f64 = 110.0;
const OF_GROUPED: f64 = 100.0;
/// So many iterations share what is done before the first assign.
const ITERATIONS: f64 = 12.0;
/// Copies about points whose squared distances are this many times smaller leave far fewer rows in doubt.
const FINER: f64 = 4.0;
/// The fewest rows of a group in the sample, on average.
const IN_SAMPLE: usize = 10;
/// Groups of fewer features than this may be split where there are no natural clusters, into at least so many.
const MOST_SPLIT: usize = 16;
const FEWEST_SPLIT: usize = 64;
/// Many groups are not tried where more or less of the scores remain by others.
const PROMISING: std::ops::Range<f64> = 0.15..0.5;
/// Fewer clusters or rows are not worth it.
const FEWEST_CLUSTERS: usize = 16;
const FEWEST_ROWS: usize = 8_192;
/// Fewer rows are, if they have as many values as this.
const FEWEST_VALUES: usize = 1 << 22;
/// The fewest rows of a worker for [`RowOrderStep::ToCopy`].
const FEWEST_TO_COPY: usize = 1_024;
/// Most rows that are sorted together, and the fewest parts of the rows for each worker.
const MOST_ROWS: usize = 16_384;
/// The same where differences are computed.
const MOST_SHORT_ROWS: usize = 65_536;
const PARTS: usize = 4;
/// Where the sorted rows are not kept: the most values that a worker sorts together, and the fewest rows.
const SORTED: usize = 1 << 20;
const LEAST_SORTED: usize = 1_024;
/// There may be fewer parts, down to one for each worker, where they have fewer rows than this.
const LEAST_ROWS: usize = 4_096;
/// A part has at most so many times the work of a task, because most of it is left out. A call can be stopped between parts.
const TIMES_WORK: usize = 4;
/// Most bytes of the sorted rows that are kept, and most of those that lie in large pages.
const MOST_BYTES: usize = 1 << 30;
const FEW_BYTES: usize = 96 << 20;
/// Copies in bytes or words are not worth it for fewer features.
const FEWEST_DOT_FEATURES: usize = 32;

/// The fewest centroids that a row is compared with where copies are worth it. Measured on two cores of a Zen 4.
fn fewest_dot_centroids(d: usize) -> f64 {
    match d {
        ..64 => 128.0,
        64..128 => 48.0,
        128..512 => 8.0,
        512.. => 4.0,
    }
}

/// What an assign does with the order of the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RowOrderStep {
    /// The order of an earlier assign is used again.
    Kept,
    /// A new order is made, and kept.
    ToKeep,
    /// The same, for integer copies. Rows are copied anyway, so an order costs little more.
    ToCopy,
    /// A new order is made for this assign alone.
    Sorted,
}

/// Whether it pays to put rows in the order of their groups and leave out this share of the scores. Measured on two cores of a
/// Zen 4.
pub fn pays(skipped: f64, [k, d]: [usize; 2], rows: RowOrderStep, by_columns: bool) -> bool {
    // For each value and for each row: the time to sort it and to measure its distance, in multiply-adds of the kernel.
    let (of_value, of_row) = match (rows, by_columns) {
        (RowOrderStep::Kept, _) => (14.0, 60.0),
        // A part of the sort, too: most fits have a dozen iterations.
        (RowOrderStep::ToKeep, _) => (22.0, 60.0),
        (RowOrderStep::ToCopy, _) => (12.0, 60.0),
        _ if d <= sorted::FEW => (40.0, 150.0),
        (RowOrderStep::Sorted, false) => (50.0, 150.0),
        (RowOrderStep::Sorted, true) => (100.0, 150.0),
    };
    skipped * k as f64 * d as f64 > of_value * d as f64 + of_row
}

/// Groups that were chosen by a sample of the rows.
pub struct PlannedGroups<T> {
    pub groups: Partition<T>,
    /// For each group, about the largest distance of its rows from its point: that of the sample, with some room.
    pub radii: Vec<f64>,
    /// The share of the scores that remains, with those of empty places.
    share: f64,
    /// About the sum of the squared distances of the sample from the points.
    squares: f64,
}

/// The most groups of a part of the rows.
fn most_groups<T: Float>(d: usize) -> usize {
    if ScoreForm::of::<T>(d) == ScoreForm::Difference { MOST_SMALL_GROUPS } else { MOST_GROUPS }
}

impl SessionLayout {
    /// How rows are put in order. `copied`: whether they have integer copies. `kept`: whether an order is kept without copies.
    fn rows(&self, copied: bool, kept: bool) -> RowOrderStep {
        match (copied, kept) {
            // With few rows, to choose groups takes longer than they save.
            (true, _) if self.n / self.workers >= FEWEST_TO_COPY => RowOrderStep::ToCopy,
            (false, false) => RowOrderStep::Sorted,
            _ => RowOrderStep::ToKeep,
        }
    }

    /// How many rows are sorted together, where this is not limited otherwise. A group should have two blocks of them.
    fn rows_of_part<T: Float>(&self, groups: usize) -> usize {
        let most = if ScoreForm::of::<T>(self.d) == ScoreForm::Difference { MOST_SHORT_ROWS } else { MOST_ROWS };
        let of_worker = self.n / self.workers;
        most.min((of_worker / PARTS).max(of_worker.min(LEAST_ROWS))).max((2 * BLOCK * groups).min(of_worker))
    }

    /// The most rows that are sorted together, but for half of a task.
    fn most_of_part<T: Float>(&self, groups: usize) -> usize {
        let (of_worker, most) = (self.n / self.workers, self.rows_of_part::<T>(groups));
        // About as many, and the same number for each worker, so that they end together.
        let most = of_worker.div_ceil((of_worker + most / 2).checked_div(most).unwrap_or(1).max(1));
        // With one group, nothing is left out.
        let times_work = if groups == 1 { 1 } else { TIMES_WORK };
        most.min(times_work * MAX_WORK / self.d.saturating_mul(self.k).max(1))
    }

    /// The number of parts, each of some tasks. Each worker gets as many, if there are enough for all.
    fn count_of_parts<T: Float>(&self, groups: usize) -> usize {
        let tasks = self.n.div_ceil(self.task).max(1);
        let most = self.most_of_part::<T>(groups).saturating_sub(self.task / 2) / self.task + 1;
        let least = tasks.div_ceil(most);
        if least < self.workers { least } else { least.next_multiple_of(self.workers).min(tasks) }
    }

    /// Bytes of all sorted rows in so many groups. `unit`: that of their integer copies, if they have some.
    fn sorted_bytes<T: Float>(&self, unit: Option<DotUnit>, groups: usize) -> usize {
        let (count, d) = (self.count_of_parts::<T>(groups), self.d);
        let longest = self.n.min(self.n.div_ceil(self.task).div_ceil(count) * self.task).max(1);
        let layout = Sorted::<T>::layout([true, unit.is_some(), self.memory_order == MemoryOrder::Columns], d);
        let of_part = Sorted::<T>::bytes([d, longest, groups], layout, unit.map(|unit| unit.lanes(d)));
        count.saturating_mul(of_part)
    }

    /// The most bytes of sorted rows and of the centroids near their groups.
    pub fn bytes_of_groups<T: Float>(&self, tries: PossibleMethods) -> f64 {
        let PossibleMethods { groups, copies, .. } = tries;
        if !groups && !copies {
            return 0.0;
        }
        let (d, k, size) = (self.d as f64, self.k as f64, size_of::<T>() as f64);
        let count = if groups { most_groups::<T>(self.d) } else { 1 };
        let units = DotUnit::detect().map(|unit| unit.filter(|_| copies));
        // The rows are kept if there is room. Many groups take more room than few.
        let sorted = [None, units[0], units[1]].into_iter().filter(|unit| self.sorted_bytes::<T>(*unit, 1) <= MOST_BYTES);
        let kept = sorted.map(|unit| self.sorted_bytes::<T>(unit, count).min(MOST_BYTES)).max().unwrap_or(0) as f64;
        let at_a_time = self.workers as f64 * (SORTED.max(LEAST_SORTED * self.d) as f64 * size + (4 << 20) as f64);
        let count = count as f64;
        let lists = count * (k / GROUP as f64 + 2.0) * 24.0 + k * (d * size + 64.0);
        kept.max(at_a_time) + lists + if copies { ByCopies::most_bytes(count * k, 2.0 * d) } else { 0.0 }
    }

    /// What a session tries for so many kept rows.
    pub fn tries<T: Float>(&self, kept: usize, set: InstructionSet) -> PossibleMethods {
        let (d, k, form) = (self.d, self.k, ScoreForm::of::<T>(self.d));
        let tree = tree::pays(k, d).then(|| tree::is_certain(k, d) || kept < FEWEST_ROWS);
        let is_small = kept < FEWEST_ROWS && kept.saturating_mul(d) < FEWEST_VALUES;
        if is_small || tree == Some(true) {
            return PossibleMethods { form, groups: false, copies: false, tree };
        }
        let fits = |unit| self.sorted_bytes::<T>(unit, 1) <= MOST_BYTES;
        let suits = form == ScoreForm::Product && (FEWEST_DOT_FEATURES..=MOST_FEATURES).contains(&d);
        let enough = k as f64 >= fewest_dot_centroids(d) && set == InstructionSet::detect();
        let copies = suits && enough && DotUnit::detect()[0].is_some_and(|unit| fits(Some(unit)));
        let rows = self.rows(copies, fits(None));
        let groups = k >= FEWEST_CLUSTERS && self.n.div_ceil(self.workers) >= 2 * FEWEST_IN_GROUP;
        PossibleMethods {
            form,
            groups: groups && pays(1.0, [k, d], rows, self.memory_order == MemoryOrder::Columns),
            copies,
            tree,
        }
    }
}

impl<T: Float> CpuSession<'_, T> {
    /// The tasks, a few at a time.
    fn parts(&self, groups: usize) -> Result<Vec<TaskRows>> {
        let (count, tasks) = (self.layout.count_of_parts::<T>(groups), self.tasks.len());
        let parts = (0..count.min(tasks)).map(|part| {
            let tasks = &self.tasks[part * tasks / count..(part + 1) * tasks / count];
            let (first, last) = (&tasks[0], &tasks[tasks.len() - 1]);
            TaskRows {
                physical: first.physical.start..last.physical.end,
                first: first.first,
                kept: tasks.iter().map(|task| task.kept).sum(),
                positive: tasks.iter().map(|task| task.positive).sum(),
            }
        });
        memory::collected(parts, GROUPS)
    }

    /// Prepares an assign by these centroids. Without memory for it, all centroids are compared.
    pub(in crate::backend::cpu) fn prepare_groups(&mut self, centroids: &[T]) -> Result<()> {
        let planned = match &self.pruning {
            Some(pruning) if pruning.is_outdated() => self.plan_again(centroids),
            None if !self.decided => {
                self.plan_pruning(centroids).map(|(pruning, plan)| (self.pruning, self.plan) = (pruning, plan))
            }
            _ => Ok(()),
        };
        self.decided = true;
        match planned {
            Err(KMeansError::NoMemory { .. }) => {
                self.plan = MethodDecision::NoMemory;
                self.pruning = None;
            }
            planned => planned?,
        }
        Ok(())
    }

    /// Makes other groups, as many as suit these centroids, unless a tree does better than the last groups did.
    fn plan_again(&mut self, centroids: &[T]) -> Result<()> {
        let (Some(pruning), threads) = (&self.pruning, self.workers.len()) else { return Ok(()) };
        if let Some((_, last)) = pruning.shares
            && self.suits_tree(centroids, last)?
        {
            (self.pruning, self.plan) = (None, MethodDecision::Tree);
            return Ok(());
        }
        let planned = match self.use_groups {
            UseGroups::Auto => {
                let rows = self.layout.rows(pruning.by_copies.is_some(), !pruning.kept.is_empty());
                self.plan_groups(centroids, rows, self.sample()?)?.0
            }
            _ => {
                let groups = Partition::new(centroids, self.d, pruning.groups.count(), self.set, threads)?;
                Some(self.planned(groups, centroids, self.sample()?)?)
            }
        };
        let (most, known) = (pruning.most, pruning.known);
        match (planned, &mut self.pruning) {
            (Some(planned), Some(pruning)) if planned.groups.count() <= most => pruning.take_groups(planned),
            // There is no room for more groups, or copies alone may pay.
            _ => {
                self.pruning = None;
                (self.pruning, self.plan) = self.plan_pruning(centroids)?;
                self.pruning.iter_mut().for_each(|pruning| pruning.known = known);
            }
        }
        Ok(())
    }

    /// Decides before the first assign whether rows are compared with near centroids only, and whether by integer copies first.
    fn plan_pruning(&self, centroids: &[T]) -> Result<(Option<GroupPruning<T>>, MethodDecision)> {
        let d = self.d;
        let is_asked = self.use_groups != UseGroups::Auto || self.use_int_dot != UseIntDot::Auto;
        let is_tried = is_asked || self.tries.groups || self.tries.copies;
        let is_small = self.labels.is_empty() || !is_tried;
        let is_forced = self.use_groups == UseGroups::Tree && tree::is_possible(d);
        if tree::is_certain(self.k, d) || is_small && tree::pays(self.k, d) || is_forced {
            return Ok((None, MethodDecision::Tree));
        }
        if is_small {
            return Ok((None, MethodDecision::ALL));
        }
        let sample = self.sample()?;
        let by_columns = self.part.features.is_by_columns();
        let fits = |layout, lanes, groups| -> Result<bool> {
            let parts = self.parts(groups)?;
            let bytes = parts.iter().map(|part| Sorted::<T>::bytes([d, part.physical.len(), groups], layout, lanes));
            Ok(bytes.fold(0, usize::saturating_add) <= MOST_BYTES)
        };
        let may_keep = self.use_groups != UseGroups::AlwaysSort;
        let plain_fits =
            |groups| -> Result<bool> { Ok(may_keep && fits(Sorted::<T>::layout([true, false, by_columns], d), None, groups)?) };
        let copies_fit =
            |unit: DotUnit, groups| fits(Sorted::<T>::layout([true, true, by_columns], d), Some(unit.lanes(d)), groups);
        let mut copies = self.plan_copies().filter(|_| may_keep);
        if let Some(Copies { unit, .. }) = copies
            && !copies_fit(unit, 1)?
        {
            copies = None;
        }
        let rows = self.layout.rows(copies.is_some(), plain_fits(1)?);
        let (mut found, mut share) = self.plan_groups(centroids, rows, sample)?;
        if self.suits_tree(centroids, found.as_ref().map_or(1.0, |found| found.share))? {
            return Ok((None, MethodDecision::Tree));
        }
        // How many groups there are, and with how many centroids a row is compared: at least with one panel, whose places may
        // not all have a centroid.
        let extent = |found: &Option<PlannedGroups<T>>| {
            let (count, share) = found.as_ref().map_or((1, 1.0), |found| (found.groups.count(), found.share));
            (count, (share * self.k as f64).max(GROUP as f64))
        };
        let has_room = |unit: DotUnit, (count, compared): (usize, f64)| -> Result<bool> {
            Ok(ByCopies::has_room(count as f64 * compared, unit.lanes(d)) && copies_fit(unit, count)?)
        };
        let suit = |unit, (count, compared)| -> Result<bool> {
            let many = self.use_int_dot != UseIntDot::Auto || compared >= fewest_dot_centroids(d);
            Ok(many && has_room(unit, (count, compared))?)
        };
        let mut left_out = None;
        if let Some(Copies { unit, .. }) = copies
            && !suit(unit, extent(&found))?
        {
            left_out = copies.take();
        }
        let is_kept = plain_fits(extent(&found).0)? || copies.is_some();
        let without = self.layout.rows(false, is_kept);
        if copies.is_none() && rows != without && rows != RowOrderStep::Sorted {
            // Groups that were chosen for copies may not pay without. Then all rows together may have copies.
            (found, share) = self.plan_groups(centroids, without, sample)?;
            if let Some(Copies { unit, .. }) = left_out
                && found.is_none()
                && suit(unit, extent(&None))?
            {
                copies = left_out;
            }
        }
        let (count, compared) = extent(&found);
        let mut plan = match (&found, share) {
            (Some(found), Some(remains)) => MethodDecision::Groups { groups: found.groups.count(), remains, copies: None },
            _ => MethodDecision::All { remains: share, copies: None },
        };
        let PlannedGroups { groups, radii, .. } = match found {
            Some(found) => found,
            None if copies.is_some() => PlannedGroups {
                groups: Partition::new(centroids, d, 1, self.set, 1)?,
                radii: memory::filled(1, f64::INFINITY, GROUPS)?,
                share: 1.0,
                squares: 0.0,
            },
            None => return Ok((None, plan)),
        };
        if let (Some(copies), UseIntDot::Auto) = (&mut copies, self.use_int_dot)
            && let [_, Some(words)] = DotUnit::detect()
            && has_room(words, (count, compared))?
            && self.suits_words(&groups, compared, sample)?
        {
            copies.unit = words;
        }
        let layout = Sorted::<T>::layout([true, copies.is_some(), by_columns], d);
        let count = groups.count();
        let parts = self.parts(count)?;
        let mut pruning = GroupPruning {
            groups,
            radii,
            most: count,
            known: false,
            shares: None,
            assigns: 0,
            patience: 1,
            parts,
            kept: Vec::new(),
            is_sorted: false,
            sorted_radii: Vec::new(),
            by_copies: None,
            scratches: Vec::new(),
        };
        if is_kept {
            let lanes = copies.as_ref().map(|copies| copies.unit.lanes(d));
            let weighted = self.part.weights.is_some();
            let shapes = pruning.parts.iter().map(|part| [d, part.physical.len(), count]);
            let bytes = shapes.clone().map(|shape| Sorted::<T>::bytes(shape, layout, lanes));
            let bytes = bytes.fold(0, usize::saturating_add);
            let few = bytes <= FEW_BYTES;
            let sorted = |shape| Sorted::new(shape, layout, lanes, [weighted, few]);
            // Threads share the work where memory that was in use before is set to zeros.
            let touched = if few && !layout.has_columns() { 0 } else { bytes };
            match made([self.workers.len(), touched], shapes, GROUPS, sorted) {
                Err(KMeansError::NoMemory { .. }) if count > 1 => return Ok((Some(pruning), plan)),
                kept => pruning.kept = kept?,
            }
        }
        if let Some(copies) = copies {
            if let MethodDecision::Groups { copies: copied, .. } | MethodDecision::All { copies: copied, .. } = &mut plan {
                *copied = Some(CopiesDecision { unit: copies.unit, given_up: false });
            }
            pruning.by_copies = Some(ByCopies::new(copies, count)?);
        }
        Ok((Some(pruning), plan))
    }

    /// The groups, if rows should be compared with near centroids only. The share of the scores of a sample that remains by
    /// groups, if a sample was looked at.
    fn plan_groups(
        &self,
        centroids: &[T],
        rows: RowOrderStep,
        sample: &[T],
    ) -> Result<(Option<PlannedGroups<T>>, Option<f64>)> {
        let (n, k, d, by_columns) = (self.labels.len(), self.k, self.d, self.part.features.is_by_columns());
        let (threads, is_kept) = (self.workers.len(), rows != RowOrderStep::Sorted);
        let of_worker = self.part.features.n_rows().div_ceil(self.workers.len());
        let together = if is_kept { of_worker } else { self.sorted_together(of_worker) };
        let most = most_groups::<T>(d).min(together / FEWEST_IN_GROUP);
        match self.use_groups {
            UseGroups::Never | UseGroups::Tree => return Ok((None, None)),
            UseGroups::Always => {
                let groups = Partition::new(centroids, d, MOST_GROUPS.min(k / 3), self.set, threads)?;
                return Ok((Some(self.planned(groups, centroids, sample)?), Some(1.0)));
            }
            UseGroups::AlwaysSort => {
                let picked = FarApart::new(sample, d, (sample.len() / d).clamp(1, FEWEST_SPLIT), self.set, threads)?;
                let groups = Partition::of_rows(picked.means(sample, d)?, centroids, d, self.set, threads)?;
                return Ok((Some(self.planned(groups, centroids, sample)?), Some(1.0)));
            }
            UseGroups::Auto => {}
        }
        if !self.tries.groups || most < 2 || !pays(1.0, [k, d], rows, by_columns) {
            return Ok((None, None));
        }
        let mut best: Option<(f64, PlannedGroups<T>)> = None;
        let mut look_at = |groups: Partition<T>| -> Result<f64> {
            let of_rows = !groups.are_of_centroids;
            let mut planned = self.planned(groups, centroids, sample)?;
            let (groups, panels) = (planned.groups.count(), (planned.groups.order.len() / GROUP) as f64);
            let in_part = if is_kept { self.layout.rows_of_part::<T>(groups) } else { together } as f64 / groups as f64;
            let (groups, times) = (groups as f64, if is_kept || !of_rows { ITERATIONS } else { 1.0 });
            let of_lists = groups * (panels * OF_LIST + planned.share * k as f64 * OF_COPY) / n as f64;
            planned.share *= MORE_SCORES + EMPTY_PLACES / in_part;
            let share = planned.share;
            let cost = share + (of_lists + groups * OF_GUESS / times + OF_BLOCK / in_part) / k as f64;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, planned));
            }
            Ok(share)
        };
        let [few, many] = partition::few_and_many(k, most);
        let mut share = look_at(Partition::new(centroids, d, few, self.set, threads)?)?;
        // A group of rows has some rows of the sample.
        let most_seen = most.min(sample.len() / d / IN_SAMPLE).max(1);
        let picked = FarApart::new(sample, d, most_seen, self.set, threads)?;
        let of_rows = match picked.natural() {
            // Without natural clusters, smaller groups of many features leave out no more.
            None if d >= MOST_SPLIT => None,
            None => Some(FarApart::new(sample, d, most_seen.min(k.max(FEWEST_SPLIT)), self.set, threads)?),
            Some(natural) => Some(FarApart::new(sample, d, natural, self.set, threads)?),
        };
        if let Some(picked) = of_rows {
            share = share.min(look_at(Partition::of_rows(picked.means(sample, d)?, centroids, d, self.set, threads)?)?);
        }
        // Many groups leave out more than few, but only where few leave out something, and they take longer.
        if many > few && (PROMISING.contains(&share) || d < MOST_SPLIT && share < PROMISING.end) {
            look_at(Partition::new(centroids, d, many, self.set, threads)?)?;
        }
        let share = best.as_ref().map(|(_, planned)| planned.share);
        let mut found = best.map(|(_, planned)| planned);
        if let Some(PlannedGroups { share, squares, .. }) = found
            && !pays(1.0 - share, [k, d], rows, by_columns)
        {
            let one = || self.planned(Partition::new(centroids, d, 1, self.set, threads)?, centroids, sample);
            if rows != RowOrderStep::ToCopy || share >= 1.0 || squares * FINER > one()?.squares {
                found = None;
            }
        }
        Ok((found, share))
    }

    /// Whether a sample says that a tree of the centroids takes less time than groups that leave this share of the scores.
    fn suits_tree(&self, centroids: &[T], remains: f64) -> Result<bool> {
        if self.use_groups != UseGroups::Auto || !tree::pays(self.k, self.d) {
            return Ok(false);
        }
        let (tree, sample) = (CentroidTree::new(centroids, self.d)?, self.sample()?);
        let visits = self.set.run(Visits { tree: &tree, centroids, rows: sample }) as f64;
        let rows = (sample.len() / self.d).max(1) as f64;
        Ok(visits * OF_VISIT < rows * (remains * self.k as f64 + OF_GROUPED))
    }

    /// These groups, and what a sample of the rows says of them.
    fn planned(&self, groups: Partition<T>, centroids: &[T], sample: &[T]) -> Result<PlannedGroups<T>> {
        let step = GroupStep::new(&groups, centroids, false, None, self.set, self.workers.len())?;
        let (radii, [share, squares]) = self.look_at_sample(&step, sample)?;
        Ok(PlannedGroups { groups, radii, share, squares })
    }

    /// Integer copies, if they should be compared first.
    fn plan_copies(&self) -> Option<Copies> {
        if ScoreForm::of::<T>(self.d) != ScoreForm::Product {
            return None;
        }
        let unit = match self.use_int_dot {
            UseIntDot::Auto if self.tries.copies => DotUnit::detect()[0],
            UseIntDot::Auto | UseIntDot::Never => None,
            UseIntDot::Always(unit) | UseIntDot::Twice(unit) => Some(unit.or_emulated()),
        };
        Copies::new(unit?, &self.statistics, self.d)
    }

    /// How many of these rows a worker sorts together.
    pub(super) fn sorted_together(&self, longest: usize) -> usize {
        let stride = self.workers[0].tile.stride;
        match self.use_groups {
            UseGroups::AlwaysSort => 2 * stride,
            _ => (SORTED / self.d).max(LEAST_SORTED).next_multiple_of(stride),
        }
        .min(longest)
    }
}
