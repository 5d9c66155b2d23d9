//! Copies in bfloat16 of rows and centroids, about the point of each group: for the product filter on pairs of features.
//!
//! Rows are copied when they are sorted, and centroids in each assign. Both subtract the same bits of the group's point.

#[cfg(test)]
mod attacks;

use super::groups::Groups;
use super::sorted::Sorted;
use super::{BLOCK, NEAR, Step};
use crate::backend::cpu::filter::{GROUP, NOBODY, binade};
use crate::backend::cpu::product::{PairRows, PairTable};
use crate::backend::cpu::simd::{InstructionSet, PairUnit, SIDE, Task, Vector, from_bfloat16, packed, to_bfloat16};
use crate::certify::halves::Halves;
use crate::certify::own::Own;
use crate::error::Result;
use crate::fixed::power_of_two;
use crate::float::Float;
use crate::memory;
use crate::parallel::for_each_task;
use crate::prepare::{Prepared, unit_exponent};

/// Most bytes of the copies of the centroids of one assign.
const MOST_TABLE_BYTES: usize = 128 << 20;
/// The binary logarithms of balances.
const BALANCES: [f64; 2] = [-4.0, 6.0];
/// Covers two roundings of a threshold: see `certify::Expanded::threshold`.
const ROUNDINGS: f64 = 1.001;

/// What all copies of a session share.
pub struct Copies {
    pub unit: PairUnit,
    bound: Halves,
    /// Copies are multiplied by two to this.
    exponent: i32,
}

impl Copies {
    /// The copies for rows within these limits, about any point between them. None if there is no suitable scale.
    pub fn new(unit: PairUnit, prepared: &Prepared, d: usize) -> Option<Self> {
        let extents = prepared.lows.iter().zip(&prepared.highs).map(|(low, high)| high - low);
        let largest = extents.fold(0.0f64, |most, extent| if extent <= most { most } else { extent });
        // Far from the limits of both types. Rows of other sizes are compared in float32.
        let known = largest > 1e-30 && largest < 1e30 && d <= crate::certify::halves::MOST_FEATURES;
        known.then(|| {
            let exponent = unit_exponent(largest);
            Self { unit, bound: Halves::pairs(d, unit.is_tiled(), exponent), exponent }
        })
    }
}

/// The copies of sorted rows.
pub struct RowCopies {
    /// `(blocks, lanes, BLOCK)`. The lanes after the last feature are 0.
    copies: Vec<f32>,
    /// For each place: the row's part of the bound.
    errors: Vec<f32>,
    /// For each group: the sum of the binary logarithms of the rows' squared norms, and their number.
    sizes: Vec<[f64; 2]>,
}

impl RowCopies {
    /// Bytes of the copies of so many places.
    pub fn bytes(places: usize, lanes: usize) -> usize {
        places.saturating_mul((lanes + 1) * size_of::<f32>())
    }

    /// Room for copies of so many places.
    pub fn new(places: usize, lanes: usize, groups: usize) -> Result<Self> {
        Ok(Self {
            copies: memory::zeroed(places * lanes, NEAR)?,
            errors: memory::zeroed(places, NEAR)?,
            sizes: memory::zeroed(groups, NEAR)?,
        })
    }

    /// Forgets the sizes of rows, before blocks are filled.
    pub fn clear(&mut self) {
        self.sizes.fill([0.0; 2]);
    }

    /// The copies of the block at a place.
    #[inline(always)]
    pub fn block(&self, place: usize) -> PairRows<'_> {
        let lanes = self.copies.len() / self.errors.len();
        let first = place / BLOCK * BLOCK;
        PairRows { copies: &self.copies[first * lanes..][..BLOCK * lanes], errors: &self.errors[first..][..BLOCK] }
    }

    /// Copies the rows of the block at a place. `x`: `(d, BLOCK)`. `count`: how many of them are rows.
    #[inline(always)]
    pub fn fill<T: Float>(&mut self, place: usize, x: &[T], count: usize, groups: &Groups<T>, group: usize, shared: &Copies) {
        let Copies { bound, exponent, .. } = shared;
        let lanes = self.copies.len() / self.errors.len();
        let half = exponent / 2;
        let [up, more] = [half, exponent - half].map(|e| T::from_f64(power_of_two(e)));
        let point = groups.point(group);
        let (mut squares, mut rests) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
        let (columns, _) = x[..groups.d() * BLOCK].as_chunks::<BLOCK>();
        let block = &mut self.copies[place / BLOCK * BLOCK * lanes..][..BLOCK * lanes];
        let pairs = columns.chunks(2).zip(point.chunks(2));
        for (to, (columns, points)) in block.as_chunks_mut::<BLOCK>().0.iter_mut().zip(pairs) {
            let mut both = [[0u16; BLOCK]; 2];
            for (numbers, (x, centre)) in both.iter_mut().zip(columns.iter().zip(points)) {
                for r in 0..BLOCK {
                    let exact = x[r].centred_copy(*centre, up, more);
                    numbers[r] = to_bfloat16(exact);
                    let copy = from_bfloat16(numbers[r]);
                    // Exact, because the copy is the number without its last bits, or next to that.
                    let rest = exact - copy;
                    squares[r] += copy * copy;
                    rests[r] += rest * rest;
                }
            }
            for r in 0..BLOCK {
                to[r] = packed([both[0][r], both[1][r]]);
            }
        }
        let d = columns.len() as f64;
        // The sums of squares have d roundings, and squares of residuals may underflow. Centring and scaling have two roundings.
        let (around, least) = (1.0 + (d + 8.0) * 2f64.powi(-23), d * 2f64.powi(-140));
        let errors = &mut self.errors[place / BLOCK * BLOCK..][..BLOCK];
        for r in 0..BLOCK {
            let copy = (f64::from(squares[r]) * around).sqrt();
            let rest = (f64::from(rests[r]) * around + least).sqrt();
            let error = bound.of_row(copy, rest + 2f64.powi(-23) * 1.01 * (copy + rest));
            // Products of longer rows could overflow. A NaN is not below either.
            errors[r] = if squares[r] < 1e30 && error < 1e30 { (error as f32).next_up() } else { f32::INFINITY };
        }
        let [sum, rows] = &mut self.sizes[group];
        for square in squares[..count].iter().filter(|square| **square < 1e30) {
            *sum += f64::from(binade(*square).max(-60.0));
            *rows += 1.0;
        }
    }
}

/// For each group: what its copies of centroids depend on, beside the centroids.
#[derive(Debug, Clone, Copy)]
struct GroupRows {
    /// At least the largest distance of a row from the point.
    radius: f64,
    /// The mean of the binary logarithms of the rows' squared norms, if they are known.
    size: Option<f64>,
}

impl GroupRows {
    /// `kept`: sorted parts of the rows, or none if rows are not sorted yet.
    fn of<T: Float>(group: usize, kept: &[Sorted<T>]) -> Self {
        if kept.is_empty() {
            return Self { radius: f64::INFINITY, size: None };
        }
        let (mut sum, mut rows) = (0.0, 0.0);
        for copies in kept.iter().filter_map(|sorted| sorted.copies.as_ref()) {
            sum += copies.sizes[group][0];
            rows += copies.sizes[group][1];
        }
        let radius = super::largest(kept.iter().map(|sorted| sorted.radius(group)));
        Self { radius, size: (rows > 0.0).then(|| sum / rows) }
    }
}

/// Copies in bfloat16 for the assigns of a session.
pub struct Halved {
    pub copies: Copies,
    /// For each group, the centroids near it.
    pub tables: Vec<PairTable>,
    /// Number of assigns since the last one with little doubt.
    doubtful: u32,
}

impl Halved {
    pub fn new(copies: Copies, groups: usize) -> Result<Self> {
        Ok(Self { copies, tables: memory::collected((0..groups).map(|_| PairTable::default()), NEAR)?, doubtful: 0 })
    }

    /// Whether there may be copies of so many centroids in one assign, those near several groups counted for each.
    pub fn has_room(centroids: f64, lanes: usize) -> bool {
        centroids * (lanes * size_of::<f32>()) as f64 <= MOST_TABLE_BYTES as f64
    }

    /// Whether the copies did not pay twice in a row. `is_doubtful`: whether they did not pay in the last assign.
    pub fn gives_up(&mut self, is_doubtful: bool) -> bool {
        self.doubtful = if is_doubtful { self.doubtful + 1 } else { 0 };
        self.doubtful > 1
    }

    /// Copies the centroids near each group, or all where nobody knows yet how far rows are from the group's point. Returns whether there are tables
    /// now: there are none if they would take too much memory.
    pub fn copy_centroids<T: Float>(
        &mut self,
        step: &Step<'_, T>,
        centroids: &[T],
        kept: &[Sorted<T>],
        is_sorted: bool,
        set: InstructionSet,
        workers: usize,
    ) -> Result<bool> {
        let Self { copies: shared, tables, .. } = self;
        let lanes = shared.unit.lanes(step.groups.d());
        let rows = |group| GroupRows::of(group, if is_sorted { kept } else { &[] });
        let rows = memory::collected((0..step.groups()).map(rows), NEAR)?;
        let listed = |group: usize| step.listed(group, rows[group].radius, None);
        let panels: usize = (0..step.groups()).map(|group| listed(group).len()).sum();
        if !Self::has_room((panels * GROUP) as f64, lanes) {
            return Ok(false);
        }
        for (group, table) in tables.iter_mut().enumerate() {
            let panels = listed(group).len();
            let values = shared.unit.centroids(panels * GROUP) * lanes;
            table.packed.clear();
            memory::reserve(&mut table.packed, values, NEAR)?;
            table.packed.resize(values, 0.0);
            table.own.clear();
            memory::reserve(&mut table.own, panels * 2 * GROUP, NEAR)?;
            table.own.resize(panels * 2 * GROUP, f32::INFINITY);
        }
        let most = (0..step.groups()).map(|group| listed(group).len()).max().unwrap_or(0);
        let norms = || memory::zeroed::<[f64; 3]>(most * GROUP, NEAR);
        let mut workers = memory::try_collected((0..workers.min(step.groups())).map(|_| norms()), NEAR)?;
        for_each_task(&mut workers, tables.iter_mut().enumerate(), |norms, (group, table)| {
            set.run(CopyGroup { step, centroids, panels: listed(group), group, size: rows[group].size, shared, norms, table });
        })?;
        Ok(true)
    }
}

/// Copies the centroids near one group. Compiled for each instruction set.
struct CopyGroup<'p, 'n, T> {
    step: &'p Step<'n, T>,
    centroids: &'p [T],
    panels: &'p [u32],
    group: usize,
    size: Option<f64>,
    shared: &'p Copies,
    /// For each centroid: the squared norms of it, of its copy, and of what rounding left.
    norms: &'p mut [[f64; 3]],
    table: &'p mut PairTable,
}

impl<T: Float> Task for CopyGroup<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { step, centroids, panels, group, size, shared, norms, table } = self;
        let (groups, Copies { bound, exponent, unit }) = (step.groups, shared);
        let (d, point, scale) = (groups.d(), groups.point(group), power_of_two(*exponent));
        let lanes = unit.lanes(d);
        let (mut sizes, mut members) = (0.0, 0.0);
        for (place, panel) in panels.iter().enumerate() {
            for (c, j) in step.members(*panel).enumerate().filter(|(_, j)| *j != NOBODY) {
                let at = CopyPlace::new(unit, place * GROUP + c, lanes);
                let found = at.copy(&centroids[j as usize * d..][..d], point, scale, &mut table.packed);
                norms[place * GROUP + c] = found;
                if usize::from(groups.of[j as usize]) == group {
                    sizes += f64::from(binade(found[0] as f32).clamp(-60.0, 60.0));
                    members += 1.0;
                }
            }
        }
        // Rows and centroids of a group are as long as each other until it is known better.
        let longer = if members > 0.0 { size.map_or(0.0, |size| sizes / members - size) } else { 0.0 };
        let balance = (0.5 * longer).round().clamp(BALANCES[0], BALANCES[1]).exp2();
        table.slope = (balance * ROUNDINGS) as f32;
        for (place, panel) in panels.iter().enumerate() {
            let own = &mut table.own[place * 2 * GROUP..][..2 * GROUP];
            for (c, _) in step.members(*panel).enumerate().filter(|(_, j)| *j != NOBODY) {
                let [square, copy, rest] = norms[place * GROUP + c];
                let Own { folded, margin } = bound.own([square, copy.sqrt(), rest.sqrt()], 1.0, balance);
                (own[c], own[c + GROUP]) = (folded, margin);
                // Products of a centroid so long may overflow, and a sum that is NaN would hide others.
                if !folded.is_finite() {
                    CopyPlace::new(unit, place * GROUP + c, lanes).clear(&mut table.packed);
                }
            }
        }
    }
}

/// Where the copy of a centroid lies in a [`PairTable`].
struct CopyPlace {
    first: usize,
    lanes: usize,
    /// From 16 lanes to the next 16 ones, and from a lane to the next.
    steps: [usize; 2],
}

impl CopyPlace {
    /// `place`: the centroid's, in the order of the listed panels.
    fn new(unit: &PairUnit, place: usize, lanes: usize) -> Self {
        let (width, steps) = if unit.is_tiled() { (SIDE, [SIDE * SIDE, 1]) } else { (GROUP, [SIDE * GROUP, GROUP]) };
        Self { first: place / width * width * lanes + place % width * if unit.is_tiled() { SIDE } else { 1 }, lanes, steps }
    }

    /// The place of a lane.
    #[inline(always)]
    fn at(&self, lane: usize) -> usize {
        self.first + lane / SIDE * self.steps[0] + lane % SIDE * self.steps[1]
    }

    fn clear(&self, packed: &mut [f32]) {
        (0..self.lanes).for_each(|lane| packed[self.at(lane)] = 0.0);
    }

    /// Copies a centroid, negated. Returns the squared norms of the centroid, of its copy, and of what rounding left.
    #[inline(always)]
    fn copy<T: Float>(&self, centroid: &[T], point: &[T], scale: f64, packed_copies: &mut [f32]) -> [f64; 3] {
        /// Features that are copied together.
        const FEATURES: usize = 16;
        let mut sums = [[0.0f64; FEATURES]; 3];
        for (chunk, (c, m)) in centroid.chunks(FEATURES).zip(point.chunks(FEATURES)).enumerate() {
            let mut exact = [0.0f64; FEATURES];
            match (c.first_chunk::<FEATURES>(), m.first_chunk::<FEATURES>()) {
                (Some(c), Some(m)) => {
                    for i in 0..FEATURES {
                        exact[i] = (c[i].to_f64() - m[i].to_f64()) * scale;
                    }
                }
                _ => {
                    exact.iter_mut().zip(c.iter().zip(m)).for_each(|(exact, (c, m))| *exact = (c.to_f64() - m.to_f64()) * scale)
                }
            }
            let mut numbers = [0u16; FEATURES];
            for i in 0..FEATURES {
                numbers[i] = to_bfloat16(-exact[i] as f32);
                let copy = f64::from(from_bfloat16(numbers[i]));
                let rest = exact[i] + copy;
                sums[0][i] += exact[i] * exact[i];
                sums[1][i] += copy * copy;
                sums[2][i] += rest * rest;
            }
            let pairs = numbers.as_chunks::<2>().0.iter().take(self.lanes - chunk * FEATURES / 2);
            let here = packed_copies[self.at(chunk * FEATURES / 2)..].iter_mut().step_by(self.steps[1]);
            here.zip(pairs).for_each(|(to, pair)| *to = packed(*pair));
        }
        sums.map(|sums| sums.iter().sum())
    }
}
