//! The rows of a tree that grows. The rows of a node lie side by side, and those of its descendants are parts of them. So nodes
//! are fitted without a copy, and side by side.

use std::ops::Range;

use super::TREE;
use crate::backend::cpu::split_off;
use crate::base::error::Result;
use crate::base::memory;
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, Tile};
use crate::model::Fitted;

/// Rows that are read at a time.
const READ: usize = 1_024;

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
    /// The rows that a fit has kept.
    pub fn new(features: &Features<'_, T>, weights: Option<&Column<'_, f64>>, fit: &Fitted<T>) -> Result<Self> {
        let (d, n) = (features.n_features(), fit.labels.len());
        let mut part = RowBlock::new(features.clone(), weights.cloned());
        part.selection = fit.selection[0].0.clone();
        let (mut tile, mut values) = (Tile::new(d, READ)?, memory::with_room(n.saturating_mul(d), TREE)?);
        let mut of_rows = memory::with_room(if weights.is_some() { n } else { 0 }, TREE)?;
        for first in (0..features.n_rows()).step_by(READ) {
            tile.load(&part, None, first..features.n_rows().min(first + READ));
            for row in 0..tile.rows {
                values.extend((0..d).map(|f| tile.column(f)[row]));
            }
            if weights.is_some() {
                of_rows.extend_from_slice(&tile.weights[..tile.rows]);
            }
        }
        Ok(Self { d, values, weights: of_rows, numbers: memory::collected(0..n, TREE)? })
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

impl<T: Engine> RowsOfNode<'_, T> {
    /// Puts the rows in this order.
    pub fn arrange(&mut self, order: &[usize]) -> Result<()> {
        let d = self.values.len() / order.len().max(1);
        let mut values = memory::with_room(self.values.len(), TREE)?;
        order.iter().for_each(|row| values.extend_from_slice(&self.values[row * d..][..d]));
        self.values.copy_from_slice(&values);
        let numbers = memory::collected(order.iter().map(|row| self.numbers[*row]), TREE)?;
        self.numbers.copy_from_slice(&numbers);
        if !self.weights.is_empty() {
            let weights = memory::collected(order.iter().map(|row| self.weights[*row]), TREE)?;
            self.weights.copy_from_slice(&weights);
        }
        Ok(())
    }
}
