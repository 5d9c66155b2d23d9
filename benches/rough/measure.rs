//! Times the iterations of a fit apart from everything else.
//!
//! A fit stops when nothing changes any more. Here a session goes on for a fixed number of iterations, and then repeats the last
//! one: in such a pass no row changes. So passes over different data can be compared at an equal share of changed rows.

use std::time::Instant;

use polars_kmeans::backend::Updated;
use polars_kmeans::backend::cpu::InDoubt;
use polars_kmeans::backend::timed::Timed;
use polars_kmeans::backend::update::{Scratch, update};
use polars_kmeans::backend::{Advanced, Assigned, Iteration, Stop};
use polars_kmeans::base::progress::Watch;
use polars_kmeans::statistics::Statistics;
use polars_kmeans::{Engine, Features, Float, KMeans, Result};

/// What the iterations of a fit cost.
#[derive(Debug, Clone, Default)]
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
pub fn measure<T: Engine>(estimator: &KMeans, features: &Features<'_, T>, extent: Extent) -> Result<Measured> {
    let mut measured = Measured { steady: f64::INFINITY, ..Measured::default() };
    T::in_session(estimator, features, &mut |session, start, statistics| {
        let Measured { iterations, first_in_doubt, steady, steady_in_doubt } = &mut measured;
        let mut centroids = Vec::new();
        for _ in 0..extent.runs.max(1) {
            centroids = start.to_vec();
            let again = iterate(session, &mut centroids, statistics, extent.iterations)?;
            if iterations.is_empty() {
                *iterations = again;
            } else {
                let both = iterations.iter_mut().zip(again);
                both.for_each(|(least, again)| least.seconds = least.seconds.min(again.seconds));
            }
            session.assign(&centroids, false)?;
            *steady = steady.min(session.repeat(&centroids, extent.passes)? / f64::from(extent.passes));
        }
        *steady_in_doubt = session.in_doubt(&centroids)?;
        session.reset()?;
        *first_in_doubt = session.in_doubt(start)?;
        Ok(())
    })?;
    Ok(measured)
}

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
        let (never, left) = (Stop { changed: -1.0, shift: -1.0 }, limit - iterations.len() as u32);
        let Advanced { done, assigned, .. } = session.advance(centroids, never, left, &mut Watch::default())?;
        let seconds = done.iter().map(|iteration| iteration.seconds).sum::<f64>();
        iterations.extend(done);
        if let Some(assigned) = assigned {
            let updated = update(session, centroids, statistics, 0, &mut Scratch::default())?;
            let seconds = (begin.elapsed().as_secs_f64() - seconds).max(0.0);
            let (Assigned { changed, work_counts, .. }, Updated { shift, moved }) = (assigned, updated);
            iterations.push(Iteration { changed, shift, moved, seconds, work_counts });
        }
    }
    Ok(iterations)
}
