//! A queue of work on one GPU, and the memory that it may take.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};

use super::callers::CallersContext;
use super::gpu::{Gpu, kept_free};
use super::{Argument, Buffer, Launch, Plain, allocated, failed, refusal};
use crate::base::error::Result;
use crate::base::memory;

/// A stream. Its last owner may be dropped anywhere, as models are, and the driver makes its GPU current to destroy it.
#[derive(Clone)]
pub struct Stream(ManuallyDrop<Arc<CudaStream>>);

impl Deref for Stream {
    type Target = CudaStream;

    fn deref(&self) -> &CudaStream {
        &self.0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _context = CallersContext::kept();
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// A queue of work on one GPU. The work runs in order.
#[derive(Clone)]
pub struct Queue {
    pub stream: Stream,
    pub gpu: Arc<Gpu>,
    /// The number of bytes of device memory that this queue may still take, if there is a limit.
    room: Option<Arc<AtomicU64>>,
}

impl Queue {
    pub(super) fn new(stream: Arc<CudaStream>, gpu: Arc<Gpu>) -> Self {
        Self { stream: Stream(ManuallyDrop::new(stream)), gpu, room: None }
    }

    /// The same queue with a limit: all its buffers together may take at most `bytes` at a time.
    pub fn within(self, bytes: u64) -> Self {
        Self { room: Some(Arc::new(AtomicU64::new(refusal::room(bytes)))), ..self }
    }

    /// Reserves room for an allocation. It is an error if there is not enough.
    fn take_room(&self, bytes: usize, what: &str) -> Result<()> {
        let Some(room) = &self.room else { return Ok(()) };
        let taken = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(allocated(bytes)));
        taken
            .map(|_| ())
            .map_err(|left| memory::no_memory(format!("{what} on the GPU, where {left} bytes more are allowed"), bytes as u128))
    }

    /// Whether there is ample room for so many bytes: within the limit of this queue, and in half of the memory that is free. By
    /// this a caller decides whether to take memory that it can do without.
    pub fn has_room(&self, bytes: u64) -> Result<bool> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(failed("asking for the free memory"))?;
        let free = free as u64 + kept_free(self.gpu.context.cu_device());
        let allowed = self.room.as_ref().is_none_or(|room| bytes <= room.load(Ordering::Relaxed));
        Ok(allowed && bytes <= free / 2)
    }

    pub(super) fn give_room_back(&self, bytes: usize) {
        if let Some(room) = &self.room {
            room.fetch_add(allocated(bytes), Ordering::Relaxed);
        }
    }

    pub(super) fn bind(&self) -> Result<()> {
        self.gpu.bind()
    }

    /// Memory for `len` values with undefined content. `what` says what it is for, and errors use it.
    pub fn alloc<T: Plain>(&self, len: usize, what: &'static str) -> Result<Buffer<T>> {
        // SAFETY: the memory is written before it is read: by a copy, by `fill`, or by a kernel that has it as output.
        self.alloc_by(len, what, |bytes| unsafe { result::malloc_async(self.stream.cu_stream(), bytes) })
    }

    /// As [`Queue::alloc`], from where `allocate` takes so many bytes.
    pub(super) fn alloc_by<T: Plain>(
        &self,
        len: usize,
        what: &'static str,
        allocate: impl FnOnce(usize) -> std::result::Result<sys::CUdeviceptr, DriverError>,
    ) -> Result<Buffer<T>> {
        self.bind()?;
        let all = len.max(1) as u128 * size_of::<T>() as u128;
        let missing = || memory::no_memory(format!("{what} on the GPU"), all);
        let bytes = usize::try_from(all).map_err(|_| missing())?;
        if refusal::now() {
            return Err(missing());
        }
        self.take_room(bytes, what)?;
        let address = allocate(bytes).inspect_err(|_| self.give_room_back(bytes)).map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => missing(),
            _ => failed(what)(error),
        })?;
        Ok(Buffer::new(address, len, what, self.clone()))
    }

    /// Memory for `len` values whose bytes are all zero.
    pub fn zeros<T: Plain>(&self, len: usize, what: &'static str) -> Result<Buffer<T>> {
        let mut buffer = self.alloc(len, what)?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// A copy of `values` on the device.
    pub fn upload<T: Plain>(&self, values: &[T], what: &'static str) -> Result<Buffer<T>> {
        let buffer = self.alloc(values.len(), what)?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Queues a copy of bytes from another GPU, or from this one, to an address of this one.
    ///
    /// # Safety
    /// So many bytes are there at both addresses (to, from) until the copy is done, and no other work writes to them meanwhile.
    pub(in crate::backend::cuda) unsafe fn copy_between(&self, (to, from): (u64, u64), bytes: usize, of: &Gpu) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        let (here, there, stream) = (self.gpu.context.cu_ctx(), of.context.cu_ctx(), self.stream.cu_stream());
        // SAFETY: the caller promises it.
        unsafe { sys::cuMemcpyPeerAsync(to, here, from, there, bytes, stream) }.result().map_err(failed("a copy"))
    }

    /// Whether all work in the queue is done.
    pub fn is_done(&self) -> Result<bool> {
        self.bind()?;
        // SAFETY: the stream lives.
        let asked = unsafe { sys::cuStreamQuery(self.stream.cu_stream()) };
        if asked == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        asked.result().map(|()| true).map_err(failed("a kernel"))
    }

    /// An event behind all work in the queue.
    pub fn mark(&self) -> Result<CudaEvent> {
        self.stream.record_event(None).map_err(failed("a kernel"))
    }

    /// Waits until all work in the queue is done.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed("a kernel"))
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// Every address in the argument belongs to a live buffer of this queue, or to one that the queue has waited for. Each buffer
    /// is large enough for what the kernel reads and writes there.
    pub unsafe fn run<A: Argument>(&self, launch: &Launch<A>, argument: &A) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe { self.run_behind_if(false, launch, argument) }
    }

    /// Like [`Queue::run`], but the GPU may prepare the kernel while the kernel before it in the queue still runs.
    ///
    /// # Safety
    /// The same as for `run`. Also, the kernel must begin with `wait_for_kernel_before` (`kernels/common/launch.cuh`).
    pub unsafe fn run_behind<A: Argument>(&self, launch: &Launch<A>, argument: &A) -> Result<()> {
        // SAFETY: the caller promises it, and that the kernel waits.
        unsafe { self.run_behind_if(true, launch, argument) }
    }

    /// [`Queue::run_behind`] or [`Queue::run`]. What the queue did last may be a copy, and nothing runs behind one.
    ///
    /// # Safety
    /// The same as for [`Queue::run`]. With `behind`, the same as for [`Queue::run_behind`].
    pub unsafe fn run_behind_if<A: Argument>(&self, behind: bool, launch: &Launch<A>, argument: &A) -> Result<()> {
        self.bind()?;
        let (function, blocks, stream) = (launch.function, launch.blocks.max(1), self.stream.cu_stream());
        let mut parameters = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        let launched = if behind && function.waits {
            let mut attribute = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let config = sys::CUlaunchConfig {
                gridDimX: blocks,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: launch.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: launch.shared,
                hStream: stream,
                attrs: &raw mut attribute,
                numAttrs: 1,
            };
            // SAFETY: the kernel takes an `A`, and the caller promises the rest. CUDA copies the configuration and the parameter
            // before the call returns.
            unsafe { sys::cuLaunchKernelEx(&raw const config, function.handle, parameters.as_mut_ptr(), std::ptr::null_mut()) }
                .result()
        } else {
            let (grid, block) = ((blocks, 1, 1), (launch.threads, 1, 1));
            // SAFETY: as above.
            unsafe { result::launch_kernel(function.handle, grid, block, launch.shared, stream, &mut parameters) }
        };
        launched.map_err(failed("launching a kernel"))
    }
}
