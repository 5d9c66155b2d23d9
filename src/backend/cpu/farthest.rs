//! The rows of a worker that are farthest from their centroids.

use crate::backend::Far;
use crate::base::error::Result;
use crate::base::memory;

/// The farthest rows that a worker has seen.
#[derive(Debug, Default)]
pub struct Farthest {
    /// How many are wanted.
    count: usize,
    /// At least the farthest `count` rows, in no order.
    pub kept: Vec<Far>,
    /// At least `count` rows do not come after this one.
    last: Option<Far>,
}

impl Farthest {
    /// Removes all rows, and makes room for the `count` farthest of `rows`.
    pub fn start(&mut self, count: usize, rows: usize) -> Result<()> {
        *self = Self { count, kept: memory::with_room(room(count).min(rows), "the farthest rows")?, last: None };
        Ok(())
    }

    /// Keeps a row if it may be one of the farthest.
    #[inline(always)]
    pub fn see(&mut self, far: Far) {
        // Nearly all rows are nearer. A row at the same distance may have a smaller number, so it is kept, too.
        if self.last.is_none_or(|last| far.distance >= last.distance) {
            self.keep(far);
        }
    }

    fn keep(&mut self, far: Far) {
        self.kept.push(far);
        if self.kept.len() >= room(self.count) {
            self.last = Some(*self.kept.select_nth_unstable_by(self.count - 1, Far::order).1);
            self.kept.truncate(self.count);
        }
    }
}

/// The capacity of the list. The list is cut when it is full.
fn room(count: usize) -> usize {
    2 * count + 64
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(the_farthest_rows_are_kept_in_any_order_of_rows);
    fn the_farthest_rows_are_kept_in_any_order_of_rows() {
        let distance = |row: u64| (row * 7_919 % 101) as f64;
        for count in [1, 5, 300] {
            let all: Vec<Far> = (0..2_000).map(|row| Far { distance: distance(row), row, cluster: 0 }).collect();
            let mut farthest = Farthest::default();
            farthest.start(count, all.len()).unwrap();
            all.iter().rev().for_each(|far| farthest.see(*far));
            let mut kept = farthest.kept;
            kept.sort_unstable_by(Far::order);
            kept.truncate(count);
            let mut expected = all;
            expected.sort_unstable_by(Far::order);
            assert_eq!(kept, expected[..count]);
        }
    }
}
