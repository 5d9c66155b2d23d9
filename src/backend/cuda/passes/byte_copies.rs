//! Copies of the rows in bytes, which rule candidates of k-means++ out (`kernels/passes/plus_copies.cu`, `plus_filter.cu`,
//! `src/bounds/bytes.rs`). They are made once some seeds are taken, where the device has room for them, and again when there
//! are many more, or the potential has halved: then rows are nearer to their centres. Nothing depends on whether they are there.

use crate::backend::cuda::arguments::{
    self, ByteCopiesArgument, ByteFacts, Nearer, PlusCopiesArgument, PlusCountArgument, PlusPlacesArgument, PlusValuesArgument,
    StepArgument,
};
use crate::backend::cuda::device::{Buffer, Plain, Queue, buffers, product};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::shape::padded;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::fixed::power_of_two;
use crate::statistics::Statistics;

/// The fewest and the most centres for which there is room, and the places that share a centre: a tile.
const CENTRES: std::ops::RangeInclusive<usize> = 32..=1_024;
const PLACES: usize = 32;
/// Features of a piece of a copy, of four a word. Candidates that are multiplied at once.
const PIECE: usize = 32;
const WORDS: usize = PIECE / 4;
const BESIDE: usize = 8;
/// Candidates that a warp compares with a centre.
const QUARTER: usize = 4;
/// Copies are worth their time from so many features on, for so many rows at least.
const FEWEST_FEATURES: usize = 8;
const FEWEST_ROWS: usize = 8_192;
/// Products of integers fit 32 bits for at most so many features. A place has 32 bits too.
const MOST_FEATURES: usize = 100_000;
const MOST_ROWS: usize = 1 << 31;
/// The copies are made when so many seeds are taken.
pub const FIRST_COPIES: usize = 16;
/// Steps between copies, at least. They are made again when there are so many times as many seeds.
const SOONEST: usize = 48;
const LATEST: usize = 4;

buffers! {
    /// The copies, and the list that the filter writes.
    pub struct ByteCopies<T> = "the copies of the rows for k-means++" (n: usize, d: usize, m: usize) {
        /// `(tiles, pieces, words, PLACES)`.
        bytes: u32 [product([d.div_ceil(PIECE), WORDS, places(n, m)])],
        /// `(places)`.
        facts: ByteFacts [places(n, m)],
        /// `(n, d)`: the rows themselves, row-major.
        values: T [product([n, d])],
        /// `(places)`: the number of the row.
        order: u32 [places(n, m)],
        /// `(tiles)`.
        centre_of: u32 [places(n, m) / PLACES],
        /// `(centres)`: how far their rows reach.
        reaches: u32 [most_centres(n, m)],
        /// `(centres, m / BESIDE, pieces, words, BESIDE)`.
        candidate_bytes: u32 [product([most_centres(n, m), m.div_ceil(BESIDE) * BESIDE, d.div_ceil(PIECE), WORDS])],
        /// `(centres, m)`.
        candidate_facts: ByteFacts [product([most_centres(n, m), m])],
        /// `(centres)`: the candidates within reach.
        masks: u32 [most_centres(n, m)],
        /// `(n)`: the seed that each row was nearest to when it last came nearer to one.
        owners: u32 [n],
        /// `(centres)`: rows of each centre, then the next free place of each.
        counts: u32 [most_centres(n, m)],
        list: Nearer [n],
    }
}

/// The most centres of `n` rows. Their copies of `m` candidates take less memory than those of the rows.
fn most_centres(n: usize, m: usize) -> usize {
    (n / (8 * m.max(1))).clamp(*CENTRES.start(), *CENTRES.end())
}

/// The most places that `n` rows need.
fn places(n: usize, m: usize) -> usize {
    padded(n, PLACES).saturating_add(most_centres(n, m) * PLACES)
}

/// The power of two that makes the largest distance of the data at most 1. There is none, and there are no copies, where the data
/// are so small or large that squares of distances come near the ends of the range of a float64.
pub fn copies_scale(statistics: &Statistics) -> Option<f64> {
    let square: f64 = statistics.lows.iter().zip(&statistics.highs).map(|(low, high)| (high - low) * (high - low)).sum();
    let exponent = (0.5 * square.log2()).floor() + 1.0;
    (exponent.abs() <= 400.0).then(|| power_of_two(-exponent as i32))
}

/// The copies of the rows of a fit.
pub struct CopiedRows<T> {
    buffers: ByteCopies<T>,
    scale: f64,
    m: usize,
    /// Places of rows, and the centres that they have. None before the rows are copied.
    places: usize,
    centres: usize,
    /// With so many seeds the rows are copied next.
    due: usize,
    /// The seeds and the potential when they were copied last.
    last: (usize, u128),
    /// How many steps go without copies if a list is too short.
    pause: usize,
    /// Whether the filter may be used.
    pub ready: bool,
}

impl<T: Float + Plain> CopiedRows<T> {
    /// Whether copies of these rows can be made and are worth it, and the device has room for them.
    pub fn are_worth_it(rows: &DeviceRows<T>, m: usize) -> Result<bool> {
        let worth = (FEWEST_ROWS..=MOST_ROWS).contains(&rows.n) && (FEWEST_FEATURES..=MOST_FEATURES).contains(&rows.d);
        Ok(worth && rows.queue.has_room(ByteCopies::<T>::bytes(rows.n, rows.d, m))?)
    }

    /// Memory for the copies of these rows, and the rows themselves, row-major. All rows belong to the first seed.
    pub fn new(rows: &DeviceRows<T>, m: usize, scale: f64) -> Result<Self> {
        let queue = &rows.queue;
        let mut buffers = ByteCopies::allocate(queue, rows.n, rows.d, m)?;
        buffers.owners.fill(0)?;
        // A mask has four bytes, and `plus_near` writes one for each QUARTER of the candidates that there are.
        buffers.masks.fill(0)?;
        let argument = PlusValuesArgument { rows: rows.argument(), values: buffers.values.at() };
        let entry = rows.entry(arguments::plus_values::<T>());
        let launch = entry.resident(&queue.gpu, "", usize::MAX)?;
        // SAFETY: there is room for n rows of d values.
        unsafe { queue.run(&launch, &argument)? };
        let (due, pause) = (FIRST_COPIES, FIRST_COPIES);
        Ok(Self { buffers, scale, m, places: 0, centres: 0, due, last: (0, 0), pause, ready: false })
    }

    /// Whether the rows should be copied now, with so many seeds taken: when it is due, or when the potential has halved. Then many
    /// rows have come much nearer to a seed.
    pub fn are_due(&self, taken: usize, potential: u128) -> bool {
        let (before, then) = self.last;
        taken >= self.due || self.ready && taken >= before + SOONEST && potential <= then / 2
    }

    /// The steps until the rows should be copied at the latest, with so many seeds taken.
    pub fn steps_left(&self, taken: usize) -> usize {
        self.due.saturating_sub(taken)
    }

    /// No filter for some steps: its list was too short.
    pub fn rest(&mut self, taken: usize) {
        self.ready = false;
        self.due = taken + self.pause;
        self.pause *= 2;
    }

    /// Copies the rows. `nearest`: their distances to the nearest of the seeds. `seeds`: `taken` of them; the first ones become
    /// centres. `potential`: that of these seeds.
    pub fn copy(
        &mut self,
        queue: &Queue,
        nearest: &Buffer<f64>,
        seeds: &Buffer<T>,
        taken: usize,
        potential: u128,
    ) -> Result<()> {
        self.last = (taken, potential);
        let Self { buffers, m, .. } = self;
        let (n, most) = (buffers.owners.len(), buffers.counts.len());
        let centres = taken.min(most);
        buffers.counts.fill(0)?;
        let (owners, counts) = (buffers.owners.at(), buffers.counts.at());
        let argument = PlusCountArgument { owners, counts, n: n as u32, centres: centres as u32 };
        let entry = arguments::plus_count();
        let launch = entry.resident(&queue.gpu, "", entry.blocks_of(n))?;
        // SAFETY: the kernel reads n owners, which are seeds that were taken, below `most`. It writes one count for each centre, of
        // which there are at most 1,024.
        unsafe { queue.run(&launch, &argument)? };
        let mut first = 0;
        let mut starts = buffers.counts.to_vec()?;
        let mut centre_of = memory::with_room(places(n, *m) / PLACES, "the copies")?;
        for (centre, start) in starts.iter_mut().enumerate() {
            let count = std::mem::replace(start, first as u32);
            first += padded(count as usize, PLACES);
            // There is room for every place.
            centre_of.resize(first / PLACES, centre as u32);
        }
        buffers.counts.write(0, &starts)?;
        buffers.centre_of.write(0, &centre_of)?;
        buffers.order.fill(0xff)?;
        buffers.reaches.fill(0)?;
        let argument = PlusPlacesArgument { owners, next: counts, order: buffers.order.at(), n: n as u32, unused: 0 };
        let entry = arguments::plus_places();
        let launch = entry.exactly(&queue.gpu, "", entry.blocks_of(n))?;
        // SAFETY: the rows of a centre take as many places as it has rows, from its start on. These places are below the sum of
        // all, for which there is room.
        unsafe { queue.run(&launch, &argument)? };
        (self.places, self.centres, self.ready) = (first, centres, true);
        self.due = if centres < most { (LATEST * taken).min(most.max(taken + 1)) } else { usize::MAX };
        let copies = self.argument();
        let d = self.buffers.values.len() / n;
        let argument = PlusCopiesArgument { nearest: nearest.at(), centres: seeds.at(), copies, d: d as i32, unused: 0 };
        let launch = arguments::plus_copies::<T>().resident(&queue.gpu, "", self.tiles())?;
        // SAFETY: every place has a row below n, or none. `nearest` has a distance for each row. The centres are seeds that are
        // taken. There is room for the copy and the facts of each place.
        unsafe { queue.run(&launch, &argument) }
    }

    pub fn argument(&self) -> ByteCopiesArgument {
        let Self { buffers, scale, m, places, centres, .. } = self;
        ByteCopiesArgument {
            bytes: buffers.bytes.at(),
            facts: buffers.facts.at(),
            values: buffers.values.at(),
            order: buffers.order.at(),
            centre_of: buffers.centre_of.at(),
            reaches: buffers.reaches.at(),
            candidate_bytes: buffers.candidate_bytes.at(),
            candidate_facts: buffers.candidate_facts.at(),
            masks: buffers.masks.at(),
            scale: *scale,
            places: *places as u64,
            pieces: (buffers.values.len() / buffers.owners.len()).div_ceil(PIECE) as u32,
            centres: *centres as u32,
            beside: m.div_ceil(BESIDE) as u32,
            unused: 0,
        }
    }

    /// The step, which also notes the nearest seed of each row. With the filter, its list is that of the filter.
    pub fn step(&self, step: StepArgument) -> StepArgument {
        let ByteCopies { list, owners, counts, .. } = &self.buffers;
        let step = StepArgument { owners: owners.at(), owned: counts.len() as u32, ..step };
        if self.ready { StepArgument { list: list.at(), room: list.len() as u64, filtered: 1, ..step } } else { step }
    }

    /// Groups of rows that a warp filters at a time.
    pub fn tiles(&self) -> usize {
        self.places / PLACES
    }

    /// Warps that compare a centre with candidates.
    pub fn comparisons(&self) -> usize {
        self.centres * self.m.div_ceil(QUARTER)
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(there_is_a_place_for_every_row);
    fn there_is_a_place_for_every_row() {
        for n in [1usize, 31, 32, 33, 10_000, 100_000] {
            for m in [2, 10, 16] {
                // The worst that can happen: all centres but one have one row.
                let alone = (most_centres(n, m) - 1).min(n);
                let needed = alone * PLACES + (n - alone).div_ceil(PLACES) * PLACES;
                assert!(needed <= places(n, m), "{n}, {m}: {needed}");
            }
        }
    }
}
