// tensor_groups: which group each row belongs to, and where its copy lies, for assign_tensor.
//
//   tensor_clear   no place has a row, and no bucket
//   tensor_group   the group of each row: that of its label's centroid, or else that of the centre that is nearest in up to 32 features. How many
//                  rows each group and each bucket has, and how large a group is. Rows that are not finite have no group
//   tensor_places  the tiles of each group, and the places of each bucket
//
// Rows of one label lie side by side: then a warp's rows have the same few centroids in reach, and most tiles of centroids have none.
// Used when: in the first iteration. Again in a few later ones, if the one before had much doubt, or if rows in order would save much. If
//            rows stream, for each chunk of each iteration.
// Tile:      128 rows a block, 64 features at a time.
#include "tensor_rows.cuh"

#define GROUP_THREADS 128
#define SEARCHED 32 // the most features in which the nearest centre is searched
#define FLIGHT (sizeof(T) == 8 ? 1 : 4) // values of a row that are on their way at once

template <typename T, typename S> __device__ __forceinline__ void tensor_clear(const TensorRows<T, S>& a) {
    const u64 places = (u64)a.tiles * TILE_ROWS;
    for (u64 place = global_thread(); place < places; place += all_threads()) a.row_of_place[place] = NO_ROW, a.terms[place] = 0.0f;
    if (global_thread() < a.count) a.groups[global_thread()] = {};
    for (u64 bucket = global_thread(); bucket < MOST_GROUPS + (u64)a.k; bucket += all_threads()) a.buckets[bucket] = 0;
}

template <typename T, typename S> __device__ __forceinline__ void tensor_group(const TensorRows<T, S>& a) {
    __shared__ T centres[CHUNK][MOST_GROUPS]; // scaled
    __shared__ u32 radius[MOST_GROUPS], rows[MOST_GROUPS], unlabelled[MOST_GROUPS];
    __shared__ float lengths[MOST_GROUPS];
    const int tid = threadIdx.x, d = a.rows.d;
    if (tid < MOST_GROUPS) radius[tid] = rows[tid] = unlabelled[tid] = 0, lengths[tid] = 0.0f;
    const u64 row = (u64)blockIdx.x * GROUP_THREADS + tid;
    const bool inside = row < a.rows.n;
    // The centres in `features` features: in feature f * every.
    const auto load = [&](int first, int features, int every) {
        __syncthreads();
        for (int i = tid; i < features * MOST_GROUPS; i += GROUP_THREADS) {
            const int g = i / features, f = i % features;
            centres[f][g] = g < a.count ? a.centres[(u64)g * d + first + f * every] * a.scale : (T)0;
        }
        __syncthreads();
    };
    const auto value = [&](int f) { return inside ? a.rows.at((u64)f * a.rows.stride + row) * a.scale : (T)0; };
    const u32 label = inside ? label_of_row(a, row) : 0;
    int nearest = label < a.k ? a.group_of_centroid[label] : 0;
    // Without a label: the nearest centre in some of the features. Any group would do: a bad one costs only time.
    if (__syncthreads_or(label == UNASSIGNED)) {
        float sums[MOST_GROUPS];
#pragma unroll
        for (int g = 0; g < MOST_GROUPS; g++) sums[g] = 0.0f;
        const int every = (d + SEARCHED - 1) / SEARCHED, some = (d + every - 1) / every;
        load(0, some, every);
#pragma unroll 1
        for (int first = 0; first < some; first += FLIGHT) {
            T x[FLIGHT];
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) x[i] = first + i < some ? value((first + i) * every) : (T)0;
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                if (first + i >= some) break;
#pragma unroll
                for (int g = 0; g < MOST_GROUPS; g++) {
                    const float difference = (float)(x[i] - centres[first + i][g]);
                    sums[g] = __fmaf_rn(difference, difference, sums[g]);
                }
            }
        }
        if (label == UNASSIGNED) {
            float closest = sums[0];
#pragma unroll
            for (int g = 1; g < MOST_GROUPS; g++)
                if (g < a.count && sums[g] < closest) closest = sums[g], nearest = g;
        }
    }
    // The distance from it, in all features.
    float least = 0.0f;
#pragma unroll 1
    for (int done = 0; done < d; done += CHUNK) {
        const int features = min(CHUNK, d - done);
        load(done, features, 1);
#pragma unroll(sizeof(T) == 8 ? 8 : 16)
        for (int f = 0; f < features; f++) {
            const float difference = (float)(value(done + f) - centres[f][nearest]);
            least = __fmaf_rn(difference, difference, least);
        }
    }
    bool kept = inside;
    // NaN, or out of the range of float32. Few rows are, so they are read again to see why.
    if (inside && !(least < infinity_f())) {
#pragma unroll 1
        for (int f = 0; f < d; f++) {
            const T x = a.rows.at((u64)f * a.rows.stride + row);
            kept &= x - x == (T)0;
        }
        least = infinity_f();
    }
    if (inside) a.group_of_row[row] = kept ? (u8)nearest : (u8)NO_GROUP;
    if (kept) {
        // Not negative, so bits have the order of the values.
        atomicMax(&radius[nearest], __float_as_uint(least));
        atomicAdd(&rows[nearest], 1);
        atomicAdd(label < a.k ? &a.buckets[MOST_GROUPS + label] : &unlabelled[nearest], 1);
        // A row out of the range of float32 must not make the mean infinite.
        if (least < infinity_f()) atomicAdd(&lengths[nearest], sqrtf(least));
    }
    __syncthreads();
    if (tid < a.count && rows[tid] != 0) {
        TensorGroup* const group = a.groups + tid;
        const double far = sqrt((double)__uint_as_float(radius[tid])) * (1.0 + a.bound.radius);
        atomicMax((u32*)&group->farthest, __float_as_uint(__double2float_ru(far)));
        atomicAdd(&group->rows, rows[tid]);
        atomicAdd(&group->lengths, (double)lengths[tid]);
        if (unlabelled[tid] != 0) atomicAdd(&a.buckets[tid], unlabelled[tid]);
    }
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

// One block.
template <typename T, typename S> __device__ __forceinline__ void tensor_places(const TensorRows<T, S>& a) {
    __shared__ u32 first[MOST_GROUPS + 1];
    __shared__ bool labelled;
    if (threadIdx.x == 0) {
        u32 tile = 0, rows = 0, unlabelled = 0;
        for (int g = 0; g < a.count; g++) {
            TensorGroup& group = a.groups[g];
            group.first_tile = first[g] = tile;
            tile += (group.rows + TILE_ROWS - 1) / TILE_ROWS;
            const double most = group.rows ? MOST_MEANS * group.lengths / group.rows : 0.0;
            group.radius = group.farthest > most ? __double2float_ru(most) : group.farthest;
            // The largest norm of a copy is between 2^14 and 2^15, or the group is tiny beside the data. Infinite distances (rows out of
            // the range of float32) give copies that are not finite, which `tensor_rows` keeps out.
            const int exponent = group.radius > 0.0f ? min(14 - ilogbf(group.radius), 60) : 0;
            group.row_scale = ldexpf(1.0f, group.radius < 1e30f ? exponent : 0);
            rows += group.rows, unlabelled += a.buckets[g];
        }
        // The rows of the other groups have come to the first one: tensor_merge.
        if (a.groups[0].alone) a.buckets[0] = unlabelled;
        first[a.count] = tile, labelled = unlabelled < rows;
    }
    __syncthreads();
    const bool alone = a.groups[0].alone;
    for (int g = 0; g < a.count; g++) {
        for (u32 tile = first[g] + threadIdx.x; tile < first[g + 1]; tile += PLACES_THREADS) a.group_of_tile[tile] = g;
        // A group has the rows without a label first, and then the labels of its centroids.
        u32 place = first[g] * TILE_ROWS + a.buckets[g];
        __syncthreads();
        if (threadIdx.x == 0) a.buckets[g] = first[g] * TILE_ROWS;
#pragma unroll 1
        for (u32 base = 0; labelled && base < a.k; base += PLACES_THREADS) {
            const u32 j = base + threadIdx.x;
            const bool mine = j < a.k && (alone ? g == 0 : a.group_of_centroid[j] == g);
            u32 all;
            const u32 before = sum_before(mine ? a.buckets[MOST_GROUPS + j] : 0, all);
            if (mine) a.buckets[MOST_GROUPS + j] = place + before;
            place += all;
        }
    }
    for (u32 tile = first[a.count] + threadIdx.x; tile < a.tiles; tile += PLACES_THREADS) a.group_of_tile[tile] = NO_ROW;
}

#define KERNEL(T, S, FUNCTION, THREADS, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ TensorRows<T, S> a) {                                 \
        if (a.control->stop == 0 && again(a.few, a.most_doubt, a.most_kept)) FUNCTION(a);                                                                 \
    }
#define KERNELS(T, S, TYPE)                                                                                                                  \
    KERNEL(T, S, tensor_clear, 256, tensor_clear_##TYPE)                                                                                     \
    KERNEL(T, S, tensor_group, GROUP_THREADS, tensor_group_##TYPE)                                                                           \
    KERNEL(T, S, tensor_places, PLACES_THREADS, tensor_places_##TYPE)
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)
