//! The table of draws of a session on the CPU. It is state and nothing else: `seeds.rs` lowers its distances, `picks.rs` draws
//! from it.

use std::ops::Range;

use crate::backend::DrawBy;
use crate::base::error::Result;
use crate::base::memory;
use crate::exact::distances::DistanceScale;
use crate::input::tile::WeightScale;

/// Rows of a range, as powers of two. Between the two a range has about as many rows as there are ranges.
const ROWS: std::ops::RangeInclusive<u32> = 8..=16;

/// Draw weights of the rows: `w^` before the first centroid is taken, then integer distances.
pub struct DrawTable {
    /// The place of each row: its index in `nearest` and `weights`. Empty if places are in row order.
    pub places: Vec<u32>,
    /// Reference distance to the nearest centroid taken so far. Infinite before the first; 0 in places of padding.
    pub nearest: Vec<f64>,
    /// `w^` of each row. Empty if all weights are 1.
    pub weights: Vec<f64>,
    pub weight_scale: Option<WeightScale>,
    /// Scale of the integer distances. `None` before the first centroid is taken.
    pub scale: Option<DistanceScale>,
    pub ranges: Ranges,
}

impl DrawTable {
    /// Whether the draw weights are these.
    pub fn is_by(&self, by: DrawBy) -> bool {
        by == if self.scale.is_some() { DrawBy::Distance } else { DrawBy::Weight }
    }

    #[inline(always)]
    pub fn place(&self, row: usize) -> usize {
        self.places.get(row).map_or(row, |place| *place as usize)
    }

    #[inline(always)]
    pub fn draw_weight(&self, row: usize) -> u128 {
        let place = self.place(row);
        let weight = self.weights.get(place).map_or(1.0, |weight| *weight);
        match self.scale {
            Some(scale) => scale.quantise(weight, self.nearest[place]),
            None => self.weight_scale.map_or(1, |scale| scale.integer(weight) as u128),
        }
    }
}

/// The totals of the draw weights of consecutive ranges of rows of equal length. The last range may be shorter. A draw looks for
/// its range first, and then for its row within the range.
pub struct Ranges {
    pub totals: Vec<u128>,
    /// A range has two to the power of this many rows.
    shift: u32,
    rows: usize,
}

impl Ranges {
    pub fn new(rows: usize) -> Result<Self> {
        let shift = (rows.max(1).ilog2() / 2).clamp(*ROWS.start(), *ROWS.end());
        let totals = memory::zeroed(rows.div_ceil(1 << shift), "the totals of ranges of rows")?;
        Ok(Self { totals, shift, rows })
    }

    /// The range of a row.
    #[inline(always)]
    pub fn of(&self, row: usize) -> usize {
        row >> self.shift
    }

    /// The rows of a range.
    pub fn rows(&self, range: usize) -> Range<usize> {
        range << self.shift..((range + 1) << self.shift).min(self.rows)
    }

    /// The rows of every range, in order, with the total of their draw weights.
    pub fn with_totals(&self) -> impl Iterator<Item = (Range<usize>, u128)> + '_ {
        self.totals.iter().enumerate().map(|(range, total)| (self.rows(range), *total))
    }
}
