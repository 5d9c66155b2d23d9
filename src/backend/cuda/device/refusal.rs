//! Tests use this to refuse an allocation, however much memory the machine has.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of allocations that succeed before one is refused.
static LEFT: AtomicU64 = AtomicU64::new(NEVER);
const NEVER: u64 = u64::MAX;

/// Makes one later allocation of device memory or pinned memory in this process fail. `after`: how many allocations come
/// before it (0: the next one fails). None: no allocation fails. Returns whether the refusal that was set before has not
/// happened yet.
pub fn set(after: Option<u64>) -> bool {
    LEFT.swap(after.unwrap_or(NEVER), Ordering::Relaxed) != NEVER
}

/// How much smaller the room of a queue is than it should be.
static LESS: AtomicU64 = AtomicU64::new(0);

/// From now on, the room of every new queue is so many bytes smaller than the limit that it should keep.
pub fn shrink_rooms(bytes: u64) {
    LESS.store(bytes, Ordering::Relaxed);
}

/// The room for this limit.
pub(in crate::backend::cuda) fn room(limit: u64) -> u64 {
    limit.saturating_sub(LESS.load(Ordering::Relaxed))
}

/// Counts an allocation. Returns whether it must be refused.
pub(in crate::backend::cuda) fn now() -> bool {
    let count = |left| (left != NEVER).then(|| if left == 0 { NEVER } else { left - 1 });
    LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(0)
}
