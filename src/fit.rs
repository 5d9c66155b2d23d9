//! START HERE: the whole algorithm.
//!
//! ```text
//! best of `restarts`:
//!   centroids = seed(...)                                            src/seeding
//!   for it in 1..=max_iter:
//!     assign: every row to its nearest centroid                      src/backend/*/ (labels exact, sums as deltas)
//!     update: relocate into empty clusters, then exact means         src/update.rs
//!     stop if changed <= tol_labels * n or shift <= tol * variance
//!   one assign more if the centroids moved since the last one
//! ```
//! S. P. Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982), doi:10.1109/TIT.1982.1056489.
//! Labels are exact and every sum is an integer, so the result does not depend on the backend, threads or chunking.

use std::time::Instant;

use crate::backend::cpu::{CpuSession, InstructionSet};
use crate::backend::{Parts, Session};
use crate::error::Result;
use crate::features::{Column, Features};
use crate::float::Float;
use crate::model::{Derived, Fitted, HistoryRow, Model, Settings};
use crate::parallel::{FloatEnvironment, PoolShare};
use crate::params::{History, KMeans, Params};
use crate::prepare::{Prepared, prepare};
use crate::tile::Part;
use crate::{seeding, update};

impl KMeans {
    /// Fits `features` (`n` rows of `d` features), with a weight a row if given.
    ///
    /// `labels` has one entry a kept row (see [`Fitted::expand`]); the model holds `k` centroids of the features' type.
    ///
    /// # Errors
    /// Whatever is wrong with the parameters or the values: see [`crate::KMeansError`].
    pub fn fit_features<T: Float>(&self, features: &Features<'_, T>, weights: Option<&Column<'_, f64>>) -> Result<Fitted<T>> {
        self.fit_parts(vec![Part::new(features.clone(), weights.cloned())], InstructionSet::detect())
    }

    /// Fits the rows of several parts, in order, each in a session of its own: the same bits as in one.
    #[doc(hidden)]
    pub fn fit_parts<T: Float>(&self, parts: Vec<Part<'_, T>>, set: InstructionSet) -> Result<Fitted<T>> {
        T::fit(self, parts, set)
    }
}

/// The whole fit.
pub(crate) fn fit<T: Float>(estimator: &KMeans, mut parts: Vec<Part<'_, T>>, set: InstructionSet) -> Result<Fitted<T>> {
    let _environment = FloatEnvironment::default_rounding();
    let _share = PoolShare::enter();
    let d = parts[0].features.n_features();
    let params = estimator.validate(d)?;
    let names = parts[0].features.names().to_vec();
    let prepared = prepare(&mut parts, &params)?;
    let selection = parts.iter().map(|part| (part.selection.clone(), part.features.n_rows())).collect();
    let mut sessions: Vec<Box<dyn Session<T> + '_>> = Vec::with_capacity(parts.len());
    for part in parts {
        sessions.push(Box::new(CpuSession::new(part, &prepared, params.k, params.threads, set)));
    }
    let session: Box<dyn Session<T> + '_> =
        if sessions.len() == 1 { sessions.remove(0) } else { Box::new(Parts::new(sessions)) };
    let (run, labels) = best_of_restarts(session, &params, &prepared)?;
    let inertia = run.inertia.iter().sum();
    let model = Model {
        d,
        names,
        centroids: run.centroids,
        sizes: run.sizes,
        inertias: run.inertia.iter().map(|&total| prepared.distances.to_f64(total)).collect(),
        inertia: prepared.distances.to_f64(inertia),
        n_iter: run.history.len() as u32,
        history: run.history,
        settings: Settings::new(&params, prepared.weights.is_some()),
        table: Derived::default(),
    };
    Ok(Fitted { model, labels, selection })
}

/// One restart's result.
struct Run<T> {
    centroids: Vec<T>,
    /// Rows of positive weight in each cluster.
    sizes: Vec<u64>,
    /// Integer inertia of each cluster.
    inertia: Vec<u128>,
    history: Vec<HistoryRow>,
}

/// The restart of least integer inertia, then the earliest.
fn best_of_restarts<'a, T: Float>(
    mut session: Box<dyn Session<T> + 'a>,
    params: &Params,
    prepared: &Prepared,
) -> Result<(Run<T>, Vec<u32>)> {
    let mut best: Option<(u128, Run<T>, Option<Vec<u32>>)> = None;
    for restart in 0..params.restarts {
        let start = seeding::seed(session.as_mut(), params, restart)?;
        let run = lloyd(session.as_mut(), start, params, prepared)?;
        let inertia = run.inertia.iter().sum();
        if best.as_ref().is_none_or(|(least, ..)| inertia < *least) {
            // The last restart's labels stay in the session.
            let labels = (restart + 1 < params.restarts).then(|| session.labels());
            best = Some((inertia, run, labels));
        }
    }
    let Some((_, run, labels)) = best else { unreachable!("there is at least one restart") };
    Ok((run, labels.unwrap_or_else(|| session.into_labels())))
}

/// Lloyd's loop from given centroids (`(k, d)`, row-major).
fn lloyd<T: Float>(
    session: &mut dyn Session<T>,
    mut centroids: Vec<T>,
    params: &Params,
    prepared: &Prepared,
) -> Result<Run<T>> {
    let full = params.history == History::Full;
    let n = prepared.n_positive;
    let mut history = Vec::new();
    let mut inertia = None;
    session.reset();
    for iteration in 1..=params.max_iter {
        let start = Instant::now();
        let assigned = session.assign(&centroids, full);
        let updated = update::update(session, &mut centroids, prepared)?;
        history.push(HistoryRow {
            iteration,
            changed: assigned.changed,
            shift: updated.shift,
            inertia: assigned.inertia.as_ref().map(|clusters| prepared.distances.to_f64(clusters.iter().sum())),
            seconds: Some(start.elapsed().as_secs_f64()),
        });
        // Labels and inertia stay those of the final centroids unless something moved.
        inertia = assigned.inertia.filter(|_| !updated.moved);
        let settled =
            assigned.changed as f64 <= params.tol_labels * n as f64 || updated.shift <= params.tol * prepared.variance;
        if settled || iteration == params.max_iter {
            if updated.moved {
                inertia = session.assign(&centroids, true).inertia;
            }
            break;
        }
    }
    let inertia = inertia.unwrap_or_else(|| session.inertia());
    let sizes = session.partial().rows.iter().map(|&rows| rows as u64).collect();
    Ok(Run { centroids, sizes, inertia, history })
}
