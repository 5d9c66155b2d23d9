//! The CUDA backend: columns go to the device as they are, and everything but the last word of a draw happens there.

mod arguments;
mod chooser;
mod chunks;
mod device;
mod draws;
mod plan;
pub mod predict;
mod prepare;
mod probe;
mod rows;
mod seeds;
mod session;
mod stream;
mod systems;
mod upload;

#[doc(hidden)]
pub use chooser::CANDIDATES;
#[doc(hidden)]
pub use device::refusal;
pub use device::{Gpu, Plain};
pub use predict::DeviceTable;
pub use prepare::DevicePasses;
pub use probe::devices;
#[cfg(feature = "bench")]
pub use session::STAGES;
pub use session::{CudaSession, check};
#[cfg(feature = "bench")]
pub use upload::{UploadPlan, upload_benchmark};

/// The compiled kernels: name of the file in `kernels/`, fatbin.
mod kernels {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}
