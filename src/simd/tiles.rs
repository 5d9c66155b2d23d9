//! Products of tiles of quads of bytes (AMX): 16 centroids by 16 rows, 64 features in one instruction.
//!
//! The tile registers belong to [`TileRegisters`] alone: Rust code does not use them.

use std::marker::PhantomData;

use super::int_dot::{DotUnit, added_signed};

/// Centroids, rows and lanes of a tile.
pub const SIDE: usize = 16;

/// Number of rows that lie side by side.
pub const STRIDE: usize = 64;

/// Number of rows that are multiplied together.
pub const TOGETHER: usize = 2 * SIDE;

/// Tile registers that are ready for use in this thread.
pub struct TileRegisters {
    #[cfg_attr(not(all(target_arch = "x86_64", target_os = "linux")), expect(dead_code, reason = "only hardware asks"))]
    unit: DotUnit,
    /// The registers are those of one thread.
    _thread: PhantomData<*mut ()>,
}

impl TileRegisters {
    /// Prepares the tile registers of this thread. None for a unit that multiplies no tiles. Without the hardware, tiles are
    /// emulated.
    ///
    /// # Safety
    /// A thread must not have two of them at a time, unless one is emulated: whichever is dropped first releases the registers.
    pub unsafe fn new(unit: DotUnit) -> Option<Self> {
        if !unit.is_tiled() {
            return None;
        }
        let unit = unit.or_emulated();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if unit == DotUnit::Amx {
            // SAFETY: the unit is available.
            unsafe { amx::configure() };
        }
        Some(Self { unit, _thread: PhantomData })
    }

    /// `sums[c][r] = sum over lanes of centroids[c] . rows[r]` for one tile of centroids or two, and for 32 of the 64 rows: those
    /// from `first` on, which is 0 or 32. A lane is a quad of bytes with signs, and a sum the bits of an integer.
    ///
    /// - `rows`: `(lanes, 64)`, where lanes is a multiple of 16
    /// - `centroids`: `(tiles, lanes / 16, 16, 16)`: a block of lanes of a tile, and in it one centroid after the other
    /// - `sums`: `(tiles * 16, 64)`
    ///
    /// `meanwhile` is called after every step of 16 lanes.
    #[inline(always)]
    pub fn multiply(
        &mut self,
        rows: &[f32],
        first: usize,
        centroids: &[f32],
        sums: &mut [f32],
        meanwhile: &mut impl Meanwhile,
    ) {
        let (lanes, tiles) = (rows.len() / STRIDE, sums.len() / (SIDE * STRIDE));
        assert!(lanes > 0 && lanes.is_multiple_of(SIDE) && rows.len() == lanes * STRIDE && first <= STRIDE - TOGETHER);
        assert!((1..=2).contains(&tiles) && sums.len() == tiles * SIDE * STRIDE && centroids.len() == tiles * SIDE * lanes);
        let steps = lanes / SIDE;
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if self.unit == DotUnit::Amx {
            // SAFETY: `new` prepared the registers of this thread, and `meanwhile` has no tiles. The assertions bound what is
            // read and written: 32 columns from `first` on.
            unsafe {
                let (rows, centroids, sums) = (rows.as_ptr().add(first), centroids.as_ptr(), sums.as_mut_ptr().add(first));
                amx::clear();
                for step in 0..steps {
                    let (rows, centroids) = (rows.add(step * SIDE * STRIDE), centroids.add(step * SIDE * SIDE));
                    match tiles {
                        1 => amx::add_one(rows, centroids),
                        _ => amx::add_two(rows, centroids, centroids.add(SIDE * lanes)),
                    }
                    meanwhile.after(step, steps);
                }
                amx::store_first(sums);
                if tiles == 2 {
                    amx::store_second(sums.add(SIDE * STRIDE));
                }
            }
            return;
        }
        for (centroids, sums) in centroids.chunks_exact(SIDE * lanes).zip(sums.chunks_exact_mut(SIDE * STRIDE)) {
            emulate(rows, first, centroids, sums);
        }
        (0..steps).for_each(|step| meanwhile.after(step, steps));
    }
}

/// What is done while tiles are multiplied.
pub trait Meanwhile {
    fn after(&mut self, step: usize, steps: usize);
}

impl Meanwhile for () {
    #[inline(always)]
    fn after(&mut self, _step: usize, _steps: usize) {}
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if self.unit == DotUnit::Amx {
            // SAFETY: the unit is available.
            unsafe { amx::release() };
        }
    }
}

/// The sums of one tile of centroids.
fn emulate(rows: &[f32], first: usize, centroids: &[f32], sums: &mut [f32]) {
    let columns = first..first + TOGETHER;
    sums.chunks_exact_mut(STRIDE).for_each(|sums| sums[columns.clone()].fill(0.0));
    for (rows, centroids) in rows.chunks_exact(SIDE * STRIDE).zip(centroids.chunks_exact(SIDE * SIDE)) {
        for (c, sums) in centroids.chunks_exact(SIDE).zip(sums.chunks_exact_mut(STRIDE)) {
            for (c, x) in c.iter().zip(rows.chunks_exact(STRIDE)) {
                for (sum, x) in sums[columns.clone()].iter_mut().zip(&x[columns.clone()]) {
                    *sum = added_signed(*sum, *x, *c);
                }
            }
        }
    }
}

/// Whether this machine and the kernel let this process use AMX. Asks the kernel.
pub fn is_amx_available() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return amx::is_available();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::asm;
    use std::sync::OnceLock;

    use super::super::cpuid;
    use super::{SIDE, STRIDE};

    /// What `ldtilecfg` loads: palette 1, and eight tiles of 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    static CONFIG: Config = {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        let mut tile = 0;
        while tile < 8 {
            (row_bytes[tile], rows[tile]) = (64, SIDE as u8);
            tile += 1;
        }
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    };

    /// Bytes from one lane of the rows, or from one centroid's sums, to the next.
    const ROW_BYTES: usize = STRIDE * size_of::<f32>();
    /// Bytes from one line of a tile of centroids to the next.
    const LINE_BYTES: usize = SIDE * size_of::<f32>();

    pub fn is_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| has_tiles() && may_use_tiles())
    }

    /// Whether the processor has tiles of 16 by 64 bytes, eight of them, and multiplies bytes.
    fn has_tiles() -> bool {
        const TILE_INFORMATION: u32 = 0x1d;
        // A leaf is asked for only if it exists.
        if cpuid(0, 0).eax < TILE_INFORMATION {
            return false;
        }
        let features = cpuid(7, 0).edx;
        let has = |bit: u32| features >> bit & 1 == 1;
        let palette = cpuid(TILE_INFORMATION, 1);
        has(24) && has(25) && palette.ebx == 8 << 16 | 64 && palette.ecx & 0xffff == SIDE as u32
    }

    /// Asks the kernel for the tile registers. It grants them to the whole process for good, or says no. From then on it refuses
    /// stacks for signals that are too small for these registers, and it says no where a thread has such a stack already. So only
    /// fits that use tiles ask.
    fn may_use_tiles() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        // SAFETY: the call takes two numbers and touches no memory of this process.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }

    /// # Safety
    /// [`is_available`] must be true.
    pub unsafe fn configure() {
        // SAFETY: the caller keeps the conditions of this function. The instruction reads 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, preserves_flags)) };
    }

    /// # Safety
    /// [`is_available`] must be true.
    pub unsafe fn release() {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }

    // The tile registers keep their values from one of these functions to the next: compiled code does not use them. Four have
    // sums: two of a tile of centroids, then two of a second one.

    /// Sets all sums to zero.
    ///
    /// # Safety
    /// [`configure`] ran in this thread.
    #[inline(always)]
    pub unsafe fn clear() {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    /// Adds the products of 16 lanes: of two tiles of centroids by 32 rows.
    ///
    /// # Safety
    /// [`configure`] ran in this thread. At `rows` are 16 lines of [`STRIDE`] values, of which 32 are read, and at both others
    /// tiles.
    #[inline(always)]
    pub unsafe fn add_two(rows: *const f32, centroids: *const f32, second: *const f32) {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            asm!(
                "tileloadd tmm4, [{x} + {stride}]",
                "tileloadd tmm6, [{c} + {line}]",
                "tdpbssd tmm0, tmm6, tmm4",
                "tileloadd tmm5, [{x} + {stride} + 64]",
                "tdpbssd tmm1, tmm6, tmm5",
                "tileloadd tmm7, [{d} + {line}]",
                "tdpbssd tmm2, tmm7, tmm4",
                "tdpbssd tmm3, tmm7, tmm5",
                x = in(reg) rows,
                c = in(reg) centroids,
                d = in(reg) second,
                stride = in(reg) ROW_BYTES,
                line = in(reg) LINE_BYTES,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                out("tmm4") _,
                out("tmm5") _,
                out("tmm6") _,
                out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// As [`add_two`], with one tile of centroids.
    ///
    /// # Safety
    /// As [`add_two`].
    #[inline(always)]
    pub unsafe fn add_one(rows: *const f32, centroids: *const f32) {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            asm!(
                "tileloadd tmm6, [{c} + {line}]",
                "tileloadd tmm4, [{x} + {stride}]",
                "tdpbssd tmm0, tmm6, tmm4",
                "tileloadd tmm5, [{x} + {stride} + 64]",
                "tdpbssd tmm1, tmm6, tmm5",
                x = in(reg) rows,
                c = in(reg) centroids,
                stride = in(reg) ROW_BYTES,
                line = in(reg) LINE_BYTES,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm4") _,
                out("tmm5") _,
                out("tmm6") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// Stores the sums of the first tile of centroids.
    ///
    /// # Safety
    /// [`configure`] ran in this thread. 32 values are written to each of 16 lines of [`STRIDE`] values at `sums`.
    #[inline(always)]
    pub unsafe fn store_first(sums: *mut f32) {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            asm!(
                "tilestored [{s} + {stride}], tmm0",
                "tilestored [{s} + {stride} + 64], tmm1",
                s = in(reg) sums,
                stride = in(reg) ROW_BYTES,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Stores those of the second.
    ///
    /// # Safety
    /// As [`store_first`].
    #[inline(always)]
    pub unsafe fn store_second(sums: *mut f32) {
        // SAFETY: the caller keeps the conditions of this function.
        unsafe {
            asm!(
                "tilestored [{s} + {stride}], tmm2",
                "tilestored [{s} + {stride} + 64], tmm3",
                s = in(reg) sums,
                stride = in(reg) ROW_BYTES,
                options(nostack, preserves_flags),
            );
        }
    }
}
