//! Pinned host memory, which a copy to the device reads by itself while the calling thread goes on.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, DriverError, result, sys};

use super::super::device::{Gpu, Plain, Queue, failed, refusal};
use crate::error::Result;
use crate::memory;

/// How the memory is asked for. Write-combined memory (`CU_MEMHOSTALLOC_WRITECOMBINED`) stays out of the processor's caches;
/// not measured to be better.
const HOST_FLAGS: u32 = 0;

/// The widest step from one strip to the next that the driver takes (`CU_DEVICE_ATTRIBUTE_MAX_PITCH`).
const LARGEST_PITCH: usize = i32::MAX as usize;

/// A buffer that is filled, sent and filled again. While a copy travels nobody sees its bytes.
pub struct Pinned {
    address: NonNull<u8>,
    bytes: usize,
    /// Recorded after the last copy that was sent.
    arrived: CudaEvent,
    gpu: Arc<Gpu>,
}
// SAFETY: the memory belongs to this value alone, and calls that use it bind the context first.
unsafe impl Send for Pinned {}

/// Equally long runs of bytes, one behind the other in host memory, `pitch` bytes apart on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strips {
    /// Where the first starts in the buffer, in bytes.
    pub from: usize,
    /// Bytes of each.
    pub width: usize,
    pub count: usize,
    /// Where the first goes on the device.
    pub to: u64,
    pub pitch: usize,
}

impl Pinned {
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let arrived = gpu.context.new_event(None).map_err(failed("making an event"))?;
        let bytes = bytes.max(1);
        let missing = || memory::no_memory("pinned memory for uploads", bytes as u128);
        if refusal::now() {
            return Err(missing());
        }
        let refused = |error: DriverError| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => missing(),
            _ => failed("pinning host memory")(error),
        };
        // SAFETY: the context is current (making the event bound it); the memory is freed once, by `drop`.
        let address = unsafe { result::malloc_host(bytes, HOST_FLAGS) }.map_err(refused)?;
        let address = NonNull::new(address.cast()).ok_or_else(missing)?;
        // SAFETY: the range was just allocated. Written once, the bytes are initialised whatever the driver left there.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Self { address, bytes, arrived, gpu: gpu.clone() })
    }

    /// Room for `len` values, of any content, once the last copy has left it.
    pub fn values<T: Plain>(&mut self, len: usize) -> Result<&mut [T]> {
        assert!(
            len.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= self.bytes),
            "{len} values in {} bytes",
            self.bytes
        );
        self.arrived.synchronize().map_err(failed("the upload"))?;
        // SAFETY: within the allocation (asserted), which is aligned to a page and initialised; any bits are a value (`Plain`);
        // nothing else reads it: this borrow is exclusive, and the device is done (`send` leaves no copy that the event does
        // not cover).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.cast().as_ptr(), len) })
    }

    /// Sends strips on their way, in the queue's order.
    ///
    /// # Safety
    /// Every strip's place on the device is inside of a buffer that outlives the copies, and no work but the queue's own uses
    /// it meanwhile.
    pub unsafe fn send(&mut self, queue: &Queue, strips: &[Strips]) -> Result<()> {
        for Strips { from, width, count, .. } in strips {
            let end = width.checked_mul(*count).and_then(|bytes| bytes.checked_add(*from));
            assert!(end.is_some_and(|end| end <= self.bytes), "{count} strips of {width} at {from} in {} bytes", self.bytes);
        }
        // SAFETY: the caller's.
        let sent = unsafe { self.try_send(queue, strips) };
        if sent.is_err() {
            // What was sent before the refusal may be under way, and no event was recorded for it.
            let _ = queue.wait();
        }
        sent.map_err(failed("the upload"))
    }

    /// # Safety
    /// As for `send`, which has checked that the strips are within the buffer; after an error, the queue must be waited for.
    unsafe fn try_send(&mut self, queue: &Queue, strips: &[Strips]) -> std::result::Result<(), DriverError> {
        self.gpu.context.bind_to_thread()?;
        let stream = queue.stream.cu_stream();
        for strips in strips {
            let Strips { from, width, count, to, pitch } = *strips;
            if count > 1 && pitch <= LARGEST_PITCH {
                // SAFETY: `from` is within the allocation.
                let source = unsafe { self.address.add(from) };
                let copy = rectangle(source.as_ptr().cast(), strips);
                // SAFETY: the source is within the buffer (checked) and stays until the event; the destination is the caller's
                // promise.
                unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream) }.result()?;
                continue;
            }
            for i in 0..count {
                // SAFETY: within the allocation (checked), initialised, and only read until the event.
                let source = unsafe { std::slice::from_raw_parts(self.address.add(from + i * width).as_ptr(), width) };
                // SAFETY: the destination is the caller's promise.
                unsafe { result::memcpy_htod_async(to + (i * pitch) as u64, source, stream) }?;
            }
        }
        self.arrived.record(&queue.stream)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // An error means that the context is gone, and with it whatever would read the memory.
        if self.arrived.synchronize().is_ok() {
            // SAFETY: allocated by `malloc_host`, freed once, and no copy reads it any more.
            let _ = unsafe { result::free_host(self.address.as_ptr().cast()) };
        }
    }
}

/// A two-dimensional copy from host memory without gaps.
fn rectangle(source: *const c_void, strips: &Strips) -> sys::CUDA_MEMCPY2D_st {
    sys::CUDA_MEMCPY2D_st {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: source,
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: strips.width,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: strips.to,
        dstArray: std::ptr::null_mut(),
        dstPitch: strips.pitch,
        WidthInBytes: strips.width,
        Height: strips.count,
    }
}
