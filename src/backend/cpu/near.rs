//! Assigns that compare rows only with the centroids near them.
//!
//! ```text
//! now and then:     groups of centroids that lie together
//! each assign:      for each group: a point m in its middle, and all centroids, a few at a time, in the order of their distance from m
//! for each task, by whichever worker is free:
//!   its rows in the order of the groups of their labels (`near/task.rs`)
//!   for each block of rows of one group:  R = the largest distance to m;  U = the largest distance to a centroid
//!     compared are the centroids that are at most R + U from m: the first ones of the order
//! ```
//! Points to note: (1) `src/certify/near.rs` derives what may be left out. (2) A row that changes its label changes its group: nothing is kept of
//! rows from assign to assign. Before the first one, rows take the group whose point is nearest. (3) Rows are gathered, which takes
//! longer than to read them in order. So a sample of the rows decides at the first assign whether it pays, and every assign decides for the next
//! one. (4) Where differences are computed (few features), U comes from the distances to the labels so far; else from R.
//!
//! The idea is that of the rings of Drake & Hamerly (2012) and of blocks of rows as in the tree of Kanungo et al. (2002), for kernels that
//! work on blocks.

mod guess;
mod task;

use std::ops::Range;

use self::guess::Guess;
use self::task::NearTask;
pub use self::task::Scratch;
use super::CpuSession;
use super::carried::split;
pub use super::filter::NOBODY;
use super::filter::{Form, GROUP};
use super::pass::split_off;
use crate::certify::near::Near as Bound;
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
const MOST_SMALL_GROUPS: usize = 128;
/// Clusters for each group.
const MEMBERS: usize = 8;
/// Rows of the sample, and rows of it whose largest distance stands for a block's.
const SAMPLE: usize = 2_048;
/// The scores that are computed for each one that counts: the last block of a group is not full.
const HALF_FULL: f64 = 1.25;
/// Fewer clusters or rows are not worth it.
const FEWEST_CLUSTERS: usize = 32;
const FEWEST_ROWS: usize = 4 * SAMPLE;

/// Whether a session looks for near centroids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LookNear {
    /// Where it pays.
    #[default]
    Auto,
    /// Wherever it is possible. For tests.
    Always,
    Never,
}

/// Groups of centroids. Labels do not depend on them.
pub struct Near {
    /// For each centroid, its group.
    group_of: Vec<u8>,
    groups: usize,
    /// The centroids, [`GROUP`] at a time, those of a group one after the other. What fills up a group is [`NOBODY`].
    order: Vec<u32>,
    /// Whether the labels are those of the last assign.
    known: bool,
    /// Number of assigns since the first groups.
    assigns: u32,
}

/// Numbers of scores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scores {
    /// Of rows and listed centroids.
    pub needed: u64,
    /// With those of blocks that are not full.
    pub computed: u64,
}

/// What all tasks of one assign share.
pub struct Step<'n, T> {
    bound: Bound,
    group_of: &'n [u8],
    order: &'n [u32],
    known: bool,
    /// `(groups, d)`: the points m.
    points: Vec<T>,
    d: usize,
    /// For each group: at least the distance from m to a centroid.
    own: Vec<f64>,
    /// `(groups, panels)`: keys in ascending order, and the panels of centroids that they belong to.
    keys: Vec<f64>,
    panels: Vec<u32>,
}

impl<T: Float> Step<'_, T> {
    fn groups(&self) -> usize {
        self.own.len()
    }

    fn point(&self, group: usize) -> &[T] {
        &self.points[group * self.d..][..self.d]
    }

    /// The panels of centroids that may hold the labels of rows of this group. `rows`: at least the distances of the rows from the group's point.
    /// `own`: at least the distances to some centroid each, if they are known.
    #[inline(always)]
    pub fn listed(&self, group: usize, rows: f64, own: Option<f64>) -> &[u32] {
        let limit = self.bound.limit(rows, own.unwrap_or(rows + self.own[group]));
        let count = self.keys.len() / self.groups();
        let keys = &self.keys[group * count..][..count];
        &self.panels[group * count..][..keys.partition_point(|key| not_above(*key, limit))]
    }

    /// The centroids of a panel.
    #[inline(always)]
    pub fn members(&self, panel: u32) -> impl Iterator<Item = u32> + '_ {
        self.order[panel as usize * GROUP..][..GROUP].iter().copied()
    }

    /// At least the largest distance of rows of a tile from the point of a group: of the first [`BLOCK`] of this range.
    #[inline(always)]
    pub fn radius(&self, tile: &Tile<T>, rows: Range<usize>, group: usize) -> f64 {
        let mut sums = [0.0f64; BLOCK];
        for (f, m) in self.point(group).iter().enumerate() {
            add_squares(tile, rows.start, f, m.to_f64(), &mut sums);
        }
        self.most(&sums[..BLOCK.min(rows.len())])
    }

    /// At least the largest of these distances, which are squares.
    #[inline(always)]
    pub fn most(&self, squares: &[f64]) -> f64 {
        self.bound.upper(largest(squares.iter().copied()))
    }
}

/// Rows whose distances from a point are computed together. Tiles are multiples of it.
pub const BLOCK: usize = 64;
/// Most values of the rows of a task that are in the order of the groups at a time, for each worker, and least rows.
const SORTED: usize = 1 << 20;
const LEAST_SORTED: usize = 1_024;

/// Adds the squares of a feature's distances from m.
#[inline(always)]
fn add_squares<T: Float>(tile: &Tile<T>, first: usize, f: usize, m: f64, sums: &mut [f64; BLOCK]) {
    let Some(x) = tile.x[f * tile.stride + first..].first_chunk::<BLOCK>() else { unreachable!("a tile has whole columns") };
    for r in 0..BLOCK {
        let t = x[r].to_f64() - m;
        sums[r] = t.mul_add(t, sums[r]);
    }
}

/// NaN counts as not above.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord)]
fn not_above(key: f64, limit: f64) -> bool {
    !(key > limit)
}

/// The largest of some numbers of at least 0, or NaN if there is one.
#[inline(always)]
pub fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |most: f64, number| if number <= most || most.is_nan() { most } else { number })
}

/// The sum of the squared differences, in any order.
fn square<T: Float>(a: &[T], b: &[T]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0f64; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for i in 0..LANES {
            let t = a[i].to_f64() - b[i].to_f64();
            sums[i] += t * t;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a.to_f64() - b.to_f64()).map(|t| t * t);
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

impl Near {
    /// At most `most` groups of these centroids: each belongs to the nearest of a few that are far apart (Gonzalez 1985).
    fn new<T: Float>(centroids: &[T], d: usize, most: usize) -> Result<Self> {
        let k = centroids.len() / d;
        let groups = (k / MEMBERS).clamp(1, most.max(1));
        let row = |j: usize| &centroids[j * d..][..d];
        let mut group_of = memory::zeroed::<u8>(k, NEAR)?;
        let mut nearest = memory::filled(k, f64::INFINITY, NEAR)?;
        let mut pick = 0;
        for group in 0..groups {
            let mut farthest = (0.0, 0);
            for j in 0..k {
                let s = square(row(pick), row(j));
                if s < nearest[j] {
                    (nearest[j], group_of[j]) = (s, group as u8);
                }
                if nearest[j] > farthest.0 {
                    farthest = (nearest[j], j);
                }
            }
            pick = farthest.1;
        }
        let mut order = memory::with_room(k + groups * GROUP, NEAR)?;
        let mut members: Vec<u32> = memory::with_room(k, NEAR)?;
        for group in 0..groups {
            members.clear();
            members.extend((0..k as u32).filter(|j| usize::from(group_of[*j as usize]) == group));
            split(&mut members, centroids, d, GROUP);
            order.extend_from_slice(&members);
            order.resize(order.len().next_multiple_of(GROUP), NOBODY);
        }
        Ok(Self { group_of, groups, order, known: false, assigns: 0 })
    }

    /// The order in which the product filter packs the centroids.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Makes the groups again for an assign by these centroids, if it is the second, third, fifth, ninth and so on. Centroids move most in the
    /// first iterations, and those of empty clusters leave their group.
    pub fn regroup<T: Float>(&mut self, centroids: &[T], d: usize) -> Result<()> {
        if self.assigns.is_power_of_two() {
            let Self { known, assigns, groups, .. } = *self;
            *self = Self { known, assigns, ..Self::new(centroids, d, groups)? };
        }
        self.assigns += 1;
        Ok(())
    }

    /// The labels are not those of the last assign.
    pub fn forget(&mut self) {
        self.known = false;
    }

    /// The lists of an assign by these centroids.
    fn step<T: Float>(&self, centroids: &[T], d: usize, workers: usize) -> Result<Step<'_, T>> {
        let bound = Bound::new(d);
        let row = |j: u32| &centroids[j as usize * d..][..d];
        let panels = self.order.chunks_exact(GROUP);
        let count = panels.len();
        let mut points: Vec<T> = memory::with_room(self.groups * d, NEAR)?;
        let mut sums = memory::zeroed::<f64>(self.groups * d, NEAR)?;
        let mut sizes = memory::zeroed::<f64>(self.groups, NEAR)?;
        for (c, group) in centroids.chunks_exact(d).zip(&self.group_of) {
            let group = usize::from(*group);
            sizes[group] += 1.0;
            sums[group * d..][..d].iter_mut().zip(c).for_each(|(sum, c)| *sum += c.to_f64());
        }
        points.extend(sums.iter().enumerate().map(|(i, sum)| T::from_f64(sum / sizes[i / d].max(1.0))));
        let mut own = memory::filled(self.groups, f64::INFINITY, NEAR)?;
        for (c, group) in centroids.chunks_exact(d).zip(&self.group_of) {
            let group = usize::from(*group);
            own[group] = own[group].min(square(c, &points[group * d..][..d]));
        }
        own.iter_mut().for_each(|own| *own = bound.upper(*own));
        // The first centroid of a panel, and at least the distance of the others from it.
        let around = |panel: &[u32]| {
            let others = panel.iter().filter(|j| **j != NOBODY).map(|j| square(row(*j), row(panel[0])));
            bound.upper(largest(others))
        };
        let radii = memory::collected(panels.clone().map(around), NEAR)?;
        let mut keys = memory::zeroed::<f64>(self.groups * count, NEAR)?;
        let mut names = memory::zeroed::<u32>(self.groups * count, NEAR)?;
        let found = || memory::filled(count, (0.0f64, 0u32), NEAR);
        let mut workers = memory::try_collected((0..workers.min(self.groups)).map(|_| found()), NEAR)?;
        let tasks = points.chunks_exact(d).zip(keys.chunks_exact_mut(count).zip(names.chunks_exact_mut(count)));
        for_each_task(&mut workers, tasks, |found, (point, (keys, names))| {
            for (place, (found, panel)) in found.iter_mut().zip(panels.clone()).enumerate() {
                *found = (bound.key(square(row(panel[0]), point), radii[place]), place as u32);
            }
            found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            for (i, (key, name)) in found.iter().enumerate() {
                (keys[i], names[i]) = (*key, *name);
            }
        })?;
        Ok(Step { bound, group_of: &self.group_of, order: &self.order, known: self.known, points, d, own, keys, panels: names })
    }
}

/// Whether it pays to put rows in the order of their groups and leave out this share of the scores. Measured on two cores of a Zen 4.
fn pays(skipped: f64, k: usize, d: usize, by_columns: bool) -> bool {
    // To move a value and to measure its distance takes as long as this many multiply-adds of the kernel.
    let of_value = match by_columns {
        _ if d <= task::FEW => 40.0,
        false => 50.0,
        true => 100.0,
    };
    // To find a row's place.
    const OF_ROW: f64 = 150.0;
    skipped * k as f64 * d as f64 > of_value * d as f64 + OF_ROW
}

impl<T: Float> CpuSession<'_, T> {
    /// Number of rows that a worker sorts together.
    fn batch(&self) -> usize {
        let longest = self.tasks.iter().map(|task| task.physical.len()).max().unwrap_or(0);
        (SORTED / self.d).max(LEAST_SORTED).next_multiple_of(self.workers[0].tile.stride).min(longest)
    }

    /// Decides before the first assign whether rows are compared with near centroids only.
    pub(super) fn plan_near(&self, centroids: &[T]) -> Result<Option<Near>> {
        let (n, k, d) = (self.labels.len(), self.k, self.d);
        let by_columns = self.part.features.is_by_columns();
        let most = if Form::of::<T>(d) == Form::Difference { MOST_SMALL_GROUPS } else { MOST_GROUPS };
        // A block takes as long if it is not full. So a group should have two or more in each batch.
        let most = most.min(self.batch() / (2 * BLOCK));
        match self.look_near {
            LookNear::Never => return Ok(None),
            LookNear::Always if n > 0 => return Near::new(centroids, d, MOST_GROUPS).map(Some),
            _ if k < FEWEST_CLUSTERS || n < FEWEST_ROWS || most < 2 || !pays(1.0, k, d, by_columns) => return Ok(None),
            _ => {}
        }
        let near = Near::new(centroids, d, most)?;
        let step = near.step(centroids, d, self.workers.len())?;
        let share = self.share_of_sample(&step)? * HALF_FULL;
        Ok(pays(1.0 - share, k, d, by_columns).then_some(near))
    }

    /// The share of the scores that rows of a sample need.
    fn share_of_sample(&self, step: &Step<'_, T>) -> Result<f64> {
        let physical = self.part.features.n_rows();
        let stride = self.workers[0].tile.stride;
        let rows = (0..physical).step_by((physical / SAMPLE).max(1)).filter(|row| self.part.selection.contains(*row));
        let rows = memory::collected(rows, NEAR)?;
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
                let mut sum = 0.0;
                for (f, m) in step.point(group).iter().enumerate() {
                    let t = tile.x[f * tile.stride + r].to_f64() - m.to_f64();
                    sum += t * t;
                }
                let (most, count) = &mut seen[group];
                *most = most.max(step.bound.upper(sum));
                *count += 1;
            }
        }
        let panels = step.keys.len() / step.groups();
        let listed = seen.iter().enumerate().map(|(group, (most, count))| {
            // With few features, rows are much nearer to their labels than to the ends of their group.
            let own = (Form::of::<T>(self.d) == Form::Difference).then_some(most / 2.0);
            (step.listed(group, *most, own).len() * count) as f64
        });
        Ok(listed.sum::<f64>() / (panels * rows.len()) as f64)
    }

    /// Assigns by the centroids near each row, if that was decided. Returns the number of scores. None if the assign must compare all, also where
    /// there is no memory for the order of the rows.
    pub(super) fn assign_near(&mut self) -> Result<Option<u64>> {
        let (batch, threads) = (self.batch(), self.workers.len());
        let by_columns = self.part.features.is_by_columns();
        let Self { part, prepared, quantiser, set, tasks, labels, partial, workers, table, near, look_near, d, k, .. } = self;
        let (Some(table), Some(found)) = (table.as_deref(), near.as_mut()) else { return Ok(None) };
        let mut make_room = || {
            for worker in workers.iter_mut() {
                if worker.near.is_none() {
                    worker.assigner.reserve_near::<T>(*k, *d)?;
                    worker.near = Some(Scratch::new([*d, batch, worker.tile.stride, found.groups], by_columns)?);
                }
            }
            found.step(&table.rows, *d, threads)
        };
        let step = match make_room() {
            Err(KMeansError::NoMemory { .. }) => {
                *near = None;
                return Ok(None);
            }
            step => step?,
        };
        let (part, prepared, quantiser, set) = (&*part, *prepared, &*quantiser, *set);
        let rows = labels.len() as f64;
        let mut rest = labels.as_mut_slice();
        let tasks = tasks.iter().map(move |task| (task, split_off(&mut rest, task.kept)));
        let partial = std::sync::Mutex::new(partial);
        for_each_task(workers, tasks, |worker, (task, labels)| {
            let Some(mut scratch) = worker.near.take() else { unreachable!("there is room for each worker") };
            let scratch_of_task = &mut scratch;
            set.run(NearTask {
                part,
                prepared,
                quantiser,
                table,
                partial: &partial,
                worker,
                scratch: scratch_of_task,
                task,
                labels,
                step: &step,
            });
            worker.near = Some(scratch);
        })?;
        found.known = true;
        let mut scores = Scores::default();
        for scratch in workers.iter_mut().filter_map(|worker| worker.near.as_mut()) {
            let Scores { needed, computed } = std::mem::take(&mut scratch.scores);
            scores = Scores { needed: scores.needed + needed, computed: scores.computed + computed };
        }
        let share = scores.computed as f64 / (rows * *k as f64).max(1.0);
        if *look_near == LookNear::Auto && !pays(1.0 - share, *k, *d, by_columns) {
            *near = None;
        }
        Ok(Some(scores.needed))
    }
}
