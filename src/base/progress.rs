//! Progress: the caller sees each stage of a fit, and may stop the fit.

use std::fmt;
use std::ops::ControlFlow;
use std::slice::ChunksExact;
use std::sync::Arc;
use std::time::Instant;

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::interrupt;
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
type ProgressFunction = dyn Fn(&Progress, Option<ChunksExact<'_, f64>>) -> ControlFlow<()> + Send + Sync;

/// The function that a fit calls after each stage.
#[derive(Clone)]
pub(crate) struct Observer {
    call: Arc<ProgressFunction>,
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
/// After the observer has stopped the fit, it sees nothing more, and loops end where [`Watch::stopped`] says so.
pub struct Watch<'o> {
    observer: Option<&'o Observer>,
    start: Instant,
    restart: u32,
    /// Iterations of this restart that are done.
    done: u32,
    /// The restart and its iteration after which the observer stopped the fit.
    last: Option<(u32, u32)>,
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
        let (start, spent) = (Instant::now(), Seconds::default());
        Self { observer, start, restart: 0, done: 0, last: None, spent, d: 1, factors: Vec::new() }
    }

    /// The fit begins now: the time before belongs to other fits.
    pub(crate) fn begin(&mut self) {
        (self.start, self.spent) = (Instant::now(), Seconds::default());
    }

    /// Shows that the rows are there. Centroids that are shown later are divided by these factors.
    ///
    /// # Errors
    /// [`KMeansError::Cancelled`] if the observer stops the fit before its first iteration, or cancels it, here and below.
    pub(crate) fn show_rows(&mut self, d: usize, factors: &[f64]) -> Result<()> {
        (self.restart, self.done) = (0, 0);
        (self.d, self.factors) = (d, memory::copied(factors, FACTORS)?);
        self.spent.rows += self.lap();
        self.call::<f64>(Stage::Rows, 0, 0.0, None, None)
    }

    /// Shows that a restart has its starting centroids.
    pub(crate) fn show_seeds<T: Float>(&mut self, restart: u32, centroids: &[T]) -> Result<()> {
        (self.restart, self.done) = (restart, 0);
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

    /// Whether the observer has stopped the fit after what is done. A fit that starts again, because the order of its rows
    /// matters after all, stops after as many iterations.
    pub fn stopped(&self) -> bool {
        self.last.is_some_and(|last| (self.restart, self.done) >= last)
    }

    /// Whether the receiver of reports asked for centroids.
    pub fn wants_centroids(&self) -> bool {
        self.observer.is_some_and(|observer| observer.centroids)
    }

    /// Shows the next iteration, with the centroids after it if they are known.
    pub fn show<T: Float>(&mut self, changed: u64, shift: f64, inertia: Option<f64>, centroids: Option<&[T]>) -> Result<()> {
        self.done += 1;
        self.call(Stage::Iteration, changed, shift, inertia, centroids)
    }

    fn call<T: Float>(
        &mut self,
        stage: Stage,
        changed: u64,
        shift: f64,
        inertia: Option<f64>,
        centroids: Option<&[T]>,
    ) -> Result<()> {
        let Some(Observer { call, centroids: wanted }) = self.observer.filter(|_| self.last.is_none()) else { return Ok(()) };
        let in_units = |centroids: &[T]| match &self.factors[..] {
            [] => memory::collected(centroids.iter().map(|c| c.to_f64()), CENTROIDS),
            factors => memory::collected(in_units(centroids, factors).map(|c| c.to_f64()), CENTROIDS),
        };
        let centroids = centroids.filter(|_| *wanted).map(in_units).transpose()?;
        let (restart, iteration, seconds) = (self.restart, self.done, self.start.elapsed().as_secs_f64());
        let flow = call(
            &Progress { stage, restart, iteration, changed, shift, inertia, seconds },
            centroids.as_ref().map(|rows| rows.chunks_exact(self.d)),
        );
        // The observer may have cancelled the fit.
        interrupt::check()?;
        if flow.is_break() {
            if (restart, iteration) == (0, 0) {
                return Err(KMeansError::Cancelled);
            }
            self.last = Some((restart, iteration));
        }
        Ok(())
    }
}
