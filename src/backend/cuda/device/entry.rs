//! Typed launches: a kernel's handle knows the struct that the kernel takes. A launch with another struct does not compile.

use std::marker::PhantomData;

use super::gpu::{Function, Gpu};
use crate::base::error::Result;
use crate::base::float::Float;

/// The single parameter of a kernel. It has the layout of a struct in `kernels/` (`arguments.rs`).
///
/// # Safety
/// The type is `repr(C)`, and its fields have the sizes and offsets of the struct that the kernel declares.
pub unsafe trait Argument: Copy {}

/// The name of a kernel. Its type says which argument the kernel takes. Only `arguments.rs` makes entries: the build writes them
/// from the kernels.
#[derive(Clone, Copy)]
pub struct Entry<A> {
    /// The file that holds the kernel, without folder and extension.
    pub module: &'static str,
    /// The name without the feature type and the variant.
    pub stem: &'static str,
    /// The type of the rows' values in the name: `_f32`, `_f64`, `_f16`, or nothing if the kernel does not know it.
    of_type: &'static str,
    /// The threads that the kernel is compiled for, and no dynamic shared memory, unless the caller says otherwise.
    pub block: Block,
    argument: PhantomData<fn(A)>,
}

impl<A: Argument> Entry<A> {
    /// The kernel for feature type `T`. `threads`: those of a block, or 0 if the caller must say them.
    pub const fn typed<T: Float>(module: &'static str, stem: &'static str, threads: u32) -> Self {
        Self { of_type: if T::IS_F32 { "_f32" } else { "_f64" }, ..Self::untyped(module, stem, threads) }
    }

    /// The same for rows whose values have 16 bits. Features are float32 then.
    pub const fn half_if(self, half: bool) -> Self {
        Self { of_type: if half { "_f16" } else { self.of_type }, ..self }
    }

    /// A kernel that does not know the feature type.
    pub const fn untyped(module: &'static str, stem: &'static str, threads: u32) -> Self {
        Self { module, stem, of_type: "", block: Block { threads, shared: 0 }, argument: PhantomData }
    }

    /// The same with this much dynamic shared memory.
    pub const fn with_shared(self, shared: usize) -> Self {
        Self { block: Block { shared, ..self.block }, ..self }
    }

    /// The same with other blocks.
    pub const fn with_block(self, block: Block) -> Self {
        Self { block, ..self }
    }

    /// The blocks that have a thread for each of some items.
    pub const fn blocks_of(&self, items: usize) -> usize {
        items.div_ceil(self.block.threads as usize)
    }

    /// The blocks that have a warp for each of some items.
    pub const fn blocks_of_warps(&self, items: usize) -> usize {
        items.div_ceil(self.block.threads as usize / 32)
    }

    /// Loads the kernel for this many blocks. `variant` is the end of its name, such as `_d4`; most kernels have none.
    pub fn exactly(&self, gpu: &Gpu, variant: &str, blocks: usize) -> Result<Launch<A>> {
        let function = gpu.function(self.module, &format!("{}{}{variant}", self.stem, self.of_type))?;
        let Block { threads, shared } = self.block;
        debug_assert!(threads > 0, "{}: the launch bounds do not say the threads", self.stem);
        let launch = Launch { function, blocks: 1, threads, shared: shared as u32, argument: PhantomData };
        Ok(launch.with_blocks(blocks))
    }

    /// Loads the kernel for as many blocks as run at once on the device, but at most `most`.
    pub fn resident(&self, gpu: &Gpu, variant: &str, most: usize) -> Result<Launch<A>> {
        let launch = self.exactly(gpu, variant, most.max(1))?;
        if self.block.shared > 0 {
            gpu.prefer_shared_memory(launch.function)?;
        }
        let resident = gpu.resident_blocks(launch.function, launch.threads, launch.shared)?;
        Ok(Launch { blocks: launch.blocks.min(resident), ..launch })
    }
}

/// The threads and the bytes of dynamic shared memory of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub threads: u32,
    pub shared: usize,
}

/// A kernel that was loaded, with its number of blocks, and the threads and shared memory of each block.
#[derive(Clone, Copy)]
pub struct Launch<A> {
    pub(super) function: Function,
    pub blocks: u32,
    pub threads: u32,
    pub shared: u32,
    argument: PhantomData<fn(A)>,
}

impl<A> Launch<A> {
    /// Pads shared memory so that the blocks are spread evenly over the SMs: see [`Gpu::evenly`].
    pub fn spread(self, gpu: &Gpu) -> Result<Self> {
        let shared = gpu.evenly(self.function, self.threads, self.blocks, self.shared)?;
        Ok(Self { shared, ..self })
    }

    /// The same launch, but with this many blocks.
    pub fn with_blocks(self, blocks: usize) -> Self {
        Self { blocks: u32::try_from(blocks).unwrap_or(u32::MAX), ..self }
    }
}
