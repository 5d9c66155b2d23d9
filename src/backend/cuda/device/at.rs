//! Addresses on the device that know what lies there.

use std::fmt;
use std::marker::PhantomData;

/// The address of values on the device, as kernels take it. An address of other values does not compile where this one is wanted.
#[repr(transparent)]
pub struct At<T> {
    address: u64,
    values: PhantomData<fn() -> T>,
}

impl<T> At<T> {
    /// No address. Kernels look for it where an array may be missing.
    pub const NULL: Self = Self::new(0);

    pub const fn new(address: u64) -> Self {
        Self { address, values: PhantomData }
    }

    /// The number.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// The address of value `i`.
    pub const fn index(self, i: u64) -> Self {
        Self::new(self.address + i * size_of::<T>() as u64)
    }

    /// The address of a part of the value, so many bytes behind its beginning.
    pub const fn field<Part>(self, offset: usize) -> At<Part> {
        At::new(self.address + offset as u64)
    }

    /// The same address as that of other values.
    pub const fn cast<Other>(self) -> At<Other> {
        At::new(self.address)
    }
}

impl<T> Clone for At<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for At<T> {}

impl<T> PartialEq for At<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> fmt::Debug for At<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

/// An address of values that the argument does not know the type of.
impl<T> From<At<T>> for u64 {
    fn from(at: At<T>) -> Self {
        at.address
    }
}
