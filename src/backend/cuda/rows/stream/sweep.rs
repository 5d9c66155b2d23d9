//! One pass: lanes send chunks, and the calling thread queues kernels for the chunks that have arrived.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Events;
use super::order::{ChunkVisit, VISITS};
use crate::backend::cuda::arguments::RowsArgument;
use crate::backend::cuda::device::{Plain, Queue, failed};
use crate::backend::cuda::rows::upload::{BorrowedLane, Carrier, Lane, Staging, UploadTask, join};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;

/// The state of one pass over the chunks. Its threads share it.
pub struct ChunkSweep<'s, 'a, T> {
    carrier: &'s Carrier<'s, 'a, T>,
    events: &'s [Events],
    /// The rows of each buffer.
    places: Vec<RowsArgument>,
    visits: &'s [ChunkVisit],
    /// The tasks, each with the number of its visit, in the order of the visits.
    tasks: Vec<(usize, UploadTask)>,
    /// The next task that a lane can take.
    next: AtomicUsize,
    progress: Mutex<SweepProgress>,
    changed: Condvar,
}

struct SweepProgress {
    /// The number of visits whose kernels are queued.
    visited: usize,
    /// For each visit, the number of tasks that are not sent yet.
    left: Vec<usize>,
    /// Whether a thread failed. Then no thread needs to go on.
    stopped: bool,
}

impl<'s, 'a, T: Float + Plain> ChunkSweep<'s, 'a, T> {
    /// `of_chunk` cuts a chunk that must be sent into tasks.
    pub fn new(
        carrier: &'s Carrier<'s, 'a, T>,
        events: &'s [Events],
        places: Vec<RowsArgument>,
        visits: &'s [ChunkVisit],
        of_chunk: impl Fn(usize) -> Result<Vec<UploadTask>>,
    ) -> Result<Self> {
        let (mut tasks, mut left) = (Vec::new(), memory::zeroed(visits.len(), VISITS)?);
        for (turn, visit) in visits.iter().enumerate().filter(|(_, visit)| visit.load.is_some()) {
            for task in of_chunk(visit.chunk)? {
                memory::push(&mut tasks, (turn, task), VISITS)?;
                left[turn] += 1;
            }
        }
        let progress = Mutex::new(SweepProgress { visited: 0, left, stopped: false });
        Ok(Self { carrier, events, places, visits, tasks, next: AtomicUsize::new(0), progress, changed: Condvar::new() })
    }

    /// Sends the missing chunks with at most `lanes` lanes, and calls `compute` for each visit. Work that `compute` puts into
    /// the queue can use the chunk in its buffer.
    pub fn run(
        &self,
        queue: &Queue,
        staging: &Staging,
        lanes: usize,
        mut compute: impl FnMut(&ChunkVisit) -> Result<()>,
    ) -> Result<()> {
        if self.tasks.is_empty() {
            return self.compute_all(queue, &mut compute);
        }
        let lanes = lanes.min(self.tasks.len()).min(self.events[0].arrived.len());
        let mine = staging.take(&queue.gpu)?;
        std::thread::scope(|scope| {
            // On every way out of this scope, waiting threads are told to stop.
            let _guard = StopOnDrop(self);
            let thread = || std::thread::Builder::new().name("stream".into());
            let refused =
                |error: std::io::Error| KMeansError::Device { what: "starting a thread".into(), reason: error.to_string() };
            let mut helpers = vec![thread().spawn_scoped(scope, move || self.send(mine, 0)).map_err(refused)?];
            // If there is no further lane or thread, the other threads do its work.
            let help = |lane| staging.try_take(&queue.gpu).map_or(Ok(()), |borrowed| self.send(borrowed, lane));
            helpers.extend((1..lanes).map_while(|lane| thread().spawn_scoped(scope, move || help(lane)).ok()));
            let computed = self.compute_all(queue, &mut compute);
            if computed.is_err() {
                self.stop();
            }
            // The error of a lane comes first, because it stopped the computation too.
            helpers.into_iter().map(join).fold(Ok(()), Result::and).and(computed)
        })
    }

    fn progress(&self) -> MutexGuard<'_, SweepProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `enough` returns true or the pass is stopped. Returns whether to go on.
    fn wait(&self, enough: impl Fn(&SweepProgress) -> bool) -> bool {
        let waiting = |progress: &mut SweepProgress| !progress.stopped && !enough(progress);
        let progress = self.changed.wait_while(self.progress(), waiting).unwrap_or_else(PoisonError::into_inner);
        !progress.stopped
    }

    fn stop(&self) {
        self.progress().stopped = true;
        self.changed.notify_all();
    }

    /// Calls `compute` for each visit, once its chunk has arrived.
    fn compute_all(&self, queue: &Queue, compute: &mut impl FnMut(&ChunkVisit) -> Result<()>) -> Result<()> {
        let failed = failed("a pass over chunks");
        for (turn, visit) in self.visits.iter().enumerate() {
            let events = &self.events[visit.buffer];
            if visit.load.is_some() {
                if !self.wait(|progress| progress.left[turn] == 0) {
                    return Ok(());
                }
                // If a lane sent nothing to this buffer since the last time, its event has passed before.
                events.arrived.iter().try_for_each(|arrived| queue.stream.wait(arrived)).map_err(&failed)?;
            }
            compute(visit)?;
            events.done.record(&queue.stream).map_err(&failed)?;
            self.progress().visited = turn + 1;
            self.changed.notify_all();
        }
        Ok(())
    }

    /// The work of one lane: takes tasks until there are none. Returns when everything that it sent has arrived.
    fn send(&self, mut borrowed: BorrowedLane<'_>, lane: usize) -> Result<()> {
        // After an error or a panic, waiting threads are told to stop.
        let guard = StopOnDrop(self);
        let done = self.send_all(borrowed.lane(), lane);
        // The wait reports the errors of the copies themselves.
        let done = done.and(borrowed.lane().queue.wait());
        if done.is_ok() {
            std::mem::forget(guard);
        }
        done
    }

    fn send_all(&self, lane: &mut Lane, number: usize) -> Result<()> {
        let mut piece = None;
        while let Some((turn, task)) = self.tasks.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let visit = &self.visits[*turn];
            let events = &self.events[visit.buffer];
            let mut stopped = false;
            let ready = |queue: &Queue| {
                let after = visit.load.and_then(|load| load.after);
                stopped = !self.wait(|progress| after.is_none_or(|after| progress.visited > after));
                if stopped {
                    return Err(KMeansError::Device { what: "a pass over chunks".into(), reason: "it was stopped".into() });
                }
                // The work that made the buffer, or last read it, must be done first.
                queue.stream.wait(&events.done).map_err(failed("a pass over chunks"))
            };
            // SAFETY: the buffer has room for the rows of a chunk. It lives as long as the stream, and a pass of the stream
            // ends only when its lanes have ended. `ready` waits for its last readers, and the next readers wait for `arrived`.
            // No two tasks write to the same place.
            let sent = unsafe { self.carrier.send(lane, &mut piece, task, self.places[visit.buffer], ready) };
            if stopped {
                return Ok(());
            }
            sent?;
            events.arrived[number].record(&lane.queue.stream).map_err(failed("a pass over chunks"))?;
            let mut progress = self.progress();
            progress.left[*turn] -= 1;
            if progress.left[*turn] == 0 {
                drop(progress);
                self.changed.notify_all();
            }
        }
        Ok(())
    }
}

/// Stops the pass when it is dropped, so that no thread waits for ever for one that has ended.
struct StopOnDrop<'s, 'w, 'a, T: Float + Plain>(&'s ChunkSweep<'w, 'a, T>);

impl<T: Float + Plain> Drop for StopOnDrop<'_, '_, '_, T> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
