//! Compiles the engine once per feature type, in this crate and with this crate's settings.
//!
//! Fits and predictions are generic over [`Float`]. If their entry points were generic too, every crate that calls one would
//! compile the kernels again, and its debug builds would not optimise them.

use crate::backend::answers::{Labels, Predictions, Wanted};
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::params::KMeans;
use crate::fit;
#[cfg(feature = "bench")]
use crate::fit::benchmark;
use crate::input::features::Column;
#[cfg(feature = "bench")]
use crate::input::features::Features;
#[cfg(feature = "cuda")]
use crate::input::gpu_table::{GpuArray, GpuPredictions};
use crate::input::tile::Part;
use crate::model::Fitted;
use crate::model::predict::{self, Rows};
use crate::simd::InstructionSet;

/// The feature types that the engine is compiled for: `f32` and `f64`. Fits and predictions take any of them.
///
/// The trait is sealed, because [`Float`] is.
pub trait Engine: Float {
    #[doc(hidden)]
    fn fit(estimator: &KMeans, parts: Vec<Part<'_, Self>>, set: InstructionSet, wanted: Wanted) -> Result<Fitted<Self>>;
    #[doc(hidden)]
    fn fit_each(
        estimator: &KMeans,
        k: &[usize],
        parts: Vec<Part<'_, Self>>,
        set: InstructionSet,
    ) -> Result<Vec<Result<Fitted<Self>>>>;
    #[doc(hidden)]
    fn labels(rows: Rows<'_, '_, Self>) -> Result<Labels>;
    #[doc(hidden)]
    fn nearest(rows: Rows<'_, '_, Self>) -> Result<Predictions>;
    #[doc(hidden)]
    fn distances(rows: Rows<'_, '_, Self>) -> Result<Vec<f64>>;
    #[doc(hidden)]
    fn inertia(rows: Rows<'_, '_, Self>, weights: Option<&Column<'_, f64>>) -> Result<f64>;
    #[cfg(feature = "bench")]
    #[doc(hidden)]
    fn labels_of_loop(estimator: &KMeans, features: &Features<'_, Self>, iterations: u32) -> Result<benchmark::Looped<Self>>;
    #[cfg(feature = "cuda")]
    #[doc(hidden)]
    fn labels_there(rows: Rows<'_, '_, Self>) -> Result<GpuArray<i32>>;
    #[cfg(feature = "cuda")]
    #[doc(hidden)]
    fn nearest_there(rows: Rows<'_, '_, Self>) -> Result<GpuPredictions>;
    #[cfg(feature = "cuda")]
    #[doc(hidden)]
    fn distances_there(rows: Rows<'_, '_, Self>) -> Result<GpuArray<f64>>;
}

macro_rules! engine {
    ($($float:ty),*) => {$(
        impl Engine for $float {
            fn fit(estimator: &KMeans, parts: Vec<Part<'_, Self>>, set: InstructionSet, wanted: Wanted) -> Result<Fitted<Self>> {
                fit::fit(estimator, parts, set, wanted)
            }
            fn fit_each(
                estimator: &KMeans,
                k: &[usize],
                parts: Vec<Part<'_, Self>>,
                set: InstructionSet,
            ) -> Result<Vec<Result<Fitted<Self>>>> {
                fit::fit_each(estimator, k, parts, set)
            }
            fn labels(rows: Rows<'_, '_, Self>) -> Result<Labels> {
                predict::labels(rows)
            }
            fn nearest(rows: Rows<'_, '_, Self>) -> Result<Predictions> {
                predict::nearest(rows)
            }
            fn distances(rows: Rows<'_, '_, Self>) -> Result<Vec<f64>> {
                predict::distances(rows)
            }
            fn inertia(rows: Rows<'_, '_, Self>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
                predict::inertia(rows, weights)
            }
            #[cfg(feature = "bench")]
            fn labels_of_loop(
                estimator: &KMeans,
                features: &Features<'_, Self>,
                iterations: u32,
            ) -> Result<benchmark::Looped<Self>> {
                benchmark::labels_of_loop(estimator, features, iterations)
            }
            #[cfg(feature = "cuda")]
            fn labels_there(rows: Rows<'_, '_, Self>) -> Result<GpuArray<i32>> {
                cuda::predict::labels_there(&*rows.model.device_table(rows.gpu()?)?, rows.features, rows.strategy)
            }
            #[cfg(feature = "cuda")]
            fn nearest_there(rows: Rows<'_, '_, Self>) -> Result<GpuPredictions> {
                cuda::predict::nearest_there(&*rows.model.device_table(rows.gpu()?)?, rows.features)
            }
            #[cfg(feature = "cuda")]
            fn distances_there(rows: Rows<'_, '_, Self>) -> Result<GpuArray<f64>> {
                cuda::predict::distances_there(&*rows.model.device_table(rows.gpu()?)?, rows.features)
            }
        }
    )*};
}

engine!(f32, f64);
