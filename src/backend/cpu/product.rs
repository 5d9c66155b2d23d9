//! The product filter: scores `|c|^2 / 2 - x.c` on centred, scaled float32 copies, for any d and any k.
//!
//! ```text
//! for a tile of 64 rows:  x^ = scaled, centred copy (feature-major);  width = the row's bound
//!   for each panel of centroids:
//!     for each panel of features, for each group of centroids:
//!       scores[j][r] += x^ . (-c^)          register-blocked: 4 vectors of rows by 6 centroids
//!     best = min(best, scores);  limit = best + width
//!     every (j, r) with score <= limit is in reach of row r
//!   rows with one centroid in reach have their label; the others are settled by reference distances
//! ```
//! Points to note: (1) Sums run over panels of features. This keeps operands in the first-level cache, and the error bound grows
//! with the panel instead of d. (2) A limit can only fall from panel to panel of centroids. So a row's list may hold centroids
//! that a later limit rules out. They are dropped at the end, or when the list is full. (3) A row is compared with all centroids
//! if its list overflows or its scores are not finite. (4) If all centroids fit in one panel, most labels are found without lists
//! ([`ProductScratch::collect_all`]). (5) Where the two nearest centroids are wanted, the limit stands on the second best score.

use super::filter::{GROUP, ProductTable};
use super::simd::Vector;
use crate::certify::{Expanded, PANEL};
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::tile::Tile;

/// Number of rows whose scores are computed together: four AVX-512 vectors.
pub const ROWS: usize = 64;
/// Number of values in a tile: a quarter of a second-level cache. Tiles of 64 rows would read each column 256 bytes at a time. No
/// prefetcher can follow that over dozens of columns.
const TILE_VALUES: usize = 1 << 16;
/// Most rows of a tile.
pub const MAX_TILE_ROWS: usize = 1_024;
/// Number of centroids whose scores are held at a time. With 64 rows of float32 the scores fill half of a second-level cache.
const CENTROID_PANEL: usize = 170 * GROUP;
/// Number of centroids that a row's list has room for.
const REACH: usize = 16;
/// The count of a list that overflowed.
const ALL: u8 = u8::MAX;

/// Number of rows in a tile of `d` features.
pub fn tile_rows(d: usize) -> usize {
    (TILE_VALUES / d / ROWS * ROWS).clamp(ROWS, MAX_TILE_ROWS)
}

/// Buffers of one worker.
#[derive(Debug)]
pub struct ProductScratch {
    /// `(d, ROWS)`: the copy of 64 rows of the tile.
    copy: Vec<f32>,
    /// `(panel, ROWS)`.
    scores: Vec<f32>,
    widths: [f32; ROWS],
    best: [f32; ROWS],
    /// The second best scores, where two centroids are wanted.
    second: [f32; ROWS],
    /// For each row, the number of centroids in reach, or [`ALL`].
    counts: [u8; ROWS],
    /// These centroids in ascending order, and their scores.
    reach: [[u32; REACH]; ROWS],
    reach_scores: [[f32; REACH]; ROWS],
}

impl ProductScratch {
    pub fn new(d: usize, k: usize) -> Result<Self> {
        const WHAT: &str = "the scores of a tile of rows";
        let panel = CENTROID_PANEL.min(k.next_multiple_of(GROUP));
        Ok(Self {
            copy: memory::zeroed(d.saturating_mul(ROWS), WHAT)?,
            scores: memory::zeroed(panel * ROWS, WHAT)?,
            widths: [0.0; ROWS],
            best: [0.0; ROWS],
            second: [0.0; ROWS],
            counts: [0; ROWS],
            reach: [[0; REACH]; ROWS],
            reach_scores: [[0.0; REACH]; ROWS],
        })
    }

    /// Finds the centroids in reach of the 64 rows of a tile that start at row `first`: those that can be nearest, or with `TWO`
    /// those that can be nearest or second nearest.
    #[inline(always)]
    pub fn find_reach<V: Vector, T: Float, const TWO: bool>(
        &mut self,
        tile: &Tile<T>,
        first: usize,
        table: &ProductTable,
        k: usize,
    ) {
        assert!(first + ROWS <= tile.stride);
        let rows = ROWS.min(tile.rows - first);
        self.copy_rows(tile, first, table);
        self.best.fill(f32::INFINITY);
        self.second.fill(f32::INFINITY);
        self.counts.fill(0);
        let d = self.copy.len() / ROWS;
        let groups = k.div_ceil(GROUP);
        let per_panel = CENTROID_PANEL / GROUP;
        for first_group in (0..groups).step_by(per_panel) {
            let panel = first_group..(first_group + per_panel).min(groups);
            for features in (0..d).step_by(PANEL) {
                let end = (features + PANEL).min(d);
                for group in panel.clone() {
                    let at = (group - first_group) * GROUP * ROWS;
                    let scores = &mut self.scores[at..][..GROUP * ROWS];
                    let centroids = &table.packed[(group * d + features) * GROUP..(group * d + end) * GROUP];
                    if features == 0 {
                        let halves = &table.half_squares[group * GROUP..][..GROUP];
                        scores.chunks_exact_mut(ROWS).zip(halves).for_each(|(scores, half)| scores.fill(*half));
                    }
                    let copy = &self.copy[features * ROWS..end * ROWS];
                    match V::ROW_VECTORS {
                        4 => add_products::<V, 4>(copy, centroids, scores),
                        2 => add_products::<V, 2>(copy, centroids, scores),
                        _ => add_products::<V, 1>(copy, centroids, scores),
                    }
                }
            }
            if groups <= per_panel && !TWO {
                return self.collect_all::<V>(k, rows);
            }
            let centroids = panel.start * GROUP..(panel.end * GROUP).min(k);
            self.collect::<V, TWO>(centroids, rows);
        }
        self.drop_out_of_reach::<TWO>(rows);
    }

    /// The centroids in reach of row `r`, in ascending order. `None` if all centroids are.
    #[inline(always)]
    pub fn reach(&self, r: usize) -> Option<&[u32]> {
        match self.counts[r] {
            ALL => None,
            count => Some(&self.reach[r][..count as usize]),
        }
    }

    /// Makes the centred, scaled copy of 64 rows, and computes every row's width.
    #[inline(always)]
    fn copy_rows<T: Float>(&mut self, tile: &Tile<T>, first: usize, table: &ProductTable) {
        let half = table.scale_exponent / 2;
        let [up, more] = [half, table.scale_exponent - half].map(|e| T::from_f64(crate::fixed::power_of_two(e)));
        let mut squares = [0.0f32; ROWS];
        for ((copy, x), centre) in self.copy.chunks_exact_mut(ROWS).zip(tile.x.chunks_exact(tile.stride)).zip(&table.centre) {
            let x = &x[first..first + ROWS];
            let centre = T::from_f64(*centre);
            for r in 0..ROWS {
                let value = x[r].centred_copy(centre, up, more);
                copy[r] = value;
                squares[r] += value * value;
            }
        }
        for r in 0..ROWS {
            self.widths[r] = table.bound.width(squares[r]);
        }
    }

    /// Processes the scores of all centroids, where they fit in one panel. Most rows have one centroid in reach; these are found
    /// in vector registers.
    #[inline(always)]
    fn collect_all<V: Vector>(&mut self, k: usize, rows: usize) {
        self.lower_best::<V, false>(k);
        for start in (0..ROWS).step_by(V::LANES) {
            let mut limits = [0.0f32; ROWS];
            for r in start..start + V::LANES {
                limits[r] = self.limit::<false>(r);
            }
            let mut names = [0.0f32; ROWS];
            let (mut seen, mut twice) = (0u32, 0u32);
            // SAFETY: as in `lower_best`. `limits` and `names` have ROWS values.
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
                self.counts[r] = 1;
                self.reach[r][0] = names[r].to_bits();
                // A limit that is not finite rules nothing out.
                if !limits[r].is_finite() || seen & bit == 0 {
                    self.counts[r] = ALL;
                } else if twice & bit != 0 {
                    self.list(r, k, limits[r]);
                }
            }
        }
    }

    /// Lists the centroids in reach of a contested row.
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN stays in reach
    fn list(&mut self, r: usize, k: usize, limit: f32) {
        let mut count = 0;
        for j in (0..k).filter(|j| !(self.scores[j * ROWS + r] > limit)) {
            if count == REACH {
                self.counts[r] = ALL;
                return;
            }
            self.reach[r][count] = j as u32;
            count += 1;
        }
        self.counts[r] = count as u8;
    }

    /// Lowers every row's best score by the scores of the first `count` centroids of the buffer. With `TWO`, also its second best.
    #[inline(always)]
    fn lower_best<V: Vector, const TWO: bool>(&mut self, count: usize) {
        for start in (0..ROWS).step_by(V::LANES) {
            // SAFETY: `scores` holds ROWS values for each centroid, `best` and `second` hold ROWS values, and LANES divides ROWS.
            // For the features of the instruction set see `Vector`.
            unsafe {
                let mut best = V::load(self.best.as_ptr().add(start));
                let mut second = V::load(self.second.as_ptr().add(start));
                for j in 0..count {
                    let score = V::load(self.scores.as_ptr().add(j * ROWS + start));
                    if TWO {
                        // A score that is NaN lowers neither.
                        second = best.max_or_nan(score).min_or(second);
                    }
                    best = score.min_or(best);
                }
                best.store(self.best.as_mut_ptr().add(start));
                if TWO {
                    second.store(self.second.as_mut_ptr().add(start));
                }
            }
        }
    }

    /// The limit of row `r`: centroids with larger scores are out of reach.
    #[inline(always)]
    fn limit<const TWO: bool>(&self, r: usize) -> f32 {
        Expanded::threshold(if TWO { self.second[r] } else { self.best[r] }, self.widths[r])
    }

    /// Processes the scores of a panel of centroids.
    #[inline(always)]
    fn collect<V: Vector, const TWO: bool>(&mut self, centroids: std::ops::Range<usize>, rows: usize) {
        let per_row = ROWS / V::LANES;
        let mut limits = [0.0f32; ROWS];
        self.lower_best::<V, TWO>(centroids.len());
        for (r, limit) in limits.iter_mut().enumerate() {
            *limit = self.limit::<TWO>(r);
        }
        // SAFETY: as in `lower_best`. `limits` has ROWS values.
        unsafe {
            for j in 0..centroids.len() {
                let mut near = 0u64;
                for v in 0..per_row {
                    let limit = V::load(limits.as_ptr().add(v * V::LANES));
                    let mask = V::load(self.scores.as_ptr().add(j * ROWS + v * V::LANES)).not_above(limit);
                    near |= u64::from(V::bits(mask)) << (v * V::LANES);
                }
                while near != 0 {
                    let r = near.trailing_zeros() as usize;
                    near &= near - 1;
                    if r < rows {
                        self.push(r, (centroids.start + j) as u32, self.scores[j * ROWS + r], limits[r]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn push(&mut self, r: usize, j: u32, score: f32, limit: f32) {
        if self.counts[r] as usize == REACH {
            self.keep_within(r, limit);
        }
        let count = self.counts[r];
        if (count as usize) < REACH {
            self.reach[r][count as usize] = j;
            self.reach_scores[r][count as usize] = score;
            self.counts[r] = count + 1;
        } else {
            self.counts[r] = ALL;
        }
    }

    #[inline(always)]
    fn drop_out_of_reach<const TWO: bool>(&mut self, rows: usize) {
        for r in 0..rows {
            let limit = self.limit::<TWO>(r);
            if self.counts[r] != ALL {
                self.keep_within(r, limit);
            }
            // A limit that is not finite rules nothing out.
            if self.counts[r] == 0 || !limit.is_finite() {
                self.counts[r] = ALL;
            }
        }
    }

    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN stays in reach
    #[inline(always)]
    fn keep_within(&mut self, r: usize, limit: f32) {
        let mut kept = 0;
        for i in 0..self.counts[r] as usize {
            if !(self.reach_scores[r][i] > limit) {
                self.reach[r][kept] = self.reach[r][i];
                self.reach_scores[r][kept] = self.reach_scores[r][i];
                kept += 1;
            }
        }
        self.counts[r] = kept as u8;
    }
}

/// `scores[c][r] += sum_f copy[f][r] * centroids[f][c]` for 64 rows and a group of centroids, with R vectors of rows at a time.
#[inline(always)]
fn add_products<V: Vector, const R: usize>(copy: &[f32], centroids: &[f32], scores: &mut [f32]) {
    let features = centroids.len() / GROUP;
    assert!(copy.len() == features * ROWS && scores.len() == GROUP * ROWS);
    for start in (0..ROWS).step_by(R * V::LANES) {
        // SAFETY: R * LANES divides ROWS, so start + R * LANES <= ROWS. The assertion bounds f and c. For the features of the
        // instruction set see `Vector`.
        unsafe {
            let mut sums = [[V::splat(0.0); R]; GROUP];
            for f in 0..features {
                let x: [V; R] = std::array::from_fn(|v| V::load(copy.as_ptr().add(f * ROWS + start + v * V::LANES)));
                for c in 0..GROUP {
                    let centroid = V::splat(*centroids.as_ptr().add(f * GROUP + c));
                    for v in 0..R {
                        sums[c][v] = x[v].mul_add(centroid, sums[c][v]);
                    }
                }
            }
            for c in 0..GROUP {
                for v in 0..R {
                    let at = scores.as_mut_ptr().add(c * ROWS + start + v * V::LANES);
                    V::load(at).add(sums[c][v]).store(at);
                }
            }
        }
    }
}
