//! Pass 3: the quantum of each column.

use super::survey::Extent;
use super::tiles::{for_each_positive_tile, merge_columns};
use crate::error::{KMeansError, Result};
use crate::fixed::{ColumnScale, Limbs, power_of_two};
use crate::float::Float;
use crate::tile::{Part, WeightScale};

/// Pass 3, where needed, and the scale of each column.
pub fn quanta<T: Float>(
    parts: &[Part<'_, T>],
    extents: &[Extent],
    contribution_weights: Option<WeightScale>,
    weights: Option<WeightScale>,
    threads: usize,
) -> Result<Vec<ColumnScale>> {
    /// Nonzero values, those below 2^-26 of the largest, those below 2^-66.
    type Counts = [u64; 3];
    let is_small = |v: f64, bits: i32, largest: f64| v * power_of_two(bits) < largest;
    // One limb is possible for unweighted float32 only; elsewhere only the second count decides anything.
    let bits = if T::IS_F32 && contribution_weights.is_none() { 26 } else { 66 };
    let needs_counts = |e: &Extent| is_small(e.smallest, bits, e.largest);
    let counts: Vec<Counts> = if extents.iter().any(needs_counts) {
        let workers = for_each_positive_tile(
            parts,
            weights,
            threads,
            || vec![[0; 3]; extents.len()],
            |counts: &mut Vec<Counts>, tile| {
                for (f, (count, extent)) in
                    counts.iter_mut().zip(extents).enumerate().filter(|(_, (_, extent))| needs_counts(extent))
                {
                    for (r, x) in tile.column(f).iter().enumerate() {
                        let w = if contribution_weights.is_some() { tile.weights[r] } else { 1.0 };
                        let v = (w * x.to_f64()).abs();
                        count[0] += u64::from(v > 0.0);
                        count[1] += u64::from(v > 0.0 && is_small(v, 26, extent.largest));
                        count[2] += u64::from(v > 0.0 && is_small(v, 66, extent.largest));
                    }
                }
            },
        );
        merge_columns(workers, |a, b| a.iter_mut().zip(b).for_each(|(a, b)| *a += b))
    } else {
        vec![[0; 3]; extents.len()]
    };
    let scale = |(f, (extent, [nonzero, small, tiny])): (usize, (&Extent, &Counts))| {
        if tiny * 2 > *nonzero {
            let column = parts[0].features.names()[f].clone();
            return Err(KMeansError::RangeTooWide { column, largest: extent.largest });
        }
        let one = T::IS_F32 && contribution_weights.is_none() && small * 1000 <= *nonzero;
        Ok(ColumnScale::for_extent::<T>(extent.largest, if one { Limbs::One } else { Limbs::Two }))
    };
    extents.iter().zip(&counts).enumerate().map(scale).collect()
}
