//! Combines sessions over consecutive ranges of rows into one. This merges chunks, devices and machines.
//!
//! ```text
//! advance:  assign of every session, on devices at the same time
//!           sums = the sums of all sessions, added as integers
//!           update of these sums, once; stop?                                              src/backend/update.rs
//! ```
//! Integer sums have the same bits in any order, so the result has the bits of one session over all rows. A session needs from
//! the others only their sums. Here the host adds them. Sums that are still pending on a device are modular 64-bit words, so
//! devices could also add up the words of all of them, and then each could do the same update.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use super::cpu::Method;
use super::{
    Advanced, Assigned, DrawBy, Draws, Far, Iterate, Iteration, KeptRows, Move, Picked, Sample, Sampled, Scales, Session, Stop,
    WorkCounts,
};
use crate::backend::answers::{DISTANCES, Distances, LABELS};
use crate::backend::update;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::at_once;
use crate::base::progress::Watch;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceScale;
use crate::input::tile::Part;
use crate::statistics::Statistics;

/// What errors call the list of sessions.
const SESSIONS: &str = "the list of sessions";

/// Several sessions as one. Row numbers run through all of them.
pub struct Joined<T, S: ?Sized> {
    sessions: Vec<Box<S>>,
    /// First row of each session.
    starts: Vec<u64>,
    statistics: Arc<Statistics>,
    /// The most threads of an update, or 0 for those of the pool.
    threads: usize,
    /// The sums of all sessions, as of the last assign or relocation. None before the first one.
    merged: Option<ClusterSums>,
    /// Draw totals of each session.
    totals: Vec<u128>,
    /// The total weight of each session.
    weights: Vec<u128>,
    /// Whether the sessions work at the same time.
    at_once: bool,
    rows: PhantomData<T>,
}

impl<T: Float, S: Session<T> + ?Sized> Joined<T, S> {
    /// Combines these sessions, at least one, in row order. `statistics` was computed from the rows of all of them.
    /// `threads`: the most threads of an update, or 0 for those of the pool.
    pub fn new(sessions: Vec<Box<S>>, statistics: &Arc<Statistics>, threads: usize) -> Result<Self> {
        let starts = sessions.iter().scan(0, |next, session| {
            let start = *next;
            *next += session.rows();
            Some(start)
        });
        let starts = memory::collected(starts, SESSIONS)?;
        let (totals, weights) = (memory::zeroed(sessions.len(), SESSIONS)?, memory::zeroed(sessions.len(), SESSIONS)?);
        // A session on the CPU takes all threads for each of its passes.
        let at_once = sessions.iter().all(|session| session.on_device());
        let statistics = statistics.clone();
        Ok(Self { sessions, starts, statistics, threads, merged: None, totals, weights, at_once, rows: PhantomData })
    }

    /// The session that has a row.
    fn session_of(&self, row: u64) -> usize {
        self.starts.partition_point(|&start| start <= row) - 1
    }

    /// Calls `work` with every session and with its first row. Returns the results in row order, or the first error.
    fn each<R: Send>(&mut self, work: impl Fn(&mut S, u64) -> Result<R> + Sync) -> Result<Vec<R>> {
        let sessions = self.sessions.iter_mut().zip(&self.starts);
        if self.at_once {
            let sessions = memory::collected(sessions, SESSIONS)?;
            return at_once(sessions, |(session, &start)| work(session.as_mut(), start));
        }
        memory::try_collected(sessions.map(|(session, &start)| work(session.as_mut(), start)), SESSIONS)
    }

    /// The sessions.
    #[cfg(feature = "cuda")]
    pub(crate) fn sessions_mut(&mut self) -> &mut [Box<S>] {
        &mut self.sessions
    }

    /// The labels, of all sessions at the same time.
    pub(crate) fn labels_at_once(&mut self) -> Result<Vec<u32>> {
        let mut all = memory::zeroed(self.rows() as usize, LABELS)?;
        let mut rest = &mut all[..];
        let mut places = memory::with_room(self.sessions.len(), SESSIONS)?;
        for session in &mut self.sessions {
            let (own, others) = rest.split_at_mut(session.rows() as usize);
            rest = others;
            places.push((session, own));
        }
        at_once(places, |(session, own)| session.copy_labels(own))?;
        Ok(all)
    }

    /// Adds up the sums of all sessions.
    fn merge(&mut self) -> Result<()> {
        let mut merged = self.merged.take();
        if let Some(merged) = &mut merged {
            merged.clear_sums();
        }
        for session in &mut self.sessions {
            let cluster_sums = session.cluster_sums()?;
            let merged = match &mut merged {
                Some(merged) => merged,
                None => merged.insert(ClusterSums::new(cluster_sums.rows.len(), cluster_sums.d)?),
            };
            merged.merge(cluster_sums);
        }
        self.merged = merged;
        Ok(())
    }

    /// Keeps the draw totals of the sessions. Returns the total of all.
    fn set_totals(&mut self, totals: Vec<u128>) -> u128 {
        self.totals = totals;
        self.totals.iter().sum()
    }
}

/// Adds up lists of equal length, of which there is at least one.
fn added(lists: Vec<Vec<u128>>) -> Vec<u128> {
    let mut lists = lists.into_iter();
    let first = lists.next().unwrap_or_default();
    lists.fold(first, |mut all, list| {
        all.iter_mut().zip(list).for_each(|(a, b)| *a += b);
        all
    })
}

impl<T: Float, S: Session<T> + ?Sized> KeptRows for Joined<T, S> {
    fn rows(&self) -> u64 {
        self.sessions.iter().map(|session| session.rows()).sum()
    }

    fn positive_rows(&self) -> u64 {
        self.sessions.iter().map(|session| session.positive_rows()).sum()
    }

    fn on_device(&self) -> bool {
        self.at_once
    }
}

impl<T: Float, S: Session<T> + ?Sized> Draws<T> for Joined<T, S> {
    fn row(&self, row: u64) -> Result<Vec<T>> {
        let session = self.session_of(row);
        self.sessions[session].row(row - self.starts[session])
    }

    fn start_draws(&mut self) -> Result<u128> {
        let totals = self.each(|session, _| session.start_draws())?;
        self.weights = memory::copied(&totals, SESSIONS)?;
        Ok(self.set_totals(totals))
    }

    fn draw(&self, mut target: u128) -> Result<u64> {
        for ((session, start), total) in self.sessions.iter().zip(&self.starts).zip(&self.totals) {
            if target < *total {
                return Ok(start + session.draw(target)?);
            }
            target -= total;
        }
        unreachable!("the target is below the total")
    }

    fn take_seeds(&mut self, centroids: &[T], scale: DistanceScale) -> Result<u128> {
        let totals = self.each(|session, _| session.take_seeds(centroids, scale))?;
        Ok(self.set_totals(totals))
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        Ok(added(self.each(|session, _| session.gains(candidates))?))
    }

    fn pick(&mut self, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
        let positive = memory::collected(self.sessions.iter().map(|session| u128::from(session.positive_rows())), SESSIONS)?;
        let totals = match by {
            DrawBy::Weight => &self.weights,
            DrawBy::Distance => &self.totals,
            DrawBy::Positive => &positive,
        };
        // Where the targets of each session begin.
        let ends = totals.iter().scan(0, |end, total| {
            *end += total;
            Some(*end)
        });
        let ends = memory::collected(ends, SESSIONS)?;
        let session_of = |target: u128| ends.partition_point(|&end| end <= target);
        let mut all = Picked { rows: Vec::new(), values: Vec::new(), weights: Vec::new() };
        let mut places = memory::zeroed::<usize>(targets.len(), SESSIONS)?;
        for (number, session) in self.sessions.iter_mut().enumerate() {
            let mut own = Vec::new();
            for (place, target) in targets.iter().enumerate().filter(|(_, target)| session_of(**target) == number) {
                places[place] = all.rows.len() + own.len();
                memory::push(&mut own, target + totals[number] - ends[number], SESSIONS)?;
            }
            let mut picked = session.pick(by, &own)?;
            picked.rows.iter_mut().for_each(|row| *row += self.starts[number]);
            memory::extend(&mut all.rows, &picked.rows, "the rows drawn")?;
            memory::extend(&mut all.values, &picked.values, "the rows drawn")?;
            memory::extend(&mut all.weights, &picked.weights, "the rows drawn")?;
        }
        all.in_order(&places)
    }

    fn all_rows(&self) -> Result<(Vec<T>, Vec<f64>)> {
        let (mut values, mut weights) = (Vec::new(), Vec::new());
        for session in &self.sessions {
            let (more, more_weights) = session.all_rows()?;
            memory::extend(&mut values, &more, "all rows")?;
            memory::extend(&mut weights, &more_weights, "all rows")?;
        }
        Ok((values, weights))
    }

    fn sample(&mut self, sample: &Sample) -> Result<Sampled<T>> {
        let samples = self.each(|session, start| {
            let mut sampled = session.sample(&Sample { first: sample.first + start, ..*sample })?;
            sampled.rows.iter_mut().for_each(|row| *row += start);
            Ok(sampled)
        })?;
        let mut all = Sampled { rows: Vec::new(), values: Vec::new() };
        for sampled in samples {
            memory::extend(&mut all.rows, &sampled.rows, "the rows drawn")?;
            memory::extend(&mut all.values, &sampled.values, "the rows drawn")?;
        }
        Ok(all)
    }

    fn masses(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        Ok(added(self.each(|session, _| session.masses(candidates))?))
    }

    fn nearest_of(&self, rows: &[T], centroids: &[T]) -> Option<Vec<u32>> {
        self.sessions[0].nearest_of(rows, centroids)
    }

    fn other_rows<'t>(&self, part: &Part<'t, T>, statistics: &Arc<Statistics>, k: usize) -> Option<Box<dyn Draws<T> + 't>> {
        self.sessions[0].other_rows(part, statistics, k)
    }

    fn end_draws(&mut self) {
        self.sessions.iter_mut().for_each(|session| session.end_draws());
    }
}

impl<T: Float, S: Session<T> + ?Sized> Iterate<T> for Joined<T, S> {
    fn reset(&mut self) -> Result<()> {
        self.merged = None;
        self.each(|session, _| session.reset()).map(drop)
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        let assigned = self.each(|session, _| {
            let assigned = session.assign(centroids, want_inertia)?;
            // Sums come from a device here, so that all devices send them at the same time.
            session.cluster_sums()?;
            Ok(assigned)
        })?;
        self.merge()?;
        let changed = assigned.iter().map(|assigned| assigned.changed).sum();
        let work_counts = assigned.iter().map(|assigned| assigned.work_counts).reduce(WorkCounts::and).unwrap_or_default();
        let inertia = memory::collected(assigned.into_iter().filter_map(|assigned| assigned.inertia), SESSIONS)?;
        Ok(Assigned { changed, inertia: want_inertia.then(|| added(inertia)), work_counts })
    }

    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32, watch: &mut Watch<'_>) -> Result<Advanced> {
        let (mut done, statistics, threads) = (Vec::new(), self.statistics.clone(), self.threads);
        let mut scratch = update::Scratch::default();
        loop {
            let start = Instant::now();
            let Assigned { changed, work_counts, .. } = self.assign(centroids, false)?;
            let update::Updated { shift, moved } = update::update(self, centroids, &statistics, threads, &mut scratch)?;
            let seconds = start.elapsed().as_secs_f64();
            memory::push(&mut done, Iteration { changed, shift, moved, seconds, work_counts }, "the history")?;
            watch.show(changed, shift, None, Some(centroids))?;
            if stop.after(changed, shift) || done.len() as u32 == limit {
                return Ok(Advanced { done, assigned: None });
            }
        }
    }

    fn cluster_sums(&mut self) -> Result<&ClusterSums> {
        if self.merged.is_none() {
            self.merge()?;
        }
        let Some(merged) = &self.merged else { unreachable!("there is a session at least") };
        Ok(merged)
    }

    fn clear_dirty(&mut self) {
        self.sessions.iter_mut().for_each(|session| session.clear_dirty());
        if let Some(merged) = &mut self.merged {
            merged.clear_dirty();
        }
    }

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        let far = self.each(|session, start| {
            let mut far = session.farthest(count, donors)?;
            far.iter_mut().for_each(|far| far.row += start);
            Ok(far)
        })?;
        let mut all = memory::collected(far.into_iter().flatten(), "the farthest rows")?;
        all.sort_unstable_by(Far::order);
        all.truncate(count);
        Ok(all)
    }

    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        for (session, start) in self.sessions.iter_mut().zip(&self.starts) {
            let rows = *start..start + session.rows();
            let own = moves.iter().filter(|one| rows.contains(&one.row)).map(|one| Move { row: one.row - start, ..*one });
            session.relocate(&memory::collected(own, "the rows that move to empty clusters")?)?;
        }
        self.merge()
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        Ok(added(self.each(|session, _| session.inertia(scales))?))
    }

    fn method(&self) -> Option<Method> {
        // The method of the session of the first rows.
        self.sessions.first().and_then(|session| session.method())
    }

    fn labels(&self) -> Result<Vec<u32>> {
        let mut all = memory::with_room(self.rows() as usize, LABELS)?;
        for session in &self.sessions {
            all.extend(session.labels()?);
        }
        Ok(all)
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        if self.at_once {
            return { self }.labels_at_once();
        }
        let mut all = memory::with_room(self.rows() as usize, LABELS)?;
        for session in self.sessions {
            all.extend(session.into_labels()?);
        }
        Ok(all)
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        let n = self.rows() as usize;
        let (mut labels, mut nearest) = (memory::with_room(n, LABELS)?, memory::with_room(n, DISTANCES)?);
        // With one cluster no session has second distances.
        let mut second =
            if centroids.len() > self.statistics.lows.len() { Some(memory::with_room(n, DISTANCES)?) } else { None };
        for session in &mut self.sessions {
            let (more, distances) = session.nearest(centroids)?;
            labels.extend(more);
            nearest.extend(distances.nearest);
            second.iter_mut().for_each(|second| second.extend(distances.second.iter().flatten()));
        }
        Ok((labels, Distances { nearest, second }))
    }
}

#[cfg(feature = "tests")]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::backend::cpu::CpuSession;
    use crate::base::error::KMeansError;
    use crate::base::params::KMeans;
    use crate::input::features::Features;
    use crate::simd::InstructionSet;
    use crate::statistics::gather;

    const ROWS: usize = 900;

    /// Calls `work` with three sessions on the CPU that work one after the other, or at the same time.
    fn with_joined<R>(at_once: bool, work: impl FnOnce(&mut Joined<f64, dyn Session<f64> + '_>) -> R) -> R {
        let x: Vec<f64> = (0..2 * ROWS).map(|i| ((i * i) % 997) as f64).collect();
        let features = Features::from_rows(&x, 2).unwrap();
        let mut parts: Vec<_> =
            [0, 1, 400, ROWS].windows(2).map(|cut| Part::new(features.slice(cut[0]..cut[1]).unwrap(), None)).collect();
        let estimator = KMeans::new(7);
        let statistics = Arc::new(gather(&mut parts, &estimator.validate(2).unwrap()).unwrap());
        let session = |part| -> Box<dyn Session<f64> + '_> {
            Box::new(CpuSession::new(part, &statistics, 7, 1, InstructionSet::detect()).unwrap())
        };
        let mut joined = Joined::new(parts.into_iter().map(session).collect(), &statistics, 1).unwrap();
        assert!(!joined.on_device());
        joined.at_once = at_once;
        work(&mut joined)
    }

    unit_test!(sessions_at_the_same_time_give_the_bits_of_one_after_the_other);
    fn sessions_at_the_same_time_give_the_bits_of_one_after_the_other() {
        let all = |joined: &mut Joined<f64, dyn Session<f64> + '_>| {
            let scale = joined.statistics.distances;
            joined.start_draws().unwrap();
            let total = joined.take_seeds(&[1.0, 2.0, 3.0, 4.0], scale).unwrap();
            let sample = Sample { seed: 5, restart: 0, round: 1, total, expected: 50, first: 0, by_values: false };
            let seeding = (total, joined.sample(&sample).unwrap(), joined.masses(&[5.0, 6.0, 500.0, 600.0]).unwrap());
            // Most of these centroids are far from all rows: their clusters are empty and take the farthest rows.
            let mut centroids: Vec<f64> = (0..14).map(|i| f64::from(i) * 300.0).collect();
            let stop = Stop { changed: 0.0, shift: 0.0 };
            let done = joined.advance(&mut centroids, stop, 20, &mut Watch::default()).unwrap().done;
            let iterations: Vec<_> = done.iter().map(|done| (done.changed, done.shift, done.moved)).collect();
            assert!(iterations.len() > 3);
            (seeding, iterations, centroids, joined.labels().unwrap(), joined.inertia(Scales::Same(scale)).unwrap())
        };
        assert_eq!(with_joined(true, all), with_joined(false, all));
    }

    unit_test!(at_once_means_at_the_same_time);
    fn at_once_means_at_the_same_time() {
        let barrier = Barrier::new(3);
        let starts = with_joined(true, |joined| {
            joined.each(|_, start| {
                barrier.wait();
                Ok(start)
            })
        });
        assert_eq!(starts.unwrap(), [0, 1, 400]);
    }

    unit_test!(the_first_error_in_row_order_is_returned);
    fn the_first_error_in_row_order_is_returned() {
        for at_once in [false, true] {
            let result = with_joined(at_once, |joined| {
                joined.each(|_, start| if start == 0 { Ok(()) } else { Err(KMeansError::TooManyRows { got: start }) })
            });
            assert_eq!(result, Err(KMeansError::TooManyRows { got: 1 }));
        }
    }
}
