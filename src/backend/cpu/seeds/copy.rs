//! A copy of the rows in an order in which neighbours are close together, cut into blocks.
//!
//! ```text
//! for each block of up to 512 rows: the box of its rows, and the largest distance of a row to its nearest seed
//! a candidate passes over a block if no point of the box is nearer than that                  src/bounds/skip.rs
//! ```
//! What is left of a step is the search around its candidates. It shrinks as seeds come in.

use std::ops::Range;

use super::super::tasks::{TaskRows, pieces, split_off};
use super::nearer::{CandidateBatch, MOST, Strip, UNIT};
use super::tree::{ORDER, SAMPLE, SplitTree};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::bounds::skip::gap;
use crate::input::tile::{RowBlock, Tile};
use crate::simd::{InstructionSet, Task, Vector};

/// Fewest clusters for which the copy pays: it costs as much as the distances to a few dozen candidates.
const LEAST_CLUSTERS: usize = 8;
/// Fewest rows for which the copy pays.
const LEAST_ROWS: usize = 1_024;
/// Bytes that the copy, the distances and the order of the rows may take. Larger tables are read where they are: a fit takes only
/// a fraction of the memory of its data.
const MOST_BYTES: usize = 96 << 20;
/// A leaf of the tree has at least half as many rows on average.
const LEAF_ROWS: usize = 256;
/// Most rows of a block. Only leaves of many equal rows are larger.
const BLOCK_ROWS: usize = 512;
/// Most blocks of a task.
pub const TASK_BLOCKS: usize = 64;

/// Tasks of a worker that copies rows which lie side by side.
const TASKS_OF_ROWS: usize = 64;

/// Stands in [`NeighbourCopy::rows`] where a place is padding.
pub const NO_ROW: u32 = u32::MAX;

/// The name for the copy in errors.
const COPY: &str = "the rows in the order for seeding";

/// The rows of a session in the new order. A *place* is an index in this order, which has padding between blocks.
pub struct NeighbourCopy<T> {
    d: usize,
    /// `(places / UNIT, d, UNIT)`. A unit lies in one piece, as prefetchers want it. The padding of a block repeats its first
    /// row.
    x: Vec<T>,
    /// The first place of each block, and the number of places. All are multiples of [`UNIT`].
    pub starts: Vec<usize>,
    /// The row at each place, or [`NO_ROW`].
    pub rows: Vec<u32>,
    /// The boxes of the blocks: `(d, blocks)`.
    lows: Vec<T>,
    highs: Vec<T>,
}

/// Whether rows should be copied for k-means++ into `k` clusters.
pub fn pays<T>(rows: usize, d: usize, k: usize, weighted: bool) -> bool {
    // Values, distance, both directions of the order, and perhaps a weight.
    let each = d.saturating_mul(size_of::<T>()).saturating_add(if weighted { 24 } else { 16 });
    k >= LEAST_CLUSTERS && (LEAST_ROWS..NO_ROW as usize / 2).contains(&rows) && each.saturating_mul(rows) <= MOST_BYTES
}

impl<T: Float> NeighbourCopy<T> {
    /// Copies the rows. Returns the place of each row too.
    pub fn new(
        set: InstructionSet,
        part: &RowBlock<'_, T>,
        tasks: &[TaskRows],
        tiles: &mut [&mut Tile<T>],
    ) -> Result<(Self, Vec<u32>)> {
        let (n, d) = (tasks.iter().map(|task| task.kept).sum::<usize>(), part.features.n_features());
        let physical = physical_rows(part)?;
        let depth = (n / LEAF_ROWS).max(1).ilog2() + 1;
        let tree = {
            let m = SAMPLE << depth;
            let chosen = (0..m).map(|i| physical_row(&physical, (i as u64 * n as u64 / m as u64) as usize));
            let chosen = memory::collected(chosen, ORDER)?;
            let mut sample = memory::zeroed(m.saturating_mul(d), ORDER)?;
            part.features.gather_tile(&chosen, m, &mut sample);
            SplitTree::grow(&sample, d, depth)?
        };
        let mut places = memory::zeroed::<u32>(n, ORDER)?;
        let mut rest = places.as_mut_slice();
        let work = tasks.iter().map(|task| (task, split_off(&mut rest, task.kept)));
        for_each_task(tiles, work, |tile, (task, leaves)| set.run(Leaves { part, tree: &tree, tile, task, leaves }))?;
        let starts = places_of_leaves(&mut places, 1 << depth)?;
        let mut rows = memory::filled(starts[starts.len() - 1], NO_ROW, ORDER)?;
        for (row, place) in places.iter().enumerate() {
            rows[*place as usize] = row as u32;
        }
        let mut copied = Self {
            d,
            x: memory::zeroed(rows.len().saturating_mul(d), COPY)?,
            starts,
            rows,
            lows: Vec::new(),
            highs: Vec::new(),
        };
        copied.copy(part, &physical, tiles.len())?;
        (copied.lows, copied.highs) = copied.boxes(tiles.len())?;
        Ok((copied, places))
    }

    fn copy(&mut self, part: &RowBlock<'_, T>, physical: &[u32], workers: usize) -> Result<()> {
        let Self { d, x, starts, rows, .. } = self;
        let (unit, n) = (UNIT * *d, part.features.n_rows());
        let mut list = memory::with_room(rows.len(), ORDER)?;
        for block in starts.windows(2) {
            let rows = &rows[block[0]..block[1]];
            let kept = rows.iter().map(|&row| if row == NO_ROW { rows[0] } else { row });
            list.extend(kept.map(|row| physical_row(physical, row as usize)));
        }
        // A task reads all pages of a column, so columns make few tasks.
        let by_columns = part.features.is_by_columns();
        let units = (list.len() / UNIT).div_ceil(workers * if by_columns { 2 } else { TASKS_OF_ROWS }).max(1);
        let tasks = list.chunks(units * UNIT).zip(x.chunks_mut(units * unit));
        for_each_task(&mut vec![(); workers], tasks, |(), (list, x)| {
            if by_columns {
                part.features.gather_blocks::<UNIT>(0..n, list, unit, x);
            }
            for (list, x) in list.chunks_exact(UNIT).zip(x.chunks_exact_mut(unit)) {
                match by_columns {
                    true => part.features.arrive(UNIT, UNIT, x),
                    false => part.features.gather_tile(list, UNIT, x),
                }
            }
        })
    }

    /// The least and the largest values of the blocks: `(d, blocks)`.
    fn boxes(&self, workers: usize) -> Result<(Vec<T>, Vec<T>)> {
        let (blocks, d) = (self.blocks(), self.d);
        let mut of_blocks = memory::zeroed(blocks.saturating_mul(2 * d), COPY)?;
        for_each_task(&mut vec![(); workers], of_blocks.chunks_mut(2 * d).enumerate(), |(), (block, limits)| {
            let x = self.strip(block).x;
            let (lows, highs) = limits.split_at_mut(d);
            for f in 0..d {
                let (mut low, mut high) = (x[f * UNIT], x[f * UNIT]);
                for unit in x.chunks_exact(d * UNIT) {
                    for &value in &unit[f * UNIT..][..UNIT] {
                        low = if value < low { value } else { low };
                        high = if value > high { value } else { high };
                    }
                }
                (lows[f], highs[f]) = (low, high);
            }
        })?;
        let turned = |first: usize| (first..first + d).flat_map(|f| of_blocks[f..].iter().step_by(2 * d).copied());
        Ok((memory::collected(turned(0), COPY)?, memory::collected(turned(d), COPY)?))
    }

    pub fn blocks(&self) -> usize {
        self.starts.len() - 1
    }

    /// The places of some blocks.
    #[inline(always)]
    pub fn places(&self, blocks: Range<usize>) -> Range<usize> {
        self.starts[blocks.start]..self.starts[blocks.end]
    }

    /// The rows of a block.
    #[inline(always)]
    pub fn strip(&self, block: usize) -> Strip<'_, T> {
        let places = self.places(block..block + 1);
        Strip { x: &self.x[places.start * self.d..places.end * self.d], step: self.d * UNIT, stride: UNIT }
    }

    /// For each of at most [`TASK_BLOCKS`] blocks, the candidates that can be nearer to some row than its nearest seed.
    /// `farthest` has the largest distance of each of these blocks.
    #[inline(always)]
    pub fn reach(
        &self,
        blocks: Range<usize>,
        farthest: &[f64],
        candidates: &CandidateBatch<'_, T>,
        reach: &mut [u32; TASK_BLOCKS],
    ) {
        let (all, count) = (self.blocks(), blocks.len());
        reach.fill(0);
        for (candidate, values) in candidates.values.chunks_exact(self.d).enumerate().take(MOST) {
            let mut s = [0.0f64; TASK_BLOCKS];
            for (f, c) in values.iter().enumerate() {
                let (lows, highs) =
                    (&self.lows[f * all + blocks.start..][..count], &self.highs[f * all + blocks.start..][..count]);
                let c = c.to_f64();
                for ((s, low), high) in s.iter_mut().zip(lows).zip(highs) {
                    let t = gap(low.to_f64(), high.to_f64(), c);
                    *s = t.mul_add(t, *s);
                }
            }
            for ((reach, s), farthest) in reach.iter_mut().zip(&s).zip(farthest) {
                *reach |= u32::from(s < farthest) << candidate;
            }
        }
    }
}

/// The physical rows of the kept rows, in order. Empty if all rows are kept.
fn physical_rows<T: Float>(part: &RowBlock<'_, T>) -> Result<Vec<u32>> {
    if part.selection.is_all() {
        return Ok(Vec::new());
    }
    let all = 0..part.features.n_rows() as u32;
    memory::collected(all.filter(|row| part.selection.contains(*row as usize)), ORDER)
}

/// The physical row of a kept row.
#[inline(always)]
fn physical_row(physical: &[u32], row: usize) -> usize {
    physical.get(row).map_or(row, |row| *row as usize)
}

/// Turns the leaf of each row into its place. Returns the first place of each block, and the number of places.
fn places_of_leaves(leaves: &mut [u32], count: usize) -> Result<Vec<usize>> {
    let mut next = memory::zeroed::<u32>(count, ORDER)?;
    leaves.iter().for_each(|leaf| next[*leaf as usize] += 1);
    let mut starts = memory::with_room(2 * count + 1 + leaves.len() / BLOCK_ROWS, ORDER)?;
    let mut place = 0;
    for next in &mut next {
        let end = place + (*next as usize).next_multiple_of(UNIT);
        *next = place as u32;
        // A block that is full has no padding, so the places of a leaf have no gaps.
        while place < end {
            starts.push(place);
            place = (place + BLOCK_ROWS).min(end);
        }
    }
    starts.push(place);
    for place in leaves {
        let next = &mut next[*place as usize];
        *place = *next;
        *next += 1;
    }
    Ok(starts)
}

/// Finds the leaves of the rows of one task.
struct Leaves<'p, 'a, T> {
    part: &'p RowBlock<'a, T>,
    tree: &'p SplitTree<T>,
    tile: &'p mut Tile<T>,
    task: &'p TaskRows,
    leaves: &'p mut [u32],
}

impl<T: Float> Task for Leaves<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut at = 0;
        for rows in pieces(self.task.physical.clone(), self.tile.stride) {
            self.tile.load(self.part, None, rows);
            self.tree.leaves(self.tile, &mut self.leaves[at..][..self.tile.rows]);
            at += self.tile.rows;
        }
    }
}
