//! The parameters of a fit, as a model remembers them.

#[cfg(feature = "serde")]
use crate::base::error::{KMeansError, Result};
#[cfg(feature = "serde")]
use crate::base::params::{History, Metric, NullPolicy, RowOrder};
use crate::base::params::{Init, Params};

/// The parameters of a fit, as they are saved with its model. Starting centroids that the caller gave are not kept.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct Settings {
    /// Clusters.
    pub k: u64,
    /// A word of [`Init::METHODS`], or `"given"`.
    pub init: String,
    /// Restarts.
    pub n_init: u32,
    pub max_iter: u32,
    pub tol: f64,
    pub tol_labels: f64,
    pub seed: u64,
    /// `"euclidean"` or `"cosine"`.
    pub metric: String,
    /// Whether rows had weights.
    pub weighted: bool,
    /// `"raise"` or `"skip"`.
    pub null_policy: String,
    /// `"light"` or `"full"`.
    pub history: String,
    /// Only of `"kmeans-parallel"`.
    pub oversampling: Option<f64>,
    /// Only of `"kmeans-parallel"`.
    pub rounds: Option<u32>,
    /// Only of `"afk-mc2"`.
    pub chain_length: Option<u32>,
    /// The rows that starting centroids were chosen from, if not all.
    pub init_sample: Option<u64>,
    /// `"given"` or `"values"`.
    pub row_order: String,
    /// `"size"` or the name of a feature, if clusters were numbered by it.
    pub sort_by: Option<String>,
}

/// Text is for people and programs to read. It leaves out the options that a fit does not use. Bytes hold every field, because
/// they do not name the fields.
#[cfg(feature = "serde")]
impl serde::Serialize for Settings {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let every = !serializer.is_human_readable();
        let mut fields = serializer.serialize_struct("Settings", 17)?;
        macro_rules! add {
            ($($field:ident $(if $used:expr)?),* $(,)?) => {$(
                if true $(&& (every || $used))? {
                    fields.serialize_field(stringify!($field), &self.$field)?;
                }
            )*};
        }
        add!(k, init, n_init, max_iter, tol, tol_labels, seed, metric, weighted, null_policy, history);
        add! {
            oversampling if self.oversampling.is_some(),
            rounds if self.rounds.is_some(),
            chain_length if self.chain_length.is_some(),
            init_sample if self.init_sample.is_some(),
            row_order if self.row_order != RowOrder::Given.word(),
            sort_by if self.sort_by.is_some(),
        }
        fields.end()
    }
}

impl Settings {
    pub(crate) fn new(params: &Params, weighted: bool) -> Self {
        let seeding = params.seeding;
        let parallel = seeding.init == Init::KMeansParallel;
        Self {
            k: params.k as u64,
            init: seeding.init.word().into(),
            n_init: params.restarts,
            max_iter: params.stopping.max_iter,
            tol: params.stopping.tol,
            tol_labels: params.stopping.tol_labels,
            seed: seeding.seed,
            metric: params.space.metric.word().into(),
            weighted,
            null_policy: params.rows.null_policy.word().into(),
            history: params.output.history.word().into(),
            oversampling: parallel.then_some(seeding.oversampling),
            rounds: parallel.then_some(seeding.rounds),
            chain_length: (seeding.init == Init::AfkMc2).then_some(seeding.chain_length),
            init_sample: seeding.init_sample.filter(|_| !matches!(seeding.init, Init::Given(_))),
            row_order: params.rows.row_order.word().into(),
            sort_by: params.output.sort_by.word().map(Into::into),
        }
    }

    /// Refuses parameter values that this version does not know. A later version's model may need something that this one
    /// cannot do.
    #[cfg(feature = "serde")]
    pub(crate) fn check(&self) -> Result<()> {
        let inits = [Init::METHODS, &[Init::GIVEN]].concat();
        let known: [(&str, &str, &[&str]); 5] = [
            ("init", &self.init, &inits),
            ("metric", &self.metric, Metric::WORDS),
            ("null_policy", &self.null_policy, NullPolicy::WORDS),
            ("row_order", &self.row_order, RowOrder::WORDS),
            ("history", &self.history, History::WORDS),
        ];
        for (name, value, values) in known {
            if !values.contains(&value) {
                let values = values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(" or ");
                let got = format!("{:?}", value.chars().take(30).collect::<String>());
                return Err(refused(name, &format!("{values}, which is all that this version knows"), got));
            }
        }
        let positive = [
            ("k", Some(self.k)),
            ("n_init", Some(self.n_init.into())),
            ("max_iter", Some(self.max_iter.into())),
            ("rounds", self.rounds.map(u64::from)),
            ("chain_length", self.chain_length.map(u64::from)),
            ("init_sample", self.init_sample),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == Some(0)) {
            return Err(refused(name, "a positive number", "0".into()));
        }
        if let Some(value) = self.oversampling.filter(|value| !(*value > 0.0 && value.is_finite())) {
            return Err(refused("oversampling", "a finite number above 0", value.to_string()));
        }
        for (name, value) in [("tol", self.tol), ("tol_labels", self.tol_labels)] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(refused(name, "a finite number of at least 0", value.to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(feature = "serde")]
fn refused(name: &str, expected: &str, got: String) -> KMeansError {
    invalid(&format!("{name} to be {expected}"), got)
}

/// The error for a model from bytes or a file that is not what was expected.
#[cfg(feature = "serde")]
pub(crate) fn invalid(expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidModel { expected: expected.into(), got: got.to_string() }
}
