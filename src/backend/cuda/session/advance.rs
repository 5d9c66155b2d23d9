//! The loop of the device: batches of iterations that one GPU, or several in step, do without the host.

use super::{CudaSession, LONGEST_BATCH};
use crate::backend::cuda::arguments::{Control, Record, STOP_EMPTY};
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::exchange::{Of, exchange};
use crate::backend::cuda::passes::distances::Inertia;
use crate::backend::{Advanced, Assigned, Iteration, Scales, Stop};
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::memory;
use crate::parallel::at_once;
use crate::progress::Watch;

/// Iterations of the first batch. [`LONGEST_BATCH`] has most.
const FIRST_BATCH: u32 = 8;
/// How long a batch should take at most: a call can be stopped between batches.
const BATCH_SECONDS: f64 = 0.1;
/// Multiply-adds per second of a GPU, for the first batch.
const RATE: f64 = 1e13;
/// The name of the sessions in errors.
const GPUS: &str = "the GPUs of a fit";

/// As [`Iterate::advance`](crate::backend::Iterate::advance), for the sessions of one fit: one for each GPU, or share of a GPU.
pub fn advance<T: Float + Plain>(
    sessions: &mut [&mut CudaSession<'_, T>],
    centroids: &mut [T],
    stop: Stop,
    limit: u32,
    watch: &mut Watch<'_>,
) -> Result<Advanced> {
    sessions.iter_mut().try_for_each(|session| session.start(centroids))?;
    let mut advanced = Advanced::default();
    let resident = sessions.iter().all(|session| session.is_resident());
    let work = |session: &&mut CudaSession<'_, T>| {
        let shape = &session.state.shape;
        shape.rows as f64 * shape.d as f64 * shape.k as f64
    };
    let mut most = (BATCH_SECONDS * RATE / sessions.iter().map(work).fold(1.0, f64::max)) as u32;
    let mut batch = FIRST_BATCH;
    loop {
        let first = advanced.done.len() as u32;
        let size = if resident { batch.min(most.max(1)).min(limit - first) } else { 1 };
        for _ in 0..size {
            step(sessions, &mut [])?;
            sessions.iter().try_for_each(|session| session.update.launch(&session.state, stop, limit, first))?;
        }
        let control = control(sessions)?;
        let done = control.iteration - first;
        let mut records = memory::filled(done as usize, Record::ZERO, "the history")?;
        sessions[0].update.read_records(&mut records)?;
        memory::reserve(&mut advanced.done, records.len(), "the history")?;
        advanced.done.extend(records.iter().map(|record| Iteration {
            changed: record.changed,
            shift: record.shift,
            moved: record.moved != 0,
            seconds: record.nanoseconds as f64 * 1e-9,
            effort: sessions[0].effort(record.settled, record.scores),
        }));
        // Of a batch, the device has the centroids after the last iteration. If clusters are empty, it has moved them already.
        let now = &sessions[0].state.centroids.now;
        let after = (watch.wants_centroids() && control.stop != STOP_EMPTY).then(|| now.to_vec()).transpose()?;
        for (place, record) in (1..).zip(&records) {
            let centroids = after.as_deref().filter(|_| place == records.len());
            watch.show(record.changed, record.shift, None, centroids)?;
        }
        // Steps that were queued after the stop did nothing. Go back to the state after the last one that ran.
        let idle = size - done - u32::from(control.stop == STOP_EMPTY);
        sessions.iter_mut().for_each(|session| session.go_back(idle));
        if control.stop != 0 || advanced.done.len() as u32 == limit {
            if control.stop == STOP_EMPTY {
                // The clusters that are not empty have already moved. Go back to the centroids that the rows were assigned to.
                sessions.iter_mut().for_each(|session| session.update.undo(&mut session.state));
                let effort = sessions[0].effort(control.all_settled(), control.scores);
                advanced.assigned = Some(Assigned { changed: control.changed, inertia: None, effort });
            }
            sessions[0].state.centroids.now.read(0, centroids)?;
            return Ok(advanced);
        }
        most = (BATCH_SECONDS / records.iter().map(|record| record.nanoseconds as f64 * 1e-9).fold(1e-6, f64::max)) as u32;
        batch = (batch * 2).min(LONGEST_BATCH);
    }
}

/// As [`Iterate::assign`](crate::backend::Iterate::assign), for the sessions of one fit on several GPUs.
pub fn assign<T: Float + Plain>(
    sessions: &mut [&mut CudaSession<'_, T>],
    centroids: &[T],
    want_inertia: bool,
) -> Result<Assigned> {
    let mut inertias = Vec::new();
    for session in sessions.iter_mut().filter(|_| want_inertia) {
        let (queue, k, base) = (&session.state.queue, session.state.shape.k, Scales::Same(session.prepared.distances));
        memory::push(&mut inertias, Inertia::new(queue, k, base)?, GPUS)?;
    }
    sessions.iter_mut().try_for_each(|session| session.start(centroids))?;
    step(sessions, &mut inertias)?;
    sessions.iter().try_for_each(|session| session.update.fold(&session.state))?;
    let control = control(sessions)?;
    let effort = sessions[0].effort(control.all_settled(), control.scores);
    let mut inertia: Option<Vec<u128>> = None;
    for more in inertias {
        let more = more.total()?;
        match &mut inertia {
            None => inertia = Some(more),
            Some(all) => all.iter_mut().zip(more).for_each(|(all, more)| *all += more),
        }
    }
    Ok(Assigned { changed: control.changed, inertia, effort })
}

/// Queues one step of every session, and their exchange. If there are inertias, one a session, adds the inertia under the new labels.
fn step<T: Float + Plain>(sessions: &mut [&mut CudaSession<'_, T>], inertias: &mut [Inertia]) -> Result<()> {
    let resident = sessions.iter().all(|session| session.is_resident());
    let mut inertias = inertias.iter_mut();
    let work = sessions.iter_mut().map(|session| (session, inertias.next()));
    if resident || work.len() == 1 {
        for (session, inertia) in work {
            session.launch_step(inertia)?;
        }
    } else {
        // The host sends chunks while a step runs. So every session has a thread.
        at_once(memory::collected(work, GPUS)?, |(session, inertia)| session.launch_step(inertia))?;
    }
    exchange(sessions, Of::Step)
}

/// Waits for all sessions. Returns the control of the first. The others have the same.
fn control<T: Float + Plain>(sessions: &[&mut CudaSession<'_, T>]) -> Result<Control> {
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
