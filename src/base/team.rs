//! Threads of the pool that help with the passes of a caller, one pass after the other.
//!
//! A pass may take some microseconds, and a thread that sleeps is awake fifty microseconds after it was called, or a millisecond
//! where a virtual processor sleeps with it. So helpers stay for a moment after a pass, and look for the next one.
//!
//! ```text
//! caller   writes what is to be done, opens seats, works too, closes the seats that are left, waits until no helper is busy
//! helper   takes a seat, works, is no longer busy; without seats for a moment, or if fewer helpers are wanted: leaves
//! ```
//! All numbers of a team are in one word, so that a helper cannot leave when it was just counted on. `tests/team.rs` is a
//! model of the orders in which the steps of caller and helpers may happen, with few switches between threads.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};

use crate::base::environment::FloatEnvironment;
use crate::base::threads::{AtomicU64, Idle, Mutex, Ordering, Thread, UnsafeCell, current, sleep, spawn};

/// Places in the word: seats that are free, helpers that are busy, helpers that are here or called, helpers that the last pass
/// wanted. Each has 16 bits.
const SEAT: u64 = 1;
const BUSY: u64 = 1 << 16;
const HERE: u64 = 1 << 32;
const WANTED: u64 = 1 << 48;
const MOST: u64 = 0xffff;

fn count(word: u64, of: u64) -> u64 {
    (word / of) & MOST
}

type TeamWork<'w> = dyn Fn() + Sync + 'w;

#[derive(Default)]
pub(super) struct Team {
    word: AtomicU64,
    /// What helpers do, and the thread that calls them. Written while no helper is busy and no seat is free.
    work: UnsafeCell<Option<(&'static TeamWork<'static>, Thread)>>,
    /// The first panic of a helper in this pass.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is written by the one thread that has taken the team out of its `TEAM`, before it opens seats (release). It is
// read by helpers that have taken a seat (acquire), before they are no longer busy (release). It is written again after the seats
// are closed and no helper is busy (acquire). The closure is `Sync`.
unsafe impl Sync for Team {}

thread_local! {
    /// The team of this thread. None while it is in use.
    static TEAM: Cell<Option<Arc<Team>>> = const { Cell::new(None) };
}

/// Closes the seats, and waits for the helpers.
struct OpenSeats<'t>(&'t Team);

impl Drop for OpenSeats<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!(MOST * SEAT), Ordering::Relaxed);
        let mut idle = Idle::new();
        while count(self.0.word.load(Ordering::Acquire), BUSY) > 0 {
            match idle.is_long() {
                false => idle.wait(),
                // The last busy helper wakes this thread.
                true => sleep(),
            }
        }
    }
}

impl Team {
    /// Lets so many helpers do this work, until the result is dropped. The caller must not forget the result.
    ///
    /// # Safety
    /// No other thread uses the team as a caller, and the result must be dropped before `work` ends.
    unsafe fn open<'t>(self: &'t Arc<Self>, helpers: usize, work: &TeamWork<'_>) -> OpenSeats<'t> {
        // SAFETY: the caller keeps the work alive while seats are open or a helper is busy.
        let work = unsafe { std::mem::transmute::<&TeamWork<'_>, &'static TeamWork<'static>>(work) };
        // SAFETY: no other thread writes or reads: see `Sync`.
        self.work.with_mut(|place| unsafe { *place = Some((work, current())) });
        let helpers = (helpers as u64).min(MOST);
        let open = |word| Some(helpers * (SEAT + WANTED) + count(word, HERE).max(helpers) * HERE);
        let (Ok(before) | Err(before)) = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, open);
        for _ in count(before, HERE)..helpers {
            let team = self.clone();
            spawn(move || team.help());
        }
        OpenSeats(self)
    }

    /// What a helper does until it leaves.
    fn help(&self) {
        let mut idle = Idle::new();
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let replace = |new| self.word.compare_exchange_weak(word, new, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if count(word, SEAT) > 0 {
                if replace(word - SEAT + BUSY) {
                    let caller = self.work();
                    if count(self.word.fetch_sub(BUSY, Ordering::Release), BUSY) == 1 {
                        caller.into_iter().for_each(|caller| caller.unpark());
                    }
                    idle = Idle::new();
                }
            } else if count(word, HERE) > count(word, WANTED) || idle.is_over() {
                if replace(word - HERE) {
                    return;
                }
            } else {
                idle.wait();
            }
        }
    }

    /// Returns the caller.
    fn work(&self) -> Option<Thread> {
        // SAFETY: this helper has a seat: see `Sync`.
        let (work, caller) = self.work.with(|place| unsafe { (*place).clone() })?;
        let _environment = FloatEnvironment::default_rounding();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        Some(caller)
    }

    /// See [`with_help`]. Returns the first panic of a helper.
    ///
    /// # Safety
    /// No other thread uses the team as a caller.
    pub(super) unsafe fn run(
        self: &Arc<Self>,
        helpers: usize,
        help: &TeamWork<'_>,
        work_here: &mut dyn FnMut(),
    ) -> Option<Box<dyn Any + Send>> {
        // SAFETY: the team is this caller's alone. `open` is dropped in this function, also after a panic, and `help` lives on.
        let open = unsafe { self.open(helpers, help) };
        work_here();
        drop(open);
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Calls `help` on so many threads of the pool, while this thread works too. So a short pass does not wait for other threads to
/// wake up. Helpers that come too late do nothing. Not generic: what the pool needs for a job is compiled once, and not once for
/// each pass.
pub fn with_help(helpers: usize, help: &TeamWork<'_>, work_here: &mut dyn FnMut()) {
    let team = TEAM.take().unwrap_or_default();
    // SAFETY: the team was just taken out of `TEAM`, or is new.
    let panic = unsafe { team.run(helpers, help, work_here) };
    TEAM.set(Some(team));
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

#[cfg(feature = "tests")]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    unit_test!(a_team_does_every_task_once);
    /// Passes of all lengths, with more and fewer helpers, and passes within passes.
    fn a_team_does_every_task_once() {
        let pass = |helpers: usize, tasks: usize, inner: bool| {
            let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let work = || {
                while next.fetch_add(1, Ordering::Relaxed) < tasks {
                    if inner {
                        let count = AtomicUsize::new(0);
                        let add = || {
                            count.fetch_add(1, Ordering::Relaxed);
                        };
                        with_help(2, &add, &mut || add());
                        assert!((1..=3).contains(&count.into_inner()));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            };
            with_help(helpers, &work, &mut || work());
            assert_eq!(done.into_inner(), tasks);
        };
        for round in 0..400 {
            pass(1 + round % 5, round % 70, round % 9 == 0);
            if round % 100 == 0 {
                thread::sleep(Duration::from_micros(400));
            }
        }
    }

    unit_test!(a_panic_of_a_helper_reaches_the_caller);
    fn a_panic_of_a_helper_reaches_the_caller() {
        let here = thread::current().id();
        let is_helper = || thread::current().id() != here;
        let came = AtomicUsize::new(0);
        let work = || {
            if is_helper() {
                came.fetch_add(1, Ordering::Relaxed);
                resume_unwind(Box::new("a helper's"));
            }
        };
        let caught = catch_unwind(AssertUnwindSafe(|| {
            with_help(1, &work, &mut || {
                let start = Instant::now();
                while came.load(Ordering::Relaxed) == 0 && start.elapsed() < Duration::from_secs(20) {
                    thread::yield_now();
                }
            });
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"a helper's"));
        with_help(1, &|| {}, &mut || {});
    }
}
