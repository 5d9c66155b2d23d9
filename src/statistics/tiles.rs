//! Visiting all rows of all parts, a tile at a time, in parallel.

use std::ops::Range;

use super::passes::{Merge, merged};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::input::tile::{Piece, RowBlock, Tile, WeightScale, pieces};
use crate::simd::{InstructionSet, Task, Vector};

/// Number of rows in a tile of these passes.
pub const TILE: usize = 256;
/// Most rows of a task.
const TASK: usize = 16 * TILE;
/// The fewest values of a task that has fewer rows.
const FEWEST_VALUES: usize = 1 << 16;
/// So many tasks for each thread end together.
const TASKS: usize = 4;

/// Rows of a task: whole tiles. Few wide rows make tasks for many threads, too.
fn rows_of_task<T: Float>(parts: &[RowBlock<'_, T>], threads: usize) -> usize {
    let (n, d) = (parts.iter().map(|part| part.features.n_rows()).sum::<usize>(), parts[0].features.n_features());
    let least = (FEWEST_VALUES / d).next_multiple_of(TILE).clamp(TILE, TASK);
    (n / (TASKS * workers_for(threads, n)) / TILE * TILE).clamp(least, TASK)
}

/// A pass over the rows. It is compiled for each instruction set, so `visit` is `#[inline(always)]`.
pub trait Visit<T>: Sync {
    /// What a worker learns.
    type Learnt: Send;
    /// The result of no rows.
    fn nothing(&self) -> Result<Self::Learnt>;
    /// Learns from some rows of a part where they lie, if that is possible: from all of them, or from none. Returns whether it
    /// did.
    #[inline(always)]
    fn visit_in_place(&self, _learnt: &mut Self::Learnt, _part: &RowBlock<'_, T>, _range: Range<usize>) -> bool {
        false
    }
    /// Loads some rows of a part, and learns from them.
    fn visit(&self, learnt: &mut Self::Learnt, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>);
}

/// Visits every tile of every part in parallel. Returns what the workers learnt.
pub fn for_each_tile<T: Float, V: Visit<T>>(parts: &[RowBlock<'_, T>], threads: usize, visit: &V) -> Result<Vec<V::Learnt>> {
    for_each_tile_by(InstructionSet::detect(), parts, threads, visit)
}

/// As [`for_each_tile`]. Merges what the workers learnt.
pub fn learn<T: Float, V: Visit<T>>(parts: &[RowBlock<'_, T>], threads: usize, visit: &V) -> Result<V::Learnt>
where
    V::Learnt: Merge,
{
    merged(for_each_tile(parts, threads, visit)?).map_or_else(|| visit.nothing(), Ok)
}

/// As [`for_each_tile`], with this instruction set.
pub fn for_each_tile_by<T: Float, V: Visit<T>>(
    set: InstructionSet,
    parts: &[RowBlock<'_, T>],
    threads: usize,
    visit: &V,
) -> Result<Vec<V::Learnt>> {
    const WHAT: &str = "the threads' buffers";
    let d = parts[0].features.n_features();
    let task = rows_of_task(parts, threads);
    // A tile is made for the first rows that cannot be visited where they lie.
    let no_tile = || Result::<Option<Tile<T>>>::Ok(None);
    let workers = (0..workers_for(threads, pieces(parts, task).count())).map(|_| Ok((no_tile(), visit.nothing()?)));
    let mut workers = memory::try_collected(workers, WHAT)?;
    for_each_task(&mut workers, pieces(parts, task), |(tile, learnt), Piece { part, rows: range, .. }| {
        let is_done = set.run(VisitRows { visit, learnt, tile: None, part, range: range.clone() });
        if let (false, Ok(None)) = (is_done, &tile) {
            *tile = Tile::new(d, TILE).map(Some);
        }
        if let (false, Ok(tile)) = (is_done, tile) {
            set.run(VisitRows { visit, learnt, tile: tile.as_mut(), part, range });
        }
    })?;
    memory::try_collected(workers.into_iter().map(|(tile, learnt)| tile.map(|_| learnt)), WHAT)
}

/// The rows of one task. Without a tile, they are visited where they lie.
struct VisitRows<'v, 'a, T, V: Visit<T>> {
    visit: &'v V,
    learnt: &'v mut V::Learnt,
    tile: Option<&'v mut Tile<T>>,
    part: &'v RowBlock<'a, T>,
    range: Range<usize>,
}

impl<T: Float, V: Visit<T>> Task for VisitRows<'_, '_, T, V> {
    /// Whether the rows were visited.
    type Output = bool;

    #[inline(always)]
    fn run<S: Vector>(self) -> bool {
        let Self { visit, learnt, tile, part, range } = self;
        let Some(tile) = tile else { return visit.visit_in_place(learnt, part, range) };
        for start in range.clone().step_by(TILE) {
            visit.visit(learnt, tile, part, start..(start + TILE).min(range.end));
        }
        true
    }
}

/// Loads the kept rows of positive weight.
#[inline(always)]
pub fn load_positive<T: Float>(tile: &mut Tile<T>, part: &RowBlock<'_, T>, weights: Option<WeightScale>, range: Range<usize>) {
    tile.load(part, weights, range);
    tile.drop_weightless();
}

#[cfg(feature = "tests")]
mod tests {
    use super::super::quanta::CountSmall;
    use super::super::survey::{SurveyPass, WeightedExtents};
    use super::super::variance::{Moments, SumMoments};
    use super::*;
    use crate::input::features::{Column, Features};

    /// What every pass learns, as text.
    fn learnt<T: Float>(set: InstructionSet, part: &RowBlock<'_, T>) -> [String; 4] {
        let (parts, d) = (std::slice::from_ref(part), part.features.n_features());
        let weights = part.weights.as_ref().map(|_| WeightScale::new(3.0));
        let moments = vec![Moments::new(-3.0, 4.0); d];
        let (count, sum) = (
            CountSmall { largest: &vec![Some(4.0); d], weighted: weights.is_some(), weights },
            SumMoments { moments: &moments, weights },
        );
        [
            format!("{:?}", for_each_tile_by(set, parts, 1, &SurveyPass { d }).unwrap()[0].0),
            format!("{:?}", for_each_tile_by(set, parts, 1, &WeightedExtents { d, weights }).unwrap()),
            format!("{:?}", for_each_tile_by(set, parts, 1, &count).unwrap()),
            format!("{:?}", for_each_tile_by(set, parts, 1, &sum).unwrap()),
        ]
    }

    fn check<T: Float>() {
        for (n, d) in [(1, 1), (300, 3), (777, 20)] {
            let value = |i: usize| ((i * 7919) % 4_001) as f64 / 571.0 - 3.0;
            let x: Vec<T> = (0..n * d).map(|i| T::from_f64(value(i) * [1.0, 1e-9, 0.0, 1e-25][i % 7 % 4])).collect();
            let w: Vec<f64> = (0..n).map(|i| (i % 5) as f64 * 0.75).collect();
            for weights in [None, Some(Column::from_slice(&w))] {
                let part = RowBlock::new(Features::from_rows(&x, d).unwrap(), weights.clone());
                let expected = learnt(InstructionSet::Portable, &part);
                assert_eq!(learnt(InstructionSet::Avx2, &part), expected);
                assert_eq!(learnt(InstructionSet::Avx512, &part), expected);
                // Columns may be read where they lie.
                let columns: Vec<Vec<T>> = (0..d).map(|f| x.iter().skip(f).step_by(d).copied().collect()).collect();
                let part = RowBlock::new(Features::from_columns(columns.iter().map(|column| &column[..])).unwrap(), weights);
                assert_eq!(learnt(InstructionSet::detect(), &part), expected);
            }
        }
    }

    unit_test!(the_instruction_set_does_not_matter);
    fn the_instruction_set_does_not_matter() {
        check::<f32>();
        check::<f64>();
    }
}
