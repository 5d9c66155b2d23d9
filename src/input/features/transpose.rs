//! Rows to columns, in squares of sixteen rows and sixteen features. A row-wise copy would write to a different cache line with
//! every value: it takes four to five times as long.

use std::marker::PhantomData;

use crate::input::fp16::Conversion;
use crate::simd::{InstructionSet, Prefetch, SQUARE, Task, Vector};

/// Number of rows that are copied together. Sixteen float32 fill a cache line.
const ROWS: usize = SQUARE;
/// The smaller squares, for the features that are left.
const FEW: usize = 4;

/// Copies rows to columns: value f of row i of `rows` goes to `out[f * stride + at + i]`. C converts it.
pub fn rows_to_columns<'v, S: Copy + Default + 'v, T: Copy + Default, C: Conversion<S, T>>(
    rows: impl Iterator<Item = &'v [S]>,
    at: usize,
    stride: usize,
    out: &mut [T],
) {
    InstructionSet::detect().run(RowsToColumns::<_, _, C> { rows, at, stride, out, conversion: PhantomData });
}

/// Wide vectors take half the time.
struct RowsToColumns<'o, T, R, C> {
    rows: R,
    at: usize,
    stride: usize,
    out: &'o mut [T],
    conversion: PhantomData<C>,
}

impl<'v, S, T, R, C> Task for RowsToColumns<'_, T, R, C>
where
    S: Copy + Default + 'v,
    T: Copy + Default,
    R: Iterator<Item = &'v [S]>,
    C: Conversion<S, T>,
{
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { mut rows, mut at, stride, out, conversion: _ } = self;
        let (mut waiting, mut next): ([&[S]; ROWS], [&[S]; ROWS]) = ([&[]; ROWS], [&[]; ROWS]);
        let mut count = take(&mut rows, &mut waiting);
        while count == ROWS {
            let found = take(&mut rows, &mut next);
            copy_rows::<V, S, T, C>(&waiting, &next[..found], at, stride, out);
            (waiting, at, count) = (next, at + ROWS, found);
        }
        for (i, row) in waiting[..count].iter().enumerate() {
            for (f, &value) in row.iter().enumerate() {
                out[f * stride + at + i] = C::convert(value);
            }
        }
    }
}

/// Takes the next rows, as many as there is room for. Returns how many there were.
#[inline(always)]
fn take<'v, S>(rows: &mut impl Iterator<Item = &'v [S]>, to: &mut [&'v [S]; ROWS]) -> usize {
    for i in 0..ROWS {
        let Some(row) = rows.next() else { return i };
        to[i] = row;
    }
    ROWS
}

/// Copies sixteen rows of the same length. `next`: those that are copied next. They may lie anywhere, so they are asked for.
#[inline(always)]
fn copy_rows<V: Vector, S: Copy + Default, T: Copy + Default, C: Conversion<S, T>>(
    rows: &[&[S]; ROWS],
    next: &[&[S]],
    at: usize,
    stride: usize,
    out: &mut [T],
) {
    let d = rows[0].len();
    if C::MOVES_BITS && size_of::<T>() == size_of::<f32>() && d >= ROWS {
        for f in (0..d).step_by(ROWS) {
            // The last square begins where it fits: it writes some values again.
            let f = f.min(d - ROWS);
            let mut from = [std::ptr::null(); ROWS];
            for i in 0..ROWS {
                from[i] = rows[i][f..][..ROWS].as_ptr().cast();
            }
            for row in next {
                Prefetch::of(&row[f.min(row.len())..]).ask(0..1);
            }
            let to = out[f * stride + at..][..(ROWS - 1) * stride + ROWS].as_mut_ptr().cast();
            // SAFETY: the slices have sixteen values of 32 bits at each pointer that is read or written. `MOVES_BITS` says that
            // both types are the same.
            unsafe { V::transpose(from, to, stride) };
        }
        return;
    }
    let (whole, fours) = (d - d % ROWS, d - d % FEW);
    for f in (0..whole).step_by(ROWS) {
        copy_square::<S, T, C, ROWS>(rows, f, at, stride, out);
    }
    for f in (whole..fours).step_by(FEW) {
        let (squares, _) = rows.as_chunks::<FEW>();
        for (i, rows) in squares.iter().enumerate() {
            copy_square::<S, T, C, FEW>(rows, f, at + i * FEW, stride, out);
        }
    }
    for f in fours..d {
        for (i, row) in rows.iter().enumerate() {
            out[f * stride + at + i] = C::convert(row[f]);
        }
    }
}

/// Copies the features from `f` on of as many rows.
#[inline(always)]
fn copy_square<S: Copy + Default, T: Copy + Default, C: Conversion<S, T>, const SIDE: usize>(
    rows: &[&[S]; SIDE],
    f: usize,
    at: usize,
    stride: usize,
    out: &mut [T],
) {
    // Whole arrays are read and written. A slice of a known length would be copied by a call.
    let mut square = [[S::default(); SIDE]; SIDE];
    for i in 0..SIDE {
        let Some(values) = rows[i][f..].first_chunk() else { unreachable!("the square is within the row") };
        square[i] = *values;
    }
    for j in 0..SIDE {
        let mut column = [T::default(); SIDE];
        for i in 0..SIDE {
            column[i] = C::convert(square[i][j]);
        }
        let Some(to) = out[(f + j) * stride + at..].first_chunk_mut() else { unreachable!("the square is within the tile") };
        *to = column;
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::input::fp16::Same;

    fn check<T: crate::base::float::Float + Default>() {
        for set in InstructionSet::ALL {
            for d in [1, 3, 4, 7, 15, 16, 17, 21, 33, 64] {
                for n in [0, 1, 15, 16, 17, 40] {
                    let (at, stride) = (3, 45);
                    let x: Vec<T> = (0..n * d).map(|i| T::from_f64(i as f64)).collect();
                    let mut out = vec![T::from_f64(-1.0); d * stride];
                    let (rows, conversion) = (x.chunks_exact(d), PhantomData::<Same>);
                    set.run(RowsToColumns { rows, at, stride, out: &mut out, conversion });
                    for (i, value) in out.into_iter().enumerate() {
                        let (f, row) = (i / stride, (i % stride).wrapping_sub(at));
                        let expected = if row < n { (row * d + f) as f64 } else { -1.0 };
                        assert_eq!(value.to_f64(), expected, "{set:?}, {n} x {d}: {i}");
                    }
                }
            }
        }
    }

    unit_test!(every_value_goes_to_its_column);
    fn every_value_goes_to_its_column() {
        check::<f32>();
        check::<f64>();
    }
}
