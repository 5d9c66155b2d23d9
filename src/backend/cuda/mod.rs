//! The CUDA backend. Columns go to the device as they are, and the device does nearly all of the work. In seeding, the host
//! only draws the targets and chooses among the candidates.

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
mod samples;
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

/// The compiled kernels: the name of each file in `kernels/`, and its fat binary.
mod kernels {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}
