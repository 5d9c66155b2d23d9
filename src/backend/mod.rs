//! Backends: a backend holds the rows of a fit and runs the passes over them.
//!
//! A [`Session`] holds the rows, labels and running sums of one fit. Its calls are in two traits: seeding calls [`Seeder`], and
//! the loop calls [`Session`]. The traits are coarse: each call is one pass over the data (or concerns a few rows). It returns
//! only scalars, centroids and integer sums. So the calls can be values too (`call.rs`), and [`Sharded`] makes one session of
//! several.

pub mod answers;
pub(crate) mod call;
pub(crate) mod centre;
pub mod chunking;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod priced;
mod seeder;
pub mod select;
mod session;
pub(crate) mod sharded;
mod sweep;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod timed;
#[doc(hidden)]
pub mod update;

pub(crate) use seeder::{DRAWN, trials};
pub use seeder::{Draw, DrawBy, Picked, PlusPlus, Sample, Seeder, SeedingDevice};
pub use session::{Advanced, Assigned, Far, Iteration, Move, Scales, Session, Stop, Updated, WorkCounts};
pub use sharded::{Sessions, Sharded};

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
