//! Progress: the caller sees each stage of a fit, and may stop the fit.

use std::fmt;
use std::ops::ControlFlow;
use std::slice::ChunksExact;
use std::sync::Arc;
use std::time::Instant;

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::units::FACTORS;
use crate::base::units::in_units;

/// The name for centroids that are shown in errors.
const CENTROIDS: &str = "the centroids that are shown";

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The rows were looked at, and they are where the fit runs.
    Rows,
    /// A restart has its starting centroids.
    Seeds,
    /// An iteration.
    Iteration,
}

impl Stage {
    /// `"rows"`, `"seeds"` or `"iteration"`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Seeds => "seeds",
            Self::Iteration => "iteration",
        }
    }
}

/// A stage of a fit that is done.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    pub stage: Stage,
    /// The restart, from 0.
    pub restart: u32,
    /// The last iteration of this restart that is done, from 1. 0 before the first.
    pub iteration: u32,
    /// Rows of positive weight whose label changed in this iteration.
    pub changed: u64,
    /// Sum of the squared distances that the centroids moved in this iteration.
    pub shift: f64,
    /// The inertia under the labels and centroids before the iteration moved them. Only with `history="full"`.
    pub inertia: Option<f64>,
    /// Seconds since the fit began.
    pub seconds: f64,
}

/// Where the time of a fit went, in seconds. Wall times are not part of a model: they are neither saved nor compared.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Seconds {
    /// Until the rows were looked at, and were where the fit runs.
    pub rows: f64,
    /// Finding starting centroids, for all restarts.
    pub seeding: f64,
    /// The rest: the iterations of all restarts, and the labels.
    pub iterations: f64,
}

impl Seconds {
    /// All of them together.
    pub fn total(&self) -> f64 {
        self.rows + self.seeding + self.iterations
    }
}

/// The centroids may be missing.
type Call = dyn Fn(&Progress, Option<ChunksExact<'_, f64>>) -> ControlFlow<()> + Send + Sync;

/// The function that a fit calls after each stage.
#[derive(Clone)]
pub(crate) struct Observer {
    call: Arc<Call>,
    /// Whether it wants the centroids.
    centroids: bool,
}

impl Observer {
    pub fn new(
        call: impl Fn(&Progress, Option<ChunksExact<'_, f64>>) -> ControlFlow<()> + Send + Sync + 'static,
        centroids: bool,
    ) -> Self {
        Self { call: Arc::new(call), centroids }
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
        Arc::ptr_eq(&self.call, &other.call)
    }
}

/// Shows the stages of a fit to the observer, if there is one.
///
/// The loop shows an iteration when it is done. A session that queues several iterations shows them when the batch is done.
pub struct Watch<'o> {
    observer: Option<&'o Observer>,
    start: Instant,
    restart: u32,
    /// Iterations of this restart that were shown.
    shown: u32,
    /// The seconds of what is done.
    spent: Seconds,
    /// The number of features.
    d: usize,
    /// What values of the columns were multiplied by. Empty if they were not.
    factors: Vec<f64>,
}

impl Default for Watch<'_> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<'o> Watch<'o> {
    /// The fit begins now.
    pub(crate) fn new(observer: Option<&'o Observer>) -> Self {
        Self { observer, start: Instant::now(), restart: 0, shown: 0, spent: Seconds::default(), d: 1, factors: Vec::new() }
    }

    /// A watch for the next of several fits of the same rows, which begins now.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.observer)
    }

    /// Shows that the rows are there. Centroids that are shown later are divided by these factors.
    ///
    /// # Errors
    /// [`KMeansError::Cancelled`] if the observer wants the fit to stop, here and below.
    pub(crate) fn show_rows(&mut self, d: usize, factors: &[f64]) -> Result<()> {
        (self.d, self.factors) = (d, memory::copied(factors, FACTORS)?);
        self.spent.rows += self.lap();
        self.call::<f64>(Stage::Rows, 0, 0.0, None, None)
    }

    /// Shows that a restart has its starting centroids.
    pub(crate) fn show_seeds<T: Float>(&mut self, restart: u32, centroids: &[T]) -> Result<()> {
        (self.restart, self.shown) = (restart, 0);
        self.spent.seeding += self.lap();
        self.call(Stage::Seeds, 0, 0.0, None, Some(centroids))
    }

    /// The iterations of a restart are done, or what comes after the last of them.
    pub(crate) fn iterated(&mut self) -> Seconds {
        self.spent.iterations += self.lap();
        self.spent
    }

    /// Seconds that no part of a fit has yet.
    fn lap(&self) -> f64 {
        (self.start.elapsed().as_secs_f64() - self.spent.total()).max(0.0)
    }

    /// Whether somebody wants to see centroids.
    pub fn wants_centroids(&self) -> bool {
        self.observer.is_some_and(|observer| observer.centroids)
    }

    /// Shows the next iteration, with the centroids after it if they are known.
    pub fn show<T: Float>(&mut self, changed: u64, shift: f64, inertia: Option<f64>, centroids: Option<&[T]>) -> Result<()> {
        self.shown += 1;
        self.call(Stage::Iteration, changed, shift, inertia, centroids)
    }

    fn call<T: Float>(
        &self,
        stage: Stage,
        changed: u64,
        shift: f64,
        inertia: Option<f64>,
        centroids: Option<&[T]>,
    ) -> Result<()> {
        let Some(Observer { call, centroids: wanted }) = self.observer else { return Ok(()) };
        let in_units = |centroids: &[T]| match &self.factors[..] {
            [] => memory::collected(centroids.iter().map(|c| c.to_f64()), CENTROIDS),
            factors => memory::collected(in_units(centroids, factors).map(|c| c.to_f64()), CENTROIDS),
        };
        let centroids = centroids.filter(|_| *wanted).map(in_units).transpose()?;
        let (restart, iteration, seconds) = (self.restart, self.shown, self.start.elapsed().as_secs_f64());
        match call(
            &Progress { stage, restart, iteration, changed, shift, inertia, seconds },
            centroids.as_ref().map(|rows| rows.chunks_exact(self.d)),
        ) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(KMeansError::Cancelled),
        }
    }
}
