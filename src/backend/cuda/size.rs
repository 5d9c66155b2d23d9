//! The size of a GPU.

use super::device::Gpu;
use super::shape::GpuSize;
use super::step::tensor::unit::untrusted;

impl Gpu {
    /// What the choice of kernels depends on.
    pub fn size(&self) -> GpuSize {
        let Self { ordinal, processors, shared_per_block, generation, .. } = *self;
        let untrusted = untrusted(ordinal);
        GpuSize { processors: processors as usize, shared: shared_per_block as usize, generation, untrusted }
    }
}
