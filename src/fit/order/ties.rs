//! Sorts rows by their keys, and rows of equal keys by their other values.
//!
//! ```text
//! sort by (key, row)
//! each run of equal keys:
//!   few rows:   load them, compare the other values, then the weights
//!   many rows:  new keys from the first values that are not the same in all of them, else from the weights; again from the start
//! ```
//! The longest run goes on in the loop and the others are calls, so calls are nested at most as deep as the logarithm of the
//! rows.

use std::cmp::Ordering;
use std::ops::Range;

use crate::base::error::Result;
use crate::base::float::{self, Float};
use crate::base::memory;
use crate::input::tile::RowBlock;

/// The name for the loaded rows in errors.
const ROWS: &str = "some rows that are compared";
/// Values that are loaded together, roughly.
const LOADED: usize = 1 << 16;
/// Stands for all features and the weights: rows that are equal in them are in order.
const WEIGHTS: usize = usize::MAX;

/// A row and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyedRow {
    pub key: u64,
    pub row: u32,
}

impl KeyedRow {
    /// No kept row has a larger key.
    pub const LAST: Self = Self { key: u64::MAX, row: u32::MAX };
}

/// Values in a key.
pub const fn of_key<T: Float>() -> usize {
    if T::IS_F32 { 2 } else { 1 }
}

/// The key of the first of these features: one of float64, two of float32. `x[f * stride]` is feature f.
pub fn key<T: Float>(x: &[T], stride: usize, features: Range<usize>) -> u64 {
    let of = |f: usize| float::key(x[f * stride]);
    if !T::IS_F32 {
        return of(features.start);
    }
    of(features.start) << 32 | features.clone().nth(1).map_or(0, of)
}

/// Loads rows by their numbers.
pub struct Loader<'p, 'a, T> {
    parts: &'p [RowBlock<'a, T>],
    /// The number of the first row of each part.
    starts: Vec<usize>,
    /// The most rows that can be loaded together.
    pub stride: usize,
    d: usize,
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

    /// Loads rows.
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
            match &part.weights {
                Some(weights) => weights.gather(list, &mut self.weights[at..]),
                None => self.weights[at..at + here].fill(1.0),
            }
            at += here;
        }
    }

    /// A feature of the rows that are loaded.
    pub fn column(&self, f: usize) -> &[T] {
        &self.x[f * self.stride..][..self.stride]
    }
}

/// Sorts rows.
pub struct Ties<'p, 'a, T> {
    loader: Loader<'p, 'a, T>,
    /// A row that others are compared with.
    first: Vec<T>,
}

impl<'p, 'a, T: Float> Ties<'p, 'a, T> {
    pub fn new(parts: &'p [RowBlock<'a, T>]) -> Result<Self> {
        let loader = Loader::new(parts)?;
        Ok(Self { first: memory::filled(loader.d, T::default(), ROWS)?, loader })
    }

    /// Sorts rows, whose keys are those of their first features.
    pub fn sort(&mut self, entries: &mut [KeyedRow]) {
        self.sort_by_keys(entries, of_key::<T>());
    }

    /// Sorts rows by their keys. Rows of equal keys have equal values in the first `known` features.
    fn sort_by_keys(&mut self, mut entries: &mut [KeyedRow], mut known: usize) {
        loop {
            entries.sort_unstable();
            // Rows that are left out have no values to compare.
            let there = entries.partition_point(|entry| entry.key < u64::MAX);
            entries = &mut entries[..there];
            let (mut longest, mut at) = (0..0, 0);
            for run in entries.chunk_by(|a, b| a.key == b.key) {
                if run.len() > longest.len() {
                    longest = at..at + run.len();
                }
                at += run.len();
            }
            let (before, rest) = entries.split_at_mut(longest.start);
            let (run, after) = rest.split_at_mut(longest.len());
            for run in [before, after].into_iter().flat_map(|side| side.chunk_by_mut(|a, b| a.key == b.key)) {
                if let Some(known) = self.go_on(run, known) {
                    self.sort_by_keys(run, known);
                }
            }
            let Some(more) = self.go_on(run, known) else { return };
            (entries, known) = (run, more);
        }
    }

    /// Sorts rows of equal keys, or gives them new keys. Returns how many features are then known to be equal in rows of equal
    /// keys.
    fn go_on(&mut self, run: &mut [KeyedRow], known: usize) -> Option<usize> {
        if run.len() < 2 || known == WEIGHTS {
            return None;
        }
        if run.len() <= self.loader.stride {
            self.sort_few(run, known);
            return None;
        }
        let first = self.first_difference(run, known);
        for some in run.chunks_mut(self.loader.stride) {
            self.loader.load(some.iter().map(|entry| entry.row));
            for (r, entry) in some.iter_mut().enumerate() {
                entry.key = match first {
                    Some(first) => key(&self.loader.x[r..], self.loader.stride, first..self.loader.d),
                    None => float::key(self.loader.weights[r]),
                };
            }
        }
        Some(first.map_or(WEIGHTS, |first| first + of_key::<T>()))
    }

    /// Sorts as many rows as can be loaded together. They have equal values in the first `known` features.
    fn sort_few(&mut self, run: &mut [KeyedRow], known: usize) {
        let loader = &mut self.loader;
        loader.load(run.iter().map(|entry| entry.row));
        // The key says where the row is loaded.
        run.iter_mut().zip(0..).for_each(|(entry, place)| entry.key = place);
        let order = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or(Ordering::Equal);
        run.sort_unstable_by(|a, b| {
            let places = [a.key as usize, b.key as usize];
            let values = (known..loader.d).map(|f| places.map(|place| loader.x[f * loader.stride + place].to_f64()));
            let weights = places.map(|place| loader.weights[place]);
            let mut each = values.chain([weights]).map(|[a, b]| order(a, b));
            each.find(|order| order.is_ne()).unwrap_or(Ordering::Equal).then(a.row.cmp(&b.row))
        });
    }

    /// The first feature from `known` on in which some of these rows differ.
    fn first_difference(&mut self, run: &[KeyedRow], known: usize) -> Option<usize> {
        let Self { loader, first } = self;
        let mut found = loader.d;
        for (number, some) in run.chunks(loader.stride).enumerate() {
            loader.load(some.iter().map(|entry| entry.row));
            if number == 0 {
                first.iter_mut().enumerate().for_each(|(f, first)| *first = loader.x[f * loader.stride]);
            }
            let differs = |f: &usize| loader.column(*f)[..some.len()].iter().any(|x| *x != first[*f]);
            found = (known..found).find(differs).unwrap_or(found);
        }
        (found < loader.d).then_some(found)
    }
}
