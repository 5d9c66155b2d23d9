//! Rows in the order of their groups.

use std::ops::Range;

use super::int_dot::{Copies, RowCopies};
use super::{BLOCK, GROUPS, GroupStep};
use crate::backend::cpu::filter::Form;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::rows_to_columns;
use crate::input::fp16::Same;
use crate::input::tile::{Part, Tile, WeightScale};

/// Where the values of the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowLayout {
    /// All in one tile: for few features.
    Tile,
    /// In blocks, which have short columns. Columns of features are read in order, and each fills its part of all blocks.
    Blocks,
    /// Where they were. A tile at a time is gathered: for rows that lie row by row and are sorted for one assign.
    Gather,
    /// Where they were, with integer copies: few rows of a block are loaded.
    Copies,
    /// Row by row, in the order of the labels, with integer copies: for features that lie column by column. To load one row from
    /// columns takes as long as to load several.
    Rows,
}

/// Most features of [`RowLayout::Tile`] where rows are sorted for one assign: the columns of more are in each other's way.
pub const FEW: usize = 64;
/// Values between blocks, so that their columns do not have the same place in a cache.
const APART: usize = 16;

/// Values of a block, with those that keep it apart from the next one.
const fn block_len(d: usize) -> usize {
    d * BLOCK + APART
}

/// Rows in the order of their groups. Each group begins with a block of its own. A *place* counts rows and gaps in this order.
pub struct Sorted<T> {
    pub layout: RowLayout,
    /// Most rows.
    pub most: usize,
    /// With [`RowLayout::Tile`].
    pub tile: Tile<T>,
    d: usize,
    /// With [`RowLayout::Blocks`]: `(blocks, d, BLOCK)`, and [`APART`] more values for each block.
    blocks: Vec<T>,
    /// With [`RowLayout::Rows`]: `(rows, d)`, in the order of the labels.
    by_rows: Vec<T>,
    /// Whether the rows are there.
    has_rows: bool,
    /// For each group, its first place.
    firsts: Vec<usize>,
    /// For each group, the place behind its last row.
    ends: Vec<usize>,
    /// For each place: where the row's label is, and the physical row.
    pub places: Vec<u32>,
    pub order: Vec<usize>,
    /// For each block: at least the largest distance of its rows from the group's point, or infinity if there is one group. Not
    /// with [`RowLayout::Gather`].
    pub radii: Vec<f64>,
    /// Integer copies, where they are used: with [`RowLayout::Copies`] and [`RowLayout::Rows`].
    pub copies: Option<RowCopies>,
}

impl<T: Float> Sorted<T> {
    /// Bytes of [`Sorted::kept`].
    pub fn bytes_kept([d, most, groups]: [usize; 3], layout: RowLayout) -> usize {
        let places = Self::places(most, groups);
        let values = match layout {
            RowLayout::Tile | RowLayout::Blocks => places.saturating_mul(d),
            RowLayout::Rows => most.saturating_mul(d),
            RowLayout::Gather | RowLayout::Copies => 0,
        };
        let of_tile = if layout == RowLayout::Tile { size_of::<f64>() + size_of::<bool>() } else { 0 };
        let of_places = places.saturating_mul(of_tile + size_of::<u32>() + size_of::<usize>());
        values.saturating_mul(size_of::<T>()).saturating_add(of_places)
    }

    /// Each group may have a block that is not full, and there is one more for rows that are left out.
    fn places(most: usize, groups: usize) -> usize {
        most.saturating_add(groups.saturating_mul(BLOCK)).next_multiple_of(BLOCK) + BLOCK
    }

    /// Room for rows that are sorted for some assigns. `lanes`: those of the integer copies, if there are copies.
    pub fn kept([d, most, groups]: [usize; 3], layout: RowLayout, lanes: Option<usize>) -> Result<Self> {
        let mut sorted = Self::with_room(layout, [d, most, groups])?;
        if let Some(lanes) = lanes {
            sorted.copies = Some(RowCopies::new(sorted.places.len(), lanes, groups)?);
        }
        Ok(sorted)
    }

    /// Bytes of integer copies with so many lanes.
    pub fn bytes_copied([lanes, most, groups]: [usize; 3]) -> usize {
        RowCopies::bytes(Self::places(most, groups), lanes)
    }

    /// How rows lie that are sorted for some assigns. `by_columns`: how the features lie.
    pub fn layout_kept(d: usize, copied: bool, by_columns: bool) -> RowLayout {
        match Form::of::<T>(d) {
            Form::Difference => RowLayout::Tile,
            Form::Product if !copied => RowLayout::Blocks,
            Form::Product if by_columns => RowLayout::Rows,
            Form::Product => RowLayout::Copies,
        }
    }

    /// Whether rows are labelled a block at a time.
    pub fn has_blocks(&self) -> bool {
        matches!(self.layout, RowLayout::Blocks | RowLayout::Copies | RowLayout::Rows)
    }

    /// Room for rows that are sorted for one assign. `by_columns`: how the features lie.
    pub fn new([d, most, groups]: [usize; 3], by_columns: bool) -> Result<Self> {
        let layout = match by_columns {
            _ if d <= FEW => RowLayout::Tile,
            true => RowLayout::Blocks,
            false => RowLayout::Gather,
        };
        Self::with_room(layout, [d, most, groups])
    }

    fn with_room(layout: RowLayout, [d, most, groups]: [usize; 3]) -> Result<Self> {
        let places = Self::places(most, groups);
        let blocks = places / BLOCK;
        Ok(Self {
            layout,
            most,
            tile: Tile::new(d, if layout == RowLayout::Tile { places } else { 0 })?,
            d,
            blocks: memory::zeroed(if layout == RowLayout::Blocks { blocks * block_len(d) } else { 0 }, GROUPS)?,
            by_rows: memory::zeroed(if layout == RowLayout::Rows { most * d } else { 0 }, GROUPS)?,
            has_rows: false,
            firsts: memory::zeroed(groups, GROUPS)?,
            ends: memory::zeroed(groups, GROUPS)?,
            places: memory::zeroed(places, GROUPS)?,
            order: memory::zeroed(places, GROUPS)?,
            radii: memory::zeroed(blocks, GROUPS)?,
            copies: None,
        })
    }

    /// The largest distance of a group's rows from its point.
    pub fn radius(&self, group: usize) -> f64 {
        let rows = self.rows(group);
        super::largest(self.radii[rows.start / BLOCK..rows.end.div_ceil(BLOCK)].iter().copied())
    }

    /// The places of a group.
    #[inline(always)]
    pub fn rows(&self, group: usize) -> Range<usize> {
        self.firsts[group]..self.ends[group]
    }

    /// The values of a block of [`RowLayout::Blocks`], and of all blocks after it.
    #[inline(always)]
    pub fn block(&self, place: usize) -> &[T] {
        &self.blocks[place / BLOCK * block_len(self.d)..]
    }

    /// The values of a row of [`RowLayout::Rows`].
    #[inline(always)]
    pub fn row(&self, place: usize) -> &[T] {
        &self.by_rows[self.places[place] as usize * self.d..][..self.d]
    }

    /// Whether rows must be taken by [`Sorted::take_rows`].
    pub fn lacks_rows(&self) -> bool {
        self.layout == RowLayout::Rows && !self.has_rows
    }

    /// Takes the rows of a tile row by row. `at`: where the label of the first one is.
    #[inline(always)]
    pub fn take_rows(&mut self, tile: &Tile<T>, at: usize) {
        let d = self.d;
        let columns = tile.x.chunks_exact(tile.stride).map(|column| &column[..tile.rows]);
        // The columns of the tile are its rows.
        rows_to_columns::<T, T, Same>(columns, 0, d, &mut self.by_rows[at * d..][..tile.rows * d]);
    }

    /// Says that all rows were taken.
    pub fn has_all_rows(&mut self) {
        self.has_rows = true;
    }

    /// Takes the rows of a range. `groups`: the groups of those that are kept. `at`: where the first one's label is. `to`: room
    /// for where each row goes.
    #[inline(always)]
    pub fn fill(
        &mut self,
        part: &Part<'_, T>,
        weights: Option<WeightScale>,
        (physical, at): (Range<usize>, usize),
        groups: &[u8],
        to: &mut [u32],
        step: &GroupStep<'_, T>,
    ) {
        let Self { firsts, ends, places, order, .. } = self;
        self.copies.iter_mut().for_each(RowCopies::clear);
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
        match self.layout {
            RowLayout::Tile => {
                self.tile.load_sorted(part, weights, physical, to, &self.order[..used]);
                self.fill_gaps();
            }
            RowLayout::Blocks => self.fill_blocks(part, physical, used),
            RowLayout::Gather | RowLayout::Copies | RowLayout::Rows => return,
        }
        for group in 0..step.groups() {
            let rows = self.rows(group);
            for start in rows.clone().step_by(BLOCK) {
                let count = BLOCK.min(rows.end - start);
                self.radii[start / BLOCK] = match self.layout {
                    RowLayout::Tile => step.radius(&self.tile.x[start..], self.tile.stride, count, group),
                    _ => step.radius(self.block(start), BLOCK, count, group),
                };
            }
        }
    }

    /// Finds the largest distance of a block of rows that are in a tile. With [`RowLayout::Copies`] and [`RowLayout::Rows`].
    #[inline(always)]
    pub fn measure(&mut self, rows: Range<usize>, group: usize, tile: &Tile<T>, step: &GroupStep<'_, T>) {
        self.radii[rows.start / BLOCK] = step.radius(&tile.x, BLOCK, rows.len(), group);
    }

    /// Loads the rows of some places. With [`RowLayout::Copies`] and [`RowLayout::Rows`]. `order`: their physical rows.
    #[inline(always)]
    pub fn load(
        &self,
        tile: &mut Tile<T>,
        part: &Part<'_, T>,
        weights: Option<WeightScale>,
        order: &[usize],
        places: impl Iterator<Item = usize>,
    ) {
        match self.layout {
            RowLayout::Rows => tile.load_rows(part, weights, order, places.map(|place| self.row(place))),
            _ => tile.load_list(part, weights, order),
        }
    }

    /// Makes integer copies of a block of rows that are in a tile. With [`RowLayout::Copies`] and [`RowLayout::Rows`].
    #[inline(always)]
    pub fn copy(&mut self, rows: Range<usize>, group: usize, tile: &Tile<T>, step: &GroupStep<'_, T>, shared: &Copies) {
        let Some(mut copies) = self.copies.take() else { return };
        copies.fill(rows.start, &tile.x, rows.len(), step.groups, group, shared);
        self.copies = Some(copies);
    }

    /// Gaps take the values of a row of their group: others may be NaN, which is compared for long.
    fn fill_gaps(&mut self) {
        for column in self.tile.x.chunks_exact_mut(self.tile.stride) {
            for (first, end) in self.firsts.iter().zip(&self.ends) {
                let value = column[*first];
                column[*end..end.next_multiple_of(BLOCK)].fill(value);
            }
        }
    }

    fn fill_blocks(&mut self, part: &Part<'_, T>, physical: Range<usize>, used: usize) {
        let len = block_len(self.d);
        let by_columns = part.features.is_by_columns();
        if by_columns {
            part.features.gather_blocks(physical, &self.order[..used], len, &mut self.blocks);
        }
        for (first, end) in self.firsts.iter().zip(&self.ends) {
            for start in (*first..*end).step_by(BLOCK) {
                let rows = start..(*end).min(start + BLOCK);
                let block = &mut self.blocks[start / BLOCK * len..][..len - APART];
                match by_columns {
                    true => part.features.arrive(rows.len(), BLOCK, block),
                    false => part.features.gather_tile(&self.order[rows], BLOCK, block),
                }
            }
        }
    }
}
