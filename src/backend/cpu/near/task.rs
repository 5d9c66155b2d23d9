//! One task of an assign by near centroids.

use std::sync::Mutex;

use super::{NEAR, Step};
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::pass::{TaskRows, Worker};
use crate::backend::cpu::simd::{Task, Vector};
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::{Partial, Quantiser};
use crate::prepare::Prepared;
use crate::tile::Part;

/// One worker's buffers.
pub struct Scratch {
    /// The group of each row of the task.
    groups: Vec<u8>,
    /// Where the rows of each group begin in the order of the groups.
    firsts: Vec<usize>,
    /// In the order of the groups: the rows' places in the task.
    places: Vec<u32>,
    /// The physical rows of the task.
    physical: Vec<usize>,
    /// The rows of a tile: their physical rows and their labels.
    rows: Vec<usize>,
    labels: Vec<u32>,
    pub scores: u64,
}

impl Scratch {
    pub fn new(task: usize, stride: usize, groups: usize) -> Result<Self> {
        Ok(Self {
            groups: memory::zeroed(task + stride, NEAR)?,
            firsts: memory::zeroed(groups + 1, NEAR)?,
            places: memory::zeroed(task, NEAR)?,
            physical: memory::with_room(task, NEAR)?,
            rows: memory::with_room(stride, NEAR)?,
            labels: memory::with_room(stride, NEAR)?,
            scores: 0,
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
    pub scratch: &'p mut Scratch,
    pub task: &'p TaskRows,
    pub labels: &'p mut [u32],
    pub step: &'p Step<'n, T>,
}

impl<T: Float> Task for NearTask<'_, '_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        self.sort();
        let stride = self.worker.tile.stride;
        for group in 0..self.step.groups() {
            let [first, end] = [self.scratch.firsts[group], self.scratch.firsts[group + 1]];
            for start in (first..end).step_by(stride) {
                self.tile::<V>(group, start..end.min(start + stride));
            }
        }
    }
}

impl<T: Float> NearTask<'_, '_, '_, '_, T> {
    /// Puts the rows in the order of their groups.
    #[inline(always)]
    fn sort(&mut self) {
        let Self { part, prepared, worker, scratch, task, labels, step, .. } = self;
        let Scratch { groups, firsts, places, physical, .. } = &mut **scratch;
        if step.known {
            for (group, label) in groups.iter_mut().zip(&**labels) {
                *group = step.group_of[*label as usize];
            }
        } else {
            let (tile, mut at) = (&mut worker.tile, 0);
            for start in task.physical.clone().step_by(tile.stride) {
                tile.load(part, prepared.weights, start..(start + tile.stride).min(task.physical.end));
                step.guess(tile, &mut groups[at..]);
                at += tile.rows;
            }
        }
        let groups = &groups[..task.kept];
        firsts.fill(0);
        for group in groups {
            firsts[usize::from(*group) + 1] += 1;
        }
        for group in 1..firsts.len() {
            firsts[group] += firsts[group - 1];
        }
        for (place, group) in groups.iter().enumerate() {
            let next = &mut firsts[usize::from(*group)];
            places[*next] = place as u32;
            *next += 1;
        }
        // Each entry has moved on to the end of its group.
        firsts.rotate_right(1);
        firsts[0] = 0;
        physical.clear();
        if !part.selection.is_all() {
            physical.extend(task.physical.clone().filter(|row| part.selection.contains(*row)));
        }
    }

    /// Labels some rows of a group.
    #[inline(always)]
    fn tile<V: Vector>(&mut self, group: usize, range: std::ops::Range<usize>) {
        let Self { part, prepared, quantiser, table, partial, worker, scratch, task, labels, step } = self;
        let Scratch { places, physical, rows, labels: own, scores, .. } = &mut **scratch;
        let places = &places[range];
        rows.clear();
        if part.selection.is_all() {
            rows.extend(places.iter().map(|place| task.physical.start + *place as usize));
        } else {
            rows.extend(places.iter().map(|place| physical[*place as usize]));
        }
        own.clear();
        own.extend(places.iter().map(|place| labels[*place as usize]));
        let Worker { tile, assigner, distances, .. } = &mut **worker;
        tile.load_list(part, prepared.weights, rows);
        let known = step.known.then_some(&own[..]);
        let new = assigner.label_near::<V, T>(tile, table, step, group, known, distances, scores);
        own.copy_from_slice(new);
        worker.take_labels(labels, places, own, quantiser, prepared, partial);
    }
}
