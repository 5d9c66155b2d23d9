//! Totals of draw weights over ranges of rows. A draw looks for its range first, and then for its row within the range.

use std::ops::Range;

use crate::base::error::Result;
use crate::base::memory;

/// Rows of a range, as powers of two. Between the two a range has about as many rows as there are ranges.
const ROWS: std::ops::RangeInclusive<u32> = 8..=16;

/// The totals of consecutive ranges of rows of equal length. The last range may be shorter.
pub struct Ranges {
    pub totals: Vec<u128>,
    /// A range has two to the power of this many rows.
    shift: u32,
    rows: usize,
}

impl Ranges {
    pub fn new(rows: usize) -> Result<Self> {
        let shift = (rows.max(1).ilog2() / 2).clamp(*ROWS.start(), *ROWS.end());
        let totals = memory::zeroed(rows.div_ceil(1 << shift), "the totals of ranges of rows")?;
        Ok(Self { totals, shift, rows })
    }

    /// The range of a row.
    #[inline(always)]
    pub fn of(&self, row: usize) -> usize {
        row >> self.shift
    }

    /// The rows of a range.
    pub fn rows(&self, range: usize) -> Range<usize> {
        range << self.shift..((range + 1) << self.shift).min(self.rows)
    }
}
