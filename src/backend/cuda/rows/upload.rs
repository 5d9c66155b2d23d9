//! Uploads columns to the device. The host does not transpose or concatenate anything, and the amount of pinned memory is
//! bounded.
//!
//! ```text
//! cut each part into tasks of at most one slot: runs of its columns, of its weights, or whole rows of its blocks
//! a few threads, each with a lane: a stream and two slots of pinned memory
//!     while there are tasks:
//!         take the other slot of the lane, once its copy has arrived     the copy of the first slot is still under way
//!         fill it with the kept rows of the task, chunk by chunk
//!         columns: copy it to its place in the column-major matrix
//!         blocks:  copy it to a piece of device memory, and turn rows into columns there (kernels/passes/layout.cu)
//! wait for all lanes; scale and normalise the rows, if asked              rows/transform.rs
//! ```
//! One thread fills pinned memory at a fifth of the speed at which the bus empties it. So several threads fill it at once. Each
//! sends its own slots, and none waits for another. Pinning is slow, so lanes are kept until the process ends. The host memory
//! for uploads is two slots of [`UploadPlan::slot`] bytes for each lane, however many fits there are. Lanes have their own
//! threads, because a fit that waits for lanes may itself be a task of the thread pool. Answers come back through the same lanes
//! (`rows/download.rs`).

#[cfg(feature = "bench")]
mod benchmark;
mod carrier;
mod kept;
mod lanes;
mod pinned;
mod tasks;

use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "bench")]
pub use self::benchmark::upload_benchmark;
pub use self::carrier::Carrier;
pub use self::lanes::{BorrowedLane, Lane, Staging, UploadPlan, join};
pub use self::tasks::{Sources, UploadTask};
use crate::backend::cuda::device::{Plain, Queue, failed};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::external::take_in;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::tile::RowBlock;

/// Uploads the kept rows of all parts, in order, and their weights as they are. If only some parts have weights, the rows of
/// parts without weights get weight 1.
///
/// When it returns, all rows have arrived. Rows that are on the device already are read or copied there.
pub fn upload<T: Float + Plain>(queue: &Queue, parts: &[RowBlock<'_, T>]) -> Result<DeviceRows<T>> {
    if parts.first().is_some_and(|part| part.features.gpu_rows().is_some()) {
        return take_in(queue, parts);
    }
    upload_by(queue, parts, &Staging::of(&queue.gpu))
}

fn upload_by<T: Float + Plain>(queue: &Queue, parts: &[RowBlock<'_, T>], staging: &Staging) -> Result<DeviceRows<T>> {
    let sources = Sources::new(parts)?;
    let rows = DeviceRows::new(queue, sources.n, sources.d, sources.weighted, sources.half)?;
    let plan = staging.plan.for_bytes(sources.n * sources.row_bytes());
    let carrier = Carrier::new(&queue.gpu, &sources, plan.slot)?;
    let tasks = sources.tasks(&(0..sources.n), plan.slot)?;
    if tasks.is_empty() {
        return Ok(rows);
    }
    // Work after this point of the queue may write to the matrix.
    let ready = queue.stream.record_event(None).map_err(failed("the upload"))?;
    // The next task that a lane can take.
    let next = AtomicUsize::new(0);
    let send_all = |lane: &mut Lane| -> Result<()> {
        lane.queue.stream.wait(&ready).map_err(failed("the upload"))?;
        let mut piece = None;
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: every column of the matrix has room for all kept rows. No two tasks write to the same place. The matrix
            // stays until all lanes have ended. The lane has waited until the matrix was made.
            unsafe { carrier.send(lane, &mut piece, task, rows.argument(), |_| Ok(())) }?;
        }
        Ok(())
    };
    staging.with_lanes(&queue.gpu, "upload", plan.lanes.min(tasks.len()), |mut borrowed| {
        let done = send_all(borrowed.lane());
        if done.is_err() {
            // After an error the remaining tasks are not needed.
            next.store(tasks.len(), Ordering::Relaxed);
        }
        // Everything that was sent has arrived after the wait, which reports the errors of the copies themselves.
        done.and(borrowed.lane().queue.wait())
    })?;
    rows.transform(parts[0].features.row_transform())?;
    Ok(rows)
}

#[cfg(feature = "tests")]
mod tests {
    use super::kept::tests::selection;
    use super::*;
    use crate::backend::cuda::device::Gpu;
    use crate::input::features::{Chunk, Column, Features};

    fn chunked<T: Copy>(values: &[T], step: usize) -> Column<'_, T> {
        Column::new(values.chunks(step).map(|values| Chunk::new(values, None).unwrap()))
    }

    fn value<T: Float>(i: usize, f: usize) -> T {
        T::from_f64((i * 64 + f) as f64)
    }

    /// Uploads columns of chunks and blocks, with and without selections and weights, through slots of several sizes.
    fn what_arrives<T: Float + Plain>() {
        let Some(device) = crate::backend::devices().ok().and_then(|all| all.into_iter().find(|device| device.usable)) else {
            return;
        };
        let queue = Gpu::get(device.ordinal).unwrap().queue().unwrap();
        for (n, d) in [(1, 1), (100, 3), (5000, 2), (3000, 33), (700, 70)] {
            let columns: Vec<Vec<T>> = (0..d).map(|f| (0..n).map(|i| value(i, f)).collect()).collect();
            let rows: Vec<T> = (0..n).flat_map(|i| (0..d).map(move |f| value(i, f))).collect();
            let weights: Vec<f64> = (0..n).map(|i| 0.5 * i as f64).collect();
            let column_view = Features::new(columns.iter().map(|c| chunked(c, 129)).collect()).unwrap();
            let block_view = Features::from_blocks(rows.chunks(97 * d).map(|rows| (rows, None, None)), d).unwrap();
            let mut parts =
                [column_view.clone(), block_view.clone(), column_view, block_view].map(|view| RowBlock::new(view, None));
            parts[2].selection = selection(n, 1);
            parts[3].selection = selection(n, 2);
            parts[3].weights = Some(chunked(&weights, 53));
            for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)] {
                let parts = &parts[from..to];
                for slot in [64, 4096, 1 << 20] {
                    let there = upload_by(&queue, parts, &Staging::new(UploadPlan { lanes: 3, slot })).unwrap();
                    let kept = |part: &RowBlock<'_, T>| (0..n).filter(|&i| part.selection.contains(i)).collect::<Vec<_>>();
                    let mut x = vec![T::default(); there.stride * d];
                    let mut w = vec![0.0; there.stride];
                    let mut at = 0;
                    for part in parts {
                        for i in kept(part) {
                            (0..d).for_each(|f| x[f * there.stride + at] = value(i, f));
                            w[at] = if part.weights.is_some() { weights[i] } else { 1.0 };
                            at += 1;
                        }
                    }
                    assert_eq!(there.n, at);
                    let mut arrived = vec![T::default(); x.len()];
                    there.x.read(0, &mut arrived).unwrap();
                    assert!(arrived == x, "{n} x {d}, parts {from}..{to}, slots of {slot}");
                    assert_eq!(there.weights.map(|w| w.to_vec().unwrap()), (to == 4).then_some(w));
                }
            }
        }
    }

    unit_test!(what_arrives_are_the_kept_rows);
    fn what_arrives_are_the_kept_rows() {
        what_arrives::<f32>();
        what_arrives::<f64>();
    }
}
