//! Work sharing: a few workers, each with its own scratch, pull tasks from one list until it is empty.
//!
//! Nothing here orders results: every result of this crate is either written to a task's own place or an integer sum.
//! Small work (one worker) runs on the calling thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fits and predictions that are running in this process.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

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
        (rayon::current_num_threads() / RUNNING.load(Ordering::Relaxed).max(1)).max(1)
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many workers `threads` asks for (0: one a thread of the pool), at most one a task.
pub fn workers_for(threads: usize, tasks: usize) -> usize {
    let threads = if threads == 0 { rayon::current_num_threads() } else { threads };
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
    // Workers beyond one a pool thread were asked for by name (`threads`).
    let asked = others.len() + 1 > rayon::current_num_threads();
    let helpers = if asked { others.len() } else { others.len().min(PoolShare::threads() - 1) };
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

/// The float64 and float32 arithmetic that the contract is written in: round to nearest, ties to even, subnormals kept.
///
/// A host program may have set its threads otherwise (`-ffast-math` libraries do); the guard sets the default and puts the
/// old setting back when dropped.
pub struct FloatEnvironment {
    #[cfg(target_arch = "x86_64")]
    saved: u32,
    #[cfg(target_arch = "aarch64")]
    saved: u64,
}

impl FloatEnvironment {
    /// Sets the default environment on this thread.
    pub fn default_rounding() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let default = 0x1F80u32; // every exception masked, round to nearest, FTZ and DAZ off
            let mut saved = 0u32;
            // SAFETY: stmxcsr and ldmxcsr (SSE, part of x86_64) store and load the 4 bytes of the variable they are given;
            // 0x1F80 is the register's documented reset value.
            unsafe {
                std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut saved, options(nostack));
                std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const default, options(nostack));
            }
            Self { saved }
        }
        #[cfg(target_arch = "aarch64")]
        {
            let saved: u64;
            // SAFETY: FPCR is readable and writable in user mode; 0 is round to nearest with flush-to-zero off.
            unsafe {
                std::arch::asm!("mrs {}, fpcr", out(reg) saved, options(nomem, nostack));
                std::arch::asm!("msr fpcr, {}", in(reg) 0u64, options(nomem, nostack));
            }
            Self { saved }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Self {}
    }
}

impl Drop for FloatEnvironment {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: loads the value that was read from the same register when the guard was made.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const self.saved, options(nostack));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("msr fpcr, {}", in(reg) self.saved, options(nomem, nostack));
        }
    }
}
