// Rows in doubt of kernels/step/assign_columns.cu: their warp settles them at once. A lane computes the reference distance of one row to
// one centroid in reach.
#pragma once
#include "columns_stream.cuh"

// The rows in doubt of one warp's tile.
struct Doubtful {
    u16 pairs[32]; // the place of a row in the tile, and a centroid in reach in the last 5 bits. The pairs of a row are neighbours
    u8 label[TILE]; // the exact label of a row that was in doubt
};

// Settles the rows of `count` pairs of the tile that begins with row `first`. The whole warp must call this.
template <typename T> __device__ __forceinline__ void settle_pairs(const Assign<T>& a, Doubtful& doubtful, u32 first, u32 count, int lane) {
    __syncwarp();
    const u32 pair = doubtful.pairs[min((u32)lane, count - 1)], place = pair >> 5;
    u32 j = pair & 31;
    const T* x = a.rows.x + first + place;
    const T* c = a.centroid_columns + j;
    double s = 0.0;
    const int FLIGHT = sizeof(T) == 4 ? 16 : 8; // features whose values are on their way
#pragma unroll 1
    for (int left = a.rows.d; left > 0; left -= FLIGHT, x += FLIGHT * a.rows.stride, c += FLIGHT * a.k) {
        T from[FLIGHT], to[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            from[i] = i < left ? x[i * a.rows.stride] : (T)0;
            to[i] = i < left ? c[(u64)i * a.k] : (T)0;
        }
        // A feature that is not there adds 0 * 0, which changes nothing.
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const double t = __dadd_rn((double)from[i], -(double)to[i]);
            s = __fma_rn(t, t, s);
        }
    }
    // The least distance of neighbours with the same row. On ties the smallest centroid.
#pragma unroll 1
    for (u32 o = 1; o < 32; o *= 2) {
        const double other = __shfl_down_sync(FULL_WARP, s, o);
        const u32 row = __shfl_down_sync(FULL_WARP, place, o), i = __shfl_down_sync(FULL_WARP, j, o);
        if (lane + o < count && row == place && (other < s || (other == s && i < j))) s = other, j = i;
    }
    const u32 before = __shfl_up_sync(FULL_WARP, place, 1);
    if ((u32)lane < count && (lane == 0 || before != place)) doubtful.label[place] = (u8)j;
    __syncwarp();
}

// Replaces the labels of all rows in doubt by their exact labels. `reach`: the centroids in reach of each row in doubt. Returns the number of
// rows. The whole warp must call this.
template <typename T>
__device__ __forceinline__ u32 settle(const Assign<T>& a, Doubtful& doubtful, u32 first, u32 doubt, const u32 (&reach)[ROWS], u32 (&label)[ROWS],
                                      int lane) {
    u32 pairs = 0, rows = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll 1
        for (u32 lanes = __ballot_sync(FULL_WARP, doubt >> r & 1); lanes; lanes &= lanes - 1, rows++) {
            const int source = __ffs(lanes) - 1;
            const u32 bits = __shfl_sync(FULL_WARP, reach[r], source), count = __popc(bits);
            if (pairs + count > 32) {
                settle_pairs(a, doubtful, first, pairs, lane);
                pairs = 0;
            }
            if (bits >> lane & 1)
                doubtful.pairs[pairs + __popc(bits & ((1u << lane) - 1))] = (u16)(place_of<T>(source, r) << 5 | lane);
            pairs += count;
        }
    }
    if (pairs) settle_pairs(a, doubtful, first, pairs, lane);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (doubt >> r & 1) label[r] = doubtful.label[place_of<T>(lane, r)];
    return rows;
}
