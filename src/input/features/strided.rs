//! Values at regular distances in a slice: a part of an array, or an array whose axes were swapped or turned around.

use super::transpose;
use crate::base::error::{KMeansError, Result};
use crate::input::fp16::Same;

/// Value `f` of row `r` is `values[first + r * row_step + f * column_step]`.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a, T> {
    values: &'a [T],
    first: usize,
    row_step: isize,
    column_step: isize,
}

impl<'a, T: Copy + Default> Strided<'a, T> {
    /// # Errors
    /// [`KMeansError::LengthMismatch`] if a value lies outside of the slice.
    pub fn new(values: &'a [T], first: usize, [n, d]: [usize; 2], [row_step, column_step]: [isize; 2]) -> Result<Self> {
        let mut ends = [first as i128; 2];
        for (len, step) in [(n, row_step), (d, column_step)] {
            let last = (len.max(1) - 1) as i128 * step as i128;
            ends[usize::from(last > 0)] += last;
        }
        if n > 0 && (ends[0] < 0 || ends[1] >= values.len() as i128) {
            let expected = usize::try_from(ends[1].saturating_add(1)).unwrap_or(usize::MAX);
            return Err(KMeansError::LengthMismatch { what: "an array".into(), expected, got: values.len() });
        }
        Ok(Self { values, first, row_step, column_step })
    }

    /// The rows from this one on.
    pub fn starting_at(&self, row: usize) -> Self {
        Self { first: self.place(row, 0), ..*self }
    }

    fn place(&self, row: usize, f: usize) -> usize {
        self.first
            .wrapping_add_signed((row as isize).wrapping_mul(self.row_step))
            .wrapping_add_signed(f as isize * self.column_step)
    }

    /// Value `f` of a row.
    pub fn get(&self, row: usize, f: usize) -> T {
        self.values[self.place(row, f)]
    }

    /// The same, as a slice of one value.
    #[cfg(feature = "cuda")]
    pub fn one(&self, row: usize, f: usize) -> &'a [T] {
        &self.values[self.place(row, f)..][..1]
    }

    /// The first `n` values of a feature, if they are neighbours.
    pub fn column(&self, f: usize, n: usize) -> &'a [T] {
        &self.values[self.place(0, f)..][..n]
    }

    /// Copies these rows of `d` features to `out[f * stride + i]`. `i` is the position in the list.
    pub fn copy_rows(&self, rows: impl Iterator<Item = usize> + Clone, d: usize, stride: usize, out: &mut [T]) {
        if self.column_step == 1 {
            let values = |row| &self.values[self.place(row, 0)..][..d];
            return transpose::rows_to_columns::<_, _, Same>(rows.map(values), 0, stride, out);
        }
        for (f, out) in out.chunks_exact_mut(stride).take(d).enumerate() {
            rows.clone().zip(out).for_each(|(row, out)| *out = self.get(row, f));
        }
    }
}
