//! Assigns that compare rows only with the centroids near them.
//!
//! ```text
//! once a fit:       groups of centroids that lie together
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
use super::CpuSession;
use super::carried::split;
pub use super::filter::NOBODY;
use super::filter::{Form, GROUP};
use super::pass::split_off;
use crate::certify::near::Near as Bound;
use crate::error::Result;
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
        self.bound.upper(squares.iter().fold(0.0, |most: f64, square| if *square <= most { most } else { *square }))
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
    /// Groups of these centroids: each belongs to the nearest of a few that are far apart (Gonzalez 1985).
    fn new<T: Float>(centroids: &[T], d: usize) -> Result<Self> {
        let k = centroids.len() / d;
        let most = if Form::of::<T>(d) == Form::Difference { MOST_SMALL_GROUPS } else { MOST_GROUPS };
        let groups = (k / MEMBERS).clamp(1, most);
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
        Ok(Self { group_of, groups, order, known: false })
    }

    /// The order in which the product filter packs the centroids.
    pub fn order(&self) -> &[u32] {
        &self.order
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
            bound.upper(others.fold(0.0, |most: f64, s| if s <= most { most } else { s }))
        };
        let radii = memory::collected(panels.clone().map(around), NEAR)?;
        let mut keys = memory::zeroed::<f64>(self.groups * count, NEAR)?;
        let mut names = memory::zeroed::<u32>(self.groups * count, NEAR)?;
        let mut found = memory::with_room::<(f64, u32)>(count, NEAR)?;
        found.resize(count, (0.0, 0));
        let mut workers = memory::filled(workers.min(self.groups), found, NEAR)?;
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
fn pays(skipped: f64, k: usize, d: usize, row_by_row: bool) -> bool {
    // To move a value and to measure its distance takes as long as this many multiply-adds of the kernel.
    let of_value = match row_by_row {
        _ if d <= task::FEW => 40.0,
        true => 50.0,
        false => 100.0,
    };
    // To find a row's place.
    const OF_ROW: f64 = 150.0;
    skipped * k as f64 * d as f64 > of_value * d as f64 + OF_ROW
}

impl<T: Float> CpuSession<'_, T> {
    /// Decides before the first assign whether rows are compared with near centroids only.
    pub(super) fn plan_near(&self, centroids: &[T]) -> Result<Option<Near>> {
        let (n, k, d) = (self.labels.len(), self.k, self.d);
        let row_by_row = self.part.features.is_row_by_row();
        match self.look_near {
            LookNear::Never => return Ok(None),
            LookNear::Always if n > 0 => return Near::new(centroids, d).map(Some),
            _ if k < FEWEST_CLUSTERS || n < FEWEST_ROWS || !pays(1.0, k, d, row_by_row) => return Ok(None),
            _ => {}
        }
        let near = Near::new(centroids, d)?;
        let step = near.step(centroids, d, self.workers.len())?;
        let share = self.share_of_sample(&step)?;
        Ok(pays(1.0 - share, k, d, row_by_row).then_some(near))
    }

    /// The share of the scores that rows of a sample need.
    fn share_of_sample(&self, step: &Step<'_, T>) -> Result<f64> {
        let physical = self.part.features.n_rows();
        let stride = self.workers[0].tile.stride;
        let rows = (0..physical).step_by((physical / SAMPLE).max(1)).filter(|row| self.part.selection.contains(*row));
        let rows = memory::collected(rows, NEAR)?;
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
        Ok(listed.sum::<f64>() / (panels * rows.len().max(1)) as f64)
    }

    /// Assigns by the centroids near each row, if that was decided. Returns the number of scores.
    pub(super) fn assign_near(&mut self) -> Result<Option<u64>> {
        let workers = self.workers.len();
        let Self { part, prepared, quantiser, set, tasks, labels, partial, workers: all, table, near, look_near, d, k, .. } =
            self;
        let (Some(table), Some(near)) = (table.as_deref(), near.as_mut()) else { return Ok(None) };
        let step = near.step(&table.rows, *d, workers)?;
        let stride = all[0].tile.stride;
        let longest = tasks.iter().map(|task| task.physical.len()).max().unwrap_or(0);
        let sorted = (SORTED / *d).max(LEAST_SORTED).next_multiple_of(stride).min(longest);
        let scratch = all.iter_mut().map(|worker| {
            worker.assigner.reserve_near::<T>(*k, *d)?;
            Ok((worker, task::Scratch::new([*d, sorted, stride, step.groups()], part.features.is_row_by_row())?))
        });
        let mut workers = memory::try_collected(scratch, "the threads' buffers")?;
        let (part, prepared, quantiser, set) = (&*part, *prepared, &*quantiser, *set);
        let rows = labels.len() as u64;
        let mut rest = labels.as_mut_slice();
        let tasks = tasks.iter().map(move |task| (task, split_off(&mut rest, task.kept)));
        let partial = std::sync::Mutex::new(partial);
        for_each_task(&mut workers, tasks, |(worker, scratch), (task, labels)| {
            set.run(NearTask {
                part,
                prepared,
                quantiser,
                table,
                partial: &partial,
                worker,
                scratch,
                task,
                labels,
                step: &step,
            });
        })?;
        let scores = workers.iter().map(|(_, scratch)| scratch.scores).sum();
        drop(workers);
        near.known = true;
        let share = scores as f64 / (rows as f64 * *k as f64).max(1.0);
        if *look_near == LookNear::Auto && !pays(1.0 - share, *k, *d, part.features.is_row_by_row()) {
            self.near = None;
        }
        Ok(Some(scores))
    }
}
