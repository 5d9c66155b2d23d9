//! A tree of centroids: a row is compared with the centroids near it alone. For many centroids of few features.
//!
//! ```text
//! centroids are halved along their widest feature, again and again:     16 of them are a leaf
//! 16 leaves are a node of level 1, 16 nodes of level 1 are one of level 2, ...         up to the root
//! each child of a node has a box around its centroids, and the smallest of their numbers
//!
//! for each row x:  label = its label so far, or that of the row before;  least = S(x, c_label)
//!   from the root on, the nearest child first:
//!     node:   a child is left out unless  B < least,  or  B = least and its smallest number < label
//!     leaf:   S(x, c_j) of its centroids;  (least, label) = the smallest (S, j)
//! ```
//! S is the reference distance itself. B is the chain over the gaps between x and a box, so `B <= S(x, c_j)` for every centroid of
//! the box, as rounded numbers. `src/bounds/skip.rs` has the proof: there the box is one of rows, and `|x - c|` is symmetric.
//!
//! Points to note: (1) No bound has an error term, and no row is left open. (2) Where many centroids are equally far, because
//! they are equal or by rounding, all boxes of them have the same bound. Then the child with the smallest number comes first, and
//! the others are left out. (3) The tree may be any tree: labels do not depend on it.
//!
//! The tree is that of Bentley (1975), with as many children as vectors compare at once.

use super::centroids::CentroidTable;
use super::filter::{Filter, NOBODY, TABLE};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::reference::{self, Nearest};
use crate::input::tile::Columns;
use crate::simd::{Doubles, Task, Vector};

/// Centroids of a leaf, and children of a node.
const WIDE: usize = 16;
/// Levels of nodes above the leaves of `2^32` centroids.
const MOST_LEVELS: usize = 7;
/// Places that wait for their turn: each level leaves all children but one.
const MOST_PLACES: usize = MOST_LEVELS * (WIDE - 1) + 1;
/// Centroids are put in order again when the sides of the leaves are so many times as long as they were.
const WORSE: f64 = 1.1;
/// Most features.
const MOST_FEATURES: usize = 8;

/// Whether there may be a tree.
pub fn is_possible(d: usize) -> bool {
    d <= MOST_FEATURES
}

/// Whether a tree finds labels faster than a comparison with all centroids. Measured on two cores of a Zen 4, for uniform rows.
pub fn pays(k: usize, d: usize) -> bool {
    is_possible(d) && k >= 256 << d.div_ceil(2)
}

/// Whether a tree is faster than groups of rows, too, for uniform rows and for blobs.
pub fn is_certain(k: usize, d: usize) -> bool {
    is_possible(d) && k >= if d <= 6 { 1 << 14 } else { 1 << 15 }
}

/// A tree over the centroids of an assign.
#[derive(Debug)]
pub struct CentroidTree<T> {
    d: usize,
    /// `(leaves, WIDE)`: the centroids of each leaf. [`NOBODY`] fills up the last leaf.
    names: Vec<u32>,
    /// `(leaves, d, WIDE)`: their values. They are infinite where nobody is.
    leaves: Vec<T>,
    /// Nodes of leaves, nodes of these nodes, and so on up to the root.
    levels: Vec<Level<T>>,
    /// The sum of the sides of the leaves' boxes when centroids were put in this order.
    sides: f64,
}

/// The nodes of a level.
#[derive(Debug)]
struct Level<T> {
    /// `(nodes, 2, d, WIDE)`: the lower ends of the children's boxes, then the upper ends.
    boxes: Vec<T>,
    /// `(nodes, WIDE)`: the smallest number of a centroid in each child.
    first: Vec<u32>,
}

/// A child of a node, or the root.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// At most the reference distance to any centroid below.
    bound: f64,
    /// Its number in its level.
    index: u32,
    /// 0 is that of the leaves.
    level: u32,
}

impl<T: Float> CentroidTree<T> {
    /// The tree over these centroids, of which there is at least one.
    pub fn new(rows: &[T], d: usize) -> Result<Self> {
        let mut count = (rows.len() / d).div_ceil(WIDE);
        let infinite = T::from_f64(f64::INFINITY);
        let names = memory::filled(count * WIDE, NOBODY, TABLE)?;
        let leaves = memory::filled(count * WIDE * d, infinite, TABLE)?;
        let mut levels = memory::with_room(MOST_LEVELS, TABLE)?;
        while count > 1 {
            count = count.div_ceil(WIDE);
            let boxes = memory::filled(count * 2 * d * WIDE, infinite, TABLE)?;
            levels.push(Level { boxes, first: memory::filled(count * WIDE, NOBODY, TABLE)? });
        }
        let mut tree = Self { d, names, leaves, levels, sides: 0.0 };
        (0..).zip(&mut tree.names[..rows.len() / d]).for_each(|(j, name)| *name = j);
        tree.put_in_order(rows);
        Ok(tree)
    }

    /// Takes as many other centroids, without new memory. Centroids that moved a little stay in their leaves.
    pub fn replace(&mut self, rows: &[T]) {
        let sides = self.take(rows);
        if !(sides <= WORSE * self.sides) {
            self.put_in_order(rows);
        }
    }

    fn put_in_order(&mut self, rows: &[T]) {
        let width = WIDE.pow(self.levels.len() as u32);
        split(&mut self.names[..rows.len() / self.d], rows, self.d, width);
        self.sides = self.take(rows);
    }

    /// Takes the values of the centroids, in their order. Returns the sum of the sides of the leaves' boxes.
    fn take(&mut self, rows: &[T]) -> f64 {
        let Self { d, names, leaves, levels, .. } = self;
        let (d, mut sides) = (*d, 0.0);
        for (names, leaf) in names.chunks_exact(WIDE).zip(leaves.chunks_exact_mut(d * WIDE)) {
            for (i, j) in names.iter().enumerate().filter(|(_, j)| **j != NOBODY) {
                for f in 0..d {
                    leaf[f * WIDE + i] = rows[*j as usize * d + f];
                }
            }
        }
        let ends = |values: &[T]| {
            let finite = values.iter().filter(|value| value.to_f64().is_finite());
            let least = |a: T, b: &T| if *b < a { *b } else { a };
            let largest = |a: T, b: &T| if *b > a { *b } else { a };
            [finite.clone().fold(values[0], least), finite.fold(values[0], largest)]
        };
        let mut below: Option<&Level<T>> = None;
        for level in levels {
            let children = below.map_or(names.len(), |below| below.first.len()) / WIDE;
            for child in 0..children {
                let at = child / WIDE * 2 * d * WIDE + child % WIDE;
                for f in 0..d {
                    let [low, high] = match below {
                        None => {
                            let [low, high] = ends(&leaves[(child * d + f) * WIDE..][..WIDE]);
                            sides += high.to_f64() - low.to_f64();
                            [low, high]
                        }
                        Some(below) => {
                            let [low, high] = [0, 1].map(|end| &below.boxes[((child * 2 + end) * d + f) * WIDE..][..WIDE]);
                            [ends(low)[0], ends(high)[1]]
                        }
                    };
                    (level.boxes[at + f * WIDE], level.boxes[at + (d + f) * WIDE]) = (low, high);
                }
                let numbers = below.map_or(&names[..], |below| &below.first[..]);
                level.first[child] = numbers[child * WIDE..][..WIDE].iter().fold(NOBODY, |least, j| least.min(*j));
            }
            below = Some(level);
        }
        sides
    }

    /// The smallest number of a centroid below a child.
    #[inline(always)]
    fn first(&self, child: Place) -> u32 {
        self.levels[child.level as usize].first[child.index as usize]
    }

    /// Whether a search goes to this child before another one of the same node.
    #[inline(always)]
    fn is_before(&self, one: Place, other: Place) -> bool {
        one.bound < other.bound || one.bound == other.bound && self.first(one) < self.first(other)
    }
}

/// Puts centroids near each other next to each other: halves them along the feature of the widest range, at multiples of `width`,
/// and each piece of this width at multiples of smaller ones.
fn split<T: Float>(members: &mut [u32], rows: &[T], d: usize, width: usize) {
    if members.len() <= WIDE {
        return;
    }
    if members.len() <= width {
        return split(members, rows, d, width / WIDE);
    }
    let value = |j: &u32, f: usize| rows[*j as usize * d + f].to_f64();
    let range = |f: usize| {
        let ends = [f64::INFINITY, f64::NEG_INFINITY];
        let [low, high] = members.iter().map(|j| value(j, f)).fold(ends, |[low, high], v| [low.min(v), high.max(v)]);
        high - low
    };
    let ranges = (0..d).map(|f| (f, range(f)));
    let widest = ranges.reduce(|most, next| if next.1 > most.1 { next } else { most }).map_or(0, |(f, _)| f);
    let half = (members.len().div_ceil(width) / 2) * width;
    members.select_nth_unstable_by(half, |a, b| value(a, widest).total_cmp(&value(b, widest)));
    let (one, other) = members.split_at_mut(half);
    split(one, rows, d, width);
    split(other, rows, d, width);
}

/// A thread's list of the places that wait.
#[derive(Debug)]
pub struct Waiting([Place; MOST_PLACES]);

impl Default for Waiting {
    fn default() -> Self {
        Self([Place::default(); MOST_PLACES])
    }
}

/// What a search keeps of the centroids that it has seen.
pub trait Best {
    /// Centroids that are farther are left out.
    fn limit(&self) -> f64;

    /// Whether a centroid at this distance is kept. `number`: its number, or the least that it may have. [`NOBODY`], who is
    /// infinitely far, is never kept.
    fn wants(&self, distance: f64, number: impl FnOnce() -> u32) -> bool;

    /// Sees a centroid that is not above the limit. It may be one that was seen before.
    fn take(&mut self, j: u32, distance: f64);
}

/// A centroid, and its distance.
struct One {
    label: u32,
    distance: f64,
}

impl Best for One {
    #[inline(always)]
    fn limit(&self) -> f64 {
        self.distance
    }

    #[inline(always)]
    fn wants(&self, distance: f64, number: impl FnOnce() -> u32) -> bool {
        distance < self.distance || distance == self.distance && number() < self.label
    }

    #[inline(always)]
    fn take(&mut self, j: u32, distance: f64) {
        if self.wants(distance, || j) {
            *self = Self { label: j, distance };
        }
    }
}

/// The nearest centroid, and the distance to the second nearest one.
impl Best for Nearest {
    #[inline(always)]
    fn limit(&self) -> f64 {
        self.second
    }

    #[inline(always)]
    fn wants(&self, distance: f64, number: impl FnOnce() -> u32) -> bool {
        distance < self.second || distance == self.distance && number() < self.label
    }

    #[inline(always)]
    fn take(&mut self, j: u32, distance: f64) {
        if distance < self.distance || distance == self.distance && j < self.label {
            *self = Self { label: j, distance, second: self.distance };
        } else if distance < self.second && j != self.label {
            self.second = distance;
        }
    }
}

/// Finds the nearest centroids of some rows. With `TWO`, their distances too.
pub struct Search<'s, T, C, const TWO: bool> {
    pub tree: &'s CentroidTree<T>,
    pub table: &'s CentroidTable<T>,
    pub values: C,
    /// Labels to begin with, where they are known.
    pub before: &'s [u32],
    pub waiting: &'s mut Waiting,
    /// One for each row.
    pub labels: &'s mut [u32],
    /// With `TWO`, the distances to the nearest and to the second nearest centroid.
    pub distances: [&'s mut [f64]; 2],
}

impl<T: Float, C: Columns<T>, const TWO: bool> Task for Search<'_, T, C, TWO> {
    /// The number of distances to centroids and to boxes.
    type Output = usize;

    #[inline(always)]
    fn run<V: Vector>(self) -> usize {
        let Self { tree, table, values, before, waiting, labels, distances: [nearest, second] } = self;
        let (mut x, mut label, mut visits) = ([0.0; MOST_FEATURES], 0, 0);
        let x = &mut x[..tree.d];
        for r in 0..labels.len() {
            for (f, x) in x.iter_mut().enumerate() {
                *x = values.column(f)[r].to_f64();
            }
            label = before.get(r).copied().filter(|label| (*label as usize) < table.k).unwrap_or(label);
            let distance = reference::distance(x, table.row(label as usize));
            if TWO {
                let mut best = Nearest { label, distance, second: f64::INFINITY };
                visits += tree.search::<V, _>(x, &mut best, waiting);
                (label, nearest[r], second[r]) = (best.label, best.distance, best.second);
            } else {
                let mut best = One { label, distance };
                visits += tree.search::<V, _>(x, &mut best, waiting);
                label = best.label;
            }
            labels[r] = label;
        }
        visits * WIDE
    }
}

/// Counts the leaves and nodes that are looked at for some rows whose labels are known.
pub struct Visits<'s, T> {
    pub tree: &'s CentroidTree<T>,
    /// `(k, d)` and `(rows, d)`.
    pub centroids: &'s [T],
    pub rows: &'s [T],
}

impl<T: Float> Task for Visits<'_, T> {
    type Output = usize;

    #[inline(always)]
    fn run<V: Vector>(self) -> usize {
        let Self { tree, centroids, rows } = self;
        let (mut x, mut label, mut visits, mut waiting) = ([0.0; MOST_FEATURES], 0, 0, Waiting::default());
        let x = &mut x[..tree.d];
        for row in rows.chunks_exact(tree.d) {
            x.iter_mut().zip(row).for_each(|(x, value)| *x = value.to_f64());
            for is_known in [false, true] {
                let distance = reference::distance(x, &centroids[label as usize * tree.d..][..tree.d]);
                let mut best = One { label, distance };
                visits += tree.search::<V, _>(x, &mut best, &mut waiting) * usize::from(is_known);
                label = best.label;
            }
        }
        visits
    }
}

impl<T: Float> CentroidTree<T> {
    /// Shows `best` the centroids that may be among those nearest to `x`. Returns the number of leaves and nodes that were looked
    /// at.
    #[inline(always)]
    pub fn search<V: Vector, B: Best>(&self, x: &[f64], best: &mut B, waiting: &mut Waiting) -> usize {
        match V::Doubles::LANES {
            8 => Row { tree: self, x, best }.search::<V, 2>(&mut waiting.0),
            _ => Row { tree: self, x, best }.search::<V, 4>(&mut waiting.0),
        }
    }
}

/// The search for one row. R vectors hold WIDE values.
struct Row<'s, T, B> {
    tree: &'s CentroidTree<T>,
    x: &'s [f64],
    best: &'s mut B,
}

impl<T: Float, B: Best> Row<'_, T, B> {
    #[inline(always)]
    fn search<V: Vector, const R: usize>(&mut self, waiting: &mut [Place; MOST_PLACES]) -> usize {
        assert!(R * V::Doubles::LANES == WIDE && self.x.len() == self.tree.d);
        let (mut count, mut visits) = (0, 0);
        let mut place = Place { level: self.tree.levels.len() as u32, ..Place::default() };
        loop {
            visits += 1;
            if place.level == 0 {
                self.see_leaf::<V, R>(place.index as usize);
            } else if let Some(nearest) = self.see_node::<V, R>(place, waiting, &mut count) {
                place = nearest;
                continue;
            }
            loop {
                if count == 0 {
                    return visits;
                }
                count -= 1;
                place = waiting[count];
                if self.is_in_reach(place) {
                    break;
                }
            }
        }
    }

    /// Whether a centroid below may matter.
    #[inline(always)]
    fn is_in_reach(&self, place: Place) -> bool {
        self.best.wants(place.bound, || self.tree.first(place))
    }

    /// Puts the children that are in reach on the list, but for the nearest of them, which it returns.
    #[inline(always)]
    fn see_node<V: Vector, const R: usize>(
        &mut self,
        node: Place,
        waiting: &mut [Place; MOST_PLACES],
        count: &mut usize,
    ) -> Option<Place> {
        let (d, level, index) = (self.x.len(), node.level - 1, node.index as usize);
        let boxes = &self.tree.levels[level as usize].boxes[index * 2 * d * WIDE..][..2 * d * WIDE];
        let mut bounds = [0.0; WIDE];
        // SAFETY: `boxes` holds WIDE = R * LANES values for each end of each feature, and `bounds` as many. For the features of
        // the instruction set see `Vector`.
        let mut bits = unsafe {
            let zero = V::Doubles::splat(0.0);
            let mut b = [zero; R];
            for (f, x) in self.x.iter().enumerate() {
                let x = V::Doubles::splat(*x);
                for v in 0..R {
                    let low = V::Doubles::load(boxes.as_ptr().add(f * WIDE + v * V::Doubles::LANES));
                    let high = V::Doubles::load(boxes.as_ptr().add((d + f) * WIDE + v * V::Doubles::LANES));
                    b[v] = low.sub(x).larger(x.sub(high)).larger(zero).square_add(b[v]);
                }
            }
            self.not_above_limit::<V, R>(&b, &mut bounds)
        };
        let mut nearest: Option<Place> = None;
        while bits != 0 {
            let c = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let place = Place { bound: bounds[c], index: (index * WIDE + c) as u32, level };
            if !self.is_in_reach(place) {
                continue;
            }
            let later = match nearest {
                Some(other) if !self.tree.is_before(place, other) => Some(place),
                other => std::mem::replace(&mut nearest, Some(place)).and(other),
            };
            if let Some(later) = later {
                waiting[*count] = later;
                *count += 1;
            }
        }
        nearest
    }

    /// Takes the centroids of a leaf.
    #[inline(always)]
    fn see_leaf<V: Vector, const R: usize>(&mut self, index: usize) {
        let d = self.x.len();
        let leaf = &self.tree.leaves[index * d * WIDE..][..d * WIDE];
        let names = &self.tree.names[index * WIDE..][..WIDE];
        let mut distances = [0.0; WIDE];
        // SAFETY: `leaf` holds WIDE = R * LANES values for each feature, and `distances` as many. For the features of the
        // instruction set see `Vector`.
        let mut bits = unsafe {
            let mut s = [V::Doubles::splat(0.0); R];
            for (f, x) in self.x.iter().enumerate() {
                let x = V::Doubles::splat(*x);
                for v in 0..R {
                    let c = V::Doubles::load(leaf.as_ptr().add(f * WIDE + v * V::Doubles::LANES));
                    s[v] = x.sub(c).square_add(s[v]);
                }
            }
            self.not_above_limit::<V, R>(&s, &mut distances)
        };
        while bits != 0 {
            let i = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            self.best.take(names[i], distances[i]);
        }
    }

    /// The bits of numbers that are not above the limit. Stores all of them.
    ///
    /// # Safety
    /// For the features of the instruction set see `Vector`.
    #[inline(always)]
    unsafe fn not_above_limit<V: Vector, const R: usize>(&self, numbers: &[V::Doubles; R], out: &mut [f64; WIDE]) -> u32 {
        // SAFETY: `out` has room for R vectors, as the search checks. The caller runs with the instruction set.
        unsafe {
            let limit = V::Doubles::splat(self.best.limit());
            let mut farther = 0;
            for v in 0..R {
                numbers[v].store(out.as_mut_ptr().add(v * V::Doubles::LANES));
                farther |= V::Doubles::bits(limit.below(numbers[v])) << (v * V::Doubles::LANES);
            }
            !farther & ((1 << WIDE) - 1)
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use crate::input::tile::Values;
    use crate::simd::InstructionSet;

    const SETS: [InstructionSet; 4] =
        [InstructionSet::Portable, InstructionSet::Neon, InstructionSet::Avx2, InstructionSet::Avx512];

    /// Searches for the nearest centroids of `x`, `(d, n)`, from these labels.
    fn search<T: Float>(table: &CentroidTable<T>, x: &[T], before: &[u32], set: InstructionSet) -> (Vec<u32>, Vec<Nearest>) {
        let n = x.len() / table.d;
        let (mut labels, mut own, mut second) = (vec![0; n], vec![0.0; n], vec![0.0; n]);
        let Filter::Tree(tree) = &table.filter else { panic!("a tree") };
        let (values, mut waiting) = (Values::new(x, n), Waiting::default());
        let (waiting, distances) = (&mut waiting, [&mut own[..], &mut second[..]]);
        set.run(Search::<_, _, true> { tree, table, values, before, waiting, labels: &mut labels, distances });
        let two = (0..n).map(|r| Nearest { label: labels[r], distance: own[r], second: second[r] }).collect();
        let distances = [&mut [][..], &mut [][..]];
        set.run(Search::<_, _, false> { tree, table, values, before, waiting, labels: &mut labels, distances });
        (labels, two)
    }

    /// Rows and centroids of every sort, many of them equal: the two nearest are those of a search among all.
    fn attack<T: Float>(d: usize, k: usize, seed: u64) {
        let random = &mut Random(seed + (d * 10_000 + k) as u64);
        for sort in 0..8 {
            let mut value = || {
                let other = random.below(7);
                random.value::<T>(if sort == 7 { other } else { sort })
            };
            let mut centroids: Vec<T> = (0..k * d).map(|_| value()).collect();
            let n = 40;
            let mut x: Vec<T> = (0..d * n).map(|_| value()).collect();
            // Equal centroids, rows at centroids, and rows between two of them.
            for i in 0..k / 3 {
                let from = random.below(k as u64) as usize * d;
                centroids.copy_within(from..from + d, i * 3 * d);
            }
            for r in 0..n / 2 {
                let [a, b] = [0; 2].map(|_| random.below(k as u64) as usize * d);
                for f in 0..d {
                    let [a, b] = [a, b].map(|c| centroids[c + f].to_f64());
                    x[f * n + r] = T::from_f64(if r % 2 == 0 { a } else { 0.5 * a + 0.5 * b });
                }
            }
            let mut table = CentroidTable::by_tree(&centroids, d).unwrap();
            for step in 0..3 {
                let row = |r: usize| (0..d).map(|f| x[f * n + r]).collect::<Vec<T>>();
                let expected: Vec<Nearest> = (0..n).map(|r| reference::nearest(&row(r), &centroids)).collect();
                let right: Vec<u32> = expected.iter().map(|nearest| nearest.label).collect();
                let before: Vec<u32> = (0..n).map(|r| [right[r], u32::MAX, (r % k) as u32][r % 3]).collect();
                for set in SETS {
                    for before in [&before[..], &before[..n / 3], &[]] {
                        let (labels, two) = search(&table, &x, before, set);
                        assert_eq!((&labels, &two), (&right, &expected), "{set:?} d {d} k {k} sort {sort} step {step}");
                    }
                }
                // Some centroids move, a little or far.
                for _ in 0..k.div_ceil(3) {
                    let (from, to) = (random.below(k as u64) as usize, random.below(k as u64) as usize);
                    let far = step == 1;
                    for f in 0..d {
                        let c = centroids[to * d + f].to_f64();
                        centroids[to * d + f] = if far { centroids[from * d + f] } else { T::from_f64(c * (1.0 + T::UNIT)) };
                    }
                }
                assert!(table.replace(&centroids, f64::NAN));
            }
        }
    }

    unit_test!(a_tree_finds_what_a_search_among_all_finds);
    fn a_tree_finds_what_a_search_among_all_finds() {
        for d in [1, 2, 3, 4, 7, 8] {
            for k in [1, 2, 15, 16, 17, 33, 255, 256, 257, 700] {
                attack::<f32>(d, k, 1);
                attack::<f64>(d, k, 2);
            }
        }
        attack::<f32>(1, 4_097, 3);
        attack::<f64>(2, 4_500, 4);
    }

    unit_test!(ties_are_found_without_a_look_at_each);
    /// All centroids are equally far by rounding, or equal: the smallest number is found in one way down the tree.
    fn ties_are_found_without_a_look_at_each() {
        let k = 20_000;
        let numbers = |j: usize| (j * 7_919 % k) as f64;
        let by_rounding: Vec<f64> = (0..k).map(|j| numbers(j) * 1e-6).collect();
        // One run of equal distances begins and ends within the range.
        let in_part: Vec<f64> = (0..k).map(|j| numbers(j) * 1e12).collect();
        for (centroids, x) in [(by_rounding, -1e17), (vec![3.0; k], 5.0), (in_part, -1e17)] {
            let table = CentroidTable::by_tree(&centroids, 1).unwrap();
            let expected = reference::nearest(&[x], &centroids).label;
            let Filter::Tree(tree) = &table.filter else { panic!("a tree") };
            let visits = InstructionSet::detect().run(Visits { tree, centroids: &centroids, rows: &[x] });
            assert!(visits <= 60, "{visits} visits");
            assert_eq!(search(&table, &[x], &[], InstructionSet::detect()).0, [expected]);
        }
    }

    unit_test!(few_boxes_are_looked_at);
    fn few_boxes_are_looked_at() {
        let random = &mut Random(5);
        for (d, most) in [(1, 6), (2, 7), (3, 10), (4, 16)] {
            let mut values = |count: usize| (0..count * d).map(|_| random.unit() as f32).collect::<Vec<f32>>();
            let (centroids, rows) = (values(20_000), values(500));
            let tree = CentroidTree::new(&centroids, d).unwrap();
            let visits = InstructionSet::detect().run(Visits { tree: &tree, centroids: &centroids, rows: &rows });
            assert!(visits <= most * 500, "{d}: {visits} visits");
        }
    }
}
