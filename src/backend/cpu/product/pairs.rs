//! The product filter on copies in bfloat16, two features in a lane: half the instructions of float32, and a wider bound.
//!
//! Copies of rows and of centroids are made by the caller, who centres those of a group of rows at the group's point. `src/certify/halves.rs` derives
//! the bound.

use std::ops::Range;

use super::kernel::{Ahead, Double, Products};
use super::{ALL, CENTROID_PANEL, Lists, ProductScratch, ROWS, vectors};
use crate::backend::cpu::filter::{GROUP, ProductTable};
use crate::backend::cpu::simd::{Dot, PairTask, PairUnit, SIDE, Tiles, Vector};
use crate::certify::Expanded;
use crate::certify::halves::PAIR_PANEL;

/// Lanes of one sum.
const PANEL: usize = PAIR_PANEL / 2;

/// The copies of 64 rows.
#[derive(Clone, Copy)]
pub struct PairRows<'r> {
    /// `(lanes, ROWS)`.
    pub copies: &'r [f32],
    /// For each row: its part of the bound for a balance of 1, or infinity.
    pub errors: &'r [f32],
}

/// The copies of some centroids, about the same point.
#[derive(Debug, Default)]
pub struct PairTable {
    /// The negated copies: `(panels, lanes, GROUP)`, or for tiles `(tiles, lanes / SIDE, SIDE, SIDE)`, a tile for every 16 centroids.
    pub packed: Vec<f32>,
    /// `(panels, 2, GROUP)`: the folded half squares, then the margins. The padding is infinite.
    pub own: Vec<f32>,
    /// What the rows' errors are multiplied by: the balance, and a factor for roundings of thresholds.
    pub slope: f32,
}

impl PairTable {
    /// Number of panels of centroids.
    pub fn panels(&self) -> usize {
        self.own.len() / (2 * GROUP)
    }
}

/// The sums of a panel of lanes.
struct AddPairs<'p> {
    products: Products<'p>,
    scores: &'p mut [f32],
    least: [&'p mut [f32; ROWS]; 2],
}

impl PairTask for AddPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Dot>(self) {
        let Self { products, scores, least } = self;
        match vectors::<V>(products.rows) {
            4 => products.add::<V, Double, 4, false>(scores, least),
            2 => products.add::<V, Double, 2, false>(scores, least),
            _ => products.add::<V, Double, 1, false>(scores, least),
        }
    }
}

/// The products of up to two tiles of centroids with 64 rows, and what is added to them.
struct TileScores<'p> {
    /// `(centroids, ROWS)`.
    products: &'p [f32],
    /// `(panels, 2, GROUP)`, of all panels.
    own: &'p [f32],
    /// The centroids' places.
    centroids: Range<usize>,
    /// Number of rows that count.
    count: usize,
}

impl TileScores<'_> {
    /// The folded half square of a centroid, and its margin.
    #[inline(always)]
    fn own(&self, c: usize) -> [f32; 2] {
        let own = &self.own[c / GROUP * 2 * GROUP + c % GROUP..];
        [own[0], own[GROUP]]
    }

    /// Lowers the rows' least sums of a score and its margin. Returns the least scores. R vectors of rows at a time.
    #[inline(always)]
    fn least<V: Vector, const R: usize>(&self, best: &mut [f32; ROWS]) -> [f32; ROWS] {
        let Self { products, ref centroids, count, .. } = *self;
        assert!(products.len() >= centroids.len() * ROWS && count <= ROWS);
        let mut least = [f32::INFINITY; ROWS];
        for at in (0..count).step_by(R * V::LANES) {
            // SAFETY: R * LANES divides ROWS, so at + R * LANES <= ROWS. The assertion bounds the lines of `products`. For the features of the
            // instruction set see `Vector`.
            unsafe {
                let mut with_margin = [V::splat(0.0); R];
                let mut score = [V::splat(f32::INFINITY); R];
                for v in 0..R {
                    with_margin[v] = V::load(best.as_ptr().add(at + v * V::LANES));
                }
                for (c, line) in centroids.clone().zip(products.chunks_exact(ROWS)) {
                    let [half, margin] = self.own(c);
                    let (half, margin) = (V::splat(half), V::splat(margin));
                    for v in 0..R {
                        let sum = V::load(line.as_ptr().add(at + v * V::LANES)).add(half);
                        score[v] = sum.min_or(score[v]);
                        with_margin[v] = sum.add(margin).min_or(with_margin[v]);
                    }
                }
                for v in 0..R {
                    with_margin[v].store(best.as_mut_ptr().add(at + v * V::LANES));
                    score[v].store(least.as_mut_ptr().add(at + v * V::LANES));
                }
            }
        }
        least
    }

    /// No score is NaN, because the copies of centroids without a bound are 0. Calls `found` with every row and centroid whose score is not above the row's limit, and with the score. `least`: the rows' least scores.
    #[inline(always)]
    fn in_reach<V: Vector>(&self, least: &[f32; ROWS], limits: &[f32; ROWS], mut found: impl FnMut(usize, usize, f32)) {
        assert!(self.products.len() >= self.centroids.len() * ROWS && self.count <= ROWS);
        for at in (0..self.count).step_by(V::LANES) {
            // SAFETY: LANES divides ROWS. The assertion bounds the lines. For the features of the instruction set see `Vector`.
            unsafe {
                let limit = V::load(limits.as_ptr().add(at));
                if V::bits(V::load(least.as_ptr().add(at)).not_above(limit)) == 0 {
                    continue;
                }
                for (c, line) in self.centroids.clone().zip(self.products.chunks_exact(ROWS)) {
                    let half = self.own(c)[0];
                    let mut near = V::bits(V::load(line.as_ptr().add(at)).add(V::splat(half)).not_above(limit));
                    while near != 0 {
                        let r = at + near.trailing_zeros() as usize;
                        near &= near - 1;
                        found(r, c, line[r] + half);
                    }
                }
            }
        }
    }
}

impl ProductScratch {
    /// Finds the centroids in reach of `count` of 64 rows. They are compared with the first panels of a table: as many as are listed.
    /// `names`: the numbers of these centroids.
    #[inline(always)]
    pub fn find_reach_of_pairs<V: Vector>(
        &mut self,
        rows: &PairRows<'_>,
        count: usize,
        table: &PairTable,
        names: &ProductTable,
        listed: &[u32],
        unit: PairUnit,
    ) {
        let PairRows { copies, errors } = *rows;
        let panels = listed.len();
        assert!((1..=ROWS).contains(&count) && errors.len() == ROWS && panels <= table.panels());
        self.best.fill(f32::INFINITY);
        self.second.fill(f32::INFINITY);
        self.counts.fill(0);
        for (width, error) in self.widths.iter_mut().zip(errors) {
            *width = table.slope * error;
        }
        // SAFETY: no other tiles are in use in this thread, because nothing below makes some.
        if let Some(tiles) = unsafe { Tiles::new(unit) } {
            self.find_in_tiles::<V>(&tiles, copies, count, table, panels);
            return self.name(names, Some(listed));
        }
        let per_panel = CENTROID_PANEL / GROUP;
        for first_group in (0..panels).step_by(per_panel) {
            let groups = first_group..(first_group + per_panel).min(panels);
            self.add_panels(unit, copies, count, table, groups.clone());
            if panels <= per_panel {
                self.collect_all::<V>(panels * GROUP, count);
            } else {
                self.collect::<V, false>(groups.start * GROUP..groups.end * GROUP, count);
            }
        }
        if panels > per_panel {
            self.drop_out_of_reach::<false>(count);
        }
        self.name(names, Some(listed));
    }

    /// The scores of some panels of centroids, six of them at a time.
    #[inline(always)]
    fn add_panels(&mut self, unit: PairUnit, copies: &[f32], count: usize, table: &PairTable, panels: Range<usize>) {
        let lanes = copies.len() / ROWS;
        for start in (0..lanes).step_by(PANEL) {
            let end = lanes.min(start + PANEL);
            for panel in panels.clone() {
                let own = &table.own[panel * 2 * GROUP..][..2 * GROUP];
                let products = Products {
                    copy: &copies[start * ROWS..end * ROWS],
                    centroids: &table.packed[(panel * lanes + start) * GROUP..(panel * lanes + end) * GROUP],
                    own: (end == lanes).then_some(own),
                    first: start == 0,
                    rows: count,
                    ahead: Ahead::NOTHING,
                };
                let scores = &mut self.scores[(panel - panels.start) * GROUP * ROWS..][..GROUP * ROWS];
                unit.run(AddPairs { products, scores, least: [&mut self.best, &mut self.second] });
            }
        }
    }

    /// Finds the centroids in reach of some rows in tiles, two of them at a time. Scores are looked at while they are in the first-level cache.
    #[inline(always)]
    fn find_in_tiles<V: Vector>(&mut self, tiles: &Tiles, copies: &[f32], count: usize, table: &PairTable, panels: usize) {
        let (lanes, end) = (copies.len() / ROWS, panels * GROUP);
        for start in (0..end).step_by(2 * SIDE) {
            // The last tile may have more centroids than are listed.
            let computed = (end - start).min(2 * SIDE).next_multiple_of(SIDE);
            let products = &mut self.scores[..computed * ROWS];
            tiles.multiply(copies, count, &table.packed[start * lanes..(start + computed) * lanes], products);
            let found = TileScores { products, own: &table.own, centroids: start..end.min(start + computed), count };
            let least = match vectors::<V>(count) {
                4 => found.least::<V, 4>(&mut self.best),
                2 => found.least::<V, 2>(&mut self.best),
                _ => found.least::<V, 1>(&mut self.best),
            };
            let mut limits = [0.0f32; ROWS];
            for r in 0..ROWS {
                let limit = Expanded::threshold(self.best[r], self.widths[r]);
                limits[r] = if r < count && limit.is_finite() { limit } else { f32::NEG_INFINITY };
                // A limit that is not finite rules nothing out, and no list has room for these centroids and those of later tiles.
                if r < count && !limit.is_finite() {
                    self.counts[r] = ALL;
                }
            }
            let mut lists = Lists { counts: &mut self.counts, reach: &mut self.reach, scores: &mut self.reach_scores };
            found.in_reach::<V>(&least, &limits, |r, c, score| lists.push(r, c as u32, score, limits[r]));
        }
        self.drop_out_of_reach::<false>(count);
    }

    /// Whether it takes longer to settle the open ones of some rows by reference distances, those without a list with all k centroids, than to
    /// compare all rows by float32 products with so many centroids.
    #[inline(always)]
    pub fn is_in_doubt(&self, count: usize, centroids: usize, k: usize) -> bool {
        /// The time of a reference distance, and that to copy a row, in products of the filter.
        const OF_DISTANCE: usize = 30;
        const OF_COPY: usize = 16;
        /// Eight rows are compared with all centroids as fast as one.
        const OF_ALL: usize = 20;
        let open = self.counts[..count].iter().map(|count| match *count {
            1 => 0,
            ALL => OF_ALL * k,
            some => OF_DISTANCE * usize::from(some),
        });
        open.sum::<usize>() > ROWS * (centroids + OF_COPY)
    }
}
