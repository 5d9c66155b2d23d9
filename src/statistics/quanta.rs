//! Pass 3: the quantum of each column.

use std::ops::Range;

use super::passes::Passes;
use super::survey::Extent;
use super::tiles::{Visit, load_positive};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::fixed::{ColumnScale, Limbs, power_of_two};
use crate::input::tile::{Part, Tile, WeightScale};

/// The counts of a column: nonzero values, values below 2^-26 of the largest, and values below 2^-66 of the largest.
pub type Counts = [u64; 3];
/// The name for what is counted and decided here in errors: users do not know quanta.
const QUANTA: &str = "the ranges of the columns";

/// Runs pass 3 if needed, and returns the scale of each column. If `weighted`, the extents are those of weighted contributions.
pub fn quanta<T: Float>(passes: &mut dyn Passes<T>, extents: &[Extent], weighted: bool) -> Result<Vec<ColumnScale>> {
    // One limb is possible only for unweighted float32. Otherwise only the second count matters.
    let bits = if T::IS_F32 && !weighted { 26 } else { 66 };
    let largest = extents.iter().map(|e| (e.smallest * power_of_two(bits) < e.largest).then_some(e.largest));
    let largest: Vec<Option<f64>> = memory::collected(largest, QUANTA)?;
    let counts = if largest.iter().any(Option::is_some) {
        passes.count_small(&largest, weighted)?
    } else {
        memory::zeroed(extents.len(), QUANTA)?
    };
    let scale = |(f, (extent, [nonzero, small, tiny])): (usize, (&Extent, &Counts))| {
        if tiny * 2 > *nonzero {
            let column = passes.given().names().get(f).unwrap_or_default();
            return Err(KMeansError::RangeTooWide { column, largest: extent.largest });
        }
        let one = T::IS_F32 && !weighted && small * 1000 <= *nonzero;
        Ok(ColumnScale::for_extent::<T>(extent.largest, if one { Limbs::One } else { Limbs::Two }))
    };
    memory::try_collected(extents.iter().zip(&counts).enumerate().map(scale), QUANTA)
}

/// Pass 3.
pub(super) struct CountSmall<'p> {
    pub largest: &'p [Option<f64>],
    pub weighted: bool,
    pub weights: Option<WeightScale>,
}

impl<T: Float> Visit<T> for CountSmall<'_> {
    type Learnt = Vec<Counts>;

    fn nothing(&self) -> Result<Vec<Counts>> {
        memory::zeroed(self.largest.len(), QUANTA)
    }

    #[inline(always)]
    fn visit(&self, counts: &mut Vec<Counts>, tile: &mut Tile<T>, part: &Part<'_, T>, range: Range<usize>) {
        load_positive(tile, part, self.weights, range);
        for (f, (count, largest)) in counts.iter_mut().zip(self.largest).enumerate() {
            let Some(largest) = *largest else { continue };
            let factors = [26, 66].map(power_of_two);
            for (x, w) in tile.column(f).iter().zip(&tile.weights) {
                let w = if self.weighted { *w } else { 1.0 };
                let v = (w * x.to_f64()).abs();
                count[0] += u64::from(v > 0.0);
                count[1] += u64::from(v > 0.0 && v * factors[0] < largest);
                count[2] += u64::from(v > 0.0 && v * factors[1] < largest);
            }
        }
    }
}
