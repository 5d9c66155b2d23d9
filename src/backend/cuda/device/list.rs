//! Memory is declared once: a list declares the buffers of a part of a fit. The same list allocates the buffers, and says before
//! that how many bytes they take.

use super::allocated;

/// The product of lengths. If it does not fit, the largest number: no device has so much memory.
pub fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

/// The sum of bytes. If it does not fit, the largest number.
pub fn sum<const N: usize>(bytes: [u64; N]) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// The bytes that a buffer of `len` values takes on the device.
pub fn bytes_of<T>(len: usize) -> u64 {
    allocated(len.max(1).saturating_mul(size_of::<T>()))
}

/// Declares a struct of buffers. Each field is `name: type [length]`. The text after the struct's name says in errors what the
/// memory is for. The struct gets two functions with the parameters in parentheses:
///
/// - `bytes(...)`: what all buffers take on the device;
/// - `allocate(queue, ...)`: the buffers, with undefined content.
macro_rules! buffers {
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident $(<$t:ident>)? = $what:literal ($($arg:ident : $argtype:ty),* $(,)?) {
            $( $(#[$fdoc:meta])* $field:ident : $type:ty [$len:expr] ),* $(,)?
        }
    ) => {
        $(#[$doc])*
        $vis struct $name $(<$t>)? {
            $( $(#[$fdoc])* pub $field: $crate::backend::cuda::device::Buffer<$type>, )*
        }
        impl $(<$t: $crate::backend::cuda::device::Plain>)? $name $(<$t>)? {
            /// The bytes that these buffers take on the device.
            pub fn bytes($($arg: $argtype),*) -> u64 {
                $crate::backend::cuda::device::sum([$( $crate::backend::cuda::device::bytes_of::<$type>($len) ),*])
            }

            /// Allocates the buffers. Their content is undefined.
            pub fn allocate(
                queue: &$crate::backend::cuda::device::Queue,
                $($arg: $argtype),*
            ) -> $crate::base::error::Result<Self> {
                Ok(Self { $( $field: queue.alloc($len, $what)?, )* })
            }
        }
    };
}
pub(in crate::backend::cuda) use buffers;

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(bytes_are_rounded_up_and_never_wrap);
    fn bytes_are_rounded_up_and_never_wrap() {
        assert_eq!(bytes_of::<f64>(3_000), 24_064);
        assert_eq!((bytes_of::<u8>(1_000), bytes_of::<u8>(0)), (1_024, 512));
        assert!(bytes_of::<f32>(usize::MAX) > u64::MAX / 2);
        assert_eq!((product([3, 4]), product([usize::MAX, 2]), sum([u64::MAX, 1])), (12, usize::MAX, u64::MAX));
    }
}
