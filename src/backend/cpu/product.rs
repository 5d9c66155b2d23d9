//! The product filter: scores `|c|^2 / 2 - x.c` on centred, scaled float32 copies, for any d and any k.
//!
//! ```text
//! for 64 rows of a tile:
//!   for each panel of centroids, and TOGETHER of them at a time:
//!     for each panel of features:
//!       x^ = scaled, centred copy of the panel (feature-major)
//!       for each group of centroids:
//!         scores[j][r] += x^ . (-c^)        register-blocked: 4 vectors of rows by 6 centroids
//!         after the last panel:  scores[j][r] += lowered half square of j;  best[r] = min(best[r], scores[j][r] + slack of j)
//!                                least[group][r] = least score of its j
//!     limit = best + the row's width
//!     every (j, r) with score <= limit is in reach of row r         (groups with least > limit are not looked at)
//!   rows with one centroid in reach have their label; rows with several are settled by reference distances
//! ```
//! Points to note: (1) Sums run over panels of features. This keeps operands in the first-level cache, and the error bound grows
//! with the panel instead of d. The error of a centroid is in its own score (`bounds/own.rs`), so a centroid far out does not
//! make the bounds of other centroids wider. (2) A limit can only fall from panel to panel of centroids. So a row's list may hold
//! centroids that a later limit rules out. They are dropped at the end, or when the list is full. (3) A row is compared with all
//! centroids if its list overflows or its scores are not finite. (4) If there are few centroids, most labels are found without
//! lists ([`ProductScratch::collect_all`]). If there are many, groups with no centroid in reach are not looked at again. (5) Where
//! the two nearest centroids are wanted, the limit stands on the second best score. (6) `product/int_dot.rs` does the same on
//! integer copies, which the caller keeps from assign to assign.

mod candidates;
mod closer;
mod in_tiles;
mod int_dot;
mod kernel;
mod lists;
mod prefetch;
mod scores;

use std::ops::Range;

use self::candidates::FindCandidates;
pub use self::int_dot::{DotBlock, DotRows, DotTable};
use self::kernel::Products;
use self::lists::{ALL, Lists, MOST_CANDIDATES};
pub use self::prefetch::{NextRows, PrefetchNext};
use self::scores::OF_TILES;
pub use self::scores::{CentroidFacts, MOST_STEPS, TableNorms};
use super::filter::{GROUP, NO_CENTROID, ProductTable, Weight};
use super::groups::MOST_GROUPS;
use super::nearest_clusters::ScoreLists;
use super::priced::PricedScores;
use super::tasks::pieces;
use crate::base::aligned::Lines;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::bounds::{Expanded, PANEL};
use crate::input::tile::ByFeature;
use crate::simd::{Prefetch, SIDE, Task, Vector};

/// Number of rows whose scores are computed together: four AVX-512 vectors.
pub const ROWS: usize = 64;
/// The most lanes of a vector.
const MOST_LANES: usize = 16;
/// Number of values in a tile: a quarter of a second-level cache. Tiles of 64 rows would read each column 256 bytes at a time. No
/// prefetcher can follow that over dozens of columns.
const TILE_VALUES: usize = 1 << 16;
/// Tiles of wide columns have at least this many rows, while they fit in a second-level cache.
const WIDE_TILE_ROWS: usize = 128;
/// Most values of such a tile.
const WIDE_TILE_VALUES: usize = 1 << 19;
/// Most rows of a tile.
pub const MAX_TILE_ROWS: usize = 1_024;
/// Number of centroids whose scores are held at a time. With 64 rows of float32 the scores fill half of a second-level cache.
const CENTROID_PANEL: usize = 170 * GROUP;
/// Number of centroids whose scores are summed up over all panels of features before those of the next ones. Their scores and a
/// panel of their features fit in a second-level cache of 256 KiB.
const TOGETHER: usize = 42 * GROUP;

/// Most centroids for each lane of a vector whose scores are all compared with the limits. With more centroids, most groups have
/// no centroid in reach.
const FEW_SCORES: usize = 16;

/// Number of rows in a tile of `d` features. Rows that lie row by row are copied to the columns of the tile. Long columns would
/// then evict one another from the cache, because their addresses differ by a power of two. Such rows are read well with short
/// columns.
pub fn tile_rows(d: usize, row_by_row: bool) -> usize {
    let (values, least) = match row_by_row {
        true => (TILE_VALUES / 4, ROWS),
        false => (TILE_VALUES, (WIDE_TILE_VALUES / d / ROWS * ROWS).clamp(ROWS, WIDE_TILE_ROWS)),
    };
    (values / d / ROWS * ROWS).clamp(least, MAX_TILE_ROWS)
}

/// Number of vectors of rows that are computed together: fewer for blocks that are not full.
#[inline(always)]
fn vectors<V: Vector>(rows: usize) -> usize {
    V::ROW_VECTORS.min(rows.div_ceil(V::LANES).next_power_of_two())
}

/// Number of rows whose scores are computed for this many.
#[inline(always)]
pub fn computed_rows<V: Vector>(rows: usize) -> usize {
    rows.next_multiple_of(vectors::<V>(rows) * V::LANES)
}

/// Buffers of one worker. The arrays start at cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ProductScratch {
    /// `(PANEL, ROWS)`: the copy of a panel of features of 64 rows.
    copy: [f32; PANEL * ROWS],
    /// The sums of the squares of the copies.
    squares: [f32; ROWS],
    widths: [f32; ROWS],
    /// The least sums of a score and its centroid's slack.
    best: [f32; ROWS],
    /// The second least, where two centroids are wanted.
    second: [f32; ROWS],
    lists: Lists,
    /// `(panel, ROWS)`: the scores.
    scores: Lines,
    /// `(panels of centroids, ROWS)`: the least scores.
    least: Lines,
    /// The weight of the next rows, from those before.
    weight: Weight,
}

impl ProductScratch {
    pub fn new(k: usize) -> Result<Self> {
        const WHAT: &str = "the scores of a tile of rows";
        // An order fills up each of its groups, and tiles fill up the last one.
        let panel = CENTROID_PANEL.min((k + MOST_GROUPS * GROUP).next_multiple_of(GROUP));
        Ok(Self {
            copy: [0.0; PANEL * ROWS],
            scores: Lines::zeroed(panel.next_multiple_of(2 * SIDE) * ROWS, WHAT)?,
            least: Lines::zeroed(panel.div_ceil(GROUP).max(panel.next_multiple_of(2 * SIDE) / OF_TILES) * ROWS, WHAT)?,
            squares: [0.0; ROWS],
            widths: [0.0; ROWS],
            best: [0.0; ROWS],
            second: [0.0; ROWS],
            weight: Weight::default(),
            lists: Lists::EMPTY,
        })
    }

    /// Turns places into numbers of centroids, in no order.
    #[inline(always)]
    fn name(&mut self, table: &ProductTable, listed: Option<&[u32]>) {
        for (candidates, count) in self.lists.candidates.iter_mut().zip(&mut self.lists.counts) {
            let name = |j: u32| {
                let place = match listed {
                    None => j as usize,
                    Some(groups) => groups[j as usize / GROUP] as usize * GROUP + j as usize % GROUP,
                };
                table.names.get(place).map_or(place as u32, |name| *name)
            };
            match *count {
                // Nothing is known of a row with no centroid in reach.
                0 | ALL => {
                    *count = ALL;
                    continue;
                }
                // Most rows.
                1 => {
                    candidates[0] = name(candidates[0]);
                    *count = if candidates[0] == NO_CENTROID { ALL } else { 1 };
                    continue;
                }
                _ => {}
            }
            let candidates = &mut candidates[..usize::from(*count)];
            candidates.iter_mut().for_each(|j| *j = name(*j));
            // If no centroid is in reach, a score is NaN.
            if candidates.contains(&NO_CENTROID) {
                *count = ALL;
            }
        }
    }

    /// Puts the centroids in reach of each of some rows in ascending order, in which they are compared: the first of two equal
    /// distances counts.
    #[inline(always)]
    pub fn sort_candidates(&mut self, rows: usize) {
        for (candidates, count) in self.lists.candidates[..rows].iter_mut().zip(&self.lists.counts) {
            if !matches!(*count, 0 | 1 | ALL) {
                candidates[..usize::from(*count)].sort_unstable();
            }
        }
    }

    /// Learns the weight of the next tile from the last 64 rows of this one. `labels` are those of the tile.
    #[inline(always)]
    pub fn weigh(&mut self, table: &ProductTable, labels: &[u32]) {
        let last = labels.len().saturating_sub(1) / ROWS * ROWS;
        self.weight = table.weight_of(&self.squares, &labels[last..]);
    }

    /// The centroids in reach of row `r`. `None` if all centroids are.
    #[inline(always)]
    pub fn candidates(&self, r: usize) -> Option<&[u32]> {
        match self.lists.counts[r] {
            ALL => None,
            count => Some(&self.lists.candidates[r][..count as usize]),
        }
    }

    /// Whether more than one centroid is in reach of row `r`.
    #[inline(always)]
    pub fn is_open(&self, r: usize) -> bool {
        self.lists.counts[r] != 1
    }

    /// What the errors of the last 64 rows add to their limits.
    pub fn widths(&self) -> [f32; ROWS] {
        self.widths
    }

    /// Makes the centred, scaled copy of some features of 64 rows. Adds up every row's squares, if asked for.
    #[inline(always)]
    fn copy_rows<T: Float>(
        &mut self,
        values: impl ByFeature<T>,
        first: usize,
        features: Range<usize>,
        table: &ProductTable,
        add: bool,
    ) {
        let half = table.scale_exponent / 2;
        let [up, more] = [half, table.scale_exponent - half].map(|e| T::from_f64(crate::exact::fixed::power_of_two(e)));
        let squares = &mut self.squares;
        for (copy, f) in self.copy.as_chunks_mut::<ROWS>().0.iter_mut().zip(features) {
            // Arrays of a known length need no checks in the loops, so the loops are vectors only.
            let Some(x) = values.column(f)[first..].first_chunk::<ROWS>() else {
                unreachable!("there are values for a whole block of rows")
            };
            let centre = T::from_f64(table.centre[f]);
            for r in 0..ROWS {
                copy[r] = x[r].centred_copy(centre, up, more);
            }
            if add {
                for r in 0..ROWS {
                    squares[r] += copy[r] * copy[r];
                }
            }
        }
    }

    /// Processes the scores of few centroids. Most rows have one centroid in reach: their labels are
    /// found in vector registers.
    #[inline(always)]
    fn collect_all<V: Vector>(&mut self, k: usize, rows: usize) {
        for start in (0..rows).step_by(V::LANES) {
            let mut limits = [0.0f32; ROWS];
            for r in start..start + V::LANES {
                limits[r] = self.limit::<false>(r);
            }
            let mut names = [0.0f32; ROWS];
            let (mut seen, mut twice) = (0u32, 0u32);
            // SAFETY: `scores` holds ROWS values for each centroid, `limits` and `names` hold ROWS values, and LANES divides
            // ROWS.
            unsafe {
                let limit = V::load(limits.as_ptr().add(start));
                let mut label = V::splat(0.0);
                for j in 0..k {
                    let mask = V::load(self.scores.as_ptr().add(j * ROWS + start)).not_above(limit);
                    label = V::select(mask, V::splat(f32::from_bits(j as u32)), label);
                    let bits = V::bits(mask);
                    twice |= seen & bits;
                    seen |= bits;
                }
                label.store(names.as_mut_ptr().add(start));
            }
            for r in start..(start + V::LANES).min(rows) {
                let bit = 1 << (r - start);
                self.lists.counts[r] = 1;
                self.lists.candidates[r][0] = names[r].to_bits();
                // A limit that is not finite rules nothing out.
                if !limits[r].is_finite() || seen & bit == 0 {
                    self.lists.counts[r] = ALL;
                } else if twice & bit != 0 {
                    self.list(r, k, limits[r]);
                }
            }
        }
    }

    /// Lists the centroids in reach of a row in doubt.
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN stays in reach
    fn list(&mut self, r: usize, k: usize, limit: f32) {
        let mut count = 0;
        for j in (0..k).filter(|j| !(self.scores[j * ROWS + r] > limit)) {
            if count == MOST_CANDIDATES {
                self.lists.counts[r] = ALL;
                return;
            }
            self.lists.candidates[r][count] = j as u32;
            count += 1;
        }
        self.lists.counts[r] = count as u8;
    }

    /// The limit of row `r`: centroids with larger scores are out of reach.
    #[inline(always)]
    fn limit<const TWO: bool>(&self, r: usize) -> f32 {
        Expanded::threshold(if TWO { self.second[r] } else { self.best[r] }, self.widths[r])
    }

    /// Lists the centroids in reach, as far as it is known, of those whose scores are held: G to a panel.
    ///
    /// No score of a row with a finite limit is NaN: squares of its copy add up to less than 1e30 (`Expanded::width`), centroids'
    /// copies are of order one, and half squares are finite or plus infinity. Integer sums: see `MOST_STEPS`. So a panel whose
    /// least score is above the limit has no centroid in reach.
    #[inline(always)]
    fn collect_held<V: Vector, const G: usize, const TWO: bool>(&mut self, count: usize, places: Range<usize>) {
        let mut limits = [0.0f32; ROWS];
        for r in 0..ROWS {
            // A limit that is not finite rules nothing out: all centroids are in reach.
            let limit = self.limit::<TWO>(r);
            limits[r] = if limit.is_finite() { limit } else { f32::NEG_INFINITY };
            self.lists.counts[r] = if limit.is_finite() { self.lists.counts[r] } else { ALL };
        }
        let Self { least, scores, lists, .. } = self;
        let (least, limits) = (least.as_chunks().0, &limits);
        FindCandidates { least, scores, places, count, limits, lists }.collect::<V, G>();
    }

    #[inline(always)]
    fn drop_candidates<const TWO: bool>(&mut self, rows: usize) {
        for r in 0..rows {
            let limit = self.limit::<TWO>(r);
            if self.lists.counts[r] != ALL {
                self.lists.keep_within(r, limit);
            }
            // A limit that is not finite rules nothing out.
            if self.lists.counts[r] == 0 || !limit.is_finite() {
                self.lists.counts[r] = ALL;
            }
        }
    }
}

/// What takes the scores of 64 rows, panel by panel of centroids.
pub enum ScoreTaker<'p> {
    Several(&'p mut ScoreLists),
    Priced(&'p mut PricedScores),
}

/// Finds the centroids in reach of some rows, at most 64: those that can be nearest, or with `TWO` those that can be nearest or
/// second nearest.
pub struct FindNear<'p, T, C, const TWO: bool> {
    pub product: &'p mut ProductScratch,
    pub values: C,
    pub rows: Range<usize>,
    pub table: &'p ProductTable,
    pub k: usize,
    /// The groups of centroids that are compared, if not all are.
    pub listed: Option<&'p [u32]>,
    pub next: PrefetchNext<'p, T>,
    /// Takes the scores. If there is one, no candidates are collected.
    pub taker: Option<ScoreTaker<'p>>,
}

impl<T: Float, C: ByFeature<T>, const TWO: bool> Task for FindNear<'_, T, C, TWO> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { product, values, rows, table, k, listed, next, mut taker } = self;
        let (first, rows) = (rows.start, rows.len());
        assert!((1..=ROWS).contains(&rows));
        let vectors = vectors::<V>(rows);
        let weighted = table.weighted(product.weight);
        product.best.fill(f32::INFINITY);
        product.second.fill(f32::INFINITY);
        product.lists.counts.fill(0);
        product.squares.fill(0.0);
        let d = table.centre.len();
        let k = match listed {
            Some(groups) => groups.len() * GROUP,
            None if table.names.is_empty() => k,
            None => table.names.len(),
        };
        let groups = k.div_ceil(GROUP);
        let per_panel = CENTROID_PANEL / GROUP;
        for first_group in (0..groups).step_by(per_panel) {
            let panel = first_group..(first_group + per_panel).min(groups);
            let runs = pieces(panel.clone(), TOGETHER / GROUP)
                .flat_map(|together| (0..d).step_by(PANEL).map(move |start| (together.clone(), start..(start + PANEL).min(d))));
            for (together, features) in runs {
                // One panel of features is copied once.
                if d > PANEL || together.start == 0 {
                    product.copy_rows(values, first, features.clone(), table, together.start == 0);
                }
                let copy = &product.copy[..features.len() * ROWS];
                let group = |place: usize| listed.map_or(place, |listed| listed[place] as usize);
                let centroids = |group: usize| &table.packed[(group * d + features.start) * GROUP..][..features.len() * GROUP];
                for place in together.clone() {
                    let prefetch = match next {
                        PrefetchNext::Blocks(behind) if together.start == 0 => {
                            let behind = behind.get(features.end * ROWS..).unwrap_or_default();
                            Prefetch::of(&behind[..behind.len().min(PANEL * ROWS)]).part(place, together.len())
                        }
                        PrefetchNext::Rows(next) if features.start == 0 => next.piece(first / ROWS * groups + place, groups),
                        _ => Prefetch::of::<T>(&[]),
                    };
                    let (next, group) = (group((place + 1).min(together.end - 1)), group(place));
                    let products = Products {
                        copy,
                        centroids: centroids(group),
                        own: if features.end == d { Some(&weighted.own[group * 2 * GROUP..][..2 * GROUP]) } else { None },
                        first: features.start == 0,
                        rows,
                        prefetch: [prefetch, Prefetch::of(centroids(next))],
                    };
                    let scores = &mut product.scores[(place - first_group) * GROUP * ROWS..][..GROUP * ROWS];
                    let of_group = &mut product.least.as_chunks_mut().0[place - first_group];
                    let least = [of_group, &mut product.best, &mut product.second];
                    match vectors {
                        4 => products.add::<V, 4, TWO>(scores, least),
                        2 => products.add::<V, 2, TWO>(scores, least),
                        _ => products.add::<V, 1, TWO>(scores, least),
                    }
                }
            }
            if first_group == 0 {
                for r in 0..ROWS {
                    product.widths[r] = weighted.bound.width(product.squares[r]);
                }
            }
            if let Some(taker) = &mut taker {
                let (start, end) = (panel.start * GROUP, (panel.end * GROUP).min(k));
                let (scores, range, own) = (&product.scores, [start, end - start, rows], &weighted.own);
                match taker {
                    ScoreTaker::Several(lists) => lists.see::<V>(scores, range, own, &product.widths),
                    ScoreTaker::Priced(priced) => priced.see::<V>(scores, range, own),
                }
            } else if k <= FEW_SCORES * V::LANES && !TWO {
                product.collect_all::<V>(k, rows);
            } else {
                product.collect_held::<V, GROUP, TWO>(rows, panel.start * GROUP..(panel.end * GROUP).min(k));
            }
        }
        if taker.is_none() && (groups > per_panel || TWO) {
            product.drop_candidates::<TWO>(rows);
        }
        if listed.is_some() || !table.names.is_empty() {
            product.name(table, listed);
            product.sort_candidates(rows);
        }
    }
}

#[cfg(feature = "tests")]
pub mod attacks;
