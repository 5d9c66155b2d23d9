//! Memory of one GPU that others read, and a word by which the host releases GPUs that wait for each other.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{result, sys};

use super::{At, Buffer, Gpu, Plain, Queue, failed};
use crate::base::error::Result;
use crate::base::memory;

/// Whether each of these GPUs can read the memory of each other one.
pub fn reach_each_other(gpus: &[u32]) -> bool {
    let reads = |a: u32, b: u32| {
        let mut can = 0;
        let devices = result::device::get(a as i32).and_then(|a| Ok((a, result::device::get(b as i32)?)));
        // SAFETY: the driver gave these devices, and the result has a place.
        let asked = devices.and_then(|(a, b)| unsafe { sys::cuDeviceCanAccessPeer(&mut can, a, b) }.result());
        a == b || (asked.is_ok() && can != 0)
    };
    gpus.iter().all(|&a| gpus.iter().all(|&b| reads(a, b)))
}

/// Memory of one GPU that other GPUs may read. Mapping it takes milliseconds, so the process keeps it.
pub struct Pool(sys::CUmemoryPool);
// SAFETY: a pool may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Freed bytes that a pool keeps for the next fit.
const KEPT: u64 = 256 << 20;
const WHAT: &str = "memory that several GPUs share";

impl Pool {
    /// Memory of this GPU, for these readers. It is made once for them and stays until the process ends.
    pub fn of(gpu: &Gpu, readers: &[Arc<Gpu>]) -> Result<Arc<Self>> {
        static POOLS: OnceLock<Mutex<HashMap<Vec<u32>, Arc<Pool>>>> = OnceLock::new();
        let mut readers: Vec<u32> =
            readers.iter().map(|reader| reader.ordinal).filter(|reader| *reader != gpu.ordinal).collect();
        readers.sort_unstable();
        readers.dedup();
        let name = [&[gpu.ordinal], &readers[..]].concat();
        let mut pools = POOLS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&name) {
            return Ok(pool.clone());
        }
        let pool = Arc::new(Self::new(gpu, &readers)?);
        pools.insert(name, pool.clone());
        Ok(pool)
    }

    fn new(gpu: &Gpu, readers: &[u32]) -> Result<Self> {
        gpu.bind()?;
        let location = |ordinal: u32| sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: ordinal as i32,
        };
        // SAFETY: all bits zero are a value of this struct of numbers and pointers.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location(gpu.ordinal);
        let mut pool = std::ptr::null_mut();
        // SAFETY: the properties are complete, and the result has a place.
        unsafe { sys::cuMemPoolCreate(&mut pool, &raw const properties) }.result().map_err(failed(WHAT))?;
        let made = Self(pool);
        let mut kept = KEPT;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a 64-bit integer, and `kept` has 64 bits.
        unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut kept).cast()) }.result().map_err(failed(WHAT))?;
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        for &reader in readers {
            let access = sys::CUmemAccessDesc { location: location(reader), flags };
            // SAFETY: the pool was just made, and there is one description.
            unsafe { sys::cuMemPoolSetAccess(pool, &raw const access, 1) }.result().map_err(failed(WHAT))?;
        }
        Ok(made)
    }

    /// Memory for `len` values whose bytes are all zero, for work of this queue.
    pub fn zeros<T: Plain>(&self, queue: &Queue, len: usize, what: &'static str) -> Result<Buffer<T>> {
        let stream = queue.stream.cu_stream();
        let mut buffer = queue.alloc_by(len, what, |bytes| {
            let mut address = 0;
            // SAFETY: the pool lives, and the result has a place. The memory is written before it is read.
            unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, self.0, stream) }.result().map(|()| address)
        })?;
        buffer.fill(0)?;
        Ok(buffer)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the pool was made once and is destroyed once. Its memory stays until it is freed.
        let _ = unsafe { sys::cuMemPoolDestroy(self.0) }.result();
    }
}

/// A word in host memory that all GPUs read while they wait for each other. Once it is set, no GPU waits any more.
pub struct Alarm(NonNull<AtomicU32>);
// SAFETY: the host accesses the word atomically.
unsafe impl Send for Alarm {}
// SAFETY: as above.
unsafe impl Sync for Alarm {}

impl Alarm {
    pub fn new(gpu: &Gpu) -> Result<Self> {
        gpu.bind()?;
        let bytes = size_of::<AtomicU32>();
        // SAFETY: the context is current. `drop` frees the memory once.
        let address = unsafe { result::malloc_host(bytes, 0) }.map_err(failed(WHAT))?;
        let address = NonNull::new(address.cast::<AtomicU32>()).ok_or_else(|| memory::no_memory(WHAT, bytes as u128))?;
        // SAFETY: the word was just allocated, aligned to a page.
        unsafe { address.write(AtomicU32::new(0)) };
        Ok(Self(address))
    }

    pub fn ring(&self) {
        // SAFETY: the word lives as long as this value.
        unsafe { self.0.as_ref() }.store(1, Ordering::SeqCst);
    }

    /// Its address for kernels: host memory has one address for the host and all GPUs.
    pub fn at(&self) -> At<u32> {
        At::new(self.0.as_ptr() as u64)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: `malloc_host` allocated it. It is freed once, after the work of all GPUs that read it.
        let _ = unsafe { result::free_host(self.0.as_ptr().cast()) };
    }
}
