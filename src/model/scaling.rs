//! What a model knows of the transformation of its rows: the factors of the columns, and centroids in the units of the columns.

use std::sync::Arc;

use super::Model;
#[cfg(feature = "serde")]
use super::invalid;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Metric, Params};
use crate::base::units::{FACTORS, in_units};
use crate::input::transform::RowTransform;

/// The factors that the values of the columns are multiplied by.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Scaling {
    /// How they were found: `"standard"`, `"robust"` or `"given"`.
    pub(crate) scale: String,
    /// One per feature: positive and finite.
    pub(crate) factors: Vec<f64>,
}

impl Scaling {
    /// The factors by which the rows of a fit are multiplied. `None` if there are none.
    pub(crate) fn new(row_transform: Option<&RowTransform>, params: &Params) -> Result<Option<Self>> {
        let Some(row_transform) = row_transform.filter(|row_transform| !row_transform.factors().is_empty()) else {
            return Ok(None);
        };
        let factors = memory::copied(row_transform.factors(), FACTORS)?;
        Ok(Some(Self { scale: params.space.scale.word().into(), factors }))
    }

    pub(super) fn copy(&self) -> Result<Self> {
        Ok(Self { scale: self.scale.clone(), factors: memory::copied(&self.factors, FACTORS)? })
    }

    /// How they were found: `"standard"`, `"robust"` or `"given"`.
    pub fn scale(&self) -> &str {
        &self.scale
    }

    /// One per feature: positive and finite.
    pub fn factors(&self) -> &[f64] {
        &self.factors
    }

    /// Refuses what [`Scaling::new`] does not make for `d` features.
    #[cfg(feature = "serde")]
    pub(super) fn check(&self, d: usize) -> Result<()> {
        let fits = ["standard", "robust", "given"].contains(&&self.scale[..])
            && self.factors.len() == d
            && self.factors.iter().all(|factor| *factor > 0.0 && factor.is_finite());
        if fits {
            return Ok(());
        }
        let got = format!("{} of kind {:?}", self.factors.len(), self.scale.chars().take(30).collect::<String>());
        Err(invalid(&format!("{d} positive finite factors that are standard, robust or given"), got))
    }
}

impl<T: Float> Model<T> {
    /// How rows and centroids are compared.
    pub(crate) fn metric(&self) -> Metric {
        if self.settings.metric == Metric::Cosine.word() { Metric::Cosine } else { Metric::Euclidean }
    }

    /// What happens to rows before they are compared with the centroids. `None`: nothing.
    pub(crate) fn row_transform(&self) -> Result<Option<Arc<RowTransform>>> {
        let factors = self.scaling.as_ref().map(|scaling| memory::copied(&scaling.factors, FACTORS)).transpose()?;
        Ok(RowTransform::new(factors, self.metric()))
    }

    /// The centroids in the units of the columns, `(k, d)`, row-major: each value over its factor, rounded once. One that is too
    /// large for the type becomes the largest.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError).
    pub fn centroids_in_units(&self) -> Result<Vec<T>> {
        const WHAT: &str = "the centroids in the units of the columns";
        let Some(Scaling { factors, .. }) = &self.scaling else { return memory::copied(&self.centroids, WHAT) };
        memory::collected(in_units(&self.centroids, factors), WHAT)
    }
}
