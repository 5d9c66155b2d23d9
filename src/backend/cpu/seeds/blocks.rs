//! Gains and takes over blocks of copied rows: one task is some blocks.

use std::ops::Range;

use super::super::tasks::{pieces, split_off};
use super::Rows;
use super::grouped::{Grouped, TASK_BLOCKS};
use super::nearer::{self, Candidates, Changes, Found, Gains, UNIT};
use crate::base::float::Float;
use crate::simd::{Task, Vector};

/// Tasks for each worker, so that workers finish together.
const TASKS_PER_WORKER: usize = 8;

/// The blocks of each task.
pub fn tasks<T: Float>(grouped: &Grouped<T>, workers: usize) -> impl Iterator<Item = Range<usize>> + use<T> {
    let blocks = grouped.blocks();
    let each = (blocks / (workers * TASKS_PER_WORKER)).clamp(1, TASK_BLOCKS);
    pieces(0..blocks, each)
}

/// Computes the gains of candidates over some blocks.
pub struct BlockGains<'p, T> {
    pub grouped: &'p Grouped<T>,
    pub near: &'p [f64],
    pub weights: &'p [f64],
    pub farthest: &'p [f64],
    pub candidates: &'p Candidates<'p, T>,
    pub blocks: Range<usize>,
    /// The gains from the units of `blocks`.
    pub out: Gains<'p>,
}

impl<T: Float> Task for BlockGains<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { grouped, near, weights, farthest, candidates, blocks, mut out } = self;
        let (mut reach, mut found) = ([0; TASK_BLOCKS], Found::new());
        grouped.reach(blocks.clone(), &farthest[blocks.clone()], candidates, &mut reach);
        out.gaining.fill(0);
        for (block, asked) in blocks.zip(reach) {
            let places = grouped.places(block..block + 1);
            let gaining = split_off(&mut out.gaining, places.len() / UNIT);
            let kept = split_off(&mut out.kept, places.len() * candidates.count());
            if asked != 0 {
                let weights = weights.get(places.clone()).unwrap_or(&[]);
                let mut out = Gains { scale: out.scale, gains: out.gains, share: out.share, gaining, kept };
                let strip = grouped.strip(block);
                nearer::add_gains::<V, T>(strip, &near[places], weights, candidates, asked, &mut found, &mut out);
            }
        }
    }
}

/// A centroid that was a candidate of the last gains.
#[derive(Clone, Copy)]
pub struct Tried<'t> {
    pub number: usize,
    /// How many candidates there were.
    pub of: usize,
    /// For each unit, the candidates that are nearer to some row.
    pub gaining: &'t [u32],
    /// Their distances, if they are kept.
    pub kept: &'t [f64],
}

/// Lowers the distances of the rows of some blocks.
pub struct BlockTake<'p, T> {
    pub grouped: &'p Grouped<T>,
    /// The distances at the places of `blocks`.
    pub near: &'p mut [f64],
    pub weights: &'p [f64],
    /// The largest distance of each of `blocks`.
    pub farthest: &'p mut [f64],
    pub candidates: &'p Candidates<'p, T>,
    /// If there is one candidate and it was one of the last gains.
    pub tried: Option<Tried<'p>>,
    pub blocks: Range<usize>,
    pub changes: Changes<'p>,
}

impl<T: Float> Task for BlockTake<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { grouped, mut near, weights, farthest, candidates, tried, blocks, mut changes } = self;
        let (mut reach, mut found) = ([0; TASK_BLOCKS], Found::new());
        if tried.is_none() {
            grouped.reach(blocks.clone(), farthest, candidates, &mut reach);
        }
        for ((block, asked), farthest) in blocks.zip(reach).zip(farthest) {
            let places = grouped.places(block..block + 1);
            let near = split_off(&mut near, places.len());
            let weights = weights.get(places.clone()).unwrap_or(&[]);
            let rows = Rows::List(&grouped.rows[places.clone()]);
            let mut lowered = asked != 0;
            if asked != 0 {
                let strip = grouped.strip(block);
                nearer::lower::<V, T>(strip, near, weights, candidates, asked, rows, &mut found, &mut changes);
            }
            if let Some(Tried { number, of, gaining, kept }) = tried {
                for (unit, near) in near.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
                    let place = places.start / UNIT + unit;
                    if gaining[place] >> number & 1 == 0 {
                        continue;
                    }
                    lowered = true;
                    let new = match kept.get((place * of + number) * UNIT..).and_then(<[f64]>::first_chunk) {
                        Some(kept) => Some(*kept),
                        None => grouped.strip(block).distances(unit, candidates.values, near),
                    };
                    if let Some(new) = new {
                        changes.lower(near, &new, weights, rows, unit * UNIT);
                    }
                }
            }
            if lowered {
                *farthest = near.iter().fold(0.0, |most, near| if *near > most { *near } else { most });
            }
        }
    }
}
