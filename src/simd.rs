//! A small vector trait. This is also the only place that chooses an instruction set.
//!
//! Kernels are written once over [`Vector`]. [`InstructionSet::run`] compiles a [`Task`] for each instruction set: it inlines the
//! task into a function that enables the set's features. The set never changes a bit of a result: float32 kernels are filters,
//! and float64 arithmetic follows the contract, which rounds the same at any width.
//!
//! The type `V` of a function `fn f<V: Vector>` says that the function needs an instruction set: the type is a token. This module
//! alone can name the types of sets that a machine may lack. It gives such a type to a task after it has asked the machine. So
//! code that has a `V` may use all its operations, and only its pointers need a word. The same holds for [`Doubles`] and [`Dot`].
//! `tests/layers.rs` checks that no other file implements these traits or runs a task for a type that it names.

/// Methods of vectors, each an expression. A method is always inlined, so that it becomes part of the function that enables the
/// features of its instruction set. A method with a pointer is unsafe.
macro_rules! operations {
    () => {};
    ($(#[$about:meta])* fn $name:ident ($($argument:tt)*) -> $out:ty = $value:expr; $($rest:tt)*) => {
        $(#[$about])*
        #[inline(always)]
        #[allow(unused_unsafe)] // some operations are safe in some versions of the standard library
        fn $name($($argument)*) -> $out {
            // SAFETY: the type is a token of its instruction set.
            unsafe { $value }
        }
        operations! { $($rest)* }
    };
    (unsafe fn $name:ident $(<$T:ident: $bound:ident>)? ($($argument:tt)*) $(-> $out:ty)? = $value:expr; $($rest:tt)*) => {
        #[inline(always)]
        unsafe fn $name $(<$T: $bound>)? ($($argument)*) $(-> $out)? {
            // SAFETY: the type is a token of its instruction set. The caller's pointer is to `LANES` values, at any alignment.
            unsafe { $value }
        }
        operations! { $($rest)* }
    };
}

mod doubles;
mod int_dot;
#[cfg(any(target_arch = "aarch64", feature = "emulated-neon"))]
mod neon;
mod portable;
mod prefetch;
mod probe;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::sync::OnceLock;

pub use doubles::{Doubles, MOST_LANES};
pub use int_dot::{Dot, DotTask, DotUnit, packed};
pub use portable::Portable;
pub use prefetch::Prefetch;
pub use tiles::{Meanwhile, SIDE, TOGETHER, TileRegisters};

/// The instruction sets that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionSet {
    /// 16 lanes; x86-64 with AVX-512 F, BW, DQ, VL.
    Avx512,
    /// 8 lanes; x86-64 with AVX2 and FMA.
    Avx2,
    /// 8 lanes; every processor of aarch64.
    Neon,
    /// 8 lanes in the target's baseline instructions.
    Portable,
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Neon => "NEON",
            Self::Portable => "portable",
        })
    }
}

impl InstructionSet {
    /// All of them. Tests try each: on a machine without a set, the portable one runs in its place.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512];

    /// The environment variable that limits what fits use: `avx2` to AVX2 and FMA, `portable` to the target's baseline. So one
    /// machine shows how fast fits are on older machines. Results have the same bits.
    pub const LIMIT: &str = "POLARS_KMEANS_INSTRUCTIONS";

    /// The widest set that this machine has and that fits may use. Detected once.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<InstructionSet> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let sets: &[Self] = match Self::limit() {
                None => &[Self::Avx512, Self::Avx2, Self::Neon],
                Some(Self::Avx2) => &[Self::Avx2],
                Some(_) => &[],
            };
            sets.iter().copied().find(|set| set.is_available()).unwrap_or(Self::Portable)
        })
    }

    /// The set that the environment limits fits to. A text that is not known limits nothing.
    pub fn limit() -> Option<Self> {
        Self::check_limit().ok().flatten()
    }

    /// The set that the environment limits fits to. The environment is read once.
    ///
    /// # Errors
    /// A text that is not known: a message that names the variable.
    pub fn check_limit() -> Result<Option<Self>, String> {
        static LIMIT: OnceLock<Result<Option<InstructionSet>, String>> = OnceLock::new();
        let limit = LIMIT.get_or_init(|| match std::env::var_os(Self::LIMIT).unwrap_or_default().to_string_lossy().as_ref() {
            "" => Ok(None),
            "avx2" => Ok(Some(Self::Avx2)),
            "portable" => Ok(Some(Self::Portable)),
            other => Err(format!("{}: expected \"avx2\" or \"portable\", got {other:?}", Self::LIMIT)),
        });
        limit.clone()
    }

    /// Whether this machine has the set.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                use std::arch::is_x86_feature_detected as has;
                has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") && has!("fma") && has!("avx2")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Neon => cfg!(target_arch = "aarch64"),
        }
    }

    /// Runs a task compiled for this set, or for the portable set if the machine does not have this one.
    #[inline]
    pub fn run<T: Task>(self, task: T) -> T::Output {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: `is_available` found the features that the two functions enable. std caches the answer.
            unsafe {
                match self {
                    Self::Avx512 if self.is_available() => return x86::run_avx512(task),
                    Self::Avx2 if self.is_available() => return x86::run_avx2(task),
                    _ => {}
                }
            }
        }
        // Tests run its kernels everywhere.
        #[cfg(any(target_arch = "aarch64", feature = "emulated-neon"))]
        if self == Self::Neon {
            return neon::Neon::call(task);
        }
        Portable::call(task)
    }
}

/// Code to compile for each instruction set. `run` and everything that its hot loops call are `#[inline(always)]`.
///
/// Kernels that several tasks use are tasks themselves, which [`Vector::call`] runs. So they are compiled once for each set, and
/// not once for each task that uses them.
pub trait Task {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

/// A vector of float32 lanes. It has only the operations that the kernels need.
///
/// # Safety
/// Code that is generic over an implementor must run only on machines that have its instruction set. So the implementor is visible
/// in `simd` alone, unless all machines have the set. See the head of this file.
///
/// `load` and `store` need `LANES` valid values at the pointer, at any alignment.
pub unsafe trait Vector: Copy {
    const LANES: usize;
    /// Number of row vectors of scores that the product kernel keeps. It depends on the number of registers.
    const ROW_VECTORS: usize;
    /// Whether there are 32 vector registers.
    const MANY_REGISTERS: bool;
    type Mask: Copy;
    /// The vector of float64 lanes of the same instruction set.
    type Doubles: Doubles;
    /// Runs a task as a function of its own, compiled for this instruction set.
    fn call<T: Task>(task: T) -> T::Output;
    fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    fn sub(self, other: Self) -> Self;
    fn add(self, other: Self) -> Self;
    /// `self * b + c`, fused where the hardware does.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// The lanes as the bits of integers of 32 bits, converted and rounded to nearest.
    fn integers_as_floats(self) -> Self;
    /// The sum of integers of 32 bits, which wraps around.
    fn add_integers(self, other: Self) -> Self;
    /// The smaller value, or `best` where `self` is NaN.
    fn min_or(self, best: Self) -> Self;
    /// The larger value, or NaN where `other` is NaN.
    fn max_or_nan(self, other: Self) -> Self;
    /// Lanes where `self` is not above `limit`. NaN counts as not above.
    fn not_above(self, limit: Self) -> Self::Mask;
    /// `a` where the mask is set, else `b`. Moves bits and computes nothing.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// One bit per lane.
    fn bits(mask: Self::Mask) -> u32;
    /// Copies 32 bits at a time, of any meaning: value f of row i goes to `to[f * stride + i]`, for sixteen of each. Sixteen
    /// values must be readable at each row, and writable at each `to + f * stride`.
    #[inline(always)]
    unsafe fn transpose(rows: [*const f32; SQUARE], to: *mut f32, stride: usize) {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            for f in 0..SQUARE {
                for (i, row) in rows.iter().enumerate() {
                    to.add(f * stride + i).write_unaligned(row.add(f).read_unaligned());
                }
            }
        }
    }
}

/// What the processor says of itself.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(unused_unsafe)] // a safe function in later versions of Rust
fn cpuid(leaf: u32, subleaf: u32) -> std::arch::x86_64::CpuidResult {
    // SAFETY: every processor of x86-64 has the instruction.
    unsafe { std::arch::x86_64::__cpuid_count(leaf, subleaf) }
}

/// The side of a square of [`Vector::transpose`].
pub const SQUARE: usize = 16;
