//! Ranges of rows, of which a table of draws on the device keeps totals (`seeds.rs`): a draw looks for its range first, and then for
//! its row within the range.
//!
//! ```text
//! ranges        of whole tiles, at most 4,096 a chunk: totals of draw weights
//! gain ranges   one or more whole ranges: what candidates would lower. Resident rows have one
//! ```

use std::ops::Range;

/// The most ranges of a chunk. One block searches all of them.
pub(super) const RANGES: usize = 4_096;
/// Rows of a tile of `seed_take` and `seed_gains`. A range is a multiple of it.
pub(super) const TILE: usize = 256;
/// The most gain ranges of a chunk that streams, and the fewest rows of a gain range. A gain range is a launch for every 12 candidates,
/// which should take less time than its rows take on the bus. The host computes the draw weights of a gain range that has a drawn row.
const GAIN_RANGES: usize = 64;
const GAIN_ROWS: usize = 4_096;

/// Rows in ranges of equal length. No range lies in two chunks, so the last one of a chunk may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranges {
    pub rows: usize,
    n: usize,
    chunk: usize,
}

impl Ranges {
    /// The ranges of `n` rows in chunks of `chunk` rows.
    pub(super) fn new(n: usize, chunk: usize) -> Self {
        let chunk = chunk.max(1);
        Self { rows: chunk.div_ceil(RANGES).next_multiple_of(TILE), n, chunk }
    }

    /// The gain ranges of these rows. Each is one or more whole ranges.
    pub(super) fn for_gains(self, streamed: bool) -> Self {
        let rows = if streamed { self.chunk.div_ceil(GAIN_RANGES).max(GAIN_ROWS) } else { self.chunk };
        Self { rows: rows.next_multiple_of(self.rows), ..self }
    }

    /// The number of the range of a row.
    pub(super) fn of(&self, row: usize) -> usize {
        row / self.chunk * self.chunk.div_ceil(self.rows) + row % self.chunk / self.rows
    }

    pub(super) fn count(&self) -> usize {
        self.n.checked_sub(1).map_or(0, |last| self.of(last) + 1)
    }

    /// The ranges, in order.
    pub(super) fn iter(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.n).step_by(self.chunk).flat_map(move |first| self.between(first, self.n.min(first + self.chunk)))
    }

    /// The ranges of a chunk that begins and ends at these rows.
    pub(super) fn between(self, first: usize, end: usize) -> impl Iterator<Item = Range<usize>> {
        (first..end).step_by(self.rows).map(move |first| first..end.min(first + self.rows))
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(ranges_are_whole_tiles_and_few);
    fn ranges_are_whole_tiles_and_few() {
        for n in [1, 255, 256, 257, 1 << 20, (1 << 20) + 1, 134_217_728, u32::MAX as usize] {
            let ranges = Ranges::new(n, n);
            let (rows, count) = (ranges.rows, ranges.count());
            assert!(rows % TILE == 0 && rows <= 1 << 24, "{n}");
            assert!(count <= RANGES && (count - 1) * rows < n && n <= count * rows, "{n}");
            assert_eq!(ranges.for_gains(false).count(), 1, "{n}");
        }
        assert_eq!(Ranges::new(0, 0).count(), 0);
    }

    unit_test!(ranges_cover_all_rows_in_order);
    fn ranges_cover_all_rows_in_order() {
        for (n, chunk) in [(1, 1_024), (1_024, 1_024), (1_025, 1_024), (100_000, 4_096), (9_000_000, 1_024 * 1_031)] {
            let ranges = Ranges::new(n, chunk);
            let long = ranges.for_gains(true);
            for ranges in [ranges, long] {
                let mut next = 0;
                for (index, range) in ranges.iter().enumerate() {
                    assert!(range.start == next && !range.is_empty() && range.len() <= ranges.rows);
                    assert!(range.start / chunk == (range.end - 1) / chunk && range.start % chunk % TILE == 0);
                    assert_eq!([range.start, range.end - 1].map(|row| ranges.of(row)), [index; 2]);
                    next = range.end;
                }
                assert_eq!((next, ranges.iter().count()), (n, ranges.count()));
            }
            assert!(chunk.div_ceil(long.rows) <= GAIN_RANGES && long.rows.is_multiple_of(ranges.rows));
        }
    }
}
