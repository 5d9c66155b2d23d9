//! The memory that a job takes on a GPU. It is the sum of the lists (`device/list.rs`) from which the job allocates. The choice of a
//! device, the memory limit and the size of chunks depend on it.
//!
//! ```text
//! a fit         rows + the larger of    what the passes before the fit need
//!                                       the session + what its largest pass needs: draws, far rows, inertia
//! rows          all rows, or the buffers of the chunks that fit at a time and pieces of row-major rows on their way
//! predictions   the model's table + two batches of rows + their answers
//! ```
//! Not counted: the pieces of row-major rows that are all sent at once. The lanes of the upload have them, at most 32 MiB in all,
//! and only until the rows have arrived.

use super::device::{Gpu, Plain, sum};
use super::exchange::Port;
use super::passes::distances::InertiaSums;
use super::passes::farthest::FarSearch;
use super::passes::samples::candidate_bytes;
use super::passes::seeds::DeviceDraws;
use super::passes::statistics::statistics_bytes;
use super::predict::DeviceTable;
use super::rows::DeviceRows;
use super::session::{LONGEST_BATCH, nearest_bytes, priced_bytes};
use super::shape::{FitShape, GpuSize};
use super::state::DeviceState;
use super::step::choice::{Chosen, choose_from};
use super::step::tensor::adding::untrusted;
use super::step::{Needs, Refusal};
use super::update::UpdateLaunches;
use crate::backend::chunking::{Chunking, piece_bytes, row_bytes};
use crate::backend::select::{DeviceInfo, Job, Shape};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;

impl From<&DeviceInfo> for GpuSize {
    fn from(device: &DeviceInfo) -> Self {
        Self {
            processors: device.multiprocessors as usize,
            shared: device.shared_per_block as usize,
            generation: 10 * device.compute_capability.0 + device.compute_capability.1,
            untrusted: untrusted(device.ordinal),
        }
    }
}

impl Gpu {
    /// What the choice of kernels depends on.
    pub fn size(&self) -> GpuSize {
        let Self { ordinal, processors, shared_per_block, generation, .. } = *self;
        let untrusted = untrusted(ordinal);
        GpuSize { processors: processors as usize, shared: shared_per_block as usize, generation, untrusted }
    }
}

/// The bytes of a fit with default kernels whose rows are all on the GPU. `more_copies`: with optional copies.
/// For tests.
#[doc(hidden)]
pub fn resident_bytes(shape: Shape, device: &DeviceInfo, more_copies: bool) -> u64 {
    let copies = if more_copies { PossibleCopies::All } else { PossibleCopies::Needed };
    planned(shape, Strategy::Default, device.into(), false, copies).map_or(u64::MAX, |plan| plan.bytes)
}

/// The chunks of a fit with default kernels in `room` bytes of a GPU, or the bytes that are needed. For tests.
#[doc(hidden)]
pub fn chunking(shape: Shape, device: &DeviceInfo, room: u64) -> std::result::Result<Chunking, u64> {
    in_chunks(shape, Strategy::Default, device.into(), room).unwrap_or(Err(u64::MAX)).map(|(chunking, _)| chunking)
}

/// How a fit runs on a GPU if all its rows are there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::backend) struct Planned {
    pub bytes: u64,
    /// The kernel that was chosen.
    pub strategy: Strategy,
    /// Whether there is memory for optional copies.
    pub more_copies: bool,
    /// Its predicted time for an iteration, if it was not named by the caller.
    pub microseconds: Option<f64>,
    /// Whether the kernel can work chunk by chunk.
    streams: bool,
}

/// The shape of a fit. `chunk`: the rows of a chunk, or all rows.
fn fit_shape(shape: Shape, chunk: u64) -> FitShape {
    FitShape {
        rows: usize::try_from(shape.rows).unwrap_or(usize::MAX),
        chunk: usize::try_from(chunk).unwrap_or(usize::MAX),
        d: shape.features,
        k: shape.clusters,
        weighted: shape.weighted,
        float64: shape.float64,
        half: shape.half,
        limbs: if shape.weighted || shape.float64 { 2 } else { 1 },
        more_copies: false,
    }
}

/// The plan of a fit whose rows are all on the GPU. `in_place`: they are in the memory of the caller there, and only the weights
/// need room. If the plan needs more than `room`, the kernel leaves out optional copies. If that is not enough, the default takes a
/// kernel that does not copy the rows.
pub(in crate::backend) fn fit(shape: Shape, strategy: Strategy, gpu: GpuSize, in_place: bool, room: u64) -> Result<Planned> {
    let plan = |copies| planned(shape, strategy, gpu, in_place, copies);
    let mut found = plan(PossibleCopies::All)?;
    if found.bytes > room {
        found = plan(PossibleCopies::Needed)?;
    }
    if found.bytes > room && strategy == Strategy::Default {
        found = plan(PossibleCopies::None)?;
    }
    Ok(found)
}

/// Which copies of all rows a fit may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PossibleCopies {
    None,
    /// The copies that a kernel needs.
    Needed,
    All,
}

fn planned(shape: Shape, strategy: Strategy, gpu: GpuSize, in_place: bool, copies: PossibleCopies) -> Result<Planned> {
    let plan = if shape.float64 { planned_as::<f64> } else { planned_as::<f32> };
    plan(shape, strategy, gpu, in_place, copies)
}

fn planned_as<T: Float + Plain>(
    shape: Shape,
    strategy: Strategy,
    gpu: GpuSize,
    in_place: bool,
    copies: PossibleCopies,
) -> Result<Planned> {
    let fit = FitShape { more_copies: copies == PossibleCopies::All, ..fit_shape(shape, shape.rows) };
    let rows = DeviceRows::<T>::bytes(fit.chunk, if in_place { 0 } else { fit.d }, fit.weighted, fit.half);
    let draws = |fit: &FitShape| DeviceDraws::<T>::bytes(fit, false);
    plan_of::<T>(&fit, (strategy, copies != PossibleCopies::None), gpu, rows, draws, shape)
}

/// The plan of a fit. `copies`: whether the default may copy the rows. `rows`: the bytes of the rows. `draws`: the bytes of a table
/// of draws. `shape`: the candidates of a seeding, and whether there are passes with prices.
fn plan_of<T: Float + Plain>(
    fit: &FitShape,
    (strategy, copies): (Strategy, bool),
    gpu: GpuSize,
    rows: u64,
    draws: impl Fn(&FitShape) -> u64,
    shape: Shape,
) -> Result<Planned> {
    let Chosen { candidate, microseconds } = choose_from::<T>(strategy, fit, gpu, copies)?;
    // Whether a float32 column needs two limbs depends on the data. There must be enough memory for either case.
    let bytes = [1, 2].map(|limbs| {
        let fit = FitShape { limbs, ..*fit };
        let draws = draws(&fit);
        let draws = draws.max(candidate_bytes::<T>(&fit, shape.candidates, draws, gpu));
        let priced = if shape.priced { priced_bytes::<T>([fit.chunk, fit.d, fit.k]) } else { 0 };
        fit_bytes::<T>(&fit, &candidate.needs(&fit, gpu), rows, draws.max(priced))
    });
    let bytes = bytes[0].max(bytes[1]);
    let (strategy, streams, more_copies) = (candidate.strategy(), candidate.streams(), fit.more_copies);
    Ok(Planned { bytes, strategy, more_copies, microseconds, streams })
}

/// The bytes of a fit. `rows`: those of the rows. `passes`: those of seeding, or of passes with prices if these take more.
fn fit_bytes<T: Float + Plain>(fit: &FitShape, needs: &Needs, rows: u64, passes: u64) -> u64 {
    let session =
        sum([DeviceState::<T>::bytes(fit, needs), UpdateLaunches::<T>::bytes(fit, LONGEST_BATCH as usize), needs.bytes]);
    let passes = passes.max(FarSearch::bytes(fit)).max(InertiaSums::bytes(fit.k)).max(nearest_bytes(fit.chunk));
    sum([rows, statistics_bytes(fit.chunk, fit.d).max(sum([session, passes]))])
}

/// The bytes that a fit on several GPUs takes on each of them beside its plan.
pub(in crate::backend) fn of_exchange(shape: Shape) -> u64 {
    Port::bytes(&FitShape { limbs: 2, ..fit_shape(shape, shape.rows) })
}

/// How the rows of a fit pass through a GPU in chunks within `room` bytes, and the plan for such a chunk. The inner error is the
/// number of bytes that are needed.
pub(in crate::backend) fn in_chunks(
    shape: Shape,
    strategy: Strategy,
    gpu: GpuSize,
    room: u64,
) -> Result<std::result::Result<(Chunking, Planned), u64>> {
    // The default finds a strategy that streams.
    if strategy != Strategy::Default && !fit(shape, strategy, gpu, false, u64::MAX)?.streams {
        return Err(Refusal::of_chunks().of(strategy));
    }
    let of_type = if shape.float64 { planned_in_chunks::<f64> } else { planned_in_chunks::<f32> };
    let plan = |chunk: u64, buffers: u64| of_type(shape, strategy, gpu, chunk, buffers);
    // Whether a strategy can do a shape does not depend on the rows.
    let bytes = |chunk: u64, buffers: u64| plan(chunk, buffers).map_or(u64::MAX, |plan| plan.bytes);
    let chunking = match Chunking::new(shape, room, bytes) {
        Ok(chunking) => chunking,
        Err(needed) => return Ok(Err(needed)),
    };
    let of_chunk = plan(chunking.rows, chunking.buffers)?;
    // The chunks follow each other. The time of the bus does not count.
    let microseconds = of_chunk.microseconds.map(|time| time * chunking.chunks as f64);
    Ok(Ok((chunking, Planned { microseconds, ..of_chunk })))
}

/// The plan of a fit with chunks of `chunk` rows, of which `buffers` are on the GPU at a time.
fn planned_in_chunks<T: Float + Plain>(
    shape: Shape,
    strategy: Strategy,
    gpu: GpuSize,
    chunk: u64,
    buffers: u64,
) -> Result<Planned> {
    let fit = fit_shape(shape, chunk);
    let rows = DeviceRows::<T>::bytes(fit.chunk, fit.d, fit.weighted, fit.half).saturating_mul(buffers);
    let pieces = piece_bytes(chunk.saturating_mul(row_bytes(shape)));
    let draws = |fit: &FitShape| DeviceDraws::<T>::bytes(fit, true);
    plan_of::<T>(&fit, (strategy, false), gpu, sum([rows, pieces]), draws, shape)
}

/// The bytes of a job of a fitted model.
pub(in crate::backend) fn of_model(shape: Shape, gpu: GpuSize) -> u64 {
    if shape.float64 { bytes_of_model::<f64>(shape, gpu) } else { bytes_of_model::<f32>(shape, gpu) }
}

fn bytes_of_model<T: Float + Plain>(shape: Shape, gpu: GpuSize) -> u64 {
    let (d, k) = (shape.features, shape.clusters);
    let bytes = |rows: u64, before: u64| {
        let n = usize::try_from(rows).unwrap_or(usize::MAX);
        let answers = DeviceTable::<T>::answer_bytes(shape.job, [n, d, k], gpu);
        sum([DeviceRows::<T>::bytes(n, d, shape.weighted, shape.half), answers.max(before)])
    };
    let rows = if shape.job == Job::Score {
        bytes(shape.rows, statistics_bytes(usize::try_from(shape.rows).unwrap_or(usize::MAX), d))
    } else {
        // All batches between the first and the last are of one size.
        let batches: Vec<u64> = shape.batches(true).take(4).map(|range| bytes(range.end - range.start, 0)).collect();
        let two = batches.windows(2).map(|two| sum([two[0], two[1]])).max();
        two.or(batches.first().copied()).unwrap_or(0)
    };
    sum([DeviceTable::<T>::bytes(d, k, gpu), rows])
}
