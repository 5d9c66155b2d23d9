//! One task of an assign by near centroids.

use std::ops::Range;
use std::sync::Mutex;

use super::sorted::{Sorted, Way};
use super::{BLOCK, NEAR, Scores, Step};
use crate::backend::cpu::assign::NearRows;
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::pass::{TaskRows, Worker, take_labels};
use crate::backend::cpu::simd::{Task, Vector};
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::{Partial, Quantiser};
use crate::prepare::Prepared;
use crate::tile::{Part, Tile};

/// One worker's buffers.
pub struct Scratch<T> {
    /// The rows that are labelled, where they do not lie in a tile.
    tile: Tile<T>,
    /// The groups of some rows, and for each physical row where it goes.
    groups: Vec<u8>,
    to: Vec<u32>,
    /// The labels of some rows.
    labels: Vec<u32>,
    /// The largest distances of rows that were gathered.
    radii: Vec<f64>,
    /// Rows that are sorted for one assign.
    pub sorted: Option<Sorted<T>>,
    pub scores: Scores,
}

impl<T: Float> Scratch<T> {
    /// `most`: rows that are sorted together. `stride`: rows of the worker's tile. `sorted`: where they go, unless the sorted rows are kept.
    pub fn new([d, most, stride]: [usize; 3], way: Way, sorted: Option<Sorted<T>>) -> Result<Self> {
        let rows = match way {
            Way::Tile => 0,
            Way::Blocks => BLOCK,
            Way::Gather => stride,
        };
        Ok(Self {
            tile: Tile::new(d, rows)?,
            groups: memory::zeroed(most + stride, NEAR)?,
            to: memory::zeroed(most, NEAR)?,
            labels: memory::zeroed(stride, NEAR)?,
            radii: memory::zeroed(stride / BLOCK, NEAR)?,
            sorted,
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
    pub sorted: &'p mut Sorted<T>,
    /// Whether `sorted` has the rows of this task already.
    pub is_sorted: bool,
    pub task: &'p TaskRows,
    pub labels: &'p mut [u32],
    pub step: &'p Step<'n, T>,
}

impl<T: Float> Task for NearTask<'_, '_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let stride = if self.sorted.way == Way::Blocks { BLOCK } else { self.worker.tile.stride };
        // The labels of a tile have room for this many rows.
        debug_assert!(stride <= self.worker.tile.stride);
        let mut at = 0;
        for start in self.task.physical.clone().step_by(self.sorted.most) {
            if !self.is_sorted {
                at += self.sort::<V>(start..(start + self.sorted.most).min(self.task.physical.end), at);
            }
            for group in 0..self.step.groups() {
                let rows = self.sorted.rows(group);
                for start in rows.clone().step_by(stride) {
                    self.label::<V>(group, start..rows.end.min(start + stride));
                }
            }
        }
    }
}

impl<T: Float> NearTask<'_, '_, '_, '_, T> {
    /// Loads some rows in the order of their groups. `at`: the first one's place in the task. Returns how many are kept.
    #[inline(always)]
    fn sort<V: Vector>(&mut self, physical: Range<usize>, at: usize) -> usize {
        let Self { part, prepared, worker, scratch, sorted, labels, step, .. } = self;
        let Scratch { groups, to, .. } = &mut **scratch;
        let kept = part.selection.count(physical.clone());
        if step.known {
            step.groups.of_labels(&labels[at..at + kept], groups);
        } else {
            let (tile, mut next) = (&mut worker.tile, 0);
            for start in physical.clone().step_by(tile.stride) {
                tile.load(part, prepared.weights, start..(start + tile.stride).min(physical.end));
                step.guess::<V>(tile, &mut groups[next..]);
                next += tile.rows;
            }
        }
        sorted.fill(part, prepared.weights, (physical, at), &groups[..kept], to, step);
        kept
    }

    /// Labels some rows of a group.
    #[inline(always)]
    fn label<V: Vector>(&mut self, group: usize, rows: Range<usize>) {
        let Self { part, prepared, quantiser, table, partial, worker, scratch, sorted, labels, step, .. } = self;
        let Scratch { tile, labels: own, radii: gathered, scores, .. } = &mut **scratch;
        let blocks = rows.len().div_ceil(BLOCK);
        let mut radii = &sorted.radii[rows.start / BLOCK..][..blocks];
        let (tile, first) = match sorted.way {
            Way::Tile => (&sorted.tile, rows.start),
            Way::Blocks => {
                tile.load_block(part, prepared.weights, sorted.block(rows.start), &sorted.order[rows.clone()]);
                (&*tile, 0)
            }
            Way::Gather => {
                tile.load_list(part, prepared.weights, &sorted.order[rows.clone()]);
                for (radius, start) in gathered.iter_mut().zip((0..rows.len()).step_by(BLOCK)) {
                    *radius = step.radius(&tile.x[start..], tile.stride, BLOCK.min(rows.len() - start), group);
                }
                radii = &gathered[..blocks];
                (&*tile, 0)
            }
        };
        let places = &sorted.places[rows.clone()];
        let own = &mut own[..places.len()];
        own.iter_mut().zip(places).for_each(|(own, place)| *own = labels[*place as usize]);
        let own = step.known.then_some(&*own);
        let Worker { assigner, distances, deltas, changed, .. } = &mut **worker;
        let near = NearRows { tile, first, rows: rows.len(), group, radii, own };
        let new = assigner.label_near::<V, T>(&near, table, step, distances, scores);
        *changed += take_labels((tile, first), labels, places, new, deltas, quantiser, prepared, partial);
    }
}
