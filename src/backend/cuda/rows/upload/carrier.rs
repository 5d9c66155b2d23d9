//! Carries out one task: fills a slot from host memory, and sends the slot to its place on the device.

use super::lanes::Lane;
use super::pinned::Strips;
use super::tasks::{CopyValues, Payload, Sources, UploadTask, strips};
use crate::backend::cuda::arguments::{self, RowsArgument, TransposeArgument};
use crate::backend::cuda::device::{Buffer, Gpu, Launch, Plain, Queue};
use crate::base::error::Result;
use crate::base::float::Float;

/// Rows on the host, and how they are sent.
pub struct Carrier<'u, 'a, T> {
    sources: &'u Sources<'a, T>,
    /// The bytes of a slot that are used.
    slot: usize,
    /// The kernel that turns rows into columns. Set if there are blocks.
    transpose: Option<Launch<TransposeArgument>>,
}

/// The base-2 logarithm of the values in a tile of this kernel.
const TILE_LOG: u32 = 10;

impl<'u, 'a, T: Float + Plain> Carrier<'u, 'a, T> {
    pub fn new(gpu: &Gpu, sources: &'u Sources<'a, T>, slot: usize) -> Result<Self> {
        let entry = arguments::rows_to_columns::<T>().half_if(sources.half.is_some());
        let transpose = if sources.in_blocks() { Some(entry.exactly(gpu, "", 1)?) } else { None };
        Ok(Self { sources, slot, transpose })
    }

    /// Fills a slot of the lane, calls `ready` to wait until the place is free, and sends the slot there. `place`: the matrix and
    /// the weights that the task writes to. `piece` is device memory of the lane. It holds row-major rows until they are turned
    /// into columns.
    ///
    /// # Safety
    /// The place has room for the rows of the task. Nothing else writes to it after `ready` has returned, until the caller has
    /// waited for the lane or for an event after the copies.
    pub unsafe fn send(
        &self,
        lane: &mut Lane,
        piece: &mut Option<Buffer<u8>>,
        task: &UploadTask,
        place: RowsArgument,
        ready: impl FnOnce(&Queue) -> Result<()>,
    ) -> Result<()> {
        // SAFETY: the caller promises it. The values have the size of the type that is named.
        unsafe {
            if self.sources.half.is_some() {
                self.send_as::<u16>(lane, piece, task, place, ready, |values, out| values.copy_bits(out))
            } else {
                self.send_as::<T>(lane, piece, task, place, ready, |values, out| values.copy(out))
            }
        }
    }

    /// # Safety
    /// The same as for `send`. `V` is the type of the values at the place.
    unsafe fn send_as<V: Plain>(
        &self,
        lane: &mut Lane,
        piece: &mut Option<Buffer<u8>>,
        task: &UploadTask,
        place: RowsArgument,
        ready: impl FnOnce(&Queue) -> Result<()>,
        copy: CopyValues<'a, T, V>,
    ) -> Result<()> {
        let (source, stride) = (&self.sources.all[task.source], place.stride as usize);
        let (slot, queue) = lane.next_slot()?;
        // The address of a value of feature `f`, and the row on the device of a kept row.
        let value = |f: usize, row: usize| place.x + ((f * stride + row) * size_of::<V>()) as u64;
        let row = |kept: usize| task.to + kept - task.rows.start;
        match &task.what {
            Payload::Columns(range) => {
                source.fill_columns(&task.rows, range, slot.values(range.len())?, copy);
                ready(queue)?;
                let strips = strips::<V>(range, task.rows.len(), stride, |at| value(0, task.to + at));
                // SAFETY: the caller promises it.
                unsafe { slot.send(queue, &strips) }
            }
            Payload::Weights(rows) => {
                source.fill_weights(rows, slot.values(rows.len())?);
                ready(queue)?;
                let at = place.w.index(row(rows.start) as u64).address();
                // SAFETY: the caller promises that each row has a weight.
                unsafe { slot.send(queue, &[Strips::one(rows.len() * size_of::<f64>(), at)]) }
            }
            Payload::Rows(rows, features) => {
                let Some(transpose) = self.transpose else { return Ok(()) };
                let len = rows.len() * features.len();
                let piece = match piece {
                    Some(piece) => piece,
                    None => piece.insert(queue.alloc(self.slot.max(size_of::<V>()), "rows on their way")?),
                };
                assert!(len * size_of::<V>() <= piece.len(), "{len} values in a piece of {} bytes", piece.len());
                source.fill_rows(rows, features, slot.values(len)?, copy);
                ready(queue)?;
                // SAFETY: the piece has room (asserted). It is freed in the order of this queue. The kernel that reads it runs in
                // this queue too.
                unsafe { slot.send(queue, &[Strips::one(len * size_of::<V>(), piece.at())]) }?;

                let log_width = features.len().next_power_of_two().trailing_zeros().min(5);
                let tiles_across = features.len().div_ceil(1 << log_width) as u32;
                let tiles_down = rows.len().div_ceil(1 << (TILE_LOG - log_width)) as u32;
                let argument = TransposeArgument {
                    rows_in: piece.at(),
                    columns_out: value(features.start, row(rows.start)),
                    stride: place.stride,
                    rows: rows.len() as u32,
                    width: features.len() as u32,
                    log_width,
                    tiles_across,
                };
                let launch = transpose.with_blocks((tiles_across * tiles_down) as usize);
                // SAFETY: the kernel reads `rows * width` values of the piece, and writes these rows of these columns of the
                // matrix. The caller promises room for them.
                unsafe { queue.run(&launch, &argument) }
            }
        }
    }
}
