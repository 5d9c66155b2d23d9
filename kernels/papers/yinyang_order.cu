// yinyang_count, yinyang_starts, yinyang_places, yinyang_move: puts the rows in the order of their centroids, so that rows of a tile want the same groups of centroids.
//
//   yinyang_count    how many rows each centroid has
//   yinyang_starts   where the rows of each centroid begin
//   yinyang_places   each row gets a place
//   yinyang_move     a copy of the rows by place
//
// Source:    ours. A counting sort.
// Used when: once a fit, after its first iteration. These kernels do their work even if the fit has stopped, because the host does not know.
// Tile:      yinyang_count, yinyang_places: a block has a run of rows. yinyang_starts: one block. yinyang_move: a thread has a value.
// Memory:    yinyang_move reads single values of x, 32 bytes each, of one column at a time.
#include "yinyang.cuh"

#define THREADS 256
#define STARTS_THREADS 1024
// Clusters up to which a block counts its rows in shared memory first.
#define MOST_COUNTS 8192

template <typename T, typename S = T> struct MovedRows {
    Rows<T, S> rows;
    const u32* row_of_place; // (n)
    S* x; // (d, stride)
    u64 stride;
};

// The rows of a block: as many consecutive ones as every other block has.
struct Run {
    u64 begin, end;

    __device__ __forceinline__ explicit Run(u32 n) {
        const u64 rows = ((u64)n + gridDim.x - 1) / gridDim.x;
        begin = min((u64)n, blockIdx.x * rows), end = min((u64)n, begin + rows);
    }
};

// How many rows of a block's run each centroid has. All threads must call this.
__device__ __forceinline__ void count_run(const Carried& a, const Run& run, u32* counts) {
    for (u32 i = threadIdx.x; i < a.k; i += THREADS) counts[i] = 0;
    __syncthreads();
    for (u64 i = run.begin + threadIdx.x; i < run.end; i += THREADS) atomicAdd(&counts[a.places[load_label(a.labels, i)]], 1u);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) yinyang_count(const __grid_constant__ Carried a) {
    __shared__ u32 counts[MOST_COUNTS];
    wait_for_kernel_before();
    const Run run(a.n);
    if (a.k > MOST_COUNTS) {
        for (u64 i = run.begin + threadIdx.x; i < run.end; i += THREADS) atomicAdd(&a.counts[a.places[load_label(a.labels, i)]], 1u);
        return;
    }
    count_run(a, run, counts);
    for (u32 i = threadIdx.x; i < a.k; i += THREADS)
        if (counts[i] != 0) atomicAdd(&a.counts[i], counts[i]);
}

extern "C" __global__ void __launch_bounds__(STARTS_THREADS) yinyang_starts(const __grid_constant__ Carried a) {
    __shared__ u32 sums[STARTS_THREADS / 32];
    wait_for_kernel_before();
    const u32 tid = threadIdx.x, lane = tid & 31, share = (a.k + STARTS_THREADS - 1) / STARTS_THREADS;
    const u32 begin = min(a.k, tid * share), end = min(a.k, begin + share);
    u32 own = 0;
    for (u32 i = begin; i < end; i++) own += a.counts[i];
    u32 sum = own;
    for (int o = 1; o < 32; o <<= 1) {
        const u32 other = __shfl_up_sync(FULL_WARP, sum, o);
        if (lane >= o) sum += other;
    }
    if (lane == 31) sums[tid / 32] = sum;
    __syncthreads();
    u32 at = sum - own;
    for (u32 w = 0; w < tid / 32; w++) at += sums[w];
    for (u32 i = begin; i < end; i++) {
        const u32 count = a.counts[i];
        a.counts[i] = at;
        at += count;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) yinyang_places(const __grid_constant__ Carried a) {
    __shared__ u32 counts[MOST_COUNTS];
    wait_for_kernel_before();
    const Run run(a.n);
    const bool few = a.k <= MOST_COUNTS;
    if (few) {
        count_run(a, run, counts);
        // Then the place of the block's next row of each centroid.
        for (u32 i = threadIdx.x; i < a.k; i += THREADS)
            if (counts[i] != 0) counts[i] = atomicAdd(&a.counts[i], counts[i]);
        __syncthreads();
    }
    for (u64 i = run.begin + threadIdx.x; i < run.end; i += THREADS) {
        const u32 centroid = a.places[load_label(a.labels, i)];
        a.row_of_place[few ? atomicAdd(&counts[centroid], 1u) : atomicAdd(&a.counts[centroid], 1u)] = (u32)i;
    }
}

// One feature after another: a column may fit in the second-level cache.
template <typename T, typename S> __device__ __forceinline__ void move(const MovedRows<T, S>& a) {
    wait_for_kernel_before();
#pragma unroll 1
    for (int f = 0; f < a.rows.d; f++) {
        const S* const from = a.rows.x + (u64)f * a.rows.stride;
        S* const to = a.x + (u64)f * a.stride;
#pragma unroll 4
        for (u64 place = global_thread(); place < a.rows.n; place += all_threads()) to[place] = from[a.row_of_place[place]];
    }
}

#define MOVE(T, S, NAME)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) yinyang_move_##NAME(const __grid_constant__ MovedRows<T, S> a) { move(a); }
MOVE(float, float, f32)
MOVE(double, double, f64)
MOVE(float, Half, f16)
