//! One fit on several GPUs that exchange their sums, and so work in step: each labels its rows, and all do the same update.

use std::sync::Arc;

use super::other_rows::OtherRows;
use super::{CudaSession, advance};
use crate::backend::call::{Call, Calls};
use crate::backend::chunking::MOST_ROWS;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::exchange::{GpuGroup, Port};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::chunks::RowChunks;
use crate::backend::cuda::shape::FitShape;
use crate::backend::sharded::sessions::{ask_sessions, copy_labels};
use crate::backend::sharded::{InStep, Shards, Take};
use crate::backend::{Advanced, Assigned, Move, PlusPlus, Seeder, Session, Stop, Updated};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::progress::Watch;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceSum;
use crate::statistics::Statistics;

/// What errors call the sessions.
const SESSIONS: &str = "the sessions of a fit";

/// The sessions of a fit on several GPUs, in the order of their rows.
pub struct GpusInStep<'a, T: Float + Plain> {
    sessions: Vec<Box<CudaSession<'a, T>>>,
    statistics: Arc<Statistics>,
    /// A copy of all rows on the first GPU, for k-means++.
    gathered: Option<RowsOnOneGpu<'a, T>>,
    /// Dropped last: another group may begin.
    _group: GpuGroup,
}

impl<'a, T: Float + Plain> GpusInStep<'a, T> {
    /// These sessions, at least two, which were made for this group.
    pub fn new(mut sessions: Vec<Box<CudaSession<'a, T>>>, group: GpuGroup, statistics: &Arc<Statistics>) -> Result<Self> {
        let ports = sessions.iter_mut().filter_map(|session| session.state.port.as_mut());
        Port::connect(&mut memory::collected(ports, SESSIONS)?);
        Ok(Self { sessions, statistics: statistics.clone(), gathered: None, _group: group })
    }

    /// All sessions.
    fn all(&mut self) -> Result<Vec<&mut CudaSession<'a, T>>> {
        memory::collected(self.sessions.iter_mut().map(|session| &mut **session), SESSIONS)
    }
}

/// All rows of a fit on one GPU. A step of k-means++ is short, and each would make several rounds through the host, which take
/// longer than the step on one GPU.
struct RowsOnOneGpu<'a, T> {
    rows: OtherRows<'a, T>,
    /// The values of the centroids that the rows were compared with.
    taken: usize,
}

impl<'a, T: Float + Plain> RowsOnOneGpu<'a, T> {
    /// None if there is not enough room, or if the rows stream.
    fn if_there_is_room(sessions: &[Box<CudaSession<'a, T>>], statistics: &Arc<Statistics>) -> Result<Option<Self>> {
        let (queue, shape) = (&sessions[0].state.queue, &sessions[0].state.shape);
        let resident = sessions.iter().map(|session| match &*session.rows {
            RowChunks::Resident(rows) => Some(rows),
            RowChunks::Streamed(_) => None,
        });
        let Some(parts) = resident.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let n = parts.iter().map(|rows| rows.n).sum::<usize>();
        let draws = OtherRows::<T>::draw_bytes([n, shape.d, shape.k], shape.weighted, shape.half);
        // The session itself may draw too.
        let bytes = DeviceRows::<T>::bytes(n, shape.d, shape.weighted, shape.half).saturating_add(draws);
        if n as u64 > MOST_ROWS || !queue.has_room(bytes.saturating_add(draws))? {
            return Ok(None);
        }
        for rows in &parts {
            rows.queue.wait()?;
        }
        let rows = RowChunks::Resident(DeviceRows::gathered(queue, &parts)?);
        let mut rows = OtherRows::of(rows, statistics, shape.k)?;
        rows.weigh()?;
        Ok(Some(Self { rows, taken: 0 }))
    }
}

/// GPUs may still read each other's memory, or wait for one that failed.
impl<T: Float + Plain> Drop for GpusInStep<'_, T> {
    fn drop(&mut self) {
        self.sessions.iter().filter_map(|session| session.state.port.as_ref()).for_each(Port::give_up);
        for session in &mut self.sessions {
            // Without success there is nothing to wait for.
            let _ = session.state.queue.wait();
        }
    }
}

impl<T: Float + Plain> Shards<T> for GpusInStep<'_, T> {
    fn rows(&self) -> Result<Vec<[u64; 2]>> {
        memory::collected(self.sessions.iter().map(|session| [session.rows(), session.positive_rows()]), SESSIONS)
    }

    fn ask(&mut self, calls: Calls<Call>, values: &[T], take: Take<'_, T>) -> Result<()> {
        if let Calls::All(Call::Weigh | Call::EndDraws) = calls {
            self.gathered = None;
        }
        ask_sessions(&mut self.sessions, true, &calls, values, take)
    }

    fn copy_labels(&mut self, out: &mut [u32]) -> Result<()> {
        copy_labels(&mut self.sessions, true, out)
    }

    fn first(&self) -> Option<&dyn Session<T>> {
        Some(&*self.sessions[0])
    }

    fn in_step(&mut self) -> Option<&mut dyn InStep<T>> {
        Some(self)
    }
}

impl<T: Float + Plain> InStep<T> for GpusInStep<'_, T> {
    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        advance::assign(&mut self.all()?, centroids, want_inertia)
    }

    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32, watch: &mut Watch<'_>) -> Result<Advanced> {
        advance::advance(&mut self.all()?, centroids, stop, limit, watch)
    }

    fn cluster_sums(&mut self) -> Result<&ClusterSums> {
        // Every GPU has all sums, or those of its own clusters.
        let own = self.sessions.iter().map(|session| session.own_clusters()).collect::<Option<Vec<_>>>();
        if let Some(own) = own.filter(|_| self.sessions[0].cluster_sums.is_none()) {
            let FitShape { k, d, .. } = self.sessions[0].state.shape;
            let mut all = ClusterSums::new(k, d)?;
            self.sessions.iter().zip(own).try_for_each(|(session, own)| session.read_sums(own, &mut all))?;
            self.sessions[0].cluster_sums = Some(all);
        }
        self.sessions[0].cluster_sums()
    }

    fn sizes(&mut self) -> Result<Vec<u64>> {
        self.sessions[0].sizes()
    }

    fn means(&mut self, centroids: &mut [T]) -> Result<Option<Updated>> {
        if !self.sessions[0].has_means() {
            return Ok(None);
        }
        // Every GPU must have the new centroids.
        let each = self.sessions.iter_mut().map(|session| session.launch_means());
        each.collect::<Result<()>>()?;
        self.sessions[0].read_means(centroids).map(Some)
    }

    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        advance::relocate(&mut self.all()?, moves)
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<bool> {
        if self.gathered.is_none() {
            self.gathered = RowsOnOneGpu::if_there_is_room(&self.sessions, &self.statistics)?;
        }
        let Some(all) = &mut self.gathered else { return Ok(false) };
        // `all` has not taken the centroids of the steps that the host has done.
        all.rows.lower(&centroids[all.taken..], potential.scale)?;
        all.rows.plus_plus_steps(asked, potential, centroids)?;
        all.taken = centroids.len();
        Ok(true)
    }
}
