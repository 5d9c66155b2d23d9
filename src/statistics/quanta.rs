//! Pass 3: the quantum of each column.

use std::ops::Range;

use super::factors::by_feature;
use super::given::Given;
use super::passes::Passes;
use super::survey::Extent;
use super::tiles::{Visit, load_positive};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Extents, Metric, Space};
use crate::exact::fixed::{ColumnScale, Limbs, power_of_two};
use crate::input::tile::{RowBlock, Tile, WeightScale};
use crate::input::transform::RowTransform;

/// The counts of a column: nonzero values, values below 2^-26 of the largest, and values below 2^-66 of the largest.
pub type Counts = [u64; 3];
/// The name for what is counted and decided here in errors: users do not know quanta.
const QUANTA: &str = "the ranges of the columns";

/// Runs pass 3 if needed, and returns the scale of each column. If `weighted`, the extents are those of weighted contributions.
/// `given`: the largest contributions that later rows may have, which have two limbs; negative where the rows decide.
pub fn quanta<T: Float>(
    passes: &mut dyn Passes<T>,
    extents: &[Extent],
    weighted: bool,
    given: &[f64],
) -> Result<Vec<ColumnScale>> {
    let later = |f: usize| given.get(f).copied().filter(|given| *given >= 0.0);
    // One limb is possible only for unweighted float32. Otherwise only the second count matters.
    let bits = |f| if T::IS_F32 && !weighted && later(f).is_none() { 26 } else { 66 };
    let largest_of = |f, extent: &Extent| extent.largest.max(later(f).unwrap_or(0.0));
    let largest = extents.iter().enumerate().map(|(f, e)| {
        let largest = largest_of(f, e);
        (e.smallest * power_of_two(bits(f)) < largest).then_some(largest)
    });
    let largest: Vec<Option<f64>> = memory::collected(largest, QUANTA)?;
    let counts = if largest.iter().any(Option::is_some) {
        passes.count_small(&largest, weighted)?
    } else {
        memory::zeroed(extents.len(), QUANTA)?
    };
    let scale = |(f, (extent, [nonzero, small, tiny])): (usize, (&Extent, &Counts))| {
        if tiny * 2 > *nonzero {
            let column = passes.given().names().get(f).unwrap_or_default();
            return Err(KMeansError::RangeTooWide { column, largest: largest_of(f, extent) });
        }
        let one = T::IS_F32 && !weighted && later(f).is_none() && small * 1000 <= *nonzero;
        Ok(ColumnScale::for_extent::<T>(largest_of(f, extent), if one { Limbs::One } else { Limbs::Two }))
    };
    memory::try_collected(extents.iter().zip(&counts).enumerate().map(scale), QUANTA)
}

/// The largest contribution of rows of a magnitude in the units of the column, under this factor and this largest weight.
///
/// # Errors
/// [`KMeansError::InvalidOption`] for a negative magnitude, and one out of range.
pub fn contribution<T: Float>(extent: f64, factor: f64, metric: Metric, weight: f64) -> Result<f64> {
    let scaled = if metric == Metric::Cosine { 1.0 } else { T::from_f64(extent * factor).to_f64() };
    let largest = scaled * weight;
    if extent >= 0.0 && largest <= power_of_two(450) && (largest == 0.0 || largest >= power_of_two(-450)) {
        return Ok(largest);
    }
    let expected = format!("magnitudes that are 0 or from about 3.4e-136 to 2.9e135, scaled and as {}", T::NAME);
    Err(KMeansError::InvalidOption { option: "extents", expected, got: format!("{extent:e}") })
}

/// What [`contribution`] says of each feature for which a fit was given a magnitude, and -1 for all others.
pub fn given_extents<T: Float>(given: &dyn Given, space: &Space, extents: &Extents, weight: f64) -> Result<Vec<f64>> {
    let names = given.names();
    let extents = match extents {
        Extents::None => return Ok(Vec::new()),
        Extents::Named(extents) => by_feature(extents, names, -1.0, ("extents", "largest magnitudes"))?,
        Extents::InOrder(extents) => memory::copied(extents, QUANTA)?,
    };
    if extents.len() != names.len() {
        let expected = format!("a largest magnitude for each of {} features", names.len());
        return Err(KMeansError::InvalidOption { option: "extents", expected, got: extents.len().to_string() });
    }
    let factors = given.row_transform().map_or(&[][..], RowTransform::factors);
    let largest = |(f, extent): (usize, f64)| {
        let factor = factors.get(f).copied().unwrap_or(1.0);
        if extent < 0.0 { Ok(extent) } else { contribution::<T>(extent, factor, space.metric, weight) }
    };
    memory::try_collected(extents.into_iter().enumerate().map(largest), QUANTA)
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
    fn visit(&self, counts: &mut Vec<Counts>, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
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
