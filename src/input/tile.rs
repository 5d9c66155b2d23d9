//! A tile: a few dozen kept rows of every feature, feature-major, and their weights.
//!
//! All compute code reads the data through tiles. So chunking, layout, nulls and skipped rows are handled only here.

use std::ops::Range;
use std::sync::Arc;

use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::{Column, Features, rows_to_columns};
use crate::input::fp16::{Half, Same};

/// Turns row weights into `w^` and into integers: `w^ = integer * 2^(exponent - 53)`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct WeightScale {
    /// The largest weight is at most `2^exponent`.
    pub exponent: i32,
    /// The largest `w^`.
    pub largest: f64,
}

impl WeightScale {
    pub fn new(largest: f64) -> Self {
        let exponent = crate::exact::fixed::exponent_at_or_above(largest);
        let scale = Self { exponent, largest };
        Self { largest: scale.round(largest), ..scale }
    }

    /// `w^`: the weight with 53 bits below the power of two at or above the largest weight. A positive weight is at least one
    /// quantum.
    pub fn round(&self, w: f64) -> f64 {
        if w > 0.0 {
            let quantum = crate::exact::fixed::power_of_two(self.exponent - 53);
            (w / quantum).round_ties_even().max(1.0) * quantum
        } else {
            0.0
        }
    }

    /// The integer of a `w^`.
    #[inline(always)]
    pub fn integer(&self, w: f64) -> i128 {
        (w * crate::exact::fixed::power_of_two(53 - self.exponent)) as i128
    }
}

/// Which rows take part: all, or those whose bit is set.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Shared, because a selection is cloned together with its part.
    bits: Option<Arc<Vec<u64>>>,
}

impl Selection {
    /// The rows whose bit is set (bit `i % 64` of word `i / 64`).
    pub fn from_bits(bits: Vec<u64>) -> Self {
        Self { bits: Some(Arc::new(bits)) }
    }

    /// The selection of the rows of several parts, one behind the other. Each part has so many rows.
    pub fn joined(parts: &[(Self, usize)]) -> Result<Self> {
        if parts.iter().all(|(selection, _)| selection.is_all()) {
            return Ok(Self::default());
        }
        let rows: usize = parts.iter().map(|(_, rows)| rows).sum();
        let mut bits = memory::zeroed(rows.div_ceil(64), "the rows that take part")?;
        let all = parts.iter().flat_map(|(selection, rows)| (0..*rows).map(|row| selection.contains(row)));
        all.enumerate().filter(|(_, kept)| *kept).for_each(|(row, _)| bits[row / 64] |= 1 << (row % 64));
        Ok(Self::from_bits(bits))
    }

    /// Whether every row takes part.
    pub fn is_all(&self) -> bool {
        self.bits.is_none()
    }

    /// The bits of the rows, if not every row takes part.
    #[cfg(any(feature = "cuda", feature = "parts"))]
    pub(crate) fn words(&self) -> Option<&[u64]> {
        self.bits.as_ref().map(|bits| &bits[..])
    }

    /// Whether row `i` takes part.
    #[inline]
    pub fn contains(&self, i: usize) -> bool {
        self.bits.as_ref().is_none_or(|bits| bits[i / 64] >> (i % 64) & 1 == 1)
    }

    /// Number of rows of a range that take part.
    pub fn count(&self, range: Range<usize>) -> usize {
        let Some(bits) = &self.bits else { return range.len() };
        words_of(bits, range).map(|word| word.count_ones() as usize).sum()
    }

    /// Which of some rows take part, as a selection of these rows.
    #[cfg(any(feature = "cuda", feature = "tests"))]
    fn slice(&self, range: Range<usize>) -> Result<Self> {
        let Some(bits) = &self.bits else { return Ok(Self::default()) };
        Ok(Self::from_bits(memory::collected(words_of(bits, range), "which rows take part")?))
    }
}

/// The bits of a range of rows, the first of which is the lowest bit of the first word.
fn words_of(bits: &[u64], range: Range<usize>) -> impl Iterator<Item = u64> {
    let end = range.end;
    range.step_by(64).map(move |at| {
        let (word, shift) = (at / 64, at % 64);
        // Where the range ends before the next word, the mask leaves that word out.
        let next = bits.get(word + 1).filter(|_| shift > 0).map_or(0, |next| next << (64 - shift));
        (bits[word] >> shift | next) & u64::MAX >> (64 - (end - at).min(64))
    })
}

/// Rows and their weights, and which of the rows take part.
#[derive(Debug, Clone)]
pub struct RowBlock<'a, T> {
    pub features: Features<'a, T>,
    pub weights: Option<Column<'a, f64>>,
    pub selection: Selection,
}

impl<'a, T: Float> RowBlock<'a, T> {
    pub fn new(features: Features<'a, T>, weights: Option<Column<'a, f64>>) -> Self {
        Self { features, weights, selection: Selection::default() }
    }

    /// Some of the rows.
    #[cfg(any(feature = "cuda", feature = "tests"))]
    pub(crate) fn slice(&self, range: Range<usize>) -> Result<Self> {
        let selection = self.selection.slice(range.clone())?;
        let weights = self.weights.as_ref().map(|weights| weights.slice(range.clone())).transpose()?;
        Ok(Self { features: self.features.slice(range)?, weights, selection })
    }

    /// Writes the `w^` of a list of rows, in its order. Without weights, it writes nothing.
    #[inline]
    pub fn gather_weights(&self, scale: Option<WeightScale>, rows: &[usize], out: &mut [f64]) {
        if let Some(weights) = &self.weights {
            weights.gather(rows, out);
            round_weights(scale, &mut out[..rows.len()]);
        }
    }

    /// The same part with values on the host. Those on a GPU are copied.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError), [`KMeansError::Device`](crate::KMeansError).
    pub(crate) fn on_host(&self) -> Result<Self> {
        let weights = self.weights.as_ref().map(Column::on_host).transpose()?;
        Ok(Self { features: self.features.on_host()?, weights, selection: self.selection.clone() })
    }
}

/// Rounds weights to `w^`.
#[inline]
fn round_weights(scale: Option<WeightScale>, weights: &mut [f64]) {
    if let Some(scale) = scale {
        weights.iter_mut().for_each(|w| *w = scale.round(*w));
    }
}

/// All parts with values on the host. Only errors and a few passes ask for it.
pub(crate) fn on_host<'a, T: Float>(parts: &[RowBlock<'a, T>]) -> Result<Vec<RowBlock<'a, T>>> {
    memory::try_collected(parts.iter().map(RowBlock::on_host), "a list of the rows")
}

/// Consecutive rows of a part.
pub struct Piece<'p, 'a, T> {
    pub part: &'p RowBlock<'a, T>,
    pub rows: Range<usize>,
    /// The number of the first of them in all rows.
    pub first: usize,
}

/// The rows of all parts in pieces of at most `most` rows.
pub fn pieces<'p, 'a, T: Float>(parts: &'p [RowBlock<'a, T>], most: usize) -> impl Iterator<Item = Piece<'p, 'a, T>> {
    let starts = parts.iter().scan(0, |next, part| Some(std::mem::replace(next, *next + part.features.n_rows())));
    parts.iter().zip(starts).flat_map(move |(part, start)| {
        let n = part.features.n_rows();
        (0..n).step_by(most).map(move |at| Piece { part, rows: at..(at + most).min(n), first: start + at })
    })
}

/// The type in which a GPU keeps the rows of all parts, if it is one of 16 bits. Parts without rows do not count.
pub fn half<T: Float>(parts: &[RowBlock<'_, T>]) -> Option<Half> {
    let there = || parts.iter().filter(|part| part.features.n_rows() > 0);
    let half = there().next()?.features.half()?;
    there().all(|part| part.features.half() == Some(half)).then_some(half)
}

/// Rows that are read feature by feature.
pub trait ByFeature<T>: Copy {
    /// Feature `f` of the rows.
    fn column(&self, f: usize) -> &[T];
}

/// The values of some rows, feature by feature.
#[derive(Debug, Clone, Copy)]
pub struct FeatureValues<'x, T> {
    /// Feature f of row r is `x[f * stride + r]`.
    x: &'x [T],
    stride: usize,
    rows: usize,
}

impl<'x, T> FeatureValues<'x, T> {
    /// The rows of whole columns.
    #[inline(always)]
    pub fn new(x: &'x [T], stride: usize) -> Self {
        Self { x, stride, rows: stride }
    }

    /// Some of the rows.
    #[inline(always)]
    pub fn slice(self, rows: Range<usize>) -> Self {
        Self { x: &self.x[rows.start..], rows: rows.len(), ..self }
    }
}

impl<T: Copy> ByFeature<T> for FeatureValues<'_, T> {
    #[inline(always)]
    fn column(&self, f: usize) -> &[T] {
        &self.x[f * self.stride..][..self.rows]
    }
}

/// Most features whose columns are read where they lie.
pub const MOST_IN_PLACE: usize = 64;

/// Columns, where they lie. Those from the last feature on are empty.
#[derive(Debug)]
pub struct InPlace<'x, T>([&'x [T]; MOST_IN_PLACE]);

impl<'x, T> InPlace<'x, T> {
    /// `None` if there are too many columns, or one is missing.
    pub fn new(columns: impl Iterator<Item = Option<&'x [T]>>) -> Option<Self> {
        let mut all: [&[T]; MOST_IN_PLACE] = [&[]; MOST_IN_PLACE];
        for (f, column) in columns.enumerate() {
            *all.get_mut(f)? = column?;
        }
        Some(Self(all))
    }

    /// Some of the rows.
    #[inline(always)]
    pub fn slice(&self, rows: Range<usize>) -> RowsInPlace<'_, T> {
        RowsInPlace { columns: self, first: rows.start, rows: rows.len() }
    }
}

/// Some rows of columns that are read where they lie.
#[derive(Debug, Clone, Copy)]
pub struct RowsInPlace<'c, T> {
    columns: &'c InPlace<'c, T>,
    first: usize,
    rows: usize,
}

impl<T: Copy> ByFeature<T> for RowsInPlace<'_, T> {
    #[inline(always)]
    fn column(&self, f: usize) -> &[T] {
        &self.columns.0[f][self.first..][..self.rows]
    }
}

/// A buffer for one tile at a time.
#[derive(Debug, Default)]
pub struct Tile<T> {
    /// Number of rows that the buffer has room for.
    pub stride: usize,
    /// Number of kept rows in the buffer.
    pub rows: usize,
    /// `(d, stride)`: feature f of row r is `x[f * stride + r]`. Rows from `rows` on are stale.
    pub x: Vec<T>,
    /// Weights of the kept rows. All are 1 if there are no weights.
    pub weights: Vec<f64>,
    /// For each row of the range, whether it was left out. Only valid after [`Tile::load_checked`].
    pub bad: Vec<bool>,
}

impl<T: Float> Tile<T> {
    pub fn new(d: usize, stride: usize) -> Result<Self> {
        const WHAT: &str = "a tile of rows";
        Ok(Self {
            stride,
            rows: 0,
            x: memory::zeroed(d.saturating_mul(stride), WHAT)?,
            weights: memory::filled(stride, 1.0, WHAT)?,
            bad: memory::zeroed(stride, WHAT)?,
        })
    }

    /// The values of the rows.
    #[inline(always)]
    pub fn values(&self) -> FeatureValues<'_, T> {
        FeatureValues::new(&self.x, self.stride)
    }

    /// Feature `f` of the kept rows.
    #[inline(always)]
    pub fn column(&self, f: usize) -> &[T] {
        &self.x[f * self.stride..][..self.rows]
    }

    fn load_raw(&mut self, part: &RowBlock<'_, T>, range: Range<usize>) {
        self.rows = range.len();
        part.features.copy_tile(range.clone(), self.stride, &mut self.x);
        if let Some(weights) = &part.weights {
            weights.copy(range, &mut self.weights);
        }
    }

    /// Loads the rows of `range` that the part's selection keeps. Rounds weights to `w^`.
    #[inline]
    pub fn load(&mut self, part: &RowBlock<'_, T>, scale: Option<WeightScale>, range: Range<usize>) {
        self.load_raw(part, range.clone());
        if !part.selection.is_all() {
            for (i, bad) in self.bad[..range.len()].iter_mut().enumerate() {
                *bad = !part.selection.contains(range.start + i);
            }
            self.drop_bad();
        }
        round_weights(scale, &mut self.weights[..self.rows]);
    }

    /// Loads the first `few` features of the rows of `range`, where all of them take part. Nothing else of the tile counts then.
    /// Rows must be read as they lie, side by side or as columns.
    #[inline]
    pub fn load_first(&mut self, features: &Features<'_, T>, range: Range<usize>, few: usize) {
        self.rows = range.len();
        if features.is_by_columns() {
            return features.copy_tile(range, self.stride, &mut self.x[..few * self.stride]);
        }
        let rows = range.map(|row| features.row(row).map_or(&[][..], |row| &row[..few]));
        rows_to_columns::<T, T, Same>(rows, 0, self.stride, &mut self.x);
    }

    /// Loads the rows of a list, in its order. The part's selection must keep all of them. Rounds weights to `w^`.
    #[inline]
    pub fn load_list(&mut self, part: &RowBlock<'_, T>, scale: Option<WeightScale>, rows: &[usize]) {
        part.features.gather_tile(rows, self.stride, &mut self.x);
        self.load_weights(part, scale, rows);
    }

    fn load_weights(&mut self, part: &RowBlock<'_, T>, scale: Option<WeightScale>, rows: &[usize]) {
        self.rows = rows.len();
        part.gather_weights(scale, rows, &mut self.weights);
    }

    /// Loads rows that have arrived, and lie elsewhere row by row. `rows`: which ones they are. Rounds weights to `w^`.
    #[inline]
    pub fn load_rows<'v>(
        &mut self,
        part: &RowBlock<'_, T>,
        scale: Option<WeightScale>,
        rows: &[usize],
        values: impl Iterator<Item = &'v [T]>,
    ) where
        T: 'v,
    {
        rows_to_columns::<T, T, Same>(values, 0, self.stride, &mut self.x);
        self.load_weights(part, scale, rows);
    }

    /// Loads the rows of `range`. Leaves out rows with a null or a value that is not finite, marks them in `bad`, and returns
    /// their number. Weights are not rounded.
    #[inline(always)]
    pub fn load_checked(&mut self, part: &RowBlock<'_, T>, range: Range<usize>) -> usize {
        self.load_raw(part, range.clone());
        let m = range.len();
        let mut all_finite = true;
        for column in self.x.chunks_exact(self.stride) {
            for v in &column[..m] {
                all_finite &= v.is_finite();
            }
        }
        let weights_finite = part.weights.is_none() || self.weights[..m].iter().all(|w| w.is_finite());
        let bad = &mut self.bad[..m];
        bad.fill(false);
        if !all_finite {
            for column in self.x.chunks_exact(self.stride) {
                bad.iter_mut().zip(column).for_each(|(bad, v)| *bad |= !v.is_finite());
            }
        }
        if !weights_finite {
            bad.iter_mut().zip(&self.weights).for_each(|(bad, w)| *bad |= !w.is_finite());
        }
        if part.features.may_have_nulls() {
            part.features.for_each_null(range.clone(), |_, i| bad[i] = true);
        }
        if let Some(weights) = &part.weights {
            weights.for_each_null(range, |i| bad[i] = true);
        }
        let count = bad.iter().filter(|bad| **bad).count();
        if count > 0 {
            self.drop_bad();
        }
        count
    }

    /// The first negative weight among the kept rows, and its position in the range. Call it after [`Tile::load_checked`].
    pub fn first_negative_weight(&self) -> Option<(usize, f64)> {
        let kept = self.weights[..self.rows].iter().position(|w| *w < 0.0)?;
        let place = (0..self.stride).filter(|&i| !self.bad[i]).nth(kept)?;
        Some((place, self.weights[kept]))
    }

    /// Leaves out rows of weight 0.
    pub fn drop_weightless(&mut self) {
        if self.weights[..self.rows].contains(&0.0) {
            for r in 0..self.rows {
                self.bad[r] = self.weights[r] == 0.0;
            }
            self.drop_bad();
        }
    }

    fn drop_bad(&mut self) {
        let (m, mut kept) = (self.rows, 0);
        for r in 0..m {
            if !self.bad[r] {
                for column in self.x.chunks_exact_mut(self.stride) {
                    column[kept] = column[r];
                }
                self.weights[kept] = self.weights[r];
                kept += 1;
            }
        }
        self.rows = kept;
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(some_rows_of_a_part_keep_their_selection);
    fn some_rows_of_a_part_keep_their_selection() {
        let (n, mut state) = (200usize, 7u64);
        let words = std::array::from_fn::<u64, 4, _>(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        });
        let x: Vec<f64> = (0..n).map(|i| i as f64).collect();
        let mut part = RowBlock::new(Features::from_rows(&x, 1).unwrap(), None);
        part.selection = Selection::from_bits(words.to_vec());
        for cut in [0, 1, 63, 64, 100, 199, 200] {
            let all = (Selection::default(), 0);
            let parts = [(part.selection.slice(0..cut).unwrap(), cut), all, (part.selection.slice(cut..n).unwrap(), n - cut)];
            let joined = Selection::joined(&parts).unwrap();
            assert!((0..n).all(|row| joined.contains(row) == part.selection.contains(row)), "cut at {cut}");
        }
        assert!(Selection::joined(&[(Selection::default(), 3), (Selection::default(), 4)]).unwrap().is_all());
        for start in [0, 1, 5, 63, 64, 65, 127, 128, 191, 199] {
            for end in [start, start + 1, 64, 65, 128, 130, 192, 199, n].into_iter().filter(|end| (start..=n).contains(end)) {
                let expected: Vec<f64> = (start..end).filter(|&i| part.selection.contains(i)).map(|i| i as f64).collect();
                assert_eq!(part.selection.count(start..end), expected.len(), "{start}..{end}");
                let some = part.slice(start..end).unwrap();
                let mut tile = Tile::new(1, n).unwrap();
                tile.load(&some, None, 0..end - start);
                assert_eq!(tile.column(0), expected, "{start}..{end}");
            }
        }
    }
}
