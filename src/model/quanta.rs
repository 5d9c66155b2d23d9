//! The units of a model's sums.

use std::sync::Arc;

use super::Model;
use super::living::Living;
use super::sums::{SUMS, invalid};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::Metric;
use crate::exact::fixed::{ColumnScale, Limbs, exponent_at_or_above, power_of_two};
use crate::exact::rng::{NO_VALUES, hash_bits};
use crate::statistics::Statistics;
use crate::statistics::quanta::contribution;

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
        self.hash_of(self.quanta()?)
    }

    fn hash_of(&self, quanta: &Quanta) -> Result<u64> {
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
            let got = "some: the method widened gives a model with wider ones";
            return Err(invalid("extents", "none, since this model has quanta of its own", got));
        }
        if let Some(weight) = weight {
            check_weight(weight)?;
        }
        let weights = weight.map(exponent_at_or_above);
        let features = self.exponents(extents, weight.unwrap_or(1.0))?.into_iter().map(|p| 2 * p + 1);
        let features = memory::collected(features, SUMS)?;
        let mut model = self.copied()?;
        model.living = Arc::new(Living { quanta: Some(Quanta { features, weights }), ..Living::default() });
        Ok(model)
    }

    /// The same model, whose sums take values of these largest magnitudes, in the units of the columns, and up to 16 times as
    /// large ones. `weight`: the largest weight, for a model of weighted rows. A magnitude below that of the fit changes nothing.
    ///
    /// Kept sums are rounded once to the coarser units. Tables of the model before are refused: their units are others.
    ///
    /// ```
    /// use polars_kmeans::{Features, KMeans, Update};
    ///
    /// let x = [0.0f64, 1.0, 9.0];
    /// let model = KMeans::new(2).keep_sums(true).fit_features(&Features::from_rows(&x, 1)?, None)?.model;
    /// let later = [1e6f64];
    /// let later = Features::from_rows(&later, 1)?;
    /// assert!(model.sums(&later, None, None).is_err());
    /// let wide = model.with_wider_extents(&[1e6], None)?;
    /// let sums = wide.sums(&later, None, None)?;
    /// assert!(wide.updated(&Update { sums: Some(&sums), ..Update::default() })?.centroids().iter().any(|c| *c > 1e5));
    /// # Ok::<(), polars_kmeans::KMeansError>(())
    /// ```
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] for another number of magnitudes, for ones out of range, for a weight where the fit had
    /// none, and for a model without quanta. [`KMeansError::BeyondExtent`] if sums that are kept would lose too many bits: fewer
    /// than those of their type would remain below the extent of the fit.
    pub fn with_wider_extents(&self, extents: &[f64], weight: Option<f64>) -> Result<Self> {
        let quanta = self.quanta()?;
        if weight.is_some() && quanta.weights.is_none() {
            return Err(invalid("weight", "none, since the fit of this model had none", "a weight"));
        }
        let mut weights = quanta.weights;
        if let Some(weight) = weight {
            check_weight(weight)?;
            weights = weights.max(Some(exponent_at_or_above(weight)));
        }
        let mut wanted = self.exponents(extents, weights.map_or(1.0, power_of_two))?;
        // Values of the fit's size may have the larger weights.
        let more = weights.unwrap_or(0) - quanta.weights.unwrap_or(0);
        wanted.iter_mut().zip(&quanta.features).for_each(|(p, code)| *p = (*p).max((code >> 1) + more));
        self.at_exponents(&wanted, weights)
    }

    /// The same model in units for columns below these powers of two, where they are larger than its own.
    pub(super) fn at_exponents(&self, wanted: &[i32], weights: Option<i32>) -> Result<Self> {
        let quanta = self.quanta()?;
        let wider = |(code, p): (&i32, &i32)| if *p > code >> 1 { 2 * p + 1 } else { *code };
        let features = memory::collected(quanta.features.iter().zip(wanted).map(wider), SUMS)?;
        let to = Quanta { features, weights };
        if to == *quanta {
            return self.copied();
        }
        let (own, fingerprint) = (self.hash_of_units()?, self.hash_of(&to)?);
        let precision = T::PRECISION as i32;
        let mut model = self.copied()?;
        let exponent_of = |f: usize| to.features.get(f).map(|code| code >> 1).or(weights).unwrap_or(0);
        let asked = |f: usize| power_of_two(exponent_of(f).clamp(-1074, 1023));
        match self.living.widened(&to, precision, own, fingerprint)? {
            Ok(living) => model.living = Arc::new(living),
            Err((f, most)) => {
                let column = self.names.get(f).unwrap_or_else(|| "weight".into());
                return Err(KMeansError::BeyondSums {
                    column,
                    got: asked(f),
                    limit: power_of_two(most.clamp(-1074, 1023)),
                    weight: f == self.d,
                });
            }
        }
        Ok(model)
    }

    /// For each feature, the exponent of the largest contribution of rows of these magnitudes and this weight.
    fn exponents(&self, extents: &[f64], weight: f64) -> Result<Vec<i32>> {
        let _environment = FloatEnvironment::default_rounding();
        if extents.len() != self.d {
            return Err(invalid("extents", &format!("a largest magnitude for each of {} features", self.d), extents.len()));
        }
        let exponent = |(f, extent): (usize, &f64)| {
            let factor = self.scaling.as_ref().map_or(1.0, |scaling| scaling.factors[f]);
            let largest = contribution::<T>(*extent, factor, self.metric(), weight)?;
            Ok(ColumnScale::for_extent::<T>(largest, Limbs::Two).exponent)
        };
        memory::try_collected(extents.iter().enumerate().map(exponent), SUMS)
    }
}

pub(super) fn check_weight(weight: f64) -> Result<()> {
    let valid = (power_of_two(-64)..=power_of_two(64)).contains(&weight);
    if valid { Ok(()) } else { Err(KMeansError::WeightOutOfRange { got: weight }) }
}
