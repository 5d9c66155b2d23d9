//! Passes with a price on each centroid ([`PricedPasses`]).
//!
//! ```text
//! for 64 rows of a tile, panel by panel of centroids:
//!   scores of the product filter (product.rs), + price / (2 weight), scaled; the m least are listed
//! for each row: reference distances of its list; the bound on all others, from the largest score of the list
//! ```
//! The bound. In scaled, centred units a score stands for `H_j = |c_j|^2 / 2 - x.c_j` and is at most `H_j + E_x` (`bounds/own.rs`,
//! where the error of the centroid is in its score). Let `q_j` be half the scaled price, rounded down, and v one over the
//! weight. The priced score `y = fl(score + q_j v)` has at most three roundings, of results that are at most `|y| + |q_j v|`. So
//! a centroid with `y > L` has
//!
//! ```text
//! H_j + price / (2 w)  >  L - 2.01 u |L| - 3.01 u Q v - E_x  =: h       Q = max |q_j|,  u = 2^-24
//! D_j + price / w      >= |x|^2 + 2 h                                   in exact squared distances
//! ```
//! `|x|^2` is the squared distance of the row from the centre, in float64. Reference distances and this sum have roundings of float64,
//! of at most `(d + 16) 2^-52` of `|x|^2 + 2 |h| + max |price| / w` together. A row out of the filter's range is compared with all
//! centroids.

use super::centroids::CentroidTable;
use super::filter::{Filter, ProductTable};
use super::nearest_clusters::{ScoreLists, distances};
use super::pass::{Shared, WorkerBuffers};
use super::picks::Walk;
use super::product::{FindNear, PrefetchNext, ProductScratch, ROWS, tile_rows};
use super::tasks::{TaskRows, for_each_weight, pieces, split_off};
use super::{CpuSession, LabelsOf};
use crate::backend::centre::middle;
use crate::backend::cpu::deltas::{Deltas, Moved};
use crate::backend::priced::{LISTS, ListedRows, NearLists, PricedPasses};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::exact::fixed::PowerOfTwo;
use crate::input::tile::Tile;
use crate::simd::{Task, Vector};

/// Unit roundoff of float32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Rows get distances to all centroids if there are at most so many for each place of a list.
const FEW: usize = 2;

/// What a thread needs.
struct Lister<T> {
    tile: Tile<T>,
    product: ProductScratch,
    scores: ScoreLists,
    listed: Vec<u32>,
    row: Vec<f64>,
    /// Reference distance + price over weight, the distance, and the centroid.
    near: Vec<(f64, f64, u32)>,
    physical: Vec<usize>,
    walk: Walk,
}

/// What all tasks of a pass share.
struct Prices<'p, T> {
    table: &'p CentroidTable<T>,
    prices: &'p [f64],
    /// The largest magnitude of a price.
    largest: f64,
    /// The same of half the scaled prices.
    largest_scaled: f64,
    /// From squared distances in the scale of the copies to those of the rows.
    unscale: PowerOfTwo,
}

/// The lists of some rows.
struct ListTask<'p, 's, 'a, T> {
    session: &'s CpuSession<'a, T>,
    shared: &'p Prices<'p, T>,
    lister: &'p mut Lister<T>,
    rows: ListedRows<'p>,
    /// The first of these rows, and how many there are.
    first: usize,
    count: usize,
    m: usize,
    clusters: &'p mut [u32],
    squares: &'p mut [f64],
    rest: &'p mut [f64],
    weights: &'p mut [f64],
}

impl<T: Float> Task for ListTask<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { session, shared, lister, rows, first, count, m, clusters, squares, rest, weights } = self;
        let Lister { tile, product, scores, listed, row, near, physical, walk } = lister;
        let (part, scale, table) = (&session.part, session.statistics.weights, shared.table);
        match rows {
            ListedRows::Every(1) if part.selection.is_all() => tile.load(part, scale, first..first + count),
            _ => {
                physical.clear();
                physical.extend((first..first + count).map(|place| walk.physical(session, rows.row(place) as usize)));
                tile.load_list(part, scale, physical);
            }
        }
        let is_weighted = scale.is_some();
        for from in (0..count).step_by(ROWS) {
            let here = ROWS.min(count - from);
            let of_row = |r: usize| if is_weighted { tile.weights[from + r] } else { 1.0 };
            for r in 0..here {
                let weight = of_row(r);
                scores.shares[r] = if weight > 0.0 { (1.0 / weight) as f32 } else { 0.0 };
            }
            let widths = match &table.filter {
                Filter::Product(copies) if table.k > FEW * m => {
                    scores.clear();
                    let (rows, values, k, next) = (from..from + here, tile.values(), table.k, PrefetchNext::Nothing);
                    let several = Some(&mut *scores);
                    V::call(FindNear::<T, _, false> { product, values, rows, table: copies, k, listed: None, next, several });
                    Some(product.widths())
                }
                _ => None,
            };
            for r in 0..here {
                let at = from + r;
                let weight = of_row(r);
                let share = if weight > 0.0 { 1.0 / weight } else { 0.0 };
                for (f, x) in row.iter_mut().enumerate() {
                    *x = tile.x[f * tile.stride + at].to_f64();
                }
                // Below: the bound on the centroids that are not candidates.
                let mut bound = f64::INFINITY;
                let some = match (&table.filter, widths) {
                    (Filter::Product(copies), Some(widths)) if widths[r].is_finite() => {
                        bound = shared.bound(scores.limit(r), widths[r], share, row, copies);
                        bound.is_finite() && scores.of_row(r, 0.0, listed)
                    }
                    _ => false,
                };
                near.clear();
                if some {
                    let mut names = &listed[..];
                    while !names.is_empty() {
                        let some = names.len().min(8);
                        let s = distances::<T, 8>(row, names, table);
                        near.extend(names[..some].iter().zip(s).map(|(&j, s)| (s + shared.prices[j as usize] * share, s, j)));
                        names = &names[some..];
                    }
                } else {
                    bound = f64::INFINITY;
                    for (group, centroids) in table.groups().enumerate() {
                        let mut s = [0.0f64; 4];
                        for (x, centroids) in row.iter().zip(centroids) {
                            for i in 0..4 {
                                let t = x - centroids[i];
                                s[i] = t.mul_add(t, s[i]);
                            }
                        }
                        let names = (group * 4) as u32..table.k as u32;
                        near.extend(names.zip(s).map(|(j, s)| (s + shared.prices[j as usize] * share, s, j)));
                    }
                }
                if near.len() > m {
                    // Numbers of centroids make the list the same on every instruction set.
                    near.select_nth_unstable_by(m, |a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
                    let (least, s, _) = near[m];
                    bound = bound.min(least - (s + shared.largest * share) * 2f64.powi(-50));
                }
                for (i, (_, s, j)) in near.iter().take(m).enumerate() {
                    (clusters[at * m + i], squares[at * m + i]) = (*j, *s);
                }
                rest[at] = bound;
                if let Some(kept) = weights.get_mut(at) {
                    *kept = weight;
                }
            }
        }
    }
}

impl<T: Float> Prices<'_, T> {
    /// The bound for centroids whose priced scores are above `limit`: see the head of this file. NaN if there is none.
    #[inline(always)]
    fn bound(&self, limit: f32, width: f32, share: f64, row: &[f64], copies: &ProductTable) -> f64 {
        let limit = f64::from(limit);
        let lowest = limit - 2.01 * U * limit.abs() - 3.01 * U * self.largest_scaled * share - 0.5 * f64::from(width);
        let h = self.unscale.apply(2.0 * lowest);
        let square: f64 = row.iter().zip(&copies.centre).map(|(x, m)| (x - m) * (x - m)).sum();
        let roundings = (row.len() + 16) as f64 * 2f64.powi(-52) * (square + h.abs() + self.largest * share);
        square + h - roundings - row.len() as f64 * f64::MIN_POSITIVE
    }
}

impl<T: Float> PricedPasses<T> for CpuSession<'_, T> {
    fn heavy_rows(&mut self) -> Result<Option<Vec<u64>>> {
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

    fn near(&mut self, centroids: &[T], rows: ListedRows<'_>, prices: &[f64], lists: &mut NearLists) -> Result<()> {
        let (d, k, m, session) = (self.d, self.k, lists.m, &*self);
        let (centre, threads) = (middle(centroids, d)?, self.workers.len());
        let table = &CentroidTable::by_products(centroids, d, &centre, self.set, threads)?;
        let largest = prices.iter().fold(0.0f64, |most, price| most.max(price.abs()));
        let exponent = if let Filter::Product(copies) = &table.filter { copies.scale_exponent } else { 0 };
        let scale = PowerOfTwo::new(2 * exponent);
        let scaled = memory::collected(prices.iter().map(|price| below(0.5 * scale.apply(*price))), LISTS)?;
        let largest_scaled = scaled.iter().fold(0.0f64, |most, price| most.max(f64::from(price.abs())));
        let shared = &Prices { table, prices, largest, largest_scaled, unscale: PowerOfTwo::new(-2 * exponent) };
        let count = lists.rest.len();
        let stride = tile_rows(d, false);
        let mut listers = memory::try_collected(
            (0..threads.min(count.div_ceil(stride)).max(1)).map(|_| {
                let mut scores = ScoreLists::new(m, k)?;
                scores.prices = memory::copied(&scaled, LISTS)?;
                Ok(Lister {
                    tile: Tile::new(d, stride)?,
                    product: ProductScratch::new(k)?,
                    scores,
                    listed: memory::with_room(k, LISTS)?,
                    row: memory::zeroed(d, LISTS)?,
                    near: memory::with_room(k.next_multiple_of(8), LISTS)?,
                    physical: memory::with_room(stride, LISTS)?,
                    walk: Walk::default(),
                })
            }),
            LISTS,
        )?;
        let NearLists { clusters, squares, rest, weights, .. } = lists;
        let (mut clusters, mut squares, mut rest, mut weights) = (&mut clusters[..], &mut squares[..], &mut rest[..], &mut weights[..]);
        let tasks = pieces(0..count, stride).map(move |range| {
            let len = range.len();
            let lists = (split_off(&mut clusters, len * m), split_off(&mut squares, len * m));
            (range, lists, split_off(&mut rest, len), split_off(&mut weights, len))
        });
        for_each_task(&mut listers, tasks, |lister, (range, (clusters, squares), rest, weights)| {
            let (first, count) = (range.start, range.len());
            session.set.run(ListTask { session, shared, lister, rows, first, count, m, clusters, squares, rest, weights });
        })
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

/// The largest float32 at or below x.
fn below(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) > x { y.next_down() } else { y }
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
