//! One step of mini-batch k-means, on exact sums.
//!
//! ```text
//! label the batch by the centroids so far; add its sums; means
//! each cluster whose weight is below `ratio` times the largest, in index order:
//!   it takes the batch's farthest row whose cluster keeps another, with the weight of the lightest cluster above
//! ```
//! D. Sculley, "Web-scale k-means clustering", WWW 2010, doi:10.1145/1772690.1772862. A mean over all batches is the limit of its
//! step sizes, and here it is exact: while no batch needs coarser units, the order of the batches does not matter, only their
//! labels do.

use super::living::Living;
use super::quanta::check_weight;
use super::sums::{Start, Sums, most_of};
use super::{DeviceModel, Model};
use crate::backend::answers::Labels;
#[cfg(feature = "python")]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::Device;
use crate::exact::fixed::{exponent_at_or_above, power_of_two, times};
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, WeightScale};
use crate::model::predict::Predictor;
use crate::statistics::passes::{HostPasses, Passes};
use crate::statistics::quanta::quanta as column_scales;

/// What errors call the rows.
const BATCH: &str = "a batch of rows";

#[cfg(feature = "python")]
impl<T: Predictor> Model<T> {
    /// The same model at other centroids, which may be equal to each other. It has seen no rows.
    pub(crate) fn starting_at(mut self, centroids: Vec<f64>) -> Result<Self> {
        if centroids.len() != self.centroids.len() {
            let (expected, got) = (self.centroids.len(), centroids.len());
            return Err(KMeansError::LengthMismatch { what: "starting centroids".into(), expected, got });
        }
        self.centroids = memory::collected(centroids.into_iter().map(T::from_f64), BATCH)?;
        (self.inertias, self.inertia, self.n_iter, self.history) = (Vec::new(), 0.0, 0, Vec::new());
        self.sizes.fill(0);
        self.table = Default::default();
        Ok(self)
    }
}

impl<T: Predictor> DeviceModel<'_, Model<T>> {
    /// What a model keeps after a batch of rows, and the inertia of the batch before. A model without sums begins with none.
    ///
    /// Where the batch has values beyond the model's units, the sums are brought to coarser units first.
    ///
    /// # Errors
    /// As [`Model::sums`] and [`Model::with_wider_extents`].
    pub(crate) fn step(&self, batch: &Features<'_, T>, weights: Option<&Column<'_, f64>>, ratio: f64) -> Result<(Living, f64)> {
        let (labels, distances) = self.predict_distances(batch)?.into_parts();
        let _environment = FloatEnvironment::default_rounding();
        let mut w = memory::filled(batch.n_rows(), 1.0, BATCH)?;
        if let Some(weights) = weights {
            weights.copy(0..w.len().min(weights.len()), &mut w);
        }
        // In row order, so that the sum has the same bits everywhere.
        let inertia = distances.nearest.iter().zip(&w).fold(0.0, |sum, (s, w)| sum + w * (s * s));
        let (model, batch_sums) = self.model.wide_enough(batch, weights, &labels)?;
        let start = if model.kept_sums().is_some() { Start::Kept } else { Start::Zero };
        let mut living = model.living.started(start, || Sums::none(batch_sums.fingerprint, model.n_clusters(), model.d))?;
        living.add(&batch_sums)?;
        let weight_of = memory::collected(living.weights().into_iter().flatten(), BATCH)?;
        let k = weight_of.len();
        let bound = ratio * weight_of.iter().fold(0.0f64, |most, weight| most.max(*weight));
        let is_light = |j: usize| weight_of[j] < bound;
        let light: Vec<usize> = memory::collected((0..k).filter(|&j| is_light(j)), BATCH)?;
        let heavy = (0..k).filter(|&j| !is_light(j));
        let above = heavy.min_by(|a, b| weight_of[*a].total_cmp(&weight_of[*b]).then(a.cmp(b)));
        let (false, Some(above)) = (light.is_empty(), above) else { return Ok((living, inertia)) };
        let far = (0..w.len()).filter(|&row| w[row] > 0.0 && distances.nearest[row] > 0.0);
        let mut far: Vec<usize> = memory::collected(far, BATCH)?;
        far.sort_by(|a, b| distances.nearest[*b].total_cmp(&distances.nearest[*a]).then(a.cmp(b)));
        let mut far = far.into_iter().filter_map(|row| Some((row, labels.get(row)? as usize)));
        let (d, scales, first) = (model.d, model.quanta()?.scales()?, Labels::of_kept(&[0], &[(Default::default(), 1)])?);
        'light: for &j in &light {
            let factor = living.factor(above);
            let Some(total) = &mut living.kept else { break };
            let (rows, heavy) = (total.rows[above].max(1), times(total.weights[above], factor).max(1));
            loop {
                let next = far.find(|&(_, donor)| total.rows[donor] > 1 && !is_light(donor));
                let Some((row, donor)) = next else { break 'light };
                let weight = weights.map(|weights| weights.slice(row..row + 1)).transpose()?;
                // A table of one cluster: a table of all of them would be made for each row.
                let found = model.found(&batch.slice(row..row + 1)?, weight.as_ref(), Some(&first), None, 1)?;
                let one = model.checked(found, &scales)?;
                // The mean of the cluster is the row. A row so light that the sum has no room stays where it is.
                let sum = |f: usize| scaled(one.sums[f], heavy, one.weights[0]);
                let fits = |f: usize| sum(f).filter(|sum| sum.unsigned_abs() <= most_of(rows, &scales[f]));
                let Some(sums) = (0..d).map(fits).collect::<Option<Vec<i128>>>() else { continue };
                // The donor has rows of this batch, so its factor is 1.
                total.rows[donor] -= one.rows[0];
                total.weights[donor] = total.weights[donor].wrapping_sub(one.weights[0]);
                total.sums[donor * d..][..d].iter_mut().zip(&one.sums).for_each(|(sum, own)| *sum = sum.wrapping_sub(*own));
                (total.rows[j], total.weights[j]) = (rows, heavy);
                total.sums[j * d..][..d].copy_from_slice(&sums);
                break;
            }
            living.later.factors.get_mut(j).into_iter().for_each(|factor| *factor = 1.0);
        }
        living.tidy();
        Ok((living, inertia))
    }
}

impl<T: Predictor> Model<T> {
    /// The model after a batch of rows, and the inertia of the batch before: see [`DeviceModel::step`].
    #[doc(hidden)]
    pub fn stepped(&self, batch: &Features<'_, T>, weights: Option<&Column<'_, f64>>, ratio: f64) -> Result<(Self, f64)> {
        let (living, inertia) = self.on(Device::Cpu).step(batch, weights, ratio)?;
        Ok((self.at_means(living)?, inertia))
    }

    /// The model with units that take a batch, and the sums of the batch.
    fn wide_enough(&self, batch: &Features<'_, T>, weights: Option<&Column<'_, f64>>, labels: &Labels) -> Result<(Self, Sums)> {
        let mut model = self.copied()?;
        // Values are looked at under the weights that are in range. So a second round may find larger ones, but no third.
        loop {
            let found = model.found(batch, weights, Some(labels), None, self.n_clusters())?;
            let quanta = model.quanta()?;
            // An infinite product has no units.
            if found.refused.is_none() || found.beyond.iter().any(|beyond| beyond.is_infinite()) {
                let sums = model.checked(found, &quanta.scales()?)?;
                return Ok((model, sums));
            }
            let exponent = |beyond: &f64| if *beyond > 0.0 { exponent_at_or_above(*beyond) } else { i32::MIN };
            let (features, weight) = found.beyond.split_at(model.d);
            if weight[0] > 0.0 {
                check_weight(weight[0])?;
            }
            let wanted = memory::collected(features.iter().map(exponent), BATCH)?;
            let units = quanta.weights.map(|e| e.max(exponent(&weight[0])));
            // A column of zeros has no sums that a sentinel could spoil, but its rows here may: the rule is that of a fit.
            let mut parts = [RowBlock::new(batch.transformed_by(model.row_transform()?), weights.cloned()).on_host()?];
            let mut passes = HostPasses::new(&mut parts, 0);
            if let Some(exponent) = units {
                passes.round_weights(WeightScale { exponent, largest: power_of_two(exponent) })?;
            }
            let extents = passes.weighted_extents()?;
            column_scales(&mut passes, &extents, units.is_some(), &[])?;
            // Each round makes a unit coarser.
            model = model.at_exponents(&wanted, units)?;
        }
    }
}

/// `sum * weight / unit`, for `unit > 0`: exact where the weight is a multiple of the unit, and else as good as float64. `None` if
/// there is no room for it.
fn scaled(sum: i128, weight: i128, unit: i128) -> Option<i128> {
    let rest = (sum as f64 * ((weight % unit) as f64 / unit as f64)).round_ties_even() as i128;
    sum.checked_mul(weight / unit)?.checked_add(rest)
}
