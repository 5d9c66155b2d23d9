//! One task of an assign by near centroids.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::int_dot::Copies;
use super::partition::Group;
use super::sorted::{RowLayout, Sorted};
use super::{BLOCK, GROUPS, GroupStep};
use crate::backend::cpu::assign::{Near, ToLabel};
use crate::backend::cpu::deltas::Moved;
use crate::backend::cpu::distances::own_distances;
use crate::backend::cpu::filter::{Filter, GROUP, ScoreForm};
use crate::backend::cpu::pass::{Shared, WorkerBuffers};
use crate::backend::cpu::product::{DotBlock, DotTable, PrefetchNext};
use crate::backend::cpu::tasks::{TaskRows, pieces};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::Tile;
use crate::simd::{Prefetch, SQUARE, Task, Vector};

/// One worker's buffers.
pub struct GroupScratch<T> {
    /// A block of rows, where they are loaded.
    tile: Tile<T>,
    /// The groups of some rows, and for each physical row where it goes.
    groups: Vec<Group>,
    to: Vec<u32>,
    /// The labels of some rows.
    labels: Vec<u32>,
    /// The rows of a block that must be loaded, and where they are.
    needed: Vec<u32>,
    order: Vec<usize>,
    /// Those of them that are still in doubt.
    open: Vec<u32>,
}

impl<T: Float> GroupScratch<T> {
    /// `most`: rows that are sorted together. `stride`: rows of the worker's tile.
    pub fn new([d, most, stride]: [usize; 3], layout: RowLayout) -> Result<Self> {
        let is_loaded = !layout.has_columns();
        Ok(Self {
            tile: if is_loaded { Tile::new(d, BLOCK)? } else { Tile::default() },
            groups: memory::zeroed(most + stride, GROUPS)?,
            to: memory::zeroed(most, GROUPS)?,
            labels: memory::zeroed(stride, GROUPS)?,
            needed: memory::with_room(BLOCK, GROUPS)?,
            order: memory::with_room(BLOCK, GROUPS)?,
            open: memory::with_room(BLOCK, GROUPS)?,
        })
    }
}

/// Labels that several tasks look at and change, each those of its own rows.
pub fn shared_labels(labels: &mut [u32]) -> &[AtomicU32] {
    // SAFETY: both types have the same size, and u32 is aligned as AtomicU32 wherever the latter exists (the assertion). The
    // labels are borrowed mutably for as long as the result lives, so no other reference to them exists.
    unsafe { &*(std::ptr::from_mut(labels) as *const [AtomicU32]) }
}

const _: () = assert!(align_of::<u32>() == align_of::<AtomicU32>());

/// Gives a row its label. Returns the move, if it is another label.
#[inline(always)]
fn moved_to(label: &AtomicU32, to: u32, row: u32) -> Option<Moved> {
    let from = label.load(Ordering::Relaxed);
    (from != to).then(|| {
        label.store(to, Ordering::Relaxed);
        Moved { row, from, to }
    })
}

/// The sorted rows of a task.
pub enum TaskRowsOrder<'p, T> {
    /// All rows of the task are to be sorted.
    ToSort(&'p mut Sorted<T>),
    /// The rows of some groups between some places.
    Sorted(&'p Sorted<T>, [Range<usize>; 2]),
}

impl<T> TaskRowsOrder<'_, T> {
    #[inline(always)]
    fn sorted(&self) -> &Sorted<T> {
        match self {
            Self::ToSort(sorted) => sorted,
            Self::Sorted(sorted, _) => sorted,
        }
    }
}

/// One task. It is compiled for each instruction set.
pub struct GroupTask<'p, 'a, 'm, 'n, T> {
    pub shared: &'p Shared<'p, 'a, 'm, T>,
    pub worker: &'p mut WorkerBuffers<T>,
    pub scratch: &'p mut GroupScratch<T>,
    pub sorted: TaskRowsOrder<'p, T>,
    pub task: &'p TaskRows,
    /// Of all rows of the task.
    pub labels: &'p [AtomicU32],
    pub step: &'p GroupStep<'n, T>,
    /// What integer copies share, and those of the centroids near each group. Empty if an assign does without.
    pub copies: Option<&'p Copies>,
    pub tables: &'p [DotTable],
}

impl<T: Float> Task for GroupTask<'_, '_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        // A few blocks of short rows have one list of near centroids.
        let stride =
            if ScoreForm::of::<T>(self.shared.table.d) == ScoreForm::Difference { self.worker.tile.stride } else { BLOCK };
        // The labels of a tile have room for this many rows.
        debug_assert!(stride <= self.worker.tile.stride);
        if let TaskRowsOrder::Sorted(sorted, unit) = &self.sorted {
            let (sorted, [groups, places]) = (*sorted, unit.clone());
            for group in groups {
                let rows = sorted.rows(group);
                for rows in pieces(rows.start.max(places.start)..rows.end.min(places.end), stride) {
                    self.label_rows::<V>(group, rows, false);
                }
            }
            return;
        }
        let mut at = 0;
        for physical in pieces(self.task.physical.clone(), self.sorted.sorted().most) {
            at += self.sort::<V>(physical, at);
            for group in 0..self.step.groups() {
                for rows in pieces(self.sorted.sorted().rows(group), stride) {
                    let is_here = self.keep(group, rows.clone());
                    self.label_rows::<V>(group, rows, is_here);
                }
            }
        }
        if let TaskRowsOrder::ToSort(sorted) = &mut self.sorted {
            sorted.has_rows = true;
        }
    }
}

impl<T: Float> GroupTask<'_, '_, '_, '_, T> {
    /// Loads some rows in the order of their groups. `at`: the first one's place in the task. Returns how many are kept.
    #[inline(always)]
    fn sort<V: Vector>(&mut self, physical: Range<usize>, at: usize) -> usize {
        let Self { shared: Shared { part, statistics, .. }, worker, scratch, sorted, labels, step, .. } = self;
        let TaskRowsOrder::ToSort(sorted) = sorted else { return 0 };
        let GroupScratch { groups, to, .. } = &mut **scratch;
        let kept = part.selection.count(physical.clone());
        let by_label = step.known && step.groups.are_of_centroids;
        let guesses = step.groups() > 1 && !by_label;
        let lacks_rows = sorted.layout == RowLayout::Rows && !sorted.has_rows;
        if step.groups() == 1 {
            groups[..kept].fill(0);
        } else if by_label {
            for (group, label) in groups.iter_mut().zip(&labels[at..at + kept]) {
                *group = step.groups.of[label.load(Ordering::Relaxed) as usize];
            }
        }
        if guesses || lacks_rows {
            let (tile, mut next) = (&mut worker.tile, 0);
            for rows in pieces(physical.clone(), tile.stride) {
                match step.guessed < step.groups.d && !lacks_rows && part.selection.is_all() {
                    true => tile.load_first(&part.features, rows, step.guessed),
                    false => tile.load(part, statistics.weights, rows),
                }
                if guesses {
                    step.guess::<V>(tile, &mut groups[next..]);
                }
                if lacks_rows {
                    sorted.take_rows(tile, at + next);
                }
                next += tile.rows;
            }
        }
        sorted.fill(part, statistics.weights, (physical, at), &groups[..kept], to, step);
        kept
    }

    /// Loads a newly sorted block of rows and makes integer copies of it, where they are used. Returns whether the rows of the
    /// block are in the tile.
    #[inline(always)]
    fn keep(&mut self, group: usize, rows: Range<usize>) -> bool {
        let Self { shared: Shared { part, statistics, .. }, scratch, sorted, step, copies, .. } = self;
        let TaskRowsOrder::ToSort(sorted) = sorted else { return false };
        if sorted.layout.has_columns() {
            return false;
        }
        sorted.load(&mut scratch.tile, part, statistics.weights, &sorted.order[rows.clone()], rows.clone());
        // The first rows of the next block come meanwhile.
        for row in sorted.order.iter().skip(rows.end.next_multiple_of(BLOCK)).take(SQUARE) {
            part.features.row(*row).into_iter().for_each(|row| Prefetch::of(row).ask_all());
        }
        sorted.radii[rows.start / BLOCK] = step.radius(scratch.tile.values(), rows.len(), group);
        if let (Some(copies), Some(shared)) = (&mut sorted.copies, copies) {
            copies.fill(rows.start, &scratch.tile.x, rows.len(), step.groups, group, shared);
        }
        true
    }

    /// Labels some rows of a group. `is_here`: as [`GroupTask::keep`] says.
    #[inline(always)]
    fn label_rows<V: Vector>(&mut self, group: usize, rows: Range<usize>, is_here: bool) {
        if !self.label_by_copies::<V>(group, rows.clone(), is_here) {
            self.label::<V>(group, rows, is_here);
        }
    }

    /// Labels some rows of a group, without integer copies. `is_here`: as [`GroupTask::keep`] says.
    #[inline(always)]
    fn label<V: Vector>(&mut self, group: usize, rows: Range<usize>, is_here: bool) {
        let Self { shared, worker, scratch, sorted, labels, step, .. } = self;
        let sorted = sorted.sorted();
        let Shared { part, statistics, table, .. } = shared;
        let GroupScratch { tile, labels: own, .. } = &mut **scratch;
        let WorkerBuffers { assigner, distances, deltas, moved, changed, .. } = &mut **worker;
        let (values, weights, next) = if sorted.layout.has_columns() {
            let weights = sorted.weights.get(rows.start..).unwrap_or_default();
            (sorted.columns(rows.clone()), weights, PrefetchNext::Blocks(sorted.behind(rows.start)))
        } else {
            if !is_here {
                sorted.load(tile, part, statistics.weights, &sorted.order[rows.clone()], rows.clone());
            }
            (tile.values(), &tile.weights[..], PrefetchNext::Nothing)
        };
        let (count, places) = (rows.len(), &sorted.places[rows.clone()]);
        let mut most = None;
        if let (Filter::Difference(_), true) = (&table.filter, step.known) {
            let own = &mut own[..count];
            own.iter_mut().zip(places).for_each(|(own, place)| *own = labels[*place as usize].load(Ordering::Relaxed));
            own_distances::<V, T>(values, table, own, distances);
            most = Some(step.most(&distances[..count]));
        }
        let near = Some(Near { panels: step.listed(group, sorted.radius(rows.clone()), most), order: &step.groups.order });
        let new = assigner.label::<V, T, _, false>(&ToLabel { values, count, before: &[], near, next }, table, &mut []);
        moved.clear();
        for (row, (place, to)) in (0..).zip(places.iter().zip(new)) {
            moved.extend(moved_to(&labels[*place as usize], *to, row));
        }
        let row = |r: u32| part.features.row(sorted.order[rows.start + r as usize]).unwrap_or_default();
        // Rows that were loaded just now are in a cache.
        *changed += match is_here && statistics.weights.is_none() && table.d >= SQUARE && !row(0).is_empty() {
            true => shared.take_moved_rows::<V>(row, moved, deltas),
            false => shared.take_moved::<V>(values, weights, moved, deltas),
        };
    }

    /// Labels a block of rows by integer copies. Rows in doubt and those whose label changes are loaded. Returns false if there
    /// are no copies or they leave too much in doubt. `is_here`: as [`GroupTask::keep`] says.
    #[inline(always)]
    fn label_by_copies<V: Vector>(&mut self, group: usize, rows: Range<usize>, is_here: bool) -> bool {
        let Self { shared: fit, worker, scratch, sorted, labels, step, copies, tables, .. } = self;
        let sorted = sorted.sorted();
        let Shared { part, statistics, table, .. } = fit;
        let (Some(shared), Some(copies), Some(dot_table)) = (copies, &sorted.copies, tables.get(group)) else { return false };
        let GroupScratch { tile, needed, order, open, .. } = &mut **scratch;
        let WorkerBuffers { assigner, deltas, moved, changed, .. } = &mut **worker;
        let listed = step.listed(group, sorted.radii[rows.start / BLOCK], None);
        // A block of rows far from the point needs more centroids than were copied.
        if listed.len() * GROUP > dot_table.own.len() {
            return false;
        }
        let block = DotBlock { rows: copies.block(rows.start), count: rows.len(), table: dot_table, listed, unit: shared.unit };
        let closer = sorted.layout == RowLayout::Rows || part.features.row(sorted.order[rows.start]).is_some();
        if !assigner.filter_by_int_dot::<V, T>(&block, closer, table) {
            return false;
        }
        let (features, places) = (&part.features, &sorted.places[rows.clone()]);
        let own = places.iter().map(|place| labels[*place as usize].load(Ordering::Relaxed));
        match sorted.layout {
            RowLayout::Rows => {
                assigner.look_closer::<V, T>(rows.len(), table, |r| Some(sorted.row(rows.start + r)), own, needed);
            }
            _ => {
                let row = |r| features.row(sorted.order[rows.start + r]);
                assigner.look_closer::<V, T>(rows.len(), table, row, own, needed);
            }
        }
        if needed.is_empty() {
            return true;
        }
        let row = |r: u32| match sorted.layout {
            RowLayout::Rows => sorted.row(rows.start + r as usize),
            _ => features.row(sorted.order[rows.start + r as usize]).unwrap_or_default(),
        };
        // Rows that lie side by side are loaded only if they are in doubt.
        let by_row = closer && statistics.weights.is_none();
        assigner.list_open(needed, open);
        let loaded = if by_row { &*open } else { &*needed };
        if let (false, Some(last)) = (is_here, loaded.last()) {
            // Squares of rows are copied fast, so the last row fills up a square.
            let filling = std::iter::repeat_n(last, loaded.len().next_multiple_of(SQUARE) - loaded.len());
            let places = loaded.iter().chain(filling).map(|r| rows.start + *r as usize);
            order.clear();
            order.extend(places.clone().map(|place| sorted.order[place]));
            sorted.load(tile, part, statistics.weights, order, places);
        }
        let values = tile.values();
        let new = assigner.settle_needed::<V, T>(values, loaded, !is_here, table);
        moved.clear();
        for (i, r) in needed.iter().enumerate() {
            let (label, to) = (&labels[places[*r as usize] as usize], new[*r as usize]);
            moved.extend(moved_to(label, to, if is_here || by_row { *r } else { i as u32 }));
        }
        *changed += match by_row {
            true => fit.take_moved_rows::<V>(row, moved, deltas),
            false => fit.take_moved::<V>(values, &tile.weights, moved, deltas),
        };
        true
    }
}
