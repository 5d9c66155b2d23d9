//! The clusters of another model, for a fit that gives its own clusters the same numbers.

use super::values::Metric;
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::Names;

/// The clusters of another model. The clusters of a fit are matched with them, and take over their numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbering {
    /// One name a feature.
    pub names: Vec<String>,
    pub metric: Metric,
    /// What values are multiplied by. Empty: they are not scaled.
    pub factors: Vec<f64>,
    /// `(k, d)`, row-major, in the units of the columns.
    pub centroids: Vec<f64>,
    pub float32: bool,
}

/// The most clusters that are matched with those of another model.
pub const MOST_MATCHED: usize = 4_096;

impl Numbering {
    /// Refuses to match clusters of other features, of another metric, or too many.
    pub fn check(&self, names: &Names, metric: Metric, k: usize) -> Result<()> {
        const SHOWN: usize = 8;
        let refused = |expected: String, got: String| Err(KMeansError::InvalidOption { option: "sort_by", expected, got });
        if !(0..names.len().max(self.names.len())).all(|f| names.get(f).as_ref() == self.names.get(f)) {
            let own = (0..names.len().min(SHOWN)).filter_map(|f| names.get(f)).collect::<Vec<_>>().join(", ");
            let theirs = self.names[..self.names.len().min(SHOWN)].join(", ");
            return refused(format!("a model of the same features ({own})"), format!("one of {theirs}"));
        }
        if metric != self.metric {
            return refused(format!("a model with metric=\"{}\"", metric.word()), format!("\"{}\"", self.metric.word()));
        }
        let most = k.max(self.centroids.len() / names.len());
        if most > MOST_MATCHED {
            refused(format!("at most {MOST_MATCHED} clusters to match"), most.to_string())
        } else {
            Ok(())
        }
    }

    /// Centroids in the units of the columns, as the other model scales them. They are rounded once, to the wider type of both
    /// models.
    pub fn scaled(&self, centroids: impl IntoIterator<Item = f64>, float32: bool) -> Result<Vec<f64>> {
        let (d, narrow) = (self.names.len(), self.float32 && float32);
        let scaled = centroids.into_iter().enumerate().map(|(i, c)| c * self.factors.get(i % d).unwrap_or(&1.0));
        memory::collected(scaled.map(|c| if narrow { f64::from(c as f32) } else { c }), "centroids to match")
    }
}
