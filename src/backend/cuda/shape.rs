//! What the kernels of a fit are made for: its shape, and the size of the GPU. Both are known before anything is uploaded.

/// Limits for the tables of a block in shared memory: bytes for several copies of each accumulator, and bytes if only one copy fits.
pub const TABLE_BYTES: usize = 24 << 10;
pub const MOST_TABLE_BYTES: usize = 64 << 10;

/// Labels and rows are padded to a multiple of this number of rows, because kernels work on whole blocks of rows.
pub const ROW_ALIGNMENT: usize = 1_024;

/// Rounds up to a multiple. If the result does not fit, the largest multiple: no device has so much memory.
pub fn padded(n: usize, to: usize) -> usize {
    n.div_ceil(to).saturating_mul(to)
}

/// The shape of a fit on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FitShape {
    /// All rows of the fit.
    pub rows: usize,
    /// The rows that a kernel works on at a time: all rows, or those of the longest chunk.
    pub chunk: usize,
    pub d: usize,
    pub k: usize,
    pub weighted: bool,
    pub float64: bool,
    /// Whether the rows' values have 16 bits. Features are float32 then.
    pub half: bool,
    /// Limbs of a sum: 1 or 2.
    pub limbs: usize,
    /// Whether there is memory for copies of the rows that a step could do without.
    pub more_copies: bool,
}

impl FitShape {
    /// Columns of the sums: the features, and the mass if there are weights.
    pub fn columns(&self) -> usize {
        self.d.saturating_add(usize::from(self.weighted))
    }

    /// Bytes of a label.
    pub fn label_bytes(&self) -> usize {
        match self.k {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            _ => 4,
        }
    }

    /// Bytes of a row's value.
    pub fn value_bytes(&self) -> usize {
        if self.half {
            2
        } else if self.float64 {
            8
        } else {
            4
        }
    }

    /// The number of sums that are added up.
    pub fn accumulators(&self) -> usize {
        self.k.saturating_mul(self.columns()).saturating_mul(self.limbs)
    }

    /// The number of labels in an array.
    pub fn padded_rows(&self) -> usize {
        padded(self.rows.max(1), ROW_ALIGNMENT)
    }
}

/// The size of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuSize {
    /// Multiprocessors (SMs).
    pub processors: usize,
    /// The most bytes of shared memory that a block may have.
    pub shared: usize,
    /// The compute capability: ten times the major number, and the minor one.
    pub generation: u32,
    /// Whether the sums of `wgmma` and of `mma.sync` are outside of every bound, as far as the GPU was asked:
    /// `step/tensor/adding.rs`.
    pub untrusted: [bool; 2],
}

/// The number of copies of each accumulator that fit in `bytes`: a power of two, at most 32. If not even one copy fits, the result is
/// 1 if one copy fits in `most`, and else 0.
pub fn copies(accumulators: usize, bytes: usize, most: usize) -> usize {
    match bytes / accumulators.saturating_mul(8).max(1) {
        0 if accumulators.saturating_mul(8) <= most => 1,
        0 => 0,
        fit => 1 << fit.min(32).ilog2(),
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(copies_are_powers_of_two_that_fit);
    fn copies_are_powers_of_two_that_fit() {
        assert_eq!(copies(16, 24 << 10, 64 << 10), 32);
        assert_eq!(copies(256, 24 << 10, 64 << 10), 8);
        assert_eq!(copies(2_000, 24 << 10, 64 << 10), 1);
        assert_eq!(copies(8_000, 24 << 10, 64 << 10), 1);
        assert_eq!(copies(8_200, 24 << 10, 64 << 10), 0);
    }
}
