//! Loads rows by their numbers.

use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::RowBlock;

/// The name for the loaded rows in errors.
const ROWS: &str = "some rows that are loaded";
/// Values that are loaded together, roughly.
const LOADED: usize = 1 << 16;

/// Rows that are loaded by their numbers among the rows of all parts.
pub struct Loader<'p, 'a, T> {
    parts: &'p [RowBlock<'a, T>],
    /// The number of the first row of each part.
    starts: Vec<usize>,
    /// The most rows that can be loaded together.
    pub stride: usize,
    pub d: usize,
    /// `(d, stride)`, and room for one more column: rows of a part that are not the first begin later.
    x: Vec<T>,
    /// The weights of the rows that are loaded.
    pub weights: Vec<f64>,
    rows: Vec<usize>,
}

impl<'p, 'a, T: Float> Loader<'p, 'a, T> {
    pub fn new(parts: &'p [RowBlock<'a, T>]) -> Result<Self> {
        let d = parts[0].features.n_features();
        let rows: usize = parts.iter().map(|part| part.features.n_rows()).sum();
        let stride = (LOADED / d).clamp(16, 1 << 12).min(rows);
        let starts = parts.iter().scan(0, |next, part| Some(std::mem::replace(next, *next + part.features.n_rows())));
        Ok(Self {
            parts,
            starts: memory::collected(starts, ROWS)?,
            stride,
            d,
            x: memory::filled((d + 1).saturating_mul(stride), T::default(), ROWS)?,
            weights: memory::filled(stride, 1.0, ROWS)?,
            rows: memory::with_room(stride, ROWS)?,
        })
    }

    /// Loads rows, at most `stride`.
    pub fn load(&mut self, rows: impl Iterator<Item = u32>) {
        self.rows.clear();
        self.rows.extend(rows.map(|row| row as usize));
        let (mut at, count) = (0, self.rows.len());
        while at < count {
            let number = self.starts.partition_point(|&start| start <= self.rows[at]) - 1;
            let (part, start) = (&self.parts[number], self.starts[number]);
            let of_part = start..start + part.features.n_rows();
            let here = self.rows[at..].iter().take_while(|row| of_part.contains(row)).count();
            let list = &mut self.rows[at..at + here];
            list.iter_mut().for_each(|row| *row -= start);
            part.features.gather_tile(list, self.stride, &mut self.x[at..at + self.d * self.stride]);
            part.gather_weights(None, list, &mut self.weights[at..]);
            at += here;
        }
    }

    /// The weight of a row.
    pub fn weight(&self, row: u32) -> f64 {
        let (number, row) = self.place(row as usize);
        let mut weight = [1.0];
        self.parts[number].gather_weights(None, &[row], &mut weight);
        weight[0]
    }

    /// The part of a row, and the row's number in it.
    fn place(&self, row: usize) -> (usize, usize) {
        let part = self.starts.partition_point(|&start| start <= row) - 1;
        (part, row - self.starts[part])
    }

    /// A feature of the rows that are loaded.
    pub fn column(&self, f: usize) -> &[T] {
        &self.x[f * self.stride..][..self.stride]
    }
}
