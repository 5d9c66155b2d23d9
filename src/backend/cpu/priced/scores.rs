//! The priced scores of 64 rows, and the centroids that they leave in reach.
//!
//! The filter hands over its scores panel by panel. Each gets its centroid's price. When all are there, the nearest centroid of
//! each row is known, and with it the widths of the other centroids beside it.

use std::sync::Arc;

use crate::backend::cpu::filter::{GROUP, NO_CENTROID};
use crate::backend::cpu::product::ROWS;
use crate::backend::priced::{LISTS, PriceRange};
use crate::base::aligned::Lines;
use crate::base::error::Result;
use crate::base::memory;
use crate::bounds::Expanded;
use crate::exact::fixed::PowerOfTwo;
use crate::simd::{SQUARE, Vector};

/// A little more than 1.
const SLIGHTLY: f32 = 1.0 + 1.0 / (1 << 20) as f32;
/// Unit roundoff of float32.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// The largest cost of a sample.
const MOST_COST: f32 = 1e36;

/// Prices and widths in the units of scores. A row takes its share of them.
pub struct PriceTable {
    /// `(k)`: rounded down, with room for the roundings of a priced score.
    low: Vec<f32>,
    /// `(k)`: rounded up.
    high: Vec<f32>,
    /// `(k, columns)`: minus the width of each centroid beside the nearest one, rounded down. Empty: the sum of two of `own`.
    pairs: Vec<f32>,
    columns: usize,
    /// `(k)`.
    own: Vec<f32>,
    /// What the roundings of float64 add to the limit of a row of share 1.
    extra: f64,
    /// From units of scores to those of prices.
    back: PowerOfTwo,
}

impl PriceTable {
    /// For scores of half squares times 2^exponent, of `d` features.
    pub fn new(range: &PriceRange<'_>, d: usize, exponent: i32) -> Result<Self> {
        let PriceRange { prices, widths } = *range;
        let (k, scale) = (prices.len(), PowerOfTwo::new(exponent));
        assert!(widths.own.len() == k && (widths.pairs.is_empty() || widths.pairs.len() == k * k));
        let largest = prices.iter().fold(0.0f64, |most, price| most.max(price.abs())) + widths.largest();
        let outwards = |price: f64, sign: f64| {
            let half = 0.5 * scale.apply(price);
            (sign * below(sign * half - 4.01 * U * half.abs())) as f32
        };
        let columns = k.next_multiple_of(SQUARE);
        let in_pairs = !widths.pairs.is_empty();
        let mut pairs = memory::zeroed(if in_pairs { k * columns } else { 0 }, LISTS)?;
        for (to, from) in pairs.chunks_exact_mut(columns).zip(widths.pairs.chunks_exact(k)) {
            to.iter_mut().zip(from).for_each(|(to, width)| *to = -outwards(widths.unit * f64::from(*width), -1.0));
        }
        Ok(Self {
            low: memory::collected(prices.iter().map(|price| outwards(*price, 1.0)), LISTS)?,
            high: memory::collected(prices.iter().map(|price| outwards(*price, -1.0)), LISTS)?,
            pairs,
            columns,
            own: memory::collected(widths.own.iter().map(|width| -outwards(widths.unit * f64::from(*width), -1.0)), LISTS)?,
            extra: (2.02 * (d + 4) as f64 * 2f64.powi(-53) * scale.apply(largest)).next_up(),
            back: PowerOfTwo::new(-exponent),
        })
    }

    /// The unit of twice a score, in squared distances.
    pub fn unit(&self) -> f64 {
        self.back.apply(1.0)
    }

    fn k(&self) -> usize {
        self.low.len()
    }
}

/// What is known of 64 rows.
pub struct PricedScores {
    table: Arc<PriceTable>,
    /// `(k, ROWS)`: the scores with prices.
    scores: Lines,
    /// `(columns, ROWS)`: minus the widths beside the nearest centroid of each row.
    widths: Lines,
    /// The least sums of a score, its slack and its price.
    best: [f32; ROWS],
    /// For each row, the number of the centroid of `best`, as the bits of a float32.
    nearest: [f32; ROWS],
    /// One over the weight of each row.
    shares: [f32; ROWS],
    /// The centroids in reach of each row, ascending.
    pub lists: Vec<Vec<u32>>,
}

impl PricedScores {
    pub fn new(table: &Arc<PriceTable>) -> Result<Self> {
        let k = table.k();
        let widths = if table.pairs.is_empty() { 0 } else { table.columns };
        Ok(Self {
            table: table.clone(),
            scores: Lines::zeroed(k * ROWS, LISTS)?,
            widths: Lines::zeroed(widths * ROWS, LISTS)?,
            best: [0.0; ROWS],
            nearest: [0.0; ROWS],
            shares: [1.0; ROWS],
            lists: memory::try_collected((0..ROWS).map(|_| memory::with_room(k, LISTS)), LISTS)?,
        })
    }

    /// Begins with other rows. `weights`: of these, or None if all are 1.
    pub fn begin(&mut self, weights: Option<&[f64]>) {
        self.best.fill(f32::INFINITY);
        self.nearest.fill(f32::from_bits(NO_CENTROID));
        let weights = weights.unwrap_or_default();
        self.shares.iter_mut().zip(weights).for_each(|(share, weight)| *share = (1.0 / weight) as f32);
    }

    /// Takes the scores of a panel of `count` centroids, of which `first` is the first: `(count, ROWS)`. `own`: half squares and
    /// slacks, as the filter has them.
    #[inline(always)]
    pub fn see<V: Vector>(&mut self, from: &[f32], [first, count, rows]: [usize; 3], own: &[f32]) {
        let Self { table, scores, best, nearest, shares, .. } = self;
        let here = first..first + count;
        assert!(from.len() >= count * ROWS && scores.len() >= here.end * ROWS && rows <= ROWS);
        let (low, high) = (&table.low[here.clone()], &table.high[here]);
        let slack = |j: usize| own[(first + j) / GROUP * 2 * GROUP + GROUP + (first + j) % GROUP];
        for at in (0..rows).step_by(V::LANES) {
            // SAFETY: LANES divides ROWS. The assertion bounds the scores, and the arrays hold ROWS values.
            unsafe {
                let share = V::load(shares.as_ptr().add(at));
                let (mut least, mut name) = (V::load(best.as_ptr().add(at)), V::load(nearest.as_ptr().add(at)));
                for (j, (low, high)) in low.iter().zip(high).enumerate() {
                    let score = V::load(from.as_ptr().add(j * ROWS + at));
                    V::splat(*low).mul_add(share, score).store(scores.as_mut_ptr().add((first + j) * ROWS + at));
                    // A slack covers float32 errors. The factor covers those of float64 that prices add.
                    let sum = V::splat(*high).mul_add(share, score.add(V::splat(slack(j) * SLIGHTLY)));
                    // A sum that is NaN changes nothing.
                    name = V::select(least.not_above(sum), name, V::splat(f32::from_bits((first + j) as u32)));
                    least = sum.min_or(least);
                }
                least.store(best.as_mut_ptr().add(at));
                name.store(nearest.as_mut_ptr().add(at));
            }
        }
    }

    /// Lists the centroids in reach of each row. `errors`: what errors of the scores add to the limit of each row.
    #[inline(always)]
    pub fn list<V: Vector>(&mut self, rows: usize, errors: &[f32; ROWS]) {
        self.spread_widths::<V>(rows);
        let Self { table, scores, widths, best, nearest, shares, lists } = &mut *self;
        let k = table.k();
        assert!(rows <= ROWS && scores.len() >= k * ROWS && (table.pairs.is_empty() || widths.len() >= k * ROWS));
        let (mut limits, mut own) = ([f32::INFINITY; ROWS], [0.0f32; ROWS]);
        for r in 0..rows {
            lists[r].clear();
            let limit = Expanded::threshold(best[r], errors[r] * SLIGHTLY + (table.extra * f64::from(shares[r])) as f32);
            // A priced score has two roundings more than one without a price.
            limits[r] = limit + limit.abs() * (4.0 * U) as f32;
            own[r] = table.own.get(nearest[r].to_bits() as usize).copied().unwrap_or(f32::NEG_INFINITY);
        }
        for at in (0..rows).step_by(V::LANES) {
            let there = u32::MAX >> (32 - V::LANES.min(rows - at));
            // SAFETY: as in `see`.
            unsafe {
                let (limit, share) = (V::load(limits.as_ptr().add(at)), V::load(shares.as_ptr().add(at)));
                let own = V::load(own.as_ptr().add(at));
                for j in 0..k {
                    let width = match table.pairs.is_empty() {
                        true => own.add(V::splat(*table.own.get_unchecked(j))),
                        false => V::load(widths.as_ptr().add(j * ROWS + at)),
                    };
                    let score = width.mul_add(share, V::load(scores.as_ptr().add(j * ROWS + at)));
                    let near = score.not_above(limit);
                    let mut bits = V::bits(near) & there;
                    while bits != 0 {
                        lists[at + bits.trailing_zeros() as usize].push(j as u32);
                        bits &= bits - 1;
                    }
                }
            }
        }
        for r in 0..rows {
            // A limit that is not finite rules nothing out, and nothing is known of a row without a nearest centroid.
            if !limits[r].is_finite() || self.nearest(r) as usize >= k || self.lists[r].is_empty() {
                self.list_all(r);
            }
        }
    }

    /// Lists all centroids for row `r`.
    pub fn list_all(&mut self, r: usize) {
        self.lists[r].clear();
        self.lists[r].extend(0..self.table.k() as u32);
        self.nearest[r] = f32::from_bits(0);
    }

    /// Puts the widths beside the nearest centroid of each row side by side.
    #[inline(always)]
    fn spread_widths<V: Vector>(&mut self, rows: usize) {
        let Self { table, widths, nearest, .. } = self;
        let PriceTable { pairs, columns, .. } = &**table;
        if pairs.is_empty() {
            return;
        }
        assert!(widths.len() >= columns * ROWS);
        for at in (0..rows).step_by(SQUARE) {
            let of_row = |i: usize| {
                let j = nearest[at + i].to_bits() as usize;
                pairs.get(j * columns..(j + 1) * columns).unwrap_or(&pairs[..*columns]).as_ptr()
            };
            let from: [*const f32; SQUARE] = std::array::from_fn(of_row);
            for j in (0..*columns).step_by(SQUARE) {
                // SAFETY: each row has `columns` values, a multiple of SQUARE. SQUARE divides ROWS.
                unsafe { V::transpose(from.map(|row| row.add(j)), widths.as_mut_ptr().add(j * ROWS + at), ROWS) }
            }
        }
    }

    /// The nearest centroid of row `r`.
    pub fn nearest(&self, r: usize) -> u32 {
        self.nearest[r].to_bits()
    }

    /// Writes weighted squared distances, less a number of each row, in units of [`PriceTable::unit`]: `(k, ROWS)`. All prices
    /// must be 0.
    pub fn write(&self, rows: usize, weights: Option<&[f64]>, out: &mut [f32]) {
        for (out, scores) in out.chunks_exact_mut(ROWS).zip(self.scores.chunks_exact(ROWS)) {
            for (r, (out, score)) in out.iter_mut().zip(scores).take(rows).enumerate() {
                let cost = 2.0 * weights.map_or(1.0, |weights| weights[r]) as f32 * score;
                *out = if cost.abs() <= MOST_COST { cost } else { MOST_COST };
            }
        }
    }
}

/// The largest float32 at or below x, as a float64.
fn below(x: f64) -> f64 {
    let y = x as f32;
    f64::from(if f64::from(y) > x { y.next_down() } else { y })
}
