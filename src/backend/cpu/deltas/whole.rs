//! Moves of rows without weights whose values lie side by side: from the first feature to the last, without a square.

use std::marker::PhantomData;
use std::sync::Mutex;

use super::{Deltas, Moved, TOGETHER, UNASSIGNED};
use crate::base::float::Float;
use crate::exact::cluster_sums::{ClusterSums, Quantiser};
use crate::simd::{Prefetch, Task, Vector};

impl Deltas {
    /// Moves F features of a row whose values lie side by side, from feature `first` on. Returns F.
    #[inline(always)]
    fn shift_row<T: Float, const F: usize>(&mut self, quantiser: &Quantiser, x: &[T], first: usize, moved: Moved) -> usize {
        let (Some(one), Some(two), Some(low), Some(values)) = (
            quantiser.first[first..].first_chunk::<F>(),
            quantiser.second[first..].first_chunk::<F>(),
            quantiser.low[first..].first_chunk::<F>(),
            x[first..].first_chunk::<F>(),
        ) else {
            unreachable!("each feature has factors and a value")
        };
        self.move_row(quantiser, [one, two, low], first, (1.0, values), moved);
        F
    }
}

/// Moves rows without weights whose values lie side by side. Their sums are then changed from the first feature to the last.
pub struct MoveWholeRows<'m, 'p, T, R> {
    pub deltas: &'m mut Deltas,
    pub quantiser: &'m Quantiser,
    /// The values of a row at hand.
    pub row: R,
    pub moved: &'m [Moved],
    pub target: &'m Mutex<&'p mut ClusterSums>,
    pub of: PhantomData<T>,
}

impl<'v, T: Float, R: Fn(u32) -> &'v [T]> Task for MoveWholeRows<'_, '_, T, R> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { deltas, quantiser, row, moved, target, .. } = self;
        for (i, here) in moved.iter().enumerate() {
            // Rows are far apart in memory.
            if let Some(next) = moved.get(i + 1) {
                Prefetch::of(row(next.row)).ask_all();
            }
            let (x, mut first) = (row(here.row), 0);
            while first < deltas.d {
                first += match deltas.d - first {
                    1..4 => deltas.shift_row::<T, 1>(quantiser, x, first, *here),
                    4..TOGETHER => deltas.shift_row::<T, 4>(quantiser, x, first, *here),
                    _ => deltas.shift_row::<T, TOGETHER>(quantiser, x, first, *here),
                };
            }
            deltas.count(quantiser, here.to, 1, target);
            if here.from != UNASSIGNED {
                deltas.count(quantiser, here.from, -1, target);
            }
        }
    }
}
