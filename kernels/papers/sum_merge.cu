// sum_merge: the feature sums of all clusters, by cluster merge.
//
// Source:    Lutz et al. 2018, section 3.1, cluster merge. Every thread has its own table of all sums, and adds whole rows to it without
//            atomics. In the end a reduction merges the tables.
// Used when: strategy `lutz-merge`, after a pass for labels. kernels/papers/mass.cu counts the rows.
// Tile:      neighbouring threads take neighbouring rows. A thread takes one row of each stride of the grid.
// Memory:    shared: (k, columns, limbs, threads) sums of 8 bytes, for 32 to 256 threads a block. If the tables of 32 threads do not fit,
//            they are in device memory, for as many threads as fit there (suffix _device). This weakness of the paper is kept.
// Precision: integers.
#include "systems.cuh"

template <typename T, bool SHARED> __device__ __forceinline__ void sum_merge(const SystemSums<T>& a) {
    extern __shared__ __align__(16) i64 shared[];
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const u32 tid = threadIdx.x, threads = blockDim.x, lane = tid & 31;
    const u32 accumulators = (u32)(s.k * s.columns * s.limbs);
    i64* tables = SHARED ? shared : a.scratch + (u64)blockIdx.x * accumulators * threads;
    i64* mine = tables + tid;
#pragma unroll 4
    for (u32 accumulator = 0; accumulator < accumulators; accumulator++) mine[(u64)accumulator * threads] = 0;
    u32 added = 0;
#pragma unroll 1
    for (u64 start = (u64)blockIdx.x * threads; start < a.rows.n; start += all_threads()) {
        const u64 row = start + tid;
        if (row < a.rows.n && counts(a.rows, row)) {
            i64* accumulator = mine + (u64)load_label(a.next, row) * s.columns * s.limbs * threads;
#pragma unroll 4
            for (int c = 0; c < s.columns; c++) {
                const Pair p = contribution(a.rows, a.factors, a.mass_to_integer, row, c);
                *accumulator += p.hi;
                accumulator += threads;
                if (s.limbs == 2) {
                    *accumulator += p.lo;
                    accumulator += threads;
                }
            }
        }
        if (++added == CELL_ROWS || start + all_threads() >= a.rows.n) {
            added = 0;
            __syncthreads();
#pragma unroll 1
            for (u32 accumulator = tid / 32; accumulator < accumulators; accumulator += threads / 32) {
                i64* from = tables + (u64)accumulator * threads;
                Halves halves = {0, 0};
                for (u32 i = lane; i < threads; i += 32) {
                    halves.add(from[i]);
                    from[i] = 0;
                }
                halves.over_warp();
                if (lane == 0) halves.flush(s.pending + (u64)accumulator * 2);
            }
            __syncthreads();
        }
    }
}

#define KERNELS(T, NAME)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) sum_merge_##NAME(const __grid_constant__ SystemSums<T> a) {            \
        sum_merge<T, true>(a);                                                                                               \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) sum_merge_##NAME##_device(const __grid_constant__ SystemSums<T> a) {   \
        sum_merge<T, false>(a);                                                                                              \
    }
KERNELS(float, f32)
KERNELS(double, f64)
