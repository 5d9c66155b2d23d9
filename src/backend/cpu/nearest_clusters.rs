//! The m nearest centroids of each row, by (reference distance, number).
//!
//! ```text
//! for 64 rows of a tile, panel by panel of centroids:
//!   scores of the product filter (product.rs)
//!   for each row: the m least sums of a score and its slack so far; the last of them sets the limit
//!                 centroids with scores up to the limit are candidates
//! for each row: reference distances of its candidates, or of all centroids; the m smallest
//! ```
//! A centroid above the limit is farther by reference distances than each of the m centroids below it (`bounds.rs`). So the m
//! nearest are among the candidates, ties included. A row whose limit is not finite is compared with all centroids. Where there is
//! a tree of the centroids (`tree.rs`), it finds the m nearest.

use super::CentroidTable;
use super::filter::{Filter, GROUP, NO_CENTROID};
use super::product::ROWS;
use super::sinks::{Labeller, Sink};
use super::tasks::split_off;
use super::tree::Best;
use crate::backend::answers::ANSWERS;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::bounds::Expanded;
use crate::simd::{Task, Vector};

/// What the filter says of 64 rows.
#[derive(Debug)]
pub struct ScoreLists {
    m: usize,
    /// `(m, ROWS)`: the least sums of a score and its slack, in ascending order.
    least: Vec<f32>,
    /// For each row, centroids and their scores.
    lists: Vec<Vec<(u32, f32)>>,
}

impl ScoreLists {
    pub fn new(m: usize, k: usize) -> Result<Self> {
        let lists = memory::try_collected((0..ROWS).map(|_| memory::with_room(k, ANSWERS)), ANSWERS)?;
        Ok(Self { m, least: memory::zeroed(ROWS * m, ANSWERS)?, lists })
    }

    /// Removes the lists and sums of the rows before.
    pub fn clear(&mut self) {
        self.least.fill(f32::INFINITY);
        self.lists.iter_mut().for_each(Vec::clear);
    }

    /// Takes the scores of a panel of `count` centroids, of which `first` is the first: `(count, ROWS)`. `own`: half squares and
    /// slacks, as the filter has them.
    #[inline(always)]
    pub fn see<V: Vector>(&mut self, scores: &[f32], [first, count, rows]: [usize; 3], own: &[f32], widths: &[f32; ROWS]) {
        let Self { m, least, lists } = self;
        assert!(scores.len() >= count * ROWS && least.len() == *m * ROWS && rows <= ROWS);
        let slack = |j: usize| own[(first + j) / GROUP * 2 * GROUP + GROUP + (first + j) % GROUP];
        for at in (0..rows).step_by(V::LANES) {
            // SAFETY: LANES divides ROWS. The assertion bounds scores and sums, and `limits` holds ROWS values.
            unsafe {
                let sums = least.as_mut_ptr().add(at);
                for j in 0..count {
                    let mut sum = V::load(scores.as_ptr().add(j * ROWS + at)).add(V::splat(slack(j)));
                    if V::bits(sum.not_above(V::load(sums.add((*m - 1) * ROWS)))) == 0 {
                        continue;
                    }
                    // Each place keeps the smaller sum. The larger one goes to the next place. A sum that is NaN lowers none.
                    for i in 0..*m {
                        let kept = V::load(sums.add(i * ROWS));
                        sum.min_or(kept).store(sums.add(i * ROWS));
                        sum = kept.max_or_nan(sum);
                    }
                }
                let mut limits = [0.0f32; ROWS];
                for r in at..(at + V::LANES).min(rows) {
                    limits[r] = Expanded::threshold(least[(*m - 1) * ROWS + r], widths[r]);
                }
                let (limit, there) = (V::load(limits.as_ptr().add(at)), u32::MAX >> (32 - V::LANES.min(rows - at)));
                for j in 0..count {
                    let mut near = V::bits(V::load(scores.as_ptr().add(j * ROWS + at)).not_above(limit)) & there;
                    while near != 0 {
                        let r = at + near.trailing_zeros() as usize;
                        near &= near - 1;
                        lists[r].push(((first + j) as u32, scores[j * ROWS + r]));
                    }
                }
            }
        }
    }

    /// Lists the candidates of row `r` in ascending order. False: all centroids are.
    #[inline(always)]
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN stays in reach
    fn of_row(&mut self, r: usize, width: f32, out: &mut Vec<u32>) -> bool {
        let limit = Expanded::threshold(self.least[(self.m - 1) * ROWS + r], width);
        out.clear();
        out.extend(self.lists[r].iter().filter(|(_, score)| !(*score > limit)).map(|(j, _)| *j));
        limit.is_finite() && out.len() >= self.m
    }
}

/// Takes the m nearest centroids of each row.
pub struct SeveralSink<'o> {
    pub m: usize,
    pub squared: bool,
    /// `(rows, m)`.
    pub clusters: &'o mut [u32],
    pub distances: &'o mut [f64],
}

impl<'o> SeveralSink<'o> {
    /// Takes off the first `rows` rows, or all if there are fewer.
    pub fn split_off(&mut self, rows: usize) -> Self {
        let Self { m, squared, .. } = *self;
        let (clusters, distances) = (split_off(&mut self.clusters, rows * m), split_off(&mut self.distances, rows * m));
        Self { m, squared, clusters, distances }
    }
}

impl<T: Float> Sink<T> for SeveralSink<'_> {
    #[inline(always)]
    fn tile<V: Vector>(&mut self, table: &CentroidTable<T>, labeller: &mut Labeller<T>) {
        V::call(NearestOfTile { sink: self, table, labeller })
    }
}

/// One tile.
struct NearestOfTile<'t, 'o, T> {
    sink: &'t mut SeveralSink<'o>,
    table: &'t CentroidTable<T>,
    labeller: &'t mut Labeller<T>,
}

impl<T: Float> Task for NearestOfTile<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { sink, table, labeller: Labeller { tile, assigner, places, several, .. } } = self;
        let m = sink.m;
        let Some(several) = several else { unreachable!("there is room for several centroids") };
        for first in (0..tile.rows).step_by(ROWS) {
            let rows = ROWS.min(tile.rows - first);
            let widths = assigner.candidates::<V, T>(tile, first..first + rows, table, m, &mut several.candidates);
            for r in 0..rows {
                for (f, x) in several.row.iter_mut().enumerate() {
                    *x = tile.x[f * tile.stride + first + r].to_f64();
                }
                let some = widths.is_some_and(|widths| several.candidates.of_row(r, widths[r], &mut several.listed));
                several.near.clear();
                if let Filter::Tree(tree) = &table.filter {
                    let mut best = Closest { m, near: &mut several.near };
                    tree.search::<V, _>(&several.row, &mut best, &mut assigner.waiting);
                } else if some {
                    let (mut names, x) = (&several.listed[..], &several.row[..]);
                    while !names.is_empty() {
                        // Few names leave half of the chains out.
                        let count = if names.len() > 4 { 8 } else { 4 }.min(names.len());
                        let mut s = [0.0; 8];
                        match count {
                            5.. => s = distances::<T, 8>(x, names, table),
                            _ => s[..4].copy_from_slice(&distances::<T, 4>(x, names, table)),
                        }
                        names[..count].iter().zip(s).for_each(|(j, s)| keep(&mut several.near, m, s, *j));
                        names = &names[count..];
                    }
                } else {
                    for (group, centroids) in table.groups().enumerate() {
                        let mut s = [0.0f64; 4];
                        for (x, centroids) in several.row.iter().zip(centroids) {
                            for i in 0..4 {
                                let t = x - centroids[i];
                                s[i] = t.mul_add(t, s[i]);
                            }
                        }
                        let names = (group * 4) as u32..table.k as u32;
                        names.zip(s).for_each(|(j, s)| keep(&mut several.near, m, s, j));
                    }
                }
                let place = places[first + r] * m;
                let out = sink.clusters[place..].iter_mut().zip(&mut sink.distances[place..]);
                for ((cluster, distance), (s, j)) in out.zip(&several.near) {
                    (*cluster, *distance) = (*j, if sink.squared { *s } else { s.sqrt() });
                }
            }
        }
    }
}

/// Keeps a centroid if it is among the m nearest so far. Numbers come in ascending order.
#[inline(always)]
fn keep(near: &mut Vec<(f64, u32)>, m: usize, s: f64, j: u32) {
    if near.len() == m && near[m - 1].0 <= s {
        return;
    }
    near.truncate(m - 1);
    near.insert(near.partition_point(|kept| kept.0 <= s), (s, j));
}

/// The m nearest centroids that a search has seen, by (distance, number). It sees each centroid once. So no pair is equal to
/// a kept one, and `<` and `<=` between pairs give the same answers.
struct Closest<'n> {
    m: usize,
    near: &'n mut Vec<(f64, u32)>,
}

impl Best for Closest<'_> {
    #[inline(always)]
    fn limit(&self) -> f64 {
        self.near.get(self.m - 1).map_or(f64::INFINITY, |(distance, _)| *distance)
    }

    #[inline(always)]
    fn wants(&self, distance: f64, number: impl FnOnce() -> u32) -> bool {
        match self.near.get(self.m - 1) {
            None => number() != NO_CENTROID,
            Some((last, j)) => distance < *last || distance == *last && number() < *j,
        }
    }

    #[inline(always)]
    fn take(&mut self, j: u32, distance: f64) {
        if self.wants(distance, || j) {
            self.near.truncate(self.m - 1);
            self.near.insert(self.near.partition_point(|kept| *kept < (distance, j)), (distance, j));
        }
    }
}

/// The reference distances of a row to the first N of some centroids. Where there are fewer, the last one stands for the others.
#[inline(always)]
pub fn distances<T: Float, const N: usize>(x: &[f64], names: &[u32], table: &CentroidTable<T>) -> [f64; N] {
    let mut centroids = [table.row(0); N];
    for (i, centroid) in centroids.iter_mut().enumerate() {
        *centroid = &table.row(names[i.min(names.len() - 1)] as usize)[..x.len()];
    }
    let mut s = [0.0f64; N];
    for f in 0..x.len() {
        let mut t = [0.0f64; N];
        for i in 0..N {
            // SAFETY: each centroid was cut to the length of the row. A check of each value takes longer than its distance.
            t[i] = x[f] - unsafe { centroids[i].get_unchecked(f) }.to_f64();
        }
        for i in 0..N {
            s[i] = t[i].mul_add(t[i], s[i]);
        }
    }
    s
}

/// What a thread needs beside its tile.
#[derive(Debug)]
pub struct Several {
    candidates: ScoreLists,
    listed: Vec<u32>,
    /// Squared distances and centroids.
    near: Vec<(f64, u32)>,
    row: Vec<f64>,
}

impl Several {
    pub fn new(m: usize, k: usize, d: usize) -> Result<Self> {
        let (listed, near) = (memory::with_room(k, ANSWERS)?, memory::with_room(m, ANSWERS)?);
        Ok(Self { candidates: ScoreLists::new(m, k)?, listed, near, row: memory::zeroed(d, ANSWERS)? })
    }
}
