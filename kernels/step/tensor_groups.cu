// tensor_groups: which group each row belongs to, and where its copy lies, for assign_tensor.
//
//   tensor_clear   no place has a row, and no bucket
//   tensor_group   the group of each row: that of its label's centroid, or else that of the centre that is nearest in up to 16 features. Rows that
//                  are not finite have no group
//   tensor_count   rows that are far away from the centre, beside the others, go to the whole: they would make the group large. How many rows each
//                  group and each bucket has, and how large a group is
//   tensor_reach   how many centroids can be nearest to a row of each group. If these are most of all, the group does not pay: its rows have their
//                  copies with the whole. How large the whole is
//   tensor_places  the tiles of each group, and the places of each bucket
//
// Rows of one label lie side by side: then a warp's rows have the same few centroids in reach, and most tiles of centroids have none.
// Used when: in the first iteration. Again in a few later ones, if the one before had much doubt, or if rows in order would save much. If
//            rows stream, for each chunk of each iteration.
// Tile:      tensor_group, tensor_count: 128 rows a block. tensor_reach: a block for each group. tensor_places: one block.
#include "tensor_rows.cuh"

#define GROUP_THREADS 128
#define SEARCHED 16 // the most features in which the nearest centre is searched
#define AT_ONCE 32 // centres that are compared at once

template <typename T, typename S> __device__ __forceinline__ void tensor_clear(const TensorRows<T, S>& a) {
    const u64 places = (u64)a.tiles * TILE_ROWS;
    for (u64 place = global_thread(); place < places; place += all_threads()) a.row_of_place[place] = NO_ROW, a.terms[place] = 0.0f;
    for (u32 g = global_thread(); g <= a.most; g += all_threads()) a.groups[g] = {};
    if (global_thread() == 0) *a.whole = {};
    for (u64 bucket = global_thread(); bucket < a.most + 1 + (u64)a.k; bucket += all_threads()) a.buckets[bucket] = 0;
}

// The numbers of the nearest centres of a block's rows in some of the features, by half squares less products. Any group would do: a bad one costs
// only time. A thread has 8 rows and 4 of the centres that are compared at once.
template <typename T, typename S> __device__ __forceinline__ u32 nearest_centre(const TensorRows<T, S>& a, u64 row, bool inside) {
    __shared__ __align__(16) float rows[SEARCHED][GROUP_THREADS], centres[SEARCHED][AT_ONCE], halves[AT_ONCE]; // scaled, from the first centre
    __shared__ u64 best[GROUP_THREADS]; // a score, as an integer in its order, and its centre
    const int tid = threadIdx.x, d = a.rows.d, every = (d + SEARCHED - 1) / SEARCHED, some = (d + every - 1) / every;
    const int own_row = tid % (GROUP_THREADS / 8) * 8, own_centre = tid / (GROUP_THREADS / 8) * 4;
    const u64 width = centre_width(d);
    const u32 count = *a.count;
#pragma unroll
    for (int i = 0; i < SEARCHED; i++)
        rows[i][tid] = inside && i < some ? (float)((a.rows.at((u64)(i * every) * a.rows.stride + row) - a.centres[i * every]) * a.scale) : 0.0f;
    best[tid] = ~0ull;
    float closest[8];
    u32 nearest[8];
#pragma unroll
    for (int r = 0; r < 8; r++) closest[r] = infinity_f(), nearest[r] = 0;
#pragma unroll 1
    for (u32 first = 0; first < count; first += AT_ONCE) {
        __syncthreads();
        for (int i = tid; i < SEARCHED * AT_ONCE; i += GROUP_THREADS) {
            const u32 g = first + i / SEARCHED, f = i % SEARCHED;
            const bool there = g < count && (int)f < some;
            centres[f][i / SEARCHED] = there ? (float)((a.centres[g * width + f * every] - a.centres[f * every]) * a.scale) : 0.0f;
        }
        __syncthreads();
        if (tid < AT_ONCE) {
            float half = 0.0f;
            for (int f = 0; f < some; f++) half = __fmaf_rn(0.5f * centres[f][tid], centres[f][tid], half);
            halves[tid] = first + tid < count ? half : infinity_f();
        }
        __syncthreads();
        float scores[8][4];
#pragma unroll
        for (int r = 0; r < 8; r++) load_four(halves + own_centre, scores[r]);
#pragma unroll 4
        for (int i = 0; i < SEARCHED; i++) {
            float x[8], c[4];
            load_four(&rows[i][own_row], x), load_four(&rows[i][own_row + 4], x + 4), load_four(&centres[i][own_centre], c);
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int g = 0; g < 4; g++) scores[r][g] = __fmaf_rn(-x[r], c[g], scores[r][g]);
        }
#pragma unroll
        for (int r = 0; r < 8; r++)
#pragma unroll
            for (int g = 0; g < 4; g++)
                if (scores[r][g] < closest[r]) closest[r] = scores[r][g], nearest[r] = first + own_centre + g;
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const u32 bits = __float_as_uint(closest[r]), in_order = bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
        atomicMin((unsigned long long*)&best[own_row + r], (u64)in_order << 32 | nearest[r]);
    }
    __syncthreads();
    return (u32)best[tid];
}

// A length whose square is computed in float32, rounded up.
template <typename T, typename S> __device__ __forceinline__ float length_above(const TensorRows<T, S>& a, float square) {
    return __double2float_ru(sqrt((double)square) * (1.0 + a.bound.radius));
}

template <typename T, typename S> __device__ __forceinline__ void tensor_group(const TensorRows<T, S>& a) {
    __shared__ u32 radius[MOST_GROUPS], rows[MOST_GROUPS], positive[MOST_GROUPS];
    __shared__ float lengths[MOST_GROUPS], logarithms[MOST_GROUPS];
    const int tid = threadIdx.x, d = a.rows.d;
    const u32 count = *a.count;
    for (u32 g = tid; g < count; g += GROUP_THREADS) radius[g] = rows[g] = positive[g] = 0, lengths[g] = logarithms[g] = 0.0f;
    const u64 row = (u64)blockIdx.x * GROUP_THREADS + tid;
    const bool inside = row < a.rows.n;
    const u32 label = inside ? label_of_row(a, row) : 0;
    u32 nearest = label < a.k ? a.group_of_centroid[label] : 0;
    if (__syncthreads_or(label == UNASSIGNED)) {
        const u32 found = nearest_centre(a, row, inside);
        if (label == UNASSIGNED) nearest = found;
    }
    // The distance from its centre, in all features.
    const T* const centre = a.centres + nearest * centre_width(d);
    float least = 0.0f;
#pragma unroll 1
    for (int done = 0; done < d; done += 16) {
        T x[16], c[16];
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = inside && done + i < d ? a.rows.at((u64)(done + i) * a.rows.stride + row) : (T)0;
#pragma unroll
        for (int i = 0; i < 16; i += 4)
            if (done + i < d) load_four(centre + done + i, c + i);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (done + i >= d) break;
            const float difference = (float)(x[i] * a.scale - c[i] * a.scale);
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
    // `terms` has a place for each row, and nothing else in it yet.
    if (inside) a.group_of_row[row] = kept ? (u16)nearest : (u16)NO_GROUP, a.terms[row] = least;
    if (kept) {
        // Not negative, so bits have the order of the values.
        atomicMax(&radius[nearest], __float_as_uint(least));
        atomicAdd(&rows[nearest], 1);
        // A row out of the range of float32 must not make the means infinite.
        if (least < infinity_f()) atomicAdd(&lengths[nearest], sqrtf(least));
        if (least > 1e-30f && least < 1e30f) atomicAdd(&logarithms[nearest], 0.5f * __logf(least)), atomicAdd(&positive[nearest], 1);
    }
    __syncthreads();
    for (u32 g = tid; g < count; g += GROUP_THREADS) {
        if (rows[g] == 0) continue;
        TensorGroup* const group = a.groups + g;
        atomicMax((u32*)&group->farthest_of_all, __float_as_uint(length_above(a, __uint_as_float(radius[g]))));
        atomicAdd(&group->all, rows[g]);
        atomicAdd(&group->lengths_of_all, (double)lengths[g]);
        atomicAdd(&group->logarithms, (double)logarithms[g]);
        atomicAdd(&group->positive, positive[g]);
    }
}

// A row is too far from its centre at more than this many times the geometric mean distance. In many features even the farthest row of a normal
// distribution is nearer. Rows of a natural cluster without a centroid are farther. A few of them must not decide how large a group is.
#define TOO_FAR 2.0

template <typename T, typename S> __device__ __forceinline__ void tensor_count(const TensorRows<T, S>& a) {
    __shared__ u32 radius[MOST_GROUPS], rows[MOST_GROUPS], unlabelled[MOST_GROUPS + 1];
    __shared__ float lengths[MOST_GROUPS];
    const int tid = threadIdx.x;
    const u32 count = *a.count;
    for (u32 g = tid; g < count; g += GROUP_THREADS) radius[g] = rows[g] = unlabelled[g] = 0, lengths[g] = 0.0f;
    if (tid == 0) unlabelled[a.most] = 0;
    __syncthreads();
    const u64 row = (u64)blockIdx.x * GROUP_THREADS + tid;
    if (row < a.rows.n) {
        const u32 g = a.group_of_row[row], label = label_of_row(a, row);
        const float least = a.terms[row];
        a.terms[row] = 0.0f;
        if (g != NO_GROUP) {
            const double cut = TOO_FAR * exp(a.groups[g].logarithms / a.groups[g].positive);
            if ((double)least > cut * cut) { // not if the cut is NaN
                a.group_of_row[row] = (u16)a.most;
                atomicAdd(&unlabelled[a.most], 1);
            } else {
                atomicMax(&radius[g], __float_as_uint(least));
                atomicAdd(&rows[g], 1);
                atomicAdd(label < a.k ? &a.buckets[a.most + 1 + label] : &unlabelled[g], 1);
                if (least < infinity_f()) atomicAdd(&lengths[g], sqrtf(least));
            }
        }
    }
    __syncthreads();
    for (u32 g = tid; g < count; g += GROUP_THREADS) {
        if (rows[g] == 0) continue;
        TensorGroup* const group = a.groups + g;
        atomicMax((u32*)&group->farthest, __float_as_uint(length_above(a, __uint_as_float(radius[g]))));
        atomicAdd(&group->rows, rows[g]);
        atomicAdd(&group->lengths, (double)lengths[g]);
        if (unlabelled[g] != 0) atomicAdd(&a.buckets[g], unlabelled[g]);
    }
    if (tid == 0 && unlabelled[a.most] != 0) atomicAdd(&a.buckets[a.most], unlabelled[a.most]);
}

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
    TensorGroup* const whole = a.groups + a.most;
    atomicMax((u32*)&whole->farthest, __float_as_uint(farthest < 1e37 ? __double2float_ru(farthest) : infinity_f()));
    atomicAdd(&whole->rows, group.all);
    atomicAdd(&whole->lengths, group.lengths_of_all + group.all * away);
    if (group.rows == 0) return;
    const bool pays = all <= MOST_REACHED * a.k;
    a.groups[g].home = pays ? g : a.most;
    if (pays) atomicAdd(&a.whole->tiles, ((u32)all + TILE_CENTROIDS - 1) / TILE_CENTROIDS);
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

// One block, with a thread for each group. The whole comes first.
template <typename T, typename S> __device__ __forceinline__ void tensor_places(const TensorRows<T, S>& a) {
    __shared__ u32 next[MOST_GROUPS + 1]; // the next place of each group, for labels
    __shared__ u32 rows_of_whole, unlabelled_of_whole, groups;
    const u32 tid = threadIdx.x, count = *a.count;
    TensorGroup& whole = a.groups[a.most];
    // The whole has the rows that are too far away from their group's centre already.
    if (tid == 0) rows_of_whole = unlabelled_of_whole = a.buckets[a.most], groups = 0;
    __syncthreads();
    // The pool of copies must also have room when the centroids have moved.
    const u32 of_all = (a.k + TILE_CENTROIDS - 1) / TILE_CENTROIDS;
    const bool has_room = a.whole->tiles + of_all <= a.copies_of_centroids / 4 * 3;
    const bool is_group = tid < count && a.groups[tid].rows != 0, stays = is_group && has_room && a.groups[tid].home == tid;
    const u32 rows = is_group ? a.groups[tid].rows : 0, unlabelled = is_group ? a.buckets[tid] : 0;
    if (stays) {
        atomicAdd(&groups, 1);
    } else if (is_group) {
        atomicAdd(&rows_of_whole, rows), atomicAdd(&unlabelled_of_whole, unlabelled);
        a.groups[tid].home = a.most;
    }
    __syncthreads();
    const u32 tiles_of_whole = (rows_of_whole + TILE_ROWS - 1) / TILE_ROWS, tiles_here = stays ? (rows + TILE_ROWS - 1) / TILE_ROWS : 0;
    u32 tiles;
    const u32 first = tiles_of_whole + sum_before(tiles_here, tiles);
    tiles += tiles_of_whole;
    if (stays) {
        a.groups[tid].first_tile = first, a.groups[tid].here = rows;
        a.buckets[tid] = first * TILE_ROWS, next[tid] = first * TILE_ROWS + unlabelled;
        for (u32 tile = first; tile < first + tiles_here; tile++) a.group_of_tile[tile] = tid;
        scale_rows(a.groups[tid]);
    }
    if (tid == 0) {
        whole.home = a.most, whole.first_tile = 0, whole.here = rows_of_whole;
        a.buckets[a.most] = 0, next[a.most] = unlabelled_of_whole;
        scale_rows(whole);
        a.whole->groups = groups;
    }
    for (u32 tile = tid; tile < tiles_of_whole; tile += PLACES_THREADS) a.group_of_tile[tile] = a.most;
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
    KERNEL(T, S, tensor_clear, 256, tensor_clear_##TYPE)                                                                                     \
    KERNEL(T, S, tensor_group, GROUP_THREADS, tensor_group_##TYPE)                                                                           \
    KERNEL(T, S, tensor_count, GROUP_THREADS, tensor_count_##TYPE)                                                                           \
    KERNEL(T, S, tensor_reach, REACH_THREADS, tensor_reach_##TYPE)                                                                           \
    KERNEL(T, S, tensor_places, PLACES_THREADS, tensor_places_##TYPE)
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)
