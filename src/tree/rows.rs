//! The rows of a tree that grows. The rows of a node lie side by side, and those of its descendants are parts of them. So nodes
//! are fitted without a copy, and side by side.

use std::ops::Range;

use super::TREE;
use crate::backend::cpu::split_off;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, Selection, Tile};

/// Rows that are read at a time.
const READ: usize = 256;
/// How many tasks of reading a thread has.
const TASKS: usize = 4;

/// The kept rows, node by node.
pub struct NodeRows<T> {
    pub d: usize,
    /// `(n, d)`: the values as they are given.
    pub values: Vec<T>,
    /// Empty without weights.
    pub weights: Vec<f64>,
    /// The numbers of the rows among the kept rows.
    pub numbers: Vec<usize>,
}

impl<T: Engine> NodeRows<T> {
    /// The rows of a selection, in the order of their labels, which are below `k`. Rows of one label keep the order of the table.
    pub fn new(
        features: &Features<'_, T>,
        weights: Option<&Column<'_, f64>>,
        selection: &Selection,
        (labels, k): (&[u32], usize),
        threads: usize,
    ) -> Result<Self> {
        let (d, n, all) = (features.n_features(), labels.len(), features.n_rows());
        let mut part = RowBlock::new(features.clone(), weights.cloned());
        part.selection = selection.clone();
        let mut values = memory::zeroed_to_fill(n.saturating_mul(d), TREE)?;
        let mut of_rows = memory::zeroed(if weights.is_some() { n } else { 0 }, TREE)?;
        let mut numbers = memory::zeroed(n, TREE)?;
        let workers = workers_for(threads, all.div_ceil(READ));
        // Each task has room for every label.
        let step = all.div_ceil(TASKS * workers).max(k).next_multiple_of(READ);
        let mut tasks = memory::with_room(all.div_ceil(step.max(1)), TREE)?;
        let mut first = 0;
        for start in (0..all).step_by(step.max(1)) {
            let rows = start..all.min(start + step);
            let count = selection.count(rows.clone());
            let own = &labels[first..first + count];
            let mut counts = memory::zeroed::<usize>(k, TREE)?;
            own.iter().for_each(|label| counts[*label as usize] += 1);
            tasks.push(ReadTask { rows, first, labels: own, counts, room: memory::with_room(k, TREE)? });
            first += count;
        }
        let (mut to, mut w, mut number) = (&mut values[..], &mut of_rows[..], &mut numbers[..]);
        for label in 0..k {
            for task in &mut tasks {
                let count = task.counts[label];
                let (values, numbers) = (split_off(&mut to, count * d), split_off(&mut number, count));
                // Without weights, none are taken.
                task.room.push(RowsOfNode { values, weights: split_off(&mut w, count), numbers });
            }
        }
        let mut tiles = memory::try_collected((0..workers).map(|_| Tile::new(d, READ)), TREE)?;
        for_each_task(&mut tiles, tasks.into_iter(), |tile, task| task.read(&part, tile))?;
        Ok(Self { d, values, weights: of_rows, numbers })
    }

    /// Lends the rows of nodes, whose ranges are in order and apart.
    pub fn lend(&mut self, ranges: impl ExactSizeIterator<Item = Range<usize>>) -> Result<Vec<RowsOfNode<'_, T>>> {
        let Self { d, values, weights, numbers } = self;
        let (d, mut at) = (*d, 0);
        let (mut values, mut weights, mut numbers) = (&mut values[..], &mut weights[..], &mut numbers[..]);
        let mut lent = memory::with_room(ranges.len(), TREE)?;
        for range in ranges {
            let (skipped, count) = (range.start - at, range.len());
            at = range.end;
            split_off(&mut values, skipped * d);
            split_off(&mut numbers, skipped);
            // Without weights, none are taken.
            split_off(&mut weights, skipped);
            lent.push(RowsOfNode {
                values: split_off(&mut values, count * d),
                weights: split_off(&mut weights, count),
                numbers: split_off(&mut numbers, count),
            });
        }
        Ok(lent)
    }
}

/// The rows of one node.
pub struct RowsOfNode<'r, T> {
    pub values: &'r mut [T],
    pub weights: &'r mut [f64],
    pub numbers: &'r mut [usize],
}

/// Rows of the table to read, and the room for those of each label.
struct ReadTask<'l, 'r, T> {
    rows: Range<usize>,
    /// The number of the first kept one.
    first: usize,
    labels: &'l [u32],
    counts: Vec<usize>,
    room: Vec<RowsOfNode<'r, T>>,
}

impl<T: Engine> ReadTask<'_, '_, T> {
    fn read(mut self, part: &RowBlock<'_, T>, tile: &mut Tile<T>) {
        let (d, mut labels) = (part.features.n_features(), (self.first..).zip(self.labels));
        for start in self.rows.clone().step_by(READ) {
            tile.load(part, None, start..self.rows.end.min(start + READ));
            for (row, (number, label)) in labels.by_ref().take(tile.rows).enumerate() {
                let RowsOfNode { values, weights, numbers } = &mut self.room[*label as usize];
                split_off(values, d).iter_mut().enumerate().for_each(|(f, to)| *to = tile.column(f)[row]);
                split_off(weights, 1).fill(tile.weights[row]);
                split_off(numbers, 1).fill(number);
            }
        }
    }
}

impl<T: Engine> RowsOfNode<'_, T> {
    /// Puts the rows in this order. The order is overwritten.
    pub fn arrange(&mut self, mut order: Vec<usize>) -> Result<()> {
        let d = self.values.len() / order.len().max(1);
        let mut kept: Vec<T> = memory::zeroed(d, TREE)?;
        // The order is a permutation, and each of its cycles moves rows by one place. An entry that is its own index is done.
        for start in 0..order.len() {
            if order[start] == start {
                continue;
            }
            kept.copy_from_slice(&self.values[start * d..][..d]);
            let (number, weight) = (self.numbers[start], self.weights.get(start).copied());
            let mut to = start;
            loop {
                let from = std::mem::replace(&mut order[to], to);
                if from == start {
                    break;
                }
                self.values.copy_within(from * d..(from + 1) * d, to * d);
                self.numbers[to] = self.numbers[from];
                if weight.is_some() {
                    self.weights[to] = self.weights[from];
                }
                to = from;
            }
            self.values[to * d..][..d].copy_from_slice(&kept);
            self.numbers[to] = number;
            if let Some(weight) = weight {
                self.weights[to] = weight;
            }
        }
        Ok(())
    }

    /// Puts the numbers of the rows in this order. The values stay as they are, because no later step reads the values of leaves.
    pub fn number(&mut self, order: &[usize]) -> Result<()> {
        let numbers = memory::collected(order.iter().map(|row| self.numbers[*row]), TREE)?;
        self.numbers.copy_from_slice(&numbers);
        Ok(())
    }
}
