//! What all tasks of one assign share: for each group of rows, the centroids in the order of their distance.

use super::partition::{Groups, square};
use super::{BLOCK, GROUPS, largest};
use crate::backend::cpu::filter::{GROUP, NOBODY};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::bounds::groups::GroupBound;
use crate::input::tile::{Columns, Values};

/// The lists of one assign.
pub struct GroupStep<'n, T> {
    pub groups: &'n Groups<T>,
    /// Whether the labels are those of the last assign.
    pub known: bool,
    bound: GroupBound,
    /// For each group: at least the distance from m to a centroid.
    own: Vec<f64>,
    /// `(groups, panels)`: keys in ascending order, and the panels of centroids that they belong to.
    keys: Vec<f64>,
    panels: Vec<u32>,
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
    /// The lists of an assign by these centroids, which are those of the groups or later ones.
    pub fn new(groups: &'n Groups<T>, centroids: &[T], known: bool, workers: usize) -> Result<Self> {
        let d = groups.d;
        let bound = GroupBound::new(d);
        let row = |j: u32| &centroids[j as usize * d..][..d];
        let panels = groups.order.chunks_exact(GROUP);
        let count = panels.len();
        // At least the distances of the other centroids of a panel from its first one.
        let around = |panel: &[u32]| {
            let others = panel.iter().filter(|j| **j != NOBODY).map(|j| square(row(*j), row(panel[0])));
            bound.upper(largest(others))
        };
        let radii = memory::collected(panels.clone().map(around), GROUPS)?;
        let mut own = memory::filled(groups.count(), f64::INFINITY, GROUPS)?;
        let mut keys = memory::zeroed::<f64>(groups.count() * count, GROUPS)?;
        let mut names = memory::zeroed::<u32>(groups.count() * count, GROUPS)?;
        let found = || memory::filled(count, (0.0f64, 0u32), GROUPS);
        let mut workers = memory::try_collected((0..workers.min(groups.count())).map(|_| found()), GROUPS)?;
        let lists = keys.chunks_exact_mut(count).zip(names.chunks_exact_mut(count));
        let tasks = groups.points.chunks_exact(d).zip(lists.zip(&mut own));
        for_each_task(&mut workers, tasks, |found, (point, ((keys, names), own))| {
            for (place, (found, panel)) in found.iter_mut().zip(panels.clone()).enumerate() {
                let s = square(row(panel[0]), point);
                *found = (bound.key(s, radii[place]), place as u32);
                *own = own.min(bound.upper(s));
            }
            // The nearest centroid may be another one of its panel.
            for (found, panel) in found.iter().zip(panels.clone()) {
                if found.0 < *own {
                    let others = panel.iter().filter(|j| **j != NOBODY).map(|j| bound.upper(square(row(*j), point)));
                    *own = others.fold(*own, f64::min);
                }
            }
            found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            for (i, (key, name)) in found.iter().enumerate() {
                (keys[i], names[i]) = (*key, *name);
            }
        })?;
        Ok(Self { groups, known, bound, own, keys, panels: names })
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
        let limit = self.bound.limit(rows, own.unwrap_or(rows + self.own[group]));
        let count = self.panels();
        let keys = &self.keys[group * count..][..count];
        &self.panels[group * count..][..keys.partition_point(|key| !(*key > limit))]
    }

    /// The centroids of a panel.
    #[inline(always)]
    pub fn members(&self, panel: u32) -> impl Iterator<Item = u32> + '_ {
        self.groups.order[panel as usize * GROUP..][..GROUP].iter().copied()
    }

    /// At least the largest distance of the first rows of a block from the point of a group. Infinity if there is one group: all
    /// centroids are listed then.
    #[inline(always)]
    pub fn radius(&self, block: Values<'_, T>, rows: usize, group: usize) -> f64 {
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
