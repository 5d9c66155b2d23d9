//! Ctrl-C stops fits and predictions.
//!
//! A call on the main thread of Python asks Python a few times a second whether there is a signal: the handler that the program
//! has set decides what happens, as anywhere in Python. Only the main thread may ask. So all other calls, which are those in
//! queries and in other threads, stop at every SIGINT, of which a handler of our own tells the engine.
//!
//! The program's handler then runs as soon as the main thread is back in Python. That must be before the error of a query
//! reaches the program: while Python prints an error, the exception of a handler would end the print. So the package asks for
//! signals when Polars makes its exception ([`check_signals`]), and what the handler raises takes the place of the error.
//!
//! Polars has a handler beside that of Python, and raises `KeyboardInterrupt` by itself. The program would get two. So while
//! calls run in queries, and for a moment afterwards, our handler tells Python of a signal and not Polars.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;

use super::entry::without_panic;
use crate::base::error::{KMeansError, Result};
use crate::base::interrupt::{self, Cancel, Scope};
use crate::base::params::KMeans;

/// Listens to SIGINT, unless the process ignores it, as a job in the background does, or ends at it. Each call looks again,
/// because a handler that the program sets in Python takes the place of ours.
#[cfg(unix)]
pub fn listen() {
    static CHANGE: Mutex<()> = Mutex::new(());
    let ours = on_sigint as *const () as usize;
    let others = || {
        let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: without a new action, the call only writes the present one to `now`, all of whose bytes are initialised.
        let known = unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), now.as_mut_ptr()) == 0 };
        // SAFETY: all bytes are initialised, and the structure has only numbers and pointers that may be null.
        Some(unsafe { now.assume_init() })
            .filter(|now| known && ![ours, libc::SIG_IGN, libc::SIG_DFL].contains(&now.sa_sigaction))
    };
    if others().is_none() {
        return;
    }
    let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mut action) = others() {
        LazyLock::force(&START);
        let takes_info = usize::from(action.sa_flags & libc::SA_SIGINFO != 0);
        BEFORE.store(action.sa_sigaction << 1 | takes_info, Ordering::Release);
        action.sa_sigaction = ours;
        action.sa_flags |= libc::SA_SIGINFO;
        // SAFETY: `on_sigint` is a handler of this kind. It does only what a signal handler may do. If the call fails, calls in
        // queries end when they are done.
        unsafe { libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut()) };
    }
}

/// Listens to SIGINT, from the first call on. The handler before ours is still called.
#[cfg(not(unix))]
pub fn listen() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the action only adds to an atomic number, which a signal handler may do.
    ONCE.call_once(|| drop(unsafe { signal_hook_registry::register(libc::SIGINT, interrupt::stop_all) }));
}

/// The handler before ours: twice its address, and 1 more if it takes the information about the signal.
#[cfg(unix)]
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// Our handler of SIGINT.
#[cfg(unix)]
extern "C" fn on_sigint(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// When a signal was passed on. A handler that was set after ours may call ours, which must not call that one again. So
    /// signals of one hundredth of a second count as one, as those do that the system holds back.
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let in_query = QUERIES.load(Ordering::Relaxed) > 0 || is_recent(&ENDED, MOMENT);
    if in_query {
        // SAFETY: a signal handler may call it.
        unsafe { pyo3::ffi::PyErr_SetInterruptEx(number) };
        CAME.store(now(), Ordering::Relaxed);
    }
    // Not before: the error of a call makes Python look for signals.
    interrupt::stop_all();
    if in_query || is_recent(&PASSED, 10) {
        return;
    }
    PASSED.store(now(), Ordering::Relaxed);
    let before = BEFORE.load(Ordering::Acquire);
    if before & 1 == 1 {
        // SAFETY: the system gave this address as that of a handler of this kind.
        let before = unsafe {
            std::mem::transmute::<usize, extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)>(before >> 1)
        };
        before(number, info, context);
    } else {
        // SAFETY: as above.
        let before = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(before >> 1) };
        before(number);
    }
}

/// Milliseconds. Between two groups or two morsels of a query, no call runs.
const MOMENT: u64 = 100;
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// How many calls run in queries.
static QUERIES: AtomicUsize = AtomicUsize::new(0);
/// When the last call in a query ended, and when SIGINT came for the calls of a query. 0: never, or the query has its error.
static ENDED: AtomicU64 = AtomicU64::new(0);
static CAME: AtomicU64 = AtomicU64::new(0);

fn now() -> u64 {
    START.elapsed().as_millis() as u64 + 1
}

/// Whether a time is at most this many milliseconds ago.
fn is_recent(time: &AtomicU64, milliseconds: u64) -> bool {
    let time = time.load(Ordering::Relaxed);
    time > 0 && now().saturating_sub(time) <= milliseconds
}

/// A call in a query, as long as it lives. A signal that comes while its inputs are read stops it too.
pub struct InQuery {
    _scope: Scope,
}

impl InQuery {
    pub fn enter() -> Self {
        // In this order, a signal that our handler takes for that of a query stops the call.
        let call = Self { _scope: Scope::enter(None) };
        QUERIES.fetch_add(1, Ordering::Relaxed);
        listen();
        call
    }

    /// Refuses a call of a query that was stopped just before.
    ///
    /// # Errors
    /// [`KMeansError::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if is_recent(&CAME, MOMENT) { Err(KMeansError::Cancelled) } else { Ok(()) }
    }
}

/// The next call is no part of a query that was stopped.
pub fn forget() {
    CAME.store(0, Ordering::Relaxed);
}

impl Drop for InQuery {
    fn drop(&mut self) {
        ENDED.store(now(), Ordering::Relaxed);
        QUERIES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// On the main thread, runs the handlers of signals that have come. What they raise is the error.
#[pyfunction]
pub fn check_signals(py: Python<'_>) -> PyResult<()> {
    forget();
    py.check_signals()
}

/// Whether this is the main thread of Python.
fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    threading.call_method0("current_thread")?.eq(threading.call_method0("main_thread")?)
}

/// An exception of Python code that a call has run: of a signal's handler, or of a function that sees progress.
#[derive(Clone, Default)]
pub struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    pub fn keep(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Centroids after a stage of a fit, for a Python function that sees it.
#[pyclass(frozen)]
pub struct Centroids(Vec<Vec<f64>>);

#[pymethods]
impl Centroids {
    /// One list a centroid.
    fn rows(&self) -> Vec<Vec<f64>> {
        self.0.clone()
    }
}

/// Lets an estimator call a Python function with each stage of a fit: stage, restart, iteration, changed, shift, inertia,
/// seconds, centroids. The fit stops if the function returns a true value. An exception cancels the fit.
pub fn watched(estimator: KMeans, call: Option<Py<PyAny>>, raised: &Raised) -> KMeans {
    let (Some(call), raised, cancel) = (call, raised.clone(), Cancel::new()) else { return estimator };
    estimator.cancel(&cancel).on_centroids(move |p, centroids| {
        let answer = Python::attach(|py| {
            let centroids = centroids.map(|values| Centroids(values.map(<[f64]>::to_vec).collect()));
            let stage = (p.stage.word(), p.restart, p.iteration, p.changed, p.shift, p.inertia, p.seconds, centroids);
            call.bind(py).call1(stage)?.is_truthy()
        });
        match answer {
            Ok(false) => ControlFlow::Continue(()),
            Ok(true) => ControlFlow::Break(()),
            Err(error) => {
                raised.keep(error);
                cancel.cancel();
                ControlFlow::Break(())
            }
        }
    })
}

/// Runs the work of a call without the interpreter's lock. A signal stops it: then the error is what Python's handler raised,
/// such as `KeyboardInterrupt`.
pub fn interruptible<R: Send>(py: Python<'_>, raised: &Raised, work: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    listen();
    let asks = on_main_thread(py)?;
    let result = py.detach(|| {
        let keep = raised.clone();
        let ask = move || match Python::attach(check_signals) {
            Ok(()) => false,
            Err(error) => {
                keep.keep(error);
                true
            }
        };
        let _scope = asks.then(|| Scope::asking(Rc::new(ask)));
        without_panic(work)
    });
    match (result, raised.take()) {
        (Err(KMeansError::Cancelled), Some(raised)) => Err(raised),
        (result, _) => Ok(result?),
    }
}
