//! Copies of the rows in bytes, which rule candidates of k-means++ out (`kernels/passes/plus_filter.cu`, `src/bounds/bytes.rs`).
//! They are made once some seeds are taken, where the device has room for them. Nothing depends on whether they are there.

use crate::backend::cuda::arguments::{
    self, ByteCopiesArgument, ByteFacts, Nearer, PlusCentresArgument, PlusCopiesArgument, StepArgument,
};
use crate::backend::cuda::device::{Block, Buffer, Plain, buffers, product};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::shape::padded;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::fixed::power_of_two;
use crate::statistics::Statistics;

/// The most centres, and the places that share a centre.
const MOST_CENTRES: usize = 32;
const PLACES: usize = 32;
/// Features of a piece of a copy.
const PIECE: usize = 16;
/// Threads of a block of `plus_centres`, which has two rows a thread, and of `plus_copies`.
const CENTRE_THREADS: u32 = 128;
const COPY_THREADS: u32 = 256;
/// Copies are worth their time from so many features on, for so many rows at least.
const FEWEST_FEATURES: usize = 8;
const FEWEST_ROWS: usize = 8_192;
/// Products of integers fit 32 bits for at most so many features. A place has 32 bits too.
const MOST_FEATURES: usize = 100_000;
const MOST_ROWS: usize = 1 << 31;

buffers! {
    /// The copies, and the list that the filter writes.
    pub struct ByteCopies<T> = "the copies of the rows for k-means++" (n: usize, d: usize, m: usize) {
        /// `(pieces, places, 4)`.
        bytes: u32 [product([d.div_ceil(PIECE), 4, places(n)])],
        /// `(places)`.
        facts: ByteFacts [places(n)],
        /// `(places, d)`: the rows themselves, row-major.
        values: T [product([places(n), d])],
        /// `(places)`: the number of the row.
        order: u32 [places(n)],
        /// `(places / PLACES)`.
        centre_of: u32 [places(n) / PLACES],
        /// `(centres, m, pieces, 4)`.
        candidate_bytes: u32 [product([MOST_CENTRES, m, d.div_ceil(PIECE), 4])],
        /// `(centres, m)`.
        candidate_facts: ByteFacts [product([MOST_CENTRES, m])],
        /// `(n)`: the centre of each row.
        centre_of_rows: u8 [padded(n, 2)],
        /// `(centres)`: rows of each centre, then the next free place of each.
        counts: u32 [MOST_CENTRES],
        list: Nearer [n],
    }
}

/// The most places that `n` rows need.
fn places(n: usize) -> usize {
    padded(n, PLACES).saturating_add(MOST_CENTRES * PLACES)
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
    places: usize,
    pieces: usize,
    centres: usize,
}

impl<T: Float + Plain> CopiedRows<T> {
    /// Whether copies of these rows can be made and are worth it, and the device has room for them.
    pub fn are_worth_it(rows: &DeviceRows<T>, m: usize) -> Result<bool> {
        let worth = (FEWEST_ROWS..=MOST_ROWS).contains(&rows.n) && (FEWEST_FEATURES..=MOST_FEATURES).contains(&rows.d);
        Ok(worth && rows.queue.has_room(ByteCopies::<T>::bytes(rows.n, rows.d, m))?)
    }

    /// Copies the rows. `nearest`: their distances to the nearest of the seeds. `seeds`: `taken` of them; the first ones become
    /// centres.
    pub fn new(
        rows: &DeviceRows<T>,
        nearest: &Buffer<f64>,
        seeds: &Buffer<T>,
        taken: usize,
        m: usize,
        scale: f64,
    ) -> Result<Self> {
        let (queue, centres) = (&rows.queue, taken.min(MOST_CENTRES));
        let mut buffers = ByteCopies::allocate(queue, rows.n, rows.d, m)?;
        buffers.counts.fill(0)?;
        let argument = PlusCentresArgument {
            rows: rows.argument(),
            centres: seeds.at(),
            nearest: buffers.centre_of_rows.at(),
            counts: buffers.counts.at(),
            m: centres as u32,
            unused: 0,
        };
        let tiles = rows.n.div_ceil(2 * CENTRE_THREADS as usize);
        let entry = rows.entry(arguments::plus_centres::<T>());
        let launch = entry.resident(&queue.gpu, "", Block::of(CENTRE_THREADS), tiles)?;
        // SAFETY: the kernel reads `centres` seeds, which are taken. It writes one byte for each row, and one count for each
        // centre.
        unsafe { queue.run(&launch, &argument)? };
        let mut first = 0;
        let (mut starts, mut centre_of) = ([0; MOST_CENTRES], memory::with_room(places(rows.n) / PLACES, "the copies")?);
        for (centre, (start, count)) in starts.iter_mut().zip(buffers.counts.to_vec()?).enumerate() {
            *start = first as u32;
            first += padded(count as usize, PLACES);
            // There is room for every place.
            centre_of.resize(first / PLACES, centre as u32);
        }
        buffers.counts.write(0, &starts)?;
        buffers.centre_of.write(0, &centre_of)?;
        buffers.order.fill(0xff)?;
        buffers.facts.fill(0)?;
        let copied = Self { buffers, scale, places: first, pieces: rows.d.div_ceil(PIECE), centres };
        let argument = PlusCopiesArgument {
            rows: rows.argument(),
            nearest: nearest.at(),
            centres: seeds.at(),
            centre_of: copied.buffers.centre_of_rows.at(),
            next: copied.buffers.counts.at(),
            copies: copied.argument(),
        };
        let blocks = rows.n.div_ceil(COPY_THREADS as usize);
        let launch = rows.entry(arguments::plus_copies::<T>()).exactly(&queue.gpu, "", Block::of(COPY_THREADS), blocks)?;
        // SAFETY: the rows of a centre take as many places as it has rows, from its start on. These places are below `places`,
        // for which there is room. `nearest` has a distance for each row.
        unsafe { queue.run(&launch, &argument)? };
        Ok(copied)
    }

    pub fn argument(&self) -> ByteCopiesArgument {
        let Self { buffers, scale, places, pieces, centres } = self;
        ByteCopiesArgument {
            bytes: buffers.bytes.at(),
            facts: buffers.facts.at(),
            values: buffers.values.at(),
            order: buffers.order.at(),
            centre_of: buffers.centre_of.at(),
            candidate_bytes: buffers.candidate_bytes.at(),
            candidate_facts: buffers.candidate_facts.at(),
            scale: *scale,
            places: *places as u64,
            pieces: *pieces as u32,
            centres: *centres as u32,
        }
    }

    /// The step with the list of the filter.
    pub fn step(&self, step: StepArgument) -> StepArgument {
        let list = &self.buffers.list;
        StepArgument { list: list.at(), room: list.len() as u64, filtered: 1, ..step }
    }

    /// Groups of rows that a warp filters at a time.
    pub fn tiles(&self) -> usize {
        self.places / PLACES
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(there_is_a_place_for_every_row);
    fn there_is_a_place_for_every_row() {
        for n in [1usize, 31, 32, 33, 100_000] {
            // The worst that can happen: all centres but one have one row.
            let alone = (MOST_CENTRES - 1).min(n);
            let needed = alone * PLACES + (n - alone).div_ceil(PLACES) * PLACES;
            assert!(needed <= places(n), "{n}: {needed}");
        }
    }
}
