//! Finds the rows that many targets draw in one look over the rows: the targets are sorted.

use super::DRAWN;
use crate::base::error::Result;
use crate::base::memory;

/// The targets that no row was found for yet, and the running total of the draw weights.
pub struct Sweep<'t> {
    targets: &'t [u128],
    /// The indices of the targets, the largest target first.
    left: Vec<usize>,
    running: u128,
    rows: Vec<u64>,
}

impl<'t> Sweep<'t> {
    /// For each target: the first row whose running total exceeds it.
    pub fn new(targets: &'t [u128]) -> Result<Self> {
        let mut left: Vec<usize> = memory::collected(0..targets.len(), DRAWN)?;
        left.sort_unstable_by_key(|&index| std::cmp::Reverse(targets[index]));
        Ok(Self { targets, left, running: 0, rows: memory::zeroed(targets.len(), DRAWN)? })
    }

    /// Whether all rows are found.
    pub fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether a target lies in the next rows, which have this total. If not, the rows are passed over.
    pub fn stops_in(&mut self, total: u128) -> bool {
        let found = self.left.last().is_some_and(|&index| self.targets[index] - self.running < total);
        if !found {
            self.running += total;
        }
        found
    }

    /// Goes on by one row.
    #[inline(always)]
    pub fn visit(&mut self, row: usize, weight: u128) {
        self.running += weight;
        while let Some(&index) = self.left.last()
            && self.targets[index] < self.running
        {
            self.rows[index] = row as u64;
            self.left.pop();
        }
    }

    /// The rows, in the order of the targets.
    pub fn rows(self) -> Vec<u64> {
        self.rows
    }
}
