//! The parameters of kernels that only benches and tests call: `kernels/bench/`.

use super::*;

arguments! {
    /// For labels by reference distances to all centroids.
    ReferenceArgument as "Reference" {
        x: u64,
        centroids: u64,
        labels: u64,
        n: u32,
        k: u32,
        d: u32,
        unused: u32,
    }
}
