//! Exact, bit-reproducible k-means for data frames.
//!
//! **Labels are exact**: the label of a row is the smallest j whose reference distance ([`exact::reference::distance`]: float64,
//! feature order, fused multiply-add) is smallest. **Results do not depend on the machine**: sums are fixed-point integers. So
//! labels, centroids and inertia have the same bits for any number of threads and any chunking.
//!
//! ```text
//! columns --> Features (a view, no copy) --> statistics (validity, extents, quanta) --> seeding
//!         --> loop { assign --> update --> stop? } on a backend's session --> Model and labels
//! ```
//! Start reading at [`fit`]. These terms are used throughout: `n` is the number of rows, `d` the number of features, `k` the
//! number of clusters. A *kept* row is a row that `null_policy` did not leave out. A *contribution* is a row's weighted value. A
//! *quantum* is the unit of a fixed-point sum.
//!
//! | feature | adds |
//! |---|---|
//! | `polars` (default) | fits and predictions on Polars frames: [`frame`] |
//! | `arrow` | fits and predictions on arrow-rs record batches (`batch`), and models saved as Parquet files |
//! | `cuda` | fits and predictions on NVIDIA GPUs: [`KMeans::device`], [`Model::on`], [`devices`] |
//! | `parts` | fits of rows in parts that other processes and machines hold: `distributed` |
//! | `bench` | times and checks that only benches and tests ask for |
//! | `tests` | the unit tests: `cargo test --features tests` |
//! | `python` | the expression plugin that the Python package loads |
//!
//! Without features, only the engine is built. It works on plain slices.
//!
//! The names at the root of the crate are stable in version 0.1. Names inside modules may change.

#[cfg(feature = "tests")]
#[doc(hidden)]
#[macro_use]
pub mod unit_tests;

pub mod backend;
pub mod base;
#[cfg(feature = "arrow")]
pub mod batch;
pub mod bounds;
#[cfg(any(feature = "arrow", feature = "polars"))]
pub(crate) mod columns;
#[cfg(feature = "parts")]
pub mod distributed;
pub mod exact;
pub mod fit;
#[cfg(feature = "polars")]
pub mod frame;
pub mod input;
pub mod model;
#[cfg(feature = "python")]
mod plugin;
pub mod seeding;
mod simd;
pub mod statistics;
pub mod tree;

pub use backend::answers::{Answered, Distances, Labels, NearestClusters, Prediction, Predictions};
pub use backend::cpu::{MethodExplanation, PossibleMethods};
#[cfg(feature = "cuda")]
pub use backend::cuda::array::{GpuArray, GpuPredictions};
pub use backend::devices;
pub use backend::select::{Choice, DeviceInfo, Devices, Job, Place, Plan, Share};
pub use base::error::{ErrorKind, KMeansError, Result};
pub use base::float::Float;
pub use base::interrupt::Cancel;
#[cfg(feature = "serde")]
pub use base::names::FeatureLayout;
pub use base::names::Names;
pub use base::params::{
    Device, Extents, Form, Gpus, History, Init, KMeans, Metric, NullPolicy, Numbering, Numbers, OptionInfo, Restarts, RowOrder,
    Scale, SizeLimit, SortBy, TooFew, Value, Wanted,
};
pub use base::progress::{Progress, Seconds, Stage};
pub use base::strategy::Strategy;
#[cfg(feature = "arrow")]
pub use batch::BatchFit;
pub use fit::engine::Engine;
pub use fit::plan::{FitPlan, PlannedRows};
#[cfg(feature = "tests")]
#[doc(hidden)]
pub use fit::trial;
#[cfg(feature = "polars")]
pub use frame::{FrameFit, Spill};
pub use input::features::{Chunk, Column, Features, Validity};
pub use input::fp16::Half;
#[cfg(feature = "cuda")]
pub use input::gpu_table::{GpuTable, GpuValues};
pub use input::value_type::ValueType;
#[cfg(feature = "serde")]
pub use model::{AnyModel, KMeansModel, Match};
pub use model::{Decay, DeviceModel, Fitted, HistoryRow, Model, Scaling, Settings, Start, Sums, Update};
pub use simd::{DotUnit, InstructionSet};
#[cfg(any(feature = "arrow", feature = "polars"))]
pub use tree::KMeansTree;

/// The README's Rust examples run as tests.
#[cfg(all(doctest, feature = "polars"))]
#[doc = include_str!("../README.md")]
struct Readme;
