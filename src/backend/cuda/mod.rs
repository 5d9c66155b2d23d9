//! The CUDA backend. Columns go to the device as they are, and the device does nearly all of the work. In seeding, the host
//! only draws the targets and chooses among the candidates.

mod arguments;
pub mod array;
pub(crate) mod device;
mod exchange;
pub mod memory;
#[cfg(feature = "papers")]
mod papers;
mod passes;
pub mod predict;
#[cfg(feature = "bench")]
mod reference;
mod rows;
mod session;
mod shape;
mod state;
mod step;
mod update;

pub(in crate::backend) use device::peers::reach_each_other;
pub use device::probe::{ARCHITECTURES, devices};
pub use device::{CallersContext, Gpu, Plain};
#[doc(hidden)]
pub use device::{refusal, traffic};
#[cfg(feature = "tests")]
#[doc(hidden)]
pub use exchange::ALWAYS_OWN_CLUSTERS;
pub use exchange::GpuGroup;
#[cfg(all(feature = "bench", feature = "papers"))]
pub use papers::STAGES;
pub use passes::distances::MOST_PENDING;
pub use passes::several::SeveralPasses;
pub use passes::statistics::DevicePasses;
pub use predict::DeviceTable;
#[cfg(feature = "bench")]
pub use reference::reference_labels;
pub use rows::chunks::RowChunks;
#[cfg(feature = "bench")]
pub use rows::upload::upload_benchmark;
pub use session::{CudaSession, GpusInStep};
#[doc(hidden)]
pub use step::choice::measured;
#[doc(hidden)]
pub use step::tensor::adding::{how_tensor_cores_add, is_untrusted};
