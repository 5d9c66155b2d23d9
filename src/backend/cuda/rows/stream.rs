//! Rows that stream through the device: chunk by chunk, in every pass. Only chunks are exchanged. Everything else works as if
//! all rows were on the device.
//!
//! ```text
//! a pass:  visits = the chunks, in ascending or descending order, in turn   stream/order.rs
//!   lanes (upload/), each with its own thread:
//!     fill a slot of pinned memory with the next task, of any chunk
//!     wait until the buffer's chunk was visited: on the host until its kernels are queued, on the stream until they are done
//!     send the slot, record that it arrived
//!   the calling thread, for each visit:
//!     wait on the host until all tasks of the chunk are sent, on the stream until they have arrived
//!     queue the kernels of the pass; record that they are done
//! ```
//! No thread waits for a whole chunk. The tasks of several chunks are under way while kernels work on one chunk. A lane stops
//! only if no buffer is free. Source: Lutz et al. 2018, section 5 (chunks go through the device, and partial sums stay there),
//! and Li et al. 2010, algorithm 7. Departures: (1) As many chunks as possible stay on the device. Passes alternate between
//! both directions, so each pass begins with the chunks that are there. (2) Several threads fill pinned memory, because one
//! thread fills it more slowly than the bus empties it.

pub mod order;
mod picks;
pub mod sweep;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaEvent;

use self::order::{VISITS, held_after, visits};
use self::sweep::ChunkSweep;
use crate::backend::chunking::{Chunking, piece_bytes};
use crate::backend::cuda::device::{Plain, Queue, failed};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::rows::upload::{Carrier, Sources, Staging, UploadPlan};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::interrupt;
use crate::base::memory;
use crate::input::tile::{RowBlock, WeightScale};

/// The fewest bytes of a piece that make another lane worth its cost.
const LEAST_PIECE: usize = 64 << 10;

/// The kept rows of a fit in host memory, and buffers on the device for some of their chunks.
pub struct RowStream<'a, T> {
    pub queue: Queue,
    pub sources: Sources<'a, T>,
    pub chunk_rows: usize,
    staging: Arc<Staging>,
    /// The number of rows of positive weight, once they were surveyed.
    pub positive: u64,
    /// One for each buffer.
    events: Vec<Events>,
    /// Only one pass at a time may use the buffers.
    ring: Mutex<ChunkRing<T>>,
}

/// The events that say when a buffer may be read and when it may be written.
pub struct Events {
    /// One for each lane: its last copy into the buffer has arrived.
    pub arrived: Vec<CudaEvent>,
    /// The last kernels that read the buffer are done.
    pub done: CudaEvent,
}

/// The buffers and what they hold.
struct ChunkRing<T> {
    buffers: Vec<Held<T>>,
    /// Whether the next pass visits the chunks in ascending order.
    upwards: bool,
    weights: Option<WeightScale>,
}

struct Held<T> {
    rows: DeviceRows<T>,
    chunk: Option<usize>,
    /// Whether the weights in this buffer are `w^` already.
    rounded: bool,
}

impl<'a, T: Float + Plain> RowStream<'a, T> {
    /// A stream of the kept rows of all parts, in order. Nothing is sent yet.
    pub fn new(queue: &Queue, parts: &[RowBlock<'a, T>], chunking: Chunking) -> Result<Self> {
        let sources = Sources::new(parts)?;
        let Sources { n, d, weighted, half, .. } = sources;
        let (staging, chunk_rows) = (Staging::of(&queue.gpu), chunking.rows as usize);
        let count = (chunking.buffers as usize).min(n.div_ceil(chunk_rows)).max(1);
        let event = || queue.gpu.context.new_event(None).map_err(failed("making an event"));
        let (mut buffers, mut events) = (memory::with_room(count, VISITS)?, memory::with_room(count, VISITS)?);
        for _ in 0..count {
            buffers.push(Held { rows: DeviceRows::new(queue, chunk_rows, d, weighted, half)?, chunk: None, rounded: false });
            let arrived = (0..staging.plan.lanes.max(1)).map(|_| event()).collect::<Result<_>>()?;
            let done = event()?;
            // Work after this point of the queue may use the buffer.
            done.record(&queue.stream).map_err(failed("making a buffer"))?;
            events.push(Events { arrived, done });
        }
        let ring = Mutex::new(ChunkRing { buffers, upwards: true, weights: None });
        Ok(Self { queue: queue.clone(), sources, chunk_rows, staging, positive: n as u64, events, ring })
    }

    /// The rows of a chunk.
    fn rows_of(&self, chunk: usize) -> Range<usize> {
        let first = chunk * self.chunk_rows;
        first..(first + self.chunk_rows).min(self.sources.n)
    }

    /// From now on, weights are rounded to `w^` after each chunk arrives.
    pub fn round_weights(&mut self, scale: WeightScale) {
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        ring.weights = Some(scale);
        ring.buffers.iter_mut().for_each(|held| held.rounded = false);
    }

    /// Calls `work` for every chunk. Work that it puts into the queue can use the chunk on the device.
    pub fn visit(&self, mut work: impl FnMut(&DeviceChunk<'_, T>) -> Result<()>) -> Result<()> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let ChunkRing { buffers, upwards, weights } = &mut *ring;
        // The contents are marked unknown here. So they are also unknown if this pass fails.
        let held = memory::collected(buffers.iter_mut().map(|held| held.chunk.take()), VISITS)?;
        let visits = visits(&held, self.sources.n.div_ceil(self.chunk_rows), *upwards)?;
        let sent = visits.iter().filter(|visit| visit.load.is_some());
        let plan = self.plan(sent.map(|visit| self.rows_of(visit.chunk).len()).sum());
        let carrier = Carrier::new(&self.queue.gpu, &self.sources, plan.slot)?;
        let places = memory::collected(buffers.iter().map(|held| held.rows.argument()), VISITS)?;
        let tasks = |chunk| self.sources.tasks(&self.rows_of(chunk), plan.slot);
        let sweep = ChunkSweep::new(&carrier, &self.events, places, &visits, tasks)?;
        sweep.run(&self.queue, &self.staging, plan.lanes, |visit| {
            let (rows, held) = (self.rows_of(visit.chunk), &mut buffers[visit.buffer]);
            held.rows.n = rows.len();
            if visit.load.is_some() {
                held.rounded = false;
                held.rows.clear_padding()?;
                held.rows.transform(self.sources.row_transform())?;
            }
            if let Some(scale) = weights.filter(|_| !held.rounded) {
                held.rows.round_weights(scale)?;
                held.rounded = true;
            }
            interrupt::check()?;
            work(&DeviceChunk { first: rows.start, rows: &held.rows, after_kernel: false })
        })?;
        for (held, chunk) in buffers.iter_mut().zip(held_after(&held, &visits)?) {
            held.chunk = chunk;
        }
        *upwards = !*upwards;
        Ok(())
    }

    /// The lanes and slots to send `rows` rows with. Row-major rows also need device memory on their way, which limits both.
    fn plan(&self, rows: usize) -> UploadPlan {
        let row = self.sources.row_bytes();
        let plan = self.staging.plan.for_bytes(rows * row);
        if !self.sources.in_blocks() {
            return plan;
        }
        let bytes = piece_bytes((self.chunk_rows * row) as u64) as usize;
        let lanes = plan.lanes.min(bytes / LEAST_PIECE).max(1);
        UploadPlan { lanes, slot: plan.slot.min(bytes / lanes) }
    }

    /// The values of these rows from host memory, as they arrive: row-major.
    pub fn values_of(&self, rows: Range<usize>) -> Result<Vec<T>> {
        const WHAT: &str = "a range of rows";
        let d = self.sources.d;
        let mut values = memory::zeroed(rows.len() * d, WHAT)?;
        let mut column = memory::with_room(rows.len(), WHAT)?;
        for (source, own, at) in self.sources.of(rows) {
            let out = &mut values[at * d..][..own.len() * d];
            if source.in_blocks() {
                source.fill_rows(&own, &(0..d), out, |values, out| values.copy(out));
                continue;
            }
            column.resize(own.len(), T::default());
            for f in 0..d {
                source.fill_columns(&own, &(f * own.len()..(f + 1) * own.len()), &mut column, |values, out| values.copy(out));
                out.iter_mut().skip(f).step_by(d).zip(&column).for_each(|(out, value)| *out = *value);
            }
        }
        if let Some(row_transform) = self.sources.row_transform() {
            values.chunks_exact_mut(d).for_each(|row| row_transform.row(row));
        }
        Ok(values)
    }
}
