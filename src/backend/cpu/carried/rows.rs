//! Labels one row by the groups of centroids that may hold its label.
//!
//! ```text
//! groups whose lower bound does not rule them out:  s~ = sum of squared differences of copies, for 16 centroids at a time
//! centroids whose s~ does not rule them out are compared by reference distances with the best so far
//! new bounds: for each of these groups the least s~ of all but the label
//! ```
//! The local filter of the paper, which leaves out single centroids of a group, would save nothing: their lanes are computed together.

use super::super::centroids::CentroidTable;
use super::super::simd::Vector;
use super::groups::{BLOCK, Groups, NOBODY};
use super::{BOUNDS, chain};
use crate::certify::carry::Carry;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::tile::Tile;

/// Blocks whose sums are computed together. Their chains overlap.
const TOGETHER: usize = 4;

/// Buffers for one row.
pub struct RowScratch {
    /// The row's copy.
    copy: Vec<f32>,
    values: Vec<f64>,
    /// The current lower bounds of all groups.
    bounds: Vec<f32>,
    /// The groups that may hold the label.
    open: Vec<u32>,
    /// Their blocks, filled up to a multiple of [`TOGETHER`].
    blocks: Vec<u32>,
    /// `(blocks, BLOCK)`: their sums.
    sums: Vec<f32>,
}

/// What is known of a row after it was labelled.
pub struct FoundRow {
    pub label: u32,
    pub upper: f32,
    pub lower: f32,
    pub scores: u64,
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

impl RowScratch {
    pub fn new<T: Float>(d: usize, groups: Option<&Groups<T>>) -> Result<Self> {
        let (count, blocks) = groups.map_or((0, 0), |groups| (groups.count(), groups.order.len() / BLOCK));
        let blocks = blocks.next_multiple_of(TOGETHER);
        Ok(Self {
            copy: memory::zeroed(d, BOUNDS)?,
            values: memory::zeroed(d, BOUNDS)?,
            bounds: memory::zeroed(count, BOUNDS)?,
            open: memory::zeroed(count, BOUNDS)?,
            blocks: memory::with_room(blocks, BOUNDS)?,
            sums: memory::zeroed(blocks * BLOCK, BOUNDS)?,
        })
    }

    /// Labels row `r` of the tile. `own`: its label so far and the reference distance to it. `stored`: the bounds of its groups.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub fn label<V: Vector, T: Float>(
        &mut self,
        tile: &Tile<T>,
        r: usize,
        own: Option<(u32, f64)>,
        groups: &Groups<T>,
        table: &CentroidTable<T>,
        carry: &Carry,
        stored: &mut [f32],
    ) -> FoundRow {
        let (width, blocks_of_group) = (groups.width, groups.width / BLOCK);
        // Without a label, the bounds say nothing.
        let upper = own.map_or(f32::INFINITY, |(_, distance)| carry.upper(distance));
        groups.current(stored, &mut self.bounds);
        let mut count = 0;
        for (g, bound) in (0u32..).zip(&self.bounds) {
            self.open[count] = g;
            count += usize::from(!carry.keeps(*bound, upper));
        }
        let all_blocks = groups.order.len() / BLOCK;
        self.blocks.clear();
        for &g in &self.open[..count] {
            let first = g as usize * blocks_of_group;
            self.blocks.extend(first as u32..(first + blocks_of_group).min(all_blocks) as u32);
        }
        let computed = self.blocks.len();
        let Some(&last) = self.blocks.last() else {
            let (label, _) = own.unwrap_or_default();
            return FoundRow { label, upper, lower: least(&self.bounds), scores: 0, in_doubt: false };
        };
        self.blocks.resize(computed.next_multiple_of(TOGETHER), last);
        let square = self.copy_row(tile, r, groups);
        match V::LANES {
            16 => sums::<V, 1>(&self.copy, &groups.copies, &self.blocks, &mut self.sums),
            _ => sums::<V, 2>(&self.copy, &groups.copies, &self.blocks, &mut self.sums),
        }
        let of_row = groups.bound.of_row(square);
        // The place of a centroid among the sums, if its group is there.
        let open = &self.open[..count];
        let blocks = &self.blocks[..computed];
        let place_of = |j: u32| {
            let place = groups.places[j as usize] as usize;
            let block = blocks.binary_search(&((place / BLOCK) as u32)).ok()?;
            Some(block * BLOCK + place % BLOCK)
        };
        let name = |at: usize| groups.order[blocks[at / BLOCK] as usize * BLOCK + at % BLOCK];
        let sums = &mut self.sums[..computed * BLOCK];
        let values = &mut self.values;
        // The label so far is not a candidate.
        let own_place = own.and_then(|(label, _)| place_of(label));
        let own_sum = own_place.map(|at| std::mem::replace(&mut sums[at], f32::INFINITY));
        let mut in_doubt = false;
        let mut best = match own {
            Some((label, distance)) => Best { label, distance },
            None => Best { label: NOBODY, distance: f64::INFINITY },
        };
        let mut threshold = groups.bound.threshold(carry, upper, of_row);
        let (mut nearest, mut least_sum) = (0, u32::MAX);
        for (at, block) in sums.chunks_exact(BLOCK).enumerate() {
            let bits = block.iter().fold(u32::MAX, |least, sum| least.min(sum.to_bits()));
            if bits < least_sum {
                (nearest, least_sum) = (at, bits);
            }
        }
        if not_above(f32::from_bits(least_sum), threshold) {
            tile.row(r, values);
            let at = nearest * BLOCK
                + sums[nearest * BLOCK..][..BLOCK].iter().position(|sum| sum.to_bits() == least_sum).unwrap_or(0);
            in_doubt = own.is_some();
            if name(at) != NOBODY {
                best.take(name(at), chain(values, table.row(name(at) as usize)));
            }
            threshold = threshold.min(groups.bound.threshold(carry, carry.upper(best.distance), of_row));
            for (i, block) in sums.chunks_exact(BLOCK).enumerate() {
                if !block.iter().fold(false, |any, sum| any | not_above(*sum, threshold)) {
                    continue;
                }
                for (lane, sum) in block.iter().enumerate() {
                    let other = i * BLOCK + lane;
                    if not_above(*sum, threshold) && other != at && name(other) != NOBODY && Some(other) != own_place {
                        in_doubt = true;
                        best.take(name(other), chain(values, table.row(name(other) as usize)));
                    }
                }
            }
        }
        // The new bounds leave out the label, and take in the label before.
        if let (Some(at), Some(sum)) = (own_place, own_sum) {
            sums[at] = sum;
        }
        if let Some(at) = place_of(best.label) {
            sums[at] = f32::INFINITY;
        }
        for (sums, &g) in sums.chunks(width).zip(open) {
            let bits = sums.iter().fold(u32::MAX, |least, sum| least.min(sum.to_bits()));
            let lower = groups.bound.lower(f32::from_bits(bits), of_row);
            self.bounds[g as usize] = lower;
            stored[g as usize] = groups.stored(g as usize, lower);
        }
        if let Some((label, distance)) = own
            && label != best.label
            && own_place.is_none()
        {
            let g = groups.places[label as usize] as usize / width;
            let lower = self.bounds[g].min(carry.lower(distance));
            self.bounds[g] = lower;
            stored[g] = groups.stored(g, lower);
        }
        FoundRow {
            label: best.label,
            upper: carry.upper(best.distance),
            lower: least(&self.bounds),
            scores: (computed * BLOCK) as u64,
            in_doubt,
        }
    }

    /// Makes the copy of a row. Returns the sum of its squares.
    #[inline(always)]
    fn copy_row<T: Float>(&mut self, tile: &Tile<T>, r: usize, groups: &Groups<T>) -> f32 {
        let [first, second] = groups.scale;
        for (f, (copy, centre)) in self.copy.iter_mut().zip(&groups.centre).enumerate() {
            *copy = tile.x[f * tile.stride + r].centred_copy(*centre, first, second);
        }
        let mut lanes = [0.0f32; 8];
        for values in self.copy.chunks(8) {
            for (lane, x) in lanes.iter_mut().zip(values) {
                *lane += x * x;
            }
        }
        lanes.iter().sum()
    }
}

/// The least of numbers of at least 0, which are in the order of their bits.
#[inline(always)]
fn least(bounds: &[f32]) -> f32 {
    f32::from_bits(bounds.iter().fold(f32::INFINITY.to_bits(), |least, bound| least.min(bound.to_bits())))
}

/// A NaN is in reach.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord)]
fn not_above(sum: f32, threshold: f32) -> bool {
    !(sum > threshold)
}

/// The sums of the squared differences between a row's copy and those of some blocks. A block is N vectors wide.
#[inline(always)]
fn sums<V: Vector, const N: usize>(x: &[f32], copies: &[f32], blocks: &[u32], out: &mut [f32]) {
    let d = x.len();
    assert!(N * V::LANES == BLOCK && blocks.len().is_multiple_of(TOGETHER) && out.len() >= blocks.len() * BLOCK);
    for (four, out) in blocks.chunks_exact(TOGETHER).zip(out.chunks_exact_mut(TOGETHER * BLOCK)) {
        let mut centroids = [&copies[..0]; TOGETHER];
        for (centroids, block) in centroids.iter_mut().zip(four) {
            *centroids = &copies[*block as usize * BLOCK * d..][..BLOCK * d];
        }
        // SAFETY: each block of copies holds BLOCK = N * LANES values for each of the d features, and `out` BLOCK sums for each block. For the
        // features of the instruction set see `Vector`.
        unsafe {
            let mut s = [[V::splat(0.0); N]; TOGETHER];
            for (f, x) in x.iter().enumerate() {
                let x = V::splat(*x);
                for b in 0..TOGETHER {
                    for v in 0..N {
                        let t = V::load(centroids[b].as_ptr().add(f * BLOCK + v * V::LANES)).sub(x);
                        s[b][v] = t.mul_add(t, s[b][v]);
                    }
                }
            }
            for b in 0..TOGETHER {
                for v in 0..N {
                    s[b][v].store(out.as_mut_ptr().add(b * BLOCK + v * V::LANES));
                }
            }
        }
    }
}
