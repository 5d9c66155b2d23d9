//! The units of a model's sums.

use std::sync::Arc;

use super::Model;
use super::sums::{Living, SUMS, invalid};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Metric;
use crate::exact::fixed::{ColumnScale, Limbs, exponent_at_or_above, power_of_two};
use crate::exact::rng::{NO_VALUES, hash_bits};
use crate::statistics::Statistics;

/// The units of a model's sums.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Quanta {
    /// For each feature `2 p`, and 1 more if it has two limbs.
    pub features: Vec<i32>,
    /// `e`, if rows have weights.
    pub weights: Option<i32>,
}

impl Quanta {
    pub(super) fn of(statistics: &Statistics) -> Result<Self> {
        let features = statistics.scales.iter().map(|scale| 2 * scale.exponent + i32::from(scale.limbs == Limbs::Two));
        Ok(Self { features: memory::collected(features, SUMS)?, weights: statistics.weights.map(|scale| scale.exponent) })
    }

    pub(super) fn scales(&self) -> Result<Vec<ColumnScale>> {
        let scale = |code: &i32| ColumnScale::new(code >> 1, if code & 1 == 1 { Limbs::Two } else { Limbs::One });
        memory::collected(self.features.iter().map(scale), SUMS)
    }

    /// Whether a fit can have these quanta.
    #[cfg(feature = "serde")]
    pub(super) fn is_consistent(&self, d: usize) -> bool {
        let in_range = self.features.iter().all(|code| (-2200..=2200).contains(code));
        in_range && self.features.len() == d && self.weights.is_none_or(|e| (-64..=65).contains(&e))
    }
}

impl<T: Float> Model<T> {
    /// The units of this model's sums.
    pub(super) fn quanta(&self) -> Result<&Quanta> {
        let (expected, got) = ("the largest magnitude of each feature, since this model has no quanta", "none");
        self.living.quanta.as_ref().ok_or_else(|| invalid("extents", expected, got))
    }

    /// The units of sums and of weights, as powers of two: one exponent for each feature, and one for the weights.
    #[doc(hidden)]
    pub fn units(&self) -> Result<(Vec<i32>, i32)> {
        let quanta = self.quanta()?;
        let exponents = quanta.scales()?.iter().map(ColumnScale::quantum_exponent).collect();
        Ok((exponents, quanta.weights.unwrap_or(0) - 53))
    }

    pub(super) fn hash_of_units(&self) -> Result<u64> {
        let quanta = self.quanta()?;
        let mut hash = hash_bits(NO_VALUES, T::PRECISION as u64);
        let mut take = |bits: u64| hash = hash_bits(hash, bits);
        for code in &quanta.features {
            take(i64::from(*code) as u64);
        }
        take(quanta.weights.map_or(u64::MAX, |e| i64::from(e) as u64));
        take(u64::from(self.metric() == Metric::Cosine));
        for factor in self.scaling.iter().flat_map(|scaling| &scaling.factors) {
            take(factor.to_bits());
        }
        for name in (0..self.d).filter_map(|f| self.names.get(f)) {
            take(name.len() as u64);
            name.bytes().for_each(|byte| take(byte.into()));
        }
        Ok(hash)
    }

    /// The same model with quanta for features of these largest magnitudes, in the units of the columns: 90 bits below them, and
    /// room for values up to 16 times as large. For models that no fit made: those of a fit have quanta. `weight`: the largest
    /// weight of rows, if they have weights.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] if the model has quanta, for another number of magnitudes, and for negative ones and ones
    /// out of range.
    pub fn with_extents(&self, extents: &[f64], weight: Option<f64>) -> Result<Self> {
        if self.living.quanta.is_some() {
            return Err(invalid("extents", "none, since this model has quanta of its own", format!("{extents:?}")));
        }
        if extents.len() != self.d {
            return Err(invalid("extents", &format!("a largest magnitude for each of {} features", self.d), extents.len()));
        }
        let mut features = memory::with_room(self.d, SUMS)?;
        for (f, extent) in extents.iter().enumerate() {
            let factor = self.scaling.as_ref().map_or(1.0, |scaling| scaling.factors[f]);
            let largest = if self.metric() == Metric::Cosine { 1.0 } else { T::from_f64(extent * factor).to_f64() };
            let largest = largest * weight.unwrap_or(1.0);
            if !(*extent >= 0.0 && largest <= power_of_two(450) && (largest == 0.0 || largest >= power_of_two(-450))) {
                return Err(invalid("extents", "magnitudes from about 3.4e-136 to 2.9e135, or 0", extent));
            }
            features.push(2 * ColumnScale::for_extent::<T>(largest, Limbs::Two).exponent + 1);
        }
        if let Some(weight) = weight.filter(|weight| !(power_of_two(-64)..=power_of_two(64)).contains(weight)) {
            return Err(KMeansError::WeightOutOfRange { got: weight });
        }
        let (mut model, weights) = (self.copied()?, weight.map(exponent_at_or_above));
        model.living = Arc::new(Living { quanta: Some(Quanta { features, weights }), ..Living::default() });
        Ok(model)
    }
}
