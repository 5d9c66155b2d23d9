//! A model of the team of threads (`src/base/team.rs`): loom tries all orders of the steps of a caller and its helpers, as far as
//! they differ by few switches from one thread to another.
//!
//! The helpers of a pass read and write what lives on the caller's stack. So loom reports a helper that is in the closure after
//! the caller has left the pass: it sees two accesses at once, or a write that another thread cannot see yet.

/// The unit tests of the file run elsewhere.
#[allow(unused_macros)]
macro_rules! unit_test {
    ($name:ident) => {};
}

#[path = "../src/base/team.rs"]
#[allow(dead_code)]
mod team;

mod base {
    /// Threads have no environment of floats in the model.
    pub mod environment {
        pub struct FloatEnvironment;

        impl FloatEnvironment {
            pub fn default_rounding() -> Self {
                Self
            }
        }
    }

    /// In place of `src/base/threads.rs`.
    pub mod threads {
        pub use loom::sync::Mutex;
        pub use loom::sync::atomic::{AtomicU64, Ordering};
        pub use loom::thread::{Thread, current, park as sleep};

        #[derive(Debug)]
        pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

        impl<T: Default> Default for UnsafeCell<T> {
            fn default() -> Self {
                Self(loom::cell::UnsafeCell::new(T::default()))
            }
        }

        impl<T> UnsafeCell<T> {
            pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
                self.0.with(read)
            }

            pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
                self.0.with_mut(write)
            }
        }

        pub fn spawn(job: impl FnOnce() + Send + 'static) {
            drop(loom::thread::spawn(job));
        }

        /// A helper leaves after it has waited once. A caller sleeps at once, without a limit of time: a helper must wake it.
        pub struct Idle(bool);

        impl Idle {
            pub fn new() -> Self {
                Self(false)
            }

            pub fn is_over(&self) -> bool {
                self.0
            }

            pub fn is_long(&self) -> bool {
                true
            }

            pub fn wait(&mut self) {
                self.0 = true;
                loom::thread::yield_now();
            }
        }
    }
}

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use team::Team;

const TASKS: usize = 2;

/// One pass of a team: whoever takes a task notes it. `panics`: the helpers' closure panics after its tasks.
fn pass(team: &Arc<Team>, helpers: usize, panics: bool) -> bool {
    let (next, done) = (AtomicUsize::new(0), Shared(std::array::from_fn(|_| UnsafeCell::new(0))));
    let tasks = || {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            let Some(done) = done.get(task) else { return };
            // SAFETY: loom checks that no other thread is here.
            done.with_mut(|times| unsafe { *times += 1 });
        }
    };
    let help = || {
        tasks();
        if panics {
            resume_unwind(Box::new("a helper's"));
        }
    };
    // SAFETY: each team has one caller.
    let panic = unsafe { team.run(helpers, &help, &mut || tasks()) };
    // SAFETY: loom checks that no helper is here.
    assert!(done.0.iter().all(|times| times.with(|times| unsafe { *times } == 1)), "each task is done once");
    let is_helpers = |panic: &Box<dyn std::any::Any + Send>| panic.downcast_ref() == Some(&"a helper's");
    assert!(panic.iter().all(is_helpers) && (panics || panic.is_none()));
    panic.is_some()
}

/// Cells that threads share. Loom checks their accesses.
struct Shared([UnsafeCell<usize>; TASKS]);

// SAFETY: only one thread takes a task, and the caller reads after the pass. This is what the model checks.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self, task: usize) -> Option<&UnsafeCell<usize>> {
        self.0.get(task)
    }
}

/// Tries all orders with so many switches from a thread that could go on.
fn model(switches: usize, work: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(work);
}

#[test]
fn each_task_is_done_once_and_no_helper_outlives_a_pass() {
    model(3, || {
        let team = Arc::default();
        pass(&team, 1, false);
        pass(&team, 1, false);
    });
    model(2, || {
        let team = Arc::default();
        pass(&team, 2, false);
        pass(&team, 1, false);
    });
}

#[test]
fn a_panic_of_a_helper_reaches_the_caller() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static SEEN: AtomicBool = AtomicBool::new(false);
    model(3, || {
        let team = Arc::default();
        // In some orders the helper comes too late to panic.
        SEEN.fetch_or(pass(&team, 1, true), Ordering::Relaxed);
        pass(&team, 1, false);
    });
    assert!(SEEN.load(Ordering::Relaxed), "in some order a helper comes in time");
}

#[test]
fn helpers_are_gone_after_a_panic_of_the_caller() {
    model(3, || {
        let team = Arc::<Team>::default();
        let inside = Shared([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let help = || {
            let Some(cell) = inside.get(0) else { return };
            // SAFETY: loom checks that the caller is not here.
            cell.with_mut(|times| unsafe { *times += 1 });
        };
        let caught = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the team has one caller.
            unsafe { team.run(1, &help, &mut || resume_unwind(Box::new("the caller's"))) };
        }));
        assert!(caught.is_err());
        // SAFETY: loom checks that no helper is here.
        inside.0[0].with_mut(|times| unsafe { *times += 1 });
    });
}
