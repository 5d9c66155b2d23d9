//! Copies in bytes or words of rows and centroids, about the point of each group: for the product filter on quads of features.
//!
//! Rows are copied when they are sorted, and centroids in each assign. Both subtract the same bits of the group's point.
//! `src/bounds/int_dot.rs` says what is measured of them.

#[cfg(feature = "tests")]
mod attacks;
#[cfg(feature = "bench")]
mod timed;

#[cfg(feature = "bench")]
pub use self::timed::seconds_a_score;

use super::partition::Partition;
use super::sorted::Sorted;
use super::tuning::MOST_TABLE_BYTES;
use super::{BLOCK, GROUPS, GroupStep};
use crate::backend::cpu::filter::{GROUP, NO_CENTROID, binade};
use crate::backend::cpu::product::{CentroidFacts, DotRows, DotTable, MOST_STEPS};
use crate::backend::cpu::tasks::split_off;
use crate::base::aligned::Lines;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::bounds::int_dot::{DotBound, LEAST_NUMBER, MOST_FEATURES};
use crate::bounds::own::CentroidBound;
use crate::exact::fixed::power_of_two;
use crate::simd::{DotUnit, InstructionSet, SIDE, Task, Vector, packed};
use crate::statistics::{Statistics, unit_exponent};

/// The largest numbers of copies in bytes and in words.
const MOST: [f32; 2] = [127.0, 32_767.0];
/// The largest norm of the numbers of a copy in words, apart from rounding.
const MOST_NORM: f64 = 45_000.0;
/// The binary logarithm of q squared before any copy is measured.
const USUAL_SHARE: f64 = -14.0;
/// The least binary logarithm of a square. Its negative is the largest.
const LEAST_LOGARITHM: f32 = -60.0;

/// What all copies of a session share.
pub struct Copies {
    pub unit: DotUnit,
    /// Copies are multiplied by two to this.
    exponent: i32,
}

impl Copies {
    /// The copies for rows within these limits, about any point between them. None if there is no suitable scale.
    pub fn new(unit: DotUnit, statistics: &Statistics, d: usize) -> Option<Self> {
        let extents = statistics.lows.iter().zip(&statistics.highs).map(|(low, high)| high - low);
        let largest = extents.fold(0.0f64, |most, extent| if extent <= most { most } else { extent });
        // Far from the limits of both types. Rows of other sizes are compared in float32.
        let known = largest > 1e-30 && largest < 1e30 && d <= MOST_FEATURES;
        known.then(|| Self { unit, exponent: unit_exponent(largest) })
    }
}

/// The step of a copy, of the largest magnitude of a row or centroid and the sum of its squares.
#[inline(always)]
fn step_of(largest: f64, square: f64, words: bool) -> f64 {
    match words {
        false => largest / f64::from(MOST[0]),
        true => (largest / f64::from(MOST[1])).max(square.sqrt() / MOST_NORM),
    }
}

/// The binary logarithm of a square, between these limits.
#[inline(always)]
fn logarithm(square: f32) -> f64 {
    f64::from(binade(square).clamp(LEAST_LOGARITHM, -LEAST_LOGARITHM))
}

/// The sums of the logarithms of some squared norms, and of the squared norms of what rounding left over them; and their number.
#[derive(Debug, Clone, Copy, Default)]
struct NormSums {
    norms: f64,
    rests: f64,
    count: f64,
}

impl NormSums {
    #[inline(always)]
    fn see(&mut self, square: f32, rest: f32) {
        self.norms += logarithm(square);
        self.rests += logarithm(rest) - logarithm(square);
        self.count += 1.0;
    }

    fn add(&mut self, more: Self) {
        self.norms += more.norms;
        self.rests += more.rests;
        self.count += more.count;
    }

    /// The means of both logarithms, if there are some.
    fn means(self) -> Option<[f64; 2]> {
        (self.count > 0.0).then(|| [self.norms / self.count, self.rests / self.count])
    }
}

/// The copies of sorted rows.
pub struct IntegerRows {
    /// `(blocks, lanes, BLOCK)`, as far as blocks were filled.
    copies: Lines,
    lanes: usize,
    /// For each block: see [`DotRows::facts`].
    facts: Vec<[[f32; BLOCK]; 3]>,
    /// For each group: the sizes of its rows.
    sizes: Vec<NormSums>,
}

impl IntegerRows {
    /// Bytes of the copies of so many places.
    pub fn bytes(places: usize, lanes: usize) -> usize {
        places.saturating_mul((lanes + 3) * size_of::<f32>())
    }

    /// Room for copies of so many places.
    pub fn new(places: usize, lanes: usize, groups: usize) -> Result<Self> {
        Ok(Self {
            copies: Lines::with_room(places * lanes, GROUPS)?,
            lanes,
            facts: memory::zeroed(places / BLOCK, GROUPS)?,
            sizes: memory::filled(groups, NormSums::default(), GROUPS)?,
        })
    }

    /// Forgets the sizes of rows, before blocks are filled.
    pub fn clear(&mut self) {
        self.sizes.fill(NormSums::default());
    }

    /// The copies of the block at a place.
    #[inline(always)]
    pub fn block(&self, place: usize) -> DotRows<'_> {
        let (lanes, block) = (self.lanes, place / BLOCK);
        let (copies, behind) = self.copies[block * BLOCK * lanes..].split_at(BLOCK * lanes);
        DotRows { copies, behind, facts: &self.facts[block] }
    }

    /// Copies the rows of the block at a place, in ascending order. `x`: `(d, BLOCK)`. `count`: how many of them are rows.
    #[inline(always)]
    pub fn fill<T: Float>(
        &mut self,
        place: usize,
        x: &[T],
        count: usize,
        groups: &Partition<T>,
        group: usize,
        shared: &Copies,
    ) {
        let (lanes, block, d) = (self.lanes, place / BLOCK, groups.d);
        // The thread that fills a block touches its memory first.
        self.copies.grow((block + 1) * BLOCK * lanes);
        let half = shared.exponent / 2;
        let [up, more] = [half, shared.exponent - half].map(|e| T::from_f64(power_of_two(e)));
        let point = groups.point(group);
        let (columns, _) = x[..d * BLOCK].as_chunks::<BLOCK>();
        let words = shared.unit.is_for_words();
        let (mut largest, mut all_squares) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
        for (x, centre) in columns.iter().zip(point) {
            for r in 0..BLOCK {
                let exact = x[r].centred_copy(*centre, up, more).abs();
                // A difference that overflows stays infinite.
                largest[r] = if exact <= largest[r] { largest[r] } else { exact };
                all_squares[r] += exact * exact;
            }
        }
        let [steps, norms, rests] = &mut self.facts[block];
        let mut inverse = [0.0f32; BLOCK];
        for r in 0..BLOCK {
            let step = step_of(f64::from(largest[r]), f64::from(all_squares[r]), words);
            // A row that is too short or too long has a copy of zeros. One that is too long has no bound (see below).
            let known = f64::from(largest[r]) >= LEAST_NUMBER && largest[r] < 1e15;
            steps[r] = if known { step as f32 } else { 0.0 };
            inverse[r] = if known { (1.0 / step) as f32 } else { 0.0 };
        }
        assert!(steps.iter().all(|step| *step <= MOST_STEPS[0]), "scores must be finite");
        let (mut squares, mut lost) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
        let copies = &mut self.copies[block * BLOCK * lanes..][..BLOCK * lanes];
        // Four bytes share a lane, or two words.
        let (together, bits, mask) = if words { (2, 16, 0xffff) } else { (4, 8, 0xff) };
        // To add 128 to a byte is to flip its highest bit.
        let offset = u32::from(shared.unit.offset());
        let quads = columns.chunks(together).zip(point.chunks(together));
        for (to, (columns, points)) in copies.as_chunks_mut::<BLOCK>().0.iter_mut().zip(quads) {
            let mut lane = [0u32; BLOCK];
            for (i, (x, centre)) in columns.iter().zip(points).enumerate() {
                for r in 0..BLOCK {
                    /// Numbers that are added to it are rounded to integers, which are its last bits.
                    const INTEGERS: f32 = 12_582_912.0;
                    let exact = x[r].centred_copy(*centre, up, more);
                    let number = exact * inverse[r] + INTEGERS;
                    let integer = number.to_bits() & mask ^ offset;
                    let copy = (number - INTEGERS) * steps[r];
                    let rest = exact - copy;
                    squares[r] += copy * copy;
                    lost[r] += rest * rest;
                    lane[r] |= integer << (bits * i);
                }
            }
            for r in 0..BLOCK {
                to[r] = f32::from_bits(lane[r]);
            }
        }
        for r in 0..BLOCK {
            let [norm, rest] = DotBound::of_row(d, squares[r], lost[r]);
            // A NaN is not below a limit, so it has no bound.
            let known = largest[r] < 1e15 && norm < 1e30;
            (norms[r], rests[r]) = if known { (norm, rest) } else { (f32::INFINITY, f32::INFINITY) };
        }
        for r in (0..count).filter(|r| norms[*r] < f32::INFINITY && steps[*r] > 0.0) {
            self.sizes[group].see(norms[r], rests[r]);
        }
    }
}

/// The sizes of a group's rows, as far as they are known. `kept`: sorted parts of the rows, or none if rows are not sorted yet.
fn rows_of_group<T: Float>(group: usize, kept: &[Sorted<T>]) -> NormSums {
    let mut sizes = NormSums::default();
    for copies in kept.iter().filter_map(|sorted| sorted.copies.as_ref()) {
        sizes.add(copies.sizes[group]);
    }
    sizes
}

/// Integer copies for the assigns of a session.
pub struct ByCopies {
    pub copies: Copies,
    /// For each group, the centroids near it.
    pub tables: Vec<DotTable>,
    /// Number of assigns since the last one with little doubt.
    doubtful: u32,
}

impl ByCopies {
    pub fn new(copies: Copies, groups: usize) -> Result<Self> {
        Ok(Self { copies, tables: memory::collected((0..groups).map(|_| DotTable::default()), GROUPS)?, doubtful: 0 })
    }

    /// Whether there may be copies of so many centroids in one assign, those near several groups counted for each.
    pub fn has_room(centroids: f64, lanes: usize) -> bool {
        centroids * (lanes * size_of::<f32>()) as f64 <= MOST_TABLE_BYTES as f64
    }

    /// The most bytes of the copies of so many centroids, each of so many bytes.
    pub fn most_bytes(centroids: f64, each: f64) -> f64 {
        (centroids * each).min(MOST_TABLE_BYTES as f64)
    }

    /// Whether the copies did not pay twice in a row. `is_doubtful`: whether they did not pay in the last assign.
    pub fn gives_up(&mut self, is_doubtful: bool) -> bool {
        self.doubtful = if is_doubtful { self.doubtful + 1 } else { 0 };
        self.doubtful > 1
    }

    /// Copies the centroids near each group. `sorted`: sorted parts of the rows, or none if rows are not sorted yet. `radii`: the
    /// largest distances of the groups' rows from their points. If a radius is too small, blocks of farther rows are compared
    /// without copies. Returns false if the tables would take too much memory: then there are none.
    pub fn copy_centroids<T: Float>(
        &mut self,
        step: &GroupStep<'_, T>,
        centroids: &[T],
        sorted: &[Sorted<T>],
        radii: &[f64],
        set: InstructionSet,
        workers: usize,
    ) -> Result<bool> {
        let Self { copies: shared, tables, .. } = self;
        let lanes = shared.unit.lanes(step.groups.d);
        let rows = memory::collected((0..step.groups()).map(|group| rows_of_group(group, sorted)), GROUPS)?;
        let listed = |group: usize| step.listed(group, radii[group], None);
        let panels: usize = (0..step.groups()).map(|group| listed(group).len()).sum();
        if !Self::has_room((panels * GROUP) as f64, lanes) {
            return Ok(false);
        }
        for (group, table) in tables.iter_mut().enumerate().take(step.groups()) {
            let panels = listed(group).len();
            let values = shared.unit.centroids(panels * GROUP) * lanes;
            table.packed.reset(values, GROUPS)?;
            table.own.reset(panels * GROUP, shared.unit, GROUPS)?;
        }
        // Threads share the centroids of a group: there may be one group.
        let mut facts = memory::filled(panels * GROUP, CentroidCopy::default(), GROUPS)?;
        let mut threads = memory::filled(workers.min(panels.div_ceil(PANELS)).max(1), (), GROUPS)?;
        let mut rest = &mut facts[..];
        let pieces = tables.iter_mut().enumerate().take(step.groups()).flat_map(|(group, table)| {
            let panels = listed(group);
            let facts = split_off(&mut rest, panels.len() * GROUP).chunks_mut(PANELS * GROUP);
            let packed = table.packed.chunks_mut(PANELS * GROUP * lanes);
            panels.chunks(PANELS).zip(packed.zip(facts)).map(move |(panels, (packed, facts))| (group, panels, packed, facts))
        });
        for_each_task(&mut threads, pieces, |(), (group, panels, packed, facts)| {
            set.run(CopyPanels { step, centroids, panels, point: step.groups.point(group), shared, packed, facts });
        })?;
        let mut rest = &facts[..];
        for (group, table) in tables.iter_mut().enumerate().take(step.groups()) {
            let (facts, others) = rest.split_at(listed(group).len() * GROUP);
            rest = others;
            bound_centroids(step, (group, listed(group)), rows[group], shared, facts, table);
        }
        Ok(true)
    }
}

/// Panels of centroids that are copied together: those of whole tiles.
const PANELS: usize = 8;
const _: () = assert!((PANELS * GROUP).is_multiple_of(SIDE));

/// Copies some of the centroids near a group. Compiled for each instruction set.
struct CopyPanels<'p, 'n, T> {
    step: &'p GroupStep<'n, T>,
    centroids: &'p [T],
    panels: &'p [u32],
    /// The group's point.
    point: &'p [T],
    shared: &'p Copies,
    packed: &'p mut [f32],
    facts: &'p mut [CentroidCopy],
}

impl<T: Float> Task for CopyPanels<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { step, centroids, panels, point, shared, packed, facts } = self;
        let d = step.groups.d;
        for (place, panel) in panels.iter().enumerate() {
            for (c, j) in step.members(*panel).enumerate().filter(|(_, j)| *j != NO_CENTROID) {
                let centroid = &centroids[j as usize * d..][..d];
                facts[place * GROUP + c] = copy_centroid(shared, place * GROUP + c, centroid, point, packed);
            }
        }
    }
}

/// The bounds of the copies of the centroids near one group. `rows`: the sizes of its rows, as far as they are known. `facts`:
/// those of the copies.
fn bound_centroids<T: Float>(
    step: &GroupStep<'_, T>,
    (group, panels): (usize, &[u32]),
    rows: NormSums,
    shared: &Copies,
    facts: &[CentroidCopy],
    table: &mut DotTable,
) {
    let (groups, Copies { exponent, unit }) = (step.groups, shared);
    let panels = || panels.iter().zip(facts.as_chunks::<GROUP>().0);
    let mut members = NormSums::default();
    for (panel, facts) in panels() {
        for (j, copy) in step.members(*panel).zip(facts).filter(|(j, _)| *j != NO_CENTROID) {
            if usize::from(groups.of[j as usize]) == group {
                members.see(copy.square as f32, copy.rest as f32);
            }
        }
    }
    // Until the rows are measured, they are taken to be as long as the group's centroids, and their copies to be as coarse.
    let (longer, share) = match (members.means(), rows.means()) {
        (Some([centroid, lost]), Some([row, lost_of_row])) => (centroid - row, (lost.exp2() + lost_of_row.exp2()).log2() - 1.0),
        (Some([_, lost]), None) => (0.0, lost),
        (None, _) => (0.0, USUAL_SHARE),
    };
    let bound = DotBound::new(groups.d, *exponent, (0.5 * share).exp2(), (0.5 * longer).exp2());
    table.slopes = bound.slopes();
    for (place, (panel, facts)) in panels().enumerate() {
        for (c, _) in step.members(*panel).enumerate().filter(|(_, j)| *j != NO_CENTROID) {
            let CentroidCopy { square, copy, rest, step, sum } = facts[c];
            let CentroidBound { lowered, slack } = bound.own([square, copy, rest]);
            assert!(step <= MOST_STEPS[1], "scores must be finite");
            let start = f32::from_bits((-i32::from(unit.offset())).wrapping_mul(sum) as u32);
            table.own.set(place * GROUP + c, CentroidFacts { lowered, step, start, slack });
        }
    }
}

/// The squared norms of a centroid, of its copy, and of what rounding left; the step of the copy, and the sum of its negated
/// numbers.
#[derive(Debug, Clone, Copy, Default)]
struct CentroidCopy {
    square: f64,
    copy: f64,
    rest: f64,
    step: f32,
    sum: i32,
}

/// Features of a centroid that are copied together.
const FEATURES: usize = 16;

/// The scaled differences of some features. Those after the last one are 0.
#[inline(always)]
fn differences<T: Float>(chunk: usize, centroid: &[T], point: &[T], scale: f64) -> [f64; FEATURES] {
    let (c, m) = (&centroid[chunk * FEATURES..], &point[chunk * FEATURES..]);
    let mut exact = [0.0f64; FEATURES];
    if let (Some(c), Some(m)) = (c.first_chunk::<FEATURES>(), m.first_chunk::<FEATURES>()) {
        for i in 0..FEATURES {
            exact[i] = (c[i].to_f64() - m[i].to_f64()) * scale;
        }
    } else {
        for i in 0..c.len() {
            exact[i] = (c[i].to_f64() - m[i].to_f64()) * scale;
        }
    }
    exact
}

/// Copies a centroid, negated. One that is very long or very short has a copy of zeros. `place`: the centroid's, in the order of
/// the listed panels.
#[inline(always)]
fn copy_centroid<T: Float>(
    shared: &Copies,
    place: usize,
    centroid: &[T],
    point: &[T],
    packed_copies: &mut [f32],
) -> CentroidCopy {
    let Copies { unit, exponent } = shared;
    let (lanes, words, scale) = (unit.lanes(centroid.len()), unit.is_for_words(), power_of_two(*exponent));
    // The steps from 16 lanes to the next 16 ones, and from a lane to the next.
    let (width, steps) = if unit.is_tiled() { (SIDE, [SIDE * SIDE, 1]) } else { (GROUP, [SIDE * GROUP, GROUP]) };
    let start = place / width * width * lanes + place % width * if unit.is_tiled() { SIDE } else { 1 };
    let (mut largest, mut squares) = ([0.0f64; FEATURES], [0.0f64; FEATURES]);
    for chunk in 0..centroid.len().div_ceil(FEATURES) {
        let exact = differences(chunk, centroid, point, scale);
        for i in 0..FEATURES {
            largest[i] = largest[i].max(exact[i].abs());
            squares[i] += exact[i] * exact[i];
        }
    }
    let largest = largest.iter().fold(0.0, |most: f64, x| most.max(*x));
    let step = step_of(largest, squares.iter().sum(), words);
    let (step, inverse) = if (LEAST_NUMBER..1e18).contains(&largest) { (step as f32, 1.0 / step) } else { (0.0, 0.0) };
    let (mut sums, mut sum) = ([[0.0f64; FEATURES]; 3], 0);
    for chunk in 0..centroid.len().div_ceil(FEATURES) {
        let exact = differences(chunk, centroid, point, scale);
        let mut numbers = [0i16; FEATURES];
        for i in 0..FEATURES {
            let number = (exact[i] * inverse).round_ties_even();
            numbers[i] = -number as i16;
            let copy = number * f64::from(step);
            let rest = exact[i] - copy;
            sums[0][i] += exact[i] * exact[i];
            sums[1][i] += copy * copy;
            sums[2][i] += rest * rest;
        }
        sum += numbers.iter().map(|number| i32::from(*number)).sum::<i32>();
        let lane = chunk * FEATURES / if words { 2 } else { 4 };
        let (first, left) = (start + lane / SIDE * steps[0] + lane % SIDE * steps[1], lanes - lane);
        if words {
            for (i, [a, b]) in numbers.as_chunks::<2>().0.iter().enumerate().take(left) {
                let ([a, b], [c, d]) = (a.to_le_bytes(), b.to_le_bytes());
                packed_copies[first + i * steps[1]] = packed([a, b, c, d]);
            }
        } else {
            for (i, [a, b, c, d]) in numbers.as_chunks::<4>().0.iter().enumerate().take(left) {
                packed_copies[first + i * steps[1]] = packed([*a as u8, *b as u8, *c as u8, *d as u8]);
            }
        }
    }
    let [square, copy, rest] = sums.map(|sums| sums.iter().sum());
    CentroidCopy { square, copy, rest, step, sum }
}
