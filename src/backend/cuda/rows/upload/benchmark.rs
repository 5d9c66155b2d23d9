//! Measures the speed of uploads, and what the bus can carry. For benches (feature `bench`).

use std::time::Instant;

use super::pinned::{Pinned, Strips};
use super::upload;
use crate::backend::cuda::device::{Gpu, Plain, Queue};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::input::tile::RowBlock;

/// Bytes per second of copies of 256 MiB from pinned memory to the device. An upload cannot be faster.
fn pinned_ceiling(queue: &Queue) -> Result<f64> {
    const BYTES: usize = 256 << 20;
    const COPIES: usize = 8;
    let target = queue.alloc::<u8>(BYTES, "a measurement")?;
    let mut source = Pinned::new(&queue.gpu, BYTES)?;
    let strips = [Strips::one(BYTES, target.at())];
    let mut copy = |times: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..times {
            // SAFETY: the target has room, belongs to this queue and lives until after the wait.
            unsafe { source.send(queue, &strips) }?;
        }
        queue.wait()?;
        Ok(start.elapsed().as_secs_f64())
    };
    copy(1)?;
    Ok((COPIES * BYTES) as f64 / copy(COPIES)?)
}

/// Measures the time of repeated uploads of the same rows, and the speed of copies from pinned memory.
///
/// Returns `(bytes of one upload, seconds of each upload, bytes per second from pinned memory)`. The first upload also pins
/// memory.
pub fn upload_benchmark<T: Float + Plain>(
    ordinal: u32,
    parts: &[RowBlock<'_, T>],
    rounds: usize,
) -> Result<(u64, Vec<f64>, f64)> {
    let queue = Gpu::get(ordinal)?.queue()?;
    let (mut bytes, mut seconds) = (0, Vec::with_capacity(rounds));
    for _ in 0..rounds {
        let start = Instant::now();
        let rows = upload(&queue, parts)?;
        seconds.push(start.elapsed().as_secs_f64());
        bytes = (rows.n * (rows.d * rows.x.size() + rows.weights.as_ref().map_or(0, |_| size_of::<f64>()))) as u64;
    }
    Ok((bytes, seconds, pinned_ceiling(&queue)?))
}
