//! The values of rows on the device: of the feature type, or of 16 bits. Kernels widen the latter as they read them.

use std::marker::PhantomData;

use crate::backend::cuda::device::{Buffer, Plain, Queue, bytes_of, product};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::fp16::Half;

pub struct Matrix<T> {
    bytes: Buffer<u8>,
    half: Option<Half>,
    kind: PhantomData<T>,
}

/// The bytes of a value.
fn size<T>(half: bool) -> usize {
    if half { size_of::<u16>() } else { size_of::<T>() }
}

impl<T: Float + Plain> Matrix<T> {
    /// The bytes that `len` values take on the device.
    pub fn bytes(len: usize, half: bool) -> u64 {
        bytes_of::<u8>(product([len, size::<T>(half)]))
    }

    /// Memory for `len` values. Their content is undefined.
    pub fn allocate(queue: &Queue, len: usize, half: Option<Half>) -> Result<Self> {
        let bytes = queue.alloc(product([len, size::<T>(half.is_some())]), "the rows")?;
        Ok(Self { bytes, half, kind: PhantomData })
    }

    /// `len` values in memory that another owner has.
    ///
    /// # Safety
    /// As for [`Buffer::external`].
    pub unsafe fn external(queue: &Queue, address: u64, len: usize, half: Option<Half>) -> Self {
        // SAFETY: the caller promises it.
        let bytes = unsafe { Buffer::external(address, product([len, size::<T>(half.is_some())]), queue.clone()) };
        Self { bytes, half, kind: PhantomData }
    }

    /// As [`Buffer::is_external`].
    pub fn is_external(&self) -> bool {
        self.bytes.is_external()
    }

    /// The bytes of a value.
    pub fn size(&self) -> usize {
        size::<T>(self.half.is_some())
    }

    /// The type of the values, if it is one of 16 bits.
    pub fn half(&self) -> Option<Half> {
        self.half
    }

    /// The address on the device.
    pub fn at(&self) -> u64 {
        self.bytes.at()
    }

    /// The address of value `i`.
    pub fn at_index(&self, i: usize) -> u64 {
        self.bytes.at_index(i * self.size())
    }

    /// As [`Buffer::zero_ends`]. Bits of 0 are the value 0 in all types.
    pub fn zero_ends(&self, columns: usize, stride: usize, first: usize) -> Result<()> {
        self.bytes.zero_ends(columns, stride * self.size(), first * self.size())
    }

    /// As [`Buffer::read`].
    pub fn read(&self, first: usize, out: &mut [T]) -> Result<()> {
        let Some(half) = self.half else { return self.bytes.read_as(first * self.size(), out) };
        let mut bits = memory::zeroed::<u16>(out.len(), "a column of the rows")?;
        self.bytes.read_as(first * self.size(), &mut bits)?;
        half.widen(&bits, out);
        Ok(())
    }
}
