//! What happens between the step and the update of a fit on several GPUs: the pending sums of all GPUs become one, on each of them
//! (`kernels/passes/exchange.cu`).
//!
//! Pending sums are words that wrap around, and integers. So a plain sum over the GPUs is exact, in any order. Then every GPU
//! does the same update and gets the same bits. No centroid is sent, and the host does not wait.
//!
//! A GPU must not change sums that another one still reads. So steps use two arrays of pending sums in turn. A GPU clears one of them
//! when the others have said that their next sums are there: by then they have read it.

use super::arguments::{self, Counts, PublishArgument, TotalArgument};
use super::device::peers::{Event, Pool, reach_each_other};
use super::device::{Block, Buffer, Gpu, Launch, Plain, Queue, bytes_of, product, sum};
use super::session::CudaSession;
use super::shape::FitShape;
use super::step::THREADS;
use crate::error::Result;
use crate::float::Float;

/// The most GPUs of a fit, or shares of GPUs: `MOST_GPUS` of the kernels.
pub const MOST_GPUS: usize = 16;
/// The name of this memory in errors.
const WHAT: &str = "the sums that the GPUs share";

/// What one GPU of a fit has for the others: the pending sums of its steps.
pub struct Port {
    turns: [Turn; 2],
    /// The place of the next step's sums in `turns`.
    turn: usize,
    publish: Launch<PublishArgument>,
    total: Launch<TotalArgument>,
    /// Dropped after its memory.
    _pool: Pool,
}

/// The sums of every second step.
struct Turn {
    /// `(k, columns, limbs, 2)`.
    pending: Buffer<u64>,
    /// `(k)`.
    pending_rows: Buffer<i64>,
    counts: Buffer<Counts>,
    /// The sums and the counts are there.
    there: Event,
}

impl Port {
    /// The bytes that it takes on its GPU.
    pub fn bytes(shape: &FitShape) -> u64 {
        let turn = sum([bytes_of::<u64>(product([shape.cells(), 2])), bytes_of::<i64>(shape.k), bytes_of::<Counts>(1)]);
        turn.saturating_mul(2)
    }

    /// A port of this queue's GPU. `gpus`: all of the fit.
    pub fn new(queue: &Queue, shape: &FitShape, gpus: &[std::sync::Arc<Gpu>]) -> Result<Self> {
        let pool = Pool::new(queue, gpus)?;
        let turn = || -> Result<Turn> {
            Ok(Turn {
                pending: pool.zeros(product([shape.cells(), 2]), WHAT)?,
                pending_rows: pool.zeros(shape.k, WHAT)?,
                counts: pool.zeros(1, WHAT)?,
                there: Event::new(queue)?,
            })
        };
        let publish = Launch::exactly(arguments::publish().load(&queue.gpu, "")?, Block::of(32), 1);
        let total = arguments::total_sums().load(&queue.gpu, "")?;
        let total = Launch::resident(&queue.gpu, total, Block::of(THREADS), shape.cells().div_ceil(THREADS as usize))?;
        Ok(Self { turns: [turn()?, turn()?], turn: 0, publish, total, _pool: pool })
    }

    /// The addresses of the sums that the next step adds to, and of its rows.
    pub fn pending(&self) -> [u64; 2] {
        let Turn { pending, pending_rows, .. } = &self.turns[self.turn];
        [pending.at(), pending_rows.at()]
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
        self.turn = (self.turn + steps as usize) % 2;
    }
}

/// Whether the GPUs of these queues can share their sums.
pub fn can_share(queues: &[Queue]) -> bool {
    let gpus: Vec<_> = queues.iter().map(|queue| queue.gpu.clone()).collect();
    gpus.len() <= MOST_GPUS && reach_each_other(&gpus)
}

/// What the sums of an exchange are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Step,
    /// Rows that the host has moved to other clusters.
    Moves,
}

/// Queues the exchange of the sums that the GPUs of a fit have added up. Afterwards the pending sums of each GPU, and the counts in its
/// control, are those of the whole fit. One GPU has nothing to exchange.
pub fn exchange<T: Float + Plain>(sessions: &mut [&mut CudaSession<'_, T>], of: Of) -> Result<()> {
    if sessions.len() < 2 {
        return Ok(());
    }
    for session in &*sessions {
        let (state, port) = (session.state(), session.port());
        let Turn { counts, there, .. } = &port.turns[port.turn];
        if of == Of::Step {
            let argument = PublishArgument { control: state.control, counts: counts.at(), scores: session.scores_of_step() };
            // SAFETY: the addresses are those of the control and of the counts. The kernel begins with the wait.
            unsafe { state.queue.run_behind(&port.publish, &argument)? };
        }
        there.record()?;
    }
    for session in &*sessions {
        let (state, port) = (session.state(), session.port());
        let mut argument = TotalArgument {
            pending: [0; MOST_GPUS],
            rows: [0; MOST_GPUS],
            counts: [0; MOST_GPUS],
            sums: state.sums.pending.at(),
            sum_rows: state.sums.pending_rows.at(),
            next: port.turns[1 - port.turn].pending.at(),
            next_rows: port.turns[1 - port.turn].pending_rows.at(),
            control: state.control,
            words: state.sums.pending.len() as u64,
            k: state.shape.k as i32,
            gpus: sessions.len() as i32,
            moves: i32::from(of == Of::Moves),
            unused: 0,
        };
        for (place, other) in sessions.iter().enumerate() {
            let Turn { pending, pending_rows, counts, there } = &other.port().turns[port.turn];
            (argument.pending[place], argument.rows[place]) = (pending.at(), pending_rows.at());
            argument.counts[place] = counts.at();
            there.let_wait(&state.queue)?;
        }
        // SAFETY: the addresses are those of buffers of equal lengths, of which those of other GPUs lie in memory that this GPU may
        // read. They live as long as the sessions. The queue waits until the others have written them.
        unsafe { state.queue.run(&port.total, &argument)? };
    }
    sessions.iter_mut().for_each(|session| session.port_mut().turn ^= 1);
    Ok(())
}
