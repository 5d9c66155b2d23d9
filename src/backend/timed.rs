//! Passes of a session that are timed. For benches (feature `bench`).

use std::time::Instant;

use crate::backend::Session;
use crate::backend::cpu::{CpuSession, InDoubt};
use crate::base::error::Result;
use crate::base::float::Float;

/// A session whose passes are timed.
pub trait Timed<T: Float>: Session<T> {
    /// Runs an assign with these centroids `passes` times, without an update. Returns the seconds of all of them.
    fn repeat(&mut self, centroids: &[T], passes: u32) -> Result<f64> {
        let begin = Instant::now();
        (0..passes).try_for_each(|_| self.assign(centroids, false).map(drop))?;
        Ok(begin.elapsed().as_secs_f64())
    }
    /// Runs one assign with these centroids. Returns how many rows were in doubt. If rows stream through a GPU, those of all
    /// chunks but the last count as compared with a few centroids.
    fn in_doubt(&mut self, centroids: &[T]) -> Result<InDoubt>;
    /// The centroids that the last iteration of [`Session::advance`] took the labels from: those before its update.
    fn centroids_before(&self) -> Result<Vec<T>> {
        unreachable!("the caller updates the centroids")
    }
}

impl<T: Float> Timed<T> for CpuSession<'_, T> {
    fn in_doubt(&mut self, centroids: &[T]) -> Result<InDoubt> {
        // The workers have counted since the session began.
        self.take_in_doubt();
        self.assign(centroids, false)?;
        Ok(self.take_in_doubt())
    }
}
