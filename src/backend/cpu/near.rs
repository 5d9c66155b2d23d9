//! Assigns that compare rows only with the centroids near them.
//!
//! ```text
//! at the first assign, and again when less is left out than before:
//!   groups of centroids that lie together, and for each group a point m in its middle          (`near/groups.rs`)
//!   each task's rows in the order of the groups of their labels, in blocks of 64 rows of one group      (`near/sorted.rs`)
//!   for each block:  R = the largest distance to m
//! each assign:
//!   for each group:  all centroids, a few at a time, in the order of their distance from m             (`near/step.rs`)
//!   for each block:  U = the largest distance to a centroid
//!     compared are the centroids that are at most R + U from m: the first ones of the order            (`near/task.rs`)
//! ```
//! Points to note: (1) `src/certify/near.rs` derives what may be left out. (2) A row that changes its label stays in its block until rows are put
//! in order again: neither the row nor m has moved. (3) Before the first assign, rows take the group whose point is nearest. (4) The sorted rows are
//! kept from assign to assign where their copy is small enough. Else each assign sorts some of them at a time. (5) To sort takes time. So a sample of
//! the rows decides at the first assign whether it pays, and every assign decides for the next one. (6) Where differences are computed (few
//! features), U comes from the distances to the labels so far, for up to eight blocks together; else from R.
//!
//! The idea is that of the rings of Drake & Hamerly (2012) and of blocks of rows as in the tree of Kanungo et al. (2002), for kernels that
//! work on blocks.

mod groups;
mod guess;
mod sorted;
mod step;
mod task;

use self::groups::Groups;
use self::guess::Guess;
use self::sorted::Sorted;
pub use self::step::Step;
use self::task::NearTask;
pub use self::task::Scratch;
use super::filter::Form;
use super::pass::{TaskRows, split_off};
use super::{CpuSession, MAX_WORK};
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::memory;
use crate::parallel::for_each_task;
use crate::tile::Tile;

/// The name for the groups in errors.
const NEAR: &str = "the groups of near centroids";
/// The most groups where products are computed. A group should have some blocks of rows in each task.
pub const MOST_GROUPS: usize = 32;
/// The same where differences are computed: blocks are cheap, and small groups leave out more.
const MOST_SMALL_GROUPS: usize = 256;
/// Rows of the sample, and rows of it whose largest distance stands for a block's.
const SAMPLE: usize = 2_048;
/// The scores that are computed for each one that counts: the last block of a group is not full.
const HALF_FULL: f64 = 1.15;
/// Fewer clusters or rows are not worth it.
const FEWEST_CLUSTERS: usize = 16;
const FEWEST_ROWS: usize = 4 * SAMPLE;
/// Rows whose largest distance from a point is known. The product filter compares as many together.
pub const BLOCK: usize = 64;
/// Groups are made again when so many times the scores are computed.
const WORSE: f64 = 1.15;
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
const MOST_BYTES: usize = 512 << 20;

/// Whether a session looks for near centroids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LookNear {
    /// Where it pays.
    #[default]
    Auto,
    /// Wherever it is possible. For tests.
    Always,
    /// The same, but rows are sorted for each assign, a few at a time.
    AlwaysSort,
    Never,
}

/// Groups of centroids, and the rows in their order. Labels do not depend on them.
pub struct Near<T> {
    groups: Groups<T>,
    /// Whether the labels are those of the last assign.
    known: bool,
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
}

/// Numbers of scores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scores {
    /// Of rows and listed centroids.
    pub needed: u64,
    /// With those of blocks that are not full.
    pub computed: u64,
}

/// The largest of some numbers of at least 0, or NaN if there is one.
#[inline(always)]
pub fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |most: f64, number| if number <= most || most.is_nan() { most } else { number })
}

impl<T: Float> Near<T> {
    /// Makes the groups again for an assign by these centroids, if they leave out less than they did. Centroids move most in the first iterations,
    /// and those of empty clusters leave their group.
    fn regroup(&mut self, centroids: &[T], d: usize) -> Result<()> {
        if self.assigns >= self.patience && self.shares.is_some_and(|(first, last)| last > first * WORSE + 0.01) {
            self.groups = Groups::new(centroids, d, self.groups.count())?;
            (self.is_sorted, self.shares, self.assigns, self.patience) = (false, None, 0, 2 * self.patience);
        }
        Ok(())
    }

    /// Whether the last assign was the first one by these groups.
    fn is_fresh(&self) -> bool {
        self.assigns <= 1
    }

    /// The order in which the product filter packs the centroids.
    pub fn order(&self) -> &[u32] {
        &self.groups.order
    }

    /// The labels are not those of the last assign.
    pub fn forget(&mut self) {
        self.known = false;
    }
}

/// What an assign does with the order of the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// It was kept from another assign.
    Kept,
    /// It is made and kept.
    ToKeep,
    /// It is made for this assign alone.
    Sorted,
}

/// Whether it pays to put rows in the order of their groups and leave out this share of the scores. Measured on two cores of a Zen 4.
fn pays(skipped: f64, [k, d]: [usize; 2], rows: Rows, by_columns: bool) -> bool {
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

impl<T: Float> CpuSession<'_, T> {
    /// The tasks, a few at a time.
    fn parts(&self) -> Result<Vec<TaskRows>> {
        let most = if Form::of::<T>(self.d) == Form::Difference { MOST_SHORT_ROWS } else { MOST_ROWS };
        let of_worker = self.part.features.n_rows() / self.workers.len();
        let most = most.min((of_worker / PARTS).max(of_worker.min(LEAST_ROWS)));
        let most = most.min(TIMES_WORK * MAX_WORK / self.d.saturating_mul(self.k).max(1));
        let mut parts: Vec<TaskRows> = memory::with_room(self.tasks.len(), NEAR)?;
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
    pub(super) fn prepare_near(&mut self, centroids: &[T]) -> Result<()> {
        let planned = match &mut self.near {
            Some(near) => near.regroup(centroids, self.d),
            None if self.decided => Ok(()),
            None => self.plan_near(centroids).map(|near| self.near = near),
        };
        self.decided = true;
        match planned {
            Err(KMeansError::NoMemory { .. }) => self.give_up_near(),
            planned => planned?,
        }
        Ok(())
    }

    /// All centroids are compared from now on.
    fn give_up_near(&mut self) {
        self.near = None;
        self.workers.iter_mut().for_each(|worker| worker.near = None);
    }

    /// Decides before the first assign whether rows are compared with near centroids only.
    fn plan_near(&self, centroids: &[T]) -> Result<Option<Near<T>>> {
        let (n, k, d) = (self.labels.len(), self.k, self.d);
        if self.look_near == LookNear::Never || n == 0 {
            return Ok(None);
        }
        let by_columns = self.part.features.is_by_columns();
        let parts = self.parts()?;
        let longest = parts.iter().map(|part| part.physical.len()).max().unwrap_or(0);
        let most = if Form::of::<T>(d) == Form::Difference { MOST_SMALL_GROUPS } else { MOST_GROUPS };
        let bytes = parts.iter().map(|part| Sorted::<T>::bytes_kept([d, part.physical.len(), most])).sum::<usize>();
        let is_kept = self.look_near != LookNear::AlwaysSort && bytes <= MOST_BYTES;
        let rows = if is_kept { Rows::ToKeep } else { Rows::Sorted };
        let together = if is_kept { longest } else { self.sorted_together(longest) };
        // A block takes as long if it is not full. So a group should have two or more.
        let most = most.min(together / (2 * BLOCK));
        let near = |groups| Near {
            groups,
            known: false,
            shares: None,
            assigns: 0,
            patience: 1,
            parts,
            kept: Vec::new(),
            is_sorted: false,
        };
        let mut near = match self.look_near {
            LookNear::Always | LookNear::AlwaysSort => near(Groups::new(centroids, d, MOST_GROUPS)?),
            _ if k < FEWEST_CLUSTERS || n < FEWEST_ROWS || most < 2 || !pays(1.0, [k, d], rows, by_columns) => {
                return Ok(None);
            }
            _ => {
                let groups = Groups::new(centroids, d, most)?;
                let share = self.share_of_sample(&Step::new(&groups, centroids, false, self.workers.len())?)? * HALF_FULL;
                if !pays(1.0 - share, [k, d], rows, by_columns) {
                    return Ok(None);
                }
                near(groups)
            }
        };
        if is_kept {
            let count = near.groups.count();
            let sorted = near.parts.iter().map(|part| Sorted::kept([d, part.physical.len(), count]));
            match memory::try_collected(sorted, NEAR) {
                Err(KMeansError::NoMemory { .. }) => {}
                kept => near.kept = kept?,
            }
        }
        Ok(Some(near))
    }

    /// How many of these rows a worker sorts together.
    fn sorted_together(&self, longest: usize) -> usize {
        let stride = self.workers[0].tile.stride;
        match self.look_near {
            LookNear::AlwaysSort => 2 * stride,
            _ => (SORTED / self.d).max(LEAST_SORTED).next_multiple_of(stride),
        }
        .min(longest)
    }

    /// The share of the scores that rows of a sample need.
    fn share_of_sample(&self, step: &Step<'_, T>) -> Result<f64> {
        let stride = self.workers[0].tile.stride;
        let kept = (0..self.part.features.n_rows()).filter(|row| self.part.selection.contains(*row));
        let rows = memory::collected(kept.step_by((self.labels.len() / SAMPLE).max(1)), NEAR)?;
        if rows.is_empty() {
            return Ok(1.0);
        }
        let mut tile = Tile::new(self.d, stride)?;
        let mut groups = memory::zeroed::<u8>(stride, NEAR)?;
        // The largest distance of each group's rows so far, and their number.
        let mut seen = memory::filled(step.groups(), (0.0f64, 0usize), NEAR)?;
        for rows in rows.chunks(stride) {
            tile.load_list(&self.part, self.prepared.weights, rows);
            self.set.run(Guess { step, tile: &tile, groups: &mut groups });
            for r in 0..tile.rows {
                let group = usize::from(groups[r]);
                let (most, count) = &mut seen[group];
                *most = most.max(step.distance(&tile, r, group));
                *count += 1;
            }
        }
        let listed = seen.iter().enumerate().map(|(group, (most, count))| {
            // With few features, rows are much nearer to their labels than to the ends of their group.
            let own = (Form::of::<T>(self.d) == Form::Difference).then_some(most / 2.0);
            (step.listed(group, *most, own).len() * count) as f64
        });
        Ok(listed.sum::<f64>() / (step.panels() * rows.len()) as f64)
    }

    /// Assigns by the centroids near each row, if that was decided. Returns the number of scores. None if the assign must compare all, also where
    /// there is no memory for the order of the rows.
    pub(super) fn assign_near(&mut self) -> Result<Option<u64>> {
        let longest = self.near.iter().flat_map(|near| &near.parts).map(|part| part.physical.len()).max().unwrap_or(0);
        let (together, threads) = (self.sorted_together(longest), self.workers.len());
        let Self { part, prepared, quantiser, set, labels, partial, workers, table, near, look_near, d, k, .. } = self;
        let by_columns = part.features.is_by_columns();
        let (Some(table), Some(found)) = (table.as_deref(), near.as_mut()) else { return Ok(None) };
        let is_kept = !found.kept.is_empty();
        let mut make_room = || {
            for worker in workers.iter_mut() {
                if worker.near.is_none() {
                    worker.assigner.reserve_near::<T>(*k, *d)?;
                    let (way, most, sorted) = match found.kept.first() {
                        Some(kept) => (kept.way, longest, None),
                        None => {
                            let sorted = Sorted::new([*d, together, found.groups.count()], by_columns)?;
                            (sorted.way, together, Some(sorted))
                        }
                    };
                    worker.near = Some(Scratch::new([*d, most, worker.tile.stride], way, sorted)?);
                }
            }
            Step::new(&found.groups, &table.rows, found.known, threads)
        };
        let step = match make_room() {
            Err(KMeansError::NoMemory { .. }) => {
                self.give_up_near();
                return Ok(None);
            }
            step => step?,
        };
        let (part, prepared, quantiser, set) = (&*part, *prepared, &*quantiser, *set);
        let rows = labels.len() as f64;
        let mut rest = labels.as_mut_slice();
        let mut kept = found.kept.iter_mut();
        // An assign that ends early leaves some parts unsorted.
        let is_sorted = std::mem::take(&mut found.is_sorted);
        let tasks = found.parts.iter().map(move |task| (task, split_off(&mut rest, task.kept), kept.next()));
        let partial = std::sync::Mutex::new(partial);
        for_each_task(workers, tasks, |worker, (task, labels, kept)| {
            let Some(mut scratch) = worker.near.take() else { unreachable!("there is room for each worker") };
            let mut its_own = scratch.sorted.take();
            let Some(sorted) = kept.or(its_own.as_mut()) else { unreachable!("sorted rows are a worker's or a task's") };
            set.run(NearTask {
                part,
                prepared,
                quantiser,
                table,
                partial: &partial,
                worker,
                scratch: &mut scratch,
                sorted,
                is_sorted,
                task,
                labels,
                step: &step,
            });
            scratch.sorted = its_own;
            worker.near = Some(scratch);
        })?;
        let order = if is_kept { Rows::Kept } else { Rows::Sorted };
        // Without labels, differences have long lists.
        let is_usual = step.known || Form::of::<T>(*d) == Form::Product;
        (found.known, found.is_sorted) = (true, is_kept);
        found.assigns += 1;
        let mut scores = Scores::default();
        for scratch in workers.iter_mut().filter_map(|worker| worker.near.as_mut()) {
            let Scores { needed, computed } = std::mem::take(&mut scratch.scores);
            scores = Scores { needed: scores.needed + needed, computed: scores.computed + computed };
        }
        let share = scores.computed as f64 / (rows * *k as f64).max(1.0);
        if is_usual {
            found.shares = Some((found.shares.map_or(share, |(first, _)| first), share));
        }
        if is_usual && *look_near == LookNear::Auto && !pays(1.0 - share, [*k, *d], order, by_columns) {
            match found.is_fresh() {
                true => self.give_up_near(),
                // New groups may do.
                false => found.shares = Some((0.0, share)),
            }
        }
        Ok(Some(scores.needed))
    }
}
