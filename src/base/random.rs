//! Random values for tests.

use crate::base::float::Float;

/// A chain of random numbers from a seed.
pub struct Random(pub u64);

impl Random {
    /// A number of so many bits.
    pub fn bits(&mut self, bits: u32) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> (64 - bits)
    }

    pub fn next(&mut self) -> u64 {
        self.bits(31)
    }

    /// From 0 to less than 1.
    pub fn unit(&mut self) -> f64 {
        self.bits(53) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// From -1 to less than 1.
    pub fn sign(&mut self) -> f64 {
        2.0 * self.unit() - 1.0
    }

    /// A value of one of several sorts: coarse, next to a power of two, tiny, huge, with an offset, of any magnitude, or
    /// ordinary.
    pub fn value<T: Float>(&mut self, sort: u64) -> T {
        let (fraction, sign) = (self.next() as f64 * 2f64.powi(-31), if self.below(2) == 0 { 1.0 } else { -1.0 });
        let (tiny, huge) = if T::IS_F32 { (-149, 126) } else { (-545, 449) };
        T::from_f64(match sort {
            0 => sign * self.below(4) as f64,
            1 => 1.0 + sign * T::UNIT * self.below(4) as f64,
            2 => sign * self.below(9) as f64 * 2f64.powi(tiny),
            3 => sign * (0.5 + 0.5 * fraction) * 2f64.powi(huge),
            4 => 1e6 + fraction,
            5 => sign * fraction * 2f64.powi(self.below(2 * huge as u64) as i32 - huge),
            _ => sign * fraction,
        })
    }
}
