//! Addresses on the device that know what lies there.

use std::fmt;
use std::marker::PhantomData;

/// The address of values on the device, as kernels take it. Where an argument wants this address, an address of other values does
/// not compile, unless `cast` says that these values are meant. Pointers to values of the rows' type are still numbers.
#[repr(transparent)]
pub struct At<T> {
    address: u64,
    values: PhantomData<fn() -> T>,
}

impl<T> At<T> {
    /// No address. Kernels look for it where an array may be missing.
    pub const NULL: Self = Self::new(0);

    /// The address with this number.
    pub const fn new(address: u64) -> Self {
        Self { address, values: PhantomData }
    }

    /// The number.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// The address of value `i`.
    pub const fn index(self, i: u64) -> Self {
        debug_assert!(self.address != 0, "there is no array");
        Self::new(self.address + i * size_of::<T>() as u64)
    }

    /// The address of a field of the value. `field!` calls this function with the offset and the type of one field.
    pub fn part<Part>(self, offset: usize, _part: fn(&T) -> &Part) -> At<Part> {
        At::new(self.address + offset as u64)
    }

    /// The same address as that of other values.
    pub const fn cast<Other>(self) -> At<Other> {
        At::new(self.address)
    }
}

/// The address of a field of the struct at an address: `field!(at, Control, in_doubt)`.
macro_rules! field {
    ($at:expr, $whole:ty, $part:ident) => {
        $at.part(std::mem::offset_of!($whole, $part), |whole: &$whole| &whole.$part)
    };
}
pub(in crate::backend::cuda) use field;

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
