//! How rows are cut into tasks, and where each task goes.

use std::ops::Range;

use super::kept::{KeptNumbers, cut};
use super::pinned::Strips;
use crate::backend::cuda::device::Plain;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::Values;
use crate::input::fp16::Half;
use crate::input::tile::{self, RowBlock};
use crate::input::transform::RowTransform;

/// The name of the tasks in errors.
const TASKS: &str = "the list of uploads";

/// The kept rows of all parts in host memory, in order.
pub struct Sources<'a, T> {
    pub all: Vec<PartRows<'a, T>>,
    pub n: usize,
    pub d: usize,
    pub weighted: bool,
    /// The type of the values on their way and on the device, if it is one of 16 bits.
    pub half: Option<Half>,
}

/// A part, and the place of its kept rows among all kept rows.
pub struct PartRows<'a, T> {
    part: RowBlock<'a, T>,
    kept: KeptNumbers,
    /// The number of its first kept row, counted over all parts.
    first: usize,
}

/// Copies values to a slot: as features, or as the bits that they have in memory.
pub type CopyValues<'a, T, V> = fn(Values<'a, T>, &mut [V]);

/// A piece of work that fills one slot once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadTask {
    pub source: usize,
    /// The kept rows of the source that this task belongs to. Their columns are counted as one sequence of values.
    pub rows: Range<usize>,
    /// The row on the device for the first of these rows.
    pub to: usize,
    pub what: Payload,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A range of the values of all columns of the rows, one column after the other.
    Columns(Range<usize>),
    /// Kept rows of blocks, and a range of their features. The range has all features, unless a single row is larger than a
    /// slot.
    Rows(Range<usize>, Range<usize>),
    /// The weights of a range of kept rows.
    Weights(Range<usize>),
}

impl<'a, T: Float + Plain> Sources<'a, T> {
    pub fn new(parts: &[RowBlock<'a, T>]) -> Result<Self> {
        let mut n = 0;
        let source = |part: &RowBlock<'a, T>| {
            let source =
                PartRows { part: part.clone(), kept: KeptNumbers::new(&part.selection, part.features.n_rows())?, first: n };
            n += source.kept.count;
            Ok(source)
        };
        let all = memory::try_collected(parts.iter().map(source), TASKS)?;
        let d = parts.first().map_or(0, |part| part.features.n_features());
        Ok(Self { all, n, d, weighted: parts.iter().any(|part| part.weights.is_some()), half: tile::half(parts) })
    }

    /// The bytes of a value on its way and on the device.
    pub fn value_bytes(&self) -> usize {
        if self.half.is_some() { size_of::<u16>() } else { size_of::<T>() }
    }

    /// The bytes of a row and its weight.
    pub fn row_bytes(&self) -> usize {
        self.d * self.value_bytes() + if self.weighted { size_of::<f64>() } else { 0 }
    }

    /// Whether any rows are sent row by row.
    pub fn in_blocks(&self) -> bool {
        self.all.iter().any(PartRows::in_blocks)
    }

    /// What happens to the rows after they were sent.
    pub fn row_transform(&self) -> Option<&RowTransform> {
        self.all.first().and_then(|source| source.part.features.row_transform())
    }

    /// The sources of some kept rows, each as [`PartRows::overlap`] says.
    pub fn of(&self, rows: Range<usize>) -> impl Iterator<Item = (&PartRows<'a, T>, Range<usize>, usize)> {
        let overlaps = self.all.iter().map(move |source| (source, source.overlap(&rows)));
        overlaps.filter(|(_, (own, _))| !own.is_empty()).map(|(source, (own, at))| (source, own, at))
    }

    /// The tasks that send some kept rows to the device rows from 0 on. `slot`: the bytes of a slot that are used.
    pub fn tasks(&self, rows: &Range<usize>, slot: usize) -> Result<Vec<UploadTask>> {
        let (mut all, d, values) = (Vec::new(), self.d, (slot / self.value_bytes()).max(1));
        for (source, from) in self.all.iter().enumerate() {
            let (own, to) = from.overlap(rows);
            let within = |range: Range<usize>| own.start + range.start..own.start + range.end;
            let mut add = |what| memory::push(&mut all, UploadTask { source, rows: own.clone(), to, what }, TASKS);
            if from.in_blocks() {
                for piece in cut(own.len(), values / d).map(within) {
                    cut(d, values).try_for_each(|features| add(Payload::Rows(piece.clone(), features)))?;
                }
            } else {
                cut(own.len() * d, values).map(Payload::Columns).try_for_each(&mut add)?;
            }
            if self.weighted {
                cut(own.len(), slot / size_of::<f64>()).map(within).map(Payload::Weights).try_for_each(&mut add)?;
            }
        }
        Ok(all)
    }
}

impl<'a, T: Float + Plain> PartRows<'a, T> {
    /// The kept rows of this source that are in `all`, which is counted over all parts. Also returns the place in `all` of the
    /// first of them.
    fn overlap(&self, all: &Range<usize>) -> (Range<usize>, usize) {
        let (start, end) = (all.start.max(self.first), all.end.min(self.first + self.kept.count).max(self.first));
        (start.min(end) - self.first..end - self.first, start.min(end).saturating_sub(all.start))
    }

    /// Whether the rows are sent row by row.
    pub fn in_blocks(&self) -> bool {
        self.part.features.columns().is_none()
    }

    /// Writes values `range` to `out` by `copy`. The values are those of all columns of kept rows `rows`, one column after the
    /// other.
    pub fn fill_columns<V>(&self, rows: &Range<usize>, range: &Range<usize>, out: &mut [V], copy: CopyValues<'a, T, V>) {
        let Some(columns) = self.part.features.columns() else { return };
        let (n, mut out) = (rows.len(), out);
        let mut at = range.start;
        while at < range.end {
            let (column, row) = (&columns[at / n], at % n);
            let len = (n - row).min(range.end - at);
            let (piece, rest) = out.split_at_mut(len);
            let row = rows.start + row;
            self.kept.gather(row..row + len, 1, |rows| column.slices(rows), piece, copy);
            (at, out) = (at + len, rest);
        }
    }

    /// Writes the features `features` of kept rows `rows` to `out` by `copy`, row-major. The rows are in blocks, or at regular
    /// distances.
    pub fn fill_rows<V>(&self, rows: &Range<usize>, features: &Range<usize>, out: &mut [V], copy: CopyValues<'a, T, V>) {
        let view = &self.part.features;
        if let Some(strided) = view.strided() {
            for (kept, out) in rows.clone().zip(out.chunks_exact_mut(features.len())) {
                let row = self.kept.row(kept);
                for (f, out) in features.clone().zip(out) {
                    copy(Values::Same(strided.one(row, f)), std::slice::from_mut(out));
                }
            }
            return;
        }
        if features.len() == view.n_features() {
            return self.kept.gather(rows.clone(), features.len(), |rows| view.row_slices(rows), out, copy);
        }
        for (kept, out) in rows.clone().zip(out.chunks_exact_mut(features.len())) {
            let row = self.kept.row(kept);
            for (_, values) in view.row_slices(row..row + 1) {
                copy(values.slice(features.clone()), out);
            }
        }
    }

    pub fn fill_weights(&self, rows: &Range<usize>, out: &mut [f64]) {
        match &self.part.weights {
            Some(weights) => {
                self.kept.gather(rows.clone(), 1, |rows| weights.slices(rows), out, |values, out| values.copy(out))
            }
            None => out.fill(1.0),
        }
    }
}

/// The strips on the device for values `range` of columns with `n` rows each. `to` gives the address of a value. There are up
/// to three strips: the end of one column, whole columns, and the start of another column. Columns are `stride` values apart on
/// the device.
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

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::input::features::Features;

    fn sources(part: RowBlock<'_, f32>, weighted: bool) -> Sources<'_, f32> {
        Sources { weighted, ..Sources::new(&[part]).unwrap() }
    }

    fn whats(sources: &Sources<'_, f32>, rows: Range<usize>, slot: usize) -> Vec<Payload> {
        sources.tasks(&rows, slot).unwrap().into_iter().map(|task| task.what).collect()
    }

    unit_test!(tasks_and_strips_cover_a_part_once);
    fn tasks_and_strips_cover_a_part_once() {
        let (n, d, stride, first) = (10, 7, 32, 5);
        let columns = vec![vec![0.0f32; n]; d];
        let part = RowBlock::new(Features::from_columns(columns.iter().map(|c| &c[..])).unwrap(), None);
        let columns = sources(part, false);
        for slot in [4, 12, 40, 44, 100, 4096] {
            let mut matrix = vec![None; stride * d];
            for what in whats(&columns, 0..n, slot) {
                let Payload::Columns(range) = what else { panic!("columns alone") };
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
        let blocks = sources(RowBlock::new(Features::from_rows(&rows, 3).unwrap(), None), true);
        assert_eq!(whats(&blocks, 0..2, 24), [Payload::Rows(0..2, 0..3), Payload::Weights(0..2)]);
        assert_eq!(
            whats(&blocks, 0..2, 8),
            [
                Payload::Rows(0..1, 0..2),
                Payload::Rows(0..1, 2..3),
                Payload::Rows(1..2, 0..2),
                Payload::Rows(1..2, 2..3),
                Payload::Weights(0..1),
                Payload::Weights(1..2)
            ]
        );
    }

    unit_test!(some_of_the_rows_are_tasks_of_their_own);
    fn some_of_the_rows_are_tasks_of_their_own() {
        let columns = [(0..10).map(|i| i as f32).collect::<Vec<_>>(), (0..10).map(|i| 100.0 + i as f32).collect()];
        let part = || RowBlock::new(Features::from_columns(columns.iter().map(|c| &c[..])).unwrap(), None);
        let two = Sources::new(&[part(), part()]).unwrap();
        assert_eq!(two.n, 20);
        let overlaps = |rows: Range<usize>| two.all.iter().map(|source| source.overlap(&rows)).collect::<Vec<_>>();
        assert_eq!(overlaps(3..14), [(3..10, 0), (0..4, 7)]);
        assert_eq!(overlaps(12..14)[1], (2..4, 0));
        assert!(overlaps(12..14)[0].0.is_empty() && overlaps(0..10)[1].0.is_empty());
        let mut out = [0.0; 5];
        two.all[1].fill_columns(&(2..6), &(1..6), &mut out, |values, out| values.copy(out));
        assert_eq!(out, [3.0, 4.0, 5.0, 102.0, 103.0]);
        let some = two.tasks(&(3..14), 5 * 4).unwrap();
        let task = |source, rows, to, range| UploadTask { source, rows, to, what: Payload::Columns(range) };
        let first = [0..5, 5..10, 10..14].map(|range| task(0, 3..10, 0, range));
        let second = [0..5, 5..8].map(|range| task(1, 0..4, 7, range));
        assert!(some.into_iter().eq(first.into_iter().chain(second)));
        let rows: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let blocks = sources(RowBlock::new(Features::from_rows(&rows, 2).unwrap(), None), true);
        assert_eq!(
            whats(&blocks, 3..6, 16),
            [Payload::Rows(3..5, 0..2), Payload::Rows(5..6, 0..2), Payload::Weights(3..5), Payload::Weights(5..6)]
        );
    }
}
