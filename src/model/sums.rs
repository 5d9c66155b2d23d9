//! The sums of a model's clusters as values, and the models that are made of them.
//!
//! ```text
//! sums      rows -> for each cluster: rows, weight, one integer a feature, in the quanta of the fit
//! updated   total = kept sums (decayed, if asked) + sums - removed sums
//!           centroid = total / weight, rounded once; no clamp, no relocation
//! ```
//! Integers are added and subtracted in any order, so a sum has no history: batches, removals and merges give the bits of one
//! pass. The unit of a feature is its quantum, `2^(p - 50)` or `2^(p - 90)` (`exact/fixed.rs`). The unit of weights is
//! `2^(e - 53)`, and a row without weights weighs `2^53` of it. Rows alone would not do: `3 * 0.9` rows are no integer.
//!
//! Bounds: `|contribution| <= 2^(p + 4)`, `w <= 2^(e + 4)`, and fewer than `2^33` rows. So a sum is at most `2^127` and a weight
//! below `2^90`, which `round_quotient` takes.
//!
//! What a model keeps from update to update is in `living.rs`.

use std::sync::Arc;

use super::Model;
use super::device_model::on_any_device;
use super::living::{Later, Living};
use super::quanta::Quanta;
use crate::backend::answers::Labels;
use crate::backend::cpu::sums::{RefusedRow, RowSums, sums};
use crate::backend::update::quotients_of;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{FloatEnvironment, PoolShare};
use crate::base::params::declare::words;
use crate::base::params::{Metric, NullPolicy};
use crate::exact::cluster_sums::{ClusterSums, UNASSIGNED};
use crate::exact::fixed::{BEYOND, ColumnScale, exponent_at_or_above, power_of_two};
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, WeightScale};
use crate::input::transform::finish_centroid;
use crate::model::predict::Predictor;
use crate::statistics::given::{HostRows, count_bad};
use crate::statistics::{Statistics, check_centroid_magnitude};

/// What errors call the sums.
pub(super) const SUMS: &str = "the sums of the clusters";
/// A row without weights, in units of weights.
const ONE: i128 = 1 << 53;
/// A cluster has fewer rows than this.
const MOST_ROWS: i64 = 1 << 33;

words! {
    /// What an update starts from.
    pub enum Start("start") {
        /// The sums that the model keeps.
        #[default]
        Kept = "kept",
        /// No rows.
        Zero = "zero",
    }
}

/// What the sums of earlier rows are multiplied by: `factor / 2^shift`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decay {
    /// At most `2^shift`.
    pub factor: u64,
    /// At most 32.
    pub shift: u32,
}

impl TryFrom<f64> for Decay {
    type Error = KMeansError;

    /// The number in units of `2^-32`.
    fn try_from(decay: f64) -> Result<Self> {
        if (0.0..=1.0).contains(&decay) {
            return Ok(Self { factor: (decay * power_of_two(32)).round_ties_even() as u64, shift: 32 });
        }
        Err(invalid("decay", "a number from 0 to 1", decay))
    }
}

/// What makes a model of another one's sums: see [`Model::updated`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Update<'u> {
    /// Sums to add.
    pub sums: Option<&'u Sums>,
    /// Sums of rows to take away again, with the labels that they had when they were added.
    pub removed: Option<&'u Sums>,
    /// What to start from.
    pub start: Start,
    /// What the sums of earlier rows are multiplied by.
    ///
    /// A cluster without rows in `sums` keeps its integers and its centroid. It keeps the factor beside them, until rows come.
    pub decay: Option<Decay>,
    /// The key of the rows in `sums`. No model takes a key twice.
    pub batch: Option<&'u str>,
    /// The key of the rows in `removed`: that of a batch that was added, which is then removed as a whole, or one of its own.
    pub removed_batch: Option<&'u str>,
}

/// Exact sums of the rows of each of `k` clusters: a table of integers, which can be added and subtracted. See [`Model::updated`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Sums {
    /// Which models take these sums: a hash of type, quanta, metric, factors and names.
    pub fingerprint: u64,
    /// `(k)`: rows of positive weight.
    pub rows: Vec<i64>,
    /// `(k)`: their weight, in units of `2^(e - 53)`. Without weights, `2^53` a row.
    pub weights: Vec<i128>,
    /// `(k, d)`: sums of contributions, in quanta of their column.
    pub sums: Vec<i128>,
}

impl Sums {
    /// The sums of no rows.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`].
    pub fn none(fingerprint: u64, k: usize, d: usize) -> Result<Self> {
        let sums = memory::zeroed(k.saturating_mul(d), SUMS)?;
        Ok(Self { fingerprint, rows: memory::zeroed(k, SUMS)?, weights: memory::zeroed(k, SUMS)?, sums })
    }

    pub(super) fn copied(&self) -> Result<Self> {
        Ok(Self {
            fingerprint: self.fingerprint,
            rows: memory::copied(&self.rows, SUMS)?,
            weights: memory::copied(&self.weights, SUMS)?,
            sums: memory::copied(&self.sums, SUMS)?,
        })
    }

    /// Adds the sums of other rows.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] for sums of another model or shape.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.merge(other, i128::wrapping_add, i64::wrapping_add)
    }

    /// Takes away the sums of rows that were added before.
    ///
    /// # Errors
    /// As [`Sums::add`].
    pub fn subtract(&mut self, other: &Self) -> Result<()> {
        self.merge(other, i128::wrapping_sub, i64::wrapping_sub)
    }

    /// Refuses sums of other numbers of clusters or features.
    pub(super) fn check_shape(&self, other: &Self) -> Result<()> {
        let shape = |sums: &Self| (sums.rows.len(), sums.weights.len(), sums.sums.len());
        if shape(self) == shape(other) {
            return Ok(());
        }
        Err(invalid("sums", "sums of as many clusters and features", format!("{:?}", shape(other))))
    }

    /// Only totals count. So what is between them may wrap, as it does in Polars.
    fn merge(&mut self, other: &Self, wide: fn(i128, i128) -> i128, count: fn(i64, i64) -> i64) -> Result<()> {
        if other.fingerprint != self.fingerprint {
            let expected = format!("sums of this model (fingerprint {})", self.fingerprint);
            return Err(invalid("sums", &expected, format!("those of another: {}", other.fingerprint)));
        }
        self.check_shape(other)?;
        self.rows.iter_mut().zip(&other.rows).for_each(|(a, b)| *a = count(*a, *b));
        let (a, b) = (self.weights.iter_mut().chain(&mut self.sums), other.weights.iter().chain(&other.sums));
        a.zip(b).for_each(|(a, b)| *a = wide(*a, *b));
        Ok(())
    }
}

pub(super) fn invalid(option: &'static str, expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidOption { option, expected: expected.into(), got: got.to_string() }
}

impl<T: Float> Model<T> {
    pub(super) fn copied(&self) -> Result<Self> {
        self.copy_with(memory::copied(&self.centroids, SUMS)?, SUMS)
    }

    /// The same model with what a fit leaves: quanta, the sums that it keeps, and the weights of its clusters.
    pub(crate) fn with_sums(mut self, statistics: &Statistics, sums: Option<ClusterSums>, weights: Vec<i128>) -> Result<Self> {
        let quanta = Quanta::of(statistics)?;
        let unit = power_of_two(quanta.weights.unwrap_or(0) - 53);
        let weights = memory::collected(weights.into_iter().map(|weight| weight as f64 * unit), SUMS)?;
        let later = Later { weights: if sums.is_none() { weights } else { Vec::new() }, ..Later::default() };
        self.living = Arc::new(Living { quanta: Some(quanta), later, ..Living::default() });
        if let Some(sums) = sums {
            let kept = Some(self.table(sums)?);
            self.living = Arc::new(Living { kept, ..Living::clone(&self.living) });
        }
        Ok(self)
    }

    pub(super) fn weights_of_clusters(&self) -> Result<Vec<f64>> {
        let _environment = FloatEnvironment::default_rounding();
        let stored = &self.living.later.weights;
        match self.living.weights() {
            Some(weights) => memory::collected(weights, SUMS),
            None if !stored.is_empty() || self.settings.weighted => memory::copied(stored, SUMS),
            None => memory::collected(self.sizes.iter().map(|size| *size as f64), SUMS),
        }
    }

    /// Sums as a table.
    fn table(&self, sums: ClusterSums) -> Result<Sums> {
        let ClusterSums { rows, mass: mut weights, sums, .. } = sums;
        if self.quanta()?.weights.is_none() {
            weights.iter_mut().for_each(|weight| *weight *= ONE);
        }
        Ok(Sums { fingerprint: self.fingerprint()?, rows, weights, sums })
    }

    /// The model whose centroids are the exact means of the rows in these sums: the kept ones (or none) times the decay, plus
    /// `sums`, minus `removed`. A cluster without weight keeps its centroid. There is no inertia and no history.
    ///
    /// ```
    /// use polars_kmeans::{Features, KMeans, Update};
    ///
    /// let (may, june) = ([0.0f64, 1.0, 9.0], [10.0f64]);
    /// let model = KMeans::new(2).keep_sums(true).fit_features(&Features::from_rows(&may, 1)?, None)?.model;
    /// let june = model.sums(&Features::from_rows(&june, 1)?, None, None)?;
    /// let updated = model.updated(&Update { sums: Some(&june), batch: Some("june"), ..Update::default() })?;
    /// let mut means = updated.centroids().to_vec();
    /// means.sort_by(f64::total_cmp);
    /// assert_eq!(means, [0.5, 9.5]);
    /// # Ok::<(), polars_kmeans::KMeansError>(())
    /// ```
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] for sums of another model, sums that no rows have, a model that keeps no sums, rows
    /// that are removed after a decay, and a batch that was added or removed before. [`KMeansError::NoMemory`].
    pub fn updated(&self, update: &Update<'_>) -> Result<Self> {
        let _environment = FloatEnvironment::default_rounding();
        self.quanta()?;
        let mut living = self.living.started(update.start, || Sums::none(self.fingerprint()?, self.n_clusters(), self.d))?;
        living.update(update)?;
        self.at_means(living)
    }

    /// The model whose centroids are the means of these kept sums.
    pub(super) fn at_means(&self, living: Living) -> Result<Self> {
        let _environment = FloatEnvironment::default_rounding();
        let (Some(quanta), Some(total)) = (&living.quanta, &living.kept) else { return self.copied() };
        let scales = quanta.scales()?;
        check(total, &scales, living.is_rounded())?;
        let mut model = self.copied()?;
        let unit = quanta.weights.unwrap_or(0) - 53;
        let mut direction = memory::zeroed::<f64>(self.d, SUMS)?;
        for (j, centroid) in model.centroids.chunks_exact_mut(self.d).enumerate().filter(|(j, _)| total.weights[*j] > 0) {
            let (sums, weight) = (&total.sums[j * self.d..], total.weights[j]);
            if self.metric() == Metric::Cosine {
                quotients_of(sums, weight, &scales, unit, &mut direction);
                finish_centroid(&mut direction, centroid);
            } else {
                quotients_of(sums, weight, &scales, unit, centroid);
            }
        }
        let largest = model.centroids.iter().fold(0.0f64, |m, c| m.max(c.to_f64().abs()));
        check_centroid_magnitude::<T>("centroids", largest)?;
        if !largest.is_finite() {
            return Err(invalid("sums", &format!("sums whose means are finite as {}", T::NAME), "larger ones"));
        }
        model.sizes = memory::collected(total.rows.iter().map(|rows| *rows as u64), SUMS)?;
        (model.inertias, model.inertia, model.n_iter, model.history, model.stopped) = (Vec::new(), 0.0, 0, Vec::new(), false);
        model.living = Arc::new(living);
        Ok(model)
    }
}

/// The largest magnitude of a sum of so many rows.
pub(super) fn most_of(rows: i64, scale: &ColumnScale) -> u128 {
    (rows as u128) << (scale.bits() + BEYOND as u32)
}

/// Refuses totals that no rows have. Where weights and sums were rounded, they may be too small for their rows.
fn check(total: &Sums, scales: &[ColumnScale], rounded: bool) -> Result<()> {
    let refused = |j: usize, what: &str, got: i128| {
        let expected = format!("{what} in cluster {j} (is a table added twice, or removed twice?)");
        Err(invalid("sums", &expected, got))
    };
    for (j, (&rows, &weight)) in total.rows.iter().zip(&total.weights).enumerate() {
        if !(0..MOST_ROWS).contains(&rows) {
            return refused(j, "0 to 2^33 - 1 rows", rows.into());
        }
        let (least, most) = (if rounded { 0 } else { rows.into() }, i128::from(rows) << (53 + BEYOND));
        if !(least..=most).contains(&weight) {
            return refused(j, &format!("a weight from {least} to {most}"), weight);
        }
        for (sum, scale) in total.sums[j * scales.len()..].iter().zip(scales) {
            let most = most_of(rows, scale);
            if sum.unsigned_abs() > most || (weight == 0 && *sum != 0) {
                return refused(j, &format!("a sum of at most {most}"), *sum);
            }
        }
    }
    Ok(())
}

on_any_device! {
    impl Model<T> where T: Predictor {
        /// The exact sums of the rows of each cluster, in the quanta of the fit. Labels are found on the device, and the CPU adds
        /// up.
        ///
        /// `weights`: one a row, for models of weighted fits. `labels`: one a row, in place of the model's own: rows without one
        /// are left out. Rows with nulls are what `null_policy` of the fit says.
        ///
        /// # Errors
        /// As [`Model::predict`]. [`KMeansError::BeyondExtent`] for a value that is more than 16 times as large as those of the
        /// fit, [`KMeansError::NotFinite`], and errors of weights and labels.
        pub fn sums(
            &self,
            features: &Features<'_, T>,
            weights: Option<&Column<'_, f64>>,
            labels: Option<&Labels>
        ) -> Result<Sums> {
            let model = self.model;
            let own = if labels.is_none() { Some(self.predict(features)?) } else { None };
            let found = model.found(features, weights, labels, own.as_ref(), model.n_clusters())?;
            let scales = model.quanta()?.scales()?;
            model.checked(found, &scales)
        }
    }
}

impl<T: Float> Model<T> {
    /// The sums of rows under labels below `k`, as far as the quanta take the rows. `own`: the labels of this model.
    pub(super) fn found(
        &self,
        features: &Features<'_, T>,
        weights: Option<&Column<'_, f64>>,
        labels: Option<&Labels>,
        own: Option<&Labels>,
        k: usize,
    ) -> Result<RowSums> {
        let (quanta, n) = (self.quanta()?, features.n_rows());
        if weights.is_some() && quanta.weights.is_none() {
            return Err(invalid("weight", "none, since the fit of this model had none", "weights"));
        }
        for (what, got) in [("weight", weights.map_or(n, Column::len)), ("labels", labels.map_or(n, Labels::len))] {
            if got != n {
                return Err(KMeansError::LengthMismatch { what: what.into(), expected: n, got });
            }
        }
        if n as u64 >= MOST_ROWS as u64 {
            return Err(KMeansError::TooManyRows { got: n as u64 });
        }
        let _environment = FloatEnvironment::default_rounding();
        let _share = PoolShare::enter();
        let all = labels.or(own).into_iter().flat_map(Labels::iter);
        let all = memory::collected(all.map(|label| label.unwrap_or(UNASSIGNED)), SUMS)?;
        if let Some(label) = all.iter().find(|label| **label != UNASSIGNED && **label as usize >= k) {
            return Err(invalid("labels", &format!("labels below {k}, the number of clusters"), label));
        }
        let part = [RowBlock::new(features.transformed_by(self.row_transform()?), weights.cloned()).on_host()?];
        let scales = quanta.scales()?;
        let weights = quanta.weights.map(|exponent| WeightScale { exponent, largest: power_of_two(exponent) });
        let found = sums(&part[0], &all, k, (&scales[..], weights))?;
        let left_out = own.is_some_and(|own| own.answered().count() < n);
        if (found.bad || left_out) && self.settings.null_policy == NullPolicy::Raise.word() {
            return Err(count_bad(&HostRows(&part))?);
        }
        match found.refused {
            Some(RefusedRow { row, feature: None, got }) if got < 0.0 => {
                Err(KMeansError::NegativeWeight { row: row as u64, got })
            }
            _ => Ok(found),
        }
    }

    /// The sums that were found, or the error for a row that they do not take.
    pub(super) fn checked(&self, found: RowSums, scales: &[ColumnScale]) -> Result<Sums> {
        let Some(RefusedRow { feature, got, .. }) = found.refused else { return self.table(found.sums) };
        let quanta = self.quanta()?;
        let (column, limit) = match feature {
            Some(f) => (self.names.get(f).unwrap_or_default(), scales[f].limit()),
            None => ("weight".into(), power_of_two(quanta.weights.unwrap_or(0) + BEYOND)),
        };
        // Of a scaled column and of a weighted row, in the units of the column. The limit has room for the rounding.
        let factor = feature.and_then(|f| self.scaling.as_ref().map(|scaling| scaling.factors[f])).unwrap_or(1.0);
        let weight = feature.and(quanta.weights).map_or(1.0, power_of_two);
        let extent = got.abs() / weight / factor;
        let room = feature.map_or_else(|| format!("weight={extent:e}"), |_| format!("{{{column:?}: {extent:e}}}"));
        // Where no wider units help, the error says so.
        let at = |f| if Some(f) == feature { exponent_at_or_above(got.abs().min(f64::MAX)) } else { i32::MIN };
        let weights = quanta.weights.map(|e| if feature.is_none() { exponent_at_or_above(got.abs()) } else { e });
        self.at_exponents(&memory::collected((0..self.d).map(at), SUMS)?, weights)?;
        let remedy = format!("model.widened({room}) makes a model that takes such values, and so does a fit with extents");
        Err(KMeansError::BeyondExtent { column, got, limit, remedy })
    }
}
