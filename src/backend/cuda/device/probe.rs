//! Finds the GPUs of this machine.
//!
//! cudarc panics if the library of the driver is missing. So this code looks for the library first. After that, every error of
//! the driver becomes a sentence. A context takes a tenth of a second and half a gigabyte for each GPU. So none is made, unless
//! that is the only way to learn how much memory is free.

use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use libloading::Library;

use super::gpu::kept_free;
pub use super::kernels::ARCHITECTURES;
use crate::backend::select::{DeviceInfo, Devices, OLDEST_DRIVER, usable};

/// Starts the driver, or says why it does not start.
pub fn start() -> Result<(), String> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: this loads the library of the driver and releases it. Its initialisers are meant to run in any process.
    if !PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        let library = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        return Err(format!("no NVIDIA driver: {library} was not found"));
    }
    result::init().map_err(|error| without_devices(&error))?;
    STARTED.store(true, Ordering::Relaxed);
    Ok(())
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Whether the driver was started by this crate.
pub fn started() -> bool {
    STARTED.load(Ordering::Relaxed)
}

/// The devices that the driver shows to this process, usable or not. If there are none, it says why.
pub fn devices() -> Devices {
    start()?;
    let driver = driver_version().map_err(|error| explain(&error))?;
    let count = result::device::get_count().map_err(|error| explain(&error))?;
    (0..count)
        .map(|ordinal| describe(ordinal, driver).map_err(|error| format!("cuda:{ordinal}: {}", explain(&error))))
        .collect()
}

/// The name and the text of an error of the driver.
pub fn explain(error: &DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Ok(name), Ok(text)) => format!("{name} ({text})"),
        // The code is from a newer driver.
        _ => format!("error {} of the CUDA driver", error.0 as i32),
    }
}

/// Why the driver did not start.
fn without_devices(error: &DriverError) -> String {
    let hint = match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => match env::var("CUDA_VISIBLE_DEVICES") {
            Ok(visible) => format!(", and CUDA_VISIBLE_DEVICES is {visible:?}"),
            Err(_) => String::new(),
        },
        sys::CUresult::CUDA_ERROR_NOT_INITIALIZED => {
            "; a process that was forked after CUDA was used cannot use it (start it with \"spawn\")".into()
        }
        _ => String::new(),
    };
    format!("the NVIDIA driver does not start: {}{hint}", explain(error))
}

/// The CUDA version that the driver supports.
fn driver_version() -> Result<(u32, u32), DriverError> {
    let mut version = 0;
    // SAFETY: the call writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    // 13020 is 13.2.
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

fn describe(ordinal: c_int, driver: (u32, u32)) -> Result<DeviceInfo, DriverError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as SHARED,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as PROCESSORS,
    };
    let device = result::device::get(ordinal)?;
    // SAFETY: the driver gave this device, here and below.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map(i32::unsigned_abs);
    let compute_capability = (attribute(MAJOR)?, attribute(MINOR)?);
    let (usable, reason) = usable(driver, compute_capability, ARCHITECTURES);
    let memory_total = unsafe { result::device::total_mem(device) }? as u64;
    // An older driver may not have these functions. Its GPUs are not usable, so their free memory does not matter.
    let memory_free = if driver < OLDEST_DRIVER { None } else { free_by_nvml(device).or_else(|| free_by_context(device)) };
    Ok(DeviceInfo {
        ordinal: ordinal.unsigned_abs(),
        name: result::device::get_name(device)?,
        memory_free: memory_free.map_or(0, |free| free + kept_free(device)).min(memory_total),
        memory_total,
        multiprocessors: attribute(PROCESSORS)?,
        shared_per_block: attribute(SHARED)?,
        compute_capability,
        driver,
        usable,
        reason,
    })
}

/// The management library of the driver. It knows the free memory without a context.
struct Nvml {
    handle_by_uuid: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
    memory_info: unsafe extern "C" fn(*mut c_void, *mut NvmlMemory) -> c_int,
    /// Keeps the library loaded, so that the functions stay valid.
    _library: Library,
}

#[repr(C)]
#[derive(Default)]
struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

impl Nvml {
    fn load() -> Option<Self> {
        let name = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };
        // SAFETY: the initialisers of the library are meant to run in any process. The signatures are those of nvml.h. They do
        // not change: a changed function gets a new name.
        unsafe {
            let library = Library::new(name).ok()?;
            let init = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").ok()?;
            let handle_by_uuid = *library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?;
            let memory_info = *library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?;
            (init() == 0).then_some(Self { handle_by_uuid, memory_info, _library: library })
        }
    }

    fn free(&self, uuid: &str) -> Option<u64> {
        let uuid = CString::new(uuid).ok()?;
        let (mut handle, mut memory) = (std::ptr::null_mut(), NvmlMemory::default());
        // SAFETY: the text ends with a zero byte, and the results have places. The handle is used only if the first call
        // succeeded.
        let found =
            unsafe { (self.handle_by_uuid)(uuid.as_ptr(), &mut handle) == 0 && (self.memory_info)(handle, &mut memory) == 0 };
        found.then_some(memory.free)
    }
}

/// The free bytes, if the management library exists and knows the device: by its own name, or as a slice of a GPU (MIG).
fn free_by_nvml(device: sys::CUdevice) -> Option<u64> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(Nvml::load).as_ref()?;
    let digits: Vec<String> =
        result::device::get_uuid(device).ok()?.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect();
    let uuid = [&digits[..4], &digits[4..6], &digits[6..8], &digits[8..10], &digits[10..]].map(<[String]>::concat).join("-");
    nvml.free(&format!("GPU-{uuid}")).or_else(|| nvml.free(&format!("MIG-{uuid}")))
}

/// The free bytes that a context reports.
fn free_by_context(device: sys::CUdevice) -> Option<u64> {
    // SAFETY: the context stays current while it is asked. Afterwards the context that was current before is current again.
    unsafe {
        let context = result::primary_ctx::retain(device).ok()?;
        let free = sys::cuCtxPushCurrent_v2(context).result().ok().and_then(|()| {
            let free = result::mem_get_info().ok();
            let mut popped = std::ptr::null_mut();
            sys::cuCtxPopCurrent_v2(&mut popped).result().ok()?;
            free
        });
        result::primary_ctx::release(device).ok();
        free.map(|(free, _)| free as u64)
    }
}
