//! Pass 1 over many columns without nulls and weights: threads share the columns too, so few wide rows are work for all of them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{EXTENTS, Extent, ExtentLanes, Survey};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::input::tile::{RowBlock, pieces};
use crate::simd::{InstructionSet, Task, Vector};
use crate::statistics::passes::Merge;

/// The survey of many columns, some of which are seen at a time, where they lie: to read a few rows of all of them takes longer.
/// `None` if they must be seen row by row.
pub(super) fn of_columns<T: Float>(parts: &[RowBlock<'_, T>], threads: usize) -> Result<Option<Survey>> {
    /// Fewer columns are seen together.
    const FEWEST: usize = 64;
    /// Columns and rows of a task.
    const COLUMNS: usize = 32;
    const ROWS: usize = 4_096;
    let d = parts[0].features.n_features();
    let is_plain =
        |part: &RowBlock<'_, T>| part.weights.is_none() && part.features.is_by_columns() && !part.features.may_have_nulls();
    if d < FEWEST || !parts.iter().all(is_plain) {
        return Ok(None);
    }
    let tasks = || {
        pieces(parts, ROWS).flat_map(|piece| (0..d).step_by(COLUMNS).map(move |first| (piece.part, piece.rows.clone(), first)))
    };
    let workers = (0..workers_for(threads, tasks().count())).map(|_| memory::filled(d, Extent::EMPTY, EXTENTS));
    let mut workers = memory::try_collected(workers, EXTENTS)?;
    let (set, is_seen) = (InstructionSet::detect(), AtomicBool::new(true));
    for_each_task(&mut workers, tasks(), |extents, (part, rows, first)| {
        let extents = &mut extents[first..d.min(first + COLUMNS)];
        if is_seen.load(Ordering::Relaxed) && !set.run(SeeColumns { part, rows, first, extents }) {
            is_seen.store(false, Ordering::Relaxed);
        }
    })?;
    if !is_seen.into_inner() {
        return Ok(None);
    }
    let mut survey = Survey::empty(d)?;
    workers.iter().for_each(|extents| survey.columns.merge(extents));
    survey.positive = parts.iter().map(|part| part.features.n_rows() as u64).sum();
    Ok(Some(survey))
}

/// Sees some rows of some columns. Compiled for each instruction set.
struct SeeColumns<'p, 'a, T> {
    part: &'p RowBlock<'a, T>,
    rows: Range<usize>,
    first: usize,
    /// One for each column.
    extents: &'p mut [Extent],
}

impl<T: Float> Task for SeeColumns<'_, '_, T> {
    /// Whether all values are finite, and lie where they are read.
    type Output = bool;

    #[inline(always)]
    fn run<V: Vector>(self) -> bool {
        let Self { part, rows, first, extents } = self;
        for (f, extent) in (first..).zip(extents) {
            let lanes = part.features.column_in_place(f, rows.clone()).map(ExtentLanes::of);
            match lanes.filter(ExtentLanes::are_finite) {
                Some(lanes) => extent.merge(&lanes.extent()),
                None => return false,
            }
        }
        true
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::survey;
    use super::*;
    use crate::input::features::Features;

    unit_test!(many_columns_are_seen_as_rows_are);
    fn many_columns_are_seen_as_rows_are() {
        let (n, d) = (4_200, 70);
        let mut x: Vec<f32> = (0..n * d).map(|i| ((i * 7_919) % 4_001) as f32 / 57.0 - 30.0).collect();
        for bad in [None, Some(0), Some(n * d - 1)] {
            if let Some(place) = bad {
                x[place] = f32::INFINITY;
            }
            let columns: Vec<Vec<f32>> = (0..d).map(|f| x.iter().skip(f).step_by(d).copied().collect()).collect();
            let by_columns = RowBlock::new(Features::from_columns(columns.iter().map(|column| &column[..])).unwrap(), None);
            let by_rows = RowBlock::new(Features::from_rows(&x, d).unwrap(), None);
            assert_eq!(survey(&[by_columns], 3).unwrap(), survey(&[by_rows], 1).unwrap(), "{bad:?}");
        }
        // More features than a task has values.
        let x = vec![1.0f32; 3 * 70_000];
        let survey = survey(&[RowBlock::new(Features::from_rows(&x, 70_000).unwrap(), None)], 2).unwrap();
        assert_eq!((survey.positive, survey.largest), (3, 1.0));
    }
}
