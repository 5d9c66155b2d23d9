//! For each of 64 rows, a short list of the centroids in reach.

use super::ROWS;

/// Number of centroids that a row's list has room for.
pub const MOST_CANDIDATES: usize = 32;
/// The count of a list that overflowed.
pub const ALL: u8 = u8::MAX;

/// The centroids in reach of each row.
#[derive(Debug)]
#[repr(C)]
pub struct Lists {
    /// The number of centroids, or [`ALL`].
    pub counts: [u8; ROWS],
    /// The centroids, and their scores. `sort_candidates` puts the centroids in ascending order, and the scores stay.
    pub candidates: [[u32; MOST_CANDIDATES]; ROWS],
    pub scores: [[f32; MOST_CANDIDATES]; ROWS],
}

impl Lists {
    pub const EMPTY: Self =
        Self { counts: [0; ROWS], candidates: [[0; MOST_CANDIDATES]; ROWS], scores: [[0.0; MOST_CANDIDATES]; ROWS] };

    #[inline(always)]
    pub fn push(&mut self, r: usize, j: u32, score: f32, limit: f32) {
        if self.counts[r] as usize == MOST_CANDIDATES {
            self.keep_within(r, limit);
        }
        let count = self.counts[r];
        if (count as usize) < MOST_CANDIDATES {
            self.candidates[r][count as usize] = j;
            self.scores[r][count as usize] = score;
            self.counts[r] = count + 1;
        } else {
            self.counts[r] = ALL;
        }
    }

    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN stays in reach
    #[inline(always)]
    pub fn keep_within(&mut self, r: usize, limit: f32) {
        let mut kept = 0;
        for i in 0..self.counts[r] as usize {
            if !(self.scores[r][i] > limit) {
                self.candidates[r][kept] = self.candidates[r][i];
                self.scores[r][kept] = self.scores[r][i];
                kept += 1;
            }
        }
        self.counts[r] = kept as u8;
    }
}
