//! What happens between the step and the update of a fit on several GPUs: the pending sums of all GPUs become one, on each of
//! them (`kernels/passes/exchange.cu`).
//!
//! Pending sums are words that wrap around, and integers. So a plain sum over the GPUs is exact, in any order. Then every GPU
//! does the same update and gets the same bits. The host does not wait.
//!
//! A GPU must not change sums that another one still reads. So steps use two arrays of pending sums in turn. A GPU clears one of
//! them when the other GPUs have reached the next exchange: by then they have read it.
//!
//! Where sums are large, each GPU makes the sums and means of some clusters for all GPUs (`exchange/own_clusters.rs`). Such an
//! exchange has two halves, and GPUs meet in both. There is one array of pending sums. A GPU clears it in the second half: the
//! other GPUs have read it in the first.
//!
//! A kernel waits for the other GPUs. It is queued when all of them have been given the work that it waits for: [`arrive`] for
//! every GPU, then [`share`] for every GPU, then [`total`] for every GPU. A driver may make any call wait until a GPU has done its
//! work, with locks that other calls need. So a kernel that waits for work that is not queued yet may wait for ever.

mod own_clusters;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "tests")]
pub use self::own_clusters::ALWAYS_OWN_CLUSTERS;
use self::own_clusters::{OwnAddresses, OwnClusters};
use super::arguments::{self, ArriveArgument, Counts, MeetArgument, TotalArgument};
use super::device::peers::{Alarm, Pool, reach_each_other};
use super::device::{At, Buffer, Gpu, Launch, Plain, Queue, bytes_of, product, sum};
use super::shape::FitShape;
use super::state::DeviceState;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::params::Metric;

/// The most GPUs of a fit: `MOST_GPUS` of the kernels.
pub const MOST_GPUS: usize = 16;
/// The name of this memory in errors.
const WHAT: &str = "the sums that the GPUs share";

/// What one GPU of a fit has for the other GPUs: the pending sums of its steps.
pub struct Port {
    /// Two, or one if the GPUs have clusters of their own.
    turns: Vec<Turn>,
    /// The place of the next step's sums in `turns`.
    turn: usize,
    /// The clusters of this GPU, if each GPU makes the means of some.
    own: Option<OwnClusters>,
    /// The number of exchanges that this GPU has reached, or of halves of exchanges.
    arrived: Buffer<u64>,
    alarm: Arc<Alarm>,
    /// The ports of all GPUs, once they are connected.
    all: Vec<Addresses>,
    arrive: Launch<ArriveArgument>,
    meet: Launch<MeetArgument>,
    total: Launch<TotalArgument>,
}

/// The sums of every second step.
struct Turn {
    /// `(k, columns, limbs, 2)`.
    pending: Buffer<u64>,
    /// `(k)`.
    pending_rows: Buffer<i64>,
    counts: Buffer<Counts>,
}

/// The sums of a turn, their rows and the counts.
#[derive(Clone, Copy)]
struct TurnAddresses {
    pending: At<u64>,
    rows: At<i64>,
    counts: At<Counts>,
}

/// What other GPUs read of a port: for each turn the sums, their rows and the counts; the exchanges that the GPU has reached; and
/// what it has of its own clusters.
#[derive(Clone, Copy)]
struct Addresses {
    turns: [TurnAddresses; 2],
    arrived: At<u64>,
    own: OwnAddresses,
}

/// Which sums are exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangedSums {
    Step,
    /// Rows that the host has moved to other clusters.
    Moves,
}

impl Port {
    /// The bytes that it takes on its GPU at most: with two turns. With one turn, the means of the own clusters take less than a turn.
    pub fn bytes(shape: &FitShape) -> u64 {
        let turn = sum([bytes_of::<u64>(product([shape.accumulators(), 2])), bytes_of::<i64>(shape.k), bytes_of::<Counts>(1)]);
        turn.saturating_mul(2).saturating_add(bytes_of::<u64>(1))
    }

    /// A port of this queue's GPU.
    pub fn new<T: Float + Plain>(queue: &Queue, shape: &FitShape, metric: Metric, group: &GpuGroup) -> Result<Self> {
        let pool = Pool::of(&queue.gpu, &group.gpus)?;
        let turn = || -> Result<Turn> {
            Ok(Turn {
                pending: pool.zeros(queue, product([shape.accumulators(), 2]), WHAT)?,
                pending_rows: pool.zeros(queue, shape.k, WHAT)?,
                counts: pool.zeros(queue, 1, WHAT)?,
            })
        };
        let (gpu, accumulators) = (&queue.gpu, shape.accumulators().max(shape.k));
        let arrive = arguments::arrive().exactly(gpu, "", 1)?;
        let meet = arguments::meet().exactly(gpu, "", 1)?;
        let total = arguments::total_sums();
        let total = total.resident(gpu, "", total.blocks_of(accumulators))?;
        let Some(place) = group.gpus.iter().position(|gpu| gpu.ordinal == queue.gpu.ordinal) else {
            unreachable!("the group has the GPU of each of its queues")
        };
        let own = group.have_clusters(shape, metric);
        let own = own.then(|| OwnClusters::new::<T>(queue, &pool, shape, place, group.gpus.len())).transpose()?;
        let turns = (0..if own.is_some() { 1 } else { 2 }).map(|_| turn()).collect::<Result<_>>()?;
        let arrived = pool.zeros(queue, 1, WHAT)?;
        // Other GPUs look at it from their first exchange on.
        queue.wait()?;
        Ok(Self { turns, turn: 0, own, arrived, alarm: group.alarm.clone(), all: Vec::new(), arrive, meet, total })
    }

    fn addresses(&self) -> Addresses {
        let turn =
            |turn: &Turn| TurnAddresses { pending: turn.pending.at(), rows: turn.pending_rows.at(), counts: turn.counts.at() };
        let turns = [0, self.turns.len() - 1].map(|place| turn(&self.turns[place]));
        Addresses { turns, arrived: self.arrived.at(), own: OwnAddresses::of(self.own.as_ref()) }
    }

    /// Gives each port of a group the addresses of all of its ports.
    pub fn connect(ports: &mut [&mut Self]) {
        let all: Vec<Addresses> = ports.iter().map(|port| port.addresses()).collect();
        ports.iter_mut().for_each(|port| port.all.clone_from(&all));
    }

    /// The addresses of the sums that the next step adds to, and of its rows.
    pub fn pending(&self) -> (At<u64>, At<i64>) {
        let Turn { pending, pending_rows, .. } = &self.turns[self.turn];
        (pending.at(), pending_rows.at())
    }

    /// All sums become 0. No other GPU may be reading them.
    pub fn clear(&mut self) -> Result<()> {
        for turn in &mut self.turns {
            turn.pending.fill(0)?;
            turn.pending_rows.fill(0)?;
        }
        Ok(())
    }

    /// The last `steps` exchanges did nothing.
    pub fn go_back(&mut self, steps: u32) {
        self.turn = (self.turn + steps as usize) % self.turns.len();
    }

    /// The clusters whose sums this GPU has, if each GPU has some.
    pub fn own_clusters(&self) -> Option<Range<usize>> {
        self.own.as_ref().map(OwnClusters::range)
    }

    /// Releases all GPUs of the group that wait, because one of them has failed.
    pub fn give_up(&self) {
        self.alarm.ring();
    }
}

/// Queues the first part of this GPU's exchange: its sums are there. Without a port there is nothing to exchange.
/// `scores`: those of the step, or 0 if it counts them.
pub fn arrive<T: Float + Plain>(state: &DeviceState<T>, of: ExchangedSums, scores: u64) -> Result<()> {
    let Some(port) = &state.port else { return Ok(()) };
    own_clusters::find_touched(state, port, of)?;
    say_arrived(state, port, of, Some(scores))
}

/// Queues the message to all GPUs that this one has reached an exchange or its second half. `scores`: as for [`arrive`]. None in the
/// second half, which has no counts.
fn say_arrived<T: Float + Plain>(state: &DeviceState<T>, port: &Port, of: ExchangedSums, scores: Option<u64>) -> Result<()> {
    let arrive = ArriveArgument {
        control: state.control,
        counts: scores.map_or(At::NULL, |_| port.turns[port.turn].counts.at()),
        arrived: port.arrived.at(),
        scores: scores.unwrap_or_default(),
        moves: i32::from(of == ExchangedSums::Moves),
        unused: 0,
    };
    // SAFETY: the addresses are those of the control and of this port. The kernel begins with the wait.
    unsafe { state.queue.run_behind(&port.arrive, &arrive) }
}

/// Queues the wait for all GPUs.
fn meet<T: Float + Plain>(state: &DeviceState<T>, port: &Port, of: ExchangedSums) -> Result<()> {
    let meet = MeetArgument {
        control: state.control,
        arrived: port.arrived.at(),
        others: each(&port.all, |other| other.arrived),
        alarm: port.alarm.at(),
        gpus: port.all.len() as i32,
        moves: i32::from(of == ExchangedSums::Moves),
    };
    // SAFETY: the addresses are those of the control, of this port and of the other ports of the group. They live until all GPUs
    // have done their work. The kernel begins with the wait.
    unsafe { state.queue.run_behind(&port.meet, &meet) }
}

/// Queues the second part, if each GPU has clusters: the sums and means of those of this GPU. All GPUs of the fit must have been
/// given the first part.
pub fn share<T: Float + Plain>(state: &DeviceState<T>, of: ExchangedSums) -> Result<()> {
    let Some((port, own)) = state.port.as_ref().and_then(|port| Some((port, port.own.as_ref()?))) else { return Ok(()) };
    meet(state, port, of)?;
    own_clusters::share_sums(state, port, own, of)?;
    say_arrived(state, port, of, None)
}

/// An address of each GPU.
fn each<V>(all: &[Addresses], address: impl Fn(&Addresses) -> At<V>) -> [At<V>; MOST_GPUS] {
    let mut addresses = [At::NULL; MOST_GPUS];
    addresses.iter_mut().zip(all).for_each(|(place, other)| *place = address(other));
    addresses
}

/// Queues the last part. Afterwards the rows of all clusters, and the counts in this GPU's control, are those of the whole fit.
/// The same holds for the pending sums. If each GPU has clusters, `centroids` has the new means instead. All GPUs of the fit must
/// have been given the parts before.
pub fn total<T: Float + Plain>(state: &mut DeviceState<T>, centroids: &Buffer<T>, of: ExchangedSums) -> Result<()> {
    let Some(port) = &state.port else { return Ok(()) };
    meet(state, port, of)?;
    if let Some(own) = &port.own {
        return own_clusters::take_means(state, port, own, centroids, of);
    }
    let all = &port.all;
    let (next, gpus) = (&port.turns[1 - port.turn], port.all.len() as i32);
    let moves = i32::from(of == ExchangedSums::Moves);
    let total = TotalArgument {
        pending: each(all, |other| other.turns[port.turn].pending),
        rows: each(all, |other| other.turns[port.turn].rows),
        counts: each(all, |other| other.turns[port.turn].counts),
        sums: state.sums.pending.at(),
        sum_rows: state.sums.pending_rows.at(),
        next: next.pending.at(),
        next_rows: next.pending_rows.at(),
        control: state.control,
        words: state.sums.pending.len() as u64,
        k: state.shape.k as i32,
        gpus,
        moves,
        unused: 0,
    };
    // SAFETY: the addresses are those of this state, of this port and of the other ports of the group. They live until all GPUs
    // have done their work. All sums have equal lengths. The kernel before has waited until the other GPUs have written theirs. The
    // kernel begins with the wait.
    unsafe { state.queue.run_behind(&port.total, &total)? };
    if let Some(port) = &mut state.port {
        port.turn ^= 1;
    }
    Ok(())
}

/// The GPUs of a fit that exchange their sums.
pub struct GpuGroup {
    gpus: Vec<Arc<Gpu>>,
    alarm: Arc<Alarm>,
    /// The bytes of sums to read from which on GPUs have clusters.
    least_bytes: u64,
    _alone: Alone,
}

impl GpuGroup {
    /// The group of these queues' GPUs. None if they cannot exchange their sums: they do not reach each other's memory, or one of
    /// them comes twice and could wait for itself, or another group of this process is at work.
    pub fn new(queues: &[Queue]) -> Result<Option<Self>> {
        let gpus: Vec<Arc<Gpu>> = queues.iter().map(|queue| queue.gpu.clone()).collect();
        let once = |gpu: &Arc<Gpu>| gpus.iter().filter(|other| other.ordinal == gpu.ordinal).count() == 1;
        if gpus.len() < 2
            || gpus.len() > MOST_GPUS
            || !gpus.iter().all(once)
            || !reach_each_other(&gpus.iter().map(|gpu| gpu.ordinal).collect::<Vec<_>>())
        {
            return Ok(None);
        }
        for gpu in &gpus {
            match Pool::of(gpu, &gpus) {
                Ok(_) => {}
                // A system may refuse what the driver has promised.
                Err(KMeansError::Device { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let Some(alone) = Alone::enter() else { return Ok(None) };
        let alarm = Arc::new(Alarm::new(&gpus[0])?);
        Ok(Some(Self { gpus, alarm, least_bytes: own_clusters::least_bytes(), _alone: alone }))
    }

    /// Whether each GPU makes the means of some clusters. Where centroids are directions, no GPU does: a direction is made from
    /// all sums of a cluster.
    pub fn have_clusters(&self, shape: &FitShape, metric: Metric) -> bool {
        metric == Metric::Euclidean && own_clusters::bytes_read(shape, self.gpus.len()) >= self.least_bytes
    }
}

/// The only group of this process that is at work. The hardware has few queues for the streams of a GPU, and kernels of two
/// groups could wait for each other in them. A fit that comes second does not wait for the first: its thread may be one that the
/// first one needs.
struct Alone;

static AT_WORK: AtomicBool = AtomicBool::new(false);

impl Alone {
    fn enter() -> Option<Self> {
        (!AT_WORK.swap(true, Ordering::Acquire)).then_some(Self)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        AT_WORK.store(false, Ordering::Release);
    }
}
