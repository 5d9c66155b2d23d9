// tensor_places: where the copies of the rows of each group lie, for assign_tensor.
//
//   tensor_reach   how many centroids can be nearest to a row of each group. If these are most of all, the group does not pay: its rows have their
//                  copies with the fallback group. How large the fallback group is
//   tensor_places  the tiles of each group, and the places of each bucket
//
// Rows of one label lie side by side: then a warp's rows have the same few centroids in reach, and most tiles of centroids have none.
// Used when: after tensor_groups.cu.
// Tile:      tensor_reach: a block for each group. tensor_places: one block.
#include "tensor_rows.cuh"

#define REACH_THREADS 256
#define MOST_REACHED 0.75 // the share of the centroids from which a group does not pay

__device__ __forceinline__ double block_total(double v, double (&of_warps)[REACH_THREADS / 32]) {
    v = warp_total(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0.0;
    for (int w = 0; w < REACH_THREADS / 32; w++) v += of_warps[w];
    return v;
}

template <typename T, typename S> __device__ __forceinline__ void tensor_reach(const TensorRows<T, S>& a) {
    __shared__ double of_warps[REACH_THREADS / 32];
    const int tid = threadIdx.x, d = a.rows.d;
    const u32 g = blockIdx.x;
    const TensorGroup& group = a.groups[g];
    if (g >= *a.count || group.all == 0) return;
    const float* const near = a.near + (u64)g * a.k;
    float least = infinity_f();
    for (u32 j = tid; j < a.k; j += REACH_THREADS) least = fminf(least, near[j]);
    for (int o = 16; o; o >>= 1) least = fminf(least, __shfl_xor_sync(FULL_WARP, least, o));
    if ((tid & 31) == 0) of_warps[tid / 32] = least;
    __syncthreads();
    for (int w = 0; w < REACH_THREADS / 32; w++) least = fminf(least, (float)of_warps[w]);
    // As in tensor_list, but the roundings do not matter here.
    const double reach = 2.0 * fmin((double)group.farthest, MOST_MEANS * group.lengths / max(group.rows, 1u)) + sqrt((double)least);
    u32 in = 0;
    for (u32 j = tid; j < a.k; j += REACH_THREADS) in += near[j] <= reach * reach ? 1 : 0;
    const double all = block_total((double)in, of_warps);
    double square = 0.0;
    const T *const own = a.centres + g * centre_width(d), *const mean = a.centres + a.most * centre_width(d);
    for (int f = tid; f < d; f += REACH_THREADS) {
        const double t = ((double)own[f] - (double)mean[f]) * (double)a.scale;
        square = __fma_rn(t, t, square);
    }
    const double away = sqrt(block_total(square, of_warps));
    if (tid != 0) return;
    // The triangle inequality: no row is farther from the mean, and their lengths from it are not more. The factor is far more than the roundings.
    const double farthest = (group.farthest_of_all + away) * 1.000001;
    TensorGroup* const fallback = a.groups + a.most;
    atomicMax((u32*)&fallback->farthest, __float_as_uint(farthest < 1e37 ? __double2float_ru(farthest) : infinity_f()));
    atomicAdd(&fallback->rows, group.all);
    atomicAdd(&fallback->lengths, group.lengths_of_all + group.all * away);
    if (group.rows == 0) return;
    const bool pays = all <= MOST_REACHED * a.k;
    a.groups[g].home = pays ? g : a.most, a.groups[g].centroids = (u32)all;
    if (pays) atomicAdd(&a.totals->tiles, tiles_of((u32)all));
}

#define PLACES_THREADS 1024

// The sum of the values of the threads before this one. `total`: of all. Between barriers.
__device__ __forceinline__ u32 sum_before(u32 value, u32& total) {
    __shared__ u32 warps[PLACES_THREADS / 32];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u32 until = value;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const u32 other = __shfl_up_sync(FULL_WARP, until, o);
        until += lane >= o ? other : 0;
    }
    __syncthreads();
    if (lane == 31) warps[warp] = until;
    __syncthreads();
    u32 before = 0;
    total = 0;
    for (u32 w = 0; w < PLACES_THREADS / 32; w++) {
        if (w < warp) before += warps[w];
        total += warps[w];
    }
    return before + until - value;
}

// How precise the copies of a group's rows are.
__device__ __forceinline__ void scale_rows(TensorGroup& group) {
    const double most = group.rows ? MOST_MEANS * group.lengths / group.rows : 0.0;
    group.radius = group.farthest > most ? __double2float_ru(most) : group.farthest;
    // The largest norm of a copy is between 2^14 and 2^15, or the group is tiny beside the data. Infinite distances (rows out of
    // the range of float32) give copies that are not finite, which `tensor_rows` keeps out.
    const int exponent = group.radius > 0.0f ? min(14 - ilogbf(group.radius), 60) : 0;
    group.row_scale = ldexpf(1.0f, group.radius < 1e30f ? exponent : 0);
}

// One block, with a thread for each group. The fallback group comes first.
template <typename T, typename S> __device__ __forceinline__ void tensor_places(const TensorRows<T, S>& a) {
    __shared__ u32 next[MOST_GROUPS + 1]; // the next place of each group, for labels
    __shared__ float gains[MOST_GROUPS];
    __shared__ u32 copies[MOST_GROUPS]; // tiles of copies of centroids
    __shared__ u32 rows_of_fallback, unlabelled_of_fallback, groups;
    const u32 tid = threadIdx.x, count = *a.count;
    TensorGroup& fallback = a.groups[a.most];
    // The fallback group has the rows that are too far away from their group's centre already.
    if (tid == 0) rows_of_fallback = unlabelled_of_fallback = a.buckets[a.most], groups = 0;
    __syncthreads();
    // If there is not enough room for copies, the groups come first that save the most products for a tile of copies.
    const u32 of_all = tiles_of(a.k), room = a.copies_of_centroids > of_all ? a.copies_of_centroids - of_all : 0;
    const bool is_group = tid < count && a.groups[tid].rows != 0, pays = is_group && a.groups[tid].home == tid;
    bool stays = pays;
    if (a.totals->tiles > room) {
        const u32 reached = pays ? a.groups[tid].centroids : 0, own = tiles_of(reached);
        const float gain = own != 0 ? (float)a.groups[tid].rows * (float)(a.k - reached) / (float)own : -1.0f;
        gains[tid] = gain, copies[tid] = own;
        __syncthreads();
        u32 until = own;
        for (u32 g = 0; g < count; g++)
            if (gains[g] > gain || (gains[g] == gain && g < tid)) until += copies[g];
        stays = own != 0 && until <= room;
    }
    const u32 rows = is_group ? a.groups[tid].rows : 0, unlabelled = is_group ? a.buckets[tid] : 0;
    if (stays) {
        atomicAdd(&groups, 1);
    } else if (is_group) {
        atomicAdd(&rows_of_fallback, rows), atomicAdd(&unlabelled_of_fallback, unlabelled);
        a.groups[tid].home = a.most;
    }
    __syncthreads();
    const u32 rows_at_once = a.row_tiles * TILE_ROWS;
    const u32 tiles_of_fallback = (rows_of_fallback + rows_at_once - 1) / rows_at_once * a.row_tiles;
    const u32 tiles_here = stays ? (rows + rows_at_once - 1) / rows_at_once * a.row_tiles : 0;
    u32 tiles;
    const u32 first = tiles_of_fallback + sum_before(tiles_here, tiles);
    tiles += tiles_of_fallback;
    if (stays) {
        a.groups[tid].first_tile = first, a.groups[tid].here = rows;
        a.buckets[tid] = first * TILE_ROWS, next[tid] = first * TILE_ROWS + unlabelled;
        for (u32 tile = first; tile < first + tiles_here; tile++) a.group_of_tile[tile] = tid;
        scale_rows(a.groups[tid]);
    }
    if (tid == 0) {
        fallback.home = a.most, fallback.first_tile = 0, fallback.here = rows_of_fallback;
        a.buckets[a.most] = 0, next[a.most] = unlabelled_of_fallback;
        scale_rows(fallback);
        a.totals->groups = groups;
    }
    for (u32 tile = tid; tile < tiles_of_fallback; tile += PLACES_THREADS) a.group_of_tile[tile] = a.most;
    for (u32 tile = tiles + tid; tile < a.tiles; tile += PLACES_THREADS) a.group_of_tile[tile] = NO_ROW;
    __syncthreads();
    // A group has the rows without a label first, and then the labels of its centroids.
    for (u32 j = tid; j < a.k; j += PLACES_THREADS) {
        u32* const bucket = a.buckets + a.most + 1 + j;
        const u32 here = *bucket;
        if (here != 0) *bucket = atomicAdd(&next[a.groups[a.group_of_centroid[j]].home], here);
    }
}

#define KERNEL(T, S, FUNCTION, THREADS, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ TensorRows<T, S> a) {                                 \
        if (a.control->stop == 0 && again(a.few, a.most_doubt, a.most_kept)) FUNCTION(a);                                                                 \
    }
#define KERNELS(T, S, TYPE)                                                                                                                  \
    KERNEL(T, S, tensor_reach, REACH_THREADS, tensor_reach_##TYPE)                                                                           \
    KERNEL(T, S, tensor_places, PLACES_THREADS, tensor_places_##TYPE)
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)
