//! The exact labels of some rows: first the filter, then reference distances for the rows that the filter leaves open.
//!
//! One function labels all rows, [`Assigner::label`]: rows of a tile, rows of columns that are read in place, rows of a group with
//! the centroids near it, and rows whose two nearest centroids are wanted. Rows with integer copies are labelled in two steps,
//! because few of them are loaded (`assign/int_dot.rs`). A tree of the centroids (`tree.rs`) needs no filter.

mod int_dot;

use std::ops::Range;

use super::centroids::CentroidTable;
use super::difference::{Compare, FEW, TileCentroids, TileResults};
use super::distances::own_distances;
use super::filter::{DifferenceTable, Filter, GROUP, NO_CENTROID, ProductTable, ScoreForm};
use super::groups::{BLOCK, Scores};
use super::nearest_clusters::ScoreLists;
use super::product::{self, FindNear, PrefetchNext, ProductScratch, ScoreTaker};
use super::settle::OpenRows;
use super::tree::{self, CentroidTree, TreeSearch, Waiting};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::Features;
use crate::input::tile::{ByFeature, FeatureValues, Tile};
use crate::simd::Vector;

/// Number of rows in a tile of the difference filter.
const DIFFERENCE_TILE: usize = 512;
/// Blocks of rows with near centroids after which the weight of the bound is chosen again. The choice takes as long as the scores
/// of some centroids.
const WEIGHED: u32 = 8;

/// Buffers to label tiles of one shape.
#[derive(Debug)]
pub struct Assigner {
    found: TileResults,
    /// Rows that the filter leaves open.
    pub open: OpenRows,
    /// The difference kernel's copy of the tile, used where rows must be scaled.
    scaled: Vec<f32>,
    /// At most one entry.
    product: Vec<ProductScratch>,
    /// Blocks of rows with near centroids since the weight was chosen.
    unweighed: u32,
    /// The copies of the centroids near a tile, and their numbers.
    listed: Vec<f32>,
    names: Vec<u32>,
    /// A bit for each centroid.
    marks: Vec<u64>,
    /// The places in a tree of centroids that a search has not seen.
    pub waiting: Waiting,
    /// The counts of scores of rows with near centroids, since they were last taken.
    pub scores: Scores,
}

/// Rows that are labelled together: at most as many as an assigner's tiles have.
#[derive(Clone, Copy)]
pub struct ToLabel<'r, T, C> {
    /// There are values up to the next multiple of 64 rows.
    pub values: C,
    pub count: usize,
    /// The labels of the rows so far. May be none, or [`UNASSIGNED`](crate::exact::cluster_sums::UNASSIGNED). They only make a
    /// search faster.
    pub before: &'r [u32],
    /// The centroids that the rows are compared with, if not with all.
    pub near: Option<Near<'r>>,
    /// What is read next.
    pub next: PrefetchNext<'r, T>,
}

/// The centroids near some rows. The labels of the rows are among them.
#[derive(Clone, Copy)]
pub struct Near<'r> {
    /// Panels of [`GROUP`] centroids, and the order in which they stand.
    pub panels: &'r [u32],
    pub order: &'r [u32],
}

impl<'t, T: Float> ToLabel<'t, T, FeatureValues<'t, T>> {
    /// The rows of a tile, which are compared with all centroids.
    #[inline(always)]
    pub fn tile(tile: &'t Tile<T>) -> Self {
        Self { values: tile.values(), count: tile.rows, before: &[], near: None, next: PrefetchNext::Nothing }
    }
}

/// The two nearest centroids of each row of a tile. Distances are squared reference distances.
#[derive(Debug)]
pub struct TwoNearest {
    pub labels: Vec<u32>,
    pub nearest: Vec<f64>,
    /// The distance to the nearest other centroid. Infinite if there is one cluster.
    pub second: Vec<f64>,
    /// The second of the two nearest centroids, if the filter is certain of both. Else any centroid.
    others: Vec<u32>,
}

impl TwoNearest {
    /// Room for a tile of `tile_rows` rows.
    pub fn new(tile_rows: usize) -> Result<Self> {
        const WHAT: &str = "a tile's distances";
        Ok(Self {
            labels: memory::zeroed(tile_rows, WHAT)?,
            nearest: memory::zeroed(tile_rows, WHAT)?,
            second: memory::zeroed(tile_rows, WHAT)?,
            others: memory::zeroed(tile_rows, WHAT)?,
        })
    }

    /// Compares the distances to the two candidates of each row, then takes over the answers of settled rows. Candidates are in
    /// ascending order, so equal distances keep the smaller label.
    #[inline(always)]
    fn compare<V: Vector, T: Float>(&mut self, tile: &Tile<T>, table: &CentroidTable<T>, open: &OpenRows) {
        let Self { labels, nearest, second, others } = self;
        own_distances::<V, T>(tile.values(), table, &labels[..tile.rows], nearest);
        own_distances::<V, T>(tile.values(), table, &others[..tile.rows], second);
        for r in 0..tile.rows {
            if second[r] < nearest[r] {
                (labels[r], nearest[r], second[r]) = (others[r], second[r], nearest[r]);
            }
        }
        for (r, answer) in &open.settled {
            let r = *r as usize;
            (labels[r], nearest[r], second[r]) = (answer.label, answer.distance, answer.second);
        }
    }
}

impl Assigner {
    /// Number of rows that a tile of these features must have room for. A multiple of 64.
    pub fn tile_rows<T: Float>(features: &Features<'_, T>) -> usize {
        Self::rows_of_tile::<T>(features.n_rows(), features.n_features(), features.is_row_by_row())
    }

    /// The same for `n` rows of `d` features.
    pub fn rows_of_tile<T: Float>(n: usize, d: usize, row_by_row: bool) -> usize {
        let most = match ScoreForm::of::<T>(d) {
            ScoreForm::Difference => DIFFERENCE_TILE,
            ScoreForm::Product => product::tile_rows(d, row_by_row),
        };
        most.min(n.next_multiple_of(product::ROWS)).max(product::ROWS)
    }

    /// Buffers for tiles of `tile_rows` rows.
    pub fn new<T: Float>(d: usize, k: usize, tile_rows: usize) -> Result<Self> {
        const WHAT: &str = "a tile's labels";
        let open = OpenRows::new(d, tile_rows)?;
        let (mut scaled, mut product) = (Vec::new(), Vec::new());
        let k = match ScoreForm::of::<T>(d) {
            // Nothing else is used.
            _ if tree::is_certain(k, d) => 0,
            ScoreForm::Difference => {
                memory::reserve(&mut scaled, d * tile_rows, WHAT)?;
                k
            }
            ScoreForm::Product => {
                memory::push(&mut product, ProductScratch::new(k)?, WHAT)?;
                0
            }
        };
        let (listed, names, marks, scores) = (Vec::new(), Vec::new(), Vec::new(), Scores::default());
        let (found, waiting) = (TileResults::new(tile_rows, k)?, Waiting::default());
        Ok(Self { found, open, scaled, product, unweighed: 0, listed, names, marks, waiting, scores })
    }

    /// Room for rows with near centroids.
    pub fn reserve_near<T: Float>(&mut self, k: usize, d: usize) -> Result<()> {
        const WHAT: &str = "the centroids near a tile";
        let most = if ScoreForm::of::<T>(d) == ScoreForm::Difference { k } else { 0 };
        self.names.clear();
        self.listed.clear();
        self.marks = memory::zeroed(most.div_ceil(64), WHAT)?;
        memory::reserve(&mut self.names, most, WHAT)?;
        memory::reserve(&mut self.listed, most * d, WHAT)
    }

    /// The exact labels of some rows. With `TWO`, the filter looks for the two nearest centroids, and `others` gets the second
    /// one where the filter is sure of both. Those of other rows are among the settled rows then.
    #[inline(always)]
    pub fn label<V: Vector, T: Float, C: ByFeature<T>, const TWO: bool>(
        &mut self,
        rows: &ToLabel<'_, T, C>,
        table: &CentroidTable<T>,
        others: &mut [u32],
    ) -> &[u32] {
        let ToLabel { values, count, near, .. } = *rows;
        self.open.clear();
        others.fill(0);
        match &table.filter {
            Filter::Tree(tree) if !TWO => {
                return self.search::<V, T, C, false>(rows, tree, table, [&mut [], &mut []]);
            }
            Filter::Difference(copies) if !TWO || table.k > 1 => {
                self.compare_differences::<V, T, C, TWO>(rows, copies, table, others);
            }
            Filter::Product(copies) if !TWO || table.k > 1 => {
                self.compare_products::<V, T, C, TWO>(rows, copies, table, others);
            }
            _ => {
                self.open.all.extend(0..count as u32);
                self.scores.see(near.map(|_| table.k), table.k, [count; 2]);
            }
        }
        self.open.settle::<V, T>(values, table);
        for (r, answer) in &self.open.settled {
            self.found.labels[*r as usize] = answer.label;
        }
        if let (Filter::Product(copies), Some(product)) = (&table.filter, self.product.first_mut()) {
            self.unweighed += 1;
            if near.is_none() || self.unweighed >= WEIGHED {
                product.weigh(copies, &self.found.labels[..count]);
                self.unweighed = 0;
            }
        }
        &self.found.labels[..count]
    }

    /// The exact label of every row of the tile.
    #[inline(always)]
    pub fn label_tile<V: Vector, T: Float>(&mut self, tile: &Tile<T>, table: &CentroidTable<T>) -> &[u32] {
        self.label::<V, T, _, false>(&ToLabel::tile(tile), table, &mut [])
    }

    /// The exact labels of some rows by a tree. With `TWO`, `distances` gets those to the two nearest centroids.
    #[inline(always)]
    fn search<V: Vector, T: Float, C: ByFeature<T>, const TWO: bool>(
        &mut self,
        rows: &ToLabel<'_, T, C>,
        tree: &CentroidTree<T>,
        table: &CentroidTable<T>,
        distances: [&mut [f64]; 2],
    ) -> &[u32] {
        let ToLabel { values, count, before, .. } = *rows;
        let Self { found, waiting, scores, .. } = self;
        let labels = &mut found.labels[..count];
        let search = TreeSearch::<T, C, TWO> { tree, table, values, before, waiting, labels, distances };
        scores.needed += (tree::WIDE * V::call(search)) as u64;
        &found.labels[..count]
    }

    /// The labels that the difference filter is sure of. Lists the rows that it leaves open.
    #[inline(always)]
    fn compare_differences<V: Vector, T: Float, C: ByFeature<T>, const TWO: bool>(
        &mut self,
        rows: &ToLabel<'_, T, C>,
        copies: &DifferenceTable,
        table: &CentroidTable<T>,
        others: &mut [u32],
    ) {
        let ToLabel { values, count, near, .. } = *rows;
        let Self { found, open, scaled, listed, names, marks, scores, .. } = self;
        let (d, padded) = (table.d, count.next_multiple_of(BLOCK));
        let mut centroids = &copies.centroids[..];
        if let Some(Near { panels, order }) = near {
            names.clear();
            listed.clear();
            let members = panels.iter().flat_map(|panel| &order[*panel as usize * GROUP..][..GROUP]);
            // In ascending order, so that the first of two equal scores has the smaller number.
            for j in members.filter(|j| **j != NO_CENTROID) {
                marks[*j as usize / 64] |= 1 << (j % 64);
            }
            for (first, marks) in (0..).step_by(64).zip(&mut *marks) {
                while *marks != 0 {
                    let j = first + marks.trailing_zeros();
                    *marks &= *marks - 1;
                    names.push(j);
                    listed.extend_from_slice(&centroids[j as usize * d..][..d]);
                }
            }
            scores.see(Some(names.len()), table.k, [count, padded]);
            centroids = &listed[..];
        }
        let x = for_differences(&values, [d, padded], copies.scale, scaled);
        let table = TileCentroids { centroids, bound: copies.bound };
        V::call(Compare::<TWO> { x: &x, d, rows: count, table, found, others });
        if near.is_some() {
            for label in &mut found.labels[..count] {
                // A row for which the filter found nothing is in doubt.
                *label = names.get(*label as usize).copied().unwrap_or(0);
            }
        }
        open.all.append(&mut found.in_doubt);
    }

    /// As [`Assigner::compare_differences`], with the product filter.
    #[inline(always)]
    fn compare_products<V: Vector, T: Float, C: ByFeature<T>, const TWO: bool>(
        &mut self,
        rows: &ToLabel<'_, T, C>,
        copies: &ProductTable,
        table: &CentroidTable<T>,
        others: &mut [u32],
    ) {
        let ToLabel { values, count, near, next, .. } = *rows;
        let Self { found, open, product, scores, .. } = self;
        let Some(product) = product.first_mut() else { unreachable!("there is room for products") };
        let panels = near.map(|near| near.panels);
        for first in (0..count).step_by(product::ROWS) {
            let here = first..count.min(first + product::ROWS);
            let centroids = panels.map(|panels| panels.len() * GROUP);
            scores.see(centroids, table.k, [here.len(), product::computed_rows::<V>(here.len())]);
            let (k, rows) = (table.k, here.clone());
            V::call(FindNear::<T, C, TWO> { product, values, rows, table: copies, k, listed: panels, next, taker: None });
            for r in here {
                match product.candidates(r - first) {
                    Some([label]) if !TWO => found.labels[r] = *label,
                    Some([label, other]) if TWO => (found.labels[r], others[r]) = (*label, *other),
                    candidates => open.push(r, candidates, values, table),
                }
            }
        }
    }

    /// Passes the scores of some rows of a tile, at most 64, to `several`, which lists candidates for the `m` nearest centroids
    /// of each row. Returns what the errors of the scores add to the limits of the rows. `None` if there are no such scores, or
    /// if few centroids would be ruled out.
    #[inline(always)]
    pub fn candidates<V: Vector, T: Float>(
        &mut self,
        tile: &Tile<T>,
        rows: Range<usize>,
        table: &CentroidTable<T>,
        m: usize,
        several: &mut ScoreLists,
    ) -> Option<[f32; product::ROWS]> {
        let (Filter::Product(copies), Some(product)) = (&table.filter, self.product.first_mut()) else { return None };
        let (values, k, next) = (tile.values(), table.k, PrefetchNext::Nothing);
        if 4 * m > k {
            return None;
        }
        several.clear();
        let (listed, taker) = (None, Some(ScoreTaker::Several(several)));
        let task = FindNear::<T, _, false> { product, values, rows, table: copies, k, listed, next, taker };
        V::call(task);
        self.product.first().map(ProductScratch::widths)
    }

    /// The two nearest centroids of every row of the tile.
    #[inline(always)]
    pub fn nearest<V: Vector, T: Float>(&mut self, tile: &Tile<T>, table: &CentroidTable<T>, out: &mut TwoNearest) {
        let rows = ToLabel::tile(tile);
        if let Filter::Tree(tree) = &table.filter {
            let TwoNearest { labels, nearest, second, .. } = out;
            let distances = [&mut nearest[..tile.rows], &mut second[..tile.rows]];
            labels[..tile.rows].copy_from_slice(self.search::<V, T, _, true>(&rows, tree, table, distances));
            return;
        }
        let labels = self.label::<V, T, _, true>(&rows, table, &mut out.others);
        out.labels[..tile.rows].copy_from_slice(labels);
        out.compare::<V, T>(tile, table, &self.open);
    }
}

/// The columns of few features as the difference kernel reads them: in a copy, if their magnitudes must be scaled.
#[inline(always)]
fn for_differences<'x, T: Float>(
    values: &'x impl ByFeature<T>,
    [d, rows]: [usize; 2],
    scale: f32,
    scaled: &'x mut Vec<f32>,
) -> [&'x [f32]; FEW] {
    let mut all: [&[f32]; FEW] = [&[]; FEW];
    for f in 0..d {
        let Some(column) = T::as_f32s(values.column(f)) else { unreachable!("float32 features are compared by differences") };
        all[f] = &column[..rows];
    }
    if scale != 1.0 {
        // `Assigner::new` reserved the room.
        scaled.clear();
        for column in &all[..d] {
            scaled.extend(column.iter().map(|x| x * scale));
        }
        for f in 0..d {
            all[f] = &scaled[f * rows..][..rows];
        }
    }
    all
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cpu::deltas::Moved;
    use crate::backend::cpu::pass::replace;
    use crate::backend::cpu::product::attacks::Random;
    use crate::exact::cluster_sums::UNASSIGNED;
    use crate::exact::reference::{self, Nearest};
    use crate::input::tile::RowBlock;
    use crate::simd::{InstructionSet, Task};

    struct Both<'t, T> {
        tile: &'t Tile<T>,
        table: &'t CentroidTable<T>,
        labels: &'t mut [u32],
    }

    impl<T: Float> Task for Both<'_, T> {
        type Output = (Vec<Moved>, TwoNearest);

        #[inline(always)]
        fn run<V: Vector>(self) -> Self::Output {
            let Self { tile, table, labels } = self;
            let mut assigner = Assigner::new::<T>(table.d, table.k, tile.stride).unwrap();
            let mut two = TwoNearest::new(tile.stride).unwrap();
            assigner.nearest::<V, T>(tile, table, &mut two);
            let mut moved = Vec::new();
            replace(labels, assigner.label_tile::<V, T>(tile, table), &mut moved);
            (moved, two)
        }
    }

    /// Rows on a coarse lattice have many ties, and many centroids that are equally near.
    fn check<T: Float>(d: usize, k: usize, n: usize, levels: usize) {
        let mut random = Random((d * 1_000 + k) as u64);
        let mut value = || T::from_f64(random.index(levels) as f64);
        let centroids: Vec<T> = (0..k * d).map(|_| value()).collect();
        let x: Vec<T> = (0..n * d).map(|_| value()).collect();
        let part = RowBlock::new(Features::from_rows(&x, d).unwrap(), None);
        let mut tile = Tile::new(d, n.next_multiple_of(64)).unwrap();
        tile.load(&part, None, 0..n);
        for set in InstructionSet::ALL {
            let table = CentroidTable::new(&centroids, d, &vec![1.0; d], levels as f64, set, 1).unwrap();
            // Some rows have their label already.
            let expected: Vec<Nearest> = x.chunks_exact(d).map(|x| reference::nearest(x, &centroids)).collect();
            let right: Vec<u32> = expected.iter().map(|nearest| nearest.label).collect();
            let before: Vec<u32> = (0..n).map(|r| [right[r], UNASSIGNED, 0][r % 3]).collect();
            let mut labels = before.clone();
            let (moved, two) = set.run(Both { tile: &tile, table: &table, labels: &mut labels });
            assert_eq!(labels, right, "{set:?} d {d} k {k}");
            let changed = (0..n).filter(|&r| before[r] != right[r]);
            assert!(changed.map(|r| Moved { row: r as u32, from: before[r], to: right[r] }).eq(moved), "{set:?} d {d} k {k}");
            for (r, expected) in expected.iter().enumerate() {
                let found = Nearest { label: two.labels[r], distance: two.nearest[r], second: two.second[r] };
                assert_eq!(found, *expected, "{set:?} d {d} k {k} row {r}");
            }
        }
    }

    unit_test!(labels_and_the_two_nearest_are_the_oracles);
    fn labels_and_the_two_nearest_are_the_oracles() {
        for levels in [2, 5, 1 << 20] {
            for (d, k, n) in [
                (1, 1, 5),
                (1, 40, 70),
                (2, 17, 64),
                (3, 2, 61),
                (4, 3, 61),
                (7, 5, 61),
                (3, 100, 130),
                (8, 30, 200),
                (9, 16, 65),
                (9, 33, 64),
            ] {
                check::<f32>(d, k, n, levels);
                check::<f64>(d, k, n, levels);
            }
            check::<f32>(12, 1_100, 40, levels);
            check::<f32>(150, 40, 90, levels);
        }
    }
}
