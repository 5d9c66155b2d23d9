//! Shards of the rows as one session. Shards are sessions over consecutive ranges of rows, in this process or elsewhere. They are
//! asked with values and answer with values (`call.rs`).
//!
//! ```text
//! advance:  assign of every shard, on devices at the same time
//!           sums = the sums of all shards, added as integers
//!           update of these sums, once; stop?                                              src/backend/update.rs
//! k-means++: two rounds a step: the candidates are drawn, then their gains are asked
//! ```
//! Integer sums have the same bits in any order, so the result has the bits of one session over all rows. A shard needs from the
//! others only their sums. Here the host adds them. GPUs that reach each other's memory add up their sums by themselves
//! ([`InStep`]).

mod seeding;
pub mod sessions;

use std::sync::Arc;
use std::time::Instant;

pub use self::sessions::Sessions;
use super::call::{Call, Calls, Reply, append, other_reply};
use super::cpu::MethodExplanation;
use super::{Advanced, Assigned, DRAWN, Far, Iteration, Move, Picked, PlusPlus, Scales, Session, Stop, Updated, session};
use crate::backend::answers::{DISTANCES, Distances, LABELS};
use crate::backend::update;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::progress::Watch;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::statistics::Statistics;

/// What errors call the list of shards.
const SHARDS: &str = "the list of sessions";

/// Takes the reply of a shard: its number, what it says, and the values of rows.
pub type Take<'t, T> = &'t mut dyn FnMut(usize, Reply, Vec<T>) -> Result<()>;

/// Sessions over consecutive ranges of the rows, at least one.
pub trait Shards<T: Float>: Send {
    /// For each shard: the number of its kept rows, and of those with a positive weight.
    fn rows(&self) -> Result<Vec<[u64; 2]>>;
    /// Asks shards. `take` gets the reply of each that was asked, in order. A reply has the kind and the size that belong to its
    /// call. `values`: the centroids or candidates of the call.
    fn ask(&mut self, calls: Calls<Call>, values: &[T], take: Take<'_, T>) -> Result<()>;
    /// A call to all shards that says nothing new. They may do it when they are asked something.
    fn later(&mut self, call: Call, values: &[T]) -> Result<()> {
        self.ask(Calls::All(call), values, &mut |_, _, _| Ok(()))
    }
    /// Writes the labels of all rows.
    fn copy_labels(&mut self, out: &mut [u32]) -> Result<()> {
        let mut rest = out;
        self.ask(Calls::All(Call::Labels), &[], &mut |_, reply, _| {
            let Reply::Labels(labels) = reply else { return Err(other_reply()) };
            let (own, others) = std::mem::take(&mut rest).split_at_mut_checked(labels.len()).ok_or_else(other_reply)?;
            own.copy_from_slice(&labels);
            rest = others;
            Ok(())
        })
    }
    /// The labels of so many rows, from shards that are finished.
    fn into_labels(mut self, rows: usize) -> Result<Vec<u32>>
    where
        Self: Sized,
    {
        let mut labels = memory::zeroed(rows, LABELS)?;
        self.copy_labels(&mut labels)?;
        Ok(labels)
    }
    /// The row that a target draws by the weights, if rows count in another order than that of the shards.
    fn draw_in_order(&mut self, _target: u128) -> Result<Option<Vec<T>>> {
        Ok(None)
    }
    /// The session of the first rows, if it is in this process.
    fn first(&self) -> Option<&dyn Session<T>> {
        None
    }
    /// The shards, if they add up their sums by themselves.
    fn in_step(&mut self) -> Option<&mut dyn InStep<T>> {
        None
    }
}

/// Shards that add up their sums by themselves. Each knows the sizes of all clusters. The calls are those of a [`Session`].
pub trait InStep<T: Float> {
    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned>;
    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32, watch: &mut Watch<'_>) -> Result<Advanced>;
    fn cluster_sums(&mut self) -> Result<&ClusterSums>;
    fn sizes(&mut self) -> Result<Vec<u64>>;
    fn means(&mut self, centroids: &mut [T]) -> Result<Option<Updated>>;
    fn relocate(&mut self, moves: &[Move]) -> Result<()>;
    /// Does steps of k-means++. Returns whether it could. The shards have not taken the centroids of these steps.
    fn plus_plus_steps(&mut self, asked: &PlusPlus, potential: &mut DistanceSum, centroids: &mut Vec<T>) -> Result<bool>;
}

/// Shards of the rows as one session. Row numbers run through all of them.
pub struct Sharded<T, S> {
    shards: S,
    /// The first row of each shard, and the number of rows.
    starts: Vec<u64>,
    rows: u64,
    /// The rows of positive weight of each shard.
    positive: Vec<u128>,
    statistics: Arc<Statistics>,
    /// The most threads of an update, or 0 for those of the pool.
    threads: usize,
    /// The sums of all shards, as of the last assign or relocation. None before the first one.
    merged: Option<ClusterSums>,
    /// What seeding knows of the shards.
    draws: seeding::Draws<T>,
}

impl<T: Float, S: Shards<T>> Sharded<T, S> {
    /// These shards as one session. `statistics` was computed from the rows of all of them. `threads`: the most threads of an
    /// update, or 0 for those of the pool.
    pub fn new(shards: S, statistics: &Arc<Statistics>, threads: usize) -> Result<Self> {
        let (all, mut rows) = (shards.rows()?, 0);
        let starts = all.iter().map(|[own, _]| {
            rows += own;
            rows - own
        });
        let starts = memory::collected(starts, SHARDS)?;
        let positive = memory::collected(all.iter().map(|[_, positive]| u128::from(*positive)), SHARDS)?;
        let (draws, statistics) = (seeding::Draws::new(all.len())?, statistics.clone());
        Ok(Self { shards, starts, rows, positive, statistics, threads, merged: None, draws })
    }

    /// Asks shards for rows. Their numbers, values and weights are in the order of the shards.
    fn rows_of(&mut self, calls: Calls<Call>) -> Result<Picked<T>> {
        let (Self { shards, starts, .. }, mut all) =
            (self, Picked { rows: Vec::new(), values: Vec::new(), weights: Vec::new() });
        shards.ask(calls, &[], &mut |shard, reply, values| {
            let Reply::Rows(mut rows, weights) = reply else { return Err(other_reply()) };
            rows.iter_mut().for_each(|row| *row += starts[shard]);
            append(&mut all.rows, rows, DRAWN)?;
            append(&mut all.weights, weights, DRAWN)?;
            append(&mut all.values, values, DRAWN)
        })?;
        Ok(all)
    }

    /// Asks all shards for a list of totals. Returns the lists, one after the other.
    fn totals(&mut self, call: Call, values: &[T]) -> Result<Vec<u128>> {
        let mut all = Vec::new();
        self.shards.ask(Calls::All(call), values, &mut |_, reply, _| {
            let Reply::Totals(totals) = reply else { return Err(other_reply()) };
            append(&mut all, totals, "the totals of the rows")
        })?;
        Ok(all)
    }

    /// Asks all shards for a list of totals, and adds up the lists.
    fn added(&mut self, call: Call, values: &[T]) -> Result<Vec<u128>> {
        let totals = self.totals(call, values)?;
        self.sum(&totals)
    }

    /// Adds up the lists of all shards.
    fn sum(&self, lists: &[u128]) -> Result<Vec<u128>> {
        let len = lists.len() / self.starts.len();
        memory::collected((0..len).map(|index| lists[index..].iter().step_by(len).sum()), SHARDS)
    }

    /// Takes the sums of all rows in place of those before.
    fn take_sums(&mut self, mut all: ClusterSums) {
        // Shards do not tell which sums changed: one that was lost does not know.
        for j in 0..all.rows.len() {
            all.dirty[j] = self.merged.as_ref().is_none_or(|before| {
                let same = before.rows[j] == all.rows[j] && before.mass[j] == all.mass[j];
                before.dirty[j] || !same || before.sums_of(j) != all.sums_of(j)
            });
        }
        self.merged = Some(all);
    }
}

impl<T: Float, S: Shards<T>> Session<T> for Sharded<T, S> {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn reset(&mut self) -> Result<()> {
        self.merged = None;
        self.shards.later(Call::Reset, &[])
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        if let Some(in_step) = self.shards.in_step() {
            return in_step.assign(centroids, want_inertia);
        }
        let (mut all, mut sums) = (None, None);
        self.shards.ask(Calls::All(Call::Assign(want_inertia)), centroids, &mut |_, reply, _| {
            let Reply::Assigned(assigned, own) = reply else { return Err(other_reply()) };
            add(&mut sums, own);
            all = Some(match all.take() {
                Some(before) => Assigned::and(before, assigned),
                None => assigned,
            });
            Ok(())
        })?;
        self.take_sums(sums.ok_or_else(other_reply)?);
        all.ok_or_else(other_reply)
    }

    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32, watch: &mut Watch<'_>) -> Result<Advanced> {
        if let Some(in_step) = self.shards.in_step() {
            return in_step.advance(centroids, stop, limit, watch);
        }
        let (mut done, statistics, threads) = (Vec::new(), self.statistics.clone(), self.threads);
        let mut scratch = update::Scratch::default();
        loop {
            let start = Instant::now();
            let Assigned { changed, work_counts, .. } = self.assign(centroids, false)?;
            let Updated { shift, moved } = update::update(self, centroids, &statistics, threads, &mut scratch)?;
            let seconds = start.elapsed().as_secs_f64();
            memory::push(&mut done, Iteration { changed, shift, moved, seconds, work_counts }, "the history")?;
            watch.show(changed, shift, None, Some(centroids))?;
            if stop.after(changed, shift) || done.len() as u32 == limit || watch.stopped() {
                return Ok(Advanced { done, assigned: None, emptied: scratch.emptied });
            }
        }
    }

    fn cluster_sums(&mut self) -> Result<&ClusterSums> {
        if let Some(in_step) = self.shards.in_step() {
            return in_step.cluster_sums();
        }
        let Some(merged) = &self.merged else { unreachable!("rows were assigned") };
        Ok(merged)
    }

    fn sizes(&mut self) -> Result<Vec<u64>> {
        if let Some(in_step) = self.shards.in_step() {
            return in_step.sizes();
        }
        session::sizes_of(self.cluster_sums()?)
    }

    fn means(&mut self, centroids: &mut [T]) -> Result<Option<Updated>> {
        self.shards.in_step().map_or(Ok(None), |in_step| in_step.means(centroids))
    }

    fn clear_dirty(&mut self) {
        self.merged.iter_mut().for_each(ClusterSums::clear_dirty);
    }

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        let donors = memory::copied(donors, "the clusters that may give a row")?;
        let (Self { shards, starts, .. }, mut all) = (self, Vec::new());
        shards.ask(Calls::All(Call::Farthest(count, donors)), &[], &mut |shard, reply, _| {
            let Reply::Far(mut far) = reply else { return Err(other_reply()) };
            far.iter_mut().for_each(|far| far.row += starts[shard]);
            append(&mut all, far, "the farthest rows")
        })?;
        all.sort_unstable_by(Far::order);
        all.truncate(count);
        Ok(all)
    }

    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        if let Some(in_step) = self.shards.in_step() {
            return in_step.relocate(moves);
        }
        let ends = self.starts.iter().skip(1).chain([&self.rows]);
        let calls = self.starts.iter().zip(ends).map(|(start, end)| {
            let own = moves.iter().filter(|one| (*start..*end).contains(&one.row));
            let own = own.map(|one| Move { row: one.row - start, ..*one });
            Ok(Some(Call::Relocate(memory::collected(own, "the rows that move to empty clusters")?)))
        });
        let calls = Calls::Each(memory::try_collected(calls, SHARDS)?);
        let mut sums = None;
        self.shards.ask(calls, &[], &mut |_, reply, _| {
            let Reply::Sums(own) = reply else { return Err(other_reply()) };
            add(&mut sums, own);
            Ok(())
        })?;
        let sums: ClusterSums = sums.ok_or_else(other_reply)?;
        // A cluster that gives a row keeps another one.
        let before = self.merged.iter().flat_map(|before| &before.rows).zip(&sums.rows);
        let mut kept = before.filter(|(before, _)| **before > 0).map(|(_, now)| now);
        if kept.any(|rows| *rows == 0) || moves.iter().any(|one| sums.rows[one.to as usize] == 0) {
            return Err(other_reply());
        }
        self.take_sums(sums);
        Ok(())
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        let scales: &[DistanceScale] = match &scales {
            Scales::Same(scale) => std::slice::from_ref(scale),
            Scales::Each(scales) => scales,
        };
        self.added(Call::Inertia(memory::copied(scales, "the inertia of the clusters")?), &[])
    }

    fn method(&self) -> Option<MethodExplanation> {
        self.shards.first().and_then(|session| session.method())
    }

    fn copy_labels(&mut self, out: &mut [u32]) -> Result<()> {
        self.shards.copy_labels(out)
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        let Self { shards, rows, .. } = *self;
        shards.into_labels(rows as usize)
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        let n = self.rows as usize;
        // With one cluster no shard has second distances.
        let several = centroids.len() > self.statistics.lows.len();
        let second = if several { Some(memory::with_room(n, DISTANCES)?) } else { None };
        let (mut labels, mut distances) =
            (memory::with_room(n, LABELS)?, Distances { nearest: memory::with_room(n, DISTANCES)?, second });
        self.shards.ask(Calls::All(Call::Nearest), centroids, &mut |_, reply, _| {
            let Reply::Nearest(own, Distances { nearest, second }) = reply else { return Err(other_reply()) };
            append(&mut labels, own, LABELS)?;
            append(&mut distances.nearest, nearest, DISTANCES)?;
            match (&mut distances.second, second) {
                (Some(all), Some(second)) => append(all, second, DISTANCES),
                _ => Ok(()),
            }
        })?;
        Ok((labels, distances))
    }
}

/// Adds the sums of a shard to those of the shards before it.
fn add(all: &mut Option<ClusterSums>, own: ClusterSums) {
    match all {
        Some(all) => all.merge(&own),
        None => *all = Some(own),
    }
}
