//! A model as bytes: how it travels to an expression, as one binary literal.

use super::model::KMeansModel;
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::prepare::check_magnitude;

/// What every model starts with: a name and the version of what follows.
const MAGIC: &[u8] = b"polars-kmeans\x01";

impl KMeansModel {
    /// The model as bytes, wall times included.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if it cannot be encoded.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_extend(self, MAGIC.to_vec()).map_err(|error| invalid("a model that can be encoded", error))
    }

    /// A model from [`KMeansModel::to_bytes`].
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let body = bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("bytes of a model of this version", "something else"))?;
        let model: Self = postcard::from_bytes(body).map_err(|error| invalid("a whole model", error))?;
        let (d, k, consistent) = match &model {
            Self::F32(m) => (m.d, m.sizes.len(), m.is_consistent()),
            Self::F64(m) => (m.d, m.sizes.len(), m.is_consistent()),
        };
        if consistent {
            Ok(model)
        } else {
            Err(invalid("finite centroids in range that fit their names and sizes", format!("{k} sizes and {d} features")))
        }
    }
}

impl<T: Float> crate::model::Model<T> {
    fn is_consistent(&self) -> bool {
        let k = self.sizes.len();
        let finite = self.centroids.iter().all(|c| c.to_f64().is_finite());
        let largest = self.centroids.iter().fold(0.0f64, |m, c| m.max(c.to_f64().abs()));
        let countable = self.sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size)).is_some();
        finite
            && check_magnitude::<T>("centroids", largest).is_ok()
            && countable
            && self.d > 0
            && k > 0
            && self.names.len() == self.d
            && self.inertias.len() == k
            && Some(self.centroids.len()) == k.checked_mul(self.d)
    }
}

fn invalid(expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidModel { expected: expected.into(), got: got.to_string() }
}
