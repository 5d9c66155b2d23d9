//! The centroids in reach of rows, from sums of products of integer copies.

use super::lists::Lists;
use super::scores::PanelFacts;
use super::{MOST_LANES, ROWS};
use crate::backend::cpu::filter::GROUP;
use crate::simd::Vector;

/// The sums of some panels of centroids, and what their scores are compared with.
pub struct FindCandidates<'p> {
    /// The least scores: `(panels, ROWS)`.
    pub least: &'p [[f32; ROWS]],
    /// `(panels * GROUP, ROWS)`.
    pub sums: &'p [f32],
    /// The steps of the rows.
    pub steps: &'p [f32; ROWS],
    /// For each panel, what belongs to its centroids.
    pub own: &'p [PanelFacts],
    /// The first panel's place among all.
    pub first: usize,
    /// Number of rows that count.
    pub count: usize,
    pub limits: &'p [f32; ROWS],
    pub lists: &'p mut Lists,
}

impl FindCandidates<'_> {
    /// Lists the centroids in reach. No processor can predict which they are. So there is no branch for each centroid: one loop
    /// runs over the panels that have candidates, and a loop in it over the candidates of the panel.
    #[inline(always)]
    pub fn collect<V: Vector>(&mut self) {
        let Self { least, sums, steps, own, first, count, limits, ref mut lists } = *self;
        assert!(sums.len() >= least.len() * GROUP * ROWS && own.len() == least.len() && count <= ROWS);
        for at in (0..count).step_by(V::LANES) {
            let counted = u32::MAX >> (32 - V::LANES.min(count - at));
            for (start, least) in (0..).step_by(64).zip(least.chunks(64)) {
                let mut panels = 0u64;
                // SAFETY: LANES divides ROWS. The assertion bounds the panels and their sums. For the features of the instruction
                // set see `Vector`.
                unsafe {
                    let limit = V::load(limits.as_ptr().add(at));
                    for (i, least) in least.iter().enumerate() {
                        let near = V::bits(V::load(least.as_ptr().add(at)).not_above(limit)) & counted;
                        panels |= u64::from(near != 0) << i;
                    }
                }
                while panels != 0 {
                    let panel = start + panels.trailing_zeros() as usize;
                    panels &= panels - 1;
                    let mut scores = [0.0f32; GROUP * MOST_LANES];
                    let mut near = 0u128;
                    // SAFETY: as above, and `scores` has room for GROUP vectors.
                    unsafe {
                        let limit = V::load(limits.as_ptr().add(at));
                        for c in 0..GROUP {
                            let sum = V::load(sums.as_ptr().add((panel * GROUP + c) * ROWS + at));
                            let score = own[panel].scores(c, sum, V::load(steps.as_ptr().add(at)));
                            score.store(scores.as_mut_ptr().add(c * V::LANES));
                            near |= u128::from(V::bits(score.not_above(limit)) & counted) << (c * V::LANES);
                        }
                    }
                    while near != 0 {
                        let i = near.trailing_zeros() as usize;
                        near &= near - 1;
                        let (c, r) = (i / V::LANES, at + i % V::LANES);
                        lists.push(r, ((first + panel) * GROUP + c) as u32, scores[i], limits[r]);
                    }
                }
            }
        }
    }
}
