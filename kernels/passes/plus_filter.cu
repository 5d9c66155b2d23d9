// plus_filter: which rows come nearer to a candidate of k-means++, from copies of the rows in 8-bit integers.
//
//   plus_centres   the centre of each row: the nearest of the first seeds
//   plus_copies    the copies of the rows, ordered by centre
//   plus_filter    lists each row with the candidates that its copy does not rule out
//   plus_settle    the reference distances of the list, and the gains
//
// Source:    ours. That a centre of few rows makes differences small, so that few bits say enough, is the idea of residual quantisation
//            (Jegou, Douze and Schmid, "Product quantization for nearest neighbor search", 2011). Elkan 2003 rules out by the triangle
//            inequality, as the norms do here.
// Used when: the steps of k-means++ on the device, once some seeds are taken, if the device has room for the copies.
// Tile:      plus_filter: a warp has 32 places of one centre, a row a lane. The norms rule most candidates out for all of its rows. For
//            the others it reads the copies, once for up to 16 candidates. plus_settle: a block has 32 entries of the list. All warps
//            fetch values, and one warp computes the chains.
// Memory:    plus_filter reads 16 bytes a row, and d bytes of the rows whose norms do not decide. The values of listed rows are read
//            row by row.
// Precision: integer products, which are exact. The bound is in float32 (src/bounds/bytes.rs). Then reference distances.
#include "bytes.cuh"
#include "candidates.cuh"
#include "plus_plus.cuh"

// ---- the copies ------------------------------------------------------------------------------------------------------

template <typename T, typename S = T> struct PlusCentres {
    Rows<T, S> rows;
    const T* centres; // (m, d)
    u8* nearest; // (stride): the centre of each row
    u32* counts; // (MOST_CENTRES): rows of each centre; must be 0 before
    u32 m;
    u32 unused;
};

template <typename T, typename S> __device__ __forceinline__ void plus_centres(const PlusCentres<T, S>& a) {
    __shared__ __align__(16) double points[POINT_VALUES];
    __shared__ u32 counts[MOST_CENTRES];
    for (u32 g = threadIdx.x; g < MOST_CENTRES; g += THREADS) counts[g] = 0;
    for (u64 tile = (u64)blockIdx.x * TILE; tile < a.rows.n; tile += (u64)gridDim.x * TILE) {
        const u64 row = tile + 2 * threadIdx.x;
        double least[2] = {infinity(), infinity()};
        u32 nearest[2] = {0, 0};
        visit_distances<T>(a.rows, row, a.centres, a.m, points, [&](u32 j, double s0, double s1) {
            if (s0 < least[0]) least[0] = s0, nearest[0] = j;
            if (s1 < least[1]) least[1] = s1, nearest[1] = j;
        });
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (row + r < a.rows.n) {
                a.nearest[row + r] = (u8)nearest[r];
                atomicAdd(&counts[nearest[r]], 1u);
            }
    }
    __syncthreads();
    for (u32 g = threadIdx.x; g < a.m; g += THREADS)
        if (counts[g]) atomicAdd(&a.counts[g], counts[g]);
}

template <typename T, typename S = T> struct PlusCopies {
    Rows<T, S> rows;
    const double* nearest; // (stride): the distance to the nearest seed
    const T* centres; // (centres, d)
    const u8* centre_of; // (stride)
    u32* next; // (centres): the next free place of each centre
    ByteCopies<T> copies;
};

// Stores the first `count` of 16 values, in fours if `fours` says that they are aligned to four.
__device__ __forceinline__ void store_values(float* to, const float (&value)[16], int count, bool fours) {
#pragma unroll
    for (int i = 0; i < 16; i += 4)
        if (fours && i < count) *reinterpret_cast<float4*>(to + i) = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (!fours && i < count) to[i] = value[i];
}
__device__ __forceinline__ void store_values(double* to, const double (&value)[16], int count, bool fours) {
#pragma unroll
    for (int i = 0; i < 16; i += 2)
        if (fours && i < count) *reinterpret_cast<double2*>(to + i) = make_double2(value[i], value[i + 1]);
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (!fours && i < count) to[i] = value[i];
}

// A thread makes the copy of one row. The order of the rows of a centre differs from run to run, and nothing depends on it.
template <typename T, typename S> __device__ __forceinline__ void plus_copies(const PlusCopies<T, S>& a) {
    const u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= a.rows.n) return;
    const u32 lane = threadIdx.x & 31, centre = a.centre_of[row];
    const u32 same = __match_any_sync(__activemask(), centre), leader = __ffs(same) - 1;
    u32 place = 0;
    if (lane == leader) place = atomicAdd(&a.next[centre], __popc(same));
    place = __shfl_sync(same, place, leader) + __popc(same & ((1u << lane) - 1));
    const ByteCopies<T>& copies = a.copies;
    const int d = a.rows.d;
    const S* x = a.rows.x + row;
    const T* c = a.centres + (u64)centre * d;
    double largest = 0.0, square = 0.0, residual = 0.0, inverse;
#pragma unroll 8
    for (int f = 0; f < d; f++) {
        const double t = scaled(a.rows.value(x[(u64)f * a.rows.stride]), c[f], copies.scale);
        largest = fmax(largest, fabs(t));
        square = __fma_rn(t, t, square);
    }
    const float step = step_of(largest, inverse);
    T* values = copies.values + (u64)place * d;
#pragma unroll 1
    for (u32 piece = 0; piece < copies.pieces; piece++) {
        u32 words[4];
        T value[16];
#pragma unroll
        for (int i = 0; i < 16; i++) value[i] = 16 * piece + i < d ? a.rows.value(x[(u64)(16 * piece + i) * a.rows.stride]) : (T)0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int f = 16 * piece + i;
            const u32 byte = f < d ? byte_of(scaled(value[i], c[f], copies.scale), step, inverse, residual) : 0;
            words[i / 4] = i % 4 ? words[i / 4] | byte << 8 * (i % 4) : byte;
        }
        store_values(values + 16 * piece, value, d - 16 * (int)piece, d % 4 == 0);
        copies.bytes[piece * copies.places + place] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    const float norm = norm_up(square);
    copies.facts[place] = {lead(square, a.nearest[row], copies.scale), step, norm, residual_up(residual, norm)};
    copies.order[place] = (u32)row;
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

// Tries the candidates of `mask`, at most W of them, for the rows of a warp. A lane knows the facts of one: `own`. Returns for this lane those that are not ruled out.
template <typename T, int W>
__device__ __forceinline__ u32 try_candidates(const ByteCopies<T>& a, u64 place, u32 centre, u32 m, u32 mask, const ByteFacts& row,
                                              const ByteFacts& own) {
    const uint4* bytes = a.candidate_bytes + (u64)centre * m * a.pieces;
    u32 which[W];
    int product[W];
#pragma unroll
    for (int w = 0; w < W; w++) {
        // If there are fewer than W, the last one is tried again.
        which[w] = mask ? __ffs(mask) - 1 : which[w ? w - 1 : 0];
        mask &= mask - 1;
        product[w] = 0;
    }
#pragma unroll 4
    for (u32 piece = 0; piece < a.pieces; piece++) {
        const uint4 x = __ldcs(a.bytes + piece * a.places + place);
#pragma unroll
        for (int w = 0; w < W; w++) {
            const uint4 c = bytes[which[w] * a.pieces + piece];
            product[w] = __dp4a((int)x.x, (int)c.x, product[w]);
            product[w] = __dp4a((int)x.y, (int)c.y, product[w]);
            product[w] = __dp4a((int)x.z, (int)c.z, product[w]);
            product[w] = __dp4a((int)x.w, (int)c.w, product[w]);
        }
    }
    u32 left = 0;
#pragma unroll
    for (int w = 0; w < W; w++)
        if (!far_by_bytes(row, facts_of(own, which[w]), product[w])) left |= 1u << which[w];
    return left;
}

template <typename T> __device__ __forceinline__ void plus_filter(const PlusFilter<T>& a) {
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const ByteCopies<T>& copies = a.copies;
    const u32 lane = threadIdx.x & 31, m = a.step.m, tiles = copies.places / PLACES;
    for (u32 tile = global_thread() / 32; tile < tiles; tile += all_threads() / 32) {
        const u64 place = (u64)tile * PLACES + lane;
        const ByteFacts row = load_facts(copies.facts + place);
        const u32 centre = copies.centre_of[tile];
        // A lane knows one candidate.
        const ByteFacts own = load_facts(copies.candidate_facts + (u64)centre * m + (lane < m ? lane : 0));
        u32 mask = 0;
        for (u32 j = 0; j < m; j++)
            if (!far_by_norms(row, facts_of(own, j))) mask |= 1u << j;
        mask = __reduce_or_sync(FULL_WARP, mask);
        const int count = __popc(mask);
        if (count == 0) continue;
        u32 left = count <= 2 ? try_candidates<T, 2>(copies, place, centre, m, mask, row, own)
            : count <= 4      ? try_candidates<T, 4>(copies, place, centre, m, mask, row, own)
            : count <= 8      ? try_candidates<T, 8>(copies, place, centre, m, mask, row, own)
                              : try_candidates<T, 16>(copies, place, centre, m, mask, row, own);
        if (!__any_sync(FULL_WARP, left)) continue;
        const u32 number = copies.order[place];
        if (number == NO_ROW) left = 0;
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
#define ENTRIES 32 // of a block at a time
#define SETTLED 64 // features at a time, two a lane
#define OF_WARP (ENTRIES / (SETTLERS / 32)) // entries for which a warp computes differences

// The values of a warp's entries and of their candidates, on their way to this lane.
template <typename T> struct Arriving {
    T x[OF_WARP][2], c[OF_WARP][2];
};

template <typename T>
__device__ __forceinline__ void fetch(const PlusSettle<T>& a, const Nearer& mine, u32 first_entry, u32 begin, Arriving<T>& to) {
    const u32 d = a.rows.d, lane = threadIdx.x & 31;
#pragma unroll
    for (u32 i = 0; i < OF_WARP; i++) {
        const u64 place = __shfl_sync(FULL_WARP, mine.place, first_entry + i);
        const u32 candidate = __shfl_sync(FULL_WARP, mine.candidate, first_entry + i);
        const T *x = a.copies.values + place * d, *c = a.step.candidates + (u64)candidate * d;
#pragma unroll
        for (u32 p = 0; p < 2; p++) {
            const u32 f = begin + 32 * p + lane;
            to.x[i][p] = f < d ? x[f] : (T)0;
            to.c[i][p] = f < d ? c[f] : (T)0;
        }
    }
}

// All warps compute differences. The first warp computes the chains, an entry a lane, while the next values are on their way.
template <typename T> __device__ __forceinline__ void plus_settle(const PlusSettle<T>& a) {
    __shared__ double differences[ENTRIES][SETTLED + 1];
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const u32 listed = a.step.control->listed;
    if (listed > a.step.room) return;
    const u32 d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32, own = warp * OF_WARP;
    u128 gain = 0; // of candidate `lane`, in the first warp
    for (u32 first = blockIdx.x * ENTRIES; first < listed; first += gridDim.x * ENTRIES) {
        const u32 here = listed - first < ENTRIES ? listed - first : ENTRIES;
        // A lane of every warp knows one entry. Beyond the list it is the last one.
        const Nearer mine = a.step.list[first + (lane < here ? lane : here - 1)];
        Arriving<T> arriving;
        fetch(a, mine, own, 0, arriving);
        double s = 0.0;
        for (u32 begin = 0; begin < d; begin += SETTLED) {
#pragma unroll
            for (u32 i = 0; i < OF_WARP; i++)
#pragma unroll
                for (u32 p = 0; p < 2; p++)
                    differences[own + i][32 * p + lane] = __dadd_rn((double)arriving.x[i][p], -(double)arriving.c[i][p]);
            __syncthreads();
            if (begin + SETTLED < d) fetch(a, mine, own, begin + SETTLED, arriving);
            if (warp == 0) {
                const u32 count = d - begin < SETTLED ? d - begin : SETTLED;
#pragma unroll 16
                for (u32 f = 0; f < count; f++) s = __fma_rn(differences[lane][f], differences[lane][f], s);
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
    if (warp == 0 && lane < a.step.m && gain) add_wide(&a.step.control->gains[2 * lane], &a.step.control->gains[2 * lane + 1], gain);
}

// ---- entry points ----------------------------------------------------------------------------------------------------

// `plus_filter` and `plus_settle` read no values of rows, only their copies.
#define COPIES(T, S, SUFFIX)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) plus_centres_##SUFFIX(const __grid_constant__ PlusCentres<T, S> a) { \
        plus_centres(a);                                                                                                      \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) plus_copies_##SUFFIX(const __grid_constant__ PlusCopies<T, S> a) {      \
        plus_copies(a);                                                                                                       \
    }
#define FILTER(T, SUFFIX)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) plus_filter_##SUFFIX(const __grid_constant__ PlusFilter<T> a) {         \
        plus_filter(a);                                                                                                       \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(SETTLERS) plus_settle_##SUFFIX(const __grid_constant__ PlusSettle<T> a) {    \
        plus_settle(a);                                                                                                       \
    }

COPIES(float, float, f32)
COPIES(double, double, f64)
COPIES(float, Half, f16)
FILTER(float, f32)
FILTER(double, f64)
