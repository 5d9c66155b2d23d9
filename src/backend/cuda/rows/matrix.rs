//! The values of rows on the device: of the feature type, or of 16 bits.

use crate::backend::cuda::device::{Buffer, Plain, Queue, bytes_of};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::fp16::Half;

pub enum Matrix<T> {
    /// Values of the feature type.
    Same(Buffer<T>),
    /// The bits of values of 16 bits. Kernels widen them as they read them.
    Half(Buffer<u16>, Half),
}

impl<T: Float + Plain> Matrix<T> {
    /// The bytes that `len` values take on the device.
    pub fn bytes(len: usize, half: bool) -> u64 {
        if half { bytes_of::<u16>(len) } else { bytes_of::<T>(len) }
    }

    /// Memory for `len` values. Their content is undefined.
    pub fn allocate(queue: &Queue, len: usize, half: Option<Half>) -> Result<Self> {
        const WHAT: &str = "the rows";
        Ok(match half {
            None => Self::Same(queue.alloc(len, WHAT)?),
            Some(half) => Self::Half(queue.alloc(len, WHAT)?, half),
        })
    }

    /// `len` values in memory that somebody else owns.
    ///
    /// # Safety
    /// As for [`Buffer::external`].
    pub unsafe fn external(queue: &Queue, address: u64, len: usize, half: Option<Half>) -> Self {
        // SAFETY: the caller promises it.
        match half {
            None => Self::Same(unsafe { Buffer::external(address, len, queue.clone()) }),
            Some(half) => Self::Half(unsafe { Buffer::external(address, len, queue.clone()) }, half),
        }
    }

    /// As [`Buffer::is_external`].
    pub fn is_external(&self) -> bool {
        match self {
            Self::Same(values) => values.is_external(),
            Self::Half(bits, _) => bits.is_external(),
        }
    }

    /// The bytes of a value.
    pub fn size(&self) -> usize {
        if self.half().is_some() { size_of::<u16>() } else { size_of::<T>() }
    }

    /// The type of the values, if it is one of 16 bits.
    pub fn half(&self) -> Option<Half> {
        match self {
            Self::Same(_) => None,
            Self::Half(_, half) => Some(*half),
        }
    }

    /// The address on the device.
    pub fn at(&self) -> u64 {
        self.at_index(0)
    }

    /// The address of value `i`.
    pub fn at_index(&self, i: usize) -> u64 {
        match self {
            Self::Same(values) => values.at_index(i),
            Self::Half(bits, _) => bits.at_index(i),
        }
    }

    /// As [`Buffer::zero_ends`]. Bits of 0 are the value 0 in all types.
    pub fn zero_ends(&self, columns: usize, stride: usize, first: usize) -> Result<()> {
        match self {
            Self::Same(values) => values.zero_ends(columns, stride, first),
            Self::Half(bits, _) => bits.zero_ends(columns, stride, first),
        }
    }

    /// As [`Buffer::read`].
    pub fn read(&self, first: usize, out: &mut [T]) -> Result<()> {
        match self {
            Self::Same(values) => values.read(first, out),
            Self::Half(bits, half) => {
                let mut here = memory::zeroed(out.len(), "a column of the rows")?;
                bits.read(first, &mut here)?;
                half.widen(&here, out);
                Ok(())
            }
        }
    }

    /// All values.
    #[cfg(feature = "tests")]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match self {
            Self::Same(values) => values.to_vec(),
            Self::Half(bits, half) => Ok(bits.to_vec()?.into_iter().map(|bits| T::from_f32(half.to_f32(bits))).collect()),
        }
    }
}
