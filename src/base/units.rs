//! The factors of scaled columns, and values in the units of the columns.

use crate::base::float::Float;

/// The name for the factors in errors.
pub const FACTORS: &str = "the factors of the columns";

/// Centroids over their factors.
pub fn in_units<T: Float>(centroids: &[T], factors: &[f64]) -> impl Iterator<Item = T> {
    let most = T::largest().to_f64();
    let values = centroids.iter().zip(factors.iter().cycle());
    values.map(move |(c, factor)| T::from_f64((c.to_f64() / factor).clamp(-most, most)))
}
