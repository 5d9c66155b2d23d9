// Bounds that are carried from iteration to iteration: what the kernels of the step `yinyang` share. src/bounds/yinyang.rs
// has the proofs. All lengths here are in the filter's scaled units.
//
//   centroid j has moved by at most d_j since the last launch. C_j is the sum of all its d_j, C_g that of the largest d_j of group g
//   a row stores  u = U - C_a,  l_g = L_g + C_g    when it was last compared: U >= |x - c_a|, L_g <= |x - c_j| for all j != a of group g
//   later         U = u + C_a,  L_g = l_g - C_g    with the present sums. So a row whose bounds hold is read and not written
//
// Sums are rounded up. What is stored takes the float below a sum off, or adds it. What is read adds the float above a sum, or takes it off.
//
// After the first iteration rows are in the order of their centroids, so that neighbours want the same groups: a row has a place. All that belongs to a row is stored by
// place, but for the labels that others read.
#pragma once
#include "../common/filter.cuh"

#define MOST_GROUPS 64

// How far a centroid, a group or all centroids have moved: C.
struct Drifted {
    double sum;
    float down, up;
};

// A row to compare with the centroids of some groups.
struct Listed {
    u32 place;
    float others; // a lower bound of the distance to the centroids of all other groups
    u64 groups; // a bit for each group
};

// What the product needs of a row besides its copy: see `lower_of` and `upper_of`.
struct Terms {
    float low, high; // the row's squared length, with the errors of scores, rounded down and up
    float square; // the weighted sum of squares, for `reach`
    float others; // that of `Listed`
};

// What the kernels tell each other.
struct BoundsControl {
    u64 computed; // scores of this iteration
    u32 full; // whether this iteration compares all rows with all centroids
    u32 wait; // further iterations that do so
    u32 patience; // how many did so after the last attempt that did not pay
    u32 doubtful; // rows whose bounds did not hold as they were
    u32 listed; // rows to compare
    u32 ticket; // blocks of yinyang_drifts that are done
    u32 epoch; // that of the bounds
    u32 unused;
};

// Arguments of all kernels.
struct Carried {
    Control* control;
    BoundsControl* own;
    Labels labels; // before
    Labels next; // after
    u32* row_of_place; // (n), or null: rows are in their own order
    u16* own_labels; // (n): labels by place. Not those of rows whose u is infinite
    float2* bounds; // (n): u, and l of all centroids together
    float* group_bounds; // (n, width): l of each group, if there are several
    Drifted* centroids; // (k)
    Drifted* groups; // (groups + 1): the last one is that of all centroids
    u64* largest; // (groups): the bits of the largest drift. 0 before and after yinyang_drifts
    const u32* order; // (k padded): the centroid at each place
    const u32* places; // (k): the place of each centroid
    u32* counts; // (k): rows at each place of a centroid, then where the next one goes
    u32* doubtful; // (n): places
    Listed* listed; // (n)
    const float* copies; // (d, k padded): by centroid
    const float* half_squares;
    float* own_copies; // by place. With one group the same arrays
    float* own_half_squares;
    float* x; // (d, stride): copies of the rows to compare
    Terms* terms; // (stride)
    u64* unions; // (tiles of 128): groups of any of their rows
    u64 stride;
    u32 n;
    u32 k, k_padded;
    u32 d;
    u32 group_count, width;
    u32 group_size; // centroids of a group
    u32 epoch; // bounds of another epoch are void
    float low, high, underflow; // for `holds`
    u32 unused;
};

// Arguments of the kernels that read rows.
template <typename T, typename S = T> struct CarriedRows {
    Carried carried;
    Rows<T, S> rows; // by place
    const T* centroids; // (k, d)
    T* kept; // (k, d): the centroids of the last launch
    const T* minus_centre; // (d)
    T scale;
    const Bound* bound;
    double grown, tiny; // a distance is at most `sqrt(sum) * grown + tiny`
    double error; // 2 E_x over the weighted sum of squares
    double squares; // the relative error of a sum of squares
    int panel; // for `weight_of`
    int unused;
};

__device__ __forceinline__ float minus_infinity_f() { return __int_as_float((int)0xff800000); }

// Whether a centroid at a distance of at least `lower` loses against one at a distance of at most `upper`, by rounded reference distances. False for
// what is not a number.
__device__ __forceinline__ bool holds(const Carried& a, float lower, float upper) {
    return __fmul_rd(lower, a.low) > __fadd_ru(__fmul_ru(upper, a.high), a.underflow);
}
__device__ __forceinline__ float lower_now(float stored, const Drifted& m) {
    const float v = __fadd_rd(stored, -m.up);
    return v == v ? v : minus_infinity_f();
}
__device__ __forceinline__ float lower_stored(float bound, const Drifted& m) { return __fadd_rd(bound, m.down); }
__device__ __forceinline__ float upper_now(float stored, const Drifted& m) { return __fadd_ru(stored, m.up); }
__device__ __forceinline__ float upper_stored(float bound, const Drifted& m) { return __fadd_ru(bound, -m.down); }

// Bounds of the distance to a centroid from its score. A row that is out of the filter's range has low = -inf and high = inf: then they are 0 and infinity.
__device__ __forceinline__ float lower_of(float score, float low) {
    const float square = __fmaf_rd(2.0f, score, low);
    return square > 0.0f ? __fsqrt_rd(square) : 0.0f;
}
__device__ __forceinline__ float upper_of(float score, float slack, float high) {
    const float square = __fmaf_ru(2.0f, __fadd_ru(score, slack), high);
    return square <= 0.0f ? 0.0f : __fsqrt_ru(square);
}

__device__ __forceinline__ u32 row_at(const Carried& a, u32 place) { return a.row_of_place ? a.row_of_place[place] : place; }

// Collects entries of a block in the order of its threads, and appends them to a list all at once. So neighbours in the list are neighbours in the order of rows.
template <typename E, int MOST, int THREADS> struct Collected {
    E entries[MOST];
    u32 sums[THREADS / 32];
    u32 count, first;

    // All threads must call these, and `begin` before and `append` after they add. `add` at most MOST / THREADS times.
    __device__ __forceinline__ void begin() {
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
    }
    __device__ __forceinline__ void add(bool wanted, const E& entry) {
        const u32 tid = threadIdx.x, lane = tid & 31, mask = __ballot_sync(FULL_WARP, wanted);
        if (lane == 0) sums[tid / 32] = (u32)__popc(mask);
        __syncthreads();
        u32 at = count + (u32)__popc(mask & ((1u << lane) - 1)), all = 0;
#pragma unroll
        for (u32 w = 0; w < THREADS / 32; w++) {
            at += w < tid / 32 ? sums[w] : 0;
            all += sums[w];
        }
        if (wanted) entries[at] = entry;
        __syncthreads();
        if (tid == 0) count += all;
        __syncthreads();
    }
    __device__ __forceinline__ void append(u32* counter, E* list) {
        if (threadIdx.x == 0) first = atomicAdd(counter, count);
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += THREADS) list[first + i] = entries[i];
        __syncthreads();
    }
};
