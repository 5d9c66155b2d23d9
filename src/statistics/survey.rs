//! Passes 1 and 2: which rows count, and the extents of columns and contributions.

mod columns;

use std::array::from_fn;
use std::ops::Range;

use self::columns::of_columns;
use super::passes::{Merge, merged};
use super::tiles::{TILE, Visit, for_each_tile, load_positive};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::input::tile::{RowBlock, Selection, Tile, WeightScale};

/// Number of independent accumulators. They let loops vectorise.
const LANES: usize = 16;
/// Rows that are seen together, where they lie side by side.
const TOGETHER: usize = 8;
/// The name for the extents of columns in errors.
pub const EXTENTS: &str = "the extents of the columns";

/// What a worker learns about one column.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Extent {
    pub low: f64,
    pub high: f64,
    /// Largest and smallest nonzero magnitude.
    pub largest: f64,
    pub smallest: f64,
}

impl Extent {
    pub const EMPTY: Self = Self { low: f64::INFINITY, high: f64::NEG_INFINITY, largest: 0.0, smallest: f64::INFINITY };

    #[inline(always)]
    fn new(low: f64, high: f64, smallest: f64) -> Self {
        let largest = if low <= high { low.abs().max(high.abs()) } else { 0.0 };
        Self { low, high, largest, smallest }
    }
}

impl Merge for Extent {
    #[inline(always)]
    fn merge(&mut self, other: &Self) {
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
        self.largest = self.largest.max(other.largest);
        self.smallest = self.smallest.min(other.smallest);
    }
}

/// Independent extents, in which loops vectorise.
#[derive(Clone, Copy)]
struct ExtentLanes<T> {
    low: [T; LANES],
    high: [T; LANES],
    smallest: [T; LANES],
    /// Infinite where a value was not finite.
    bad: [T; LANES],
}

impl<T: Float> ExtentLanes<T> {
    fn empty() -> Self {
        let infinity = T::from_f64(f64::INFINITY);
        let (low, high) = ([infinity; LANES], [T::from_f64(f64::NEG_INFINITY); LANES]);
        Self { low, high, smallest: low, bad: [T::default(); LANES] }
    }

    #[inline(always)]
    fn of(values: &[T]) -> Self {
        let (mut lanes, (values, rest)) = (Self::empty(), values.as_chunks::<LANES>());
        for values in values {
            lanes.add(values);
        }
        lanes.add_rest(rest);
        lanes
    }

    #[inline(always)]
    fn add(&mut self, values: &[T; LANES]) {
        let (largest, infinity) = (T::largest(), T::from_f64(f64::INFINITY));
        for i in 0..LANES {
            let (v, magnitude) = (values[i], values[i].magnitude());
            self.low[i] = if v < self.low[i] { v } else { self.low[i] };
            self.high[i] = if v > self.high[i] { v } else { self.high[i] };
            let nonzero = if magnitude > T::default() { magnitude } else { infinity };
            self.smallest[i] = if nonzero < self.smallest[i] { nonzero } else { self.smallest[i] };
            // A NaN is not at most the largest value either.
            self.bad[i] = if magnitude <= largest { self.bad[i] } else { infinity };
        }
    }

    /// Adds fewer values.
    #[inline(always)]
    fn add_rest(&mut self, values: &[T]) {
        if let Some(first) = values.first() {
            let mut all = [*first; LANES];
            all[..values.len()].copy_from_slice(values);
            self.add(&all);
        }
    }

    #[inline(always)]
    fn are_finite(&self) -> bool {
        self.bad == [T::default(); LANES]
    }

    #[inline(always)]
    fn extents(&self) -> [Extent; LANES] {
        from_fn(|i| Extent::new(self.low[i].to_f64(), self.high[i].to_f64(), self.smallest[i].to_f64()))
    }

    /// The extent of all values.
    #[inline(always)]
    fn extent(&self) -> Extent {
        let Self { mut low, mut high, mut smallest, .. } = *self;
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                low[i] = if low[i + half] < low[i] { low[i + half] } else { low[i] };
                high[i] = if high[i + half] > high[i] { high[i + half] } else { high[i] };
                smallest[i] = if smallest[i + half] < smallest[i] { smallest[i + half] } else { smallest[i] };
            }
            half /= 2;
        }
        Extent::new(low[0].to_f64(), high[0].to_f64(), smallest[0].to_f64())
    }
}

/// The results of pass 1.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Survey {
    /// Extents over the rows of positive weight.
    pub columns: Vec<Extent>,
    /// Largest magnitude over all kept rows, including those of weight 0.
    pub largest: f64,
    pub largest_weight: f64,
    /// Smallest positive weight. Infinite if there is none.
    pub smallest_weight: f64,
    /// Whether every weight is 1 or 0.
    pub all_weights_one: bool,
    pub any_negative_weight: bool,
    /// Number of rows with a null or a value that is not finite. They do not count anywhere else.
    pub bad: u64,
    /// Number of rows of positive weight.
    pub positive: u64,
}

impl Survey {
    /// The survey of no rows.
    pub fn empty(d: usize) -> Result<Self> {
        Ok(Self {
            columns: memory::filled(d, Extent::EMPTY, EXTENTS)?,
            largest: 0.0,
            largest_weight: 0.0,
            smallest_weight: f64::INFINITY,
            all_weights_one: true,
            any_negative_weight: false,
            bad: 0,
            positive: 0,
        })
    }

    /// The survey of the rows of all these surveys.
    pub fn of_all(surveys: impl IntoIterator<Item = Self>, d: usize) -> Result<Self> {
        merged(surveys).map_or_else(|| Self::empty(d), Ok)
    }
}

impl Merge for Survey {
    fn merge(&mut self, other: &Self) {
        self.columns.merge(&other.columns);
        self.largest = self.largest.max(other.largest);
        self.largest_weight = self.largest_weight.max(other.largest_weight);
        self.smallest_weight = self.smallest_weight.min(other.smallest_weight);
        self.all_weights_one &= other.all_weights_one;
        self.any_negative_weight |= other.any_negative_weight;
        self.bad += other.bad;
        self.positive += other.positive;
    }
}

/// Pass 1 over parts.
pub fn survey<T: Float>(parts: &[RowBlock<'_, T>], threads: usize) -> Result<Survey> {
    let d = parts[0].features.n_features();
    let mut survey = match of_columns(parts, threads)? {
        Some(survey) => survey,
        None => {
            let learnt = for_each_tile(parts, threads, &SurveyPass { d })?;
            Survey::of_all(learnt.into_iter().map(|(survey, ..)| survey), d)?
        }
    };
    survey.largest = survey.columns.iter().fold(survey.largest, |m, column| m.max(column.largest));
    Ok(survey)
}

/// Pass 1.
pub(super) struct SurveyPass {
    pub d: usize,
}

/// What is known of some features of rows that lie side by side.
pub(super) struct RowByRow<T>(Vec<ExtentLanes<T>>);

impl<T: Float> RowByRow<T> {
    fn new(d: usize) -> Result<Self> {
        Ok(Self(memory::filled(d.div_ceil(LANES), ExtentLanes::empty(), EXTENTS)?))
    }

    /// The extents of some rows, if they lie side by side, are long, and have finite values only.
    #[inline(always)]
    fn see(&mut self, part: &RowBlock<'_, T>, range: Range<usize>, extents: &mut [Extent]) -> bool {
        let (features, d, last) = (&part.features, extents.len(), range.end - 1);
        if d < LANES || features.row(range.start).is_none() {
            return false;
        }
        // The last features may be seen twice.
        let firsts = || (0..d).step_by(LANES).map(|f| f.min(d - LANES));
        self.0.fill(ExtentLanes::empty());
        for first in range.step_by(TOGETHER) {
            let mut rows: [&[T]; TOGETHER] = [&[]; TOGETHER];
            for i in 0..TOGETHER {
                // The last row is seen again.
                let Some(row) = features.row((first + i).min(last)) else { return false };
                rows[i] = row;
            }
            for (lanes, f) in self.0.iter_mut().zip(firsts()) {
                // Copies stay in registers: the compiler does not know that the values lie apart.
                let mut seen = *lanes;
                for row in rows {
                    let Some(values) = row[f..].first_chunk() else { unreachable!("the features are within the row") };
                    seen.add(values);
                }
                *lanes = seen;
            }
        }
        for (lanes, f) in self.0.iter().zip(firsts()) {
            extents[f..f + LANES].copy_from_slice(&lanes.extents());
        }
        self.0.iter().all(ExtentLanes::are_finite)
    }
}

/// The extents of some rows whose columns lie side by side, if they have finite values only.
#[inline(always)]
fn see_columns<T: Float>(part: &RowBlock<'_, T>, range: Range<usize>, extents: &mut [Extent]) -> bool {
    for (f, extent) in extents.iter_mut().enumerate() {
        let Some(column) = part.features.column_in_place(f, range.clone()) else { return false };
        let lanes = ExtentLanes::of(column);
        if !lanes.are_finite() {
            return false;
        }
        *extent = lanes.extent();
    }
    true
}

impl<T: Float> Visit<T> for SurveyPass {
    /// Also room for the extents of some rows.
    type Learnt = (Survey, Vec<Extent>, RowByRow<T>);

    fn nothing(&self) -> Result<Self::Learnt> {
        Ok((Survey::empty(self.d)?, memory::filled(self.d, Extent::EMPTY, EXTENTS)?, RowByRow::new(self.d)?))
    }

    #[inline(always)]
    fn visit_in_place(
        &self,
        (survey, extents, by_row): &mut Self::Learnt,
        part: &RowBlock<'_, T>,
        range: Range<usize>,
    ) -> bool {
        if part.weights.is_some() || part.features.may_have_nulls() {
            return false;
        }
        let is_seen = match part.features.is_row_by_row() {
            true => by_row.see(part, range.clone(), extents),
            false => see_columns(part, range.clone(), extents),
        };
        if is_seen {
            survey.positive += range.len() as u64;
            survey.columns.iter_mut().zip(extents).for_each(|(all, here)| all.merge(here));
        }
        is_seen
    }

    #[inline(always)]
    fn visit(&self, (survey, ..): &mut Self::Learnt, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
        survey.bad += tile.load_checked(part, range) as u64;
        if part.weights.is_some() {
            let weights_here = &tile.weights[..tile.rows];
            survey.any_negative_weight |= weights_here.iter().any(|w| *w < 0.0);
            survey.largest_weight = weights_here.iter().fold(survey.largest_weight, |m, w| m.max(*w));
            survey.all_weights_one &= weights_here.iter().all(|w| *w == 0.0 || *w == 1.0);
            for column in tile.x.chunks_exact(tile.stride) {
                survey.largest = column[..tile.rows].iter().fold(survey.largest, |m, v| m.max(v.to_f64().abs()));
            }
            tile.drop_weightless();
            survey.smallest_weight = tile.weights[..tile.rows].iter().fold(survey.smallest_weight, |m, w| m.min(*w));
        }
        survey.positive += tile.rows as u64;
        for (f, extent) in survey.columns.iter_mut().enumerate() {
            extent.merge(&ExtentLanes::of(tile.column(f)).extent());
        }
    }
}

/// Counts the weights below a bound.
pub(super) struct WeightsBelow(pub f64);

impl<T: Float> Visit<T> for WeightsBelow {
    type Learnt = u64;

    fn nothing(&self) -> Result<u64> {
        Ok(0)
    }

    #[inline(always)]
    fn visit(&self, count: &mut u64, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
        load_positive(tile, part, None, range);
        *count += tile.weights[..tile.rows].iter().filter(|w| **w < self.0).count() as u64;
    }
}

/// In every part, selects the rows that have only finite values and no nulls.
pub fn select_finite<T: Float>(parts: &mut [RowBlock<'_, T>], threads: usize) -> Result<()> {
    for part in parts {
        part.selection = finite_rows(part, threads)?;
    }
    Ok(())
}

fn finite_rows<T: Float>(part: &RowBlock<'_, T>, threads: usize) -> Result<Selection> {
    /// Rows of a task: whole words of bits.
    const TASK: usize = 16 * TILE;
    let (n, d) = (part.features.n_rows(), part.features.n_features());
    let mut bits = memory::zeroed::<u64>(n.div_ceil(64), "which rows are kept")?;
    let tiles = (0..workers_for(threads, n.div_ceil(TASK))).map(|_| Tile::new(d, TILE));
    let mut tiles = memory::try_collected(tiles, "the threads' buffers")?;
    for_each_task(&mut tiles, bits.chunks_mut(TASK / 64).enumerate(), |tile, (index, bits)| {
        let first = index * TASK;
        for start in (first..n.min(first + TASK)).step_by(TILE) {
            let range = start..(start + TILE).min(n);
            tile.load_checked(part, range.clone());
            for i in range.clone().filter(|i| !tile.bad[i - start]) {
                bits[(i - first) / 64] |= 1 << (i % 64);
            }
        }
    })?;
    Ok(Selection::from_bits(bits))
}

/// Pass 2.
pub(super) struct WeightedExtents {
    pub d: usize,
    pub weights: Option<WeightScale>,
}

impl<T: Float> Visit<T> for WeightedExtents {
    type Learnt = Vec<Extent>;

    fn nothing(&self) -> Result<Vec<Extent>> {
        memory::filled(self.d, Extent::EMPTY, EXTENTS)
    }

    #[inline(always)]
    fn visit(&self, extents: &mut Vec<Extent>, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
        load_positive(tile, part, self.weights, range);
        for (f, extent) in extents.iter_mut().enumerate() {
            let mut lanes = ExtentLanes::empty();
            for (values, weights) in tile.column(f).chunks(LANES).zip(tile.weights[..tile.rows].chunks(LANES)) {
                let mut products = [0.0; LANES];
                for (product, (x, w)) in products.iter_mut().zip(values.iter().zip(weights)) {
                    *product = w * x.to_f64();
                }
                lanes.add_rest(&products[..values.len()]);
            }
            extent.merge(&lanes.extent());
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::input::features::Features;

    unit_test!(values_that_are_not_finite_are_seen_in_any_place);
    fn values_that_are_not_finite_are_seen_in_any_place() {
        for d in [3, 16, 21] {
            let n = 19;
            let mut x: Vec<f64> = (0..n * d).map(|i| (i % 7) as f64 - 3.0).collect();
            for place in 0..n * d {
                let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][place % 3];
                let good = std::mem::replace(&mut x[place], bad);
                let survey = survey(&[RowBlock::new(Features::from_rows(&x, d).unwrap(), None)], 1).unwrap();
                assert_eq!((survey.bad, survey.positive), (1, n as u64 - 1), "{bad} at {place} of {n} x {d}");
                x[place] = good;
            }
            let survey = survey(&[RowBlock::new(Features::from_rows(&x, d).unwrap(), None)], 1).unwrap();
            assert_eq!((survey.bad, survey.largest), (0, 3.0));
        }
    }
}
