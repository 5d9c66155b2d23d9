//! What each cluster costs some of the rows: from that, prices are guessed, and how far they may be wrong.

use super::newton::{Margin, PricedRows};
use super::transport::ListedCosts;
use crate::backend::priced::{BLOCK, SampleCosts};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::simd::{InstructionSet, SQUARE, Task, Vector};

/// What errors call the memory of this file.
const WHAT: &str = "a sample for clusters of bounded size";
/// Margins in the tables of all threads.
const MOST_TABLES: usize = 1 << 26;
/// The largest rounding of a cost, in costs.
const ROUNDING: f64 = 1.0 / (1 << 18) as f64;
/// The cost where there is no cluster.
const NONE: f32 = f32::INFINITY;

/// The costs of some rows in float32.
pub struct Sample {
    costs: SampleCosts,
    k: usize,
}

/// Every `step`-th block of a sample.
#[derive(Clone, Copy)]
pub struct SamplePart<'s> {
    sample: &'s Sample,
    step: usize,
}

/// The two cheapest clusters of the rows of a block.
struct Cheapest {
    best: [f32; BLOCK],
    second: [f32; BLOCK],
    /// Their numbers, as the bits of a float32.
    numbers: [[f32; BLOCK]; 2],
}

impl Sample {
    pub fn new(costs: SampleCosts, k: usize) -> Self {
        Self { costs, k }
    }

    /// Its memory, for another one.
    pub fn into_memory(self) -> Vec<f32> {
        self.costs.values
    }

    /// Every `step`-th block.
    pub fn part(&self, step: usize) -> SamplePart<'_> {
        SamplePart { sample: self, step }
    }

    /// The unit of its values, in distances.
    pub fn unit(&self) -> f64 {
        self.costs.unit
    }
}

impl SamplePart<'_> {
    fn blocks(&self) -> usize {
        self.sample.costs.rows.div_ceil(BLOCK).div_ceil(self.step)
    }

    /// The costs of a block: `(k, BLOCK)`.
    fn block(&self, block: usize) -> &[f32] {
        let size = self.sample.k * BLOCK;
        &self.sample.costs.values[block * self.step * size..][..size]
    }

    /// Prices in units of this sample.
    fn scaled(&self, prices: &[f64]) -> Result<Vec<f32>> {
        memory::collected(prices.iter().map(|price| (price / self.sample.unit()).clamp(-1e36, 1e36) as f32), WHAT)
    }

    /// About the largest rounding of costs, in distances: from a usual row, since a few rows may lie far out.
    pub fn rounding(&self) -> Result<f64> {
        let largest = |block: usize| self.block(block).iter().step_by(BLOCK).fold(0.0f32, |most, cost| most.max(cost.abs()));
        let mut rows = memory::collected((0..self.blocks()).map(largest), WHAT)?;
        let middle = rows.len() / 2;
        let usual = rows.select_nth_unstable_by(middle, f32::total_cmp).1;
        Ok(ROUNDING * f64::from(*usual) * self.sample.unit())
    }

    /// Whether half of the rows cost in the first cluster what other rows cost there.
    pub fn has_equal_rows(&self) -> Result<bool> {
        let rows = self.rows();
        let mut costs = memory::collected((0..rows).map(|row| self.block(row / BLOCK)[row % BLOCK].to_bits()), WHAT)?;
        costs.sort_unstable();
        costs.dedup();
        Ok(2 * costs.len() < rows)
    }

    /// The costs as integers of at least 0, and their quantum, in distances.
    pub fn integers(&self) -> Result<(IntegerCosts, f64)> {
        let k = self.sample.k;
        let values = &self.sample.costs.values;
        let (least, most) = values.iter().fold((f32::MAX, f32::MIN), |(least, most), cost| (cost.min(least), cost.max(most)));
        let quantum = ((f64::from(most) - f64::from(least)) * 2f64.powi(-40)).max(1e-30);
        let mut costs = memory::with_room(self.rows() * k, WHAT)?;
        for row in 0..self.rows() {
            let block = self.block(row / BLOCK);
            costs.extend((0..k).map(|j| ((f64::from(block[j * BLOCK + row % BLOCK]) - f64::from(least)) / quantum) as i64));
        }
        let clusters = memory::collected(0..k as u32, WHAT)?;
        Ok((IntegerCosts { clusters, costs }, quantum * self.sample.unit()))
    }

    /// `(k, k)`: among the rows that are nearest to cluster a, the `rank`-th smallest margin to cluster b. Equal margins count
    /// once. If there are fewer margins, the largest of them; infinite if there is none.
    pub fn margins_of_rank(&self, prices: &[f64], rank: usize, threads: usize) -> Result<Vec<f32>> {
        let (k, prices) = (self.sample.k, self.scaled(prices)?);
        let columns = k.next_multiple_of(SQUARE);
        let worker = |_| {
            Ok(RankTable {
                rank,
                columns,
                ranks: memory::filled(k * k * rank, NONE, WHAT)?,
                last: memory::filled(k * columns, NONE, WHAT)?,
                priced: memory::filled(columns * BLOCK, NONE, WHAT)?,
                by_row: memory::filled(columns * BLOCK, NONE, WHAT)?,
            })
        };
        let mut workers = memory::try_collected(
            (0..workers_for(threads, self.blocks()).min((MOST_TABLES / (k * k * rank)).max(1))).map(worker),
            WHAT,
        )?;
        for_each_task(&mut workers, 0..self.blocks(), |table, block| {
            let rows = BLOCK.min(self.sample.costs.rows - block * self.step * BLOCK);
            InstructionSet::detect().run(RankBlock { costs: self.block(block), prices: &prices, rows, table });
        })?;
        let mut pairs = memory::filled(k * k, NONE, WHAT)?;
        let Some((RankTable { ranks, .. }, others)) = workers.split_first_mut() else { return Ok(pairs) };
        for other in others {
            ranks.chunks_exact_mut(rank).zip(other.ranks.chunks_exact(rank)).for_each(|(ranks, other)| {
                other.iter().for_each(|margin| insert(ranks, *margin));
            });
        }
        for (pair, ranks) in pairs.iter_mut().zip(ranks.chunks_exact(rank)) {
            *pair = ranks.iter().rev().copied().find(|margin| *margin < NONE).unwrap_or(NONE);
        }
        Ok(pairs)
    }
}

/// Rows that list all clusters, with integer costs.
pub struct IntegerCosts {
    clusters: Vec<u32>,
    /// `(rows, k)`.
    costs: Vec<i64>,
}

impl ListedCosts for IntegerCosts {
    fn rows(&self) -> usize {
        self.costs.len() / self.clusters.len()
    }

    fn clusters(&self, _: usize) -> &[u32] {
        &self.clusters
    }

    fn cost(&self, row: usize, place: usize) -> i128 {
        i128::from(self.costs[row * self.clusters.len() + place])
    }
}

/// The least margins of each pair of clusters.
struct RankTable {
    rank: usize,
    columns: usize,
    /// `(k, k, rank)`, ascending.
    ranks: Vec<f32>,
    /// `(k, columns)`: the largest of the kept margins.
    last: Vec<f32>,
    /// `(columns, BLOCK)` and `(BLOCK, columns)`: the margins of a block.
    priced: Vec<f32>,
    by_row: Vec<f32>,
}

/// Puts the margins of the rows of a block into a table.
struct RankBlock<'s> {
    /// `(k, BLOCK)`.
    costs: &'s [f32],
    prices: &'s [f32],
    rows: usize,
    table: &'s mut RankTable,
}

impl Task for RankBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { costs, prices, rows, table: RankTable { rank, columns, ranks, last, priced, by_row } } = self;
        let (k, rank, columns) = (prices.len(), *rank, *columns);
        let cheapest = V::call(FindCheapest { costs, prices });
        for (to, (from, price)) in priced.chunks_exact_mut(BLOCK).zip(costs.chunks_exact(BLOCK).zip(prices)) {
            to.iter_mut().zip(from).zip(&cheapest.best).for_each(|((to, from), best)| *to = from + price - best);
        }
        assert!(priced.len() >= columns * BLOCK && by_row.len() >= columns * BLOCK && columns.is_multiple_of(SQUARE));
        for at in (0..BLOCK).step_by(SQUARE) {
            for j in (0..columns).step_by(SQUARE) {
                // SAFETY: both hold `columns` times BLOCK values. SQUARE divides both numbers.
                unsafe {
                    let from = std::array::from_fn(|i| priced.as_ptr().add((j + i) * BLOCK + at));
                    V::transpose(from, by_row.as_mut_ptr().add(at * columns + j), columns);
                }
            }
        }
        for (name, margins) in cheapest.numbers[0].iter().zip(by_row.chunks_exact(columns)).take(rows) {
            let own = name.to_bits() as usize;
            let last = &mut last[own * columns..][..columns];
            for (j, (last, margins)) in last.chunks_exact_mut(SQUARE).zip(margins.chunks_exact(SQUARE)).enumerate() {
                let near = last.iter().zip(margins).fold(false, |near, (last, margin)| near | (margin < last));
                if !near {
                    continue;
                }
                for (j, (last, margin)) in (j * SQUARE..k).zip(last.iter_mut().zip(margins)) {
                    if margin < last {
                        let ranks = &mut ranks[(own * k + j) * rank..][..rank];
                        insert(ranks, *margin);
                        *last = ranks[rank - 1];
                    }
                }
            }
        }
    }
}

/// Puts a margin among the least ones, if it is one.
#[inline]
fn insert(ranks: &mut [f32], margin: f32) {
    let last = ranks.len() - 1;
    if margin < ranks[last] && !ranks.contains(&margin) {
        let mut at = last;
        while at > 0 && ranks[at - 1] > margin {
            ranks[at] = ranks[at - 1];
            at -= 1;
        }
        ranks[at] = margin;
    }
}

fn cheapest(costs: &[f32], prices: &[f32]) -> Cheapest {
    InstructionSet::detect().run(FindCheapest { costs, prices })
}

/// Finds the two cheapest clusters of the rows of a block.
struct FindCheapest<'s> {
    /// `(k, BLOCK)`.
    costs: &'s [f32],
    prices: &'s [f32],
}

impl Task for FindCheapest<'_> {
    type Output = Cheapest;

    #[inline(always)]
    fn run<V: Vector>(self) -> Cheapest {
        let Self { costs, prices } = self;
        let mut found = Cheapest { best: [NONE; BLOCK], second: [NONE; BLOCK], numbers: [[0.0; BLOCK]; 2] };
        assert!(costs.len() >= prices.len() * BLOCK && BLOCK.is_multiple_of(V::LANES));
        for at in (0..BLOCK).step_by(V::LANES) {
            // SAFETY: LANES divides BLOCK. The assertion bounds the costs, and the arrays hold BLOCK values.
            unsafe {
                let (mut best, mut second) = (V::splat(NONE), V::splat(NONE));
                let (mut name, mut next) = (V::splat(0.0), V::splat(0.0));
                for (j, price) in prices.iter().enumerate() {
                    let total = V::load(costs.as_ptr().add(j * BLOCK + at)).add(V::splat(*price));
                    let here = V::splat(f32::from_bits(j as u32));
                    let is_behind = best.not_above(total);
                    let (other, of_other) = (V::select(is_behind, total, best), V::select(is_behind, here, name));
                    (best, name) = (V::select(is_behind, best, total), V::select(is_behind, name, here));
                    let is_behind = second.not_above(other);
                    (second, next) = (V::select(is_behind, second, other), V::select(is_behind, next, of_other));
                }
                best.store(found.best.as_mut_ptr().add(at));
                second.store(found.second.as_mut_ptr().add(at));
                name.store(found.numbers[0].as_mut_ptr().add(at));
                next.store(found.numbers[1].as_mut_ptr().add(at));
            }
        }
        found
    }
}

impl PricedRows for SamplePart<'_> {
    fn rows(&self) -> usize {
        let missing = self.sample.costs.values.len() / self.sample.k - self.sample.costs.rows;
        let has_last = (self.sample.costs.rows.div_ceil(BLOCK) - 1).is_multiple_of(self.step);
        self.blocks() * BLOCK - if has_last { missing } else { 0 }
    }

    fn margins(&self, prices: &[f64], first: usize, out: &mut [Margin]) -> Result<f64> {
        let (mut value, prices, unit) = (0.0, self.scaled(prices)?, self.sample.unit());
        for (block, out) in (first / BLOCK..).zip(out.chunks_mut(BLOCK)) {
            let found = cheapest(self.block(block), &prices);
            for (r, out) in out.iter_mut().enumerate() {
                value += f64::from(found.best[r]);
                let margin = f64::from(found.second[r] - found.best[r]) * unit;
                *out = Margin { own: found.numbers[0][r].to_bits(), second: found.numbers[1][r].to_bits(), margin };
            }
        }
        Ok(value * unit)
    }

    fn nearest_rows(&self, prices: &[f64], threads: usize) -> Result<Option<Vec<f64>>> {
        let ranks = self.margins_of_rank(prices, 1, threads)?;
        Ok(Some(memory::collected(ranks.iter().map(|margin| f64::from(*margin) * self.sample.unit()), WHAT)?))
    }
}
