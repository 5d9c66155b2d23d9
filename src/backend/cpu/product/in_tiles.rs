//! Scores of integer copies whose products are computed in tiles.
//!
//! Tiles are multiplied by a unit of their own. So the processor makes scores of the sums of one pair of tiles while it
//! multiplies the next one.

use std::ops::Range;

use super::int_dot::DotBlock;
use super::scores::{Least, PanelFacts};
use super::{ProductScratch, ROWS, vectors};
use crate::backend::cpu::filter::GROUP;
use crate::simd::{SIDE, TOGETHER, Tiles, Vector};

/// Sums of rows and some panels of centroids.
struct Sums<'p> {
    /// `(panels * GROUP, ROWS)`.
    sums: &'p [f32],
    /// The steps of the rows.
    steps: &'p [f32; ROWS],
    own: &'p [PanelFacts],
    /// Number of rows that count. What is found of others is written or not.
    count: usize,
    /// The least scores of the panels, and the rows' least sums of a score and a margin.
    least: &'p mut [[f32; ROWS]],
    best: &'p mut [f32; ROWS],
}

impl Sums<'_> {
    /// Finds the least scores of some panels.
    #[inline(always)]
    fn finish<V: Vector>(&mut self, panels: Range<usize>) {
        match vectors::<V>(self.count) {
            4 => self.finish_vectors::<V, 4>(panels),
            2 => self.finish_vectors::<V, 2>(panels),
            _ => self.finish_vectors::<V, 1>(panels),
        }
    }

    #[inline(always)]
    fn finish_vectors<V: Vector, const R: usize>(&mut self, panels: Range<usize>) {
        let Self { sums, steps, own, count, ref mut least, ref mut best } = *self;
        assert!(
            sums.len() >= panels.end * GROUP * ROWS && own.len() >= panels.end && least.len() >= panels.end && count <= ROWS
        );
        for panel in panels {
            for start in (0..count).step_by(R * V::LANES) {
                // SAFETY: R * LANES divides ROWS, so start + R * LANES <= ROWS. The assertion bounds the panels and their sums.
                // For the features of the instruction set see `Vector`.
                unsafe {
                    let mut of_panel = [[V::splat(0.0); R]; GROUP];
                    for c in 0..GROUP {
                        for v in 0..R {
                            of_panel[c][v] = V::load(sums.as_ptr().add((panel * GROUP + c) * ROWS + start + v * V::LANES));
                        }
                    }
                    Least { of_panel: &mut least[panel], best }.find::<V, R>(&of_panel, &own[panel], steps, start);
                }
            }
        }
    }
}

impl ProductScratch {
    /// Finds the least scores of some panels of centroids. `scores` holds their sums then.
    #[inline(always)]
    pub fn score_in_tiles<V: Vector>(&mut self, tiles: &Tiles, block: &DotBlock<'_>, panels: Range<usize>) {
        let DotBlock { rows, count, table, .. } = *block;
        let (lanes, first, places) = (rows.copies.len() / ROWS, panels.start * GROUP, panels.len() * GROUP);
        let mut finished = 0usize;
        for at in (0..places).step_by(2 * SIDE) {
            // The last tile may have more centroids than are listed.
            let computed = (places - at).min(2 * SIDE).next_multiple_of(SIDE);
            let centroids = &table.packed[(first + at) * lanes..(first + at + computed) * lanes];
            // What is known before these tiles.
            let known = at / GROUP;
            for (first, until) in [(0, finished.midpoint(known)), (TOGETHER, known)] {
                if first < count {
                    tiles.multiply(rows.copies, first, centroids, &mut self.scores[at * ROWS..(at + computed) * ROWS]);
                }
                self.sums(block, panels.clone()).finish::<V>(finished..until);
                finished = until;
            }
        }
        self.sums(block, panels.clone()).finish::<V>(finished..panels.len());
    }

    #[inline(always)]
    fn sums<'p>(&'p mut self, block: &DotBlock<'p>, panels: Range<usize>) -> Sums<'p> {
        let DotBlock { rows, count, table, .. } = *block;
        let (least, best) = (self.least.as_chunks_mut().0, &mut self.best);
        Sums { sums: &self.scores, steps: &rows.facts[0], own: &table.own[panels], count, least, best }
    }
}
