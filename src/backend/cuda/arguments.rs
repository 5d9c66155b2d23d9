//! The parameters of the kernels, and the kernels that take them.
//!
//! `build.rs` writes the structs and the entries from the structs and the kernels in `kernels/`: see `build/arguments.rs`. A
//! struct that lies in device memory has the same name here as there: `Control`. All others have `Argument` behind it: `Rows` is
//! `RowsArgument`. An entry has the name that all variants of a kernel share: `assign_tiled_f32_k128` is one of `assign_tiled`.

use super::device::{Argument, At, Entry, Plain};
use crate::base::float::Float;
use crate::bounds::fp16::Fp16Bound;
use crate::bounds::{self, ExpandedTerms};
use crate::exact::distances;
use crate::exact::fixed::{ColumnScale, power_of_two};
use crate::input::tile::WeightScale;

include!(concat!(env!("OUT_DIR"), "/arguments.rs"));

/// The value of `Control::stop` if a cluster is empty. Then the host does the update.
pub const STOP_EMPTY: u32 = 2;

/// The most candidates of a step on the device.
pub const MOST_TRIALS: usize = 16;

/// The values of `StepControl::stopped`: the potential is 0; the host must do the next step; the list was too short.
pub const STOPPED_ZERO: u32 = 1;
pub const STOPPED_COARSE: u32 = 2;
pub const STOPPED_FULL: u32 = 3;

impl SumsArgument {
    /// For kernels that read only k and d, and no sums.
    pub fn none(k: usize, d: usize) -> Self {
        Self { k: k as i32, d: d as i32, columns: d as i32, mass_column: -1, limbs: 1, ..Self::ZERO }
    }
}

impl From<&ColumnScale> for Factors {
    fn from(scale: &ColumnScale) -> Self {
        let (first, second, low) = scale.factors();
        Self { first, second, low }
    }
}

impl From<&distances::DistanceScale> for DistanceScale {
    fn from(scale: &distances::DistanceScale) -> Self {
        scale.column().map_or(Self { none: 1, ..Self::ZERO }, |column| Self {
            factors: (&column).into(),
            quantum_exponent: column.quantum_exponent(),
            none: 0,
        })
    }
}

/// A `w^` times this is an integer. Without weights it is 1.
pub fn weight_to_integer(weights: Option<WeightScale>) -> f64 {
    weights.map_or(1.0, |scale| power_of_two(53 - scale.exponent))
}

impl Control {
    /// The rows that were settled so far in this iteration.
    pub fn all_settled(&self) -> u64 {
        self.settled + u64::from(self.in_doubt) + u64::from(self.pairs)
    }
}

impl StepControl {
    /// Before a step.
    pub fn before(step: usize, total: u128) -> Self {
        Self { total_low: total as u64, total_high: (total >> 64) as u64, step: step as u32, ..Self::ZERO }
    }

    /// The potential.
    pub fn total(&self) -> u128 {
        u128::from(self.total_high) << 64 | u128::from(self.total_low)
    }
}

impl ByteCopiesArgument {
    /// There are no copies.
    pub const NONE: Self = Self { scale: 1.0, ..Self::ZERO };
}

impl From<ExpandedTerms> for BoundTermsArgument {
    fn from(terms: ExpandedTerms) -> Self {
        let (slope, half) = (terms.slope(), terms.half());
        let bounds::Ceiling { slope: ceiling_slope, rise: ceiling_rise, lower: ceiling_lower, offset: ceiling_offset } =
            terms.ceiling();
        let ExpandedTerms { unit, start, reference, balance, norm_offset, chains, .. } = terms;
        let (offset, panel) = (f64::from(slope) * norm_offset, chains.panel() as i32);
        let (reference, underflow) = (reference.relative, reference.underflow);
        Self {
            unit,
            start,
            reference,
            underflow,
            half,
            balance,
            offset,
            ceiling_lower,
            ceiling_offset,
            ceiling_slope,
            ceiling_rise,
            slope,
            panel,
        }
    }
}

impl From<Fp16Bound> for TensorTermsArgument {
    fn from(bound: Fp16Bound) -> Self {
        let Fp16Bound { share, sum, begin, subnormal, half, least, radius, reference } = bound;
        let (reference, underflow) = (reference.relative, reference.underflow);
        Self { share, sum, begin, reference, underflow, subnormal, half, least, radius }
    }
}
