//! Values that are asked for before they are read.

use std::ops::Range;

/// Values that are read soon and may still be in memory. Only the processor's caches see whether they are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Prefetch {
    first: *const u8,
    /// Their cache lines.
    pub lines: usize,
}

impl Prefetch {
    /// Bytes that come together.
    const LINE: usize = 64;

    pub fn of<T>(values: &[T]) -> Self {
        Self { first: values.as_ptr().cast(), lines: size_of_val(values).div_ceil(Self::LINE) }
    }

    /// One of several parts.
    pub fn part(self, i: usize, parts: usize) -> Self {
        let lines = self.lines.div_ceil(parts);
        Self { first: self.first.wrapping_add(i * lines * Self::LINE), lines: lines.min(self.lines.saturating_sub(i * lines)) }
    }

    /// Asks for all lines.
    #[inline(always)]
    pub fn ask_all(self) {
        self.ask(0..self.lines);
    }

    /// Asks for some lines.
    #[inline(always)]
    pub fn ask(self, lines: Range<usize>) {
        for line in lines.start.min(self.lines)..lines.end.min(self.lines) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every processor of x86-64 has the instruction. It fails at no address.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T1>(self.first.wrapping_add(line * Self::LINE).cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }
}
