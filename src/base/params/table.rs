//! The table of options: A NEW OPTION OF A FIT IS SAID HERE, once.
//!
//! From this table come the builder methods of [`KMeans`] with their documentation, the setters by name, the checks with their
//! errors, the keywords of the Python functions with types, defaults and documentation, and the table in
//! `docs/guide/parameters.md`. `make options` writes the last two. The first paragraph of a text stands in the guide. Write it
//! for all readers: values are written as in Python.

use super::KMeans;
use super::declare::options;
use super::device::Device;
use super::values::{
    DrawnCandidates, Extents, History, Init, Metric, NullPolicy, Restarts, RowOrder, Scale, SizeLimit, SortBy, TooFew,
};
use crate::base::strategy::Strategy;

options! {
    /// How a fit finds starting centroids.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Seeding for KMeans.seeding {
        /// The starting centroids. `"k-means++"` (greedy; Arthur & Vassilvitskii 2007), `"kmeans-parallel"` (Bahmani et al.
        /// 2012), `"afk-mc2"` (Bachem et al. 2016) and `"random"` choose them. For one feature, `"optimal"` (Wang & Song 2011)
        /// finds the clusters of least inertia. Or pass the centroids themselves: a frame or a model (columns matched by name),
        /// an array, or `k` rows of numbers.
        ///
        /// A fit that starts from a model needs the same `metric`, and scales rows by the model's factors unless it is told
        /// another `scale`. If a given centroid loses all of its rows, a row far from its centroid takes its place, and the
        /// estimator warns.
        init: Init = Init::KMeansPlusPlus;

        /// The number of restarts. The result with the least inertia is kept. `"auto"`: 10 for random starts, else 1.
        /// Given centroids are one start: other numbers then warn.
        n_init: Restarts = Restarts::Auto,
            "\"auto\" or an integer from 1 to 2^32 - 1" if |restarts| *restarts != Restarts::Count(0);

        /// The seed of every draw, from 0 to 2^64 - 1.
        seed: u64 = 0, "an integer from 0 to 2^64 - 1";

        /// For `init="kmeans-parallel"`: how many candidates a round draws on average, in multiples of `k`.
        oversampling: f64 = 2.0, "a finite number above 0" if |factor| *factor > 0.0 && factor.is_finite();

        /// For `init="kmeans-parallel"`: the number of rounds, from 1 to 255.
        rounds: u32 = 5, "an integer from 1 to 255" if |rounds| (1..=255).contains(rounds);

        /// For `init="afk-mc2"`: the rows of a chain. Longer chains draw more like k-means++, and take longer.
        chain_length: u32 = 200, "an integer from 1 to 2^32 - 1" if |length| *length > 0;

        /// How many rows the starting centroids are chosen from. They are drawn without replacement, each row equally likely.
        /// None: all rows. Given centroids need no sample.
        init_sample: Option<u64> = None,
            "an integer from 1 to 2^32 - 1, or none for all rows"
            if |rows| rows.is_none_or(|rows| (1..=u64::from(u32::MAX)).contains(&rows));
    }
}

impl Seeding {
    /// The rows that seeding for k clusters compares with all rows.
    pub(crate) fn candidates(&self, k: usize) -> DrawnCandidates {
        match self.init {
            // A product that is too large becomes the largest number. `KMeans::validate` refuses it.
            Init::KMeansParallel => {
                let of_round = (self.oversampling * k as f64).ceil().max(1.0) as u64;
                DrawnCandidates { of_round, rounds: self.rounds, steps: 0 }
            }
            // If a chain finds no centroid, all centroids so far. They are not drawn in rounds.
            Init::AfkMc2 => DrawnCandidates { of_round: k as u64, rounds: 0, steps: 0 },
            Init::KMeansPlusPlus => DrawnCandidates { steps: k as u64, ..DrawnCandidates::NONE },
            Init::Given(_) | Init::Random | Init::Optimal => DrawnCandidates::NONE,
        }
    }
}

options! {
    /// When a fit stops.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Stopping for KMeans.stopping {
        /// The most iterations of one restart.
        max_iter: u32 = 300, "an integer from 1 to 2^32 - 1" if |most| *most > 0;

        /// Stop when the squared shift of the centroids is at most `tol` times the mean variance of the features, each row of
        /// positive weight counted once.
        ///
        /// This is scikit-learn's rule. Outliers raise the variance: with values a million times farther out than the rest, a
        /// fit stops after one iteration. Remove such values, or use `tol=0`, which stops when no centroid moves.
        tol: f64 = 1e-4, "a finite number of at least 0" if |tol| *tol >= 0.0 && tol.is_finite();

        /// Stop when at most this share of the rows changed cluster.
        tol_labels: f64 = 0.0, "a finite number of at least 0" if |share| *share >= 0.0 && share.is_finite();
    }
}

options! {
    /// How many rows clusters may have.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Sizes for KMeans.sizes {
        /// The fewest rows of positive weight that a cluster may have. None: any number, or 1 with `max_size`. 0 means 1.
        ///
        /// Every assignment of the fit is then the one of least inertia within the bounds. `predict` knows no bounds: its labels
        /// are the nearest centroids. Such fits run on one device, in one process.
        min_size: SizeLimit = SizeLimit::None;

        /// The most rows of positive weight that a cluster may have. None: any number. See `min_size`.
        max_size: SizeLimit = SizeLimit::None,
            "an integer of at least 1, or none" if |limit| *limit != SizeLimit::Rows(0);

        /// Whether all clusters have as many rows, or one more where `n / k` is no integer. It takes the place of `min_size` and
        /// `max_size`.
        balanced: bool = false;
    }
}

options! {
    /// In which space distances are measured.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Space for KMeans.space {
        /// `"euclidean"`, or `"cosine"`: rows and centroids are normalised to length 1, so only their directions count. A row of
        /// zeros has none and counts as null.
        ///
        /// Distances are then those between points on the unit sphere: `2 - 2 cos(angle)`, squared.
        metric: Metric = Metric::Euclidean;

        /// What the values of each column are multiplied by, so that columns of different units count alike. `"standard"`: 1 over
        /// the standard deviation. `"robust"`: 1 over the distance between the quartiles, which outliers hardly change. Or a dict
        /// of factors by column; other columns keep their values.
        ///
        /// The model keeps the factors, so it takes raw columns and shows centroids in their units. Starting centroids are in
        /// these units too. Distances and inertia are those of scaled values.
        scale: Scale = Scale::None,
            "\"standard\", \"robust\" or a positive finite factor by column" if |scale| scale.is_valid();
    }
}

options! {
    /// Which rows take part in a fit.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct RowOptions for KMeans.rows {
        /// `"raise"` or `"skip"`. With `"skip"`, rows with nulls, NaNs or infinities are left out and get null labels (or null
        /// structs).
        null_policy: NullPolicy = NullPolicy::Raise;

        /// `"given"` or `"values"`. With `"values"`, the order of the rows does not matter: the same rows in another order give
        /// the same centroids, inertia and history, and each row gets the same label. For tables whose rows come in another order
        /// each time, as from SQL engines and shuffles.
        ///
        /// Seeding then draws among rows that are sorted by their values, feature by feature, after they are scaled and
        /// normalised. The fit sorts the rows once and works on a copy of them.
        row_order: RowOrder = RowOrder::Given;
    }
}

options! {
    /// What a fit leaves.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Output for KMeans.output {
        /// `"size"`: clusters ascend by their rows of positive weight, so cluster 0 has the fewest. The name of a feature: they
        /// ascend by this feature of their centroids. Clusters with equal values keep their order. A model: each cluster takes
        /// the number of its match there. None: the order of the seeding.
        ///
        /// The numbers are given at the end of the fit, and change nothing else. They are given by the sizes before: where a row
        /// is equally near to two centroids, the smaller number gets it, so sizes may be out of order by such rows. An entry of
        /// an Array column `e` is named `e[0]`, `e[1]`, ... A feature named size cannot be used here. The match with a model has
        /// the least sum of squared distances between the centroids, in the model's scaled units. Clusters without a match come
        /// last.
        sort_by: SortBy = SortBy::None, "\"size\", the name of a feature, or a model" if |sort_by| sort_by.is_valid();

        /// Whether the model keeps the exact sums of its clusters. Then `model.updated` adds rows to them, and removes rows.
        ///
        /// They take 16 bytes a cluster and feature, also in the file. Without effect on an expression.
        ///
        /// The sums are those of the last labels. With `tol=0`, the fit ends when no centroid moves, so an update without rows
        /// changes nothing.
        keep_sums: bool = false;

        /// The largest magnitudes that later rows may have, by feature or one for each, in the units of the columns. None: those
        /// of the rows of the fit.
        ///
        /// The sums of the model take values of up to 16 times this size. Sums of features with a magnitude here have 90 bits
        /// below it, so other last bits than without. The centroids of the fit stay within its rows.
        extents: Extents = Extents::None,
            "finite magnitudes of at least 0, by feature or one for each" if |extents| extents.is_valid();

        /// What to do if there are fewer distinct rows of positive weight than clusters.
        too_few: TooFew = TooFew::Raise, only rust;

        /// `"light"` or `"full"`: the history of a model also has the inertia of every iteration.
        ///
        /// It changes nothing in the result of an expression.
        history: History = History::Light;
    }
}

options! {
    /// Where a fit runs, and with what. Nothing here changes a bit of the result.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Execution for KMeans.execution {
        /// The device to run on. The result has the same bits on every device. `"auto"`: a GPU, or all, if possible and
        /// predicted to be faster, else the CPU. `"cpu"`, `"cuda"` (the GPU with the most free memory) or `"cuda:1"`: this
        /// device, or an error. `"cuda:all"` or a list as `["cuda:0", "cuda:1"]`: the rows are shared between these GPUs.
        ///
        /// See `polars_kmeans.devices`. Rows that do not fit on the GPU stream through it in chunks.
        device: Device = Device::Auto;

        /// How many bytes of the GPU's memory the fit may use. None: nine tenths of the free memory. Without effect on the CPU.
        device_memory_limit: Option<u64> = None,
            "a positive number of bytes, or none for what is free" if |limit| *limit != Some(0);

        /// The number of threads that work on a large fit on the CPU. 0: all of the pool.
        ///
        /// In Python the pool has as many threads as that of Polars, and more threads than these are not started.
        threads: usize = 0, "an integer of at least 0";

        /// How rows find their labels. Every strategy gives the same result. `"default"` runs on the CPU and on a GPU. Any other
        /// named strategy requires a GPU.
        strategy: Strategy = Strategy::Default, only rust;
    }
}
