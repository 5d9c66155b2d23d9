//! The step of an iteration: it labels the rows of a chunk and adds the moves of rows to the pending sums.
//!
//! ```text
//! an iteration:   step (chunk by chunk)   reduce (over the devices of a fit)   update (exact means, copies for the next step)
//! ```
//! A [`Candidate`] is one way to do the step. It says in one place which shapes it supports, what memory it needs, how it wants
//! the copies of the centroids, how long it is expected to take, and how it is launched. [`list::candidates`] lists all of them.
//! To add a kernel, write its file and add it to the list.

pub mod by_row;
pub mod choice;
pub mod columns;
pub mod deltas;
pub mod filter;
pub mod grid;
pub mod list;
pub mod registers;
pub mod shares;
pub mod tensor;
pub mod tiled;

use self::filter::FilterSpec;
use super::device::Queue;
use super::rows::chunks::DeviceChunk;
use super::shape::{FitShape, GpuSize};
use super::state::DeviceState;
use crate::base::error::{KMeansError, Result};
use crate::base::strategy::Strategy;

/// One way to do the step.
pub trait Candidate<T>: Sync {
    /// Its name.
    fn strategy(&self) -> Strategy;

    /// The name that stands for the fastest of it and its variants, if there is one.
    fn family(&self) -> Option<Strategy> {
        None
    }

    /// Whether it can do a shape on a GPU. The error says which limit the shape exceeds. [`Candidate::streams`] says whether the
    /// rows may be in chunks.
    fn supports(&self, shape: &FitShape, gpu: GpuSize) -> Supported;

    /// Whether it can work chunk by chunk.
    fn streams(&self) -> bool {
        true
    }

    /// Whether the default may be this one only where there is memory for a copy of all rows.
    fn copies_rows(&self) -> bool {
        false
    }

    /// What it needs from the session. The step allocates exactly [`Needs::bytes`] for itself.
    fn needs(&self, shape: &FitShape, gpu: GpuSize) -> Needs;

    /// The step for a fit.
    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>>;

    /// How its measured times carry over to other shapes. None: it has no times in the table.
    fn work(&self) -> Option<&dyn TimeScaling> {
        None
    }

    /// The time of an iteration in microseconds, if it is not taken from the table. A candidate with neither is never chosen by
    /// default.
    fn predicted(&self, _shape: &FitShape, _gpu: GpuSize) -> Option<f64> {
        None
    }
}

/// A step that was made for one fit. It may keep state from iteration to iteration, such as bounds.
pub trait Step<T>: Send {
    /// Labels the rows of a chunk by the current centroids, and adds the moves of rows to the pending sums. The old labels are
    /// in `state.labels`. `state.centroids.drift` has the squared distance that each centroid has moved in the last update on the
    /// device, unless the host has set the centroids since then: see [`Step::restart`].
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()>;

    /// Writes labels to `state.labels` that the step has kept elsewhere. Called before others read or change labels.
    fn write_labels(&self, _state: &DeviceState<T>) -> Result<()> {
        Ok(())
    }

    /// The labels were changed outside this step: the state that the step keeps is not valid any more.
    fn forget(&mut self) {}

    /// The host has set the centroids. `state.centroids.drift` does not say how far they moved.
    fn restart(&mut self) {}

    /// Whether the step may leave scores out, and counts the scores that it computes in `Control::scores`. If not, it computes
    /// all scores.
    fn counts_scores(&self) -> bool {
        false
    }
}

/// What a step needs from its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// How it reads the copies of the centroids.
    pub filter: FilterSpec,
    pub label_arrays: LabelArrays,
    /// Bytes of device memory that the step itself allocates.
    pub bytes: u64,
}

/// How a step writes labels. The value is the number of arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelArrays {
    /// One array: a new label overwrites the old one.
    InPlace = 1,
    /// Two arrays: the labels before and after.
    BeforeAndAfter = 2,
}

/// Whether a candidate can do a shape, or why not.
pub type Supported = std::result::Result<(), Refusal>;

/// Refuses more than `most` of something, such as features.
pub fn at_most(most: usize, what: &str, got: usize) -> Supported {
    if got > most { Err(Refusal::new(format!("at most {most} {what}"), got)) } else { Ok(()) }
}

/// Refuses a GPU whose blocks may have less shared memory than this.
pub fn needs_shared(bytes: usize, gpu: GpuSize) -> Supported {
    if gpu.shared < bytes { Err(Refusal::new(format!("{bytes} bytes of shared memory a block"), gpu.shared)) } else { Ok(()) }
}

/// Why a candidate cannot do a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The limit, such as "at most 12 features".
    pub limit: String,
    /// What would help, or nothing.
    pub hint: &'static str,
    pub got: String,
}

impl Refusal {
    pub fn new(limit: impl Into<String>, got: impl ToString) -> Self {
        Self { limit: limit.into(), hint: "", got: got.to_string() }
    }

    /// The rows pass through the GPU in chunks, and the candidate cannot work chunk by chunk.
    pub fn of_chunks() -> Self {
        let got = "rows that do not, or a limit that they exceed".into();
        Self { limit: "rows that fit on the GPU".into(), hint: ": \"default\" streams them", got }
    }

    /// The error for a caller who asked for this strategy.
    pub fn of(self, strategy: Strategy) -> KMeansError {
        let Self { limit, hint, got } = self;
        KMeansError::InvalidOption { option: "strategy", expected: format!("{limit} for \"{strategy}\"{hint}"), got }
    }
}

/// How measured times carry over to other shapes (`choice/table.rs`).
pub trait TimeScaling {
    /// The features and clusters that it really works on. Kernels round both up.
    fn filled(&self, d: usize, k: usize) -> (usize, usize);

    /// Whether tiles come in whole rounds. Then all clusters that fill the same tiles take the same time.
    fn in_rounds(&self) -> bool;

    /// Shapes whose centroids are in the same memory are compared first.
    fn centroids_in_shared(&self, _d: usize, _k: usize) -> bool {
        false
    }
}
