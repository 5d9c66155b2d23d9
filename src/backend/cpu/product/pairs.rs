//! The product filter on copies in bfloat16, two features in a lane: half the instructions of float32, and a wider bound.
//!
//! Copies of rows and of centroids are made by the caller, who centres those of a group of rows at the group's point. `src/certify/halves.rs` derives
//! the bound.

use super::kernel::{Double, Products};
use super::{CENTROID_PANEL, ProductScratch, ROWS, vectors};
use crate::backend::cpu::filter::{GROUP, ProductTable};
use crate::backend::cpu::simd::{Dot, PairTask, PairUnit, Vector};
use crate::certify::halves::PAIR_PANEL;

/// Lanes of one sum.
const PANEL: usize = PAIR_PANEL / 2;

/// The copies of 64 rows.
#[derive(Clone, Copy)]
pub struct PairRows<'r> {
    /// `(ceil(d / 2), ROWS)`.
    pub copies: &'r [f32],
    /// For each row: its part of the bound for a balance of 1, or infinity.
    pub errors: &'r [f32],
}

/// The copies of some centroids, about the same point.
#[derive(Debug, Default)]
pub struct PairTable {
    /// `(panels, ceil(d / 2), GROUP)`: the negated copies.
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
        let (lanes, panels) = (copies.len() / ROWS, listed.len());
        assert!((1..=ROWS).contains(&count) && errors.len() == ROWS && panels <= table.panels());
        self.best.fill(f32::INFINITY);
        self.second.fill(f32::INFINITY);
        self.counts.fill(0);
        for (width, error) in self.widths.iter_mut().zip(errors) {
            *width = table.slope * error;
        }
        let per_panel = CENTROID_PANEL / GROUP;
        for first_group in (0..panels).step_by(per_panel) {
            let groups = first_group..(first_group + per_panel).min(panels);
            for start in (0..lanes).step_by(PANEL) {
                let end = lanes.min(start + PANEL);
                for group in groups.clone() {
                    let own = &table.own[group * 2 * GROUP..][..2 * GROUP];
                    let products = Products {
                        copy: &copies[start * ROWS..end * ROWS],
                        centroids: &table.packed[(group * lanes + start) * GROUP..(group * lanes + end) * GROUP],
                        own: (end == lanes).then_some(own),
                        first: start == 0,
                        rows: count,
                    };
                    let scores = &mut self.scores[(group - first_group) * GROUP * ROWS..][..GROUP * ROWS];
                    unit.run(AddPairs { products, scores, least: [&mut self.best, &mut self.second] });
                }
            }
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
            super::ALL => OF_ALL * k,
            some => OF_DISTANCE * usize::from(some),
        });
        open.sum::<usize>() > ROWS * (centroids + OF_COPY)
    }
}
