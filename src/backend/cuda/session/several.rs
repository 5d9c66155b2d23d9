//! One fit on several GPUs that exchange their sums, and so work in step: each labels its rows, and all do the same update.
//!
//! What is not a part of the loop is done as for any list of sessions: see [`Joined`].

use std::sync::Arc;

use super::other_rows::OtherRows;
use super::{CudaSession, advance};
use crate::backend::answers::Distances;
use crate::backend::chunking::MOST_ROWS;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::exchange::{Group, Port};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::chunks::Chunks;
use crate::backend::{
    Advanced, Assigned, DrawBy, Draws, Far, Iterate, Joined, KeptRows, Move, Picked, PlusPlus, Sample, Sampled, Scales, Stop,
};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::progress::Watch;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::tile::Part;
use crate::statistics::Statistics;

/// The sessions of a fit on several GPUs, in the order of their rows.
pub struct Several<'a, T: Float + Plain> {
    joined: Joined<T, CudaSession<'a, T>>,
    statistics: Arc<Statistics>,
    /// A copy of all rows on the first GPU, for k-means++.
    gathered: Option<Gathered<'a, T>>,
    /// Dropped last: another group may begin.
    _group: Group,
}

impl<'a, T: Float + Plain> Several<'a, T> {
    /// These sessions, at least two, which were made for this group.
    pub fn new(
        mut sessions: Vec<Box<CudaSession<'a, T>>>,
        group: Group,
        statistics: &Arc<Statistics>,
        threads: usize,
    ) -> Result<Self> {
        let ports = sessions.iter_mut().filter_map(|session| session.port());
        Port::connect(&mut memory::collected(ports, "the sessions of a fit")?);
        let joined = Joined::new(sessions, statistics, threads)?;
        Ok(Self { joined, statistics: statistics.clone(), gathered: None, _group: group })
    }

    /// Calls `work` with all sessions.
    fn in_step<R>(&mut self, work: impl FnOnce(&mut [&mut CudaSession<'a, T>]) -> Result<R>) -> Result<R> {
        let sessions = self.joined.sessions_mut().iter_mut().map(|session| &mut **session);
        work(&mut memory::collected(sessions, "the sessions of a fit")?)
    }
}

/// All rows of a fit on one GPU. A step of k-means++ is short, and each would make several rounds through the host, which take
/// longer than the step on one GPU.
struct Gathered<'a, T> {
    rows: OtherRows<'a, T>,
    /// How many values of the centroids it has taken.
    taken: usize,
}

impl<'a, T: Float + Plain> Gathered<'a, T> {
    /// None if there is not enough room, or if the rows stream.
    fn if_there_is_room(sessions: &[Box<CudaSession<'a, T>>], statistics: &Arc<Statistics>) -> Result<Option<Self>> {
        let (queue, shape) = (&sessions[0].state.queue, &sessions[0].state.shape);
        let resident = sessions.iter().map(|session| match &*session.rows {
            Chunks::Resident(rows) => Some(rows),
            Chunks::Streamed(_) => None,
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
        let rows = Chunks::Resident(DeviceRows::gathered(queue, &parts)?);
        let mut rows = OtherRows::of(rows, statistics, shape.k)?;
        rows.start_draws()?;
        Ok(Some(Self { rows, taken: 0 }))
    }
}

/// GPUs may still read each other's memory, or wait for one that failed.
impl<T: Float + Plain> Drop for Several<'_, T> {
    fn drop(&mut self) {
        let sessions = self.joined.sessions_mut();
        sessions.iter_mut().filter_map(|session| session.port()).for_each(|port| port.give_up());
        for session in sessions {
            // Without success there is nothing to wait for.
            let _ = session.state.queue.wait();
        }
    }
}

impl<T: Float + Plain> KeptRows for Several<'_, T> {
    fn rows(&self) -> u64 {
        self.joined.rows()
    }

    fn positive_rows(&self) -> u64 {
        self.joined.positive_rows()
    }

    fn on_device(&self) -> bool {
        true
    }
}

impl<T: Float + Plain> Draws<T> for Several<'_, T> {
    fn row(&self, row: u64) -> Result<Vec<T>> {
        self.joined.row(row)
    }

    fn start_draws(&mut self) -> Result<u128> {
        self.gathered = None;
        self.joined.start_draws()
    }

    fn draw(&self, target: u128) -> Result<u64> {
        self.joined.draw(target)
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        self.joined.take_seeds(centroids, scale)
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        self.joined.gains(candidates)
    }

    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<()> {
        if self.gathered.is_none() {
            self.gathered = Gathered::if_there_is_room(self.joined.sessions_mut(), &self.statistics)?;
        }
        let Some(all) = &mut self.gathered else { return Ok(()) };
        let before = centroids.len();
        // `all` has not taken the centroids of the steps that the host has done.
        all.rows.take_seeds(&centroids[all.taken..], potential.scale)?;
        all.rows.plus_plus_steps(asked, potential, centroids)?;
        all.taken = centroids.len();
        if centroids.len() < asked.k * self.statistics.lows.len() {
            // The host goes on. The sessions have not taken the new ones.
            self.joined.take_seeds(&centroids[before..], potential.scale)?;
        }
        Ok(())
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        self.joined.trials(targets)
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        self.joined.pick(by, targets)
    }

    fn all_rows(&self) -> Result<(Vec<T>, Vec<f64>)> {
        self.joined.all_rows()
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        self.joined.sample(sample)
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        self.joined.masses(candidates)
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        self.joined.nearest_of(rows, centroids)
    }

    fn other_rows<'t>(&self, part: &Part<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Draws<T> + 't>> {
        self.joined.other_rows(part, statistics, k)
    }

    fn end_draws(&mut self) {
        self.gathered = None;
        self.joined.end_draws();
    }
}

impl<T: Float + Plain> Iterate<T> for Several<'_, T> {
    fn reset(&mut self) -> Result<()> {
        self.joined.reset()
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        self.in_step(|sessions| advance::assign(sessions, centroids, want_inertia))
    }

    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32, watch: &mut Watch<'_>) -> Result<Advanced> {
        self.in_step(|sessions| advance::advance(sessions, centroids, stop, limit, watch))
    }

    fn cluster_sums(&mut self) -> Result<&ClusterSums> {
        // Every GPU has the sums of all.
        self.joined.sessions_mut()[0].cluster_sums()
    }

    fn clear_dirty(&mut self) {}

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        self.joined.farthest(count, donors)
    }

    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        self.in_step(|sessions| advance::relocate(sessions, moves))
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        self.joined.inertia(scales)
    }

    fn labels(&self) -> Result<Vec<u32>> {
        self.joined.labels()
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        { self }.joined.labels_at_once()
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        self.joined.nearest(centroids)
    }
}
