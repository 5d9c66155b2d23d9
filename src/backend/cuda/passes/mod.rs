//! Passes over the rows besides the steps of a fit: what is learnt before it, seeding, distances.

mod byte_copies;
pub mod distances;
pub mod farthest;
pub mod nearest_batch;
pub mod picks;
mod plus_plus;
mod ranges;
pub mod samples;
pub mod seeds;
pub mod several;
pub mod statistics;
