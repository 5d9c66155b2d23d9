//! Counts rows in doubt. For benches (feature `bench`).

use super::CpuSession;
use crate::backend::Session;
use crate::backend::cpu::InDoubt;
use crate::backend::timed::Timed;
use crate::base::error::Result;
use crate::base::float::Float;

impl<T: Float> Timed<T> for CpuSession<'_, T> {
    fn in_doubt(&mut self, centroids: &[T]) -> Result<InDoubt> {
        // The workers have counted since the session began.
        self.take_in_doubt();
        self.assign(centroids, false)?;
        Ok(self.take_in_doubt())
    }
}
