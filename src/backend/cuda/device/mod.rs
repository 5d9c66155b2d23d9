//! One GPU as this process uses it: its primary context, the loaded kernels, memory and launches.
//!
//! This folder holds nearly all unsafe calls to CUDA. (Pinned memory is in `rows/upload/pinned.rs`.) Allocations free themselves.
//! Copies check lengths. A kernel takes one plain struct (`arguments.rs`), and its handle knows which one (`entry.rs`).

mod at;
mod buffer;
mod callers;
mod entry;
mod gpu;
mod kernels;
mod list;
pub mod peers;
pub mod probe;
mod queue;
pub mod refusal;
pub mod traffic;

use cudarc::driver::{DriverError, sys};

pub use self::at::At;
pub(in crate::backend::cuda) use self::at::field;
pub use self::buffer::Buffer;
pub use self::callers::CallersContext;
pub use self::entry::{Argument, Block, Entry, Launch};
pub use self::gpu::Gpu;
pub(in crate::backend::cuda) use self::list::buffers;
pub use self::list::{bytes_of, product, sum};
pub use self::queue::Queue;
use crate::base::error::KMeansError;
use crate::base::float::Float;

/// Plain data that kernels read and write. Any bit pattern of the right size is a valid value.
///
/// # Safety
/// The type has no padding that is read, no pointers to host memory and no invalid bit patterns.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: this is a number, so every bit pattern is a valid value.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64, u128, i128);
// SAFETY: `Float` is sealed: the type is f32 or f64, and every bit pattern is a valid value.
unsafe impl<T: Float> Plain for T {}

/// The error for a CUDA call that failed. `what` says what the call was for.
pub fn failed(what: &str) -> impl Fn(DriverError) -> KMeansError + '_ {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            KMeansError::NoMemory { what: format!("{what} on the GPU").into(), bytes: None }
        }
        _ => KMeansError::Device { what: what.to_string(), reason: format!("{error}") },
    }
}

/// The driver rounds an allocation up to a multiple of this many bytes.
const ALLOCATION: u64 = 512;

/// The bytes that an allocation takes on the device.
fn allocated(bytes: usize) -> u64 {
    (bytes as u64).saturating_add(ALLOCATION - 1) & !(ALLOCATION - 1)
}
