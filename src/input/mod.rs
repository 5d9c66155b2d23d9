//! The rows of a fit as the caller holds them: columns, tiles, and what is done to values where they are read.

pub mod features;
pub mod fp16;
#[cfg(feature = "cuda")]
pub mod gpu_table;
pub mod tile;
pub(crate) mod transform;
pub mod value_type;
