//! Shards that are sessions in this process. On devices they work at the same time. A session on the CPU takes all threads for
//! each of its passes, so there they work one after the other.

use super::{SHARDS, Shards, Take};
use crate::backend::answers::LABELS;
use crate::backend::call::{Call, Calls, answer};
use crate::backend::{Draw, Session};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel;

/// Sessions in the order of their rows.
pub struct Sessions<'a, T> {
    sessions: Vec<Box<dyn Session<T> + 'a>>,
    /// Whether they work at the same time.
    at_once: bool,
}

impl<'a, T: Float> Sessions<'a, T> {
    /// These sessions, at least one.
    pub fn new(sessions: Vec<Box<dyn Session<T> + 'a>>) -> Self {
        let at_once = sessions.iter().all(|session| session.on_device());
        Self { sessions, at_once }
    }
}

impl<T: Float> Shards<T> for Sessions<'_, T> {
    fn rows(&self) -> Result<Vec<[u64; 2]>> {
        memory::collected(self.sessions.iter().map(|session| [session.rows(), session.positive_rows()]), SHARDS)
    }

    fn ask(&mut self, calls: Calls<Call>, values: &[T], take: Take<'_, T>) -> Result<()> {
        ask_sessions(&mut self.sessions, self.at_once, &calls, values, take)
    }

    fn copy_labels(&mut self, out: &mut [u32]) -> Result<()> {
        copy_labels(&mut self.sessions, self.at_once, out)
    }

    fn into_labels(mut self, rows: usize) -> Result<Vec<u32>> {
        if self.at_once {
            let mut all = memory::zeroed(rows, LABELS)?;
            self.copy_labels(&mut all)?;
            return Ok(all);
        }
        // Each session gives its memory back before the next one's labels are copied.
        let mut all = memory::with_room(rows, LABELS)?;
        for session in self.sessions {
            all.extend(session.into_labels()?);
        }
        Ok(all)
    }

    fn first(&self) -> Option<&dyn Session<T>> {
        Some(&*self.sessions[0])
    }
}

/// Calls `work` with every session and its number, and `take` with the results in row order. Returns the first error.
fn each<S: Send + ?Sized, R: Send>(
    sessions: &mut [Box<S>],
    at_once: bool,
    work: impl Fn(usize, &mut S) -> Result<R> + Sync,
    mut take: impl FnMut(usize, R) -> Result<()>,
) -> Result<()> {
    let mut sessions = sessions.iter_mut().enumerate();
    if !at_once {
        return sessions.try_for_each(|(shard, session)| take(shard, work(shard, session)?));
    }
    let results = parallel::at_once(memory::collected(sessions, SHARDS)?, |(shard, session)| work(shard, session))?;
    results.into_iter().enumerate().try_for_each(|(shard, result)| take(shard, result))
}

/// As [`Shards::ask`], for these sessions. `at_once`: whether they do passes at the same time. Replies that are long are taken
/// one after the other.
pub fn ask_sessions<T: Float, S: Session<T> + ?Sized>(
    sessions: &mut [Box<S>],
    at_once: bool,
    calls: &Calls<Call>,
    values: &[T],
    take: Take<'_, T>,
) -> Result<()> {
    use Call::{EndDraws, Labels, Nearest, Pick, Relocate};
    // Passes over all rows that have short replies.
    let is_short =
        |call: &Call| !matches!(call, Pick(Draw::Totals(..) | Draw::All) | Relocate(_) | EndDraws | Labels | Nearest);
    let short = (0..sessions.len()).all(|shard| calls.of(shard).is_some_and(is_short));
    let work = |shard: usize, session: &mut S| calls.of(shard).map(|call| answer(session, call, values)).transpose();
    each(sessions, at_once && short, work, |shard, reply| match reply {
        Some((reply, values)) => take(shard, reply, values),
        None => Ok(()),
    })
}

/// Writes the labels of these sessions, each to its own place.
pub fn copy_labels<T: Float, S: Session<T> + ?Sized>(sessions: &mut [Box<S>], at_once: bool, out: &mut [u32]) -> Result<()> {
    let mut rest = out;
    let mut places = memory::with_room(sessions.len(), SHARDS)?;
    for session in sessions {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(session.rows() as usize);
        rest = others;
        places.push((session, own));
    }
    if !at_once {
        return places.into_iter().try_for_each(|(session, own)| session.copy_labels(own));
    }
    parallel::at_once(places, |(session, own)| session.copy_labels(own)).map(drop)
}

#[cfg(feature = "tests")]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;
    use crate::backend::cpu::CpuSession;
    use crate::backend::{Sample, Scales, Seeder, Sharded, Stop};
    use crate::base::error::KMeansError;
    use crate::base::params::KMeans;
    use crate::base::progress::Watch;
    use crate::input::features::Features;
    use crate::input::tile::RowBlock;
    use crate::simd::InstructionSet;
    use crate::statistics::{Statistics, gather};

    const ROWS: usize = 900;

    /// Calls `work` with three sessions on the CPU that work one after the other, or at the same time.
    fn with_sessions<R>(at_once: bool, work: impl FnOnce(Sessions<'_, f64>, &Arc<Statistics>) -> R) -> R {
        let x: Vec<f64> = (0..2 * ROWS).map(|i| ((i * i) % 997) as f64).collect();
        let features = Features::from_rows(&x, 2).unwrap();
        let mut parts: Vec<_> =
            [0, 1, 400, ROWS].windows(2).map(|cut| RowBlock::new(features.slice(cut[0]..cut[1]).unwrap(), None)).collect();
        let estimator = KMeans::new(7);
        let statistics = Arc::new(gather(&mut parts, &estimator.validate(2).unwrap()).unwrap());
        let session = |part| -> Box<dyn Session<f64> + '_> {
            Box::new(CpuSession::new(part, &statistics, 7, 1, InstructionSet::detect()).unwrap())
        };
        let mut sessions = Sessions::new(parts.into_iter().map(session).collect());
        assert!(!sessions.at_once);
        sessions.at_once = at_once;
        work(sessions, &statistics)
    }

    unit_test!(sessions_at_the_same_time_give_the_bits_of_one_after_the_other);
    fn sessions_at_the_same_time_give_the_bits_of_one_after_the_other() {
        let all = |sessions: Sessions<'_, f64>, statistics: &Arc<Statistics>| {
            let mut sharded = Sharded::new(sessions, statistics, 1).unwrap();
            let scale = statistics.distances;
            sharded.weigh().unwrap();
            let total = sharded.lower(&[1.0, 2.0, 3.0, 4.0], scale).unwrap();
            let sample = Sample { seed: 5, restart: 0, round: 1, total, expected: 50, first: 0, by_values: false };
            let seeding =
                (total, sharded.pick(&Draw::Each(sample)).unwrap(), sharded.masses(&[5.0, 6.0, 500.0, 600.0]).unwrap());
            // Most of these centroids are far from all rows: their clusters are empty and take the farthest rows.
            let mut centroids: Vec<f64> = (0..14).map(|i| f64::from(i) * 300.0).collect();
            let stop = Stop { changed: 0.0, shift: 0.0 };
            let done = sharded.advance(&mut centroids, stop, 20, &mut Watch::default()).unwrap().done;
            let iterations: Vec<_> = done.iter().map(|done| (done.changed, done.shift, done.moved)).collect();
            assert!(iterations.len() > 3);
            let (labels, inertia) = (sharded.labels().unwrap(), sharded.inertia(Scales::Same(scale)).unwrap());
            assert_eq!(Box::new(sharded).into_labels().unwrap(), labels);
            (seeding, iterations, centroids, labels, inertia)
        };
        assert_eq!(with_sessions(true, all), with_sessions(false, all));
    }

    /// The results of work with every session.
    fn results<R: Send>(at_once: bool, work: impl Fn(usize) -> Result<R> + Sync) -> Result<Vec<R>> {
        with_sessions(at_once, |mut sessions, _| {
            let mut all = Vec::new();
            let take = |shard: usize, result| {
                assert_eq!(shard, all.len());
                all.push(result);
                Ok(())
            };
            each(&mut sessions.sessions, at_once, |shard, _| work(shard), take).map(|()| all)
        })
    }

    unit_test!(at_once_means_at_the_same_time);
    fn at_once_means_at_the_same_time() {
        let barrier = Barrier::new(3);
        let shards = results(true, |shard| {
            barrier.wait();
            Ok(shard)
        });
        assert_eq!(shards.unwrap(), [0, 1, 2]);
    }

    unit_test!(the_first_error_in_row_order_is_returned);
    fn the_first_error_in_row_order_is_returned() {
        let error = |shard| KMeansError::TooManyRows { got: shard as u64 };
        for at_once in [false, true] {
            let result = results(at_once, |shard| if shard == 0 { Ok(()) } else { Err(error(shard)) });
            assert_eq!(result, Err(error(1)));
        }
    }
}
