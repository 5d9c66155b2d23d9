//! The passes over the rows that preparation needs, and their implementation for rows in this process's memory.

use super::given::{Given, HostRows};
use super::quanta::{self, Counts};
use super::survey::{self, Extent, Survey};
use super::variance::{self, Moments};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::tile::{Part, WeightScale};

/// The rows of a fit, and the passes over them that [`super::gather_by`] needs.
///
/// All results but the sums of [`Extent`] are extrema, counts and integer sums. So every implementation gets the same results.
pub trait Passes<T: Float> {
    /// The rows as they were given. They supply names, lengths, and what errors report.
    fn given(&self) -> Box<dyn Given + '_>;
    /// Pass 1. If there are bad rows, the pass may count too few of them, may report negative weights that do not exist, and may
    /// leave the rest to [`Passes::skip_bad`].
    fn survey(&mut self) -> Result<Survey>;
    /// Leaves bad rows out of everything that follows. Returns the survey of the other rows, with the exact number of bad rows.
    fn skip_bad(&mut self, survey: Survey) -> Result<Survey>;
    /// From now on, weights are `w^`.
    fn round_weights(&mut self, scale: WeightScale) -> Result<()>;
    /// Pass 2: extents of `fl(w^ * x)`.
    fn weighted_extents(&mut self) -> Result<Vec<Extent>>;
    /// Pass 3, for the columns whose largest magnitude is given. Counts the values that are small compared with it. If
    /// `weighted`, counts values of `fl(w^ * x)` instead.
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
    fn given(&self) -> Box<dyn Given + '_> {
        Box::new(HostRows(self.parts))
    }

    fn survey(&mut self) -> Result<Survey> {
        survey::survey(self.parts, self.threads)
    }

    fn skip_bad(&mut self, survey: Survey) -> Result<Survey> {
        survey::select_finite(self.parts, self.threads)?;
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
