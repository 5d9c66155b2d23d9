//! Downloads labels in pieces. All threads widen them.

use crate::backend::cuda::device::Buffer;
use crate::backend::cuda::passes::draws::widen;
use crate::error::Result;
use crate::memory;
use crate::parallel::{for_each_task, workers_for};

/// The labels of a piece, and the labels that a thread widens at a time.
const PIECE: usize = 1 << 28;
const TASK: usize = 1 << 18;

/// The name of the labels in errors.
const LABELS: &str = "the labels";

/// The first `n` labels. On the device each has `bytes` bytes.
pub fn download(from: &Buffer<u8>, n: usize, bytes: usize) -> Result<Vec<u32>> {
    // The threads touch the memory of the result for the first time when they widen. That is most of the work, so all threads
    // share it.
    let mut labels = memory::zeroed::<u32>(n, LABELS)?;
    let mut narrow = memory::zeroed::<u8>(n.min(PIECE) * bytes, LABELS)?;
    for (piece, labels) in labels.chunks_mut(PIECE).enumerate() {
        let narrow = &mut narrow[..labels.len() * bytes];
        from.read(piece * PIECE * bytes, narrow)?;
        let mut workers = vec![(); workers_for(0, labels.len().div_ceil(TASK))];
        let tasks = labels.chunks_mut(TASK).zip(narrow.chunks(TASK * bytes));
        for_each_task(&mut workers, tasks, |(), (labels, narrow)| {
            labels.iter_mut().zip(narrow.chunks_exact(bytes)).for_each(|(label, bytes)| *label = widen(bytes));
        });
    }
    Ok(labels)
}
