//! Memory of one GPU that others read, and events by which they wait for each other.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::{Buffer, Gpu, Plain, Queue, failed};
use crate::error::Result;

/// Whether each of these GPUs can read the memory of each other one.
pub fn reach_each_other(gpus: &[Arc<Gpu>]) -> bool {
    let reads = |a: &Gpu, b: &Gpu| {
        let mut can = 0;
        // SAFETY: the devices belong to contexts, and the result has a place.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, a.context.cu_device(), b.context.cu_device()) };
        a.ordinal == b.ordinal || (asked.result().is_ok() && can != 0)
    };
    gpus.iter().all(|a| gpus.iter().all(|b| reads(a, b)))
}

/// Memory of one GPU that other GPUs may read.
pub struct Pool {
    pool: sys::CUmemoryPool,
    queue: Queue,
}
// SAFETY: a pool may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Memory of the GPU of this queue, for these GPUs.
    pub fn new(queue: &Queue, readers: &[Arc<Gpu>]) -> Result<Self> {
        const WHAT: &str = "memory that several GPUs share";
        queue.bind()?;
        let location = |gpu: &Gpu| sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: gpu.ordinal as i32,
        };
        // SAFETY: all bits zero are a value of this struct of numbers and pointers.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location(&queue.gpu);
        let mut pool = std::ptr::null_mut();
        // SAFETY: the properties are complete, and the result has a place.
        unsafe { sys::cuMemPoolCreate(&mut pool, &raw const properties) }.result().map_err(failed(WHAT))?;
        let made = Self { pool, queue: queue.clone() };
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        for reader in readers.iter().filter(|reader| reader.ordinal != queue.gpu.ordinal) {
            let access = sys::CUmemAccessDesc { location: location(reader), flags };
            // SAFETY: the pool was just made, and there is one description.
            unsafe { sys::cuMemPoolSetAccess(pool, &raw const access, 1) }.result().map_err(failed(WHAT))?;
        }
        Ok(made)
    }

    /// Memory for `len` values whose bytes are all zero.
    pub fn zeros<T: Plain>(&self, len: usize, what: &'static str) -> Result<Buffer<T>> {
        let stream = self.queue.stream.cu_stream();
        let mut buffer = self.queue.alloc_by(len, what, |bytes| {
            let mut address = 0;
            // SAFETY: the pool lives, and the result has a place. The memory is written before it is read.
            unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, stream) }.result().map(|()| address)
        })?;
        buffer.fill(0)?;
        Ok(buffer)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.queue.bind().is_ok() {
            // SAFETY: the pool was made once and is destroyed once. Its memory stays until it is freed.
            let _ = unsafe { sys::cuMemPoolDestroy(self.pool) }.result();
        }
    }
}

/// A point in a queue that other queues can wait for, also those of other GPUs.
pub struct Event {
    event: sys::CUevent,
    queue: Queue,
}
// SAFETY: an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(queue: &Queue) -> Result<Self> {
        queue.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed("making an event"))?;
        Ok(Self { event, queue: queue.clone() })
    }

    /// The point is now behind all work that its queue has.
    pub fn record(&self) -> Result<()> {
        self.queue.bind()?;
        // SAFETY: the event and the stream are of one GPU, and both live.
        unsafe { result::event::record(self.event, self.queue.stream.cu_stream()) }.map_err(failed("an event"))
    }

    /// What another queue gets from now on waits for the point.
    pub fn let_wait(&self, queue: &Queue) -> Result<()> {
        queue.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event was recorded, and the stream lives.
        unsafe { result::stream::wait_event(queue.stream.cu_stream(), self.event, flags) }.map_err(failed("an event"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.queue.bind().is_ok() {
            // SAFETY: the event was made once and is destroyed once.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
