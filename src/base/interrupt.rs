//! Stops a call while it runs: a fit or a prediction ends with [`KMeansError::Cancelled`] soon after the user asked for it.
//!
//! ```text
//! a call enters a scope on its thread       fit.rs, predict.rs; the Python package beforehand
//! passes look before each of their tasks    parallel.rs
//! loops look after each wait for a GPU      backend/cuda/device/buffer.rs
//! ```
//! Three things stop a call: its [`Cancel`], an interrupt of the whole process (Ctrl-C in Python), and a function that the call's
//! own thread asks a few times a second. That function then decides about interrupts too.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::base::error::{KMeansError, Result};

/// Stops fits from another thread. All clones stop the same fits.
///
/// ```
/// use polars_kmeans::{Cancel, Features, KMeans, KMeansError};
///
/// let x: Vec<f64> = (0..1_000).map(f64::from).collect();
/// let cancel = Cancel::new();
/// let estimator = KMeans::new(20).cancel(&cancel);
/// cancel.cancel(); // at any time, from any thread
/// assert_eq!(estimator.fit_features(&Features::from_rows(&x, 1)?, None).err(), Some(KMeansError::Cancelled));
/// # Ok::<(), KMeansError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// The user has not asked to stop yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops all fits that have this handle: those that run and those that start later.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the user has asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Handles are equal if they stop the same fits.
impl PartialEq for Cancel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// How often the process was interrupted.
static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

/// Stops all calls that run now. A signal handler may call it.
#[cfg(feature = "python")]
pub fn stop_all() {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
}

/// Whether a call was stopped. All its threads may ask.
#[derive(Debug, Default)]
pub struct Stopped {
    /// What was found once stays so.
    found: AtomicBool,
    cancel: Option<Cancel>,
    /// The interrupts before the call. None: the function that is asked knows of them.
    before: Option<usize>,
    /// The call that this one is a part of.
    outer: Option<Arc<Stopped>>,
}

impl Stopped {
    pub fn now(&self) -> bool {
        self.found.load(Ordering::Relaxed)
            || self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
            || self.before.is_some_and(|before| INTERRUPTS.load(Ordering::Relaxed) != before)
            || self.outer.as_ref().is_some_and(|outer| outer.now())
    }
}

/// The call that runs on this thread.
#[derive(Clone)]
struct RunningCall {
    stopped: Arc<Stopped>,
    ask: Option<Rc<dyn Fn() -> bool>>,
}

thread_local! {
    static CALL: RefCell<Option<RunningCall>> = const { RefCell::new(None) };
    /// When the function of a call was asked last.
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How often the function of a call is asked.
const EVERY: Duration = Duration::from_millis(40);

/// The part of a thread's work that belongs to a call.
pub struct Scope {
    outer: Option<RunningCall>,
    /// It belongs to its thread.
    thread: std::marker::PhantomData<Rc<()>>,
}

impl Scope {
    /// A call that `cancel` stops, if there is one, and what stops the call that it is a part of.
    pub fn enter(cancel: Option<&Cancel>) -> Self {
        Self::with(cancel, None)
    }

    /// A call that stops if `ask` says so, and not at interrupts of the process. Only this thread calls `ask`.
    #[cfg(any(feature = "tests", feature = "python"))]
    pub fn asking(ask: Rc<dyn Fn() -> bool>) -> Self {
        Self::with(None, Some(ask))
    }

    /// On a thread that helps a call: what stops the call stops this part of it too. `stopped`: what [`stopped`] said on the
    /// call's thread.
    pub fn helping(stopped: Option<Arc<Stopped>>) -> Self {
        CALL.with_borrow_mut(|call| {
            let own = Stopped { outer: stopped, ..Stopped::default() };
            Self { outer: call.replace(RunningCall { stopped: Arc::new(own), ask: None }), thread: std::marker::PhantomData }
        })
    }

    fn with(cancel: Option<&Cancel>, ask: Option<Rc<dyn Fn() -> bool>>) -> Self {
        CALL.with_borrow_mut(|call| {
            let outer = call.clone();
            let ask = ask.or_else(|| outer.as_ref().and_then(|outer| outer.ask.clone()));
            let stopped = Stopped {
                found: AtomicBool::new(false),
                cancel: cancel.cloned(),
                before: ask.is_none().then(|| INTERRUPTS.load(Ordering::Relaxed)),
                outer: outer.as_ref().map(|outer| outer.stopped.clone()),
            };
            *call = Some(RunningCall { stopped: Arc::new(stopped), ask });
            Self { outer, thread: std::marker::PhantomData }
        })
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let outer = self.outer.take();
        CALL.with_borrow_mut(|call| *call = outer);
    }
}

/// What the threads that help this one look at. None outside of calls.
pub fn stopped() -> Option<Arc<Stopped>> {
    CALL.with_borrow(|call| call.as_ref().map(|call| call.stopped.clone()))
}

/// Looks whether the call of this thread was stopped.
///
/// # Errors
/// [`KMeansError::Cancelled`].
pub fn check() -> Result<()> {
    let (stopped, ask) = CALL.with_borrow(|call| match call {
        None => (false, None),
        Some(call) if call.stopped.now() => (true, None),
        Some(call) => (false, call.ask.clone().filter(|_| it_is_time()).map(|ask| (ask, call.stopped.clone()))),
    });
    // `ask` may run anything, even another call.
    let stopped = stopped
        || ask.is_some_and(|(ask, call)| {
            let stops = ask();
            call.found.fetch_or(stops, Ordering::Relaxed);
            stops
        });
    if stopped { Err(KMeansError::Cancelled) } else { Ok(()) }
}

/// Whether the last question was long ago. If so, there is one now.
fn it_is_time() -> bool {
    let (now, last) = (Instant::now(), ASKED.get());
    let due = last.is_none_or(|last| now.duration_since(last) >= EVERY);
    if due {
        ASKED.set(Some(now));
    }
    due
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(an_inner_call_stops_with_the_outer_one);
    fn an_inner_call_stops_with_the_outer_one() {
        assert!(check().is_ok() && stopped().is_none());
        let (outer, inner) = (Cancel::new(), Cancel::new());
        let _outer = Scope::enter(Some(&outer));
        {
            let _inner = Scope::enter(Some(&inner));
            assert!(check().is_ok());
            inner.cancel();
            assert_eq!(check(), Err(KMeansError::Cancelled));
        }
        assert!(check().is_ok(), "only the inner call was stopped");
        outer.cancel();
        let _inner = Scope::enter(None);
        assert_eq!(check(), Err(KMeansError::Cancelled));
        assert!(stopped().is_some_and(|stopped| stopped.now()));
    }

    unit_test!(a_call_asks_a_few_times_a_second);
    fn a_call_asks_a_few_times_a_second() {
        let asked = Rc::new(Cell::new(0));
        let counted = asked.clone();
        let ask = Rc::new(move || {
            counted.set(counted.get() + 1);
            counted.get() == 3
        });
        let _scope = Scope::asking(ask);
        let start = Instant::now();
        while check().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing was asked");
        }
        assert_eq!(asked.get(), 3);
        assert!(start.elapsed() >= EVERY);
        assert_eq!(check(), Err(KMeansError::Cancelled), "a call that was stopped stays so");
    }
}
