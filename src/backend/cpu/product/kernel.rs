//! The inner loop of the product filter: some features of 64 rows times six centroids, in registers.

use super::ROWS;
use crate::backend::cpu::filter::GROUP;
use crate::simd::{Prefetch, Vector};

/// The products of a panel of features of 64 rows with a group of centroids.
pub struct Products<'p> {
    /// `(features, ROWS)`.
    pub copy: &'p [f32],
    /// `(features, GROUP)`.
    pub centroids: &'p [f32],
    /// After the last panel of features: the lowered half squares of the group, and their slacks.
    pub own: Option<&'p [f32]>,
    /// Whether this is the first panel of features.
    pub first: bool,
    /// Number of rows that count. The scores of others are written or not.
    pub rows: usize,
    /// What is prefetched: rows, and the centroids that come next.
    pub prefetch: [Prefetch; 2],
}

impl Products<'_> {
    /// `scores[c][r] += sum_f copy[f][r] * centroids[f][c]`, with R vectors of rows at a time. After the last panel, adds the
    /// half squares, finds the least scores of the group, and lowers the rows' least sums. With `TWO`, also the second least.
    #[inline(always)]
    pub fn add<V: Vector, const R: usize, const TWO: bool>(
        &self,
        scores: &mut [f32],
        [of_group, best, second]: [&mut [f32; ROWS]; 3],
    ) {
        let Self { copy, centroids, own, first, rows, prefetch } = *self;
        let features = centroids.len() / GROUP;
        assert!(copy.len() == features * ROWS && scores.len() == GROUP * ROWS && own.is_none_or(|own| own.len() == 2 * GROUP));
        for start in (0..rows.min(ROWS)).step_by(R * V::LANES) {
            // A prefetch in the loop over features makes that loop slower.
            prefetch.iter().for_each(|values| values.part(start / (R * V::LANES), ROWS / (R * V::LANES)).ask_all());
            // SAFETY: R * LANES divides ROWS, so start + R * LANES <= ROWS. The assertion bounds f and c.
            unsafe {
                let mut sums = [[V::splat(0.0); R]; GROUP];
                for f in 0..features {
                    let mut x = [V::splat(0.0); R];
                    for v in 0..R {
                        x[v] = V::load(copy.as_ptr().add(f * ROWS + start + v * V::LANES));
                    }
                    for c in 0..GROUP {
                        let centroid = V::splat(*centroids.as_ptr().add(f * GROUP + c));
                        for v in 0..R {
                            sums[c][v] = x[v].mul_add(centroid, sums[c][v]);
                        }
                    }
                }
                let to = scores.as_mut_ptr().add(start);
                if !first {
                    for c in 0..GROUP {
                        for v in 0..R {
                            sums[c][v] = V::load(to.add(c * ROWS + v * V::LANES)).add(sums[c][v]);
                        }
                    }
                }
                if let Some(own) = own {
                    let (best, second) = (best.as_mut_ptr().add(start), second.as_mut_ptr().add(start));
                    let (mut least, mut least_score) = ([V::splat(0.0); R], [V::splat(f32::INFINITY); R]);
                    for v in 0..R {
                        least[v] = V::load(best.add(v * V::LANES));
                    }
                    for c in 0..GROUP {
                        let half = V::splat(*own.as_ptr().add(c));
                        let slack = V::splat(*own.as_ptr().add(GROUP + c));
                        for v in 0..R {
                            sums[c][v] = sums[c][v].add(half);
                            least_score[v] = sums[c][v].min_or(least_score[v]);
                            let sum = sums[c][v].add(slack);
                            if TWO {
                                // A sum that is NaN lowers neither.
                                let second = second.add(v * V::LANES);
                                least[v].max_or_nan(sum).min_or(V::load(second)).store(second);
                            }
                            least[v] = sum.min_or(least[v]);
                        }
                    }
                    for v in 0..R {
                        least[v].store(best.add(v * V::LANES));
                        least_score[v].store(of_group.as_mut_ptr().add(start + v * V::LANES));
                    }
                }
                for c in 0..GROUP {
                    for v in 0..R {
                        sums[c][v].store(to.add(c * ROWS + v * V::LANES));
                    }
                }
            }
        }
    }
}
