//! The centroids in reach of rows, from the least scores of panels of centroids.

use std::ops::Range;

use super::lists::Lists;
use super::{MOST_LANES, ROWS};
use crate::simd::Vector;

/// The scores of some panels of centroids, and what they are compared with.
pub struct FindCandidates<'p> {
    /// The least scores: `(panels, ROWS)`.
    pub least: &'p [[f32; ROWS]],
    /// `(panels * G, ROWS)`.
    pub scores: &'p [f32],
    /// The places of the centroids. The first one is that of a panel.
    pub places: Range<usize>,
    /// Number of rows that count.
    pub count: usize,
    pub limits: &'p [f32; ROWS],
    pub lists: &'p mut Lists,
}

impl FindCandidates<'_> {
    /// Lists the centroids in reach, G to a panel. No processor can predict which they are. So there is no branch for each
    /// centroid: one loop runs over the panels that have candidates, and a loop in it over the candidates of the panel.
    #[inline(always)]
    pub fn collect<V: Vector, const G: usize>(self) {
        const { assert!(G * MOST_LANES <= u128::BITS as usize) };
        let Self { least, scores, places, count, limits, lists } = self;
        let (first, panels) = (places.start / G, places.len().div_ceil(G));
        let least = &least[..panels];
        assert!(scores.len() >= panels * G * ROWS && count <= ROWS);
        for at in (0..count).step_by(V::LANES) {
            let counted = u32::MAX >> (32 - V::LANES.min(count - at));
            for (start, least) in (0..).step_by(64).zip(least.chunks(64)) {
                let mut panels = 0u64;
                // SAFETY: LANES divides ROWS. The assertion bounds the panels and their scores.
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
                    let scores = &scores[panel * G * ROWS..][..G * ROWS];
                    let mut near = 0u128;
                    // SAFETY: as above.
                    unsafe {
                        let limit = V::load(limits.as_ptr().add(at));
                        for c in 0..G {
                            let score = V::load(scores.as_ptr().add(c * ROWS + at));
                            near |= u128::from(V::bits(score.not_above(limit)) & counted) << (c * V::LANES);
                        }
                    }
                    // The last panel may have more centroids than are listed.
                    let listed = (places.len() - panel * G).min(G);
                    if listed < G {
                        near &= (1 << (listed * V::LANES)) - 1;
                    }
                    while near != 0 {
                        let i = near.trailing_zeros() as usize;
                        near &= near - 1;
                        let (c, r) = (i / V::LANES, at + i % V::LANES);
                        lists.push(r, ((first + panel) * G + c) as u32, scores[c * ROWS + r], limits[r]);
                    }
                }
            }
        }
    }
}
