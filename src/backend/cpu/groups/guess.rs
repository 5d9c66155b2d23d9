//! The groups of rows that have no label yet: those whose points are nearest, but for rounding. Labels do not depend on them.

use super::partition::Group;
use super::step::add_squares;
use super::{BLOCK, GroupStep};
use crate::base::float::Float;
use crate::input::tile::Tile;
use crate::simd::Vector;

/// Vectors of rows, and groups, whose distances are computed together before the first assign.
const GUESSED: usize = 2;
const TOGETHER: usize = 6;

impl<T: Float> GroupStep<'_, T> {
    /// The groups whose points are nearest to the rows of a tile, but for rounding.
    #[inline(always)]
    pub fn guess<V: Vector>(&self, tile: &Tile<T>, groups: &mut [Group]) {
        match T::as_f32s(&tile.x) {
            Some(x) => {
                for first in (0..tile.rows).step_by(GUESSED * V::LANES) {
                    self.guess_vectors::<V>(x, tile.stride, first, &mut groups[first..]);
                }
            }
            None => {
                for first in (0..tile.rows).step_by(BLOCK) {
                    self.guess_block(tile, first, &mut groups[first..]);
                }
            }
        }
    }

    #[inline(always)]
    fn guess_vectors<V: Vector>(&self, x: &[f32], stride: usize, first: usize, groups: &mut [Group]) {
        let width = GUESSED * V::LANES;
        let d = self.groups.d;
        assert!(first + width <= stride && x.len() >= d * stride && width <= BLOCK);
        let mut found = [0.0f32; BLOCK];
        // SAFETY: each of the d columns of `stride` values has those from `first` to `first + width`, and `found` has room for as
        // many. For the features of the instruction set see `Vector`.
        unsafe {
            let (mut best, mut names) = ([V::splat(f32::INFINITY); GUESSED], [V::splat(0.0); GUESSED]);
            for group in (0..self.groups()).step_by(TOGETHER) {
                let points: [&[T]; TOGETHER] = std::array::from_fn(|i| self.groups.point((group + i).min(self.groups() - 1)));
                let mut sums = [[V::splat(0.0); GUESSED]; TOGETHER];
                for f in 0..d {
                    let mut rows = [V::splat(0.0); GUESSED];
                    for v in 0..GUESSED {
                        rows[v] = V::load(x.as_ptr().add(f * stride + first + v * V::LANES));
                    }
                    for i in 0..TOGETHER {
                        let m = V::splat(points[i][f].to_f64() as f32);
                        for v in 0..GUESSED {
                            let t = rows[v].sub(m);
                            sums[i][v] = t.mul_add(t, sums[i][v]);
                        }
                    }
                }
                for i in 0..TOGETHER {
                    let name = V::splat(f32::from_bits((group + i).min(self.groups() - 1) as u32));
                    for v in 0..GUESSED {
                        names[v] = V::select(sums[i][v].not_above(best[v]), name, names[v]);
                        best[v] = sums[i][v].min_or(best[v]);
                    }
                }
            }
            for v in 0..GUESSED {
                names[v].store(found.as_mut_ptr().add(v * V::LANES));
            }
        }
        groups.iter_mut().zip(&found[..width]).for_each(|(group, name)| *group = name.to_bits() as Group);
    }

    #[inline(always)]
    fn guess_block(&self, tile: &Tile<T>, first: usize, groups: &mut [Group]) {
        let (mut best, mut names) = ([f64::INFINITY; BLOCK], [0 as Group; BLOCK]);
        for group in 0..self.groups() {
            let mut sums = [0.0f64; BLOCK];
            for (f, m) in self.groups.point(group).iter().enumerate() {
                add_squares(&tile.x[f * tile.stride + first..], m.to_f64(), &mut sums);
            }
            for r in 0..BLOCK {
                let nearer = sums[r] < best[r];
                best[r] = if nearer { sums[r] } else { best[r] };
                names[r] = if nearer { group as Group } else { names[r] };
            }
        }
        groups.iter_mut().zip(names).for_each(|(group, name)| *group = name);
    }
}
