//! Backends: a backend holds the rows of a fit and runs the passes over them.
//!
//! A [`Session`] holds the rows, labels and running sums of one fit. Its calls are in traits, one for each caller: seeding calls
//! [`Draws`], the loop calls [`Iterate`], and both call [`KeptRows`]. The traits are coarse: each call is one pass over the data
//! (or concerns a few rows). It returns only scalars, centroids and integer sums.

pub mod answers;
pub(crate) mod centre;
pub mod chunking;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod draws;
mod iterate;
mod joined;
pub mod select;
mod session;
mod sweep;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod timed;
pub(crate) mod update;

pub(crate) use draws::trials;
pub use draws::{DrawBy, Draws, Picked, PlusPlus, Sample, Sampled};
pub use iterate::{Advanced, Assigned, Far, Iterate, Iteration, KeptRows, Move, Scales, Stop, WorkCounts};
pub use joined::Joined;
pub use session::Session;

use self::select::Devices;

/// The GPUs of this machine, or the reason why there is none. Every call asks the driver again.
///
/// `CUDA_VISIBLE_DEVICES` hides and renumbers GPUs, as for every program.
pub fn devices() -> Devices {
    #[cfg(feature = "cuda")]
    return cuda::devices();
    #[cfg(not(feature = "cuda"))]
    Err("this build has no CUDA backend (the feature \"cuda\" of the Rust crate is off)".into())
}
