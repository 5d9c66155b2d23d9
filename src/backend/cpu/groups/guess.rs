//! The groups of rows that have no label yet: those whose points are nearest, apart from rounding. Labels do not depend on them.

use super::partition::{Group, nearest};
use super::step::add_squares;
use super::tuning::{FEWEST_GUESS_FEATURES, GUESS_SAMPLE};
use super::{BLOCK, GROUPS, GroupStep};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::Tile;
use crate::simd::{InstructionSet, Vector};

/// Vectors of rows, and groups, whose distances are computed together before the first assign.
const GUESSED: usize = 2;
const TOGETHER: usize = 6;
/// Points whose median is the middle. One point may be far from all others.
const FOR_MIDDLE: usize = 15;
/// The half squares of points must be less. Then products with rows as far out stay in the range of float32.
const LARGEST_HALF: f32 = 1e36;

/// What rows without labels are compared with. The nearest point has the least difference of half its square and its product with
/// the row, which takes one operation a value. A middle is subtracted from rows and points, which keeps rounding errors small. If
/// it is empty, squared differences are added up.
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
        if !T::IS_F32 {
            return Ok(());
        }
        let (d, few) = (self.groups.d, self.guessed);
        let points = || self.groups.points.chunks_exact(d);
        let step = self.groups().div_ceil(FOR_MIDDLE).max(1);
        let median = |f: usize| {
            let (mut some, mut count) = ([0.0f32; FOR_MIDDLE], 0);
            for (value, point) in some.iter_mut().zip(points().step_by(step)) {
                (*value, count) = (point[f].to_f64() as f32, count + 1);
            }
            some[..count].sort_unstable_by(f32::total_cmp);
            some[count / 2]
        };
        let middle: Vec<f32> = memory::collected((0..few).map(median), GROUPS)?;
        let moved = points().flat_map(|point| point.iter().zip(&middle).map(|(m, middle)| middle - m.to_f64() as f32));
        let points: Vec<f32> = memory::collected(moved, GROUPS)?;
        let halves = points.chunks_exact(few).map(|point| point.iter().map(|m| m * m).sum::<f32>() / 2.0);
        let halves: Vec<f32> = memory::collected(halves, GROUPS)?;
        // The products with a point that is so far out may have no value.
        if halves.iter().all(|half| *half < LARGEST_HALF) {
            self.guesses = Guesses { halves, middle, points };
        }
        Ok(())
    }

    /// Sees whether the first features of the rows say to which groups the rows of a sample belong: then it takes twice as many.
    fn guess_by_few_features(&mut self, sample: &[T], set: InstructionSet, workers: usize) -> Result<()> {
        let (d, mut few) = (self.groups.d, FEWEST_GUESS_FEATURES);
        // Rows from the whole sample, because it may be in the order of clusters.
        let step = (sample.len() / d / GUESS_SAMPLE).max(1);
        let spread: Vec<T>;
        let sample = match step {
            1 => &sample[..sample.len().min(GUESS_SAMPLE * d)],
            _ => {
                spread = memory::collected(sample.chunks_exact(d).step_by(step).take(GUESS_SAMPLE).flatten().copied(), GROUPS)?;
                &spread[..]
            }
        };
        let firsts = |values: &[T], few: usize| {
            let firsts = values.chunks_exact(d).flat_map(|row| row[..few].iter().copied());
            memory::collected(firsts, GROUPS)
        };
        if 2 * few >= d || sample.len() < GUESS_SAMPLE * d {
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

    /// The groups whose points are nearest to the rows of a tile, apart from rounding.
    #[inline(always)]
    pub fn guess<V: Vector>(&self, tile: &Tile<T>, groups: &mut [Group]) {
        match T::as_f32s(&tile.x).filter(|_| !self.guesses.halves.is_empty()) {
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
        // SAFETY: each of the d columns of `stride` values has those from `first` to `first + width`, and `found` has room for
        // as many.
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
    use crate::backend::cpu::groups::partition::Partition;
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

    /// `far`: a value of one of the clusters.
    fn check<T: Float>(set: InstructionSet, spread: f64, far: f64) -> usize {
        let (d, clusters, n, random) = (40, 13, 512, &mut Random(5));
        let mut centres: Vec<T> = (0..clusters * d).map(|_| T::from_f64(1_000.0 + 20.0 * random.unit())).collect();
        centres[7 * d + 3] = T::from_f64(far);
        let rows: Vec<T> =
            (0..n * d).map(|i| T::from_f64(centres[i % (clusters * d)].to_f64() + spread * random.unit())).collect();
        let groups = Partition::new(&centres, d, clusters, set, 2).unwrap();
        let mut step = GroupStep::new(&groups, &centres, false, None, set, 2).unwrap();
        step.prepare_guesses(Some(&rows), set, 2).unwrap();
        let mut tile = Tile::new(d, n).unwrap();
        tile.rows = n;
        (0..n * d).for_each(|i| tile.x[i % d * n + i / d] = rows[i]);
        let mut guessed = vec![0; n];
        set.run(Guess(&step, &tile, &mut guessed));
        let nearest = nearest(&rows, d, &groups.points, set, 2).unwrap();
        assert!(guessed.iter().zip(&nearest).all(|(guess, nearest)| *guess == nearest.0), "{set:?}, {spread}, {far}");
        step.guessed
    }

    unit_test!(first_features_tell_groups_apart);
    /// A few features are enough for clusters that are far apart, and none but all for those that overlap.
    fn first_features_tell_groups_apart() {
        for set in InstructionSet::ALL {
            assert_eq!([check::<f32>(set, 1.0, 1e3), check::<f64>(set, 1.0, 1e3)], [16; 2]);
            assert_eq!([check::<f32>(set, 60.0, 1e3), check::<f64>(set, 60.0, 1e3)], [40; 2]);
        }
    }

    unit_test!(a_group_far_out_leaves_the_others_apart);
    fn a_group_far_out_leaves_the_others_apart() {
        for (set, far) in [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512]
            .into_iter()
            .flat_map(|set| [1e7, 1e15, 1e18, 9.97e36].map(|far| (set, far)))
        {
            check::<f32>(set, 1.0, far);
            check::<f64>(set, 1.0, far);
        }
    }
}
