//! Float32 values that start at a cache line. A register of 64 bytes, or a line of a tile, is then in one cache line instead of
//! two.

use std::ops::{Deref, DerefMut};

use crate::base::error::Result;
use crate::base::memory;

/// Values in a cache line.
const LINE: usize = 16;

/// Values in a vector, from a cache line on.
#[derive(Debug, Default)]
pub struct Lines {
    /// The values, with up to a line before and after them.
    values: Vec<f32>,
    first: usize,
    len: usize,
}

impl Lines {
    /// `len` values of 0. As [`memory::zeroed_to_fill`], it touches no memory.
    pub fn zeroed(len: usize, what: &'static str) -> Result<Self> {
        Ok(Self::in_memory(memory::zeroed_to_fill(len.saturating_add(LINE - 1), what)?, len))
    }

    /// No values, and room for `most` in memory that was not written yet: see [`Lines::grow`].
    pub fn with_room(most: usize, what: &'static str) -> Result<Self> {
        let mut values: Vec<f32> = memory::room_to_fill(most.saturating_add(LINE - 1), what)?;
        let first = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE - 1);
        values.resize(first, 0.0);
        Ok(Self { values, first, len: 0 })
    }

    /// Appends values of 0 until there are `len`, for which there must be room.
    #[inline(always)]
    pub fn grow(&mut self, len: usize) {
        if self.len < len {
            assert!(self.first + len <= self.values.capacity(), "the values would move");
            self.values.resize(self.first + len, 0.0);
            self.len = len;
        }
    }

    /// Makes them `len` values of 0, in the same memory if there is enough. After an error there are none.
    pub fn reset(&mut self, len: usize, what: &'static str) -> Result<()> {
        let mut values = std::mem::take(self).values;
        let needed = len.saturating_add(LINE - 1);
        values.clear();
        memory::reserve(&mut values, needed, what)?;
        values.resize(needed, 0.0);
        *self = Self::in_memory(values, len);
        Ok(())
    }

    /// The first `len` of these values that start at a cache line.
    fn in_memory(values: Vec<f32>, len: usize) -> Self {
        // Where no place is known, the first value is taken. That costs time alone.
        let first = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(values.len() - len);
        Self { values, first, len }
    }
}

impl Deref for Lines {
    type Target = [f32];

    #[inline(always)]
    fn deref(&self) -> &[f32] {
        &self.values[self.first..self.first + self.len]
    }
}

impl DerefMut for Lines {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.first..self.first + self.len]
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    fn check(lines: &mut Lines, len: usize) {
        assert_eq!((lines.as_ptr() as usize % 64, lines.len()), (0, len));
        assert!(lines.iter().all(|x| *x == 0.0));
        lines.fill(1.0);
    }

    unit_test!(values_start_at_a_cache_line);
    fn values_start_at_a_cache_line() {
        for len in [0, 1, 16, 17, 100_000] {
            let mut lines = Lines::zeroed(len, "values").unwrap();
            check(&mut lines, len);
            for len in [3, 2 * len] {
                lines.reset(len, "values").unwrap();
                check(&mut lines, len);
            }
        }
        let mut lines = Lines::with_room(100, "values").unwrap();
        for (len, grown) in [(0, 0), (16, 16), (10, 16), (100, 100)] {
            lines.grow(len);
            check(&mut lines, grown);
            lines.fill(0.0);
        }
        assert!(Lines::zeroed(usize::MAX, "values").is_err() && Lines::with_room(usize::MAX, "values").is_err());
        let mut lines = Lines::zeroed(3, "values").unwrap();
        assert!(lines.reset(usize::MAX, "values").is_err() && lines.is_empty());
        assert!(Lines::default().is_empty());
    }
}
