//! One step of mini-batch k-means, on exact sums.
//!
//! ```text
//! label the batch by the centroids so far; add its sums; means
//! each cluster whose weight is below `ratio` times the largest, in index order:
//!   it takes the batch's farthest row whose cluster keeps another, with the weight of the lightest cluster above
//! ```
//! D. Sculley, "Web-scale k-means clustering", WWW 2010, doi:10.1145/1772690.1772862. A mean over all batches is the limit of its
//! step sizes, and here it is exact: the order of the batches does not matter, only their labels do.

use super::sums::Sums;
use super::{DeviceModel, Model};
use crate::backend::answers::Labels;
#[cfg(feature = "python")]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::memory;
use crate::input::features::{Column, Features};
use crate::model::predict::Predictor;

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
    /// The sums after a batch of rows, and the inertia of the batch before. A model without sums begins with none.
    ///
    /// # Errors
    /// As [`Model::sums`].
    pub fn step(&self, batch: &Features<'_, T>, weights: Option<&Column<'_, f64>>, ratio: f64) -> Result<(Sums, f64)> {
        let (labels, distances) = self.predict_distances(batch)?.into_parts();
        let mut w = memory::filled(batch.n_rows(), 1.0, BATCH)?;
        if let Some(weights) = weights {
            weights.copy(0..w.len().min(weights.len()), &mut w);
        }
        // In row order, so that the sum has the same bits everywhere.
        let inertia = distances.nearest.iter().zip(&w).fold(0.0, |sum, (s, w)| sum + w * (s * s));
        let mut total = self.sums(batch, weights, Some(&labels))?;
        if let Some(kept) = self.model.kept_sums() {
            total.add(kept)?;
        }
        let (d, k) = (self.model.d, total.rows.len());
        let bound = ratio * total.weights.iter().fold(0.0f64, |most, weight| most.max(*weight as f64));
        let light: Vec<usize> = memory::collected((0..k).filter(|&j| (total.weights[j] as f64) < bound), BATCH)?;
        let above = (0..k).filter(|j| !light.contains(j)).min_by_key(|&j| total.weights[j]);
        let (false, Some(above)) = (light.is_empty(), above) else { return Ok((total, inertia)) };
        let far = (0..w.len()).filter(|&row| w[row] > 0.0 && distances.nearest[row] > 0.0);
        let mut far: Vec<usize> = memory::collected(far, BATCH)?;
        far.sort_by(|a, b| distances.nearest[*b].total_cmp(&distances.nearest[*a]).then(a.cmp(b)));
        let mut far = far.into_iter().filter_map(|row| Some((row, labels.get(row)? as usize)));
        for &j in &light {
            let Some((row, donor)) = far.find(|&(_, donor)| total.rows[donor] > 1 && !light.contains(&donor)) else { break };
            let weight = weights.map(|weights| weights.slice(row..row + 1)).transpose()?;
            let label = Labels::of_kept(&[donor as u32], &[(Default::default(), 1)])?;
            let one = self.sums(&batch.slice(row..row + 1)?, weight.as_ref(), Some(&label))?;
            total.subtract(&one)?;
            // The mean of the cluster is the row.
            (total.rows[j], total.weights[j]) = (total.rows[above].max(1), total.weights[above].max(1));
            for f in 0..d {
                total.sums[j * d + f] = scaled(one.sums[donor * d + f], total.weights[j], one.weights[donor]);
            }
        }
        Ok((total, inertia))
    }
}

/// `sum * weight / unit`, for `unit > 0`: exact where the weight is a multiple of the unit, and else as good as float64.
fn scaled(sum: i128, weight: i128, unit: i128) -> i128 {
    (sum * (weight / unit)).wrapping_add((sum as f64 * ((weight % unit) as f64 / unit as f64)).round_ties_even() as i128)
}
