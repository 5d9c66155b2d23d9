//! Progress and cancelling: the caller sees each iteration of a fit, and may stop the fit.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::error::{KMeansError, Result};

/// An iteration that is done.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The restart, from 0.
    pub restart: u32,
    /// The iteration of this restart, from 1.
    pub iteration: u32,
    /// Rows of positive weight whose label changed.
    pub changed: u64,
    /// Sum of the squared distances that the centroids moved.
    pub shift: f64,
}

type Call = dyn Fn(&Progress) -> ControlFlow<()> + Send + Sync;

/// The function that a fit calls after each iteration.
#[derive(Clone)]
pub(crate) struct Observer(Arc<Call>);

impl Observer {
    pub fn new(call: impl Fn(&Progress) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Observers are equal if they are the same function object.
impl PartialEq for Observer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Shows the iterations of one restart to the observer, if there is one.
///
/// The loop shows an iteration when it is done. A session that queues several iterations shows them when the batch is done.
#[derive(Default)]
pub struct Watch<'o> {
    observer: Option<&'o Observer>,
    restart: u32,
    /// Iterations shown so far.
    shown: u32,
}

impl<'o> Watch<'o> {
    pub(crate) fn new(observer: Option<&'o Observer>, restart: u32) -> Self {
        Self { observer, restart, shown: 0 }
    }

    /// Shows the next iteration.
    ///
    /// # Errors
    /// [`KMeansError::Cancelled`] if the observer wants the fit to stop.
    pub fn show(&mut self, changed: u64, shift: f64) -> Result<()> {
        self.shown += 1;
        let Some(Observer(call)) = self.observer else { return Ok(()) };
        match call(&Progress { restart: self.restart, iteration: self.shown, changed, shift }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(KMeansError::Cancelled { iteration: self.shown }),
        }
    }
}
