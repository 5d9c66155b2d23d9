//! One step of mini-batch k-means, on exact sums.
//!
//! ```text
//! label the batch by the centroids so far; add its sums; means
//! each cluster whose weight is below `ratio` times the largest, in index order:
//!   it takes the batch's farthest row whose cluster keeps another, with the weight of the lightest cluster above
//! ```
//! D. Sculley, "Web-scale k-means clustering", WWW 2010, doi:10.1145/1772690.1772862. A mean over all batches is the limit of its
//! step sizes, and here it is exact: the order of the batches does not matter, only their labels do.

use std::sync::Arc;

use super::sums::{Kept, Start, Sums};
use super::{DeviceModel, Living, Model};
use crate::backend::answers::Labels;
use crate::base::error::Result;
use crate::base::memory;
use crate::input::features::{Column, Features};
use crate::model::predict::Predictor;

/// What errors call the rows.
const BATCH: &str = "a batch of rows";

impl<T: Predictor> DeviceModel<'_, Model<T>> {
    /// The model after a batch of rows, and the inertia of the batch before. A model without sums begins with none.
    ///
    /// # Errors
    /// As [`Model::sums`] and [`Model::updated`].
    pub fn step(&self, batch: &Features<'_, T>, weights: Option<&Column<'_, f64>>, ratio: f64) -> Result<(Model<T>, f64)> {
        let (labels, distances) = self.predict_distances(batch)?.into_parts();
        let mut w = memory::filled(batch.n_rows(), 1.0, BATCH)?;
        if let Some(weights) = weights {
            weights.copy(0..w.len().min(weights.len()), &mut w);
        }
        // In row order, so that the sum has the same bits everywhere.
        let inertia = distances.nearest.iter().zip(&w).fold(0.0, |sum, (s, w)| sum + w * (s * s));
        let start = if self.model.keeps_sums() { Start::Kept } else { Start::Zero };
        let mut model = self.model.updated(&self.sums(batch, weights, Some(&labels))?, None, start, None)?;
        let Some(kept) = model.living.kept.clone() else { unreachable!("an updated model keeps its sums") };
        let bound = ratio * kept.weights.iter().fold(0.0f64, |most, weight| most.max(*weight as f64));
        let light: Vec<usize> = memory::collected((0..kept.rows.len()).filter(|&j| (kept.weights[j] as f64) < bound), BATCH)?;
        let above = (0..kept.rows.len()).filter(|j| !light.contains(j)).min_by_key(|&j| kept.weights[j]);
        let (false, Some(above)) = (light.is_empty(), above) else { return Ok((model, inertia)) };
        let mut rows: Vec<usize> =
            memory::collected((0..w.len()).filter(|&row| w[row] > 0.0 && distances.nearest[row] > 0.0), BATCH)?;
        rows.sort_by(|a, b| distances.nearest[*b].total_cmp(&distances.nearest[*a]).then(a.cmp(b)));
        let mut total = self.kept_table(kept, &model)?;
        let mut rows = rows.into_iter().filter_map(|row| Some((row, labels.get(row)? as usize)));
        for &j in &light {
            let Some((row, donor)) = rows.find(|&(_, donor)| total.rows[donor] > 1 && !light.contains(&donor)) else { break };
            let (one, weight) = (&batch.slice(row..row + 1)?, weights.map(|weights| weights.slice(row..row + 1)).transpose()?);
            let sums =
                |j: usize| self.sums(one, weight.as_ref(), Some(&Labels::of_kept(&[j as u32], &[(Default::default(), 1)])?));
            total.subtract(&sums(donor)?)?;
            let d = self.model.d;
            let alone = sums(j)?;
            // Its share of the weight of the lightest cluster above: the mean stays the row.
            let share = (total.rows[above].max(1), total.weights[above].max(1));
            total.rows[j] = share.0;
            total.weights[j] = share.1;
            for f in 0..d {
                total.sums[j * d + f] = scaled(alone.sums[j * d + f], share.1, alone.weights[j]);
            }
        }
        model.living = Arc::new(Living { quanta: model.living.quanta.clone(), kept: None });
        Ok((model.updated(&total, None, Start::Zero, None)?, inertia))
    }

    fn kept_table(&self, Kept { rows, weights, sums, .. }: Kept, model: &Model<T>) -> Result<Sums> {
        Ok(Sums { fingerprint: model.fingerprint()?, rows, weights, sums })
    }
}

/// `rint(sum * weight / unit)`, ties to even, for `unit > 0`: exact where the quotient of the weights is an integer.
fn scaled(sum: i128, weight: i128, unit: i128) -> i128 {
    let (whole, rest) = (weight / unit, weight % unit);
    let part = sum as f64 * (rest as f64 / unit as f64);
    (sum * whole).wrapping_add(part.round_ties_even() as i128)
}
