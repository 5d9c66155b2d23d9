//! Times the iterations of a fit apart from everything else. For benches (feature `bench`).
//!
//! A fit stops when nothing changes any more. Here a session goes on for a fixed number of iterations, and then repeats the last
//! one: in such a pass no row changes. So passes over different data can be compared at an equal share of changed rows.

use std::time::Instant;

use crate::backend::cpu::InDoubt;
use crate::backend::timed::Timed;
use crate::backend::update;
use crate::backend::{Advanced, Assigned, Iteration, Stop};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{FloatEnvironment, PoolShare};
use crate::base::params::{Init, KMeans};
use crate::base::progress::Watch;
use crate::fit::prepared::{LocalRows, PreparedRows};
use crate::fit::rows;
use crate::input::features::Features;
use crate::input::tile::Part;
use crate::simd::InstructionSet;
use crate::statistics::Statistics;

/// What the iterations of a fit cost.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The iterations from the starting centroids on. In the first one every row changes its label.
    pub iterations: Vec<Iteration>,
    /// Rows in doubt in the first iteration.
    pub first_in_doubt: InDoubt,
    /// Seconds of a pass with the last centroids, in which no row changes.
    pub steady: f64,
    /// Rows in doubt in such a pass.
    pub steady_in_doubt: InDoubt,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Iterations from the starting centroids on.
    pub iterations: u32,
    /// How often everything is run. Every run does the same work, so the least time of each iteration counts.
    pub runs: u32,
    /// Passes in which nothing changes, timed together in each run.
    pub passes: u32,
}

/// Measures the iterations of a fit of `features` from given starting centroids.
///
/// # Errors
/// As [`KMeans::fit_features`].
pub fn measure<T: Float>(estimator: &KMeans, features: &Features<'_, T>, extent: Extent) -> Result<Measured> {
    in_session(estimator, features, &mut |session, start, statistics| measured(session, start, statistics, extent))
}

/// The rows whose label is not the right one.
pub fn wrong_rows<'l>(labels: &'l [u32], right: &'l [u32]) -> impl Iterator<Item = usize> + 'l {
    assert_eq!(labels.len(), right.len(), "a label for each row");
    labels.iter().zip(right).enumerate().filter(|(_, (label, right))| label != right).map(|(row, _)| row)
}

/// Labels of the last iteration of a loop, and what they came from.
#[derive(Debug, Clone)]
pub struct Looped<T> {
    pub labels: Vec<u32>,
    /// The centroids (`(k, d)`, row-major) that gave the rows these labels.
    pub centroids: Vec<T>,
}

/// Runs so many iterations from given starting centroids. Returns the labels that the last one gave, before its update. A fit
/// labels its rows once more at its end, with everything made anew. These labels come from what steps carry from iteration to
/// iteration.
///
/// # Errors
/// As [`KMeans::fit_features`].
pub(crate) fn labels_of_loop<T: Float>(estimator: &KMeans, features: &Features<'_, T>, iterations: u32) -> Result<Looped<T>> {
    in_session(estimator, features, &mut |session, start, statistics| {
        let (mut centroids, mut done) = (memory::copied(start, "the centroids")?, 0);
        session.reset()?;
        loop {
            let advanced = session.advance(&mut centroids, NEVER, iterations - done, &mut Watch::default())?;
            done += advanced.done.len() as u32;
            if advanced.assigned.is_none() {
                return Ok(Looped { labels: session.labels()?, centroids: session.centroids_before()? });
            }
            done += 1;
            if done >= iterations {
                return Ok(Looped { labels: session.labels()?, centroids });
            }
            update::update(session, &mut centroids, statistics, 0, &mut update::Scratch::default())?;
        }
    })
}

/// What is done with a session, its starting centroids, and what is known about its rows.
type Use<'u, T, R> = &'u mut dyn FnMut(&mut dyn Timed<T>, &[T], &Statistics) -> Result<R>;

/// Makes the session of a fit, on the device that the fit would take.
fn in_session<T: Float, R>(estimator: &KMeans, features: &Features<'_, T>, then: Use<'_, T, R>) -> Result<R> {
    let _environment = FloatEnvironment::default_rounding();
    let _share = PoolShare::enter();
    let params = estimator.validate(features.n_features())?;
    let Init::Given(start) = &params.seeding.init else { unreachable!("the bench gives the starting centroids") };
    let start = memory::collected(start.iter().map(|c| T::from_f64(*c)), "the starting centroids")?;
    let mut parts = vec![Part::new(features.clone(), None)];
    let choice = rows::place(&mut parts, &params)?;
    let rows = LocalRows::new(parts, &choice, &params, InstructionSet::detect(), None)?;
    then(rows.timed(&params)?.as_mut(), &start, rows.statistics())
}

fn measured<T: Float>(session: &mut dyn Timed<T>, start: &[T], statistics: &Statistics, extent: Extent) -> Result<Measured> {
    let (mut iterations, mut centroids): (Vec<Iteration>, Vec<T>) = (Vec::new(), Vec::new());
    let mut steady = f64::INFINITY;
    for _ in 0..extent.runs.max(1) {
        centroids = memory::copied(start, "the centroids")?;
        let again = iterate(session, &mut centroids, statistics, extent.iterations)?;
        if iterations.is_empty() {
            iterations = again;
        } else {
            let both = iterations.iter_mut().zip(again);
            both.for_each(|(least, again)| least.seconds = least.seconds.min(again.seconds));
        }
        session.assign(&centroids, false)?;
        steady = steady.min(session.repeat(&centroids, extent.passes)? / f64::from(extent.passes));
    }
    let steady_in_doubt = session.in_doubt(&centroids)?;
    session.reset()?;
    Ok(Measured { iterations, first_in_doubt: session.in_doubt(start)?, steady, steady_in_doubt })
}

/// A loop that stops at its limit.
const NEVER: Stop = Stop { changed: -1.0, shift: -1.0 };

/// The loop of a fit, for exactly `limit` iterations.
fn iterate<T: Float>(
    session: &mut dyn Timed<T>,
    centroids: &mut [T],
    statistics: &Statistics,
    limit: u32,
) -> Result<Vec<Iteration>> {
    let mut iterations: Vec<Iteration> = Vec::new();
    session.reset()?;
    while iterations.len() < limit as usize {
        let begin = Instant::now();
        let left = limit - iterations.len() as u32;
        let Advanced { done, assigned } = session.advance(centroids, NEVER, left, &mut Watch::default())?;
        let seconds = done.iter().map(|iteration| iteration.seconds).sum::<f64>();
        iterations.extend(done);
        if let Some(assigned) = assigned {
            let updated = update::update(session, centroids, statistics, 0, &mut update::Scratch::default())?;
            let seconds = (begin.elapsed().as_secs_f64() - seconds).max(0.0);
            let (Assigned { changed, work_counts, .. }, update::Updated { shift, moved }) = (assigned, updated);
            iterations.push(Iteration { changed, shift, moved, seconds, work_counts });
        }
    }
    Ok(iterations)
}
