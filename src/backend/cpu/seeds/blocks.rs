//! Passes over blocks of copied rows: one task is some blocks.

use std::ops::Range;

use super::super::tasks::{pieces, split_off};
use super::RowNumbers;
use super::copy::{NeighbourCopy, TASK_BLOCKS};
use super::nearer::{self, CandidateBatch, GainSums, TotalChanges, UNIT, UnitDistances};
use crate::base::float::Float;
use crate::simd::{Task, Vector};

/// Tasks for each worker, so that workers finish together.
const TASKS_PER_WORKER: usize = 8;

/// The blocks of each task.
pub fn tasks<T: Float>(copy: &NeighbourCopy<T>, workers: usize) -> impl Iterator<Item = Range<usize>> + use<T> {
    let blocks = copy.blocks();
    let each = (blocks / (workers * TASKS_PER_WORKER)).clamp(1, TASK_BLOCKS);
    pieces(0..blocks, each)
}

/// Computes the gains of candidates over some blocks.
pub struct BlockGains<'p, T> {
    pub copy: &'p NeighbourCopy<T>,
    pub near: &'p [f64],
    pub weights: &'p [f64],
    pub farthest: &'p [f64],
    pub candidates: &'p CandidateBatch<'p, T>,
    pub blocks: Range<usize>,
    /// The gains from the units of `blocks`.
    pub out: GainSums<'p>,
}

impl<T: Float> Task for BlockGains<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { copy, near, weights, farthest, candidates, blocks, mut out } = self;
        let (mut reach, mut found) = ([0; TASK_BLOCKS], UnitDistances::new());
        copy.reach(blocks.clone(), &farthest[blocks.clone()], candidates, &mut reach);
        out.gaining.fill(0);
        for (block, asked) in blocks.zip(reach) {
            let places = copy.places(block..block + 1);
            let gaining = split_off(&mut out.gaining, places.len() / UNIT);
            let distances = split_off(&mut out.distances, places.len() * candidates.count());
            if asked != 0 {
                let weights = weights.get(places.clone()).unwrap_or(&[]);
                let mut out = GainSums { scale: out.scale, gains: out.gains, share: out.share, gaining, distances };
                let strip = copy.strip(block);
                nearer::add_gains::<V, T>(strip, &near[places], weights, candidates, asked, &mut found, &mut out);
            }
        }
    }
}

/// A centroid that was a candidate of the last gains, so that the units where it gains are known.
#[derive(Clone, Copy)]
pub struct KnownCandidate<'t> {
    pub number: usize,
    /// How many candidates there were.
    pub of: usize,
    /// For each unit, the candidates that are nearer to some row.
    pub gaining: &'t [u32],
    /// Their distances. Empty if they were not kept.
    pub distances: &'t [f64],
}

/// Lowers the distances of the rows of some blocks.
pub struct BlockLower<'p, T> {
    pub copy: &'p NeighbourCopy<T>,
    /// The distances at the places of `blocks`.
    pub near: &'p mut [f64],
    pub weights: &'p [f64],
    /// The largest distance of each of `blocks`.
    pub farthest: &'p mut [f64],
    pub candidates: &'p CandidateBatch<'p, T>,
    /// If there is one candidate and it was one of the last gains.
    pub known: Option<KnownCandidate<'p>>,
    pub blocks: Range<usize>,
    pub changes: TotalChanges<'p>,
}

impl<T: Float> Task for BlockLower<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { copy, mut near, weights, farthest, candidates, known, blocks, mut changes } = self;
        let (mut reach, mut found) = ([0; TASK_BLOCKS], UnitDistances::new());
        if known.is_none() {
            copy.reach(blocks.clone(), farthest, candidates, &mut reach);
        }
        for ((block, asked), farthest) in blocks.zip(reach).zip(farthest) {
            let places = copy.places(block..block + 1);
            let near = split_off(&mut near, places.len());
            let weights = weights.get(places.clone()).unwrap_or(&[]);
            let rows = RowNumbers::List(&copy.rows[places.clone()]);
            let mut lowered = asked != 0;
            if asked != 0 {
                let strip = copy.strip(block);
                nearer::lower::<V, T>(strip, near, weights, candidates, asked, rows, &mut found, &mut changes);
            }
            if let Some(KnownCandidate { number, of, gaining, distances }) = known {
                for (unit, near) in near.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
                    let place = places.start / UNIT + unit;
                    if gaining[place] >> number & 1 == 0 {
                        continue;
                    }
                    lowered = true;
                    let new = match distances.get((place * of + number) * UNIT..).and_then(<[f64]>::first_chunk) {
                        Some(distances) => Some(*distances),
                        None => copy.strip(block).distances(unit, candidates.values, near),
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
