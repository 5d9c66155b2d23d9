// tensor_centres: the centres of groups of rows, for assign_tensor.
//
//   tensor_centres   the first centres: some of the centroids, far from each other. How many, the centroids say: see `tensor_centres`
//   tensor_means     better centres: the means of the centroids near them. That of the whole: the mean of all
//   tensor_near      the distance of each centroid from the centre of each group, in float32
//   tensor_nearest   the group of each centroid: that of the nearest centre
//
// Used when: tensor_near before every assign_tensor. All of them before groups are made (tensor_groups.cu).
// Tile:      tensor_centres: one block, a thread for two centroids of a sample. tensor_means: a block for 32 features of each group. tensor_near: 64 centroids and
//            32 centres a block, of which a thread has 4 x 4. tensor_nearest: a thread for each centroid.
#include "tensor_centroids.cuh"

#define CENTRES_THREADS 1024
#define POINTS 2 // of a thread
#define DRAWS 2 // at once. The first ones are all the first centroid
#define SAMPLE (POINTS * CENTRES_THREADS) // centroids that tensor_centres looks at
#define LOOKED_AT 16 // the most features in which it does
#define FLAT 1.3f // see `chosen_count`

// How many of the centres are used. `spread[i]`: the mean squared distance of the sample from the nearest of the first 2^i centres. Half of the
// centres are left out, again and again, as long as the spread hardly grows. So there are up to twice as many groups as natural clusters: with
// fewer centres the spread is many times as large.
__device__ __forceinline__ u32 chosen_count(const float* spread, int last) {
    while (last > 0 && spread[last - 1] <= FLAT * spread[last]) last--;
    return 1u << last;
}

// One block. Each centre is drawn in proportion to its squared distance from those before it (Arthur & Vassilvitskii 2007), in some of the
// features. Any centres would do: bad ones cost only time.
template <typename T> __device__ __forceinline__ void tensor_centres(const TensorCentroids<T>& a) {
    __shared__ float centre[DRAWS][LOOKED_AT], warps[CENTRES_THREADS / 32], spread[16];
    __shared__ u32 chosen[MOST_GROUPS], drawn[DRAWS], count;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, sampled = min(SAMPLE, a.k);
    const auto centroid = [&](int i) { return a.centroids + (u64)((u64)i * a.k / sampled) * a.d; };
    const int every = (a.d + LOOKED_AT - 1) / LOOKED_AT, some = (a.d + every - 1) / every;
    // Values are taken from those of the first centroid, so float32 is precise enough.
    float values[POINTS][LOOKED_AT], near[POINTS];
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
        const int own = p * CENTRES_THREADS + tid;
#pragma unroll
        for (int f = 0; f < LOOKED_AT; f++)
            values[p][f] = own < sampled && f < some ? (float)((centroid(own)[f * every] - centroid(0)[f * every]) * a.scale) : 0.0f;
        near[p] = own < sampled ? infinity_f() : 0.0f;
    }
    if (tid < DRAWS) drawn[tid] = 0;
    __syncthreads();
    u32 state = 1;
    int last = 0;
#pragma unroll 1
    for (u32 g = 0; g < a.most; g += DRAWS) {
#pragma unroll
        for (int i = 0; i < DRAWS; i++)
#pragma unroll
            for (int p = 0; p < POINTS; p++) {
                if ((int)drawn[i] != p * CENTRES_THREADS + tid) continue;
                if (g + i < a.most) chosen[g + i] = drawn[i];
#pragma unroll
                for (int f = 0; f < LOOKED_AT; f++) centre[i][f] = values[p][f];
            }
        __syncthreads();
        float own = 0.0f;
#pragma unroll
        for (int p = 0; p < POINTS; p++) {
#pragma unroll
            for (int i = 0; i < DRAWS; i++) {
                float s = 0.0f;
#pragma unroll
                for (int f = 0; f < LOOKED_AT; f++) {
                    const float t = values[p][f] - centre[i][f];
                    s = __fmaf_rn(t, t, s);
                }
                if (s < near[p]) near[p] = s; // not if s is NaN
            }
            own += near[p];
        }
        float until = own;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const float before = __shfl_up_sync(FULL_WARP, until, o);
            if (lane >= o) until += before;
        }
        if (lane == 31) warps[warp] = until;
        __syncthreads();
        // Every warp adds up the warps before it.
        float of_warps = warps[lane];
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const float before = __shfl_up_sync(FULL_WARP, of_warps, o);
            if (lane >= o) of_warps += before;
        }
        const float total = __shfl_sync(FULL_WARP, of_warps, 31), end = __shfl_sync(FULL_WARP, of_warps, warp);
        const float begin = end - warps[warp] + (until - own);
        const u32 there = min(g + DRAWS, a.most);
        if ((there & (there - 1)) == 0) {
            last = 31 - __clz(there);
            if (tid == 0) spread[last] = total / (float)max(sampled - (int)there, 1);
        }
        if (tid < DRAWS) drawn[tid] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DRAWS; i++) {
            state = state * 1664525u + 1013904223u;
            float at = total * ((float)(state >> 8) * 0x1p-24f) - begin;
            // Roundings may let two threads draw. Then one of them does.
#pragma unroll
            for (int p = 0; p < POINTS; p++) {
                if (at >= 0.0f && at < near[p]) drawn[i] = p * CENTRES_THREADS + tid;
                at -= near[p];
            }
        }
        __syncthreads();
    }
    if (tid == 0) {
        if (last > 0) spread[0] = spread[1]; // one centre is not looked at: see DRAWS
        *a.count = count = chosen_count(spread, last);
    }
    __syncthreads();
    const u64 width = centre_width(a.d);
#pragma unroll 1
    for (u32 g = warp; g < count; g += CENTRES_THREADS / 32)
        for (int f = lane; f < a.d; f += 32) a.centres[g * width + f] = centroid(chosen[g])[f];
    for (int f = tid; f < a.d; f += CENTRES_THREADS) a.centres[a.most * width + f] = centroid(0)[f];
}

#define MEANS_THREADS 512
#define MEANS_WARPS (MEANS_THREADS / 32)

// A block for 32 features of each group, whose centre becomes the mean of the centroids nearest to it. The last ones have the whole.
template <typename T> __device__ __forceinline__ void tensor_means(const TensorCentroids<T>& a) {
    __shared__ float sums[MEANS_WARPS][32];
    __shared__ int counts[MEANS_WARPS];
    const u32 pieces = (a.d + 31) / 32, g = blockIdx.x / pieces, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int f = blockIdx.x % pieces * 32 + lane;
    const bool is_whole = g == a.most;
    if (g >= *a.count && !is_whole) return;
    T* const centre = a.centres + g * centre_width(a.d) + f;
    const T before = f < a.d ? *centre : (T)0;
    const auto away = [&](u32 j) { return f < a.d ? (float)((a.centroids[(u64)j * a.d + f] - before) * a.scale) : 0.0f; };
    float sum = 0.0f;
    int count = 0;
    if (is_whole) {
#pragma unroll 8
        for (u32 j = warp; j < a.k; j += MEANS_WARPS) sum += away(j), count++;
    }
#pragma unroll 1
    for (u32 base = warp * 32; base < a.k && !is_whole; base += MEANS_THREADS) {
        const u32 j = base + lane;
        u32 members = __ballot_sync(FULL_WARP, j < a.k && a.group_of_centroid[j] == g);
        count += __popc(members);
        for (; members; members &= members - 1) sum += away(base + __ffs(members) - 1);
    }
    sums[warp][lane] = sum;
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    if (warp != 0 || f >= a.d) return;
    for (int w = 1; w < MEANS_WARPS; w++) sum += sums[w][lane], count += counts[w];
    const T mean = before + (T)(sum / (float)max(count, 1)) / a.scale;
    if (isfinite(mean)) *centre = mean;
}

#define NEAR_THREADS 128
#define NEAR_CENTROIDS 64 // of a block
#define NEAR_GROUPS 32
#define NEAR_FEATURES 32 // at a time

template <typename T> __device__ __forceinline__ void tensor_near(const TensorCentroids<T>& a) {
    // Four more, so that rows begin at multiples of 16 bytes and neighbours of a column are in different banks.
    __shared__ __align__(16) T centroids[NEAR_FEATURES][NEAR_CENTROIDS + 4], centres[NEAR_FEATURES][NEAR_GROUPS + 4];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    if (a.before_groups && !again(a.few, a.most_doubt, a.most_kept)) return;
    // The groups, and then the whole.
    const u32 count = a.before_groups || a.whole->groups != 0 ? *a.count : 0;
    const auto group = [&](u32 i) { return i < count ? i : a.most; };
    const u32 across = (a.k + NEAR_CENTROIDS - 1) / NEAR_CENTROIDS, items = across * ((count + 1 + NEAR_GROUPS - 1) / NEAR_GROUPS);
    const u64 width = centre_width(a.d);
    const int own_j = tid % 16 * 4, own_g = tid / 16 * 4;
#pragma unroll 1
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        const u32 first_j = item % across * NEAR_CENTROIDS, first_g = item / across * NEAR_GROUPS;
        float sums[4][4] = {};
#pragma unroll 1
        for (int done = 0; done < a.d; done += NEAR_FEATURES) {
            const int f = done + lane;
            T from_j[NEAR_CENTROIDS / 4], from_g[NEAR_GROUPS / 4];
#pragma unroll
            for (int i = 0; i < NEAR_CENTROIDS / 4; i++) {
                const u32 j = min(first_j + warp + 4 * i, (u32)a.k - 1);
                from_j[i] = f < a.d ? a.centroids[(u64)j * a.d + f] * a.scale : (T)0;
            }
#pragma unroll
            for (int i = 0; i < NEAR_GROUPS / 4; i++) {
                const u32 g = group(min(first_g + warp + 4 * i, count));
                from_g[i] = f < a.d ? a.centres[g * width + f] * a.scale : (T)0;
            }
            __syncthreads(); // all threads are done with the features before
#pragma unroll
            for (int i = 0; i < NEAR_CENTROIDS / 4; i++) centroids[lane][warp + 4 * i] = from_j[i];
#pragma unroll
            for (int i = 0; i < NEAR_GROUPS / 4; i++) centres[lane][warp + 4 * i] = from_g[i];
            __syncthreads();
#pragma unroll 8
            for (int i = 0; i < NEAR_FEATURES; i++) {
                T c[4], m[4];
                load_four(&centroids[i][own_j], c);
                load_four(&centres[i][own_g], m);
#pragma unroll
                for (int x = 0; x < 4; x++)
#pragma unroll
                    for (int y = 0; y < 4; y++) {
                        const float t = (float)(c[x] - m[y]);
                        sums[x][y] = __fmaf_rn(t, t, sums[x][y]);
                    }
            }
        }
#pragma unroll
        for (int y = 0; y < 4; y++) {
            if (first_g + own_g + y > count) continue;
            float* const to = a.near + (u64)group(first_g + own_g + y) * a.k + first_j + own_j;
#pragma unroll
            for (int x = 0; x < 4; x++)
                if (first_j + own_j + x < a.k) to[x] = sums[x][y];
        }
    }
}

template <typename T> __device__ __forceinline__ void tensor_nearest(const TensorCentroids<T>& a) {
    const u32 count = *a.count;
    for (u32 j = global_thread(); j < a.k; j += all_threads()) {
        float least = infinity_f();
        u32 nearest = 0;
#pragma unroll 16
        for (u32 g = 0; g < count; g++) {
            const float s = a.near[(u64)g * a.k + j];
            if (s < least) least = s, nearest = g;
        }
        a.group_of_centroid[j] = (u16)nearest;
    }
}

#define FIRST_KERNEL(T, FUNCTION, THREADS, NAME)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ TensorCentroids<T> a) {                               \
        if (a.control->stop == 0 && again(a.few, a.most_doubt, a.most_kept)) FUNCTION(a);                                                                 \
    }
#define KERNELS(T, TYPE)                                                                                                                     \
    FIRST_KERNEL(T, tensor_centres, CENTRES_THREADS, tensor_centres_##TYPE)                                                                           \
    FIRST_KERNEL(T, tensor_means, MEANS_THREADS, tensor_means_##TYPE)                                                                        \
    FIRST_KERNEL(T, tensor_nearest, 128, tensor_nearest_##TYPE)                                                                              \
    extern "C" __global__ void __launch_bounds__(NEAR_THREADS) tensor_near_##TYPE(const __grid_constant__ TensorCentroids<T> a) {            \
        if (a.control->stop == 0) tensor_near(a);                                                                                            \
    }
KERNELS(float, f32)
KERNELS(double, f64)
