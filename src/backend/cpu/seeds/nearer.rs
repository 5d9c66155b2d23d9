//! Which rows are nearer to a candidate than to their nearest seed, and what that changes.
//!
//! ```text
//! for each unit of 32 rows:
//!   float32 rows of many features: float32 differences to all candidates rule out rows            src/bounds/skip.rs
//!   for each candidate with rows that are left: their reference distances, a few rows at a time or all 32
//!     a row that is nearer adds to the candidate's gain, or takes its new distance
//! ```

use super::RowNumbers;
use super::table::Ranges;
use crate::base::float::Float;
use crate::bounds::skip::NearLimit;
use crate::exact::distances::DistanceScale;
use crate::simd::Vector;

/// Rows whose distances are computed together. Four vectors of float64 hide the latency of a chain.
pub const UNIT: usize = 32;
/// Most candidates of one pass: they are bits of a word.
pub const MOST: usize = 32;
/// Features after which a chain is looked at.
const PANEL: usize = 32;
/// The float32 differences are for rows of more features than this. For fewer, reference distances take no longer.
const FILTER_ABOVE: usize = 8;
/// Pairs of a row and a candidate whose distances are computed together.
const PAIRS: usize = 8;
/// If a candidate has at most this many rows of a unit in reach, their distances are computed one by one.
const FEW: u32 = 8;
/// Weights of rows without weights.
pub const ONES: [f64; UNIT] = [1.0; UNIT];

/// Rows in whole units. Feature f of row r of unit u is at `u * step + f * stride + r`.
#[derive(Clone, Copy)]
pub struct Strip<'s, T> {
    pub x: &'s [T],
    pub step: usize,
    pub stride: usize,
}

/// The candidates of one pass.
#[derive(Clone, Copy)]
pub struct CandidateBatch<'c, T> {
    /// `(m, d)`, with m at most [`MOST`].
    pub values: &'c [T],
    pub d: usize,
    /// Of the float32 differences, if they are used.
    limit: Option<NearLimit>,
}

impl<'c, T: Float> CandidateBatch<'c, T> {
    /// `filter`: whether float32 differences may help.
    pub fn new(values: &'c [T], d: usize, filter: bool) -> Self {
        let limit = (filter && T::IS_F32 && d > FILTER_ABOVE).then(|| NearLimit::new(d));
        Self { values, d, limit }
    }

    #[inline(always)]
    pub fn row(&self, candidate: usize) -> &'c [T] {
        &self.values[candidate * self.d..][..self.d]
    }

    #[inline(always)]
    pub fn count(&self) -> usize {
        self.values.len() / self.d
    }

    /// A word with a bit for each candidate.
    pub fn all(&self) -> u32 {
        u32::MAX >> (MOST - self.count())
    }

    /// Finds the rows of the unit that can be nearer to each of the `asked` candidates, as far as float32 differences say.
    /// Returns the candidates with such rows.
    #[inline(always)]
    fn open<V: Vector>(&self, strip: Strip<'_, T>, unit: usize, near: &[f64; UNIT], asked: u32, rows: &mut [u32; MOST]) -> u32 {
        match (self.limit, T::as_f32s(strip.x), T::as_f32s(self.values)) {
            (Some(limit), Some(x), Some(values)) => {
                let limits = near.map(|near| limit.of(near));
                let unit = Unit { x: &x[unit * strip.step..], stride: strip.stride, values, d: self.d, limits: &limits };
                match V::LANES {
                    16 => unit.open::<V, 2>(asked, rows),
                    _ => unit.open::<V, 4>(asked, rows),
                }
            }
            _ => {
                rows.fill(u32::MAX);
                asked
            }
        }
    }
}

/// A unit of rows and the candidates, for float32 differences.
struct Unit<'u> {
    /// From the unit's first value on.
    x: &'u [f32],
    stride: usize,
    values: &'u [f32],
    d: usize,
    limits: &'u [f32; UNIT],
}

impl Unit<'_> {
    #[inline(always)]
    fn open<V: Vector, const R: usize>(&self, asked: u32, rows: &mut [u32; MOST]) -> u32 {
        let (mut left, mut open) = (asked, 0);
        while left.count_ones() >= 4 && V::MANY_REGISTERS {
            open |= self.differences::<V, R, 4>(take_bits(&mut left), rows);
        }
        while left.count_ones() >= 2 {
            open |= self.differences::<V, R, 2>(take_bits(&mut left), rows);
        }
        if left != 0 {
            open |= self.differences::<V, R, 1>(take_bits(&mut left), rows);
        }
        open
    }

    /// For each of C candidates, the rows whose sum is within their limit.
    #[inline(always)]
    fn differences<V: Vector, const R: usize, const C: usize>(
        &self,
        candidates: [usize; C],
        open_rows: &mut [u32; MOST],
    ) -> u32 {
        assert!(R * V::LANES == UNIT && self.x.len() >= (self.d - 1) * self.stride + UNIT);
        let rows: [&[f32]; C] = candidates.map(|candidate| &self.values[candidate * self.d..][..self.d]);
        // SAFETY: the assertion bounds what is read of `x`: R vectors of each of the d features. `limits` has R * LANES values,
        // and each of `rows` d values.
        unsafe {
            let mut limits = [V::splat(0.0); R];
            for v in 0..R {
                limits[v] = V::load(self.limits.as_ptr().add(v * V::LANES));
            }
            let mut sums = [[V::splat(0.0); R]; C];
            let mut first = 0;
            loop {
                let end = (first + PANEL).min(self.d);
                for f in first..end {
                    let mut x = [V::splat(0.0); R];
                    for v in 0..R {
                        x[v] = V::load(self.x.as_ptr().add(f * self.stride + v * V::LANES));
                    }
                    for c in 0..C {
                        let value = V::splat(*rows[c].get_unchecked(f));
                        for v in 0..R {
                            let t = x[v].sub(value);
                            sums[c][v] = t.mul_add(t, sums[c][v]);
                        }
                    }
                }
                let mut open = 0;
                for c in 0..C {
                    let mut near = 0;
                    for v in 0..R {
                        near |= V::bits(sums[c][v].not_above(limits[v])) << (v * V::LANES);
                    }
                    open_rows[candidates[c]] = near;
                    open |= u32::from(near != 0) << candidates[c];
                }
                // Sums never fall. So a candidate that is out stays out.
                if open == 0 || end == self.d {
                    return open;
                }
                first = end;
            }
        }
    }
}

/// Takes the C lowest bits off a word that has as many. Returns their numbers.
#[inline(always)]
fn take_bits<const C: usize>(word: &mut u32) -> [usize; C] {
    std::array::from_fn(|_| {
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        bit
    })
}

impl<T: Float> Strip<'_, T> {
    /// The reference distances of all rows of a unit. Chains never fall. So they end where no row can be nearer any more.
    #[inline(always)]
    pub fn distances(&self, unit: usize, candidate: &[T], near: &[f64; UNIT]) -> Option<[f64; UNIT]> {
        let mut s = [0.0f64; UNIT];
        let mut at = unit * self.step;
        for panel in candidate.chunks(PANEL) {
            for c in panel {
                let (c, x) = (c.to_f64(), self.x[at..].first_chunk::<UNIT>()?);
                at += self.stride;
                for r in 0..UNIT {
                    let t = x[r].to_f64() - c;
                    s[r] = t.mul_add(t, s[r]);
                }
            }
            let mut any = false;
            for r in 0..UNIT {
                any |= s[r] < near[r];
            }
            if !any {
                return None;
            }
        }
        Some(s)
    }

    /// The reference distances of some pairs of a row of the unit and a candidate.
    #[inline(always)]
    fn distances_of_pairs(
        &self,
        unit: usize,
        candidates: &CandidateBatch<'_, T>,
        pairs: &[(usize, usize); PAIRS],
    ) -> [f64; PAIRS] {
        let mut s = [0.0f64; PAIRS];
        let values: [&[T]; PAIRS] = std::array::from_fn(|i| candidates.row(pairs[i].1));
        for f in 0..candidates.d {
            let Some(x) = self.x[unit * self.step + f * self.stride..].first_chunk::<UNIT>() else { return s };
            for i in 0..PAIRS {
                let t = x[pairs[i].0 % UNIT].to_f64() - values[i][f].to_f64();
                s[i] = t.mul_add(t, s[i]);
            }
        }
        s
    }
}

/// What was found about a unit of rows and each candidate.
pub struct UnitDistances {
    /// Reference distances, of the rows that are nearer at least. All others are not below the distance to the nearest seed.
    distances: [[f64; UNIT]; MOST],
    /// The rows that may be nearer.
    rows: [u32; MOST],
}

impl UnitDistances {
    pub fn new() -> Self {
        Self { distances: [[0.0; UNIT]; MOST], rows: [0; MOST] }
    }

    /// Finds the candidates that are nearer to some row of the unit, among the `asked` ones.
    #[inline(always)]
    fn find<V: Vector, T: Float>(
        &mut self,
        strip: Strip<'_, T>,
        unit: usize,
        near: &[f64; UNIT],
        candidates: &CandidateBatch<'_, T>,
        asked: u32,
    ) -> u32 {
        let (mut open, mut nearer) = (candidates.open::<V>(strip, unit, near, asked, &mut self.rows), 0);
        let (mut pairs, mut count) = ([(0, 0); PAIRS], 0);
        while open != 0 {
            let [candidate] = take_bits(&mut open);
            let mut rows = self.rows[candidate];
            if rows.count_ones() > FEW {
                if let Some(s) = strip.distances(unit, candidates.row(candidate), near) {
                    self.distances[candidate] = s;
                    nearer |= 1 << candidate;
                }
                continue;
            }
            self.distances[candidate] = [f64::INFINITY; UNIT];
            while rows != 0 {
                let [row] = take_bits(&mut rows);
                pairs[count] = (row, candidate);
                count += 1;
                if count == PAIRS {
                    nearer |= self.settle(strip, unit, near, candidates, &pairs);
                    count = 0;
                }
            }
        }
        if count > 0 {
            // The first pair fills the list up.
            let first = pairs[0];
            pairs[count..].fill(first);
            nearer |= self.settle(strip, unit, near, candidates, &pairs);
        }
        nearer
    }

    /// Settles pairs of a row and a candidate. Returns the candidates that are nearer.
    #[inline(always)]
    fn settle<T: Float>(
        &mut self,
        strip: Strip<'_, T>,
        unit: usize,
        near: &[f64; UNIT],
        candidates: &CandidateBatch<'_, T>,
        pairs: &[(usize, usize); PAIRS],
    ) -> u32 {
        let mut nearer = 0;
        for ((row, candidate), s) in pairs.iter().zip(strip.distances_of_pairs(unit, candidates, pairs)) {
            self.distances[*candidate][*row] = s;
            nearer |= u32::from(s < near[*row]) << candidate;
        }
        nearer
    }
}

/// Counts pairs of rows and candidates, so that the next pass knows whether float32 differences save time.
#[derive(Default, Clone, Copy)]
pub struct NearerShare {
    pub asked: u64,
    pub nearer: u64,
}

impl NearerShare {
    pub fn add(&mut self, more: Self) {
        self.asked += more.asked;
        self.nearer += more.nearer;
    }
}

/// Where gains go.
pub struct GainSums<'g> {
    pub scale: DistanceScale,
    pub gains: &'g mut [u128; MOST],
    pub share: &'g mut NearerShare,
    /// For each unit of the strip, the candidates that are nearer to some row. Empty if they are not wanted.
    pub gaining: &'g mut [u32],
    /// `(units, m, UNIT)`: the distances to the candidates of `gaining`. Empty if they are not kept.
    pub distances: &'g mut [f64],
}

/// Adds to each of the `asked` candidates' gains what it would take off the draw weights of the strip's rows. `weights` is empty
/// if all are 1.
#[inline(always)]
pub fn add_gains<V: Vector, T: Float>(
    strip: Strip<'_, T>,
    near: &[f64],
    weights: &[f64],
    candidates: &CandidateBatch<'_, T>,
    asked: u32,
    found: &mut UnitDistances,
    out: &mut GainSums<'_>,
) {
    let m = candidates.count();
    for (unit, near) in near.as_chunks::<UNIT>().0.iter().enumerate() {
        let weights = weights.get(unit * UNIT..).and_then(<[f64]>::first_chunk).unwrap_or(&ONES);
        let mut nearer = found.find::<V, T>(strip, unit, near, candidates, asked);
        out.share.asked += u64::from(asked.count_ones()) * UNIT as u64;
        if let Some(gaining) = out.gaining.get_mut(unit) {
            *gaining = nearer;
        }
        while nearer != 0 {
            let [candidate] = take_bits(&mut nearer);
            let new = &found.distances[candidate];
            out.gains[candidate] += out.scale.lowered(weights, near, new);
            out.share.nearer += near.iter().zip(new).filter(|(near, s)| s < near).count() as u64;
            if let Some(distances) = out.distances.get_mut((unit * m + candidate) * UNIT..(unit * m + candidate + 1) * UNIT) {
                distances.copy_from_slice(new);
            }
        }
    }
}

/// Where the changes of draw weights go.
pub struct TotalChanges<'c> {
    pub scale: DistanceScale,
    pub ranges: &'c Ranges,
    /// For each range, what its total falls by. Empty if all totals are added up anew.
    pub amounts: &'c mut [u128],
}

impl TotalChanges<'_> {
    /// Lowers the distances of a unit's rows, where the new ones are smaller. `first` is the place of the first row in `rows` and
    /// `weights`.
    #[inline(always)]
    pub fn lower(&mut self, near: &mut [f64; UNIT], new: &[f64; UNIT], weights: &[f64], rows: RowNumbers<'_>, first: usize) {
        for r in 0..UNIT {
            if new[r] < near[r] {
                if !self.amounts.is_empty() {
                    let weight = weights.get(first + r).map_or(1.0, |weight| *weight);
                    let change = self.scale.quantise(weight, near[r]) - self.scale.quantise(weight, new[r]);
                    self.amounts[self.ranges.of(rows.at(first + r))] += change;
                }
                near[r] = new[r];
            }
        }
    }
}

/// Lowers the distances of the strip's rows to their distances to the `asked` candidates, where a candidate is nearer.
#[inline(always)]
#[expect(clippy::too_many_arguments)]
pub fn lower<V: Vector, T: Float>(
    strip: Strip<'_, T>,
    near: &mut [f64],
    weights: &[f64],
    candidates: &CandidateBatch<'_, T>,
    asked: u32,
    rows: RowNumbers<'_>,
    found: &mut UnitDistances,
    changes: &mut TotalChanges<'_>,
) {
    for (unit, near) in near.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
        let mut nearer = found.find::<V, T>(strip, unit, near, candidates, asked);
        while nearer != 0 {
            let [candidate] = take_bits(&mut nearer);
            changes.lower(near, &found.distances[candidate], weights, rows, unit * UNIT);
        }
    }
}
