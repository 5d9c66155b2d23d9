//! Groups of centroids near each other, and their copies for the kernel that looks at one row and a few groups.

use super::super::centroids::CentroidTable;
use super::super::filter::TABLE;
use crate::certify::carry::{Carry, Copies};
use crate::error::Result;
use crate::fixed::power_of_two;
use crate::float::Float;
use crate::memory;

/// Number of centroids in a block: the kernel computes their scores together. A group has one or more blocks.
pub const BLOCK: usize = 16;
/// Most bytes for the bounds of all rows and groups. More rows get larger groups.
const MOST_BYTES: usize = 1 << 30;
/// No centroid: what fills up the last block.
pub const NOBODY: u32 = u32::MAX;

/// Which centroids are in which group. It is made from the first centroids, and kept: centroids that are near each other stay so for the
/// most part. Labels do not depend on it.
pub struct Grouping {
    /// The centroids in the order of their blocks, filled up with [`NOBODY`].
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
        split(&mut order, table, width);
        let mut places = memory::zeroed(k, WHAT)?;
        order.iter().enumerate().for_each(|(place, j)| places[*j as usize] = place as u32);
        memory::reserve(&mut order, BLOCK, WHAT)?;
        order.resize(k.next_multiple_of(BLOCK), NOBODY);
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
fn split<T: Float>(members: &mut [u32], table: &CentroidTable<T>, width: usize) {
    if members.len() <= width {
        return;
    }
    let (mut widest, mut range) = (0, -1.0);
    for f in 0..table.d {
        let values = members.iter().map(|j| table.row(*j as usize)[f].to_f64());
        let [low, high] = values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)]);
        if high - low > range {
            (widest, range) = (f, high - low);
        }
    }
    let half = (members.len().div_ceil(width) / 2) * width;
    members.select_nth_unstable_by(half, |a, b| {
        let [a, b] = [a, b].map(|j| table.row(*j as usize)[widest].to_f64());
        a.total_cmp(&b)
    });
    let (one, other) = members.split_at_mut(half);
    split(one, table, width);
    split(other, table, width);
}

/// The groups of one assign.
pub struct Groups<T> {
    /// `(blocks, d, BLOCK)`: centred, scaled copies of the centroids. What fills up the last block is infinite.
    pub copies: Vec<f32>,
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
        for (place, j) in grouping.order.iter().enumerate().filter(|(_, j)| **j != NOBODY) {
            let block = &mut copies[place / BLOCK * BLOCK * d..][..BLOCK * d];
            for (f, c) in table.row(*j as usize).iter().enumerate() {
                let copy = c.centred_copy(centre[f], scale[0], scale[1]);
                if !copy.is_finite() {
                    return Ok(None);
                }
                block[f * BLOCK + place % BLOCK] = copy;
            }
        }
        Ok(Some(Self {
            copies,
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

    /// The lower bounds of a row for each group, from those that are stored.
    #[inline(always)]
    pub fn current(&self, stored: &[f32], out: &mut [f32]) {
        for ((out, stored), moved) in out.iter_mut().zip(stored).zip(&self.moved) {
            *out = Carry::nearer(*stored, *moved);
        }
    }

    /// The least lower bound of a row.
    #[inline(always)]
    pub fn least(&self, stored: &[f32]) -> f32 {
        // Numbers of at least 0 are in the order of their bits. So this is a minimum of integers, which the compiler makes vectors of.
        let bounds = stored.iter().zip(&self.moved).map(|(stored, moved)| Carry::nearer(*stored, *moved).to_bits());
        f32::from_bits(bounds.fold(f32::INFINITY.to_bits(), u32::min))
    }

    /// What is stored for a lower bound of group `g`.
    #[inline(always)]
    pub fn stored(&self, g: usize, lower: f32) -> f32 {
        let sum = f64::from(lower) + self.added[g];
        // Both roundings, of the sum and to float32, are undone by one step downwards.
        (sum as f32).next_down().next_down().max(0.0)
    }
}
