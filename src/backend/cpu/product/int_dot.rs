//! The product filter on copies in bytes, four features in a lane, or in words, two in a lane: a quarter or half of the
//! instructions of float32, and a wider bound.
//!
//! ```text
//! for 64 rows:
//!   for each panel of six centroids:
//!     sums[j][r] = x^ . (-c^)                                   exact integers: 4 vectors of rows by 6 centroids
//!     score of j and r = sums[j][r] * step of r * step of j + lowered half square of j        (scores.rs)
//!     least[panel][r] = least score of its j
//!     best[r] = min(best[r], score + slack of j)
//!   limit = best + the row's width
//!   for each panel with least <= limit in any row:  every (j, r) of it with score <= limit is in reach of row r  (candidates.rs)
//! ```
//! Points to note: (1) Copies of rows and of centroids are made by the caller, who centres those of a group of rows at the
//! group's point. `src/bounds/int_dot.rs` derives the bound. (2) Sums of many features run over panels of features, so that
//! operands stay in the first-level cache. (3) Products in tiles: `in_tiles.rs`.

use std::ops::Range;

use super::lists::ALL;
use super::scores::{OF_TILES, TableNorms};
use super::{CENTROID_PANEL, ProductScratch, ROWS, TOGETHER, vectors};
use crate::backend::cpu::filter::{GROUP, ProductTable};
use crate::backend::cpu::tasks::pieces;
use crate::base::aligned::Lines;
use crate::simd::{Dot, DotTask, DotUnit, Prefetch, SIDE, TileRegisters, Vector};

/// Lanes of a panel of features.
const PANEL: usize = 64;
/// Centroids whose sums are held at a time: whole panels, and pairs of tiles. Fewer would fit in the first-level cache, but with
/// tiles this was measured to be faster.
const HELD: usize = CENTROID_PANEL;
const HELD_OF_TILES: usize = CENTROID_PANEL.next_multiple_of(2 * SIDE);

/// The copies of 64 rows.
#[derive(Clone, Copy)]
pub struct DotRows<'r> {
    /// `(lanes, ROWS)`.
    pub copies: &'r [f32],
    /// The copies that follow in memory: of the next rows, if there are some. They are only prefetched.
    pub behind: &'r [f32],
    /// For each row: its step, and what its bound is made of: see `bounds::int_dot::DotBound::of_row`. A row without a bound has
    /// infinities.
    pub facts: &'r [[f32; ROWS]; 3],
}

/// The copies of some centroids, about the same point.
#[derive(Debug, Default)]
pub struct DotTable {
    /// The negated copies: `(panels, lanes, GROUP)`, or for tiles `(tiles, lanes / SIDE, SIDE, SIDE)`, a tile for every 16
    /// centroids.
    pub packed: Lines,
    /// What belongs to the centroids, six for each listed panel.
    pub own: TableNorms,
    /// What the two parts of a row's bound are multiplied by.
    pub slopes: [f32; 2],
}

/// Integer copies of a block of rows and of the centroids near its group.
#[derive(Clone, Copy)]
pub struct DotBlock<'r> {
    pub rows: DotRows<'r>,
    /// The number of rows. The others fill up the block.
    pub count: usize,
    pub table: &'r DotTable,
    /// The panels of centroids that the rows are compared with: the first ones of the table.
    pub listed: &'r [u32],
    pub unit: DotUnit,
}

/// The sums and scores of some panels of centroids.
struct Score<'p> {
    rows: DotRows<'p>,
    /// Number of rows that count. What is found of others is written or not.
    count: usize,
    /// `(panels, lanes, GROUP)`.
    centroids: &'p [f32],
    own: &'p TableNorms,
    /// The panels.
    panels: Range<usize>,
    /// `(panels, ROWS)`: the least scores of the held panels.
    least: &'p mut [[f32; ROWS]],
    /// The rows' least sums of a score and a slack.
    best: &'p mut [f32; ROWS],
    /// `(panels * GROUP, ROWS)`: the sums of products, then the scores.
    sums: &'p mut [f32],
}

impl DotTask for Score<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(mut self) {
        match vectors::<D::V>(self.count) {
            4 => self.score::<D::V, D, 4>(),
            2 => self.score::<D::V, D, 2>(),
            _ => self.score::<D::V, D, 1>(),
        }
    }
}

impl Score<'_> {
    #[inline(always)]
    fn score<V: Vector, D: Dot<V = V>, const R: usize>(&mut self) {
        let Self { rows: DotRows { copies, behind, facts: [steps, ..] }, count, centroids, own, ref panels, .. } = *self;
        let (held, least, best) = (&mut *self.sums, &mut *self.least, &mut *self.best);
        let (lanes, first_panel, panels) = (copies.len() / ROWS, panels.start, panels.len());
        assert!(copies.len() == lanes * ROWS && centroids.len() == panels * lanes * GROUP && count <= ROWS);
        assert!(least.len() >= panels && held.len() >= panels * GROUP * ROWS);
        let runs = pieces(0..panels, TOGETHER / GROUP)
            .flat_map(|together| (0..lanes).step_by(PANEL).map(move |first| (together.clone(), first)));
        for (together, first) in runs {
            let end = lanes.min(first + PANEL);
            let lanes_of = |panel: usize| &centroids[(panel * lanes + first) * GROUP..(panel * lanes + end) * GROUP];
            // The first centroids are multiplied by copies from memory. Later centroids find the copies in a cache.
            let next_copies = match (end < lanes, together.start == 0, together.end == panels) {
                (true, true, _) => &copies[end * ROWS..],
                (false, _, true) => behind,
                _ => &[],
            };
            let next_copies = Prefetch::of(&next_copies[..next_copies.len().min(PANEL * ROWS)]);
            for panel in together.clone() {
                let next_centroids = Prefetch::of(lanes_of((panel + 1).min(together.end - 1)));
                let own = own.panel::<GROUP>(first_panel + panel);
                for start in (0..count).step_by(R * V::LANES) {
                    let (part, parts) = (start / (R * V::LANES), ROWS / (R * V::LANES));
                    next_centroids.part(part, parts).ask_all();
                    next_copies.part((panel - together.start) * parts + part, together.len() * parts).ask_all();
                    // SAFETY: R * LANES divides ROWS, so start + R * LANES <= ROWS. The assertions bound the lanes, the panels
                    // and their sums.
                    unsafe {
                        let held = held.as_mut_ptr().add(panel * GROUP * ROWS + start);
                        let mut sums = [[V::splat(0.0); R]; GROUP];
                        for c in 0..GROUP {
                            let begin = V::splat(own.starts[c]);
                            for v in 0..R {
                                sums[c][v] = if first == 0 { begin } else { V::load(held.add(c * ROWS + v * V::LANES)) };
                            }
                        }
                        for lane in first..end {
                            let mut x = [V::splat(0.0); R];
                            for v in 0..R {
                                x[v] = V::load(copies.as_ptr().add(lane * ROWS + start + v * V::LANES));
                            }
                            for c in 0..GROUP {
                                let centroid = V::splat(*centroids.as_ptr().add((panel * lanes + lane) * GROUP + c));
                                for v in 0..R {
                                    sums[c][v] = D::add(sums[c][v], x[v], centroid);
                                }
                            }
                        }
                        if end == lanes {
                            let mut step = [V::splat(0.0); R];
                            for v in 0..R {
                                step[v] = V::load(steps.as_ptr().add(start + v * V::LANES));
                            }
                            let least = least[panel].as_mut_ptr().add(start);
                            own.score::<V, R>(&mut sums, &step, [least, best.as_mut_ptr().add(start)]);
                        }
                        for c in 0..GROUP {
                            for v in 0..R {
                                sums[c][v].store(held.add(c * ROWS + v * V::LANES));
                            }
                        }
                    }
                }
            }
        }
    }
}

impl ProductScratch {
    /// Finds the centroids in reach of the rows of a block. `names`: the numbers of the centroids.
    #[inline(always)]
    pub fn find_candidates_by_int_dot<V: Vector>(&mut self, block: &DotBlock<'_>, names: &ProductTable) {
        let DotBlock { rows, count, table, listed, unit } = *block;
        assert!((1..=ROWS).contains(&count) && listed.len() * GROUP <= table.own.len());
        self.best.fill(f32::INFINITY);
        self.lists.counts.fill(0);
        let [norm, rest] = table.slopes;
        for r in 0..ROWS {
            self.widths[r] = norm * rows.facts[1][r] + rest * rows.facts[2][r];
        }
        // SAFETY: no other tiles are in use in this thread, because nothing below makes some.
        let (mut tiles, places) = (unsafe { TileRegisters::new(unit) }, listed.len() * GROUP);
        let held = if tiles.is_some() { HELD_OF_TILES } else { HELD };
        for places in pieces(0..places, held) {
            match &mut tiles {
                Some(tiles) => {
                    self.score_in_tiles::<V>(tiles, block, places.start / OF_TILES, places.len());
                    self.collect_held::<V, OF_TILES, false>(count, places);
                }
                None => {
                    self.score(block, places.start / GROUP..places.end / GROUP);
                    self.collect_held::<V, GROUP, false>(count, places);
                }
            }
        }
        // Lists that were made with the last limits are complete.
        if places > held {
            self.drop_candidates::<false>(count);
        }
        self.name(names, Some(listed));
    }

    /// The scores of some panels of centroids.
    #[inline(always)]
    fn score(&mut self, block: &DotBlock<'_>, panels: Range<usize>) {
        let DotBlock { rows, count, table, unit, .. } = *block;
        let of_panel = rows.copies.len() / ROWS * GROUP;
        let centroids = &table.packed[panels.start * of_panel..panels.end * of_panel];
        let (least, best, sums, own) = (self.least.as_chunks_mut().0, &mut self.best, &mut *self.scores, &table.own);
        unit.run(Score { rows, count, centroids, own, panels, least, best, sums });
    }

    /// Whether it takes longer to look at the open ones of some rows than to compare all rows by float32 products with so many
    /// centroids. Rows without a list are settled with all k centroids of d features. `closer`: whether those with a list can be
    /// looked at closer, else reference distances settle them.
    #[inline(always)]
    pub fn is_in_doubt(&self, count: usize, [centroids, k, d]: [usize; 3], closer: bool) -> bool {
        // The time for a row, and for each of its candidates, in products of the filter.
        let [of_row, of_candidate] = if closer { [8 + 1_024 / d, 2 + 256 / d] } else { [0, 30] };
        /// The time to copy a row for the filter.
        const OF_COPY: usize = 16;
        /// Eight rows are compared with all centroids as fast as one.
        const OF_ALL: usize = 20;
        // Branches on counts would be as good as random.
        let (mut all, mut open, mut listed) = (0, 0, 0);
        for count in &self.lists.counts[..count] {
            let is_open = !matches!(*count, 1 | ALL);
            all += usize::from(*count == ALL);
            open += usize::from(is_open);
            listed += if is_open { usize::from(*count) } else { 0 };
        }
        all * OF_ALL * k + open * of_row + listed * of_candidate > ROWS * (centroids + OF_COPY)
    }
}
