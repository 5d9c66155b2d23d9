// sum_shared: feature sums and row counts of all clusters, by atomics. sum_adjust: moves only rows that changed, one thread a cluster.
//
// Source:    sum_shared: Luigi, "Accelerating K-means with CUDA", 2025, V2. The reduction is a kernel of its own. Rows are added by
//            atomics to the sums of their block in shared memory, and these to the sums in device memory.
//            sum_adjust: kmcuda, 2016, `kmeans_adjust`. A thread has a cluster. Labels before and after pass through shared memory. The
//            thread subtracts the rows that left its cluster and adds the rows that came.
// Used when: strategies `luigi-v2` and `kmcuda`, after a pass for labels.
// Tile:      sum_shared: 256 rows, one a thread. sum_adjust: 256 clusters by 1,024 rows.
// Memory:    sum_shared: shared memory of 8 bytes for each of (k, columns, limbs) sums, and 4 bytes a cluster. This limits k.
// Precision: integers.
//
// Departures: blocks of sum_shared are persistent and flush every 4,096 rows. In kmcuda one thread passes over all labels for its
// cluster, and computes a float sum anew from mean times count. Here blocks share the rows, and changes go to the pending sums in device
// memory.
#include "systems.cuh"

#define THREADS 256
#define STEP 1024

template <typename T> __device__ __forceinline__ void sum_shared(const SystemSums<T>& a) {
    extern __shared__ __align__(16) u32 words[];
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const Table table = {words, s.k * s.columns * s.limbs, 1};
    int* table_rows = (int*)(words + 2 * (size_t)table.accumulators);
    table_clear(table);
    for (int j = threadIdx.x; j < s.k; j += THREADS) table_rows[j] = 0;
    __syncthreads();
    u32 changed = 0, added = 0;
#pragma unroll 1
    for (u64 start = (u64)blockIdx.x * THREADS; start < a.rows.n; start += all_threads()) {
        const u64 row = start + threadIdx.x;
        if (row < a.rows.n && counts(a.rows, row)) {
            const u32 label = load_label(a.next, row);
            changed += label != load_label(a.labels, row);
#pragma unroll 2
            for (int c = 0; c < s.columns; c++) {
                const Pair p = contribution(a.rows, a.factors, a.mass_to_integer, row, c);
                const u32 accumulator = (label * s.columns + c) * s.limbs;
                table_add(table, accumulator, 0, p.hi);
                if (s.limbs == 2) table_add(table, accumulator + 1, 0, p.lo);
            }
            atomicAdd(&table_rows[label], 1);
        }
        added += THREADS;
        if (added == CELL_ROWS || start + all_threads() >= a.rows.n) {
            added = 0;
            __syncthreads();
            flush_table(table, table_rows, s);
            __syncthreads();
        }
    }
    add_count(&a.control->changed, changed);
}

template <typename T> __device__ __forceinline__ void sum_adjust(const SystemSums<T>& a) {
    __shared__ __align__(16) uint2 labels[STEP]; // before and after, equal if there is nothing to do
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const u32 across = ((u32)s.k + THREADS - 1) / THREADS, part = blockIdx.x / across, parts = gridDim.x / across;
    if (part >= parts) return;
    const u32 clusters = blockIdx.x % across, j = clusters * THREADS + threadIdx.x;
    i64 rows = 0;
    u32 changed = 0;
    auto move = [&](u64 row, i64 sign) {
        rows += sign;
        for (int c = 0; c < s.columns; c++) {
            const Pair p = contribution(a.rows, a.factors, a.mass_to_integer, row, c);
            u64* accumulator = s.pending + ((u64)j * s.columns + c) * s.limbs * 2;
            add_pending(accumulator, sign * p.hi);
            if (s.limbs == 2) add_pending(accumulator + 2, sign * p.lo);
        }
    };
#pragma unroll 1
    for (u64 start = (u64)part * STEP; start < a.rows.n; start += (u64)parts * STEP) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < STEP; i += THREADS) {
            const u64 row = start + i;
            uint2 both = {0, 0};
            if (row < a.rows.n && counts(a.rows, row)) {
                both = {load_label(a.labels, row), load_label(a.next, row)};
                if (clusters == 0) changed += both.x != both.y;
            }
            labels[i] = both;
        }
        __syncthreads();
        if (j < (u32)s.k) {
#pragma unroll 1
            for (u32 i = 0; i < STEP; i += 2) {
                const uint4 two = *(const uint4*)&labels[i];
                if (two.x != two.y) {
                    if (two.x == j) move(start + i, -1);
                    if (two.y == j) move(start + i, 1);
                }
                if (two.z != two.w) {
                    if (two.z == j) move(start + i + 1, -1);
                    if (two.w == j) move(start + i + 1, 1);
                }
            }
        }
    }
    if (j < (u32)s.k && rows) atomicAdd((u64*)&s.pending_rows[j], (u64)rows);
    __syncwarp();
    add_count(&a.control->changed, changed);
}

#define KERNELS(T, NAME)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) sum_shared_##NAME(const __grid_constant__ SystemSums<T> a) { sum_shared(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS) sum_adjust_##NAME(const __grid_constant__ SystemSums<T> a) { sum_adjust(a); }
KERNELS(float, f32)
KERNELS(double, f64)
