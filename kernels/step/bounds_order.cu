// bounds_count, bounds_starts, bounds_places, bounds_move: puts the rows in the order of their centroids, so that rows of a tile want the same groups of centroids.
//
//   bounds_count    how many rows each centroid has
//   bounds_starts   where the rows of each centroid begin
//   bounds_places   each row gets a place
//   bounds_move     a copy of the rows by place
//
// Source:    ours. A counting sort.
// Used when: once a fit, after its first iteration. These kernels do their work even if the fit has stopped, because the host does not know.
// Tile:      a thread has a row. bounds_starts: one block.
// Memory:    bounds_move reads single values of x, 32 bytes each.
#include "../common/bounds.cuh"

#define THREADS 256
#define STARTS_THREADS 1024

template <typename T, typename S = T> struct MovedRows {
    Rows<T, S> rows;
    const u32* row_of_place; // (n)
    S* x; // (d, stride)
    u64 stride;
};

extern "C" __global__ void __launch_bounds__(THREADS) bounds_count(const __grid_constant__ Carried a) {
    wait_for_kernel_before();
    for (u64 i = global_thread(); i < a.n; i += all_threads()) atomicAdd(&a.counts[a.places[load_label(a.labels, i)]], 1u);
}

extern "C" __global__ void __launch_bounds__(STARTS_THREADS) bounds_starts(const __grid_constant__ Carried a) {
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

extern "C" __global__ void __launch_bounds__(THREADS) bounds_places(const __grid_constant__ Carried a) {
    wait_for_kernel_before();
    for (u64 i = global_thread(); i < a.n; i += all_threads())
        a.row_of_place[atomicAdd(&a.counts[a.places[load_label(a.labels, i)]], 1u)] = (u32)i;
}

template <typename T, typename S> __device__ __forceinline__ void move(const MovedRows<T, S>& a) {
    wait_for_kernel_before();
    for (u64 place = global_thread(); place < a.rows.n; place += all_threads()) {
        const S* const from = a.rows.x + a.row_of_place[place];
        S* const to = a.x + place;
#pragma unroll 8
        for (int f = 0; f < a.rows.d; f++) to[(u64)f * a.stride] = from[(u64)f * a.rows.stride];
    }
}

#define MOVE(T, S, NAME)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) bounds_move_##NAME(const __grid_constant__ MovedRows<T, S> a) { move(a); }
MOVE(float, float, f32)
MOVE(double, double, f64)
MOVE(float, Half, f16)
