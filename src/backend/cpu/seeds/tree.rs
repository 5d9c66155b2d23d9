//! An order of the rows in which neighbours are close together.
//!
//! ```text
//! tree   : of a sample, split the rows of a node at the median of its feature of largest variance, down to leaves
//! leaf   : every row walks down the tree
//! places : the rows of a leaf in row order, leaf by leaf
//! ```
//! J. L. Bentley, "Multidimensional binary search trees used for associative searching", CACM 18 (1975). The order only steers
//! what can be skipped. No result depends on it.

use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::Tile;

/// The name for what orders the rows in errors.
pub const ORDER: &str = "the order of the rows for seeding";
/// Rows of the sample for each leaf.
pub const SAMPLE: usize = 8;

/// A binary tree in which all leaves have the same depth. The children of node i are `2 i + 1` and `2 i + 2`.
pub struct SplitTree<T> {
    depth: u32,
    /// A row goes to the second child if its value of this feature is above the threshold.
    splits: Vec<(u32, T)>,
}

impl<T: Float> SplitTree<T> {
    /// The tree of a sample (`(d, m)`, feature-major), with `2^depth` leaves.
    pub fn grow(sample: &[T], d: usize, depth: u32) -> Result<Self> {
        let m = sample.len() / d;
        let mut splits = memory::with_room((1 << depth) - 1, ORDER)?;
        let mut members: Vec<u32> = memory::collected(0..m as u32, ORDER)?;
        // The members of the nodes of a level, in the order of the nodes, lie between these bounds.
        let mut bounds: Vec<usize> = memory::collected([0, m], ORDER)?;
        for _ in 0..depth {
            let mut next = memory::with_room(2 * bounds.len(), ORDER)?;
            next.push(0);
            for node in bounds.windows(2) {
                let members = &mut members[node[0]..node[1]];
                let (feature, threshold, left) = split(sample, m, members);
                splits.push((feature, threshold));
                next.extend([node[0] + left, node[1]]);
            }
            bounds = next;
        }
        Ok(Self { depth, splits })
    }

    /// The leaf of every row of a tile.
    #[inline(always)]
    pub fn leaves(&self, tile: &Tile<T>, leaves: &mut [u32]) {
        leaves.fill(0);
        for _ in 0..self.depth {
            for (r, node) in leaves.iter_mut().enumerate() {
                let (feature, threshold) = self.splits[*node as usize];
                let above = tile.x[feature as usize * tile.stride + r] > threshold;
                *node = 2 * *node + 1 + u32::from(above);
            }
        }
        let first = self.splits.len() as u32;
        leaves.iter_mut().for_each(|node| *node -= first);
    }
}

/// Splits the members of a node. Returns the feature, the threshold, and the number of members that are not above it. The members
/// that are not above it come first afterwards.
fn split<T: Float>(sample: &[T], m: usize, members: &mut [u32]) -> (u32, T, usize) {
    let Some(&first) = members.first() else { return (0, T::default(), 0) };
    let mut widest = (0.0, 0);
    for (f, column) in sample.chunks_exact(m).enumerate() {
        let origin = column[first as usize].to_f64();
        let (mut sum, mut squares) = (0.0, 0.0);
        for &i in members.iter() {
            let t = column[i as usize].to_f64() - origin;
            sum += t;
            squares += t * t;
        }
        let spread = squares - sum * sum / members.len() as f64;
        // Values that overflow here, and equal values, are not split.
        if spread > widest.0 && spread.is_finite() {
            widest = (spread, f);
        }
    }
    let column = &sample[widest.1 * m..][..m];
    let value = |i: &u32| column[*i as usize].to_f64();
    let middle = members.len() / 2;
    members.select_nth_unstable_by(middle, |a, b| value(a).total_cmp(&value(b)));
    let median = value(&members[middle]);
    // The largest value below the median, or the median where nothing is below it.
    let below = members[..middle].iter().map(value).filter(|&v| v < median).max_by(f64::total_cmp);
    let threshold = below.unwrap_or(median);
    let mut left = 0;
    for i in 0..members.len() {
        if value(&members[i]) <= threshold {
            members.swap(i, left);
            left += 1;
        }
    }
    (widest.1 as u32, T::from_f64(threshold), left)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::input::features::Features;
    use crate::input::tile::RowBlock;

    unit_test!(equal_rows_and_rows_far_out_have_a_leaf);
    fn equal_rows_and_rows_far_out_have_a_leaf() {
        for x in [vec![1.0f64; 300], (0..300).map(|i| if i == 7 { 1e130 } else { f64::from(i % 3) }).collect()] {
            let part = RowBlock::new(Features::from_rows(&x, 1).unwrap(), None);
            let mut tile = Tile::new(1, 320).unwrap();
            tile.load(&part, None, 0..300);
            let tree = SplitTree::grow(&x, 1, 5).unwrap();
            let mut leaves = vec![9; 300];
            tree.leaves(&tile, &mut leaves);
            assert!((0..300).all(|i| leaves[i] < 32 && (0..300).all(|j| x[i] != x[j] || leaves[i] == leaves[j])));
        }
    }
}
