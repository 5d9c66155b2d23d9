//! Scores made of integer sums of products.

use super::ROWS;
use crate::backend::cpu::filter::GROUP;
use crate::simd::Vector;

/// The largest steps of rows and of centroids. Whoever makes copies holds to them.
///
/// A sum of products is below 2^31, so its product with both steps is below 2^127, and finite. So a score is finite, or infinite
/// like the half square that is added, and never NaN: a NaN would lower no least score, and its centroid would be lost.
pub const MOST_STEPS: [f32; 2] = [(1u64 << 43) as f32, (1u64 << 53) as f32];

/// What belongs to the centroids of a panel.
#[derive(Debug, Clone, Copy)]
pub struct PanelFacts {
    /// The folded half squares. The padding is infinite.
    pub folded: [f32; GROUP],
    pub steps: [f32; GROUP],
    /// What their sums start at: the bits of integers.
    pub starts: [f32; GROUP],
    pub margins: [f32; GROUP],
}

impl PanelFacts {
    /// The facts about a panel without centroids.
    pub const NOBODY: Self =
        Self { folded: [f32::INFINITY; GROUP], steps: [0.0; GROUP], starts: [0.0; GROUP], margins: [f32::INFINITY; GROUP] };

    /// The scores of centroid `c`: of the sums of some rows, and the rows' steps.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn scores<V: Vector>(&self, c: usize, sums: V, steps: V) -> V {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            let scaled = sums.integers_as_floats().mul_add(steps, V::splat(0.0));
            scaled.mul_add(V::splat(self.steps[c]), V::splat(self.folded[c]))
        }
    }
}

/// The least scores of a panel of centroids, and the rows' least sums of a score and a margin so far.
pub struct Least<'p> {
    pub of_panel: &'p mut [f32; ROWS],
    pub best: &'p mut [f32; ROWS],
}

impl Least<'_> {
    /// Finds the least scores, and lowers the other sums. `sums`: of R vectors of rows from `start` on and each centroid of the
    /// panel. `steps`: of all rows.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`. `start + R * LANES` must be at most [`ROWS`].
    #[inline(always)]
    pub unsafe fn find<V: Vector, const R: usize>(
        &mut self,
        sums: &[[V; R]; GROUP],
        own: &PanelFacts,
        steps: &[f32; ROWS],
        start: usize,
    ) {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            let (to, best) = (self.of_panel.as_mut_ptr().add(start), self.best.as_mut_ptr().add(start));
            let mut step = [V::splat(0.0); R];
            let (mut least, mut with_margin) = ([V::splat(f32::INFINITY); R], step);
            for v in 0..R {
                step[v] = V::load(steps.as_ptr().add(start + v * V::LANES));
                with_margin[v] = V::load(best.add(v * V::LANES));
            }
            for c in 0..GROUP {
                let margin = V::splat(own.margins[c]);
                for v in 0..R {
                    let score = own.scores(c, sums[c][v], step[v]);
                    least[v] = score.min_or(least[v]);
                    // A sum that is NaN lowers nothing.
                    with_margin[v] = score.add(margin).min_or(with_margin[v]);
                }
            }
            for v in 0..R {
                least[v].store(to.add(v * V::LANES));
                with_margin[v].store(best.add(v * V::LANES));
            }
        }
    }
}
