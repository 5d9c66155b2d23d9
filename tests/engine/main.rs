//! The engine held to an oracle that shares no code with it, on slices, without Polars.

mod data;
mod exactness;
#[cfg(unix)]
mod forked;
mod gpu;
mod oracle;
mod refusals;
mod same_bits;
mod strategies;
mod streaming;
mod traps;
