// The pipeline of kernels/step/assign_tensor.cu: copies from device memory to shared memory, and the barriers that say
// what has arrived and what is free. Generation 9.0 only.
#pragma once
#include "../common/types.cuh"

// An address in shared memory. The compiler keeps it, and does not make it again in every tile.
__device__ __forceinline__ u32 shared_address(const void* p) {
    u32 at;
    asm volatile("{\n\t.reg .u64 a;\n\tcvta.to.shared.u64 a, %1;\n\tcvt.u32.u64 %0, a;\n\t}" : "=r"(at) : "l"(p));
    return at;
}

// A barrier in shared memory. It changes its phase when `arrivals` arrivals and all announced bytes have come.
__device__ __forceinline__ void make_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Shows the barriers that this thread has made to the copies.
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives, and announces bytes.
__device__ __forceinline__ void arrive_for(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Waits for the end of the phase of this parity.
__device__ __forceinline__ void await_barrier(u32 barrier, u32 parity) {
    asm volatile("{\n\t.reg .pred done;\n\tAGAIN:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra AGAIN;\n\t}" ::"r"(barrier), "r"(parity) : "memory");
}

// Waits for the other warps of a warpgroup, which have the same number.
__device__ __forceinline__ void await_warpgroup(u32 number) { asm volatile("bar.sync %0, 128;" ::"r"(number + 1) : "memory"); }

// Brings the 128 bytes from an address on into the first-level cache.
__device__ __forceinline__ void warm(const void* from) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

// Copies bytes to shared memory. The barrier counts them.
__device__ __forceinline__ void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}
// A place in a ring, and the parity of its round, in one register: 8 times the place, the distance of its barrier from the first one, and the parity.
struct Turn {
    u32 at = 0;

    __device__ __forceinline__ u32 barrier() const { return at & ~1u; }
    __device__ __forceinline__ u32 slot() const { return at / 8; }
    __device__ __forceinline__ u32 parity() const { return at & 1; }
    __device__ __forceinline__ void next(u32 size) {
        at += 8;
        if (slot() == size) at = parity() ^ 1;
    }
};
