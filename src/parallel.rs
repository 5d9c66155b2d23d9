//! Work sharing: a few workers, each with its own scratch, pull tasks from one list until it is empty.
//!
//! Nothing here orders results: every result of this crate is either written to a task's own place or an integer sum.
//! Small work (one worker) runs on the calling thread.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

pub use crate::environment::FloatEnvironment;

/// Fits and predictions that are running in this process.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The process that the pool's threads belong to: threads do not survive a fork.
static POOL: FirstProcess = FirstProcess::new();

/// The process that was the first to do something.
pub(crate) struct FirstProcess(AtomicU32);

impl FirstProcess {
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether this process is the first, or has just become it; not so in a child that was forked from the first.
    pub fn enter(&self) -> bool {
        let here = std::process::id();
        match self.0.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(first) => first == here,
        }
    }

    /// The first process, where that is another one.
    #[cfg(feature = "python")]
    pub fn other(&self) -> Option<u32> {
        let first = self.0.load(Ordering::Relaxed);
        (first != 0 && first != std::process::id()).then_some(first)
    }
}

/// Threads that the pool is to start with; 0: one a processor.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Gives the pool so many threads (0: one a processor) when it starts. One that has started stays as it is.
#[cfg(feature = "python")]
pub fn limit_pool(threads: usize) {
    LIMIT.store(threads, Ordering::Relaxed);
}

/// Whether the pool's threads are of this process; if there are none yet, they start here. In a child that was forked from their
/// process there is only the calling thread: the others would be waited for in vain.
fn pool_is_here() -> bool {
    static START: Once = Once::new();
    let here = POOL.enter();
    if here {
        START.call_once(|| {
            let limit = LIMIT.load(Ordering::Relaxed);
            if limit > 0 {
                // An error says that someone else has started it.
                let _ = rayon::ThreadPoolBuilder::new().num_threads(limit).build_global();
            }
        });
    }
    here
}

/// Threads of the pool, as far as they are of this process.
fn pool_threads() -> usize {
    if pool_is_here() { rayon::current_num_threads() } else { 1 }
}

/// One fit's or prediction's share of the pool, while it runs.
///
/// Polars calls one fit a group, and one prediction a morsel, from as many threads as it has. If each of them spread its passes
/// over the whole pool, there would be the square of that many. So a pass takes the pool's threads divided by what is
/// running: alone, all of them; among many, only the thread that called. It never changes a bit of the result.
pub struct PoolShare(());

impl PoolShare {
    /// Counts one more as running.
    pub fn enter() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Threads for one pass, now.
    fn threads() -> usize {
        (pool_threads() / RUNNING.load(Ordering::Relaxed).max(1)).max(1)
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many workers `threads` asks for (0: one a thread of the pool), at most one a task.
pub fn workers_for(threads: usize, tasks: usize) -> usize {
    if tasks <= 1 {
        return 1;
    }
    let threads = if threads == 0 { pool_threads() } else { threads };
    threads.min(tasks).max(1)
}

/// Calls `work(worker, task)` once for every task.
pub fn for_each_task<W: Send, I: Send>(
    workers: &mut [W],
    tasks: impl Iterator<Item = I> + Send,
    work: impl Fn(&mut W, I) + Sync,
) {
    let Some((mine, others)) = workers.split_first_mut() else { return };
    let _environment = FloatEnvironment::default_rounding();
    let helpers = match others.len() {
        0 => 0,
        _ if !pool_is_here() => 0,
        // Workers beyond one a pool thread were asked for by name (`threads`).
        asked if asked + 1 > rayon::current_num_threads() => asked,
        others => others.min(PoolShare::threads() - 1),
    };
    let others = &mut others[..helpers];
    if others.is_empty() {
        return tasks.for_each(|task| work(mine, task));
    }
    let tasks = Mutex::new(tasks);
    let next = || tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let work_through = |worker: &mut W| {
        while let Some(task) = next() {
            work(worker, task);
        }
    };
    // The calling thread works too: a short pass does not wait for others to wake up.
    rayon::in_place_scope(|scope| {
        for worker in others {
            scope.spawn(|_| {
                let _environment = FloatEnvironment::default_rounding();
                work_through(worker);
            });
        }
        work_through(mine);
    });
}
