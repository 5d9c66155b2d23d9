//! Compiles the engine once per feature type, in this crate and with this crate's settings.
//!
//! Fits and predictions are generic over the float type. If their entry points were generic too, every crate that calls one would
//! compile the kernels again, and its debug builds would not optimise them.

use crate::base::error::Result;
use crate::base::params::{KMeans, Wanted};
use crate::fit;
#[cfg(feature = "bench")]
use crate::fit::benchmark;
#[cfg(feature = "bench")]
use crate::input::features::Features;
use crate::input::tile::RowBlock;
use crate::model::Fitted;
use crate::model::predict::Predictor;
use crate::simd::InstructionSet;

/// The feature types that the engine is compiled for: `f32` and `f64`. Fits and predictions take any of them.
///
/// The trait is sealed, because `Float` is.
pub trait Engine: Predictor {
    #[doc(hidden)]
    fn fits(
        estimator: &KMeans,
        clusters: &[usize],
        fixed: Option<&[f64]>,
        parts: Vec<RowBlock<'_, Self>>,
        set: InstructionSet,
        wanted: Wanted,
    ) -> Result<Vec<Result<Fitted<Self>>>>;
    #[cfg(feature = "bench")]
    #[doc(hidden)]
    fn in_session(estimator: &KMeans, features: &Features<'_, Self>, then: benchmark::Use<'_, Self>) -> Result<()>;
}

macro_rules! engine {
    ($($float:ty),*) => {$(
        impl Engine for $float {
            fn fits(
                estimator: &KMeans,
                clusters: &[usize],
                fixed: Option<&[f64]>,
                parts: Vec<RowBlock<'_, Self>>,
                set: InstructionSet,
                wanted: Wanted,
            ) -> Result<Vec<Result<Fitted<Self>>>> {
                fit::fits(estimator, clusters, fixed, parts, set, wanted)
            }
            #[cfg(feature = "bench")]
            fn in_session(estimator: &KMeans, features: &Features<'_, Self>, then: benchmark::Use<'_, Self>) -> Result<()> {
                benchmark::in_session(estimator, features, then)
            }
        }
    )*};
}

engine!(f32, f64);
