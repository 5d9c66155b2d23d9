//! Times the passes of a session, and counts rows in doubt. For benches (feature `bench`).

use std::time::Instant;

use super::CpuSession;
use crate::backend::Session;
use crate::backend::cpu::InDoubt;
use crate::backend::timed::Timed;
use crate::base::error::Result;
use crate::base::float::Float;

impl<T: Float> Timed<T> for CpuSession<'_, T> {
    fn repeat(&mut self, centroids: &[T], passes: u32) -> Result<f64> {
        let begin = Instant::now();
        (0..passes).try_for_each(|_| self.assign(centroids, false).map(drop))?;
        Ok(begin.elapsed().as_secs_f64())
    }

    fn in_doubt(&mut self, centroids: &[T]) -> Result<InDoubt> {
        // The workers have counted since the session began.
        self.take_in_doubt();
        self.assign(centroids, false)?;
        Ok(self.take_in_doubt())
    }

    fn centroids_before(&self) -> Result<Vec<T>> {
        unreachable!("here the caller updates the centroids")
    }
}
