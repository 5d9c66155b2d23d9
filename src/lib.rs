//! Exact, bit-reproducible k-means for data frames.
//!
//! **Labels are exact**: the label of a row is the smallest j whose reference distance ([`reference::distance`]: float64, feature
//! order, fused multiply-add) is smallest. **Results do not depend on the machine**: sums are fixed-point integers. So labels,
//! centroids and inertia have the same bits for any number of threads and any chunking.
//!
//! ```text
//! columns --> Features (a view, no copy) --> prepare (validity, extents, quanta) --> seeding
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
//! | `parts` | fits of rows in parts that other processes and machines hold: `parts` |
//! | `bench` | times and checks that only benches and tests ask for |
//! | `tests` | the unit tests: `cargo test --features tests` |
//! | `python` | the expression plugin that the Python package loads |
//!
//! Without features, only the engine is built. It works on plain slices.

#[cfg(feature = "tests")]
#[doc(hidden)]
#[macro_use]
pub mod unit_tests;

pub mod answers;
mod arrival;
pub mod backend;
#[cfg(feature = "arrow")]
pub mod batch;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod benchmark;
pub mod certify;
pub mod distances;

mod engine;
mod environment;
pub mod error;
pub mod features;
pub mod fit;
pub mod fixed;
pub mod float;
#[cfg(feature = "polars")]
pub mod frame;
#[cfg(feature = "cuda")]
pub mod gpu_table;
pub mod half;
pub mod interrupt;
mod lines;
mod memory;
pub mod model;
mod names;
mod order;
pub mod parallel;
pub mod params;
pub mod partial;
#[cfg(feature = "parts")]
pub mod parts;
#[cfg(feature = "python")]
mod plugin;
mod predict;
pub mod prepare;
pub mod progress;
pub mod reference;
pub mod rng;
pub mod seeding;
mod sort_by;
mod strategy;
pub mod tile;
mod update;

pub use answers::{Answered, Distances, Labels, Prediction, Predictions, Wanted};
pub use backend::cpu::Method;
pub use backend::devices;
pub use backend::select::{Choice, DeviceInfo, Devices, Job, Place, Share};
#[cfg(feature = "arrow")]
pub use batch::BatchFit;
pub use engine::Engine;
pub use error::{ErrorKind, KMeansError, Result};
pub use features::{Chunk, Column, Features, Validity};
pub use float::Float;
#[cfg(feature = "polars")]
pub use frame::{FrameFit, Spill};
#[cfg(feature = "cuda")]
pub use gpu_table::{GpuArray, GpuPredictions, GpuTable, GpuValues, ValueType};
pub use half::Half;
pub use interrupt::Cancel;
#[cfg(feature = "serde")]
pub use model::{AnyModel, FeatureLayout, KMeansModel};
pub use model::{Fitted, HistoryRow, Model, Placed, Scaling, Settings};
pub use names::Names;
pub use params::{
    Device, Form, Gpus, History, Init, KMeans, Metric, NullPolicy, Numbers, OptionInfo, Restarts, RowOrder, Scale, SortBy,
    TooFew, Value,
};
pub use progress::{Progress, Seconds, Stage};
pub use strategy::Strategy;

/// The README's Rust examples run as tests.
#[cfg(all(doctest, feature = "polars"))]
#[doc = include_str!("../README.md")]
struct Readme;
