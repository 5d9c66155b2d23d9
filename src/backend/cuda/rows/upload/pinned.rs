//! Pinned host memory. The GPU reads and writes it by itself during a copy, while the calling thread goes on.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, DriverError, result, sys};

use crate::backend::cuda::device::{Buffer, Gpu, Plain, Queue, failed, refusal, traffic};
use crate::base::error::Result;
use crate::base::memory;

/// The flags of the allocation. Write-combined memory (`CU_MEMHOSTALLOC_WRITECOMBINED`) stays out of the caches of the CPU. It
/// was not faster in measurements.
const HOST_FLAGS: u32 = 0;

/// The largest distance between two strips that the driver accepts (`CU_DEVICE_ATTRIBUTE_MAX_PITCH`).
const LARGEST_PITCH: usize = i32::MAX as usize;

/// A buffer that is filled, sent and filled again, by the host or by the device. Its bytes cannot be accessed while a copy reads
/// them.
pub struct Pinned {
    address: NonNull<u8>,
    bytes: usize,
    /// Recorded after the last copy that was sent.
    arrived: CudaEvent,
    gpu: Arc<Gpu>,
}
// SAFETY: the memory belongs to this value alone, and every call that uses it binds the context first.
unsafe impl Send for Pinned {}

/// Runs of bytes of equal length. They are contiguous in host memory, and `pitch` bytes apart on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strips {
    /// Where the first strip starts in the buffer, in bytes.
    pub from: usize,
    /// The bytes of each strip.
    pub width: usize,
    pub count: usize,
    /// The address on the device of the first strip.
    pub to: u64,
    pub pitch: usize,
}

impl Strips {
    /// One strip, from the start of the buffer on.
    pub fn one(width: usize, to: u64) -> Self {
        Self { from: 0, width, count: 1, to, pitch: width }
    }
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
        // SAFETY: the context is current, because making the event bound it. `drop` frees the memory once.
        let address = unsafe { result::malloc_host(bytes, HOST_FLAGS) }.map_err(refused)?;
        let address = NonNull::new(address.cast()).ok_or_else(missing)?;
        // SAFETY: the range was just allocated. Writing it once initialises the bytes, whatever the driver left there.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Self { address, bytes, arrived, gpu: gpu.clone() })
    }

    /// Room for `len` values with undefined content. Waits until the last copy has arrived.
    pub fn values<T: Plain>(&mut self, len: usize) -> Result<&mut [T]> {
        assert!(
            len.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= self.bytes),
            "{len} values in {} bytes",
            self.bytes
        );
        self.arrived.synchronize().map_err(failed("the upload"))?;
        // SAFETY: the range is within the allocation (asserted), which is aligned to a page and initialised. Any bits are a
        // valid value (`Plain`). Nothing else reads it: this borrow is exclusive, and the device is done, because the event
        // covers every copy that `send` leaves under way.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.cast().as_ptr(), len) })
    }

    /// Copies values from the device, and waits for them.
    ///
    /// # Safety
    /// The work that writes the values is done, or the queue has waited for it. Nothing writes them during the call.
    pub unsafe fn receive<T: Plain>(&mut self, queue: &Queue, from: &Buffer<T>, range: Range<usize>) -> Result<&[T]> {
        assert!(range.end <= from.len(), "{range:?} of {} values", from.len());
        self.gpu.bind()?;
        let at = from.at_index(range.start);
        let out = self.values::<T>(range.len())?;
        traffic::count_down(size_of_val(out));
        // SAFETY: the values are within the buffer (asserted). `out` stays until the wait, which comes before every other use of
        // it.
        let copied = unsafe { result::memcpy_dtoh_async(out, at, queue.stream.cu_stream()) }.map_err(failed("a download"));
        copied.and(queue.wait())?;
        Ok(out)
    }

    /// Starts the copies of the strips, in the order of the queue.
    ///
    /// # Safety
    /// On the device, every strip is inside a buffer that lives until the copies are done. Until then, only work of this queue
    /// uses that place.
    pub unsafe fn send(&mut self, queue: &Queue, strips: &[Strips]) -> Result<()> {
        for Strips { from, width, count, .. } in strips {
            let end = width.checked_mul(*count).and_then(|bytes| bytes.checked_add(*from));
            assert!(end.is_some_and(|end| end <= self.bytes), "{count} strips of {width} at {from} in {} bytes", self.bytes);
        }
        let stream = queue.stream.cu_stream();
        let copy = |strips: &Strips| {
            let Strips { from, width, count, to, pitch } = *strips;
            traffic::count_up(width * count);
            if count > 1 && pitch <= LARGEST_PITCH {
                // SAFETY: `from` is within the allocation.
                let source = unsafe { self.address.add(from) };
                let copy = rectangle(source.as_ptr().cast(), strips);
                // SAFETY: the source is within the buffer (checked), and stays until the event. The caller promises the
                // destination.
                return unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream) }.result();
            }
            (0..count).try_for_each(|i| {
                // SAFETY: the range is within the allocation (checked) and initialised. It is only read until the event.
                let source = unsafe { std::slice::from_raw_parts(self.address.add(from + i * width).as_ptr(), width) };
                // SAFETY: the caller promises the destination.
                unsafe { result::memcpy_htod_async(to + (i * pitch) as u64, source, stream) }
            })
        };
        let sent = self.gpu.context.bind_to_thread().and_then(|()| strips.iter().try_for_each(copy));
        let sent = sent.and_then(|()| self.arrived.record(&queue.stream));
        if sent.is_err() {
            // Copies that started before the error may be under way, and no event was recorded for them.
            let _ = queue.wait();
        }
        sent.map_err(failed("the upload"))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // An error means that the context no longer exists. Then no copy reads the memory.
        if self.arrived.synchronize().is_ok() {
            // SAFETY: `malloc_host` allocated it. It is freed once, and no copy reads it any more.
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
