// tensor_centroids: what assign_tensor reads of the centroids, for each group of rows.
//
//   tensor_list       which centroids can be nearest to a row of the group: src/bounds/fp16.rs. The others are not multiplied
//   tensor_centroids  their half-precision copies from the group's centre, with their own parts of the bound
//
// Used when: before every assign_tensor, after tensor_near (tensor_centres.cu).
// Tile:      tensor_list: a block for each group. tensor_centroids: a warp for each pair of a group and a centroid.
// Memory:    the copies of all groups share a pool. Its first tiles are those of the fallback group. A group takes as many tiles as its list has. If the pool is too small, which is made
//            unlikely when groups are made, a group has no copies, and its rows are compared with all centroids.
#include "tensor_centroids.cuh"
#include "tensor_copies.cuh"

#define LIST_THREADS 512

// One block for each group, and one for the fallback group.
template <typename T> __device__ __forceinline__ void tensor_list(const TensorCentroids<T>& a) {
    __shared__ double values[LIST_THREADS / 32];
    __shared__ u32 counts[LIST_THREADS / 32];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const u32 g = blockIdx.x;
    TensorGroup* const group = a.groups + g;
    if (group->here == 0 && g != a.most) {
        if (tid == 0) group->centroids = 0;
        return;
    }
    const float* const near = a.near + (u64)g * a.k;
    double least = infinity();
    for (int j = tid; j < a.k; j += LIST_THREADS) least = fmin(least, (double)near[j]);
    for (int o = 16; o; o >>= 1) least = fmin(least, __shfl_xor_sync(FULL_WARP, least, o));
    if (lane == 0) values[warp] = least;
    __syncthreads();
    for (int w = 0; w < LIST_THREADS / 32; w++) least = fmin(least, values[w]);
    __syncthreads();
    // No row with a copy is farther from the centroid nearest to the centre than radius + sqrt(least). The others are at least sqrt(near) - radius
    // away. The factors are far more than the roundings of all of these, and of reference distances. What reference distances lose below the
    // least number is `underflow` at most, for each of two. The distances are those of float32 arithmetic. A square below its range is far below 1e-12.
    const double from_float = 1.0 + a.bound.radius, nearest = sqrt(least) * from_float;
    const double limit = (2.0 * group->radius + nearest + 2.0 * sqrt(a.bound.underflow)) * 1.000001 + 1e-12, reach = limit * 1.000001 * from_float;
    // A typical squared distance of the centroids that are near: farther ones count as `most`.
    const double length = group->lengths / max(group->rows, 1u), most = fmax(length * length, 2.0 * least);
    u32 found = 0;
    double squares = 0.0;
#pragma unroll 1
    for (int base = 0; base < a.k; base += LIST_THREADS) {
        const int j = base + tid;
        const double measured = j < a.k ? sqrt((double)near[j]) : infinity(), distance = measured > LONGEST ? LONGEST : measured;
        // NaN and what is not finite stay in the list, if the limit is not finite either.
        const bool in = j < a.k && !(distance > reach);
        if (in) squares += fmin(distance * distance, most);
        const u32 mask = __ballot_sync(FULL_WARP, in);
        if (lane == 0) counts[warp] = __popc(mask);
        __syncthreads();
        u32 before = found, all = 0;
        for (int w = 0; w < LIST_THREADS / 32; w++) {
            if (w < warp) before += counts[w];
            all += counts[w];
        }
        const u32 place = before + __popc(mask & ((1u << lane) - 1));
        if (in) a.list[(u64)g * a.k_padded + place] = j;
        found += all;
        __syncthreads();
    }
    squares = warp_total(squares);
    if (lane == 0) values[warp] = squares;
    __syncthreads();
    if (tid == 0) {
        squares = 0.0;
        for (int w = 0; w < LIST_THREADS / 32; w++) squares += values[w];
        // The largest copy is between 2^14 and 2^15.
        const int exponent = limit > 0.0 && limit < 1e30 ? min(14 - ilogb(limit), 60) : 0;
        const float scale = ldexpf(1.0f, min(exponent, ilogbf(group->row_scale)));
        // t is near |c| / |x|, in the units of both copies, and a power of two.
        const double centroids = squares / found * (double)scale * scale;
        const double rows = length * length * (double)group->row_scale * group->row_scale;
        const double ratio = centroids / rows;
        const int balance = ratio > 0.0 && ratio < 1e30 ? max(-6, min((int)floor(0.5 * log2(ratio) + 0.5), 6)) : 0;
        group->centroid_scale = scale;
        group->balance = ldexpf(1.0f, balance);
        // The fallback group has copies here only if it has rows. Its list is for the second product, too.
        const u32 tiles = tiles_of(found), of_fallback = a.k_padded / TILE_CENTROIDS;
        const bool copied = group->here != 0;
        if (g == a.most) a.control->groups = a.totals->groups + (copied ? 1 : 0);
        const u32 first = g == a.most ? 0 : of_fallback + atomicAdd(&a.few->copied, tiles);
        group->first_copy = first;
        group->centroids = first + tiles <= a.copied ? found : 0;
        for (u32 i = 0; i < tiles && first + i < a.copied; i++) a.group_of_copy[first + i] = copied ? g : NO_ROW, a.tile_slacks[first + i] = 0.0f;
        for (u32 i = tiles; g == a.most && i < of_fallback; i++) a.group_of_copy[i] = NO_ROW;
    }
}


template <typename T> __device__ __forceinline__ void tensor_centroids(const TensorCentroids<T>& a) {
    const u64 places = (u64)min(a.k_padded / TILE_CENTROIDS + a.few->copied, a.copied) * TILE_CENTROIDS;
#pragma unroll 1
    for (u64 at = global_thread() / 32; at < places; at += all_threads() / 32) {
        const u32 tile = (u32)(at / TILE_CENTROIDS), g = a.group_of_copy[tile];
        if (g == NO_ROW) continue;
        const TensorGroup& group = a.groups[g];
        const u32 place = (u32)at - group.first_copy * TILE_CENTROIDS;
        if (group.centroids == 0) continue; // it did not find room
        const bool real = place < group.centroids;
        const T* const c = a.centroids + (u64)(real ? a.list[(u64)g * a.k_padded + place] : 0) * a.d;
        u8* const copies = a.copies + (u64)tile * a.chunks * (TILE_CENTROIDS * PLACE_BYTES);
        const OwnTerms own = copy_centroid<false>(c, a.centres + g * centre_width(a.d), a.scale, group, a.bound, a.d, a.chunks, real, (u32)at % TILE_CENTROIDS, copies);
        if ((threadIdx.x & 31) != 0) continue;
        a.lowered[at] = own.lowered, a.slacks[at] = own.slack;
        // Not negative, so bits have the order of the values.
        if (real) atomicMax((u32*)&a.tile_slacks[tile], __float_as_uint(own.slack));
    }
    // A tile of rows begins with the tile of centroids that has the label of one of its rows.
#pragma unroll 1
    for (u64 tile = global_thread(); tile < a.tiles; tile += all_threads()) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) continue;
        const u32 middle = a.row_of_place[tile * TILE_ROWS + TILE_ROWS / 2], row = middle == NO_ROW ? a.row_of_place[tile * TILE_ROWS] : middle;
        const u32 label = row == NO_ROW ? UNASSIGNED : load_label(a.labels, row);
        // Its place in the list, which ascends.
        const u32* const list = a.list + (u64)g * a.k_padded;
        u32 low = 0, high = label < a.k ? a.groups[g].centroids : 0;
        while (low + 1 < high) {
            const u32 middle_of_list = (low + high) / 2;
            if (list[middle_of_list] <= label) low = middle_of_list;
            else high = middle_of_list;
        }
        a.first_visit[tile] = low / TILE_CENTROIDS;
    }
}

#define KERNEL(T, FUNCTION, THREADS, NAME)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ TensorCentroids<T> a) {                               \
        wait_for_kernel_before();                                                                                                            \
        if (a.control->stop == 0) FUNCTION(a);                                                                                               \
    }
#define KERNELS(T, TYPE)                                                                                                                     \
    KERNEL(T, tensor_list, LIST_THREADS, tensor_list_##TYPE)                                                                                 \
    KERNEL(T, tensor_centroids, 256, tensor_centroids_##TYPE)
KERNELS(float, f32)
KERNELS(double, f64)
