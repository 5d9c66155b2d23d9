//! Scores of integer copies whose products are computed in tiles.
//!
//! Tiles are multiplied by a unit of their own. A processor looks some hundred operations ahead, and the products of 32 rows and
//! 32 centroids are that many. So scores of the pair of tiles before are made between the steps of this one: their sums are
//! stored by then, too.

use super::int_dot::DotBlock;
use super::scores::{OF_TILES, lower};
use super::{Facts, ProductScratch, ROWS};
use crate::simd::{Meanwhile, SIDE, TOGETHER, Tiles, Vector};

/// Panels of a pair of tiles.
const PANELS: usize = 2 * SIDE / OF_TILES;
/// Vectors of rows whose scores are made together.
const VECTORS: usize = 2;

/// The sums of half of the rows and some panels of centroids, which become scores.
struct Panels<'p, V> {
    /// `(panels * OF_TILES, ROWS)`.
    scores: &'p mut [f32],
    /// The first row.
    first: usize,
    /// The steps of all rows.
    steps: &'p [f32; ROWS],
    facts: &'p Facts,
    /// The first panel's place among all.
    place: usize,
    /// The least scores of the panels.
    least: &'p mut [[f32; ROWS]],
    /// How many panels are done.
    done: usize,
    of: std::marker::PhantomData<V>,
}

impl<V: Vector> Panels<'_, V> {
    /// Finds the least scores of the next panel.
    #[inline(always)]
    fn score_next(&mut self) {
        let Self { ref mut scores, first, steps, facts, place, ref mut least, done, .. } = *self;
        let (panel, own) = (&mut scores[done * OF_TILES * ROWS..][..OF_TILES * ROWS], facts.panel::<OF_TILES>(place + done));
        let least = &mut least[done];
        assert!(first <= ROWS - TOGETHER);
        for start in (first..first + TOGETHER).step_by(VECTORS * V::LANES) {
            // SAFETY: VECTORS * LANES divides TOGETHER, so start + VECTORS * LANES <= ROWS by the assertion, and `panel` has ROWS
            // sums for each centroid. For the features of the instruction set see `Vector`.
            unsafe {
                let mut step = [V::splat(0.0); VECTORS];
                for v in 0..VECTORS {
                    step[v] = V::load(steps.as_ptr().add(start + v * V::LANES));
                }
                let mut of_panel = [[V::splat(0.0); VECTORS]; OF_TILES];
                for c in 0..OF_TILES {
                    for v in 0..VECTORS {
                        of_panel[c][v] = V::load(panel.as_ptr().add(c * ROWS + start + v * V::LANES));
                    }
                }
                let found = own.score::<V, VECTORS>(&mut of_panel, &step);
                for c in 0..OF_TILES {
                    for v in 0..VECTORS {
                        of_panel[c][v].store(panel.as_mut_ptr().add(c * ROWS + start + v * V::LANES));
                    }
                }
                for v in 0..VECTORS {
                    found[v].store(least.as_mut_ptr().add(start + v * V::LANES));
                }
            }
        }
        self.done += 1;
    }
}

impl<V: Vector> Meanwhile for Panels<'_, V> {
    #[inline(always)]
    fn after(&mut self, step: usize, steps: usize) {
        let due = ((step + 1) * self.least.len()).div_ceil(steps);
        while self.done < due {
            self.score_next();
        }
    }
}

impl ProductScratch {
    /// Finds the least scores of some panels of centroids from panel `first` on, and lowers the rows' least sums. `places`: those of centroids.
    #[inline(always)]
    pub fn score_in_tiles<V: Vector>(&mut self, tiles: &Tiles, block: &DotBlock<'_>, first: usize, places: usize) {
        const { assert!((2 * SIDE).is_multiple_of(OF_TILES) && SIDE.is_multiple_of(OF_TILES)) };
        let DotBlock { rows, count, table, .. } = *block;
        let (lanes, facts, steps) = (rows.copies.len() / ROWS, &table.own, &rows.facts[0]);
        let Self { scores, least, best, .. } = self;
        let least = least.as_chunks_mut::<ROWS>().0;
        let halves = || (0..count).step_by(TOGETHER);
        let mut before = 0..0;
        for at in (0..places).step_by(2 * SIDE) {
            // The last tile may have more centroids than are listed.
            let computed = (places - at).min(2 * SIDE).next_multiple_of(SIDE);
            let centroids = &table.packed[(first * OF_TILES + at) * lanes..][..computed * lanes];
            let (known, sums) = scores.split_at_mut(at * ROWS);
            for half in halves() {
                let mut meanwhile = panels::<V>(known, before.clone(), half, steps, (facts, first), least);
                tiles.multiply(rows.copies, half, centroids, &mut sums[..computed * ROWS], &mut meanwhile);
            }
            before = at / OF_TILES..(at + computed) / OF_TILES;
        }
        for half in halves() {
            panels::<V>(scores, before.clone(), half, steps, (facts, first), least).after(0, 1);
        }
        for panel in 0..places.div_ceil(OF_TILES) {
            let margin = facts.panel::<OF_TILES>(first + panel).largest_margin;
            for start in (0..count).step_by(VECTORS * V::LANES) {
                // SAFETY: VECTORS * LANES divides ROWS, and `count` is at most ROWS. For the features of the instruction set see
                // `Vector`.
                unsafe {
                    let mut of_panel = [V::splat(0.0); VECTORS];
                    for v in 0..VECTORS {
                        of_panel[v] = V::load(least[panel].as_ptr().add(start + v * V::LANES));
                    }
                    lower(best.as_mut_ptr().add(start), &[of_panel], &[margin]);
                }
            }
        }
    }
}

/// Those of the pair of tiles before, if there was one. `before`: the panels among those whose sums are held.
#[inline(always)]
fn panels<'p, V>(
    known: &'p mut [f32],
    before: std::ops::Range<usize>,
    first: usize,
    steps: &'p [f32; ROWS],
    (facts, first_panel): (&'p Facts, usize),
    least: &'p mut [[f32; ROWS]],
) -> Panels<'p, V> {
    debug_assert!(before.len() <= PANELS);
    let scores = &mut known[before.start * OF_TILES * ROWS..before.end * OF_TILES * ROWS];
    let (place, least) = (first_panel + before.start, &mut least[before]);
    Panels { scores, first, steps, facts, place, least, done: 0, of: std::marker::PhantomData }
}
