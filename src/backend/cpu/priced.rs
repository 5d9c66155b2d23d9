//! Passes with a price on each centroid ([`PricedPasses`]).
//!
//! ```text
//! for 64 rows of a tile, panel by panel of centroids:
//!   scores of the product filter (product.rs)
//!   limit = the least of score + slack + price, and what errors add to the limits of the row
//!   centroids whose score + price, less their width beside the centroid of the limit, is up to the limit are in reach
//!                                                                                                priced/scores.rs
//! one in reach: no list; several: their reference distances
//! ```
//! The bound. A score y_j stands for `H_j = |c_j|^2 / 2 - x.c_j` in scaled, centred units (`bounds/own.rs`). Let `P_a` be half
//! the scaled price less the width of a beside b, and `Q_b` half the scaled price of b, both over the row's weight. If centroid a
//! can be the label, `S_a + 2 P_a <= S_b + 2 Q_b` with rounded reference distances S. As in `own.rs` that gives
//!
//! ```text
//! H_a + P_a <= H_b + Q_b + (g / 2) (D_a + D_b) + n,   D_a <= D_b + 2 (Q_b - P_a) + ..   so
//! y_a + P_a <= y_b + Q_b + F_b + (2 E_x + r (1 + t) |x|^2) + 1.01 g max (|P| + |Q|)
//! ```
//! which is the limit without prices and one term more. Integers of weighted distances have one rounding more, `fl(w S)`. Slacks
//! and widths hold float32 roundings that are at least 2^-22 of the same squares, so the factor `SLIGHTLY` covers it. A
//! priced score has roundings of the price, the share and the product, at most 4 u of the price: prices and widths are moved
//! outwards by that. Its two last roundings are of its own size, which the limit covers. A row out of the filter's range is
//! compared with all centroids.

mod scores;

pub use self::scores::PricedScores;

use std::sync::Arc;

use self::scores::PriceTable;
use super::centroids::CentroidTable;
use super::distances::own_distances;
use super::filter::Filter;
use super::nearest_clusters::distances;
use super::pass::{Shared, WorkerBuffers};
use super::picks::Walk;
use super::product::{FindNear, PrefetchNext, ProductScratch, ROWS, ScoreTaker, tile_rows};
use super::tasks::{TaskRows, for_each_weight, pieces, split_off};
use super::{CpuSession, LabelsOf};
use crate::backend::centre::middle;
use crate::backend::cpu::deltas::{Deltas, Moved};
use crate::backend::priced::{BLOCK, Band, LISTS, PassRows, PriceRange, PricedPasses, SampleCosts, Widths};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::input::tile::Tile;
use crate::simd::{Task, Vector};

/// Beyond this power of two, slacks are infinite, and all centroids are listed.
const MOST_EXPONENT: i32 = 2_044;
/// Rows of a task.
const TASK: usize = 1 << 13;
const _: () = assert!(ROWS == BLOCK && TASK.is_multiple_of(ROWS));

/// What a thread needs.
struct Lister<T> {
    tile: Tile<T>,
    product: ProductScratch,
    scores: PricedScores,
    row: Vec<f64>,
    physical: Vec<usize>,
    walk: Walk,
}

/// Scores some rows, for a band or a sample.
struct ScoreRows<'p, 's, 'a, T> {
    session: &'s CpuSession<'a, T>,
    table: &'p CentroidTable<T>,
    lister: &'p mut Lister<T>,
    rows: PassRows<'p>,
    /// The first of these rows, and how many there are.
    first: usize,
    count: usize,
    found: Found<'p>,
}

/// Where the results of a task go.
enum Found<'p> {
    Band(&'p mut Band),
    /// See [`SampleCosts::values`].
    Costs(&'p mut [f32]),
}

impl<T: Float> Task for ScoreRows<'_, '_, '_, T> {
    type Output = Result<()>;

    #[inline(always)]
    fn run<V: Vector>(self) -> Result<()> {
        let Self { session, table, lister, rows, first, count, mut found } = self;
        let Lister { tile, product, scores, row, physical, walk } = lister;
        let (part, scale) = (&session.part, session.statistics.weights);
        if let Found::Band(band) = &mut found {
            memory::reserve(&mut band.nearest, count, LISTS)?;
        }
        for here in pieces(first..first + count, tile.stride) {
            match rows {
                PassRows::All if part.selection.is_all() => tile.load(part, scale, here.clone()),
                _ => {
                    physical.clear();
                    physical.extend(here.clone().map(|place| walk.physical(session, rows.row(place) as usize)));
                    tile.load_list(part, scale, physical);
                }
            }
            for from in (0..here.len()).step_by(ROWS) {
                let some = ROWS.min(here.len() - from);
                let weights = scale.is_some().then(|| &tile.weights[from..from + some]);
                scores.begin(weights);
                if let Filter::Product(copies) = &table.filter {
                    let (rows, values, k, next) = (from..from + some, tile.values(), table.k, PrefetchNext::Nothing);
                    let taker = Some(ScoreTaker::Priced(&mut *scores));
                    V::call(FindNear::<T, _, false> { product, values, rows, table: copies, k, listed: None, next, taker });
                }
                let found = match &mut found {
                    Found::Band(found) => found,
                    Found::Costs(values) => {
                        let block = (here.start + from - first) / ROWS;
                        scores.write(some, weights, &mut values[block * table.k * ROWS..][..table.k * ROWS]);
                        continue;
                    }
                };
                match table.filter {
                    Filter::Product(_) => scores.list::<V>(some, &product.widths()),
                    _ => (0..some).for_each(|r| scores.list_all(r)),
                }
                for r in 0..some {
                    let weight = weights.map_or(1.0, |weights| weights[r]);
                    found.nearest.push(scores.nearest(r));
                    let listed = &scores.lists[r];
                    if listed.len() == 1 {
                        continue;
                    }
                    memory::push(&mut found.rows, found.nearest.len() as u32 - 1, LISTS)?;
                    if scale.is_some() {
                        memory::push(&mut found.weights, weight, LISTS)?;
                    }
                    for (f, x) in row.iter_mut().enumerate() {
                        *x = tile.x[f * tile.stride + from + r].to_f64();
                    }
                    memory::extend(&mut found.clusters, listed, LISTS)?;
                    memory::reserve_more(&mut found.squares, listed.len(), LISTS)?;
                    for names in listed.chunks(4) {
                        let s = distances::<T, 4>(row, names, table);
                        found.squares.extend_from_slice(&s[..names.len()]);
                    }
                    memory::push(&mut found.ends, found.clusters.len(), LISTS)?;
                }
            }
        }
        Ok(())
    }
}

impl<T: Float> CpuSession<'_, T> {
    /// Scores these rows, and gives the results of each [`TASK`] of them to one of `found`. Returns the unit of costs.
    fn score_rows<'p>(
        &self,
        centroids: &[T],
        rows: PassRows<'_>,
        range: &PriceRange<'_>,
        found: impl Iterator<Item = Found<'p>> + Send,
    ) -> Result<f64> {
        let (d, session) = (self.d, self);
        let (centre, threads) = (middle(centroids, d)?, self.workers.len());
        let table = &CentroidTable::by_products(centroids, d, &centre, self.set, threads)?;
        let exponent = if let Filter::Product(copies) = &table.filter { copies.scale_exponent } else { 0 };
        let prices = Arc::new(PriceTable::new(range, d, (2 * exponent).clamp(-MOST_EXPONENT, MOST_EXPONENT))?);
        let count = rows.count(self.labels.len());
        let stride = tile_rows(d, false);
        let lister = |_| {
            let lister = Lister {
                tile: Tile::new(d, stride)?,
                product: ProductScratch::new(self.k)?,
                scores: PricedScores::new(&prices)?,
                row: memory::zeroed(d, LISTS)?,
                physical: memory::with_room(stride, LISTS)?,
                walk: Walk::default(),
            };
            Ok((lister, Ok(())))
        };
        let mut listers = memory::try_collected((0..threads.min(count.div_ceil(TASK)).max(1)).map(lister), LISTS)?;
        let tasks = pieces(0..count, TASK).zip(found);
        for_each_task(&mut listers, tasks, |(lister, result), (range, found)| {
            let (first, count) = (range.start, range.len());
            if result.is_ok() {
                *result = session.set.run(ScoreRows { session, table, lister, rows, first, count, found });
            }
        })?;
        listers.into_iter().try_for_each(|(_, result)| result)?;
        Ok(prices.unit())
    }
}

impl<T: Float> PricedPasses<T> for CpuSession<'_, T> {
    fn counted_rows(&mut self) -> Result<Option<Vec<u64>>> {
        if self.statistics.n_positive == self.labels.len() as u64 {
            return Ok(None);
        }
        let mut rows = memory::with_room(self.statistics.n_positive as usize, LISTS)?;
        for task in &self.tasks {
            let mut row = task.first as u64;
            for_each_weight(&self.part, task.physical.clone(), |weight| {
                if weight > 0.0 {
                    rows.push(row);
                }
                row += 1;
            });
        }
        Ok(Some(rows))
    }

    fn sample(&mut self, centroids: &[T], rows: PassRows<'_>, mut values: Vec<f32>) -> Result<SampleCosts> {
        let (k, count) = (self.k, rows.count(self.labels.len()));
        let needed = count.div_ceil(ROWS).saturating_mul(k * ROWS);
        let more = needed.saturating_sub(values.len());
        memory::reserve(&mut values, more, LISTS)?;
        values.resize(needed, 0.0);
        let none = Widths { unit: 1.0, pairs: Vec::new(), own: memory::zeroed(k, LISTS)? };
        let range = PriceRange { prices: &memory::zeroed(k, LISTS)?, widths: &none };
        let unit = self.score_rows(centroids, rows, &range, values.chunks_mut(TASK * k).map(Found::Costs))?;
        Ok(SampleCosts { values, rows: count, unit })
    }

    fn band(&mut self, centroids: &[T], rows: PassRows<'_>, range: &PriceRange<'_>) -> Result<Band> {
        let count = rows.count(self.labels.len());
        let mut found = memory::with_room(count.div_ceil(TASK), LISTS)?;
        found.resize_with(count.div_ceil(TASK), Band::default);
        self.score_rows(centroids, rows, range, found.iter_mut().map(Found::Band))?;
        let mut all = Band::default();
        memory::reserve(&mut all.nearest, count, LISTS)?;
        for (task, some) in found.iter().enumerate() {
            all.append(some, task * TASK)?;
        }
        Ok(all)
    }

    fn own_squares(&mut self) -> Result<Vec<f64>> {
        let Self { part, statistics, set, tasks, labels, workers, table, .. } = self;
        let mut squares = memory::zeroed(labels.len(), LISTS)?;
        let Some(table) = table else { return Ok(squares) };
        let (mut rest, mut own) = (&mut squares[..], &labels[..]);
        let tasks = tasks.iter().map(move |task| {
            let some;
            (some, own) = own.split_at(task.kept);
            (task, split_off(&mut rest, task.kept), some)
        });
        let scale = statistics.weights;
        for_each_task(workers, tasks, |worker, (task, out, labels)| {
            let mut at = 0;
            for range in pieces(task.physical.clone(), worker.tile.stride) {
                worker.tile.load(part, scale, range);
                let rows = at..at + worker.tile.rows;
                at = rows.end;
                set.run(OwnSquares { tile: &worker.tile, table, labels: &labels[rows.clone()], out: &mut out[rows] });
            }
        })?;
        Ok(squares)
    }

    fn relabel(&mut self, labels: &[u32]) -> Result<()> {
        let Self { part, statistics, quantiser, set, tasks, labels: own, cluster_sums, workers, table, .. } = self;
        let Some(table) = table else { return Ok(()) };
        let (mut rest, mut new) = (own.as_mut_slice(), labels);
        let tasks = tasks.iter().map(move |task| {
            let some;
            (some, new) = new.split_at(task.kept);
            (task, split_off(&mut rest, task.kept), some)
        });
        let shared = &Shared { part, statistics, quantiser, table, cluster_sums: std::sync::Mutex::new(cluster_sums) };
        for_each_task(workers, tasks, |worker, (task, own, new)| set.run(RelabelTask { shared, worker, task, own, new }))?;
        self.labels_of = LabelsOf::Other;
        let mut deltas = memory::collected(self.workers.iter_mut().map(|worker| &mut worker.deltas), "the threads' sums")?;
        Deltas::flush_all(&mut deltas, &self.quantiser, &mut self.cluster_sums)
    }
}

/// The distances of the rows of a tile to the centroids of their labels.
struct OwnSquares<'p, T> {
    tile: &'p Tile<T>,
    table: &'p CentroidTable<T>,
    labels: &'p [u32],
    out: &'p mut [f64],
}

impl<T: Float> Task for OwnSquares<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        own_distances::<V, T>(self.tile.values(), self.table, self.labels, self.out);
    }
}

/// Replaces the labels of one task.
struct RelabelTask<'p, 'a, 'm, T> {
    shared: &'p Shared<'p, 'a, 'm, T>,
    worker: &'p mut WorkerBuffers<T>,
    task: &'p TaskRows,
    own: &'p mut [u32],
    new: &'p [u32],
}

impl<T: Float> Task for RelabelTask<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { shared, worker, task, own, new } = self;
        let WorkerBuffers { tile, deltas, moved, chosen, .. } = worker;
        let mut at = 0;
        for range in pieces(task.physical.clone(), tile.stride) {
            chosen.rows.clear();
            moved.clear();
            for row in range.filter(|&row| shared.part.selection.contains(row)) {
                if own[at] != new[at] {
                    moved.push(Moved { row: chosen.rows.len() as u32, from: own[at], to: new[at] });
                    chosen.rows.push(row);
                    own[at] = new[at];
                }
                at += 1;
            }
            if !moved.is_empty() {
                tile.load_list(shared.part, shared.statistics.weights, &chosen.rows);
                shared.take_moved::<V>(tile.values(), &tile.weights, moved, deltas);
            }
        }
    }
}
