//! Carries out one task: fills a slot from host memory, and sends the slot to its place on the device.

use std::ops::Range;

use super::lanes::Lane;
use super::pinned::Strips;
use super::tasks::{Copied, Source, Task, What, strips};
use super::value_bytes;
use crate::backend::cuda::arguments::{self, TransposeArgument};
use crate::backend::cuda::device::{Block, Buffer, Gpu, Kernel, Launch, Plain, Queue};
use crate::backend::cuda::rows::RowsPlace;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::features::Values;
use crate::input::fp16::Half;

/// Rows on the host, and how they are sent.
pub struct Carrier<'u, 'a, T> {
    sources: &'u [Source<'a, T>],
    /// The bytes of a slot that are used.
    slot: usize,
    weighted: bool,
    /// The type of the values on their way, if it is one of 16 bits.
    half: Option<Half>,
    /// The kernel that turns rows into columns. Set if there are blocks.
    transpose: Option<Kernel<TransposeArgument>>,
}

/// The base-2 logarithm of the values in a tile of this kernel, and the threads of its blocks.
const TILE_LOG: u32 = 10;
const TILE_THREADS: u32 = 256;

/// Where a task goes, and the function that waits until the place is free.
struct Destination<R> {
    place: RowsPlace,
    ready: R,
}

impl RowsPlace {
    /// The address of feature `f` of a row. V: the type of its values.
    fn value<V>(&self, f: usize, row: usize) -> u64 {
        self.x + ((f * self.stride + row) * size_of::<V>()) as u64
    }

    fn weight(&self, row: usize) -> u64 {
        self.weights + (row * size_of::<f64>()) as u64
    }
}

fn as_features<'a, T: Float>(values: Values<'a, T>, out: &mut [T]) {
    values.copy(out);
}

fn as_bits<'a, T: Float>(values: Values<'a, T>, out: &mut [u16]) {
    values.copy_bits(out);
}

impl<'u, 'a, T: Float + Plain> Carrier<'u, 'a, T> {
    pub fn new(gpu: &Gpu, sources: &'u [Source<'a, T>], slot: usize, weighted: bool, half: Option<Half>) -> Result<Self> {
        let with_blocks = sources.iter().any(Source::in_blocks);
        let entry = arguments::rows_to_columns::<T>().half_if(half.is_some());
        let transpose = if with_blocks { Some(entry.load(gpu, "")?) } else { None };
        Ok(Self { sources, slot, weighted, half, transpose })
    }

    /// The tasks that send kept rows `rows`, counted over all sources, to the device rows from 0 on.
    pub fn tasks(&self, rows: Range<usize>) -> Result<Vec<Task>> {
        let mut all = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            let (own, to) = source.overlap(&rows);
            source.tasks(&mut all, index, &own, to, self.slot, (value_bytes::<T>(self.half), self.weighted))?;
        }
        Ok(all)
    }

    /// Fills a slot of the lane, calls `ready` to wait until the place is free, and sends the slot there. `piece` is device
    /// memory of the lane. It holds row-major rows until they are turned into columns.
    ///
    /// # Safety
    /// The place has room for the rows of the task. Nobody else writes to it after `ready` has returned, until the caller has
    /// waited for the lane or for an event after the copies.
    pub unsafe fn send(
        &self,
        lane: &mut Lane,
        piece: &mut Option<Buffer<u8>>,
        task: &Task,
        place: RowsPlace,
        ready: impl FnOnce(&Queue) -> Result<()>,
    ) -> Result<()> {
        let to = Destination { place, ready };
        // SAFETY: the caller promises it.
        unsafe {
            match &task.what {
                What::Columns(range) if self.half.is_some() => self.send_columns::<u16, _>(lane, task, range, to, as_bits),
                What::Columns(range) => self.send_columns::<T, _>(lane, task, range, to, as_features),
                What::Weights(rows) => self.send_weights(lane, task, rows, to),
                What::Rows(rows, features) if self.half.is_some() => {
                    self.send_rows::<u16, _>(lane, piece, task, (rows, features), to, as_bits)
                }
                What::Rows(rows, features) => self.send_rows::<T, _>(lane, piece, task, (rows, features), to, as_features),
            }
        }
    }

    /// # Safety
    /// The same as for `send`.
    unsafe fn send_columns<V: Plain, R: FnOnce(&Queue) -> Result<()>>(
        &self,
        lane: &mut Lane,
        task: &Task,
        range: &Range<usize>,
        to: Destination<R>,
        copy: Copied<'a, T, V>,
    ) -> Result<()> {
        let (slot, queue) = lane.next_slot()?;
        self.sources[task.source].fill_columns(&task.rows, range, slot.values(range.len())?, copy);
        (to.ready)(queue)?;
        let at = |value: usize| to.place.value::<V>(0, task.to + value);
        let strips = strips::<V>(range, task.rows.len(), to.place.stride, at);
        // SAFETY: the caller promises it.
        unsafe { slot.send(queue, &strips) }
    }

    /// # Safety
    /// The same as for `send`.
    unsafe fn send_weights<R: FnOnce(&Queue) -> Result<()>>(
        &self,
        lane: &mut Lane,
        task: &Task,
        rows: &Range<usize>,
        to: Destination<R>,
    ) -> Result<()> {
        let (slot, queue) = lane.next_slot()?;
        self.sources[task.source].fill_weights(rows, slot.values(rows.len())?);
        (to.ready)(queue)?;
        let width = rows.len() * size_of::<f64>();
        let at = to.place.weight(task.to + rows.start - task.rows.start);
        // SAFETY: the caller promises that each row has a weight.
        unsafe { slot.send(queue, &[Strips { from: 0, width, count: 1, to: at, pitch: width }]) }
    }

    /// # Safety
    /// The same as for `send`.
    unsafe fn send_rows<V: Plain, R: FnOnce(&Queue) -> Result<()>>(
        &self,
        lane: &mut Lane,
        piece: &mut Option<Buffer<u8>>,
        task: &Task,
        (rows, features): (&Range<usize>, &Range<usize>),
        to: Destination<R>,
        copy: Copied<'a, T, V>,
    ) -> Result<()> {
        let Some(transpose) = self.transpose else { return Ok(()) };
        let len = rows.len() * features.len();
        let (slot, queue) = lane.next_slot()?;
        let piece = match piece {
            Some(piece) => piece,
            None => piece.insert(queue.alloc(self.slot.max(size_of::<V>()), "rows on their way")?),
        };
        assert!(len * size_of::<V>() <= piece.len(), "{len} values in a piece of {} bytes", piece.len());
        self.sources[task.source].fill_rows(rows, features, slot.values(len)?, copy);
        (to.ready)(queue)?;
        let width = len * size_of::<V>();
        let strips = Strips { from: 0, width, count: 1, to: piece.at(), pitch: width };
        // SAFETY: the piece has room (asserted). It is freed in the order of this queue. The kernel that reads it runs in this
        // queue too.
        unsafe { slot.send(queue, &[strips]) }?;

        let log_width = features.len().next_power_of_two().trailing_zeros().min(5);
        let tiles_across = features.len().div_ceil(1 << log_width) as u32;
        let tiles_down = rows.len().div_ceil(1 << (TILE_LOG - log_width)) as u32;
        let argument = TransposeArgument {
            rows_in: piece.at(),
            columns_out: to.place.value::<V>(features.start, task.to + rows.start - task.rows.start),
            stride: to.place.stride as u64,
            rows: rows.len() as u32,
            width: features.len() as u32,
            log_width,
            tiles_across,
        };
        // SAFETY: the kernel reads `rows * width` values of the piece, and writes these rows
        // of these columns of the matrix. The caller promises room for them.
        unsafe { queue.run(&Launch::exactly(transpose, Block::of(TILE_THREADS), tiles_across * tiles_down), &argument) }
    }
}
