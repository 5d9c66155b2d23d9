//! The difference filter, for float32 features with at most eight dimensions.
//!
//! ```text
//! for a few vectors of rows, kept in registers:
//!   for each group of centroids:  group_least = min over its j of s~_j = sum_f (x_f - c_jf)^2
//!   best = min of the group_leasts;  limit = threshold(best)
//!   for each group with group_least <= limit in any lane:
//!     for each j of it:  if s~_j <= limit: label = j, and if that lane had a label already, it is in doubt
//! rows in doubt are settled by reference distances
//!
//! with at most one group of centroids, and one nearest centroid wanted, the first pass is enough:
//!   for each j:  second = min(second, max(best, s~_j));  label = j where s~_j < best;  best = min(best, s~_j)
//!   a row is in doubt if second <= threshold(best)
//! ```
//! Points to note: (1) The second pass computes scores again instead of storing k of them. It visits only groups that hold a
//! near centroid of one of the rows. (2) Rows and centroids are finite, so no score is NaN: it is a sum of squares. A score that
//! overflows is never above the limit, so such rows are in doubt. (3) Where the
//! two nearest centroids are wanted, the limit stands on the second best score, and rows with three in reach are in_doubt.

use std::ops::Range;

use crate::base::error::Result;
use crate::base::memory;
use crate::bounds;
use crate::simd::{Task, Vector};

/// Most features.
pub const FEW: usize = 8;
/// Number of centroids in a group. One least score is kept per group.
const GROUP: usize = 16;
/// Most rows that are in registers at a time: four vectors of 16 lanes.
const MOST_ROWS: usize = 64;

/// The centroids that a tile is compared with: their copies, `(k, d)`, and the bound.
#[derive(Clone, Copy)]
pub struct TileCentroids<'c> {
    pub centroids: &'c [f32],
    pub bound: bounds::Difference,
}

/// The results of the kernel for a tile.
#[derive(Debug)]
pub struct TileResults {
    /// One per row of the tile's stride.
    pub labels: Vec<u32>,
    /// Rows with more centroids in reach than are wanted.
    pub in_doubt: Vec<u32>,
    /// The least score of each group of centroids.
    least: Vec<f32>,
}

impl TileResults {
    /// Room for a tile of `stride` rows, and for the scores of `k` centroids.
    pub fn new(stride: usize, k: usize) -> Result<Self> {
        const WHAT: &str = "a tile's labels";
        Ok(Self {
            labels: memory::zeroed(stride, WHAT)?,
            in_doubt: memory::with_room(stride, WHAT)?,
            least: memory::with_room(k.div_ceil(GROUP).saturating_mul(MOST_ROWS), WHAT)?,
        })
    }
}

/// Labels some rows and lists those in doubt. With `TWO`, finds the two nearest centroids: the one of smaller number becomes
/// the label.
pub struct Compare<'c, 'x, const TWO: bool> {
    /// There are values up to the next multiple of 64 rows, and room for as many labels.
    pub x: &'c [&'x [f32]; FEW],
    pub d: usize,
    pub rows: usize,
    pub table: TileCentroids<'c>,
    pub found: &'c mut TileResults,
    /// With `TWO`, gets the other of the two nearest centroids.
    pub others: &'c mut [u32],
}

impl<const TWO: bool> Task for Compare<'_, '_, TWO> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { x, d, rows, table, found, others } = self;
        let padded = rows.next_multiple_of(MOST_ROWS);
        assert!((0..d).all(|f| x[f].len() >= padded) && found.labels.len() >= padded);
        assert!(!TWO || others.len() >= padded);
        let few = !TWO && table.centroids.len() <= GROUP * d;
        macro_rules! widths {
            ($(($d:literal, $many:literal, $fewer:literal, $in_one:literal))*) => {
                match (d, V::MANY_REGISTERS) {
                    $(($d, true) if few => assign_in_one_pass::<V, $d, $in_one>(x, rows, table, found),
                      ($d, false) if few => assign_in_one_pass::<V, $d, $fewer>(x, rows, table, found),
                      ($d, true) => assign_rows::<V, $d, $many, TWO>(x, rows, table, found, others),
                      ($d, false) => assign_rows::<V, $d, $fewer, TWO>(x, rows, table, found, others),)*
                    _ => unreachable!("the difference filter is compiled for 1 to 8 dimensions"),
                }
            };
        }
        widths!((1, 4, 4, 4)(2, 4, 2, 4)(3, 4, 2, 4)(4, 4, 2, 2)(5, 4, 1, 2)(6, 2, 1, 2)(7, 2, 1, 2)(8, 2, 1, 2));
    }
}

/// For at most one group of centroids.
#[inline(always)]
fn assign_in_one_pass<V: Vector, const D: usize, const R: usize>(
    x: &[&[f32]; FEW],
    rows: usize,
    table: TileCentroids<'_>,
    found: &mut TileResults,
) {
    let TileResults { labels, in_doubt, .. } = found;
    let k = table.centroids.len() / D;
    let width = R * V::LANES;
    for start in (0..rows).step_by(width) {
        // SAFETY: width divides 64, so start + width is at most the next multiple of 64 rows. `Compare::run` checks that the
        // columns and labels are as long. Every centroid j < k has D values.
        unsafe {
            let columns = load::<V, D, R>(x, start);
            let mut best = [V::splat(f32::INFINITY); R];
            let (mut second, mut label) = (best, [V::splat(0.0); R]);
            for j in 0..k {
                let (s, name) = (scores(&columns, table.centroids.as_ptr().add(j * D)), V::splat(f32::from_bits(j as u32)));
                for v in 0..R {
                    label[v] = V::select(best[v].not_above(s[v]), label[v], name);
                    second[v] = best[v].max_or_nan(s[v]).min_or(second[v]);
                    best[v] = s[v].min_or(best[v]);
                }
            }
            let (slope, offset) = (V::splat(table.bound.slope), V::splat(table.bound.offset));
            for v in 0..R {
                let first = start + v * V::LANES;
                label[v].store(labels.as_mut_ptr().add(first).cast());
                add_in_doubt(V::bits(second[v].not_above(best[v].mul_add(slope, offset))), first..rows, in_doubt);
            }
        }
    }
}

#[inline(always)]
fn assign_rows<V: Vector, const D: usize, const R: usize, const TWO: bool>(
    x: &[&[f32]; FEW],
    rows: usize,
    table: TileCentroids<'_>,
    found: &mut TileResults,
    others: &mut [u32],
) {
    let TileResults { labels, in_doubt, least: scratch } = found;
    let k = table.centroids.len() / D;
    let groups = k.div_ceil(GROUP);
    let width = R * V::LANES;
    // `TileResults::new` reserved the room.
    scratch.resize(groups * width, 0.0);
    for start in (0..rows).step_by(width) {
        // SAFETY: width divides 64, so start + width is at most the next multiple of 64 rows. `Compare::run` checks that the
        // columns and labels are as long, and `others` with TWO. So every load and store is in bounds. scratch holds `width`
        // values per group. Every centroid j < k has D values.
        unsafe {
            let columns = load::<V, D, R>(x, start);
            let mut best = [V::splat(f32::INFINITY); R];
            let mut second = best;
            for group in 0..groups {
                let mut least = [V::splat(f32::INFINITY); R];
                for j in group * GROUP..((group + 1) * GROUP).min(k) {
                    let s = scores(&columns, table.centroids.as_ptr().add(j * D));
                    for v in 0..R {
                        least[v] = s[v].min_or(least[v]);
                        if TWO {
                            // A score that is NaN lowers neither.
                            second[v] = best[v].max_or_nan(s[v]).min_or(second[v]);
                            best[v] = s[v].min_or(best[v]);
                        }
                    }
                }
                for v in 0..R {
                    least[v].store(scratch.as_mut_ptr().add(group * width + v * V::LANES));
                    best[v] = least[v].min_or(best[v]);
                }
            }
            let (slope, offset) = (V::splat(table.bound.slope), V::splat(table.bound.offset));
            let mut limit = if TWO { second } else { best };
            for v in 0..R {
                limit[v] = limit[v].mul_add(slope, offset);
            }
            let mut label = [V::splat(0.0); R];
            let mut before = label;
            let (mut seen, mut twice, mut more) = ([0u32; R], [0u32; R], [0u32; R]);
            for group in 0..groups {
                let mut near = 0;
                for v in 0..R {
                    near |= V::bits(V::load(scratch.as_ptr().add(group * width + v * V::LANES)).not_above(limit[v]));
                }
                if near == 0 {
                    continue;
                }
                for j in group * GROUP..((group + 1) * GROUP).min(k) {
                    let (s, name) = (scores(&columns, table.centroids.as_ptr().add(j * D)), V::splat(f32::from_bits(j as u32)));
                    for v in 0..R {
                        let mask = s[v].not_above(limit[v]);
                        let bits = V::bits(mask);
                        if TWO {
                            before[v] = V::select(mask, label[v], before[v]);
                            more[v] |= twice[v] & bits;
                        }
                        label[v] = V::select(mask, name, label[v]);
                        twice[v] |= seen[v] & bits;
                        seen[v] |= bits;
                    }
                }
            }
            for v in 0..R {
                let first = start + v * V::LANES;
                if TWO {
                    before[v].store(labels.as_mut_ptr().add(first).cast());
                    label[v].store(others.as_mut_ptr().add(first).cast());
                } else {
                    label[v].store(labels.as_mut_ptr().add(first).cast());
                }
                // Every lane has a label, because its best centroid is in reach. A lane without a label would be settled, too.
                let (enough, too_many) = if TWO { (twice[v], more[v]) } else { (seen[v], twice[v]) };
                add_in_doubt(too_many | !enough & (u32::MAX >> (32 - V::LANES)), first..rows, in_doubt);
            }
        }
    }
}

/// Lists the rows of a vector whose bit is set, among these rows.
#[inline(always)]
fn add_in_doubt(mut bits: u32, rows: Range<usize>, in_doubt: &mut Vec<u32>) {
    while bits != 0 {
        let r = rows.start as u32 + bits.trailing_zeros();
        bits &= bits - 1;
        if (r as usize) < rows.end {
            in_doubt.push(r);
        }
    }
}

/// The values of R vectors of rows.
///
/// # Safety
/// The first D columns must have values of R vectors from `start` on.
#[inline(always)]
unsafe fn load<V: Vector, const D: usize, const R: usize>(x: &[&[f32]; FEW], start: usize) -> [[V; R]; D] {
    // SAFETY: the caller gives the same guarantees.
    unsafe {
        let mut columns = [[V::splat(0.0); R]; D];
        for f in 0..D {
            for v in 0..R {
                columns[f][v] = V::load(x[f].as_ptr().add(start + v * V::LANES));
            }
        }
        columns
    }
}

/// The scores of one centroid, whose D values are at `c`.
///
/// # Safety
/// `c` must point to D values.
// This is a function and not a closure. The compiler does not inline a closure with two callers, and would compile it without the
// set's features.
#[inline(always)]
unsafe fn scores<V: Vector, const D: usize, const R: usize>(columns: &[[V; R]; D], c: *const f32) -> [V; R] {
    // SAFETY: the caller gives the same guarantees.
    unsafe {
        let mut s = [V::splat(0.0); R];
        for f in 0..D {
            let c = V::splat(*c.add(f));
            for v in 0..R {
                let t = columns[f][v].sub(c);
                s[v] = t.mul_add(t, s[v]);
            }
        }
        s
    }
}
