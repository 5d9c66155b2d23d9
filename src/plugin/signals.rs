//! Ctrl-C stops fits and predictions.
//!
//! A call on the main thread of Python asks Python a few times a second whether there is a signal: the handler that the program
//! has set decides what happens, as anywhere in Python. Only the main thread may ask. So all other calls, which are those in
//! queries and in other threads, stop at every SIGINT, of which a handler of our own tells the engine.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Once, PoisonError};

use pyo3::prelude::*;

use super::entry::without_panic;
use crate::base::error::{KMeansError, Result};
use crate::base::interrupt::{self, Cancel, Scope};
use crate::base::params::KMeans;

/// Listens to SIGINT, from the first call on. The handler before ours is still called.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if !is_ignored() {
            // SAFETY: the action only adds to an atomic number, which a signal handler may do.
            let listening = unsafe { signal_hook_registry::register(libc::SIGINT, interrupt::stop_all) };
            // Without a handler, calls in queries end when they are done.
            drop(listening);
        }
    });
}

/// Whether the process ignores SIGINT, as a job in the background does.
fn is_ignored() -> bool {
    #[cfg(unix)]
    {
        let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: without a new action, the call only writes the present one to `now`, all of whose bytes are initialised.
        unsafe {
            libc::sigaction(libc::SIGINT, std::ptr::null(), now.as_mut_ptr()) == 0
                && now.assume_init().sa_sigaction == libc::SIG_IGN
        }
    }
    #[cfg(not(unix))]
    false
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
        let ask = move || match Python::attach(|py| py.check_signals()) {
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
