//! One task of an assign by near centroids.

use std::ops::Range;
use std::sync::Mutex;

use super::{BLOCK, NEAR, Scores, Step};
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::pass::{TaskRows, Worker, take_labels};
use crate::backend::cpu::simd::{Task, Vector};
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::{Partial, Quantiser};
use crate::prepare::Prepared;
use crate::tile::{Part, Tile};

/// How rows come into the order of their groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// All rows of a batch in one tile: for few features.
    Tile,
    /// In blocks, which have short columns. Columns of features are read in order, and each fills its part of all blocks.
    Blocks,
    /// A tile at a time is gathered: for rows that lie row by row.
    Gather,
}

/// Most features of [`Way::Tile`]: the columns of more are in each other's way.
pub const FEW: usize = 64;
/// Values between blocks, so that their columns do not have the same place in a cache.
const APART: usize = 16;

/// One worker's buffers.
pub struct Scratch<T> {
    way: Way,
    /// Number of rows that are sorted together.
    most: usize,
    /// The rows that are labelled. With [`Way::Tile`], all rows in the order of their groups; [`BLOCK`] more values can be read behind each
    /// column.
    tile: Tile<T>,
    /// With [`Way::Blocks`]: the rows in the order of their groups, each group from a new block on. `(blocks, d, BLOCK)`, and [`APART`] more values
    /// for each block.
    blocks: Vec<T>,
    /// The group of each row.
    groups: Vec<u8>,
    /// Where the rows of each group begin in the order of the groups, then where they end.
    firsts: Vec<usize>,
    /// In the order of the groups: the rows' places in the task, and their physical rows.
    places: Vec<u32>,
    order: Vec<usize>,
    /// For each physical row, where it goes.
    to: Vec<u32>,
    /// The labels of some rows.
    labels: Vec<u32>,
    pub scores: Scores,
}

impl<T: Float> Scratch<T> {
    /// `by_columns`: how the features lie. `most`: rows of a batch. `stride`: rows of the worker's tile.
    pub fn new([d, most, stride, groups]: [usize; 4], by_columns: bool) -> Result<Self> {
        let way = match by_columns {
            _ if d <= FEW => Way::Tile,
            true => Way::Blocks,
            false => Way::Gather,
        };
        // Each group may have a block that is not full, and there is one more for rows that are left out.
        let places = if way == Way::Blocks { (most + groups * BLOCK).next_multiple_of(BLOCK) + BLOCK } else { most };
        let rows = match way {
            Way::Tile => (most + 2 * BLOCK).next_multiple_of(BLOCK),
            Way::Blocks => BLOCK,
            Way::Gather => stride,
        };
        let blocks = if way == Way::Blocks { places / BLOCK * (d * BLOCK + APART) } else { 0 };
        Ok(Self {
            way,
            most,
            tile: Tile::new(d, rows)?,
            blocks: memory::zeroed(blocks, NEAR)?,
            groups: memory::zeroed(most + stride, NEAR)?,
            firsts: memory::zeroed(2 * groups + 1, NEAR)?,
            places: memory::zeroed(places, NEAR)?,
            order: memory::zeroed(places, NEAR)?,
            to: memory::zeroed(most, NEAR)?,
            labels: memory::zeroed(stride, NEAR)?,
            scores: Scores::default(),
        })
    }
}

/// One task. It is compiled for each instruction set.
pub struct NearTask<'p, 'a, 'm, 'n, T> {
    pub part: &'p Part<'a, T>,
    pub prepared: &'p Prepared,
    pub quantiser: &'p Quantiser,
    pub table: &'p CentroidTable<T>,
    pub partial: &'p Mutex<&'m mut Partial>,
    pub worker: &'p mut Worker<T>,
    pub scratch: &'p mut Scratch<T>,
    pub task: &'p TaskRows,
    pub labels: &'p mut [u32],
    pub step: &'p Step<'n, T>,
}

impl<T: Float> Task for NearTask<'_, '_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let stride = if self.scratch.way == Way::Blocks { BLOCK } else { self.worker.tile.stride };
        let (mut at, groups) = (0, self.step.groups());
        // The labels of a tile have room for this many rows.
        debug_assert!(stride <= self.worker.tile.stride);
        for start in self.task.physical.clone().step_by(self.scratch.most) {
            let physical = start..(start + self.scratch.most).min(self.task.physical.end);
            at += self.sort::<V>(physical, at);
            for group in 0..groups {
                let [first, end] = [self.scratch.firsts[group], self.scratch.firsts[groups + group]];
                for start in (first..end).step_by(stride) {
                    self.label::<V>(group, start..end.min(start + stride));
                }
            }
        }
    }
}

impl<T: Float> NearTask<'_, '_, '_, '_, T> {
    /// Loads some rows in the order of their groups. `at`: the first one's place in the task. Returns how many are kept.
    #[inline(always)]
    fn sort<V: Vector>(&mut self, physical: Range<usize>, at: usize) -> usize {
        let Self { part, prepared, worker, scratch, labels, step, .. } = self;
        let Scratch { way, tile: sorted, blocks, groups, firsts, places, order, to, .. } = &mut **scratch;
        let kept = part.selection.count(physical.clone());
        if step.known {
            for (group, label) in groups.iter_mut().zip(&labels[at..at + kept]) {
                *group = step.group_of[*label as usize];
            }
        } else {
            let (tile, mut next) = (&mut worker.tile, 0);
            for start in physical.clone().step_by(tile.stride) {
                tile.load(part, prepared.weights, start..(start + tile.stride).min(physical.end));
                step.guess::<V>(tile, &mut groups[next..]);
                next += tile.rows;
            }
        }
        let groups = &groups[..kept];
        let (firsts, ends) = firsts.split_at_mut(step.groups());
        ends.fill(0);
        for group in groups {
            ends[usize::from(*group)] += 1;
        }
        let mut next = 0;
        for (first, end) in firsts.iter_mut().zip(&mut *ends) {
            let count = *end;
            (*first, *end) = (next, next);
            next += if *way == Way::Blocks { count.next_multiple_of(BLOCK) } else { count };
        }
        // A row that is left out goes behind all others.
        let nowhere = if *way == Way::Tile { sorted.stride } else { places.len() } - 1;
        let mut place = 0;
        for (to, row) in to.iter_mut().zip(physical.clone()) {
            *to = nowhere as u32;
            if part.selection.contains(row) {
                let end = &mut ends[usize::from(groups[place])];
                *to = *end as u32;
                (places[*end], order[*end]) = ((at + place) as u32, row);
                *end += 1;
                place += 1;
            }
        }
        match way {
            Way::Tile => sorted.load_sorted(part, prepared.weights, physical, to, &order[..kept]),
            Way::Blocks => {
                let block = blocks.len() / (places.len() / BLOCK);
                part.features.scatter_blocks(physical, to, block, blocks);
            }
            Way::Gather => {}
        }
        kept
    }

    /// Labels some rows of a group.
    #[inline(always)]
    fn label<V: Vector>(&mut self, group: usize, rows: Range<usize>) {
        let Self { prepared, quantiser, table, partial, worker, scratch, labels, step, .. } = self;
        let Scratch { way, tile, blocks, places, order, labels: own, scores, .. } = &mut **scratch;
        let order = &order[rows.clone()];
        let first = match way {
            Way::Tile => rows.start,
            Way::Blocks => {
                let block = blocks.len() / (places.len() / BLOCK);
                tile.load_block(self.part, prepared.weights, &blocks[rows.start / BLOCK * block..][..block], order);
                0
            }
            Way::Gather => {
                tile.load_list(self.part, prepared.weights, order);
                0
            }
        };
        let places = &places[rows.clone()];
        let own = &mut own[..places.len()];
        own.iter_mut().zip(places).for_each(|(own, place)| *own = labels[*place as usize]);
        let Worker { assigner, distances, deltas, changed, .. } = &mut **worker;
        let known = step.known.then_some(&*own);
        let shape = [group, first, rows.len()];
        let new = assigner.label_near::<V, T>(tile, table, step, shape, known, distances, scores);
        *changed += take_labels((tile, first), labels, places, new, deltas, quantiser, prepared, partial);
    }
}
