//! What every other layer stands on: errors, options, memory, threads, stops, progress, number types.

pub(crate) mod aligned;
pub(crate) mod environment;
pub mod error;
pub(crate) mod figures;
pub mod float;
pub mod interrupt;
pub(crate) mod memory;
pub(crate) mod names;
pub mod parallel;
pub mod params;
pub mod progress;
#[cfg(feature = "tests")]
pub(crate) mod random;
pub(crate) mod strategy;
mod team;
mod threads;
pub(crate) mod units;
