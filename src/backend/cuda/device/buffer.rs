//! Device memory that belongs to a queue.

use std::marker::PhantomData;

use cudarc::driver::{CudaEvent, result, sys};

use super::callers::CallersContext;
use super::queue::Queue;
use super::{At, Plain, failed, traffic};
use crate::base::error::Result;
use crate::base::interrupt;
use crate::base::memory;

/// Device memory that belongs to a queue. When it is dropped, it is freed in the order of the queue.
pub struct Buffer<T> {
    address: sys::CUdeviceptr,
    len: usize,
    /// What the memory is for. Errors use this text.
    what: &'static str,
    /// Whether another owner has the memory. Then nothing here writes to it or frees it.
    external: bool,
    queue: Queue,
    kind: PhantomData<T>,
}
// SAFETY: this is an address on the device, and every call that uses it binds the context first.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above. The host never reads or writes through the address. All changes are work in a queue, and the queue orders
// them.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `address`: an allocation of `len` values, made on the stream of the queue.
    pub(super) fn new(address: sys::CUdeviceptr, len: usize, what: &'static str, queue: Queue) -> Self {
        Self { address, len, what, external: false, queue, kind: PhantomData }
    }

    /// Memory of another owner on the device, to read.
    ///
    /// # Safety
    /// Kernels may read `len` values at this address, which is a multiple of their alignment, as long as the buffer lives.
    /// Nothing writes to them.
    pub unsafe fn external(address: u64, len: usize, queue: Queue) -> Self {
        Self { address, len, what: "the caller's values", external: true, queue, kind: PhantomData }
    }

    pub fn is_external(&self) -> bool {
        self.external
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The address on the device, as a kernel takes it: an [`At`] of these values, or a number where the kernel's argument does
    /// not know their type.
    pub fn at<A: From<At<T>>>(&self) -> A {
        At::new(self.address).into()
    }

    /// The address for a kernel that reads the same bytes as other values.
    pub fn at_of<V>(&self) -> At<V> {
        self.at::<At<T>>().cast()
    }

    /// The address of value `i`.
    pub fn at_index<A: From<At<T>>>(&self, i: usize) -> A {
        assert!(i <= self.len);
        At::new(self.address).index(i as u64).into()
    }

    /// Sets every byte to `byte`.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.queue.bind()?;
        // SAFETY: the range is the whole buffer.
        unsafe { result::memset_d8_async(self.address, byte, self.len * size_of::<T>(), self.queue.stream.cu_stream()) }
            .map_err(failed("clearing memory"))
    }

    /// Sets the ends of columns to zero: the values of each from `first` on. There are `columns` columns of `stride` values.
    pub fn zero_ends(&self, columns: usize, stride: usize, first: usize) -> Result<()> {
        assert!(first <= stride && columns * stride <= self.len, "{columns} columns of {stride} in {} values", self.len);
        if columns == 0 || first == stride {
            return Ok(());
        }
        self.queue.bind()?;
        let [pitch, width] = [stride, stride - first].map(|values| values * size_of::<T>());
        let (at, stream) = (self.at_index(first), self.queue.stream.cu_stream());
        // SAFETY: the ends are within the buffer (asserted).
        unsafe { sys::cuMemsetD2D8Async(at, pitch, 0, width, columns, stream) }.result().map_err(failed("clearing memory"))
    }

    /// Copies host values to the device, from value `first` on. If `values` is in pageable memory, CUDA has read it when this
    /// returns.
    pub fn write(&self, first: usize, values: &[T]) -> Result<()> {
        assert!(!self.external, "memory of another owner is only read");
        assert!(first + values.len() <= self.len, "{} values at {first} of {}", values.len(), self.len);
        if values.is_empty() {
            return Ok(());
        }
        self.queue.bind()?;
        traffic::count_up(std::mem::size_of_val(values));
        // SAFETY: the range is within the buffer (asserted). CUDA copies pageable memory to its own staging memory before the
        // call returns.
        unsafe { result::memcpy_htod_async(self.at_index(first), values, self.queue.stream.cu_stream()) }
            .map_err(failed("an upload"))
    }

    /// Waits for the queue and copies `out.len()` values from `first` on.
    ///
    /// # Errors
    /// Also [`KMeansError::Cancelled`](crate::KMeansError::Cancelled): loops on the host look here whether to go on.
    pub fn read(&self, first: usize, out: &mut [T]) -> Result<()> {
        self.read_as(first * size_of::<T>(), out)
    }

    /// The same for values of another type, from a byte on.
    pub fn read_as<V: Plain>(&self, first: usize, out: &mut [V]) -> Result<()> {
        let (bytes, all) = (size_of_val(out), self.len * size_of::<T>());
        assert!(first + bytes <= all, "{bytes} bytes at {first} of {all}");
        if !out.is_empty() {
            self.queue.bind()?;
            traffic::count_down(bytes);
            // SAFETY: the range is within the buffer (asserted). `out` lives until the wait below, and takes any bits (`Plain`).
            unsafe { result::memcpy_dtoh_async(out, self.address + first as u64, self.queue.stream.cu_stream()) }
                .map_err(failed("a download"))?;
        }
        self.queue.wait()?;
        interrupt::check()
    }

    /// Copies the first values by another queue of the same GPU, after the event. The buffer's own queue goes on meanwhile, so
    /// each word may be of another time.
    pub fn look(&self, by: &Queue, after: &CudaEvent, out: &mut [T]) -> Result<()> {
        assert!(out.len() <= self.len, "{} values of {}", out.len(), self.len);
        by.bind()?;
        by.stream.wait(after).map_err(failed("a download"))?;
        traffic::count_down(size_of_val(out));
        // SAFETY: the range is within the buffer (asserted). `out` lives until the wait below, and takes any bits (`Plain`).
        unsafe { result::memcpy_dtoh_async(out, self.address, by.stream.cu_stream()) }.map_err(failed("a download"))?;
        by.wait()?;
        interrupt::check()
    }

    /// Queues, behind the work of the other buffer, a copy of its bytes to this one, from value `first` on. The values have one
    /// size.
    pub fn copy_from<U: Plain>(&self, first: usize, from: &Buffer<U>) -> Result<()> {
        assert_eq!(size_of::<T>(), size_of::<U>());
        assert!(!self.external && first + from.len <= self.len, "{} values at {first} of {}", from.len, self.len);
        if from.len == 0 {
            return Ok(());
        }
        self.queue.bind()?;
        let bytes = from.len * size_of::<T>();
        // SAFETY: both ranges are within their buffers (asserted).
        unsafe { sys::cuMemcpyDtoDAsync_v2(self.at_index(first), from.address, bytes, from.queue.stream.cu_stream()) }
            .result()
            .map_err(failed("a copy"))
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
        if self.external {
            return;
        }
        self.queue.give_room_back(self.len.max(1) * size_of::<T>());
        let _context = CallersContext::kept(); // models are dropped anywhere
        // An error here means that the context no longer exists, and neither does its memory.
        if self.queue.gpu.context.bind_to_thread().is_ok() {
            // SAFETY: `alloc` allocated it on this stream. It is freed once, after all earlier work of the queue.
            let _ = unsafe { result::free_async(self.address, self.queue.stream.cu_stream()) };
        }
    }
}
