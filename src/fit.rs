//! START HERE: the whole algorithm.
//!
//! ```text
//! validate   the parameters                                           src/base/params
//! place      a device, before anything is computed or sent            src/fit/rows.rs, src/backend/select.rs
//! transform  rows are scaled and normalised, if asked                 src/fit/rows.rs, src/input/transform.rs
//! order      rows are sorted by their values, if asked                src/fit/order.rs
//! prepare    rows go to the device, and statistics are gathered       src/fit/prepared.rs, src/statistics
//! for each number of clusters, usually one:
//!   session  over the prepared rows                                   src/backend/*/
//!   best of `restarts`:
//!     centroids = seed(...)                                           src/seeding
//!     for it in 1..=max_iter:
//!       assign: every row to its nearest centroid                     src/backend/*/ (labels exact, sums as deltas)
//!       update: relocate into empty clusters, then exact means        src/backend/update.rs
//!       stop if changed <= tol_labels * n or shift <= tol * variance, or if the caller says so     src/base/progress.rs
//!     one assign more if the centroids moved since the last one
//!     with bounds on the sizes of clusters: another loop, with optimal assignments          src/fit/sizes/mod.rs
//!   clusters are numbered by their sizes or a feature, if asked       src/fit/sort_by.rs
//!   labels, and what else is wanted of the rows
//!   too few distinct rows: again with them as centroids, if asked     src/seeding/distinct.rs
//! ```
//! S. P. Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982), doi:10.1109/TIT.1982.1056489.
//! Labels are exact and every sum is an integer, so the result does not depend on the backend, threads or chunking.

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod benchmark;
pub(crate) mod engine;
pub(crate) mod order;
pub(crate) mod plan;
mod prepared;
pub(crate) mod rows;
mod sizes;
#[cfg(feature = "tests")]
pub use self::sizes::trial;
pub(crate) mod sort_by;
mod task;

use std::sync::Arc;
use std::time::Instant;

use self::prepared::LocalRows;
pub(crate) use self::prepared::{Origin, PreparedRows};
pub(crate) use self::task::{Running, Task};
use crate::backend::answers::Distances;
use crate::backend::cpu::MethodExplanation;
use crate::backend::update;
use crate::backend::{Advanced, Assigned, Iteration, Scales, Session, Stop};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::interrupt;
use crate::base::memory;
use crate::base::params::{History, Init, KMeans, Params, Seeding, Stopping, TooFew, Wanted};
use crate::base::progress::Watch;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::{DistanceSum, ExactSum};
use crate::fit::engine::Engine;
use crate::fit::sizes::SizeBounds;
use crate::fit::sort_by::SortKey;
use crate::input::features::{Column, Features};
use crate::input::tile::RowBlock;
use crate::model::{Derived, Fitted, HistoryRow, Model, Scaling, Settings};
use crate::seeding;
use crate::simd::InstructionSet;
use crate::statistics::Statistics;

impl KMeans {
    /// Fits `features` (`n` rows of `d` features), with one weight per row if weights are given.
    ///
    /// `labels` has one entry per kept row (see [`Fitted::expand`]). The model holds `k` centroids of the features' type.
    ///
    /// # Errors
    /// Any error in the parameters or the values: see [`crate::KMeansError`].
    pub fn fit_features<T: Engine>(&self, features: &Features<'_, T>, weights: Option<&Column<'_, f64>>) -> Result<Fitted<T>> {
        self.fit_with(features, weights, Wanted::Labels)
    }

    /// As [`KMeans::fit_features`]. `wanted`: what the result says about the rows.
    ///
    /// # Errors
    /// As [`KMeans::fit_features`].
    pub fn fit_with<T: Engine>(
        &self,
        features: &Features<'_, T>,
        weights: Option<&Column<'_, f64>>,
        wanted: Wanted,
    ) -> Result<Fitted<T>> {
        let parts = vec![RowBlock::new(features.clone(), weights.cloned())];
        T::fits(self, &[self.k], None, parts, InstructionSet::detect(), wanted)?.remove(0)
    }

    /// Fits the same rows once for each of these numbers of clusters, which take the place of this estimator's. Rows are sent and
    /// looked at once. The models are those of single fits, to the last bit; there are no labels.
    ///
    /// ```
    /// use polars_kmeans::{Features, KMeans};
    ///
    /// let x = [0.0f64, 0.1, 5.0, 5.1, 9.0];
    /// let features = Features::from_rows(&x, 1)?;
    /// let fits = KMeans::new(1).fit_each(&[2, 3], &features, None)?;
    /// let clusters: Vec<usize> = fits.iter().flatten().map(|fit| fit.model.n_clusters()).collect();
    /// assert_eq!(clusters, [2, 3]);
    /// # Ok::<(), polars_kmeans::KMeansError>(())
    /// ```
    ///
    /// # Errors
    /// As [`KMeans::fit_features`]. A fit that fails by itself, for instance for too few distinct rows, has its error in the
    /// list.
    pub fn fit_each<T: Engine>(
        &self,
        k: &[usize],
        features: &Features<'_, T>,
        weights: Option<&Column<'_, f64>>,
    ) -> Result<Vec<Result<Fitted<T>>>> {
        let parts = vec![RowBlock::new(features.clone(), weights.cloned())];
        T::fits(self, k, None, parts, InstructionSet::detect(), Wanted::Nothing)
    }

    /// Labels rows by fixed centroids (`(k, d)`, row-major, in the units of transformed rows) within the sizes of this estimator.
    /// The model that comes with the labels is of these rows.
    #[doc(hidden)]
    pub fn assign_parts<T: Engine>(
        &self,
        centroids: &[f64],
        parts: Vec<RowBlock<'_, T>>,
        set: InstructionSet,
        wanted: Wanted,
    ) -> Result<Fitted<T>> {
        T::fits(self, &[self.k], Some(centroids), parts, set, wanted)?.remove(0)
    }

    /// Fits the rows of several parts, in order, with one session per part. The bits are the same as with one session.
    #[doc(hidden)]
    pub fn fit_parts<T: Engine>(&self, parts: Vec<RowBlock<'_, T>>, set: InstructionSet, wanted: Wanted) -> Result<Fitted<T>> {
        T::fits(self, &[self.k], None, parts, set, wanted)?.remove(0)
    }
}

/// The fits of the same rows for each of these numbers of clusters. One that fails by itself has its error in the list. `fixed`:
/// centroids (`(k, d)`, row-major, in the units of transformed rows) that stay as they are, whose clusters may stay empty. Then rows
/// are transformed as the parts say, not as the estimator does.
pub(crate) fn fits<T: Float>(
    estimator: &KMeans,
    clusters: &[usize],
    fixed: Option<&[f64]>,
    parts: Vec<RowBlock<'_, T>>,
    set: InstructionSet,
    wanted: Wanted,
) -> Result<Vec<Result<Fitted<T>>>> {
    if clusters.is_empty() {
        return Ok(Vec::new());
    }
    let _running = Running::enter(estimator);
    let task = Task::new(estimator, clusters, parts[0].features.names(), wanted)?;
    let task = match fixed {
        Some(centroids) => task.with_fixed(centroids),
        None => task,
    };
    match run(task, parts, set) {
        // A fit that is alone is refused before its rows are sent.
        Err(error @ KMeansError::TooFewDistinct { .. }) => Ok(vec![Err(error)]),
        fits => fits,
    }
}

/// Chooses the device of the rows, transforms, orders and prepares them, and fits them.
fn run<T: Float>(task: Task<'_>, mut parts: Vec<RowBlock<'_, T>>, set: InstructionSet) -> Result<Vec<Result<Fitted<T>>>> {
    let choice = rows::place(&mut parts, &task.params)?;
    let seeding = match task.params.fixed {
        Some(centroids) => {
            Some(Seeding { init: Init::Given(memory::copied(centroids, seeding::CENTROIDS)?), ..Seeding::default() })
        }
        None => rows::transform(&mut parts, &task.to_prepare())?,
    };
    let mut task = task.with_seeding(seeding.as_ref());
    let common = task.to_prepare();
    // Where the order of the values only decides ties, rows are fitted as given until their order matters.
    if order::only_decides_ties(&task.params) {
        let prepared = LocalRows::new(parts.clone(), &choice, &common, set, Some(Arc::default()))?;
        let fits = task.fit_each(&prepared)?;
        // Distinct rows in place of centroids are in the order of the rows.
        let too_few = |fit: &Result<_>| matches!(fit, Err(KMeansError::TooFewDistinct { .. }));
        let fewer = task.params.output.too_few == TooFew::Fewer && fits.iter().any(too_few);
        if !prepared.statistics().had_ties() && !fewer {
            return Ok(fits);
        }
    }
    let Some(arranged) = order::arranged(&parts, &task.params)? else {
        return task.fit_each(&LocalRows::new(parts, &choice, &common, set, None)?);
    };
    let copy = vec![arranged.part(&parts[0].features)?];
    let fits = task.fit_each(&LocalRows::new(copy, &choice, &common, set, None)?)?;
    Ok(fits.into_iter().map(|fit| arranged.as_given(fit?)).collect())
}

/// The fit of prepared rows. If there are too few distinct rows and the parameters ask for it, these rows are the centroids.
/// Clusters are then in the order of the rows. While another order of the rows may be asked for, the fit has the error.
pub(crate) fn fit_or_fewer<T: Float>(
    rows: &dyn PreparedRows<T>,
    params: &Params<'_>,
    watch: &mut Watch<'_>,
) -> Result<Fitted<T>> {
    let statistics = rows.statistics();
    let few = match fit_prepared(rows, params, watch) {
        Err(KMeansError::TooFewDistinct { k, rows } | KMeansError::InfeasibleSizes { k, rows, .. })
            if params.output.too_few == TooFew::Fewer && statistics.ties.is_none() && params.fixed.is_none() =>
        {
            Params { k: k.min(usize::try_from(rows).unwrap_or(k)), ..params.clone() }
        }
        fit => return fit,
    };
    let distinct = seeding::distinct_rows(rows.session(&few)?.as_mut(), &few, statistics)?;
    let fixed: Vec<f64> = memory::collected(distinct.iter().map(|c| c.to_f64()), seeding::CENTROIDS)?;
    let k = fixed.len() / statistics.lows.len();
    // With as many distinct rows as clusters, only the bounds can have been refused.
    SizeBounds::of(&Params { k, ..params.clone() }, statistics.n_positive)?;
    fit_prepared(rows, &Params { k, fixed: Some(&fixed), ..params.clone() }, watch)
}

/// Makes a session over prepared rows, runs its fit, and builds the model from it.
fn fit_prepared<T: Float>(rows: &dyn PreparedRows<T>, params: &Params<'_>, watch: &mut Watch<'_>) -> Result<Fitted<T>> {
    let statistics = rows.statistics();
    if params.k as u64 > statistics.n_positive && !params.may_be_empty {
        return Err(KMeansError::TooFewDistinct { k: params.k, rows: statistics.n_positive });
    }
    let bounds = SizeBounds::of(params, statistics.n_positive)?;
    let session = rows.session(params)?;
    let Origin { names, selection, scaling, choice } = rows.origin(params)?;
    watch.show_rows(names.len(), scaling.as_ref().map_or(&[], Scaling::factors))?;
    let key = SortKey::of(params, &names, scaling.as_ref().map_or(&[], Scaling::factors))?;
    let (run, labels, distances) = best_of_restarts(session, params, statistics, bounds, key, watch)?;
    let inertia: ExactSum = run.inertia.iter().collect();
    let model = Model {
        d: names.len(),
        names,
        centroids: run.centroids,
        sizes: run.sizes,
        inertias: memory::collected(run.inertia.iter().map(DistanceSum::to_f64), "the inertia of the clusters")?,
        inertia: inertia.to_f64(),
        n_iter: run.history.len() as u32,
        history: run.history,
        settings: Settings::new(params, statistics.weights.is_some()),
        stopped: watch.stopped(),
        scaling,
        living: Arc::default(),
        table: Derived::default(),
    };
    let model = model.with_sums(statistics, run.sums, run.weights)?;
    let (relocated, seconds) = (run.emptied, watch.iterated());
    Ok(Fitted { model, labels, distances, relocated, choice, method: run.method, seconds, totals: run.inertia, selection })
}

/// One restart's result.
struct Run<T> {
    centroids: Vec<T>,
    /// Rows of positive weight in each cluster.
    sizes: Vec<u64>,
    /// Inertia of each cluster.
    inertia: Vec<DistanceSum>,
    history: Vec<HistoryRow>,
    /// The clusters that were empty in any iteration.
    emptied: Vec<u32>,
    method: Option<MethodExplanation>,
    /// The sums under the final labels, if the model keeps them.
    sums: Option<ClusterSums>,
    /// The weight of each cluster in quanta, if rows have weights and the sums do not say it.
    weights: Vec<i128>,
}

/// The restart of least inertia, compared exactly, and what is wanted of its rows. Ties go to the earliest restart. If the caller
/// stops the fit, the restart that runs takes part as it is, after its first iteration.
fn best_of_restarts<'a, T: Float>(
    mut session: Box<dyn Session<T> + 'a>,
    params: &Params,
    statistics: &Statistics,
    bounds: Option<SizeBounds>,
    key: Option<SortKey<'_>>,
    watch: &mut Watch<'_>,
) -> Result<(Run<T>, Vec<u32>, Option<Distances>)> {
    let mut best: Option<(ExactSum, Run<T>, Option<Vec<u32>>)> = None;
    // Where sizes have bounds, the distances of the rows to the centroids of their labels.
    let mut squares = Vec::new();
    for restart in 0..params.restarts {
        let start = match params.fixed {
            Some(rows) => memory::collected(rows.iter().map(|c| T::from_f64(*c)), seeding::CENTROIDS)?,
            None => seeding::seed(session.as_mut(), params, statistics, restart)?,
        };
        watch.show_seeds(restart, &start)?;
        if watch.stopped() {
            break;
        }
        let (run, own) = match (bounds, params.fixed) {
            (Some(bounds), _) => sizes::bounded_lloyd(session.as_mut(), start, bounds, params, statistics, watch)?,
            (None, Some(_)) => (fit_fixed(session.as_mut(), start, params, statistics, watch)?, Vec::new()),
            (None, None) => (lloyd(session.as_mut(), start, params, statistics, watch)?, Vec::new()),
        };
        watch.iterated();
        let inertia: ExactSum = run.inertia.iter().collect();
        if best.as_ref().is_none_or(|(least, ..)| inertia < *least) {
            // The last restart's labels stay in the session.
            // The numbers of bounded clusters are given to labels, not by another assign.
            let wanted = params.wanted == Wanted::Labels || bounds.is_some();
            let labels = if wanted && restart + 1 < params.restarts { Some(session.labels()?) } else { None };
            best = Some((inertia, run, labels));
            squares = own;
        }
        if params.fixed.is_some() || watch.stopped() {
            break;
        }
    }
    let Some((_, mut run, mut labels)) = best else { unreachable!("there is at least one restart") };
    let d = statistics.lows.len();
    if let Some(order) = key.map(|key| key.order(&run.centroids, d, &run.sizes)).transpose()?.flatten() {
        let centroids = sort_by::arranged(&run.centroids, d, &order)?;
        let Run { history, emptied, method, .. } = run;
        run = match bounds {
            None => Run { history, emptied, method, ..labelled(session.as_mut(), centroids, params, statistics)?.0 },
            Some(_) => {
                let old = labels.map_or_else(|| session.labels(), Ok)?;
                sizes::renumber(session.as_mut(), old, &order)?;
                let (sums, weights) = kept_sums(session.as_mut(), params, statistics)?;
                let (sizes, inertia) = (sort_by::arranged(&run.sizes, 1, &order)?, sort_by::arranged(&run.inertia, 1, &order)?);
                Run { centroids, sizes, inertia, history, emptied, method, sums, weights }
            }
        };
        labels = None;
    }
    Ok(match (params.wanted, labels) {
        (Wanted::Distances, labels) if bounds.is_some() => {
            let labels = labels.map_or_else(|| session.labels(), Ok)?;
            let (nearest, distances) = session.nearest(&run.centroids)?;
            let distances = sizes::own_distances(&labels, &nearest, distances, &squares);
            (run, labels, Some(distances))
        }
        (Wanted::Nothing, _) => (run, Vec::new(), None),
        (Wanted::Labels, Some(labels)) => (run, labels, None),
        (Wanted::Labels, None) => (run, session.into_labels()?, None),
        (Wanted::Distances, _) => {
            let (labels, distances) = session.nearest(&run.centroids)?;
            (run, labels, Some(distances))
        }
    })
}

/// The run of centroids that stay as they are, without a history, and its only assign.
fn labelled<T: Float>(
    session: &mut dyn Session<T>,
    centroids: Vec<T>,
    params: &Params,
    statistics: &Statistics,
) -> Result<(Run<T>, Assigned)> {
    session.reset()?;
    let mut assigned = session.assign(&centroids, true)?;
    let inertia = precise_inertia(session, assigned.inertia.take(), statistics)?;
    let sizes = session.sizes()?;
    let (history, emptied, (sums, weights)) = (Vec::new(), Vec::new(), kept_sums(session, params, statistics)?);
    Ok((Run { centroids, sizes, inertia, history, emptied, method: session.method(), sums, weights }, assigned))
}

/// A copy of the session's sums, if the model keeps them, or of the weights of the clusters, if rows have weights.
fn kept_sums<T: Float>(
    session: &mut dyn Session<T>,
    params: &Params,
    statistics: &Statistics,
) -> Result<(Option<ClusterSums>, Vec<i128>)> {
    if params.output.keep_sums {
        return Ok((Some(session.cluster_sums()?.copied()?), Vec::new()));
    }
    let weights = if statistics.weights.is_some() { &session.cluster_sums()?.mass[..] } else { &[] };
    Ok((None, memory::copied(weights, "the weights of the clusters")?))
}

/// The run of fixed centroids, which are rows: one iteration, in which no centroid moves.
fn fit_fixed<T: Float>(
    session: &mut dyn Session<T>,
    centroids: Vec<T>,
    params: &Params,
    statistics: &Statistics,
    watch: &mut Watch<'_>,
) -> Result<Run<T>> {
    let start = Instant::now();
    let (mut run, Assigned { changed, work_counts, .. }) = labelled(session, centroids, params, statistics)?;
    let full = params.output.history == History::Full;
    let total = full.then(|| run.inertia.iter().collect::<ExactSum>().to_f64());
    let done = Iteration { changed, shift: 0.0, moved: false, seconds: start.elapsed().as_secs_f64(), work_counts };
    record(&mut run.history, &done, total, [session.rows(), params.k as u64])?;
    watch.show(changed, 0.0, total, Some(&run.centroids))?;
    Ok(run)
}

/// Lloyd's loop from given centroids (`(k, d)`, row-major).
fn lloyd<T: Float>(
    session: &mut dyn Session<T>,
    mut centroids: Vec<T>,
    params: &Params,
    statistics: &Statistics,
    watch: &mut Watch<'_>,
) -> Result<Run<T>> {
    let full = params.output.history == History::Full;
    let stop = stop(params, statistics);
    let extent = [session.rows(), params.k as u64];
    let mut history: Vec<HistoryRow> = Vec::new();
    // The inertia of each cluster under the current labels and centroids, if it is known.
    let mut inertia = None;
    let mut moved = false;
    let mut scratch = update::Scratch::default();
    session.reset()?;
    loop {
        interrupt::check()?;
        let start = Instant::now();
        let left = params.stopping.max_iter - history.len() as u32;
        let Advanced { done, assigned, emptied } = if full {
            Advanced { assigned: Some(session.assign(&centroids, true)?), ..Advanced::default() }
        } else {
            session.advance(&mut centroids, stop, left, watch)?
        };
        update::merge(&mut scratch.emptied, &emptied)?;
        for iteration in &done {
            record(&mut history, iteration, None, extent)?;
            moved = iteration.moved;
        }
        if let Some(assigned) = assigned {
            let clusters = assigned.inertia.map(|totals| precise_inertia(session, Some(totals), statistics)).transpose()?;
            let updated = update::update(session, &mut centroids, statistics, params.execution.threads, &mut scratch)?;
            let total = clusters.as_ref().map(|clusters| clusters.iter().collect::<ExactSum>().to_f64());
            let before: f64 = done.iter().map(|iteration| iteration.seconds).sum();
            let seconds = (start.elapsed().as_secs_f64() - before).max(0.0);
            let (changed, shift, work_counts) = (assigned.changed, updated.shift, assigned.work_counts);
            moved = updated.moved;
            record(&mut history, &Iteration { changed, shift, moved, seconds, work_counts }, total, extent)?;
            inertia = clusters.filter(|_| !moved);
            watch.show(changed, shift, total, Some(&centroids))?;
        }
        let last = &history[history.len() - 1];
        if stop.after(last.changed, last.shift) || last.iteration == params.stopping.max_iter || watch.stopped() {
            break;
        }
    }
    // Labels and inertia belong to the final centroids.
    let inertia = match inertia {
        Some(clusters) if !moved => clusters,
        _ => {
            let totals = if moved { session.assign(&centroids, true)?.inertia } else { None };
            precise_inertia(session, totals, statistics)?
        }
    };
    let sizes = session.sizes()?;
    let (sums, weights) = kept_sums(session, params, statistics)?;
    Ok(Run { centroids, sizes, inertia, history, emptied: scratch.emptied, method: session.method(), sums, weights })
}

/// When a fit stops.
fn stop(params: &Params, statistics: &Statistics) -> Stop {
    let Stopping { tol, tol_labels, .. } = params.stopping;
    Stop { changed: tol_labels * statistics.n_positive as f64, shift: tol * statistics.variance }
}

/// Appends an iteration over so many rows and clusters to the history.
fn record(history: &mut Vec<HistoryRow>, done: &Iteration, inertia: Option<f64>, [rows, k]: [u64; 2]) -> Result<()> {
    let (iteration, &Iteration { changed, shift, seconds, work_counts, .. }) = (history.len() as u32 + 1, done);
    let row = HistoryRow {
        iteration,
        changed,
        shift,
        inertia,
        settled: work_counts.share_settled(rows),
        rescored: work_counts.share_rescored(rows),
        skipped: work_counts.share_skipped(rows, k),
        groups: work_counts.groups,
        passes: None,
        seconds: Some(seconds),
    };
    memory::push(history, row, "the history")
}

/// The inertia of each cluster under the session's labels, from its total in the base scale, if that is known.
fn precise_inertia<T: Float>(
    session: &mut dyn Session<T>,
    totals: Option<Vec<u128>>,
    statistics: &Statistics,
) -> Result<Vec<DistanceSum>> {
    let totals = totals.map_or_else(|| session.inertia(Scales::Same(statistics.distances)), Ok)?;
    let sizes = session.sizes()?;
    let sums = totals.into_iter().map(|total| DistanceSum { total, scale: statistics.distances });
    let sums = memory::collected(sums, "the inertia of the clusters")?;
    DistanceSum::precise_each(sums, &sizes, |scales| session.inertia(Scales::Each(scales)))
}
