//! The systems of the source papers, each as a step of a fit. They give the same bits as all other steps.
//!
//! `systems.rs` says what each system consists of, `sizes.rs` how large its tables are, `passes.rs` how it adds up, and `step.rs`
//! puts the parts together. Five systems let the CPU divide, and one of them also lets it add up (`host.rs`). `yinyang.rs` has
//! kmcuda's other algorithm, as we would build it.

mod host;
mod passes;
mod sizes;
mod step;
mod systems;
mod yinyang;

pub use self::host::HostUpdate;
#[cfg(feature = "bench")]
pub use self::host::STAGES;
use self::systems::System;
use self::yinyang::Yinyang;
use super::device::Plain;
use super::step::Candidate;
use crate::base::float::Float;
use crate::base::strategy::Strategy;

/// All systems.
pub fn candidates<T: Float + Plain>() -> impl Iterator<Item = Box<dyn Candidate<T>>> {
    let systems = Strategy::ALL.iter().filter_map(|&strategy| System::of(strategy));
    systems.map(|system| Box::new(system) as Box<dyn Candidate<T>>).chain([Box::new(Yinyang) as Box<dyn Candidate<T>>])
}
