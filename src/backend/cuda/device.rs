//! One GPU as this process uses it: its primary context, the kernels that were loaded, memory and launches.
//!
//! What is unsafe about CUDA is here (and pinned memory in `upload/pinned.rs`, questions to the driver in `probe.rs`): allocations
//! that free themselves, copies that check lengths, launches whose arguments are one plain struct that the kernel declares in the
//! same order (`arguments.rs`).

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUfunction_attribute as FunctionAttribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

use super::kernels::KERNELS;
use crate::backend::chunking::ALLOCATION;
use crate::error::{KMeansError, Result};
use crate::memory;

/// Plain data that kernels read and write: any bit pattern of the right size is a value.
///
/// # Safety
/// The type has no padding that is read, no pointers to host memory and no invalid bit patterns.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: a number: every bit pattern is a value.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64, f32, f64, u128, i128);

/// What a CUDA call that failed means for the caller.
pub fn failed(what: &str) -> impl Fn(DriverError) -> KMeansError + '_ {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            KMeansError::NoMemory { what: format!("{what} on the GPU").into(), bytes: None }
        }
        _ => KMeansError::Device { what: what.to_string(), reason: format!("{error}") },
    }
}

/// A refusal of memory on demand, which tests ask for: whatever the memory of the machine.
pub mod refusal {
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Allocations until the one that is refused.
    static LEFT: AtomicU64 = AtomicU64::new(NEVER);
    const NEVER: u64 = u64::MAX;

    /// Has one allocation of this process refused, of device memory or of pinned memory: the first one from now on, or one that comes
    /// after so many others. None: not any more. Returns whether the one that was to be refused last is still to come.
    pub fn set(after: Option<u64>) -> bool {
        LEFT.swap(after.unwrap_or(NEVER), Ordering::Relaxed) != NEVER
    }

    /// Counts an allocation, and says whether it is to be refused.
    pub(in super::super) fn now() -> bool {
        let count = |left| (left != NEVER).then(|| if left == 0 { NEVER } else { left - 1 });
        LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(0)
    }
}

/// One GPU with its kernels.
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub ordinal: u32,
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Most shared memory that a block may ask for.
    pub shared_per_block: u32,
    functions: Mutex<HashMap<String, Kernel>>,
    modules: Mutex<HashMap<&'static str, Module>>,
}

/// A loaded module; modules stay loaded for the life of the process.
struct Module(sys::CUmodule);
// SAFETY: a module handle may be used from any thread.
unsafe impl Send for Module {}

/// A kernel that was loaded.
#[derive(Clone, Copy)]
pub struct Kernel {
    function: sys::CUfunction,
    /// Whether it waits for the kernel before it where its source says so: machine code for generations before 9.0, and the PTX that
    /// later ones compile, do not.
    waits: bool,
    /// Bytes of shared memory that a block has besides what a launch gives it.
    fixed: u32,
}
// SAFETY: a function handle may be used from any thread; its module is never unloaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Has the driver keep a little of what fits give back, so that small ones do not map memory anew each time.
fn keep_some_memory(context: &CudaContext) -> std::result::Result<(), DriverError> {
    const KEPT: u64 = 64 << 20;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut threshold = 0u64;
    // SAFETY: the device is the context's; the attribute is a 64-bit integer, read into and written from one.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut threshold).cast()).result()?;
        if threshold < KEPT {
            threshold = KEPT;
            sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()).result()?;
        }
    }
    Ok(())
}

/// Bytes that the driver takes of each block's shared memory.
const RESERVED: u32 = 1 << 10;

/// What a launch asks for so that a multiprocessor has room for so many blocks and no more; `most`: bytes that one block may have.
fn for_no_more_than(blocks: u32, most: u32, fixed: u32) -> u32 {
    let too_much = (most + RESERVED) / (blocks + 1) + 1;
    too_much.saturating_sub(RESERVED + fixed).next_multiple_of(128).min(most.saturating_sub(fixed))
}

impl Gpu {
    /// The GPU of this ordinal; one object for the whole process.
    pub fn get(ordinal: u32) -> Result<Arc<Self>> {
        static GPUS: OnceLock<Mutex<HashMap<u32, Arc<Gpu>>>> = OnceLock::new();
        let mut gpus = GPUS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = gpus.get(&ordinal) {
            return Ok(gpu.clone());
        }
        let gpu = Arc::new(Self::open(ordinal)?);
        gpus.insert(ordinal, gpu.clone());
        Ok(gpu)
    }

    fn open(ordinal: u32) -> Result<Self> {
        const WHAT: &str = "opening the GPU";
        super::probe::start().map_err(|reason| KMeansError::Device { what: WHAT.into(), reason })?;
        let failed = failed(WHAT);
        let context = CudaContext::new(ordinal as usize).map_err(&failed)?;
        let attribute = |a| context.attribute(a).map(|v| v as u32).map_err(&failed);
        let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_per_block = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        keep_some_memory(&context).map_err(&failed)?;
        Ok(Self { context, ordinal, processors, shared_per_block, functions: Mutex::default(), modules: Mutex::default() })
    }

    /// The kernel `name` of `kernels/{module}.cu`.
    pub fn kernel(&self, module: &'static str, name: &str) -> Result<Kernel> {
        if let Some(kernel) = self.functions.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(*kernel);
        }
        self.context.bind_to_thread().map_err(failed("binding the GPU"))?;
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
        // SAFETY: the module is loaded and stays so.
        let function = unsafe { result::module::get_function(handle, c_name) }.map_err(failed(name))?;
        // Kernels of ours take what the device has, and the launch says how much.
        // SAFETY: the function belongs to a loaded module.
        let (waits, fixed) = unsafe {
            let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let fixed =
                result::function::get_function_attribute(function, FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
                    .map_err(failed(name))?;
            result::function::set_function_attribute(function, most, self.shared_per_block as i32 - fixed)
                .map_err(failed(name))?;
            let virtual_architecture = FunctionAttribute::CU_FUNC_ATTRIBUTE_PTX_VERSION;
            let architecture =
                result::function::get_function_attribute(function, virtual_architecture).map_err(failed(name))?;
            (architecture >= 90, fixed as u32)
        };
        let kernel = Kernel { function, waits, fixed };
        self.functions.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), kernel);
        Ok(kernel)
    }

    /// Has the multiprocessors that run a kernel give shared memory all they can: by default fewer blocks than fit may run at a time.
    pub fn prefer_shared_memory(&self, kernel: Kernel) -> Result<()> {
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function belongs to a loaded module.
        unsafe { result::function::set_function_attribute(kernel.function, attribute, 100) }
            .map_err(failed("setting up a kernel"))
    }

    /// How many blocks of a kernel run at a time on the whole device.
    pub fn resident_blocks(&self, kernel: Kernel, threads: u32, shared: u32) -> Result<u32> {
        // SAFETY: the function belongs to a loaded module.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(kernel.function, threads as i32, shared as usize) }
                .map_err(failed("launching a kernel"))?;
        Ok((blocks as u32).max(1) * self.processors)
    }

    /// The bytes of shared memory of a block, `shared` at least, with which no multiprocessor takes more than its share of so many
    /// blocks: one that is done early with the kernel before would take several, and others none.
    pub fn evenly(&self, kernel: Kernel, threads: u32, blocks: u32, shared: u32) -> Result<u32> {
        let share = blocks.div_ceil(self.processors);
        if share * self.processors >= self.resident_blocks(kernel, threads, shared)? {
            return Ok(shared);
        }
        Ok(for_no_more_than(share, self.shared_per_block, kernel.fixed).max(shared))
    }

    /// A new queue of work.
    pub fn queue(self: &Arc<Self>) -> Result<Queue> {
        // SAFETY: buffers are only used on the stream that they were allocated on (see `Buffer`), or after it was waited for,
        // so nothing relies on the library's own tracking.
        unsafe { self.context.disable_event_tracking() };
        let stream = self.context.new_stream().map_err(failed("making a stream"))?;
        Ok(Queue { stream, gpu: self.clone(), room: None })
    }
}

/// Work in order on one GPU.
#[derive(Clone)]
pub struct Queue {
    pub stream: Arc<CudaStream>,
    pub gpu: Arc<Gpu>,
    /// Where it may not take all that there is.
    room: Option<Arc<Room>>,
}

/// Device memory that a queue may take.
struct Room {
    left: AtomicU64,
}

/// Device memory that belongs to a queue; freed, in the queue's order, when dropped.
pub struct Buffer<T> {
    address: sys::CUdeviceptr,
    len: usize,
    /// What it is for, as errors call it.
    what: &'static str,
    queue: Queue,
    kind: PhantomData<T>,
}
// SAFETY: an address on the device; calls that use it bind the context first.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above; the host changes nothing through a shared reference.
unsafe impl<T: Plain> Sync for Buffer<T> {}

/// What an allocation takes.
fn allocated(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(ALLOCATION)
}

impl Queue {
    /// The same queue, whose buffers may take so many bytes at a time.
    pub fn within(self, bytes: u64) -> Self {
        Self { room: Some(Arc::new(Room { left: AtomicU64::new(bytes) })), ..self }
    }

    /// Takes room for an allocation, if there is any.
    fn take_room(&self, bytes: usize, what: &str) -> Result<()> {
        let Some(room) = &self.room else { return Ok(()) };
        let taken = room.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(allocated(bytes)));
        taken
            .map(|_| ())
            .map_err(|left| memory::no_memory(format!("{what} on the GPU, where {left} bytes more are allowed"), bytes as u128))
    }

    fn give_room_back(&self, bytes: usize) {
        if let Some(room) = &self.room {
            room.left.fetch_add(allocated(bytes), Ordering::Relaxed);
        }
    }

    /// Makes the GPU's context current on the calling thread: fits move between threads.
    fn bind(&self) -> Result<()> {
        self.gpu.context.bind_to_thread().map_err(failed("binding the GPU"))
    }

    /// Memory for `len` values, of any content; `what` it is for, as errors call it.
    pub fn alloc<T: Plain>(&self, len: usize, what: &'static str) -> Result<Buffer<T>> {
        self.bind()?;
        let all = len.max(1) as u128 * size_of::<T>() as u128;
        let missing = || memory::no_memory(format!("{what} on the GPU"), all);
        let bytes = usize::try_from(all).map_err(|_| missing())?;
        if refusal::now() {
            return Err(missing());
        }
        self.take_room(bytes, what)?;
        // SAFETY: the memory is written before it is read: by a copy, by `fill`, or by the kernel that it is handed to as output.
        let address = unsafe { result::malloc_async(self.stream.cu_stream(), bytes) }
            .inspect_err(|_| self.give_room_back(bytes))
            .map_err(|error| match error.0 {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => missing(),
                _ => failed(what)(error),
            })?;
        Ok(Buffer { address, len, what, queue: self.clone(), kind: PhantomData })
    }

    /// Memory for `len` values whose bytes are all zero.
    pub fn zeros<T: Plain>(&self, len: usize, what: &'static str) -> Result<Buffer<T>> {
        let mut buffer = self.alloc(len, what)?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// A copy of `values` on the device.
    pub fn upload<T: Plain>(&self, values: &[T], what: &'static str) -> Result<Buffer<T>> {
        let mut buffer = self.alloc(values.len(), what)?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Waits until everything in the queue is done.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed("a kernel"))
    }

    /// Launches a kernel whose one parameter is `args`.
    ///
    /// # Safety
    /// `A` is laid out as the kernel's parameter, and every address in it belongs to a live buffer of this queue, large enough for
    /// what the kernel reads and writes there.
    pub unsafe fn launch<A: Copy>(&self, kernel: Kernel, blocks: u32, threads: u32, shared: u32, args: &A) -> Result<()> {
        self.bind()?;
        let mut parameters = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let (grid, block) = ((blocks.max(1), 1, 1), (threads, 1, 1));
        // SAFETY: the caller's; CUDA copies the parameter before the call returns.
        unsafe { result::launch_kernel(kernel.function, grid, block, shared, self.stream.cu_stream(), &mut parameters) }
            .map_err(failed("launching a kernel"))
    }
}

impl Queue {
    /// As [`Queue::launch`], but the GPU may make the kernel ready while the one before it in the queue still runs.
    ///
    /// # Safety
    /// As for `launch`; and the kernel begins with `wait_for_kernel_before` (`kernels/common.cuh`).
    pub unsafe fn launch_behind<A: Copy>(
        &self,
        kernel: Kernel,
        blocks: u32,
        threads: u32,
        shared: u32,
        args: &A,
    ) -> Result<()> {
        if !kernel.waits {
            // SAFETY: the caller's.
            return unsafe { self.launch(kernel, blocks, threads, shared, args) };
        }
        self.bind()?;
        let mut parameters = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks.max(1),
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the caller's; CUDA copies configuration and parameter before the call returns.
        unsafe { sys::cuLaunchKernelEx(&raw const config, kernel.function, parameters.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(failed("launching a kernel"))
    }
}

impl<T: Plain> Buffer<T> {
    /// Values that there is room for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address, as kernels take it.
    pub fn at(&self) -> u64 {
        self.address
    }

    /// The address of value `i`.
    pub fn at_index(&self, i: usize) -> u64 {
        assert!(i <= self.len);
        self.address + (i * size_of::<T>()) as u64
    }

    /// Sets every byte.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.queue.bind()?;
        // SAFETY: the range is the buffer's own.
        unsafe { result::memset_d8_async(self.address, byte, self.len * size_of::<T>(), self.queue.stream.cu_stream()) }
            .map_err(failed("clearing memory"))
    }

    /// Sets some of the bytes.
    pub fn fill_bytes(&self, bytes: std::ops::Range<usize>, byte: u8) -> Result<()> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len * size_of::<T>(), "{bytes:?} of {} values", self.len);
        self.queue.bind()?;
        let at = self.address + bytes.start as u64;
        // SAFETY: the range is within the buffer (asserted).
        unsafe { result::memset_d8_async(at, byte, bytes.len(), self.queue.stream.cu_stream()) }
            .map_err(failed("clearing memory"))
    }

    /// Copies host values to `first` on. From pageable memory, the values have been read when this returns.
    pub fn write(&mut self, first: usize, values: &[T]) -> Result<()> {
        assert!(first + values.len() <= self.len, "{} values at {first} of {}", values.len(), self.len);
        if values.is_empty() {
            return Ok(());
        }
        self.queue.bind()?;
        // SAFETY: the range is within the buffer (asserted); CUDA stages pageable memory before the call returns.
        unsafe { result::memcpy_htod_async(self.at_index(first), values, self.queue.stream.cu_stream()) }
            .map_err(failed("an upload"))
    }

    /// Waits for the queue and copies `out.len()` values from `first` on.
    pub fn read(&self, first: usize, out: &mut [T]) -> Result<()> {
        assert!(first + out.len() <= self.len, "{} values at {first} of {}", out.len(), self.len);
        if !out.is_empty() {
            self.queue.bind()?;
            // SAFETY: the range is within the buffer (asserted), `out` lives until the wait below.
            unsafe { result::memcpy_dtoh_async(out, self.at_index(first), self.queue.stream.cu_stream()) }
                .map_err(failed("a download"))?;
        }
        self.queue.wait()
    }

    /// All values.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        // SAFETY: any bytes are a value (`Plain`).
        let mut out = unsafe { memory::zero_bytes(self.len, self.what) }?;
        self.read(0, &mut out)?;
        Ok(out)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.queue.give_room_back(self.len.max(1) * size_of::<T>());
        // An error here means that the context is gone, and the memory with it.
        if self.queue.gpu.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `alloc` on this stream and freed once; earlier work of the queue comes first.
            let _ = unsafe { result::free_async(self.address, self.queue.stream.cu_stream()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiprocessor_has_room_for_its_share() {
        for (total, fixed) in [(228 << 10, 2_000), (164 << 10, 17_000), (100 << 10, 0)] {
            for share in 1..=6 {
                let block = for_no_more_than(share, total - RESERVED, fixed) + fixed + RESERVED;
                assert!(share * block <= total && (share + 1) * block > total, "{share} blocks of {block} in {total}");
            }
        }
    }
}
