//! The rows of a task, their weights, and their places in the results.

use std::ops::Range;

use crate::input::tile::RowBlock;

/// Weights that are copied together.
const WEIGHTS: usize = 1_024;

/// A range of physical rows, and the number of its first kept row.
#[derive(Debug, Clone)]
pub struct TaskRows {
    pub physical: Range<usize>,
    pub first: usize,
    /// Number of kept rows.
    pub kept: usize,
    /// Number of kept rows with positive weight.
    pub positive: usize,
}

/// Cuts a range into pieces of this length. The last one may be shorter.
#[inline(always)]
pub fn pieces(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |start| start..end.min(start + len))
}

/// Takes off the first `len` entries, or all if there are fewer.
pub fn split_off<'o, R>(rest: &mut &'o mut [R], len: usize) -> &'o mut [R] {
    let len = len.min(rest.len());
    let (first, tail) = std::mem::take(rest).split_at_mut(len);
    *rest = tail;
    first
}

/// Visits the weights of the kept rows of a range, in order, if there are weights.
pub fn for_each_weight<T>(part: &RowBlock<'_, T>, physical: Range<usize>, mut visit: impl FnMut(f64)) {
    let Some(weights) = &part.weights else { return };
    let mut some = [0.0; WEIGHTS];
    for rows in pieces(physical, WEIGHTS) {
        weights.copy(rows.clone(), &mut some);
        rows.zip(some).filter(|(row, _)| part.selection.contains(*row)).for_each(|(_, weight)| visit(weight));
    }
}
