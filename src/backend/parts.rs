//! Combines sessions over consecutive ranges of rows into one. This merges chunks, devices and machines.

use super::{Assigned, Far, Scales, Session};
use crate::answers::{DISTANCES, Distances, LABELS};
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::Partial;

/// Several sessions as one. Row numbers run through all of them.
pub struct Parts<'a, T> {
    parts: Vec<Box<dyn Session<T> + 'a>>,
    /// First row of each part.
    starts: Vec<u64>,
    merged: Partial,
    /// Draw totals of each part.
    totals: Vec<u128>,
}

impl<'a, T: Float> Parts<'a, T> {
    /// Combines these sessions, at least one, in row order.
    pub fn new(mut parts: Vec<Box<dyn Session<T> + 'a>>) -> Result<Self> {
        let starts = parts.iter().scan(0, |next, part| {
            let start = *next;
            *next += part.rows();
            Some(start)
        });
        let starts = memory::collected(starts, "the parts")?;
        let first = parts[0].partial()?;
        let merged = Partial::new(first.rows.len(), first.d)?;
        Ok(Self { totals: memory::zeroed(parts.len(), "the parts")?, parts, starts, merged })
    }

    fn part_of(&self, row: u64) -> usize {
        self.starts.partition_point(|&start| start <= row) - 1
    }

    fn merge(&mut self) -> Result<()> {
        self.merged.clear_sums();
        for part in &mut self.parts {
            self.merged.merge(part.partial()?);
        }
        Ok(())
    }
}

fn add(into: &mut [u128], from: &[u128]) {
    into.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

impl<T: Float> Session<T> for Parts<'_, T> {
    fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows()).sum()
    }

    fn positive_rows(&self) -> u64 {
        self.parts.iter().map(|part| part.positive_rows()).sum()
    }

    fn row(&self, row: u64) -> Result<Vec<T>> {
        let part = self.part_of(row);
        self.parts[part].row(row - self.starts[part])
    }

    fn start_draws(&mut self) -> Result<u128> {
        self.totals = self.parts.iter_mut().map(|part| part.start_draws()).collect::<Result<_>>()?;
        Ok(self.totals.iter().sum())
    }

    fn positive_row(&self, mut rank: u64) -> Result<u64> {
        for (part, start) in self.parts.iter().zip(&self.starts) {
            if rank < part.positive_rows() {
                return Ok(start + part.positive_row(rank)?);
            }
            rank -= part.positive_rows();
        }
        unreachable!("the rank is below the number of rows of positive weight")
    }

    fn draw(&self, mut target: u128) -> Result<u64> {
        for ((part, start), total) in self.parts.iter().zip(&self.starts).zip(&self.totals) {
            if target < *total {
                return Ok(start + part.draw(target)?);
            }
            target -= total;
        }
        unreachable!("the target is below the total")
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let mut gains = self.parts[0].gains(candidates)?;
        for part in &mut self.parts[1..] {
            add(&mut gains, &part.gains(candidates)?);
        }
        Ok(gains)
    }

    fn take_seed(&mut self, centroid: &[T], scale: DistanceScale) -> Result<u128> {
        self.totals = self.parts.iter_mut().map(|part| part.take_seed(centroid, scale)).collect::<Result<_>>()?;
        Ok(self.totals.iter().sum())
    }

    fn end_draws(&mut self) {
        self.parts.iter_mut().for_each(|part| part.end_draws());
    }

    fn reset(&mut self) -> Result<()> {
        self.merged.reset();
        self.parts.iter_mut().try_for_each(|part| part.reset())
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        let mut all = self.parts[0].assign(centroids, want_inertia)?;
        for part in &mut self.parts[1..] {
            let assigned = part.assign(centroids, want_inertia)?;
            all.changed += assigned.changed;
            if let (Some(into), Some(from)) = (&mut all.inertia, &assigned.inertia) {
                add(into, from);
            }
        }
        self.merge()?;
        Ok(all)
    }

    fn partial(&mut self) -> Result<&Partial> {
        Ok(&self.merged)
    }

    fn clear_dirty(&mut self) {
        self.parts.iter_mut().for_each(|part| part.clear_dirty());
        self.merged.clear_dirty();
    }

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        let mut all: Vec<Far> = Vec::new();
        for (part, start) in self.parts.iter_mut().zip(&self.starts) {
            let far = part.farthest(count, donors)?;
            memory::reserve(&mut all, far.len(), "the farthest rows")?;
            all.extend(far.into_iter().map(|far| Far { row: far.row + start, ..far }));
        }
        all.sort_unstable_by(Far::order);
        all.truncate(count);
        Ok(all)
    }

    fn relocate(&mut self, row: u64, to: u32) -> Result<()> {
        let part = self.part_of(row);
        self.parts[part].relocate(row - self.starts[part], to)?;
        self.merge()
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        let mut inertia = self.parts[0].inertia(scales)?;
        for part in &mut self.parts[1..] {
            add(&mut inertia, &part.inertia(scales)?);
        }
        Ok(inertia)
    }

    fn labels(&self) -> Result<Vec<u32>> {
        let mut all = memory::with_room(Session::rows(self) as usize, LABELS)?;
        for part in &self.parts {
            all.extend(part.labels()?);
        }
        Ok(all)
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        let mut all = memory::with_room(Session::rows(&*self) as usize, LABELS)?;
        for part in self.parts {
            all.extend(part.into_labels()?);
        }
        Ok(all)
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        let n = Session::rows(self) as usize;
        let (mut labels, mut nearest) = (memory::with_room(n, LABELS)?, memory::with_room(n, DISTANCES)?);
        // With one cluster no part has second distances.
        let mut second = if self.merged.rows.len() > 1 { Some(memory::with_room(n, DISTANCES)?) } else { None };
        for part in &mut self.parts {
            let (more, distances) = part.nearest(centroids)?;
            labels.extend(more);
            nearest.extend(distances.nearest);
            second.iter_mut().for_each(|second| second.extend(distances.second.iter().flatten()));
        }
        Ok((labels, Distances { nearest, second }))
    }
}
