//! Gathers the kept rows of a part, wherever they are in memory.

use std::ops::Range;

use crate::base::error::Result;
use crate::base::memory;
use crate::input::features::Values;
use crate::input::tile::Selection;

/// The kept rows of a part. Each of them can be found directly by its number.
pub struct KeptNumbers {
    selection: Selection,
    n_rows: usize,
    pub count: usize,
    /// The number of kept rows before each run of `RUN` rows. Empty if every row is kept.
    before: Vec<usize>,
}

/// The rows between two entries of [`KeptNumbers::before`].
const RUN: usize = 4096;

impl KeptNumbers {
    pub fn new(selection: &Selection, n_rows: usize) -> Result<Self> {
        let mut kept = Self { selection: selection.clone(), n_rows, count: n_rows, before: Vec::new() };
        if !selection.is_all() {
            kept.count = 0;
            memory::reserve(&mut kept.before, n_rows.div_ceil(RUN), "which rows are kept")?;
            for run in cut(n_rows, RUN) {
                kept.before.push(kept.count);
                let words = run.start / 64..run.end.div_ceil(64);
                kept.count += words.map(|word| kept.word(word).count_ones() as usize).sum::<usize>();
            }
        }
        Ok(kept)
    }

    /// Which of the rows `64 * index` to `64 * index + 63` are kept. The lowest bit is the first row.
    fn word(&self, index: usize) -> u64 {
        let rows = index * 64..(index * 64 + 64).min(self.n_rows);
        rows.rev().fold(0, |word, row| word << 1 | u64::from(self.selection.contains(row)))
    }

    /// The row number, in the part, of the kept row with number `kept`.
    pub fn row(&self, kept: usize) -> usize {
        assert!(kept < self.count, "kept row {kept} of {}", self.count);
        if self.before.is_empty() {
            return kept;
        }
        let run = self.before.partition_point(|&before| before <= kept) - 1;
        let (mut skip, mut index) = (kept - self.before[run], run * RUN / 64);
        loop {
            let mut word = self.word(index);
            if skip < word.count_ones() as usize {
                (0..skip).for_each(|_| word &= word - 1);
                return index * 64 + word.trailing_zeros() as usize;
            }
            (skip, index) = (skip - word.count_ones() as usize, index + 1);
        }
    }

    /// Copies kept rows `kept`, each of `width` values, to `out` by `copy`. `slices` gives the values of a range of rows as
    /// slices. Each slice comes with the place of its first row in the range.
    pub fn gather<'v, T: Copy + 'v, V, S: Iterator<Item = (usize, Values<'v, T>)>>(
        &self,
        kept: Range<usize>,
        width: usize,
        slices: impl FnOnce(Range<usize>) -> S,
        out: &mut [V],
        copy: impl Fn(Values<'v, T>, &mut [V]),
    ) {
        if kept.is_empty() {
            return;
        }
        if self.before.is_empty() {
            for (at, values) in slices(kept) {
                copy(values, &mut out[at * width..][..values.len()]);
            }
            return;
        }
        let (first, mut filled) = (self.row(kept.start), 0);
        for (at, values) in slices(first..self.n_rows) {
            let row = first + at;
            let last = row + values.len() / width - 1;
            for index in row / 64..=last / 64 {
                // The kept rows of this word that are in the slice.
                let mut word = self.word(index) & u64::MAX << (row.max(index * 64) % 64);
                if index == last / 64 {
                    word &= u64::MAX >> (63 - last % 64);
                }
                while word != 0 {
                    // Neighbouring kept rows are copied together.
                    let skipped = word.trailing_zeros() as usize;
                    let together = ((word >> skipped).trailing_ones() as usize).min(kept.len() - filled);
                    let from = (index * 64 + skipped - row) * width;
                    let values = values.slice(from..from + together * width);
                    copy(values, &mut out[filled * width..][..values.len()]);
                    filled += together;
                    if filled == kept.len() {
                        return;
                    }
                    word &= !(u64::MAX >> (64 - together) << skipped);
                }
            }
        }
    }
}

/// Cuts `0..len` into ranges of at most `step` (at least 1).
pub fn cut(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    let step = step.max(1);
    (0..len).step_by(step).map(move |start| start..(start + step).min(len))
}

#[cfg(feature = "tests")]
pub mod tests {
    use super::*;
    use crate::input::features::Features;

    /// Keeps about two rows of three, except for long runs that are all kept or all left out.
    pub fn selection(n: usize, salt: u64) -> Selection {
        let mut bits = vec![0u64; n.div_ceil(64)];
        for i in 0..n {
            let scrambled = (i as u64 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let kept = match i / 150 % 4 {
                0 => true,
                1 => false,
                _ => !scrambled.is_multiple_of(3),
            };
            bits[i / 64] |= u64::from(kept) << (i % 64);
        }
        Selection::from_bits(bits)
    }

    unit_test!(kept_rows_are_gathered_from_anywhere_to_anywhere);
    fn kept_rows_are_gathered_from_anywhere_to_anywhere() {
        for n in [1, 63, 64, 65, 1000, 3 * RUN + 17] {
            for selection in [Selection::default(), selection(n, n as u64)] {
                let kept = KeptNumbers::new(&selection, n).unwrap();
                let rows: Vec<usize> = (0..n).filter(|&i| selection.contains(i)).collect();
                assert_eq!(kept.count, rows.len());
                assert!(rows.iter().enumerate().all(|(at, &row)| kept.row(at) == row));
                for (width, step) in [(1, n), (1, 37), (3, 70), (3, 64)] {
                    let values: Vec<f64> = (0..n * width).map(|i| i as f64).collect();
                    let blocks = values.chunks(step * width).map(|rows| (rows, None, None));
                    let view = Features::from_blocks(blocks, width).unwrap();
                    for range in [0..rows.len(), rows.len() / 3..rows.len() / 2, rows.len() / 2..rows.len()] {
                        let mut out = vec![f64::INFINITY; range.len() * width];
                        kept.gather(
                            range.clone(),
                            width,
                            |rows| view.row_slices(rows),
                            &mut out,
                            |values, out| values.copy(out),
                        );
                        let expected: Vec<f64> =
                            rows[range].iter().flat_map(|row| row * width..(row + 1) * width).map(|i| i as f64).collect();
                        assert_eq!(out, expected);
                    }
                }
            }
        }
    }
}
