//! What is read next, and prefetched while rows are compared.

use crate::input::tile::{ByFeature, RowsInPlace};
use crate::simd::Prefetch;

/// What is prefetched while rows are compared, because it is read next.
#[derive(Clone, Copy)]
pub enum PrefetchNext<'s, T> {
    /// Nothing is prefetched: what is read next is in a cache already.
    Nothing,
    /// Blocks that lie one behind the other: the values from those of this block on.
    Blocks(&'s [T]),
    Rows(&'s NextRows<'s, T>),
}

/// Rows of columns that are read where they lie.
pub struct NextRows<'s, T> {
    pub columns: RowsInPlace<'s, T>,
    pub d: usize,
    /// Blocks of the rows that are compared meanwhile.
    pub blocks: usize,
}

impl<T: Copy> NextRows<'_, T> {
    /// What is prefetched at a step. `groups`: the steps of a block. The steps are shared among the columns.
    #[inline(always)]
    pub fn piece(&self, step: usize, groups: usize) -> Prefetch {
        let of_column = (self.blocks * groups / self.d).max(1);
        let f = step / of_column;
        let column = if f < self.d { self.columns.column(f) } else { &[] };
        Prefetch::of(column).part(step % of_column, of_column)
    }
}
