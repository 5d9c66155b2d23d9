//! Scores made of integer sums of products.
//!
//! The first look may take one margin for a *panel* of centroids, the largest of them: the least score of a panel belongs to some
//! b, and what `src/bounds/own.rs` says of `y_b + F_b` holds for everything above. Then centroids in reach have their own margins.
//! Bytes outside of tiles have them at once: more centroids in reach, for a moment, took longer than these sums.

use crate::backend::cpu::product::GROUP;
use crate::base::error::Result;
use crate::base::memory;
use crate::simd::{DotUnit, Vector};

/// The largest steps of rows and of centroids. Whoever makes copies holds to them.
///
/// A sum of products is below 2^31, so its product with both steps is below 2^127, and finite. So a score is finite, or infinite
/// like the half square that is added, and never NaN: a NaN would lower no least score, and its centroid would be lost.
pub const MOST_STEPS: [f32; 2] = [(1u64 << 43) as f32, (1u64 << 53) as f32];

/// Centroids of a panel whose sums come from tiles. Those of other panels are in registers: as many as a [`GROUP`].
pub const OF_TILES: usize = 8;

/// Number of centroids of a panel.
fn of_panel(unit: DotUnit) -> usize {
    if unit.is_tiled() { OF_TILES } else { GROUP }
}

/// What belongs to a centroid.
#[derive(Debug, Clone, Copy)]
pub struct CentroidFacts {
    /// The folded half square. That of nobody is infinite.
    pub folded: f32,
    pub step: f32,
    /// What its sums start at: the bits of an integer.
    pub start: f32,
    pub margin: f32,
}

/// What belongs to the centroids of a table, in its order.
#[derive(Debug, Default)]
pub struct Facts {
    /// Number of places. A last panel or tile may have more, without centroids.
    count: usize,
    folded: Vec<f32>,
    steps: Vec<f32>,
    starts: Vec<f32>,
    margins: Vec<f32>,
    /// For each panel, its largest margin.
    largest: Vec<f32>,
}

impl Facts {
    /// Makes them those of `count` places without centroids: whole groups.
    pub fn reset(&mut self, count: usize, unit: DotUnit, what: &'static str) -> Result<()> {
        let Self { folded, steps, starts, margins, largest, .. } = self;
        let (places, infinite) = (unit.centroids(count), f32::INFINITY);
        let panels = places / of_panel(unit);
        for (facts, count, of_nobody) in [
            (folded, places, infinite),
            (steps, places, 0.0),
            (starts, places, 0.0),
            (margins, places, infinite),
            (largest, panels, infinite),
        ] {
            facts.clear();
            memory::reserve(facts, count, what)?;
            facts.resize(count, of_nobody);
        }
        self.count = count;
        Ok(())
    }

    pub fn set(&mut self, place: usize, facts: CentroidFacts) {
        let CentroidFacts { folded, step, start, margin } = facts;
        (self.folded[place], self.steps[place], self.starts[place], self.margins[place]) = (folded, step, start, margin);
    }

    /// Takes the largest margins. Nobody has none: a score of nobody is infinite, and the least of no other panel.
    pub fn finish(&mut self, unit: DotUnit) {
        let of_panel = of_panel(unit);
        let panels = self.folded.chunks(of_panel).zip(self.margins.chunks(of_panel));
        for (largest, (folded, margins)) in self.largest.iter_mut().zip(panels) {
            let somebody = folded.iter().zip(margins).filter(|(folded, _)| **folded < f32::INFINITY);
            *largest = somebody.map(|(_, margin)| *margin).reduce(f32::max).unwrap_or(f32::INFINITY);
        }
    }

    /// Number of places.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The margin of a centroid.
    #[inline(always)]
    pub fn margin(&self, place: usize) -> f32 {
        self.margins[place]
    }

    /// The facts about the G centroids of a panel.
    #[inline(always)]
    pub fn panel<const G: usize>(&self, panel: usize) -> PanelFacts<'_, G> {
        fn of<const G: usize>(facts: &[f32], panel: usize) -> &[f32; G] {
            &facts.as_chunks().0[panel]
        }
        PanelFacts {
            folded: of(&self.folded, panel),
            steps: of(&self.steps, panel),
            starts: of(&self.starts, panel),
            margins: of(&self.margins, panel),
            largest_margin: self.largest[panel],
        }
    }
}

/// What belongs to the centroids of a panel.
#[derive(Clone, Copy)]
pub struct PanelFacts<'p, const G: usize> {
    pub folded: &'p [f32; G],
    pub steps: &'p [f32; G],
    pub starts: &'p [f32; G],
    pub margins: &'p [f32; G],
    pub largest_margin: f32,
}

impl<const G: usize> PanelFacts<'_, G> {
    /// Turns the sums of R vectors of rows and each centroid into scores. `steps`: the rows'. Returns the least scores.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn score<V: Vector, const R: usize>(&self, sums: &mut [[V; R]; G], steps: &[V; R]) -> [V; R] {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            let mut least = [V::splat(f32::INFINITY); R];
            for c in 0..G {
                let (step, folded) = (V::splat(self.steps[c]), V::splat(self.folded[c]));
                for v in 0..R {
                    let scaled = sums[c][v].integers_as_floats().mul_add(steps[v], V::splat(0.0));
                    sums[c][v] = scaled.mul_add(step, folded);
                    least[v] = sums[c][v].min_or(least[v]);
                }
            }
            least
        }
    }
}

/// Lowers the rows' least sums of a score and a margin, from the first of some rows on. `scores`: of R vectors of rows and G
/// centroids, or the least of a panel. `margins`: as many.
///
/// # Safety
/// The machine must have the instruction set of `V`. `best` must have R vectors.
#[inline(always)]
pub unsafe fn lower<V: Vector, const R: usize, const G: usize>(best: *mut f32, scores: &[[V; R]; G], margins: &[f32; G]) {
    // SAFETY: the caller keeps the conditions of this function.
    unsafe {
        for v in 0..R {
            let best = best.add(v * V::LANES);
            let mut least = V::load(best);
            for c in 0..G {
                // A sum that is NaN lowers nothing.
                least = scores[c][v].add(V::splat(margins[c])).min_or(least);
            }
            least.store(best);
        }
    }
}
