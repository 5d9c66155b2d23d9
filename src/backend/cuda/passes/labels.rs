//! The labels of a fit, while seeding writes there.

use std::ops::Range;

use crate::backend::cuda::arguments::LabelsArgument;
use crate::backend::cuda::device::Buffer;
use crate::base::error::Result;
use crate::base::memory;
use crate::exact::cluster_sums::UNASSIGNED;

/// The labels of a fit. Seeding may write its own numbers there, because the loop clears the labels when it starts.
pub struct SeedLabels<'s> {
    pub labels: &'s Buffer<u8>,
    /// Bytes of a label.
    pub bytes: usize,
}

impl SeedLabels<'_> {
    /// How many numbers seeding can write there. All ones is none of them.
    pub fn numbers(&self) -> usize {
        (1 << (8 * self.bytes)) - 1
    }

    /// The labels of a chunk as a kernel parameter. `first`: the first row of the chunk.
    pub fn from(&self, first: usize) -> LabelsArgument {
        LabelsArgument { at: self.labels.at_index(first * self.bytes), bytes: self.bytes as i32 }
    }

    /// Downloads the labels of a range of rows.
    pub fn read(&self, rows: Range<usize>) -> Result<Vec<u32>> {
        const WHAT: &str = "the labels of some rows";
        let mut narrow = memory::zeroed(rows.len() * self.bytes, WHAT)?;
        self.labels.read(rows.start * self.bytes, &mut narrow)?;
        memory::collected(narrow.chunks_exact(self.bytes).map(widen), WHAT)
    }
}

/// Widens a label of 1, 2 or 4 bytes. All ones stay all ones.
#[inline]
pub fn widen(bytes: &[u8]) -> u32 {
    match *bytes {
        [u8::MAX] | [u8::MAX, u8::MAX] => UNASSIGNED,
        [a] => u32::from(a),
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        _ => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}
