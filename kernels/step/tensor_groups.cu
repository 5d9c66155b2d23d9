// tensor_groups: which group each row belongs to, for assign_tensor.
//
//   tensor_clear   no place has a row, and no bucket
//   tensor_group   the group of each row: that of its label's centroid, or else that of the centre that is nearest in up to 16 features. Rows that
//                  are not finite have no group. It also copies the rows with their features side by side, if they are not yet copied: settling
//                  and sums read single rows, and from a column one value of 4 bytes costs 32 bytes of memory traffic
//   tensor_count   rows that are far away from the centre, beside the others, go to the fallback group: they would make the group large. How many rows each
//                  group and each bucket has, and how large a group is
//
// tensor_places.cu comes next.
// Used when: in the first iteration. Again in a few later ones, if the one before had much doubt, or if rows in order would save much. If
//            rows stream, for each chunk of each iteration.
// Tile:      tensor_group, tensor_count: 32 rows a warp, again and again.
#include "tensor_rows.cuh"

#define GROUP_THREADS 256
#define COUNT_THREADS 512
#define SEARCHED 16 // the most features in which the nearest centre is searched
#define MOST_LABELS 2048 // see tensor_count
#define ALIKE 8 // lanes of a warp with rows of one group that add up before they add

template <typename T, typename S> __device__ __forceinline__ void tensor_clear(const TensorRows<T, S>& a) {
    const u64 places = (u64)a.tiles * TILE_ROWS;
    for (u64 place = global_thread(); place < places; place += all_threads()) a.row_of_place[place] = NO_ROW, a.terms[place] = 0.0f;
    for (u32 g = global_thread(); g <= a.most; g += all_threads()) a.groups[g] = {};
    if (global_thread() == 0) *a.totals = {};
    for (u64 bucket = global_thread(); bucket < a.most + 1 + (u64)a.k; bucket += all_threads()) a.buckets[bucket] = 0;
}

// Two values, each as the sum of two bfloat16. The first value is in the low halves. The sum has 16 bits, and the range of float32.
struct TwoValues {
    u32 high, low;

    __device__ __forceinline__ TwoValues(float first, float second) {
        high = packed(first, second);
        low = packed(first - __uint_as_float(high << 16), second - __uint_as_float(high & 0xffff0000u));
    }
    static __device__ __forceinline__ u32 packed(float first, float second) {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
        return both;
    }
};

// from, and the products of 16 rows and 8 centres over 16 features: as `multiply` of mma.cuh, but of bfloat16.
__device__ __forceinline__ void multiply_wide(float (&s)[4], const u32 (&x)[4], u32 c, u32 e, const float (&from)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(c), "r"(e), "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]));
}

// The nearest centre of each row, by half squares less products in some of the features, on tensor cores. Any group would do: a bad one costs only
// time. Values are taken from the first centre.
template <typename T, typename S> struct Search {
    const TensorRows<T, S>& a;
    uint4* centres; // (8 centres, 4 lanes): for each lane of a product its part of minus the centres, the high halves and then the low ones
    float* halves;

    // Feature i of those that are looked at, if it is below d.
    __device__ __forceinline__ int feature(int i) const { return i * ((a.rows.d + SEARCHED - 1) / SEARCHED); }
    __device__ __forceinline__ T centre(u32 g, int f) const { return a.centres[g * centre_width(a.rows.d) + f]; }

    // All threads of the block must call this, and a barrier comes after it. `padded`: the centres, a multiple of 8.
    __device__ __forceinline__ void begin(u32 count, u32 padded) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < padded * 4; i += GROUP_THREADS) {
            const u32 g = i / 4, t = i % 4;
            float v[4], half = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int f = feature(t * 4 + j);
                v[j] = g < count && f < a.rows.d ? (float)((centre(g, f) - centre(0, f)) * a.scale) : 0.0f;
                half = __fmaf_rn(0.5f * v[j], v[j], half);
            }
            half += __shfl_xor_sync(FULL_WARP, half, 1);
            half += __shfl_xor_sync(FULL_WARP, half, 2);
            const TwoValues first(-v[0], -v[1]), second(-v[2], -v[3]);
            centres[i] = make_uint4(first.high, second.high, first.low, second.low);
            if (t == 0) halves[g] = g < count ? half : infinity_f();
        }
    }

    // For row `first` + lane. All lanes of the warp must call this.
    __device__ __forceinline__ u32 nearest(u64 first, u32 padded) const {
        const u32 lane = threadIdx.x & 31, t = lane % 4;
        u32 high[2][4], low[2][4]; // of 16 rows each
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u64 row = first + m * 16 + r * 8 + lane / 4;
                float v[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int f = feature(t * 4 + j);
                    const bool there = row < a.rows.n && f < a.rows.d;
                    v[j] = there ? (float)((a.rows.at((u64)f * a.rows.stride + row) - centre(0, f)) * a.scale) : 0.0f;
                }
                const TwoValues one(v[0], v[1]), other(v[2], v[3]);
                high[m][r] = one.high, high[m][2 + r] = other.high, low[m][r] = one.low, low[m][2 + r] = other.low;
            }
        // Of rows lane / 4 + {0, 8, 16, 24} and centres 2 t + {0, 1} of each eight.
        float least[4][2];
        u32 eight[4][2];
#pragma unroll
        for (int i = 0; i < 8; i++) least[i / 2][i % 2] = infinity_f(), eight[i / 2][i % 2] = 0;
#pragma unroll 1
        for (u32 i = 0; i < padded / 8; i++) {
            const uint4 c = centres[i * 32 + lane];
            const float2 half = *(const float2*)(halves + i * 8 + t * 2);
            const float start[4] = {half.x, half.y, half.x, half.y};
#pragma unroll
            for (int m = 0; m < 2; m++) {
                float s[4];
                multiply_wide(s, low[m], c.x, c.y, start);
                multiply_wide(s, high[m], c.z, c.w, s);
                multiply_wide(s, high[m], c.x, c.y, s);
#pragma unroll
                for (int v = 0; v < 4; v++)
                    if (s[v] < least[m * 2 + v / 2][v % 2]) least[m * 2 + v / 2][v % 2] = s[v], eight[m * 2 + v / 2][v % 2] = i; // not if NaN
            }
        }
        u32 found = 0;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const bool odd = least[r][1] < least[r][0];
            float score = odd ? least[r][1] : least[r][0];
            u32 g = (odd ? eight[r][1] : eight[r][0]) * 8 + t * 2 + (odd ? 1 : 0);
#pragma unroll
            for (int o = 1; o < 4; o *= 2) {
                const float other = __shfl_xor_sync(FULL_WARP, score, o);
                const u32 of_other = __shfl_xor_sync(FULL_WARP, g, o);
                // Where no score is a number, the first centre.
                if (other < score || (other == score && of_other < g)) score = other, g = of_other;
            }
            const u32 of_row = __shfl_sync(FULL_WARP, g, lane % 8 * 4);
            if (lane / 8 == (u32)r) found = of_row;
        }
        return found;
    }
};

// Rows of one group in many lanes: calls `many` for all of them, and `one` in lanes with other rows. All lanes of the warp must call this.
template <typename Many, typename One> __device__ __forceinline__ void by_group(bool mine, u32 g, const Many& many, const One& one) {
    const u32 lane = threadIdx.x & 31;
    u32 left = __ballot_sync(FULL_WARP, mine);
#pragma unroll 1
    while (left != 0) {
        const u32 first = __shfl_sync(FULL_WARP, g, __ffs(left) - 1), same = __ballot_sync(FULL_WARP, mine && g == first);
        if (__popc(same) < ALIKE) break;
        many(first, same >> lane & 1, lane == (u32)__ffs(same) - 1);
        left &= ~same;
    }
    if (left >> lane & 1) one();
}
__device__ __forceinline__ float warp_total(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
    return v;
}

// A length whose square is computed in float32, rounded up.
template <typename T, typename S> __device__ __forceinline__ float length_above(const TensorRows<T, S>& a, float square) {
    return __double2float_ru(sqrt((double)square) * (1.0 + a.bound.radius));
}

// 16 bytes of values, and 16 values with what keeps neighbouring rows in different banks.
#define PIECE (16 / (int)sizeof(S))
#define STAGED_BYTES(S) (16 * (u32)sizeof(S) + 16)
#define GROUP_BYTES 88 // of shared memory
__device__ __forceinline__ void store_piece(const float* from, float* to) { *(float4*)to = make_float4(from[0], from[1], from[2], from[3]); }
__device__ __forceinline__ void store_piece(const double* from, double* to) { *(double2*)to = make_double2(from[0], from[1]); }
__device__ __forceinline__ void store_piece(const Half* from, Half* to) {
    const auto pair = [&](int i) { return (u32)from[i].bits | (u32)from[i + 1].bits << 16; };
    *(uint4*)to = make_uint4(pair(0), pair(2), pair(4), pair(6));
}

// Few blocks, so that few add to the groups in device memory. Their warps work alone.
template <typename T, typename S> __device__ __forceinline__ void tensor_group(const TensorRows<T, S>& a) {
    extern __shared__ __align__(16) uint4 shared[];
    const u32 room = (a.most + 7) / 8 * 8, count = *a.count, padded = (count + 7) / 8 * 8, lane = threadIdx.x & 31;
    const int d = a.rows.d;
    const Search<T, S> search = {a, shared, (float*)(shared + room * 4)};
    u32 *const radius = (u32*)search.halves + room, *const rows = radius + room, *const positive = rows + room;
    float *const lengths = (float*)positive + room, *const logarithms = lengths + room;
    search.begin(count, padded);
    for (u32 g = threadIdx.x; g < count; g += GROUP_THREADS) radius[g] = rows[g] = positive[g] = 0, lengths[g] = logarithms[g] = 0.0f;
    __syncthreads();
#pragma unroll 1
    for (u32 tile = blockIdx.x * (GROUP_THREADS / 32) + threadIdx.x / 32; (u64)tile * 32 < a.rows.n; tile += gridDim.x * (GROUP_THREADS / 32)) {
        const u64 first = (u64)tile * 32;
        const u64 row = first + lane;
        const bool inside = row < a.rows.n;
        const u32 label = inside ? label_of_row(a, row) : 0;
        u32 nearest = label < a.k ? a.group_of_centroid[label] : 0;
        if (__any_sync(FULL_WARP, label == UNASSIGNED)) {
            const u32 found = search.nearest(first, padded);
            if (label == UNASSIGNED) nearest = found;
        }
        // The distance from its centre, in all features.
        const T* const centre = a.centres + nearest * centre_width(d);
        float least = 0.0f;
#pragma unroll 1
        for (int done = 0; done < d; done += 16) {
            T c[16];
            S x[16];
#pragma unroll
            for (int i = 0; i < 16; i++) x[i] = inside && done + i < d ? a.rows.x[(u64)(done + i) * a.rows.stride + row] : S{};
#pragma unroll
            for (int i = 0; i < 16; i += 4)
                if (done + i < d) load_four(centre + done + i, c + i);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (done + i >= d) break;
                const float difference = (float)(a.rows.value(x[i]) * a.scale - c[i] * a.scale);
                least = __fmaf_rn(difference, difference, least);
            }
            if (a.by_row == nullptr) continue;
            // The values of the warp's rows. Neighbours write what lies side by side.
            u8* const staged = (u8*)shared + room * GROUP_BYTES + threadIdx.x / 32 * (32 * STAGED_BYTES(S));
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 16; i += PIECE) store_piece(x + i, (S*)(staged + lane * STAGED_BYTES(S)) + i);
            __syncwarp();
            const u32 at = done + lane % sizeof(S) * PIECE;
            if (at >= a.width) continue;
#pragma unroll 1
            for (u32 r = lane / sizeof(S); r < 32; r += 32 / sizeof(S)) {
                if (first + r >= a.rows.n) break;
                *(uint4*)(a.by_row + (first + r) * a.width + at) = *(const uint4*)(staged + r * STAGED_BYTES(S) + lane % sizeof(S) * 16);
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
        // Not negative, so bits have the order of the values. A row out of the range of float32 must not make the means infinite.
        const u32 bits = __float_as_uint(least);
        const float length = least < infinity_f() ? sqrtf(least) : 0.0f;
        const bool usual = least > 1e-30f && least < 1e30f;
        const float logarithm = usual ? 0.5f * __logf(least) : 0.0f;
        const auto many = [&](u32 g, bool in, bool leads) {
            const u32 most = __reduce_max_sync(FULL_WARP, in ? bits : 0u);
            const u32 all = __ballot_sync(FULL_WARP, in), some = __ballot_sync(FULL_WARP, in && usual);
            const float of_lengths = warp_total(in ? length : 0.0f), of_logarithms = warp_total(in ? logarithm : 0.0f);
            if (!leads) return;
            atomicMax(&radius[g], most), atomicAdd(&rows[g], __popc(all)), atomicAdd(&positive[g], __popc(some));
            atomicAdd(&lengths[g], of_lengths), atomicAdd(&logarithms[g], of_logarithms);
        };
        by_group(kept, nearest, many, [&] {
            atomicMax(&radius[nearest], bits), atomicAdd(&rows[nearest], 1), atomicAdd(&lengths[nearest], length);
            if (usual) atomicAdd(&logarithms[nearest], logarithm), atomicAdd(&positive[nearest], 1);
        });
    }
    __syncthreads();
    for (u32 g = threadIdx.x; g < count; g += GROUP_THREADS) {
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
    __shared__ u32 labelled[MOST_LABELS]; // rows of each label, if there are few labels: many rows would wait for each other in device memory
    __shared__ float lengths[MOST_GROUPS], cuts[MOST_GROUPS]; // a cut is squared
    const int tid = threadIdx.x;
    const u32 count = *a.count;
    for (u32 g = tid; g < count; g += COUNT_THREADS) {
        radius[g] = rows[g] = unlabelled[g] = 0, lengths[g] = 0.0f;
        const double cut = TOO_FAR * exp(a.groups[g].logarithms / a.groups[g].positive);
        cuts[g] = (float)(cut * cut);
    }
    if (tid == 0) unlabelled[a.most] = 0;
    u32* const of_labels = a.k <= MOST_LABELS ? labelled : a.buckets + a.most + 1;
    for (u32 j = tid; j < MOST_LABELS; j += COUNT_THREADS) labelled[j] = 0;
    __syncthreads();
    const u64 step = (u64)gridDim.x * COUNT_THREADS;
#pragma unroll 1
    for (u64 first = (u64)blockIdx.x * COUNT_THREADS + tid / 32 * 32; first < a.rows.n; first += step) {
        const u64 row = first + tid % 32;
        const bool inside = row < a.rows.n;
        const u32 g = inside ? a.group_of_row[row] : NO_GROUP, label = inside ? label_of_row(a, row) : UNASSIGNED;
        const float least = inside ? a.terms[row] : 0.0f;
        if (inside) a.terms[row] = 0.0f;
        const bool grouped = g != NO_GROUP, too_far = grouped && least > cuts[g]; // not if the cut is NaN
        if (too_far) {
            a.group_of_row[row] = (u16)a.most;
            atomicAdd(&unlabelled[a.most], 1);
        }
        const u32 bits = __float_as_uint(least);
        const bool has_label = label < a.k;
        const float length = least < infinity_f() ? sqrtf(least) : 0.0f;
        if (grouped && !too_far && has_label) atomicAdd(&of_labels[label], 1);
        const auto many = [&](u32 of, bool in, bool leads) {
            const u32 most = __reduce_max_sync(FULL_WARP, in ? bits : 0u);
            const u32 all = __ballot_sync(FULL_WARP, in), without = __ballot_sync(FULL_WARP, in && !has_label);
            const float of_lengths = warp_total(in ? length : 0.0f);
            if (!leads) return;
            atomicMax(&radius[of], most), atomicAdd(&rows[of], __popc(all)), atomicAdd(&lengths[of], of_lengths);
            if (without) atomicAdd(&unlabelled[of], __popc(without));
        };
        by_group(grouped && !too_far, g, many, [&] {
            atomicMax(&radius[g], bits), atomicAdd(&rows[g], 1), atomicAdd(&lengths[g], length);
            if (!has_label) atomicAdd(&unlabelled[g], 1);
        });
    }
    __syncthreads();
    for (u32 g = tid; g < count; g += COUNT_THREADS) {
        if (rows[g] == 0) continue;
        TensorGroup* const group = a.groups + g;
        atomicMax((u32*)&group->farthest, __float_as_uint(length_above(a, __uint_as_float(radius[g]))));
        atomicAdd(&group->rows, rows[g]);
        atomicAdd(&group->lengths, (double)lengths[g]);
        if (unlabelled[g] != 0) atomicAdd(&a.buckets[g], unlabelled[g]);
    }
    if (tid == 0 && unlabelled[a.most] != 0) atomicAdd(&a.buckets[a.most], unlabelled[a.most]);
    if (of_labels == labelled)
        for (u32 j = tid; j < a.k; j += COUNT_THREADS)
            if (labelled[j] != 0) atomicAdd(&a.buckets[a.most + 1 + j], labelled[j]);
}

#define KERNEL(T, S, FUNCTION, THREADS, BLOCKS, NAME)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ TensorRows<T, S> a) {                         \
        if (a.control->stop == 0 && again(a.few, a.most_doubt, a.most_kept)) FUNCTION(a);                                                                 \
    }
#define KERNELS(T, S, TYPE)                                                                                                                  \
    KERNEL(T, S, tensor_clear, 256, 1, tensor_clear_##TYPE)                                                                                  \
    KERNEL(T, S, tensor_group, GROUP_THREADS, sizeof(T) == 4 ? 3 : 2, tensor_group_##TYPE)                                                    \
    KERNEL(T, S, tensor_count, COUNT_THREADS, 2, tensor_count_##TYPE)
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)
