//! Groups of centroids near each other, and their copies for the kernel that looks at one row and a few groups.

use super::super::centroids::CentroidTable;
use super::super::filter::TABLE;
use super::super::simd::Vector;
use crate::certify::carry::{Carry, Copies};
use crate::error::Result;
use crate::fixed::power_of_two;
use crate::float::Float;
use crate::memory;

/// Number of centroids in a block: the kernel computes their scores together. A group has one or more blocks.
pub const BLOCK: usize = 16;
/// Most bytes for the bounds of all rows and groups. More rows get larger groups.
const MOST_BYTES: usize = 1 << 30;
/// No centroid: what fills up the last group.
pub const NOBODY: u32 = u32::MAX;

/// Which centroids are in which group. It is made from the first centroids, and kept: centroids that are near each other stay so for the
/// most part. Labels do not depend on it.
pub struct Grouping {
    /// The centroids in the order of their blocks, the last group filled up with [`NOBODY`].
    order: Vec<u32>,
    /// For each centroid, its place in the order.
    places: Vec<u32>,
    /// Number of centroids in a group, a multiple of [`BLOCK`].
    width: usize,
    /// For each group, a number at or above the sum of its largest drifts so far.
    moved: Vec<f64>,
}

impl Grouping {
    pub fn new<T: Float>(table: &CentroidTable<T>, rows: usize) -> Result<Self> {
        const WHAT: &str = "the groups of the centroids";
        let k = table.k;
        let most = (MOST_BYTES / 4 / rows.max(1)).max(1);
        let width = k.div_ceil(most).next_multiple_of(BLOCK);
        let mut order: Vec<u32> = memory::collected(0..k as u32, WHAT)?;
        split(&mut order, &table.rows, table.d, width);
        let mut places = memory::zeroed(k, WHAT)?;
        order.iter().enumerate().for_each(|(place, j)| places[*j as usize] = place as u32);
        memory::reserve(&mut order, width, WHAT)?;
        order.resize(k.next_multiple_of(width), NOBODY);
        Ok(Self { order, places, width, moved: memory::zeroed(k.div_ceil(width), WHAT)? })
    }

    /// Number of groups.
    pub fn count(&self) -> usize {
        self.moved.len()
    }

    /// Takes the drifts of an iteration into account.
    pub fn add(&mut self, drifts: &[f32]) {
        for (moved, members) in self.moved.iter_mut().zip(self.order.chunks(self.width)) {
            let there = members.iter().filter(|j| **j != NOBODY);
            let most = there.fold(0.0f32, |most, j| most.max(drifts[*j as usize]));
            if most > 0.0 {
                *moved = (*moved + f64::from(most)).next_up();
            }
        }
    }
}

/// Puts centroids near each other next to each other: halves them along the feature of the widest range, at multiples of the width.
pub fn split<T: Float>(members: &mut [u32], centroids: &[T], d: usize, width: usize) {
    if members.len() <= width {
        return;
    }
    let (mut widest, mut range) = (0, -1.0);
    for f in 0..d {
        let values = members.iter().map(|j| centroids[*j as usize * d + f].to_f64());
        let [low, high] = values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)]);
        if high - low > range {
            (widest, range) = (f, high - low);
        }
    }
    let half = (members.len().div_ceil(width) / 2) * width;
    members.select_nth_unstable_by(half, |a, b| {
        let [a, b] = [a, b].map(|j| centroids[*j as usize * d + widest].to_f64());
        a.total_cmp(&b)
    });
    let (one, other) = members.split_at_mut(half);
    split(one, centroids, d, width);
    split(other, centroids, d, width);
}

/// The groups of one assign.
pub struct Groups<T> {
    /// `(blocks, d, BLOCK)`: centred, scaled copies of the centroids. What fills up the last group is infinite.
    pub copies: Vec<f32>,
    /// `(k, padded)`: the same copies by centroids, filled up with zeros to a multiple of [`BLOCK`] features.
    by_centroids: Vec<f32>,
    pub padded: usize,
    pub order: Vec<u32>,
    pub places: Vec<u32>,
    pub width: usize,
    /// For each group: how far it has moved. In float32 for what is subtracted, in float64 for what is added.
    moved: Vec<f32>,
    added: Vec<f64>,
    pub bound: Copies,
    /// Subtracted from rows. They are then multiplied by two powers of two.
    pub centre: Vec<T>,
    pub scale: [T; 2],
}

impl<T: Float> Groups<T> {
    /// None if a copy is not finite.
    pub fn new(grouping: &Grouping, table: &CentroidTable<T>, centre: &[f64], exponent: i32) -> Result<Option<Self>> {
        let d = table.d;
        let half = exponent / 2;
        let scale = [half, exponent - half].map(|e| T::from_f64(power_of_two(e)));
        let centre: Vec<T> = memory::collected(centre.iter().map(|m| T::from_f64(*m)), TABLE)?;
        let mut copies = memory::filled(grouping.order.len() * d, f32::INFINITY, TABLE)?;
        let padded = d.next_multiple_of(BLOCK);
        let mut by_centroids = memory::zeroed(table.k * padded, TABLE)?;
        for (place, j) in grouping.order.iter().enumerate().filter(|(_, j)| **j != NOBODY) {
            let block = &mut copies[place / BLOCK * BLOCK * d..][..BLOCK * d];
            for (f, c) in table.row(*j as usize).iter().enumerate() {
                let copy = c.centred_copy(centre[f], scale[0], scale[1]);
                if !copy.is_finite() {
                    return Ok(None);
                }
                block[f * BLOCK + place % BLOCK] = copy;
                by_centroids[*j as usize * padded + f] = copy;
            }
        }
        Ok(Some(Self {
            copies,
            by_centroids,
            padded,
            order: memory::copied(&grouping.order, TABLE)?,
            places: memory::copied(&grouping.places, TABLE)?,
            width: grouping.width,
            moved: memory::collected(grouping.moved.iter().map(|moved| (*moved as f32).next_up()), TABLE)?,
            added: memory::copied(&grouping.moved, TABLE)?,
            bound: Copies::new(d),
            centre,
            scale,
        }))
    }

    /// Number of groups.
    pub fn count(&self) -> usize {
        self.moved.len()
    }

    /// The sum of the squared differences between the copies of a row and of a centroid. Both are filled up with zeros.
    #[inline(always)]
    pub fn sum<V: Vector>(&self, row: &[f32], label: u32) -> f32 {
        let centroid = &self.by_centroids[label as usize * self.padded..][..self.padded];
        assert!(row.len() == self.padded);
        let mut lanes = [0.0f32; BLOCK];
        // SAFETY: both have as many values, and LANES divides their number. For the features of the instruction set see `Vector`.
        unsafe {
            let mut s = V::splat(0.0);
            for at in (0..self.padded).step_by(V::LANES) {
                let t = V::load(row.as_ptr().add(at)).sub(V::load(centroid.as_ptr().add(at)));
                s = t.mul_add(t, s);
            }
            s.store(lanes.as_mut_ptr());
        }
        let mut sum = 0.0;
        for lane in lanes {
            sum += lane;
        }
        sum
    }

    /// The copies of a block of centroids.
    #[inline(always)]
    pub fn block(&self, block: usize) -> &[f32] {
        let len = BLOCK * self.centre.len();
        &self.copies[block * len..][..len]
    }

    /// The centroid whose sum is at this place among those of the open groups.
    #[inline(always)]
    pub fn name(&self, open: &[u32], at: usize) -> u32 {
        self.order[open[at / self.width] as usize * self.width + at % self.width]
    }

    /// The lower bounds of a row from those that are stored, and the groups among which may be the label of a row with this upper bound:
    /// `bounds` and the first entries of `open`. Returns the number of these groups.
    #[inline(always)]
    pub fn scan<V: Vector>(&self, stored: &[f32], carry: &Carry, upper: f32, bounds: &mut [f32], open: &mut [u32]) -> usize {
        let count = self.moved.len();
        assert!(stored.len() == count && bounds.len() == count && open.len() >= count);
        let mut opened = 0;
        if count < V::LANES {
            for g in 0..count {
                bounds[g] = Carry::nearer(stored[g], self.moved[g]);
                open[opened] = g as u32;
                opened += usize::from(!carry.keeps(bounds[g], upper));
            }
            return opened;
        }
        let [slope, limit] = carry.as_limit(upper);
        let mut next = 0;
        while next < count {
            // The last vector begins earlier, so that it ends with the last group.
            let at = next.min(count - V::LANES);
            // SAFETY: at + LANES <= count, which is the length of all three. For the features of the instruction set see `Vector`.
            let mut bits = unsafe {
                let bound = nearer(V::load(stored.as_ptr().add(at)), V::load(self.moved.as_ptr().add(at)));
                bound.store(bounds.as_mut_ptr().add(at));
                V::bits(bound.mul_add(V::splat(slope), V::splat(0.0)).not_above(V::splat(limit)))
            };
            bits = bits >> (next - at) << (next - at);
            while bits != 0 {
                open[opened] = at as u32 + bits.trailing_zeros();
                opened += 1;
                bits &= bits - 1;
            }
            next = at + V::LANES;
        }
        opened
    }

    /// The least lower bound of a row.
    #[inline(always)]
    pub fn least<V: Vector>(&self, stored: &[f32]) -> f32 {
        let count = self.moved.len();
        assert!(stored.len() == count);
        let mut lanes = [f32::INFINITY; BLOCK];
        if count < V::LANES {
            for g in 0..count {
                lanes[g] = Carry::nearer(stored[g], self.moved[g]);
            }
            return least_of(&lanes);
        }
        // SAFETY: as in `scan`.
        unsafe {
            let mut least = V::splat(f32::INFINITY);
            let mut next = 0;
            while next < count {
                let at = next.min(count - V::LANES);
                least = nearer(V::load(stored.as_ptr().add(at)), V::load(self.moved.as_ptr().add(at))).min_or(least);
                next = at + V::LANES;
            }
            least.store(lanes.as_mut_ptr());
        }
        least_of(&lanes)
    }

    /// Takes over the bounds of the open groups of a row from their sums. Returns the least sum.
    #[inline(always)]
    pub fn renew<V: Vector>(&self, open: &[u32], sums: &[f32], of_row: f32, bounds: &mut [f32], stored: &mut [f32]) -> f32 {
        let mut least_of_all = f32::INFINITY;
        for (n, &g) in open.iter().enumerate() {
            let g = g as usize;
            let least = least_lane::<V>(&sums[n * self.width..(n + 1) * self.width]);
            least_of_all = if least < least_of_all { least } else { least_of_all };
            bounds[g] = self.bound.lower(least, of_row);
            stored[g] = self.stored(g, bounds[g]);
        }
        least_of_all
    }

    /// What is stored for a lower bound of group `g`.
    #[inline(always)]
    pub fn stored(&self, g: usize, lower: f32) -> f32 {
        let sum = f64::from(lower) + self.added[g];
        // Both roundings, of the sum and to float32, are undone by steps downwards.
        (sum as f32).next_down().next_down().max(0.0)
    }
}

/// [`Carry::nearer`] of all lanes.
///
/// # Safety
/// For the features of the instruction set see `Vector`.
#[inline(always)]
unsafe fn nearer<V: Vector>(lower: V, drift: V) -> V {
    // SAFETY: the caller gives the same guarantee.
    unsafe { lower.sub(drift).mul_add(V::splat(Carry::DOWN), V::splat(0.0)).max_or_nan(V::splat(0.0)) }
}

/// The least of some sums, whose number is a multiple of [`BLOCK`]. NaNs do not count.
#[inline(always)]
fn least_lane<V: Vector>(sums: &[f32]) -> f32 {
    let mut lanes = [f32::INFINITY; BLOCK];
    // SAFETY: each chunk has BLOCK values, which LANES divides. For the features of the instruction set see `Vector`.
    unsafe {
        let mut least = V::splat(f32::INFINITY);
        for at in (0..sums.len() / BLOCK * BLOCK).step_by(V::LANES) {
            least = V::load(sums.as_ptr().add(at)).min_or(least);
        }
        least.store(lanes.as_mut_ptr());
    }
    least_of(&lanes)
}

/// The least of 16 numbers of at least 0, which are in the order of their bits.
#[inline(always)]
pub fn least_of(lanes: &[f32; BLOCK]) -> f32 {
    let mut least = [0u32; BLOCK / 2];
    for i in 0..BLOCK / 2 {
        let [a, b] = [lanes[i].to_bits(), lanes[i + BLOCK / 2].to_bits()];
        least[i] = if b < a { b } else { a };
    }
    let mut half = BLOCK / 4;
    while half > 0 {
        for i in 0..half {
            least[i] = if least[i + half] < least[i] { least[i + half] } else { least[i] };
        }
        half /= 2;
    }
    f32::from_bits(least[0])
}
