//! The loop of the device: batches of iterations that one GPU, or several in step, do without the host.

use std::collections::VecDeque;
use std::mem::replace;
use std::thread;

use cudarc::driver::CudaEvent;

use super::{CudaSession, LONGEST_BATCH};
use crate::backend::cuda::arguments::{Control, Record, STOP_EMPTY};
use crate::backend::cuda::device::{Buffer, Plain, Queue};
use crate::backend::cuda::exchange::{ExchangedSums, Port};
use crate::backend::cuda::passes::distances::InertiaSums;
use crate::backend::{Advanced, Assigned, Iteration, Move, Scales, Session, Stop};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::interrupt;
use crate::base::memory;
use crate::base::parallel::at_once;
use crate::base::progress::Watch;

/// Iterations of the first batch. [`LONGEST_BATCH`] has most.
const FIRST_BATCH: u32 = 8;
/// How long a batch should take at most: a call can be stopped between batches.
const BATCH_SECONDS: f64 = 0.1;
/// Multiply-adds per second of a GPU, for the first batch.
const RATE: f64 = 1e13;
/// How long an iteration takes by [`RATE`] from which the host looks whether the loop has stopped before it queues more. The
/// launches of an iteration that does nothing take a tenth of a millisecond.
const LONG_SECONDS: f64 = 2e-3;
/// Iterations that are queued at a time then.
const QUEUED: usize = 2;
/// The name of the sessions in errors.
const GPUS: &str = "the GPUs of a fit";

/// As [`Session::advance`](crate::backend::Session::advance), for the sessions of one fit: one for each GPU, or share of a GPU.
pub fn advance<T: Float + Plain>(
    sessions: &mut [&mut CudaSession<'_, T>],
    centroids: &mut [T],
    stop: Stop,
    limit: u32,
    watch: &mut Watch<'_>,
) -> Result<Advanced> {
    let mut advanced = Advanced::default();
    let resident = sessions.iter().all(|session| session.is_resident());
    let work = |session: &&mut CudaSession<'_, T>| {
        let shape = &session.state.shape;
        shape.rows as f64 * shape.d as f64 * shape.k as f64
    };
    let work = sessions.iter().map(work).fold(1.0, f64::max);
    let mut most = (BATCH_SECONDS * RATE / work) as u32;
    let mut batch = FIRST_BATCH;
    let looks = resident && sessions.len() == 1 && work > LONG_SECONDS * RATE;
    let mut ahead = sessions[0].ahead.take();
    if looks && ahead.is_none() {
        ahead = Some(Ahead::new(&sessions[0].state.queue)?);
    }
    loop {
        let first = advanced.done.len() as u32;
        let size = if resident { batch.min(most.max(1)).min(limit - first) } else { 1 };
        let starting = &*centroids;
        let mut queued = 0;
        for iteration in first..first + size {
            if let Some(ahead) = &mut ahead
                && ahead.is_stopped(sessions[0].update.control())?
            {
                break;
            }
            queued += 1;
            each(sessions, |_, session| {
                if iteration == 0 {
                    session.start(starting)?;
                }
                session.launch_step(None)?;
                session.arrive(ExchangedSums::Step)
            })?;
            sessions.iter().try_for_each(|session| session.share(ExchangedSums::Step))?;
            for session in &mut *sessions {
                session.total(ExchangedSums::Step)?;
                session.update.launch(&session.state, stop, limit, first)?;
            }
            if let Some(ahead) = &mut ahead {
                ahead.mark(&sessions[0].state.queue)?;
            }
        }
        let control = control(sessions)?;
        if let Some(ahead) = &mut ahead {
            ahead.ends.clear();
        }
        let done = control.iteration - first;
        let mut records = memory::filled(done as usize, Record::ZERO, "the history")?;
        sessions[0].update.read_records(&mut records)?;
        memory::reserve(&mut advanced.done, records.len(), "the history")?;
        advanced.done.extend(records.iter().map(|record| Iteration {
            changed: record.changed,
            shift: record.shift,
            moved: record.moved != 0,
            seconds: record.nanoseconds as f64 * 1e-9,
            work_counts: sessions[0].work_counts(record.settled, record.scores, record.rescored, record.groups),
        }));
        // Of a batch, the device has the centroids after the last iteration. If clusters are empty, it has moved them already.
        let now = &sessions[0].state.centroids.now;
        let after = (watch.wants_centroids() && control.stop != STOP_EMPTY).then(|| now.to_vec()).transpose()?;
        for (place, record) in (1..).zip(&records) {
            let centroids = after.as_deref().filter(|_| place == records.len());
            watch.show(record.changed, record.shift, None, centroids)?;
        }
        // Steps that were queued after the stop did nothing. Go back to the state after the last one that ran.
        let idle = queued - done - u32::from(control.stop == STOP_EMPTY);
        sessions.iter_mut().for_each(|session| session.go_back(idle));
        if control.stop != 0 || advanced.done.len() as u32 == limit || watch.stopped() {
            if control.stop == STOP_EMPTY {
                // The clusters that are not empty have already moved. Go back to the centroids that the rows were assigned to.
                sessions.iter_mut().for_each(|session| session.update.undo(&mut session.state));
                let work_counts =
                    sessions[0].work_counts(control.all_settled(), control.scores, control.rescored, control.groups);
                advanced.assigned = Some(Assigned { changed: control.changed, inertia: None, work_counts });
            }
            // The caller replaces them by means.
            if control.stop != STOP_EMPTY || !sessions[0].has_means() {
                sessions[0].read_centroids(centroids)?;
            }
            sessions[0].ahead = ahead;
            return Ok(advanced);
        }
        most = (BATCH_SECONDS / records.iter().map(|record| record.nanoseconds as f64 * 1e-9).fold(1e-6, f64::max)) as u32;
        batch = (batch * 2).min(LONGEST_BATCH);
    }
}

/// Looks whether the loop has stopped, while later iterations are queued.
pub struct Ahead {
    /// A queue to read the control with, because the queue of the session is busy.
    looks: Queue,
    /// The ends of the queued iterations, the oldest first.
    ends: VecDeque<CudaEvent>,
}

impl Ahead {
    fn new(queue: &Queue) -> Result<Self> {
        Ok(Self { looks: queue.gpu.queue()?, ends: memory::with_room(QUEUED + 1, GPUS)?.into() })
    }

    /// Marks the end of the iteration that was queued last.
    fn mark(&mut self, queue: &Queue) -> Result<()> {
        self.ends.push_back(queue.mark()?);
        Ok(())
    }

    /// Waits until fewer than [`QUEUED`] iterations are queued. Returns whether the loop has stopped.
    fn is_stopped(&mut self, control: &Buffer<Control>) -> Result<bool> {
        let oldest = if self.ends.len() < QUEUED { None } else { self.ends.pop_front() };
        let Some(oldest) = oldest else { return Ok(false) };
        let mut seen = [Control::ZERO];
        control.look(&self.looks, &oldest, &mut seen)?;
        Ok(seen[0].stop != 0)
    }
}

/// As [`Session::assign`](crate::backend::Session::assign), for the sessions of one fit.
pub fn assign<T: Float + Plain>(
    sessions: &mut [&mut CudaSession<'_, T>],
    centroids: &[T],
    want_inertia: bool,
) -> Result<Assigned> {
    let inertias = each(sessions, |_, session| {
        let (queue, k, base) = (&session.state.queue, session.state.shape.k, Scales::Same(session.statistics.distances));
        let mut inertia = if want_inertia { Some(InertiaSums::new(queue, k, base)?) } else { None };
        session.start(centroids)?;
        session.launch_step(inertia.as_mut())?;
        session.arrive(ExchangedSums::Step)?;
        Ok(inertia)
    })?;
    let mut counted = None;
    sessions.iter().try_for_each(|session| session.share(ExchangedSums::Step))?;
    for session in &mut *sessions {
        session.total(ExchangedSums::Step)?;
        counted = session.finish_sums()?;
    }
    let control = control(sessions)?;
    let work_counts = sessions[0].work_counts(control.all_settled(), control.scores, control.rescored, control.groups);
    let mut inertia: Option<Vec<u128>> = None;
    for more in inertias.into_iter().flatten() {
        let more = more.total()?;
        match &mut inertia {
            None => inertia = Some(more),
            Some(all) => all.iter_mut().zip(more).for_each(|(all, more)| *all += more),
        }
    }
    Ok(Assigned { changed: counted.unwrap_or(control.changed), inertia, work_counts })
}

/// Moves rows of all sessions and their contributions to other clusters. Rows are counted from the first session's first row.
pub fn relocate<T: Float + Plain>(sessions: &mut [&mut CudaSession<'_, T>], moves: &[Move]) -> Result<()> {
    let firsts = sessions.iter().scan(0, |next, session| Some(replace(next, *next + session.rows())));
    let firsts = memory::collected(firsts, GPUS)?;
    each(sessions, |place, session| {
        let first = firsts[place];
        let rows = first..first + session.rows();
        let own = moves.iter().filter(|one| rows.contains(&one.row)).map(|one| Move { row: one.row - first, ..*one });
        let own = memory::collected(own, "the rows that move to empty clusters")?;
        session.step.write_labels(&session.state)?;
        session.forget();
        session.move_rows(&own)?;
        session.arrive(ExchangedSums::Moves)
    })?;
    sessions.iter().try_for_each(|session| session.share(ExchangedSums::Moves))?;
    sessions.iter_mut().try_for_each(|session| {
        session.total(ExchangedSums::Moves)?;
        session.update.fold(&session.state)
    })?;
    wait_for_all(sessions)
}

/// Does work for every session. One thread queues the work of all. To queue an iteration takes tens of microseconds, and the
/// first call to CUDA on a new thread some hundreds. If rows stream, the host sends chunks while a step runs, so every session
/// needs a thread.
fn each<T: Float + Plain, R: Send>(
    sessions: &mut [&mut CudaSession<'_, T>],
    work: impl Fn(usize, &mut CudaSession<'_, T>) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let resident = sessions.iter().all(|session| session.is_resident());
    let mut all = memory::collected(sessions.iter_mut().enumerate(), GPUS)?;
    if resident {
        return memory::try_collected(all.iter_mut().map(|(place, session)| work(*place, session)), GPUS);
    }
    at_once(all, |(place, session)| work(place, session))
}

/// Waits for several sessions. A GPU may wait for a GPU whose kernel has failed, so all queues are asked in turn. On an error, or
/// if the call was stopped, all GPUs that wait are released.
fn wait_for_all<T: Float + Plain>(sessions: &mut [&mut CudaSession<'_, T>]) -> Result<()> {
    if sessions.len() < 2 {
        return Ok(());
    }
    let done = |sessions: &[&mut CudaSession<'_, T>]| {
        interrupt::check()?;
        sessions.iter().try_fold(true, |done, session| Ok(done & session.state.queue.is_done()?))
    };
    loop {
        match done(sessions) {
            Ok(true) => return Ok(()),
            Ok(false) => thread::yield_now(),
            Err(error) => {
                sessions.iter().filter_map(|session| session.state.port.as_ref()).for_each(Port::give_up);
                return Err(error);
            }
        }
    }
}

/// Waits for all sessions. Returns the control of the first session. All sessions have the same.
fn control<T: Float + Plain>(sessions: &mut [&mut CudaSession<'_, T>]) -> Result<Control> {
    wait_for_all(sessions)?;
    let mut controls = memory::with_room(sessions.len(), GPUS)?;
    for session in sessions {
        controls.push(session.update.read_control()?);
    }
    let said = |control: &Control| (control.stop, control.iteration, control.changed);
    if controls.iter().any(|control| said(control) != said(&controls[0])) {
        return Err(KMeansError::Device { what: GPUS.into(), reason: "they have different sums".into() });
    }
    Ok(controls[0])
}
