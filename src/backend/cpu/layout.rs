//! How a session on the CPU shares out its rows. It follows from the shape of the fit and from the machine, so it is known before
//! there are rows: see `forecast.rs`.

use super::assign::Assigner;
use crate::base::float::Float;
use crate::base::parallel::workers_for;
use crate::input::features::Features;

/// Most rows of a task.
pub const MAX_TASK: usize = 16_384;
/// Most arithmetic (rows x features x centroids) of a task that has more than one tile: some hundredths of a second. A call can
/// be stopped between tasks.
pub const MAX_WORK: usize = 1 << 30;
/// Bytes that the sum tables of all workers together may take.
const WORKER_MEMORY: usize = 4 << 30;
/// A fit with less arithmetic than this (rows x features x centroids) stays on the calling thread.
const SMALL_FIT: usize = 1 << 16;

/// The order of the values of rows in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryOrder {
    Columns,
    RowByRow,
    Strided,
}

impl MemoryOrder {
    pub fn of<T: Float>(features: &Features<'_, T>) -> Self {
        match (features.is_by_columns(), features.is_row_by_row()) {
            (true, _) => Self::Columns,
            (_, true) => Self::RowByRow,
            _ => Self::Strided,
        }
    }
}

/// The shape of a session, and what its workers share.
#[derive(Debug, Clone, Copy)]
pub struct SessionLayout {
    pub n: usize,
    pub d: usize,
    pub k: usize,
    pub memory_order: MemoryOrder,
    pub workers: usize,
    /// Rows of a tile.
    pub tile: usize,
    /// Rows of a task.
    pub task: usize,
}

impl SessionLayout {
    /// `sums`: the number of columns that are added up. `threads`: the most threads, or 0 for those of the pool.
    pub fn new<T: Float>([n, d, k]: [usize; 3], memory_order: MemoryOrder, sums: usize, threads: usize) -> Self {
        let tile = Assigner::rows_of_tile::<T>(n, d, memory_order == MemoryOrder::RowByRow);
        let small = n.saturating_mul(d).saturating_mul(k) < SMALL_FIT;
        let room = (WORKER_MEMORY / (k.saturating_mul(sums).saturating_mul(16)).max(1)).max(1);
        let workers = if small { 1 } else { workers_for(threads, n.div_ceil(tile)).min(room) };
        // There are enough tasks for workers to finish together. A task consists of whole tiles, and its labels fit in a cache.
        let most = (MAX_WORK / d.saturating_mul(k).max(1)).clamp(tile, MAX_TASK);
        let task = if workers == 1 { most } else { (n / (workers * 8)).clamp(tile, most) }.next_multiple_of(tile);
        Self { n, d, k, memory_order, workers, tile, task }
    }
}
