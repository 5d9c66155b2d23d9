//! Samples in which every row decides alone: the parameters of the kernels (`kernels/passes/draws.cuh`), and the list of rows
//! that a kernel finds.

use crate::backend::Sample;
use crate::backend::cuda::arguments::{FoundRowsArgument, SampleArgument};
use crate::backend::cuda::device::{Plain, Queue, bytes_of, product, sum};
use crate::backend::cuda::passes::nearest_batch;
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::params::DrawnCandidates;
use crate::exact::rng::DrawPurpose;

impl From<&Sample> for SampleArgument {
    fn from(sample: &Sample) -> Self {
        Self {
            total_low: sample.total as u64,
            total_high: (sample.total >> 64) as u64,
            expected: sample.expected,
            first: sample.first,
            key_low: sample.seed as u32,
            key_high: (sample.seed >> 32) as u32,
            stream: DrawPurpose::Parallel { round: sample.round }.word(),
            restart: sample.restart,
            by_values: u32::from(sample.by_values),
            unused: 0,
        }
    }
}

/// How many rows a list has room for that is to take `expected` rows of `n` on average: six standard deviations more.
fn room_for(expected: u64, n: usize) -> usize {
    let expected = expected as f64;
    ((expected + 6.0 * expected.sqrt()) as usize).saturating_add(64).min(n)
}

/// The bytes that many candidates take on the device. `draws`: the bytes of the distances of the rows, which are gone when the
/// candidates get their masses.
pub fn candidate_bytes<T: Float + Plain>(shape: &FitShape, candidates: DrawnCandidates, draws: u64, gpu: GpuSize) -> u64 {
    if candidates.of_round == 0 {
        return 0;
    }
    let of_round = room_for(candidates.of_round, shape.rows);
    let taken = sum([draws, nearest_batch::bytes::<T>(shape, of_round.max(shape.k), gpu)]);
    if candidates.rounds == 0 {
        return taken;
    }
    let all = of_round.saturating_mul(candidates.rounds as usize).saturating_add(1);
    let values = |rows: usize| bytes_of::<T>(product([rows, shape.d]));
    // The numbers of the rows, found and asked for, and their values.
    let round = sum([draws, bytes_of::<u64>(of_round), bytes_of::<u64>(of_round), values(of_round)]);
    round.max(taken).max(sum([nearest_batch::bytes::<T>(shape, all, gpu), bytes_of::<u128>(all)]))
}

/// The numbers of the rows that `find` finds, in ascending order. `n`: the number of all rows.
///
/// `find` queues kernels that look at all rows once. It is called again only if there were more rows than expected.
pub fn found_rows(
    queue: &Queue,
    sample: &Sample,
    n: usize,
    mut find: impl FnMut(FoundRowsArgument) -> Result<()>,
) -> Result<Vec<u64>> {
    const WHAT: &str = "the rows drawn";
    let mut room = room_for(sample.expected, n);
    loop {
        let (rows, count) = (queue.alloc::<u64>(room, WHAT)?, queue.zeros::<u64>(1, WHAT)?);
        find(FoundRowsArgument { rows: rows.at(), count: count.at(), room: room as u64 })?;
        let found = count.to_vec()?[0] as usize;
        if found <= room {
            // The kernel wrote `found` values. Those beyond are not defined, so they stay on the device.
            let mut numbers = crate::base::memory::zeroed(found, WHAT)?;
            rows.read(0, &mut numbers)?;
            numbers.sort_unstable();
            return Ok(numbers);
        }
        room = found;
    }
}
