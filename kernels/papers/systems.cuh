// What the kernels of the papers' systems share (src/backend/cuda/papers/systems.rs): their arguments, the comparison of a row with centroids
// that are contiguous in memory, rows in doubt, and sums that only one thread adds to.
//
// Every system has the labels and the sums of the engine. The papers add up squared differences. Here a score is a float32 product
// filter on centred, scaled copies, which `Bound` certifies. The papers add floats. Here a contribution is an integer.
#pragma once
#include "../common/filter.cuh"

// An int64 is sure to hold the sum of so many rows, with one limb or two.
#define CELL_ROWS 4096

// Arguments of the kernels that label rows, alone or with sums.
template <typename T> struct SystemAssign {
    Assign<T> assign; // copies: (k padded, width), zero from d on; half_squares: (k padded), infinite from k on
    int width; // floats of a copy
    int features; // of a portion (assign_portions)
    int across; // centroids of a portion (assign_portions)
    int points; // rows that a block adds at a time, a power of two (assign_fused)
    int slots; // exclusive sums of a cluster (assign_fused)
    int unused;
};

// Arguments of the kernels that add up all rows under their labels.
template <typename T> struct SystemSums {
    Rows<T> rows;
    Labels labels; // before
    Labels next; // after
    Sums sums;
    const Factors* factors;
    double mass_to_integer;
    Control* control;
    i64* scratch; // tables in device memory; null if they are in shared memory
    i64* scratch_next; // sum_groups: tables of the next round
    u32 tables; // sum_groups: the number of tables of this round
    u32 tables_next;
    u32 chunk; // sum_features: columns of a block
    u32 points; // sum_features: rows at a time
    u32 from_pairs; // sum_groups: whether this round's tables hold halves
    u32 unused;
};

// Whether a row takes part in sums.
template <typename T> __device__ __forceinline__ bool counts(const Rows<T>& rows, u64 row) { return !rows.w || rows.w[row] > 0.0; }

// The contribution of a row to column c of its cluster.
template <typename T>
__device__ __forceinline__ Pair contribution(const Rows<T>& rows, const Factors* factors, double mass_to_integer, u64 row, int c) {
    if (c >= rows.d) return mass_limbs(rows.w[row], mass_to_integer);
    double x = (double)rows.x[(u64)c * rows.stride + row];
    if (rows.w) x = __dmul_rn(rows.w[row], x);
    return limbs_of(x, factors[c]);
}

// Adds the counts of all threads to one counter in device memory, with one addition a warp. Whole warps must call this.
__device__ __forceinline__ void add_count(u64* to, u32 mine) {
    u64 all = warp_sum((u64)mine);
    if ((threadIdx.x & 31) == 0 && all) atomicAdd(to, all);
}

// ---- halves: sums of many int64 ----------------------------------------------------------------------------------------------

// Low halves and high halves, added up separately. Exact for 2^31 values, as `Sums.pending`.
struct Halves {
    u64 low, high;

    __device__ __forceinline__ void add(i64 v) { low += (u64)(u32)v, high += (u64)(v >> 32); }
    __device__ __forceinline__ void add(const Halves& other) { low += other.low, high += other.high; }
    __device__ __forceinline__ void over_warp() { low = warp_sum(low), high = warp_sum(high); }
    __device__ __forceinline__ void flush(u64* accumulator) const {
        if (low) atomicAdd(&accumulator[0], low);
        if (high) atomicAdd(&accumulator[1], high);
    }
};

// ---- labels --------------------------------------------------------------------------------------------------------------------

// Lists a row in doubt. kernels/step/settle.cu will compare it with all centroids. Whole warps must call this.
template <typename T> __device__ __forceinline__ void add_in_doubt(const Assign<T>& a, u64 row, bool doubt) {
    const u32 mask = __ballot_sync(FULL_WARP, doubt), lane = threadIdx.x & 31;
    if (mask == 0) return;
    const int leader = __ffs((int)mask) - 1;
    u32 position = 0;
    if (lane == leader) position = atomicAdd(&a.control->in_doubt, (u32)__popc(mask));
    position = __shfl_sync(FULL_WARP, position, leader) + (u32)__popc(mask & ((1u << lane) - 1));
    if (doubt) a.in_doubt[a.rows.n - 1 - position] = {(u32)row, 0};
}

// The whole warp settles its rows in doubt at once, one after another. `first` is the row of lane 0.
template <typename T> __device__ __forceinline__ void settle_at_once(const Assign<T>& a, u64 first, bool doubt, u32& label) {
    const u32 lane = threadIdx.x & 31;
    u32 lanes = __ballot_sync(FULL_WARP, doubt);
    if (lane == 0 && lanes) atomicAdd(&a.control->in_doubt, (u32)__popc(lanes));
    for (; lanes; lanes &= lanes - 1) {
        const int source = __ffs((int)lanes) - 1;
        const u32 exact = nearest_by_warp(a.rows, first + source, a.centroid_columns, a.k, lane);
        if (lane == source) label = exact;
    }
}

// ---- the sweep -------------------------------------------------------------------------------------------------------------------

// A row's two best scores.
struct Near {
    float best, second;
    u32 index;

    __device__ __forceinline__ void start() { best = infinity_f(), second = infinity_f(), index = 0; }
    __device__ __forceinline__ void take(float h, u32 j) {
        second = fminf(second, fmaxf(best, h));
        index = h < best ? j : index;
        best = fminf(best, h);
    }
    // Whether only reference distances can decide. `square` is that of the row's copy.
    __device__ __forceinline__ bool doubt(const Bound& bound, float square, const float* slacks) const {
        return !(second > reach(bound, square, best, __ldg(slacks + index)));
    }
};

// The copy of a row of at most D features, in registers. Zero from d on.
template <int D> struct RowCopy {
    float x[D];
    float square;

    // `value(f)` gives the copy of feature f.
    template <typename Value> __device__ __forceinline__ void load(int d, Value value) {
        square = 0.0f;
#pragma unroll
        for (int f = 0; f < D; f++) {
            x[f] = f < d ? value(f) : 0.0f;
            square = __fmaf_rn(x[f], x[f], square);
        }
    }
    // Over k centroids of D floats each, in shared or device memory.
    __device__ __forceinline__ void sweep(const float* copies, const float* halves, int k, Near& near) const {
#pragma unroll 2
        for (int j = 0; j < k; j++) {
            float h = halves[j];
#pragma unroll
            for (int f = 0; f < D; f += 4) {
                const float4 c = *(const float4*)(copies + j * D + f);
                h = __fmaf_rn(x[f], c.x, h);
                h = __fmaf_rn(x[f + 1], c.y, h);
                h = __fmaf_rn(x[f + 2], c.z, h);
                h = __fmaf_rn(x[f + 3], c.w, h);
            }
            near.take(h, j);
        }
    }
};

// A row of any width. Its values are read again for every four centroids. Returns the square of its copy.
template <typename Value>
__device__ __forceinline__ float sweep_any(const float* copies, const float* halves, int k, int d, int width, Near& near, Value value) {
    float square = 0.0f;
#pragma unroll 1
    for (int j = 0; j < k; j += 4) {
        const float* c = copies + (u64)j * width;
        float h[4];
#pragma unroll
        for (int i = 0; i < 4; i++) h[i] = halves[j + i];
        float sum = 0.0f;
#pragma unroll 4
        for (int f = 0; f < d; f++) {
            const float x = value(f);
            sum = __fmaf_rn(x, x, sum);
#pragma unroll
            for (int i = 0; i < 4; i++) h[i] = __fmaf_rn(x, c[i * width + f], h[i]);
        }
        square = sum;
#pragma unroll
        for (int i = 0; i < 4; i++) near.take(h[i], j + i);
    }
    return square;
}

// Finds the two best scores of a row. D is the width that the kernel is for (0: any). Returns the square of the row's copy.
template <int D, typename Value>
__device__ __forceinline__ float sweep_row(const float* copies, const float* halves, int k, int d, int width, Near& near, Value value) {
    if constexpr (D > 0) {
        RowCopy<D> copy;
        copy.load(d, value);
        copy.sweep(copies, halves, k, near);
        return copy.square;
    } else {
        return sweep_any(copies, halves, k, d, width, near, value);
    }
}

// ---- exclusive sums ------------------------------------------------------------------------------------------------------------
//
// Lutz et al. 2018, section 3.1, partitioned features: a thread has one feature and its own k sums, so nothing is atomic. Several rows
// are added at a time: slot f * points + p has feature f of every points-th row. Accumulators are (k, limbs, slots), so threads have no bank
// conflicts, whatever the labels are.

__device__ __forceinline__ void add_slot(i64* accumulators, const Sums& s, u32 slots, u32 slot, u32 label, Pair p) {
    i64* accumulator = accumulators + (u64)label * s.limbs * slots + slot;
    *accumulator += p.hi;
    if (s.limbs == 2) accumulator[slots] += p.lo;
}
__device__ __forceinline__ void clear_slots(i64* accumulators, const Sums& s, u32 slots) {
    for (u32 i = threadIdx.x; i < (u32)(s.k * s.limbs) * slots; i += blockDim.x) accumulators[i] = 0;
}
// Adds the sums of `columns` columns from `first` on to device memory, and empties them. Only between barriers.
__device__ __forceinline__ void flush_slots(i64* accumulators, const Sums& s, u32 slots, u32 points, u32 first, u32 columns) {
    const u32 all = (u32)(s.k * s.limbs) * columns;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < all; i += blockDim.x) {
        const u32 sum = i / columns, f = i - sum * columns, j = sum / s.limbs, limb = sum - j * s.limbs;
        i64* from = accumulators + (u64)sum * slots + f * points;
        Halves halves = {0, 0};
#pragma unroll 1
        for (u32 p = 0; p < points; p++) {
            const u32 at = (p + i) & (points - 1); // neighbours start in different banks
            halves.add(from[at]);
            from[at] = 0;
        }
        halves.flush(s.pending + (((u64)j * s.columns + first + f) * s.limbs + limb) * 2);
    }
}
