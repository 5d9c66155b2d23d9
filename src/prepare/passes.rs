//! The passes that everything is learnt by, wherever the rows are; and these passes over rows in this process's memory.

use super::quanta::{self, Counts};
use super::survey::{self, Extent, Survey};
use super::variance::{self, Moments};
use crate::error::Result;
use crate::float::Float;
use crate::tile::{Part, WeightScale};

/// The rows of a fit, and the passes over them that [`super::prepare_by`] decides by.
///
/// All but the sums of [`Extent`] are extrema, counts and integer sums: every implementation finds the same.
pub trait Passes<T: Float> {
    /// The rows as they were given: names, lengths, and what an error says about single values.
    fn parts(&self) -> &[Part<'_, T>];
    /// Pass 1. Where there are bad rows it may count them short, suspect negative weights that are not there, and leave the rest
    /// to [`Passes::skip_bad`].
    fn survey(&mut self) -> Result<Survey>;
    /// Leaves the bad rows out of everything that follows. Returns the survey of the others, with the exact number of the bad.
    fn skip_bad(&mut self, survey: Survey) -> Result<Survey>;
    /// From here on weights are `w^`.
    fn round_weights(&mut self, scale: WeightScale) -> Result<()>;
    /// Pass 2: extents of `fl(w^ * x)`.
    fn weighted_extents(&mut self) -> Result<Vec<Extent>>;
    /// Pass 3, for the columns whose largest magnitude is given: how many of the values are small beside it, or if `weighted`, of
    /// `fl(w^ * x)`.
    fn count_small(&mut self, largest: &[Option<f64>], weighted: bool) -> Result<Vec<Counts>>;
    /// Pass 4: the integer sums of t and t^2 of each column.
    fn variance_sums(&mut self, moments: &[Moments]) -> Result<Vec<[i128; 2]>>;
}

/// Parts in this process's memory.
pub struct HostPasses<'p, 'a, T> {
    parts: &'p mut [Part<'a, T>],
    weights: Option<WeightScale>,
    threads: usize,
}

impl<'p, 'a, T> HostPasses<'p, 'a, T> {
    pub fn new(parts: &'p mut [Part<'a, T>], threads: usize) -> Self {
        Self { parts, weights: None, threads }
    }
}

impl<T: Float> Passes<T> for HostPasses<'_, '_, T> {
    fn parts(&self) -> &[Part<'_, T>] {
        self.parts
    }

    fn survey(&mut self) -> Result<Survey> {
        survey::survey(self.parts, self.threads)
    }

    fn skip_bad(&mut self, survey: Survey) -> Result<Survey> {
        survey::select_finite(self.parts)?;
        Ok(survey)
    }

    fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        // Tiles are rounded as they are loaded.
        self.weights = Some(scale);
        Ok(())
    }

    fn weighted_extents(&mut self) -> Result<Vec<Extent>> {
        survey::weighted_extents(self.parts, self.weights, self.threads)
    }

    fn count_small(&mut self, largest: &[Option<f64>], weighted: bool) -> Result<Vec<Counts>> {
        quanta::count_small(self.parts, largest, weighted, self.weights, self.threads)
    }

    fn variance_sums(&mut self, moments: &[Moments]) -> Result<Vec<[i128; 2]>> {
        variance::sums(self.parts, moments, self.weights, self.threads)
    }
}
