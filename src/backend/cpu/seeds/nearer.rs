//! Which rows are nearer to a candidate than to their nearest seed, and what that changes.
//!
//! ```text
//! for each unit of 32 rows:
//!   float32 rows of many features: the candidates whose float32 differences leave no doubt are dropped     src/certify/skip.rs
//!   for each candidate that is left: reference distances of the 32 rows, in registers, until none can be nearer
//!     a row that is nearer adds to the candidate's gain, or takes its new distance
//! ```

use super::super::simd::Vector;
use super::Rows;
use super::ranges::Ranges;
use crate::certify::skip::NearLimit;
use crate::distances::DistanceScale;
use crate::float::Float;

/// Rows whose distances are computed together. Four vectors of float64 hide the latency of a chain.
pub const UNIT: usize = 32;
/// Most candidates of one pass: they are bits of a word.
pub const MOST: usize = 32;
/// Features after which a chain is looked at.
const PANEL: usize = 32;
/// The float32 differences are for rows of more features than this. For fewer, reference distances take no longer.
const FILTER_ABOVE: usize = 8;
/// Weights of rows without weights.
pub const ONES: [f64; UNIT] = [1.0; UNIT];

/// Rows in whole units. Feature f of row r of unit u is at `u * step + f * stride + r`.
#[derive(Clone, Copy)]
pub struct Strip<'s, T> {
    pub x: &'s [T],
    pub step: usize,
    pub stride: usize,
}

/// Candidates of one pass.
#[derive(Clone, Copy)]
pub struct Candidates<'c, T> {
    /// `(m, d)`, with m at most [`MOST`].
    pub values: &'c [T],
    pub d: usize,
    /// Of the float32 differences, if they are used.
    limit: Option<NearLimit>,
}

impl<'c, T: Float> Candidates<'c, T> {
    /// `filter`: whether float32 differences may help.
    pub fn new(values: &'c [T], d: usize, filter: bool) -> Self {
        let limit = (filter && T::IS_F32 && d > FILTER_ABOVE).then(|| NearLimit::new(d));
        Self { values, d, limit }
    }

    #[inline(always)]
    pub fn row(&self, candidate: usize) -> &'c [T] {
        &self.values[candidate * self.d..][..self.d]
    }

    /// A word with a bit for each candidate.
    pub fn all(&self) -> u32 {
        u32::MAX >> (MOST - self.values.len() / self.d)
    }

    /// Those of the `asked` candidates that can be nearer to a row of the unit, as far as float32 differences say.
    #[inline(always)]
    fn open<V: Vector>(&self, strip: Strip<'_, T>, unit: usize, near: &[f64; UNIT], asked: u32) -> u32 {
        match (self.limit, T::as_f32s(strip.x), T::as_f32s(self.values)) {
            (Some(limit), Some(x), Some(values)) => {
                let limits = near.map(|near| limit.of(near));
                let unit = Unit { x: &x[unit * strip.step..], stride: strip.stride, values, d: self.d, limits: &limits };
                match V::LANES {
                    16 => unit.open::<V, 2>(asked),
                    _ => unit.open::<V, 4>(asked),
                }
            }
            _ => asked,
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
    fn open<V: Vector, const R: usize>(&self, asked: u32) -> u32 {
        let (mut left, mut open) = (asked, 0);
        while left.count_ones() >= 4 && V::MANY_REGISTERS {
            open |= self.differences::<V, R, 4>(take_bits(&mut left));
        }
        while left.count_ones() >= 2 {
            open |= self.differences::<V, R, 2>(take_bits(&mut left));
        }
        if left != 0 {
            open |= self.differences::<V, R, 1>(take_bits(&mut left));
        }
        open
    }

    /// Those of C candidates whose sum is within a row's limit, as bits.
    #[inline(always)]
    fn differences<V: Vector, const R: usize, const C: usize>(&self, candidates: [usize; C]) -> u32 {
        assert!(R * V::LANES == UNIT && self.x.len() >= (self.d - 1) * self.stride + UNIT);
        let rows: [&[f32]; C] = candidates.map(|candidate| &self.values[candidate * self.d..][..self.d]);
        // SAFETY: the assertion bounds what is read of `x`: R vectors of each of the d features. `limits` has R * LANES values, and
        // each of `rows` d values. For the features of the instruction set see `Vector`.
        unsafe {
            let limits: [V; R] = std::array::from_fn(|v| V::load(self.limits.as_ptr().add(v * V::LANES)));
            let mut sums = [[V::splat(0.0); R]; C];
            let mut first = 0;
            loop {
                let end = (first + PANEL).min(self.d);
                for f in first..end {
                    let x = self.x.as_ptr().add(f * self.stride);
                    let x: [V; R] = std::array::from_fn(|v| V::load(x.add(v * V::LANES)));
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
                    let near = (0..R).fold(0, |near, v| near | V::bits(sums[c][v].not_above(limits[v])));
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
    /// The reference distances of a unit, if any of them is below the distance to the nearest seed. Chains never fall. So they end
    /// where none can be nearer any more.
    #[inline(always)]
    fn nearer(&self, unit: usize, candidate: &[T], near: &[f64; UNIT]) -> Option<[f64; UNIT]> {
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
}

/// Counts units and candidates, so that the next pass knows whether float32 differences save time.
#[derive(Default, Clone, Copy)]
pub struct Share {
    pub asked: u64,
    pub nearer: u64,
}

impl Share {
    pub fn add(&mut self, more: Self) {
        self.asked += more.asked;
        self.nearer += more.nearer;
    }
}

/// Adds to each candidate's gain what it would take off the draw weights of the strip's rows. `weights` is empty if all are 1.
/// Returns the candidates that are nearer to some row.
#[inline(always)]
pub fn add_gains<V: Vector, T: Float>(
    strip: Strip<'_, T>,
    near: &[f64],
    weights: &[f64],
    candidates: &Candidates<'_, T>,
    asked: u32,
    scale: DistanceScale,
    gains: &mut [u128],
    share: &mut Share,
) -> u32 {
    let mut found = 0;
    for (unit, near) in near.as_chunks::<UNIT>().0.iter().enumerate() {
        let at = unit * UNIT;
        let weights = weights.get(at..).and_then(<[f64]>::first_chunk).unwrap_or(&ONES);
        let mut open = candidates.open::<V>(strip, unit, near, asked);
        share.asked += u64::from(asked.count_ones());
        while open != 0 {
            let [candidate] = take_bits(&mut open);
            if let Some(s) = strip.nearer(unit, candidates.row(candidate), near) {
                gains[candidate] += scale.lowered(weights, near, &s);
                found |= 1 << candidate;
                share.nearer += 1;
            }
        }
    }
    found
}

/// Where the changes of draw weights go.
pub struct Changes<'c> {
    pub scale: DistanceScale,
    pub ranges: &'c Ranges,
    /// For each range, what its total falls by. Empty if all totals are added up anew.
    pub amounts: &'c mut [u128],
}

/// Lowers the distances of the strip's rows to those to the `asked` candidates, where these are nearer.
#[inline(always)]
pub fn lower<V: Vector, T: Float>(
    strip: Strip<'_, T>,
    near: &mut [f64],
    weights: &[f64],
    candidates: &Candidates<'_, T>,
    asked: u32,
    rows: Rows<'_>,
    changes: &mut Changes<'_>,
) {
    for (unit, near) in near.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
        let at = unit * UNIT;
        let mut open = candidates.open::<V>(strip, unit, near, asked);
        while open != 0 {
            let [candidate] = take_bits(&mut open);
            let Some(s) = strip.nearer(unit, candidates.row(candidate), near) else { continue };
            for r in 0..UNIT {
                if s[r] < near[r] {
                    if !changes.amounts.is_empty() {
                        let weight = weights.get(at + r).map_or(1.0, |weight| *weight);
                        let change = changes.scale.quantise(weight, near[r]) - changes.scale.quantise(weight, s[r]);
                        changes.amounts[changes.ranges.of(rows.at(at + r))] += change;
                    }
                    near[r] = s[r];
                }
            }
        }
    }
}
