//! The passes over the rows that preparation needs, and their implementation for rows in this process's memory.

use super::given::{Given, HostRows};
use super::quanta::{CountSmall, Counts};
use super::survey::{Extent, Survey, WeightedExtents, select_finite, survey};
use super::tiles::learn;
use super::variance::{Moments, SumMoments};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::tile::{RowBlock, WeightScale};

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

/// What is learnt about some rows. It is merged with what is learnt about other rows, in any order.
pub trait Merge {
    fn merge(&mut self, other: &Self);
}

/// Counts and sums of integers add up.
macro_rules! add_up {
    ($($integer:ty),*) => {$(
        impl Merge for $integer {
            fn merge(&mut self, other: &Self) {
                *self += other;
            }
        }
    )*};
}

add_up!(u64, u128, i128);

/// Whether any row is so.
impl Merge for bool {
    fn merge(&mut self, other: &Self) {
        *self |= other;
    }
}

impl<M: Merge> Merge for [M] {
    fn merge(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(all, one)| all.merge(one));
    }
}

impl<M: Merge, const N: usize> Merge for [M; N] {
    fn merge(&mut self, other: &Self) {
        self.as_mut_slice().merge(other.as_slice());
    }
}

impl<M: Merge> Merge for Vec<M> {
    fn merge(&mut self, other: &Self) {
        self.as_mut_slice().merge(other.as_slice());
    }
}

/// What is learnt about all rows. `None` if nothing is.
pub fn merged<M: Merge>(learnt: impl IntoIterator<Item = M>) -> Option<M> {
    learnt.into_iter().reduce(|mut all, one| {
        all.merge(&one);
        all
    })
}

/// Parts in this process's memory.
pub struct HostPasses<'p, 'a, T> {
    parts: &'p mut [RowBlock<'a, T>],
    weights: Option<WeightScale>,
    threads: usize,
}

impl<'p, 'a, T> HostPasses<'p, 'a, T> {
    pub fn new(parts: &'p mut [RowBlock<'a, T>], threads: usize) -> Self {
        Self { parts, weights: None, threads }
    }
}

impl<T: Float> Passes<T> for HostPasses<'_, '_, T> {
    fn given(&self) -> Box<dyn Given + '_> {
        Box::new(HostRows(self.parts))
    }

    fn survey(&mut self) -> Result<Survey> {
        survey(self.parts, self.threads)
    }

    fn skip_bad(&mut self, survey: Survey) -> Result<Survey> {
        select_finite(self.parts, self.threads)?;
        Ok(survey)
    }

    fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        // Tiles are rounded as they are loaded.
        self.weights = Some(scale);
        Ok(())
    }

    fn weighted_extents(&mut self) -> Result<Vec<Extent>> {
        learn(self.parts, self.threads, &WeightedExtents { d: self.parts[0].features.n_features(), weights: self.weights })
    }

    fn count_small(&mut self, largest: &[Option<f64>], weighted: bool) -> Result<Vec<Counts>> {
        learn(self.parts, self.threads, &CountSmall { largest, weighted, weights: self.weights })
    }

    fn variance_sums(&mut self, moments: &[Moments]) -> Result<Vec<[i128; 2]>> {
        learn(self.parts, self.threads, &SumMoments { moments, weights: self.weights })
    }
}
