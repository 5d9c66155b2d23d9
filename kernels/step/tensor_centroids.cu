// tensor_centroids: what assign_tensor reads of the centroids, for each group of rows.
//
//   tensor_centres    the first centres of groups: some of the centroids, far from each other
//   tensor_means      better centres: the means of the centroids near them
//   tensor_merge      one group instead of all, if most centroids can be nearest to a row of most groups: then groups skip little, and the mean of
//                     all rows is the better centre
//   tensor_near       the distance of each centroid from each group's centre, in float64
//   tensor_list       which centroids can be nearest to a row of the group: src/bounds/fp16.rs. The others are not multiplied
//   tensor_centroids  their half-precision copies from the group's centre, with their own parts of the bound
//
// Used when: before every assign_tensor. tensor_centres, tensor_means and tensor_merge: before the copies of the rows (tensor_rows.cu).
// Tile:      tensor_near: four warps for each centroid, one for every eight groups. tensor_list: a block for each group. tensor_centroids: a warp for each pair of a group and
//            a centroid.
#include "../common/sums.cuh"
#include "../common/tensor.cuh"
#include <cuda_fp16.h>

template <typename T> struct TensorCentroids {
    const T* centroids; // (k, d)
    T* centres; // (groups, d)
    T scale; // a power of two
    int count; // groups
    TensorGroup* groups;
    double* near; // (groups, k): squared distances
    u8* group_of_centroid; // (k): that of the nearest centre
    u32* list; // (groups, k padded): centroids
    u32* position; // (groups, k): where a centroid is in the list
    float* folded; // (groups, k padded): p of src/bounds/own.rs
    float* margins; // (groups, k padded): F
    float* tile_margins; // (groups, k padded / 256): the largest F of a tile
    u8* copies; // (groups, k padded / 256, chunks, 256, 64) of 2 bytes
    Labels labels; // before this step
    const u32* group_of_tile; // (tiles)
    const u32* row_of_place; // (tiles, 128)
    u32* first_visit; // (tiles): the tile of centroids that a tile of rows begins with
    const Control* control;
    const FewControl* few;
    TensorTerms bound;
    int d, k;
    u32 k_padded, chunks, tiles;
    u32 before_groups; // tensor_near is for tensor_means or tensor_merge, which may have nothing to do
    u64 most_doubt, most_kept;
};

// The score of places without a centroid, above every limit. Minus this: that of centroids that are always in reach. Not infinite: differences with
// limits are taken.
#define FARTHEST 1e38f

__device__ __forceinline__ double warp_total(double v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
    return v;
}

#define CENTRES_THREADS 1024
#define SAMPLE 512 // centroids that tensor_centres looks at
#define LOOKED_AT 64 // the most features in which it does
#define SHARES (CENTRES_THREADS / SAMPLE) // threads of a centroid

// One block. Each centre is drawn in proportion to its squared distance from those before it (Arthur & Vassilvitskii 2007), in some of the
// features. Any centres would do: bad ones cost only time.
template <typename T> __device__ __forceinline__ void tensor_centres(const TensorCentroids<T>& a) {
    __shared__ float near[SAMPLE], centre[LOOKED_AT];
    __shared__ int drawn;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, sampled = min(SAMPLE, a.k);
    const auto centroid = [&](int i) { return a.centroids + (u64)((u64)i * a.k / sampled) * a.d; };
    const int every = (a.d + LOOKED_AT - 1) / LOOKED_AT, some = (a.d + every - 1) / every;
    // Two neighbours share a centroid. Its values are taken from the first one's, so float32 is precise enough.
    const int own = tid / SHARES, part = tid % SHARES;
    float values[LOOKED_AT / SHARES];
#pragma unroll
    for (int i = 0; i < LOOKED_AT / SHARES; i++) {
        const int f = i * SHARES + part;
        values[i] = own < sampled && f < some ? (float)((centroid(own)[f * every] - centroid(0)[f * every]) * a.scale) : 0.0f;
    }
    if (part == 0) near[own] = infinity_f();
    u32 state = 1;
#pragma unroll 1
    for (int g = 0, last = 0; g < a.count; g++) {
        for (int f = tid; f < a.d; f += CENTRES_THREADS) a.centres[(u64)g * a.d + f] = centroid(last)[f];
        if (own == last) {
#pragma unroll
            for (int i = 0; i < LOOKED_AT / SHARES; i++) centre[i * SHARES + part] = values[i];
        }
        __syncthreads();
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < LOOKED_AT / SHARES; i++) {
            const float t = values[i] - centre[i * SHARES + part];
            s = __fmaf_rn(t, t, s);
        }
        s += __shfl_xor_sync(FULL_WARP, s, 1);
        if (part == 0 && s < near[own]) near[own] = s;
        __syncthreads();
        state = state * 1664525u + 1013904223u;
        if (warp == 0) {
            // Each lane has a run of the sample.
            const int run = SAMPLE / 32;
            float sum = 0.0f;
            for (int i = lane * run; i < min((lane + 1) * run, sampled); i++) sum += near[i];
            float end = sum;
            for (int o = 1; o < 32; o *= 2) {
                const float before = __shfl_up_sync(FULL_WARP, end, o);
                if (lane >= o) end += before;
            }
            float left = __shfl_sync(FULL_WARP, end, 31) * ((float)(state >> 8) * 0x1p-24f) - (end - sum);
            if (lane == 0) drawn = 0;
            __syncwarp();
            if (left >= 0.0f && left < sum) {
                int i = lane * run;
                const int stop = min((lane + 1) * run, sampled) - 1;
                for (; i < stop && left >= near[i]; i++) left -= near[i];
                drawn = i;
            }
        }
        __syncthreads();
        last = drawn;
    }
}

#define MEANS_THREADS 256

// One block for each group, whose centre becomes the mean of the centroids nearest to it.
template <typename T> __device__ __forceinline__ void tensor_means(const TensorCentroids<T>& a) {
    __shared__ int members[MEANS_THREADS];
    __shared__ int found;
    const int tid = threadIdx.x, g = blockIdx.x;
    T* const centre = a.centres + (u64)g * a.d;
    int count = 0;
    // The sums are in `copies`, which nobody reads now: a group has room for more than d of them.
    float* const sums = (float*)(a.copies + (u64)g * a.k_padded * a.chunks * PLACE_BYTES);
    for (int f = tid; f < a.d; f += MEANS_THREADS) sums[f] = 0.0f;
#pragma unroll 1
    for (int base = 0; base < a.k; base += MEANS_THREADS) {
        __syncthreads();
        if (tid == 0) found = 0;
        __syncthreads();
        const int j = base + tid;
        if (j < a.k && a.group_of_centroid[j] == g) members[atomicAdd(&found, 1)] = j;
        __syncthreads();
        count += found;
        for (int f = tid; f < a.d; f += MEANS_THREADS) {
            float sum = sums[f];
            for (int i = 0; i < found; i++) sum += (float)((a.centroids[(u64)members[i] * a.d + f] - centre[f]) * a.scale);
            sums[f] = sum;
        }
    }
    if (count == 0) return;
    for (int f = tid; f < a.d; f += MEANS_THREADS) {
        const T mean = centre[f] + (T)(sums[f] / (float)count) / a.scale;
        if (isfinite(mean)) centre[f] = mean;
    }
}

#define NEAR_THREADS 256
#define AT_ONCE 8 // groups of a warp
#define SIDES (MOST_GROUPS / AT_ONCE) // warps of a centroid

template <typename T> __device__ __forceinline__ void tensor_near(const TensorCentroids<T>& a) {
    __shared__ double least_of[NEAR_THREADS / 32];
    __shared__ int nearest_of[NEAR_THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = warp % SIDES * AT_ONCE;
    const u32 step = gridDim.x * (NEAR_THREADS / 32 / SIDES);
    if (a.before_groups && !again(a.few, a.most_doubt, a.most_kept)) return;
    const int count = !a.before_groups && a.groups[0].alone ? 1 : a.count;
#pragma unroll 1
    for (u32 base = 0; base < (u32)a.k; base += step) {
        const u32 j = base + blockIdx.x * (NEAR_THREADS / 32 / SIDES) + warp / SIDES;
        const bool has = j < (u32)a.k && first < count;
        double least = infinity();
        int nearest = 0;
        if (has) {
            const T* const c = a.centroids + (u64)j * a.d;
            // The last group several times: a branch would make each load wait for the one before.
            const T* centres[AT_ONCE];
            double sums[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) sums[i] = 0.0, centres[i] = a.centres + (u64)min(first + i, count - 1) * a.d;
#pragma unroll 2
            for (int f = lane; f < a.d; f += 32) {
                const double value = (double)c[f];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    const double t = (value - (double)centres[i][f]) * (double)a.scale;
                    sums[i] = __fma_rn(t, t, sums[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const double s = warp_total(sums[i]);
                if (lane == 0 && first + i < count) a.near[(u64)(first + i) * a.k + j] = s;
                if (s < least) least = s, nearest = first + i;
            }
        }
        if (lane == 0) least_of[warp] = least, nearest_of[warp] = nearest;
        __syncthreads();
        if (warp % SIDES == 0 && lane == 0 && has) {
            for (int w = warp + 1; w < warp + SIDES; w++)
                if (least_of[w] < least) least = least_of[w], nearest = nearest_of[w];
            a.group_of_centroid[j] = (u8)nearest;
        }
        __syncthreads();
    }
}

#define MERGE_THREADS 1024
#define MOST_VISITED 0.75 // the share of the pairs of a row and a centroid from which groups do not pay

// One block, after tensor_group, with the distances from the centres of now.
template <typename T> __device__ __forceinline__ void tensor_merge(const TensorCentroids<T>& a) {
    __shared__ double visited[MOST_GROUPS], farthest[MOST_GROUPS], lengths;
    __shared__ u32 rows, groups;
    const int tid = threadIdx.x, lane = tid & 31, g = tid >> 5;
    const bool has_rows = g < a.count && a.groups[g].rows != 0;
    if (tid == 0) rows = groups = 0, lengths = 0.0;
    if (tid < MOST_GROUPS) visited[tid] = farthest[tid] = 0.0;
    __syncthreads();
    if (has_rows) {
        const TensorGroup& group = a.groups[g];
        const double* const near = a.near + (u64)g * a.k;
        double least = infinity();
        for (int j = lane; j < a.k; j += 32) least = fmin(least, near[j]);
        for (int o = 16; o; o >>= 1) least = fmin(least, __shfl_xor_sync(FULL_WARP, least, o));
        // As in tensor_list, but the roundings do not matter here.
        const double reach = 2.0 * fmin((double)group.farthest, MOST_MEANS * group.lengths / group.rows) + sqrt(least);
        u32 in = 0;
        for (int j = lane; j < a.k; j += 32) in += near[j] <= reach * reach ? 1 : 0;
        in = __reduce_add_sync(FULL_WARP, in);
        if (lane == 0) {
            visited[g] = (double)in * group.rows;
            atomicAdd(&rows, group.rows), atomicAdd(&groups, 1);
        }
    }
    __syncthreads();
    double all = 0.0;
    for (int other = 0; other < MOST_GROUPS; other++) all += visited[other];
    if (groups < 2 || !(all > MOST_VISITED * rows * a.k)) return;
    // The mean of the centres, as far as it is finite. It is in `copies` until the distances are known: nobody reads those now.
    T* const mean = (T*)a.copies;
    for (int f = tid; f < a.d; f += MERGE_THREADS) {
        const T first = a.centres[f];
        T sum = 0;
        for (int other = 1; other < a.count; other++) sum += (a.centres[(u64)other * a.d + f] - first) * (T)((float)a.groups[other].rows / rows);
        mean[f] = isfinite(first + sum) ? first + sum : first;
    }
    __syncthreads();
    if (has_rows) {
        double square = 0.0;
        for (int f = lane; f < a.d; f += 32) {
            const double t = ((double)a.centres[(u64)g * a.d + f] - (double)mean[f]) * (double)a.scale;
            square = __fma_rn(t, t, square);
        }
        square = warp_total(square);
        // The triangle inequality: no row is farther from the mean, and their lengths from it are not more. The factor is far more than the roundings.
        if (lane == 0) {
            farthest[g] = (a.groups[g].farthest + sqrt(square)) * 1.000001;
            atomicAdd(&lengths, a.groups[g].lengths + a.groups[g].rows * sqrt(square));
        }
    }
    __syncthreads();
    for (int f = tid; f < a.d; f += MERGE_THREADS) a.centres[f] = mean[f];
    if (tid < a.count && tid > 0) a.groups[tid].rows = 0;
    if (tid != 0) return;
    double most = 0.0;
    for (int other = 0; other < MOST_GROUPS; other++)
        if (!(farthest[other] <= most)) most = isnan(farthest[other]) ? infinity() : farthest[other];
    a.groups[0].rows = rows, a.groups[0].lengths = lengths, a.groups[0].alone = 1;
    a.groups[0].farthest = most < 1e37 ? __double2float_ru(most) : infinity_f();
}

#define LIST_THREADS 512

// One block for each group.
template <typename T> __device__ __forceinline__ void tensor_list(const TensorCentroids<T>& a) {
    __shared__ double values[LIST_THREADS / 32];
    __shared__ u32 counts[LIST_THREADS / 32];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = blockIdx.x;
    TensorGroup* const group = a.groups + g;
    if (group->rows == 0) {
        if (tid == 0) group->centroids = 0;
        return;
    }
    const double* const near = a.near + (u64)g * a.k;
    double least = infinity();
    for (int j = tid; j < a.k; j += LIST_THREADS) least = fmin(least, near[j]);
    for (int o = 16; o; o >>= 1) least = fmin(least, __shfl_xor_sync(FULL_WARP, least, o));
    if (lane == 0) values[warp] = least;
    __syncthreads();
    for (int w = 0; w < LIST_THREADS / 32; w++) least = fmin(least, values[w]);
    __syncthreads();
    // No row with a copy is farther from the centroid nearest to the centre than radius + sqrt(least). The others are at least sqrt(near) - radius
    // away. The factors are far more than the roundings of all of these, and of reference distances. What reference distances lose below the
    // least number is `underflow` at most, for each of two.
    const double limit = (2.0 * group->radius + sqrt(least) + 2.0 * sqrt(a.bound.underflow)) * 1.000001 + 1e-12, reach = limit * 1.000001;
    // A typical squared distance of the centroids that are near: farther ones count as `most`.
    const double length = group->lengths / group->rows, most = fmax(length * length, 2.0 * least);
    for (u32 tile = tid; tile < a.k_padded / TILE_CENTROIDS; tile += LIST_THREADS) a.tile_margins[(u64)g * (a.k_padded / TILE_CENTROIDS) + tile] = 0.0f;
    u32 found = 0;
    double squares = 0.0;
#pragma unroll 1
    for (int base = 0; base < a.k; base += LIST_THREADS) {
        const int j = base + tid;
        const double distance = j < a.k ? sqrt(near[j]) : infinity();
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
        if (j < a.k) a.position[(u64)g * a.k + j] = in ? place : 0;
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
        group->centroids = found;
    }
}

template <typename T> __device__ __forceinline__ void tensor_centroids(const TensorCentroids<T>& a) {
    const int lane = threadIdx.x & 31;
    const u64 places = (u64)a.count * a.k_padded;
#pragma unroll 1
    for (u64 at = global_thread() / 32; at < places; at += all_threads() / 32) {
        const u32 g = (u32)(at / a.k_padded), place = (u32)(at - (u64)g * a.k_padded);
        const TensorGroup& group = a.groups[g];
        const u32 count = group.centroids;
        if (place >= (count + TILE_CENTROIDS - 1) / TILE_CENTROIDS * TILE_CENTROIDS) continue;
        const bool real = place < count;
        const T *c = a.centroids + (u64)(real ? a.list[at] : 0) * a.d, *m = a.centres + (u64)g * a.d;
        u8* const tile = a.copies + ((u64)g * (a.k_padded / TILE_CENTROIDS) + place / TILE_CENTROIDS) * a.chunks * (TILE_CENTROIDS * PLACE_BYTES);
        const u32 in_tile = place % TILE_CENTROIDS;
        double square = 0.0, copied = 0.0, residual = 0.0;
#pragma unroll 1
        for (u32 chunk = 0; chunk < a.chunks; chunk++) {
            __half pair[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int f = chunk * CHUNK + 2 * lane + e;
                const double value = real && f < a.d ? ((double)c[f] - (double)m[f]) * (double)a.scale * group.centroid_scale : 0.0;
                pair[e] = __double2half(value);
                // Products of what is not finite could lose a centroid. The residual says that nothing is known.
                if (!(fabsf(__half2float(pair[e])) < 65505.0f)) pair[e] = __float2half_rn(0.0f);
                const double copy = (double)__half2float(pair[e]), rest = value - copy;
                square = __fma_rn(value, value, square), copied = __fma_rn(copy, copy, copied), residual = __fma_rn(rest, rest, residual);
            }
            *(__half2*)(tile + chunk * (TILE_CENTROIDS * PLACE_BYTES) + swizzled(in_tile, lane / 4) + (lane & 3) * 4) = __halves2half2(pair[0], pair[1]);
        }
        square = warp_total(square), copied = warp_total(copied), residual = warp_total(residual);
        if (lane != 0) continue;
        float start = FARTHEST, margin = infinity_f();
        if (real) {
            const TensorTerms& b = a.bound;
            const double more = 1.0 + b.half, ratio = (double)group.row_scale / group.centroid_scale;
            const double norm = sqrt(square * more), rest = sqrt(residual * more) + 1.2e-16 * norm;
            const double copy = sqrt(copied * more) + b.subnormal;
            const double own = b.share * norm * norm + rest * rest / b.share + b.sum * copy * copy;
            const double error = 1.00001 * (own / (2.0 * group.balance) + b.least);
            const double half = 0.5 * ratio * square, below = half * (1.0 - b.half), above = half * (1.0 + b.half);
            const double roundings = 6.0e-8, z = below - error;
            start = __double2float_rd(z - 1.01 * roundings * fabs(z));
            const double reference = 4.0 * b.reference * half + b.underflow * ((double)group.row_scale * group.centroid_scale);
            const double p = (double)start;
            margin = __double2float_ru((above - p + 1.01 * roundings * fabs(p) + error + reference) * 1.00001);
            // Copies that are not finite, or scores that could overflow: always in reach, and nothing is compared with it.
            if (!(half < 1e36) || !(margin < 1e36f)) start = -FARTHEST, margin = infinity_f();
        }
        a.folded[at] = start, a.margins[at] = margin;
        // Not negative, so bits have the order of the values.
        if (real) atomicMax((u32*)&a.tile_margins[(u64)g * (a.k_padded / TILE_CENTROIDS) + place / TILE_CENTROIDS], __float_as_uint(margin));
    }
    // A tile of rows begins with the tile of centroids that has the label of one of its rows.
#pragma unroll 1
    for (u64 tile = global_thread(); tile < a.tiles; tile += all_threads()) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) continue;
        const u32 middle = a.row_of_place[tile * TILE_ROWS + TILE_ROWS / 2], row = middle == NO_ROW ? a.row_of_place[tile * TILE_ROWS] : middle;
        const u32 label = row == NO_ROW ? UNASSIGNED : load_label(a.labels, row);
        a.first_visit[tile] = label < a.k ? a.position[(u64)g * a.k + label] / TILE_CENTROIDS : 0;
    }
}

#define KERNEL(T, FUNCTION, THREADS, NAME)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ TensorCentroids<T> a) {                               \
        if (a.control->stop == 0) FUNCTION(a);                                                                                               \
    }
#define FIRST_KERNEL(T, FUNCTION, THREADS, NAME)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ TensorCentroids<T> a) {                               \
        if (a.control->stop == 0 && again(a.few, a.most_doubt, a.most_kept)) FUNCTION(a);                                                                 \
    }
#define KERNELS(T, TYPE)                                                                                                                     \
    FIRST_KERNEL(T, tensor_centres, CENTRES_THREADS, tensor_centres_##TYPE)                                                                  \
    FIRST_KERNEL(T, tensor_means, MEANS_THREADS, tensor_means_##TYPE)                                                                        \
    FIRST_KERNEL(T, tensor_merge, MERGE_THREADS, tensor_merge_##TYPE)                                                                        \
    KERNEL(T, tensor_near, NEAR_THREADS, tensor_near_##TYPE)                                                                                          \
    KERNEL(T, tensor_list, LIST_THREADS, tensor_list_##TYPE)                                                                                 \
    KERNEL(T, tensor_centroids, 256, tensor_centroids_##TYPE)
KERNELS(float, f32)
KERNELS(double, f64)
