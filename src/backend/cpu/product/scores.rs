//! Scores made of integer sums of products.

use crate::base::error::Result;
use crate::base::memory;
use crate::simd::{DotUnit, Vector};

/// The largest steps of rows and of centroids. All code that makes copies keeps to them.
///
/// A sum of products is below 2^31, so its product with both steps is below 2^127, and finite. So a score is finite, or infinite
/// like the half square that is added, and never NaN: a NaN would lower no least score, and its centroid would be lost.
pub const MOST_STEPS: [f32; 2] = [(1u64 << 43) as f32, (1u64 << 53) as f32];

/// Centroids of a *panel* whose sums come from tiles. The sums of other panels are in registers: a `GROUP`.
pub const OF_TILES: usize = 8;

/// What belongs to a centroid.
#[derive(Debug, Clone, Copy)]
pub struct CentroidFacts {
    /// The lowered half square. It is infinite at a place without a centroid.
    pub lowered: f32,
    pub step: f32,
    /// What its sums start at: the bits of an integer.
    pub start: f32,
    pub slack: f32,
}

/// What belongs to the centroids of a table, in its order.
#[derive(Debug, Default)]
pub struct TableNorms {
    /// Number of places. A last panel or tile may have more, without centroids.
    count: usize,
    lowered: Vec<f32>,
    steps: Vec<f32>,
    starts: Vec<f32>,
    slacks: Vec<f32>,
}

impl TableNorms {
    /// Makes room for whole groups of `count` places. They have no centroids yet.
    pub fn reset(&mut self, count: usize, unit: DotUnit, what: &'static str) -> Result<()> {
        let Self { lowered, steps, starts, slacks, .. } = self;
        let infinite = f32::INFINITY;
        for (facts, of_none) in [(lowered, infinite), (steps, 0.0), (starts, 0.0), (slacks, infinite)] {
            facts.clear();
            memory::reserve(facts, unit.centroids(count), what)?;
            facts.resize(unit.centroids(count), of_none);
        }
        self.count = count;
        Ok(())
    }

    pub fn set(&mut self, place: usize, facts: CentroidFacts) {
        let CentroidFacts { lowered, step, start, slack } = facts;
        (self.lowered[place], self.steps[place], self.starts[place], self.slacks[place]) = (lowered, step, start, slack);
    }

    /// Number of places.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The facts about the G centroids of a panel.
    #[inline(always)]
    pub fn panel<const G: usize>(&self, panel: usize) -> PanelFacts<'_, G> {
        #[inline(always)]
        fn of<const G: usize>(facts: &[f32], panel: usize) -> &[f32; G] {
            &facts.as_chunks().0[panel]
        }
        PanelFacts {
            lowered: of(&self.lowered, panel),
            steps: of(&self.steps, panel),
            starts: of(&self.starts, panel),
            slacks: of(&self.slacks, panel),
        }
    }
}

/// What belongs to the centroids of a panel.
#[derive(Clone, Copy)]
pub struct PanelFacts<'p, const G: usize> {
    pub lowered: &'p [f32; G],
    pub steps: &'p [f32; G],
    pub starts: &'p [f32; G],
    pub slacks: &'p [f32; G],
}

impl<const G: usize> PanelFacts<'_, G> {
    /// Turns the sums of R vectors of rows and each centroid into scores. `steps`: the rows'. Stores the least scores, and lowers
    /// the rows' least sums of a score and a slack.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`. `least` and `best` must have R vectors.
    #[inline(always)]
    pub unsafe fn score<V: Vector, const R: usize>(
        &self,
        sums: &mut [[V; R]; G],
        steps: &[V; R],
        [least, best]: [*mut f32; 2],
    ) {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            let (mut of_panel, mut with_slack) = ([V::splat(f32::INFINITY); R], [V::splat(0.0); R]);
            for v in 0..R {
                with_slack[v] = V::load(best.add(v * V::LANES));
            }
            for c in 0..G {
                let (step, lowered, slack) = (V::splat(self.steps[c]), V::splat(self.lowered[c]), V::splat(self.slacks[c]));
                for v in 0..R {
                    let scaled = sums[c][v].integers_as_floats().mul_add(steps[v], V::splat(0.0));
                    sums[c][v] = scaled.mul_add(step, lowered);
                    of_panel[v] = sums[c][v].min_or(of_panel[v]);
                    // A sum that is NaN lowers nothing.
                    with_slack[v] = sums[c][v].add(slack).min_or(with_slack[v]);
                }
            }
            for v in 0..R {
                of_panel[v].store(least.add(v * V::LANES));
                with_slack[v].store(best.add(v * V::LANES));
            }
        }
    }
}
