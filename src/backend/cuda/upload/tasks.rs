//! How the rows are cut into tasks, and where each goes.

use std::ops::Range;

use super::super::device::Plain;
use super::kept::{Kept, cut};
use super::pinned::Strips;
use crate::float::Float;
use crate::tile::Part;

/// A part, and the place of its kept rows.
pub struct Source<'p, 'a, T> {
    pub part: &'p Part<'a, T>,
    pub kept: Kept<'p>,
    /// The device row of its first kept row.
    pub first: usize,
}

/// What fills a slot, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub part: usize,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Kept values of all columns, one column behind the other.
    Columns(Range<usize>),
    /// Kept rows of blocks, and which features of them: all, unless one row alone is more than a slot.
    Rows(Range<usize>, Range<usize>),
    /// Weights of kept rows.
    Weights(Range<usize>),
}

impl<'p, 'a, T: Float + Plain> Source<'p, 'a, T> {
    /// Rows are counted on.
    pub fn new(part: &'p Part<'a, T>, n: &mut usize) -> Self {
        let source = Self { part, kept: Kept::new(&part.selection, part.features.n_rows()), first: *n };
        *n += source.kept.count;
        source
    }

    pub fn tasks(&self, part: usize, slot: usize, weighted: bool) -> Vec<Task> {
        let (n, d, values) = (self.kept.count, self.part.features.n_features(), (slot / size_of::<T>()).max(1));
        let mut all: Vec<What> = if self.part.features.columns().is_some() {
            cut(n * d, values).map(What::Columns).collect()
        } else {
            cut(n, values / d).flat_map(|rows| cut(d, values).map(move |features| What::Rows(rows.clone(), features))).collect()
        };
        if weighted {
            all.extend(cut(n, slot / size_of::<f64>()).map(What::Weights));
        }
        all.into_iter().map(|what| Task { part, what }).collect()
    }

    /// Kept values `range` of all columns, one column behind the other.
    pub fn fill_columns(&self, range: &Range<usize>, out: &mut [T]) {
        let Some(columns) = self.part.features.columns() else { return };
        let (n, mut out) = (self.kept.count, out);
        let mut at = range.start;
        while at < range.end {
            let (column, row) = (&columns[at / n], at % n);
            let len = (n - row).min(range.end - at);
            let (piece, rest) = out.split_at_mut(len);
            self.kept.gather(row..row + len, 1, |rows| column.slices(rows), piece);
            (at, out) = (at + len, rest);
        }
    }

    /// Kept rows of blocks, row-major.
    pub fn fill_rows(&self, rows: &Range<usize>, features: &Range<usize>, out: &mut [T]) {
        let view = &self.part.features;
        if features.len() == view.n_features() {
            return self.kept.gather(rows.clone(), features.len(), |rows| view.row_slices(rows), out);
        }
        for (kept, out) in rows.clone().zip(out.chunks_exact_mut(features.len())) {
            let row = self.kept.row(kept);
            for (_, values) in view.row_slices(row..row + 1) {
                out.copy_from_slice(&values[features.clone()]);
            }
        }
    }

    pub fn fill_weights(&self, rows: &Range<usize>, out: &mut [f64]) {
        match &self.part.weights {
            Some(weights) => self.kept.gather(rows.clone(), 1, |rows| weights.slices(rows), out),
            None => out.fill(1.0),
        }
    }
}

/// Where kept values `range` of columns of `n` kept rows each go, the first to `to`: the end of one column, whole columns, the
/// start of another. Columns are `stride` values apart on the device.
pub fn strips<T>(range: &Range<usize>, n: usize, stride: usize, to: impl Fn(usize) -> u64) -> Vec<Strips> {
    let size = size_of::<T>();
    let mut all = Vec::with_capacity(3);
    let mut at = range.start;
    while at < range.end {
        let (column, row) = (at / n, at % n);
        let left = range.end - at;
        let (width, count) = if row == 0 && left >= n { (n, left / n) } else { ((n - row).min(left), 1) };
        let from = (at - range.start) * size;
        all.push(Strips { from, width: width * size, count, to: to(column * stride + row), pitch: stride * size });
        at += width * count;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;

    #[test]
    fn tasks_and_strips_cover_a_part_once() {
        let (n, d, stride, first) = (10, 7, 32, 5);
        let columns = vec![vec![0.0f32; n]; d];
        let part = Part::new(Features::from_columns(columns.iter().map(|c| &c[..])).unwrap(), None);
        for slot in [4, 12, 40, 44, 100, 4096] {
            let mut matrix = vec![None; stride * d];
            let source = Source { part: &part, kept: Kept::new(&part.selection, n), first };
            for task in source.tasks(0, slot, false) {
                let What::Columns(range) = task.what else { panic!("columns alone") };
                assert!(range.len() * 4 <= slot);
                for strips in strips::<f32>(&range, n, stride, |value| 4 * (first + value) as u64) {
                    for i in 0..strips.count {
                        for value in 0..strips.width / 4 {
                            let at = strips.to as usize / 4 + i * strips.pitch / 4 + value;
                            assert_eq!(matrix[at], None);
                            matrix[at] = Some(range.start + strips.from / 4 + i * strips.width / 4 + value);
                        }
                    }
                }
            }
            for (at, value) in matrix.into_iter().enumerate() {
                let (f, row) = (at / stride, at % stride);
                assert_eq!(value, (first..first + n).contains(&row).then(|| f * n + row - first));
            }
        }
        let rows = vec![0.0f32; 6];
        let part = Part::new(Features::from_rows(&rows, 3).unwrap(), None);
        let source = Source { part: &part, kept: Kept::new(&part.selection, 2), first };
        let whats = |slot| source.tasks(0, slot, true).into_iter().map(|task| task.what).collect::<Vec<_>>();
        assert_eq!(whats(24), [What::Rows(0..2, 0..3), What::Weights(0..2)]);
        assert_eq!(
            whats(8),
            [
                What::Rows(0..1, 0..2),
                What::Rows(0..1, 2..3),
                What::Rows(1..2, 0..2),
                What::Rows(1..2, 2..3),
                What::Weights(0..1),
                What::Weights(1..2)
            ]
        );
    }
}
