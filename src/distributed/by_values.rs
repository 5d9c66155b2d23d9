//! A row drawn in the order of the values of all rows, although no part is sorted (`row_order="values"`).
//!
//! ```text
//! the key of a value grows with it; a row comes before another if its first different key is smaller
//! digit by digit: how much weigh the rows that begin so?  -> the next digit of the drawn row
//! few rows left: they are fetched and sorted
//! ```
//! Each digit is one pass over the rows of all parts. Rows of continuous values are found after two or three.

use std::ops::Range;

use super::link::Link;
use super::message::{Call, Replied, Reply, refused, taken};
use crate::backend::call::{Beginning, Calls, other_reply};
use crate::base::error::Result;
use crate::base::float::{Float, key, of_key};
use crate::base::memory;
use crate::input::tile::{RowBlock, Tile, WeightScale};
use crate::statistics::Statistics;
use crate::statistics::passes::Merge;
use crate::statistics::tiles::{Visit, for_each_tile, learn};

const DIGIT: u32 = Beginning::DIGIT;
const BITS: u32 = Beginning::BITS;
/// The number of values of a digit.
const VALUES: usize = 1 << DIGIT;
/// So many rows are fetched and sorted.
const FEW: u64 = 1 << 12;
/// What errors call what is counted here.
const COUNTS: &str = "the order of the rows by their values";

impl Beginning {
    fn longer(mut self, digit: u64) -> Self {
        self.prefix = self.prefix << DIGIT | digit;
        self.known += DIGIT;
        if self.known == BITS {
            self.keys.push(self.prefix);
            (self.prefix, self.known) = (0, 0);
        }
        self
    }

    /// The next digit of a row of a tile that begins so.
    #[inline(always)]
    fn digit<T: Float>(&self, tile: &Tile<T>, row: usize) -> Option<usize> {
        let key = |f: usize| key(tile.x[f * tile.stride + row].to_f64());
        if (0..self.keys.len()).any(|f| key(f) != self.keys[f]) {
            return None;
        }
        let next = key(self.keys.len());
        let begins = self.known == 0 || next >> (BITS - self.known) == self.prefix;
        begins.then_some((next >> (BITS - self.known - DIGIT)) as usize % VALUES)
    }
}

/// The weight of the rows of one digit as an integer, and their number.
type Counted = [u128; 2];

struct WeighDigits<'b> {
    beginning: &'b Beginning,
    weights: Option<WeightScale>,
}

impl<T: Float> Visit<T> for WeighDigits<'_> {
    type Learnt = Vec<Counted>;

    fn nothing(&self) -> Result<Self::Learnt> {
        memory::zeroed(VALUES, COUNTS)
    }

    #[inline(always)]
    fn visit(&self, counts: &mut Self::Learnt, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
        tile.load(part, self.weights, range);
        for row in 0..tile.rows {
            if let Some(digit) = self.beginning.digit(tile, row) {
                counts[digit][0] += integer(self.weights, tile.weights[row]);
                counts[digit][1] += 1;
            }
        }
    }
}

struct Find<'b> {
    beginning: &'b Beginning,
    weights: Option<WeightScale>,
}

impl<T: Float> Visit<T> for Find<'_> {
    type Learnt = (Vec<f64>, Vec<f64>);

    fn nothing(&self) -> Result<Self::Learnt> {
        Ok((Vec::new(), Vec::new()))
    }

    #[inline(always)]
    fn visit(&self, found: &mut Self::Learnt, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
        tile.load(part, self.weights, range);
        for row in 0..tile.rows {
            if self.beginning.digit(tile, row).is_some() {
                let d = tile.x.len() / tile.stride;
                found.0.extend((0..d).map(|f| tile.x[f * tile.stride + row].to_f64()));
                found.1.push(tile.weights[row]);
            }
        }
    }
}

/// The integer of a `w^`.
#[inline(always)]
fn integer(scale: Option<WeightScale>, weight: f64) -> u128 {
    scale.map_or(1, |scale| scale.integer(weight) as u128)
}

/// The digits that rows with this beginning go on with: their weight, and how many rows there are.
pub fn digits<T: Float>(
    part: &RowBlock<'_, T>,
    beginning: &Beginning,
    weights: Option<WeightScale>,
    threads: usize,
) -> Result<Replied> {
    let all = learn(std::slice::from_ref(part), threads, &WeighDigits { beginning, weights })?;
    let some = (0u32..).zip(all).filter(|(_, [_, rows])| *rows > 0).map(|(digit, [weight, rows])| (digit, weight, rows as u64));
    Ok((Reply::ValueDigits(memory::collected(some, COUNTS)?), Vec::new()))
}

/// The rows with this beginning.
pub fn rows<T: Float>(
    part: &RowBlock<'_, T>,
    beginning: &Beginning,
    weights: Option<WeightScale>,
    threads: usize,
) -> Result<Replied> {
    let mut all = (Vec::new(), Vec::new());
    for (values, weights) in for_each_tile(std::slice::from_ref(part), threads, &Find { beginning, weights })? {
        memory::extend(&mut all.0, &values, COUNTS)?;
        memory::extend(&mut all.1, &weights, COUNTS)?;
    }
    Ok((Reply::Rows(Vec::new(), all.1), all.0))
}

/// The first row in the order of the values whose running total of weights exceeds `target`, which is below the total.
pub fn draw<T: Float>(link: &Link<'_>, statistics: &Statistics, mut target: u128) -> Result<Vec<T>> {
    let d = statistics.lows.len();
    let mut beginning = Beginning::default();
    while beginning.keys.len() < d {
        let mut counts: Vec<Counted> = memory::zeroed(VALUES, COUNTS)?;
        for (digit, weight, rows) in
            link.ask_all(Call::ValueDigits(beginning.clone()), taken!(ValueDigits))?.into_iter().flatten()
        {
            counts[digit as usize].merge(&[weight, u128::from(rows)]);
        }
        let mut found = None;
        for (digit, [weight, rows]) in (0u64..).zip(counts) {
            if target < weight {
                found = Some((digit, rows));
                break;
            }
            target -= weight;
        }
        let Some((digit, rows)) = found else { return Err(refused("other totals than before".into())) };
        beginning = beginning.longer(digit);
        if rows <= u128::from(FEW) && beginning.keys.len() < d {
            return among(link, statistics, &beginning, target);
        }
    }
    // All rows that are left have these values.
    let values: Vec<f64> = memory::collected(beginning.keys.iter().map(|key| of_key(*key)), COUNTS)?;
    let limits = statistics.lows.iter().zip(&statistics.highs);
    if !values.iter().zip(limits).all(|(value, (low, high))| (*low..=*high).contains(value)) {
        return Err(refused("a value beyond the extent of its column".into()));
    }
    memory::collected(values.into_iter().map(T::from_f64), COUNTS)
}

/// As [`draw`], among the rows with a beginning.
fn among<T: Float>(link: &Link<'_>, statistics: &Statistics, beginning: &Beginning, mut target: u128) -> Result<Vec<T>> {
    let d = statistics.lows.len();
    let found = link.ask(&Calls::All(Call::ValueRows(beginning.clone()).into()))?;
    let mut all: Vec<(&[f64], f64)> = Vec::new();
    for (reply, values) in found.iter().flatten() {
        let Reply::Rows(_, weights) = reply else { return Err(other_reply()) };
        all.extend(values.chunks_exact(d).zip(weights.iter().copied()));
    }
    all.sort_by(|a, b| a.0.iter().map(|x| key(*x)).cmp(b.0.iter().map(|x| key(*x))));
    for (values, weight) in all {
        let weight = integer(statistics.weights, weight);
        if target < weight {
            return memory::collected(values.iter().map(|x| T::from_f64(*x)), COUNTS);
        }
        target -= weight;
    }
    Err(refused("other totals than before".into()))
}
