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

#[cfg(feature = "tests")]
mod attacks;
mod order;

use super::centroids::CentroidTable;
use crate::base::float::Float;
use crate::exact::reference::{self, Nearest};
use crate::input::tile::ByFeature;
use crate::simd::{Doubles, Task, Vector};

/// Centroids of a leaf, and children of a node.
pub const WIDE: usize = 16;
/// Levels of nodes above the leaves of `2^32` centroids.
const MOST_LEVELS: usize = 7;
/// Places that wait for their turn: each level leaves all children but one.
const MOST_PLACES: usize = MOST_LEVELS * (WIDE - 1) + 1;
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
    /// `(leaves, WIDE)`: the centroids of each leaf. [`NO_CENTROID`] fills up the last leaf.
    names: Vec<u32>,
    /// `(leaves, d, WIDE)`: their values. They are infinite at places without a centroid.
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
struct ChildNode {
    /// At most the reference distance to any centroid below.
    bound: f64,
    /// Its number in its level.
    index: u32,
    /// 0 is that of the leaves.
    level: u32,
}

/// A thread's list of the places that wait.
#[derive(Debug)]
pub struct Waiting([ChildNode; MOST_PLACES]);

impl Default for Waiting {
    fn default() -> Self {
        Self([ChildNode::default(); MOST_PLACES])
    }
}

/// The best of the centroids that a search has compared.
pub trait Best {
    /// Centroids that are farther are left out.
    fn limit(&self) -> f64;

    /// Whether a centroid at this distance is kept. `number`: its number, or the least that it may have. [`NO_CENTROID`] is
    /// infinitely far and never kept. For the number of a centroid that is kept already, both answers are right: no other centroid
    /// has this number, so that `<=` between numbers costs a visit at most.
    fn wants(&self, distance: f64, number: impl FnOnce() -> u32) -> bool;

    /// Takes a centroid that is not above the limit. The search may have passed the same centroid before.
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
pub struct TreeSearch<'s, T, C, const TWO: bool> {
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

impl<T: Float, C: ByFeature<T>, const TWO: bool> Task for TreeSearch<'_, T, C, TWO> {
    /// The number of leaves and nodes that were looked at.
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
        visits
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
    /// Passes to `best` the centroids that may be among those nearest to `x`. Returns the number of visited leaves and nodes.
    #[inline(always)]
    pub fn search<V: Vector, B: Best>(&self, x: &[f64], best: &mut B, waiting: &mut Waiting) -> usize {
        match V::Doubles::LANES {
            8 => RowSearch { tree: self, x, best }.search::<V, 2>(&mut waiting.0),
            _ => RowSearch { tree: self, x, best }.search::<V, 4>(&mut waiting.0),
        }
    }

    /// The smallest number of a centroid below a child.
    #[inline(always)]
    fn first(&self, child: ChildNode) -> u32 {
        self.levels[child.level as usize].first[child.index as usize]
    }

    /// Whether a search goes to this child before another one of the same node. No answer depends on this order.
    #[inline(always)]
    fn is_before(&self, one: ChildNode, other: ChildNode) -> bool {
        one.bound < other.bound || one.bound == other.bound && self.first(one) < self.first(other)
    }
}

/// The search for one row. R vectors hold WIDE values.
struct RowSearch<'s, T, B> {
    tree: &'s CentroidTree<T>,
    x: &'s [f64],
    best: &'s mut B,
}

impl<T: Float, B: Best> RowSearch<'_, T, B> {
    #[inline(always)]
    fn search<V: Vector, const R: usize>(&mut self, waiting: &mut [ChildNode; MOST_PLACES]) -> usize {
        assert!(R * V::Doubles::LANES == WIDE && self.x.len() == self.tree.d);
        let (mut count, mut visits) = (0, 0);
        let mut place = ChildNode { level: self.tree.levels.len() as u32, ..ChildNode::default() };
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
    fn is_in_reach(&self, place: ChildNode) -> bool {
        self.best.wants(place.bound, || self.tree.first(place))
    }

    /// Returns the nearest child in reach. Puts the other children in reach on the list.
    #[inline(always)]
    fn see_node<V: Vector, const R: usize>(
        &mut self,
        node: ChildNode,
        waiting: &mut [ChildNode; MOST_PLACES],
        count: &mut usize,
    ) -> Option<ChildNode> {
        let (d, level, index) = (self.x.len(), node.level - 1, node.index as usize);
        let boxes = &self.tree.levels[level as usize].boxes[index * 2 * d * WIDE..][..2 * d * WIDE];
        let mut bounds = [0.0; WIDE];
        // SAFETY: `boxes` holds WIDE = R * LANES values for each end of each feature, and `bounds` as many.
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
        let mut nearest: Option<ChildNode> = None;
        while bits != 0 {
            let c = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let place = ChildNode { bound: bounds[c], index: (index * WIDE + c) as u32, level };
            if !self.is_in_reach(place) {
                continue;
            }
            let later = match nearest {
                Some(other) if !self.tree.is_before(place, other) => Some(place),
                _ => nearest.replace(place),
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
        // SAFETY: `leaf` holds WIDE = R * LANES values for each feature, and `distances` as many.
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
    /// R vectors must have at most WIDE lanes.
    #[inline(always)]
    unsafe fn not_above_limit<V: Vector, const R: usize>(&self, numbers: &[V::Doubles; R], out: &mut [f64; WIDE]) -> u32 {
        // SAFETY: `out` has room for R vectors.
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
