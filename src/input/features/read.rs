//! Passes over the features: tiles, and nulls.

use std::ops::Range;

use super::{Column, Features, Layout, RowMajorBlock, Values, transpose};
#[cfg(feature = "cuda")]
use super::{NOT_HERE, Strided};
use crate::base::float::Float;
use crate::input::fp16::{FromBFloat16, FromFloat16, Half, Same};
use crate::input::tile::InPlace;

impl<'a, T: Float> Features<'a, T> {
    /// The columns. `None` if the rows lie in row-major blocks.
    #[cfg(feature = "cuda")]
    pub(crate) fn columns(&self) -> Option<&[Column<'a, T>]> {
        match &*self.layout {
            Layout::Columns(columns) => Some(columns),
            _ => None,
        }
    }

    /// Where the values are, if they lie at regular distances.
    #[cfg(feature = "cuda")]
    pub(crate) fn strided(&self) -> Option<&Strided<'a, T>> {
        if let Layout::Strided(strided) = &*self.layout { Some(strided) } else { None }
    }

    /// The rows of `range` as they lie in row-major blocks. Each slice holds whole rows and comes with the position of its first
    /// row in the range. Yields nothing for other layouts.
    #[cfg(feature = "cuda")]
    pub(crate) fn row_slices(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Values<'a, T>)> + '_ {
        let (blocks, starts): (&[_], &[_]) = match &*self.layout {
            Layout::Blocks(blocks, starts) => (blocks, starts),
            _ => (&[], &[0]),
        };
        block_pieces(blocks, starts, self.d, range).map(|(at, block)| (at, block.values))
    }

    /// The values of a row, if they lie side by side and are read as they are.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> Option<&'a [T]> {
        let Layout::Blocks(blocks, starts) = &*self.layout else { return None };
        let index = starts.partition_point(|start| *start <= row).checked_sub(1)?;
        let Values::Same(values) = blocks.get(index)?.values else { return None };
        let first = (row - starts[index]) * self.d;
        values.get(first..first + self.d).filter(|_| self.row_transform.is_none())
    }

    /// The columns of these rows, where they can be read as they lie: one chunk of each, and not too many features.
    pub(crate) fn in_place(&self, range: Range<usize>) -> Option<InPlace<'a, T>> {
        let Layout::Columns(columns) = &*self.layout else { return None };
        InPlace::new(columns.iter().map(|column| column.in_one_piece(range.clone()))).filter(|_| self.row_transform.is_none())
    }

    /// One feature of these rows, if its values lie side by side and are read as they are.
    pub(crate) fn column_in_place(&self, f: usize, range: Range<usize>) -> Option<&'a [T]> {
        let Layout::Columns(columns) = &*self.layout else { return None };
        columns[f].in_one_piece(range).filter(|_| self.row_transform.is_none())
    }

    /// Copies the rows of `range` to `out[f * stride + i]`. `i` counts from the start of the range.
    #[inline]
    pub fn copy_tile(&self, range: Range<usize>, stride: usize, out: &mut [T]) {
        let rows = range.len();
        match &*self.layout {
            Layout::Columns(columns) => {
                for (column, out) in columns.iter().zip(out.chunks_exact_mut(stride)) {
                    column.copy(range.clone(), out);
                }
            }
            Layout::Blocks(blocks, starts) => {
                for (at, block) in block_pieces(blocks, starts, self.d, range) {
                    match block.values {
                        Values::Same(values) => {
                            transpose::rows_to_columns::<_, _, Same>(values.chunks_exact(self.d), at, stride, out)
                        }
                        Values::Half(bits, Half::Float16) => {
                            transpose::rows_to_columns::<_, _, FromFloat16>(bits.chunks_exact(self.d), at, stride, out);
                        }
                        Values::Half(bits, Half::BFloat16) => {
                            transpose::rows_to_columns::<_, _, FromBFloat16>(bits.chunks_exact(self.d), at, stride, out);
                        }
                    }
                }
            }
            Layout::Strided(strided) => strided.copy_rows(range, self.d, stride, out),
            #[cfg(feature = "cuda")]
            Layout::Gpu(_) => unreachable!("{NOT_HERE}"),
        }
        self.arrive(rows, stride, out);
    }

    /// Copies these rows, in this order, to `out[f * stride + i]`. `i` is the position in the list.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn gather_tile(&self, rows: &[usize], stride: usize, out: &mut [T]) {
        match &*self.layout {
            Layout::Columns(columns) => {
                for (column, out) in columns.iter().zip(out.chunks_exact_mut(stride)) {
                    column.gather(rows, out);
                }
            }
            Layout::Blocks(blocks, starts) => {
                let place = |&row: &usize| {
                    let index = starts.partition_point(|&start| start <= row) - 1;
                    let first = (row - starts[index]) * self.d;
                    (blocks[index].values, first..first + self.d)
                };
                let bits = |row: &usize| match place(row) {
                    (Values::Half(bits, _), range) => &bits[range],
                    _ => unreachable!("all blocks have one type"),
                };
                match blocks.first().and_then(|block| block.values.half()) {
                    None => {
                        let values = |row: &usize| match place(row) {
                            (Values::Same(values), range) => &values[range],
                            _ => unreachable!("all blocks have one type"),
                        };
                        transpose::rows_to_columns::<_, _, Same>(rows.iter().map(values), 0, stride, out);
                    }
                    Some(Half::Float16) => {
                        transpose::rows_to_columns::<_, _, FromFloat16>(rows.iter().map(bits), 0, stride, out);
                    }
                    Some(Half::BFloat16) => {
                        transpose::rows_to_columns::<_, _, FromBFloat16>(rows.iter().map(bits), 0, stride, out);
                    }
                }
            }
            Layout::Strided(strided) => strided.copy_rows(rows.iter().copied(), self.d, stride, out),
            #[cfg(feature = "cuda")]
            Layout::Gpu(_) => unreachable!("{NOT_HERE}"),
        }
        self.arrive(rows.len(), stride, out);
    }

    /// Copies the rows of `range` in another order: row i of the range to `out[f * stride + to[i]]`. `order`: the rows that
    /// count, in their new order. Rows that do not count may go to any place behind the rows that do.
    ///
    /// # Panics
    /// If there is no such place, or no such row.
    pub fn scatter_tile(&self, range: Range<usize>, to: &[u32], order: &[usize], stride: usize, out: &mut [T]) {
        let Layout::Columns(columns) = &*self.layout else { return self.gather_tile(order, stride, out) };
        // Columns are read in order. A column of the tile is short enough for a cache.
        for (column, out) in columns.iter().zip(out.chunks_exact_mut(stride)) {
            column.scatter(range.clone(), to, out);
        }
        self.arrive(order.len(), stride, out);
    }

    /// Copies these rows of `range`, for columns, to blocks of ROWS rows: row p of the list, feature f, to `out[p / ROWS * block +
    /// f * ROWS + p % ROWS]`. The rows have not arrived yet.
    ///
    /// # Panics
    /// If the features are not columns, or there is no such row or place.
    pub fn gather_blocks<const ROWS: usize>(&self, range: Range<usize>, order: &[usize], block: usize, out: &mut [T]) {
        // Columns that a cache holds together are copied together: so few pages are written at a time, and few are read.
        const CACHE: usize = 1 << 20;
        const MOST: usize = 16;
        let Layout::Columns(columns) = &*self.layout else { unreachable!("rows are gathered") };
        let together = (CACHE / (range.len() * size_of::<T>()).max(1)).clamp(1, MOST);
        for (some, columns) in columns.chunks(together).enumerate() {
            let mut values = [None; MOST];
            values.iter_mut().zip(columns).for_each(|(values, column)| *values = column.in_one_piece(range.clone()));
            for (rows, block) in order.chunks(ROWS).zip(out.chunks_mut(block)) {
                let places = block[some * together * ROWS..].chunks_mut(ROWS);
                for ((column, values), to) in columns.iter().zip(values).zip(places) {
                    let to = &mut to[..rows.len()];
                    match values {
                        Some(values) => to.iter_mut().zip(rows).for_each(|(to, row)| *to = values[row - range.start]),
                        None => column.gather(rows, to),
                    }
                }
            }
        }
    }

    /// What rows become before anything else sees them. The tile holds values of such rows as they were given.
    #[inline]
    pub fn arrive(&self, rows: usize, stride: usize, tile: &mut [T]) {
        if let Some(row_transform) = &self.row_transform {
            row_transform.tile(rows, stride, &mut tile[..self.d * stride]);
        }
    }

    /// Calls `null(f, i)` for each null in the rows of `range`. In a null row every feature is null.
    pub fn for_each_null(&self, range: Range<usize>, mut null: impl FnMut(usize, usize)) {
        match &*self.layout {
            Layout::Columns(columns) => {
                for (f, column) in columns.iter().enumerate() {
                    column.for_each_null(range.clone(), |i| null(f, i));
                }
            }
            Layout::Blocks(blocks, starts) => {
                for (at, block) in block_pieces(blocks, starts, self.d, range) {
                    if block.row_validity.is_none() && block.value_validity.is_none() {
                        continue;
                    }
                    for i in 0..block.rows {
                        let row_is_null = block.row_validity.is_some_and(|v| !v.get(i));
                        for f in 0..self.d {
                            if row_is_null || block.value_validity.is_some_and(|v| !v.get(i * self.d + f)) {
                                null(f, at + i);
                            }
                        }
                    }
                }
            }
            // On a GPU, a null has become NaN.
            _ => {}
        }
    }

    /// Whether there are nulls. Does not read the values.
    #[cfg(feature = "cuda")]
    pub(crate) fn has_nulls(&self) -> bool {
        match &*self.layout {
            Layout::Columns(columns) => columns.iter().any(Column::has_nulls),
            Layout::Blocks(blocks, _) => blocks.iter().any(|block| {
                block.row_validity.is_some_and(|v| v.has_nulls(block.rows))
                    || block.value_validity.is_some_and(|v| v.has_nulls(block.values.len()))
            }),
            _ => false,
        }
    }

    /// Whether any piece has a validity bitmap.
    pub fn may_have_nulls(&self) -> bool {
        match &*self.layout {
            Layout::Columns(columns) => columns.iter().any(Column::may_have_nulls),
            Layout::Blocks(blocks, _) => {
                blocks.iter().any(|block| block.row_validity.is_some() || block.value_validity.is_some())
            }
            _ => false,
        }
    }
}

/// Rows `range` of the blocks, and the position of each piece's first row in the range.
pub(super) fn block_pieces<'s, 'a, T>(
    blocks: &'s [RowMajorBlock<'a, T>],
    starts: &'s [usize],
    d: usize,
    range: Range<usize>,
) -> impl Iterator<Item = (usize, RowMajorBlock<'a, T>)> + 's {
    let first = starts.partition_point(|&start| start <= range.start).saturating_sub(1);
    blocks[first.min(blocks.len())..]
        .iter()
        .zip(&starts[first..])
        .take_while({
            let end = range.end;
            move |(_, start)| **start < end
        })
        .filter_map(move |(block, &start)| {
            let rows = range.start.max(start) - start..range.end.min(start + block.rows) - start;
            let piece = RowMajorBlock {
                values: block.values.slice(rows.start * d..rows.end * d),
                rows: rows.len(),
                row_validity: block.row_validity.map(|v| v.skip(rows.start)),
                value_validity: block.value_validity.map(|v| v.skip(rows.start * d)),
            };
            (!rows.is_empty()).then(|| (start + rows.start - range.start, piece))
        })
}
