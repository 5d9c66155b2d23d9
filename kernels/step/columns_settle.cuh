// Rows in doubt of kernels/step/assign_columns.cu. A warp keeps them until their pairs with centroids in reach fill its lanes. Then each
// lane computes one reference distance. This takes about as long for one pair as for 32, because the lanes wait for memory.
#pragma once
#include "columns_sums.cuh"

// The rows in doubt of one warp.
struct Doubtful {
    u16 pairs[32]; // the place of a row below, and a centroid in reach in the last 5 bits. The pairs of a row are neighbours
    u32 row[32];
    u8 old[32]; // the label before
    u32 count, rows; // pairs and rows
};

// Gives the rows of all pairs their exact labels, and lists the rows that move. The list must have room for them. The whole warp must
// call this.
template <typename T, typename S> __device__ __forceinline__ void settle_pairs(const Assign<T, S>& a, Doubtful& doubtful, List& list, int lane) {
    __syncwarp();
    const u32 count = doubtful.count;
    const u32 pair = doubtful.pairs[min((u32)lane, count - 1)], place = pair >> 5, row = doubtful.row[place];
    u32 j = pair & 31;
    const S* x = a.rows.x + row;
    const T* c = a.centroid_columns + j;
    double s = 0.0;
    const int FLIGHT = sizeof(T) == 4 ? 16 : 8; // features whose values are on their way
#pragma unroll 1
    for (int left = a.rows.d; left > 0; left -= FLIGHT, x += FLIGHT * a.rows.stride, c += FLIGHT * a.k) {
        T from[FLIGHT], to[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            from[i] = i < left ? a.rows.value(x[i * a.rows.stride]) : (T)0;
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
        const u32 of = __shfl_down_sync(FULL_WARP, place, o), i = __shfl_down_sync(FULL_WARP, j, o);
        if (lane + o < count && of == place && (other < s || (other == s && i < j))) s = other, j = i;
    }
    const u32 before = __shfl_up_sync(FULL_WARP, place, 1), old = doubtful.old[place];
    if ((u32)lane < count && (lane == 0 || before != place) && j != old) {
        ((u8*)a.labels.at)[row] = (u8)j;
        if (!a.rows.w || a.rows.w[row] > 0.0) list.add(atomicAdd(&list.count, 1u), row, old, j);
    }
    __syncwarp();
    if (lane == 0) doubtful.count = 0, doubtful.rows = 0;
    __syncwarp();
}

// Keeps the rows in doubt of the tile that begins with row `first`. `reach`: the centroids in reach of each. `old`: the four labels before.
// Returns the number of rows. The whole warp must call this.
template <typename T, typename S>
__device__ __forceinline__ u32 keep(const Assign<T, S>& a, Doubtful& doubtful, List& list, u32 first, u32 doubt, const u32 (&reach)[ROWS], u32 old,
                                    int lane) {
    u32 pairs = doubtful.count, rows = doubtful.rows, all = 0;
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        const u32 in_reach = r == 0 ? reach[0] : r == 1 ? reach[1] : r == 2 ? reach[2] : reach[3];
#pragma unroll 1
        for (u32 lanes = __ballot_sync(FULL_WARP, doubt >> r & 1); lanes; lanes &= lanes - 1, all++) {
            const int source = __ffs(lanes) - 1;
            const u32 bits = __shfl_sync(FULL_WARP, in_reach, source), count = __popc(bits);
            if (pairs + count > 32) {
                if (lane == 0) doubtful.count = pairs;
                settle_pairs(a, doubtful, list, lane);
                pairs = 0, rows = 0;
            }
            if (bits >> lane & 1) doubtful.pairs[pairs + __popc(bits & ((1u << lane) - 1))] = (u16)(rows << 5 | lane);
            if (lane == source) doubtful.row[rows] = first + place_of<T>(lane, r), doubtful.old[rows] = (u8)(old >> 8 * r);
            pairs += count, rows++;
        }
    }
    if (lane == 0) doubtful.count = pairs, doubtful.rows = rows;
    __syncwarp();
    return all;
}
