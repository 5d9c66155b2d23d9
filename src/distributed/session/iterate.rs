//! What the loop calls, for all parts: one message an iteration.

use std::sync::Arc;
use std::time::Instant;

use super::{PARTS, Remote, added, sent};
use crate::backend::answers::{DISTANCES, Distances, LABELS};
use crate::backend::update;
use crate::backend::{Advanced, Assigned, Far, Iterate, Iteration, KeptRows, Move, Scales, Stop, WorkCounts};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::progress::Watch;
use crate::distributed::message::{Call, Reply, Sums};
use crate::distributed::passes::taken;
use crate::exact::cluster_sums::ClusterSums;

impl<T: Float> Iterate<T> for Remote<'_, '_, T> {
    fn reset(&mut self) -> Result<()> {
        self.merged.reset();
        self.link.later(Call::Reset);
        Ok(())
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        let assigned = |reply| match reply {
            Reply::Assigned { changed, inertia, work_counts, sums } => Some((Assigned { changed, inertia, work_counts }, sums)),
            _ => None,
        };
        let all = self.link.ask_all(Call::Assign { centroids: sent(centroids)?, want_inertia }, assigned)?;
        let (assigned, sums): (Vec<Assigned>, Vec<Sums>) = all.into_iter().unzip();
        self.merge(&sums)?;
        let changed = assigned.iter().map(|assigned| assigned.changed).sum();
        let work_counts = assigned.iter().map(|assigned| assigned.work_counts).reduce(WorkCounts::and).unwrap_or_default();
        let inertia = assigned.into_iter().filter_map(|assigned| assigned.inertia).collect();
        Ok(Assigned { changed, inertia: want_inertia.then(|| added(inertia)), work_counts })
    }

    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32, watch: &mut Watch<'_>) -> Result<Advanced> {
        let (mut done, statistics, threads) = (Vec::new(), self.statistics.clone(), self.threads);
        let mut scratch = update::Scratch::default();
        loop {
            let start = Instant::now();
            let Assigned { changed, work_counts, .. } = self.assign(centroids, false)?;
            let update::Updated { shift, moved } = update::update(self, centroids, &statistics, threads, &mut scratch)?;
            let seconds = start.elapsed().as_secs_f64();
            memory::push(&mut done, Iteration { changed, shift, moved, seconds, work_counts }, "the history")?;
            watch.show(changed, shift, None, Some(centroids))?;
            if stop.after(changed, shift) || done.len() as u32 == limit {
                return Ok(Advanced { done, assigned: None });
            }
        }
    }

    fn cluster_sums(&mut self) -> Result<&ClusterSums> {
        Ok(&self.merged)
    }

    fn clear_dirty(&mut self) {
        self.merged.clear_dirty();
    }

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        let call = Call::Farthest { count, donors: memory::copied(donors, PARTS)? };
        let found = self.link.ask_all(call, taken!(Far))?.into_iter().zip(&self.starts);
        let found = found.flat_map(|(far, start)| far.into_iter().map(move |far| Far { row: far.row + start, ..far }));
        let mut all = memory::collected(found, "the farthest rows")?;
        all.sort_unstable_by(Far::order);
        all.truncate(count);
        Ok(all)
    }

    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        let own = |(start, rows): (&u64, &u64)| {
            let rows = *start..start + rows;
            let own = moves.iter().filter(|one| rows.contains(&one.row));
            Some(Arc::new(Call::Relocate(own.map(|one| Move { row: one.row - start, ..*one }).collect())))
        };
        let calls = self.starts.iter().zip(&self.rows).map(own).collect();
        let sums: Vec<Sums> = self.link.ask(calls, taken!(Sums))?.into_iter().flatten().collect();
        self.merge(&sums)
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        let scales = match scales {
            Scales::Same(scale) => vec![scale],
            Scales::Each(scales) => memory::copied(scales, PARTS)?,
        };
        Ok(added(self.ask_totals(Call::Inertia(scales), self.merged.rows.len())?))
    }

    fn labels(&self) -> Result<Vec<u32>> {
        let mut all = memory::with_room(self.rows() as usize, LABELS)?;
        for labels in self.link.ask_all(Call::Labels, taken!(Labels))? {
            memory::extend(&mut all, &labels, LABELS)?;
        }
        Ok(all)
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        self.labels()
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        let reply = |reply| match reply {
            Reply::Nearest { labels, nearest, second } => Some((labels, nearest, second)),
            _ => None,
        };
        let (mut labels, mut nearest) = (Vec::new(), Vec::new());
        // With one cluster no part has second distances.
        let mut second = (self.merged.rows.len() > 1).then(Vec::new);
        for (own, own_nearest, own_second) in self.link.ask_all(Call::Nearest(sent(centroids)?), reply)? {
            memory::extend(&mut labels, &own, LABELS)?;
            memory::extend(&mut nearest, &own_nearest, DISTANCES)?;
            if let (Some(all), Some(own)) = (&mut second, own_second) {
                memory::extend(all, &own, DISTANCES)?;
            }
        }
        Ok((labels, Distances { nearest, second }))
    }
}
