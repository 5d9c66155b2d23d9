//! Which cluster of one model is which of another: the matching of least total cost.
//!
//! ```text
//! cost[i][j] = reference distance of old i and new j, as an integer of 90 bits below the largest; 0 for a partner that is missing
//! for each old i:    a shortest path from i to a new j without partner, along reduced costs; swap the partners on it
//! for each old i, in order:    the smallest j that some matching of least cost gives to i, given those before
//! ```
//! R. Jonker and A. Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment problems", Computing 38
//! (1987), doi:10.1007/BF02278710. Costs are integers, so equal costs are equal, and the matching is one on every machine: a
//! matching has least cost if and only if its reduced costs are all 0.

use crate::base::error::{KMeansError, Result};
use crate::base::interrupt;
use crate::base::memory;
use crate::base::params::MOST_MATCHED;
use crate::exact::fixed::{ColumnScale, Limbs};
use crate::exact::reference;

/// What errors call the costs.
const WHAT: &str = "the distances of the centroids";

/// The square of costs, filled up with partners that cost nothing.
struct Costs {
    /// `(rows, columns)`.
    costs: Vec<i128>,
    rows: usize,
    columns: usize,
    /// The sums of a cost and both potentials are at least 0.
    of_row: Vec<i128>,
    of_column: Vec<i128>,
    /// The row of each column, and the column of each row.
    row_of: Vec<usize>,
    column_of: Vec<usize>,
}

/// No row or column.
const NONE: usize = usize::MAX;

/// The partner of each old centroid among the new ones. Both are `(k, d)`, row-major. As many have a partner as can have one.
///
/// # Errors
/// [`KMeansError::InvalidOption`] for more than 4,096 clusters, [`KMeansError::NoMemory`], [`KMeansError::Cancelled`].
pub fn match_centroids(old: &[f64], new: &[f64], d: usize) -> Result<Vec<Option<u32>>> {
    let (rows, columns) = (old.len() / d, new.len() / d);
    if rows.max(columns) > MOST_MATCHED {
        let (expected, got) = (format!("at most {MOST_MATCHED} clusters to match"), rows.max(columns).to_string());
        return Err(KMeansError::InvalidOption { option: "k", expected, got });
    }
    let pairs = old.chunks_exact(d).flat_map(|a| new.chunks_exact(d).map(move |b| reference::distance(a, b)));
    let distances = memory::collected(pairs, WHAT)?;
    let largest = distances.iter().fold(0.0f64, |m, s| m.max(*s));
    let scale = ColumnScale::for_extent::<f64>(largest, Limbs::Two);
    let n = rows.max(columns);
    let mut all = Costs {
        costs: memory::collected(distances.iter().map(|s| scale.quantise(*s)), WHAT)?,
        rows,
        columns,
        of_row: memory::zeroed(n, WHAT)?,
        of_column: memory::zeroed(n, WHAT)?,
        row_of: memory::filled(n, NONE, WHAT)?,
        column_of: memory::filled(n, NONE, WHAT)?,
    };
    for row in 0..n {
        interrupt::check()?;
        all.augment(row, n)?;
    }
    for row in 0..rows {
        interrupt::check()?;
        all.make_smallest(row, n)?;
    }
    let partner = |column: &usize| (*column < columns).then_some(*column as u32);
    memory::collected(all.column_of[..rows].iter().map(partner), WHAT)
}

impl Costs {
    /// The reduced cost of a pair.
    fn reduced(&self, row: usize, column: usize) -> i128 {
        let there = row < self.rows && column < self.columns;
        let cost = if there { self.costs[row * self.columns + column] } else { 0 };
        cost - self.of_row[row] - self.of_column[column]
    }

    /// Gives a row a column, by the path of least cost.
    fn augment(&mut self, row: usize, n: usize) -> Result<()> {
        let mut least = memory::filled(n, i128::MAX, WHAT)?;
        let mut before = memory::filled(n, NONE, WHAT)?;
        let mut done: Vec<bool> = memory::zeroed(n, WHAT)?;
        let (mut at, mut path, mut last) = (row, 0i128, NONE);
        loop {
            let (mut next, mut shortest) = (NONE, i128::MAX);
            for column in (0..n).filter(|column| !done[*column]) {
                let length = path + self.reduced(at, column);
                if length < least[column] {
                    (least[column], before[column]) = (length, last);
                }
                if least[column] < shortest {
                    (next, shortest) = (column, least[column]);
                }
            }
            (last, path) = (next, shortest);
            done[last] = true;
            if self.row_of[last] == NONE {
                break;
            }
            at = self.row_of[last];
        }
        self.of_row[row] += path;
        for column in (0..n).filter(|column| done[*column] && *column != last) {
            self.of_column[column] -= path - least[column];
            self.of_row[self.row_of[column]] += path - least[column];
        }
        // Each column on the path takes over the row of the one before it.
        while last != NONE {
            let from = before[last];
            let taken = if from == NONE { row } else { self.row_of[from] };
            (self.row_of[last], self.column_of[taken]) = (taken, last);
            last = from;
        }
        Ok(())
    }

    /// Gives a row the smallest column that it has in a matching of least cost in which the rows before keep theirs.
    fn make_smallest(&mut self, row: usize, n: usize) -> Result<()> {
        let own = self.column_of[row];
        for wanted in 0..own.min(self.columns) {
            let owner = self.row_of[wanted];
            if owner < row || self.reduced(row, wanted) != 0 {
                continue;
            }
            // The owner needs another column: along pairs of reduced cost 0, until the row's own column is free.
            let mut before = memory::filled(n, NONE, WHAT)?;
            let (mut queue, mut head) = (memory::with_room(n, WHAT)?, 0);
            queue.push(wanted);
            before[wanted] = wanted;
            while before[own] == NONE && head < queue.len() {
                let from: usize = queue[head];
                head += 1;
                for column in 0..n {
                    let free = before[column] == NONE && (self.row_of[column] > row || column == own);
                    if free && self.reduced(self.row_of[from], column) == 0 {
                        before[column] = from;
                        queue.push(column);
                    }
                }
            }
            if before[own] != NONE {
                let mut column = own;
                while column != wanted {
                    let taken = self.row_of[before[column]];
                    (self.row_of[column], self.column_of[taken]) = (taken, column);
                    column = before[column];
                }
                (self.row_of[wanted], self.column_of[row]) = (row, wanted);
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::random::Random;

    /// Of all ways to give old centroids a new one each, as many as can have one: the least total, then the smallest list of
    /// partners, of which the missing one is the largest.
    fn by_trying(costs: &[Vec<u64>], columns: usize) -> Vec<Option<u32>> {
        let ways = (columns + 1).pow(costs.len() as u32);
        let way = |code: usize| -> Vec<usize> {
            (0..costs.len()).map(|i| code / (columns + 1).pow(i as u32) % (columns + 1)).collect()
        };
        let fits = |partners: &Vec<usize>| {
            let mut some: Vec<&usize> = partners.iter().filter(|j| **j < columns).collect();
            some.sort();
            some.windows(2).all(|two| two[0] < two[1]) && some.len() == costs.len().min(columns)
        };
        let total = |partners: &[usize]| partners.iter().zip(costs).filter_map(|(j, costs)| costs.get(*j)).sum::<u64>();
        let best = (0..ways).map(way).filter(fits).map(|partners| (total(&partners), partners)).min().unwrap().1;
        best.into_iter().map(|j| (j < columns).then_some(j as u32)).collect()
    }

    unit_test!(matchings_are_those_found_by_trying_all);
    fn matchings_are_those_found_by_trying_all() {
        let random = &mut Random(3);
        for case in 0..600 {
            let (rows, columns, d) = (1 + case % 5, 1 + case / 5 % 5, 1 + case % 2);
            // Few levels: many equal costs.
            let levels = [2, 3, 50][case % 3];
            let mut centroids = |k: usize| -> Vec<f64> { (0..k * d).map(|_| (random.bits(20) % levels) as f64).collect() };
            let (old, new) = (centroids(rows), centroids(columns));
            let cost = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| ((a - b) * (a - b)) as u64).sum::<u64>();
            let costs: Vec<Vec<u64>> = old.chunks(d).map(|a| new.chunks(d).map(|b| cost(a, b)).collect()).collect();
            let found = match_centroids(&old, &new, d).unwrap();
            assert_eq!(found, by_trying(&costs, columns), "{old:?} {new:?}");
        }
    }
}
