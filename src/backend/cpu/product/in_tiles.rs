//! Scores of integer copies whose products are computed in tiles.
//!
//! Tiles are multiplied by a unit of their own. A processor looks some hundred operations ahead, and the products of 32 rows and
//! 32 centroids are that many. So scores of the pair of tiles before are made between the steps of this one: their sums are
//! stored by then, too.

use std::marker::PhantomData;
use std::ops::Range;

use super::int_dot::DotBlock;
use super::scores::OF_TILES;
use super::{ProductScratch, ROWS, TableNorms};
use crate::simd::{Meanwhile, SIDE, TOGETHER, TileRegisters, Vector};

/// Vectors of rows whose scores are made together.
const VECTORS: usize = 2;

const _: () = assert!(SIDE.is_multiple_of(OF_TILES));

/// What is known of the rows and centroids of a block.
struct Known<'p> {
    /// The steps of the rows.
    steps: &'p [f32; ROWS],
    facts: &'p TableNorms,
    /// The first panel whose sums are held.
    first: usize,
    /// The least scores of the panels whose sums are held, and the rows' least sums of a score and a slack.
    least: &'p mut [[f32; ROWS]],
    best: &'p mut [f32; ROWS],
}

/// The sums of half of the rows and some panels of centroids, which become scores.
struct Panels<'p, 'k, V> {
    known: &'p mut Known<'k>,
    /// `(panels, OF_TILES, ROWS)`, of all panels so far.
    scores: &'p mut [f32],
    /// The panels that are not done yet, of how many, and the first row.
    next: Range<usize>,
    count: usize,
    row: usize,
    of: PhantomData<V>,
}

impl<V: Vector> Panels<'_, '_, V> {
    /// Finds the least scores of the next panel.
    #[inline(always)]
    fn score_next(&mut self) {
        let Self { known: Known { steps, facts, first, least, best }, scores, next, row, .. } = self;
        let (panel, least) = (&mut scores[next.start * OF_TILES * ROWS..][..OF_TILES * ROWS], &mut least[next.start]);
        let own = facts.panel::<OF_TILES>(*first + next.start);
        assert!(*row <= ROWS - TOGETHER);
        for start in (*row..*row + TOGETHER).step_by(VECTORS * V::LANES) {
            // SAFETY: VECTORS * LANES divides TOGETHER, so start + VECTORS * LANES <= ROWS by the assertion, and `panel` has
            // ROWS sums for each centroid.
            unsafe {
                let mut step = [V::splat(0.0); VECTORS];
                for v in 0..VECTORS {
                    step[v] = V::load(steps.as_ptr().add(start + v * V::LANES));
                }
                let sums = panel.as_mut_ptr().add(start);
                let mut of_panel = [[V::splat(0.0); VECTORS]; OF_TILES];
                for c in 0..OF_TILES {
                    for v in 0..VECTORS {
                        of_panel[c][v] = V::load(sums.add(c * ROWS + v * V::LANES));
                    }
                }
                let found = [least.as_mut_ptr().add(start), best.as_mut_ptr().add(start)];
                own.score::<V, VECTORS>(&mut of_panel, &step, found);
                for c in 0..OF_TILES {
                    for v in 0..VECTORS {
                        of_panel[c][v].store(sums.add(c * ROWS + v * V::LANES));
                    }
                }
            }
        }
        next.start += 1;
    }
}

impl<V: Vector> Meanwhile for Panels<'_, '_, V> {
    #[inline(always)]
    fn after(&mut self, step: usize, steps: usize) {
        let left = self.count * (steps - 1 - step) / steps;
        while self.next.len() > left {
            self.score_next();
        }
    }
}

impl<'k> Known<'k> {
    /// Some panels, and half of the rows, from `row` on.
    #[inline(always)]
    fn panels<'p, V>(&'p mut self, scores: &'p mut [f32], panels: Range<usize>, row: usize) -> Panels<'p, 'k, V> {
        Panels { known: self, scores, count: panels.len(), next: panels, row, of: PhantomData }
    }
}

impl ProductScratch {
    /// Finds the least scores of some places of centroids, from panel `first` on, and lowers the rows' least sums.
    #[inline(always)]
    pub fn score_in_tiles<V: Vector>(&mut self, tiles: &mut TileRegisters, block: &DotBlock<'_>, first: usize, places: usize) {
        let DotBlock { rows, count, table, .. } = *block;
        let lanes = rows.copies.len() / ROWS;
        let Self { scores, least, best, .. } = self;
        let (least, steps, facts) = (least.as_chunks_mut().0, &rows.facts[0], &table.own);
        let mut known = Known { steps, facts, first, least, best };
        // The panels of the pair of tiles before.
        let mut before = 0..0;
        for at in (0..places).step_by(2 * SIDE) {
            // The last tile may have more centroids than are listed.
            let computed = (places - at).min(2 * SIDE).next_multiple_of(SIDE);
            let centroids = &table.packed[(first * OF_TILES + at) * lanes..][..computed * lanes];
            let (done, sums) = scores.split_at_mut(at * ROWS);
            for half in (0..count).step_by(TOGETHER) {
                let mut meanwhile = known.panels::<V>(done, before.clone(), half);
                tiles.multiply(rows.copies, half, centroids, &mut sums[..computed * ROWS], &mut meanwhile);
            }
            before = at / OF_TILES..(at + computed) / OF_TILES;
        }
        for half in (0..count).step_by(TOGETHER) {
            known.panels::<V>(scores, before.clone(), half).after(0, 1);
        }
    }
}
