//! Rows in the order of their groups.

use std::ops::Range;

use super::int_dot::IntegerRows;
use super::partition::Group;
use super::tuning::FEW_FEATURES;
use super::{BLOCK, GROUPS, GroupStep};
use crate::backend::cpu::filter::ScoreForm;
use crate::backend::cpu::product::DotRows;
use crate::backend::cpu::tasks::pieces;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::rows_to_columns;
use crate::input::fp16::Same;
use crate::input::tile::{FeatureValues, RowBlock, Tile, WeightScale};

/// Where the values of the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowLayout {
    /// Feature by feature, in the order of the groups. For differences, and for few features that are sorted for one assign, columns
    /// are `long`: all places of a feature lie together. Long columns of many features would evict one another from the cache. So there, columns are as long as a block,
    /// and the blocks lie one behind the other.
    Columns { long: bool },
    /// Row by row, in the order of the labels, with integer copies: for features that lie column by column. To load one row from
    /// columns takes as long as to load several.
    Rows,
    /// Where they were. A block at a time is loaded: few rows of it with integer copies, all for rows that lie row by row and are
    /// sorted for one assign.
    Unmoved,
}

impl RowLayout {
    /// Whether it is [`RowLayout::Columns`].
    #[inline(always)]
    pub fn has_columns(self) -> bool {
        matches!(self, Self::Columns { .. })
    }
}

/// Values between blocks, so that their columns do not have the same place in a cache.
const APART: usize = 16;

/// Rows in the order of their groups. Each group begins with a block of its own. A *place* counts rows and gaps in this order.
pub struct Sorted<T> {
    pub layout: RowLayout,
    /// The most rows that there is room for.
    pub most: usize,
    d: usize,
    /// With [`RowLayout::Columns`]: `(places / stride, d, stride)`, and [`APART`] more values for each stretch of places. With
    /// [`RowLayout::Rows`]: `(rows, d)`, in the order of the labels, as far as they were taken.
    values: Vec<T>,
    /// Places whose columns lie together.
    stride: usize,
    /// With [`RowLayout::Columns`], if there are weights: the `w^` of the row at each place.
    weights: Vec<f64>,
    /// Whether the rows of [`RowLayout::Rows`] are there: see [`Sorted::take_rows`].
    pub has_rows: bool,
    /// For each group, its first place.
    firsts: Vec<usize>,
    /// For each group, the place behind its last row.
    ends: Vec<usize>,
    /// For each place: where the row's label is, and the physical row.
    places: Vec<u32>,
    pub order: Vec<usize>,
    /// For each block: at least the largest distance of its rows from the group's point, or infinity if there is one group.
    pub radii: Vec<f64>,
    /// Integer copies, where they are used: with [`RowLayout::Unmoved`] and [`RowLayout::Rows`].
    pub copies: Option<IntegerRows>,
}

impl<T: Float> Sorted<T> {
    /// How rows lie. `kept`: whether they are sorted for several assigns. `copied`: whether they have integer copies.
    /// `by_columns`: how the features lie.
    pub fn layout([kept, copied, by_columns]: [bool; 3], d: usize) -> RowLayout {
        match ScoreForm::of::<T>(d) {
            ScoreForm::Product if copied && by_columns => RowLayout::Rows,
            ScoreForm::Product if copied || !kept && !by_columns && d > FEW_FEATURES => RowLayout::Unmoved,
            ScoreForm::Product => RowLayout::Columns { long: !kept && d <= FEW_FEATURES },
            ScoreForm::Difference => RowLayout::Columns { long: true },
        }
    }

    /// Each group may have a block that is not full, and there is one more for rows that are left out.
    fn places(most: usize, groups: usize) -> usize {
        most.saturating_add(groups.saturating_mul(BLOCK)).next_multiple_of(BLOCK) + BLOCK
    }

    /// Places whose columns lie together.
    fn stride(layout: RowLayout, places: usize) -> usize {
        if layout == (RowLayout::Columns { long: true }) { places } else { BLOCK }
    }

    /// The number of values.
    fn values([d, most, groups]: [usize; 3], layout: RowLayout) -> usize {
        let places = Self::places(most, groups);
        let stride = Self::stride(layout, places);
        match layout {
            RowLayout::Columns { .. } => (places / stride).saturating_mul(d.saturating_mul(stride) + APART),
            RowLayout::Rows => most.saturating_mul(d),
            RowLayout::Unmoved => 0,
        }
    }

    /// Bytes of sorted rows. `lanes`: those of the integer copies, if there are copies.
    pub fn bytes(shape: [usize; 3], layout: RowLayout, lanes: Option<usize>) -> usize {
        let weight = if layout.has_columns() { size_of::<f64>() } else { 0 };
        let of_place = weight + size_of::<u32>() + size_of::<usize>();
        let places = Self::places(shape[1], shape[2]);
        let of_places =
            places.saturating_mul(of_place).saturating_add(lanes.map_or(0, |lanes| IntegerRows::bytes(places, lanes)));
        Self::values(shape, layout).saturating_mul(size_of::<T>()).saturating_add(of_places)
    }

    /// Room for sorted rows. `lanes`: those of the integer copies, if there are copies. `few`: whether all sorted rows together
    /// have few bytes.
    pub fn new(shape: [usize; 3], layout: RowLayout, lanes: Option<usize>, [weighted, few]: [bool; 2]) -> Result<Self> {
        let [d, most, groups] = shape;
        // Linux has some free large pages, and takes long to make more. A small buffer often gets memory that was in use before,
        // where zeros must be written.
        let new_values = if layout == RowLayout::Rows && few { memory::room_to_fill } else { memory::zeroed };
        let places = Self::places(most, groups);
        let has_weights = weighted && layout.has_columns();
        Ok(Self {
            layout,
            most,
            d,
            values: new_values(Self::values(shape, layout), GROUPS)?,
            stride: Self::stride(layout, places),
            weights: memory::zeroed(if has_weights { places } else { 0 }, GROUPS)?,
            has_rows: false,
            firsts: memory::zeroed(groups, GROUPS)?,
            ends: memory::zeroed(groups, GROUPS)?,
            places: memory::zeroed(places, GROUPS)?,
            order: memory::zeroed(places, GROUPS)?,
            radii: memory::zeroed(places / BLOCK, GROUPS)?,
            copies: lanes.map(|lanes| IntegerRows::new(places, lanes, groups)).transpose()?,
        })
    }

    /// The largest distance of some rows of a group from its point. They begin with a block.
    #[inline(always)]
    pub fn radius(&self, rows: Range<usize>) -> f64 {
        super::largest(self.radii[rows.start / BLOCK..rows.end.div_ceil(BLOCK)].iter().copied())
    }

    /// About so many rows at a time, whole blocks: groups, and the places that the rows are between.
    pub fn units(&self, rows: usize) -> impl Iterator<Item = [Range<usize>; 2]> {
        let (rows, mut next, mut done) = (rows.next_multiple_of(BLOCK), 0, 0);
        std::iter::from_fn(move || {
            let (first, mut count) = (next, 0);
            let start = self.firsts.get(first)? + done;
            if self.ends[first].saturating_sub(start) > rows {
                done += rows;
                return Some([first..first + 1, start..start + rows]);
            }
            while next < self.ends.len() && count < rows && (next == first || self.rows(next).len() <= rows) {
                count += self.rows(next).len();
                next += 1;
            }
            done = 0;
            Some([first..next, start..usize::MAX])
        })
    }

    /// The places of a group.
    #[inline(always)]
    pub fn rows(&self, group: usize) -> Range<usize> {
        self.firsts[group]..self.ends[group]
    }

    /// Where the values of a place's stretch begin, with [`RowLayout::Columns`].
    #[inline(always)]
    fn at(&self, place: usize) -> usize {
        place / self.stride * (self.d * self.stride + APART)
    }

    /// The values of some rows of a group, up to the end of the last block. They are of one block, unless columns are long. With
    /// [`RowLayout::Columns`].
    #[inline(always)]
    pub fn columns(&self, rows: Range<usize>) -> FeatureValues<'_, T> {
        let first = rows.start % self.stride;
        FeatureValues::new(&self.values[self.at(rows.start)..], self.stride)
            .slice(first..first + rows.len().next_multiple_of(BLOCK))
    }

    /// Some rows of a group. They begin with a block.
    #[inline(always)]
    pub fn rows_of_group(&self, group: usize, range: Range<usize>) -> RowsOfGroup<'_, T> {
        let (places, order) = (&self.places[range.clone()], &self.order[range.clone()]);
        RowsOfGroup { sorted: self, group, places, order, range }
    }

    /// Takes the rows of a tile row by row, behind those before. `at`: where the label of the first one is.
    #[inline(always)]
    pub fn take_rows(&mut self, tile: &Tile<T>, at: usize) {
        let d = self.d;
        let columns = tile.x.chunks_exact(tile.stride).map(|column| &column[..tile.rows]);
        // The columns of the tile are its rows.
        let (start, end) = (at * d, (at + tile.rows) * d);
        if self.values.len() < end {
            self.values.resize(end, T::default());
        }
        rows_to_columns::<T, T, Same>(columns, 0, d, &mut self.values[start..end]);
    }

    /// Takes the rows of a range. `groups`: the groups of those that are kept. `at`: where the first one's label is. `to`: room
    /// for where each row goes.
    #[inline(always)]
    pub fn fill(
        &mut self,
        part: &RowBlock<'_, T>,
        weights: Option<WeightScale>,
        (physical, at): (Range<usize>, usize),
        groups: &[Group],
        to: &mut [u32],
        step: &GroupStep<'_, T>,
    ) {
        let Self { firsts, ends, places, order, .. } = self;
        self.copies.iter_mut().for_each(IntegerRows::clear);
        ends.fill(0);
        for group in groups {
            ends[usize::from(*group)] += 1;
        }
        let mut used = 0;
        for (first, end) in firsts.iter_mut().zip(&mut *ends) {
            let count = *end;
            (*first, *end) = (used, used);
            used += count.next_multiple_of(BLOCK);
        }
        // A row that is left out goes behind all others. Gaps take any row.
        let nowhere = places.len() - 1;
        order[..used].fill(physical.clone().find(|row| part.selection.contains(*row)).unwrap_or(physical.start));
        let mut kept = 0;
        for (to, row) in to.iter_mut().zip(physical.clone()) {
            *to = nowhere as u32;
            if part.selection.contains(row) {
                let end = &mut ends[usize::from(groups[kept])];
                *to = *end as u32;
                (places[*end], order[*end]) = ((at + kept) as u32, row);
                *end += 1;
                kept += 1;
            }
        }
        if !self.layout.has_columns() {
            return;
        }
        part.gather_weights(weights, &self.order[..used], &mut self.weights);
        if self.stride == BLOCK {
            self.fill_blocks(part, physical, used);
        } else {
            let (order, values) = (&self.order[..used], &mut self.values[..self.d * self.stride]);
            part.features.scatter_tile(physical, to, order, self.stride, values);
            self.fill_gaps();
        }
        for group in 0..step.groups() {
            for block in pieces(self.rows(group), BLOCK) {
                self.radii[block.start / BLOCK] = step.radius(self.columns(block.clone()), block.len(), group);
            }
        }
    }

    /// Gaps get the values of a row of their group. Other values may be NaN, and comparisons with NaN take long.
    fn fill_gaps(&mut self) {
        for column in self.values[..self.d * self.stride].chunks_exact_mut(self.stride) {
            for (first, end) in self.firsts.iter().zip(&self.ends) {
                let value = column[*first];
                column[*end..end.next_multiple_of(BLOCK)].fill(value);
            }
        }
    }

    fn fill_blocks(&mut self, part: &RowBlock<'_, T>, physical: Range<usize>, used: usize) {
        let len = self.d * BLOCK;
        let by_columns = part.features.is_by_columns();
        if by_columns {
            part.features.gather_blocks::<BLOCK>(physical, &self.order[..used], len + APART, &mut self.values);
        }
        for (first, end) in self.firsts.iter().zip(&self.ends) {
            for rows in pieces(*first..*end, BLOCK) {
                let at = self.at(rows.start);
                let block = &mut self.values[at..at + len];
                match by_columns {
                    true => part.features.arrive(rows.len(), BLOCK, block),
                    false => part.features.gather_tile(&self.order[rows], BLOCK, block),
                }
            }
        }
    }
}

/// Some rows of a group, of one block unless columns are long.
pub struct RowsOfGroup<'s, T> {
    pub sorted: &'s Sorted<T>,
    pub group: usize,
    range: Range<usize>,
    /// For each row, where its label is.
    pub places: &'s [u32],
    /// The physical rows.
    pub order: &'s [usize],
}

impl<'s, T: Float> RowsOfGroup<'s, T> {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// At least the largest distance of the rows from the group's point.
    #[inline(always)]
    pub fn radius(&self) -> f64 {
        self.sorted.radius(self.range.clone())
    }

    /// With [`RowLayout::Columns`]: the values up to the end of the last block; the weights from the first row on, if there are
    /// weights; the values of this block and of all blocks after it, or nothing if columns are long.
    #[inline(always)]
    pub fn columns(&self) -> (FeatureValues<'s, T>, &'s [f64], &'s [T]) {
        let (Sorted { stride, values, weights, .. }, start) = (self.sorted, self.range.start);
        let blocks = if *stride == BLOCK { &values[self.sorted.at(start)..] } else { &[] };
        (self.sorted.columns(self.range.clone()), weights.get(start..).unwrap_or_default(), blocks)
    }

    /// The integer copies of the block, if there are some.
    #[inline(always)]
    pub fn copies(&self) -> Option<DotRows<'s>> {
        self.sorted.copies.as_ref().map(|copies| copies.block(self.range.start))
    }

    /// The values of row `r`. With [`RowLayout::Rows`].
    #[inline(always)]
    pub fn row(&self, r: usize) -> &'s [T] {
        &self.sorted.values[self.places[r] as usize * self.sorted.d..][..self.sorted.d]
    }

    /// Loads all rows. With [`RowLayout::Unmoved`] and [`RowLayout::Rows`].
    #[inline(always)]
    pub fn load(&self, tile: &mut Tile<T>, part: &RowBlock<'_, T>, weights: Option<WeightScale>) {
        match self.sorted.layout {
            RowLayout::Rows => tile.load_rows(part, weights, self.order, (0..self.len()).map(|r| self.row(r))),
            _ => tile.load_list(part, weights, self.order),
        }
    }

    /// Loads a list of the rows. `order`: room for their physical rows.
    #[inline(always)]
    pub fn load_some<'r>(
        &self,
        tile: &mut Tile<T>,
        part: &RowBlock<'_, T>,
        weights: Option<WeightScale>,
        rows: impl Iterator<Item = &'r u32> + Clone,
        order: &mut Vec<usize>,
    ) {
        order.clear();
        order.extend(rows.clone().map(|r| self.order[*r as usize]));
        match self.sorted.layout {
            RowLayout::Rows => tile.load_rows(part, weights, order, rows.map(|r| self.row(*r as usize))),
            _ => tile.load_list(part, weights, order),
        }
    }
}
