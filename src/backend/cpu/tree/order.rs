//! How a tree is made: centroids near each other in one leaf, and boxes around them.

use super::{CentroidTree, Level, MOST_FEATURES, MOST_LEVELS, WIDE};
use crate::backend::cpu::filter::{NO_CENTROID, TABLE};
use crate::backend::cpu::groups::halve;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// Centroids are put in order again when the sides of the leaves are so many times as long as they were.
const WORSE: f64 = 1.1;

impl<T: Float> CentroidTree<T> {
    /// The tree over these centroids, of which there is at least one.
    pub fn new(rows: &[T], d: usize) -> Result<Self> {
        let mut count = (rows.len() / d).div_ceil(WIDE);
        let infinite = T::from_f64(f64::INFINITY);
        let names = memory::filled(count * WIDE, NO_CENTROID, TABLE)?;
        let leaves = memory::filled(count * WIDE * d, infinite, TABLE)?;
        let mut levels = memory::with_room(MOST_LEVELS, TABLE)?;
        while count > 1 {
            count = count.div_ceil(WIDE);
            let boxes = memory::filled(count * 2 * d * WIDE, infinite, TABLE)?;
            levels.push(Level { boxes, first: memory::filled(count * WIDE, NO_CENTROID, TABLE)? });
        }
        let mut tree = Self { d, names, leaves, levels, sides: 0.0 };
        (0..).zip(&mut tree.names[..rows.len() / d]).for_each(|(j, name)| *name = j);
        tree.put_in_order(rows);
        Ok(tree)
    }

    /// Takes as many other centroids, without new memory. Centroids that moved a little stay in their leaves.
    pub fn replace(&mut self, rows: &[T]) {
        // False where the sides are so long that their sum is no number.
        let is_in_order = self.take(rows) <= WORSE * self.sides;
        if !is_in_order {
            self.put_in_order(rows);
        }
    }

    fn put_in_order(&mut self, rows: &[T]) {
        let width = WIDE.pow(self.levels.len() as u32);
        let ranges = &mut [[T::default(); 2]; MOST_FEATURES][..self.d];
        halve(&mut self.names[..rows.len() / self.d], rows, ranges, [width, WIDE]);
        self.sides = self.take(rows);
    }

    /// Takes the values of the centroids, in their order. Returns the sum of the sides of the leaves' boxes.
    fn take(&mut self, rows: &[T]) -> f64 {
        let Self { d, names, leaves, levels, .. } = self;
        let (d, mut sides) = (*d, 0.0);
        for (names, leaf) in names.chunks_exact(WIDE).zip(leaves.chunks_exact_mut(d * WIDE)) {
            for (i, j) in names.iter().enumerate().filter(|(_, j)| **j != NO_CENTROID) {
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
                level.first[child] = numbers[child * WIDE..][..WIDE].iter().fold(NO_CENTROID, |least, j| least.min(*j));
            }
            below = Some(level);
        }
        sides
    }
}
