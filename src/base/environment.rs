//! The floating-point environment of the engine. It does not depend on the settings of the host program.

use std::marker::PhantomData;

/// Sets the float64 and float32 arithmetic of the contract: round to nearest, ties to even, subnormals kept.
///
/// A host program may have set its threads otherwise; libraries built with `-ffast-math` do. The guard sets the default and
/// restores the old setting when it is dropped. Every conversion to a float runs under a guard: casts of columns, numbers in a
/// file, starting centroids.
pub struct FloatEnvironment {
    #[cfg(target_arch = "x86_64")]
    saved: u32,
    /// The control word of the x87 unit. C's `long double` is rounded by it.
    #[cfg(target_arch = "x86_64")]
    saved_x87: u16,
    #[cfg(target_arch = "aarch64")]
    saved: u64,
    /// Makes the guard stay on its thread: the setting must be restored on the thread that it was taken from.
    _thread: PhantomData<*const ()>,
}

impl FloatEnvironment {
    /// Sets the default environment on this thread.
    pub fn default_rounding() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let default = 0x1F80u32; // every exception masked, round to nearest, FTZ and DAZ off
            let default_x87 = 0x037Fu16; // every exception masked, round to nearest, 64 bits
            let (mut saved, mut saved_x87) = (0u32, 0u16);
            // SAFETY: stmxcsr and ldmxcsr (SSE, part of x86_64) store and load the 4 bytes of the variable that they are given.
            // fnstcw and fldcw do so with 2 bytes. 0x1F80 and 0x037F are the documented reset values of the registers. fldcw
            // cannot raise a pending x87 exception, because Rust computes floats with SSE and so none is pending.
            unsafe {
                std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut saved, options(nostack));
                std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const default, options(nostack));
                std::arch::asm!("fnstcw [{}]", in(reg) &raw mut saved_x87, options(nostack));
                std::arch::asm!("fldcw [{}]", in(reg) &raw const default_x87, options(nostack));
            }
            Self { saved, saved_x87, _thread: PhantomData }
        }
        #[cfg(target_arch = "aarch64")]
        {
            let saved: u64;
            // SAFETY: user code may read and write FPCR. 0 means round to nearest with flush-to-zero off.
            unsafe {
                std::arch::asm!("mrs {}, fpcr", out(reg) saved, options(nomem, nostack));
                std::arch::asm!("msr fpcr, {}", in(reg) 0u64, options(nomem, nostack));
            }
            Self { saved, _thread: PhantomData }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Self { _thread: PhantomData }
    }
}

impl Drop for FloatEnvironment {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this loads the values that were read from the same registers when the guard was made.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const self.saved, options(nostack));
            std::arch::asm!("fldcw [{}]", in(reg) &raw const self.saved_x87, options(nostack));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("msr fpcr, {}", in(reg) self.saved, options(nomem, nostack));
        }
    }
}
