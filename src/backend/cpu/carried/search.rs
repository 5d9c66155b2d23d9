//! Labels some rows by the groups of centroids that may hold their labels.
//!
//! ```text
//! for each row:    U from the copies of the row and of its centroid;  it stays if l proves it
//!                  groups whose lower bound does not rule them out are open; their bounds are `Groups::scan`'s
//! for each group:  for four of its rows at a time:  s~ = sum of squared differences of copies, for 16 centroids
//! for each row:    centroids whose s~ does not rule them out are compared by reference distances with the best so far
//!                  new bounds: for each open group the least s~ of all but the label
//! ```
//! Points to note: (1) The copies of a group stay in the first-level cache for all of its rows. (2) The local filter of the paper, which leaves out
//! single centroids of a group, would save nothing: their lanes are computed together. (3) Numbers of at least 0 are in the order of their
//! bits, so the least of 16 is found among integers.

use super::super::centroids::CentroidTable;
use super::super::simd::Vector;
use super::BOUNDS;
use super::drifts::chain;
use super::groups::{BLOCK, Groups, NOBODY, least_of};
use crate::certify::carry::Carry;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::tile::Tile;

/// Rows whose sums are computed together. Their chains overlap.
const TOGETHER: usize = 4;
/// Most sums that are held at a time, unless [`FEWEST`] rows have more.
const MOST_SUMS: usize = 1 << 19;
const FEWEST: usize = 16;

/// Buffers for some rows of a tile.
pub struct Search {
    /// Number of rows that there is room for.
    rows: usize,
    /// `(rows, padded d)`: their copies, and the sums of the copies' squares.
    copies: Vec<f32>,
    squares: Vec<f32>,
    /// `(rows, groups)`: current lower bounds.
    bounds: Vec<f32>,
    /// The open groups of each row, row after row, and where each row's begin.
    open: Vec<u32>,
    starts: Vec<usize>,
    /// The same by groups: the row and its place among the open groups.
    members: Vec<[u32; 2]>,
    firsts: Vec<usize>,
    /// `(open groups, width)`.
    sums: Vec<f32>,
    /// A row's values.
    values: Vec<f64>,
}

/// What is known of a row after it was labelled.
pub struct FoundRow {
    pub label: u32,
    pub upper: f32,
    pub lower: f32,
    /// Whether reference distances decided.
    pub in_doubt: bool,
}

/// The nearest centroid so far, by reference distances.
#[derive(Clone, Copy)]
struct Best {
    label: u32,
    distance: f64,
}

impl Best {
    #[inline(always)]
    fn take(&mut self, label: u32, distance: f64) {
        if distance < self.distance || distance == self.distance && label < self.label {
            *self = Self { label, distance };
        }
    }
}

impl Search {
    /// Room for rows of tiles of `stride` rows. None if there are no groups.
    pub fn new<T: Float>(stride: usize, d: usize, groups: Option<&Groups<T>>) -> Result<Self> {
        let (count, k, padded) = groups.map_or((0, 1, 0), |groups| (groups.count(), groups.order.len(), groups.padded));
        let rows = if count == 0 { 0 } else { (MOST_SUMS / k).clamp(FEWEST.min(stride), stride) };
        Ok(Self {
            rows,
            copies: memory::zeroed(rows * padded, BOUNDS)?,
            squares: memory::zeroed(rows, BOUNDS)?,
            bounds: memory::zeroed(rows * count, BOUNDS)?,
            open: memory::zeroed(rows * count, BOUNDS)?,
            starts: memory::zeroed(rows + 1, BOUNDS)?,
            members: memory::filled(rows * count, [0; 2], BOUNDS)?,
            firsts: memory::zeroed(count + 1, BOUNDS)?,
            sums: memory::zeroed(rows * k, BOUNDS)?,
            values: memory::zeroed(d, BOUNDS)?,
        })
    }

    /// Number of rows that are labelled together.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// An upper bound of row `i` with this label.
    #[inline(always)]
    pub fn upper<V: Vector, T: Float>(&self, i: usize, label: u32, groups: &Groups<T>) -> f32 {
        let sum = groups.sum::<V>(&self.copies[i * groups.padded..][..groups.padded], label);
        groups.bound.upper(sum, groups.bound.of_row(self.squares[i]))
    }

    /// Opens the groups of row `i` among which may be its label, if the label so far has this upper bound. Rows come in order. None: the row stays,
    /// and no group is open.
    #[inline(always)]
    pub fn open<V: Vector, T: Float>(
        &mut self,
        i: usize,
        stored: &[f32],
        groups: &Groups<T>,
        carry: &Carry,
        upper: Option<f32>,
    ) {
        let (count, from) = (groups.count(), if i == 0 { 0 } else { self.starts[i] });
        self.starts[i] = from;
        self.starts[i + 1] = from;
        if let Some(upper) = upper {
            let bounds = &mut self.bounds[i * count..][..count];
            self.starts[i + 1] += groups.scan::<V>(stored, carry, upper, bounds, &mut self.open[from..]);
        }
    }

    /// The number of open groups of the first `count` rows.
    pub fn opened(&self, count: usize) -> usize {
        self.starts[count]
    }

    /// Computes the sums of the open groups of `count` rows.
    #[inline(always)]
    pub fn sum<V: Vector, T: Float>(&mut self, count: usize, groups: &Groups<T>) {
        // The rows of each group: a sort by counting.
        self.firsts.fill(0);
        for &g in &self.open[..self.starts[count]] {
            self.firsts[g as usize + 1] += 1;
        }
        for g in 0..groups.count() {
            self.firsts[g + 1] += self.firsts[g];
        }
        for i in 0..count {
            for at in self.starts[i]..self.starts[i + 1] {
                let next = &mut self.firsts[self.open[at] as usize];
                self.members[*next] = [i as u32, at as u32];
                *next += 1;
            }
        }
        let mut from = 0;
        for g in 0..groups.count() {
            // Each entry has moved on to the end of its group.
            let to = self.firsts[g];
            for block in 0..groups.width / BLOCK {
                let centroids = groups.block(g * (groups.width / BLOCK) + block);
                for start in (from..to).step_by(TOGETHER) {
                    let members = &self.members[start..to.min(start + TOGETHER)];
                    let offset = block * BLOCK;
                    match V::LANES {
                        16 => sums::<V, 1>(
                            [&self.copies, centroids],
                            groups.padded,
                            members,
                            [groups.width, offset],
                            &mut self.sums,
                        ),
                        _ => sums::<V, 2>(
                            [&self.copies, centroids],
                            groups.padded,
                            members,
                            [groups.width, offset],
                            &mut self.sums,
                        ),
                    }
                }
            }
            from = to;
        }
    }

    /// Makes the copies of `count` rows, which start at row `first` of the tile, and the sums of their squares.
    #[inline(always)]
    pub fn copy_rows<T: Float>(&mut self, tile: &Tile<T>, first: usize, count: usize, groups: &Groups<T>) {
        let (d, [up, more]) = (groups.centre.len(), groups.scale);
        self.squares[..count].fill(0.0);
        // 16 features at a time: a row's part is then one store.
        for start in (0..d).step_by(BLOCK) {
            let columns = &tile.x[start * tile.stride + first..];
            let centre = &groups.centre[start..d.min(start + BLOCK)];
            for i in 0..count {
                let mut part = [0.0f32; BLOCK];
                for f in 0..centre.len() {
                    part[f] = columns[f * tile.stride + i].centred_copy(centre[f], up, more);
                }
                let mut square = 0.0;
                for x in part {
                    square += x * x;
                }
                self.squares[i] += square;
                self.copies[i * groups.padded + start..][..BLOCK].copy_from_slice(&part);
            }
        }
    }

    /// The label of row `i`, which is row `r` of the tile, and its new bounds. `own`: its label so far, and an upper bound.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub fn label<V: Vector, T: Float>(
        &mut self,
        tile: &Tile<T>,
        [i, r]: [usize; 2],
        own: Option<(u32, f32)>,
        groups: &Groups<T>,
        table: &CentroidTable<T>,
        carry: &Carry,
        stored: &mut [f32],
    ) -> FoundRow {
        let width = groups.width;
        let open = &self.open[self.starts[i]..self.starts[i + 1]];
        let sums = &mut self.sums[self.starts[i] * width..self.starts[i + 1] * width];
        let bounds = &mut self.bounds[i * groups.count()..][..groups.count()];
        let of_row = groups.bound.of_row(self.squares[i]);
        let (label, mut upper) = own.unwrap_or((NOBODY, f32::INFINITY));
        let mut best = Best { label, distance: f64::INFINITY };
        // The label so far is not a candidate: `before` is its place among the sums, if its group is open.
        let before = own.and_then(|(label, _)| place_of(label, open, groups));
        let own_sum = before.map(|at| std::mem::replace(&mut sums[at], f32::INFINITY));
        let mut threshold = groups.bound.threshold(carry, upper, of_row);
        let least = groups.renew::<V>(open, sums, of_row, bounds, stored);
        let mut in_doubt = false;
        if not_above(least, threshold) {
            in_doubt = own.is_some();
            tile.row(r, &mut self.values);
            if in_doubt {
                best.distance = chain(&self.values, table.row(label as usize));
                threshold = threshold.min(groups.bound.threshold(carry, carry.upper(best.distance), of_row));
            }
            let own_distance = best.distance;
            let at = position::<V>(sums, least);
            let name = groups.name(open, at);
            if name != NOBODY {
                best.take(name, chain(&self.values, table.row(name as usize)));
                threshold = threshold.min(groups.bound.threshold(carry, carry.upper(best.distance), of_row));
            }
            for start in (0..sums.len()).step_by(BLOCK) {
                let mut bits = in_reach::<V>(&sums[start..start + BLOCK], threshold);
                while bits != 0 {
                    let other = start + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    let name = groups.name(open, other);
                    if other != at && name != NOBODY && Some(other) != before {
                        in_doubt = true;
                        best.take(name, chain(&self.values, table.row(name as usize)));
                    }
                }
            }
            // The new bounds leave out the label, and take in the label before.
            if let (Some(at), Some(sum)) = (before, own_sum) {
                sums[at] = sum;
            }
            if let Some(at) = place_of(best.label, open, groups) {
                sums[at] = f32::INFINITY;
            }
            groups.renew::<V>(open, sums, of_row, bounds, stored);
            if own.is_some() && label != best.label && before.is_none() {
                let g = groups.places[label as usize] as usize / width;
                bounds[g] = bounds[g].min(carry.lower(own_distance));
                stored[g] = groups.stored(g, bounds[g]);
            }
            upper = carry.upper(best.distance);
        }
        FoundRow { label: best.label, upper, lower: least_bound(bounds), in_doubt }
    }
}

/// The place of a centroid among the sums of a row, if its group is open.
#[inline(always)]
fn place_of<T>(j: u32, open: &[u32], groups: &Groups<T>) -> Option<usize> {
    let place = groups.places[j as usize] as usize;
    let at = open.binary_search(&((place / groups.width) as u32)).ok()?;
    Some(at * groups.width + place % groups.width)
}

/// A NaN is in reach.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord)]
fn not_above(sum: f32, threshold: f32) -> bool {
    !(sum > threshold)
}

/// The least of the bounds of a row.
#[inline(always)]
fn least_bound(bounds: &[f32]) -> f32 {
    let mut lanes = [f32::INFINITY; BLOCK];
    for start in (0..bounds.len()).step_by(BLOCK) {
        let some = &bounds[start..bounds.len().min(start + BLOCK)];
        for i in 0..some.len() {
            lanes[i] = if some[i] < lanes[i] { some[i] } else { lanes[i] };
        }
    }
    least_of(&lanes)
}

/// The lanes of a block of sums that are in reach, as bits.
#[inline(always)]
fn in_reach<V: Vector>(block: &[f32], threshold: f32) -> u32 {
    assert!(block.len() == BLOCK);
    let mut bits = 0;
    // SAFETY: LANES divides BLOCK. For the features of the instruction set see `Vector`.
    unsafe {
        for at in (0..BLOCK).step_by(V::LANES) {
            bits |= V::bits(V::load(block.as_ptr().add(at)).not_above(V::splat(threshold))) << at;
        }
    }
    bits
}

/// The first place of the least sum, or of a NaN.
#[inline(always)]
fn position<V: Vector>(sums: &[f32], least: f32) -> usize {
    for start in (0..sums.len()).step_by(BLOCK) {
        let bits = in_reach::<V>(&sums[start..start + BLOCK], least);
        if bits != 0 {
            return start + bits.trailing_zeros() as usize;
        }
    }
    0
}

/// The sums of the squared differences between the copies of at most [`TOGETHER`] rows and those of a block of centroids, which is N vectors
/// wide.
#[inline(always)]
fn sums<V: Vector, const N: usize>(
    [copies, centroids]: [&[f32]; 2],
    padded: usize,
    members: &[[u32; 2]],
    [width, offset]: [usize; 2],
    out: &mut [f32],
) {
    let d = centroids.len() / BLOCK;
    assert!(N * V::LANES == BLOCK && !members.is_empty() && members.len() <= TOGETHER);
    let mut rows = [copies.as_ptr(); TOGETHER];
    for b in 0..TOGETHER {
        let [i, _] = members[b.min(members.len() - 1)];
        rows[b] = copies[i as usize * padded..][..d].as_ptr();
    }
    // SAFETY: each row has d values, and `centroids` BLOCK = N * LANES values for each of the d features. `out` is sliced before it is
    // written. For the features of the instruction set see `Vector`.
    unsafe {
        let mut s = [[V::splat(0.0); N]; TOGETHER];
        for f in 0..d {
            let mut c = [V::splat(0.0); N];
            for v in 0..N {
                c[v] = V::load(centroids.as_ptr().add(f * BLOCK + v * V::LANES));
            }
            for b in 0..TOGETHER {
                let x = V::splat(*rows[b].add(f));
                for v in 0..N {
                    let t = c[v].sub(x);
                    s[b][v] = t.mul_add(t, s[b][v]);
                }
            }
        }
        for b in 0..members.len() {
            let out = &mut out[members[b][1] as usize * width + offset..][..BLOCK];
            for v in 0..N {
                s[b][v].store(out.as_mut_ptr().add(v * V::LANES));
            }
        }
    }
}
