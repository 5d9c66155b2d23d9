//! What a team of threads is made of. `tests/team.rs` has those of a model checker in their place.

pub use std::sync::Mutex;
pub use std::sync::atomic::{AtomicU64, Ordering};
pub use std::thread::{Thread, current};
use std::time::{Duration, Instant};
use std::{hint, thread};

pub use rayon::spawn;

/// How long a helper stays without work. It does not yield its processor meanwhile: it would get it back much later where other
/// programs run.
const STAY: Duration = Duration::from_micros(200);
/// How long the caller waits for busy helpers before it sleeps.
const HASTE: Duration = Duration::from_micros(100);

/// A cell whose accesses are closures, so that the model sees when each begins and ends.
#[derive(Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Sleeps until another thread wakes this one, or for a moment.
pub fn sleep() {
    thread::park_timeout(Duration::from_millis(1));
}

/// Waits without sleep.
pub struct Idle {
    since: Instant,
    passed: Duration,
}

impl Idle {
    pub fn new() -> Self {
        Self { since: Instant::now(), passed: Duration::ZERO }
    }

    /// Whether a helper has waited for long enough.
    pub fn is_over(&self) -> bool {
        self.passed > STAY
    }

    /// Whether the caller has waited for long enough, and sleeps now.
    pub fn is_long(&self) -> bool {
        self.passed >= HASTE
    }

    pub fn wait(&mut self) {
        (0..32).for_each(|_| hint::spin_loop());
        self.passed = self.since.elapsed();
    }
}
