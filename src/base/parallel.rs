//! Work sharing. A few workers take tasks from one list until it is empty. Each worker has its own scratch memory.
//!
//! Nothing here puts results in order. Every result of this crate is either written to a task's own place or is an integer sum.
//! Small work (one worker) runs on the calling thread.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::{hint, thread};

pub use crate::base::environment::FloatEnvironment;
use crate::base::error::Result;
use crate::base::team::with_help;
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
                // An error means that other code has started the pool.
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

/// Makes a value of each item, by so many workers if they take so many bytes that it pays. Returns them in order, or the first
/// error. One thread gets memory that an earlier fit gave back, and sets it to zeros; several threads get other memory.
///
/// # Errors
/// As [`for_each_task`], and those of `make`.
pub fn made<I: Send, R: Send>(
    [workers, bytes]: [usize; 2],
    items: impl ExactSizeIterator<Item = I> + Send,
    what: &'static str,
    make: impl Fn(I) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    /// With fewer bytes or workers, one thread makes all: page faults would take longer than zeros.
    const FEWEST: usize = 4 << 20;
    const FEWEST_WORKERS: usize = 6;
    let count = items.len();
    if workers < FEWEST_WORKERS || count < 2 || bytes < FEWEST {
        return memory::try_collected(items.map(make), what);
    }
    let mut values = memory::with_room(count, what)?;
    values.resize_with(count, || None);
    let mut threads = memory::filled(workers.min(count), (), what)?;
    for_each_task(&mut threads, items.zip(&mut values), |(), (item, value)| *value = Some(make(item)))?;
    memory::try_collected(values.into_iter().flatten(), what)
}

/// Rounds of work, one after the other. Threads share the pieces of a round, and look for the next round without sleep: a round
/// may be some microseconds. One thread alone does all pieces.
///
/// A *ticket* stands for a piece of a round. Tickets are in order, so a thread that is late cannot take a piece of another round.
struct Rounds {
    pieces: usize,
    /// The next ticket, the tickets of the rounds that have begun, and the number of pieces that are done.
    next: AtomicUsize,
    begun: AtomicUsize,
    done: AtomicUsize,
}

impl Rounds {
    /// A helper goes when it has looked so often without finding a round: the thread that leads may have been stopped.
    const PATIENCE: usize = 20_000;
    /// What stands for no more rounds.
    const END: usize = usize::MAX;

    /// Takes a piece, if there is one.
    fn take(&self) -> Option<usize> {
        let begun = self.begun.load(Ordering::Acquire);
        let next = self.next.load(Ordering::Relaxed);
        let is_mine = begun != Self::END
            && next < begun
            && self.next.compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_mine.then_some(next % self.pieces)
    }

    /// Does a piece. It counts as done after a panic, too, so that no thread waits for it.
    fn run(&self, piece: usize, work: &(impl Fn(usize) + Sync)) {
        struct Done<'d>(&'d AtomicUsize);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Release);
            }
        }
        let _done = Done(&self.done);
        work(piece);
    }

    fn help(&self, work: &(impl Fn(usize) + Sync)) {
        let mut patience = Self::PATIENCE;
        while patience > 0 && self.begun.load(Ordering::Relaxed) != Self::END {
            match self.take() {
                Some(piece) => {
                    self.run(piece, work);
                    patience = Self::PATIENCE;
                }
                None => {
                    patience -= 1;
                    hint::spin_loop();
                }
            }
        }
    }

    /// Begins a round, and waits until it is done.
    fn lead(&self, work: &(impl Fn(usize) + Sync)) {
        let end = self.begun.load(Ordering::Relaxed) + self.pieces;
        self.begun.store(end, Ordering::Release);
        while self.done.load(Ordering::Acquire) < end {
            match self.take() {
                Some(piece) => self.run(piece, work),
                None => hint::spin_loop(),
            }
        }
    }
}

/// Calls `work(piece)` for each of these pieces, round after round. `before` is called before each round, while no piece is
/// worked at, and says whether there is one more. `workers`: at most so many threads work.
///
/// # Errors
/// As [`for_each_task`].
pub fn in_rounds(
    workers: usize,
    pieces: usize,
    work: impl Fn(usize) + Sync,
    before: impl FnMut() -> bool + Send,
) -> Result<()> {
    let zero = || AtomicUsize::new(0);
    let rounds = Rounds { pieces, next: zero(), begun: zero(), done: zero() };
    let mut threads = memory::filled(workers.min(pieces).max(1), (), "the threads")?;
    // The thread that gets the first task leads.
    let tasks = std::iter::once(Some(before)).chain((1..threads.len()).map(|_| None));
    for_each_task(&mut threads, tasks, |(), before| match before {
        None => rounds.help(&work),
        Some(mut before) => {
            while before() {
                rounds.lead(&work);
            }
            rounds.begun.store(Rounds::END, Ordering::Relaxed);
        }
    })
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

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(rounds_follow_one_another);
    /// Each piece of a round sees what the pieces of the round before left.
    fn rounds_follow_one_another() {
        for (workers, pieces) in [(1, 1), (1, 5), (2, 2), (4, 3), (7, 40)] {
            let counts: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            let (round, missed) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let work = |piece: usize| {
                let before = counts[piece].fetch_add(1, Ordering::Relaxed) + 1;
                let same = before == round.load(Ordering::Relaxed);
                missed.fetch_add(usize::from(!same), Ordering::Relaxed);
            };
            in_rounds(workers, pieces, work, || {
                let all = counts.iter().all(|count| count.load(Ordering::Relaxed) == round.load(Ordering::Relaxed));
                missed.fetch_add(usize::from(!all), Ordering::Relaxed);
                round.fetch_add(1, Ordering::Relaxed) < 300
            })
            .unwrap();
            assert_eq!((round.into_inner(), missed.into_inner()), (301, 0), "{workers} workers, {pieces} pieces");
        }
    }

    unit_test!(values_are_made_in_order);
    fn values_are_made_in_order() {
        let make = |i: usize| if i == 70 { Err(crate::base::error::KMeansError::NoFeatures) } else { Ok(2 * i) };
        for workers in [1, 8] {
            let workers = [workers, 1 << 30];
            assert_eq!(made(workers, 0..70, "numbers", make).unwrap(), (0..140).step_by(2).collect::<Vec<_>>());
            assert!(made(workers, 0..100, "numbers", make).is_err());
        }
    }
}
