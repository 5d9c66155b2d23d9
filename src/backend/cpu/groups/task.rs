//! The tasks of an assign by near centroids. A [`SortTask`] puts rows in the order of their groups and labels them block by block.
//! A [`UnitTask`] labels rows that an earlier assign sorted.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::int_dot::Copies;
use super::partition::Group;
use super::sorted::{RowLayout, RowsOfGroup, Sorted};
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

/// One thread's buffers.
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
    // labels are borrowed mutably for as long as the result lives, so there is no other reference to them.
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

/// What all tasks of an assign share.
pub struct Lists<'p, 'a, 'm, 'n, T> {
    pub shared: &'p Shared<'p, 'a, 'm, T>,
    pub step: &'p GroupStep<'n, T>,
    /// What all integer copies share, if rows have some.
    pub copies: Option<&'p Copies>,
    /// For each group, the copies of the centroids near it. Empty if this assign does without.
    pub tables: &'p [DotTable],
}

/// Labels blocks of rows, with the buffers of a thread.
pub struct Blocks<'p, 'a, 'm, 'n, T> {
    pub lists: &'p Lists<'p, 'a, 'm, 'n, T>,
    pub worker: &'p mut WorkerBuffers<T>,
    pub scratch: &'p mut GroupScratch<T>,
    /// Of all rows of the part.
    pub labels: &'p [AtomicU32],
}

/// Sorts the rows of a part and labels them. It is compiled for each instruction set.
pub struct SortTask<'p, 'a, 'm, 'n, T> {
    pub blocks: Blocks<'p, 'a, 'm, 'n, T>,
    pub sorted: &'p mut Sorted<T>,
    pub task: &'p TaskRows,
}

/// Labels the sorted rows of some groups between some places: see [`Sorted::units`]. It is compiled for each instruction set.
pub struct UnitTask<'p, 'a, 'm, 'n, T> {
    pub blocks: Blocks<'p, 'a, 'm, 'n, T>,
    pub sorted: &'p Sorted<T>,
    pub unit: [Range<usize>; 2],
}

impl<T: Float> Task for UnitTask<'_, '_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let ([groups, places], stride) = (self.unit.clone(), self.blocks.stride());
        for group in groups {
            let rows = self.sorted.rows(group);
            for rows in pieces(rows.start.max(places.start)..rows.end.min(places.end), stride) {
                self.blocks.label::<V>(&self.sorted.rows_of_group(group, rows), false);
            }
        }
    }
}

impl<T: Float> Task for SortTask<'_, '_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let (mut at, stride) = (0, self.blocks.stride());
        for physical in pieces(self.task.physical.clone(), self.sorted.most) {
            at += self.sort::<V>(physical, at);
            for group in 0..self.blocks.lists.step.groups() {
                for rows in pieces(self.sorted.rows(group), stride) {
                    let is_loaded = self.load_and_copy(group, rows.clone());
                    self.blocks.label::<V>(&self.sorted.rows_of_group(group, rows), is_loaded);
                }
            }
        }
        self.sorted.has_rows = true;
    }
}

impl<T: Float> SortTask<'_, '_, '_, '_, T> {
    /// Puts some rows in the order of their groups. `at`: the first one's place in the task. Returns how many are kept.
    #[inline(always)]
    fn sort<V: Vector>(&mut self, physical: Range<usize>, at: usize) -> usize {
        let Self { blocks, sorted, .. } = self;
        let Blocks { lists: Lists { shared: Shared { part, statistics, .. }, step, .. }, worker, scratch, labels } = blocks;
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

    /// Loads a newly sorted block of rows, and makes integer copies of them, where they are used. Returns whether the tile holds
    /// the rows now: not where the sorted rows have columns of their own.
    #[inline(always)]
    fn load_and_copy(&mut self, group: usize, rows: Range<usize>) -> bool {
        let Self { blocks, sorted, .. } = self;
        let Blocks { lists: Lists { shared: Shared { part, statistics, .. }, step, copies, .. }, scratch, .. } = blocks;
        if sorted.layout.has_columns() {
            return false;
        }
        sorted.rows_of_group(group, rows.clone()).load(&mut scratch.tile, part, statistics.weights);
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
}

impl<T: Float> Blocks<'_, '_, '_, '_, T> {
    /// The most rows that are labelled together: a few blocks of short rows have one list of near centroids.
    #[inline(always)]
    fn stride(&self) -> usize {
        let tile = self.worker.tile.stride;
        // The labels of a tile have room for this many rows.
        debug_assert!(BLOCK <= tile);
        if ScoreForm::of::<T>(self.lists.shared.table.d) == ScoreForm::Difference { tile } else { BLOCK }
    }

    /// Labels some rows of a group. `is_loaded`: whether the tile holds them already.
    #[inline(always)]
    fn label<V: Vector>(&mut self, rows: &RowsOfGroup<'_, T>, is_loaded: bool) {
        if !self.label_by_copies::<V>(rows, is_loaded) {
            self.label_by_values::<V>(rows, is_loaded);
        }
    }

    /// Labels some rows of a group, without integer copies. `is_loaded`: as for [`Blocks::label`].
    #[inline(always)]
    fn label_by_values<V: Vector>(&mut self, rows: &RowsOfGroup<'_, T>, is_loaded: bool) {
        let Self { lists: Lists { shared, step, .. }, worker, scratch, labels } = self;
        let Shared { part, statistics, table, .. } = shared;
        let GroupScratch { tile, labels: own, .. } = &mut **scratch;
        let WorkerBuffers { assigner, distances, deltas, moved, changed, .. } = &mut **worker;
        let (values, weights, next) = if rows.sorted.layout.has_columns() {
            let (values, weights, blocks) = rows.columns();
            (values, weights, PrefetchNext::Blocks(blocks))
        } else {
            if !is_loaded {
                rows.load(tile, part, statistics.weights);
            }
            (tile.values(), &tile.weights[..], PrefetchNext::Nothing)
        };
        let (count, places) = (rows.len(), rows.places);
        let mut most = None;
        if let (Filter::Difference(_), true) = (&table.filter, step.known) {
            let own = &mut own[..count];
            own.iter_mut().zip(places).for_each(|(own, place)| *own = labels[*place as usize].load(Ordering::Relaxed));
            own_distances::<V, T>(values, table, own, distances);
            most = Some(step.most(&distances[..count]));
        }
        let near = Some(Near { panels: step.listed(rows.group, rows.radius(), most), order: &step.groups.order });
        let new = assigner.label::<V, T, _, false>(&ToLabel { values, count, before: &[], near, next }, table, &mut []);
        moved.clear();
        for (row, (place, to)) in (0..).zip(places.iter().zip(new)) {
            moved.extend(moved_to(&labels[*place as usize], *to, row));
        }
        let row = |r: u32| part.features.row(rows.order[r as usize]).unwrap_or_default();
        // Rows that were loaded just now are in a cache.
        *changed += match is_loaded && statistics.weights.is_none() && table.d >= SQUARE && !row(0).is_empty() {
            true => shared.take_moved_rows::<V>(row, moved, deltas),
            false => shared.take_moved::<V>(values, weights, moved, deltas),
        };
    }

    /// Labels a block of rows by integer copies. Returns false if there are no copies or they leave too much in doubt.
    /// `is_loaded`: as for [`Blocks::label`].
    #[inline(always)]
    fn label_by_copies<V: Vector>(&mut self, rows: &RowsOfGroup<'_, T>, is_loaded: bool) -> bool {
        let Some(by_row) = self.find_candidates::<V>(rows) else { return false };
        if !self.scratch.needed.is_empty() {
            let moves_by_row = by_row && self.lists.shared.statistics.weights.is_none();
            self.settle_and_move::<V>(rows, is_loaded, moves_by_row);
        }
        true
    }

    /// Compares the copies of a block, and lists the rows that are needed: those in doubt, and those whose label changes. Returns
    /// whether the values of a row lie side by side. None if there are no copies or they leave too much in doubt.
    #[inline(always)]
    fn find_candidates<V: Vector>(&mut self, rows: &RowsOfGroup<'_, T>) -> Option<bool> {
        let Self { lists: Lists { shared: Shared { part, table, .. }, step, copies, tables }, worker, scratch, labels } = self;
        let (Some(shared), Some(copies), Some(dot_table)) = (copies, rows.copies(), tables.get(rows.group)) else {
            return None;
        };
        let listed = step.listed(rows.group, rows.radius(), None);
        // A block of rows far from the point needs more centroids than were copied.
        if listed.len() * GROUP > dot_table.own.len() {
            return None;
        }
        let block = DotBlock { rows: copies, count: rows.len(), table: dot_table, listed, unit: shared.unit };
        let (features, assigner, needed) = (&part.features, &mut worker.assigner, &mut scratch.needed);
        let is_copied = rows.sorted.layout == RowLayout::Rows;
        let by_row = is_copied || features.row(rows.order[0]).is_some();
        if !assigner.filter_by_int_dot::<V, T>(&block, by_row, table) {
            return None;
        }
        let own = rows.places.iter().map(|place| labels[*place as usize].load(Ordering::Relaxed));
        match is_copied {
            true => assigner.look_closer::<V, T>(rows.len(), table, |r| Some(rows.row(r)), own, needed),
            false => assigner.look_closer::<V, T>(rows.len(), table, |r| features.row(rows.order[r]), own, needed),
        }
        Some(by_row)
    }

    /// Settles the needed rows of a block that are in doubt, and moves those whose label changes. `moves_by_row`: whether rows
    /// that move are read where they lie. Then only rows in doubt are loaded. Else the tile gets all needed rows, unless it holds
    /// the whole block (`is_loaded`).
    #[inline(always)]
    fn settle_and_move<V: Vector>(&mut self, rows: &RowsOfGroup<'_, T>, is_loaded: bool, moves_by_row: bool) {
        let Self { lists: Lists { shared, .. }, worker, scratch, labels } = self;
        let Shared { part, statistics, table, .. } = shared;
        let GroupScratch { tile, needed, order, open, .. } = &mut **scratch;
        let WorkerBuffers { assigner, deltas, moved, changed, .. } = &mut **worker;
        assigner.list_open(needed, open);
        let has_needed_alone = !is_loaded && !moves_by_row;
        let loaded = if has_needed_alone { &*needed } else { &*open };
        if let (false, Some(last)) = (is_loaded, loaded.last()) {
            // Squares of rows are copied fast, so the last row fills up a square.
            let filling = std::iter::repeat_n(last, loaded.len().next_multiple_of(SQUARE) - loaded.len());
            rows.load_some(tile, part, statistics.weights, loaded.iter().chain(filling), order);
        }
        let values = tile.values();
        let new = assigner.settle_needed::<V, T>(values, loaded, !is_loaded, table);
        moved.clear();
        for (i, r) in needed.iter().enumerate() {
            let (label, to) = (&labels[rows.places[*r as usize] as usize], new[*r as usize]);
            moved.extend(moved_to(label, to, if has_needed_alone { i as u32 } else { *r }));
        }
        let row = |r: u32| match rows.sorted.layout {
            RowLayout::Rows => rows.row(r as usize),
            _ => part.features.row(rows.order[r as usize]).unwrap_or_default(),
        };
        *changed += match moves_by_row {
            true => shared.take_moved_rows::<V>(row, moved, deltas),
            false => shared.take_moved::<V>(values, &tile.weights, moved, deltas),
        };
    }
}
