// statistics: the passes over the data before a fit (src/statistics): extents, tiny values, the variance. They also round weights to w^.
//
// Used when: once a fit. `survey` and `weight_survey` always. `round_weights` and `weighted_extents` with weights. `count_small` if a
//            column's smallest value is far below its largest. `variance` if tol is positive.
// Tile:      a block has a chunk of one column, at most 131,072 rows: an int64 is sure to hold the sum of so many limbs. Consecutive
//            blocks take the same chunk of all columns, so they find its weights in the cache.
// Memory:    each pass reads its columns once, with four loads of 16 bytes a thread in flight.
// Precision: extrema and counts are exact. Moments are integers of two limbs. The sums of `survey` only steer the centring. Their
//            terms are added in an order that depends on the shape alone.
#include "../common/sums.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define LOADS 4

// ---- visiting a chunk ------------------------------------------------------------------------------------------------

// This block's part of one column: rows begin to end. begin is a multiple of 1,024.
struct Chunk {
    int f;
    u64 begin, end;
};
template <typename T, typename S> __device__ __forceinline__ Chunk chunk_of(const Rows<T, S>& rows, u64 length) {
    const u32 d = (u32)rows.d;
    Chunk c;
    c.f = (int)(blockIdx.x % d);
    c.begin = (u64)(blockIdx.x / d) * length;
    c.end = c.begin + length < rows.n ? c.begin + length : rows.n;
    return c;
}

__device__ __forceinline__ void load_16_bytes(const float* at, float* out) {
    const float4 v = *reinterpret_cast<const float4*>(at);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
__device__ __forceinline__ void load_16_bytes(const double* at, double* out) {
    const double2 v = *reinterpret_cast<const double2*>(at);
    out[0] = v.x, out[1] = v.y;
}

// Calls visit(value, weight) for every row of the chunk. The weight is 1 unless WEIGHTED. A load may reach beyond the end of the chunk,
// but not beyond the stride.
template <typename T, bool WEIGHTED, typename Visit, typename S>
__device__ __forceinline__ void for_each_value(const Rows<T, S>& rows, const Chunk& c, const Visit& visit) {
    constexpr int WIDTH = 16 / sizeof(T);
    const S* column = rows.x + (u64)c.f * rows.stride;
    for (u64 start = c.begin + threadIdx.x * WIDTH; start < c.end; start += THREADS * WIDTH * LOADS) {
        T values[LOADS][WIDTH];
        double weights[LOADS][WIDTH];
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const u64 row = start + l * (THREADS * WIDTH);
            if (row < c.end) {
                if constexpr (is_half<S>) half_values(*reinterpret_cast<const uint2*>(column + row), rows.bfloat16, values[l]);
                else load_16_bytes(column + row, values[l]);
                if (WEIGHTED) {
#pragma unroll
                    for (int i = 0; i < WIDTH; i += 2) load_16_bytes(rows.w + row + i, weights[l] + i);
                }
            }
        }
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const u64 row = start + l * (THREADS * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                if (row + i < c.end) visit(values[l][i], WEIGHTED ? weights[l][i] : 1.0);
        }
    }
}

// The sum over the block, in thread 0. `shared` has room for one value a warp. It may be used again after a barrier.
__device__ __forceinline__ u64 block_sum(u64 v, u64* shared) {
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    u64 sum = 0;
    if (threadIdx.x == 0)
        for (int w = 0; w < WARPS; w++) sum += shared[w];
    return sum;
}

// ---- passes 1 and 2 --------------------------------------------------------------------------------------------------

// The extent of one chunk of one column, or of several chunks.
struct Extent {
    double low, high, smallest; // over rows of positive weight. smallest: the least magnitude that is not 0
    double largest; // the largest magnitude, over all rows
    u64 not_finite; // whether any value is NaN or infinite. If so, the other fields mean nothing
};

__device__ __forceinline__ void merge(Extent& a, const Extent& b) {
    a.low = b.low < a.low ? b.low : a.low;
    a.high = b.high > a.high ? b.high : a.high;
    a.smallest = b.smallest < a.smallest ? b.smallest : a.smallest;
    a.largest = b.largest > a.largest ? b.largest : a.largest;
    a.not_finite |= b.not_finite;
}

__device__ __forceinline__ Extent from_lane(const Extent& e, int offset) {
    Extent other;
    other.low = __shfl_down_sync(FULL_WARP, e.low, offset);
    other.high = __shfl_down_sync(FULL_WARP, e.high, offset);
    other.smallest = __shfl_down_sync(FULL_WARP, e.smallest, offset);
    other.largest = __shfl_down_sync(FULL_WARP, e.largest, offset);
    other.not_finite = __shfl_down_sync(FULL_WARP, e.not_finite, offset);
    return other;
}

template <typename T, typename S = T> struct Survey {
    Rows<T, S> rows;
    Extent* extents; // one a block
    u64 chunk; // rows
};

// The extents of values or, if CONTRIBUTIONS, of fl(w^ * x). V is a type that holds them exactly.
template <typename T, typename V, bool WEIGHTED, bool CONTRIBUTIONS, typename S> __device__ __forceinline__ void survey(const Survey<T, S>& a) {
    const Chunk chunk = chunk_of(a.rows, a.chunk);
    const V none = (V)infinity();
    V low = none, high = -none, smallest = none, largest = 0;
    bool finite = true;
    for_each_value<T, WEIGHTED>(a.rows, chunk, [&](T x, double w) {
        const V v = CONTRIBUTIONS ? (V)__dmul_rn(w, (double)x) : (V)x;
        const V magnitude = v < (V)0 ? -v : v;
        finite &= magnitude < none;
        if (WEIGHTED) largest = magnitude > largest ? magnitude : largest;
        if (!WEIGHTED || w > 0.0) {
            low = v < low ? v : low;
            high = v > high ? v : high;
            smallest = magnitude > (V)0 && magnitude < smallest ? magnitude : smallest;
        }
    });
    Extent e = {(double)low, (double)high, (double)smallest, (double)largest, finite ? 0ull : 1ull};
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) merge(e, from_lane(e, offset));
    __shared__ Extent warps[WARPS];
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x / 32] = e;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) merge(e, warps[w]);
        a.extents[blockIdx.x] = e;
    }
}

// What one chunk of the weights holds.
struct WeightFacts {
    double largest, smallest; // the smallest that is positive
    u64 positive; // rows of positive weight
    u32 other_than_one; // whether any is neither 0 nor 1
    u32 negative, not_finite;
    u32 unused;
};

struct WeightSurvey {
    const double* w;
    WeightFacts* facts; // one a block
    u64 n, chunk;
};

extern "C" __global__ void __launch_bounds__(THREADS) weight_survey(const __grid_constant__ WeightSurvey a) {
    const u64 begin = blockIdx.x * a.chunk, end = begin + a.chunk < a.n ? begin + a.chunk : a.n;
    double largest = 0.0, smallest = infinity();
    u32 positive = 0, flags = 0;
#pragma unroll 4
    for (u64 row = begin + threadIdx.x; row < end; row += THREADS) {
        const double w = a.w[row];
        largest = w > largest ? w : largest;
        smallest = w > 0.0 && w < smallest ? w : smallest;
        positive += w > 0.0;
        flags |= (w != 0.0 && w != 1.0 ? 1 : 0) | (w < 0.0 ? 2 : 0) | (fabs(w) < infinity() ? 0 : 4);
    }
    for (int offset = 16; offset; offset >>= 1) {
        const double other = __shfl_down_sync(FULL_WARP, largest, offset), less = __shfl_down_sync(FULL_WARP, smallest, offset);
        largest = other > largest ? other : largest;
        smallest = less < smallest ? less : smallest;
        positive += __shfl_down_sync(FULL_WARP, positive, offset);
        flags |= __shfl_down_sync(FULL_WARP, flags, offset);
    }
    __shared__ double warp_largest[WARPS], warp_smallest[WARPS];
    __shared__ u32 warp_positive[WARPS], warp_flags[WARPS];
    if ((threadIdx.x & 31) == 0) {
        warp_largest[threadIdx.x / 32] = largest;
        warp_smallest[threadIdx.x / 32] = smallest;
        warp_positive[threadIdx.x / 32] = positive;
        warp_flags[threadIdx.x / 32] = flags;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) {
            largest = warp_largest[w] > largest ? warp_largest[w] : largest;
            smallest = warp_smallest[w] < smallest ? warp_smallest[w] : smallest;
            positive += warp_positive[w];
            flags |= warp_flags[w];
        }
        const WeightFacts facts = {largest, smallest, positive, flags & 1, (flags >> 1) & 1, flags >> 2, 0};
        a.facts[blockIdx.x] = facts;
    }
}

struct RoundWeights {
    double* w;
    u64 n;
    double quantum;
};

// `WeightScale::round` of src/input/tile.rs.
extern "C" __global__ void __launch_bounds__(THREADS) round_weights(const __grid_constant__ RoundWeights a) {
    for (u64 row = global_thread(); row < a.n; row += all_threads()) {
        const double w = a.w[row];
        const double units = rint(__ddiv_rn(w, a.quantum));
        a.w[row] = w > 0.0 ? __dmul_rn(units > 1.0 ? units : 1.0, a.quantum) : 0.0;
    }
}

// ---- pass 3 ----------------------------------------------------------------------------------------------------------

template <typename T, typename S = T> struct CountSmall {
    Rows<T, S> rows;
    const double* largest; // (d): the largest magnitude of the column's contributions; negative if the column is not counted
    u64* counts; // (d, 3): values other than 0, values below 2^-26 of the largest, values below 2^-66 of it
    u64 chunk; // rows
};

template <typename T, bool WEIGHTED, typename S> __device__ __forceinline__ void count_small(const CountSmall<T, S>& a) {
    const Chunk chunk = chunk_of(a.rows, a.chunk);
    const double largest = a.largest[chunk.f];
    if (largest < 0.0) return;
    u32 nonzero = 0, small = 0, tiny = 0;
    for_each_value<T, WEIGHTED>(a.rows, chunk, [&](T x, double w) {
        const double v = fabs(__dmul_rn(w, (double)x));
        const bool counts = v > 0.0 && w > 0.0;
        nonzero += counts;
        small += counts && __dmul_rn(v, 67108864.0) < largest; // 2^26
        tiny += counts && __dmul_rn(v, 73786976294838206464.0) < largest; // 2^66
    });
    __shared__ u64 shared[3][WARPS];
    const u64 sums[3] = {block_sum(nonzero, shared[0]), block_sum(small, shared[1]), block_sum(tiny, shared[2])};
    if (threadIdx.x == 0)
        for (int i = 0; i < 3; i++)
            if (sums[i]) atomicAdd(&a.counts[(u64)chunk.f * 3 + i], sums[i]);
}

// ---- pass 4 ----------------------------------------------------------------------------------------------------------

struct Moments {
    double middle;
    Factors first, second; // for t = x - middle, and for t * t
};

template <typename T, typename S = T> struct Variance {
    Rows<T, S> rows;
    const Moments* moments; // (d)
    u64* sums; // (d, 2): 128-bit integers in two words, the low word first
    u64 chunk; // rows, at most 131,072
};

template <typename T, bool WEIGHTED, typename S> __device__ __forceinline__ void variance(const Variance<T, S>& a) {
    const Chunk chunk = chunk_of(a.rows, a.chunk);
    const Moments m = a.moments[chunk.f];
    i64 limbs[4] = {0, 0, 0, 0};
    for_each_value<T, WEIGHTED>(a.rows, chunk, [&](T x, double w) {
        if (!WEIGHTED || w > 0.0) {
            const double t = __dadd_rn((double)x, -m.middle);
            const Pair first = limbs_of(t, m.first), second = limbs_of(__dmul_rn(t, t), m.second);
            limbs[0] += first.hi, limbs[1] += first.lo;
            limbs[2] += second.hi, limbs[3] += second.lo;
        }
    });
    __shared__ u64 shared[4][WARPS];
    i64 sums[4];
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] = (i64)block_sum((u64)limbs[i], shared[i]);
    if (threadIdx.x == 0) {
        u64* to = a.sums + (u64)chunk.f * 4;
        for (int i = 0; i < 2; i++) {
            const Pair pair = {sums[2 * i], sums[2 * i + 1]};
            add_wide(&to[2 * i], &to[2 * i + 1], (u128)join(pair));
        }
    }
}

// ---- entry points ----------------------------------------------------------------------------------------------------

#define KERNELS(T, S, SUFFIX)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) survey_##SUFFIX(const __grid_constant__ Survey<T, S> a) {       \
        if (a.rows.w) survey<T, T, true, false>(a);                                                                    \
        else survey<T, T, false, false>(a);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) weighted_extents_##SUFFIX(const __grid_constant__ Survey<T, S> a) { \
        survey<T, double, true, true>(a);                                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) count_small_##SUFFIX(const __grid_constant__ CountSmall<T, S> a) { \
        if (a.rows.w) count_small<T, true>(a);                                                                         \
        else count_small<T, false>(a);                                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) variance_##SUFFIX(const __grid_constant__ Variance<T, S> a) {   \
        if (a.rows.w) variance<T, true>(a);                                                                            \
        else variance<T, false>(a);                                                                                    \
    }

KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)
