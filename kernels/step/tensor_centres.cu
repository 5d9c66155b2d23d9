// tensor_centres: the centres of groups of rows, for assign_tensor.
//
//   tensor_apart     how far some centroids are from the nearest other one. Centres that are hardly farther are enough
//   tensor_centres   the first centres: some of the centroids, far from each other. Their number follows from the centroids: see `chosen_count`
//   tensor_means     better centres: the means of the centroids near them. That of the fallback group: the mean of all
//   tensor_near      the distance of each centroid from the centre of each group, in float32
//   tensor_nearest   the group of each centroid: that of the nearest centre
//
// Used when: tensor_near before every assign_tensor. All of them before groups are made (tensor_groups.cu).
// Tile:      tensor_apart: 32 centroids and a quarter of the others a block. tensor_centres: one block, a thread for two centroids of a sample.
//            tensor_means: a block for 32 features of each group. tensor_near: 64 centroids and 32 centres a block, of which a thread has 4 x 4,
//            or a warp for each pair. tensor_nearest: 32 centroids a block.
#include "tensor_centroids.cuh"

#define CENTRES_THREADS 1024
#define POINTS 2 // of a thread
#define DRAWS 8 // at most at once. The first ones are all the first centroid
#define FEW_CENTRES 16 // so many are drawn two at a time
#define SAMPLE (POINTS * CENTRES_THREADS) // centroids that tensor_centres looks at
#define LOOKED_AT 16 // the most features in which it does
#define FLAT 1.3f // see `chosen_count`
#define ENOUGH 2.5f // centres are enough if the sample is so many times as far from them, squared, as centroids are from each other

#define APART_THREADS 256
#define APART_WARPS (APART_THREADS / 32)
#define WITNESSES 1024 // centroids whose distance from the nearest other one is measured
#define SLICES 4 // of the others: blocks share them
#define MOST_OTHERS 8192
#define OTHERS 64 // at a time

// A block for 32 witnesses and one slice of the others, in some of the features. The squared distances, (SLICES, WITNESSES), are where `tensor_near`
// writes later: there is room if there are more centroids than in a sample.
template <typename T> __device__ __forceinline__ void tensor_apart(const TensorCentroids<T>& a) {
    __shared__ __align__(16) float others[OTHERS][LOOKED_AT];
    __shared__ float of_warps[APART_WARPS][32];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int every = (a.d + LOOKED_AT - 1) / LOOKED_AT, some = (a.d + every - 1) / every;
    const u32 witness = blockIdx.x / SLICES * 32 + lane, slice = blockIdx.x % SLICES, own = (u32)((u64)witness * a.k / WITNESSES);
    const u32 one_of = ((u32)a.k + MOST_OTHERS - 1) / MOST_OTHERS, count = ((u32)a.k + one_of - 1) / one_of;
    const u32 begin = (u32)((u64)count * slice / SLICES), end = (u32)((u64)count * (slice + 1) / SLICES);
    const auto value = [&](u32 j, int f) {
        return f < some ? (float)((a.centroids[(u64)j * a.d + f * every] - a.centroids[f * every]) * a.scale) : 0.0f;
    };
    float x[LOOKED_AT], least = infinity_f();
#pragma unroll
    for (int f = 0; f < LOOKED_AT; f++) x[f] = value(own, f);
    const int mine = tid / LOOKED_AT, f_mine = tid % LOOKED_AT;
#pragma unroll 1
    for (u32 first = begin; first < end; first += OTHERS) {
        float next[OTHERS * LOOKED_AT / APART_THREADS];
#pragma unroll
        for (int i = 0; i < OTHERS * LOOKED_AT / APART_THREADS; i++)
            next[i] = value(min(first + mine + i * (APART_THREADS / LOOKED_AT), end - 1) * one_of, f_mine);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OTHERS * LOOKED_AT / APART_THREADS; i++) others[mine + i * (APART_THREADS / LOOKED_AT)][f_mine] = next[i];
        __syncthreads();
#pragma unroll 2
        for (int i = warp; i < OTHERS; i += APART_WARPS) {
            float s = 0.0f;
#pragma unroll
            for (int f = 0; f < LOOKED_AT; f += 4) {
                float c[4];
                load_four(&others[i][f], c);
#pragma unroll
                for (int v = 0; v < 4; v++) s = __fmaf_rn(x[f + v] - c[v], x[f + v] - c[v], s);
            }
            if (first + i < end && (first + i) * one_of != own) least = fminf(least, s);
        }
    }
    of_warps[warp][lane] = least;
    __syncthreads();
    if (warp != 0) return;
    for (int w = 1; w < APART_WARPS; w++) least = fminf(least, of_warps[w][lane]);
    a.near[slice * WITNESSES + witness] = least;
}

// How many of the centres are used. `spread[i]`: half the mean squared distance of the sample from the nearest of the first 2^i centres. Half of the
// centres are left out, again and again, as long as the spread hardly grows. So there are up to twice as many groups as natural clusters: with
// fewer centres the spread is many times as large.
__device__ __forceinline__ u32 chosen_count(const float* spread, int last) {
    while (last > 0 && spread[last - 1] <= FLAT * spread[last]) last--;
    return 1u << last;
}

static_assert(WITNESSES == CENTRES_THREADS, "a thread has a witness");

// One block. Each centre is drawn in proportion to its squared distance from those before it (Arthur & Vassilvitskii 2007), in some of the
// features. The first ones are drawn two at a time, the later ones DRAWS. Any centres would do: bad ones cost only time.
template <typename T> __device__ __forceinline__ void tensor_centres(const TensorCentroids<T>& a) {
    __shared__ __align__(16) float centre[DRAWS][LOOKED_AT];
    __shared__ float half[DRAWS], until_thread[CENTRES_THREADS], first_point[CENTRES_THREADS], warps[CENTRES_THREADS / 32], spread[16];
    __shared__ u32 chosen[MOST_GROUPS], drawn[DRAWS], count;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, sampled = min(SAMPLE, a.k);
    const auto centroid = [&](int i) { return a.centroids + (u64)((u64)i * a.k / sampled) * a.d; };
    const int every = (a.d + LOOKED_AT - 1) / LOOKED_AT, some = (a.d + every - 1) / every;
    const int points = sampled > CENTRES_THREADS ? POINTS : 1;
    // Values are taken from those of the first centroid, so float32 is precise enough.
    float values[POINTS][LOOKED_AT], halves[POINTS], near[POINTS]; // half squares, and half squared distances
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
        const int own = p * CENTRES_THREADS + tid;
        halves[p] = 0.0f;
#pragma unroll
        for (int f = 0; f < LOOKED_AT; f++) {
            values[p][f] = own < sampled && f < some ? (float)((centroid(own)[f * every] - centroid(0)[f * every]) * a.scale) : 0.0f;
            halves[p] = __fmaf_rn(0.5f * values[p][f], values[p][f], halves[p]);
        }
        near[p] = own < sampled ? infinity_f() : 0.0f;
    }
    if (tid < DRAWS) drawn[tid] = 0;
    __syncthreads();
    // Centres are enough at this spread. With few centroids, the nearest other one can be of another natural cluster.
    float enough = 0.0f;
    if (a.k > SAMPLE) {
        float least = infinity_f();
        for (int s = 0; s < SLICES; s++) least = fminf(least, a.near[s * WITNESSES + tid]);
        for (int o = 16; o; o >>= 1) least += __shfl_xor_sync(FULL_WARP, least, o);
        if (lane == 0) warps[warp] = least;
        __syncthreads();
        for (int w = 0; w < CENTRES_THREADS / 32; w++) enough += warps[w];
        enough *= ENOUGH / (2 * WITNESSES); // the spread is of half squares
        __syncthreads();
    }
    u32 state = 1, g = 0;
    int last = 0;
#pragma unroll 1
    while (g < a.most) {
        const u32 now = min(g < FEW_CENTRES ? 2 : DRAWS, a.most - g);
#pragma unroll
        for (int p = 0; p < POINTS; p++) {
            const u32 own = p * CENTRES_THREADS + tid;
            u32 mine = 0; // the draws that drew this point
#pragma unroll
            for (u32 i = 0; i < DRAWS; i++) mine |= i < now && drawn[i] == own ? 1u << i : 0u;
            if (mine == 0) continue;
            near[p] = 0.0f;
#pragma unroll 1
            for (; mine; mine &= mine - 1) {
                const int i = __ffs(mine) - 1;
                chosen[g + i] = own, half[i] = halves[p];
#pragma unroll
                for (int f = 0; f < LOOKED_AT; f++) centre[i][f] = values[p][f];
            }
        }
        __syncthreads();
        float own = 0.0f;
#pragma unroll
        for (int p = 0; p < POINTS; p++) {
            if (p >= points) break;
            // Half squares less products: their roundings are far below the distances of centroids that are worth a group.
#pragma unroll 1
            for (u32 i = 0; i < now; i++) {
                float s = halves[p] + half[i];
#pragma unroll
                for (int f = 0; f < LOOKED_AT; f += 4) {
                    float c[4];
                    load_four(&centre[i][f], c);
#pragma unroll
                    for (int v = 0; v < 4; v++) s = __fmaf_rn(-values[p][f + v], c[v], s);
                }
                if (s < near[p]) near[p] = fmaxf(s, 0.0f); // not if s is NaN
            }
            own += near[p];
        }
        float until = own;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const float before = __shfl_up_sync(FULL_WARP, until, o);
            if (lane >= o) until += before;
        }
        until_thread[tid] = until, first_point[tid] = near[0];
        if (lane == 31) warps[warp] = until;
        __syncthreads();
        // Every warp adds up the warps before it.
        float of_warps = warps[lane];
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const float before = __shfl_up_sync(FULL_WARP, of_warps, o);
            if (lane >= o) of_warps += before;
        }
        const float total = __shfl_sync(FULL_WARP, of_warps, 31);
        g += now;
        if ((g & (g - 1)) == 0) {
            last = 31 - __clz(g);
            const float now_spread = total / (float)max(sampled - (int)g, 1);
            if (tid == 0) spread[last] = now_spread;
            if (now_spread <= enough) break;
        }
        // A warp makes each draw: it finds the warp of the point, its thread, and which of the thread's points it is. Draws of one round are the golden
        // section apart, so few find the same natural cluster.
        state = state * 1664525u + 1013904223u;
        if (warp < DRAWS) {
            const u32 random = state + (u32)warp * 2654435769u;
            const float at = total * ((float)(random >> 8) * 0x1p-24f);
            const int w = min(__ffs(__ballot_sync(FULL_WARP, at < of_warps) | 1u << 31) - 1, CENTRES_THREADS / 32 - 1);
            const float before = w > 0 ? __shfl_sync(FULL_WARP, of_warps, max(w - 1, 0)) : 0.0f;
            // Roundings may find no thread. Then it is the last one.
            const int thread = w * 32 + __ffs(__ballot_sync(FULL_WARP, at - before < until_thread[w * 32 + lane]) | 1u << 31) - 1;
            const float before_thread = before + (thread % 32 > 0 ? until_thread[thread - 1] : 0.0f);
            const int point = at - before_thread < first_point[thread] ? thread : thread + CENTRES_THREADS;
            if (lane == 0) drawn[warp] = point < sampled ? point : thread < sampled ? thread : 0;
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
#define AHEAD 4

// A block for 32 features of each group, whose centre becomes the mean of the centroids nearest to it. The first blocks take
// the fallback group, which takes longest.
template <typename T> __device__ __forceinline__ void tensor_means(const TensorCentroids<T>& a) {
    __shared__ float sums[MEANS_WARPS][32];
    __shared__ int counts[MEANS_WARPS];
    const u32 pieces = (a.d + 31) / 32, g = a.most - blockIdx.x / pieces, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int f = blockIdx.x % pieces * 32 + lane;
    const bool is_fallback = g == a.most;
    if (g >= *a.count && !is_fallback) return;
    T* const centre = a.centres + g * centre_width(a.d) + f;
    const T before = f < a.d ? *centre : (T)0;
    const auto away = [&](u32 j) { return f < a.d ? (float)((a.centroids[(u64)j * a.d + f] - before) * a.scale) : 0.0f; };
    float sum = 0.0f;
    int count = 0;
    if (is_fallback) {
#pragma unroll 8
        for (u32 j = warp; j < a.k; j += MEANS_WARPS) sum += away(j), count++;
    }
#pragma unroll 1
    for (u32 base = warp * 32; base < a.k && !is_fallback; base += AHEAD * MEANS_THREADS) {
        u32 groups[AHEAD]; // on their way at once
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            const u32 j = base + i * MEANS_THREADS + lane;
            groups[i] = j < a.k ? a.group_of_centroid[j] : a.most;
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            u32 members = __ballot_sync(FULL_WARP, groups[i] == g);
            count += __popc(members);
            for (; members; members &= members - 1) sum += away(base + i * MEANS_THREADS + __ffs(members) - 1);
        }
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
#define FEW_PAIRS 32 // for each block: up to so many take a warp each

// Four values to a multiple of 16 bytes.
__device__ __forceinline__ void store_four(const float* from, float* to) { *(float4*)to = make_float4(from[0], from[1], from[2], from[3]); }
__device__ __forceinline__ void store_four(const double* from, double* to) {
    ((double2*)to)[0] = make_double2(from[0], from[1]), ((double2*)to)[1] = make_double2(from[2], from[3]);
}

template <typename T> __device__ __forceinline__ void tensor_near(const TensorCentroids<T>& a) {
    // Four more, so that rows begin at multiples of 16 bytes and fours of a column are in different banks.
    __shared__ __align__(16) T centroids[NEAR_FEATURES][NEAR_CENTROIDS + 4], centres[NEAR_FEATURES][NEAR_GROUPS + 4];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    if (a.near_when != NEAR_ALWAYS && (a.near_when == NEAR_BEFORE_GROUPS) != again(a.few, a.most_doubt, a.most_kept)) return;
    // The groups, and then the fallback group.
    const u32 count = a.near_when == NEAR_BEFORE_GROUPS || a.totals->groups != 0 ? *a.count : 0;
    const auto group = [&](u32 i) { return i < count ? i : a.most; };
    const u32 across = (a.k + NEAR_CENTROIDS - 1) / NEAR_CENTROIDS, items = across * ((count + 1 + NEAR_GROUPS - 1) / NEAR_GROUPS);
    const u64 width = centre_width(a.d);
    // Few pairs: a warp for each.
    const u64 pairs = (u64)a.k * (count + 1);
    if (pairs <= FEW_PAIRS * gridDim.x && items < gridDim.x / 2) {
#pragma unroll 1
        for (u64 pair = global_thread() / 32; pair < pairs; pair += all_threads() / 32) {
            const u32 j = (u32)pair % a.k, g = group((u32)pair / a.k);
            float sum = 0.0f;
            for (int f = lane; f < a.d; f += 32) {
                const float t = (float)(a.centroids[(u64)j * a.d + f] * a.scale - a.centres[g * width + f] * a.scale);
                sum = __fmaf_rn(t, t, sum);
            }
            sum = warp_total(sum);
            if (lane == 0) a.near[(u64)g * a.k + j] = sum;
        }
        return;
    }
    const int own_j = tid % 16 * 4, own_g = tid / 16 * 4;
    // A thread brings fours of neighbours.
    const auto column = [&](int i) { return i / 4 * 16 + warp * 4 + i % 4; };
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
                const u32 j = min(first_j + column(i), (u32)a.k - 1);
                from_j[i] = f < a.d ? a.centroids[(u64)j * a.d + f] * a.scale : (T)0;
            }
#pragma unroll
            for (int i = 0; i < NEAR_GROUPS / 4; i++) {
                const u32 g = group(min(first_g + column(i), count));
                from_g[i] = f < a.d ? a.centres[g * width + f] * a.scale : (T)0;
            }
            __syncthreads(); // all threads are done with the features before
#pragma unroll
            for (int i = 0; i < NEAR_CENTROIDS / 4; i += 4) store_four(from_j + i, &centroids[lane][column(i)]);
#pragma unroll
            for (int i = 0; i < NEAR_GROUPS / 4; i += 4) store_four(from_g + i, &centres[lane][column(i)]);
            __syncthreads();
#pragma unroll 4
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

#define NEAREST_THREADS 256
#define NEAREST_WARPS (NEAREST_THREADS / 32)

// A lane has a centroid, and a warp every eighth group.
template <typename T> __device__ __forceinline__ void tensor_nearest(const TensorCentroids<T>& a) {
    __shared__ float scores[NEAREST_WARPS][32];
    __shared__ u32 groups[NEAREST_WARPS][32];
    const u32 count = *a.count, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, j = blockIdx.x * 32 + lane;
    float least = infinity_f();
    u32 nearest = 0;
    if (j < a.k) {
#pragma unroll 16
        for (u32 g = warp; g < count; g += NEAREST_WARPS) {
            const float s = a.near[(u64)g * a.k + j];
            if (s < least) least = s, nearest = g;
        }
    }
    scores[warp][lane] = least, groups[warp][lane] = nearest;
    __syncthreads();
    if (warp != 0 || j >= a.k) return;
#pragma unroll
    for (u32 w = 1; w < NEAREST_WARPS; w++) {
        const float s = scores[w][lane];
        const u32 g = groups[w][lane];
        if (s < least || (s == least && g < nearest)) least = s, nearest = g;
    }
    a.group_of_centroid[j] = (u16)nearest;
}

#define FIRST_KERNEL(T, FUNCTION, THREADS, NAME)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ TensorCentroids<T> a) {                               \
        if (a.control->stop == 0 && again(a.few, a.most_doubt, a.most_kept)) FUNCTION(a);                                                                 \
    }
#define KERNELS(T, TYPE)                                                                                                                     \
    FIRST_KERNEL(T, tensor_apart, APART_THREADS, tensor_apart_##TYPE)                                                                        \
    FIRST_KERNEL(T, tensor_centres, CENTRES_THREADS, tensor_centres_##TYPE)                                                                           \
    FIRST_KERNEL(T, tensor_means, MEANS_THREADS, tensor_means_##TYPE)                                                                        \
    FIRST_KERNEL(T, tensor_nearest, NEAREST_THREADS, tensor_nearest_##TYPE)                                                                              \
    extern "C" __global__ void __launch_bounds__(NEAR_THREADS, sizeof(T) == 4 ? 6 : 2) tensor_near_##TYPE(const __grid_constant__ TensorCentroids<T> a) {            \
        if (a.control->stop == 0) tensor_near(a);                                                                                            \
    }
KERNELS(float, f32)
KERNELS(double, f64)
