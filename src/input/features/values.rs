//! Values as they lie in memory: of the feature type, or of 16 bits.

use std::ops::Range;

use crate::base::float::Float;
use crate::input::fp16::Half;

/// Consecutive values.
#[derive(Debug)]
pub enum Values<'a, T> {
    /// Values of the feature type.
    Same(&'a [T]),
    /// The bits of values of 16 bits.
    Half(&'a [u16], Half),
}

impl<T> Clone for Values<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Values<'_, T> {}

impl<T> Values<'_, T> {
    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Same(values) => values.len(),
            Self::Half(bits, _) => bits.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the values, if they have 16 bits.
    pub fn half(&self) -> Option<Half> {
        match self {
            Self::Same(_) => None,
            Self::Half(_, half) => Some(*half),
        }
    }

    /// Some of the values.
    pub fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Same(values) => Self::Same(&values[range]),
            Self::Half(bits, half) => Self::Half(&bits[range], *half),
        }
    }
}

impl<T: Float> Values<'_, T> {
    /// Copies all values to `out`, which has as many.
    #[inline]
    pub fn copy(&self, out: &mut [T]) {
        match self {
            Self::Same(values) => out.copy_from_slice(values),
            Self::Half(bits, half) => half.widen(bits, out),
        }
    }

    /// Value `i`.
    #[inline]
    pub fn get(&self, i: usize) -> T {
        match self {
            Self::Same(values) => values[i],
            Self::Half(bits, half) => T::from_f32(half.to_f32(bits[i])),
        }
    }

    /// Copies the bits of values of 16 bits.
    ///
    /// # Panics
    /// If the values have more bits.
    #[cfg(feature = "cuda")]
    pub fn copy_bits(&self, out: &mut [u16]) {
        let Self::Half(bits, _) = self else { unreachable!("all values have 16 bits") };
        out.copy_from_slice(bits);
    }
}
