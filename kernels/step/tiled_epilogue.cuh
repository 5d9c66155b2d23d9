// The end of a tile in kernels/step/assign_tiled.cu: the best scores of each row, its label, and the lists of rows in doubt.
#pragma once
#include "best.cuh"
#include "tiled_multiply.cuh"

// Four lanes share 8 rows. They exchange halves, so each ends with two rows and all have work: rows 2 lane and 2 lane + 1 of the warp.
template <typename S>
__device__ __forceinline__ void best_of_tile(const Scores& scores, u32 base, int lane, Best<S::panels> (&two)[2]) {
    typedef Best<S::panels> Nearest;
    const bool upper = lane & 16, odd = lane & 1;
    Nearest rows[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        Nearest low = best_of<S::panels>(scores[r], base), high = best_of<S::panels>(scores[r + 4], base);
        Nearest given = upper ? low : high, kept = upper ? high : low;
        kept.merge(exchange(given, 16));
        rows[r] = kept;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        Nearest given = odd ? rows[r] : rows[r + 2], kept = odd ? rows[r + 2] : rows[r];
        kept.merge(exchange(given, 1));
        two[r] = kept;
    }
}

// Merges a lane's two rows with their best of the tiles of centroids before, and leaves them in shared memory. `Shared`: `TiledShared`, or another struct
// with such arrays.
template <typename S, typename Shared>
__device__ __forceinline__ void keep_best(Shared& s, float2* thirds, const Operands& o, int lane, bool first_tile,
                                          Best<S::panels> (&rows)[2]) {
    const int at = (int)opaque((u32)(o.warp_row * (WARP_ROWS / 2) + lane));
    float2 *best_at = &s.best[o.warp_centroid][at], *second_at = &s.second[o.warp_centroid][at];
    uint2* index_at = &s.index[o.warp_centroid][at];
    if (!first_tile) {
        float2 best = *best_at, second = *second_at;
        uint2 index = *index_at;
        Best<S::panels> before[2];
        before[0].best = best.x, before[0].second = second.x, before[0].index = index.x;
        before[1].best = best.y, before[1].second = second.y, before[1].index = index.y;
        if constexpr (S::panels) {
            float2 third = thirds[o.warp_centroid * (ROWS / 2) + at];
            before[0].third = third.x, before[1].third = third.y;
        }
        rows[0].merge(before[0]);
        rows[1].merge(before[1]);
    }
    *best_at = {rows[0].best, rows[1].best};
    *second_at = {rows[0].second, rows[1].second};
    *index_at = {rows[0].index, rows[1].index};
    if constexpr (S::panels) thirds[o.warp_centroid * (ROWS / 2) + at] = {rows[0].third, rows[1].third};
}

// What the warps of column `across` found for the row at place p.
template <typename S, typename Shared>
__device__ __forceinline__ Best<S::panels> kept_best(const Shared& s, const float2* thirds, int across, int p) {
    Best<S::panels> b;
    b.best = ((const float*)s.best[across])[p], b.second = ((const float*)s.second[across])[p];
    b.index = ((const u32*)s.index[across])[p];
    if constexpr (S::panels) b.third = ((const float*)thirds)[across * ROWS + p];
    return b;
}

// Leaves what this block found for a tile of rows in device memory. The last of the blocks that share the tile merges what all of them
// found, where `kept_best` finds it, and gets true. All threads must call this.
template <typename S>
__device__ __forceinline__ bool gather_shares(const Assign<typename S::T, typename S::V>& a, TiledShared<S>& s, float2* thirds, u32 row_tile, int tid) {
    ShareBest* const all = a.share_bests + (u64)row_tile * a.shares * ROWS;
#pragma unroll 1
    for (int p = tid; p < ROWS; p += S::threads) {
        Best<S::panels> b = kept_best<S>(s, thirds, 0, p);
#pragma unroll
        for (int w = 1; w < S::warps_across; w++) b.merge(kept_best<S>(s, thirds, w, p));
        float third = 0.0f;
        if constexpr (S::panels) third = b.third;
        const float4 words = {b.best, b.second, third, __uint_as_float(b.index)};
        __stcg((float4*)(all + (blockIdx.x % a.shares) * ROWS + p), words);
    }
    __threadfence();
    __syncthreads();
    if (tid == 0) s.last = atomicInc(&a.share_tickets[row_tile], a.shares - 1) == a.shares - 1;
    __syncthreads();
    if (!s.last) return false;
    __threadfence();
#pragma unroll 1
    for (int p = tid; p < ROWS; p += S::threads) {
        Best<S::panels> b;
#pragma unroll 1
        for (u32 share = 0; share < a.shares; share++) {
            const float4 words = __ldcg((const float4*)(all + share * ROWS + p));
            Best<S::panels> other;
            other.best = words.x, other.second = words.y, other.index = __float_as_uint(words.w);
            if constexpr (S::panels) other.third = words.z;
            if (share == 0) b = other;
            else b.merge(other);
        }
        // `decide` merges the warps across once more. The others have nothing.
#pragma unroll
        for (int w = 0; w < S::warps_across; w++) {
            ((float*)s.best[w])[p] = w == 0 ? b.best : infinity_f(), ((float*)s.second[w])[p] = w == 0 ? b.second : infinity_f();
            ((u32*)s.index[w])[p] = b.index;
            if constexpr (S::panels) ((float*)thirds)[w * ROWS + p] = w == 0 ? b.third : infinity_f();
        }
    }
    return true;
}

// Appends the rows of all lanes that are `listed`, with one addition to the counter a warp. All lanes of the warp must call this.
__device__ __forceinline__ void list_rows(bool listed, u32* counter, RowInDoubt* list, int direction, RowInDoubt entry, int lane) {
    const u32 mask = __ballot_sync(FULL_WARP, listed);
    if (mask == 0) return;
    const int leader = __ffs((int)mask) - 1;
    u32 position = 0;
    if (lane == leader) position = atomicAdd(counter, (u32)__popc(mask));
    position = __shfl_sync(FULL_WARP, position, leader) + (u32)__popc(mask & ((1u << lane) - 1));
    if (listed) list[direction * (i64)position] = entry;
}

// Decides the rows of a tile from the results of all warps across it.
template <typename S>
__device__ __forceinline__ void decide(const Assign<typename S::T, typename S::V>& a, const TiledShared<S>& s, const float2* thirds, u32 row_tile, int tid) {
    const int lane = tid & 31;
#pragma unroll
    for (int p = tid; p < ROWS; p += S::threads) {
        Best<S::panels> b = kept_best<S>(s, thirds, 0, p);
#pragma unroll
        for (int w = 1; w < S::warps_across; w++) b.merge(kept_best<S>(s, thirds, w, p));
        float sum = ((const float*)s.squares[0])[p];
#pragma unroll
        for (int i = 1; i < S::warps; i++) sum = __fadd_rn(sum, ((const float*)s.squares[i])[p]);
        const float limit = reach(*a.bound, sum, b.best, __ldg(a.slacks + b.first()));

        u64 row = (u64)row_tile * ROWS + place_row<typename S::T>(p);
        const bool inside = row < a.rows.n, certified = b.second > limit;
        bool pair = false;
        // All lanes get here, because ROWS and the number of threads are multiples of 32.
        if constexpr (S::panels) {
            pair = !certified && b.third > limit;
            list_rows(inside && pair, &a.control->pairs, a.in_doubt, 1, {(u32)row, b.index >> 16}, lane);
        }
        if (inside && (certified || pair)) store_label(a.next, row, b.first());
        list_rows(inside && !certified && !pair, &a.control->in_doubt, a.in_doubt + (a.rows.n - 1), -1, {(u32)row, 0}, lane);
    }
}
