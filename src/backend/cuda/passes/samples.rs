//! Samples in which every row decides alone: the parameters of the kernels (`kernels/passes/draws.cuh`), and the list of rows that a
//! kernel finds.

use crate::backend::Sample;
use crate::backend::cuda::arguments::{FoundArgument, SampleArgument};
use crate::backend::cuda::device::Queue;
use crate::error::Result;
use crate::rng::Stream;

impl From<&Sample> for SampleArgument {
    fn from(sample: &Sample) -> Self {
        Self {
            total_low: sample.total as u64,
            total_high: (sample.total >> 64) as u64,
            expected: sample.expected,
            first: sample.first,
            key_low: sample.seed as u32,
            key_high: (sample.seed >> 32) as u32,
            stream: Stream::Parallel { round: sample.round }.word(),
            restart: sample.restart,
        }
    }
}

/// The numbers of the rows that `find` finds, in ascending order. `n`: the number of all rows.
///
/// `find` queues kernels that look at all rows once. It is called again only if there were more rows than expected.
pub fn found_rows(
    queue: &Queue,
    sample: &Sample,
    n: usize,
    mut find: impl FnMut(FoundArgument) -> Result<()>,
) -> Result<Vec<u64>> {
    const WHAT: &str = "the rows drawn";
    // Six standard deviations more than the mean.
    let expected = sample.expected as f64;
    let mut room = ((expected + 6.0 * expected.sqrt()) as usize + 64).min(n);
    loop {
        let (rows, count) = (queue.alloc::<u64>(room, WHAT)?, queue.zeros::<u64>(1, WHAT)?);
        find(FoundArgument { rows: rows.at(), count: count.at(), room: room as u64 })?;
        let found = count.to_vec()?[0] as usize;
        if found <= room {
            // The kernel wrote `found` values. Those beyond are not defined, so they stay on the device.
            let mut numbers = crate::memory::zeroed(found, WHAT)?;
            rows.read(0, &mut numbers)?;
            numbers.sort_unstable();
            return Ok(numbers);
        }
        room = found;
    }
}
