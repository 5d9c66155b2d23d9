//! What a model remembers of how it was fitted.

use crate::params::{History, Init, NullPolicy, Params};

/// The parameters of a fit, as they are saved with its model. Starting centroids that were given are not kept.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Settings {
    /// Clusters.
    pub k: u64,
    /// `"k-means++"`, `"random"` or `"given"`.
    pub init: String,
    /// Restarts.
    pub n_init: u32,
    pub max_iter: u32,
    pub tol: f64,
    pub tol_labels: f64,
    pub seed: u64,
    /// `"euclidean"`.
    pub metric: String,
    /// Whether rows had weights.
    pub weighted: bool,
    /// `"raise"` or `"skip"`.
    pub null_policy: String,
    /// `"light"` or `"full"`.
    pub history: String,
}

impl Settings {
    pub(crate) fn new(params: &Params, weighted: bool) -> Self {
        Self {
            k: params.k as u64,
            init: match params.init {
                Init::KMeansPlusPlus => "k-means++",
                Init::Random => "random",
                Init::Given(_) => "given",
            }
            .into(),
            n_init: params.restarts,
            max_iter: params.max_iter,
            tol: params.tol,
            tol_labels: params.tol_labels,
            seed: params.seed,
            metric: "euclidean".into(),
            weighted,
            null_policy: match params.null_policy {
                NullPolicy::Raise => "raise",
                NullPolicy::Skip => "skip",
            }
            .into(),
            history: match params.history {
                History::Light => "light",
                History::Full => "full",
            }
            .into(),
        }
    }
}
