//! The numbers that are not drawn yet, in order: each draw takes one of them away.
//!
//! The numbers lie in buckets of equal width, each with a list of those that are drawn. A Fenwick tree (Fenwick 1994) over the
//! buckets counts what is left. So a draw takes time in proportion to the logarithm of the number of draws.

use crate::base::error::Result;
use crate::base::memory;

/// Draws of a bucket, if they are spread evenly.
const OF_BUCKET: u64 = 32;

/// The numbers below `n` that are not drawn yet.
pub struct WithoutReplacement {
    n: u64,
    /// Numbers of a bucket.
    width: u64,
    /// For each bucket its drawn numbers, ascending.
    drawn: Vec<Vec<u64>>,
    /// The Fenwick tree: entry `i` holds what is left in the `i & -i` buckets up to bucket `i - 1`.
    left: Vec<u64>,
}

impl WithoutReplacement {
    /// All numbers below `n`. About `draws` of them will be drawn.
    pub fn new(n: u64, draws: u64) -> Result<Self> {
        let width = n.div_ceil((draws / OF_BUCKET).max(1)).max(1);
        let count = n.div_ceil(width) as usize;
        let mut drawn = memory::with_room(count, super::ROWS)?;
        drawn.resize_with(count, Vec::new);
        let mut left = memory::zeroed::<u64>(count + 1, super::ROWS)?;
        for bucket in 1..=count {
            left[bucket] += width.min(n - (bucket as u64 - 1) * width);
            let next = bucket + (bucket & bucket.wrapping_neg());
            if next <= count {
                left[next] += left[bucket];
            }
        }
        Ok(Self { n, width, drawn, left })
    }

    /// Draws the `target`th of the numbers that are left.
    pub fn take(&mut self, mut target: u64) -> Result<u64> {
        let count = self.drawn.len();
        let mut bucket = 0;
        let mut step = count.next_power_of_two();
        while step > 0 {
            if bucket + step <= count && self.left[bucket + step] <= target {
                bucket += step;
                target -= self.left[bucket];
            }
            step /= 2;
        }
        assert!(bucket < count, "the target is below what is left");
        let first = bucket as u64 * self.width;
        let (index, number) = nth_not_drawn(&self.drawn[bucket], first, target);
        debug_assert!(number < self.n);
        memory::reserve(&mut self.drawn[bucket], 1, super::ROWS)?;
        self.drawn[bucket].insert(index, number);
        let mut entry = bucket + 1;
        while entry <= count {
            self.left[entry] -= 1;
            entry += entry & entry.wrapping_neg();
        }
        Ok(number)
    }
}

/// The `target`th number from `first` on that is not in the ascending list, and where it would be inserted.
/// `drawn[i] - first - i` numbers below `drawn[i]` are not in the list.
fn nth_not_drawn(drawn: &[u64], first: u64, target: u64) -> (usize, u64) {
    let (mut low, mut high) = (0, drawn.len());
    while low < high {
        let middle = (low + high) / 2;
        if drawn[middle] - first - middle as u64 <= target { low = middle + 1 } else { high = middle }
    }
    (low, first + target + low as u64)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(draws_are_those_from_a_list);
    fn draws_are_those_from_a_list() {
        for (n, draws) in [(1, 1), (10, 10), (1_000, 1_000), (997, 300), (40_000, 50), (1 << 12, 1 << 10)] {
            let (mut list, mut left) = ((0..n).collect::<Vec<u64>>(), WithoutReplacement::new(n, draws).unwrap());
            let mut state = n;
            for _ in 0..draws {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let target = (state >> 33) % list.len() as u64;
                assert_eq!(left.take(target).unwrap(), list.remove(target as usize));
            }
        }
    }
}
