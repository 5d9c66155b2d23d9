//! Downloads answers: piece by piece through pinned memory, by several threads.
//!
//! A copy from the device straight to fresh memory is slow, because one thread of the driver touches every page of it for the
//! first time. Here the pieces arrive in the slots of the lanes (`upload/lanes.rs`), and the threads of the lanes write them to
//! their places. Small answers take one piece, and stay on the calling thread.

use std::sync::{Mutex, PoisonError};

use super::upload::{BorrowedLane, Staging};
use crate::backend::cuda::device::{Buffer, Plain, failed};
use crate::base::error::Result;
use crate::base::interrupt;

/// The bytes from which threads download values piece by piece.
const THROUGH_LANES: usize = 1 << 20;
/// Most rows of a piece.
pub const PIECE: usize = 1 << 17;

/// Downloads the first values, as many as `out` has places.
///
/// # Errors
/// Also [`KMeansError::Cancelled`](crate::KMeansError::Cancelled).
pub fn copy<V: Plain>(from: &Buffer<V>, out: &mut [V]) -> Result<()> {
    if size_of_val(out) < THROUGH_LANES {
        return from.read(0, out);
    }
    download(from, out.len(), PIECE, out.chunks_mut(PIECE), |from, to| to.copy_from_slice(from))?;
    interrupt::check()
}

/// Downloads the first `len` values in pieces of `piece` values. `work` gets each piece with its place, which is the next item of
/// `places`, in any order and on any thread.
pub fn download<V: Plain, P: Send>(
    from: &Buffer<V>,
    len: usize,
    piece: usize,
    places: impl Iterator<Item = P> + Send,
    work: impl Fn(&[V], P) + Sync,
) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let queue = from.queue();
    let staging = Staging::of(&queue.gpu);
    assert!(piece * size_of::<V>() <= staging.plan.slot, "pieces of {piece} values in a slot of {} bytes", staging.plan.slot);
    let ready = queue.stream.record_event(None).map_err(failed("a download"))?;
    let pieces = Mutex::new((0..len).step_by(piece).zip(places));
    let run = |mut borrowed: BorrowedLane<'_>| {
        let lane = borrowed.lane();
        lane.queue.stream.wait(&ready).map_err(failed("a download"))?;
        loop {
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((first, place)) = next else { return Ok(()) };
            let (slot, queue) = lane.next_slot()?;
            // SAFETY: the lane has waited for the work that wrote the values, and the buffer is borrowed until all threads are
            // done.
            let values = unsafe { slot.receive(queue, from, first..(first + piece).min(len)) }?;
            work(values, place);
        }
    };
    let lanes = staging.plan.for_bytes(len * size_of::<V>()).lanes.min(len.div_ceil(piece));
    staging.with_lanes(&queue.gpu, "download", lanes, run)
}
