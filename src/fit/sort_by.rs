//! `sort_by`: clusters are numbered in ascending order of their sizes or of a feature of their centroids, or as those of another model.
//!
//! ```text
//! the best restart is known, with its labels and sizes
//! order = clusters by (key, number)                            nothing to do if they are in this order
//! centroids = those in this order; one assign more
//! ```
//! The last assign is there for rows that are equally near to two centroids: the smaller number gets them, and numbers have
//! changed. So a fit and a prediction give the same labels. Sizes and inertia are those of this assign. Keys are not compared
//! again: with such rows, there may be no numbers for which sizes ascend. (Two clusters with one row each, and one row halfway
//! between them: whichever is first has two.)

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::params::{Numbering, Params, SortBy};
use crate::base::units::in_units;
use crate::exact::matching::match_centroids;

/// The name for the order in errors.
const ORDER: &str = "the order of the clusters";
/// Names in an error.
const SHOWN: usize = 8;

/// What clusters are sorted by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SortKey<'k> {
    Size,
    /// The number of a feature.
    Feature(usize),
    /// The clusters of another model, and the factors of this fit.
    Numbering(&'k Numbering, &'k [f64]),
}

impl<'k> SortKey<'k> {
    /// `None` if clusters are not sorted. `factors`: those of the fit, if they are known.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] if there is no feature of this name, or if the clusters of a model cannot be matched.
    pub fn of(params: &Params<'k>, names: &Names, factors: &'k [f64]) -> Result<Option<Self>> {
        let name = match &params.output.sort_by {
            SortBy::None => return Ok(None),
            SortBy::Size => return Ok(Some(Self::Size)),
            SortBy::Numbering(numbering) => {
                numbering.check(names, params.space.metric, params.k)?;
                return Ok(Some(Self::Numbering(numbering, factors)));
            }
            SortBy::Feature(name) => name,
        };
        let place = (0..names.len()).find(|&f| names.get(f).is_some_and(|found| found == *name));
        place.map(|f| Some(Self::Feature(f))).ok_or_else(|| {
            let shown: Vec<String> = (0..names.len().min(SHOWN)).filter_map(|f| names.get(f)).collect();
            let more = if names.len() > SHOWN { ", ..." } else { "" };
            let expected = format!("\"size\" or the name of a feature ({}{more})", shown.join(", "));
            KMeansError::InvalidOption { option: "sort_by", expected, got: format!("{name:?}") }
        })
    }

    /// The clusters in their order. `None` if they are in this order already.
    pub fn order<T: Float>(self, centroids: &[T], d: usize, sizes: &[u64]) -> Result<Option<Vec<u32>>> {
        let mut order = memory::collected(0..sizes.len() as u32, ORDER)?;
        match self {
            Self::Size => order.sort_by_key(|&j| sizes[j as usize]),
            Self::Feature(f) => {
                // Centroids are finite. -0.0 + 0.0 is 0.0, so both zeros are one value.
                let value = |j: u32| centroids[j as usize * d + f].to_f64() + 0.0;
                order.sort_by(|&a, &b| value(a).total_cmp(&value(b)));
            }
            Self::Numbering(numbering, factors) => {
                let units = match factors {
                    [] => memory::copied(centroids, ORDER)?,
                    factors => memory::collected(in_units(centroids, factors), ORDER)?,
                };
                let own = numbering.scaled(units.iter().map(|c| c.to_f64()), T::IS_F32)?;
                let old = numbering.scaled(numbering.centroids.iter().copied(), T::IS_F32)?;
                let partners = match_centroids(&old, &own, d)?;
                let mut place = memory::filled(sizes.len(), u32::MAX, ORDER)?;
                for (number, j) in (0..).zip(partners).filter_map(|(number, j)| Some((number, j?))) {
                    place[j as usize] = number;
                }
                order.sort_by_key(|&j| place[j as usize]);
            }
        }
        Ok((!order.is_sorted()).then_some(order))
    }
}

/// The centroids, or other values of the clusters, in this order.
pub fn arranged<T: Copy>(centroids: &[T], d: usize, order: &[u32]) -> Result<Vec<T>> {
    memory::collected(order.iter().flat_map(|&j| &centroids[j as usize * d..][..d]).copied(), ORDER)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(equal_keys_keep_their_order);
    fn equal_keys_keep_their_order() {
        let centroids = [3.0f32, 0.0, -1.0, -0.0, 3.0, 1.0, -1.0, 0.0];
        assert_eq!(SortKey::Feature(0).order(&centroids, 2, &[0; 4]).unwrap(), Some(vec![1, 3, 0, 2]));
        assert_eq!(SortKey::Feature(1).order(&centroids, 2, &[0; 4]).unwrap(), Some(vec![0, 1, 3, 2]));
        assert_eq!(SortKey::Size.order(&centroids, 2, &[5, 1, 5, 0]).unwrap(), Some(vec![3, 1, 0, 2]));
        assert_eq!(SortKey::Size.order(&centroids, 2, &[0, 1, 1, 7]).unwrap(), None);
        assert_eq!(arranged(&centroids, 2, &[2, 0, 3, 1]).unwrap(), [3.0, 1.0, 3.0, 0.0, -1.0, 0.0, -1.0, -0.0]);
    }
}
