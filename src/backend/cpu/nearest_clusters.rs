//! The m nearest centroids of each row, by (reference distance, number).
//!
//! ```text
//! for 64 rows of a tile, panel by panel of centroids:
//!   scores of the product filter (product.rs)
//!   for each row: the m least sums of a score and its margin so far; the last of them sets the limit
//!                 centroids with scores up to the limit are candidates
//! for each row: reference distances of its candidates, or of all centroids; the m smallest
//! ```
//! A centroid above the limit is farther by reference distances than each of the m centroids below it (`bounds.rs`). So the m
//! nearest are among the candidates, ties included. A row whose limit is not finite is compared with all centroids.

use super::CentroidTable;
use super::filter::GROUP;
use super::product::{CENTROID_PANEL, ROWS};
use super::sinks::{Labeller, Sink};
use super::tasks::split_off;
use crate::backend::answers::ANSWERS;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::bounds::Expanded;
use crate::simd::{Task, Vector};

/// Reference distances that are computed together.
const TOGETHER: usize = 8;

/// What the filter says of 64 rows.
#[derive(Debug)]
pub struct Candidates {
    m: usize,
    /// `(ROWS, panel)`: the scores of a panel, row by row.
    scores: Vec<f32>,
    /// `(ROWS, m)`: the least sums of a score and its margin, in ascending order.
    least: Vec<f32>,
    /// For each row, centroids and their scores.
    lists: Vec<Vec<(u32, f32)>>,
}

impl Candidates {
    fn new(m: usize, k: usize) -> Result<Self> {
        let lists = memory::try_collected((0..ROWS).map(|_| memory::with_room(k, ANSWERS)), ANSWERS)?;
        let scores = memory::zeroed(ROWS * k.min(CENTROID_PANEL), ANSWERS)?;
        Ok(Self { m, scores, least: memory::zeroed(ROWS * m, ANSWERS)?, lists })
    }

    /// Forgets the rows before.
    pub fn clear(&mut self) {
        self.least.fill(f32::INFINITY);
        self.lists.iter_mut().for_each(Vec::clear);
    }

    /// Sees the scores of a panel of `count` centroids, of which `first` is the first: `(count, ROWS)`. `own`: half squares and
    /// margins, as the filter has them.
    #[inline(always)]
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN stays in reach
    pub fn see(&mut self, scores: &[f32], [first, count, rows]: [usize; 3], own: &[f32], widths: &[f32; ROWS]) {
        let Self { m, scores: transposed, least, lists } = self;
        for (j, scores) in scores.chunks_exact(ROWS).take(count).enumerate() {
            for (r, score) in scores[..rows].iter().enumerate() {
                transposed[r * count + j] = *score;
            }
        }
        let margin = |j: usize| own[(first + j) / GROUP * 2 * GROUP + GROUP + (first + j) % GROUP];
        for (r, (scores, least)) in transposed.chunks_exact(count).zip(least.chunks_exact_mut(*m)).take(rows).enumerate() {
            for (j, score) in scores.iter().enumerate() {
                let sum = score + margin(j);
                if sum < least[*m - 1] {
                    let mut at = *m - 1;
                    while at > 0 && sum < least[at - 1] {
                        least[at] = least[at - 1];
                        at -= 1;
                    }
                    least[at] = sum;
                }
            }
            let limit = Expanded::threshold(least[*m - 1], widths[r]);
            for (j, score) in scores.iter().enumerate() {
                if !(*score > limit) {
                    lists[r].push(((first + j) as u32, *score));
                }
            }
        }
    }

    /// The candidates of row `r` in ascending order. `None`: all centroids.
    #[inline(always)]
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN stays in reach
    fn of_row(&mut self, r: usize, width: f32, out: &mut Vec<u32>) -> bool {
        let limit = Expanded::threshold(self.least[(r + 1) * self.m - 1], width);
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
        // SAFETY: the caller runs with this instruction set.
        unsafe { V::call(Tile { sink: self, table, labeller }) }
    }
}

/// One tile.
struct Tile<'t, 'o, T> {
    sink: &'t mut SeveralSink<'o>,
    table: &'t CentroidTable<T>,
    labeller: &'t mut Labeller<T>,
}

impl<T: Float> Task for Tile<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { sink, table, labeller: Labeller { tile, assigner, places, several, .. } } = self;
        let (m, d) = (sink.m, table.d);
        let Some(several) = several else { unreachable!("there is room for several centroids") };
        for first in (0..tile.rows).step_by(ROWS) {
            let rows = ROWS.min(tile.rows - first);
            let widths = assigner.candidates::<V, T>(tile, first..first + rows, table, m, &mut several.candidates);
            for r in 0..rows {
                let values = tile.x.iter().skip(first + r).step_by(tile.stride);
                several.row.iter_mut().zip(values).for_each(|(row, x)| *row = x.to_f64());
                let some = widths.is_some_and(|widths| several.candidates.of_row(r, widths[r], &mut several.listed));
                several.near.clear();
                if some {
                    for names in several.listed.chunks(TOGETHER) {
                        let s = some_distances(&several.row[..d], names, table);
                        several.near.extend(s.into_iter().zip(names.iter().copied()));
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
                        several.near.extend(s.into_iter().zip(names));
                    }
                }
                let order = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
                if several.near.len() > m {
                    several.near.select_nth_unstable_by(m - 1, order);
                    several.near.truncate(m);
                }
                several.near.sort_unstable_by(order);
                let place = places[first + r] * m;
                let out = sink.clusters[place..].iter_mut().zip(&mut sink.distances[place..]);
                for ((cluster, distance), (s, j)) in out.zip(&several.near) {
                    (*cluster, *distance) = (*j, if sink.squared { *s } else { s.sqrt() });
                }
            }
        }
    }
}

/// The reference distances of a row to at most eight centroids.
#[inline(always)]
fn some_distances<T: Float>(x: &[f64], names: &[u32], table: &CentroidTable<T>) -> [f64; TOGETHER] {
    let mut centroids = [table.row(0); TOGETHER];
    for (i, centroid) in centroids.iter_mut().enumerate() {
        *centroid = &table.row(names[i.min(names.len() - 1)] as usize)[..x.len()];
    }
    let mut s = [0.0f64; TOGETHER];
    for f in 0..x.len() {
        let mut centroid = [T::default(); TOGETHER];
        for i in 0..TOGETHER {
            centroid[i] = centroids[i][f];
        }
        for i in 0..TOGETHER {
            let t = x[f] - centroid[i].to_f64();
            s[i] = t.mul_add(t, s[i]);
        }
    }
    s
}

/// What a thread needs beside its tile.
#[derive(Debug)]
pub struct Several {
    candidates: Candidates,
    listed: Vec<u32>,
    /// Squared distances and centroids.
    near: Vec<(f64, u32)>,
    row: Vec<f64>,
}

impl Several {
    pub fn new(m: usize, k: usize, d: usize) -> Result<Self> {
        let (listed, near) = (memory::with_room(k, ANSWERS)?, memory::with_room(k.next_multiple_of(4), ANSWERS)?);
        Ok(Self { candidates: Candidates::new(m, k)?, listed, near, row: memory::zeroed(d, ANSWERS)? })
    }
}
