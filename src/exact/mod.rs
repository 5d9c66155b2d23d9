//! Exact arithmetic: fixed-point sums, reference distances, random draws. These define the bits of every result.

pub mod cluster_sums;
pub mod distances;
pub mod fixed;
pub mod matching;
pub mod reference;
pub mod rng;
