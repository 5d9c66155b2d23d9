//! The types that values of options have.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use super::declare::{Form, Numbers, OptionQuery, OptionValue, Value, words};
use super::device::Device;
use super::numbering::Numbering;
use crate::base::error::{KMeansError, Result};
use crate::base::strategy::Strategy;

/// What a caller wants to know about the rows of a fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Only the model: downloading labels from a GPU can cost several iterations.
    Nothing,
    Labels,
    /// The labels, and the distances to the nearest and the second nearest centroid.
    Distances,
}

/// The rows that seeding compares with all rows: many at once, as k-means|| draws them, or a few in each step of k-means++.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnCandidates {
    /// In a round, on average.
    pub of_round: u64,
    pub rounds: u32,
    /// Steps of k-means++ over all rows.
    pub steps: u64,
}

impl DrawnCandidates {
    pub const NONE: Self = Self { of_round: 0, rounds: 0, steps: 0 };
}

/// How to find starting centroids.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Init {
    /// Greedy k-means++ (Arthur & Vassilvitskii 2007), with `2 + floor(ln k)` trials per step.
    #[default]
    KMeansPlusPlus,
    /// `k` different rows, chosen uniformly.
    Random,
    /// k-means|| (Bahmani et al. 2012): a few passes, each of which draws many candidates. Greedy k-means++ chooses among them.
    KMeansParallel,
    /// AFK-MC² (Bachem et al. 2016): each centroid is the last row of a Markov chain over drawn rows.
    AfkMc2,
    /// The clusters of least inertia (Wang & Song 2011). For one feature.
    Optimal,
    /// Given centroids: row-major, `k` rows of `d` values, rounded to the feature type.
    Given(Vec<f64>),
}

impl Init {
    /// The words of the methods.
    pub const METHODS: &[&str] = &["k-means++", "random", "kmeans-parallel", "afk-mc2", "optimal"];
    /// The word for centroids that were given, as a model remembers it.
    pub(crate) const GIVEN: &str = "given";

    /// The word for this method, as a model remembers it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::KMeansPlusPlus => "k-means++",
            Self::Random => "random",
            Self::KMeansParallel => "kmeans-parallel",
            Self::AfkMc2 => "afk-mc2",
            Self::Optimal => "optimal",
            Self::Given(_) => Self::GIVEN,
        }
    }
}

impl FromStr for Init {
    type Err = KMeansError;
    fn from_str(name: &str) -> Result<Self> {
        let methods = [Self::KMeansPlusPlus, Self::Random, Self::KMeansParallel, Self::AfkMc2, Self::Optimal];
        let method = methods.into_iter().find(|method| method.word() == name);
        method.ok_or_else(|| OptionQuery { option: "init", expected: None, value: Some(&name.into()) }.refusal::<Self>())
    }
}

words! {
    /// How rows and centroids are compared.
    #[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
    pub enum Metric("metric") {
        /// By Euclidean distances.
        #[default]
        Euclidean = "euclidean",
        /// By their directions: Euclidean distances after rows and centroids are normalised (Dhillon & Modha 2001).
        Cosine = "cosine",
    }
}

/// What the values of each column are multiplied by.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Scale {
    /// Nothing.
    #[default]
    None,
    /// 1 over the column's standard deviation.
    Standard,
    /// 1 over the distance between the column's quartiles.
    Robust,
    /// Factors by the name of the column. Columns that are not named keep their values.
    Factors(BTreeMap<String, f64>),
}

impl Scale {
    /// The word for this value, as a model remembers it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Standard => "standard",
            Self::Robust => "robust",
            Self::Factors(_) => "given",
        }
    }

    /// Whether all factors are positive and finite.
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Factors(factors) => factors.values().all(|factor| *factor > 0.0 && factor.is_finite()),
            _ => true,
        }
    }
}

impl OptionValue for Scale {
    const FORM: Form =
        Form { words: &["standard", "robust"], none: true, others: Some(("factors by column", "Scale")), ..Form::NOTHING };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        match asked.value {
            None => Ok(Self::None),
            Some(Value::Factors(factors)) => Ok(Self::Factors(factors.clone())),
            Some(Value::Text(word)) if word == "standard" => Ok(Self::Standard),
            Some(Value::Text(word)) if word == "robust" => Ok(Self::Robust),
            Some(_) => Err(asked.refusal::<Self>()),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Factors(factors) => format!("{factors:?}"),
            _ => self.word().into(),
        }
    }
}

/// The largest magnitudes of features, in the units of the columns.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Extents {
    /// Those of the rows of the fit.
    #[default]
    None,
    /// By the name of the feature. Features that are not named have those of the rows.
    Named(BTreeMap<String, f64>),
    /// One for each feature.
    InOrder(Vec<f64>),
}

impl Extents {
    /// Whether all magnitudes are finite and not negative.
    pub(super) fn is_valid(&self) -> bool {
        let valid = |extent: &f64| *extent >= 0.0 && extent.is_finite();
        match self {
            Self::None => true,
            Self::Named(extents) => extents.values().all(valid),
            Self::InOrder(extents) => extents.iter().all(valid),
        }
    }
}

impl OptionValue for Extents {
    const FORM: Form =
        Form { none: true, others: Some(("largest magnitudes by feature, or in order", "Extents")), ..Form::NOTHING };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        match asked.value {
            None => Ok(Self::None),
            Some(Value::Factors(extents)) => Ok(Self::Named(extents.clone())),
            Some(Value::Numbers(extents)) => Ok(Self::InOrder(extents.clone())),
            Some(_) => Err(asked.refusal::<Self>()),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Named(extents) => format!("{extents:?}"),
            Self::InOrder(extents) => format!("{extents:?}"),
        }
    }
}

words! {
    /// What to do with rows that hold nulls, NaNs or infinities.
    pub enum NullPolicy("null_policy") {
        /// An error that names the column and counts such values.
        #[default]
        Raise = "raise",
        /// Skip those rows: the result has the bits of a fit of the frame without them, and their labels are null.
        Skip = "skip",
    }
}

words! {
    /// How rows are numbered. Draws, and ties between rows that may move to an empty cluster, go by these numbers.
    pub enum RowOrder("row_order") {
        /// In the order in which they are given.
        #[default]
        Given = "given",
        /// By their values, so that the order in which they are given does not matter.
        Values = "values",
    }
}

/// What clusters are numbered by.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum SortBy {
    /// Nothing: clusters have the numbers of their starting centroids.
    #[default]
    None,
    /// The number of their rows of positive weight.
    Size,
    /// The feature of this name of their centroids.
    Feature(String),
    /// The numbers of the clusters of another model that they match: see `KMeansModel::numbering`.
    Numbering(Arc<Numbering>),
}

impl SortBy {
    /// The word for the number of rows. It is never the name of a feature.
    const SIZE: &str = "size";

    /// The word or the name, as a model remembers it.
    pub fn word(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Size => Some(Self::SIZE),
            Self::Feature(name) => Some(name),
            Self::Numbering(_) => Some("model"),
        }
    }

    /// Whether this is something that a centroid can be sorted by.
    pub(super) fn is_valid(&self) -> bool {
        !matches!(self, Self::Feature(name) if name.is_empty() || name == Self::SIZE)
    }
}

impl OptionValue for SortBy {
    const FORM: Form = Form {
        words: &[Self::SIZE],
        none: true,
        others: Some(("the name of a feature, or a model", "SortBy")),
        ..Form::NOTHING
    };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        match asked.value {
            None => Ok(Self::None),
            Some(Value::Text(word)) if word == Self::SIZE => Ok(Self::Size),
            Some(Value::Text(name)) => Ok(Self::Feature(name.clone())),
            Some(_) => Err(asked.refusal::<Self>()),
        }
    }

    fn shown(&self) -> String {
        self.word().map_or_else(|| "none".into(), |word| format!("{word:?}"))
    }
}

words! {
    /// What to do if there are fewer distinct rows of positive weight than clusters.
    pub enum TooFew("too_few") {
        /// An error.
        #[default]
        Raise = "raise",
        /// As many clusters as there are distinct rows: these rows are the centroids.
        Fewer = "fewer",
    }
}

words! {
    /// What a history row holds.
    pub enum History("history") {
        /// Changed rows, shift and seconds.
        #[default]
        Light = "light",
        /// Also the inertia of every iteration. This costs one reference distance per row.
        Full = "full",
    }
}

/// The number of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restarts {
    /// 10 for random starts, else 1.
    #[default]
    Auto,
    /// This many. Given and optimal centroids always start once, because every restart would be the same.
    Count(u32),
}

impl Restarts {
    /// The number for starting centroids that are found in this way.
    pub(super) fn for_init(self, init: &Init) -> u32 {
        match (init, self) {
            (Init::Given(_) | Init::Optimal, _) => 1,
            (Init::Random, Self::Auto) => 10,
            (_, Self::Auto) => 1,
            (_, Self::Count(count)) => count,
        }
    }
}

impl OptionValue for Restarts {
    const FORM: Form = Form { words: &["auto"], numbers: Some(Numbers::Integers), ..Form::NOTHING };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        if asked.text() == Some("auto") { Ok(Self::Auto) } else { u32::read(asked).map(Self::Count) }
    }

    fn shown(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Count(count) => count.to_string(),
        }
    }
}

/// How many rows a cluster may have.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum SizeLimit {
    /// Any number.
    #[default]
    None,
    /// So many.
    Rows(u64),
    /// A multiple of `n / k`. A fit refuses it, and says how many rows that would be.
    Share(f64),
}

impl OptionValue for SizeLimit {
    const FORM: Form = Form { none: true, ..u64::FORM };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        let share = |share: f64| if share.is_finite() { Ok(Self::Share(share)) } else { Err(asked.refusal::<Self>()) };
        match (asked.value, asked.text().map(str::parse::<f64>)) {
            (None, _) => Ok(Self::None),
            (Some(Value::Number(number)), _) => share(*number),
            (_, Some(Ok(number))) if number.fract() != 0.0 => share(number),
            _ => Ok(Option::<u64>::read(asked)?.map_or(Self::None, Self::Rows)),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Rows(rows) => rows.to_string(),
            Self::Share(share) => share.to_string(),
        }
    }
}

/// Types whose values are all texts: `FromStr` reads them, and the method writes them.
macro_rules! texts {
    ($($type:ident as $method:ident = $form:expr;)*) => {$(
        impl OptionValue for $type {
            const FORM: Form = $form;

            fn read(asked: &OptionQuery<'_>) -> Result<Self> {
                asked.text().map_or_else(|| Err(asked.refusal::<Self>()), str::parse)
            }

            fn shown(&self) -> String {
                self.$method().to_string()
            }
        }
    )*};
}

texts! {
    Init as word = Form { words: Self::METHODS, others: Some(("starting centroids", "Init")), ..Form::NOTHING };
    Device as to_string = Form {
        words: &["auto", "cpu", "cuda", "cuda:all"],
        others: Some(("numbered GPUs as \"cuda:0\" or \"cuda:0,cuda:1\"", "Device")),
        ..Form::NOTHING
    };
    Strategy as to_string = Form { others: Some(("the name of a strategy", "str")), ..Form::NOTHING };
}
