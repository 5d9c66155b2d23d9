//! The types of numbers, and which of them become float64.

#[cfg(feature = "cuda")]
use crate::base::float::Float;
use crate::input::fp16::Half;

/// The type of values in memory. The kernels of GPUs know the types by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum ValueType {
    /// Bits as in an Arrow bitmap.
    Bit,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    BFloat16,
    Float32,
    Float64,
}

impl ValueType {
    /// Whether the values become float64: all others become float32 without a loss. One such column makes all columns float64.
    pub fn is_wide(self) -> bool {
        matches!(self, Self::Int32 | Self::Int64 | Self::UInt32 | Self::UInt64 | Self::Float64)
    }

    /// The bytes of a value that kernels for features of type `T` read as it is. `None`: they read no such values.
    #[cfg(feature = "cuda")]
    pub(crate) fn size_as<T: Float>(self) -> Option<usize> {
        let own = if T::IS_F32 { Self::Float32 } else { Self::Float64 };
        if self == own { Some(size_of::<T>()) } else { self.half().filter(|_| T::IS_F32).map(|_| size_of::<u16>()) }
    }

    /// The type, if it is a float type of 16 bits.
    pub fn half(self) -> Option<Half> {
        match self {
            Self::Float16 => Some(Half::Float16),
            Self::BFloat16 => Some(Half::BFloat16),
            _ => None,
        }
    }
}
