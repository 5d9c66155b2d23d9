//! What all tasks of one assign share: for each group of rows, the centroids in the order of their distance.

use super::guess::Guesses;
use super::partition::{Partition, square};
use super::{BLOCK, GROUPS, largest};
use crate::backend::cpu::filter::{GROUP, NO_CENTROID};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::bounds::groups::GroupBound;
use crate::input::tile::{ByFeature, FeatureValues};
use crate::simd::{InstructionSet, Task, Vector};

/// The lists of one assign.
pub struct GroupStep<'n, T> {
    pub groups: &'n Partition<T>,
    /// Whether the labels are those of the last assign.
    pub known: bool,
    /// So many features of a row say which group it belongs to, before it has a label.
    pub guessed: usize,
    /// Empty where all rows have labels.
    pub guesses: Guesses,
    bound: GroupBound,
    /// For each group: at least the distance from m to a centroid.
    own: Vec<f64>,
    /// `(groups, panels)`: the keys that rows of the group may need, in ascending order, and the panels of centroids that they
    /// belong to. The rest of each row of the array is not used.
    keys: Vec<f64>,
    panels: Vec<u32>,
    /// For each group, how many panels its rows may need.
    needed: Vec<usize>,
}

/// Features of centroids, for each place of a panel, whose distances are measured in one task.
const AROUND: usize = 1 << 12;

/// Measures panels of centroids. Compiled for each instruction set.
struct Around<'p, T> {
    order: &'p [u32],
    centroids: &'p [T],
    d: usize,
    bound: GroupBound,
    /// For each panel, gets at least the distances of its centroids from the first one.
    around: &'p mut [f64],
}

impl<T: Float> Task for Around<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let row = |j: u32| &self.centroids[j as usize * self.d..][..self.d];
        for (panel, around) in self.order.chunks_exact(GROUP).zip(self.around) {
            let others = panel.iter().filter(|j| **j != NO_CENTROID).map(|j| square(row(*j), row(panel[0])));
            *around = self.bound.upper(largest(others));
        }
    }
}

/// Makes the list of one group. Compiled for each instruction set.
struct List<'p, T> {
    groups: &'p Partition<T>,
    group: usize,
    centroids: &'p [T],
    bound: GroupBound,
    /// For each panel, at least the distances of its centroids from the first one.
    around: &'p [f64],
    /// At least the largest distance of the group's rows from its point.
    radius: f64,
    /// Room for all panels.
    found: &'p mut [(f64, u32)],
    keys: &'p mut [f64],
    panels: &'p mut [u32],
    own: &'p mut f64,
    needed: &'p mut usize,
}

impl<T: Float> Task for List<'_, T> {
    type Output = ();

    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN is not above a limit
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { groups, group, centroids, bound, around, radius, found, keys, panels, own, needed } = self;
        let (d, point) = (groups.d, groups.point(group));
        let row = |j: u32| &centroids[j as usize * d..][..d];
        let all = || groups.order.chunks_exact(GROUP);
        for (place, (found, panel)) in found.iter_mut().zip(all()).enumerate() {
            let s = square(row(panel[0]), point);
            *found = (bound.key(s, around[place]), place as u32);
            *own = own.min(bound.upper(s));
        }
        // The nearest centroid may be another centroid of the panel.
        for (found, panel) in found.iter().zip(all()) {
            if found.0 < *own {
                let others = panel.iter().filter(|j| **j != NO_CENTROID).map(|j| bound.upper(square(row(*j), point)));
                *own = others.fold(*own, f64::min);
            }
        }
        let limit = bound.limit(radius, radius + *own);
        *needed = 0;
        for i in 0..found.len() {
            if !(found[i].0 > limit) {
                found.swap(i, *needed);
                *needed += 1;
            }
        }
        let found = &mut found[..*needed];
        found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        for (i, (key, name)) in found.iter().enumerate() {
            (keys[i], panels[i]) = (*key, *name);
        }
    }
}

/// Adds the squares of a feature's distances from m.
#[inline(always)]
pub fn add_squares<T: Float>(x: &[T], m: f64, sums: &mut [f64; BLOCK]) {
    let Some(x) = x.first_chunk::<BLOCK>() else { unreachable!("a tile has whole columns") };
    for r in 0..BLOCK {
        let t = x[r].to_f64() - m;
        sums[r] = t.mul_add(t, sums[r]);
    }
}

impl<'n, T: Float> GroupStep<'n, T> {
    /// The lists of an assign by these centroids, which are those of the groups or later ones. `radii`: for each group, at least
    /// the largest distance of its rows from its point. None if they are not known.
    pub fn new(
        groups: &'n Partition<T>,
        centroids: &[T],
        known: bool,
        radii: Option<&[f64]>,
        set: InstructionSet,
        workers: usize,
    ) -> Result<Self> {
        let d = groups.d;
        let bound = GroupBound::new(d);
        let count = groups.order.len() / GROUP;
        // At least the distances of the other centroids of a panel from its first one.
        let mut around = memory::zeroed::<f64>(count, GROUPS)?;
        let together = (AROUND / d).max(1);
        let mut threads = memory::filled(workers.min(count.div_ceil(together)), (), GROUPS)?;
        let tasks = groups.order.chunks(together * GROUP).zip(around.chunks_mut(together));
        for_each_task(&mut threads, tasks, |(), (order, around)| {
            set.run(Around { order, centroids, d, bound, around });
        })?;
        let mut own = memory::filled(groups.count(), f64::INFINITY, GROUPS)?;
        let mut needed = memory::zeroed::<usize>(groups.count(), GROUPS)?;
        let mut keys = memory::zeroed::<f64>(groups.count() * count, GROUPS)?;
        let mut names = memory::zeroed::<u32>(groups.count() * count, GROUPS)?;
        let found = || memory::filled(count, (0.0f64, 0u32), GROUPS);
        let mut workers = memory::try_collected((0..workers.min(groups.count())).map(|_| found()), GROUPS)?;
        let lists = keys.chunks_exact_mut(count).zip(names.chunks_exact_mut(count)).zip(own.iter_mut().zip(&mut needed));
        for_each_task(&mut workers, lists.enumerate(), |found, (group, ((keys, panels), (own, needed)))| {
            let radius = radii.map_or(f64::INFINITY, |radii| radii[group]);
            set.run(List { groups, group, centroids, bound, around: &around, radius, found, keys, panels, own, needed });
        })?;
        Ok(Self { groups, known, guessed: d, guesses: Guesses::default(), bound, own, keys, panels: names, needed })
    }

    pub fn groups(&self) -> usize {
        self.own.len()
    }

    /// Number of panels of centroids.
    pub fn panels(&self) -> usize {
        self.keys.len() / self.groups()
    }

    /// The panels of centroids that may hold the labels of rows of this group. `rows`: at least the distances of the rows from
    /// the group's point. `own`: at least the distances to some centroid each, if they are known.
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN is not above a limit
    #[inline(always)]
    pub fn listed(&self, group: usize, rows: f64, own: Option<f64>) -> &[u32] {
        // The centroid nearest to the point is one of them. So what a group's farthest row may need is enough.
        let by_point = rows + self.own[group];
        let limit = self.bound.limit(rows, own.map_or(by_point, |own| own.min(by_point)));
        let (first, needed) = (group * self.panels(), self.needed[group]);
        &self.panels[first..][..self.keys[first..][..needed].partition_point(|key| !(*key > limit))]
    }

    /// The centroids of a panel.
    #[inline(always)]
    pub fn members(&self, panel: u32) -> impl Iterator<Item = u32> + '_ {
        self.groups.order[panel as usize * GROUP..][..GROUP].iter().copied()
    }

    /// At least the largest distance of the first rows of a block from the point of a group. Infinity if there is one group: all
    /// centroids are listed then.
    #[inline(always)]
    pub fn radius(&self, block: FeatureValues<'_, T>, rows: usize, group: usize) -> f64 {
        if self.groups() == 1 {
            return f64::INFINITY;
        }
        let mut sums = [0.0f64; BLOCK];
        for (f, m) in self.groups.point(group).iter().enumerate() {
            add_squares(block.column(f), m.to_f64(), &mut sums);
        }
        self.most(&sums[..rows])
    }

    /// At least the largest of some distances, of which `squares` has the squares.
    #[inline(always)]
    pub fn most(&self, squares: &[f64]) -> f64 {
        self.bound.upper(largest(squares.iter().copied()))
    }
}
