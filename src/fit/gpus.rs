//! A fit on several GPUs: each has a share of the rows, is prepared, and gets a session. All sessions together are one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::rows::{Origin, enough};
use crate::backend::cuda::{CudaSession, Gpu, GpusInStep, Group, MOST_PENDING, SeveralPasses};
use crate::backend::select::{Choice, Share};
use crate::backend::{Session, Sessions, Sharded};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::at_once;
use crate::base::params::Params;
use crate::input::tile::Part;
use crate::statistics::{Statistics, gather_by};

/// The name of the shares in errors.
const SHARES: &str = "the rows of several GPUs";

/// Prepares rows on the GPUs of a choice, and works with a session for each of these parameters, which differ in k only.
/// `common`: those that the rows are prepared for.
pub(super) fn with_sessions<T: Float, R>(
    choice: &Choice,
    parts: &[Part<'_, T>],
    each: &[Params<'_>],
    common: &Params<'_>,
    ties: Option<Arc<AtomicBool>>,
    mut work: impl FnMut(Box<dyn Session<T> + '_>, &Params<'_>, &Statistics, Origin) -> Result<R>,
) -> Result<Vec<Result<R>>> {
    let queue = |share: &Share| Ok(Gpu::get(share.ordinal)?.queue()?.within(share.room));
    let queues = memory::try_collected(choice.shares.iter().map(queue), SHARES)?;
    let (mut parts, counts) = cut(parts, &choice.shares)?;
    let shares = queues.iter().zip(&choice.shares).zip(&counts);
    let shares = shares.map(|((queue, share), parts)| (queue.clone(), share.chunking, *parts));
    let mut passes = SeveralPasses::new(shares, &mut parts)?;
    let statistics = Arc::new(Statistics { ties, ..gather_by(&mut passes, common)? });
    let chunks = passes.into_chunks()?;
    // All rows of a share may have been left out.
    let used = chunks.iter().zip(&queues).filter(|(chunks, _)| chunks.is_some()).map(|(_, queue)| queue.clone());
    let used = memory::collected(used, SHARES)?;
    // Sums of more rows, and those that a paper's system adds up on the host, are merged there.
    let on_host = statistics.n > MOST_PENDING as u64 || choice.strategy.is_of_a_paper();
    let mut found = memory::with_room(each.len(), "the fits")?;
    for params in each {
        let mut fit = || {
            enough(params, statistics.n_positive)?;
            let group = if on_host { None } else { Group::new(&used)? };
            let mut places = memory::with_room(used.len(), SHARES)?;
            let mut first = 0;
            for ((chunks, share), count) in chunks.iter().zip(&choice.shares).zip(&counts) {
                let parts = &parts[first..first + count];
                first += count;
                places.extend(chunks.as_ref().map(|chunks| (chunks, share, parts)));
            }
            let mut sessions = at_once(places, |(chunks, share, parts)| {
                let (strategy, more) = (share.strategy, share.more_copies);
                CudaSession::new(chunks.clone(), parts, &statistics, params, strategy, more, group.as_ref()).map(Box::new)
            })?;
            let threads = params.execution.threads;
            let session: Box<dyn Session<T> + '_> = match group {
                _ if sessions.len() == 1 => sessions.remove(0),
                Some(group) => Box::new(Sharded::new(GpusInStep::new(sessions, group, &statistics)?, &statistics, threads)?),
                None => {
                    let sessions = sessions.into_iter().map(|session| -> Box<dyn Session<T> + '_> { session });
                    Box::new(Sharded::new(Sessions::new(memory::collected(sessions, SHARES)?), &statistics, threads)?)
                }
            };
            work(session, params, &statistics, Origin::of(&parts, params)?)
        };
        found.push(fit());
    }
    Ok(found)
}

/// The rows of each share, in order, and the number of their parts.
fn cut<'a, T: Float>(parts: &[Part<'a, T>], shares: &[Share]) -> Result<(Vec<Part<'a, T>>, Vec<usize>)> {
    let (mut all, mut counts) = (Vec::new(), memory::with_room(shares.len(), SHARES)?);
    // Sorting may have left rows out.
    let there: usize = parts.iter().map(|part| part.features.n_rows()).sum();
    let planned: u64 = shares.iter().map(|share| share.rows).sum();
    let rows_of = |share: &Share| (u128::from(share.rows) * there as u128 / u128::from(planned.max(1))) as usize;
    let mut parts = parts.iter();
    let (mut part, mut start) = (parts.next(), 0usize);
    for (place, share) in shares.iter().enumerate() {
        let before = all.len();
        // The last share has what is left.
        let mut left = if place + 1 == shares.len() { usize::MAX } else { rows_of(share) };
        while let Some(here) = part.filter(|_| left > 0) {
            let n = here.features.n_rows();
            let end = n.min(start.saturating_add(left));
            memory::push(&mut all, here.slice(start..end)?, SHARES)?;
            left -= end - start;
            start = end;
            if end == n {
                (part, start) = (parts.next(), 0);
            }
        }
        counts.push(all.len() - before);
    }
    Ok((all, counts))
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::strategy::Strategy;
    use crate::input::features::Features;

    unit_test!(rows_are_cut_in_order);
    fn rows_are_cut_in_order() {
        let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let part = |range: std::ops::Range<usize>| Part::new(Features::from_rows(&x[range], 1).unwrap(), None);
        let parts = [part(0..3), part(3..3), part(3..11), part(11..20)];
        let share = |rows| Share { ordinal: 0, rows, chunking: None, strategy: Strategy::Default, more_copies: false, room: 0 };
        let lengths = |shares: &[u64]| {
            let shares: Vec<Share> = shares.iter().map(|rows| share(*rows)).collect();
            let (cut, counts) = cut(&parts, &shares).unwrap();
            let rows: Vec<usize> = cut.iter().map(|part| part.features.n_rows()).collect();
            assert_eq!(rows.iter().sum::<usize>(), 20);
            let mut first = 0;
            for part in &cut {
                let n = part.features.n_rows();
                let mut values = vec![0.0; n];
                part.features.copy_tile(0..n, n, &mut values);
                assert_eq!(values, &x[first..first + n]);
                first += n;
            }
            let mut rows = rows.into_iter();
            counts.iter().map(|count| rows.by_ref().take(*count).sum::<usize>()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[20]), [20]);
        assert_eq!(lengths(&[10, 10]), [10, 10]);
        assert_eq!(lengths(&[3, 1, 7, 9]), [3, 1, 7, 9]);
        assert_eq!(lengths(&[1, 19]), [1, 19]);
    }
}
