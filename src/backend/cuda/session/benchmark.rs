//! Times the passes of a session, and counts rows in doubt. For benches (feature `bench`).

use std::time::Instant;

use super::CudaSession;
use crate::backend::Session;
use crate::backend::cpu::InDoubt;
use crate::backend::cuda::device::Plain;
use crate::backend::timed::Timed;
use crate::base::error::Result;
use crate::base::float::Float;

impl<T: Float + Plain> Timed<T> for CudaSession<'_, T> {
    fn repeat(&mut self, centroids: &[T], passes: u32) -> Result<f64> {
        self.start(centroids)?;
        self.update.read_control()?;
        let begin = Instant::now();
        for _ in 0..passes {
            // The update would do this too.
            self.update.end_chunk(&self.state.queue)?;
            self.launch_step(None)?;
        }
        // The download waits for all passes.
        self.update.read_control()?;
        let seconds = begin.elapsed().as_secs_f64();
        self.update.fold(&self.state)?;
        Ok(seconds)
    }

    fn in_doubt(&mut self, centroids: &[T]) -> Result<InDoubt> {
        self.assign(centroids, false)?;
        let control = self.update.read_control()?;
        let all = u64::from(control.in_doubt);
        Ok(InDoubt { few: control.all_settled() - all, all })
    }

    fn centroids_before(&self) -> Result<Vec<T>> {
        self.update.centroids_before()
    }
}
