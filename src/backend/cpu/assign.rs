//! Finds the labels of one tile: first the filter, then reference distances for the rows that the filter leaves open.

mod groups;
mod in_place;
mod int_dot;

pub use self::groups::GroupRows;
pub use self::int_dot::DotBlock;
use super::centroids::CentroidTable;
use super::difference::{Found, assign_difference};
use super::distances::own_distances;
use super::filter::{DifferenceTable, Filter, Form, ProductTable};
use super::product::{self, PrefetchNext, ProductScratch};
use super::settle::Open;
use crate::backend::cpu::deltas::Moved;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::Features;
use crate::input::tile::{Columns, FewColumns, Tile};
use crate::simd::Vector;

/// Number of rows in a tile of the difference filter.
const DIFFERENCE_TILE: usize = 512;

/// Buffers to label tiles of one shape.
#[derive(Debug)]
pub struct Assigner {
    found: Found,
    /// Rows that the filter leaves open.
    pub open: Open,
    /// The difference kernel's copy of the tile, used where rows must be scaled.
    scaled: Vec<f32>,
    /// At most one entry.
    product: Vec<ProductScratch>,
    /// How often near rows were labelled since the last look at their weight.
    unweighed: u32,
    /// The copies of the centroids near a tile, and their names.
    listed: Vec<f32>,
    names: Vec<u32>,
    /// A bit for each centroid.
    marks: Vec<u64>,
}

/// The two nearest centroids of each row of a tile. Distances are squared reference distances.
#[derive(Debug)]
pub struct TwoNearest {
    pub labels: Vec<u32>,
    pub nearest: Vec<f64>,
    /// The distance to the nearest other centroid. Infinite if there is one cluster.
    pub second: Vec<f64>,
    /// The other one of the two nearest centroids, where the filter is sure which two centroids are nearest.
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
    fn compare<T: Float>(&mut self, tile: &Tile<T>, table: &CentroidTable<T>, open: &Open) {
        let Self { labels, nearest, second, others } = self;
        own_distances(tile, table, labels, nearest);
        own_distances(tile, table, others, second);
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
        let (n, d) = (features.n_rows(), features.n_features());
        let most = match Form::of::<T>(d) {
            Form::Difference => DIFFERENCE_TILE,
            Form::Product => product::tile_rows(d, features.is_row_by_row()),
        };
        most.min(n.next_multiple_of(product::ROWS)).max(product::ROWS)
    }

    /// Buffers for tiles of `tile_rows` rows.
    pub fn new<T: Float>(d: usize, k: usize, tile_rows: usize) -> Result<Self> {
        const WHAT: &str = "a tile's labels";
        let open = Open::new(d, tile_rows)?;
        let (mut scaled, mut product) = (Vec::new(), Vec::new());
        let k = match Form::of::<T>(d) {
            Form::Difference => {
                memory::reserve(&mut scaled, d * tile_rows, WHAT)?;
                k
            }
            Form::Product => {
                memory::push(&mut product, ProductScratch::new(k)?, WHAT)?;
                0
            }
        };
        let (listed, names, marks) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { found: Found::new(tile_rows, k)?, open, scaled, product, unweighed: 0, listed, names, marks })
    }

    /// The exact label of every row of the tile.
    #[inline(always)]
    pub fn label<V: Vector, T: Float>(&mut self, tile: &Tile<T>, table: &CentroidTable<T>) -> &[u32] {
        let Self { found, open, .. } = self;
        open.clear();
        match (&table.filter, T::as_f32s(&tile.x), self.product.first_mut()) {
            (Filter::Difference(copies), Some(x), _) => {
                let x = in_filters_range(x, copies, &mut self.scaled);
                let x = FewColumns::of_tile(x, tile.stride, table.d);
                assign_difference::<V, false>(&x, [table.d, tile.rows], copies.into(), found, &mut []);
                open.push_all(found.contested.drain(..));
            }
            (Filter::Product(copies), _, Some(product)) => {
                label_products::<V, T>(product, tile.values(), tile.rows, (copies, table), PrefetchNext::Nothing, found, open);
            }
            _ => {
                for r in 0..tile.rows {
                    open.push(r, None, tile.values(), table);
                }
            }
        }
        open.settle::<V, T>(tile.values(), table);
        for (r, answer) in &open.settled {
            found.labels[*r as usize] = answer.label;
        }
        if let (Filter::Product(copies), Some(product)) = (&table.filter, self.product.first_mut()) {
            product.weigh(copies, &found.labels[..tile.rows]);
        }
        &found.labels[..tile.rows]
    }

    /// As [`Assigner::label`], over the labels that the rows had before. Lists the rows whose label changed, in order.
    #[inline(always)]
    pub fn relabel<V: Vector, T: Float>(
        &mut self,
        tile: &Tile<T>,
        table: &CentroidTable<T>,
        labels: &mut [u32],
        moved: &mut Vec<Moved>,
    ) {
        self.label::<V, T>(tile, table);
        replace(labels, &self.found.labels[..tile.rows], moved);
    }

    /// The two nearest centroids of every row of the tile.
    #[inline(always)]
    pub fn nearest<V: Vector, T: Float>(&mut self, tile: &Tile<T>, table: &CentroidTable<T>, out: &mut TwoNearest) {
        let Self { found, open, .. } = self;
        open.clear();
        match (&table.filter, T::as_f32s(&tile.x), self.product.first_mut()) {
            (Filter::Difference(copies), Some(x), _) if table.k > 1 => {
                let x = in_filters_range(x, copies, &mut self.scaled);
                let x = FewColumns::of_tile(x, tile.stride, table.d);
                assign_difference::<V, true>(&x, [table.d, tile.rows], copies.into(), found, &mut out.others);
                out.labels[..tile.rows].copy_from_slice(&found.labels[..tile.rows]);
                open.push_all(found.contested.drain(..));
            }
            (Filter::Product(copies), _, Some(product)) if table.k > 1 => {
                for first in (0..tile.rows).step_by(product::ROWS) {
                    let rows = first..tile.rows.min(first + product::ROWS);
                    product.find_candidates::<V, T, true>(
                        tile.values(),
                        rows.clone(),
                        copies,
                        table.k,
                        None,
                        PrefetchNext::Nothing,
                    );
                    for r in rows {
                        (out.labels[r], out.others[r]) = match product.candidates(r - first) {
                            Some([a, b]) => (*a, *b),
                            candidates => {
                                open.push(r, candidates, tile.values(), table);
                                (0, 0)
                            }
                        };
                    }
                }
                product.weigh(copies, &out.labels[..tile.rows]);
            }
            _ => {
                out.labels.fill(0);
                out.others.fill(0);
                for r in 0..tile.rows {
                    open.push(r, None, tile.values(), table);
                }
            }
        }
        open.settle::<V, T>(tile.values(), table);
        out.compare(tile, table, open);
    }
}

/// Labels rows by the product filter, and lists those that it leaves open.
#[inline(always)]
fn label_products<V: Vector, T: Float>(
    product: &mut ProductScratch,
    values: impl Columns<T>,
    rows: usize,
    (copies, table): (&ProductTable, &CentroidTable<T>),
    prefetch_next: PrefetchNext<'_, T>,
    found: &mut Found,
    open: &mut Open,
) {
    for first in (0..rows).step_by(product::ROWS) {
        let rows = first..rows.min(first + product::ROWS);
        product.find_candidates::<V, T, false>(values, rows.clone(), copies, table.k, None, prefetch_next);
        for r in rows {
            match product.candidates(r - first) {
                Some([label]) => found.labels[r] = *label,
                candidates => open.push(r, candidates, values, table),
            }
        }
    }
}

/// Replaces the labels of some rows, and lists those that change, in order. There is room for all of them.
#[inline(always)]
fn replace(labels: &mut [u32], new: &[u32], moved: &mut Vec<Moved>) {
    moved.clear();
    let (labels, last_labels) = labels.as_chunks_mut::<TOGETHER>();
    let (new, last) = new.as_chunks::<TOGETHER>();
    let all = labels.len() * TOGETHER;
    for (first, (labels, new)) in (0..).step_by(TOGETHER).zip(labels.iter_mut().zip(new)) {
        if labels != new {
            list(first, labels, new, moved);
        }
    }
    list(all as u32, last_labels, last, moved);
}

/// Number of labels that are compared at a time.
const TOGETHER: usize = 16;

/// As [`replace`], for at most [`TOGETHER`] labels, of rows from `first` on.
#[inline(always)]
fn list(first: u32, labels: &mut [u32], new: &[u32], moved: &mut Vec<Moved>) {
    let (mut found, mut count) = ([Moved::default(); TOGETHER], 0);
    for (row, (label, to)) in (first..).zip(labels.iter_mut().zip(new)) {
        found[count % TOGETHER] = Moved { row, from: *label, to: *to };
        count += usize::from(label != to);
        *label = *to;
    }
    moved.extend_from_slice(&found[..count]);
}

/// The rows as the difference kernel reads them: scaled, if their magnitudes need it.
#[inline(always)]
fn in_filters_range<'x>(x: &'x [f32], copies: &DifferenceTable, scaled: &'x mut Vec<f32>) -> &'x [f32] {
    if copies.scale == 1.0 {
        return x;
    }
    // `Assigner::new` reserved the room.
    scaled.clear();
    scaled.extend(x.iter().map(|x| x * copies.scale));
    scaled
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::exact::cluster_sums::UNASSIGNED;
    use crate::exact::reference::{self, Nearest};
    use crate::input::tile::Part;
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
            assigner.relabel::<V, T>(tile, table, labels, &mut moved);
            (moved, two)
        }
    }

    /// Rows on a coarse lattice have many ties, and many centroids that are equally near.
    fn check<T: Float>(d: usize, k: usize, n: usize, levels: u64) {
        let mut state = (d * 1_000 + k) as u64;
        let mut value = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::from_f64((state >> 40) as f64 % levels as f64)
        };
        let centroids: Vec<T> = (0..k * d).map(|_| value()).collect();
        let x: Vec<T> = (0..n * d).map(|_| value()).collect();
        let part = Part::new(Features::from_rows(&x, d).unwrap(), None);
        let mut tile = Tile::new(d, n.next_multiple_of(64)).unwrap();
        tile.load(&part, None, 0..n);
        let table = CentroidTable::new(&centroids, d, &vec![1.0; d], levels as f64, &[]).unwrap();
        for set in [InstructionSet::Portable, InstructionSet::Neon, InstructionSet::Avx2, InstructionSet::Avx512] {
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
            for (d, k, n) in [(1, 1, 5), (1, 40, 70), (2, 17, 64), (3, 100, 130), (8, 30, 200), (9, 16, 65), (9, 33, 64)] {
                check::<f32>(d, k, n, levels);
                check::<f64>(d, k, n, levels);
            }
            check::<f32>(12, 1_100, 40, levels);
            check::<f32>(150, 40, 90, levels);
        }
    }
}
