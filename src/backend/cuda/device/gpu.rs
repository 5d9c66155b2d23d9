//! One GPU: its primary context, its loaded kernels, and how many of their blocks run at once.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUfunction_attribute as FunctionAttribute};
use cudarc::driver::{CudaContext, DriverError, result};

use super::failed;
use super::kernels::KERNELS;
use super::queue::Queue;
use crate::base::error::{KMeansError, Result};

/// One GPU with its kernels.
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub ordinal: u32,
    /// Streaming multiprocessors.
    pub processors: u32,
    /// The most bytes of shared memory that a block may ask for.
    pub shared_per_block: u32,
    /// The compute capability: ten times the major number, and the minor one.
    pub generation: u32,
    /// Bytes of freed memory that the driver keeps.
    kept: u64,
    keeping: Mutex<Keeping>,
    functions: Mutex<HashMap<String, Function>>,
    modules: Mutex<HashMap<&'static str, Module>>,
}

/// A loaded module. Modules stay loaded until the process ends.
struct Module(sys::CUmodule);
// SAFETY: a module handle may be used from any thread.
unsafe impl Send for Module {}

/// A kernel that was loaded. [`Launch`](super::Launch) also knows its argument.
#[derive(Clone, Copy)]
pub struct Function {
    pub(super) handle: sys::CUfunction,
    /// Whether the kernel contains the instruction that waits for the kernel before it. Machine code for generations before 9.0
    /// does not. Nor does the PTX that later generations compile.
    pub(super) waits: bool,
    /// Bytes of static shared memory of a block. The shared memory that a launch asks for comes on top.
    fixed: u32,
}
// SAFETY: a function handle may be used from any thread, and its module is never unloaded.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The driver keeps one part in `KEPT_PARTS` of the GPU's memory when calls free it, and at least so many bytes. To map and unmap
/// half a gigabyte takes longer than to label as much.
const KEPT_PARTS: u64 = 64;
const LEAST_KEPT: u64 = 64 << 20;

/// Sets the bytes of freed memory that the driver keeps, by those that it keeps so far, and gives back what is more. Returns what
/// was set before.
fn keep(context: &CudaContext, bytes: impl FnOnce(u64) -> u64) -> std::result::Result<u64, DriverError> {
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut before = 0u64;
    // SAFETY: the device belongs to the context. The attribute is a 64-bit integer, and both variables have 64 bits.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut before).cast()).result()?;
        let mut after = bytes(before);
        if after != before {
            sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut after).cast()).result()?;
        }
        if after < before {
            sys::cuMemPoolTrimTo(pool, after as usize).result()?;
        }
    }
    Ok(before)
}

/// The bytes that the driver keeps for this process and that are free: the next allocation takes them first. 0 if it does not say,
/// or if this process does not use the device.
pub(super) fn kept_free(device: sys::CUdevice) -> u64 {
    let (mut flags, mut is_active) = (0, 0);
    // SAFETY: the driver gave this device, and both results have places.
    let asked = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active) };
    if asked.result().is_err() || is_active == 0 {
        return 0;
    }
    use sys::CUmemPool_attribute::{
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED, CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED,
    };
    let read = |pool, attribute| {
        let mut bytes = 0u64;
        // SAFETY: the pool is that of a device. The attribute is a 64-bit integer, and so is the variable.
        unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) }.result().ok().map(|()| bytes)
    };
    // SAFETY: the driver gave this device.
    let pool = unsafe { result::device::get_default_mem_pool(device) };
    pool.ok().and_then(|pool| Some(read(pool, RESERVED)?.saturating_sub(read(pool, USED)?))).unwrap_or(0)
}

/// While it lives, memory that is freed stays mapped for the next allocation. Batches of rows need the same memory again and
/// again, and to map 100 MB takes about as long as to label them.
pub struct MemoryKept<'g>(&'g Gpu);

impl Drop for MemoryKept<'_> {
    fn drop(&mut self) {
        let mut keeping = self.0.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        keeping.calls -= 1;
        if keeping.calls == 0 {
            // Without success the memory stays with this process, which may use it.
            let _ = self.0.keep_bytes(keeping.before);
        }
    }
}

/// How many calls want that freed memory is kept, and the bytes that the driver kept before.
#[derive(Default)]
struct Keeping {
    calls: usize,
    before: u64,
}

/// Bytes of shared memory that the driver reserves in each block.
const RESERVED: u32 = 1 << 10;

/// The shared memory that a launch must ask for, so that one SM has room for exactly `blocks` blocks. `most`: the bytes that
/// one block may have. `fixed`: its static shared memory.
fn for_no_more_than(blocks: u32, most: u32, fixed: u32) -> u32 {
    let too_much = (most + RESERVED) / (blocks + 1) + 1;
    too_much.saturating_sub(RESERVED + fixed).next_multiple_of(128).min(most.saturating_sub(fixed))
}

impl Gpu {
    /// The GPU with this ordinal. The whole process shares one object for each GPU.
    pub fn get(ordinal: u32) -> Result<Arc<Self>> {
        static GPUS: OnceLock<Mutex<HashMap<u32, Arc<Gpu>>>> = OnceLock::new();
        let mut gpus = GPUS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = gpus.get(&ordinal) {
            super::callers::keep_if_wanted(); // another thread has started the driver since
            return Ok(gpu.clone());
        }
        let gpu = Arc::new(Self::open(ordinal)?);
        gpus.insert(ordinal, gpu.clone());
        Ok(gpu)
    }

    fn open(ordinal: u32) -> Result<Self> {
        const WHAT: &str = "opening the GPU";
        super::probe::start().map_err(|reason| KMeansError::Device { what: WHAT.into(), reason })?;
        super::callers::keep_if_wanted();
        let failed = failed(WHAT);
        let context = CudaContext::new(ordinal as usize).map_err(&failed)?;
        let attribute = |a| context.attribute(a).map(|v| v as u32).map_err(&failed);
        let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_per_block = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let generation = 10 * attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let kept = (context.total_mem().map_err(&failed)? as u64 / KEPT_PARTS).max(LEAST_KEPT);
        keep(&context, |before| before.max(kept)).map_err(&failed)?;
        Ok(Self {
            context,
            ordinal,
            processors,
            shared_per_block,
            generation,
            kept,
            keeping: Mutex::default(),
            functions: Mutex::default(),
            modules: Mutex::default(),
        })
    }

    /// The kernel `name` of the file `{module}.cu`, which is in a folder of `kernels/`.
    pub fn function(&self, module: &'static str, name: &str) -> Result<Function> {
        if let Some(kernel) = self.functions.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(*kernel);
        }
        self.bind()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match modules.get(module) {
            Some(module) => module.0,
            None => {
                let missing = || KMeansError::Device {
                    what: format!("loading the kernels {module:?}"),
                    reason: "this build does not hold them".into(),
                };
                let (_, image) = KERNELS.iter().find(|(known, _)| *known == module).ok_or_else(missing)?;
                // SAFETY: the image is a whole fatbin, as the compiler wrote it.
                let handle =
                    unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(failed("loading the kernels"))?;
                modules.insert(module, Module(handle));
                handle
            }
        };
        let c_name = CString::new(name).expect("a kernel's name has no zero byte");
        // SAFETY: the module is loaded and is never unloaded.
        let function = unsafe { result::module::get_function(handle, c_name) }.map_err(failed(name))?;
        // SAFETY: the function belongs to a loaded module.
        let get = |attribute| unsafe { result::function::get_function_attribute(function, attribute) }.map_err(failed(name));
        let fixed = get(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        // Our kernels may use all shared memory of the device. Each launch says how much it takes.
        let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        unsafe { result::function::set_function_attribute(function, most, self.shared_per_block as i32 - fixed) }
            .map_err(failed(name))?;
        let waits = get(FunctionAttribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)? >= 90;
        let kernel = Function { handle: function, waits, fixed: fixed as u32 };
        self.functions.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), kernel);
        Ok(kernel)
    }

    /// Makes the context current on the calling thread. This is needed because fits move between threads.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(failed("binding the GPU"))
    }

    /// Keeps freed memory as long as the result lives.
    pub fn keep_memory(&self) -> MemoryKept<'_> {
        let mut keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        keeping.calls += 1;
        if keeping.calls == 1 {
            // Without success calls are slower.
            keeping.before = self.keep_bytes(u64::MAX).unwrap_or(self.kept);
        }
        MemoryKept(self)
    }

    fn keep_bytes(&self, bytes: u64) -> Result<u64> {
        self.bind()?;
        keep(&self.context, |_| bytes).map_err(failed("keeping memory"))
    }

    /// Waits until all work of this process on the GPU is done.
    pub fn wait(&self) -> Result<()> {
        self.context.synchronize().map_err(failed("a kernel"))
    }

    /// Waits for an event of another library. `event`: where its handle is, or 0 if there is nothing to wait for.
    ///
    /// # Safety
    /// There is a handle of an event of this GPU, or `event` is 0.
    #[cfg(feature = "python")]
    pub unsafe fn wait_for_event(&self, event: usize) -> Result<()> {
        if event == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller promises it.
        unsafe { sys::cuEventSynchronize(*(event as *const sys::CUevent)) }.result().map_err(failed("the values of a frame"))
    }

    /// The bytes from an address to the end of its allocation. `None` if the driver does not know the address.
    pub fn readable_from(&self, address: u64) -> Option<u64> {
        self.bind().ok()?;
        let (mut base, mut size) = (0, 0);
        // SAFETY: both results have places.
        unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut size, address) }.result().ok()?;
        (base + size as u64).checked_sub(address)
    }

    /// Asks the SMs that run a kernel for the largest possible share of shared memory. With the default setting, fewer blocks
    /// than possible may run at once.
    pub fn prefer_shared_memory(&self, kernel: Function) -> Result<()> {
        self.bind()?;
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function belongs to a loaded module.
        unsafe { result::function::set_function_attribute(kernel.handle, attribute, 100) }
            .map_err(failed("setting up a kernel"))
    }

    /// The number of blocks of a kernel that run at once on the whole device.
    pub fn resident_blocks(&self, kernel: Function, threads: u32, shared: u32) -> Result<u32> {
        self.bind()?;
        // SAFETY: the function belongs to a loaded module.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(kernel.handle, threads as i32, shared as usize) }
                .map_err(failed("launching a kernel"))?;
        Ok((blocks as u32).max(1) * self.processors)
    }

    /// The shared memory to ask for, at least `shared`. It pads shared memory so that at most ceil(blocks / SMs) blocks fit on
    /// one SM. Otherwise an SM that finishes the kernel before early takes several blocks, and other SMs get none.
    pub fn evenly(&self, kernel: Function, threads: u32, blocks: u32, shared: u32) -> Result<u32> {
        let share = blocks.div_ceil(self.processors);
        if share * self.processors >= self.resident_blocks(kernel, threads, shared)? {
            return Ok(shared);
        }
        Ok(for_no_more_than(share, self.shared_per_block, kernel.fixed).max(shared))
    }

    /// A new queue, with a stream of its own.
    pub fn queue(self: &Arc<Self>) -> Result<Queue> {
        // SAFETY: a buffer is only used on the stream that it was allocated on (see `Buffer`), or after a wait for that stream.
        // So nothing needs the event tracking of the library.
        unsafe { self.context.disable_event_tracking() };
        let stream = self.context.new_stream().map_err(failed("making a stream"))?;
        Ok(Queue::new(stream, self.clone()))
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(a_multiprocessor_has_room_for_its_share);
    fn a_multiprocessor_has_room_for_its_share() {
        for (total, fixed) in [(228 << 10, 2_000), (164 << 10, 17_000), (100 << 10, 0)] {
            for share in 1..=6 {
                let block = for_no_more_than(share, total - RESERVED, fixed) + fixed + RESERVED;
                assert!(share * block <= total && (share + 1) * block > total, "{share} blocks of {block} in {total}");
            }
        }
    }
}
