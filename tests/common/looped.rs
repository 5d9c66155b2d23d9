//! Labels of the last iteration of a loop, for tests and benches that compare them with reference labels.

use polars_kmeans::backend::Stop;
use polars_kmeans::backend::update::{Scratch, update};
use polars_kmeans::base::progress::Watch;
use polars_kmeans::{Engine, Features, KMeans, Result};

/// A loop that stops at its limit.
const NEVER: Stop = Stop { changed: -1.0, shift: -1.0 };

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
pub fn labels_of_loop<T: Engine>(estimator: &KMeans, features: &Features<'_, T>, iterations: u32) -> Result<Looped<T>> {
    let mut looped = Looped { labels: Vec::new(), centroids: Vec::new() };
    T::in_session(estimator, features, &mut |session, start, statistics| {
        let (mut centroids, mut done) = (start.to_vec(), 0);
        session.reset()?;
        loop {
            let advanced = session.advance(&mut centroids, NEVER, iterations - done, &mut Watch::default())?;
            done += advanced.done.len() as u32;
            if advanced.assigned.is_none() {
                looped = Looped { labels: session.labels()?, centroids: session.centroids_before()? };
                return Ok(());
            }
            done += 1;
            if done >= iterations {
                looped = Looped { labels: session.labels()?, centroids };
                return Ok(());
            }
            update(session, &mut centroids, statistics, 0, &mut Scratch::default())?;
        }
    })?;
    Ok(looped)
}
