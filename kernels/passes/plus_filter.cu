// plus_filter: which rows come nearer to a candidate of k-means++, from copies of the rows in 8-bit integers.
//
//   plus_near      the candidates within reach of each centre, and their copies
//   plus_filter    lists each row with the candidates that its copy does not rule out
//   plus_settle    the reference distances of the list, and the gains
//
// Source:    ours. That a centre of few rows makes differences small, so that few bits say enough, is the idea of residual quantisation
//            (Jegou, Douze and Schmid, "Product quantization for nearest neighbor search", 2011). Elkan 2003 rules out by the triangle
//            inequality, as the norms do here.
// Used when: the steps of k-means++ on the device, once some seeds are taken, if the device has room for the copies.
// Tile:      plus_near: a warp has a centre and up to four candidates. plus_filter: a warp has 32 places of one centre. Most centres are
//            far from all candidates. Else the norms rule candidates out for all of its rows, and for the others it reads the copies,
//            once for 8 candidates. plus_settle: a block has 8 or 32 entries of the list. All warps fetch values, and one warp computes
//            the chains.
// Memory:    plus_near reads the centres. plus_filter reads 16 bytes a row of the centres near a candidate, and d bytes of the rows whose
//            norms do not decide. The values of listed rows are read row by row.
// Precision: integer products on tensor cores, which are exact. The bound is in float32 (src/bounds/bytes.rs). Then reference distances.
#include "bytes.cuh"
#include "plus_plus.cuh"

// ---- the candidates --------------------------------------------------------------------------------------------------

template <typename T> struct PlusNear {
    Step<T> step;
    ByteCopies<T> copies;
    int d;
    u32 unused;
};

#define NEAR_THREADS 128

// The copy of a candidate for one centre, by one warp.
template <typename T>
__device__ __forceinline__ void copy_candidate(const ByteCopies<T>& a, const T* c, const T* centre, int d, u32 g, u32 j, u32 m, u32 lane) {
    u32* words = reinterpret_cast<u32*>(a.candidate_bytes);
    const auto word = [&](u32 at) -> u32& { return words[candidate_word(a, g, j, at)]; };
    const CopiedBytes copied = copy_bytes(a, c, centre, d, word);
    if (lane == 0) {
        const float norm = norm_up(copied.square), down = __double2float_rd(__dmul_rd(copied.square, 1.0 - ROUNDED));
        a.candidate_facts[(u64)g * m + j] = {down, copied.step, norm, residual_up(copied.residual, norm)};
    }
}

// A warp compares a centre with some of the candidates, and copies those that are within reach of the centre's rows.
template <typename T> __device__ __forceinline__ void plus_near(const PlusNear<T>& a) {
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const ByteCopies<T>& copies = a.copies;
    const u32 m = a.step.m, lane = threadIdx.x & 31, quarters = (m + QUARTER - 1) / QUARTER;
    for (u32 task = global_thread() / 32; task < copies.centres * quarters; task += all_threads() / 32) {
        const u32 g = task / quarters, quarter = task % quarters, first = quarter * QUARTER;
        const u32 here = m - first < QUARTER ? m - first : QUARTER;
        const T *centre = a.step.seeds + (u64)g * a.d, *c = a.step.candidates + (u64)first * a.d;
        double square[QUARTER] = {};
#pragma unroll 8
        for (int f = lane; f < a.d; f += 32) {
            const T from = centre[f];
#pragma unroll
            for (u32 j = 0; j < QUARTER; j++) {
                const double t = scaled(c[(u64)(j < here ? j : 0) * a.d + f], from, copies.scale);
                square[j] = __fma_rn(t, t, square[j]);
            }
        }
        const float reach = __uint_as_float(copies.reaches[g]);
        u32 mask = 0;
#pragma unroll
        for (u32 j = 0; j < QUARTER; j++) {
#pragma unroll
            for (int o = 16; o; o >>= 1) square[j] += __shfl_xor_sync(FULL_WARP, square[j], o);
            if (j < here && !beyond_reach(norm_up(square[j]), reach)) mask |= 1u << j;
        }
        if (lane == 0) reinterpret_cast<u8*>(copies.masks + g)[quarter] = (u8)mask;
        for (; mask; mask &= mask - 1) {
            const u32 j = __ffs(mask) - 1;
            copy_candidate(copies, c + (u64)j * a.d, centre, a.d, g, first + j, m, lane);
        }
    }
}

// The candidates within reach of a centre, a bit each.
__device__ __forceinline__ u32 within_reach(u32 quarters) {
    return (quarters & 0xf) | (quarters >> 4 & 0xf0) | (quarters >> 8 & 0xf00) | (quarters >> 12 & 0xf000);
}

// ---- the filter ------------------------------------------------------------------------------------------------------

template <typename T> struct PlusFilter {
    Step<T> step;
    ByteCopies<T> copies;
};

__device__ __forceinline__ ByteFacts load_facts(const ByteFacts* at) {
    const float4 v = *reinterpret_cast<const float4*>(at);
    return {v.x, v.y, v.z, v.w};
}

// The facts that another lane knows.
__device__ __forceinline__ ByteFacts facts_of(const ByteFacts& own, u32 lane) {
    return {__shfl_sync(FULL_WARP, own.square, lane), __shfl_sync(FULL_WARP, own.step, lane), __shfl_sync(FULL_WARP, own.norm, lane),
            __shfl_sync(FULL_WARP, own.residual, lane)};
}

// Adds to d the products of 16 rows and 8 candidates over a piece. Lane l gets row l / 4 and candidates 2 (l % 4) + {0, 1} in d[0] and d[1],
// and the same of row l / 4 + 8 in d[2] and d[3].
__device__ __forceinline__ void multiply_bytes(int (&d)[4], const uint4& x, const uint2& c) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(c.x), "r"(c.y));
}

// Tries N times BESIDE candidates, from `first` on, for the rows of a tile. A lane knows one candidate, `own`, and one row. Returns the
// candidates that are not ruled out for this lane's row, a bit each.
template <int N, typename T>
__device__ __forceinline__ u32 try_candidates(const ByteCopies<T>& a, u32 tile, u32 centre, u32 first, const ByteFacts& row, const ByteFacts& own) {
    const u32 lane = threadIdx.x & 31, pieces = a.pieces;
    const uint4* rows = a.bytes + (u64)tile * pieces * (PLACES / 16) * 32 + lane;
    const uint2* candidates = a.candidate_bytes + ((u64)centre * a.beside + first / BESIDE) * pieces * 32 + lane;
    int product[N][2][4] = {};
#pragma unroll(N == 1 ? 4 : 2)
    for (u32 piece = 0; piece < pieces; piece++) {
        const uint4 x = __ldg(rows + piece * 64), y = __ldg(rows + piece * 64 + 32);
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            const uint2 c = candidates[(n * pieces + piece) * 32];
            multiply_bytes(product[n][0], x, c);
            multiply_bytes(product[n][1], y, c);
        }
    }
    ByteFacts of[N][2];
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 i = 0; i < 2; i++) of[n][i] = facts_of(own, first + n * BESIDE + lane % 4 * 2 + i);
    u32 left = 0;
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        // Row l / 4 + 8 r, whose four lanes know two candidates of each eight.
        const ByteFacts x = facts_of(row, lane / 4 + 8 * r);
        u32 here = 0;
#pragma unroll
        for (u32 n = 0; n < N; n++)
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                if (!far_by_bytes(x, of[n][i], product[n][r / 2][r % 2 * 2 + i])) here |= 1u << (n * BESIDE + lane % 4 * 2 + i);
        here |= __shfl_xor_sync(FULL_WARP, here, 1);
        here |= __shfl_xor_sync(FULL_WARP, here, 2);
        const u32 mine = __shfl_sync(FULL_WARP, here, lane % 8 * 4);
        if (lane / 8 == r) left = mine;
    }
    return left << first;
}

// Lists what the copies of a tile do not rule out. mask: the candidates within reach.
template <typename T> __device__ __forceinline__ void filter_tile(const PlusFilter<T>& a, u32 tile, u32 mask) {
    const ByteCopies<T>& copies = a.copies;
    const u32 lane = threadIdx.x & 31, m = a.step.m;
    const u64 place = (u64)tile * PLACES + lane;
    const ByteFacts row = load_facts(copies.facts + place);
    const u32 centre = copies.centre_of[tile], number = copies.order[place];
    // A lane knows one candidate.
    const ByteFacts own = load_facts(copies.candidate_facts + (u64)centre * m + (lane < m ? lane : 0));
    u32 near = 0;
    for (; mask; mask &= mask - 1) {
        const u32 j = __ffs(mask) - 1;
        if (!far_by_norms(row, facts_of(own, j))) near |= 1u << j;
    }
    mask = __reduce_or_sync(FULL_WARP, near);
    if (mask == 0) return;
    const u32 low = mask & ((1u << BESIDE) - 1), high = mask >> BESIDE;
    u32 left = low && high ? try_candidates<2>(copies, tile, centre, 0, row, own)
                           : try_candidates<1>(copies, tile, centre, low ? 0 : BESIDE, row, own);
    left &= near;
    if (number == NO_ROW) left = 0;
    if (!__any_sync(FULL_WARP, left)) return;
    // The entries of the warp follow each other.
    u32 end = __popc(left);
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const u32 before = __shfl_up_sync(FULL_WARP, end, o);
        if (lane >= o) end += before;
    }
    u32 first = 0;
    if (lane == 31) first = has_room(a.step) ? atomicAdd(&a.step.control->listed, end) : (u32)a.step.room;
    u64 at = (u64)__shfl_sync(FULL_WARP, first, 31) + end - __popc(left);
    for (; left; left &= left - 1, at++)
        if (at < a.step.room) a.step.list[at] = Nearer{infinity(), number, (u32)place, (u32)__ffs(left) - 1, 0};
}

// A warp looks at 32 tiles at once, which are far from each other, and then at those whose centre is near a candidate.
template <typename T> __device__ __forceinline__ void plus_filter(const PlusFilter<T>& a) {
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const u32 lane = threadIdx.x & 31, tiles = a.copies.places / PLACES, warps = all_threads() / 32;
    for (u32 first = global_thread() / 32; first < tiles; first += 32 * warps) {
        const u64 own = first + (u64)lane * warps;
        const u32 mask = own < tiles ? within_reach(a.copies.masks[a.copies.centre_of[own]]) : 0;
        for (u32 near = __ballot_sync(FULL_WARP, mask); near; near &= near - 1) {
            const u32 of = __ffs(near) - 1;
            filter_tile(a, first + of * warps, __shfl_sync(FULL_WARP, mask, of));
        }
    }
}

// ---- the list --------------------------------------------------------------------------------------------------------

template <typename T> struct PlusSettle {
    Rows<T> rows;
    const double* nearest; // (stride)
    DistanceScale scale;
    Step<T> step;
    ByteCopies<T> copies;
};

#define SETTLERS 128
#define SETTLED 2048 // differences of a block at a time: of 32 entries in 64 features, or of 8 in 256
#define OF_LANE (SETTLED / SETTLERS) // differences that a lane computes

// The values of a warp's entries and of their candidates, on their way to this lane.
template <typename T> struct Arriving {
    T x[OF_LANE], c[OF_LANE];
};

// ENTRIES: of a block at a time. A lane of every warp knows one of them.
template <int ENTRIES, typename T>
__device__ __forceinline__ void fetch(const PlusSettle<T>& a, const Nearer& mine, u32 begin, Arriving<T>& to) {
    constexpr u32 OF_WARP = ENTRIES / (SETTLERS / 32), STEPS = OF_LANE / OF_WARP;
    const u32 d = a.rows.d, lane = threadIdx.x & 31, first = threadIdx.x / 32 * OF_WARP;
#pragma unroll
    for (u32 i = 0; i < OF_WARP; i++) {
        const u64 row = __shfl_sync(FULL_WARP, mine.row, first + i);
        const u32 candidate = __shfl_sync(FULL_WARP, mine.candidate, first + i);
        const T *x = a.copies.values + row * d, *c = a.step.candidates + (u64)candidate * d;
#pragma unroll
        for (u32 p = 0; p < STEPS; p++) {
            const u32 f = begin + 32 * p + lane;
            to.x[i * STEPS + p] = f < d ? x[f] : (T)0;
            to.c[i * STEPS + p] = f < d ? c[f] : (T)0;
        }
    }
}

// All warps compute differences. The first warp computes the chains, an entry a lane, while the next values are on their way. Returns the gain
// of candidate `lane`, in the first warp.
template <int ENTRIES, typename T>
__device__ __forceinline__ u128 settle_entries(const PlusSettle<T>& a, u32 listed, double* differences) {
    constexpr u32 OF_WARP = ENTRIES / (SETTLERS / 32), STEPS = OF_LANE / OF_WARP, FEATURES = SETTLED / ENTRIES, PITCH = FEATURES + 1;
    const u32 d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32, own = warp * OF_WARP;
    u128 gain = 0;
    for (u32 first = blockIdx.x * ENTRIES; first < listed; first += gridDim.x * ENTRIES) {
        const u32 here = listed - first < ENTRIES ? listed - first : ENTRIES;
        // Beyond the list it is the last entry.
        const Nearer mine = a.step.list[first + (lane < here ? lane : here - 1)];
        Arriving<T> arriving;
        fetch<ENTRIES>(a, mine, 0, arriving);
        double s = 0.0;
        for (u32 begin = 0; begin < d; begin += FEATURES) {
#pragma unroll
            for (u32 i = 0; i < OF_WARP; i++)
#pragma unroll
                for (u32 p = 0; p < STEPS; p++)
                    differences[(own + i) * PITCH + 32 * p + lane] =
                        __dadd_rn((double)arriving.x[i * STEPS + p], -(double)arriving.c[i * STEPS + p]);
            __syncthreads();
            if (begin + FEATURES < d) fetch<ENTRIES>(a, mine, begin + FEATURES, arriving);
            if (warp == 0 && lane < ENTRIES) {
                const u32 count = d - begin < FEATURES ? d - begin : FEATURES;
                const double* row = differences + lane * PITCH;
#pragma unroll 16
                for (u32 f = 0; f < count; f++) s = __fma_rn(row[f], row[f], s);
            }
            __syncthreads();
        }
        if (warp != 0) continue;
        u128 gained = 0;
        bool nearer = false;
        if (lane < here) {
            const double before = a.nearest[mine.row], w = a.rows.w ? a.rows.w[mine.row] : 1.0;
            nearer = s < before;
            if (nearer) {
                a.step.list[first + lane].distance = s;
                gained = (u128)(join(quantise_distance(a.scale, w, before)) - join(quantise_distance(a.scale, w, s)));
            }
        }
        for (u32 j = 0; j < a.step.m; j++) {
            const bool of_j = nearer && mine.candidate == j;
            if (!__any_sync(FULL_WARP, of_j)) continue;
            const u128 sum = warp_sum_wide(of_j ? gained : 0);
            if (lane == j) gain += sum;
        }
    }
    return gain;
}

template <typename T> __device__ __forceinline__ void plus_settle(const PlusSettle<T>& a) {
    __shared__ double differences[SETTLED + 32];
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const u32 listed = a.step.control->listed, lane = threadIdx.x & 31;
    if (listed > a.step.room) return;
    // A short list is spread over more blocks, which then take fewer steps.
    const u128 gain = listed <= 8 * gridDim.x ? settle_entries<8>(a, listed, differences) : settle_entries<32>(a, listed, differences);
    if (threadIdx.x < 32 && lane < a.step.m && gain)
        add_wide(&a.step.control->gains[2 * lane], &a.step.control->gains[2 * lane + 1], gain);
}

// ---- entry points ----------------------------------------------------------------------------------------------------

// `plus_filter` and `plus_settle` read no values of rows, only their copies.
#define FILTER(T, SUFFIX)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(NEAR_THREADS) plus_near_##SUFFIX(const __grid_constant__ PlusNear<T> a) {    \
        plus_near(a);                                                                                                         \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256, 4) plus_filter_##SUFFIX(const __grid_constant__ PlusFilter<T> a) {      \
        plus_filter(a);                                                                                                       \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(SETTLERS) plus_settle_##SUFFIX(const __grid_constant__ PlusSettle<T> a) {    \
        plus_settle(a);                                                                                                       \
    }

FILTER(float, f32)
FILTER(double, f64)
