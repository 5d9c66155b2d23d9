//! Lanes: streams, each with its own pinned memory. Pinning is slow, so lanes are kept until the process ends.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use super::pinned::Pinned;
use crate::backend::cuda::device::{Gpu, Queue};
use crate::base::error::Result;

/// The number of lanes of an upload, and the size of their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadPlan {
    /// The number of lanes. Each has a thread.
    pub lanes: usize,
    /// Bytes of a slot. They should be many, because each copy takes some microseconds to start.
    pub slot: usize,
}

/// The plan of large uploads: 64 MiB of pinned memory in all.
const LARGEST: UploadPlan = UploadPlan { lanes: 8, slot: 4 << 20 };

impl UploadPlan {
    /// The plan for `bytes` bytes: fewer lanes and smaller slots for less data. So a small upload stays on the calling thread,
    /// and with a medium one the bus does not wait long for the first slot.
    pub fn for_bytes(self, bytes: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let lanes = (bytes / (2 * self.slot).min(1 << 20)).min(self.lanes).min(processors).max(1);
        let slot = (bytes / (4 * lanes)).next_multiple_of(4096).clamp((256 << 10).min(self.slot), self.slot);
        Self { lanes, slot }
    }
}

/// The lanes of a GPU. Each is made when it is first needed, and then kept.
pub struct Staging {
    pub plan: UploadPlan,
    lanes: Mutex<Lanes>,
    returned: Condvar,
}

#[derive(Default)]
struct Lanes {
    idle: Vec<Lane>,
    made: usize,
}

/// A stream and two slots. Each slot is made when it is first needed.
pub struct Lane {
    pub queue: Queue,
    bytes: usize,
    slots: [Option<Pinned>; 2],
    /// The slot that was sent last.
    last: usize,
}

/// A lane that is given back when it is dropped. By then nothing is under way in it.
pub struct BorrowedLane<'s> {
    staging: &'s Staging,
    lane: Option<Lane>,
}

impl Staging {
    pub fn new(plan: UploadPlan) -> Self {
        Self { plan, lanes: Mutex::default(), returned: Condvar::new() }
    }

    /// The lanes of this process for this GPU.
    pub fn of(gpu: &Gpu) -> Arc<Self> {
        static ALL: OnceLock<Mutex<HashMap<u32, Arc<Staging>>>> = OnceLock::new();
        let mut all = ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(gpu.ordinal).or_insert_with(|| Arc::new(Self::new(LARGEST))).clone()
    }

    /// Takes a lane. If other fits have all lanes, it waits for one. A thread that has a lane must never wait for another.
    pub fn take(&self, gpu: &Arc<Gpu>) -> Result<BorrowedLane<'_>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(lane) = self.free(&mut lanes, gpu)? {
                return Ok(lane);
            }
            lanes = self.returned.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a lane if one is free.
    pub fn try_take(&self, gpu: &Arc<Gpu>) -> Option<BorrowedLane<'_>> {
        self.free(&mut self.lanes.lock().unwrap_or_else(PoisonError::into_inner), gpu).ok().flatten()
    }

    /// Calls `work` with a lane on the calling thread, and on so many threads that there are `count` lanes at most. Returns when
    /// all have ended.
    pub fn with_lanes(
        &self,
        gpu: &Arc<Gpu>,
        name: &str,
        count: usize,
        work: impl Fn(BorrowedLane<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let mine = self.take(gpu)?;
        std::thread::scope(|scope| {
            // If there is no further lane or thread, the other threads do its work.
            let help = || self.try_take(gpu).map_or(Ok(()), &work);
            let spawn = |_| std::thread::Builder::new().name(name.into()).spawn_scoped(scope, help).ok();
            let helpers: Vec<_> = (1..count).map_while(spawn).collect();
            let done = work(mine);
            helpers.into_iter().map(join).fold(done, Result::and)
        })
    }

    fn free(&self, lanes: &mut Lanes, gpu: &Arc<Gpu>) -> Result<Option<BorrowedLane<'_>>> {
        let lane = match lanes.idle.pop() {
            Some(lane) => lane,
            None if lanes.made < self.plan.lanes.max(1) => {
                let lane = Lane { queue: gpu.queue()?, bytes: self.plan.slot, slots: [None, None], last: 0 };
                lanes.made += 1;
                lane
            }
            None => return Ok(None),
        };
        Ok(Some(BorrowedLane { staging: self, lane: Some(lane) }))
    }
}

/// Waits for a thread and returns its result. If it panicked, this thread panics too.
pub fn join<R>(helper: std::thread::ScopedJoinHandle<'_, R>) -> R {
    helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Lane {
    /// The slot that was not sent last, and the queue to send it with.
    pub fn next_slot(&mut self) -> Result<(&mut Pinned, &Queue)> {
        self.last = 1 - self.last;
        let slot = &mut self.slots[self.last];
        let slot = match slot {
            Some(slot) => slot,
            None => slot.insert(Pinned::new(&self.queue.gpu, self.bytes)?),
        };
        Ok((slot, &self.queue))
    }
}

impl BorrowedLane<'_> {
    pub fn lane(&mut self) -> &mut Lane {
        self.lane.as_mut().expect("taken by `drop` alone")
    }
}

impl Drop for BorrowedLane<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            // An error means that the context no longer exists. Then nothing is under way.
            let _ = lane.queue.wait();
            self.staging.lanes.lock().unwrap_or_else(PoisonError::into_inner).idle.push(lane);
            self.staging.returned.notify_one();
        }
    }
}
