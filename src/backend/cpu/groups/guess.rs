//! The groups of rows that have no label yet: those whose points are nearest, but for rounding. Labels do not depend on them.

use super::partition::{Group, nearest};
use super::step::add_squares;
use super::{BLOCK, GROUPS, GroupStep};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::Tile;
use crate::simd::{InstructionSet, Vector};

/// Vectors of rows, and groups, whose distances are computed together before the first assign.
const GUESSED: usize = 2;
const TOGETHER: usize = 6;
/// The fewest features that rows are told apart by, and the rows of the sample that they must tell apart.
const FEWEST_FEATURES: usize = 8;
const SEEN: usize = 256;

/// What rows without labels are compared with. Points are nearer where half of their square, less a product, is less: that is one
/// operation a value. Rows and points are moved to a middle, which keeps rounding small.
#[derive(Default)]
pub struct Guesses {
    middle: Vec<f32>,
    /// For each group, the features of the middle less the point.
    points: Vec<f32>,
    /// For each group, half the square.
    halves: Vec<f32>,
}

impl<T: Float> GroupStep<'_, T> {
    /// Prepares the guesses. `sample`: rows that say how many features are enough. None if all are taken.
    pub fn prepare_guesses(&mut self, sample: Option<&[T]>, set: InstructionSet, workers: usize) -> Result<()> {
        if let Some(sample) = sample {
            self.guess_by_few_features(sample, set, workers)?;
        }
        let (d, few, groups) = (self.groups.d, self.guessed, self.groups());
        let points = || self.groups.points.chunks_exact(d);
        let middle = |f: usize| (points().map(|point| point[f].to_f64()).sum::<f64>() / groups as f64) as f32;
        let middle: Vec<f32> = memory::collected((0..few).map(middle), GROUPS)?;
        let moved = points().flat_map(|point| point.iter().zip(&middle).map(|(m, middle)| middle - m.to_f64() as f32));
        let points: Vec<f32> = memory::collected(moved, GROUPS)?;
        let halves = points.chunks_exact(few).map(|point| point.iter().map(|m| m * m).sum::<f32>() / 2.0);
        self.guesses = Guesses { halves: memory::collected(halves, GROUPS)?, middle, points };
        Ok(())
    }

    /// Sees whether the first features of the rows say to which groups the rows of a sample belong: then it takes twice as many.
    fn guess_by_few_features(&mut self, sample: &[T], set: InstructionSet, workers: usize) -> Result<()> {
        let (d, mut few) = (self.groups.d, FEWEST_FEATURES);
        let sample = &sample[..sample.len().min(SEEN * d)];
        let firsts = |values: &[T], few: usize| {
            let firsts = values.chunks_exact(d).flat_map(|row| row[..few].iter().copied());
            memory::collected(firsts, GROUPS)
        };
        if 2 * few >= d || sample.len() < SEEN * d {
            return Ok(());
        }
        let of = nearest(sample, d, &self.groups.points, set, workers)?;
        while 2 * few < d {
            let of_few = nearest(&firsts(sample, few)?, few, &firsts(&self.groups.points, few)?, set, workers)?;
            if of.iter().zip(&of_few).all(|(all, few)| all.0 == few.0) {
                self.guessed = 2 * few;
                break;
            }
            few *= 2;
        }
        Ok(())
    }

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
        let (d, Guesses { middle, points, halves }) = (self.guessed, &self.guesses);
        let middle = &middle[..d];
        assert!(first + width <= stride && x.len() >= d * stride && width <= BLOCK);
        let mut found = [0.0f32; BLOCK];
        // SAFETY: each of the d columns of `stride` values has those from `first` to `first + width`, and `found` has room for as
        // many. For the features of the instruction set see `Vector`.
        unsafe {
            let (mut best, mut names) = ([V::splat(f32::INFINITY); GUESSED], [V::splat(0.0); GUESSED]);
            for group in (0..self.groups()).step_by(TOGETHER) {
                let points: [&[f32]; TOGETHER] =
                    std::array::from_fn(|i| &points[(group + i).min(self.groups() - 1) * d..][..d]);
                let mut sums = [[V::splat(0.0); GUESSED]; TOGETHER];
                for i in 0..TOGETHER {
                    sums[i] = [V::splat(halves[(group + i).min(self.groups() - 1)]); GUESSED];
                }
                for f in 0..d {
                    let mut rows = [V::splat(0.0); GUESSED];
                    for v in 0..GUESSED {
                        rows[v] = V::load(x.as_ptr().add(f * stride + first + v * V::LANES)).sub(V::splat(middle[f]));
                    }
                    for i in 0..TOGETHER {
                        let m = V::splat(points[i][f]);
                        for v in 0..GUESSED {
                            sums[i][v] = rows[v].mul_add(m, sums[i][v]);
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
            for (f, m) in self.groups.point(group)[..self.guessed].iter().enumerate() {
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

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cpu::groups::partition::Groups;
    use crate::base::random::Random;
    use crate::simd::Task;

    struct Guess<'g, 'n, T>(&'g GroupStep<'n, T>, &'g Tile<T>, &'g mut [Group]);

    impl<T: Float> Task for Guess<'_, '_, T> {
        type Output = ();

        #[inline(always)]
        fn run<V: Vector>(self) {
            self.0.guess::<V>(self.1, self.2);
        }
    }

    fn check<T: Float>(set: InstructionSet, spread: f64) -> usize {
        let (d, clusters, n, random) = (40, 13, 512, &mut Random(5));
        let centres: Vec<T> = (0..clusters * d).map(|_| T::from_f64(1_000.0 + 20.0 * random.unit())).collect();
        let rows: Vec<T> =
            (0..n * d).map(|i| T::from_f64(centres[i % (clusters * d)].to_f64() + spread * random.unit())).collect();
        let groups = Groups::new(&centres, d, clusters, set, 2).unwrap();
        let mut step = GroupStep::new(&groups, &centres, false, None, set, 2).unwrap();
        step.prepare_guesses(Some(&rows), set, 2).unwrap();
        let mut tile = Tile::new(d, n).unwrap();
        tile.rows = n;
        (0..n * d).for_each(|i| tile.x[i % d * n + i / d] = rows[i]);
        let mut guessed = vec![0; n];
        set.run(Guess(&step, &tile, &mut guessed));
        let nearest = nearest(&rows, d, &groups.points, set, 2).unwrap();
        assert!(guessed.iter().zip(&nearest).all(|(guess, nearest)| *guess == nearest.0), "{set:?}, {spread}");
        step.guessed
    }

    unit_test!(first_features_tell_groups_apart);
    /// A few features are enough for clusters that are far apart, and none but all for those that overlap.
    fn first_features_tell_groups_apart() {
        for set in [InstructionSet::Portable, InstructionSet::Neon, InstructionSet::Avx2, InstructionSet::Avx512] {
            assert_eq!([check::<f32>(set, 1.0), check::<f64>(set, 1.0)], [16; 2]);
            assert_eq!([check::<f32>(set, 60.0), check::<f64>(set, 60.0)], [40; 2]);
        }
    }
}
