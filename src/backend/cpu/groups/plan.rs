//! What a session decides before its first assign: whether rows are compared with near centroids only, and whether integer copies
//! are compared first.

use super::guess::Guess;
use super::int_dot::{ByCopies, Copies};
use super::method::{Copied, LabelPlan, Tries};
use super::partition::Groups;
use super::sorted::{self, Sorted};
use super::{BLOCK, GROUPS, GroupPruning, GroupStep, MOST_GROUPS, UseGroups, UseIntDot};
use crate::backend::cpu::CpuSession;
use crate::backend::cpu::filter::{Form, GROUP};
use crate::backend::cpu::layout::{Layout, Lie, MAX_WORK};
use crate::backend::cpu::tasks::TaskRows;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::bounds::int_dot::MOST_FEATURES;
use crate::input::tile::Tile;
use crate::simd::{DotUnit, InstructionSet};

/// The most groups where differences are computed: blocks are cheap, and small groups leave out more.
const MOST_SMALL_GROUPS: usize = 256;
/// Rows of the sample, but no more values than this, unless its rows are very few.
const SAMPLE: usize = 2_048;
const SAMPLE_VALUES: usize = 1 << 19;
const FEWEST_SAMPLED: usize = 256;
/// So many rows of the sample lie side by side. Where features are columns, they come together.
const SIDE_BY_SIDE: usize = 4;
/// The scores that are computed for each one that counts: the last block of a group is not full.
const HALF_FULL: f64 = 1.15;
/// Fewer clusters or rows are not worth it.
const FEWEST_CLUSTERS: usize = 16;
const FEWEST_ROWS: usize = 4 * SAMPLE;
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
/// Most bytes of the sorted rows that are kept.
const MOST_BYTES: usize = 1 << 30;
/// Copies in bytes or words are not worth it for fewer features.
const FEWEST_DOT_FEATURES: usize = 32;
/// Copies in bytes are not worth it for fewer features.
const FEWEST_BYTES: usize = 64;

/// The share of rows in doubt by copies in bytes, for each unit of their coarseness.
const DOUBT: f64 = 5.0;
/// The time of a closer look at a row with a few candidates, in products of bytes, and that to load a row of one feature.
const CLOSER: f64 = 200.0;
const CLOSER_ROW: f64 = 4_096.0;

/// The fewest centroids that a row is compared with where copies are worth it. Measured on two cores of a Zen 4.
fn fewest_dot_centroids(d: usize) -> f64 {
    match d {
        ..64 => 128.0,
        64..128 => 48.0,
        128..512 => 8.0,
        512.. => 4.0,
    }
}

/// The most groups of a part of the rows.
fn most_groups<T: Float>(d: usize) -> usize {
    if Form::of::<T>(d) == Form::Difference { MOST_SMALL_GROUPS } else { MOST_GROUPS }
}

/// What an assign does with the order of the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The order of an earlier assign is used again.
    Kept,
    /// A new order is made, and kept.
    ToKeep,
    /// A new order is made for this assign alone.
    Sorted,
}

/// Whether it pays to put rows in the order of their groups and leave out this share of the scores. Measured on two cores of a
/// Zen 4.
pub fn pays(skipped: f64, [k, d]: [usize; 2], rows: Rows, by_columns: bool) -> bool {
    // For each value and for each row: the time to sort it and to measure its distance, in multiply-adds of the kernel.
    let (of_value, of_row) = match (rows, by_columns) {
        (Rows::Kept, _) => (14.0, 60.0),
        // A part of the sort, too: most fits have a dozen iterations.
        (Rows::ToKeep, _) => (22.0, 60.0),
        _ if d <= sorted::FEW => (40.0, 150.0),
        (Rows::Sorted, false) => (50.0, 150.0),
        (Rows::Sorted, true) => (100.0, 150.0),
    };
    skipped * k as f64 * d as f64 > of_value * d as f64 + of_row
}

impl Layout {
    /// The most rows that are sorted together, but for half of a task. `times_work`: as [`TIMES_WORK`].
    fn most_of_part<T: Float>(&self, times_work: usize) -> usize {
        let most = if Form::of::<T>(self.d) == Form::Difference { MOST_SHORT_ROWS } else { MOST_ROWS };
        let of_worker = self.n / self.workers;
        let most = most.min((of_worker / PARTS).max(of_worker.min(LEAST_ROWS)));
        // About as many, and the same number for each worker, so that they end together.
        let most = of_worker.div_ceil((of_worker + most / 2).checked_div(most).unwrap_or(1).max(1));
        most.min(times_work * MAX_WORK / self.d.saturating_mul(self.k).max(1))
    }

    /// The rows that are sorted together, where all rows are kept.
    pub fn longest_part<T: Float>(&self) -> usize {
        let tasks = self.most_of_part::<T>(TIMES_WORK).saturating_sub(self.task / 2) / self.task + 1;
        (tasks * self.task).min(self.n)
    }

    /// Bytes of all sorted rows. `unit`: that of their integer copies, if they have some.
    pub fn sorted_bytes<T: Float>(&self, unit: Option<DotUnit>) -> usize {
        let (longest, d) = (self.longest_part::<T>().max(1), self.d);
        let layout = Sorted::<T>::layout([true, unit.is_some(), self.lie == Lie::Columns], d);
        let of_part = Sorted::<T>::bytes([d, longest, most_groups::<T>(d)], layout, unit.map(|unit| unit.lanes(d)));
        self.n.div_ceil(longest).saturating_mul(of_part)
    }

    /// The most bytes of sorted rows and of the centroids near their groups.
    pub fn bytes_of_groups<T: Float>(&self, tries: Tries) -> f64 {
        let Tries { groups, copies, .. } = tries;
        if !groups && !copies {
            return 0.0;
        }
        let (d, k, size) = (self.d as f64, self.k as f64, size_of::<T>() as f64);
        let units = DotUnit::detect().map(|unit| unit.filter(|_| copies));
        let sorted = [None, units[0], units[1]].map(|unit| self.sorted_bytes::<T>(unit));
        let kept = sorted.into_iter().filter(|bytes| *bytes <= MOST_BYTES).max().unwrap_or(0) as f64;
        let at_a_time = self.workers as f64 * (SORTED.max(LEAST_SORTED * self.d) as f64 * size + (4 << 20) as f64);
        let count = (k / 3.0).clamp(1.0, most_groups::<T>(self.d) as f64);
        let lists = count * (k / GROUP as f64 + 2.0) * 24.0 + k * (d * size + 64.0);
        kept.max(at_a_time) + lists + if copies { ByCopies::most_bytes(count * k, 2.0 * d) } else { 0.0 }
    }

    /// What a session tries for so many kept rows.
    pub fn tries<T: Float>(&self, kept: usize, set: InstructionSet) -> Tries {
        let (d, k, form) = (self.d, self.k, Form::of::<T>(self.d));
        if kept < FEWEST_ROWS {
            return Tries { form, groups: false, copies: false };
        }
        let fits = |unit| self.sorted_bytes::<T>(unit) <= MOST_BYTES;
        let suits = form == Form::Product && (FEWEST_DOT_FEATURES..=MOST_FEATURES).contains(&d);
        let enough = k as f64 >= fewest_dot_centroids(d) && set == InstructionSet::detect();
        let copies = suits && enough && DotUnit::detect()[0].is_some_and(|unit| fits(Some(unit)));
        let rows = if copies || fits(None) { Rows::ToKeep } else { Rows::Sorted };
        // A group should have two blocks or more.
        let groups = k >= FEWEST_CLUSTERS && self.longest_part::<T>() >= 4 * BLOCK;
        Tries { form, groups: groups && pays(1.0, [k, d], rows, self.lie == Lie::Columns), copies }
    }
}

impl<T: Float> CpuSession<'_, T> {
    /// The tasks, a few at a time. `times_work`: as [`TIMES_WORK`].
    fn parts(&self, times_work: usize) -> Result<Vec<TaskRows>> {
        let most = self.layout.most_of_part::<T>(times_work);
        let mut parts: Vec<TaskRows> = memory::with_room(self.tasks.len(), GROUPS)?;
        for task in &self.tasks {
            match parts.last_mut() {
                Some(part) if part.physical.len() + task.physical.len() / 2 <= most => {
                    part.physical.end = task.physical.end;
                    part.kept += task.kept;
                    part.positive += task.positive;
                }
                _ => parts.push(task.clone()),
            }
        }
        Ok(parts)
    }

    /// Prepares an assign by these centroids. Without memory for it, all centroids are compared.
    pub(in crate::backend::cpu) fn prepare_groups(&mut self, centroids: &[T]) -> Result<()> {
        let planned = match &mut self.pruning {
            Some(pruning) => pruning.regroup(centroids, self.d),
            None if self.decided => Ok(()),
            None => self.plan_pruning(centroids).map(|(pruning, plan)| (self.pruning, self.plan) = (pruning, plan)),
        };
        self.decided = true;
        match planned {
            Err(KMeansError::NoMemory { .. }) => {
                self.plan = LabelPlan::NoMemory;
                self.pruning = None;
            }
            planned => planned?,
        }
        Ok(())
    }

    /// Decides before the first assign whether rows are compared with near centroids only, and whether by integer copies first.
    fn plan_pruning(&self, centroids: &[T]) -> Result<(Option<GroupPruning<T>>, LabelPlan)> {
        let d = self.d;
        let is_asked = self.use_groups != UseGroups::Auto || self.use_int_dot != UseIntDot::Auto;
        if self.labels.is_empty() || (self.labels.len() < FEWEST_ROWS && !is_asked) {
            return Ok((None, LabelPlan::ALL));
        }
        let parts = self.parts(TIMES_WORK)?;
        let longest = parts.iter().map(|part| part.physical.len()).max().unwrap_or(0);
        let (most, by_columns) = (most_groups::<T>(d), self.part.features.is_by_columns());
        let fits = |layout, lanes| {
            let bytes = parts.iter().map(|part| Sorted::<T>::bytes([d, part.physical.len(), most], layout, lanes));
            bytes.fold(0, usize::saturating_add) <= MOST_BYTES
        };
        let may_keep = self.use_groups != UseGroups::AlwaysSort;
        let plain_fits = may_keep && fits(Sorted::<T>::layout([true, false, by_columns], d), None);
        let copies_fit = |unit: DotUnit| fits(Sorted::<T>::layout([true, true, by_columns], d), Some(unit.lanes(d)));
        let copies = self.plan_copies().filter(|copies| may_keep && copies_fit(copies.unit));
        let may_be_kept = plain_fits || copies.is_some();
        let (mut found, mut share) = self.plan_groups(centroids, longest, may_be_kept)?;
        let (groups, remains) = (found.as_ref().map_or(1, Groups::count), found.as_ref().and(share).unwrap_or(1.0));
        // At least one panel, whose places may not all have a centroid.
        let compared = (remains * self.k as f64).max(GROUP as f64);
        let has_room = |unit: DotUnit| ByCopies::has_room(groups as f64 * compared, unit.lanes(d)) && copies_fit(unit);
        let mut copies = copies.filter(|copies| {
            has_room(copies.unit) && (self.use_int_dot != UseIntDot::Auto || compared >= fewest_dot_centroids(d))
        });
        let is_kept = plain_fits || copies.is_some();
        if may_be_kept && !is_kept {
            (found, share) = self.plan_groups(centroids, longest, false)?;
        }
        let mut plan = match (&found, share) {
            (Some(groups), Some(remains)) => LabelPlan::Groups { groups: groups.count(), remains, copies: None },
            _ => LabelPlan::All { remains: share, copies: None },
        };
        let groups = match found {
            Some(groups) => groups,
            None if copies.is_some() => Groups::new(centroids, d, 1)?,
            None => return Ok((None, plan)),
        };
        if let (Some(copies), UseIntDot::Auto) = (&mut copies, self.use_int_dot)
            && let [_, Some(words)] = DotUnit::detect()
            && has_room(words)
            && self.suits_words(&GroupStep::new(&groups, centroids, false, self.workers.len())?, compared)?
        {
            copies.unit = words;
        }
        let layout = Sorted::<T>::layout([true, copies.is_some(), by_columns], d);
        // With one group, nothing is left out.
        let parts = if groups.count() == 1 { self.parts(1)? } else { parts };
        let mut pruning = GroupPruning {
            groups,
            known: false,
            shares: None,
            assigns: 0,
            patience: 1,
            parts,
            kept: Vec::new(),
            is_sorted: false,
            by_copies: None,
            scratches: Vec::new(),
        };
        if is_kept {
            let count = pruning.groups.count();
            let lanes = copies.as_ref().map(|copies| copies.unit.lanes(d));
            let weighted = self.part.weights.is_some();
            let shapes = pruning.parts.iter().map(|part| [d, part.physical.len(), count]);
            let sorted = shapes.map(|shape| Sorted::new(shape, layout, lanes, weighted));
            match memory::try_collected(sorted, GROUPS) {
                Err(KMeansError::NoMemory { .. }) if count > 1 => return Ok((Some(pruning), plan)),
                kept => pruning.kept = kept?,
            }
        }
        if let Some(copies) = copies {
            if let LabelPlan::Groups { copies: copied, .. } | LabelPlan::All { copies: copied, .. } = &mut plan {
                *copied = Some(Copied { unit: copies.unit, given_up: false });
            }
            pruning.by_copies = Some(ByCopies::new(copies, pruning.groups.count())?);
        }
        Ok((Some(pruning), plan))
    }

    /// The groups, if rows should be compared with near centroids only. The share of the scores of a sample that remains by
    /// groups, if a sample was looked at. `longest`: the rows of the longest part. `is_kept`: whether sorted rows are kept.
    fn plan_groups(&self, centroids: &[T], longest: usize, is_kept: bool) -> Result<(Option<Groups<T>>, Option<f64>)> {
        let together = if is_kept { longest } else { self.sorted_together(longest) };
        let (k, d, by_columns) = (self.k, self.d, self.part.features.is_by_columns());
        // A block takes as long if it is not full. So a group should have two or more.
        let most = most_groups::<T>(d).min(together / (2 * BLOCK));
        let rows = if is_kept { Rows::ToKeep } else { Rows::Sorted };
        match self.use_groups {
            UseGroups::Never => Ok((None, None)),
            UseGroups::Always | UseGroups::AlwaysSort => Ok((Some(Groups::new(centroids, d, MOST_GROUPS)?), Some(1.0))),
            _ if !self.tries.groups || most < 2 || !pays(1.0, [k, d], rows, by_columns) => Ok((None, None)),
            UseGroups::Auto => {
                let groups = Groups::new(centroids, d, most)?;
                let share = self.share_of_sample(&GroupStep::new(&groups, centroids, false, self.workers.len())?)? * HALF_FULL;
                Ok((Some(groups).filter(|_| pays(1.0 - share, [k, d], rows, by_columns)), Some(share)))
            }
        }
    }

    /// Integer copies, if they should be compared first.
    fn plan_copies(&self) -> Option<Copies> {
        if Form::of::<T>(self.d) != Form::Product {
            return None;
        }
        let unit = match self.use_int_dot {
            UseIntDot::Auto if self.tries.copies => DotUnit::detect()[0],
            UseIntDot::Auto | UseIntDot::Never => None,
            UseIntDot::Always(unit) | UseIntDot::Twice(unit) => Some(unit.or_emulated()),
        };
        Copies::new(unit?, &self.statistics, self.d)
    }

    /// Whether copies in bytes leave so much doubt that copies in words, with half of the products in an instruction, take less
    /// time. `compared`: the centroids that a row is compared with.
    fn suits_words(&self, step: &GroupStep<'_, T>, compared: f64) -> Result<bool> {
        let d = self.d as f64;
        let (mut coarseness, mut count) = (0.0, 0.0);
        self.visit_sample(step, |_, largest, square| {
            // What rounding leaves, over what remains of the row: scores of centroids differ by the square root of d less than
            // norms do.
            if square > 0.0 && square.is_finite() {
                coarseness += largest / 127.0 * (d / 12.0).sqrt() * d.sqrt() / square.sqrt();
                count += 1.0;
            }
        })?;
        let doubt = (DOUBT * coarseness / f64::max(count, 1.0)).min(1.0);
        // A closer look, and loading the row for it, in products of bytes.
        Ok(self.d < FEWEST_BYTES || compared < doubt * (CLOSER + CLOSER_ROW / d))
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

    /// The share of the scores that rows of a sample need.
    fn share_of_sample(&self, step: &GroupStep<'_, T>) -> Result<f64> {
        // The largest distance of each group's rows so far, and their number.
        let mut seen = memory::filled(step.groups(), (0.0f64, 0usize), GROUPS)?;
        self.visit_sample(step, |group, _, square| {
            let (most, count) = &mut seen[group];
            *most = most.max(step.most(&[square]));
            *count += 1;
        })?;
        let sampled: usize = seen.iter().map(|(_, count)| count).sum();
        if sampled == 0 {
            return Ok(1.0);
        }
        let listed = seen.iter().enumerate().map(|(group, (most, count))| {
            // With few features, rows are much nearer to their labels than to the ends of their group.
            let own = (Form::of::<T>(self.d) == Form::Difference).then_some(most / 2.0);
            (step.listed(group, *most, own).len() * count) as f64
        });
        Ok(listed.sum::<f64>() / (step.panels() * sampled) as f64)
    }

    /// Calls `visit` for each row of a sample: with the group whose point is nearest, the largest difference between their
    /// features, and the sum of the squared differences.
    fn visit_sample(&self, step: &GroupStep<'_, T>, mut visit: impl FnMut(usize, f64, f64)) -> Result<()> {
        let (stride, n) = (self.workers[0].tile.stride, self.part.features.n_rows());
        let sample = (SAMPLE_VALUES / self.d).clamp(FEWEST_SAMPLED, SAMPLE);
        let apart = (self.labels.len() / sample * SIDE_BY_SIDE).max(SIDE_BY_SIDE);
        let rows = match self.part.selection.is_all() {
            true => memory::collected((0..n).step_by(apart).flat_map(|row| row..n.min(row + SIDE_BY_SIDE)), GROUPS)?,
            false => {
                let kept = (0..n).filter(|row| self.part.selection.contains(*row)).enumerate();
                memory::collected(kept.filter(|(i, _)| i % apart < SIDE_BY_SIDE).map(|(_, row)| row), GROUPS)?
            }
        };
        let mut tile = Tile::new(self.d, stride)?;
        let mut groups = memory::zeroed::<u8>(stride, GROUPS)?;
        for rows in rows.chunks(stride) {
            tile.load_list(&self.part, self.statistics.weights, rows);
            self.set.run(Guess { step, tile: &tile, groups: &mut groups });
            for r in 0..tile.rows {
                let (group, mut largest, mut square) = (usize::from(groups[r]), 0.0f64, 0.0);
                for (f, m) in step.groups.point(group).iter().enumerate() {
                    let t = tile.x[f * tile.stride + r].to_f64() - m.to_f64();
                    (largest, square) = (largest.max(t.abs()), square + t * t);
                }
                visit(group, largest, square);
            }
        }
        Ok(())
    }
}
