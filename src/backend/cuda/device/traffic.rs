//! Counts the bytes that this process sends over the bus to and from its GPUs. Parameters of kernels do not count.

use std::sync::atomic::{AtomicU64, Ordering};

static UP: AtomicU64 = AtomicU64::new(0);
static DOWN: AtomicU64 = AtomicU64::new(0);

/// The bytes that went to the GPUs, and those that came from them, since the process began.
pub fn bytes() -> [u64; 2] {
    [&UP, &DOWN].map(|counter| counter.load(Ordering::Relaxed))
}

pub(in crate::backend::cuda) fn count_up(bytes: usize) {
    UP.fetch_add(bytes as u64, Ordering::Relaxed);
}

pub(in crate::backend::cuda) fn count_down(bytes: usize) {
    DOWN.fetch_add(bytes as u64, Ordering::Relaxed);
}
