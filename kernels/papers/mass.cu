// mass: counts the rows of each cluster, and the rows that changed. clear_sums: sets the sums of the iteration before to 0.
//
// Source:    Lutz et al. 2018, section 3.2, with its four ways to make a histogram of the labels. Global atomic: one histogram in device
//            memory. Partitioned global: one a block, in device memory. Partitioned local: one a block, in shared memory. Partitioned
//            private: one a thread, in shared memory.
// Used when: strategies `lutz-merge` and `lutz-features` (private) and `lutz-mass-*`, after a pass for labels. It does not sum
//            weights: their sums are one more column of the feature sums.
// Tile:      256 rows, one a thread. Private: as many threads as fit, 32 to 256.
// Memory:    labels before and after. Global: 4 bytes a cluster and block of device memory. Local: 4 bytes a cluster of shared memory.
//            Private: 4 bytes a cluster and thread of shared memory. The last two limit k.
// Precision: integers.
#include "systems.cuh"

// Calls `add(label)` for every row that counts. Returns how many rows of this thread changed.
template <typename T, typename Add> __device__ __forceinline__ u32 for_each_label(const SystemSums<T>& a, Add add) {
    u32 changed = 0;
#pragma unroll 4
    for (u64 row = global_thread(); row < a.rows.n; row += all_threads()) {
        if (!counts(a.rows, row)) continue;
        const u32 label = load_label(a.next, row);
        changed += label != load_label(a.labels, row);
        add(label);
    }
    return changed;
}

template <typename T> __device__ __forceinline__ void mass_atomic(const SystemSums<T>& a) {
    if (a.control->stop) return;
    const u32 changed = for_each_label(a, [&](u32 label) { atomicAdd((u64*)&a.sums.pending_rows[label], 1ull); });
    __syncwarp();
    add_count(&a.control->changed, changed);
}

// One histogram a block, in device memory or in shared memory.
template <typename T> __device__ __forceinline__ void mass_of_block(const SystemSums<T>& a, u32* histogram) {
    if (a.control->stop) return;
    for (int j = threadIdx.x; j < a.sums.k; j += blockDim.x) histogram[j] = 0;
    __syncthreads();
    const u32 changed = for_each_label(a, [&](u32 label) { atomicAdd(&histogram[label], 1u); });
    __syncthreads();
    for (int j = threadIdx.x; j < a.sums.k; j += blockDim.x) {
        const u32 rows = *(volatile u32*)&histogram[j]; // atomics bypass the first-level cache, so this read must bypass it too
        if (rows) atomicAdd((u64*)&a.sums.pending_rows[j], (u64)rows);
    }
    add_count(&a.control->changed, changed);
}

template <typename T> __device__ __forceinline__ void mass_private(const SystemSums<T>& a, u32* histograms) {
    if (a.control->stop) return;
    const u32 tid = threadIdx.x, threads = blockDim.x, lane = tid & 31;
    for (int j = 0; j < a.sums.k; j++) histograms[j * threads + tid] = 0;
    const u32 changed = for_each_label(a, [&](u32 label) { histograms[label * threads + tid]++; });
    __syncthreads();
    for (int j = tid / 32; j < a.sums.k; j += threads / 32) {
        u64 rows = 0;
        for (u32 i = lane; i < threads; i += 32) rows += histograms[j * threads + i];
        rows = warp_sum(rows);
        if (lane == 0 && rows) atomicAdd((u64*)&a.sums.pending_rows[j], rows);
    }
    add_count(&a.control->changed, changed);
}

template <typename T> __device__ __forceinline__ void clear_sums(const SystemSums<T>& a) {
    if (a.control->stop) return;
    const u64 accumulators = (u64)a.sums.k * a.sums.columns;
    for (u64 i = global_thread(); i < accumulators; i += all_threads()) a.sums.sums[i] = 0;
    for (u64 j = global_thread(); j < (u64)a.sums.k; j += all_threads()) a.sums.rows[j] = 0;
}

#define KERNELS(T, NAME)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) mass_atomic_##NAME(const __grid_constant__ SystemSums<T> a) { mass_atomic(a); } \
    extern "C" __global__ void __launch_bounds__(256) mass_global_##NAME(const __grid_constant__ SystemSums<T> a) {           \
        mass_of_block(a, (u32*)a.scratch + (u64)blockIdx.x * a.sums.k);                                                       \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) mass_local_##NAME(const __grid_constant__ SystemSums<T> a) {            \
        extern __shared__ u32 histogram[];                                                                                    \
        mass_of_block(a, histogram);                                                                                          \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) mass_private_##NAME(const __grid_constant__ SystemSums<T> a) {          \
        extern __shared__ u32 histogram[];                                                                                    \
        mass_private(a, histogram);                                                                                           \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) clear_sums_##NAME(const __grid_constant__ SystemSums<T> a) { clear_sums(a); }
KERNELS(float, f32)
KERNELS(double, f64)
