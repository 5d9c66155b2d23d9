//! The order of the rows: a sort by the keys of their first values, then a sort of the rows of each key by their other values.
//!
//! An *entry* is one integer of a key (64 bits), a place (32 bits, at first 0) and the number of a row (32 bits). All entries are
//! different, so any sort gives the same order.

use std::cmp::Ordering;

use super::loader::Loader;
use super::{BUFFERS, ORDER};
use crate::base::error::Result;
use crate::base::float::{self, Float};
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::input::features::rows_to_columns;
use crate::input::fp16::Same;
use crate::input::tile::{RowBlock, Tile, pieces};

/// Rows of a task.
const TASK: usize = 1 << 16;
/// Rows of a tile.
const TILE: usize = 256;
/// So few rows are compared value by value.
const FEW: usize = 32;
/// The most sorts by new keys inside one another. Rows that are alike for so long are compared value by value too.
const MOST_NESTED: u32 = 32;

/// The entries of the kept rows.
pub struct Keyed {
    pub entries: Vec<u128>,
    /// Whether a weight is negative.
    pub negative: bool,
}

impl Keyed {
    pub fn new<T: Float>(parts: &[RowBlock<'_, T>], n: usize, threads: usize) -> Result<Self> {
        let d = parts[0].features.n_features();
        let mut entries = memory::zeroed::<u128>(n, ORDER)?;
        let workers = (0..workers_for(threads, pieces(parts, TASK).count())).map(|_| Ok((Tile::new(d, TILE)?, false)));
        let mut workers = memory::try_collected(workers, BUFFERS)?;
        let mut rest = entries.as_mut_slice();
        let work = pieces(parts, TASK).map(|piece| (rest.split_off_mut(..piece.rows.len()).unwrap_or_default(), piece));
        for_each_task(&mut workers, work, |(tile, negative), (entries, piece)| {
            for (start, entries) in piece.rows.clone().step_by(TILE).zip(entries.chunks_mut(TILE)) {
                tile.load_checked(piece.part, start..start + entries.len());
                *negative |= tile.weights[..tile.rows].iter().any(|weight| *weight < 0.0);
                let first = piece.first + start - piece.rows.start;
                let mut kept = 0;
                for ((row, entry), bad) in (first..).zip(entries).zip(&tile.bad) {
                    *entry = LEFT_OUT;
                    if !bad {
                        *entry = entry_of(key((0..d).map(|f| tile.x[f * tile.stride + kept])), 0, row as u32);
                        kept += 1;
                    }
                }
            }
        })?;
        entries.retain(|entry| *entry != LEFT_OUT);
        Ok(Self { entries, negative: workers.iter().any(|worker| worker.1) })
    }
}

/// Stands for a row that is left out. No row has this number.
const LEFT_OUT: u128 = u128::MAX;

fn entry_of(key: u64, place: u32, row: u32) -> u128 {
    u128::from(key) << 64 | u128::from(place) << 32 | u128::from(row)
}

fn key_of(entry: u128) -> u64 {
    (entry >> 64) as u64
}

fn place_of(entry: u128) -> usize {
    (entry >> 32) as u32 as usize
}

fn row_of(entry: u128) -> u32 {
    entry as u32
}

/// How many values a key has.
const fn of_key<T: Float>() -> usize {
    if T::IS_F32 { 2 } else { 1 }
}

/// The key of the first values of a row.
fn key<T: Float>(values: impl Iterator<Item = T>) -> u64 {
    let mut keys = values.take(of_key::<T>()).map(float::key);
    let (first, second) = (keys.next().unwrap_or(0), keys.next().unwrap_or(0));
    if T::IS_F32 { first << 32 | second } else { first }
}

/// The runs of several entries of one key.
fn runs_of(entries: &mut [u128]) -> impl Iterator<Item = &mut [u128]> {
    entries.chunk_by_mut(|a, b| key_of(*a) == key_of(*b)).filter(|run| run.len() > 1)
}

/// The numbers of the rows in the order of their values.
pub fn sorted<T: Float>(parts: &[RowBlock<'_, T>], mut entries: Vec<u128>, threads: usize) -> Result<Vec<u32>> {
    let workers = workers_for(threads, entries.len().div_ceil(TASK));
    sort(&mut entries, workers)?;
    let d = parts[0].features.n_features();
    let tied: usize = runs_of(&mut entries).map(|run| run.len()).sum();
    if tied > 0 {
        // SAFETY: `Float` is sealed: its types are floating-point numbers, for which zero bytes are 0.
        let mut values = unsafe { memory::zero_bytes::<T>(tied.saturating_mul(d), ORDER) }?;
        let mut loaders = memory::try_collected((0..workers).map(|_| Loader::new(parts)), BUFFERS)?;
        let mut rest = values.as_mut_slice();
        let work = runs_of(&mut entries).map(|run| (rest.split_off_mut(..run.len() * d).unwrap_or_default(), run));
        for_each_task(&mut loaders, work, |loader, (values, run)| sort_run(loader, run, values))?;
    }
    memory::collected(entries.iter().map(|entry| row_of(*entry)), ORDER)
}

/// Sorts entries: pieces are halved around their medians until they are small.
fn sort(entries: &mut [u128], workers: usize) -> Result<()> {
    let mut workers = memory::filled(workers, (), BUFFERS)?;
    let mut pieces = vec![entries];
    while pieces[0].len() > TASK {
        for_each_task(&mut workers, pieces.iter_mut(), |(), piece| {
            piece.select_nth_unstable(piece.len() / 2);
        })?;
        let halves = pieces.into_iter().flat_map(|piece| <[_; 2]>::from(piece.split_at_mut(piece.len() / 2)));
        pieces = memory::collected(halves, ORDER)?;
    }
    for_each_task(&mut workers, pieces.into_iter(), |(), piece| piece.sort_unstable())
}

/// Sorts rows of one key by their values, then by their weights, then by their numbers. `values`: room for the values of the rows.
fn sort_run<T: Float>(loader: &mut Loader<'_, '_, T>, run: &mut [u128], values: &mut [T]) {
    for entry in &mut *run {
        *entry = entry_of(float::key(loader.weight(row_of(*entry))), 0, row_of(*entry));
    }
    run.sort_unstable();
    // Each row gets a place in this order, so rows of equal values are in the order of their places.
    run.iter_mut().zip(0..).for_each(|(entry, place)| *entry = entry_of(0, place, row_of(*entry)));
    let (d, stride) = (loader.d, loader.stride);
    for (some, values) in run.chunks(stride).zip(values.chunks_mut(stride * d)) {
        loader.load(some.iter().map(|entry| row_of(*entry)));
        // The values of a row next to each other: columns take the place of rows.
        rows_to_columns::<T, T, Same>((0..d).map(|f| &loader.column(f)[..some.len()]), 0, d, values);
    }
    sort_places(values, d, run, 0, 0);
}

/// Sorts rows by the values at their places, then by their places. They have equal values in the first `equal` features.
fn sort_places<T: Float>(values: &[T], d: usize, run: &mut [u128], equal: usize, nested: u32) {
    let rest = |entry: u128, from: usize| &values[place_of(entry) * d..][from..d];
    if run.len() <= FEW || nested == MOST_NESTED {
        run.sort_unstable_by(|a, b| {
            // All values are finite.
            let by_values = rest(*a, equal).partial_cmp(rest(*b, equal)).unwrap_or(Ordering::Equal);
            by_values.then(place_of(*a).cmp(&place_of(*b)))
        });
        return;
    }
    let first = rest(run[0], 0);
    let differs = |row: &[T], most: usize| (equal..most).find(|f| row[*f] != first[*f]).unwrap_or(most);
    let equal = run.iter().fold(d, |equal, entry| differs(rest(*entry, 0), equal));
    for entry in &mut *run {
        *entry = entry_of(key(rest(*entry, equal).iter().copied()), place_of(*entry) as u32, row_of(*entry));
    }
    run.sort_unstable();
    if equal < d {
        for run in runs_of(run) {
            sort_places(values, d, run, (equal + of_key::<T>()).min(d), nested + 1);
        }
    }
}
