//! Passes over the rows besides the steps of a fit: what is learnt before it, seeding, distances.

pub mod distances;
pub mod draws;
pub mod prepare;
pub mod samples;
pub mod seeds;
