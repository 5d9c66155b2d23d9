// How kernels run: threads and warps, the order of launches, and what the kernels of a fit tell each other and the host.
#pragma once
#include "types.cuh"

#define FULL_WARP 0xffffffffu

__device__ __forceinline__ u32 global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u32 all_threads() { return gridDim.x * blockDim.x; }
__device__ __forceinline__ u64 warp_sum(u64 v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
    return v;
}

// Kernels of a fit's loop call this first. Each is launched while the kernel before it still runs (`Queue::run_behind` of
// src/backend/cuda/device/queue.rs), so its blocks are ready when that kernel is done. Nothing may be read or written before this call.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What the kernels of a fit tell each other and the host.
struct Control {
    u64 changed; // rows of positive weight whose label changed in this iteration
    u64 started; // the device's clock at the end of the last iteration
    u64 settled; // rows settled in this iteration, without those of the lists below
    u64 scores; // scores that the filter has computed in this iteration, if it may leave some out (Step::counts_scores)
    u32 stop; // 0: go on; 1: converged; 2: a cluster is empty and the host relocates. Unless 0, later kernels do nothing
    u32 iteration; // finished iterations
    u32 ticket; // blocks of the update that are done
    u32 unresolved; // rows of which no score is negative, in this iteration (assign_registers)
    u32 in_doubt; // rows in the list of rows to compare with all centroids
    u32 pairs; // rows in the list of rows to compare with two centroids
    u32 next_run; // tiles that the warps of assign_registers have taken from the counter
    u32 rescored; // rows of which a second filter computed scores in this iteration (tensor_rescore)
    u32 groups; // of rows, each with its own centroids, in this iteration: 0 if there are none
    u32 unused;
};

// One iteration in the history.
struct Record {
    u64 changed;
    double shift;
    u64 nanoseconds;
    u64 settled, scores;
    u32 rescored, groups;
    u32 moved;
    u32 unused;
};
