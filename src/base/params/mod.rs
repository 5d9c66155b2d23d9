//! What can be asked of a fit. [`KMeans`] is unchecked. [`KMeans::validate`] turns it into checked [`Params`].
//!
//! All options with their defaults are in `table.rs`. The names mean the same as in scikit-learn.

pub(crate) mod declare;
mod device;
mod numbering;
mod table;
mod values;

use std::fmt;
use std::ops::ControlFlow;
use std::slice::ChunksExact;

pub use self::declare::{Form, Numbers, OptionInfo, Value};
use self::declare::{OptionQuery, OptionValue};
pub use self::device::{Device, Gpus};
pub use self::numbering::{MOST_MATCHED, Numbering};
pub use self::table::{Execution, Output, RowOptions, Seeding, Sizes, Space, Stopping};
pub use self::values::{
    DrawnCandidates, Extents, History, Init, Metric, NullPolicy, Restarts, RowOrder, Scale, SizeLimit, SortBy, TooFew, Wanted,
};
use crate::base::error::{KMeansError, Result};
use crate::base::interrupt::Cancel;
use crate::base::progress::{Observer, Progress};
use crate::base::strategy::Strategy;

/// A k-means to be fitted: unchecked parameters, with scikit-learn's meanings.
///
/// ```
/// use polars_kmeans::{Features, KMeans};
///
/// let (x, y) = ([0.0f32, 0.1, 9.0, 9.1], [0.0f32, 0.1, 5.0, 5.1]);
/// let features = Features::from_columns([&x[..], &y[..]])?;
/// let fitted = KMeans::new(2).seed(1).fit_features(&features, None)?;
/// assert_eq!(fitted.labels[0], fitted.labels[1]);
/// assert_ne!(fitted.labels[0], fitted.labels[2]);
/// assert_eq!(fitted.model.n_clusters(), 2);
/// # Ok::<(), polars_kmeans::KMeansError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct KMeans {
    pub(crate) k: usize,
    pub(crate) space: Space,
    pub(crate) seeding: Seeding,
    pub(crate) stopping: Stopping,
    pub(crate) sizes: Sizes,
    pub(crate) rows: RowOptions,
    pub(crate) output: Output,
    pub(crate) execution: Execution,
    pub(crate) observer: Option<Observer>,
    pub(crate) cancel: Option<Cancel>,
}

/// The most candidates of a round of k-means||, on average: products with it fit into 128 bits.
const MOST_CANDIDATES: u64 = 1 << 33;
/// What an error about `k` says that it expected.
const CLUSTERS: &str = "an integer from 1 to 2^32 - 1";

impl KMeans {
    /// `k` clusters, with defaults for everything else.
    pub fn new(k: usize) -> Self {
        Self {
            k,
            space: Space::default(),
            seeding: Seeding::default(),
            stopping: Stopping::default(),
            sizes: Sizes::default(),
            rows: RowOptions::default(),
            output: Output::default(),
            execution: Execution::default(),
            observer: None,
            cancel: None,
        }
    }

    /// Calls `observer` when the rows are there, when a restart has its starting centroids, and after each iteration. A GPU does
    /// several iterations in one batch, so the calls for a batch come together. With `row_order="values"`, a fit from given or
    /// optimal centroids may start again.
    ///
    /// If `observer` returns [`ControlFlow::Break`], the fit stops. Its model is that of the last iteration that is done: with
    /// one restart, it has the centroids, the labels and the inertia of the same fit with `max_iter` set to its iterations. With
    /// several, the restart of least inertia wins among those that began an iteration. Before the first iteration there is no
    /// model, and the fit ends with [`KMeansError::Cancelled`]. To end a fit without a model, use [`KMeans::cancel`].
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use polars_kmeans::{Device, Features, KMeans};
    ///
    /// let x: Vec<f64> = (0..1_000).map(|i| f64::from(i * i % 997)).collect();
    /// let features = Features::from_rows(&x, 1)?;
    /// let estimator = KMeans::new(20).device(Device::Cpu);
    /// let watched = estimator.clone().on_progress(|progress| {
    ///     println!("iteration {}: {} rows changed", progress.iteration, progress.changed);
    ///     if progress.iteration < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    /// });
    /// let stopped = watched.fit_features(&features, None)?;
    /// assert!(stopped.model.stopped());
    /// assert_eq!(stopped.labels, estimator.max_iter(3).fit_features(&features, None)?.labels);
    /// # Ok::<(), polars_kmeans::KMeansError>(())
    /// ```
    pub fn on_progress(self, observer: impl Fn(&Progress) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        Self { observer: Some(Observer::new(move |progress, _| observer(progress), false)), ..self }
    }

    /// As [`KMeans::on_progress`]. The observer also gets the centroids after each stage, one by one, in the units of the
    /// columns. Before there are any, it gets none. Of the iterations that a GPU does in one batch, only the last has them.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use polars_kmeans::{Features, KMeans};
    ///
    /// let x: Vec<f64> = (0..1_000).map(|i| f64::from(i * i % 997)).collect();
    /// let features = Features::from_rows(&x, 1)?;
    /// let watched = KMeans::new(3).on_centroids(|progress, centroids| {
    ///     for centroid in centroids.into_iter().flatten() {
    ///         println!("iteration {}: {}", progress.iteration, centroid[0]);
    ///     }
    ///     ControlFlow::Continue(())
    /// });
    /// watched.fit_features(&features, None)?;
    /// # Ok::<(), polars_kmeans::KMeansError>(())
    /// ```
    pub fn on_centroids(
        self,
        observer: impl Fn(&Progress, Option<ChunksExact<'_, f64>>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        Self { observer: Some(Observer::new(observer, true)), ..self }
    }

    /// Lets `cancel` stop the fit, at any time and from any thread. A fit that was stopped ends with [`KMeansError::Cancelled`]
    /// within a few hundredths of a second, or after the work that a GPU has begun.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        Self { cancel: Some(cancel.clone()), ..self }
    }

    /// Sets the option of this name, `k` included. `None` is for options that may be without a value.
    ///
    /// ```
    /// use polars_kmeans::KMeans;
    ///
    /// let mut by_name = KMeans::new(2);
    /// by_name.set("tol", Some(&0.0.into()))?;
    /// by_name.set("init", Some(&"random".into()))?;
    /// assert_eq!(by_name, KMeans::new(2).tol(0.0).init(polars_kmeans::Init::Random));
    /// # Ok::<(), polars_kmeans::KMeansError>(())
    /// ```
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`].
    pub fn set(&mut self, option: &str, value: Option<&Value>) -> Result<()> {
        if option == "k" {
            self.k = usize::read(&OptionQuery { option: "k", expected: Some(CLUSTERS), value })?;
            return Ok(());
        }
        let known = self.space.set(option, value)?
            || self.seeding.set(option, value)?
            || self.stopping.set(option, value)?
            || self.sizes.set(option, value)?
            || self.rows.set(option, value)?
            || self.output.set(option, value)?
            || self.execution.set(option, value)?;
        if known {
            return Ok(());
        }
        let names = Self::options().iter().map(|info| info.name).collect::<Vec<_>>().join(", ");
        Err(invalid("option", &format!("k or one of {names}"), format!("{option:?}")))
    }

    /// Describes every option but `k`, in the order of the documentation.
    pub fn options() -> Vec<OptionInfo> {
        let (rows, output) = (RowOptions::describe(), Output::describe());
        let groups = [Seeding::describe(), Stopping::describe(), Sizes::describe(), Space::describe(), rows, output];
        groups.into_iter().flatten().chain(Execution::describe()).collect()
    }

    /// Refuses a number of clusters that these parameters cannot have.
    pub(crate) fn check_clusters(&self, k: usize) -> Result<()> {
        if k == 0 || u32::try_from(k).is_err() {
            return Err(invalid("k", CLUSTERS, k));
        }
        if self.seeding.candidates(k).of_round > MOST_CANDIDATES {
            let expected = format!("at most 8,589,934,592 candidates a round from k = {k} times a number");
            return Err(invalid("oversampling", &expected, self.seeding.oversampling));
        }
        Ok(())
    }

    /// Checks the parameters against the width of the data.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`], [`KMeansError::NoFeatures`] or [`KMeansError::LengthMismatch`].
    pub fn validate(&self, d: usize) -> Result<Params<'_>> {
        if d == 0 {
            return Err(KMeansError::NoFeatures);
        }
        if self.k == 0 || u32::try_from(self.k).is_err() {
            return Err(invalid("k", CLUSTERS, self.k));
        }
        self.space.check()?;
        self.stopping.check()?;
        self.seeding.check()?;
        self.sizes.check()?;
        if self.sizes.balanced && (self.sizes.min_size, self.sizes.max_size) != (SizeLimit::None, SizeLimit::None) {
            return Err(invalid("balanced", "no min_size or max_size beside it", "both"));
        }
        self.rows.check()?;
        self.output.check()?;
        self.execution.check()?;
        if let Init::Given(centroids) = &self.seeding.init {
            if Some(centroids.len()) != self.k.checked_mul(d) {
                let what = format!("starting centroids (k = {} rows of {d} features)", self.k);
                return Err(KMeansError::LengthMismatch { what, expected: self.k.saturating_mul(d), got: centroids.len() });
            }
            if let Some(value) = centroids.iter().find(|value| !value.is_finite()) {
                return Err(invalid("init", "finite starting centroids", value));
            }
        }
        if self.seeding.init == Init::Optimal && d > 1 {
            return Err(invalid("init", "one feature for \"optimal\"", d));
        }
        self.check_clusters(self.k)?;
        let device = match (self.execution.strategy, self.execution.device) {
            (Strategy::Default, device) => device,
            (_, device @ (Device::Cuda(_) | Device::AllCuda | Device::Several(_))) => device,
            (_, Device::Auto) => Device::Cuda(None),
            (named, Device::Cpu) => {
                return Err(invalid("strategy", "\"default\" on the CPU (device=\"cpu\")", format!("\"{named}\"")));
            }
        };
        Ok(Params {
            k: self.k,
            space: &self.space,
            seeding: &self.seeding,
            restarts: self.seeding.n_init.for_init(&self.seeding.init),
            stopping: self.stopping,
            sizes: self.sizes,
            rows: self.rows,
            output: &self.output,
            fixed: None,
            may_be_empty: false,
            wanted: Wanted::Labels,
            execution: Execution { device, ..self.execution },
        })
    }
}

/// Checked parameters, as compute code takes them.
#[derive(Debug, Clone, PartialEq)]
pub struct Params<'e> {
    /// Number of clusters, at least 1.
    pub k: usize,
    pub space: &'e Space,
    pub seeding: &'e Seeding,
    /// Number of restarts, at least 1: what `seeding.n_init` stands for.
    pub restarts: u32,
    pub stopping: Stopping,
    pub sizes: Sizes,
    pub rows: RowOptions,
    pub output: &'e Output,
    /// Fixed centroids, which need no iterations: `(k, d)`, row-major, in the units of transformed rows.
    pub fixed: Option<&'e [f64]>,
    /// Whether clusters of bounded size may stay empty, and there may be fewer rows than clusters.
    pub may_be_empty: bool,
    /// What the caller wants to know about the rows.
    pub wanted: Wanted,
    /// The device is a GPU if a strategy was named that does not run on the CPU.
    pub execution: Execution,
}

impl Params<'_> {
    /// Whether clusters have bounds on their sizes.
    pub fn has_sizes(&self) -> bool {
        self.sizes != Sizes::default()
    }

    /// Whether rows of 16 bits a value stay so on a GPU. Rows that are scaled or normalised have more bits, rows in the order of
    /// their values are a copy in the feature type, and the papers' systems read no others.
    pub fn keeps_halves(&self) -> bool {
        let as_given = self.space.scale == Scale::None && self.space.metric == Metric::Euclidean;
        as_given && self.rows.row_order == RowOrder::Given && !self.execution.strategy.is_of_a_paper()
    }
}

fn invalid(option: &'static str, expected: &str, got: impl fmt::Display) -> KMeansError {
    KMeansError::InvalidOption { option, expected: expected.into(), got: got.to_string() }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    /// The error that setting an option gives, or that the check of all options gives after it.
    fn message(option: &str, value: Option<&Value>) -> String {
        let mut estimator = KMeans::new(2);
        estimator.set(option, value).and_then(|()| estimator.validate(1).map(drop)).unwrap_err().to_string()
    }

    unit_test!(options_are_set_by_name);
    fn options_are_set_by_name() {
        let by_name = [
            ("k", Some(Value::from(3))),
            ("init", Some("random".into())),
            ("n_init", Some(7.into())),
            ("seed", Some(i128::from(u64::MAX).into())),
            ("max_iter", Some("12".into())),
            ("tol", Some(0.5.into())),
            ("tol_labels", Some("0.25".into())),
            ("metric", Some("cosine".into())),
            ("scale", Some(Value::Factors([("x".to_owned(), 2.0)].into()))),
            ("null_policy", Some("skip".into())),
            ("row_order", Some("values".into())),
            ("history", Some("full".into())),
            ("sort_by", Some("x".into())),
            ("too_few", Some("fewer".into())),
            ("keep_sums", Some("True".into())),
            ("extents", Some(Value::Numbers(vec![2.0]))),
            ("device", Some("cuda:1".into())),
            ("device_memory_limit", Some((1 << 100).into())),
            ("threads", Some(2.into())),
            ("strategy", Some("tiled".into())),
        ];
        let mut set = KMeans::new(1);
        by_name.iter().for_each(|(name, value)| set.set(name, value.as_ref()).unwrap());
        let built = KMeans::new(3).init(Init::Random).n_init(Restarts::Count(7)).seed(u64::MAX).max_iter(12).tol(0.5);
        let built = built.tol_labels(0.25).null_policy(NullPolicy::Skip).history(History::Full).device(Device::Cuda(Some(1)));
        let built = built.device_memory_limit(Some(u64::MAX)).threads(2).strategy(Strategy::Tiled);
        let built =
            built.row_order(RowOrder::Values).metric(Metric::Cosine).scale(Scale::Factors([("x".to_owned(), 2.0)].into()));
        let built = built.sort_by(SortBy::Feature("x".into())).too_few(TooFew::Fewer).keep_sums(true);
        let built = built.extents(Extents::InOrder(vec![2.0]));
        assert_eq!(set, built);
        set.set("device_memory_limit", None).unwrap();
        set.set("n_init", Some(&"auto".into())).unwrap();
        assert_eq!(set, built.device_memory_limit(None).n_init(Restarts::Auto));
    }

    unit_test!(refusals_say_what_was_expected_and_got);
    fn refusals_say_what_was_expected_and_got() {
        // tests/python/test_bad_input.py has more of them.
        let refusals: [(&str, Option<Value>, &str); 9] = [
            ("k", Some((-3).into()), "k: expected an integer from 1 to 2^32 - 1, got -3"),
            ("k", Some((1 << 100).into()), "k: expected an integer from 1 to 2^32 - 1, got 1267650600228229401496703205376"),
            ("max_iter", Some(2.5.into()), "max_iter: expected an integer from 1 to 2^32 - 1, got 2.5"),
            ("max_iter", None, "max_iter: expected an integer from 1 to 2^32 - 1, got none"),
            ("n_init", Some("many".into()), "n_init: expected \"auto\" or an integer from 1 to 2^32 - 1, got \"many\""),
            ("tol_labels", Some("x".into()), "tol_labels: expected a finite number of at least 0, got \"x\""),
            ("sort_by", Some(1.5.into()), "sort_by: expected \"size\", the name of a feature, or a model, got 1.5"),
            ("sort_by", Some("".into()), "sort_by: expected \"size\", the name of a feature, or a model, got \"\""),
            (
                "device",
                Some(1.0.into()),
                "device: expected \"auto\", \"cpu\", \"cuda\", \"cuda:all\" or numbered GPUs as \"cuda:0\" or \
                \"cuda:0,cuda:1\", got 1",
            ),
        ];
        for (option, value, expected) in refusals {
            assert_eq!(message(option, value.as_ref()), expected);
        }
        let unknown = message("tolerance", Some(&1.0.into()));
        assert!(unknown.starts_with("option: expected k or one of init, n_init,"), "{unknown}");
        assert!(unknown.ends_with("got \"tolerance\""), "{unknown}");
    }

    #[cfg(feature = "parts")]
    unit_test!(errors_know_all_options);
    #[cfg(feature = "parts")]
    fn errors_know_all_options() {
        assert!(KMeans::options().iter().map(|info| info.name).eq(crate::base::error::OPTIONS.split(' ')));
    }

    unit_test!(options_describe_themselves);
    fn options_describe_themselves() {
        let described: Vec<String> =
            KMeans::options().iter().map(|info| format!("{}: {} = {}", info.name, info.python_type(), info.default)).collect();
        for line in [
            "init: Init = \"k-means++\"",
            "n_init: int | Literal[\"auto\"] = \"auto\"",
            "tol: float = 0.0001",
            "tol_labels: float = 0.0",
            "null_policy: Literal[\"raise\", \"skip\"] = \"raise\"",
            "device_memory_limit: int | None = None",
        ] {
            assert!(described.iter().any(|found| found == line), "{line} is not in {described:#?}");
        }
        // A default is a value that the option takes.
        for info in KMeans::options() {
            let text = info.default.trim_matches('"');
            let value: Option<Value> = (info.default != "None").then(|| text.into());
            let mut estimator = KMeans::new(2);
            estimator.set(info.name, value.as_ref()).unwrap();
            assert_eq!(estimator, KMeans::new(2), "{}", info.name);
            assert!(info.doc.iter().all(|paragraph| !paragraph.is_empty()), "{}", info.name);
        }
    }
}
