// How a row is drawn: its weight, and the search for the row at which the running total of the weights exceeds a target.
#pragma once
#include "draws.cuh"

// ---- weights ---------------------------------------------------------------------------------------------------------

// The weight of a row in a draw.
#define DRAW_ROW 0 // every row weighs the same, so a target is the number of a row
#define DRAW_WEIGHT 1 // the integer of w^
#define DRAW_DISTANCE 2 // the integer of its distance to the nearest centroid taken
#define DRAW_POSITIVE 3 // 1 if w is positive

struct Draws {
    const double* w;
    const double* nearest;
    DistanceScale scale;
    double weight_to_integer;
    u64 n;
    u64 range; // rows
    u32 ranges;
    int kind;
};

__device__ __forceinline__ u128 draw_weight(const Draws& a, u64 row) {
    const double w = a.w ? a.w[row] : 1.0;
    if (a.kind == DRAW_POSITIVE) return w > 0.0;
    if (a.kind == DRAW_WEIGHT) return (u64)__dmul_rn(w, a.weight_to_integer);
    return (u128)join(quantise_distance(a.scale, w, a.nearest[row]));
}

// ---- the search ------------------------------------------------------------------------------------------------------

#define SEARCHERS 1024
#define OF_SEARCHER 4 // the most entries of a thread in the last step of a search

struct SearchSpace {
    u128 sums[32];
    u128 before;
    u64 place;
};

// Returns the first i in begin..end at which the running sum of weight(i) exceeds `target`. Leaves in `target` what remains of it there.
template <typename Weight>
__device__ __forceinline__ u64 search(u64 begin, u64 end, u128& target, SearchSpace& shared, const Weight& weight) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    // Each warp sums one of 32 parts. Then all warps go on with the part that holds the target. No part is empty, because there are more
    // than 961 entries.
    while (end - begin > OF_SEARCHER * SEARCHERS) {
        const u64 part = (end - begin + 31) / 32;
        const u64 first = begin + warp * part, last = first + part < end ? first + part : end;
        u128 sum = 0;
#pragma unroll 4
        for (u64 i = first + lane; i < last; i += 32) sum += weight(i);
        sum = warp_sum_wide(sum);
        if (lane == 0) shared.sums[warp] = sum;
        __syncthreads();
        u32 p = 0;
        while (p < 31 && target >= shared.sums[p]) target -= shared.sums[p++];
        begin += p * part;
        end = begin + part < end ? begin + part : end;
        __syncthreads();
    }
    // Each thread has some entries that follow each other.
    const u32 each = (u32)((end - begin + SEARCHERS - 1) / SEARCHERS);
    const u64 first = begin + (u64)threadIdx.x * each;
    u128 weights[OF_SEARCHER], own = 0;
#pragma unroll
    for (u32 i = 0; i < OF_SEARCHER; i++) {
        weights[i] = i < each && first + i < end ? weight(first + i) : 0;
        own += weights[i];
    }
    const u128 sum = warp_scan_wide(own);
    if (lane == 31) shared.sums[warp] = sum;
    if (threadIdx.x == 0) {
        shared.place = begin;
        shared.before = 0;
    }
    __syncthreads();
    u128 before = sum - own;
    for (u32 p = 0; p < warp; p++) before += shared.sums[p];
    if (before <= target && target - before < own) {
        u32 i = 0;
#pragma unroll
        for (u32 next = 0; next < OF_SEARCHER - 1; next++)
            if (i == next && target - before >= weights[next]) before += weights[next], i++;
        shared.place = first + i;
        shared.before = before;
    }
    __syncthreads();
    const u64 place = shared.place;
    target -= shared.before;
    __syncthreads();
    return place;
}

// The first row whose running total of draw weights exceeds `target`. All threads of a block of SEARCHERS work on it.
__device__ __forceinline__ u64 drawn_row(const Draws& draws, const u128* totals, u128 target, SearchSpace& shared) {
    const u64 range = search(0, draws.ranges, target, shared, [&](u64 i) { return totals[i]; });
    const u64 begin = range * draws.range, end = begin + draws.range;
    return search(begin, end < draws.n ? end : draws.n, target, shared, [&](u64 i) { return draw_weight(draws, i); });
}

template <typename T, typename S> __device__ __forceinline__ void copy_row(const Rows<T, S>& rows, u64 row, T* out) {
    for (int f = threadIdx.x; f < rows.d; f += blockDim.x) out[f] = rows.at((u64)f * rows.stride + row);
}
