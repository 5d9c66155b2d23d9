//! Passes of a fitted model over rows: labels, distances, inertia. The rows are not prepared. A row that is not finite gets no
//! answer. Every finite row gets an exact one.

#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "cuda")]
use crate::backend::answers::ANSWERS;
use crate::backend::answers::{Labels, NearestClusters, Predictions};
use crate::backend::cpu;
#[cfg(feature = "cuda")]
use crate::backend::cuda::array::{GpuArray, GpuPredictions};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, DeviceTable};
use crate::backend::select::Place;
#[cfg(feature = "cuda")]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::float::Float;
#[cfg(feature = "cuda")]
use crate::base::memory;
use crate::base::strategy::Strategy;
use crate::input::features::{Column, Features};
use crate::model::Model;

/// The rows, the model that they are compared with, and where the pass runs.
#[derive(Clone, Copy)]
pub struct ModelQuery<'p, 'a, T> {
    pub model: &'p Model<T>,
    pub features: &'p Features<'a, T>,
    pub place: Place,
    /// The kernels that find labels on a GPU.
    pub strategy: Strategy,
}

#[cfg(feature = "cuda")]
impl<T: Float> ModelQuery<'_, '_, T> {
    /// The GPU that the rows are on. It is an error if they are on the host.
    pub fn gpu(&self) -> Result<u32> {
        let expected = "rows on a GPU for answers there".into();
        let error = || KMeansError::InvalidOption { option: "device", expected, got: "rows on the host".into() };
        self.features.gpu().ok_or_else(error)
    }
}

/// Answers rows where they are: with the model's table on the host, or with those on GPUs.
/// After a semicolon: an argument of both. After a comma: one of GPUs alone.
macro_rules! by_place {
    ($rows:ident, $cpu:path, $gpu:path $(, $of_gpu:expr)? $(; $($of_both:expr),+)?) => {
        match $rows.place {
            Place::Cpu => $cpu($rows.model.host_table()?, $rows.features $($(, $of_both)+)?),
            #[cfg(feature = "cuda")]
            _ => on_gpus($rows, |tables| $gpu(tables, $rows.features $(, $of_gpu)? $($(, $of_both)+)?)),
            #[cfg(not(feature = "cuda"))]
            _ => no_gpu(),
        }
    };
}

/// The inertia of the finite rows of positive weight.
fn inertia<T: Float>(rows: ModelQuery<'_, '_, T>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
    match rows.place {
        Place::Cpu => {
            let Model { centroids, .. } = rows.model;
            cpu::predict::inertia(
                centroids,
                rows.model.metric(),
                rows.model.host_table()?.clone(),
                rows.features,
                weights,
                None,
            )
        }
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => {
            let (table, centroids) = (rows.model.device_table(ordinal)?, &rows.model.centroids);
            cuda::predict::inertia(&table, centroids, rows.model.metric(), rows.features, weights)
        }
        _ => no_gpu(),
    }
}

/// Calls `work` with the model's tables on the GPUs of these rows. Calls with few rows go to the GPUs in turn.
#[cfg(feature = "cuda")]
fn on_gpus<T: Float, R>(rows: ModelQuery<'_, '_, T>, work: impl FnOnce(&[&DeviceTable<T>]) -> Result<R>) -> Result<R> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mut tables = match rows.place {
        Place::Cuda(ordinal) => vec![rows.model.device_table(ordinal)?],
        Place::Several(gpus) => {
            let tables = gpus.ordinals().iter().map(|&ordinal| rows.model.device_table(ordinal));
            memory::try_collected(tables, ANSWERS)?
        }
        Place::Cpu => no_gpu(),
    };
    let count = tables.len();
    tables.rotate_left(CALLS.fetch_add(1, Ordering::Relaxed) % count);
    work(&memory::collected(tables.iter().map(|table| &**table), ANSWERS)?)
}

fn no_gpu() -> ! {
    unreachable!("there is no such GPU to choose")
}

/// The feature types that predictions are compiled for, in this crate and with this crate's settings: `f32` and `f64`.
///
/// The trait is sealed, because [`Float`] is.
pub trait Predictor: Float {
    /// The labels of the rows.
    #[doc(hidden)]
    fn labels(rows: ModelQuery<'_, '_, Self>) -> Result<Labels>;
    /// The labels, and the distances to the nearest and the second nearest centroid.
    #[doc(hidden)]
    fn nearest(rows: ModelQuery<'_, '_, Self>) -> Result<Predictions>;
    /// The distances to all centroids, or their squares.
    #[doc(hidden)]
    fn distances(rows: ModelQuery<'_, '_, Self>, squared: bool) -> Result<Vec<f64>>;
    /// The `m` nearest centroids of the rows.
    #[doc(hidden)]
    fn several(rows: ModelQuery<'_, '_, Self>, m: usize, squared: bool) -> Result<NearestClusters>;
    /// The inertia of the finite rows of positive weight.
    #[doc(hidden)]
    fn inertia(rows: ModelQuery<'_, '_, Self>, weights: Option<&Column<'_, f64>>) -> Result<f64>;
    #[cfg(feature = "cuda")]
    #[doc(hidden)]
    fn labels_on_device(rows: ModelQuery<'_, '_, Self>) -> Result<GpuArray<i32>>;
    #[cfg(feature = "cuda")]
    #[doc(hidden)]
    fn nearest_on_device(rows: ModelQuery<'_, '_, Self>) -> Result<GpuPredictions>;
    #[cfg(feature = "cuda")]
    #[doc(hidden)]
    fn distances_on_device(rows: ModelQuery<'_, '_, Self>, squared: bool) -> Result<GpuArray<f64>>;
}

macro_rules! predictor {
    ($($float:ty),*) => {$(
        impl Predictor for $float {
            fn labels(rows: ModelQuery<'_, '_, Self>) -> Result<Labels> {
                by_place!(rows, cpu::predict::labels, cuda::predict::labels, rows.strategy)
            }
            fn nearest(rows: ModelQuery<'_, '_, Self>) -> Result<Predictions> {
                by_place!(rows, cpu::predict::nearest, cuda::predict::nearest)
            }
            fn distances(rows: ModelQuery<'_, '_, Self>, squared: bool) -> Result<Vec<f64>> {
                by_place!(rows, cpu::predict::distances, cuda::predict::distances; squared)
            }
            fn several(rows: ModelQuery<'_, '_, Self>, m: usize, squared: bool) -> Result<NearestClusters> {
                by_place!(rows, cpu::predict::several, cuda::predict::nearest_clusters; m, squared)
            }
            fn inertia(rows: ModelQuery<'_, '_, Self>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
                inertia(rows, weights)
            }
            #[cfg(feature = "cuda")]
            fn labels_on_device(rows: ModelQuery<'_, '_, Self>) -> Result<GpuArray<i32>> {
                cuda::predict::labels_on_device(&*rows.model.device_table(rows.gpu()?)?, rows.features, rows.strategy)
            }
            #[cfg(feature = "cuda")]
            fn nearest_on_device(rows: ModelQuery<'_, '_, Self>) -> Result<GpuPredictions> {
                cuda::predict::nearest_on_device(&*rows.model.device_table(rows.gpu()?)?, rows.features)
            }
            #[cfg(feature = "cuda")]
            fn distances_on_device(rows: ModelQuery<'_, '_, Self>, squared: bool) -> Result<GpuArray<f64>> {
                cuda::predict::distances_on_device(&*rows.model.device_table(rows.gpu()?)?, rows.features, squared)
            }
        }
    )*};
}

predictor!(f32, f64);
