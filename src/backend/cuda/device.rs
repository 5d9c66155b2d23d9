//! One GPU as this process uses it: its primary context, the loaded kernels, memory and launches.
//!
//! This file holds nearly all unsafe calls to CUDA. (Pinned memory is in `upload/pinned.rs`, and questions to the driver are in
//! `probe.rs`.) Allocations free themselves. Copies check lengths. The argument of a launch is one plain struct, and the kernel
//! declares the same fields in the same order (`arguments.rs`).

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
use crate::float::Float;
use crate::memory;

/// Plain data that kernels read and write. Any bit pattern of the right size is a valid value.
///
/// # Safety
/// The type has no padding that is read, no pointers to host memory and no invalid bit patterns.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: this is a number, so every bit pattern is a valid value.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64, u128, i128);
// SAFETY: `Float` is sealed: the type is f32 or f64, and every bit pattern is a valid value.
unsafe impl<T: Float> Plain for T {}

/// The error for a CUDA call that failed. `what` says what the call was for.
pub fn failed(what: &str) -> impl Fn(DriverError) -> KMeansError + '_ {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            KMeansError::NoMemory { what: format!("{what} on the GPU").into(), bytes: None }
        }
        _ => KMeansError::Device { what: what.to_string(), reason: format!("{error}") },
    }
}

/// Tests use this to refuse an allocation, however much memory the machine has.
pub mod refusal {
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The number of allocations that succeed before one is refused.
    static LEFT: AtomicU64 = AtomicU64::new(NEVER);
    const NEVER: u64 = u64::MAX;

    /// Makes one later allocation of device memory or pinned memory in this process fail. `after`: how many allocations come
    /// before it (0: the next one fails). None: no allocation fails. Returns whether the refusal that was set before has not
    /// happened yet.
    pub fn set(after: Option<u64>) -> bool {
        LEFT.swap(after.unwrap_or(NEVER), Ordering::Relaxed) != NEVER
    }

    /// Counts an allocation. Returns whether it must be refused.
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
    /// The most bytes of shared memory that a block may ask for.
    pub shared_per_block: u32,
    functions: Mutex<HashMap<String, Kernel>>,
    modules: Mutex<HashMap<&'static str, Module>>,
}

/// A loaded module. Modules stay loaded until the process ends.
struct Module(sys::CUmodule);
// SAFETY: a module handle may be used from any thread.
unsafe impl Send for Module {}

/// A kernel that was loaded.
#[derive(Clone, Copy)]
pub struct Kernel {
    function: sys::CUfunction,
    /// Whether the kernel contains the instruction that waits for the kernel before it. Machine code for generations before 9.0
    /// does not. Nor does the PTX that later generations compile.
    waits: bool,
    /// Bytes of static shared memory of a block. The shared memory that a launch asks for comes on top.
    fixed: u32,
}
// SAFETY: a function handle may be used from any thread, and its module is never unloaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Makes the driver keep some of the memory that fits free. Then small fits need not map memory again each time.
fn keep_some_memory(context: &CudaContext) -> std::result::Result<(), DriverError> {
    const KEPT: u64 = 64 << 20;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut threshold = 0u64;
    // SAFETY: the device belongs to the context. The attribute is a 64-bit integer, and `threshold` has 64 bits.
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
        // SAFETY: the module is loaded and is never unloaded.
        let function = unsafe { result::module::get_function(handle, c_name) }.map_err(failed(name))?;
        // Our kernels may use all shared memory of the device. Each launch says how much it takes.
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

    /// Asks the SMs that run a kernel for the largest possible share of shared memory. With the default setting, fewer blocks
    /// than possible may run at once.
    pub fn prefer_shared_memory(&self, kernel: Kernel) -> Result<()> {
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function belongs to a loaded module.
        unsafe { result::function::set_function_attribute(kernel.function, attribute, 100) }
            .map_err(failed("setting up a kernel"))
    }

    /// The number of blocks of a kernel that run at once on the whole device.
    pub fn resident_blocks(&self, kernel: Kernel, threads: u32, shared: u32) -> Result<u32> {
        // SAFETY: the function belongs to a loaded module.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(kernel.function, threads as i32, shared as usize) }
                .map_err(failed("launching a kernel"))?;
        Ok((blocks as u32).max(1) * self.processors)
    }

    /// The shared memory to ask for, at least `shared`. It pads shared memory so that at most ceil(blocks / SMs) blocks fit on
    /// one SM. Otherwise an SM that finishes the kernel before early takes several blocks, and other SMs get none.
    pub fn evenly(&self, kernel: Kernel, threads: u32, blocks: u32, shared: u32) -> Result<u32> {
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
        Ok(Queue { stream, gpu: self.clone(), room: None })
    }
}

/// A queue of work on one GPU. The work runs in order.
#[derive(Clone)]
pub struct Queue {
    pub stream: Arc<CudaStream>,
    pub gpu: Arc<Gpu>,
    /// The limit of the memory that this queue may take, if there is one.
    room: Option<Arc<Room>>,
}

/// The number of bytes of device memory that a queue may still take.
struct Room {
    left: AtomicU64,
}

/// Device memory that belongs to a queue. When it is dropped, it is freed in the order of the queue.
pub struct Buffer<T> {
    address: sys::CUdeviceptr,
    len: usize,
    /// What the memory is for. Errors use this text.
    what: &'static str,
    queue: Queue,
    kind: PhantomData<T>,
}
// SAFETY: this is an address on the device, and every call that uses it binds the context first.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above, and the host changes nothing through a shared reference.
unsafe impl<T: Plain> Sync for Buffer<T> {}

/// The bytes that an allocation takes on the device.
fn allocated(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(ALLOCATION)
}

impl Queue {
    /// The same queue with a limit: all its buffers together may take at most `bytes` at a time.
    pub fn within(self, bytes: u64) -> Self {
        Self { room: Some(Arc::new(Room { left: AtomicU64::new(bytes) })), ..self }
    }

    /// Reserves room for an allocation. It is an error if there is not enough.
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

    /// Makes the context of the GPU current on the calling thread. This is needed because fits move between threads.
    fn bind(&self) -> Result<()> {
        self.gpu.context.bind_to_thread().map_err(failed("binding the GPU"))
    }

    /// Memory for `len` values with undefined content. `what` says what it is for, and errors use it.
    pub fn alloc<T: Plain>(&self, len: usize, what: &'static str) -> Result<Buffer<T>> {
        self.bind()?;
        let all = len.max(1) as u128 * size_of::<T>() as u128;
        let missing = || memory::no_memory(format!("{what} on the GPU"), all);
        let bytes = usize::try_from(all).map_err(|_| missing())?;
        if refusal::now() {
            return Err(missing());
        }
        self.take_room(bytes, what)?;
        // SAFETY: the memory is written before it is read: by a copy, by `fill`, or by a kernel that has it as output.
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

    /// Waits until all work in the queue is done.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed("a kernel"))
    }

    /// Launches a kernel with the single parameter `args`.
    ///
    /// # Safety
    /// `A` has the same layout as the parameter of the kernel. Every address in it belongs to a live buffer of this queue. Each
    /// buffer is large enough for what the kernel reads and writes there.
    pub unsafe fn launch<A: Copy>(&self, kernel: Kernel, blocks: u32, threads: u32, shared: u32, args: &A) -> Result<()> {
        self.bind()?;
        let mut parameters = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let (grid, block) = ((blocks.max(1), 1, 1), (threads, 1, 1));
        // SAFETY: the caller promises it. CUDA copies the parameter before the call returns.
        unsafe { result::launch_kernel(kernel.function, grid, block, shared, self.stream.cu_stream(), &mut parameters) }
            .map_err(failed("launching a kernel"))
    }
}

impl Queue {
    /// Like [`Queue::launch`], but the GPU may prepare the kernel while the kernel before it in the queue still runs.
    ///
    /// # Safety
    /// The same as for `launch`. Also, the kernel must begin with `wait_for_kernel_before` (`kernels/common.cuh`).
    pub unsafe fn launch_behind<A: Copy>(
        &self,
        kernel: Kernel,
        blocks: u32,
        threads: u32,
        shared: u32,
        args: &A,
    ) -> Result<()> {
        if !kernel.waits {
            // SAFETY: the caller promises it.
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
        // SAFETY: the caller promises it. CUDA copies the configuration and the parameter before the call returns.
        unsafe { sys::cuLaunchKernelEx(&raw const config, kernel.function, parameters.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(failed("launching a kernel"))
    }
}

impl<T: Plain> Buffer<T> {
    /// The number of values that the buffer holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address on the device. Kernels take it as a parameter.
    pub fn at(&self) -> u64 {
        self.address
    }

    /// The address of value `i`.
    pub fn at_index(&self, i: usize) -> u64 {
        assert!(i <= self.len);
        self.address + (i * size_of::<T>()) as u64
    }

    /// Sets every byte to `byte`.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.queue.bind()?;
        // SAFETY: the range is the whole buffer.
        unsafe { result::memset_d8_async(self.address, byte, self.len * size_of::<T>(), self.queue.stream.cu_stream()) }
            .map_err(failed("clearing memory"))
    }

    /// Sets the bytes of a range to `byte`.
    pub fn fill_bytes(&self, bytes: std::ops::Range<usize>, byte: u8) -> Result<()> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len * size_of::<T>(), "{bytes:?} of {} values", self.len);
        self.queue.bind()?;
        let at = self.address + bytes.start as u64;
        // SAFETY: the range is within the buffer (asserted).
        unsafe { result::memset_d8_async(at, byte, bytes.len(), self.queue.stream.cu_stream()) }
            .map_err(failed("clearing memory"))
    }

    /// Copies host values to the device, from value `first` on. If `values` is in pageable memory, CUDA has read it when this
    /// returns.
    pub fn write(&mut self, first: usize, values: &[T]) -> Result<()> {
        assert!(first + values.len() <= self.len, "{} values at {first} of {}", values.len(), self.len);
        if values.is_empty() {
            return Ok(());
        }
        self.queue.bind()?;
        // SAFETY: the range is within the buffer (asserted). CUDA copies pageable memory to its own staging memory before the
        // call returns.
        unsafe { result::memcpy_htod_async(self.at_index(first), values, self.queue.stream.cu_stream()) }
            .map_err(failed("an upload"))
    }

    /// Waits for the queue and copies `out.len()` values from `first` on.
    pub fn read(&self, first: usize, out: &mut [T]) -> Result<()> {
        assert!(first + out.len() <= self.len, "{} values at {first} of {}", out.len(), self.len);
        if !out.is_empty() {
            self.queue.bind()?;
            // SAFETY: the range is within the buffer (asserted), and `out` lives until the wait below.
            unsafe { result::memcpy_dtoh_async(out, self.at_index(first), self.queue.stream.cu_stream()) }
                .map_err(failed("a download"))?;
        }
        self.queue.wait()
    }

    /// Waits for the queue and copies all values.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        // SAFETY: any bytes are a valid value (`Plain`).
        let mut out = unsafe { memory::zero_bytes(self.len, self.what) }?;
        self.read(0, &mut out)?;
        Ok(out)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.queue.give_room_back(self.len.max(1) * size_of::<T>());
        // An error here means that the context no longer exists, and neither does its memory.
        if self.queue.gpu.context.bind_to_thread().is_ok() {
            // SAFETY: `alloc` allocated it on this stream. It is freed once, after all earlier work of the queue.
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
