//! The rows of a task, and its places in the results.

use std::ops::Range;

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

/// Takes off the first `len` entries, or all if there are fewer.
pub fn split_off<'o, R>(rest: &mut &'o mut [R], len: usize) -> &'o mut [R] {
    let len = len.min(rest.len());
    let (first, tail) = std::mem::take(rest).split_at_mut(len);
    *rest = tail;
    first
}
