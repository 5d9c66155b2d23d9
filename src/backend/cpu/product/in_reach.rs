//! The centroids in reach of rows, from the scores of integer copies.

use super::quads::{PanelFacts, finished};
use super::{Lists, ROWS};
use crate::backend::cpu::filter::GROUP;
use crate::backend::cpu::simd::Vector;

/// The scores of some panels of centroids, and what they are compared with.
pub struct InReach<'p> {
    /// `(panels, ROWS)`.
    pub least: &'p [[f32; ROWS]],
    /// `(panels * GROUP, ROWS)`: the scores, or the sums of products that they are made of.
    pub scores: &'p [f32],
    /// What makes scores of sums: the steps of the rows, and what belongs to the panels.
    pub of_sums: Option<(&'p [f32; ROWS], &'p [PanelFacts])>,
    /// The first panel's place among all.
    pub first: usize,
    /// Number of rows that count.
    pub count: usize,
    pub limits: &'p [f32; ROWS],
    pub lists: Lists<'p>,
}

impl InReach<'_> {
    /// Nobody can predict which centroids are in reach. So there is one loop over the panels that have some, and in it one over these centroids, instead
    /// of a branch for each.
    #[inline(always)]
    pub fn collect<V: Vector>(&mut self) {
        let Self { least, scores, of_sums, first, count, limits, ref mut lists } = *self;
        assert!(scores.len() >= least.len() * GROUP * ROWS && count <= ROWS);
        assert!(of_sums.is_none_or(|(_, own)| own.len() == least.len()));
        for at in (0..count).step_by(V::LANES) {
            let counted = u32::MAX >> (32 - V::LANES.min(count - at));
            for (start, least) in (0..).step_by(64).zip(least.chunks(64)) {
                let mut panels = 0u64;
                // SAFETY: LANES divides ROWS. The assertion bounds the scores. For the features of the instruction set see `Vector`.
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
                    let mut of_panel = [0.0f32; GROUP * MOST_LANES];
                    let mut near = 0u128;
                    // SAFETY: as above, and `of_panel` has room for GROUP vectors.
                    unsafe {
                        let limit = V::load(limits.as_ptr().add(at));
                        for c in 0..GROUP {
                            let mut score = V::load(scores.as_ptr().add((panel * GROUP + c) * ROWS + at));
                            if let Some((steps, own)) = of_sums {
                                let own = &own[panel];
                                score = finished(score, V::load(steps.as_ptr().add(at)), own.steps[c], own.folded[c]);
                            }
                            score.store(of_panel.as_mut_ptr().add(c * V::LANES));
                            near |= u128::from(V::bits(score.not_above(limit)) & counted) << (c * V::LANES);
                        }
                    }
                    while near != 0 {
                        let i = near.trailing_zeros() as usize;
                        near &= near - 1;
                        let (c, r) = (i / V::LANES, at + i % V::LANES);
                        lists.push(r, ((first + panel) * GROUP + c) as u32, of_panel[i], limits[r]);
                    }
                }
            }
        }
    }
}

/// The most lanes of a vector.
const MOST_LANES: usize = 16;
