//! The order of the rows: their keys, buckets of keys, and each bucket sorted by itself.

use super::ties::{self, KeyedRow, Ties};
use super::{BUFFERS, ORDER};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::input::tile::{RowBlock, Tile, pieces};

/// Rows of a task.
const TASK: usize = 1 << 16;
/// Rows of a tile.
const TILE: usize = 256;
/// The most buckets.
const BUCKETS: usize = 256;
/// Rows of a sample that one bucket is chosen by.
const SAMPLED: usize = 32;

/// The key of every row.
pub struct Keyed {
    /// In row order. Rows that are left out have the largest key.
    pub entries: Vec<KeyedRow>,
    /// The number of rows that are left out.
    pub bad: usize,
    /// Whether a weight is negative.
    pub negative: bool,
}

impl Keyed {
    pub fn new<T: Float>(parts: &[RowBlock<'_, T>], n: usize, threads: usize) -> Result<Self> {
        let d = parts[0].features.n_features();
        // SAFETY: an entry consists of integers, for which zero bytes are 0.
        let mut entries = unsafe { memory::zero_bytes::<KeyedRow>(n, ORDER) }?;
        let count = pieces(parts, TASK).count();
        let workers = (0..workers_for(threads, count)).map(|_| Ok((Tile::new(d, TILE)?, 0, false)));
        let mut workers = memory::try_collected(workers, BUFFERS)?;
        let mut rest = entries.as_mut_slice();
        let work = pieces(parts, TASK).map(|piece| {
            let (own, tail) = std::mem::take(&mut rest).split_at_mut(piece.rows.len());
            rest = tail;
            (piece, own)
        });
        for_each_task(&mut workers, work, |(tile, bad, negative), (piece, entries)| {
            for (start, entries) in piece.rows.clone().step_by(TILE).zip(entries.chunks_mut(TILE)) {
                *bad += tile.load_checked(piece.part, start..start + entries.len());
                *negative |= tile.weights[..tile.rows].iter().any(|weight| *weight < 0.0);
                let first = piece.first + start - piece.rows.start;
                let mut kept = 0;
                for ((row, entry), bad) in (first..).zip(entries).zip(&tile.bad) {
                    *entry = KeyedRow::LAST;
                    if !bad {
                        *entry = KeyedRow { key: ties::key(&tile.x[kept..], tile.stride, 0..d), row: row as u32 };
                        kept += 1;
                    }
                }
            }
        })?;
        let (bad, negative) = workers.iter().fold((0, false), |(bad, negative), worker| (bad + worker.1, negative | worker.2));
        Ok(Self { entries, bad, negative })
    }
}

/// The numbers of the first `kept` rows in order.
pub fn sorted<T: Float>(
    parts: &[RowBlock<'_, T>],
    mut entries: Vec<KeyedRow>,
    kept: usize,
    threads: usize,
) -> Result<Vec<u32>> {
    let ends = bucket_ends(&entries)?;
    let workers = workers_for(threads, entries.len().div_ceil(TASK));
    let counts = parted(&mut entries, &ends, workers)?;
    let sizes: Vec<usize> =
        memory::collected((0..=ends.len()).map(|bucket| counts.iter().map(|counts| counts[bucket]).sum()), ORDER)?;
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let mut order = memory::zeroed::<u32>(entries.len(), ORDER)?;
    let workers =
        (0..workers.min(sizes.len())).map(|_| Ok((memory::with_room::<KeyedRow>(largest, ORDER)?, Ties::new(parts)?)));
    let mut workers = memory::try_collected(workers, BUFFERS)?;
    let mut rest = order.as_mut_slice();
    let work = sizes.iter().enumerate().map(|(bucket, &size)| {
        let (own, tail) = std::mem::take(&mut rest).split_at_mut(size);
        rest = tail;
        (bucket, own)
    });
    for_each_task(&mut workers, work, |(together, ties), (bucket, order)| {
        together.clear();
        for (task, counts) in entries.chunks(TASK).zip(&counts) {
            let first: usize = counts[..bucket].iter().sum();
            together.extend_from_slice(&task[first..first + counts[bucket]]);
        }
        ties.sort(together);
        order.iter_mut().zip(&*together).for_each(|(row, entry)| *row = entry.row);
    })?;
    // Rows that are left out come last.
    order.truncate(kept);
    Ok(order)
}

/// The keys at which buckets end, ascending. They are chosen from a sample.
fn bucket_ends(entries: &[KeyedRow]) -> Result<Vec<u64>> {
    let buckets = (entries.len() / TASK).clamp(1, BUCKETS);
    let step = (entries.len() / (buckets * SAMPLED)).max(1);
    let mut sample: Vec<u64> = memory::collected(entries.iter().step_by(step).map(|entry| entry.key), ORDER)?;
    sample.sort_unstable();
    let mut ends: Vec<u64> = memory::collected((1..buckets).map(|bucket| sample[bucket * sample.len() / buckets]), ORDER)?;
    ends.dedup();
    Ok(ends)
}

/// Puts the entries of each task into the order of their buckets. Returns how many entries of each bucket each task has.
fn parted(entries: &mut [KeyedRow], ends: &[u64], workers: usize) -> Result<Vec<Vec<usize>>> {
    let counts = entries.chunks(TASK).map(|_| memory::zeroed::<usize>(ends.len() + 1, ORDER));
    let mut counts = memory::try_collected(counts, ORDER)?;
    let room = TASK.min(entries.len());
    let buffers = (0..workers).map(|_| {
        let copy = memory::filled(room, KeyedRow::LAST, ORDER)?;
        Ok((copy, memory::zeroed::<u8>(room, ORDER)?, memory::zeroed::<usize>(ends.len() + 1, ORDER)?))
    });
    let mut buffers = memory::try_collected(buffers, BUFFERS)?;
    for_each_task(&mut buffers, entries.chunks_mut(TASK).zip(&mut counts), |(copy, buckets, next), (entries, counts)| {
        for (entry, bucket) in entries.iter().zip(&mut *buckets) {
            // There are at most 256 buckets.
            *bucket = ends.partition_point(|end| *end <= entry.key) as u8;
            counts[usize::from(*bucket)] += 1;
        }
        let mut first = 0;
        for (next, count) in next.iter_mut().zip(&*counts) {
            *next = first;
            first += count;
        }
        for (entry, bucket) in entries.iter().zip(&*buckets) {
            let next = &mut next[usize::from(*bucket)];
            copy[*next] = *entry;
            *next += 1;
        }
        entries.copy_from_slice(&copy[..entries.len()]);
    })?;
    Ok(counts)
}
