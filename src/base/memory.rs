//! Fallible memory. Everything that grows with the rows, the features or the clusters is allocated here. If there is not enough
//! memory, the result is [`KMeansError::NoMemory`], and the process goes on.
//!
//! `what` names the thing in the error, e.g. "the labels". Creating the error allocates nothing.

use std::alloc::{Layout, alloc_zeroed};
use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::base::error::{KMeansError, Result};

/// A type for which zero bytes are a valid value.
///
/// # Safety
/// Zero bytes must be a valid value of the type.
pub unsafe trait Zero: Copy {}
macro_rules! zero {
    ($($t:ty),*) => { $(
        // SAFETY: zero bytes are the number 0, or false.
        unsafe impl Zero for $t {}
    )* };
}
zero!(bool, u8, u16, u32, u64, i32, i64, u128, i128, usize, f32, f64);
// SAFETY: an array holds its values one after the other, with nothing between them.
unsafe impl<T: Zero, const N: usize> Zero for [T; N] {}

/// The error for `len` values of `T`.
#[cold]
fn missing<T>(len: usize, what: &'static str) -> KMeansError {
    no_memory(what, len as u128 * size_of::<T>() as u128)
}

/// The error for this many bytes.
#[cold]
pub fn no_memory(what: impl Into<Cow<'static, str>>, bytes: u128) -> KMeansError {
    KMeansError::NoMemory { what: what.into(), bytes: Some(u64::try_from(bytes).unwrap_or(u64::MAX)) }
}

/// An empty vector with room for `len` values.
pub fn with_room<T>(len: usize, what: &'static str) -> Result<Vec<T>> {
    let mut values = Vec::new();
    reserve(&mut values, len, what)?;
    Ok(values)
}

/// Makes room for `more` further values.
pub fn reserve<T>(values: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    values.try_reserve_exact(more).map_err(|_| missing::<T>(values.len().saturating_add(more), what))
}

/// `len` values of 0. The system hands out large pieces of memory as zeros, so memory that no code writes to takes no room.
pub fn zeroed<T: Zero>(len: usize, what: &'static str) -> Result<Vec<T>> {
    // SAFETY: `Zero` promises that zero bytes are a value.
    unsafe { zero_bytes(len, what) }
}

/// As [`zeroed`], for values that will all be written. Linux is asked for large pages, in which it hands out memory faster.
pub fn zeroed_to_fill<T: Zero>(len: usize, what: &'static str) -> Result<Vec<T>> {
    let values = zeroed(len, what)?;
    #[cfg(target_os = "linux")]
    ask_for_large_pages(&values);
    Ok(values)
}

/// Room for values that will all be written, with large pages as [`zeroed_to_fill`].
pub fn room_to_fill<T>(len: usize, what: &'static str) -> Result<Vec<T>> {
    let values = with_room(len, what)?;
    #[cfg(target_os = "linux")]
    ask_for_large_pages(&values);
    Ok(values)
}

/// Asks for large pages where these values lie, if they fill some.
#[cfg(target_os = "linux")]
fn ask_for_large_pages<T>(values: &Vec<T>) {
    /// The size of a large page. Pages of any processor divide it.
    const LARGE: usize = 2 << 20;
    let address = values.as_ptr() as usize;
    let (start, end) = (address.next_multiple_of(LARGE), (address + values.capacity() * size_of::<T>()) / LARGE * LARGE);
    if start < end {
        // SAFETY: the range lies within memory that is allocated. The advice changes no values. An error, where the system has no
        // large pages, changes nothing.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

/// As [`zeroed`], for types without [`Zero`]. Another trait may give them the same property.
///
/// # Safety
/// Zero bytes must be a valid value of `T`.
pub unsafe fn zero_bytes<T: Copy>(len: usize, what: &'static str) -> Result<Vec<T>> {
    let Ok(layout) = Layout::array::<T>(len) else { return Err(missing::<T>(len, what)) };
    if layout.size() == 0 {
        return with_room(len, what).map(|mut values| {
            // SAFETY: there are no bytes to initialise, because there are no values or the values have no size.
            unsafe { values.set_len(len) };
            values
        });
    }
    // SAFETY: the size of the layout is not 0.
    let address = unsafe { alloc_zeroed(layout) };
    if address.is_null() {
        return Err(missing::<T>(len, what));
    }
    // SAFETY: the global allocator allocated this memory with the layout of `len` values. All of them are initialised, because
    // the caller promises that zero bytes are a value.
    Ok(unsafe { Vec::from_raw_parts(address.cast(), len, len) })
}

/// `len` copies of one value.
pub fn filled<T: Clone>(len: usize, value: T, what: &'static str) -> Result<Vec<T>> {
    let mut values = with_room(len, what)?;
    values.resize(len, value);
    Ok(values)
}

/// A copy of a slice.
pub fn copied<T: Copy>(values: &[T], what: &'static str) -> Result<Vec<T>> {
    let mut copy = with_room(values.len(), what)?;
    copy.extend_from_slice(values);
    Ok(copy)
}

/// Appends one value.
#[inline]
pub fn push<T>(values: &mut Vec<T>, value: T, what: &'static str) -> Result<()> {
    if values.len() == values.capacity() {
        // `try_reserve` doubles the capacity, so n pushes take time proportional to n.
        values.try_reserve(1).map_err(|_| missing::<T>(values.len() + 1, what))?;
    }
    values.push(value);
    Ok(())
}

/// Makes room for `more` further values, and for as many as there are, so that n calls take time proportional to n.
pub fn reserve_more<T>(values: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    values.try_reserve(more).map_err(|_| missing::<T>(values.len().saturating_add(more), what))
}

/// Appends some values.
pub fn extend<T: Copy>(values: &mut Vec<T>, more: &[T], what: &'static str) -> Result<()> {
    values.try_reserve(more.len()).map_err(|_| missing::<T>(values.len() + more.len(), what))?;
    values.extend_from_slice(more);
    Ok(())
}

/// Collects all items of an iterator.
pub fn collected<T>(items: impl IntoIterator<Item = T>, what: &'static str) -> Result<Vec<T>> {
    let mut items = items.into_iter();
    let known = items.size_hint().0;
    let mut values = with_room(known, what)?;
    // There is room for so many.
    values.extend(items.by_ref().take(known));
    for item in items {
        push(&mut values, item, what)?;
    }
    Ok(values)
}

/// Collects the items of an iterator, or returns its first error.
pub fn try_collected<T>(items: impl IntoIterator<Item = Result<T>>, what: &'static str) -> Result<Vec<T>> {
    let items = items.into_iter();
    let mut values = with_room(items.size_hint().0, what)?;
    for item in items {
        push(&mut values, item?, what)?;
    }
    Ok(values)
}

/// Formats a text.
pub fn text(words: fmt::Arguments<'_>, what: &'static str) -> Result<String> {
    struct Text(String);
    impl Write for Text {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            self.0.try_reserve(more.len()).map_err(|_| fmt::Error)?;
            self.0.push_str(more);
            Ok(())
        }
    }
    let mut text = Text(String::new());
    text.write_fmt(words).map_err(|_| missing::<u8>(text.0.len() + 1, what))?;
    Ok(text.0)
}

/// Copies texts.
pub fn texts(all: &[String], what: &'static str) -> Result<Vec<String>> {
    try_collected(all.iter().map(|one| text(format_args!("{one}"), what)), what)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(what_cannot_be_had_is_named_with_its_size);
    fn what_cannot_be_had_is_named_with_its_size() {
        let labels = "the labels";
        let words = |error: KMeansError| error.to_string();
        let most = usize::MAX / 16;
        assert_eq!(
            words(zeroed::<u32>(1 << 60, labels).unwrap_err()),
            "memory: expected room for the labels (4,611,686,018,427,387,904 bytes), got none"
        );
        assert!(words(zeroed::<u128>(usize::MAX, labels).unwrap_err()).contains("(18,446,744,073,709,551,615 bytes)"));
        assert!(filled(most, 1u64, labels).is_err() && with_room::<[u8; 32]>(most, labels).is_err());
        assert!(collected((0..most).map(|i| i as u64), labels).is_err());
        assert!(try_collected((0..most).map(|i| Ok(i as u64)), labels).is_err());
        assert!(reserve(&mut vec![1u8], usize::MAX, labels).is_err());
    }

    unit_test!(what_can_be_had_is_what_was_asked_for);
    fn what_can_be_had_is_what_was_asked_for() {
        let what = "a test";
        assert_eq!(zeroed::<i128>(3, what).unwrap(), [0; 3]);
        assert!(zeroed::<f64>(0, what).unwrap().is_empty());
        assert_eq!(zeroed::<[i128; 2]>(1, what).unwrap(), [[0; 2]]);
        assert_eq!(zeroed::<[f64; 0]>(4, what).unwrap().len(), 4);
        assert_eq!(filled(2, 1.5, what).unwrap(), [1.5; 2]);
        assert_eq!(copied(&[1, 2], what).unwrap(), [1, 2]);
        assert_eq!(collected((0..9).filter(|i| i % 2 == 0), what).unwrap(), [0, 2, 4, 6, 8]);
        assert_eq!(try_collected([Ok(1), Err(KMeansError::NoFeatures), Ok(2)], what), Err(KMeansError::NoFeatures));
        let mut values = Vec::new();
        (0..100).for_each(|i| push(&mut values, i, what).unwrap());
        extend(&mut values, &[100, 101], what).unwrap();
        assert!(values.iter().copied().eq(0..102));
        assert_eq!(text(format_args!("column_{}", 7), what).unwrap(), "column_7");
        #[cfg(feature = "serde")]
        assert_eq!(texts(&["a".into(), "".into()], what).unwrap(), ["a", ""]);
    }

    #[cfg(target_os = "linux")]
    unit_test!(zeros_that_are_not_touched_take_no_room);
    /// Fits of a hundred million rows rely on this: memory that is allocated but not written to takes no room.
    #[cfg(target_os = "linux")]
    fn zeros_that_are_not_touched_take_no_room() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let zeros = zeroed::<u64>(1 << 27, "a gigabyte").unwrap();
        assert!(resident() < before + (512 << 20), "{before} bytes, then {}", resident());
        assert_eq!(zeros[1 << 26], 0);
    }
}
