//! Work sharing. A few workers take tasks from one list until it is empty. Each worker has its own scratch memory.
//!
//! Nothing here puts results in order. Every result of this crate is either written to a task's own place or is an integer sum.
//! Small work (one worker) runs on the calling thread.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

pub use crate::base::environment::FloatEnvironment;
use crate::base::error::Result;
use crate::base::{interrupt, memory};

/// Number of fits and predictions that are running in this process.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The process that owns the pool's threads. Threads do not survive a fork.
static POOL: FirstProcess = FirstProcess::new();

/// Remembers which process was the first to do something.
pub(crate) struct FirstProcess(AtomicU32);

impl FirstProcess {
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether this process is the first. If there is no first process yet, this one becomes it. False in a child forked from the
    /// first.
    pub fn enter(&self) -> bool {
        let here = std::process::id();
        match self.0.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(first) => first == here,
        }
    }

    /// The first process, if it is not this one.
    #[cfg(feature = "python")]
    pub fn other(&self) -> Option<u32> {
        let first = self.0.load(Ordering::Relaxed);
        (first != 0 && first != std::process::id()).then_some(first)
    }
}

/// Number of threads that the pool starts with. 0 means one per processor.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of threads of the pool (0: one per processor). A pool that has already started does not change.
#[cfg(feature = "python")]
pub fn limit_pool(threads: usize) {
    LIMIT.store(threads, Ordering::Relaxed);
}

/// Whether the pool's threads belong to this process. If there is no pool yet, this call may start it. A forked child has only
/// the thread that called fork: waiting for the pool's other threads would never end.
fn pool_is_here() -> bool {
    static START: Once = Once::new();
    let here = POOL.enter();
    if here {
        START.call_once(|| {
            let limit = LIMIT.load(Ordering::Relaxed);
            if limit > 0 {
                // An error means that someone else has started the pool.
                let _ = rayon::ThreadPoolBuilder::new().num_threads(limit).build_global();
            }
        });
    }
    here
}

/// Number of pool threads that this process can use.
pub fn pool_threads() -> usize {
    if pool_is_here() { rayon::current_num_threads() } else { 1 }
}

/// A guard that counts one fit or prediction as running.
///
/// Polars calls one fit per group, and one prediction per morsel, from all its threads. If each of these calls spread its passes
/// over the whole pool, the number of threads would be squared. So a pass takes the pool's threads divided by the number of
/// running calls. A single call gets all threads; one of many calls gets only its own. The number of threads never changes a bit
/// of the result.
pub struct PoolShare(());

impl PoolShare {
    /// Counts one more call as running.
    pub fn enter() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Number of threads for one pass, now.
    fn threads() -> usize {
        (pool_threads() / RUNNING.load(Ordering::Relaxed).max(1)).max(1)
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of workers for `threads` (0: one per pool thread), at most one per task.
pub fn workers_for(threads: usize, tasks: usize) -> usize {
    if tasks <= 1 {
        return 1;
    }
    let threads = if threads == 0 { pool_threads() } else { threads };
    threads.min(tasks).max(1)
}

/// Calls `work(worker, task)` once for every task.
///
/// # Errors
/// [`KMeansError::Cancelled`](crate::KMeansError::Cancelled) if the call was stopped meanwhile. Then some tasks were not done.
pub fn for_each_task<W: Send, I: Send>(
    workers: &mut [W],
    tasks: impl Iterator<Item = I> + Send,
    work: impl Fn(&mut W, I) + Sync,
) -> Result<()> {
    let Some((mine, others)) = workers.split_first_mut() else { return Ok(()) };
    let _environment = FloatEnvironment::default_rounding();
    let helpers = match others.len() {
        0 => 0,
        _ if !pool_is_here() => 0,
        // More workers than pool threads: the caller asked for this number (`threads`).
        asked if asked + 1 > rayon::current_num_threads() => asked,
        others => others.min(PoolShare::threads() - 1),
    };
    let others = &mut others[..helpers];
    if others.is_empty() {
        for task in tasks {
            interrupt::check()?;
            work(mine, task);
        }
        return Ok(());
    }
    let stopped = interrupt::stopped();
    let tasks = Mutex::new(tasks);
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let goes_on = || stopped.as_ref().is_none_or(|stopped| !stopped.now());
    let workers = Mutex::new(others.iter_mut());
    let help = || {
        let worker = workers.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(worker) = worker else { return };
        while let Some(task) = next().filter(|_| goes_on()) {
            work(worker, task);
        }
    };
    // Only this thread asks whether to go on.
    let mut work_here = || {
        while let Some(task) = next().filter(|_| interrupt::check().is_ok()) {
            work(mine, task);
        }
    };
    with_help(helpers, &help, &mut work_here);
    interrupt::check()
}

/// Calls `help` on so many threads of the pool, while this thread works too. So a short pass does not wait for other threads to
/// wake up. Not generic: what the pool needs for a job is compiled once, and not once for each pass.
fn with_help(helpers: usize, help: &(dyn Fn() + Sync), work_here: &mut dyn FnMut()) {
    rayon::in_place_scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|_| {
                let _environment = FloatEnvironment::default_rounding();
                help();
            });
        }
        work_here();
    });
}

/// Does work on each of these items at the same time, with a thread for each. For work that mostly waits for something else than
/// this CPU. Returns the results in order, or the first error. Where the system has no thread left, the threads that there are do
/// more.
pub fn at_once<I: Send, R: Send>(items: Vec<I>, work: impl Fn(I) -> Result<R> + Sync) -> Result<Vec<R>> {
    const WHAT: &str = "the results of several threads";
    let count = items.len();
    if count < 2 {
        return memory::try_collected(items.into_iter().map(work), WHAT);
    }
    let mut results = memory::with_room(count, WHAT)?;
    results.resize_with(count, || None);
    let tasks = Mutex::new(items.into_iter().zip(&mut results));
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let stopped = interrupt::stopped();
    let work_through = || {
        while let Some((item, result)) = next() {
            *result = Some(work(item));
        }
    };
    let help = || {
        let _environment = FloatEnvironment::default_rounding();
        let _scope = interrupt::Scope::helping(stopped.clone());
        work_through();
    };
    with_threads(count - 1, &help, &work_through);
    memory::try_collected(results.into_iter().flatten(), WHAT)
}

/// Calls `help` on so many new threads, or on fewer where the system has none left, while this thread works too.
fn with_threads(helpers: usize, help: &(dyn Fn() + Sync), work_here: &dyn Fn()) {
    thread::scope(|scope| {
        let helpers = (0..helpers).map_while(|_| thread::Builder::new().spawn_scoped(scope, help).ok());
        helpers.for_each(drop);
        work_here();
    });
}
