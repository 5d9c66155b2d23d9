//! The state of seeding: each row's reference distance to the nearest centroid taken so far, and draw totals per task.

use std::sync::Mutex;

use super::TaskRows;
use super::distances::distances_to;
use super::product::MAX_TILE_ROWS;
use super::simd::{InstructionSet, Task, Vector};
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::parallel::for_each_task;
use crate::prepare::Prepared;
use crate::tile::{Part, Tile};

/// Draw weights of the rows: `w^` before the first centroid is taken, then integer distances.
pub struct Seeds {
    /// Reference distance to the nearest centroid taken so far. Infinite before the first.
    nearest: Vec<f64>,
    /// Total draw weight of each task.
    totals: Vec<u128>,
    /// Scale of the integer distances. `None` before the first centroid is taken.
    scale: Option<DistanceScale>,
}

impl Seeds {
    pub fn new(totals: Vec<u128>, rows: usize) -> Result<Self> {
        let nearest = memory::filled(rows, f64::INFINITY, "the distances of the rows to the nearest seed")?;
        Ok(Self { nearest, totals, scale: None })
    }

    pub fn total(&self) -> u128 {
        self.totals.iter().sum()
    }

    /// The task in which the running total first exceeds `target`, and the rest of the target within that task.
    pub fn task_of(&self, mut target: u128) -> (usize, u128) {
        for (index, total) in self.totals.iter().enumerate() {
            match target.checked_sub(*total) {
                Some(rest) => target = rest,
                None => return (index, target),
            }
        }
        unreachable!("the target is below the total")
    }

    /// The draw weight of a row of weight `w^`.
    #[inline(always)]
    pub fn weight(&self, row: usize, weight: f64, prepared: &Prepared) -> u128 {
        match self.scale {
            Some(scale) => scale.quantise(weight, self.nearest[row]),
            None => prepared.weights.map_or(1, |scale| scale.integer(weight) as u128),
        }
    }

    /// The amount by which each candidate would lower the total.
    pub fn gains<'t, T: Float>(
        &mut self,
        set: InstructionSet,
        part: &Part<'_, T>,
        prepared: &Prepared,
        tasks: &[TaskRows],
        tiles: impl Iterator<Item = &'t mut Tile<T>>,
        candidates: &[T],
    ) -> Vec<u128> {
        let m = candidates.len() / part.features.n_features();
        let mut workers: Vec<_> = tiles.map(|tile| (tile, vec![0u128; m])).collect();
        let (nearest, scale) = (&self.nearest, self.scale.unwrap_or(DistanceScale::NONE));
        for_each_task(&mut workers, tasks.iter(), |(tile, gains), task| {
            let nearest = &nearest[task.first..][..task.kept];
            set.run(Gains { part, prepared, tile, task, nearest, scale, candidates, gains });
        });
        workers.into_iter().fold(vec![0; m], |mut all, (_, gains)| {
            all.iter_mut().zip(gains).for_each(|(a, b)| *a += b);
            all
        })
    }

    /// Takes centroids (`(m, d)`, row-major). From now on, distances count in this scale.
    #[expect(clippy::too_many_arguments)]
    pub fn take<'t, T: Float>(
        &mut self,
        set: InstructionSet,
        part: &Part<'_, T>,
        prepared: &Prepared,
        tasks: &[TaskRows],
        tiles: impl Iterator<Item = &'t mut Tile<T>>,
        centroids: &[T],
        scale: DistanceScale,
    ) {
        self.scale = Some(scale);
        let mut rest = self.nearest.as_mut_slice();
        let totals = self.totals.iter_mut().map(Mutex::new);
        let work = tasks.iter().zip(totals).map(move |(task, total)| {
            let (nearest, tail) = std::mem::take(&mut rest).split_at_mut(task.kept);
            rest = tail;
            (task, total, nearest)
        });
        let mut tiles: Vec<_> = tiles.collect();
        for_each_task(&mut tiles, work, |tile, (task, total, nearest)| {
            let sum = set.run(Take { part, prepared, tile, task, nearest, scale, centroids });
            **total.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = sum;
        });
    }
}

/// Computes the gains of candidates over one task.
struct Gains<'p, 'a, T> {
    part: &'p Part<'a, T>,
    prepared: &'p Prepared,
    tile: &'p mut Tile<T>,
    task: &'p TaskRows,
    nearest: &'p [f64],
    scale: DistanceScale,
    candidates: &'p [T],
    gains: &'p mut [u128],
}

impl<T: Float> Task for Gains<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let d = self.part.features.n_features();
        let mut s = [0.0; MAX_TILE_ROWS];
        let mut at = 0;
        // A loop and no closure: one with a caller for each instruction set is not inlined, and is then compiled without them.
        for start in self.task.physical.clone().step_by(self.tile.stride) {
            self.tile.load(self.part, self.prepared.weights, rows_of_tile(self.tile, self.task, start));
            let tile = &*self.tile;
            let nearest = &self.nearest[at..at + tile.rows];
            for (candidate, gain) in self.candidates.chunks_exact(d).zip(self.gains.iter_mut()) {
                distances_to(tile, candidate, &mut s);
                for (r, (s, near)) in s.iter().zip(nearest).enumerate() {
                    // Integer distances grow with s, so only rows that get nearer change.
                    if s < near {
                        let weight = tile.weights[r];
                        *gain += self.scale.quantise(weight, *near) - self.scale.quantise(weight, *s);
                    }
                }
            }
            at += tile.rows;
        }
    }
}

/// Lowers the distances of the rows of one task. Returns its new total.
struct Take<'p, 'a, T> {
    part: &'p Part<'a, T>,
    prepared: &'p Prepared,
    tile: &'p mut Tile<T>,
    task: &'p TaskRows,
    nearest: &'p mut [f64],
    scale: DistanceScale,
    centroids: &'p [T],
}

impl<T: Float> Task for Take<'_, '_, T> {
    type Output = u128;

    #[inline(always)]
    fn run<V: Vector>(self) -> u128 {
        let d = self.part.features.n_features();
        let mut s = [0.0; MAX_TILE_ROWS];
        let (mut at, mut total) = (0, 0);
        for start in self.task.physical.clone().step_by(self.tile.stride) {
            self.tile.load(self.part, self.prepared.weights, rows_of_tile(self.tile, self.task, start));
            let tile = &*self.tile;
            let nearest = &mut self.nearest[at..at + tile.rows];
            for centroid in self.centroids.chunks_exact(d) {
                distances_to(tile, centroid, &mut s);
                for (s, near) in s.iter().zip(nearest.iter_mut()) {
                    *near = if *s < *near { *s } else { *near };
                }
            }
            for (near, weight) in nearest.iter().zip(&tile.weights) {
                total += self.scale.quantise(*weight, *near);
            }
            at += tile.rows;
        }
        total
    }
}

/// The rows of a task's tile that begins with row `start`.
#[inline(always)]
pub fn rows_of_tile<T>(tile: &Tile<T>, task: &TaskRows, start: usize) -> std::ops::Range<usize> {
    start..(start + tile.stride).min(task.physical.end)
}
