//! The GPUs of a machine, and what makes them usable.

use std::fmt;

/// The oldest CUDA version that a driver may have. The kernels are compiled by the compiler of this version.
pub const OLDEST_DRIVER: (u32, u32) = (13, 0);
/// The oldest compute capability that the kernels are compiled for.
pub const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

/// A GPU, as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in the driver's count.
    pub ordinal: u32,
    pub name: String,
    /// Bytes that are free now.
    pub memory_free: u64,
    pub memory_total: u64,
    /// Streaming multiprocessors (SMs).
    pub multiprocessors: u32,
    /// The most bytes of shared memory that a block may have.
    pub shared_per_block: u32,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// The CUDA version that the driver supports: major and minor.
    pub driver: (u32, u32),
    /// Whether fits can run there.
    pub usable: bool,
    /// Why it is usable, or why not.
    pub reason: String,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal, self.name)
    }
}

/// What was looked for, or the reason why there is none.
pub type OrWhy<T> = std::result::Result<T, String>;

/// All devices of the machine, usable or not.
pub type Devices = OrWhy<Vec<DeviceInfo>>;

/// Whether the kernels run on a device under a driver. The text gives the reason. `architectures`: what the kernels of this build
/// are for, as the build names them: `80+ptx,90a`.
pub fn usable(driver: (u32, u32), capability: (u32, u32), architectures: &str) -> (bool, String) {
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let (oldest, has) = (version(OLDEST_DRIVER), version(driver));
    if driver < OLDEST_DRIVER {
        let what = format!("its driver supports CUDA {has}, and CUDA {oldest} is needed: update it to version 580 or newer");
        return (false, what);
    }
    let (oldest, is) = (version(OLDEST_CAPABILITY), version(capability));
    if capability < OLDEST_CAPABILITY {
        return (false, format!("its compute capability is {is}, and at least {oldest} is needed"));
    }
    if !run_on(architectures, capability) {
        let holds = match architectures {
            "" => "this package holds no kernels for GPUs".into(),
            some => format!("its compute capability is {is}, and this package holds kernels for {some} alone"),
        };
        let how = "install a wheel that holds them, or build the package on a machine with such a GPU or with the environment \
                   variable POLARS_KMEANS_CUDA_ARCHS=all";
        return (false, format!("{holds}: {how}"));
    }
    (true, format!("compute capability {is} under a driver for CUDA {has}"))
}

/// Whether kernels for these architectures run on a device. Machine code runs on later minor versions, unless the name ends in a
/// letter; PTX on all later versions.
fn run_on(architectures: &str, capability: (u32, u32)) -> bool {
    let has = 10 * capability.0 + capability.1;
    architectures.split(',').any(|item| {
        let name = item.trim().trim_end_matches("+ptx");
        let digits = name.trim_end_matches(char::is_alphabetic);
        let Ok(number) = digits.parse::<u32>() else { return false };
        let ptx = item.trim().ends_with("+ptx") && has >= number;
        has == number || ptx || (digits == name && has / 10 == number / 10 && has > number)
    })
}
